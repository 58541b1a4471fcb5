#!/usr/bin/env bash
# serve_page.sh - the page of `kakeya serve` in Debian's Chromium, driven by Playwright (scripts/setup
# test clients): what a user does with it, what a hostile answer cannot do, and how it looks to those
# who do not see it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
browser=$(command -v chromium || command -v chromium-browser) || skip_all "no chromium (scripts/setup test)"
need_serve
need_tool python3
export PYTHONPATH=$here/../../.cache/clients
python3 -c 'import playwright.sync_api' 2>/dev/null ||
    skip_all "Playwright is not installed (scripts/setup clients)"
HOME=$work timeout 300 python3 -B "$here/serve_page.py" "$KAKEYA" "$work" "$browser" ||
    fail "serve_page.py"
finish
