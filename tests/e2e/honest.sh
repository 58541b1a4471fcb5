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

# ---- other weights of the same model ------------------------------------------------------------

exits 0 quantize "$shipped/verifier" "$work/q4.gguf" --type q4_0 -q
restored="--kv-sliding restored --kv-full restored"
# shellcheck disable=SC2086
exits 0 run -m "$work/q4.gguf" -mp "$shipped/projection" $restored -p 'def f():' -n 4
has "$err" "not the weights it was made with"
# shellcheck disable=SC2086
exits 0 run -m "$work/q4.gguf" -mp "$shipped/projection" $restored -p 'def f():' -n 4 --json
has "$out" '"other_weights": true'
# shellcheck disable=SC2086
exits 0 run -m "$shipped/verifier" -mp "$shipped/projection" $restored -p 'def f():' -n 4 --json -v
has "$out" '"other_weights": false'
lacks "$err" "not the weights"
lacks "$err" "checksum"
# shellcheck disable=SC2086
exits 1 run -m "$model" -mp "$shipped/projection" $restored -p 'def f():' -n 4
has "$err" "another model"
# Without checksums a projection is read, and -v says what nobody knows.
cp -r "$shipped/projection" "$work/old" && chmod -R u+w "$work/old"
sed -i '/_checksum/d' "$work/old/projection.json"
# shellcheck disable=SC2086
exits 0 run -m "$shipped/verifier" -mp "$work/old" $restored -p 'def f():' -n 4 -v
has "$err" "carries no checksums"

# ---- a file that is shortened while it is in use ------------------------------------------------

cp -r "$shipped/verifier" "$work/short" && chmod -R u+w "$work/short"
"$KAKEYA" run -m "$work/short" -p 'def f():' -n 100000 -c 8192 --ignore-eos -t 1 \
    >"$work/short.out" 2>"$work/short.err" </dev/null &
pid=$!
for _ in $(seq 100); do [ -s "$work/short.out" ] && break; sleep 0.1; done
truncate -s 4096 "$work/short/model.safetensors"
wait $pid
same $? 1 "a shortened model"
has "$(cat "$work/short.err")" "short/model.safetensors' was shortened"

# ---- a full context -----------------------------------------------------------------------------

exits 0 run -m "$shipped/verifier" -p 'def f():' -c 32 -n 100 --ignore-eos
has "$err" "the context of 32 tokens is full"
exits 0 run -m "$shipped/verifier" -p 'def f():' -c 32 -n 100 --ignore-eos --json
has "$out" '"stop": "context"'
exits 0 run -m "$shipped/verifier" -p 'def f():' -c 32 -n 8 --ignore-eos --json
has "$out" '"stop": "length"'
lacks "$err" "full"

# What cannot fit is refused by its length, not after it was encoded (which takes 15 s).
head -c 50000000 /dev/zero | tr '\0' ' ' >"$work/spaces"
SECONDS=0
exits 1 run -m "$shipped/verifier" -f "$work/spaces" -n 4
has "$err" "tokens at least, the context holds 4096"
[ "$SECONDS" -lt 5 ] || fail "50 MB of spaces were refused after $SECONDS seconds"

finish
