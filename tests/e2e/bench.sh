#!/usr/bin/env bash
# `kakeya bench`: a table for people and a report for programs.
. "$(dirname "$0")/lib.sh"

exits 0 bench --synthetic tiny:q4_0 --arms plain --ctx 32 -n 4 --prefill 16 --rows 1,2 --repeat 2 \
    --report "$work/report.json" -t 1
has "$out" "model         tiny q4_0, 12 layers of random weights" "GB/s read before" "tok/s" \
    "of the bandwidth" "ms per round" "prefill" "rows, model" "rows, dense" "2: " \
    "weights.verifier" "resident beside the weights"
report=$(cat "$work/report.json")
json "$report" kind version date machine cpu isa threads model source synthetic settings arms \
    bandwidth before_gb_s after_gb_s plain decode_tok_s median min max decode_gb_s \
    bandwidth_share round_ms prefill_tok_s logits_hash rows whole_model dense_q4_0 ratio bytes \
    resident_over_weights
has "$report" '"source": "tiny:q4_0"' '"repeat": 2'
lacks "$out" $'\033'

# Parts can be left out; a real file can be measured.
exits 0 bench -m "$model" -n 2 --prefill 0 --rows none --repeat 1 -q
same "$err" ""
lacks "$out" "prefill"
lacks "$out" "rows"
has "$out" "custom bf16, 3 layers"

# What cannot be.
exits 0 doctor --json
free=$(printf '%s\n' "$out" | sed -n 's/.*"memory_free": \([0-9]*\).*/\1/p')
if [ "$free" -lt 90000000000 ]; then # these weights take 101 GB
    exits 1 bench --synthetic 26b-a4b:f32 --rows none
    has "$err" "fewer layers"
fi
exits 1 bench -m "$model" -n 2 --rows none --prefill 0 --repeat 1 -q --report "$work/none/report.json"
has "$err" "$work/none/report.json"
exits 1 bench -m "$model" --ctx 100000 --rows none -q
has "$err" "100"
finish
