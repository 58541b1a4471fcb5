#!/usr/bin/env bash
# `--device cuda` where there is no GPU: a sentence that says so and exit status 1, with the module
# and without it; and the module is found beside the program and where it is installed.
. "$(dirname "$0")/lib.sh"
module=${KK_CUDA_MODULE:-}
models=$(cd "$(dirname "$0")/../.." && pwd)/models

if nvidia-smi -L >/dev/null 2>&1; then
    exits 0 run -m "$models/tiny/verifier" --device cuda -p x -n 2
    finish
fi

refused() { # refused: a clear error, nothing printed, nothing crashed
    exits 1 run -m "$models/tiny/verifier" --device cuda -p x -n 2
    same "$out" ""
    if [ -n "$module" ]; then has "$err" "no NVIDIA GPU that CUDA can use"; else has "$err" "cuda"; fi
    lacks "$err" "Sanitizer"
}
refused
exits 0 doctor
if [ -n "$module" ]; then has "$out" "cuda: not usable here"; else has "$out" "cuda: not in this build"; fi
exits 1 parity "$KK_TEST_DATA/parity/moe" --device cuda
exits 0 run -m "$models/tiny/verifier" -p x -n 2 # the same program goes on without

# As installed, called by name from elsewhere.
if [ -n "$module" ]; then
    mkdir -p "$work/usr/bin" "$work/usr/lib/kakeya"
    cp "$KAKEYA" "$work/usr/bin/kakeya"
    run_installed() {
        err=$(cd / && PATH=$work/usr/bin:$PATH command kakeya run -m "$models/tiny/verifier" \
            --device cuda -p x -n 2 2>&1 >/dev/null) && fail "ran without a GPU"
    }
    run_installed
    lacks "$err" "no NVIDIA GPU"
    cp "$module" "$work/usr/lib/kakeya/"
    run_installed
    has "$err" "no NVIDIA GPU"
fi
finish
