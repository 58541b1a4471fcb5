#!/usr/bin/env bash
# The manual page and the completions that the program prints: every option of every verb is in them,
# the page renders without a warning, and the three shells complete what they should.
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1

exits 0 help --man
same "$err" ""
printf '%s\n' "$out" >kakeya.1
for shell in bash zsh fish; do
    exits 0 completion $shell
    same "$err" ""
    printf '%s\n' "$out" >kakeya.$shell
done
exits 2 completion
exits 2 completion csh
has "$err" "'csh'" "bash, zsh or fish"

# ---- what there is, by the help texts ----

exits 0 help
mapfile -t verbs < <(printf '%s\n' "$out" | sed -n '/^Examples/q; s/^  \([a-z][a-z]*\)  *[a-z].*/\1/p')
[ ${#verbs[@]} -ge 15 ] || fail "only ${#verbs[@]} verbs: ${verbs[*]}"
leaves=()
declare -A flags kinds
for verb in "${verbs[@]}"; do
    [ "$verb" = help ] && continue
    exits 0 help "$verb"
    kinds[$verb]=$(printf '%s\n' "$out" | sed -n '/^Examples/q; s/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' | tr '\n' ' ')
    if [ -n "${kinds[$verb]}" ]; then
        for kind in ${kinds[$verb]}; do leaves+=("$verb $kind"); done
    else
        leaves+=("$verb")
    fi
done
has "${leaves[*]}" "eval needle" "session rm" "report html" "train projection" "run chat"
all=0
for leaf in "${leaves[@]}"; do
    # shellcheck disable=SC2086  # a verb and perhaps a kind
    exits 0 help $leaf
    flags[$leaf]=$(printf '%s\n' "$out" | sed -n '/^Examples:/q; s/^  \(-.*\)/\1/p' |
        grep -oE '^(-[a-z]+, )?--[a-z0-9-]+(, --[a-z0-9-]+)*' | tr -d , | tr '\n' ' ')
    # shellcheck disable=SC2206
    some=(${flags[$leaf]}) all=$((all + ${#some[@]}))
done
[ $all -ge 400 ] || fail "only $all options"

# ---- the manual page ----

if command -v groff >/dev/null; then
    same "$(groff -man -ww -z -Tutf8 kakeya.1 2>&1)" "" "warnings of groff"
else
    skip_part "no groff: the manual page was not rendered"
fi
page=$(cat kakeya.1)
for section in NAME SYNOPSIS DESCRIPTION VERBS "EXIT STATUS" ENVIRONMENT FILES EXAMPLES; do
    has "$page" $'\n'".SH $section"$'\n'
done
lacks "$page" $'\n@'

# part FILE LINE - what stands behind the line "== LINE", up to the next such line.
part() { awk -v title="== $2" '/^== /{inside = $0 == title; next} inside' "$1"; }
# part_of TITLE - a section or subsection of the page.
part_of() { awk -v title="$1" '/^\.S[HS] /{inside = substr($0, 5) == title} inside' kakeya.1; }
for leaf in "${leaves[@]}"; do
    case $leaf in
    *' '*) own=$(part_of "$leaf") ;;
    *) own=$(part_of "${leaf^^}") ;;
    esac
    has "$own" "kakeya $leaf"
    # Groups that several verbs share stand in sections that name these verbs.
    also=$(printf '%s\n' "$own" | sed -n 's/^Also: \(.*\)\.$/\1/p')
    while read -r title; do
        [ -n "$title" ] || continue
        shared=$(part_of "$title")
        has "$(printf '%s\n' "$shared" | sed -n 2p) " " \\fB$leaf\\fR"
        own+=$shared
    done < <(printf '%s\n' "${also//, /$'\n'}")
    for flag in ${flags[$leaf]}; do
        case $own in *"\\fB${flag//-/\\-}\\fR"*) ;; *) fail "$leaf $flag: not in the manual page" ;; esac
    done
done

# ---- bash ----

same "$(bash -n kakeya.bash 2>&1)" ""
. ./kakeya.bash
compopt() { :; } # there is no completion going on

# completes WANTED WORD... - what the last word of a command line becomes.
completes() {
    local want=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _kakeya kakeya
    same "${COMPREPLY[*]}" "$want" "completion of $*"
}
completes "${verbs[*]} --help --version" kakeya ""
completes "session" kakeya ses
for verb in "${!kinds[@]}"; do
    [ -z "${kinds[$verb]}" ] || completes "${kinds[$verb]}--help" kakeya "$verb" ""
done
for leaf in "${leaves[@]}"; do
    # shellcheck disable=SC2086
    [ "$leaf" = completion ] || completes "${flags[$leaf]}--help" kakeya $leaf -
done
exits 2 run --kv-format '?' # says what it takes
formats=$(printf '%s\n' "$err" | sed -n "s/.*--kv-format takes \(.*\), not .*/\1/p")
has "$formats" "bf16 f32 q8 q4"
completes "$formats" kakeya run --kv-format ""
completes "q8 q4" kakeya run --kv-format = q
completes "--kv-full" kakeya chat --kv-fu
completes "q4_0 q4_k_m bf16" kakeya run --synthetic 26b-a4b :
completes "q4_0 q4_k_m" kakeya run --synthetic 26b-a4b : q
completes "" kakeya run --prompt ""
mkdir -p folder "$XDG_STATE_HOME/kakeya/sessions"
touch folder/model.gguf "$XDG_STATE_HOME/kakeya/sessions/"{book.kks,talk.kks,hello.chat.json}
completes "folder" kakeya run -m fo
completes "folder/model.gguf" kakeya quantize folder/
completes "book talk" kakeya session load ""
completes "talk" kakeya session rm book ta
completes "--keep" kakeya session load book --kee
completes "--json --help" kakeya session list --
completes "hello" kakeya chat --load ""
completes "save load ls rm" kakeya help session ""
completes "bash" kakeya completion b

# ---- zsh and fish ----

if command -v zsh >/dev/null; then
    same "$(zsh -n kakeya.zsh 2>&1)" ""
    cat >drive.zsh <<'ZSH'
        compdef() { : }
        _arguments() { print -rl -- "$@" }
        _describe() { print -rl -- "${(@P)2}" }
        source ./kakeya.zsh
        for line; do
            words=(kakeya ${=line} '') CURRENT=${#words}
            print -r -- "== $line"
            _kakeya
        done
ZSH
    zsh -f drive.zsh "" eval "${leaves[@]}" >zsh.out 2>&1 || fail "zsh: $(head -3 zsh.out)"
    has "$(part zsh.out "")" "run:continue"
    has "$(part zsh.out eval)" "needle:recall"
    for leaf in "${leaves[@]}"; do
        # '(-m --model)-m[help]:MODEL:_files' is of -m.
        own=" $(part zsh.out "$leaf" | sed -n 's/^\(([^)]*)\|\*\)\{0,1\}\(-[^[]*\)\[.*/\2/p' | tr '\n' ' ')"
        for flag in ${flags[$leaf]}; do
            case $own in *" $flag "*) ;; *) fail "$leaf $flag: not completed by zsh" ;; esac
        done
    done
