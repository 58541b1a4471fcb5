# fish completion for kakeya

function __kakeya_of
    set -l words (commandline -opc)
    test (count $words) -ge 2; and contains -- $words[2] $argv
end

# The program names its K/V formats when it is given another.
function __kakeya_formats
    kakeya run --kv-format '?' 2>&1 |
        sed -n 's/.*--kv-format takes \(.*\), not .*/\1/p' | string split ' '
end

# Names of what is saved, by the end of its files' names.
function __kakeya_saved
    set -l state $XDG_STATE_HOME
    test -n "$state"; or set state ~/.local/state
    for file in $state/kakeya/sessions/*$argv[1]
        string replace -r '.*/' '' -- $file | string replace -- $argv[1] ''
    end
end

set -l verbs run chat info bench eval report parity tokenize quantize session doctor version help
complete -c kakeya -f
for verb in \
    "run\tcontinue a text, or answer a question" "chat\ttalk with a model at the terminal" \
    "info\tshow what a model is" "bench\tmeasure speed" \
    "eval\tmeasure what a model can do" "report\thold reports to their rules" "parity\tcompare with a dumped reference" \
    "tokenize\tturn text into token ids" \
    "quantize\twrite a GGUF file" "session\tsave a session and go on with it later" \
    "doctor\tshow what this machine can run" \
    "version\tprint the version" "help\tsay more about a verb"
    complete -c kakeya -n "not __fish_seen_subcommand_from $verbs" -a "(printf '$verb')"
end
complete -c kakeya -n '__kakeya_of help' -a "$verbs"
complete -c kakeya -l help -s h -d 'show help'

# Model
complete -c kakeya -n '__kakeya_of run chat info bench tokenize eval train session' -s m -l model -rF -d 'folder or GGUF file'
complete -c kakeya -n '__kakeya_of run chat info bench eval train session' -s md -l model-draft -rF -d 'DFlash drafter, a folder or a GGUF file'
complete -c kakeya -n '__kakeya_of run chat info bench eval session' -l draft-type -x -a 'q8_0 q4_0 file' -d 'weights of the drafter in memory'
complete -c kakeya -n '__kakeya_of run chat info bench eval session' -l draft-embed-scale -x -a '1 once twice' -d 'embedding scale of the drafter'
complete -c kakeya -n '__kakeya_of run chat info bench session' -l synthetic -x -a '26b-a4b:q4_0 26b-a4b:bf16 31b:q4_0 e2b:q4_0 e4b:q4_0 tiny:f32' -d 'random weights'

# Device
complete -c kakeya -n '__kakeya_of run chat bench parity doctor eval session' -s t -l threads -x -d threads
complete -c kakeya -n '__kakeya_of run chat bench eval parity session' -l device -x -a 'cpu cuda' -d device
complete -c kakeya -n '__kakeya_of run chat bench parity eval session' -l isa -x -a 'avx512 avx2 neon reference' -d 'instruction set'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l mlock -d 'lock the weights in memory'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l huge-pages -d 'ask for huge pages'

# Context
complete -c kakeya -n '__kakeya_of run chat bench eval session' -s c -l ctx-size -x -d 'tokens of context'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l ctx -x -d 'tokens of context'
complete -c kakeya -n '__kakeya_of run chat info bench eval session' -s mp -l model-projection -rF -d 'folder of a projection'
complete -c kakeya -n '__kakeya_of run chat info bench eval session' -l projection-type -x -a 'q8_0 file' -d 'decoders of the projection in memory'
complete -c kakeya -n '__kakeya_of run chat eval session' -l kv-sliding -x -a 'native window restored' -d 'what sliding layers keep'
complete -c kakeya -n '__kakeya_of run chat eval session' -l kv-full -x -a 'exact window restored' -d 'what full layers keep'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l sink -x -d 'rows kept of the start'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l window -x -d 'rows kept before the present chunk'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l chunk -x -d 'rows go so many at a time'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l latents -x -a '(__kakeya_formats)' -d 'how latents are stored'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l kv-format -x -a '(__kakeya_formats)' -d 'how K/V rows are stored'
complete -c kakeya -n '__kakeya_of run chat eval session' -l spec -x -a 'dflash ngram none' -d 'who drafts tokens'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l draft-max -x -d 'most tokens drafted'
complete -c kakeya -n '__kakeya_of run chat bench session' -l draft-fixed -d 'always draft so many'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l draft-ctx -x -d 'tokens the drafter looks back over'

