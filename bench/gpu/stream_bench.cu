/* stream_bench.cu - do the decode kernels stream weights at the speed of memory?
 *
 * Runs the dependent kernels of one forward of 26B-A4B shapes (30 layers and the head, random
 * bf16 weights made on the device) as a CUDA graph, with and without early launches, for 1 to 16
 * rows, and kinds of kernel on their own.  Attention is stood in for by a kernel that reads as
 * many bytes.  Build: nvcc -O3 -std=c++17 -arch=sm_90 -I src/backend/cuda bench/gpu/stream_bench.cu */
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#include <string.h>
#include "decode.cuh"
#include "rows.cuh"
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

__global__ void fill(uint32_t *p, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed * 0x100000001ull) * 0x9e3779b97f4a7c15ull; z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z ^= z >> 27;
        float a = ((float)(z & 0xffff) / 32768.0f - 1) * 0.035f, b = ((float)((z >> 16) & 0xffff) / 32768.0f - 1) * 0.035f;
        p[i] = kk_dbf16x2(a, b);
    }
}
__global__ void fillf(float *p, size_t n, float mean, float spread) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 77) * 0x9e3779b97f4a7c15ull; z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z ^= z >> 27;
        p[i] = mean + spread * ((float)(z & 0xffff) / 32768.0f - 1);
    }
}
__global__ void __launch_bounds__(256, 2) attend_stand_in(const uint4 *kv, size_t n, const float *q, uint16_t *out, int width) {
    kk_next();
    kk_wait();
    unsigned acc = 0; size_t step = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) { uint4 v[4]; for (int u = 0; u < 4; u++) v[u] = kv[i + u * step]; for (int u = 0; u < 4; u++) acc ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w; }
    for (; i < n; i += step) { uint4 v = kv[i]; acc ^= v.x ^ v.y; }
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < width; k += step) out[k] = kk_dbf16(q[k] * 0.1f + (acc == 12345));
}

struct Ctx { cudaStream_t s; bool pdl; int grid; };
template <class A> static void launch(Ctx &c, void (*k)(A), const A &a, int grid, size_t smem, int threads = 256) {
    cudaLaunchConfig_t cfg = {}; cfg.gridDim = dim3(grid); cfg.blockDim = dim3(threads); cfg.dynamicSmemBytes = smem; cfg.stream = c.s;
    cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[0].val.programmaticStreamSerializationAllowed = 1;
    cfg.attrs = at; cfg.numAttrs = c.pdl ? 1 : 0;
    CK(cudaLaunchKernelEx(&cfg, k, a));
}
static const int H = 2816, F = 2112, EF = 704, NE = 128, NU = 8;
struct Layer { const uint4 *q, *k, *v, *o, *g, *u, *d, *r, *eg, *ed; int full; const uint4 *kv; size_t kvn; };
static char *W; static size_t off;
static const uint4 *take(size_t outs, size_t ins) { const uint4 *p = (const uint4 *)(W + off); off += outs * ins * 2; return p; }
struct Bufs { float *x, *q, *k, *v, *y, *yd, *ye, *logit, *ones, *big, *wgt; uint16_t *z1, *z2, *z3, *att, *act, *eact; int *ex; } B;
static size_t lin_smem(int rows, int k) { return KK_RINGS_BYTES + kk_part_floats(rows > 8) * 4 + (size_t)rows * kk_stage_stride(k); }

static void linear(Ctx &c, int R, std::vector<kk_part> parts, const uint16_t *x, int n_in, int early) {
    kk_linear_job_args a = {}; a.n_parts = (int)parts.size(); bool pair = false; int strips = 0; for (kk_part &p : parts) { pair |= p.up != 0; strips += p.units; }
    int per = (strips + c.grid - 1) / c.grid; bool two = pair || per >= 4; a.units = 0;
    for (int i = 0; i < a.n_parts; i++) { a.part[i] = parts[i]; if (two && !parts[i].up) a.part[i].units /= 2; a.units += a.part[i].units; }
    a.x = x; a.n_rows = R; a.n_in = n_in; a.early = early;
    launch(c, R > 8 ? (two ? kk_linear_kernel<true, 2> : kk_linear_kernel<true, 1>) : (two ? kk_linear_kernel<false, 2> : kk_linear_kernel<false, 1>), a, c.grid, lin_smem(R, n_in));
}
static kk_part part(const uint4 *w, float *out, int n_out, int n_in) { kk_part p = {}; p.w = w; p.out = out; p.n_out = n_out; p.units = n_out / 8; p.steps = n_in / 32; p.pitch = n_out; return p; }
static void between(Ctx &c, int R, kk_cu_between a) { launch(c, kk_between_kernel<2>, a, R, 0, KK_ROW_THREADS); }

