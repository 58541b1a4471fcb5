#!/usr/bin/env bash
# What the program says when it is asked, or held wrong; completion.sh has the manual page.
. "$(dirname "$0")/lib.sh"
verbs="run chat info bench eval train report parity tokenize quantize session serve bridge doctor version completion"
root=$(cd "$(dirname "$0")/../.." && pwd)

exits 2
has "$err" "usage: kakeya VERB" $verbs
exits 0 help
same "$err" ""
has "$out" $verbs
exits 0 --help
exits 0 --version
has "$out" "kakeya 0."

check_help() { # check_help VERB [KIND]
    local verb=$*
    exits 0 help "$@"
    has "$out" "usage: kakeya $verb" "Examples:" "  kakeya $verb"
    by_help=$out
    exits 0 "$@" --help
    same "$out" "$by_help" "help of $verb"
}
for verb in $verbs; do check_help "$verb"; done
check_help eval needle
check_help eval accept
check_help report check
check_help report html
for kind in request fetch status run doctor setup; do check_help bridge $kind; done

# Verbs and flags that are slips of the finger, or not there yet.
exits 2 rnu
has "$err" "did you mean 'run'"
exits 2 zzzzzz
lacks "$err" "did you mean"
has "$err" "kakeya help"
for verb in pull; do
    exits 2 $verb
    has "$err" "'$verb' is not part of this build yet"
    kakeya help
    lacks "$out" "  $verb "
done
exits 2 help pull
exits 2 run --thread 2
has "$err" "--threads"
exits 2 run --zzzzzz
has "$err" "unknown option --zzzzzz" "kakeya help run"
exits 1 run -p x -mp /nowhere
has "$err" "cannot open projection" "kakeya train projection"
exits 2 run -p x --kv-sliding exact
exits 2 run -p x --kv-full native
exits 2 run -p x -m "$root/models/tiny/verifier" --kv-full restored
has "$err" "restoring full layers needs a projection" "-mp"
exits 1 run -m "$root/models/tiny/verifier" -p x --isa sse
has "$err" "'sse'" "leave --isa out"
lacks "$err" '`'
# A stream without an end is given up before it has the machine's memory.
if [ -c /dev/zero ]; then
    (within_memory 4000000 "$KAKEYA" run -m "$model" -f /dev/zero) >"$work/out" 2>"$work/err"
    same $? 1 "run -f /dev/zero"
    has "$(cat "$work/err")" "cannot read the prompt from '/dev/zero': File too large"
fi
# Flags that stand for options of the library are flags.
flags=$(sed -n 's/^ *{"[A-Za-z_]*", "\(-.*\)"},$/\1/p' "$root/cli/flags.c")
has "$flags" -c --device
exits 0 help run
for flag in $flags; do has "$out" " $flag"; done
exits 2 run -p x --kv-full window --sink 0 --window 0
has "$err" "sink and window are both 0"
exits 2 run -p x --kv-sliding window --window 513
has "$err" "window of 513 rows" "512"
exits 2 run -p x --kv-full window --sink 65
exits 2 run --kv-format '?'
has "$err" "--kv-format takes bf16 f32 q8 q4"
exits 2 run -p x --kv-format e8
has "$err" "not part of this build yet" "q4"
exits 2 run --device abacus
has "$err" "--device takes cpu cuda mlx"
exits 2 run --device mlx --exact-rows 33 -p x

# Who drafts, how much, and with what.
exits 2 run --spec wrong
has "$err" "--spec takes auto dflash ngram none"
exits 2 run --draft-max 0 -p x
has "$err" "1 to 31" "--spec none"
exits 2 run --draft-max 32 -p x
exits 2 run --draft-ctx 0 -p x
exits 2 run --synthetic tiny:f32 --tokens 2 --spec dflash
has "$err" "needs a drafter" "-md DRAFTER"
exits 2 run --synthetic tiny:f32 --tokens 2 -md synthetic --spec dflash --draft-max 16
has "$err" "drafts of 16 tokens" "15"
exits 2 run -m "$model" -p x -md synthetic
has "$err" "--synthetic"
exits 2 run -m "$model" -p x --draft-embed-scale twice
has "$err" "needs a drafter"
exits 2 run --draft-embed-scale thrice -p x
exits 1 run -m "$model" -p x -md "$work/none"
has "$err" "cannot open drafter '$work/none'"
exits 2 bench --arms plain,fast --synthetic tiny:f32
has "$err" "'fast' is none of them"
exits 2 bench --arms dflash -m "$model"
has "$err" "needs a drafter"
exits 2 bench --accept-trace geom:0.5:1 --synthetic tiny:f32
has "$err" "dflash arm"
exits 2 bench --accept-trace geom:0.5:1 --arms dflash -m "$model"
exits 2 bench --accept-trace geom:1.5:1 --arms dflash --synthetic tiny:f32
has "$err" "geom:P:SEED" "geom:1.5:1"
exits 2 bench --arms ngram --set code --synthetic tiny:f32
has "$err" "no tokenizer"
exits 2 bench --arms ngram --set code,verse -m "$model"
has "$err" "no set 'verse'" "needle"
exits 2 bench --arms ngram --set code --prompts x -m "$model"

