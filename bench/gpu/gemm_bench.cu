/* gemm_bench.cu - how fast are products for many rows, and do both tiled kernels agree?
 *
 * Compares the kernels of gemm.cuh and gemm_hopper.cuh bit for bit over drawn shapes (argument
 * `check`), then times both at the shapes of 26B-A4B on random bf16 weights: dense products, whose
 * weights are another copy every time so that the L2 cache has seen none of them, and experts with
 * eight of 128 chosen at random.  Prints TFLOP/s.
 * Build: nvcc -O3 -std=c++17 -fmad=false -arch=sm_90a -I src/backend/cuda bench/gpu/gemm_bench.cu
 *     src/backend/cuda/cuda_gemm_hopper.cu src/backend/cuda/cuda_gemm_packed.cu */
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
    l.list = kk_hop_takes(at) ? (int)KK_HOP_ROWS : (int)KK_TILE_ROWS;
    l.n_tiles = (int *)lists;
    l.tile = (int2 *)((char *)lists + 16);
    l.slot = (int *)(l.tile + most_tiles(l.pairs, E, l.list));
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

/* ---- both kernels, bit for bit -------------------------------------------------------------- */

enum { NEW_SHARED = 227 * 1024 };
static uint8_t *results[2]; /* of either kernel */
static const size_t result_bytes = (size_t)160 << 20;
static int failures;

__global__ void differ(const uint32_t *a, const uint32_t *b, size_t n, unsigned long long *out) {
    unsigned long long here = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        here += a[i] != b[i];
    if (here) atomicAdd(out, here);
}

/* Runs a launch with either kernel into memory of the same pattern. */
template <class F> static void compare(const char *name, size_t bytes, F run) {
    static unsigned long long *count;
    if (!count) check(cudaMallocManaged(&count, sizeof *count), "memory");
    for (int k = 0; k < 2; k++) {
        at.shared = k ? NEW_SHARED : 0;
        check(cudaMemsetAsync(results[k], 0xa5, bytes, at.stream), "memset");
        check(run(results[k]), name);
        const cudaError_t e = cudaStreamSynchronize(at.stream);
        if (e != cudaSuccess) printf("%s: kernel %d\n", name, k);
        check(e, name);
    }
    *count = 0;
    differ<<<1024, 256, 0, at.stream>>>((uint32_t *)results[0], (uint32_t *)results[1], bytes / 4,
                                        count);
    check(cudaStreamSynchronize(at.stream), "compare");
    if (*count) {
        printf("DIFFERENT %s: %llu of %zu words\n", name, *count, bytes / 4);
        failures++;
    }
}

static kk_cu_weight planes_of(int64_t n_mat, int64_t n_out, int64_t n_in, int planes) {
    kk_cu_weight w = matrix(n_mat, n_out, n_in * planes);
    w.n_in = n_in;
    w.wrap /= planes;
    w.planes = planes;
    return w;
}

static void check_dense(int rows, int n_in, int n, const int *outs, bool glu, int planes, int cut) {
    char name[128];
    snprintf(name, sizeof name, "%d rows, %d inputs, %d outputs of %d, glu %d, planes %d, cut %d",
             rows, n_in, outs[0], n, glu, planes, cut);
    kk_cu_linear l = {};
    size_t size = 0, from[4];
    for (int i = 0; i < n; i++) {
        l.part[i].w = planes_of(1, outs[i], n_in, planes);
        if (glu) l.part[i].up = planes_of(1, outs[i], n_in, planes);
        l.part[i].pitch = glu ? (outs[i] + 31) / 32 * 32 : outs[i];
        from[i] = size;
        size += (size_t)(rows + 1) * l.part[i].pitch * 4 * (cut ? KK_SLICES : 1);
    }
    l.n_parts = n;
    l.x = x;
    l.n_rows = rows;
    l.n_in = n_in;
    if (size > result_bytes) return;
    compare(name, size, [&](uint8_t *to) {
        int32_t slices = 0;
        for (int i = 0; i < n; i++) l.part[i].out = to + from[i];
        return cut ? kk_cu_run_cut_gemm(at, &l, &slices) : kk_cu_run_gemm(at, &l);
    });
}

