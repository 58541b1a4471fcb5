#!/usr/bin/env bash
# `--device mlx`: the same text as on the CPU, what it says of its exactness, and the self-test that
# lets it draft; where the module was not built, a sentence that says so.
. "$(dirname "$0")/lib.sh"
models=$(cd "$(dirname "$0")/../.." && pwd)/models
verifier=$models/tiny/verifier
prompt='def main():'

if [ -z "${KK_MLX_MODULE:-}" ]; then
    exits 1 run -m "$verifier" --device mlx -p "$prompt" -n 2
    has "$err" "libkakeya_mlx"
    exits 0 doctor
    has "$out" "mlx: not in this build"
    skip_all "the MLX device is not built (scripts/setup mlx)"
fi

exits 0 run -m "$verifier" -p "$prompt" -n 12 --device cpu
text=$out
exits 0 run -m "$verifier" -p "$prompt" -n 12 --device mlx
same "$out" "$text"

# Nothing is drafted until it was measured that drafts are exact; then as much as that allows.
drafting=(-m "$verifier" -md "$models/tiny/drafter" -p "$prompt" -n 12 --device mlx --json
    --draft-fixed --draft-max 4)
exits 0 run "${drafting[@]}" --spec dflash
has "$out" '"device": "mlx"' '"exact": "up to 1 rows of a round"' '"exact_by": "neither"' \
    '"near_ties": 0' '"drafted": 0'
exits 0 doctor --device mlx
has "$out" "MLX " "GB/s read by the device" "rows with packed weights and" "bits they have alone" "kept in"
exits 0 run "${drafting[@]}" --spec dflash
rows=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["exact_rows"])' \
    "$XDG_STATE_HOME/kakeya/exact-mlx.json")
has "$out" "\"exact\": \"up to $rows rows of a round (measured)\"" '"exact_by": "measured"'
lacks "$out" '"drafted": 0'
exits 0 run "${drafting[@]}" --spec dflash --exact-rows -1
has "$out" '"exact": "not proven bit-exact on this device"' '"exact_by": "asked"' '"near_ties": '
# Kernels over K/V pages are Metal's: without it the option changes nothing.
exits 0 run "${drafting[@]}" --spec dflash --page-kernel on
has "$out" '"exact_by": "measured"'
exits 0 run "${drafting[@]}" --spec dflash --page-kernel off
exits 2 run "${drafting[@]}" --page-kernel maybe
exits 0 run -m "$verifier" -md none -p "$prompt" -n 2 --json
has "$out" '"exact_by": "kernels"'
lacks "$out" '"near_ties"'

# A measurement of another chip or another MLX is not used.
kept=$XDG_STATE_HOME/kakeya/exact-mlx.json
sed 's/"MLX [0-9.]*/"MLX 0.0.1/' "$kept" >"$work/changed" && mv "$work/changed" "$kept"
exits 0 run "${drafting[@]}" --spec dflash
has "$out" '"drafted": 0'
echo '{"isa": 7}' >"$XDG_STATE_HOME/kakeya/exact-mlx.json"
exits 0 run "${drafting[@]}" --spec dflash
has "$out" '"drafted": 0'

exits 0 doctor --device mlx --keep "$work/elsewhere/measured.json" --json
json "$out" device isa bandwidth measured exact_rows exact_packed_rows exact_page_rows kept
[ -s "$work/elsewhere/measured.json" ] || fail "nothing was kept"
exits 2 doctor --keep "$work/x"

# Two devices beside each other.
exits 0 parity "$KK_TEST_DATA/parity/moe" --device mlx --against cpu
has "$out" "48 of 48 choices equal" "text equal" "agrees"
exits 0 parity "$KK_TEST_DATA/parity/dense" --device mlx --against cpu --json
json "$out" device against ok choices equal near_ties logits drafts
finish
