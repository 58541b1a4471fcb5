#!/usr/bin/env bash
# serve.sh - `kakeya serve` over a socket: serve.py with Python's own HTTP client, and serve_openai.py
# with OpenAI's, where it is installed (scripts/setup clients).
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
need_serve
need_tool python3

# ---- the command line
exits 2 serve --http nowhere
has "$err" "--http takes HOST:PORT"
exits 2 serve --tls-cert x
has "$err" "go together"
exits 1 serve --api-key-file "$work/none"
has "$err" "cannot open the key file" "$work/none"
printf '# nothing but this\n\n' >"$work/empty"
exits 1 serve --api-key-file "$work/empty"
has "$err" "has no key in it"
lacks "$err" "kakeya info"
if [ -c /dev/zero ]; then
    (within_memory 4000000 "$KAKEYA" serve --api-key-file /dev/zero) >"$work/out" 2>"$work/err"
    same $? 1 "keys without an end"
    has "$(cat "$work/err")" "line 1 of '/dev/zero' is no line of text"
fi
exits 1 serve --host 256.1.1.1
has "$err" "is no address to listen on"
exits 1 serve -m "$model/none" --port 0
has "$err" "cannot open model"

python3 -B "$here/serve.py" "$KAKEYA" "$work" || fail "serve.py"

# ---- with OpenAI's own client
export PYTHONPATH=$here/../../.cache/clients
if python3 -c 'import openai' 2>/dev/null; then
    python3 -B "$here/serve_openai.py" "$KAKEYA" || fail "serve_openai.py"
else
    skip_part "the package openai is not installed (scripts/setup clients)"
fi
finish
