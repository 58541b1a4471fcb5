#!/usr/bin/env bash
# `kakeya run`: prompts of every kind, what it prints, and how it stops.
. "$(dirname "$0")/lib.sh"
tiny="--synthetic tiny:f32"

# Ids in, ids out; the timing line goes to stderr and can be silenced.
exits 0 run $tiny --tokens 2,17,5 -n 8
printf '%s\n' "$out" | grep -qxE '[0-9]+(,[0-9]+){7}' || fail "no eight ids: $out"
has "$err" "3 prompt tokens" "8 generated"
ids=$out
exits 0 run $tiny --tokens '2 17 5' -n 8 -q
same "$out" "$ids"
same "$err" ""

# JSON: every key, and the same tokens.
exits 0 run $tiny --tokens 2,17,5 -n 8 --json
json "$out" text tokens stop prompt_tokens timings load_s prefill_s decode_s prefill_tok_s \
    decode_tok_s spec proposer rounds drafted accepted accept_len histogram kv sliding full \
    format bytes weights.verifier weights.drafter weights.projection kv.sliding kv.full \
    kv.drafter kv.latents workspace restored_rows logits_hash
has "$out" '"stop": "length"' '"prompt_tokens": 3' '"proposer": "none"' '"drafted": 0' \
    '"sliding": "native"' '"full": "exact"' '"format": "bf16"' '"restored_rows": 0' \
    "\"tokens\": [${ids//,/, }]"
hash_of() { printf '%s\n' "$out" | sed -n 's/.*"logits_hash": "\([0-9a-f]\{16\}\)".*/\1/p'; }
hash=$(hash_of)
[ -n "$hash" ] || fail "no hash in: $out"

# Threads change no bit; the storage of K/V does.
exits 0 run $tiny --tokens 2,17,5 -n 8 --json -t 1
same "$(hash_of)" "$hash" "one thread"
exits 0 run $tiny --tokens 2,17,5 -n 8 --json --kv-format f32
has "$out" '"format": "f32"'
[ "$(hash_of)" != "$hash" ] || fail "f32 K/V gives the bits of bf16"