# Values.
exits 2 run -n
has "$err" "-n needs a value"
exits 2 run -n abc
has "$err" "whole number" "'abc'"
exits 2 run -n 1.5
exits 2 run -n -2
# Short options with their value attached, and what other programs call an option.
exits 0 run --synthetic tiny:f32 --tokens 2 -n3 --json -t1
same "$(grep -o '"tokens": \[[^]]*\]' <<<"$out" | tr -cd , | wc -c)" 2 "-n3"
for how in --max-tokens=3 "--n-predict 3" -n=3; do
    exits 0 run --synthetic tiny:f32 --tokens 2 $how --json --ctx 64 --temperature 0
    same "$(grep -o '"tokens": \[[^]]*\]' <<<"$out" | tr -cd , | wc -c)" 2 "$how"
done
exits 0 run --synthetic tiny:f32 --tokens 2 -n0 --json
has "$out" '"tokens": [], "stop": "length"'
exits 0 run --synthetic tiny:f32 --tokens 2 -n0 -q
same "$out" ""
exits 2 run -n5x -p x
has "$err" "whole number" "'5x'"
exits 2 run -model x
has "$err" "unknown option -model; did you mean --model?"
exits 2 run -nfive
has "$err" "unknown option -nfive"
# Words to choose from, in any case.
exits 0 run --synthetic tiny:F32 --tokens 2 -n 1 --kv-format Q8 --spec NGram --device CPU --json
has "$out" '"format": "q8"' '"proposer": "ngram"'
# No suggestion is better than a wrong one.
exits 2 bench --think
lacks "$err" "did you mean"
exits 2 run -p x --think
has "$err" "--think needs --chat"
exits 2 run -p x --tools y
has "$err" "--tools needs --chat"
exits 2 run --top-p 2
exits 2 run --temp nan
exits 2 run --seed -3
exits 2 run --json=yes
exits 2 run word
has "$err" "unexpected argument 'word'" "-p"
exits 2 parity
exits 2 quantize one
exits 2 quantize one two
has "$err" "--type"
exits 2 quantize one two --type q3_0
exits 2 tokenize -p x --jsonl y
exits 2 run -m a --synthetic tiny:f32 --tokens 2
exits 2 run -p a -f b
exits 2 run --tokens 1,x
exits 2 run --tokens 1 --chat
exits 2 bench --synthetic tiny:f32 --rows 2,4
exits 2 info --synthetic tiny:f32 --check

exits 2 eval
has "$err" "needle"
exits 2 eval haystack
has "$err" "no kind 'haystack'" "needle"
exits 2 eval sweep --alphas 0,2
has "$err" "from 0 to 1" "'2'"
exits 2 eval --samples 2 needle
has "$err" "the kind comes first"
exits 2 eval accept --set code,verse
has "$err" "no set 'verse'"
exits 2 eval accept --set ""
exits 2 eval accept --set code --prompts x
exits 2 eval accept --spec none
exits 2 eval accept --draft-max 0
has "$err" "--spec none"
exits 2 eval accept -m "$model" --spec dflash
has "$err" "-md DRAFTER"
exits 2 eval accept -m "$model" --embed-scale twice
exits 2 eval accept --spec ngram --embed-scale twice
exits 2 eval accept --embed-scale twice --draft-embed-scale once
exits 2 eval accept --prompts
exits 2 eval needle --ladder 70,x
has "$err" "'x' is not one"
exits 2 eval needle --ladder 0
exits 2 eval needle --ladder ""
exits 2 eval needle --min-recall 1.5
exits 2 eval needle --synthetic tiny:f32

# A copy without a model beside it: what to do is said.
mkdir -p "$work/alone/bin"
cp "$KAKEYA" "$work/alone/bin/kakeya"
there=$KAKEYA KAKEYA=$work/alone/bin/kakeya
exits 1 run -p hello
has "$err" "-m MODEL" "--synthetic tiny:f32"
KAKEYA=$there
exits 1 run -m "$work/none" -p hello
has "$err" "$work/none" "Hugging Face folder"
exits 1 run --synthetic huge:q4_0 --tokens 2
has "$err" "huge"
exits 1 run --synthetic tiny:f32 --isa mmx --tokens 2
has "$err" "mmx"

# Output that cannot be written is a failure, not a silence.
if [ -e /dev/full ]; then
    "$KAKEYA" version >/dev/full 2>"$work/err"
    same $? 1 "exit with a full disk"
fi
finish
