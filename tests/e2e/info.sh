#!/usr/bin/env bash
# `kakeya info`, `doctor` and `version`.
. "$(dirname "$0")/lib.sh"
moe=$KK_TEST_DATA/parity/moe

exits 0 info -m "$moe"
same "$err" ""
has "$out" "6: 5 sliding (window 8), 1 full with K = V" "8, 2 used per token" "bf16 weights" \
    "fits here    yes" "per token"
exits 0 info -m "$moe" --json
json "$out" name weight_type format layers sliding_layers full_layers vocab hidden heads window \
    context experts experts_used k_eq_v params params_active weight_bytes token_bytes \
    kv_full_per_token kv_sliding_max kv_bytes_at 8192 32768 131072 memory_free fits fits_context
has "$out" '"layers": 6' '"vocab": 320' '"fits": true'
exits 0 info --synthetic tiny:q4_0
has "$out" "q4_0 weights (synthetic)"

# A drafter, and what an engine takes before the first token.
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
exits 0 info -m "$shipped/verifier" -md "$shipped/drafter"
has "$out" "drafter      3 layers of width 256, blocks of 8, reads layers 1, 4, 10" \
    "4.33 million parameters" "weights.verifier" "weights.drafter" "workspace"
exits 0 info -m "$shipped/verifier" -md "$shipped/drafter" --json
json "$out" drafter block taps embed_scale bytes weights.drafter
has "$out" '"taps": [1, 4, 10]' '"embed_scale": "once"'
exits 0 info -m "$shipped/verifier"
lacks "$out" "drafter"
exits 0 info -m "$shipped/verifier" --json
has "$out" '"drafter": null' '"weights.drafter": 0'
exits 0 info --synthetic tiny:f32 -md synthetic
has "$out" "blocks of 16"
exits 1 info -m "$moe" -md "$shipped/drafter"
[ -n "$err" ] || fail "nothing said of a drafter for another model"

# Weights that are not numbers load, and are found.
exits 0 info -m "$moe" --check
has "$out" "every weight is finite"
mkdir "$work/bad"
cp "$moe/config.json" "$moe/model.safetensors" "$work/bad"
size=$(wc -c <"$work/bad/model.safetensors")
printf '\300\177' | dd of="$work/bad/model.safetensors" bs=1 seek=$((size - 2)) conv=notrunc 2>"$work/err"
exits 1 info -m "$work/bad" --check
has "$out" "not finite"
has "$err" "1 weights are not finite"
exits 1 info -m "$work/bad" --check --json
json "$out" bad_values bad_tensors
has "$out" '"bad_values": 1'
exits 1 run -m "$work/bad" --tokens 2,3 -n 2 -q
has "$err" "not finite"

# Damaged and missing files, each with a sentence.
exits 1 info -m "$work/nowhere"
head -c 1000 "$moe/model.safetensors" >"$work/bad/model.safetensors"
exits 1 info -m "$work/bad"
[ -n "$err" ] || fail "nothing said of a truncated file"
: >"$work/empty.gguf"
exits 1 info -m "$work/empty.gguf"
[ -n "$err" ] || fail "nothing said of an empty file"

exits 0 doctor
has "$out" "cpu " "cores " "memory " "GB/s read (measured)" "cpu: usable" "cuda: " "mlx: " \
    "estimate" "not measured" "jansson" "libedit"
exits 0 doctor --json
json "$out" cpu features best_isa cores memory memory_free bandwidth backends libraries

exits 0 version
has "$out" "kakeya 0." "compiler" "backends  cpu"
# Advice about a broken file is not to do what was just done.
cp -r "$model" "$work/broken"
printf '{' >"$work/broken/config.json"
exits 1 info -m "$work/broken"
has "$err" "config.json" "Download or convert the file again."
lacks "$err" "kakeya info"
finish
