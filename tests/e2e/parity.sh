#!/usr/bin/env bash
# `kakeya parity`: every reference case holds, and a wrong one does not.
. "$(dirname "$0")/lib.sh"
cases=$KK_TEST_DATA/parity

compared=0
for folder in "$cases"/*/; do
    # Those without a model of their own are the shipped model's: parity.tiny compares them.
    [ -f "$folder/config.json" ] || continue
    exits 0 parity "$folder"
    has "$out" "one piece" "token by token" "pieces of 7" "32 of 32" "agrees"
    lacks "$out" "DIFFERS"
    compared=$((compared + 1))
done
[ $compared -ge 6 ] || fail "only $compared cases"
exits 0 parity "$cases/moe"
has "$out" "dflash/ was not compared"
exits 0 parity "$cases/dense" --isa reference -t 1 --json
json "$out" case ok tokens layers isa threads tol_logits tol_hidden ways fed logits hidden \
    same_bits greedy greedy_equal drafter_compared
has "$out" '"ok": true' '"isa": "reference"' '"greedy_equal": 32'

# A tolerance nobody can meet, and files that are not a case.
exits 1 parity "$cases/dense" --tol 1e-9
has "$out" "DOES NOT AGREE"
exits 1 parity "$cases/dense" --tol-hidden 1e-9 --json
has "$out" '"ok": false'
exits 1 parity "$work"
has "$err" "expect.safetensors"
cp -r "$cases/moe" "$work/moe"
rm "$work/moe/expect.safetensors"
exits 1 parity "$work/moe"
cp "$cases/moe/expect.safetensors" "$work/moe"
exits 0 parity "$work/moe"
cp "$cases/dense/expect.safetensors" "$work/moe" # of another model
exits 1 parity "$work/moe"
finish
