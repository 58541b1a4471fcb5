#!/usr/bin/env bash
# `kakeya train projection`: from texts to a projection with a report; what is refused, and why.
. "$(dirname "$0")/lib.sh"
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny/verifier

mkdir "$work/texts"
for i in $(seq 30); do
    printf 'def number_%d():\n    """The number %d, and %d more words."""\n    return %d\n' \
        "$i" "$i" "$i" "$i" >"$work/texts/file$i.py"
done
train=(train projection -m "$shipped" -md none --taps 4 --layers full --rank 8 --needles 1
    --needle-lines 20 -t 1)

# Without its module the program says so, and does all else.
mkdir "$work/alone"
cp "$KAKEYA" "$work/alone/kakeya"
built=$KAKEYA KAKEYA=$work/alone/kakeya
exits 1 "${train[@]}" --out "$work/x" --data "$work/texts"
has "$err" "training needs its module libkakeya_train.so, which does not load"
same "$out" ""
exits 0 run -q -m "$shipped" -p x -n 2
echo 'no module' >"$work/alone/libkakeya_train.so"
exits 1 "${train[@]}" --out "$work/x" --data "$work/texts"
has "$err" "libkakeya_train.so, which does not load" "alone"
# A shared object without the entry.
need_tool cc
echo 'int nothing;' | cc -shared -fPIC -x c - -o "$work/alone/libkakeya_train.so"
exits 1 "${train[@]}" --out "$work/x" --data "$work/texts"
has "$err" "the module of another build"
KAKEYA=$built
if [ -z "${KK_TRAIN_MODULE:-}" ]; then
    exits 1 "${train[@]}" --out "$work/x" --data "$work/texts"
    has "$err" "libkakeya_train.so"
    skip_all "the module of kakeya train is not built (scripts/setup train)"
fi

exits 0 "${train[@]}" --out "$work/p" --report "$work/report.json" --data "$work/texts"
has "$out" "rank 8 of 256 features" "held out" "ridge"
lacks "$err" $'\033'
[ -s "$work/p/projection.json" ] && [ -s "$work/p/projection.safetensors" ] ||
    fail "there is no projection"
report=$(cat "$work/report.json")
json "$report" schema kind version command machine model projection settings train evaluation \
    stages rel_mse layers blocks n_params collect_seconds
has "$report" '"kind": "projection"' '"loss": "ridge"'

# Steps: the curve on stderr, a state to go on from.
exits 0 "${train[@]}" --out "$work/s" --loss attn_distill --steps 4 --log-every 2 \
    --checkpoint-every 2 --window 16 --chunk 16 --data "$work/texts"
has "$err" "step      2" "step      4" "of its square"
has "$out" "at first" "attn_distill"
[ -s "$work/s/training.state" ] || fail "no state was kept"

# What cannot be.
exits 2 train
has "$err" "projection"
exits 2 train drafter
has "$err" "there is no kind 'drafter'"
exits 2 train projection
has "$err" "--out"
exits 2 "${train[@]}" --out "$work/x" --rank 0
exits 2 "${train[@]}" --out "$work/x" --loss huber
exits 2 "${train[@]}" --out "$work/x" --taps 1,two
has "$err" "two"
exits 2 "${train[@]}" --out "$work/x" "$work/texts"
has "$err" "--data"
exits 1 "${train[@]}" --out "$work/x" --data "$work/nothing"
has "$err" "$work/nothing"
mkdir "$work/empty"
exits 1 "${train[@]}" --out "$work/x" --needles 0 --data "$work/empty"
has "$err" "no text to train on"
exits 1 "${train[@]}" --out "$work/x" --needles 0 --window 4000 --data "$work/texts"
has "$err" "nothing is left to rebuild"
exits 1 "${train[@]}" --out "$work/x" --source context --data "$work/texts"
has "$err" "drafter"
exits 1 "${train[@]}" --out "$work/x" --loss mse --resume --data "$work/texts"
has "$err" "training.state"
printf '{"text": "some words"}\nno JSON\n' >"$work/lines.jsonl"
exits 1 "${train[@]}" --out "$work/x" --data "$work/lines.jsonl"
has "$err" "line 2 of" "A line of a .jsonl file is an object"
lacks "$err" "kakeya info"
exits 0 help train projection
has "$out" "--rank" "attn_distill_hybrid"
finish
