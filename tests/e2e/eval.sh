#!/usr/bin/env bash
# `kakeya eval needle`: documents a seed names, answers of the shipped model, a report, a gate.
# `kakeya eval accept`: what is drafted right, by sets of prompts, and that nothing changed.
. "$(dirname "$0")/lib.sh"
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny/verifier

# The document: the draws of Python's Random(42), word for word.
exits 0 eval needle --ladder 70 --print
same "$err" ""
same "$(grep -c '^Note ' "$work/out")" 80
has "$out" $'hold the answer.\n\n**IMPORTANT: the secret access code is BETA-1409' \
    $'.**\n\nNote 0039' $'Note 0079: this line is unrelated padding and does not hold the answer.\n\n'
same "$(tail -n 1 "$work/out")" "Question: What is the secret access code? Answer:"
first=$out
exits 0 eval needle --ladder 70,280 --print --seed 42
same "$out" "$first" "the first document"
exits 0 eval needle --ladder 70 --print --seed 43
[ "$out" != "$first" ] || fail "seeds 42 and 43 give the same document"

# The shipped model finds its needles.
exits 0 eval needle -m "$shipped" --ladder 10,30 --samples 2 --min-recall 1 \
    --report "$work/report.json" -v
has "$out" "recall" "kv.sliding" "kv.full"
same "$(printf '%s\n' "$out" | awk '$1 == 10 || $1 == 30 { print $3, $4 }')" $'2 1.00\n2 1.00'
same "$(printf '%s\n' "$err" | grep -c '(found)$')" 4
has "$err" "The secret access code is "
lacks "$err" $'\033'
report=$(cat "$work/report.json")
json "$report" kind version date command machine cpu isa threads model source settings arms seed \
    ladder ctx prompt gate min_recall holds rungs arm lines tokens samples hits recall \
    prefill_tok_s decode_tok_s bytes kv.sliding kv.full rows depth expected answer hit
has "$report" '"kind": "needle"' '"arm": "exact"' '"recall": 1.0' '"hits": 2' '"holds": true' \
    "kakeya eval needle -m $shipped --ladder 10,30"
same "$(grep -c '"hit": true' "$work/report.json")" 4
# What is expected is in the answer beside it.
while read -r code; do
    has "$report" "\"answer\": \"The secret access code is $code.\""
done < <(sed -n 's/.*"expected": "\(.*\)",/\1/p' "$work/report.json")

# The same seed, the same documents and the same answers; other ones as plain text.
answers() { grep -E '"(expected|answer|tokens)":' "$1"; }
exits 0 eval needle -m "$shipped" --ladder 10,30 --samples 2 -t 1 --report "$work/again.json" -q
same "$err" ""
same "$(answers "$work/again.json")" "$(answers "$work/report.json")" "a second run"
exits 0 eval needle -m "$shipped" --ladder 10 --samples 1 -t 1 --raw --report "$work/raw.json" -q
has "$(cat "$work/raw.json")" '"prompt": "raw"' '"answer": " The secret access code is'

# Random weights find nothing: a failure only where a gate says so.
exits 0 eval needle -m "$model" --ladder 10 --samples 1 -t 1 -n 4 --report "$work/none.json"
same "$err" ""
has "$(cat "$work/none.json")" '"recall": 0.0' '"gate": null' '"hit": false'
exits 1 eval needle -m "$model" --ladder 10 --samples 1 -t 1 -n 4 --min-recall 0.5 \
    --report "$work/gate.json"
has "$err" "exact: 0 of 1 needles found" "--min-recall 0.5"
has "$(cat "$work/gate.json")" '"holds": false'