enum { QKV = 1, ATT = 2, OUT = 4, MID = 8, GU = 16, EXP = 32, DOWN = 64, NORM = 128, HEAD = 256, ALL = 511 };
static void qkv(Ctx &c, int R, Layer &l) {
    if (l.full) linear(c, R, {part(l.q, B.q, 8192, H), part(l.k, B.k, 1024, H)}, B.z1, H, 1);
    else linear(c, R, {part(l.q, B.q, 4096, H), part(l.k, B.k, 2048, H), part(l.v, B.v, 2048, H)}, B.z1, H, 1);
}
static void att(Ctx &c, int R, Layer &l) {
    cudaLaunchConfig_t cfg = {}; cfg.gridDim = dim3(132); cfg.blockDim = dim3(256); cfg.stream = c.s;
    cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[0].val.programmaticStreamSerializationAllowed = 1; cfg.attrs = at; cfg.numAttrs = c.pdl ? 1 : 0;
    CK(cudaLaunchKernelEx(&cfg, attend_stand_in, l.kv, l.kvn, (const float *)B.q, B.att, R * (l.full ? 8192 : 4096)));
}
static void outp(Ctx &c, int R, Layer &l) {
    int K = l.full ? 8192 : 4096;
    for (int r = 0, n; r < R; r += n) { n = K == 8192 && R > 4 ? 4 : K == 4096 && R > 8 ? 8 : R; linear(c, n, {part(l.o, B.y + (size_t)r * H, H, K)}, B.att + (size_t)r * K, K, 1); }
}
static void mid(Ctx &c, int R) { kk_cu_between a = {}; a.x = B.x; a.a = B.y; a.w = B.ones; a.scale = 1; a.eps = 1e-6f; a.root = 0.0188f; a.z1 = B.z1; a.z2 = B.z2; a.z3 = B.z3; a.w1 = a.w2 = a.w3 = B.ones; a.dim = H; a.pitch = H; between(c, R, a); }
static void gu(Ctx &c, int R, Layer &l) {
    kk_part p = part(l.g, 0, F, H); p.up = l.u; p.out = B.act; 
    linear(c, R, {part(l.r, B.logit, NE, H), p}, B.z1, H, 1);
}
static kk_choice_args choice(int R) { kk_choice_args a = {}; a.logits = B.logit; a.slices = 1; a.scale = B.ones; a.expert = B.ex; a.weight = B.wgt; a.n_rows = R; a.n_used = NU; a.n_expert = NE; return a; }
static void gate(Ctx &c, int R, Layer &l) {
    kk_gate_args a = {}; a.choice = choice(R); a.gate = l.eg; a.up = l.eg + (size_t)(EF / 8) * (H / 32) * 32; a.gate_mat = a.up_mat = (size_t)(2 * EF / 8) * (H / 32) * 32; a.strips = EF / 8; a.steps = H / 32; a.act = B.eact; a.ffn = EF; a.act_pitch = EF; a.x = B.z2; a.n_in = H;
    a.dense = l.d; a.dense_x = B.act; a.dense_out = B.yd; a.dense_n_out = H; a.dense_units = H / 16; a.dense_steps = F / 32; a.dense_in = F;
    size_t more = (size_t)R * kk_stage_stride(F);
    if (R > 8) { linear(c, R, {part(l.d, B.yd, H, F)}, B.act, F, 1); a.dense_units = 0; more = 0; }
    launch(c, R > 8 ? kk_gate_kernel<true> : kk_gate_kernel<false>, a, c.grid, lin_smem(R, H) + more);
}
static void down(Ctx &c, int R, Layer &l) {
    kk_down_args a = {}; a.choice = choice(R); a.down = l.ed; a.strips = H / 8; a.steps = a.wrap = EF / 32; a.act = B.eact; a.act_pitch = EF; a.out = B.ye; a.n_out = H;
    launch(c, R > 8 ? kk_down_kernel<true> : kk_down_kernel<false>, a, c.grid, KK_RINGS_BYTES + 2 * R * NU * 8 * 4);
}
static void norm(Ctx &c, int R) { kk_cu_between a = {}; a.x = B.x; a.a = B.yd; a.b = B.ye; a.wa = a.wb = a.w = B.ones; a.scale = 0.5f; a.eps = 1e-6f; a.z1 = B.z1; a.w1 = B.ones; a.dim = H; a.pitch = H; between(c, R, a); }
static void head(Ctx &c, int R, const uint4 *e) { kk_part p = part(e, B.big, 262144, H); p.cap = 30; linear(c, R, {p}, B.z1, H, 1); }

