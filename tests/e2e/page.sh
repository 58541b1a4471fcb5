#!/usr/bin/env bash
# The page of `kakeya report html` in a browser: every report of this repository is drawn, figures are
# those of the JSON, refused and failed ones are marked, and what a report says stays text.
. "$(dirname "$0")/lib.sh"
browser=$(command -v chromium || command -v chromium-browser) || skip_all "no chromium (scripts/setup test)"
need_tool python3
root=$KK_TEST_DATA/../..

# On a telephone: what the program wrote, before a foreign script is put into it below.
narrow() {
    PYTHONPATH=$root/.cache/clients HOME=$work timeout 240 python3 -B "$(dirname "$0")/page_width.py" "$browser" \
        "$work/page.html" 380 >"$work/said" 2>&1 || fail "at 380 pixels: $(cat "$work/said")"
}

# Beside the reports that hold: a lie, a kind that nobody knows, hostile strings and values of wrong
# types in every kind, and a file that is no JSON.
mkdir "$work/bad"
sed 's/"speedup": 1.2[0-9]*/"speedup": 2.58/' "$KK_TEST_DATA/reports/bench.json" >"$work/bad/lie.json"
printf '{"kind": "needle",\n "rungs": [}' >"$work/bad/broken.json"
python3 -B "$(dirname "$0")/page_dom.py" hostile "$KK_TEST_DATA/reports" "$work/bad" || fail "hostile reports"

exits 0 report html "$root/bench/results" "$KK_TEST_DATA/reports" "$work/bad" -o "$work/page.html"
kakeya report check "$root/bench/results" "$KK_TEST_DATA/reports" "$work/bad" --json
printf '%s' "$out" >"$work/verdicts.json"

if PYTHONPATH=$root/.cache/clients python3 -c 'import playwright.sync_api' 2>/dev/null; then
    narrow
else
    skip_part "Playwright is not installed (scripts/setup clients): the page was not measured"
fi

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
