#!/usr/bin/env bash
# sdk_wheel.sh - a wheel of sdk/python is built, installed into a clean environment and used there; and
# mypy agrees with its types.  setuptools and mypy come from PyPI (scripts/setup clients).
. "$(dirname "$0")/lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
[ -n "${KK_LIBRARY:-}" ] || skip_all "once, in the release build, is enough"
tools=$root/.cache/clients
if ! PYTHONPATH=$tools python3 -c 'import setuptools, mypy, pip' 2>/dev/null; then
    skip_all "setuptools, mypy or pip is not installed (scripts/setup clients)"
fi

# A copy, since setuptools writes beside what it builds.
cp -r "$root/sdk/python" "$work/sdk"
rm -rf "$work/sdk/build" "$work/sdk"/src/*.egg-info
cd "$work" || exit 1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INDEX=1
PYTHONPATH=$tools python3 -m pip wheel -q --no-deps --no-build-isolation -w wheels ./sdk >said 2>&1 ||
    fail "no wheel: $(cat said)"
version=$("$KAKEYA" --version | sed -n 's/^kakeya \([0-9.]*[0-9]\).*/\1/p;q')
same "$(ls wheels)" "kakeya-$version-py3-none-any.whl" "the wheel"

python3 -m venv --without-pip clean && python3 -m pip --python clean/bin/python install -q wheels/*.whl >said 2>&1 ||
    fail "not installed: $(cat said)"
KAKEYA_LIBRARY=$KK_LIBRARY clean/bin/python -I - "$root/models/tiny/verifier" >said 2>&1 <<'PY' || fail "not usable: $(cat said)"
import importlib.resources
import os
import sys

import kakeya
from kakeya.native import Engine

assert "clean" in kakeya.__file__, kakeya.__file__
assert importlib.resources.files("kakeya").joinpath("py.typed").is_file()
with Engine(sys.argv[1], threads=1) as engine, engine.session() as session:
    session.append_text("def main():")
    assert len(session.generate(4, ignore_eos=True).tokens) == 4
PY
(cd "$root/sdk/python" && PYTHONPATH=$tools python3 -m mypy --cache-dir "$work/mypy") >said 2>&1 ||
    fail "mypy: $(cat said)"
# A wrong use of the package is an error to mypy: its types are seen from outside.
printf 'import kakeya\nkakeya.Client("x").create_session(kv_format=3)\n' >wrong.py
PYTHONPATH=$tools MYPYPATH=$root/sdk/python/src python3 -m mypy --strict --cache-dir "$work/mypy" wrong.py >said 2>&1 &&
    fail "mypy accepts a wrong argument"
has "$(cat said)" "kv_format"
finish
