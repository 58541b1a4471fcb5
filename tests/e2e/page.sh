#!/usr/bin/env bash
# The page of `kakeya report html` in a browser: every report of this repository is drawn, figures are
# those of the JSON, refused and failed ones are marked, and what a report says stays text.
browser=$(command -v chromium || command -v chromium-browser) || {
    echo "no chromium: scripts/setup test installs it" >&2
    exit 77
}
command -v python3 >/dev/null || exit 77
. "$(dirname "$0")/lib.sh"
root=$KK_TEST_DATA/../..

# Beside the reports that hold: a lie, a kind that nobody knows, hostile strings and values of wrong
# types in every kind, and a file that is no JSON.
mkdir "$work/bad"
sed 's/"speedup": 1.2[0-9]*/"speedup": 2.58/' "$KK_TEST_DATA/reports/bench.json" >"$work/bad/lie.json"
printf '{"kind": "needle",\n "rungs": [}' >"$work/bad/broken.json"
python3 -B "$(dirname "$0")/page_dom.py" hostile "$KK_TEST_DATA/reports" "$work/bad" || fail "hostile reports"

exits 0 report html "$root/bench/results" "$KK_TEST_DATA/reports" "$work/bad" -o "$work/page.html"
kakeya report check "$root/bench/results" "$KK_TEST_DATA/reports" "$work/bad" --json
printf '%s' "$out" >"$work/verdicts.json"

# A script that the page does not know by its hash must not run.
sed -i 's|</body>|<script>document.documentElement.dataset.foreign = "ran"</script></body>|' \
    "$work/page.html"
has "$(tail -c 200 "$work/page.html")" "dataset.foreign"
HOME=$work timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --no-first-run --user-data-dir="$work/browser" --window-size=380,800 --dump-dom \
    "file://$work/page.html" >"$work/dom.html" 2>"$work/browser.log" ||
    fail "chromium: $(tail -3 "$work/browser.log")"
python3 -B "$(dirname "$0")/page_dom.py" check "$work/dom.html" "$work/verdicts.json" ||
    fail "the page is not as it should be"
finish
