#!/usr/bin/env bash
# `kakeya tokenize`: one JSON object per line, whatever the bytes.
. "$(dirname "$0")/lib.sh"

exits 0 tokenize -m "$model" -p 'Hello world'
json "$out" ids back
has "$out" '"back": "Hello world"'
plain=$out
exits 0 tokenize -m "$model/tokenizer.json" -p 'Hello world'
same "$out" "$plain" "the file alone"
exits 0 tokenize -m "$model" -p '<bos>Hello<turn|>'
has "$out" '"ids": [2, ' '106]' '"back": "<bos>Hello<turn|>"'
exits 0 tokenize -m "$model" --bos -p 'Hello'
has "$out" '"ids": [2, '
exits 0 tokenize -m "$model" -p ''
has "$out" '"ids": []'

# Bytes that are not UTF-8 come back as valid JSON.
exits 0 tokenize -m "$model" -p $'a\xff\xfeb'
json "$out" ids back
printf '%s' "$out" | iconv -f UTF-8 -t UTF-8 >/dev/null 2>&1 || fail "not UTF-8: $out"

# Lines; the first that cannot be read ends it, and is named.
printf '{"text": "one"}\n\n{"text": "tw\\u00f6\\n"}\n' >"$work/lines"
exits 0 tokenize -m "$model" --jsonl "$work/lines"
same "$(printf '%s\n' "$out" | wc -l)" 2
has "$out" '"back": "one"'
same "$("$KAKEYA" tokenize -m "$model" --jsonl - <"$work/lines")" "$out" "standard input"
printf '{"text": "one"}\n{"text": 2}\n' >"$work/lines"
exits 1 tokenize -m "$model" --jsonl "$work/lines"
has "$err" "line 2"
printf 'nonsense\n' >"$work/lines"
exits 1 tokenize -m "$model" --jsonl "$work/lines"
has "$err" "line 1"
exits 1 tokenize -m "$model" --jsonl "$work/none"

# Conversations need no model.
exits 0 tokenize --chat -p 'Hi'
has "$out" '{"text": "<bos><|turn>user\nHi<turn|>\n<|turn>model\n'
printf '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": false}\n' >"$work/lines"
exits 0 tokenize --chat --jsonl "$work/lines"
has "$out" '{"text": "<bos><|turn>user\nHi<turn|>\n"}'
printf '{"messages": 7}\n' >"$work/lines"
exits 1 tokenize --chat --jsonl "$work/lines"
has "$err" "messages"

exits 1 tokenize -m "$KK_TEST_DATA/parity/moe" -p x
has "$err" "tokenizer"

# Text from a file or from standard input, bytes as they are.
exits 0 tokenize -m "$model" -p 'Hello you'
want=$out
printf 'Hello you' >"$work/text"
exits 0 tokenize -m "$model" -f "$work/text"
same "$out" "$want" "-f"
same "$("$KAKEYA" tokenize -m "$model" <"$work/text")" "$want" "standard input"
same "$("$KAKEYA" tokenize -m "$model" -f - <"$work/text")" "$want" "-f -"
exits 0 tokenize --chat -f "$work/text"
has "$out" "Hello you" "<|turn>"
exits 1 tokenize -m "$model" -f "$work/nothing"
has "$err" "cannot read '$work/nothing'"
exits 2 tokenize -m "$model" -f "$work/text" -p x
# A line without an end is an error, not the end of the file.
if [ -c /dev/zero ]; then
    (within_memory 4000000 "$KAKEYA" tokenize -m "$model" --jsonl /dev/zero) >"$work/out" 2>"$work/err"
    same $? 1 "tokenize --jsonl /dev/zero"
    has "$(cat "$work/err")" "cannot read the lines of '/dev/zero': File too large"
fi
printf '{"text": "a"}\n{"text": "b"}' >"$work/unended.jsonl"
exits 0 tokenize -m "$model" --jsonl "$work/unended.jsonl"
same "$(printf '%s\n' "$out" | wc -l)" 2 "lines of which the last has no end"
finish
