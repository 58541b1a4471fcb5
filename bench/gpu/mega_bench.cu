/* mega_bench.cu - the forward kernel alone, at the shapes of 26B-A4B, with random weights made on
 * the device: milliseconds for 1 to 16 rows at four contexts, and where a layer's time goes.
 * Build: nvcc -O3 -std=c++17 -arch=sm_90a -I src/backend/cuda bench/gpu/mega_bench.cu
 *        src/backend/cuda/cuda_mega*.cu -o mega_bench
 * Run:   mega_bench [LAYERS [FORMAT [ENCODING [ROWS]]]]: FORMAT f32, bf16, q8, q4 or s8, of K/V;
 *        ENCODING of all weights but the router's, KK_W_... of cuda_ops.h; ROWS: four forwards of so
 *        many, for a profiler.
 * With -DKK_MEGA_TRACE it says where a layer's time goes, in a kernel that its clocks slow down. */
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>
#include "arith.cuh"
#include "cuda_ops.h"
#include "packed.cuh"
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

__device__ uint64_t mixed(uint64_t i) { uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull; z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z = (z ^ (z >> 27)) * 0x94d049bb133111ebull; return z ^ (z >> 31); }
__global__ void fill(uint32_t *p, size_t n, uint64_t seed, float s) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const uint64_t z = mixed(i + seed * 0x100000001ull);
        p[i] = kk_dbf16x2(((float)(z & 0xffff) / 32768.0f - 1) * s, ((float)((z >> 16) & 0xffff) / 32768.0f - 1) * s);
    }
}
__global__ void fillf(float *p, size_t n, float mean, float spread) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = mean + spread * ((float)(mixed(i + 77) & 0xffff) / 32768.0f - 1);
}
/* Scales of 2^-8 with either sign, and minima of the other, in random codes. */
__global__ void fill_scales(uint8_t *p, size_t steps, int bytes, int from) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < steps; i += (size_t)gridDim.x * blockDim.x)
        for (int k = from; k < bytes; k += 4) *(uint32_t *)(p + i * bytes + k) = mixed(i + k) & 1 ? 0x1c009c00u : 0x9c001c00u;
}
static uint64_t seed = 1;
static int encoding = KK_W_BF16;
static int scales_at(int w) { return w == KK_W_I4 || w == KK_W_A4 ? 128 : w == KK_W_I5 || w == KK_W_A5 ? 160 : w == KK_W_I6 ? 192 : 256; }
static void *weight(size_t outs, size_t ins, int as) {
    void *p;
    if (as != KK_W_BF16) {
        const size_t steps = outs / 8 * (ins / 32), bytes = (size_t)kk_words_of(as) * 16; CK(cudaMalloc(&p, steps * bytes));
        fill<<<2048, 256>>>((uint32_t *)p, steps * bytes / 4, seed++, 1.0f); fill_scales<<<2048, 256>>>((uint8_t *)p, steps, (int)bytes, scales_at(as)); return p;
    } CK(cudaMalloc(&p, outs * ins * 2)); fill<<<2048, 256>>>((uint32_t *)p, outs * ins / 2, seed++, 1.7f / sqrtf((float)ins)); return p;
}
static void *weight(size_t outs, size_t ins) { return weight(outs, ins, encoding); }
static float *floats(size_t n, float mean, float spread) { float *p; CK(cudaMalloc(&p, n * 4)); fillf<<<256, 256>>>(p, n, mean, spread); return p; }
template <class T> static T *upload(const std::vector<T> &v) { T *p; CK(cudaMalloc(&p, v.size() * sizeof(T))); CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); return p; }
template <class T> static T *zeros(size_t n) { T *p; CK(cudaMalloc(&p, n * sizeof(T))); CK(cudaMemset(p, 0, n * sizeof(T))); return p; }

enum { H = 2816, F = 2112, EF = 704, NE = 128, NU = 8, V = 262144, MOST_PAGES = 2048, SOME_PAGES = 32 /* of a sliding layer, used again and again */ };
static kk_cu_mega M; static int layers = 30, sms, shared, format = KK_CU_BF16;

