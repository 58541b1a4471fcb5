#!/usr/bin/env bash
# serve_state.sh - `kakeya serve --state`: what leaves memory, ends with the server, is killed with it
# or is damaged on disk.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
need_serve
need_tool python3
python3 -B "$here/serve_state.py" "$KAKEYA" "$work" || fail "serve_state.py"
finish
