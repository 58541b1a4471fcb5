#!/usr/bin/env bash
# Little address space: every verb that needs none of it works, what does not fit ends with an
# error at once, and nothing keeps running.
. "$(dirname "$0")/lib.sh"
shipped=$(cd "$(dirname "$0")/../.." && pwd)/models/tiny/verifier

# Sanitizers reserve terabytes.
if grep -qa -e __asan_init -e __tsan_init "$KAKEYA"; then skip_all "an instrumented program"; fi

# limited KILOBYTES ARG... - runs it; a run that has to be killed has code 137.
limited() {
    local kb=$1
    shift
    (
        ulimit -v "$kb"
        exec timeout -s KILL 20 "$KAKEYA" "$@"
    ) >"$work/out" 2>"$work/err" </dev/null
    code=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

for kb in 20000 50000 100000 200000; do
    limited "$kb" version
    same "$code" 0 "version in $kb KB: $err"
    has "$out" "kakeya "
done
limited 200000 run -q -m "$shipped" -p x -n 2
same "$code" 0 "run in 200 MB: $err"

# Too little for the model, for its cache, for its threads.
for kb in 15000 30000 40000; do
    limited "$kb" run -m "$shipped" -p x -n 2
    same "$code" 1 "run in $kb KB: $err"
    has "$err" "kakeya: "
    lacks "$err" '`'
done
limited 300000 run -m "$shipped" -p x -n 2 -t 500
same "$code" 1 "run with 500 threads: $err"
has "$err" "of 500 threads"

# BLAS waits for memory without an end: it is not loaded where it would.
if [ -n "${KK_TRAIN_MODULE:-}" ]; then
    for kb in 60000 150000 250000; do
        limited "$kb" train projection -m "$shipped" -md none --taps 4 --out "$work/p" \
            --data "$0"
        same "$code" 1 "train in $kb KB: $err"
        has "$err" "address space"
    done
else
    skip_part "the module of kakeya train is not built (scripts/setup train)"
fi

# No thread, and no library of threads, that a verb did not ask for.
need_tool ldd
lacks "$(ldd "$KAKEYA")" blas
finish
