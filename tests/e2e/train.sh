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

# Sums on the device say what they take before, and give the same; random weights read random ids,
# and what comes of them restores rows of these.
exits 0 "${train[@]}" --out "$work/d" --sums device --data "$work/texts"
has "$err" "sums take" "GB of the device" "capturing rows: " "rows/s" "solving: 4 of 4, decoders"
has "$out" "sums        on the device"
exits 0 "${train[@]}" --out "$work/quiet" --sums device -q --data "$work/texts"
same "$err" ""
random=(train projection --device cpu --synthetic tiny:f32:2 --rank 8 --layers sliding -t 1 -q)
exits 0 "${random[@]}" --out "$work/random" --tokens 400 --length 100 --sums device
has "$out" "400 rows of 4 sequences; 100 rows held out"
exits 0 bench -q -mp "$work/random" --synthetic tiny:f32:2 --device cpu -t 1 --policies \
    exact,restored-sliding --ctx 100 --window 16 --chunk 16 --repeat 1 -n 4 --rows none --prefill 0
has "$out" "restored-sliding"
exits 1 "${random[@]}" --out "$work/x" --data "$work/texts"
has "$err" "no tokenizer"
exits 2 "${random[@]}" --out "$work/x" -m "$shipped"
has "$err" "--synthetic exclude each other"
exits 2 "${random[@]}" --out "$work/x" --ladder
has "$err" "--ladder" "--synthetic"
exits 1 "${train[@]}" --out "$work/x" --sums device --source embed --data "$work/texts"
exits 2 "${train[@]}" --out "$work/x" --sums elsewhere --data "$work/texts"

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
