#!/usr/bin/env bash
# serve_page.sh - the page of `kakeya serve` in Debian's Chromium, driven by Playwright (scripts/setup
# test clients): what a user does with it, what a hostile answer cannot do, and how it looks to those
# who do not see it.
browser=$(command -v chromium || command -v chromium-browser) || {
    echo "no chromium: scripts/setup test installs it" >&2
    exit 77
}
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${KK_SERVE_MODULE:-}" ] || exit 77
command -v python3 >/dev/null || exit 77
export PYTHONPATH=$here/../../.cache/clients
python3 -c 'import playwright.sync_api' 2>/dev/null || {
    echo "not run: Playwright is not installed (scripts/setup clients)" >&2
    exit 77
}
. "$here/lib.sh"
HOME=$work timeout 300 python3 -B "$here/serve_page.py" "$KAKEYA" "$work" "$browser" ||
    fail "serve_page.py"
finish
