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
failures=0 skipped=0

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
    [ "$code" -eq "$want" ] || fail "kakeya $*: exit $code, not $want; stderr: $err; stdout: ${out:0:2000}"
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

# json TEXT KEY... - the text is one JSON object, in which these keys stand at some depth.  Python
# judges, not the program's own reader: without NaN and infinities, which JSON has not, and with
# every key once in its object.
json() {
    local text=$1 said
    shift
    said=$(printf '%s' "$text" | python3 -c '
import json, sys

keys = set()

def member(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a key twice among %s" % names)
    keys.update(names)
    return dict(pairs)

def refuse(word):
    raise ValueError(word)

text = sys.stdin.buffer.read().decode("utf-8", "strict")
if not isinstance(json.loads(text, object_pairs_hook=member, parse_constant=refuse), dict):
    raise ValueError("no object")
missing = [key for key in sys.argv[1:] if key not in keys]
if missing:
    raise ValueError("no key %s" % ", ".join(missing))
' "$@" 2>&1) || fail "JSON: $(printf '%s\n' "$said" | tail -n 1) in: $text"
}

# skip_part WORDS - a part that needs a tool that is not here: the test then ends as skipped, not as
# passed, unless something else failed.
skip_part() {
    echo "SKIP: $*" >&2
    skipped=1
}

# skip_all WORDS - the whole test needs what is not here.
skip_all() {
    skip_part "$@"
    finish
}

# need_tool NAME... - programs that the whole test runs.
need_tool() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip_all "no $tool (scripts/setup test)"
    done
}

# within_memory KB COMMAND... - in a subshell: under a limit of addresses, if the program starts
# there at all; a sanitizer's shadow takes terabytes of them.
within_memory() {
    (ulimit -v "$1" && "$KAKEYA" version) >/dev/null 2>&1 && ulimit -v "$1"
    shift
    exec "$@"
}

# need_serve - the module of `kakeya serve` is needed.
need_serve() {
    [ -n "${KK_SERVE_MODULE:-}" ] || skip_all "the module of kakeya serve is not built (scripts/setup serve)"
}

finish() {
    [ "$failures" -eq 0 ] || echo "$failures checks failed" >&2
    [ "$failures" -eq 0 ] && [ "$skipped" -eq 1 ] && exit 77
    exit $((failures > 0))
}
