#!/usr/bin/env bash
# grpc.sh - `kakeya serve --grpc-port`: serve_grpc.py with Google's own client and stubs generated from
# the public .proto (scripts/setup clients).
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
need_serve
if [ -z "${KK_GRPC_MODULE:-}" ]; then
    exits 1 serve --port 0 --grpc-port 0
    has "$err" "no module libkakeya_grpc" "libgrpc++-dev"
    skip_all "gRPC is not built (scripts/setup grpc)"
fi
need_tool python3

# ---- the command line
exits 2 serve --grpc-port 65536
has "$err" "--grpc-port"
exits 2 serve --grpc 50051
has "$err" "--grpc takes HOST:PORT"
exits 1 serve --port 0 --host 256.1.1.1 --grpc-port 0
has "$err" "is no address to listen on"

# A program without the module says what is missing.
mkdir "$work/without"
cp "$KAKEYA" "$KK_SERVE_MODULE" "$work/without"
"$work/without/kakeya" serve -m "$model" --port 0 --grpc-port 0 >"$work/out" 2>"$work/err"
same $? 1 "a program without the module"
has "$(cat "$work/err")" "no module libkakeya_grpc" "libgrpc++-dev"

export PYTHONPATH=$here/../../.cache/clients PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=upb
if ! python3 -c 'import grpc, grpc_tools, grpc_health, grpc_reflection' 2>/dev/null; then
    skip_all "grpcio is not installed (scripts/setup clients)"
fi
python3 -B "$here/serve_grpc.py" "$KAKEYA" "$work" "$here/../../proto" || fail "serve_grpc.py"
finish
