/* dense_bench.cu - how near do products of 1 to 16 rows come to the bandwidth of memory?
 *
 * Times, on random bf16 weights of the shapes of 31B and E4B, every way that takes so many rows:
 * one launch of kk_cu_run_linear or as many as shared memory asks for, kk_cu_run_slices and
 * kk_cu_run_wide.  Weights are another copy every time, so that the L2 cache has seen none of them.
 * Prints microseconds and the bytes of weights, read once, over them; and compares the bits.
 * Build: nvcc -O3 -std=c++17 -fmad=false -arch=sm_90a -I src -I src/backend/cuda
 *     bench/gpu/dense_bench.cu src/backend/cuda/cuda_*.cu */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith.cuh"
#include "dense_ops.h"

static void check(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

__global__ void fill(uint32_t *p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z ^= z >> 27;
        p[i] = kk_dbf16x2(((float)(z & 0xffff) / 32768.0f - 1) * 0.035f,
                          ((float)(z >> 16 & 0xffff) / 32768.0f - 1) * 0.035f);
    }
}

static char *pool;
static size_t pool_bytes = (size_t)4 << 30, pool_at;
static kk_cu_at at;
static uint16_t *x;
static float *out, *slices, *host[2];
enum { OUT_BYTES = 64 << 20, SLICES_BYTES = 64 << 20 };

static kk_cu_weight matrix(int64_t n_out, int64_t n_in) {
    kk_cu_weight w = {};
    w.n_mat = 1;
    w.n_out = n_out;
    w.n_in = n_in;
    w.strips = (int32_t)((n_out + 15) / 16 * 2);
    w.wrap = (int32_t)((n_in + 31) / 32);
    w.planes = 1;
    w.words = KK_CU_WORDS(KK_W_BF16);
    const size_t bytes = (size_t)w.strips * (size_t)w.wrap * 512;
    if (pool_at + bytes > pool_bytes) pool_at = 0;
    w.data = pool + pool_at;
    pool_at += bytes;
    return w;
}

typedef enum { TURNS, SLICES, WIDE, WAYS } way;
static const char *const names[] = {"linear", "slices", "wide"};

static kk_cu_linear product(int rows, int n_in, int n, const int *outs, bool glu) {
    kk_cu_linear l = {};
    float *to = out;
    for (int i = 0; i < n; i++) {
        l.part[i].w = matrix(outs[i], n_in);
        if (glu) l.part[i].up = matrix(outs[i], n_in);
        l.part[i].out = to;
        l.part[i].pitch = outs[i];
        to += (size_t)rows * outs[i];
    }
    l.n_parts = n;
    l.x = x;
    l.n_rows = rows;
    l.n_in = n_in;
    return l;
}

static bool takes(way how, const kk_cu_linear *l) {
    if (how == SLICES)
        return kk_cu_slices_takes(at, l) &&
               (size_t)l->n_rows * l->part[0].w.n_out * 32 <= SLICES_BYTES;
    return how == TURNS || kk_cu_wide_takes(at, l);
}

