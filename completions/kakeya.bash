# bash completion for kakeya

# Names of what is saved, by the end of its files' names.
_kakeya_saved() {
    (cd "${XDG_STATE_HOME:-$HOME/.local/state}/kakeya/sessions" 2>/dev/null || return
        for file in *"$1"; do [ -e "$file" ] && printf '%s\n' "${file%"$1"}"; done)
}

_kakeya() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}
    local verbs="run chat info bench eval train report parity tokenize quantize session doctor version help"
    local drafter="-md --model-draft --draft-type --draft-embed-scale"
    local projection="-mp --model-projection --projection-type"
    local model="-m --model $drafter $projection --synthetic"
    local device="-t --threads --device --isa --mlock --huge-pages"
    local keep="--kv-sliding --kv-full --sink --window --chunk --latents"
    local context="-c --ctx-size --ctx $keep --kv-format --spec --draft-max --draft-fixed
        --draft-ctx"
    local sampling="--temp --temperature --top-k --top-p --min-p --repeat-penalty --presence-penalty
        --frequency-penalty --repeat-last-n -s --seed"
    local predict="-n --predict --max-tokens --n-predict"
    local words=

    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$verbs --help --version" -- "$cur")
        return
    fi

    # The value of an option.
    case $prev in
    -m | --model | -md | --model-draft | -mp | --model-projection | -f | --file | --tools | --jsonl | --prompts | --report | -o | --output)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    --synthetic) words="26b-a4b:q4_0 26b-a4b:bf16 31b:q4_0 e2b:q4_0 e4b:q4_0 tiny:f32" ;;
    --type) words="q8_0 q4_0 bf16 f16" ;;
    --load) words=$(_kakeya_saved .chat.json) ;;
    --device) words="cpu cuda" ;;
    --isa) words="avx512 avx2 neon reference" ;;
    --kv-sliding) words="native window restored" ;;
    --kv-full) words="exact window restored" ;;
    --kv-format | --latents) # the program names its K/V formats when it is given another
        words=$("$1" run --kv-format '?' 2>&1 | sed -n 's/.*--kv-format takes \(.*\), not .*/\1/p') ;;
    --projection-type) words="q8_0 file" ;;
    --spec) words="auto dflash ngram none" ;;
    --draft-embed-scale | --embed-scale) words="1 once twice" ;;
    --draft-type) words="q8_0 q4_0 file" ;;
    --policies) words="all exact,window exact,restored --ctx" ;;
    --arms) words="plain plain,dflash plain,ngram plain,dflash,ngram plain,dflash,ngram,auto" ;;
    --set) words="code chat needle json edit prose" ;;
    --accept-trace) words="geom:0.744:1" ;;
    --rows) words="none 1,2,4,8,16" ;;
    --ladder) words="70,280 60,150,300" ;;
    -p | --prompt | --tokens | --system | --stop | -n | --predict | --max-tokens | --n-predict | -c | --ctx | --ctx-size | -t | \
        --threads | -s | --seed | --temp | --temperature | --top-k | --top-p | --min-p | --repeat-penalty | \
        --presence-penalty | --frequency-penalty | --repeat-last-n | --logprobs | -l | \
        --logit-bias | --prefill | --repeat | \
        --tol | --tol-hidden | --tol-rms | --samples | --min-recall | --draft-max | --draft-ctx)
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
            --tools --think $predict --stop --ignore-eos --json --logprobs -l --logit-bias -q --quiet -v --verbose"
        ;;
    chat)
        words="$model $device $context $sampling -p --prompt -f --file --load --system --tools
            --think $predict --stop --no-shift -q --quiet -v --verbose"
        ;;
    info) words="$model --check --json" ;;
    bench)
        words="$model $device --arms -c --ctx --ctx-size $predict --prefill --rows --repeat
            --sessions --policies --sink --window --chunk --latents
            --kv-format --attention --set --prompts --samples --draft-max --draft-fixed --draft-ctx
            --accept-trace --report --json --force -q --quiet"
        ;;
    eval)
        words="-m --model $drafter $device --samples $predict --report --json --force -q --quiet
            --kv-format"
        case ${COMP_WORDS[2]} in
        needle) words="$words --ladder -s --seed --raw --print --min-recall --max-kl --min-kv-ratio --text --text-tokens -v --verbose -c --ctx-size --ctx" ;;
        accept) words="$words $sampling --set --prompts --spec --draft-max --draft-ctx --embed-scale" ;;
        esac
        [ "$COMP_CWORD" -eq 2 ] && words="needle accept sweep kv memory"
        ;;
    report)
        words="--json -q --quiet -v --verbose -o --output --force"
        [ "$COMP_CWORD" -eq 2 ] && words="check html rules"
        ;;
    train)
        words="-m --model $drafter $device -o --out --source --taps --rank --layers --data --tokens
            --length --predict --needles --needle-lines -s --seed --loss --ridge --ridge-targets
            --ridge-full --lambda-k-dir --lambda-v-dir --lambda-k-mag --lambda-v-mag --sink --window
            --chunk --steps --lr --lr-schedule --warmup --weight-decay --clip --init-from
            --checkpoint-every --resume --log-every --report --force -q --quiet"
        [ "$COMP_CWORD" -eq 2 ] && words="projection"
        ;;
    parity) words="--tol --tol-hidden --tol-rms -t --threads --device --isa --json" ;;
    tokenize) words="-m --model -p --prompt -f --file --jsonl --chat --bos" ;;
    quantize) words="--type --force -q --quiet" ;;
    session)
        words="$model $device $context $sampling -p --prompt -f --file --tokens --chat --system
            --tools --think $predict --stop --ignore-eos --json -q --quiet -v --verbose --force --keep"
        case $COMP_CWORD:${COMP_WORDS[2]} in
        2:*) words="save load ls list rm" ;;
        *:ls | *:list) words="--json" ;;
        3:load | *:rm) words=$(_kakeya_saved .kks) ;;
        esac
        ;;
    doctor) words="-t --threads --json" ;;
    help)
        mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur")
        return
        ;;
    esac
    case $verb:$cur in
    quantize:[!-]* | quantize: | parity:[!-]* | parity: | report:[!-]* | report:)
        [ "$verb:$COMP_CWORD" = report:2 ] &&
            mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") && return
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$words --help" -- "$cur") ;;
    esac
}

complete -F _kakeya kakeya
