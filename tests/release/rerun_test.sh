#!/usr/bin/env bash
# rerun_test.sh KAKEYA ROOT LOSSLESS_ALL - a draw of rows of the stored reports of the shipped models is
# executed again, and the trainings as a whole; of lossless-all a draw of its prompts.  Not among them:
#   restored-embed       its projection, of the token alone, is not in the repository (docs/reports.md)
#   policies-*-r*, memory-*-ranks   their projections of other ranks are not shipped
set -u
kakeya=$1 root=$2 lossless_all=$3 failed=0 ran=0
results=$root/bench/results seed=${SEED:-1}
for report in "$results"/{sweep,kv,memory,needle,arms,sessions,steps}-tiny*.json \
    "$results"/policies-tiny-{1024,3000,8000}.json \
    "$results"/restored-{all,sliding}.json "$results"/{projection,ladder}-*.json; do
    [ -f "$report" ] || continue
    case $report in *-ranks.json) continue ;; esac
    "$kakeya" report rerun "$report" --rows 1 -s "$seed" -q || failed=$((failed + 1))
    ran=$((ran + 1))
done
"$lossless_all" --against "$results/lossless-all.json" --draw 2 --seed "$seed" || failed=$((failed + 1))
ran=$((ran + 1))
echo "$ran reports executed again, $failed differ"
[ "$failed" -eq 0 ] && [ "$ran" -ge 26 ]