static kk_cu_slot slot_of(bool full, int index) {
    kk_cu_slot s = {}; s.format = format; s.k_eq_v = full; s.n_kv_head = full ? 2 : 8; s.head_dim = full ? 512 : 256;
    const size_t values = (size_t)64 * s.head_dim, group = format == KK_CU_S8 ? 2 : format == KK_CU_Q8 || format == KK_CU_Q4 ? 4 : 0;
    s.code_bytes = format == KK_CU_F32 ? values * 4 : format == KK_CU_BF16 ? values * 2 : format == KK_CU_Q4 ? values / 2 : values; s.head_bytes = s.code_bytes + values / 64 * group;
    const size_t tensor = s.n_kv_head * s.head_bytes;
    s.k_off = full ? 0 : (size_t)index * 2 * tensor; s.v_off = full ? (size_t)index * tensor : s.k_off + tensor; return s;
}
static void make() {
    std::vector<uint8_t *> pages[2];
    const size_t tensor[2] = {8 * slot_of(false, 0).head_bytes, 2 * slot_of(true, 0).head_bytes};
    for (int k = 0; k < 2; k++) for (int i = 0; i < MOST_PAGES; i++) { if (!k && i >= SOME_PAGES) { pages[0].push_back(pages[0][i % SOME_PAGES]); continue; }
        const size_t n = k ? (size_t)(layers / 6 + 1) * tensor[1] : (size_t)layers * 2 * tensor[0]; uint8_t *p; CK(cudaMalloc(&p, n)); fill<<<256, 256>>>((uint32_t *)p, n / 4, seed++, 1.0f); pages[k].push_back(p); }
    float *ones = floats(8192, 1, 0.1f), *scale = floats(NE, 1, 0), *rope = floats((size_t)MOST_PAGES * 64 * 256, 0.5f, 0.2f);
    M.n_layer = layers; M.hidden = H; M.ffn = F; M.expert_ffn = EF; M.n_expert = NE; M.n_used = NU; M.router_steps = H / 32;
    M.expert_strips = 2 * EF / 8; M.down_strips = H / 8; M.eps = 1e-6f; M.x = floats(16 * H, 0, 1); M.y = zeros<float>(16 * H); M.dense = zeros<float>(16 * H); M.moe = zeros<float>(16 * H);
    M.logits = zeros<float>(8 * 16 * NE); M.z1 = zeros<uint16_t>(16 * H); M.z2 = zeros<uint16_t>(16 * H); M.z3 = zeros<uint16_t>(16 * H); M.att = zeros<uint16_t>(16 * 8192); M.act = zeros<uint16_t>(16 * F);
    M.expert_act = zeros<uint16_t>(16 * NU * EF); M.expert = zeros<int32_t>(16 * NU); M.weight = zeros<float>(16 * NU); M.barrier = zeros<uint32_t>(64);
    M.head = weight(V, H); M.head_as = encoding; M.packed = encoding != KK_W_BF16; M.norm_head = ones; M.n_logits = 1; M.vocab = V; M.cap = 30; M.head_out = zeros<float>((size_t)16 * V);
    float *q = zeros<float>(16 * 8192), *k = zeros<float>(16 * 2048), *v = zeros<float>(16 * 2048), *parts = zeros<float>((size_t)48 << 20);
    uint8_t **table[2] = {upload(pages[0]), upload(pages[1])};
    int full_at = 0, slide_at = 0;
    for (int i = 0; i < layers; i++) {
        const bool full = i % 6 == 5; kk_cu_mega_layer &l = M.layer[i]; const int width = full ? 8192 : 4096, kv = full ? 1024 : 2048;
        l.q = weight(width, H); l.k = weight(kv, H); l.v = full ? NULL : weight(kv, H); l.o = weight(H, width); l.router = weight(NE, H, KK_W_BF16); l.gate = weight(F, H); l.up = weight(F, H); l.down = weight(H, F);
        l.experts = weight((size_t)NE * 2 * EF, H); l.experts_down = weight((size_t)NE * H, EF);
        l.norm_in = l.norm_att = l.norm_ffn = l.norm_experts = l.router_scale = l.norm_dense = l.norm_moe = l.norm_out = ones; l.expert_scale = scale; l.scale = 0.7f; memset(&l.as, encoding, sizeof l.as); l.q_strips = width / 8; l.kv_strips = kv / 8; l.att_width = width;
        kk_cu_store &s = l.store; s.q = q; s.k = k; s.v = full ? NULL : v; s.q_norm = s.k_norm = ones; s.rope_rows = rope; s.n_rot = full ? 64 : 128; s.n_head = 16; s.slot = slot_of(full, full ? full_at++ : slide_at++); s.eps = 1e-6f;
        kk_cu_attend &t = l.attend; t.out_bf16 = M.att; t.q = q; t.k_norm = ones; t.rope_pos = rope; t.n_rot = s.n_rot; t.n_head = 16; t.window = full ? 0 : 1024; t.slot = s.slot; t.scale = 1; t.parts = parts; t.bf16_pitch = width; t.n_tiles = 1;
        s.rows.pages = t.rows.pages = table[full];
    }
}
/* false: the parts of so many rows do not fit. */
static bool set_rows(int rows, int ctx) {
    std::vector<int64_t> pos(rows); for (int r = 0; r < rows; r++) pos[r] = ctx + r;
    kk_cu_tile t = {}; t.pos = t.group_pos = ctx; t.group_end = ctx + rows; t.rows = rows;
    int64_t *p = upload(pos); int32_t *tb = zeros<int32_t>(16); kk_cu_tile *tile = upload(std::vector<kk_cu_tile>{t});
    M.n_rows = M.n_logits = rows;
    int pages = 32; while (pages * 64 < ctx + rows) pages *= 2; /* as the queue rounds them */
    for (int i = 0; i < layers; i++) for (kk_cu_rows *r : {&M.layer[i].store.rows, &M.layer[i].attend.rows}) {
        r->pos = p; r->table = tb; r->tile = tile; r->n_rows = rows; r->tiles = 1; r->tile_most = rows; r->most_pages = i % 6 == 5 ? pages : 20; }
    const kk_cu_at at = {0, sms, false, shared};
    for (int i = 0; i < layers; i++) if (!kk_cu_mega_takes(at, &M.layer[i]) || kk_cu_mega_parts(at, &M.layer[i], rows) > (size_t)192 << 20) return false;
    return true;
}
static float timed(int reps) {
    cudaStream_t s; cudaGraph_t g; cudaGraphExec_t e; cudaEvent_t a, b; CK(cudaStreamCreate(&s)); CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
    kk_cu_at at = {}; at.stream = s; at.sms = sms; at.shared = shared;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); CK(kk_cu_run_mega(at, &M)); CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
    std::vector<float> ms(reps); CK(cudaGraphLaunch(e, s)); CK(cudaStreamSynchronize(s));
    for (float &m : ms) { fillf<<<64, 256, 0, s>>>(M.x, 16 * H, 0, 1 + 0.001f * (float)(&m - &ms[0])); CK(cudaEventRecord(a, s)); CK(cudaGraphLaunch(e, s)); CK(cudaEventRecord(b, s)); CK(cudaEventSynchronize(b)); CK(cudaEventElapsedTime(&m, a, b)); }
    std::sort(ms.begin(), ms.end()); CK(cudaGraphExecDestroy(e)); CK(cudaGraphDestroy(g)); CK(cudaStreamDestroy(s)); return ms[reps / 2];
}
static int distinct(int rows) { std::vector<int32_t> e(rows * NU); CK(cudaMemcpy(e.data(), M.expert, e.size() * 4, cudaMemcpyDeviceToHost)); std::sort(e.begin(), e.end()); return (int)(std::unique(e.begin(), e.end()) - e.begin()); }
#ifdef KK_MEGA_TRACE
/* Marks of a layer: before strips, and before and after each barrier.  One row goes through fewer
 * stages.  A segment ends with its last block: what each took from the end of the one before. */
