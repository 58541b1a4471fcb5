#!/usr/bin/env bash
# `kakeya train projection --ladder`: checks before, documents that get longer afterwards, and the
# first rung that fails ends the climb.
. "$(dirname "$0")/lib.sh"
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny/verifier

mkdir "$work/texts"
for i in $(seq 30); do
    printf 'def number_%d():\n    """The number %d, and %d more words."""\n    return %d\n' \
        "$i" "$i" "$i" "$i" >"$work/texts/file$i.py"
done
train=(train projection -m "$shipped" -md none --data "$work/texts" --tokens 1000 --needles 3
    --needle-lines 20 --samples 2 --text-tokens 200 -q)

# What cannot be is said before anything is trained.
exits 2 "${train[@]}" --out "$work/x" --ladder 16,10
has "$err" "ascending"
exits 2 "${train[@]}" --out "$work/x" --ladder ten
has "$err" "ten"
exits 2 "${train[@]}" --out "$work/x" --ladder 10 --json --report -
has "$err" "exclude each other"
exits 2 "${train[@]}" --out "$work/x" --json --report "$work/r.json"
has "$err" "--json is --report -"
exits 1 "${train[@]}" --out "$work/x" --ladder 10,100000
has "$out" "check     weights  PASS" "check     device   PASS" "check     ladder   FAIL"
has "$err" "the rung of 100000 lines needs a context of"
# Weights that are not finite: the first value of the last tensor, which ends the file.
mkdir "$work/broken"
cp "$shipped"/* "$work/broken"
weights=$(ls "$work/broken"/*.safetensors | tail -1)
size=$(stat -c %s "$weights")
printf '\377\377' | dd of="$weights" bs=1 seek=$((size - 2)) conv=notrunc status=none
exits 1 "${train[@]}" -m "$work/broken" --out "$work/x" --ladder 10
has "$out" "check     weights  FAIL" "not finite"
[ ! -e "$work/x" ] || fail "something was trained"

[ -n "${KK_TRAIN_MODULE:-}" ] || skip_all "the module of kakeya train is not built (scripts/setup train)"

# Full layers keep their rows, so that codes are found however little was trained.
exits 0 "${train[@]}" --out "$work/p" --taps 2,5,8 --rank 64 --layers sliding --ladder 10,16 \
    --max-kl 0.5 --report "$work/training.json" --json
json "$out" holds checks training rungs lines tokens recall_exact recall mean_kl kv_ratio report
has "$(printf '%s' "$out" | tr -d ' \n')" '"lines":10,"run":true,"holds":true' \
    '"lines":16,"run":true,"holds":true' 'needle-16.json'
has "$err" "rung      10" "rung      16" "PASS"
lacks "$err" "FAIL"
exits 0 report check "$work/training.json" "$work/p/needle-10.json" "$work/p/needle-16.json"
has "$out" "3 hold"
has "$(tr -d ' \n' <"$work/p/needle-16.json")" '"kv_sliding":"restored","kv_full":"exact"' \
    '"max_kl":0.5' '"figure":"mean_kl"' '"ladder":[16]'

# A projection of rank 1 rebuilds nothing of use: the first rung fails, and no other is run.
exits 1 "${train[@]}" --out "$work/bad" --taps 4 --rank 1 --ladder 10,16
has "$out" "rung      10" "FAIL" "mean_kl is" "rung      16  not run"
has "$err" "a rung of the ladder failed"
[ -s "$work/bad/needle-10.json" ] || fail "there is no report of the rung that failed"
[ ! -e "$work/bad/needle-16.json" ] || fail "a rung behind the failed one was run"
exits 0 report check "$work/bad/needle-10.json"
has "$(tr -d ' \n' <"$work/bad/needle-10.json")" '"gate":{"holds":false'
exits 0 help train projection
has "$out" "--ladder" "--max-kl"
finish
