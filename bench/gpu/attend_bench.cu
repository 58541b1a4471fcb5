/* attend_bench.cu - attention alone on the GPU, in the shapes of 26B-A4B: decoding rows at several
 * contexts, as kernels and as stages of one persistent kernel, and a prompt.
 *
 * Every layer has pages of its own, so that nothing but what a layer reads twice comes from the
 * cache.  The stages must give the kernels' bits, stored rows included; the program says so and
 * fails otherwise.  Built with cuda_attend.cu and cuda_attend_tiles.cu:
 *   nvcc -O3 -arch=sm_90 -Isrc/backend/cuda bench/gpu/attend_bench.cu src/backend/cuda/cuda_attend*.cu
 *   attend_bench [check]     check: small, for sanitizers */
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

static int failures;

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

__device__ void grid_barrier(unsigned *count, unsigned target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(count, 1);
        while (*(volatile unsigned *)count < target) {
        }
        __threadfence();
    }
    __syncthreads();
}

__global__ void __launch_bounds__(512, 1)
    stages_kernel(const __grid_constant__ layers l, unsigned *count) {
    extern __shared__ __align__(16) char room[];
    __shared__ kk_cu_store s[2];
    __shared__ kk_cu_attend a[2];
    __shared__ kk_cu_tile tile;
    const int block = (int)blockIdx.x, blocks = (int)gridDim.x;
    unsigned turn = 0;
    /* The next layer's pages are found and asked for while others still work on this one. */
    const auto prepare = [&](int i) {
        if (threadIdx.x == 0) {
            s[i % 2] = l.s;
            a[i % 2] = l.a;
            s[i % 2].rows.pages += i * l.pages;
            a[i % 2].rows.pages += i * l.pages;
            if (l.a.n_tiles == 1) a[i % 2].rows.tile = &tile;
        }
        __syncthreads();
        kk_attend_prepare(s[i % 2], a[i % 2], room, block, blocks);
    };
    if (threadIdx.x == 0) tile = l.s.rows.tile[0];
    prepare(0);
    for (int i = 0; i < l.n; i++) {
        kk_attend_run(s[i % 2], a[i % 2], room, block, blocks);
        if (i + 1 < l.n) prepare(i + 1);
        grid_barrier(count, ++turn * gridDim.x);
        kk_combine_stage(a[i % 2], block, blocks);
        grid_barrier(count, ++turn * gridDim.x);
    }
}

__global__ void __launch_bounds__(512, 1) barriers_kernel(int n, unsigned *count) {
    for (int i = 1; i <= n; i++) grid_barrier(count, i * gridDim.x);
}

