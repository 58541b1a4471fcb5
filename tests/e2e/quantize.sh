#!/usr/bin/env bash
# `kakeya quantize`: a file that runs, written whole or not at all.
. "$(dirname "$0")/lib.sh"

for type in q8_0 q4_0 bf16 f16; do
    exits 0 quantize "$model" "$work/$type.gguf" --type $type
    same "$out" ""
    has "$err" "$work/$type.gguf"
    exits 0 info -m "$work/$type.gguf"
    has "$out" "$type weights (gguf)"
    exits 0 run -m "$work/$type.gguf" -p 'Hello world' -n 8 -q
    [ -n "$out" ] || fail "$type: no text"
done

# bf16 keeps every weight, so it says what the folder says.
exits 0 run -m "$model" -p 'Hello world' -n 16 --json
folder=$(printf '%s\n' "$out" | sed 's/.*"tokens": \(\[[^]]*\]\).*/\1/')
exits 0 run -m "$work/bf16.gguf" -p 'Hello world' -n 16 --json
same "$(printf '%s\n' "$out" | sed 's/.*"tokens": \(\[[^]]*\]\).*/\1/')" "$folder" "bf16 tokens"
exits 0 tokenize -m "$work/q4_0.gguf" -p 'Hello world'
gguf=$out
exits 0 tokenize -m "$model" -p 'Hello world'
same "$gguf" "$out" "the tokenizer in the file"

# A drafter's folder becomes a drafter's file, which drafts the same.
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny
exits 0 quantize "$shipped/drafter" "$work/drafter.gguf" --type bf16
has "$err" "$work/drafter.gguf"
prompt='def area(radius):'
exits 0 run -m "$shipped/verifier" -md "$shipped/drafter" -p "$prompt" -n 40 --draft-max 5 --json
folder=$(printf '%s\n' "$out" | sed 's/.*"tokens": \(\[[^]]*\]\).*/\1/')
exits 0 run -m "$shipped/verifier" -md "$work/drafter.gguf" -p "$prompt" -n 40 --draft-max 5 --json
has "$out" '"proposer": "auto"'
same "$(printf '%s\n' "$out" | sed 's/.*"tokens": \(\[[^]]*\]\).*/\1/')" "$folder" "its tokens"
exits 0 info -m "$shipped/verifier" -md "$work/drafter.gguf"
has "$out" "drafter"
exits 1 run -m "$work/drafter.gguf" -p "$prompt" -n 4
has "$err" "'dflash'"
exits 1 run -m "$shipped/verifier" -md "$work/q8_0.gguf" -p "$prompt" -n 4
has "$err" "'gemma4'"

# Nothing is replaced unless asked.
sum=$(cksum <"$work/q8_0.gguf")
exits 1 quantize "$model" "$work/q8_0.gguf" --type q4_0
has "$err" "exists" "--force"
same "$(cksum <"$work/q8_0.gguf")" "$sum" "the file that was there"
exits 0 quantize "$model" "$work/q8_0.gguf" --type q4_0 --force -q
same "$err" ""
same "$(cksum <"$work/q8_0.gguf")" "$(cksum <"$work/q4_0.gguf")" "replaced"

# Places that cannot be written, and models that cannot be read.
exits 1 quantize "$model" "$work/none/out.gguf" --type q8_0
has "$err" "$work/none/out.gguf"
: >"$work/file"
exits 1 quantize "$model" "$work/file/out.gguf" --type q8_0
if [ "$(id -u)" -ne 0 ]; then
    mkdir -m 555 "$work/closed"
    exits 1 quantize "$model" "$work/closed/out.gguf" --type q8_0
    has "$err" "ermission"
fi
exits 1 quantize "$work/none" "$work/out.gguf" --type q8_0
exits 1 quantize "$work/file" "$work/out.gguf" --type q8_0
[ ! -e "$work/out.gguf" ] || fail "something was written"

# A model large enough to be interrupted in the middle: one layer and a million tokens, all
# zeros in a sparse file.
big_folder() {
    local vocab=1000000 hidden=128 at=0 header= item name dims size n
    mkdir "$work/big"
    sed -e "s/\"vocab_size\": [0-9]*/\"vocab_size\": $vocab/" \
        -e "s/\"hidden_size\": [0-9]*/\"hidden_size\": $hidden/" \
        -e 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 1/' \
        -e '/"layer_types"/,/\]/d' "$model/config.json" |
        sed 's/"sliding_window"/"layer_types": ["full_attention"], &/' >"$work/big/config.json"
    for item in embed_tokens.weight:$vocab,$hidden norm.weight:$hidden layers.0.layer_scalar:1 \
        layers.0.{input,post_attention,pre_feedforward,post_feedforward}_layernorm.weight:$hidden \
        layers.0.self_attn.{q,k}_norm.weight:32 layers.0.self_attn.q_proj.weight:64,$hidden \
        layers.0.self_attn.k_proj.weight:32,$hidden layers.0.self_attn.o_proj.weight:$hidden,64 \
        layers.0.mlp.{gate,up}_proj.weight:64,$hidden layers.0.mlp.down_proj.weight:$hidden,64; do
        name=model.${item%%:*} dims=${item##*:} size=2
        for n in ${dims//,/ }; do size=$((size * n)); done
        header+="${header:+,}\"$name\":{\"dtype\":\"BF16\",\"shape\":[$dims],"
        header+="\"data_offsets\":[$at,$((at + size))]}"
        at=$((at + size))
    done
    header="{$header}"
    while [ $((${#header} % 8)) -ne 0 ]; do header+=" "; done
    n=${#header}
    {
        printf "\\x$(printf %02x $((n & 255)))\\x$(printf %02x $((n >> 8)))\\0\\0\\0\\0\\0\\0"
        printf '%s' "$header"
    } >"$work/big/model.safetensors"
    truncate -s $((8 + n + at)) "$work/big/model.safetensors"
}
big_folder
exits 0 info -m "$work/big"

# Interrupted at any time it leaves nothing, and says so by its exit code.
mkdir "$work/signals"
middles=0
for delay in 0.002 0.02 0.05 0.1 0.2; do
    for signal in INT TERM; do
        env --default-signal=INT "$KAKEYA" quantize "$work/big" "$work/signals/out.gguf" \
            --type q4_0 -q 2>"$work/err" &
        pid=$!
        sleep $delay
        [ -z "$(ls -A "$work/signals")" ] || middles=$((middles + 1))
        kill -$signal $pid 2>/dev/null
        wait $pid
        code=$?
        left=$(ls -A "$work/signals")
        case $signal:$code:$left in
        INT:130: | TERM:143: | *:0:out.gguf) ;;
        *) fail "$signal after $delay s: exit $code, left '$left'" ;;
        esac
        rm -f "$work/signals/out.gguf"
    done
done
[ $middles -gt 0 ] || fail "no signal came in the middle"
finish