/* kind 0: drawn evenly; 1: all rows choose the same experts; 2: few rows for some, many for one. */
static void check_experts(int rows, int hidden, int ffn, int n_expert, int used, int kind) {
    char name[128];
    snprintf(name, sizeof name, "%d rows, %d of %d experts, %d x %d, kind %d", rows, used, n_expert,
             hidden, ffn, kind);
    static int host[2048 * 16];
    uint32_t seed = 1;
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < used; k++) {
            seed = seed * 1664525 + 1013904223;
            int e = kind == 1 ? k : (int)((seed >> 8) % (uint32_t)n_expert);
            if (kind == 2 && r % 7) e = k ? (r + k) % 3 + 1 : 0;
            host[r * used + k] = e;
        }
    check(cudaMemcpy(expert, host, sizeof(int) * rows * used, cudaMemcpyHostToDevice), "choice");
    kk_cu_experts e = {};
    e.gate = matrix(n_expert, 2 * ffn, hidden);
    e.down = matrix(n_expert, hidden, ffn);
    e.choice.expert = expert;
    e.choice.weight = weight;
    e.choice.n_rows = rows;
    e.choice.n_used = used;
    e.choice.n_expert = n_expert;
    e.x = x;
    e.ffn = ffn;
    e.act_pitch = (ffn + 31) / 32 * 32;
    e.scratch = lists;
    const size_t each_at = (size_t)rows * used * e.act_pitch * 2 / 256 * 256 + 256;
    const size_t out_at = each_at + (size_t)rows * used * hidden * 4;
    compare(name, out_at + (size_t)rows * hidden * 4, [&](uint8_t *to) {
        e.act = (uint16_t *)to;
        e.each = (float *)(to + each_at);
        e.out = (float *)(to + out_at);
        cudaMemsetAsync(to, 0, each_at, at.stream); /* the inputs beyond ffn */
        return kk_cu_run_experts(at, &e);
    });
}

static void check_all() {
    pool_at = 0;
    const int rows[] = {17, 33, 100, 128, 130, 175, 176, 177, 300, 353, 1000};
    for (const int r : rows) {
        const int few[] = {16}, odd[] = {200}, wide[] = {2816}, three[] = {512, 48, 1032};
        check_dense(r, 96, 1, few, false, 1, 0);
        check_dense(r, 704, 1, odd, false, 1, 0);
        check_dense(r, 2816, 1, wide, false, 1, 0);
        check_dense(r, 2112, 3, three, false, 1, 0);
        check_dense(r, 1568, 1, odd, true, 1, 0);
        check_dense(r, 2816, 1, wide, true, 1, 0);
        check_dense(r, 800, 3, three, false, 3, 0);
        check_dense(r, 1568, 1, odd, true, 2, 0);
        check_dense(r, 2816, 1, odd, false, 1, 1);
        check_dense(r, 1568, 1, few, false, 1, 1);
        check_experts(r, 2816, 704, 8, 4, 0);
        check_experts(r, 352, 96, 128, 8, 0);
        check_experts(r, 2816, 704, 12, 4, 1);
        check_experts(r, 1568, 72, 16, 3, 2);
    }
    const int qkv[] = {4096, 2048, 2048};
    check_dense(2048, 2816, 3, qkv, false, 1, 0);
    check_experts(1190, 2816, 704, 128, 8, 0);
    printf("%s: both kernels over %zu numbers of rows, %d shapes differ\n",
           failures ? "FAILED" : "the same bits", sizeof rows / sizeof *rows, failures);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const bool checks = argc > 1 && argv[1][0] == 'c';
    int rows[] = {512, 1190, 2048};
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0), "device");
    at.sms = prop.multiProcessorCount;
    at.early = true;
    at.shared = NEW_SHARED;
    check(cudaStreamCreate(&at.stream), "stream");
    check(kk_cu_setup_gemm(), "setup");
    printf("the kernel of gemm_hopper.cuh %s\n", kk_hop_takes(at) ? "runs" : "does not run here");
    const size_t most = 2048;
    check(cudaMalloc(&pool, pool_bytes), "memory");
    check(cudaMalloc(&x, most * 8192 * 2), "memory");
    check(cudaMalloc(&act, most * 8 * 704 * 2), "memory");
    check(cudaMalloc(&out, most * 10240 * 4), "memory");
    check(cudaMalloc(&each, most * 8 * 2816 * 4), "memory");
    check(cudaMalloc(&weight, most * 16 * 4), "memory");
    check(cudaMalloc(&expert, most * 16 * 4), "memory");
    check(cudaMalloc(&lists, kk_cu_experts_scratch((int32_t)most * 8, 512)), "memory");
    for (uint8_t *&r : results) check(cudaMalloc(&r, result_bytes), "memory");
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)pool, pool_bytes / 4);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)x, most * 8192 / 2);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)act, most * 8 * 704 / 2);
    fill<<<1024, 256, 0, at.stream>>>((uint32_t *)weight, most * 16);
    check(cudaStreamSynchronize(at.stream), "filling");
    if (checks) check_all();
    const int alone = argc > 1 ? atoi(argv[1]) : 0; /* these rows, by the newer kernel, no others */
    for (int k = alone ? 5 : 0; k < 6; k++) {
        const int r = alone ? alone : rows[k / 2];
        at.shared = k % 2 ? NEW_SHARED : 0;
        printf("%s\n", k % 2 ? "gemm_hopper.cuh" : "gemm.cuh");
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
    return failures != 0;
}
