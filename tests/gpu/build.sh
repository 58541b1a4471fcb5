#!/bin/sh
# build.sh [ARCH...] - everything that a machine with a GPU needs, in build-gpu: the program, the
# CUDA module, the tests and the libraries they load.  Nothing has to be installed there.
set -eu
cd "$(dirname "$0")/../.."
arch=$(echo "${*:-90}" | sed 's/\b90\b/90a/g') # with the instructions that only that chip has
cmake -S . -B build-cuda -G Ninja -DKK_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$(echo $arch | tr ' ' ';')" \
    -DKK_TRAIN=OFF -DKK_TESTS=OFF >/dev/null
ninja -C build-cuda kakeya_cli kakeya_static kakeya_cuda kakeya_eval
mkdir -p build-gpu/lib
cp build-cuda/kakeya build-cuda/libkakeya_cuda.so build-gpu/
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' build-cuda/CMakeCache.txt)
cuda=$(dirname "$(dirname "$nvcc")")
for test in tests/gpu/*_gpu_test.c; do
    gcc -std=gnu11 -O1 -g -Wall -Wno-unused-function -Iinclude -Isrc -Itests -I. \
        -isystem "$cuda/include" -DKK_TEST_DATA='"tests/data"' -DKK_MODELS='"models"' "$test" \
        -o "build-gpu/$(basename "$test" .c)" build-cuda/libkakeya_eval.a build-cuda/libkakeya.a \
        -L"$cuda/lib64" -L"$cuda/lib" -lcudart_static -lcmocka -ljansson -lpthread -ldl -lrt -lm
done
for lib in cmocka jansson edit bsd md tinfo; do
    found=$(ldconfig -p | sed -n "s/.*lib$lib\.so\.[0-9]* .*=> //p" | head -1)
    [ -z "$found" ] || cp -L "$found" build-gpu/lib/
done
