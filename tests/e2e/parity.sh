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
has "$out" "dflash: 3 blocks of 6, embedding scale 1" "15 of 15 equal"
exits 0 parity "$cases/dense" --isa reference -t 1 --json
json "$out" case ok tokens layers isa threads tol_logits tol_hidden ways fed logits hidden \
    same_bits greedy greedy_equal drafter_compared
has "$out" '"ok": true' '"isa": "reference"' '"greedy_equal": 32'


# Judged by root mean square differences, as on a GPU.
exits 0 parity "$cases/moe" --tol-rms 1e-3
has "$out" "rms " "tolerance: relative root mean square 1.0e-03" "32 of 32" "agrees"
exits 1 parity "$cases/dense" --tol-rms 1e-8
has "$out" "DOES NOT AGREE"
exits 0 parity "$cases/dense" --tol-rms 1e-3 --json
json "$out" tol_rms logits_rms hidden_rms greedy_near
exits 2 parity "$cases/dense" --device abacus

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

# A drafter that is another's, bent, or scaled otherwise than the dump.
rm -r "$work/moe"
cp -r "$cases/moe" "$work/moe"
drafter=$work/moe/dflash
sed -i 's/"block_size"/"embed_scale": "once", "block_size"/' "$drafter/config.json"
exits 1 parity "$work/moe"
has "$out" "embedding scale once" "DIFFERS" "DOES NOT AGREE"
sed -i 's/"embed_scale": "once", //; s/"num_target_layers": 6/"num_target_layers": 7/' \
    "$drafter/config.json"
exits 1 parity "$work/moe"
has "$err" "the drafter is of a verifier with 7 layers, this one has 6"
cp "$cases/moe/dflash/config.json" "$drafter"
truncate -s -1 "$drafter/model.safetensors"
exits 1 parity "$work/moe" --json
cp "$cases/moe/dflash/model.safetensors" "$drafter"
exits 0 parity "$work/moe" --json
json "$out" drafter_compared drafter blocks embed_scale taps drafts drafts_equal
has "$out" '"drafter_compared": true' '"drafts_equal": 15'
finish
