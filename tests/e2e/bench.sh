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
exits 0 bench --read-time 0.05 -m "$model" -n 2 --prefill 0 --rows none --repeat 1 -q
same "$err" ""
lacks "$out" "prefill"
lacks "$out" "rows"
has "$out" "custom bf16, 3 layers"

# Arms take turns on the same prompts and give the same tokens; what they cost is explained.
exits 0 bench --read-time 0.05 --synthetic tiny:q4_0 --arms plain,dflash,ngram --accept-trace geom:0.744:1 -n 24 \
    --prefill 0 --rows none --repeat 2 --samples 2 -t 1 -q --report "$work/arms.json"
has "$out" "random        2 prompts of 64 tokens" "  plain  " "  dflash  " "  ngram  " \
    "lossless: yes" "of its floor" "tokens from" "rows per round" "rounds by tokens accepted" \
    "predicted" "draft " "verify " "choose " "commit " "not forwards" "costs       1 row" \
    "a draft of" "is a trace, geom:0.744:1" "              rounds " "longest" "CV "
lacks "$out" "lossless: NO"
report=$(cat "$work/arms.json")
json "$report" arms plain dflash ngram tok_s speedup lossless accept_len rows_per_round histogram \
    chosen drafts parts draft_s verify_s choose_s commit_s other_s overhead predicted_tok_s \
    of_predicted floor_share floor_gb_s sets set prompts costs verify draft accept_trace drafter block \
    round_times first_ms longest_ms mean_ms warm_up steady deviation_ms cv
has "$report" '"kind": "geom"' '"p": 0.744' '"set": "random"' '"floor_gb_s"'
lacks "$report" '"lossless": false'

# Prompts of one's own, and by name; --draft-fixed drafts always the same.
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
printf '{"text": "def f(x):", "new": 12}\n{"prompt": "def g(y):"}\n{"ids": [2, 844, 1138]}\n' \
    >"$work/mine.jsonl"
pair="-m $shipped/verifier -md $shipped/drafter --prefill 0 --rows none --repeat 1 -t 1 -q"
exits 0 bench --read-time 0.05 $pair --arms plain,dflash --prompts "$work/mine.jsonl" -n 16 --draft-max 4 \
    --draft-fixed --report "$work/mine.json"
has "$out" "mine          2 prompts"
has "$(tr -d ' \n' <"$work/mine.json")" '"draft_max":4' '"draft_fixed":true' '"drafter":{"layers":3'
exits 1 bench $pair --arms plain,dflash --prompts "$work/none.jsonl"
has "$err" "$work/none.jsonl"
printf '{"text": "def f(x):"}\n' >"$work/one.jsonl"
exits 1 bench $pair --arms plain,dflash --prompts "$work/one.jsonl"
has "$err" "warm up"
printf '{"text": "a"}\n{"tetx": "b"}\n' >"$work/bad.jsonl"
exits 1 bench $pair --arms plain,dflash --prompts "$work/bad.jsonl"
has "$err" "line 2"
mkdir -p "$work/tree/bin" "$work/tree/share/kakeya/models"
cp "$KAKEYA" "$work/tree/bin/kakeya"
ln -s "$shipped" "$work/tree/share/kakeya/models/tiny"
there=$KAKEYA KAKEYA=$work/tree/bin/kakeya
exits 0 bench --read-time 0.05 --arms dflash,ngram --set needle,edit --samples 1 -n 8 --prefill 0 --rows none \
    --repeat 1 -t 1 -q
has "$out" "needle        1 prompts" "edit          1 prompts" "all           2 prompts"
KAKEYA=$there

# Attention by the format of K/V.
exits 0 bench --read-time 0.05 --synthetic tiny:q4_0 --attention --ctx 200 -n 2 --prefill 0 --rows none --repeat 2 \
    -t 1 -q --report "$work/attention.json"
has "$out" "attention     bf16" "f32 " "q8 " "q4 " "for one row at context 200"
json "$(cat "$work/attention.json")" attention formats kv_format ratio kv_bytes kv_ratio

