#!/usr/bin/env bash
# The kinds of `kakeya eval` that vary how K/V rows are kept: sweep, kv and memory.
. "$(dirname "$0")/lib.sh"
tiny=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
shipped=$tiny/verifier

projection=$work/projection
sed 's/^/# /' "$tiny/README.md" | head -c 6000 >"$work/text.txt"
exits 0 train projection -m "$shipped" -md none --taps 1,4,10 --rank 64 --out "$projection" -t 1 -q \
    --data "$work/text.txt" --length 600 --tokens 600 --needles 2 --needle-lines 40

# A program of an installed tree finds its prompts.
mkdir -p "$work/tree/bin" "$work/tree/share/kakeya/models"
cp "$KAKEYA" "$work/tree/bin/kakeya"
ln -s "$tiny" "$work/tree/share/kakeya/models/tiny"
KAKEYA=$work/tree/bin/kakeya

short="-t 1 -q --text $work/text.txt --text-tokens 500 -n 12"

# The sweep: the identity is exact, and the less is true the larger the KL.
exits 0 eval sweep -m "$shipped" -md none -mp "$projection" --alphas 0.5,0 --ladder 14 --samples 1 \
    $short --report "$work/sweep.json"
same "$err" ""
has "$out" "alpha" "rel. mse" "<- knee" "exact"
alphas=$(printf '%s\n' "$out" | awk 'NF == 9 && $1 != "alpha" { print $1 }')
same "$alphas" $'0\n0.5\n1' "alphas, with the identity among them"
kl() { printf '%s\n' "$out" | awk -v a="$1" 'NF == 9 && $1 == a { print $3 }'; }
same "$(kl 1)" 0
awk -v a="$(kl 0)" -v b="$(kl 0.5)" 'BEGIN { exit !(a > b && b > 0) }' ||
    fail "KL of alpha 0 and 0.5: $(kl 0) and $(kl 0.5)"
json "$(cat "$work/sweep.json")" kind command projection fingerprint settings knee identity \
    same_logits exact rows alpha rel_mse effective_rel_mse layers normed error power answers \
    restored_rows reach quality mean_kl worst_kl
exits 0 report check "$work/sweep.json"

# What cannot be swept is said at once.
exits 2 eval sweep -m "$shipped" -mp "$projection" --alphas 0,1.01
has "$err" "from 0 to 1" "1.01"
exits 2 eval sweep -m "$shipped" -mp "$projection" --alphas 0,half
has "$err" "'half' is not one"
exits 2 eval sweep -m "$shipped" -mp "$projection" --alphas 0,
exits 1 eval sweep -m "$shipped" -mp none
has "$err" "needs a projection"
exits 1 eval sweep -m "$shipped" -mp "$work/nowhere"
has "$err" "$work/nowhere"
exits 1 eval sweep -m "$shipped" -md none -mp "$projection" --ladder 10 --samples 1 --window 500
has "$err" "nothing would be rebuilt"
exits 1 eval sweep -m "$shipped" -md none -mp "$projection" --ladder 5000 --samples 1
has "$err" "leave that rung out"

# Formats: fewer bits, larger errors; float32 is the identity and comes first.
exits 0 eval kv -m "$shipped" --formats q4,q8 --ladder 10 --samples 1 $short --report "$work/kv.json"
same "$(printf '%s\n' "$out" | awk 'NR > 1 { print $1, $2 }')" $'f32 32\nq4 4.5\nq8 8.5'
same "$(printf '%s\n' "$out" | awk '$1 == "f32" { print $3, $7, $8 }')" "0 0 0"
awk -v a="$(printf '%s\n' "$out" | awk '$1 == "q4" { print $3 }')" \
    -v b="$(printf '%s\n' "$out" | awk '$1 == "q8" { print $3 }')" 'BEGIN { exit !(a > b && b > 0) }' ||
    fail "errors of q4 and q8: $out"
json "$(cat "$work/kv.json")" kind rows format values stored_bytes bits rel_mse layers answers bytes \
    kv.full quality
exits 0 report check "$work/kv.json"
exits 2 eval kv --formats q8,d5
has "$err" "no format 'd5'"
exits 2 eval kv --formats q8,q8
has "$err" "q8 twice"
exits 1 eval kv -m "$shipped" --text "$work/none.txt" --ladder 10 --samples 1
has "$err" "none.txt"

# Memory: what sessions hold, and how fast it grows; filled ones hold the same.
sizes="eval memory -m $shipped -md $tiny/drafter -mp $projection --draft-ctx 128 -t 1 -q"
exits 0 $sizes --tokens 256,512 --text "$work/text.txt" --report "$work/memory.json"
same "$err" ""
has "$out" "exact bf16" "exact q4" "window" "restored r64 bf16" "draft-ctx 128" "Growth from 256 to 512"
evaluated=$(printf '%s\n' "$out" | grep '^restored')
exits 0 $sizes --tokens 256,512 --fill --report "$work/filled.json"
same "$(printf '%s\n' "$out" | grep '^restored')" "$evaluated" "filled and evaluated"
has "$(cat "$work/filled.json")" '"filled": true'
has "$(cat "$work/memory.json")" '"filled": false' '"bytes_per_token": 2048.0' '"ratio": '
exits 0 report check "$work/memory.json" "$work/filled.json"
# With what it costs beside it.
exits 0 eval memory -m "$shipped" -md none -mp "$projection" --tokens 512 --quality --samples 1 -n 12 \
    -t 1 -q --text "$work/text.txt" --report "$work/quality.json"
has "$out" "recall" "mean KL"
same "$(printf '%s\n' "$out" | awk '$1 == "exact" && $2 == "bf16" { print $NF }')" 0 "KL of exact"
exits 0 report check "$work/quality.json"
# Random weights at lengths nobody would wait for.
exits 0 eval memory --synthetic tiny:q4_0 -mp synthetic:64 --tokens 256,4096 -t 1 -q \
    --report "$work/random.json"
has "$out" "restored r64 q8"
exits 0 report check "$work/random.json"
exits 1 $sizes --tokens 1024,1000000
has "$err" "this model takes at most 16384"
exits 2 $sizes --tokens 512,256
has "$err" "longer than the one before"
exits 2 $sizes --tokens 512 --fill --quality
has "$err" "--quality needs rows"
exits 2 $sizes --tokens 512 --projections "$projection"
has "$err" "exclude each other"
exits 1 eval memory -m "$shipped" -md none --projections "$projection,$work/nowhere" --tokens 256 -q \
    --fill
has "$err" "$work/nowhere"
exits 1 eval memory -m "$shipped" -mp "$projection" --draft-ctx 64 --tokens 256 --fill
has "$err" "none is loaded"
finish
