#!/usr/bin/env bash
# `kakeya chat` through a pipe; terminal.sh has it at a terminal.
. "$(dirname "$0")/lib.sh"
say() { # say TEXT ARG... - a chat with these lines on standard input
    local text=$1
    shift
    printf "$text" | "$KAKEYA" chat -m "$model" -n 8 -s 3 "$@" >"$work/out" 2>"$work/err"
    code=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

# Answers on stdout and nothing else anywhere; the same every time with a seed.
say 'Hello\nAnd you?\n'
same $code 0
same "$err" ""
[ -n "$out" ] || fail "no answer"
lacks "$out" $'\033'
lacks "$out" "> "
first=$out
say 'Hello\nAnd you?\n'
same "$out" "$first" "same seed"

# A backslash and three quotes make one message of several lines, so that they give one answer.
# The answers have newlines of their own, so messages are counted by what -v says of each.
answers() { printf '%s\n' "$err" | grep -c 'tok/s'; }
say 'one\ntwo\nthree\n' -v
same "$(answers)" 3
say 'one\\\ntwo\\\nthree\n' -v
same "$(answers)" 1
joined=$out
say '"""one\ntwo\nthree"""\n' -v
same "$(answers)" 1
same "$out" "$joined" "a block is the same message"
say '"""\none\ntwo\nthree"""\n'
same "$out" "$joined" "a block on its own lines too"

# Commands.  A conversation that was cleared begins anew.
say 'Hello\n' --temp 0
answer=$out
say 'Hello\n/clear\nHello\n' --temp 0
same "$out" "$answer
$answer" "after /clear"
say '/think on\n/think\n/nope\n/system be brief\n/help\n/exit\nnever read\n' -v
same $code 0
has "$err" "thinking is on" "there is no /nope" "system instructions set" "/clear"
same "$(answers)" 0
say 'Hello\n' --system 'Talk like a lighthouse.' --temp 0
[ "$out" != "$answer" ] || fail "--system changes nothing"
say 'Hello\n' --think --temp 0
[ "$out" != "$answer" ] || fail "--think changes nothing"

# The context is too small for the second question.
say "$(printf 'word %.0s' $(seq 60))\n" -c 24
same $code 1
has "$err" "no longer fits the context" "raise -c."

# A full context drops the oldest turns, and says so in a line; --no-shift stops instead.
five='one word here\ntwo words here\nthree words here\nfour words here\nfive words here\n'
say "$five" -c 96 -n 8 --temp 0 --system 'Be brief.' -v
same $code 0
same "$(answers)" 5
has "$err" "the context of 96 tokens is full: the oldest"
say "$five" -c 96 -n 8 --temp 0 --no-shift
same $code 1
has "$err" "no longer fits the context"
lacks "$err" "dropped"

# Dropped turns are still messages: /save keeps them all, /undo takes back the last, and with more
# room the model has them again.  What is loaded has no less room than the run has without it.
users() { tr -d ' \n' <"$1" | grep -o '"role":"user"' | wc -l; }
say "$five/save $work/full.kks\n/undo\nsix\n/save $work/undone.kks\n" -c 96 --temp 0 --system Short
same $code 0
has "$err" "the oldest"
same "$(users "$work/full.chat.json")" 5 "messages saved from a full context"
has "$(cat "$work/full.chat.json")" "one word here" "five words here"
same "$(users "$work/undone.chat.json")" 5 "messages saved after /undo"
has "$(cat "$work/undone.chat.json")" "one word here" "four words here"
lacks "$(cat "$work/undone.chat.json")" "five words here"
say "$five" -c 4096 --temp 0 --system Short
whole=$out
say "/load $work/full.kks\n/retry\n/clear\n$five" -v --temp 0
same $code 0
lacks "$err" "dropped"
same "$(answers)" 6 "answers with the room there is"
has "$out" "$whole"
# /undo of the only turn that the model is shown brings back what fits.
say "$five/undo\n/undo\nsix\n/save $work/few.kks\n" -c 40 -n 4 --temp 0
same $code 0
same "$(users "$work/few.chat.json")" 4 "messages after two /undo in a small context"

# A turn reads no more than the last answer and the new message, with drafting on, thinking on and
# off, and long after the window (512 tokens) was first filled.
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
message="Rename \`total\` to \`sum_of_all\`. $(printf 'total = total + value_%d; ' $(seq 24))"
turns() { # turns ARG... - five messages to the shipped pair; 'read held answered' of each
    for _ in 1 2 3 4 5; do printf '%s\n' "$message"; done |
        "$KAKEYA" chat -m "$shipped/verifier" -md "$shipped/drafter" -n 60 -s 3 -v "$@" \
            2>&1 >"$work/out" | grep -o '[0-9]* of [0-9]* tokens read; [0-9]* answered' |
        tr -cd '0-9 \n' >"$work/turns"
}
for how in "" "--think" "--spec ngram" "--think --temp 0 --draft-max 7 --draft-fixed"; do
    turns $how
    same "$(wc -l <"$work/turns")" 5 "turns with $how"
    awk -v how="$how" '
        NR == 1 { message = $2; if ($1 != $2) bad = bad "; the first read " $1 }
        NR > 1 && $1 > message + answered + 64 { bad = bad "; turn " NR " read " $1 }
        { held = $2; answered = $3 }
        END {
            if (held < 1100) bad = bad "; only " held " tokens"
            if (bad) { print how bad; exit 1 }
        }' "$work/turns" >"$work/bad" || fail "reading again: $(cat "$work/bad")"
done

# Models that cannot chat.
exits 1 chat --synthetic tiny:f32
has "$err" "tokenizer"

# An opening message, a file before it, settings, taking back and answering again.
say '' -p Hello --temp 0
same "$out" "$answer" "-p is the first message"
say 'Hello\n/undo\nHello\n' --temp 0
same "$out" "$answer
$answer" "after /undo"
say '/set temp 0\nHello\n/retry\n/set\n/set temp\n/set temp x\n/set depth 1\n'
same "$out" "$answer
$answer" "/set and /retry"
has "$err" "temp 0" "top-k 64" "seed " "takes a number" "no setting 'depth'"
say '/set temp 1\n/set seed 7\nHello\n/retry\n/retry\n' -n 20
[ "$(sort "$work/out" | uniq | wc -l)" -gt 1 ] || fail "/retry draws the same answer again"
say '/undo\n/retry\nHello\n' --temp 0
has "$err" "nothing to take back" "no message to answer again"
same $code 0
same "$out" "$answer" "/retry with nothing to answer goes on"
say '/set seed abc\n'
has "$err" "seed takes a whole number of at most 64 bits, or -1 for a random one, not 'abc'"
printf 'Hello' >"$work/question"
say "/file $work/question\nyou\n" --temp 0
attached=$out
say '"""Hello\n\nyou"""\n' --temp 0
same "$out" "$attached" "/file goes before the message"
say 'you\n' -f "$work/question" --temp 0
same "$out" "$attached" "-f goes before the first message"
say '/file nowhere\n/file\n'
has "$err" "cannot read 'nowhere': No such file" "/file takes a path"
head -c 100 /dev/zero >"$work/zeros"
say "/file $work/zeros\n"
has "$err" "is not text"
# What is no command is a message.
say '/usr/bin has what?\n' -v
same "$(answers)" 1 "a path is a message"
say 'Hello\n/bye\nnever read\n' -v
same "$(answers)" 1 "/bye"
say 'Hello\n/quit\nnever read\n' -v
same "$(answers)" 1 "/quit"

# Saved and taken up again: the same conversation, and nothing is read twice.
say 'Hello\n/save one\nAnd you?\n' --temp 0
straight=$(printf '%s\n' "$out" | tail -n +2)
has "$err" "saved: /load one"
say '/load one\nAnd you?\n' --temp 0 -v
same "$out" "$straight" "after /load"
has "$err" "one: 2 messages"
read -r again held < <(printf '%s\n' "$err" | sed -n 's/^\([0-9]*\) of \([0-9]*\) tokens read.*/\1 \2/p')
[ "${again:-9999}" -lt "${held:-0}" ] || fail "a loaded conversation is read again: $err"
say 'And you?\n' --temp 0 --load one
same "$out" "$straight" "--load"
kept=$(cat "$XDG_STATE_HOME/kakeya/sessions/one.chat.json")
say 'Bye\n/save one\n'
has "$err" "there is a 'one' already: /save one --force replaces it"
same $code 1 "a /save that fails"
same "$(cat "$XDG_STATE_HOME/kakeya/sessions/one.chat.json")" "$kept" "it was not replaced"
say 'Bye\n/save one --force\n/save\n'
lacks "$(cat "$XDG_STATE_HOME/kakeya/sessions/one.chat.json")" "Hello"
say '/load two\n/load\n/save\n' -v
has "$err" "two: cannot read" "/load takes a name" "/save takes a name"
same $code 1
say '/load two\nHello\n' --temp 0
same $code 1 "a /load that fails"
same "$out" "$answer"
say "Hello\n/save $work/nowhere/x.kks\n"
same $code 1 "a /save to nowhere"
echo '{"kakeya_chat": 1, "messages": [{"role": "nobody"}]}' >"$work/bad.chat.json"
say "/load $work/bad.kks\nHello\n" --temp 0
has "$err" "nobody"
same "$out" "$answer" "a conversation that is refused changes nothing"
# What the command line gives comes before what was saved; what it does not give is as saved.
say "Hello\n/save $work/plain.kks\n" --system Old --temp 0
say "/save $work/again.kks\n" --load "$work/plain.kks"
has "$(tr -d ' \n' <"$work/again.chat.json")" '"system":"Old"' '"think":false'
lacks "$(cat "$work/again.chat.json")" '"tools"'
echo '[{"type": "function", "function": {"name": "clock"}}]' >"$work/clock.json"
say "/save $work/given.kks\n" --load "$work/plain.kks" --system New --think --tools "$work/clock.json"
same $code 0
has "$(tr -d ' \n' <"$work/given.chat.json")" '"system":"New"' '"think":true' '"clock"' '"Hello"'
# Rows of another precision are told of, as by session load.
exits 0 quantize "$model" "$work/other.gguf" --type q8_0
printf 'And you?\n' | "$KAKEYA" chat -m "$work/other.gguf" -n 8 --load "$work/plain.kks" \
    >"$work/out" 2>"$work/err" || fail "another precision: $(cat "$work/err")"
has "$(cat "$work/err")" "plain.kks: these are not the weights it was made with"
"$KAKEYA" session rm one 2>/dev/null
[ ! -e "$XDG_STATE_HOME/kakeya/sessions/one.chat.json" ] || fail "session rm leaves the conversation"

# Tools: the next message is the result of the call that is open, and is asked for by its name.
cat >"$work/tools.json" <<'END'
[{"type": "function", "function": {"name": "weather", "description": "of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
END
say 'Hello\n' --tools "$work/tools.json" --temp 0
[ "$out" != "$answer" ] || fail "--tools changes nothing"
cat >"$work/call.chat.json" <<'END'
{"kakeya_chat": 1, "messages": [{"role": "user", "content": "Oslo?"}, {"role": "assistant",
 "content": "", "tool_calls": [
  {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}},
  {"id": "b", "type": "function", "function": {"name": "time", "arguments": {}}}]}]}
END
say "/load $work/call.kks\nrain\n{\"hour\": 3}\n/save $work/answered.kks\n" -v
same "$(answers)" 1 "two results, one answer"
has "$(tr -d ' \n' <"$work/answered.chat.json")" '{"role":"tool","tool_call_id":"a","content":"rain"}' \
    '{"role":"tool","tool_call_id":"b","content":{"hour":3}}'
# A result that is not answered yet says nothing of turns that were dropped before.
say "$five/load $work/call.kks\nrain\n" -c 96 --temp 0 -n 8
has "$err" "dropped"
lacks "${err##*2 messages}" "dropped"
say 'x\n' --tools "$work/call.chat.json"
same $code 1
has "$err" "has no list of tools" "OpenAI"

# The shipped model opens a channel when it thinks: what is in it is not part of the answer.
printf 'Hello\n' | "$KAKEYA" chat --think --temp 0 -n 12 >"$work/out" 2>&1
lacks "$(cat "$work/out")" "thought"
lacks "$(cat "$work/out")" "channel"

# A stop text ends an answer, and the conversation goes on after it.
say 'Hello\n' --temp 0 -n 20
stop=$(printf '%s' "$out" | head -1 | cut -c 4-6)
full=$out
say 'Hello\n' --temp 0 -n 20 --stop "$stop"
same "$out" "${full%%"$stop"*}" "--stop"
finish
