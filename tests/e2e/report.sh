#!/usr/bin/env bash
# `kakeya report`: the reports of this repository hold, doctored ones are refused, the page is whole.
. "$(dirname "$0")/lib.sh"
root=$KK_TEST_DATA/../..
reports=$KK_TEST_DATA/reports

# Every report in the tree: none says what it may not say.
trees=()
for folder in bench/results models/tiny docs; do
    [ -d "$root/$folder" ] && trees+=("$root/$folder")
done
exits 0 report check "${trees[@]}"
has "$out" "arms-tiny.json: " "0 refused" "other JSON file"
exits 0 report check "$reports"
has "$out" "needle.json: ok needle" "13 reports: 13 hold, 0 refused"
exits 0 report check -q "$reports"
same "$out" "" "-q of reports that hold"

# A lie, told with its file, code and value; as JSON; and by the exit status.
sed 's/"speedup": 1.[0-9]*/"speedup": 2.58/' "$reports/bench.json" >"$work/bench.json"
exits 1 report check "$work/bench.json" "$reports"
has "$out" "$work/bench.json: SPEEDUP_RECOUNT: " "2.58x" "14 reports: 13 hold, 1 refused"
exits 1 report check "$work/bench.json" --json
json "$out" holds reports file kind verdict findings code text
has "$out" '"holds": false' '"verdict": "refused"' '"code": "SPEEDUP_RECOUNT"'
exits 0 report check "$reports/kv.json" --json
has "$out" '"holds": true' '"verdict": "holds"'

# Without a schema it is no report of any kind.
grep -v '"schema":' "$reports/lossless.json" >"$work/old.json"
exits 1 report check "$work/old.json"
has "$out" "old.json: BAD_SCHEMA: "
sed 's/"mismatches": 0/"mismatches": 3/' "$reports/lossless.json" >"$work/failed.json"
exits 1 report check "$work/failed.json"
has "$out" "CASES_DIFFER: 3 of 2560 cases differ"

# What is no report.
printf '{"schema": 7, "kind": "needle"}' >"$work/future.json"
exits 1 report check "$work/future.json"
has "$out" "FUTURE_SCHEMA: schema 7 is newer"
printf '{"kind": "needle",\n "rungs": [}' >"$work/broken.json"
exits 1 report check "$work/broken.json"
has "$out" "NOT_JSON: not JSON at line 2, column 12"
: >"$work/empty.json"
exits 1 report check "$work/empty.json"
has "$out" "EMPTY_FILE"
exits 1 report check "$model/config.json"
has "$out" "NOT_A_REPORT"
exits 1 report check "$model"
has "$err" "no report in $model"
exits 1 report check "$work/none.json"
has "$err" "$work/none.json"

# What the program writes holds, but for the commit where the build knows none.  Drafts of a fixed
# length: on a busy machine the controller may rightly make none, and such an arm is refused.
exits 0 bench --read-time 0.05 --synthetic tiny:q4_0 --arms plain,ngram -n 40 --prefill 64 --rows 1,2 --repeat 2 \
    --samples 5 -t 1 -q --draft-max 2 --draft-fixed --report "$work/made.json"
kakeya report check "$work/made.json"
same "$(printf '%s\n' "$out" | grep -v MISSING_COMMIT | grep -c '^/.*: [A-Z_]*: ')" 0 "$out"

# The page; page.sh looks at it in a browser.
exits 0 report html "$reports" "${trees[0]}" "$work/broken.json" -o "$work/page.html"
page=$(cat "$work/page.html")
has "$page" "<!doctype html>" "</html>" "Content-Security-Policy" '"verdict":"refused"' \
    '"code":"NOT_JSON"' '"failure":"the run failed its own limits"'
same "$(grep -c '^{"path":' "$work/page.html")" "$(grep -o '"path":"' "$work/page.html" | wc -l)" reports
exits 1 report html "$reports" -o "$work/none/page.html"
has "$err" "$work/none/page.html"

# The rules, and that the documentation has them all.
exits 0 report rules
has "$out" SPEEDUP_SELF RESTORED_NOTHING "(needle steps)"
for rule in $(printf '%s\n' "$out" | sed -n 's/^\([A-Z][A-Z_]*\) .*/\1/p'); do
    grep -q "\`$rule\`" "$root/docs/reports.md" || fail "docs/reports.md does not have $rule"
done

# Usage.
exits 2 report
has "$err" check rerun html rules
exits 2 report chek
has "$err" "check, rerun, html, rules"
exits 2 report check
exits 2 report html "$reports"
has "$err" "-o FILE"
exits 2 report -q
exits 0 help report check
has "$out" "usage: kakeya report check"
finish
