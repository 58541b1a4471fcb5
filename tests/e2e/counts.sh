#!/usr/bin/env bash
# `kakeya train counts`, and a drafter that drafts by the short head they make: the same text.
. "$(dirname "$0")/lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
shipped=$root/models/tiny

# The counts that tests work with are those of the shipped prompts.
exits 0 train counts -m "$shipped/verifier" --out "$work/c.json"
has "$out" "tokens of 224 texts, 0 of them the model's" "most frequent ids are"
cmp -s "$work/c.json" "$root/tests/data/counts/tiny.json" || fail "not the counts of tests/data"
exits 1 train counts -m "$shipped/verifier" --out "$work/c.json"
has "$err" "c.json"
exits 0 train counts -m "$shipped/verifier" --out "$work/c.json" --force --json
has "$out" '"texts": 224' '"said": 0' '"sizes": [{"ids": 1024'

# Texts of one's own, and what the model says.
printf 'def one():\n    return 1\n' >"$work/a.txt"
printf '{"text": "def two():"}\n{"text": "def three():"}\n' >"$work/b.jsonl"
exits 0 train counts -m "$shipped/verifier" --out "$work/own.json" --data "$work/a.txt" "$work/b.jsonl"
has "$out" "3 texts, 0 of them"
exits 0 train counts -m "$shipped/verifier" --out "$work/said.json" --predict 20 -t 1 \
    --data "$work/b.jsonl"
has "$out" "2 texts, " "of them the model's"
lacks "$out" " 0 of them"
exits 2 train counts -m "$shipped/verifier"
has "$err" "--out names the file"
exits 1 train counts -m "$shipped/verifier" --out "$work/x.json" --data "$work/nothing.txt"
[ ! -e "$work/x.json" ] || fail "a file of no counts"

# A short head drafts, and the text is what it was.
run=(run -m "$shipped/verifier" -p 'def main():' -n 80 -t 1 --spec dflash --draft-max 3)
exits 0 "${run[@]}" -md none --spec none --json
plain=$(printf '%s\n' "$out" | grep -o '"logits_hash": "[^"]*"')
exits 0 "${run[@]}" -md "$shipped/drafter" --json --draft-vocab "$work/c.json:1000"
same "$(printf '%s\n' "$out" | grep -o '"logits_hash": "[^"]*"')" "$plain" "by a short head"
has "$out" '"short_rounds": ' '"short_missed": '
lacks "$out" '"short_rounds": 0,'
exits 0 "${run[@]}" -md "$shipped/drafter" -v --draft-vocab "$work/c.json:1000"
has "$err" "short head of 960 ids" "drafts by the short head"

# In the drafter's folder it is found; full says otherwise.
cp -r "$shipped/drafter" "$work/drafter"
cp "$work/c.json" "$work/drafter/token-counts.json"
exits 0 "${run[@]}" -md "$work/drafter" -v
has "$err" "short head of 2688 ids"
exits 0 "${run[@]}" -md "$work/drafter" -v --draft-vocab 512
has "$err" "short head of 512 ids"
exits 0 "${run[@]}" -md "$work/drafter" -v --draft-vocab full
lacks "$err" "short head"
exits 1 "${run[@]}" -md "$shipped/drafter" --draft-vocab 512
has "$err" "--draft-vocab" "no counts beside the drafter"
printf '{"kakeya_counts": 1' >"$work/drafter/token-counts.json"
exits 1 "${run[@]}" -md "$work/drafter"
has "$err" "token-counts.json"
exits 2 run -m "$shipped/verifier" -p x --draft-vocab 512
has "$err" "--draft-vocab needs a drafter"
finish
