/* gemm_bench.cu - how fast are products for many rows?
 *
 * Times the tiled kernels at the shapes of 26B-A4B on random bf16 weights: dense products, whose
 * weights are another copy every time so that the L2 cache has seen none of them, and experts with
 * eight of 128 chosen at random.  Prints TFLOP/s.
 * Build: nvcc -O3 -std=c++17 -fmad=false -arch=sm_90 -I src/backend/cuda bench/gpu/gemm_bench.cu
 *     src/backend/cuda/cuda_linear.cu src/backend/cuda/cuda_rows.cu */
#include <stdio.h>
#include <stdlib.h>

#include "../../src/backend/cuda/cuda_gemm.cu"

static void check(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

__device__ __forceinline__ uint32_t mix(uint64_t z) {
    z = (z + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(z ^ (z >> 27));
}
__global__ void fill(uint32_t *p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t z = mix(i);
        p[i] = kk_dbf16x2(((float)(z & 0xffff) / 32768.0f - 1) * 0.035f,
                          ((float)(z >> 16) / 32768.0f - 1) * 0.035f);
    }
}
__global__ void choose(int *expert, float *weight, int rows, int used, int n_expert) {
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    for (int k = 0; k < used; k++) {
        bool again = true;
        for (int t = 0; again; t++) {
            const int e = (int)(mix((uint64_t)r * 1000 + k * 100 + t) % n_expert);
            again = false;
            for (int i = 0; i < k; i++) again |= expert[r * used + i] == e;
            expert[r * used + k] = e;
        }
        weight[r * used + k] = 0.125f;
    }
}

static char *pool;
static size_t pool_bytes = (size_t)4 << 30, pool_at;
static kk_cu_at at;
static uint16_t *x, *act;
static float *out, *each, *weight;
static int *expert;
static void *lists;

static kk_cu_weight matrix(int64_t n_mat, int64_t n_out, int64_t n_in) {
    kk_cu_weight w = {};
    w.n_mat = n_mat;
    w.n_out = n_out;
    w.n_in = n_in;
    w.strips = (int32_t)((n_out + 15) / 16 * 2);
    w.wrap = (int32_t)((n_in + 31) / 32);
    w.planes = 1;
    const size_t bytes = (size_t)n_mat * w.strips * w.wrap * 512;
    if (pool_at + bytes > pool_bytes) pool_at = 0;
    w.data = pool + pool_at;
    pool_at += bytes;
    return w;
}

template <class F> static double time_of(F run) {
    enum { REPS = 10 };
    cudaEvent_t a, b;
    float ms = 0;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    for (int i = 0; i < 2; i++) check(run(), "launch");
    cudaEventRecord(a, at.stream);
    for (int i = 0; i < REPS; i++) check(run(), "launch");
    cudaEventRecord(b, at.stream);
    check(cudaEventSynchronize(b), "run");
    cudaEventElapsedTime(&ms, a, b);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return ms / REPS;
}

static double dense(const char *name, int rows, int n_in, int n, const int *outs, bool glu) {
    double flop = 0;
    for (int i = 0; i < n; i++) flop += 2.0 * rows * n_in * outs[i] * (glu ? 2 : 1);
    const double ms = time_of([&] {
        kk_cu_linear l = {};
        float *to = out;
        for (int i = 0; i < n; i++) {
            l.part[i].w = matrix(1, outs[i], n_in);
            if (glu) l.part[i].up = matrix(1, outs[i], n_in);
            l.part[i].out = to;
            l.part[i].pitch = outs[i];
            to += (size_t)rows * outs[i];
        }
        l.n_parts = n;
        l.x = x;
        l.n_rows = rows;
        l.n_in = n_in;
        return kk_cu_run_gemm(at, &l);
    });
    printf("%5d rows  %-22s %7.1f us  %6.1f TFLOP/s\n", rows, name, 1e3 * ms, flop / ms / 1e9);
    return ms;
}

static double experts(int rows) {
    enum { H = 2816, F = 704, E = 128, U = 8 };
    kk_cu_experts e = {};
    pool_at = 0;
    e.gate = matrix(E, 2 * F, H);
    e.down = matrix(E, H, F);
    e.choice.expert = expert;
    e.choice.weight = weight;
    e.choice.n_rows = rows;
    e.choice.n_used = U;
    e.choice.n_expert = E;
    e.x = x;
    e.act = act;
    e.ffn = e.act_pitch = F;
    e.each = each;
    e.scratch = lists;
    e.out = out;
    choose<<<(rows + 255) / 256, 256, 0, at.stream>>>(expert, weight, rows, U, E);
    const double all = time_of([&] { return kk_cu_run_experts(at, &e); });
    const double flop = 6.0 * rows * U * H * F;
    group_args l = {};
    l.expert = expert;
    l.pairs = rows * U;
    l.n_expert = E;
    l.n_tiles = (int *)lists;
    l.tile = (int2 *)((char *)lists + 16);
    l.slot = (int *)(l.tile + most_tiles(l.pairs, E));
    const double gate = time_of([&] { return run_gates(at, &e, l); });
    const double down = time_of([&] { return run_downs(at, &e, l); });
    const double group = time_of(
        [&] { return kk_launch(at, group_kernel<KK_MAX_EXPERTS>, l, 1, GROUP_THREADS, 0); });
    printf("%5d rows  %-22s %7.1f us  %6.1f TFLOP/s (gate, up %.1f us %.1f; down %.1f us %.1f; "
           "lists %.1f us; sums %.1f us)\n",
           rows, "experts", 1e3 * all, flop / all / 1e9, 1e3 * gate, flop * 2 / 3 / gate / 1e9,
           1e3 * down, flop / 3 / down / 1e9, 1e3 * group, 1e3 * (all - gate - down - group));
    return all;
}

int main(int argc, char **argv) {
    int rows[] = {512, 1024, 2048};
    if (argc > 1)
        for (int &r : rows) r = atoi(argv[1]);
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0), "device");
    at.sms = prop.multiProcessorCount;
    at.early = true;
    check(cudaStreamCreate(&at.stream), "stream");
    check(kk_cu_setup_gemm(), "setup");
    const size_t most = 2048;
    check(cudaMalloc(&pool, pool_bytes), "memory");
    check(cudaMalloc(&x, most * 8192 * 2), "memory");
    check(cudaMalloc(&act, most * 8 * 704 * 2), "memory");
    check(cudaMalloc(&out, most * 10240 * 4), "memory");
    check(cudaMalloc(&each, most * 8 * 2816 * 4), "memory");
    check(cudaMalloc(&weight, most * 8 * 4), "memory");
    check(cudaMalloc(&expert, most * 8 * 4), "memory");
    check(cudaMalloc(&lists, kk_cu_experts_scratch((int32_t)most * 8, 128)), "memory");
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)pool, pool_bytes / 4);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)x, most * 8192 / 2);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)act, most * 8 * 704 / 2);
    check(cudaStreamSynchronize(at.stream), "filling");
    for (int k = 0; k < (argc > 1 ? 1 : 3); k++) {
        const int r = rows[k];
        const int qkv[] = {4096, 2048, 2048}, full[] = {8192, 1024}, hidden[] = {2816};
        const int ffn[] = {2112};
        double ms = 0, sliding = 0, wide = 0;
        sliding += dense("q, k, v", r, 2816, 3, qkv, false);
        sliding += dense("output", r, 4096, 1, hidden, false);
        wide += dense("q, k of full layers", r, 2816, 2, full, false);
        wide += dense("output of full layers", r, 8192, 1, hidden, false);
        ms += dense("gate, up", r, 2816, 1, ffn, true);
        ms += dense("down", r, 2112, 1, hidden, false);
        ms += experts(r);
        printf("%5d rows  products of 30 layers  %7.1f ms\n", r, 25 * sliding + 5 * wide + 30 * ms);
        fflush(stdout);
    }
    return 0;
}