# Sampling
complete -c kakeya -n '__kakeya_of run chat eval session' -l temp -x -d temperature
complete -c kakeya -n '__kakeya_of run chat eval session' -l temperature -x -d temperature
complete -c kakeya -n '__kakeya_of run chat eval session' -l top-k -x -d 'draw from the likeliest'
complete -c kakeya -n '__kakeya_of run chat eval session' -l top-p -x -d 'draw from the likeliest that sum to'
complete -c kakeya -n '__kakeya_of run chat eval session' -l min-p -x -d 'drop unlikely tokens'
complete -c kakeya -n '__kakeya_of run chat eval session' -l repeat-penalty -x -d 'divides logits of tokens seen'
complete -c kakeya -n '__kakeya_of run chat eval session' -l presence-penalty -x -d 'taken from logits of tokens seen'
complete -c kakeya -n '__kakeya_of run chat eval session' -l frequency-penalty -x -d 'the same, for each time seen'
complete -c kakeya -n '__kakeya_of run chat eval session' -l repeat-last-n -x -d 'tokens the penalties look back over'
complete -c kakeya -n '__kakeya_of run chat eval session' -s s -l seed -x -d 'fixes the draws'
complete -c kakeya -n '__kakeya_of run' -s l -l logit-bias -x -d 'added to a token\'s logit: ID+BIAS'

# Prompts and output
complete -c kakeya -n '__kakeya_of run chat tokenize session' -s p -l prompt -x -d text
complete -c kakeya -n '__kakeya_of run chat tokenize session' -s f -l file -rF -d 'read the prompt from a file'
complete -c kakeya -n '__kakeya_of run session' -l tokens -x -d 'token ids'
complete -c kakeya -n '__kakeya_of run tokenize session' -l chat -d 'a conversation'
complete -c kakeya -n '__kakeya_of run chat session' -l system -x -d instructions
complete -c kakeya -n '__kakeya_of run chat session' -l think -d 'let the model think'
complete -c kakeya -n '__kakeya_of chat' -l no-shift -d 'stop when the context is full'
complete -c kakeya -n '__kakeya_of run chat session' -l tools -rF -d 'tools the model may call'
complete -c kakeya -n '__kakeya_of run chat session' -l stop -x -d 'end before this text'
complete -c kakeya -n '__kakeya_of chat' -l load -x -a '(__kakeya_saved .chat.json)' -d 'go on with a conversation'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -s n -l predict -x -d 'tokens to generate'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l max-tokens -x -d 'tokens to generate'
complete -c kakeya -n '__kakeya_of run chat bench eval session' -l n-predict -x -d 'tokens to generate'
complete -c kakeya -n '__kakeya_of run session' -l ignore-eos -d 'do not stop where the model ends'
complete -c kakeya -n '__kakeya_of run info bench eval parity doctor session report' -l json -d 'print one JSON object'
complete -c kakeya -n '__kakeya_of run' -l logprobs -x -d 'log-probabilities of so many, with --json'
complete -c kakeya -n '__kakeya_of run chat bench quantize eval session' -s q -l quiet -d 'no progress'
complete -c kakeya -n '__kakeya_of run chat eval session' -s v -l verbose -d 'say more'