# What cannot be is said before anything is computed.
exits 1 eval needle -m "$shipped" --ladder 10,30 --samples 1 -c 300
has "$err" "the rung of 30 lines" "-c gives 300" "take -c "
need=$(printf '%s\n' "$err" | sed -n 's/.*take -c \([0-9]*\).*/\1/p')
exits 0 eval needle -m "$shipped" --ladder 10,30 --samples 1 -t 1 -c "$need"
exits 1 eval needle -m "$shipped" --ladder 5000 --samples 1
has "$err" "the rung of 5000 lines" "at most 16384"
exits 1 eval needle -m "$KK_TEST_DATA/chat" --ladder 10
has "$err" "no tokenizer"
exits 1 eval needle -m "$model" --ladder 10 --samples 1 -t 1 -n 2 --report "$work/none/report.json"
has "$err" "$work/none/report.json"

# Needles are found with a drafter too.
drafter=$(dirname "$shipped")/drafter
exits 0 eval needle -m "$shipped" -md "$drafter" --ladder 10,30 --samples 2 --kv-format q8 -q \
    --min-recall 1 --report "$work/drafted.json"
has "$(cat "$work/drafted.json")" '"kv_format": "q8"' '"kv.drafter"'

# Arms: rows that a projection rebuilds answer where dropped ones do not, and text shows the cost,
# text of another kind than what the projection was trained on.
projection=$work/projection
license=$(dirname "$shipped")/../../LICENSE readme=$(dirname "$shipped")/README.md
exits 0 train projection -m "$shipped" -md none --taps 1,4,10 --rank 256 --out "$projection" -t 1 -q \
    --data "$license" --length 600 --tokens 600 --needles 2 --needle-lines 40
arms="eval needle -m $shipped -mp $projection --ladder 20 --samples 1 -t 1 -q"
exits 0 $arms --text "$readme" --text-tokens 400 --min-recall 1 --max-kl 0.05 --min-kv-ratio 3 \
    --report "$work/arms.json"
same "$err" ""
has "$out" "kv.latents" "rebuilt" "mean KL" "271 positions of 1 texts given" "by depth and tokens"
same "$(printf '%s\n' "$out" | awk '$2 == 20 && NF > 8 { print $1, $5, ($NF > 0) }')" \
    $'exact 1.00 0\nwindow 0.00 0\nrestored 1.00 1'
same "$(printf '%s\n' "$out" | awk '$1 == "80-100" { print NF }')" 5
report=$(cat "$work/arms.json")
json "$report" projection fingerprint arms sink window chunk rank latents texts quality sums gate \
    checks figure limit value restored_rows reach keys_rebuilt mean_kl worst_kl loss_change \
    loss_exact loss_arm same_prefix same_of
has "$report" '"figure": "recall_drop"' '"figure": "kv_ratio"' '"figure": "mean_kl"' \
    '"text": "README.md"' '"rank": 256' '"kv_full": "restored"' '"holds": true'
lacks "$report" '"holds": false'
exits 0 report check "$work/arms.json"
# Limits that are not met; sliding layers alone; two texts.
exits 1 $arms --arms restored --kv-sliding restored --window 32 --chunk 32 --text "$readme" \
    --text "$(dirname "$shipped")/prompts/code.jsonl" --text-tokens 90 --max-kl 0.000001 \
    --min-kv-ratio 50 --report "$work/limits.json"
has "$err" "restored: mean_kl is " "the limit is 1e-06"
same "$(printf '%s\n' "$out" | grep -c '^window')" 0 "rows of an arm that was not asked for"
has "$out" "of 51 texts given (sink 4, window 32, chunk 32; taps, rank 256)"
report=$(cat "$work/limits.json")
has "$report" '"kv_sliding": "restored"' '"kv_full": "exact"' '"holds": false'
same "$(grep -c '"holds": false' "$work/limits.json")" 3 "two checks and the gate"
exits 0 report check "$work/limits.json"
# What cannot be compared is said at once.
exits 2 $arms --arms exact,oracle
has "$err" "no arm 'oracle'"
exits 2 $arms --arms window --max-kl 1
has "$err" "--max-kl is about the arm restored"
exits 1 eval needle -m "$shipped" --arms restored --ladder 10
has "$err" "needs a projection"
exits 1 eval needle -m "$model" -mp "$projection" --ladder 10
has "$err" "projection"
exits 1 eval needle -m "$shipped" -mp "$work/none" --ladder 10
has "$err" "$work/none"
: >"$work/empty.txt"
exits 1 $arms --text "$work/empty.txt"
has "$err" "empty.txt' is empty"
printf 'x = 1\n' >"$work/short.txt"
exits 1 $arms --text "$readme" --text "$work/short.txt"
has "$err" "short.txt' has " "nothing would be compared"
exits 1 $arms --text "$readme" --text-tokens 200
has "$err" "256 are the least"
exits 1 $arms --text "$work/none.txt"
has "$err" "none.txt"

