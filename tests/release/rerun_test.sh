#!/usr/bin/env bash
# rerun_test.sh KAKEYA ROOT - a draw of rows of the stored reports of the shipped models is executed
# again.  Not among them:
#   restored-embed       its projection, of the token alone, is not shipped
#   projection-*         of five trainings one is made again; they differ in their loss alone
#   lossless-all         `lossless_all` executes its cases; report rerun refuses the kind
#   policies-*-r*, memory-*-ranks   their projections of other ranks are not shipped
set -u
kakeya=$1 root=$2 failed=0 ran=0
results=$root/bench/results
for report in "$results"/{sweep,kv,memory,needle,arms,sessions,steps}-tiny*.json \
    "$results"/policies-tiny-{1024,3000,8000}.json \
    "$results"/restored-{all,sliding}.json "$results"/projection-mse.json; do
    [ -f "$report" ] || continue
    case $report in *-ranks.json) continue ;; esac
    "$kakeya" report rerun "$report" --rows 1 -s "${SEED:-1}" -q || failed=$((failed + 1))
    ran=$((ran + 1))
done
echo "$ran reports executed again, $failed differ"
[ "$failed" -eq 0 ] && [ "$ran" -ge 13 ]