# Drafting changes how the tokens come, never which; packed K/V change the logits.
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
number() { printf '%s\n' "$out" | sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p"; }
tokens_of() { printf '%s\n' "$out" | sed -n 's/.*"tokens": \(\[[0-9, ]*\]\).*/\1/p'; }
text='def add(a, b):\n    return a + b\n\ndef sub(a, b):'
tiny_pair="run -m $shipped/verifier -n 80 --ignore-eos --json"
for format in bf16 q4; do
    exits 0 $tiny_pair -p "$text" --kv-format $format
    has "$out" '"proposer": "none"' '"drafted": 0' '"accept_len": 1.0' "\"format\": \"$format\"" \
        '"kv.drafter": 0'
    plain=$(tokens_of) plain_hash=$(hash_of)
    for how in "--spec dflash" "--spec auto" "--draft-max 3" "--draft-max 7 --draft-fixed" \
        "--spec ngram" "--draft-ctx 64" "--draft-embed-scale twice --draft-fixed" "--spec none"; do
        exits 0 $tiny_pair -p "$text" --kv-format $format -md "$shipped/drafter" $how
        same "$(tokens_of)" "$plain" "tokens with $format $how"
        same "$(hash_of)" "$plain_hash" "logits with $format $how"
    done
done
[ "$plain_hash" != "$hash" ] || fail "no hash"
exits 0 $tiny_pair -p "$text" -md "$shipped/drafter" --spec dflash --draft-max 5 --draft-fixed
json "$out" spec proposer rounds rows drafted accepted accept_len histogram chosen looking timings \
    draft_s verify_s choose_s commit_s
has "$out" '"proposer": "dflash"'
rounds=$(number rounds) accepted=$(number accepted)
same $((rounds + accepted)) 79 "the first token takes no round"
[ "$accepted" -gt 20 ] || fail "the shipped drafter is right $accepted times in $rounds rounds"
[ "$(number drafted)" -gt $((4 * rounds)) ] || fail "--draft-fixed drafts less than 5 a round"
[ "$(number kv.drafter)" -gt 0 ] || fail "the drafter's K/V are not counted"
has "$out" '"chosen": [0, 0, 0'
exits 0 $tiny_pair -p "$text" -md "$shipped/drafter" --spec auto --draft-fixed
has "$out" '"proposer": "auto"' '"by": {' '"ngram": {'
exits 0 run -m "$shipped/verifier" -md "$shipped/drafter" -p "$text" -n 40 -v
has "$err" "drafter of 3 layers" "auto: " "tokens per round" "drafted tokens accepted"

# The model that is shipped brings its drafter; one that is named does not.
mkdir -p "$work/tree/bin" "$work/tree/share/kakeya/models"
cp "$KAKEYA" "$work/tree/bin/kakeya"
ln -s "$shipped" "$work/tree/share/kakeya/models/tiny"
there=$KAKEYA KAKEYA=$work/tree/bin/kakeya
exits 0 run -p "$text" -n 8 --json
has "$out" '"proposer": "auto"'
exits 0 run -p "$text" -n 8 --json -md none
has "$out" '"proposer": "none"' '"weights.drafter": 0'
exits 0 run -p "$text" -n 8 --json --spec ngram
has "$out" '"proposer": "ngram"'
KAKEYA=$there
exits 0 run -m "$shipped/verifier" -p "$text" -n 8 --json
has "$out" '"proposer": "none"' '"weights.drafter": 0'
exits 0 run $tiny -md synthetic --tokens 2,17,5 -n 8 --json
has "$out" '"proposer": "auto"' "\"tokens\": [${ids//,/, }]"

# A drafter that is not one for this model.
exits 1 run -m "$model" -md "$shipped/drafter" -p x
[ -n "$err" ] || fail "nothing said of a drafter for another model"
exits 1 run -m "$shipped/verifier" -md "$shipped/verifier" -p x
[ -n "$err" ] || fail "nothing said of a drafter that is none"

# Text: from -p, a file and standard input.
exits 0 run -m "$model" -p 'Hello world' -n 12 -q
text=$out
[ -n "$text" ] || fail "no text"
printf 'Hello world' >"$work/prompt"
exits 0 run -m "$model" -f "$work/prompt" -n 12 -q
same "$out" "$text" "from a file"
same "$("$KAKEYA" run -m "$model" -n 12 -q <"$work/prompt")" "$text" "from standard input"
same "$("$KAKEYA" run -m "$model" -f - -n 12 -q <"$work/prompt")" "$text" "from -"
exits 0 run -m "$model" -p 'Hello world' -n 12 --json
json "$out" text tokens
exits 1 run -m "$model" -f "$work/none"
has "$err" "$work/none"

# Sampling repeats with its seed and not without.
exits 0 run -m "$model" -p a -n 24 -q --temp 1.5 -s 1
one=$out
exits 0 run -m "$model" -p a -n 24 -q --temp 1.5 -s 1
same "$out" "$one" "same seed"
exits 0 run -m "$model" -p a -n 24 -q --temp 1.5 -s 2
[ "$out" != "$one" ] || fail "another seed gives the same text"

# A bias moves the choice, and one of -inf excludes it; drafting changes nothing of that.
first=${ids%%,*}
exits 0 run $tiny --tokens 2,17,5 -n 8 -q -l 77+1000
same "$out" "77,77,77,77,77,77,77,77" "a large bias"
exits 0 run $tiny --tokens 2,17,5 -n 8 -q --logit-bias 77+1000 -l 77-inf --logit-bias=99=500.5
same "$out" "99,99,99,99,99,99,99,99" "two biases"
exits 0 run $tiny --tokens 2,17,5 -n 8 -q -l "$first-inf" -l "$first+3"
[ "${out%%,*}" != "$first" ] || fail "-inf does not exclude $first"
exits 1 run $tiny --tokens 2,17,5 -n 8 -q -l 1024+1
has "$err" "1024"
for wrong in 7 +1 7+ 7+x 7+inf 7+nan 7-nan -- -7+1 7*2 99999999999+1; do
    exits 2 run $tiny --tokens 2 "--logit-bias=$wrong"
    has "$err" "--logit-bias" "'$wrong'"
done
# shellcheck disable=SC2046  # words on purpose
exits 2 run $tiny --tokens 2 $(seq -f '-l %.0f+1' 1 65)
has "$err" "64 times"

# Log-probabilities: one object a token, its own and the best, whose first is greedy's choice.
exits 0 run $tiny --tokens 2,17,5 -n 8 --json --logprobs 3
json "$out" logprobs id logprob top_logprobs
has "$out" "\"tokens\": [${ids//,/, }]" "\"logprobs\": [{\"id\": $first, \"logprob\": -" \
    "\"top_logprobs\": [{\"id\": $first, \"logprob\": -"
same "$(printf '%s\n' "$out" | grep -o '"id": ' | wc -l)" 32 "ids of the chosen and of the best"
logprobs_of() { printf '%s\n' "$out" | sed -n 's/.*"logprobs": \(\[{.*}\]\)}.*/\1/p'; }
logprobs=$(logprobs_of)
[ -n "$logprobs" ] || fail "no log-probabilities in: $out"
exits 0 run $tiny -md synthetic --spec dflash --draft-fixed --tokens 2,17,5 -n 8 --json --logprobs 3
same "$(logprobs_of)" "$logprobs" "drafted"
exits 0 run $tiny --tokens 2,17,5 -n 8 --json --logprobs 0
has "$out" '"top_logprobs": []'
exits 0 run $tiny --tokens 2,17,5 -n 8 --json
lacks "$out" '"logprobs"'
exits 2 run $tiny --tokens 2 --logprobs 3
has "$err" "--json"
exits 2 run $tiny --tokens 2 --json --logprobs 21

# A user's turn is not the bare text.
exits 0 run -m "$model" --chat -p 'Hello world' -n 4 --json
chat_tokens=$(printf '%s\n' "$out" | sed -n 's/.*"prompt_tokens": \([0-9]*\).*/\1/p')
exits 0 run -m "$model" --chat --system 'Be short.' -p 'Hello world' -n 4 --json
more_tokens=$(printf '%s\n' "$out" | sed -n 's/.*"prompt_tokens": \([0-9]*\).*/\1/p')
[ "$more_tokens" -gt "$chat_tokens" ] || fail "--system adds nothing ($more_tokens, $chat_tokens)"
exits 2 run -m "$model" --system x -p y

# What does not fit or is not there.
exits 1 run $tiny --tokens 2,1024
has "$err" "1024" "vocabulary"
exits 1 run $tiny -p text
has "$err" "--tokens"
exits 1 run $tiny --tokens "$(seq -s, 1 200)" -c 100
has "$err" "the context holds 100: raise -c"
exits 0 run $tiny --tokens "$(seq -s, 1 90)" -c 100 -n -1 --ignore-eos --json
has "$out" '"stop": "context"'

# A token that the tokenizer does not know is a failure, not the end of a text.
cp -r "$model" "$work/unlike"
{
    printf '{"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},'
    printf '"added_tokens": [{"id": 0, "content": "<bos>", "special": true}],'
    printf '"model": {"type": "BPE", "byte_fallback": true, "merges": [],'
    printf '"vocab": {"<bos>": 0, "\u2581": 1'
    for i in $(seq 0 255); do printf ', "<0x%02X>": %d' "$i" $((i + 2)); done
    printf '}}}'
} >"$work/unlike/tokenizer.json"
exits 1 run -m "$work/unlike" -p 'Hello world' -n 40
has "$err" "vocabulary of 258" "do not belong together"
exits 1 run -m "$work/unlike" -p 'Hello world' -n 40 --json
same "$out" "" "no object after a failure"

# A GPU that is not there is said not to be, before anything is loaded or made.
if ! "$KAKEYA" doctor 2>/dev/null | grep -q "cuda: usable"; then
    exits 1 run $tiny --tokens 2,3 -n 4 --device cuda
    has "$err" "kakeya doctor"
    case $err in
    *"needs its module"* | *"no NVIDIA GPU"*) ;;
    *) fail "it does not say what is missing: $err" ;;
    esac
    same "$out" ""
    exits 1 bench --synthetic tiny:f32:2 --device cuda -q
    exits 1 chat $tiny --device cuda