static cudaError_t run(way how, const kk_cu_linear *l, bool join) {
    if (how == WIDE) return kk_cu_run_wide(at, l);
    if (how == SLICES) {
        const kk_cu_join j = {(float *)l->part[0].out, slices, l->n_rows,
                              (int32_t)l->part[0].w.n_out};
        const cudaError_t e = kk_cu_run_slices(at, l, slices);
        return e == cudaSuccess && join ? kk_cu_run_join(at, &j) : e;
    }
    const int most = kk_cu_linear_rows(at.shared, l->n_in);
    for (int r = 0; r < l->n_rows; r += most) {
        kk_cu_linear some = *l;
        some.n_rows = l->n_rows - r < most ? l->n_rows - r : most;
        some.x += (size_t)r * l->n_in;
        for (int i = 0; i < l->n_parts; i++)
            some.part[i].out = (char *)l->part[i].out +
                               (size_t)r * l->part[i].pitch * (l->part[i].up.data ? 2 : 4);
        const cudaError_t e = kk_cu_run_linear(at, &some);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

static void shape(const char *name, int n_in, int n, const int *outs, bool glu) {
    static const int rows[] = {1, 2, 4, 5, 8, 16};
    for (int r : rows) {
        printf("%-28s %2d rows", name, r);
        for (int how = 0; how < WAYS; how++) {
            enum { REPS = 12 };
            pool_at = 0;
            kk_cu_linear l = product(r, n_in, n, outs, glu);
            double bytes = 0;
            size_t values = 0;
            for (int i = 0; i < n; i++) {
                bytes += 2.0 * n_in * outs[i] * (glu ? 2 : 1);
                values += (size_t)r * outs[i];
            }
            if (!takes((way)how, &l)) continue;
            check(cudaMemsetAsync(out, 0xff, OUT_BYTES, at.stream), "clear");
            check(run((way)how, &l, true), "launch");
            check(cudaMemcpyAsync(host[how > 0], out, values * (glu ? 2 : 4),
                                  cudaMemcpyDeviceToHost, at.stream),
                  "copy");
            check(cudaStreamSynchronize(at.stream), names[how]);
            const bool same = how == 0 || memcmp(host[0], host[1], values * (glu ? 2 : 4)) == 0;
            cudaEvent_t a, b;
            float ms = 0;
            cudaEventCreate(&a);
            cudaEventCreate(&b);
            for (int i = -2; i < REPS; i++) {
                if (i == 0) cudaEventRecord(a, at.stream);
                l = product(r, n_in, n, outs, glu);
                check(run((way)how, &l, false), "launch");
            }
            cudaEventRecord(b, at.stream);
            check(cudaEventSynchronize(b), names[how]);
            cudaEventElapsedTime(&ms, a, b);
            ms /= REPS;
            printf("  %s %6.1f us %.2f TB/s%s", names[how], 1e3 * ms, bytes / ms / 1e9,
                   same ? "" : " OTHER BITS");
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(void) {
    int optin = 0;
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0), "device");
    check(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "device");
    at.sms = prop.multiProcessorCount;
    at.early = true;
    at.shared = optin;
    check(cudaStreamCreate(&at.stream), "stream");
    check(kk_cu_setup(optin), "setup");
    check(kk_cu_setup_dense(optin), "setup");
    check(cudaMalloc(&pool, pool_bytes), "memory");
    check(cudaMalloc(&x, (size_t)16 * 32768 * 2), "memory");
    check(cudaMalloc(&out, OUT_BYTES), "memory");
    check(cudaMalloc(&slices, SLICES_BYTES), "memory");
    for (float *&h : host) h = (float *)malloc(OUT_BYTES);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)pool, pool_bytes / 4);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)x, (size_t)16 * 32768 / 2);
    const int hidden[] = {5376}, qkv[] = {8192, 4096, 4096}, ffn[] = {21504}, head[] = {262144};
    const int e4b[] = {2560}, e4b_qkv[] = {2048, 512, 512}, e4b_ffn[] = {10240}, ple[] = {256};
    shape("31B q, k, v", 5376, 3, qkv, false);
    shape("31B output", 8192, 1, hidden, false);
    shape("31B output of full layers", 16384, 1, hidden, false);
    shape("31B gate, up", 5376, 1, ffn, true);
    shape("31B down", 21504, 1, hidden, false);
    shape("31B head", 5376, 1, head, false);
    shape("E4B q, k, v", 2560, 3, e4b_qkv, false);
    shape("E4B output", 2048, 1, e4b, false);
    shape("E4B gate, up", 2560, 1, e4b_ffn, true);
    shape("E4B down", 10240, 1, e4b, false);
    shape("E4B per-layer gate", 2560, 1, ple, false);
    shape("E4B per-layer projection", 256, 1, e4b, false);
    return 0;
}
