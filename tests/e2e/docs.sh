#!/usr/bin/env bash
# docs.sh - what the documents show is what happens: the tour's commands print what stands behind
# them, the examples of the API reference are answered, those of its clients run.
. "$(dirname "$0")/lib.sh"
need_serve
need_tool python3 curl
here=$(cd "$(dirname "$0")" && pwd)
docs=$here/../../docs
run() { python3 -B "$here/docs_run.py" "$1" "$KAKEYA" "$docs/$2" || fail "docs/$2"; }

run tour tour.md
run api api.md
export PYTHONPATH=$here/../../.cache/clients
if python3 -c 'import openai' 2>/dev/null; then
    run python clients.md
else
    skip_part "the package openai is not installed (scripts/setup clients)"
fi
finish
