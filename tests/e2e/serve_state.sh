#!/usr/bin/env bash
# serve_state.sh - `kakeya serve --state`: what leaves memory, ends with the server, is killed with it
# or is damaged on disk.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${KK_SERVE_MODULE:-}" ] || exit 77
command -v python3 >/dev/null || exit 77
python3 -B "$here/serve_state.py" "$KAKEYA" "$work" || fail "serve_state.py"
finish