fi

mkdir "$work/empty"
exits 1 run -m "$work/empty" -p x
has "$err" "config.json"

# Ctrl-C stops, keeps what there is and says so by its exit code.
interrupt() { # interrupt FILE ARG... - SIGINT a moment after something is in the file
    local file=$1 pid i
    shift
    : >"$work/out"
    : >"$work/err"
    # A shell's background jobs ignore SIGINT; env puts the usual handling back.
    env --default-signal=INT "$KAKEYA" "$@" >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    for i in $(seq 200); do
        [ -s "$file" ] && break
        sleep 0.05
    done
    sleep 0.2
    kill -INT $pid
    wait $pid
    same $? 130 "exit after SIGINT"
    out=$(cat "$work/out")
}
endless="run $tiny --tokens 2,3 -n -1 -c 8000 --ignore-eos"
interrupt "$work/out" $endless
printf '%s\n' "$out" | grep -qxE '[0-9]+(,[0-9]+)*' || fail "what there was is not printed: $out"
interrupt "$work/err" $endless --json -v # -v tells on stderr when the model is there
json "$out" tokens stop
has "$out" '"stop": "stop"'

# A fresh seed every time unless one is given; -v and --json show it, and with it a run repeats.
warm="run -m $model -p Hello -n 12 --temp 1.5 --json"
seed() { grep -o '"seed": [0-9]*' <<<"$out" | tr -cd 0-9; }
text() { grep -o '"tokens": \[[^]]*\]' <<<"$out"; }
exits 0 $warm
one=$(seed) first=$(text)
exits 0 $warm -s -1
[ "$(seed)" != "$one" ] || fail "the same seed twice"
exits 0 $warm -s "$one" -v
same "$(text)" "$first" "with the seed it drew"
has "$err" "seed $one"

