#!/usr/bin/env bash
# `kakeya report rerun`: reports of every kind come out again as they are, and one value that was
# changed in each is found by its name.
. "$(dirname "$0")/lib.sh"
root=$(cd "$KK_TEST_DATA/../.." && pwd)
[ -f "$root/models/tiny/verifier/config.json" ] || skip_all "the shipped models are not in this checkout"
need_tool python3

# edit FILE STATEMENT - changes a report, which is r, in place.
edit() {
    python3 - "$1" "$2" <<'PYTHON' || fail "cannot edit $1: $2"
import json, sys
path, statement = sys.argv[1:]
with open(path) as f:
    r = json.load(f)
exec(statement)
with open(path, "w") as f:
    json.dump(r, f)
PYTHON
}

# again REPORT ARG... - it comes out again.
again() {
    exits 0 report rerun "$@"
    has "$out" "members are equal"
    lacks "$out" "DIFFERENT"
    lacks "$out" ": 0 members"
}

# caught REPORT STATEMENT MEMBER... [-- ARG...] - a changed copy does not, and the members are named
# with both values.
caught() {
    local report=$1 statement=$2 members=()
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do members+=("doctored.json: DIFFERENT $1") && shift; done
    [ $# -gt 0 ] && shift
    cp "$report" "$work/doctored.json"
    edit "$work/doctored.json" "$statement"
    exits 1 report rerun "$work/doctored.json" "$@" -q
    has "$out" "${members[@]}" ": the report says " ", the rerun gives "
    same "$(printf '%s\n' "$out" | grep -c DIFFERENT)" "${#members[@]}" "members that differ: $out"
}

# Needles, restored beside exact, and a text of its own: recall, answers, KL, bytes.
sed -n '1,60p' "$root/LICENSE" >"$work/own.txt"
needle=$work/needle.json
exits 0 eval needle -md none --arms exact,restored --ladder 25 --samples 2 --window 16 --chunk 16 \
    --text "$work/own.txt" --text-tokens 400 -t 1 -q --report "$needle"
has "$(cat "$needle")" '"compiler": ' '"digest": ' '"name": "own.txt"'
exits 1 report rerun "$needle"
has "$err" "own.txt" "--file"
again "$needle" --file "$work/own.txt"
has "$out" "time rungs[exact 25].decode_tok_s_spread: " " then, " " now"
again "$needle" --file "$work/own.txt" --rows 1 -s 5
has "$out" "drawn: 1 of its documents, and as many texts, by the seed 5" "rungs/recall"
own=(--file "$work/own.txt")
caught "$needle" "r['rungs'][1]['recall'] = 0.25
r['rungs'][0]['rows'][1]['answer'] = 'so'
r['rungs'][1]['bytes']['kv.full'] -= 4096
r['quality'][0]['mean_kl'] /= 2" "rungs[restored 25].recall" "rungs[exact 25].rows[1].answer" \
    "rungs[restored 25].bytes.kv.full" "quality[restored own.txt].mean_kl" -- "${own[@]}"
# A report that contradicts itself is refused by the gate as well.
has "$out" "RECALL_RECOUNT" "KL_RECOUNT"
# A text that was changed since, and weights that are others, are refused before anything is run.
mkdir "$work/changed"
tr 'a' 'b' <"$work/own.txt" >"$work/changed/own.txt"
exits 1 report rerun "$needle" --file "$work/changed/own.txt"
has "$err" "own.txt' is not what the report read"
cp "$needle" "$work/other.json"
edit "$work/other.json" "r['model']['fingerprint'] = '0123456789abcdef'"
exits 1 report rerun "$work/other.json" "${own[@]}"
has "$err" "the report is of the model 0123456789abcdef, and this one is" "-m"
exits 1 report rerun "$needle" "${own[@]}" -mp none
has "$err" "projection"
# Another machine is said; another kind of device is not judged.
cp "$needle" "$work/other.json"
edit "$work/other.json" "r['machine']['cpu'] = 'Abacus'; r['version'] = '0.0.1 (1234567)'"
exits 0 report rerun "$work/other.json" "${own[@]}"
has "$out" "machine: Abacus in the report" "version: 0.0.1 (1234567) in the report"
edit "$work/other.json" "r['machine']['isa'] = 'abc'; r['rungs'][0]['bytes']['workspace'] *= 2"
exits 0 report rerun "$work/other.json" "${own[@]}" -v
has "$out" "instructions: abc in the report" "shown, not judged" \
    "shown rungs[exact 25].bytes.workspace: "

# As JSON.
exits 0 report rerun "$needle" "${own[@]}" --rows 1 --json
json "$out" file kind holds check drawn notes compared different shown times of_all_rows lacking
has "$out" '"holds": true' '"kind": "needle"'

# Formats, shares of true rows, bytes against context.
exits 0 eval kv --formats f32,q4 --ladder 25 --samples 1 --text "$work/own.txt" -t 1 -q \
    --report "$work/kv.json"
again "$work/kv.json" "${own[@]}"
caught "$work/kv.json" "r['rows'][1]['stored_bytes'] -= 1" "rows[q4].stored_bytes" -- "${own[@]}"
exits 0 eval sweep -md none --alphas 0.5 --ladder 25 --samples 1 --window 16 --chunk 16 \
    --text "$work/own.txt" -t 1 -q --report "$work/sweep.json"
again "$work/sweep.json" "${own[@]}"
caught "$work/sweep.json" "r['rows'][0]['rel_mse']['all'] *= 0.9" "rows[0.5].rel_mse.all" -- \
    "${own[@]}"
exits 0 eval memory --tokens 128,256 --fill -t 1 -q --report "$work/memory.json"
again "$work/memory.json"
again "$work/memory.json" --rows 1
caught "$work/memory.json" "r['rows'][0]['bytes']['kv.full'] += 64" \
    "rows[exact bf16 128].bytes.kv.full"

# Acceptance of drafts of one length, seeded sampling too.
exits 0 eval accept --set code,edit --samples 2 -n 12 --temp 0.8 -s 7 -t 1 -q \
    --report "$work/accept.json"
again "$work/accept.json"
caught "$work/accept.json" "r['rows'][0]['accepted'] -= 1; r['rows'][1]['tokens'] += 1" \
    "rows[code dflash " "rows[code dflash "

# A bench: hashes, tokens, fixed drafts.
bench=(bench --read-time 0.05 --prefill 0 --rows none --repeat 2 -t 1 -q)
exits 0 "${bench[@]}" --arms plain,dflash --set code --samples 2 -n 12 --draft-max 2 --draft-fixed \
    --report "$work/arms.json"
again "$work/arms.json" --rows 1
caught "$work/arms.json" "r['arms']['plain']['logits_hash'] = '00' * 8
r['sets'][0]['arms']['dflash']['rows'][0]['accepted'] -= 1" "arms.plain.logits_hash" \
    "sets[code].arms.dflash.rows["
exits 0 "${bench[@]}" --policies exact,restored --ctx 256 -n 8 --window 16 --chunk 16 \
    --report "$work/policies.json"
caught "$work/policies.json" "r['policies'][1]['bytes']['kv.latents'] += 8" \
    "policies[restored].bytes.kv.latents"

# Kinds that cannot be executed again, and what is no report.
exits 1 report rerun "$KK_TEST_DATA/reports/lossless.json"
has "$err" "'lossless' cannot be executed again" "lossless-all"
printf '{"kind": "bridge", "settings": {}}' >"$work/bridge.json"
exits 1 report rerun "$work/bridge.json"
has "$err" "'bridge' cannot be executed again: no rules say how"
exits 1 report rerun "$work/none.json"
has "$err" "none.json"
exits 2 report rerun
exits 2 report rerun "$needle" --rows 0
exits 0 help report rerun
has "$out" "usage: kakeya report rerun FILE" "--rows N" "--file FILE" "-mp"
finish
