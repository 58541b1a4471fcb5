#!/usr/bin/env bash
# sdk_native.sh - kakeya.native: _abi.py against kakeya.h, and the engine in a Python process.  An
# instrumented library cannot be loaded by a plain Python, so builds with sanitizers skip this.
. "$(dirname "$0")/lib.sh"
sdk=$(cd "$(dirname "$0")/../../sdk/python" && pwd)
command -v python3 >/dev/null || exit 77
if [ -z "${KK_LIBRARY:-}" ]; then
    echo "not run: no libkakeya.so that a plain Python can load"
    exit 77
fi
export KAKEYA_LIBRARY=$KK_LIBRARY
python3 -B "$sdk/tests/test_native.py" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
finish
