#!/usr/bin/env bash
# `kakeya chat` through a pipe and at a terminal.
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

# At a terminal: a prompt, editing, history, and Ctrl-C that does not end the program.
if ! script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    echo "no usable script(1): the terminal was not tested" >&2
    finish
fi
at_terminal() { # at_terminal ARG... - a chat at a terminal, the keys from standard input
    # exec: a shell in between would report the Ctrl-C it saw as its own end.
    timeout 120 script -qefc "exec '$KAKEYA' chat -m '$model' -n 8 -s 3 $*" /dev/null >"$work/out" 2>&1
    code=$?
    out=$(tr -d '\r' <"$work/out")
}
prompts() { # prompts N - waits until so many prompts were shown
    local i
    for i in $(seq 200); do
        [ "$(tr '\r' '\n' <"$work/out" | grep -ac '^> ')" -ge "$1" ] && return
        sleep 0.05
    done
}
answered() { # waits until an answer's speed was shown
    local i
    for i in $(seq 200); do
        grep -aq 'tok/s' "$work/out" && return
        sleep 0.05
    done
}
leave() { # leave KEYS - on an empty line, until the chat is gone: some keys may be dropped
    local i
    for i in $(seq 100); do
        printf '\025%b' "$1" 2>/dev/null || return
        sleep 0.3
    done
}
first_chat() {
    prompts 1
    printf 'Hello\n'
    prompts 2
    printf 'half a line'
    sleep 0.3
    printf '\003'
    prompts 3
    printf '/help\n'
    prompts 4
    leave '/exit\n'
}
: >"$work/out"
at_terminal < <(first_chat)
same $code 0 "exit at the terminal: $out"
has "$out" "/help shows the commands" "> " "(/exit or Ctrl-D leaves)" "/think on|off" $'\033[2m'
grep -q 'Hello' "$XDG_STATE_HOME/kakeya/history" || fail "no history was kept"
grep -q 'half' "$XDG_STATE_HOME/kakeya/history" && fail "a dropped line was sent"
same "$(stat -c %a "$XDG_STATE_HOME/kakeya/history")" 600 "who may read the history"
second_chat() {
    prompts 1
    printf '\020\020\020\n' # three lines back in the history: Hello
    answered
    leave '\004'
}
export NO_COLOR=1
: >"$work/out"
at_terminal -q -v < <(second_chat)
same $code 0 "exit by Ctrl-D: $out"
lacks "$out" $'\033[2m'
has "$out" "Hello" "tok/s"
finish