# Acceptance: a trained drafter is mostly right, and the copies of an edit are found by n-grams.
pair="-m $shipped -md $drafter -t 1 -q"
mkdir -p "$work/tree/bin" "$work/tree/share/kakeya/models"
cp "$KAKEYA" "$work/tree/bin/kakeya"
ln -s "$(dirname "$shipped")" "$work/tree/share/kakeya/models/tiny"
there=$KAKEYA KAKEYA=$work/tree/bin/kakeya
figure() { # figure SET COLUMN
    printf '%s\n' "$out" | awk -v set="$1" -v column="$2" '$1 == set { print $column; exit }'
}
above() { awk -v x="$1" -v least="$2" 'BEGIN { exit !(x > least) }'; }
exits 0 eval accept $pair --set json,needle --samples 2 -n 40 --report "$work/accept.json"
same "$err" ""
same "$(figure json 7) $(figure needle 7) $(figure all 7)" "yes yes yes" "lossless"
same "$(figure all 3)" 4 "prompts"
above "$(figure json 5)" 0.5 || fail "accepted of JSON: $(figure json 5)"
above "$(figure needle 6)" 3 || fail "tokens a round of needles: $(figure needle 6)"
report=$(cat "$work/accept.json")
json "$report" kind command machine model drafter settings lossless sets set arm embed_scale prompts \
    tokens rounds drafted accepted rate length histogram different all
has "$report" '"kind": "accept"' '"lossless": true' '"different": 0' '"arm": "dflash"'
exits 0 eval accept --spec ngram --set edit --samples 2 -n 60 -t 1 -q
above "$(figure edit 6)" 1.3 || fail "tokens a round of edits by n-grams: $(figure edit 6)"
same "$(figure edit 7)" yes
# The drafter was trained with the scale applied once: another one is compared with it.
exits 0 eval accept --embed-scale twice --set code --samples 1 -n 24 -t 1 -q
same "$(printf '%s\n' "$out" | awk '$1 == "code" { print $2, $7 }')" $'once yes\ntwice yes'
# Sampling, and prompts of one's own.
printf '{"text": "def f(x):"}\n{"messages": [{"role": "user", "content": "Hi"}], "new": 8}\n' \
    >"$work/mine.jsonl"
exits 0 eval accept --prompts "$work/mine.jsonl" -n 20 --temp 0.9 --top-k 40 -s 3 --draft-max 2 \
    --kv-format q4 -t 1 -q
same "$(figure mine 3) $(figure mine 7)" "2 yes"
KAKEYA=$there
exits 1 eval accept $pair --prompts "$work/none.jsonl"
has "$err" "$work/none.jsonl"
printf '{"text": 1}\n' >"$work/bad.jsonl"
exits 1 eval accept $pair --prompts "$work/bad.jsonl"
has "$err" "line 1"
exits 2 eval accept $pair --prompts "$work/mine.jsonl" --draft-max 8
has "$err" "block holds 7"
exits 1 eval accept $pair --prompts "$work/mine.jsonl" -n 4 --report "$work/none/report.json"
has "$err" "$work/none/report.json"

# The report on standard output.
exits 0 eval accept -m "$model" --spec ngram --set code --samples 1 -n 4 --json
json "$out" schema kind
finish
