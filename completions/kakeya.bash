# bash completion for kakeya

_kakeya() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}
    local verbs="run chat info bench eval parity tokenize quantize session doctor version help"
    local model="-m --model --synthetic"
    local device="-t --threads --device --isa --mlock --huge-pages"
    local context="-c --ctx-size --kv-sliding --kv-full --kv-format --spec"
    local sampling="--temp --top-k --top-p --min-p --repeat-penalty --presence-penalty
        --frequency-penalty --repeat-last-n -s --seed"
    local words=

    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$verbs --help --version" -- "$cur")
        return
    fi

    # The value of an option.
    case $prev in
    -m | --model | -f | --file | --jsonl | --report)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    --synthetic) words="26b-a4b:q4_0 26b-a4b:bf16 31b:q4_0 e2b:q4_0 e4b:q4_0 tiny:f32" ;;
    --type) words="q8_0 q4_0 bf16 f16" ;;
    --device) words="cpu" ;;
    --isa) words="avx512 avx2 neon reference" ;;
    --kv-sliding) words="native" ;;
    --kv-full) words="exact" ;;
    --kv-format) words="bf16 f32" ;;
    --spec) words="none" ;;
    --arms) words="plain" ;;
    --rows) words="none 1,2,4,8,16" ;;
    --ladder) words="70,280 60,150,300" ;;
    -p | --prompt | --tokens | --system | -n | --predict | -c | --ctx | --ctx-size | -t | \
        --threads | -s | --seed | --temp | --top-k | --top-p | --min-p | --repeat-penalty | \
        --presence-penalty | --frequency-penalty | --repeat-last-n | --prefill | --repeat | \
        --tol | --tol-hidden | --samples | --min-recall)
        return
        ;;
    esac
    if [ -n "$words" ]; then
        # A colon splits words on the command line; complete what follows it.
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
        [ "$(type -t __ltrim_colon_completions)" = function ] && __ltrim_colon_completions "$cur"
        return
    fi

    case $verb in
    run)
        words="$model $device $context $sampling -p --prompt -f --file --tokens --chat --system
            -n --predict --ignore-eos --json -q --quiet -v --verbose"
        ;;
    chat)
        words="$model $device $context $sampling --system --think -n --predict -q --quiet
            -v --verbose"
        ;;
    info) words="$model --check --json" ;;
    bench)
        words="$model $device --arms -c --ctx --ctx-size -n --predict --prefill --rows --repeat
            --kv-format --report -q --quiet"
        ;;
    eval)
        words="-m --model $device --ladder --samples -s --seed -n --predict --raw --print --min-recall
            --report -q --quiet -v --verbose -c --ctx-size --kv-format"
        [ "$COMP_CWORD" -eq 2 ] && words="needle $words"
        ;;
    parity) words="--tol --tol-hidden -t --threads --isa --json" ;;
    tokenize) words="-m --model -p --prompt --jsonl --chat --bos" ;;
    quantize) words="--type --force -q --quiet" ;;
    session)
        words="$model $device $context $sampling -p --prompt -f --file --tokens --chat --system
            -n --predict --ignore-eos --json -q --quiet -v --verbose --force --keep"
        case $COMP_CWORD:${COMP_WORDS[2]} in
        2:*) words="save load ls rm" ;;
        *:ls) words="--json" ;;
        3:load | *:rm)
            words=$(cd "${XDG_STATE_HOME:-$HOME/.local/state}/kakeya/sessions" 2>/dev/null &&
                printf '%s\n' *.kks | sed 's/\.kks$//; s/^\*$//')
            ;;
        esac
        ;;
    doctor) words="-t --threads --json" ;;
    help)
        mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur")
        return
        ;;
    esac
    case $verb:$cur in
    quantize:[!-]* | quantize: | parity:[!-]* | parity:)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$words --help" -- "$cur") ;;
    esac
}

complete -F _kakeya kakeya