static float timed(Ctx &c, const std::vector<Layer> &ls, const uint4 *emb, int R, int what, int reps) {
    cudaGraph_t g; cudaGraphExec_t e;
    CK(cudaStreamBeginCapture(c.s, cudaStreamCaptureModeGlobal));
    for (Layer l : ls) {
        if (what & QKV) qkv(c, R, l);
        if (what & ATT) att(c, R, l);
        if (what & OUT) outp(c, R, l);
        if (what & MID) mid(c, R);
        if (what & GU) gu(c, R, l);
        if (what & EXP) gate(c, R, l);
        if (what & DOWN) down(c, R, l);
        if (what & NORM) norm(c, R);
    }
    if (what & HEAD) head(c, R, emb);
    CK(cudaStreamEndCapture(c.s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
    cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
    for (int i = 0; i < 3; i++) CK(cudaGraphLaunch(e, c.s));
    CK(cudaEventRecord(a, c.s)); for (int i = 0; i < reps; i++) CK(cudaGraphLaunch(e, c.s)); CK(cudaEventRecord(b, c.s)); CK(cudaEventSynchronize(b));
    float ms; CK(cudaEventElapsedTime(&ms, a, b)); CK(cudaGraphExecDestroy(e)); CK(cudaGraphDestroy(g)); return ms / reps;
}
template <class T> static T *dev(size_t n) { T *p; CK(cudaMalloc(&p, n * sizeof(T))); CK(cudaMemset(p, 0, n * sizeof(T))); return p; }
int main(int argc, char **argv) {
    int layers = argc > 1 ? atoi(argv[1]) : 30;
    int n_emb = 262144;
    size_t total = (size_t)n_emb * H * 2 + (size_t)layers * (830ull << 20) * 2;
    CK(cudaMalloc(&W, total));
    fill<<<1320, 256>>>((uint32_t *)W, total / 4, 1); CK(cudaDeviceSynchronize());
    std::vector<Layer> ls;
    for (int i = 0; i < layers; i++) {
        Layer l = {}; l.full = i % 6 == 5; int nq = l.full ? 8192 : 4096;
        l.q = take(nq, H); l.k = take(l.full ? 1024 : 2048, H); if (!l.full) l.v = take(2048, H); l.o = take(H, nq); l.g = take(F, H); l.u = take(F, H); l.d = take(H, F); l.r = take(NE, H);
        l.eg = take((size_t)NE * 2 * EF, H); l.ed = take((size_t)NE * H, EF);
        l.kvn = (l.full ? 2535424 : 8388608) / 16; l.kv = (const uint4 *)(W + off); off += 8388608;
        ls.push_back(l);
    }
    const uint4 *emb = take(n_emb, H);
    if (off > total) { printf("too small\n"); return 1; }
    B.x = dev<float>(16 * H); B.q = dev<float>(16 * 8192); B.k = dev<float>(16 * 2048); B.v = dev<float>(16 * 2048); B.y = dev<float>(16 * H); B.yd = dev<float>(16 * H); B.ye = dev<float>(16 * H); B.logit = dev<float>(16 * NE); B.ones = dev<float>(8192); B.big = dev<float>(16 * 262144); B.wgt = dev<float>(16 * NU);
    B.z1 = dev<uint16_t>(16 * H); B.z2 = dev<uint16_t>(16 * H); B.z3 = dev<uint16_t>(16 * H); B.att = dev<uint16_t>(16 * 8192); B.act = dev<uint16_t>(16 * F); B.eact = dev<uint16_t>(16 * NU * EF); B.ex = dev<int>(16 * NU);
    fillf<<<64, 256>>>(B.x, 16 * H, 0, 1); fillf<<<8, 256>>>(B.ones, 8192, 1, 0.1f);
    fill<<<64, 256>>>((uint32_t *)B.z1, 8 * H, 3); fill<<<64, 256>>>((uint32_t *)B.z2, 8 * H, 4); fill<<<64, 256>>>((uint32_t *)B.att, 8 * 8192, 5);
    void *ks[] = {(void *)kk_linear_kernel<true, 1>, (void *)kk_linear_kernel<false, 1>, (void *)kk_linear_kernel<true, 2>, (void *)kk_linear_kernel<false, 2>, (void *)kk_gate_kernel<true>, (void *)kk_gate_kernel<false>, (void *)kk_down_kernel<true>, (void *)kk_down_kernel<false>};
    for (void *k : ks) { CK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024)); cudaFuncAttributes fa; CK(cudaFuncGetAttributes(&fa, k)); printf("regs %d local %zu shared %zu\n", fa.numRegs, fa.localSizeBytes, fa.sharedSizeBytes); }
    CK(cudaDeviceSynchronize());
    Ctx c = {}; CK(cudaStreamCreate(&c.s)); c.grid = 132;
    double kvb = 0; for (Layer &l : ls) kvb += l.kvn * 16.0;
    const char *names[] = {"qkv", "attend", "out", "middle", "gate/up", "experts1", "experts2", "norm", "head"};
    double f = layers / 30.0;
    double bytes1[] = {(25 * 46.137 + 5 * 51.9) * f, kvb / 1e6, (25 * 23.07 + 5 * 46.14) * f, 0, (23.79 + .72) * 30 * f, (63.44 + 11.89) * 30 * f, 31.72 * 30 * f, 0, 1476.4};
    for (int pdl = 0; pdl < 2; pdl++) {
        c.pdl = pdl; double tot = 0; for (double b : bytes1) tot += b;
        float t = timed(c, ls, emb, 1, ALL, 20);
        printf("pdl %d, 1 row, all: %.3f ms = %.0f tok/s, %.2f TB/s of %.0f MB\n", pdl, t, 1e3 / t, tot / t / 1e3, tot);
        for (int i = 0; i < 9; i++) { float u = timed(c, ls, emb, 1, 1 << i, 10), w = timed(c, ls, emb, 1, ALL & ~(1 << i), 10); printf("   %-9s alone %.3f ms (%.2f TB/s)  missing: %.3f less (floor %.3f)\n", names[i], u, bytes1[i] / u / 1e3, t - w, bytes1[i] / 4500); }
        for (int R : {2, 4, 8, 16}) { float u = timed(c, ls, emb, R, ALL, 5); printf("pdl %d, %d rows: %.3f ms\n", pdl, R, u);
            for (int i = 0; i < 9; i++) printf("   %s %.3f", names[i], timed(c, ls, emb, R, 1 << i, 3)); printf("\n");
            std::vector<int> ex(R * NU); CK(cudaMemcpy(ex.data(), B.ex, R * NU * 4, cudaMemcpyDeviceToHost)); int seen[128] = {}, d = 0; for (int e : ex) d += !seen[e]++; printf("   distinct experts in the last layer: %d\n", d); }
    }
    std::vector<float> h(H); CK(cudaMemcpy(h.data(), B.x, H * 4, cudaMemcpyDeviceToHost)); printf("x: %g %g %g\n", h[0], h[1], h[2]);
    CK(cudaDeviceSynchronize()); return 0;
}
