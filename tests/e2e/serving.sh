#!/usr/bin/env bash
# serving.sh - short forms of the commands that measure a server from outside; that limits of speed
# hold is not asked of a machine that runs other tests.
. "$(dirname "$0")/lib.sh"
need_serve
root=$(cd "$KK_TEST_DATA/../.." && pwd)
[ -n "${KK_SERVING:-}" ] || skip_all "tests/serving is not built"

# holds REPORT FIGURE ARM - the check of that figure holds in the report.
holds() {
    python3 - "$@" <<'PY' || fail "$2 of $3 does not hold in $1"
import json, sys
report, figure, arm = sys.argv[1:]
checks = json.load(open(report))["gate"]["checks"]
sys.exit(not [c for c in checks if (c["figure"], c["arm"]) == (figure, arm) and c["holds"]])
PY
}
need_tool python3

# ---- load: every stream is what it is alone, and forwards were shared
"$KK_SERVING" load --kakeya "$KAKEYA" --clients 4 --ctx 48 --predict 48 --turns 1 --requests 8 --arrivals 1 \
    --report "$work/load.json" >"$work/said" 2>&1
[ -f "$work/load.json" ] || fail "no report: $(cat "$work/said")"
exits 0 report check "$work/load.json"
holds "$work/load.json" different streams
python3 - "$work/load.json" <<'PY' || fail "no forward was shared"
import json, sys
rows = json.load(open(sys.argv[1]))["identity"]
sys.exit(sum(r["sessions_in_passes"] for r in rows) <= sum(r["passes"] for r in rows))
PY
holds "$work/load.json" failed requests

# What was said to the streams, and what was asked, comes out again without a server; a hash, a
# request and a number of tokens that are others do not.
exits 0 report rerun "$work/load.json"
has "$out" "members are equal"
lacks "$out" "DIFFERENT"
exits 0 report rerun "$work/load.json" --rows 1
has "$out" "nothing is drawn: every stream is answered again"
python3 - "$work/load.json" "$work/doctored.json" <<'PY' || fail "cannot edit the report"
import json, sys
r = json.load(open(sys.argv[1]))
for hashes in (r["identity"][0]["logprob_hashes"][2], r["identity"][1]["logprob_hashes"][3]):
    hashes["alone"] = hashes["together"] = "0123456789abcdef"
r["mixed"]["rows"][1]["predict"] += 1
r["arms"][2]["rows"][0]["tokens"] -= 1
json.dump(r, open(sys.argv[2], "w"))
PY
exits 1 report rerun "$work/doctored.json" -q
for member in 'identity[0].logprob_hashes[2].alone' 'identity[0].logprob_hashes[2].together' \
    'identity[1].logprob_hashes[3].alone' 'identity[1].logprob_hashes[3].together' \
    'arms[2].rows[0].tokens' 'mixed.rows[1].predict'; do
    has "$out" "doctored.json: DIFFERENT $member: the report says"
done
same "$(printf '%s\n' "$out" | grep -c 'DIFFERENT mixed')" 1 "requests that differ: $out"
exits 1 report rerun "$root/bench/results/soak-tiny.json"
has "$err" "'soak' cannot be executed again" "make soak"
exits 1 report rerun "$root/bench/results/chaos-tiny.json"
has "$err" "'chaos' cannot be executed again" "make chaos"

# ---- beside another server: this one under another name stands in for it
exits 0 quantize "$root/models/tiny/verifier" "$work/tiny.gguf" --type q8_0
printf '#!/bin/sh\nexec "%s" serve -q "$@"\n' "$KAKEYA" >"$work/other"
chmod +x "$work/other"
python3 -B "$root/bench/peers/serve.py" --kakeya "$KAKEYA" --client "$KK_SERVING" \
    --model "$work/tiny.gguf" --llama-server "$work/other" --threads 1 --clients 1,3 --requests 6 \
    --predict 4 --turns 1 --json "$work/peers.json" >"$work/said" 2>&1 || fail "serve.py: $(cat "$work/said")"
python3 - "$work/peers.json" <<'PY' || fail "serve.py: $(cat "$work/peers.json")"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [(r["server"], r["clients"]) for r in rows] == \
    [("kakeya", 1), ("kakeya", 3), ("llama.cpp", 1), ("llama.cpp", 3)], rows
for r in rows:
    assert r["requests"] == 6 and r["failed"] == 0 and r["first_s"]["n"] == 6, r
    # Requests follow each other: no time is counted in which none runs.
    assert r["clients"] > 1 or r["seconds"] < 6 * r["latency_s"]["max"] + 0.5, r
PY

# ---- soak: buckets are filled, and known answers stay as they are
# A busy machine may not end a turn in every half second: then buckets are longer.
for seconds in 6 24 144; do
    "$KK_SERVING" soak --kakeya "$KAKEYA" --clients 4 --seconds $seconds \
        --bucket "$((seconds / 12)).$((seconds % 12 * 10 / 12))" \
        --report "$work/soak.json" >"$work/said" 2>&1
    [ -f "$work/soak.json" ] || fail "no report: $(cat "$work/said")"
    python3 -c 'import json, sys
turns = [b["turns"] for b in json.load(open(sys.argv[1]))["buckets"]]
sys.exit(not turns or 0 in turns)' \
        "$work/soak.json" && break
    rm "$work/soak.json"
done
[ -f "$work/soak.json" ] || fail "no turn ended in a twelfth of 144 seconds"
exits 0 report check "$work/soak.json"
holds "$work/soak.json" failed turns
holds "$work/soak.json" different turns

# ---- chaos: a few kills and faults; malformed traffic goes over gRPC too
[ -n "${KK_GRPC_MODULE:-}" ] || skip_all "gRPC is not built (scripts/setup grpc): no chaos"
"$KK_SERVING" chaos --kakeya "$KAKEYA" --clients 3 --kills 4 --requests 500 \
    --report "$work/chaos.json" >"$work/said" 2>&1
[ -f "$work/chaos.json" ] || fail "no report: $(cat "$work/said")"
exits 0 report check "$work/chaos.json"
for figure in lost different; do holds "$work/chaos.json" $figure kills; done
for figure in requests crashes hangs; do
    for protocol in malformed malformed_grpc; do holds "$work/chaos.json" $figure $protocol; done
done
for fault in "full disk" "slow clients" "vanishing clients" "corrupt state"; do
    holds "$work/chaos.json" wrong "$fault"
done

"$KK_SERVING" load --no-such-option >/dev/null 2>&1
same $? 2 "usage"
finish
