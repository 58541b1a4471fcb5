/* attend_bench.cu - attention alone on the GPU, in the shapes of 26B-A4B: decoding rows at several
 * contexts, and a prompt.
 *
 * Every layer has pages of its own, so that nothing but what a layer reads twice comes from the
 * cache.  Built with cuda_attend*.cu:
 *   nvcc -O3 -gencode=arch=compute_90a,code=sm_90a -Isrc/backend/cuda bench/gpu/attend_bench.cu src/backend/cuda/cuda_attend*.cu src/backend/cuda/cuda_gemm_hopper.cu
 *   attend_bench [check | profile]     check: small, for sanitizers; profile: two prompts, for ncu */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "attend.cuh"
#include "launch.cuh"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const cudaError_t e_ = (call);                                                             \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(e_));                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct shape {
    const char *name;
    int d, n_kv, n_head, n_rot, window;
    bool k_eq_v;
};
static const shape sliding = {"sliding", 256, 8, 16, 128, 1024, false};
static const shape full = {"full", 512, 2, 16, 64, 0, true};

template <class T> static T *device(size_t n) {
    T *p;
    MUST(cudaMalloc(&p, n * sizeof(T)));
    return p;
}
template <class T> static T *upload(const std::vector<T> &v) {
    T *p = device<T>(v.size());
    MUST(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

__global__ void fill_floats(float *p, size_t n, uint32_t seed, float scale) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        p[i] = ((float)(x >> 8) / 8388608.0f - 1.0f) * scale;
    }
}
__global__ void fill_bf16(uint16_t *p, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        p[i] = kk_dbf16((float)(x >> 8) / 8388608.0f - 1.0f);
    }
}
static float *floats(size_t n, uint32_t seed, float scale) {
    float *p = device<float>(n);
    fill_floats<<<512, 256>>>(p, n, seed, scale);
    return p;
}

/* ---- a layer's arguments -------------------------------------------------------------------- */

enum { LAYERS_MOST = 32 };

struct layers {
    kk_cu_store s;
    kk_cu_attend a;
    int n;
    size_t pages; /* of a layer's table */
};

struct bench {
    shape sh;
    layers l;
    std::vector<void *> memory;
    size_t page_bytes, n_pages;
    uint8_t *pages_at;
    float *q_raw;
    size_t q_n;
};