else
    skip_part "no zsh: its completion was not tried"
fi
if command -v fish >/dev/null; then
    cat >drive.fish <<'FISH'
        source ./kakeya.fish
        for line in $argv
            echo "== $line"
            complete -C "$line" | string replace -r '\t.*' ''
        end
FISH
    lines=("kakeya " "kakeya eval " "kakeya run --kv-format " "kakeya session rm " "kakeya chat --load ")
    for leaf in "${leaves[@]}"; do lines+=("kakeya $leaf -" "kakeya $leaf --"); done
    HOME=$work fish drive.fish "${lines[@]}" >fish.out 2>&1 || fail "fish: $(head -3 fish.out)"
    has "$(part fish.out "kakeya ")" "${verbs[@]}"
    same "$(part fish.out "kakeya eval " | sort | tr '\n' ' ')" "$(printf '%s\n' ${kinds[eval]} | sort | tr '\n' ' ')"
    same "$(part fish.out "kakeya run --kv-format " | sort | tr '\n' ' ')" \
        "$(printf '%s\n' $formats | sort | tr '\n' ' ')"
    has "$(part fish.out "kakeya session rm ")" book talk
    has "$(part fish.out "kakeya chat --load ")" hello
    for leaf in "${leaves[@]}"; do
        own=" $({ part fish.out "kakeya $leaf -"; part fish.out "kakeya $leaf --"; } | tr '\n' ' ')"
        for flag in ${flags[$leaf]}; do
            case $own in *" $flag "*) ;; *) fail "$leaf $flag: not completed by fish" ;; esac
        done
    done
else
    skip_part "no fish: its completion was not tried"
fi
finish
