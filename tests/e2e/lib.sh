# shellcheck shell=bash
# lib.sh - sourced by the end-to-end tests: run the program, look at what it said.
#
# KAKEYA is the program and KK_TEST_DATA the folder of test data; both come from the build.
# Every check that does not hold is told, and the test fails at its end with `finish`.
set -u
: "${KAKEYA:?the program to test}" "${KK_TEST_DATA:?the folder of test data}"
export LC_ALL=C.UTF-8 TERM=xterm
unset NO_COLOR

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_STATE_HOME=$work/state

# Random weights, and a tokenizer for them.
model=$work/model
mkdir "$model"
cp "$KK_TEST_DATA/chat/config.json" "$KK_TEST_DATA/chat/model.safetensors" \
    "$KK_TEST_DATA/tokenizer/tokenizer.json" "$model" || exit 1
failures=0

# fail WORD... - a check that does not hold.
fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# kakeya ARG... - runs it; leaves $out, $err and $code.
kakeya() {
    "$KAKEYA" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

# exits CODE ARG... - runs it and checks the exit code.
exits() {
    local want=$1
    shift
    kakeya "$@"
    [ "$code" -eq "$want" ] || fail "kakeya $*: exit $code, not $want; stderr: $err"
}

# has TEXT PART... - every part is in the text.
has() {
    local text=$1 part
    shift
    for part in "$@"; do
        case $text in *"$part"*) ;; *) fail "'$part' is not in: $text" ;; esac
    done
}

lacks() {
    case $1 in *"$2"*) fail "'$2' is in: $1" ;; esac
}

same() {
    [ "$1" = "$2" ] || fail "'$1' is not '$2'${3:+ ($3)}"
}

# json TEXT KEY... - the text is one JSON object with these keys.  The program's own reader of
# JSON lines judges: it complains of a missing "text" only after the line was read.
json() {
    local text said key
    text=$(printf '%s' "$1" | tr -d '\n')
    shift
    said=$(printf '%s\n' "$text" | "$KAKEYA" tokenize -m "$model" --jsonl - 2>&1)
    case $said in *'"ids"'* | *'no string called "text"'*) ;; *) fail "no JSON object: $text" ;; esac
    for key in "$@"; do has "$text" "\"$key\": "; done
}

finish() {
    [ "$failures" -eq 0 ] || echo "$failures checks failed" >&2
    exit $((failures > 0))
}
