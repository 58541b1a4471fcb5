#!/usr/bin/env bash
# rerun_test.sh KAKEYA ROOT LOSSLESS_ALL - a draw of rows of the stored reports of the shipped models is
# executed again, and the trainings as a whole; of lossless-all a draw of its prompts.  The projection
# of restored-embed is not in the repository: it is trained first, as projection-embed says.
# restored-mlx needs the MLX device, which not every build has.
set -u
kakeya=$1 root=$2 lossless_all=$3 failed=0 ran=0 left=0
results=$root/bench/results seed=${SEED:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# again REPORT ARG...
again() {
    "$kakeya" report rerun "$@" --rows 1 -s "$seed" -q || failed=$((failed + 1))
    ran=$((ran + 1))
}

for report in "$results"/{sweep,kv,memory,needle,arms,sessions,steps,load}-tiny*.json \
    "$results"/policies-tiny-{1024,3000,8000}.json \
    "$results"/restored-{all,sliding}.json "$results"/{projection,ladder}-*.json; do
    case $report in */projection-embed.json) continue ;; esac
    [ -f "$report" ] && again "$report"
done

# The fingerprint must be that of the report, so that the weights are: rows that were captured by
# other kernels give others, and there is nothing to compare then.
isa() { sed -n 's/^ *"isa": "\([^"]*\)".*/\1/p' "$1" | head -1; }
"$kakeya" train projection --source embed --rank 256 --ridge-full 8 --out "$work/embed" -q \
    --report "$work/projection-embed.json" >"$work/said" 2>&1 || cat "$work/said"
if [ "$(isa "$work/projection-embed.json")" = "$(isa "$results/restored-embed.json")" ]; then
    again "$results/restored-embed.json" -mp "$work/embed"
else
    echo "restored-embed is not executed: it was made by the kernels for $(isa "$results/restored-embed.json")"
    left=$((left + 1))
fi
if [ -e "$(dirname "$kakeya")/libkakeya_mlx.so" ]; then
    again "$results/restored-mlx.json" --device mlx
else
    echo "restored-mlx is not executed: the MLX device is not built"
    left=$((left + 1))
fi
"$lossless_all" --against "$results/lossless-all.json" --draw 2 --seed "$seed" || failed=$((failed + 1))
ran=$((ran + 1))
echo "$ran reports executed again, $failed differ"
[ "$failed" -eq 0 ] && [ $((ran + left)) -ge 30 ]