# Sessions together and one by one.
exits 0 bench --read-time 0.05 --synthetic tiny:q4_0 --sessions 3 --ctx 40 -n 6 --prefill 0 --rows none --repeat 2 \
    -t 1 -q --report "$work/sessions.json"
has "$out" "sessions      3 together" "logits are those of each alone" "a prompt of 4096 tokens beside"
json "$(cat "$work/sessions.json")" sessions alone together ratio logits_hashes arrival gap_s identical
exits 0 report check "$work/sessions.json"
exits 2 bench --synthetic tiny:q4_0 --sessions 1

# Decoding by what layers keep.
random="--synthetic tiny:q4_0 --prefill 0 --rows none -t 1 -q"
exits 0 bench --read-time 0.05 --policies $random -mp synthetic:64 -md synthetic --ctx 200 -n 8 --repeat 2 --sink 2 \
    --window 16 --chunk 16 --latents q8 --kv-format q8 --draft-max 3 --draft-fixed \
    --report "$work/policies.json"
has "$out" "policies      2 turns of 8 tokens at context 200 of random ids; sink 2, window 16" \
    "rank 64" "  exact  " "  window  " "  restored-sliding  " "  restored-full  " "  restored  " \
    "1.00x" "a round" "lossless: yes"
lacks "$out" "lossless: NO"
report=$(cat "$work/policies.json")
json "$report" policies policy kv_sliding kv_full rank latents sink window chunk ratio token_ms \
    prefill_tok_s bytes warm_up arms plain dflash rows_per_token keys_per_query restored_rows reach \
    tokens_hash logits_hash projection fingerprint policy_text policy_piece
has "$report" '"latents": "q8"' '"policy": "restored-full"' '"withheld": "fewer than 5 turns"'
# Without a projection there is nothing to restore from; a list is taken at its word.
exits 0 bench --read-time 0.05 $random --ctx 150 -n 2 --repeat 1 --policies
has "$out" "  exact  " "  window  "
lacks "$out" "restored"
exits 1 bench $random --ctx 150 -n 2 --policies restored-full
has "$err" "needs a projection"
exits 1 bench $random --ctx 100 -n 2 --policies window
has "$err" "nothing of it would be gone"
exits 2 bench $random --policies exact,best
has "$err" "'best' is none of them"
# Real text, from prompts.
exits 0 bench --read-time 0.05 $pair --policies=exact,window --set needle --ctx 200 -n 4
has "$out" "at context 200 of needle"

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
# Several lengths of context, and what is no list of them.
exits 0 bench --read-time 0.05 --synthetic tiny:f32:2 --ctx 20,40,90 -n 3 --repeat 2 --prefill 0 --rows 1,3 -q \
    --report "$work/contexts.json"
same "$(printf '%s\n' "$out" | grep -c ' tok/s ')" 3 "a line for each context"
report=$(cat "$work/contexts.json")
has "$report" '"ctx": 20' '"ctx": 40' '"ctx": 90' '"syncs_per_token"' '"experts"'
has "$(tr -d ' \n' <"$work/contexts.json")" '"turns":[{"n":3,'
exits 0 report check "$work/contexts.json"
# Times of rounds that do not add up are refused.
sed '0,/"longest_ms": [0-9.e-]*/s//"longest_ms": 1e6/' "$work/contexts.json" >"$work/lie.json"
exits 1 report check "$work/lie.json"
has "$err$out" "ROUND_TIMES"
exits 2 bench --synthetic tiny:f32:2 --ctx 40,20
has "$err" "ascending"
exits 2 bench --synthetic tiny:f32:2 --ctx 40,x
has "$err" "'x'"

# The report on standard output, nothing else there; no progress where nobody looks.
exits 0 bench --read-time 0.05 --synthetic tiny:f32 -n 4 --prefill 0 --rows none --repeat 1 --json
json "$out" schema kind
lacks "$err" "..."
exits 2 bench --synthetic tiny:f32 --json --report "$work/other.json"
has "$err" "give one of the two"
finish
