#!/usr/bin/env bash
# The shipped projection: recall, KL and bytes of what it rebuilds, on documents and texts that it
# was not trained on; and random weights in its place do not pass the same limits.
. "$(dirname "$0")/lib.sh"
tiny=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
ask=(eval needle -m "$tiny/verifier" -md none --arms restored --ladder 60 --samples 2 -t 1 -q
    --text-tokens 400)

# measure PROJECTION NAME - runs it with the limits; the exit code says whether they hold.
measure() {
    kakeya "${ask[@]}" -mp "$1" --report "$work/$2.json" --min-recall 1 \
        --max-kl 0.01 --min-kv-ratio 3.4
    [ -s "$work/$2.json" ] || fail "no report: $err"
}
measure "$tiny/projection" shipped
same "$code" 0 "the shipped projection: $err"

# The same file with its numbers replaced: small, finite, of the same size and type (bf16).
mkdir "$work/random"
cp "$tiny/projection/projection.json" "$work/random"
python3 - "$tiny/projection/projection.safetensors" "$work/random/projection.safetensors" <<'PY'
import random, struct, sys
data = open(sys.argv[1], "rb").read()
head = 8 + struct.unpack("<Q", data[:8])[0]
random.seed(1)
n = (len(data) - head) // 2
words = (struct.unpack("<I", struct.pack("<f", random.gauss(0, 0.05)))[0] >> 16 for _ in range(n))
open(sys.argv[2], "wb").write(data[:head] + struct.pack("<%dH" % n, *words))
PY
# Weights and description are refused until both their checksums are those of the new numbers.
for part in 'projection.safetensors in .* and not' 'projection.json was changed .* and it says'; do
    kakeya "${ask[@]}" -mp "$work/random"
    sum=$(printf '%s\n' "$err" |
        sed -n "s/.*\($part\) \([0-9a-f]*\).*/\2/p" | head -n 1)
    new=$(printf '%s\n' "$err" | sed -n 's/.*its checksum is \([0-9a-f]*\).*/\1/p')
    [ -n "$sum" ] && [ -n "$new" ] || fail "not refused by its checksum: $err"
    sed -i "s/$sum/$new/" "$work/random/projection.json"
done
measure "$work/random" random
same "$code" 1 "random weights"
has "$err" "restored: 0 of 2 needles found"
python3 - "$work/random.json" <<'PY' || fail "random weights have the KL of a projection"
import json, sys
checks = json.load(open(sys.argv[1]))["gate"]["checks"]
sys.exit(not [c for c in checks if c["figure"] == "mean_kl" and c["value"] > 1 and not c["holds"]])
PY
finish