static void trace(int rows, double mhz) {
    static const char *one[] = {"tail", "qkv", "wait", "attend", "wait", "combine", "wait", "stage", "out", "wait", "middle", "gate", "wait", "stage", "experts", "wait", "stage", "down", "wait", NULL};
    static const char *few[] = {"stage", "qkv", "wait", "attend", "wait", "combine", "wait", "stage", "out", "wait", "middle", "wait", "stage", "gate", "choose", "stage", "experts", "wait", "stage", "down", "wait", "tail", "wait", NULL};
    const bool alone = rows == 1; const char **names = alone ? one : few; int marks = 0; while (names[marks]) marks++;
    const int first = alone ? 0 : 2; const size_t n = (size_t)sms * (first + marks * layers + 8);
    std::vector<uint64_t> t(n); M.trace = zeros<uint64_t>(n); timed(1); CK(cudaMemcpy(t.data(), M.trace, n * 8, cudaMemcpyDeviceToHost)); CK(cudaFree(M.trace)); M.trace = NULL;
    /* Clocks of multiprocessors start anywhere and run at their own speed: ends of barriers bring them together. */
    std::vector<double> from(sms), by(sms); std::vector<int> ends; for (int l = 0; l < layers; l++) for (int s = 0; s < marks; s++) if (names[s][0] == 'w') ends.push_back(first + marks * l + s);
    auto raw = [&](int m, int k) { return (double)(int64_t)(t[(size_t)sms * m + k] - t[(size_t)sms * ends[0] + k]); };
    for (int k = 0; k < sms; k++) { double x = 0, y = 0, xx = 0, xy = 0, c = (double)ends.size(); for (int m : ends) { const double u = raw(m, k), v = raw(m, 0); x += u; y += v; xx += u * u; xy += u * v; } by[k] = (c * xy - x * y) / (c * xx - x * x); from[k] = (y - by[k] * x) / c; }
    auto at = [&](int m) { std::vector<double> v(sms); for (int k = 0; k < sms; k++) v[k] = (from[k] + by[k] * raw(m, k)) / mhz; std::sort(v.begin(), v.end()); return v; };
    double all = 0; printf("   us of a sliding layer, first / median / last block:");
    for (int s = 0; s < marks; s++) { double f = 0, md = 0, la = 0; int k = 0; for (int l = 1; l < layers; l++) { if (l % 6 == 5) continue; const auto a = at(first + marks * l + s - 1), b = at(first + marks * l + s); f += b[0] - a[sms - 1]; md += b[sms / 2] - a[sms - 1]; la += b[sms - 1] - a[sms - 1]; k++; } all += la / k; printf("\n     %-8s %6.2f %6.2f %6.2f", names[s], f / k, md / k, la / k); }
    const int h = first + marks * layers + (alone ? 0 : 2); printf("\n   = %.1f | head %.1f us\n", all, at(h + 1)[sms - 1] - at(h)[sms - 1]);
}
#endif
int main(int argc, char **argv) {
    if (argc > 1) layers = atoi(argv[1]);
    static const char *const names[] = {"f32", "bf16", "q8", "q4", "s8"}; /* KK_CU_F32, ... */
    if (argc > 2) { for (format = 0; format < 5 && strcmp(names[format], argv[2]); format++) {} if (format == 5) { printf("no format %s\n", argv[2]); return 1; } }
    if (argc > 3) encoding = atoi(argv[3]);
    cudaDeviceProp prop; CK(cudaGetDeviceProperties(&prop, 0)); sms = prop.multiProcessorCount; shared = (int)prop.sharedMemPerBlockOptin;
    CK(kk_cu_setup_mega(shared)); make(); CK(cudaDeviceSynchronize());
    if (argc > 4) { /* for a profiler: one forward without the head */
        M.head = NULL; M.vocab = 0; set_rows(atoi(argv[4]), 1238); for (int i = 0; i < 4; i++) printf("%.3f ms\n", timed(1)); return 0; }
    const int contexts[] = {1238, 3238, 32000, 130000}, many[] = {1, 2, 4, 8, 16};
    for (int ctx : contexts) for (int rows : many) {
        if (!set_rows(rows, ctx)) continue;
        printf("%d tokens, %2d rows:", ctx, rows);
        const float ms = timed(20); printf(" %.3f ms = %.0f/s\n", ms, 1e3 / ms);
#ifdef KK_MEGA_TRACE
        trace(rows, 1755.0); /* MHz, as it runs under load */
#endif
        printf("  %d experts\n", distinct(rows)); fflush(stdout);
    }
    std::vector<float> x(4); CK(cudaMemcpy(x.data(), M.x, 16, cudaMemcpyDeviceToHost)); printf("x %g %g\n", x[0], x[1]);
    CK(cudaDeviceSynchronize()); return 0;
}
