#!/bin/sh
# build.sh [ARCH...] - everything that a machine with a GPU needs, in build-gpu: the program, the
# CUDA module, the tests and the libraries they load.  Nothing has to be installed there.
set -eu
cd "$(dirname "$0")/../.."
arch=$(echo "${*:-90}" | sed 's/\b90\b/90a/g') # with the instructions that only that chip has
cmake -S . -B build-cuda -G Ninja -DKK_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$(echo $arch | tr ' ' ';')" \
    -DKK_TRAIN=AUTO -DKK_TESTS=OFF >/dev/null
targets="kakeya_cli kakeya_static kakeya_cuda kakeya_eval"
blas=
if ninja -C build-cuda -t query kakeya_train_module >/dev/null 2>&1; then
    targets="$targets kakeya_train kakeya_train_module"
    blas=$(pkg-config --cflags --libs openblas)
fi
ninja -C build-cuda $targets
mkdir -p build-gpu/lib
cp build-cuda/kakeya build-cuda/libkakeya_cuda.so build-gpu/
[ -z "$blas" ] || cp build-cuda/libkakeya_train.so build-gpu/
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' build-cuda/CMakeCache.txt)
cuda=$(dirname "$(dirname "$nvcc")")
for test in tests/gpu/*_gpu_test.c; do
    train=
    if grep -q 'train/\|sums_cases' "$test"; then
        [ -n "$blas" ] || continue # no OpenBLAS here
        train="build-cuda/libkakeya_train.a $blas"
    fi
    gcc -std=gnu11 -O1 -g -Wall -Wno-unused-function -Iinclude -Isrc -Itests -I. \
        -isystem "$cuda/include" -DKK_TEST_DATA='"tests/data"' -DKK_MODELS='"models"' "$test" \
        -o "build-gpu/$(basename "$test" .c)" $train build-cuda/libkakeya_eval.a \
        build-cuda/libkakeya.a \
        -L"$cuda/lib64" -L"$cuda/lib" -lcudart_static -lcmocka -ljansson -lpthread -ldl -lrt -lm
done
# The last three come with OpenBLAS.
for lib in cmocka jansson edit bsd md tinfo openblas gfortran quadmath; do
    found=$(ldconfig -p | sed -n "s/.*lib$lib\.so\.[0-9]* .*=> //p" | head -1)
    [ -z "$found" ] || cp -L "$found" build-gpu/lib/
done