static bench make(const shape &sh, int rows, int context, int n_layers, int tile_most) {
    bench b;
    b.sh = sh;
    const int first = context - rows, n = (context + KK_PAGE - 1) / KK_PAGE;
    const size_t head = (size_t)KK_PAGE * sh.d * 2;
    b.page_bytes = head * sh.n_kv * (sh.k_eq_v ? 1 : 2);
    /* Pages behind the window of all rows are never read: they share one. */
    const int from = sh.window && first >= sh.window ? (first - sh.window + 1) / KK_PAGE : 0;
    b.n_pages = (size_t)(n - from) * n_layers;
    b.pages_at = device<uint8_t>(b.n_pages * b.page_bytes);
    fill_bf16<<<1024, 256>>>((uint16_t *)b.pages_at, b.n_pages * b.page_bytes / 2, 7);
    std::vector<uint8_t *> table;
    for (int l = 0; l < n_layers; l++)
        for (int i = 0; i < n; i++)
            table.push_back(b.pages_at +
                            ((size_t)l * (n - from) + (i < from ? 0 : i - from)) * b.page_bytes);
    std::vector<int64_t> pos;
    std::vector<int32_t> where(rows, 0);
    std::vector<kk_cu_tile> tiles;
    for (int r = 0; r < rows; r++) pos.push_back(first + r);
    for (int r = 0; r < rows; r += tile_most)
        tiles.push_back({first + r, first, context, r, std::min(tile_most, rows - r), 0, 0});
    kk_cu_store s = {};
    s.q = floats((size_t)rows * sh.n_head * sh.d, 1, 3);
    s.k = floats((size_t)rows * sh.n_kv * sh.d, 2, 3);
    s.v = sh.k_eq_v ? NULL : floats((size_t)rows * sh.n_kv * sh.d, 3, 3);
    s.q_norm = floats(sh.d, 4, 0.5f);
    s.k_norm = floats(sh.d, 5, 0.5f);
    s.rope_rows = floats((size_t)rows * 2 * sh.n_rot, 6, 1);
    s.n_rot = sh.n_rot;
    s.n_head = sh.n_head;
    s.slot = {KK_CU_BF16, sh.k_eq_v, sh.n_kv, sh.d, 0, sh.k_eq_v ? 0 : head * sh.n_kv, head, head};
    s.rows = {upload(pos), upload(where),     upload(table), upload(tiles),
              rows,        (int)tiles.size(), tile_most,     n};
    s.eps = 1e-6f;
    if (sh.window) s.rows.most_pages = std::min(n, (sh.window + tile_most) / KK_PAGE + 2);
    kk_cu_attend a = {};
    a.q = s.q;
    a.k_norm = s.k_norm;
    a.rope_pos = floats((size_t)n * KK_PAGE * 2 * sh.n_rot, 8, 1);
    a.n_rot = sh.n_rot;
    a.n_head = sh.n_head;
    a.window = sh.window;
    a.slot = s.slot;
    a.rows = s.rows;
    a.scale = 1.0f / 16;
    a.bf16_pitch = sh.n_head * sh.d;
    a.out_bf16 = device<uint16_t>((size_t)rows * a.bf16_pitch);
    a.n_tiles = (int)tiles.size();
    size_t parts = tile_most > KK_CU_ROWS
                       ? kk_cu_attend_tile_bytes(&a) * tiles.size()
                       : (size_t)rows * kk_cu_attend_row_bytes(sh.n_head, sh.d, s.rows.most_pages);
    a.parts = device<float>(parts / 4);
    b.l = {s, a, n_layers, (size_t)n};
    b.memory = {s.q,
                (void *)s.k,
                (void *)s.v,
                (void *)s.q_norm,
                (void *)s.k_norm,
                (void *)s.rope_rows,
                (void *)s.rows.pos,
                (void *)s.rows.table,
                (void *)s.rows.pages,
                (void *)s.rows.tile,
                (void *)a.rope_pos,
                a.out_bf16,
                a.parts,
                b.pages_at};
    MUST(cudaDeviceSynchronize());
    return b;
}
static void drop(bench &b) {
    for (void *p : b.memory) cudaFree(p);
}

/* ---- ways ----------------------------------------------------------------------------------- */

static void by_kernels(const kk_cu_at &at, const layers &l, bool stores) {
    for (int i = 0; i < l.n; i++) {
        kk_cu_store s = l.s;
        kk_cu_attend a = l.a;
        s.rows.pages += i * l.pages;
        a.rows.pages += i * l.pages;
        if (stores) MUST(kk_cu_run_store(at, &s));
        if (a.rows.tile_most > KK_CU_ROWS)
            MUST(kk_cu_run_attend_tiles(at, &a));
        else
            MUST(kk_cu_run_attend(at, &a));
    }
}

template <class F> static double microseconds(const kk_cu_at &at, F run) {
    cudaEvent_t from, to;
    std::vector<float> times;
    MUST(cudaEventCreate(&from));
    MUST(cudaEventCreate(&to));
    for (int i = 0; i < 12; i++) {
        float ms;
        MUST(cudaEventRecord(from, at.stream));
        run();
        MUST(cudaEventRecord(to, at.stream));
        MUST(cudaEventSynchronize(to));
        MUST(cudaEventElapsedTime(&ms, from, to));
        if (i >= 2) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3;
}

/* ---- figures --------------------------------------------------------------------------------- */

static void decode(const kk_cu_at &at, const shape &sh, int rows, int context, bool small) {
    const double bytes = (double)std::min(context, sh.window ? sh.window + rows : context) *
                         sh.n_kv * sh.d * 2 * (sh.k_eq_v ? 1 : 2);
    int n_layers = (int)(400e6 / bytes);
    n_layers = small ? 2 : n_layers > LAYERS_MOST ? LAYERS_MOST : n_layers < 2 ? 2 : n_layers;
    bench b = make(sh, rows, context, n_layers, rows);
    if (small) {
        by_kernels(at, b.l, true);
        MUST(cudaStreamSynchronize(at.stream));
    } else {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        MUST(cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeThreadLocal));
        by_kernels(at, b.l, false);
        MUST(cudaStreamEndCapture(at.stream, &graph));
        MUST(cudaGraphInstantiate(&exec, graph, 0));
        const double kernels = microseconds(at, [&] { MUST(cudaGraphLaunch(exec, at.stream)); });
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
        printf("%-8s %2d rows at %5d: %6.2f us a layer (%.2f us of bytes)\n", sh.name, rows,
               context, kernels / n_layers, bytes / 4.5e6);
    }
    drop(b);
}

