#!/usr/bin/env bash
# `kakeya session`: what is saved goes on as if it had never stopped, and what cannot is told.
. "$(dirname "$0")/lib.sh"
tiny="--synthetic tiny:f32 -md synthetic"
kept=$XDG_STATE_HOME/kakeya/sessions
field() { printf '%s\n' "$out" | sed -n "s/.*\"$1\": \"*\([^\",}]*\).*/\1/p"; }
ids() { printf '%s\n' "$out" | sed -n 's/.*"tokens": \[\([0-9, ]*\)\].*/\1/p'; }
prompt=$(seq -s, 2 3 290)

# In three parts, with each proposer: the tokens of one run, and the hash of its last part.
for spec in none dflash ngram; do
    exits 0 run $tiny --spec $spec --tokens "$prompt" -n 50 --ignore-eos --json
    whole=$(ids)
    exits 0 session save parts $tiny --spec $spec --tokens "$prompt" -n 13 --ignore-eos --json --force
    json "$out" text tokens session session_tokens saved exact logits_hash
    has "$out" '"saved": true' "\"proposer\": \"$spec\""
    parts=$(ids)
    exits 0 session load parts $tiny -n 17 --ignore-eos --json
    has "$out" "\"proposer\": \"$spec\"" '"exact": true' '"session_tokens": 127'
    parts="$parts, $(ids)"
    exits 0 session load parts $tiny -n 20 --ignore-eos --json --keep
    has "$out" '"saved": false'
    parts="$parts, $(ids)"
    same "$parts" "$whole" "tokens in parts with $spec"
    hash=$(field logits_hash)
    exits 0 session load parts $tiny -n 20 --ignore-eos --json
    same "$(field logits_hash)" "$hash" "--keep kept it"
done

# The hash of a continuation is that of one that was never saved: same logits, bit for bit.
exits 0 run $tiny --tokens "$prompt" -n 20 --ignore-eos --json
hash=$(field logits_hash)
exits 0 session save at $tiny --tokens "$prompt"
same "$out" "" "nothing is generated unless asked"
has "$err" "at: 97 tokens saved"
exits 0 session load at $tiny -n 20 --ignore-eos --json
same "$(field logits_hash)" "$hash" "logits after a load"

# Sampling goes on with the settings that were used, unless others are given.
exits 0 run $tiny --tokens "$prompt" -n 30 --ignore-eos --json --temp 1 --top-k 50 -s 5
whole=$(ids)
exits 0 session save dice $tiny --tokens "$prompt" -n 10 --ignore-eos --json --temp 1 --top-k 50 -s 5
parts=$(ids)
exits 0 session load dice $tiny -n 20 --ignore-eos --json --keep
same "$parts, $(ids)" "$whole" "draws after a load"
exits 0 session load dice $tiny -n 20 --ignore-eos --json --keep -s 6
[ "$parts, $(ids)" != "$whole" ] || fail "-s 6 draws as -s 5"

# Formats, a path for a name, text, and turns of a conversation.
for format in f32 q8 q4 s8; do
    exits 0 run $tiny --kv-format $format --tokens "$prompt" -n 16 --ignore-eos --json
    hash=$(field logits_hash)
    exits 0 session save "$work/$format.kks" $tiny --kv-format $format --tokens "$prompt"
    exits 0 session load "$work/$format.kks" $tiny -n 16 --ignore-eos --json
    has "$out" "\"format\": \"$format\""
    same "$(field logits_hash)" "$hash" "$format"
done
exits 0 session save talk -m "$model" -p 'Hello world' -n 6 --ignore-eos
[ -n "$out" ] || fail "no text"
exits 0 session load talk -m "$model" -p ' and more' -n 6 --ignore-eos --json --keep
prompt_tokens=$(field prompt_tokens)
exits 0 session load talk -m "$model" --chat -p ' and more' -n 6 --ignore-eos --json
[ "$(field prompt_tokens)" -gt "$prompt_tokens" ] || fail "a turn is no more than its text: $out"
exits 2 session load talk -m "$model" --chat

