#!/usr/bin/env bash
# serve_sessions.sh - sessions of `kakeya serve`: as JSON, on disk, and after it was killed.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
need_serve
need_tool python3
python3 -B "$here/serve_sessions.py" "$KAKEYA" "$work" || fail "serve_sessions.py"
finish