/* Values of the rows' outputs that differ between two runs, the second with other kernels. */
static size_t differing(const kk_cu_at &one, const kk_cu_at &two, const bench &b, int rows) {
    const size_t n = (size_t)rows * b.l.a.bf16_pitch;
    std::vector<uint16_t> out[2] = {std::vector<uint16_t>(n), std::vector<uint16_t>(n)};
    size_t differ = 0;
    for (int i = 0; i < 2; i++) {
        const kk_cu_at &at = i ? two : one;
        MUST(cudaMemsetAsync(b.l.a.out_bf16, 0xff, n * 2, at.stream));
        by_kernels(at, b.l, false);
        MUST(cudaStreamSynchronize(at.stream));
        MUST(cudaMemcpy(out[i].data(), b.l.a.out_bf16, n * 2, cudaMemcpyDeviceToHost));
    }
    for (size_t i = 0; i < n; i++) differ += out[0][i] != out[1][i];
    return differ;
}

/* With the kernels of this chip, and with those of chips without wgmma. */
static double prompt(const kk_cu_at &at, const shape &sh, int rows, int context) {
    bench b = make(sh, rows, context, 1, KK_CU_TILE_ROWS);
    kk_cu_at other = at;
    other.shared = 228000; /* enough for the tiles of either, and not for wgmma's */
    double keys = 0;
    for (int p = context - rows; p < context; p++)
        keys += sh.window && p >= sh.window ? sh.window : p + 1;
    const double flop = keys * sh.n_head * sh.d * 4;
    const size_t differ = differing(at, other, b, rows);
    const double us = microseconds(at, [&] { by_kernels(at, b.l, false); });
    const double mma = microseconds(other, [&] { by_kernels(other, b.l, false); });
    printf("%-8s prompt of %d at %d: %8.1f us a layer, %.0f TFLOP/s; mma %8.1f us, %.0f TFLOP/s; "
           "%zu values differ\n",
           sh.name, rows, context - rows, us, flop / us * 1e-6, mma, flop / mma * 1e-6, differ);
    if (differ) exit(1);
    drop(b);
    return us;
}

int main(int argc, char **argv) {
    const bool small = argc > 1 && !strcmp(argv[1], "check");
    kk_cu_at at = {};
    int device_sms, shared;
    MUST(cudaDeviceGetAttribute(&device_sms, cudaDevAttrMultiProcessorCount, 0));
    MUST(cudaStreamCreate(&at.stream));
    MUST(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    at.sms = device_sms;
    at.shared = shared;
    at.early = !small;
    if (argc > 1 && !strcmp(argv[1], "profile")) {
        for (const shape *sh : {&sliding, &full}) {
            bench b = make(*sh, 2048, 4096, 1, KK_CU_TILE_ROWS);
            by_kernels(at, b.l, false);
            MUST(cudaStreamSynchronize(at.stream));
            drop(b);
        }
        return 0;
    }
    static const int rows[] = {1, 8, 16}, contexts[] = {1238, 3238, 32768};
    if (small) {
        for (int r : {1, 5, 16}) {
            decode(at, sliding, r, 130 + r, true);
            decode(at, full, r, 130 + r, true);
        }
        prompt(at, sliding, 70, 150);
        prompt(at, full, 70, 150);
    } else {
        for (const shape *sh : {&sliding, &full})
            for (int c : contexts)
                for (int r : rows)
                    if (sh == &full || c < 32768) decode(at, *sh, r, c, false);
        const double s = prompt(at, sliding, 3238, 3238), f = prompt(at, full, 3238, 3238);
        printf("a prompt of 3238 through 25 and 5 layers: %.2f ms\n", (25 * s + 5 * f) / 1e3);
        prompt(at, full, 2048, 32768);
        prompt(at, full, 2048, 131072);
    }
    return 0;
}
