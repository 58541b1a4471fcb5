#!/usr/bin/env bash
# sdk_python.sh - sdk/python's clients against a server, and the examples of its README.
. "$(dirname "$0")/lib.sh"
sdk=$(cd "$(dirname "$0")/../../sdk/python" && pwd)
need_serve
need_tool python3
[ -z "${KK_LIBRARY:-}" ] || export KAKEYA_LIBRARY=$KK_LIBRARY
for test in wire client readme; do
    python3 -B -W error::ResourceWarning "$sdk/tests/test_$test.py" >"$work/said" 2>&1 ||
        fail "test_$test.py: $(cat "$work/said")"
done
finish
