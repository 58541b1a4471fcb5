#!/usr/bin/env bash
# `kakeya eval steps`: PASS or FAIL for restored and for drafted decoding, an exit code, a report.
. "$(dirname "$0")/lib.sh"
tree=$(cd "$(dirname "$0")/../.." && pwd)
tiny=$tree/models/tiny
steps=(eval steps -m "$tiny/verifier" -md "$tiny/drafter" -mp "$tiny/projection" --lines 10
    --samples 1 -n 32 --text "$tree/LICENSE" --text-tokens 400 -t 1 -q --draft-max 3
    --draft-fixed)

# Limits that any speed meets.
exits 0 "${steps[@]}" --min-restored 0 --min-drafted 0 --report "$work/pass.json"
has "$out" "step 1  restored" "step 2  restored, drafted" "recall" "x exact" "mean KL" "K/V" \
    "5 turns of 32 tokens of code"
same "$(printf '%s\n' "$out" | grep -c 'PASS$')" 2 "both steps pass"
lacks "$out" "FAIL"
same "$err" ""
json "$(cat "$work/pass.json")" kind settings steps gate rungs quality policies round_times \
    speed_ratio min_restored_speed min_drafted_speed
exits 0 report check "$work/pass.json"
has "$out" "1 holds"

# Limits that none meets: each step by itself.
exits 1 "${steps[@]}" --min-restored 0 --min-drafted 100 --json
has "$out" '"kind": "steps"'
has "$err" "PASS" "FAIL" "drafted: speed_ratio is" "step 2 failed"
printf '%s\n' "$out" >"$work/fail.json"
exits 0 report check "$work/fail.json"
has "$out" "the run failed its own limits"
exits 1 "${steps[@]}" --policy restored-sliding --window 16 --chunk 16 --min-restored 100 \
    --min-drafted 0 --max-kl 0 --report "$work/sliding.json"
has "$out" "policy  restored-sliding; sink 4, window 16, chunk 16" "restored: mean_kl is" \
    "drafted: mean_kl is"
has "$err" "steps 1 and 2 failed"
exits 0 report check "$work/sliding.json"

# A failure that is written over is found, and so is a limit that was widened.
sed 's/"holds": false/"holds": true/' "$work/fail.json" >"$work/lie.json"
exits 1 report check "$work/lie.json"
has "$out$err" "GATE_RECOUNT"
sed 's/"min_drafted_speed": 100.0/"min_drafted_speed": 1.0/' "$work/fail.json" >"$work/lie.json"
exits 1 report check "$work/lie.json"
has "$out$err" "STEPS_RECOUNT"

# What cannot be.
exits 2 "${steps[@]}" --turns 4
has "$err" "--turns"
exits 2 "${steps[@]}" -n 8
exits 2 "${steps[@]}" --policy window
has "$err" "window"
exits 2 eval steps -m "$tiny/verifier" -md "$tiny/drafter"
has "$err" "no projection" "-mp"
exits 2 eval steps -m "$tiny/verifier" -mp "$tiny/projection"
has "$err" "no drafter" "-md"
exits 0 help eval steps
has "$out" "--min-restored" "--min-drafted" "0.85"
finish