# One verb each
complete -c kakeya -n '__kakeya_of info' -l check -d 'look for values that are not finite'
complete -c kakeya -n '__kakeya_of bench' -l arms -x -a 'plain plain,dflash plain,dflash,ngram' -d 'ways to decode'
complete -c kakeya -n '__kakeya_of bench' -l sessions -x -d 'sessions that decode together'
complete -c kakeya -n '__kakeya_of bench' -l policies -a 'all exact,window exact,restored' -d 'compare what layers keep'
complete -c kakeya -n '__kakeya_of bench' -l attention -d 'compare the K/V formats'
complete -c kakeya -n '__kakeya_of bench' -l accept-trace -x -a geom:0.744:1 -d 'acceptance on random weights'
complete -c kakeya -n '__kakeya_of bench eval' -l set -x -a 'code chat needle json edit prose' -d 'prompts by name'
complete -c kakeya -n '__kakeya_of bench eval' -l prompts -rF -d 'prompts of a JSONL file'
complete -c kakeya -n '__kakeya_of bench' -l prefill -x -d 'tokens of the timed prefill'
complete -c kakeya -n '__kakeya_of bench' -l rows -x -a none -d 'rows to compare'
complete -c kakeya -n '__kakeya_of bench' -l repeat -x -d repeats
complete -c kakeya -n '__kakeya_of bench eval train' -l report -rF -d 'write a JSON report'
complete -c kakeya -n '__kakeya_of eval' -a needle -d 'a code hidden in a long document'
complete -c kakeya -n '__kakeya_of eval' -a accept -d 'how much of what is drafted is right'
complete -c kakeya -n '__kakeya_of eval' -a sweep -d 'true rows mixed into rebuilt ones'
complete -c kakeya -n '__kakeya_of eval' -a kv -d 'what storage formats cost'
complete -c kakeya -n '__kakeya_of eval' -a memory -d 'bytes against context'
complete -c kakeya -n '__kakeya_of eval' -l embed-scale -x -a '1 once twice' -d 'compare with this embedding scale'
complete -c kakeya -n '__kakeya_of eval' -l ladder -x -a '70,280 60,150,300' -d 'lines of each rung'
complete -c kakeya -n '__kakeya_of bench eval' -l samples -x -d 'prompts of each set or rung'
complete -c kakeya -n '__kakeya_of eval' -l raw -d 'continue the document as it is'
complete -c kakeya -n '__kakeya_of eval' -l print -d 'print the first document'
complete -c kakeya -n '__kakeya_of eval' -l min-recall -x -d 'fail under this share'
complete -c kakeya -n '__kakeya_of eval' -l max-kl -x -d 'fail over this mean KL'
complete -c kakeya -n '__kakeya_of eval' -l min-kv-ratio -x -d 'fail when K/V is not so many times less'
complete -c kakeya -n '__kakeya_of eval' -l text -rF -d 'a text to compare arms on'
complete -c kakeya -n '__kakeya_of eval' -l text-tokens -x -d 'tokens taken of a text'
complete -c kakeya -n '__kakeya_of report' -a 'check html rules' -d 'JSON reports'
complete -c kakeya -n '__kakeya_of report' -s o -l output -rF -d 'the page to write'
complete -c kakeya -n '__kakeya_of parity quantize report' -F
complete -c kakeya -n '__kakeya_of train' -a projection -d 'rebuilds K/V rows'
complete -c kakeya -n '__kakeya_of train' -s o -l out -rF -d 'folder to write to'
complete -c kakeya -n '__kakeya_of train' -l source -x -a 'taps context embed drafter-kv' -d 'what it reads'
complete -c kakeya -n '__kakeya_of train' -l taps -x -d 'layers to read'
complete -c kakeya -n '__kakeya_of train' -l rank -x -d 'values kept per position'
complete -c kakeya -n '__kakeya_of train' -l layers -x -a 'all sliding full' -d 'layers it rebuilds'
complete -c kakeya -n '__kakeya_of train' -l data -rF -d 'file or folder to train on'
complete -c kakeya -n '__kakeya_of train' -l loss -x -a 'ridge mse cos_mag combined attn_distill attn_distill_hybrid' -d 'what is made small'
complete -c kakeya -n '__kakeya_of train' -l ridge-targets -x -a 'raw normed' -d 'rows as they are, or normalised'
complete -c kakeya -n '__kakeya_of train' -l lr-schedule -x -a 'cosine const' -d 'how the rate falls'
for flag in tokens length predict needles needle-lines seed ridge ridge-full lambda-k-dir lambda-v-dir lambda-k-mag lambda-v-mag sink window chunk steps lr warmup weight-decay clip checkpoint-every log-every
    complete -c kakeya -n '__kakeya_of train' -l $flag -x
end
complete -c kakeya -n '__kakeya_of train' -l init-from -rF -d 'a projection to start from'
complete -c kakeya -n '__kakeya_of train' -l resume -d 'go on from the last state'
complete -c kakeya -n '__kakeya_of parity' -l tol -x -d 'largest logit difference'
complete -c kakeya -n '__kakeya_of parity' -l tol-hidden -x -d 'largest hidden-state difference'
complete -c kakeya -n '__kakeya_of parity' -l tol-rms -x -d 'judge by root mean square differences'
complete -c kakeya -n '__kakeya_of tokenize' -l jsonl -rF -d 'a JSON object on each line'
complete -c kakeya -n '__kakeya_of tokenize' -l bos -d 'put <bos> first'
complete -c kakeya -n '__kakeya_of quantize' -l type -x -a 'q8_0 q4_0 bf16 f16' -d 'how matrices are stored'
complete -c kakeya -n '__kakeya_of quantize session bench eval train report' -l force -d 'replace what is there'
complete -c kakeya -n '__kakeya_of session' -a 'save load ls list rm' -d 'saved sessions'
complete -c kakeya -n '__kakeya_of session; and __fish_seen_subcommand_from load rm' -a '(__kakeya_saved .kks)' -d session
complete -c kakeya -n '__kakeya_of session' -l keep -d 'leave the saved session as it is'
