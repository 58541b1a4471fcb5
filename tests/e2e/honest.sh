#!/usr/bin/env bash
# What goes wrong inside is said, and ends with a code of its own: no silent nonsense.
. "$(dirname "$0")/lib.sh"
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny

# ---- values that are not finite -----------------------------------------------------------------

# NaN over layer 9's V, which lies just before the last norm (512 bytes of bfloat16).
broken=$work/broken
cp -r "$shipped/verifier" "$broken" && chmod -R u+w "$broken"
size=$(stat -c %s "$broken/model.safetensors")
for _ in $(seq 512); do printf '\300\177'; done |
    dd of="$broken/model.safetensors" bs=1 seek=$((size - 512 - 4096)) conv=notrunc status=none
for how in "" "--temp 1" "--spec ngram" "--json" "-c 64 -t 1"; do
    # shellcheck disable=SC2086
    exits 1 run -m "$broken" -p 'def f():' -n 8 $how
    has "$err" "not finite" "layer 9 (from 0)" "info --check"
    lacks "$err" "tok/s"
done
exits 1 info --check -m "$broken"
has "$out$err" "layers.9.self_attn.v_proj.weight"
exits 0 info --check -m "$shipped/verifier"

finish