# Stop texts, across the borders of tokens, with and without drafts, streamed and as JSON.
for spec in none ngram; do
    exits 0 run -m "$model" -p 'Hello you' -n 40 -s 1 --temp 1 -q --spec $spec
    full=$out
    stop=${full:11:4}
    exits 0 run -m "$model" -p 'Hello you' -n 40 -s 1 --temp 1 -q --spec $spec --stop none --stop "$stop"
    same "$out" "${full%%"$stop"*}" "--stop with $spec"
    exits 0 run -m "$model" -p 'Hello you' -n 40 -s 1 --temp 1 --spec $spec --stop "$stop" --json
    has "$out" '"stop": "stop"'
done
exits 1 run $tiny --tokens 2 --stop x
has "$err" "no tokenizer" "--stop"
exits 1 run -m "$model" -p x --stop ''
has "$err" "a stop text is empty"

# Answers: thinking and tools change the prompt; thoughts and calls are apart from the text.
exits 0 run -m "$model" --chat -p Hello -n 4 -s 1 --json
json "$out" text thought tool_calls seed
plain=$(grep -o '"prompt_tokens": [0-9]*' <<<"$out")
exits 0 run -m "$model" --chat -p Hello -n 4 -s 1 --json --think
[ "$(grep -o '"prompt_tokens": [0-9]*' <<<"$out")" != "$plain" ] || fail "--think changes nothing"
echo '{"tools": [{"type": "function", "function": {"name": "now"}}]}' >"$work/tools.json"
exits 0 run -m "$model" --chat -p Hello -n 4 -s 1 --json --tools "$work/tools.json"
[ "$(grep -o '"prompt_tokens": [0-9]*' <<<"$out")" != "$plain" ] || fail "--tools changes nothing"
echo '{"tools": []}' >"$work/tools.json"
exits 1 run -m "$model" --chat -p Hello --tools "$work/tools.json"
has "$err" "has no list of tools"
exits 0 run --chat --think -p Hello -n 12 -q
lacks "$out" "thought"

# A projection of another model is no broken download.
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
exits 1 run -m "$model" -p x -n 1 -mp "$shipped/projection" --kv-sliding restored
has "$err" "-mp takes a projection that was trained for this model"
lacks "$err" "ownload"
finish
