#!/usr/bin/env bash
# rerun_test.sh KAKEYA ROOT - a draw of rows of the stored reports of the shipped models is executed
# again.  Reports in `retake` are of a build whose bytes or hashes were others: docs/reports.md says
# how they are executed; a report that is taken again leaves the list.
set -u
kakeya=$1 root=$2 failed=0 ran=0
retake=" needle-tiny restored-all "
for report in "$root"/bench/results/{sweep,kv,memory,needle,arms,sessions}-tiny*.json \
    "$root"/bench/results/policies-tiny-{1024,3000,8000}.json \
    "$root"/bench/results/restored-{all,sliding}.json; do
    name=$(basename "$report" .json)
    case $retake in *" $name "*) continue ;; esac
    [ -f "$report" ] || continue
    "$kakeya" report rerun "$report" --rows 1 -s "${SEED:-1}" -q || failed=$((failed + 1))
    ran=$((ran + 1))
done
echo "$ran reports executed again, $failed differ"
[ "$failed" -eq 0 ] && [ "$ran" -ge 10 ]
