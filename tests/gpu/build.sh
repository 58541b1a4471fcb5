#!/bin/sh
# build.sh [ARCH...] - everything that a machine with a GPU needs, in build-gpu: the program, the
# CUDA module, the tests and the libraries they load; where libmicrohttpd and SQLite are found here,
# the server and the program that measures it too; where OpenBLAS is, training.  Nothing has to be
# installed there.
set -eu
cd "$(dirname "$0")/../.."
arch=$(echo "${*:-90}" | sed 's/\b90\b/90a/g') # with the instructions that only that chip has
cmake -S . -B build-cuda -G Ninja -DKK_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$(echo $arch | tr ' ' ';')" \
    -DKK_TRAIN=AUTO -DKK_TESTS=OFF >/dev/null
targets="kakeya_cli kakeya_static kakeya_cuda kakeya_eval" serves= blas=
has() { ninja -C build-cuda -t query "$1" >/dev/null 2>&1; }
if has kakeya_train_module; then
    targets="$targets kakeya_train kakeya_train_module"
    blas=$(pkg-config --cflags --libs openblas)
fi
if has kakeya_serve_module; then
    targets="$targets kakeya_serve_module" serves=yes
fi
ninja -C build-cuda $targets
rm -rf build-gpu/lib build-gpu/serving build-gpu/libkakeya_serve.so build-gpu/libkakeya_train.so
mkdir -p build-gpu/lib
cp build-cuda/kakeya build-cuda/libkakeya_cuda.so build-gpu/
[ -z "$blas" ] || cp build-cuda/libkakeya_train.so build-gpu/
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' build-cuda/CMakeCache.txt)
cuda=$(dirname "$(dirname "$nvcc")")

# compile OUT SOURCE...: with the flags and the libraries that tests have; $train: what training
# needs beside them.
compile() {
    out=$1
    shift
    gcc -std=gnu11 -O1 -g -Wall -Wno-unused-function -Iinclude -Isrc -Itests -I. \
        -isystem "$cuda/include" -DKK_TEST_DATA='"tests/data"' -DKK_MODELS='"models"' "$@" \
        -o "$out" $train build-cuda/libkakeya_eval.a build-cuda/libkakeya.a \
        -L"$cuda/lib64" -L"$cuda/lib" -lcudart_static -lcmocka -ljansson -lpthread -ldl -lrt -lm
}

for test in tests/gpu/*_gpu_test.c; do
    train=
    if grep -q 'train/\|sums_cases' "$test"; then
        [ -n "$blas" ] || continue # no OpenBLAS here
        train="build-cuda/libkakeya_train.a $blas"
    fi
    compile "build-gpu/$(basename "$test" .c)" "$test"
done
train=
if [ -n "$serves" ]; then
    cp build-cuda/libkakeya_serve.so build-gpu/
    compile build-gpu/serving tests/serving/*.c
fi

# All that these load, but what every Linux has of the C library and the compiler: a C library of
# there does not take parts of another one.
for file in build-gpu/*; do
    [ ! -f "$file" ] || ldd "$file" 2>/dev/null || true
done | sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' | sort -u |
    grep -Ev '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so' |
    while read -r found; do
        cp -L "$found" build-gpu/lib/
    done
