#!/usr/bin/env bash
# sdk_native.sh - kakeya.native: _abi.py against kakeya.h, and the engine in a Python process.  An
# instrumented library cannot be loaded by a plain Python, so builds with sanitizers skip this.
. "$(dirname "$0")/lib.sh"
sdk=$(cd "$(dirname "$0")/../../sdk/python" && pwd)
need_tool python3
if [ -z "${KK_LIBRARY:-}" ]; then
    skip_all "no libkakeya.so that a plain Python can load"
fi
export KAKEYA_LIBRARY=$KK_LIBRARY
python3 -B "$sdk/tests/test_native.py" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
finish
