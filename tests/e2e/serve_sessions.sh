#!/usr/bin/env bash
# serve_sessions.sh - sessions of `kakeya serve`: as JSON, on disk, and after it was killed.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${KK_SERVE_MODULE:-}" ] || exit 77
command -v python3 >/dev/null || exit 77
python3 -B "$here/serve_sessions.py" "$KAKEYA" "$work" || fail "serve_sessions.py"
finish