static void by_stages(const kk_cu_at &at, const layers &l, unsigned *count) {
    MUST(cudaMemsetAsync(count, 0, 4, at.stream));
    stages_kernel<<<at.sms, 512, KK_ATTEND_ROOM, at.stream>>>(l, count);
    MUST(cudaGetLastError());
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

/* ---- checks --------------------------------------------------------------------------------- */

static std::vector<uint8_t> bytes_of(const void *p, size_t n) {
    std::vector<uint8_t> v(n);
    MUST(cudaMemcpy(v.data(), p, n, cudaMemcpyDeviceToHost));
    return v;
}

/* The stages against the kernels: outputs and stored rows. */
static void compare(const kk_cu_at &at, bench &b, unsigned *count, int rows) {
    const size_t out = (size_t)rows * b.l.a.bf16_pitch * 2, q = out * 2;
    const size_t pages = b.n_pages * b.page_bytes;
    MUST(cudaMemset(b.l.a.out_bf16, 0xff, out));
    by_stages(at, b.l, count);
    MUST(cudaStreamSynchronize(at.stream));
    const auto got = bytes_of(b.l.a.out_bf16, out), stored = bytes_of(b.pages_at, pages);
    float *raw = device<float>(q / 4);
    MUST(cudaMemcpy(raw, b.l.s.q, q, cudaMemcpyDeviceToDevice));
    MUST(cudaMemset(b.l.a.out_bf16, 0xff, out));
    fill_bf16<<<1024, 256>>>((uint16_t *)b.pages_at, pages / 2, 7);
    MUST(cudaDeviceSynchronize());
    for (int i = 0; i < b.l.n; i++) { /* storing norms q in place */
        layers one = b.l;
        one.n = 1;
        one.s.rows.pages += i * b.l.pages;
        one.a.rows.pages += i * b.l.pages;
        MUST(cudaMemcpyAsync(b.l.s.q, raw, q, cudaMemcpyDeviceToDevice, at.stream));
        kk_cu_at plain = at;
        plain.early = false;
        by_kernels(plain, one, true);
    }
    MUST(cudaStreamSynchronize(at.stream));
    const bool same = got == bytes_of(b.l.a.out_bf16, out);
    const bool kept = stored == bytes_of(b.pages_at, pages);
    bool finite = true;
    for (size_t i = 1; i < got.size(); i += 2)
        finite = finite && ((got[i] & 0x7f) != 0x7f || !(got[i - 1] & 0x80));
    if (!same || !kept || !finite) {
        failures++;
        printf("  FAIL %s, %d rows: stages %s, stored rows %s, %s\n", b.sh.name, rows,
               same ? "same" : "differ", kept ? "same" : "differ",
               finite ? "finite" : "not finite");
    }
    MUST(cudaMemcpy(b.l.s.q, raw, q, cudaMemcpyDeviceToDevice));
    cudaFree(raw);
}

static void decode(const kk_cu_at &at, const shape &sh, int rows, int context, unsigned *count,
                   bool small) {
    const double bytes = (double)std::min(context, sh.window ? sh.window + rows : context) *
                         sh.n_kv * sh.d * 2 * (sh.k_eq_v ? 1 : 2);
    int n_layers = (int)(400e6 / bytes);
    n_layers = small ? 2 : n_layers > LAYERS_MOST ? LAYERS_MOST : n_layers < 2 ? 2 : n_layers;
    bench b = make(sh, rows, context, n_layers, rows);
    compare(at, b, count, rows);
    if (!small) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        MUST(cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeThreadLocal));
        by_kernels(at, b.l, false);
        MUST(cudaStreamEndCapture(at.stream, &graph));
        MUST(cudaGraphInstantiate(&exec, graph, 0));
        const double kernels = microseconds(at, [&] { MUST(cudaGraphLaunch(exec, at.stream)); });
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
        const double stages = microseconds(at, [&] { by_stages(at, b.l, count); });
        printf(
            "%-8s %2d rows at %5d: kernels %6.2f us, stages %6.2f us a layer (%.2f us of bytes)\n",
            sh.name, rows, context, kernels / n_layers, stages / n_layers, bytes / 4.5e6);
    }
    drop(b);
}

static double prompt(const kk_cu_at &at, const shape &sh, int rows, int context) {
    bench b = make(sh, rows, context, 1, KK_CU_TILE_ROWS);
    const double us = microseconds(at, [&] { by_kernels(at, b.l, false); });
    double keys = 0;
    for (int p = context - rows; p < context; p++)
        keys += sh.window && p >= sh.window ? sh.window : p + 1;
    const double flop = keys * sh.n_head * sh.d * 4;
    printf("%-8s prompt of %d at %d: %8.1f us a layer, %.0f TFLOP/s\n", sh.name, rows,
           context - rows, us, flop / us * 1e-6);
    drop(b);
    return us;
}

int main(int argc, char **argv) {
    const bool small = argc > 1 && !strcmp(argv[1], "check");
    kk_cu_at at = {};
    int device_sms;
    MUST(cudaDeviceGetAttribute(&device_sms, cudaDevAttrMultiProcessorCount, 0));
    MUST(cudaStreamCreate(&at.stream));
    at.sms = device_sms;
    at.early = !small;
    unsigned *count = device<unsigned>(1);
    static const int rows[] = {1, 8, 16}, contexts[] = {1238, 3238, 32768};
    if (small) {
        for (int r : {1, 5, 16}) {
            decode(at, sliding, r, 130 + r, count, true);
            decode(at, full, r, 130 + r, count, true);
        }
        prompt(at, sliding, 70, 150);
        prompt(at, full, 70, 150);
    } else {
        for (const shape *sh : {&sliding, &full})
            for (int c : contexts)
                for (int r : rows)
                    if (sh == &full || c < 32768) decode(at, *sh, r, c, count, false);
        const double barriers = microseconds(at, [&] {
            MUST(cudaMemsetAsync(count, 0, 4, at.stream));
            barriers_kernel<<<at.sms, 512, 0, at.stream>>>(200, count);
        });
        printf("two barriers of the stages: %.2f us\n", barriers / 100);
        const double s = prompt(at, sliding, 3238, 3238), f = prompt(at, full, 3238, 3238);
        printf("a prompt of 3238 through 25 and 5 layers: %.2f ms\n", (25 * s + 5 * f) / 1e3);
        prompt(at, full, 2048, 32768);
        prompt(at, full, 2048, 131072);
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