# The list, and what a removed one leaves.
exits 0 session list
same "$(wc -l <<<"$out")" "$("$KAKEYA" session ls | wc -l)" "session list is session ls"
exits 0 session ls
has "$out" name tokens at dice talk "tiny f32" bf16
lacks "$out" q8
exits 0 session ls --json
json "$out" sessions name tokens ctx bytes model fingerprint format spec device build saved
[ "$(stat -c %a "$kept")" = 700 ] || fail "others may read $kept"
touch "$kept/at.kks.tmp-1-0"
exits 0 session rm at "$work/q8.kks"
[ ! -e "$kept/at.kks" ] && [ ! -e "$kept/at.kks.tmp-1-0" ] && [ ! -e "$work/q8.kks" ] ||
    fail "rm leaves files"
exits 1 session rm at parts
has "$err" "'at'"
exits 0 session ls
lacks "$out" parts
echo text >"$work/notes"
exits 1 session rm "$work/notes"
[ -e "$work/notes" ] || fail "rm removed what is no session"

# What cannot be gone on from is refused, with the reason, and stays as it is.
exits 1 session load none $tiny
has "$err" "none.kks" "session ls"
exits 1 session load dice --synthetic tiny-ple:f32
has "$err" "another model" "tiny f32"
# Another precision of the same model goes on with it, says so, and promises no equal bits.
exits 0 session load dice --synthetic tiny:bf16 -n 4 --keep
has "$err" "not the weights it was made with"
exits 0 session load dice --synthetic tiny:bf16 -n 4 --keep --json
has "$out" '"exact": false' '"other_weights": true'
exits 0 session load dice $tiny -n 4 --keep --json
has "$out" '"other_weights": false'
exits 1 session save dice $tiny --tokens 2
has "$err" "already" "--force"
exits 1 session load "$work/notes" $tiny
has "$err" "no saved session"
cp "$kept/dice.kks" "$work/dice.kks"
truncate -s 100000 "$kept/dice.kks"
exits 1 session load dice $tiny
has "$err" "cut short" "100000"
exits 0 session ls
has "$out" "cut short" talk
cp "$work/dice.kks" "$kept/dice.kks"
printf 'x' | dd of="$kept/dice.kks" bs=1 seek=50000 conv=notrunc 2>/dev/null
exits 1 session load dice $tiny
has "$err" "checksum"
cp "$work/dice.kks" "$kept/dice.kks"
exits 2 session load dice --synthetic tiny:f32 --spec dflash
has "$err" "drafter"
exits 0 session load dice --synthetic tiny:f32 -n 4 --keep
has "$err" "without drafts"
exits 1 session load dice $tiny -c 20
has "$err" "too small"
exits 2 session
has "$err" save load ls rm
exits 2 session store
has "$err" "save, load, ls, rm"
exits 2 session save $tiny --tokens 2
exits 2 session save .hidden $tiny --tokens 2
exits 0 help session load
has "$out" "--keep" "usage: kakeya session load"

# A disk that fills up: said, and the session that was there is as it was.
sum=$(cksum <"$kept/dice.kks")
(
    ulimit -f 100
    trap '' XFSZ
    "$KAKEYA" session load dice $tiny -n 40 --ignore-eos -q >/dev/null 2>"$work/err"
)
same $? 1 "exit when the disk is full"
has "$(cat "$work/err")" "cannot write"
same "$(cksum <"$kept/dice.kks")" "$sum" "the old file after a full disk"

# Killed again and again while it saves: there is always a whole session.
for i in 1 2 3 4 5 6 7 8; do
    "$KAKEYA" session load dice $tiny -n 20 --ignore-eos -q >/dev/null 2>&1 &
    pid=$!
    sleep "0.0$((i * i % 10))$i"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    exits 0 session load dice $tiny -n 1 -q --keep
done
exits 0 session rm dice
set -- "$kept"/*.tmp-*
[ ! -e "$1" ] || fail "rm leaves what killed saves left: $1"

# Ctrl-C ends the text and saves what there is.
env --default-signal=INT "$KAKEYA" session save long $tiny --tokens 2,3 -n -1 -c 8000 --ignore-eos \
    >"$work/out" 2>"$work/err" </dev/null &
pid=$!
for i in $(seq 200); do
    [ -s "$work/out" ] && break
    sleep 0.05
done
sleep 0.3
kill -INT $pid
wait $pid
same $? 130 "exit after SIGINT"
written=$(tr , '\n' <"$work/out" | grep -c .)
exits 0 session ls --json
has "$out" "\"name\": \"long\", \"tokens\": $((written + 2))"

# None at all is said, and is no failure.
XDG_STATE_HOME=$work/empty exits 0 session list
has "$err" "no saved sessions"
finish
