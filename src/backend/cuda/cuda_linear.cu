/* cuda_linear.cu - launches of the weight-streaming kernels in decode.cuh (its sketch shows their
 * pipeline), the top-k kernel, and a fallback for expert shapes that do not fill strips. */
#include "decode.cuh"
#include "dense_ops.h"
#include "launch.cuh"

/* Blocks of less shared memory than this have small rings.  STATIC_MOST: bytes that the
 * kernels here take beside their dynamic memory. */
enum { SMALL_BELOW = 160 * 1024, STATIC_MOST = 7 * 1024 };
static_assert((int)KK_CU_BLOCK == (int)KK_BLOCK_THREADS, "cuda_plan.c divides rows by KK_CU_BLOCK");
static_assert((int)KK_CU_FEW_EXPERTS == (int)KK_MAX_EXPERTS, "cuda_plan.c leaves choices to these");

static int steps_of(const kk_cu_weight &w) { return w.wrap * w.planes; }
static size_t matrix_size(const kk_cu_weight &w) { /* of one matrix, in 16-byte words */
    return (size_t)w.strips * (size_t)steps_of(w) * (size_t)w.words;
}
static bool is_packed(const kk_cu_weight &w) { return w.encoding != KK_W_BF16; }

static bool is_small(int shared) { return shared < SMALL_BELOW; }
static size_t most_of(int shared) { return (size_t)(shared - STATIC_MOST); }

/* Packed weights take small rings everywhere: unpacking wants more warps, that is two blocks on a
 * multiprocessor, and their steps are short. */
static size_t rings_of(int shared, bool packed) {
    return packed || is_small(shared) ? (size_t)kk_ring_cut<true>::ALL
                                      : (size_t)kk_ring_cut<false>::ALL;
}

static size_t linear_shared(int shared, bool packed, int rows, int n_in) {
    return rings_of(shared, packed) + (size_t)kk_part_floats(rows > 8) * sizeof(float) +
           (size_t)rows * (size_t)kk_stage_stride(n_in);
}

/* Blocks for so much work: one on a multiprocessor, or of packed weights two where they fit. */
static unsigned blocks_of(kk_cu_at at, bool packed, size_t shared, int units) {
    const bool two = packed && 2 * (shared + STATIC_MOST) <= (size_t)at.shared;
    const int most = at.sms * (two ? 2 : 1);
    return (unsigned)(units < most ? units : most);
}

/* Shared memory of a block that has a multiprocessor to itself: where two fit, some multiprocessor
 * may get two and another none, which takes twice as long. */
static size_t alone_of(int shared, size_t bytes) {
    const size_t half = (size_t)shared / 2 + 1024;
    return bytes > half ? bytes : half;
}

int32_t kk_cu_linear_rows(int32_t shared, int32_t n_in) {
    int32_t rows = KK_CU_ROWS;
    while (rows > 1 && linear_shared(shared, false, rows, n_in) > most_of(shared)) rows /= 2;
    return rows;
}

bool kk_cu_linear_fits(kk_cu_at at, const kk_cu_linear *a) {
    for (int i = 0; i < a->n_parts; i++)
        if (linear_shared(at.shared, is_packed(a->part[i].w), a->n_rows, a->n_in) >
            most_of(at.shared))
            return false;
    return a->n_rows <= KK_CU_ROWS;
}

/* The kernels of one kind of weights and of rings: kk_linear_kernel by rows above 8 and strips of a
 * unit, and the experts' kernels by rows above 8. */
struct linear_kind {
    void (*linear[2][2])(kk_linear_job_args);
    void (*gate[2])(kk_gate_args);
    void (*down[2])(kk_down_args);
};
template <bool SMALL, bool PACKED> constexpr linear_kind kind_of() {
    return {{{kk_linear_kernel<false, 1, SMALL, PACKED>, kk_linear_kernel<false, 2, SMALL, PACKED>},
             {kk_linear_kernel<true, 1, SMALL, PACKED>, kk_linear_kernel<true, 2, SMALL, PACKED>}},
            {kk_gate_kernel<false, SMALL, PACKED>, kk_gate_kernel<true, SMALL, PACKED>},
            {kk_down_kernel<false, SMALL, PACKED>, kk_down_kernel<true, SMALL, PACKED>}};
}
static const linear_kind plain_kinds[2] = {kind_of<false, false>(), kind_of<true, false>()};
static const linear_kind packed_kind = kind_of<true, true>();

static const linear_kind &kind_for(int shared, bool packed) {
    return packed ? packed_kind : plain_kinds[is_small(shared)];
}

static bool part_packed(const kk_cu_linear *a, int i) { return is_packed(a->part[i].w); }

/* Parts of one kind of weights, packed or not: a kernel takes either. */
static cudaError_t run_parts(kk_cu_at at, const kk_cu_linear *a) {
    const bool packed = part_packed(a, 0);
    size_t shared = linear_shared(at.shared, packed, a->n_rows, a->n_in);
    if (shared > most_of(at.shared)) return cudaErrorInvalidValue;
    if (!packed && !is_small(at.shared)) shared = alone_of(at.shared, shared);
    kk_linear_job_args j = {};
    bool pair = false;
    int strips = 0;
    for (int i = 0; i < a->n_parts; i++) {
        if (a->part[i].up.data && a->part[i].up.encoding != a->part[i].w.encoding)
            return cudaErrorInvalidValue;
        pair |= a->part[i].up.data != NULL;
        strips += a->part[i].w.strips;
    }
    /* Two strips per unit reach the highest bandwidth; one per unit balances few strips better. */
    const bool two = pair || (strips + at.sms - 1) / at.sms >= 4;
    for (int i = 0; i < a->n_parts; i++) {
        kk_part &p = j.part[i];
        p.w = (const uint4 *)a->part[i].w.data;
        p.up = (const uint4 *)a->part[i].up.data;
        p.out = a->part[i].out;
        p.n_out = (int)a->part[i].w.n_out;
        p.steps = steps_of(a->part[i].w);
        p.units = two && !p.up ? a->part[i].w.strips / 2 : a->part[i].w.strips;
        p.pitch = a->part[i].pitch;
        p.encoding = a->part[i].w.encoding;
        p.words = a->part[i].w.words;
        j.units += p.units;
    }
    j.n_parts = a->n_parts;
    j.x = a->x;
    j.n_rows = a->n_rows;
    j.n_in = a->n_in;
    j.silu = a->silu;
    j.early = true;
    return kk_launch(at, kind_for(at.shared, packed).linear[a->n_rows > 8][two], j,
                     blocks_of(at, packed, shared, j.units), KK_BLOCK_THREADS, shared);
}

cudaError_t kk_cu_run_linear(kk_cu_at at, const kk_cu_linear *a) {
    int packed = 0;
    for (int i = 0; i < a->n_parts; i++) packed += part_packed(a, i);
    if (packed == 0 || packed == a->n_parts) return run_parts(at, a);
    for (int want = 0; want < 2; want++) {
        kk_cu_linear some = *a;
        some.n_parts = 0;
        for (int i = 0; i < a->n_parts; i++)
            if (part_packed(a, i) == (want > 0)) some.part[some.n_parts++] = a->part[i];
        const cudaError_t e = run_parts(at, &some);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

static kk_choice_args choice_of(const kk_cu_choice *c) {
    kk_choice_args a = {};
    a.logits = c->logits;
    a.slices = c->slices > 1 ? c->slices : 1;
    a.slice_stride = c->n_rows * c->n_expert;
    a.scale = c->scale;
    a.expert = c->expert;
    a.weight = c->weight;
    a.n_rows = c->n_rows;
    a.n_used = c->n_used;
    a.n_expert = c->n_expert;
    return a;
}

/* Top-k of the router's logits: one warp per row. */
template <int MOST>
__global__ void __launch_bounds__(KK_WARP) choose_kernel(const __grid_constant__ kk_choice_args a) {
    __shared__ kk_choice choice;
    const int r = (int)blockIdx.x, lane = (int)threadIdx.x;
    kk_next();
    kk_wait();
    kk_choose_row<MOST>(&choice, a.logits + (size_t)r * a.n_expert, a.slices, a.slice_stride,
                        a.scale, 0, a.n_used, a.n_expert);
    if (lane >= a.n_used) return;
    a.expert[r * a.n_used + lane] = choice.chosen[lane];
    a.weight[r * a.n_used + lane] = choice.weight[lane];
}

static bool choice_fits(const kk_cu_choice *c, int most) {
    return c->n_expert <= most && c->n_used <= KK_MAX_USED && c->n_used <= c->n_expert;
}

cudaError_t kk_cu_run_choose(kk_cu_at at, const kk_cu_choice *a) {
    if (!choice_fits(a, KK_MOST_EXPERTS)) return cudaErrorInvalidValue;
    return kk_launch(at,
                     a->n_expert <= KK_MAX_EXPERTS ? choose_kernel<KK_MAX_EXPERTS>
                                                   : choose_kernel<KK_MOST_EXPERTS>,
                     choice_of(a), (unsigned)a->n_rows, KK_WARP, 0);
}

/* Gate and up of any shape: one warp per output of a pair, one chain per lane.  For widths that do
 * not fill strips of 8, and for gate and up in different encodings or numbers of planes; these
 * shapes always
 * take this kernel, so their bits do not depend on the number of rows. */
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 2)
    odd_gate_kernel(const __grid_constant__ kk_cu_gate a) {
    const int lane = threadIdx.x % KK_WARP;
    const size_t warp = ((size_t)blockIdx.x * KK_BLOCK_THREADS + threadIdx.x) / KK_WARP;
    kk_wait();
    kk_next();
    const size_t pair = warp / (size_t)a.ffn;
    const int o = (int)(warp % (size_t)a.ffn);
    if (pair >= (size_t)a.choice.n_rows * (size_t)a.choice.n_used) return;
    const int e = a.choice.expert[pair], n_in = a.gate.wrap * KK_STEP;
    const uint16_t *x = a.x + pair / (size_t)a.choice.n_used * (size_t)n_in;
    float sum[2];
    for (int m = 0; m < 2; m++) {
        const kk_cu_weight &w = m && a.up.data ? a.up : a.gate;
        const int row = m && !a.up.data ? o + a.ffn : o;
        float s = 0;
        for (int p = 0; p < w.planes; p++)
            for (int k = 0; k < w.wrap; k++) {
                const float v = kk_weight_value(w, e, row, p * w.wrap * 32 + k * 32 + lane);
                s = __fmaf_rn(kk_dfloat(x[k * 32 + lane]), v, s);
            }
        sum[m] = kk_warp_sum(s);
    }
    if (lane == 0) a.act[pair * (size_t)a.act_pitch + o] = kk_dbf16(kk_glu_of(sum[0], sum[1], 0));
}

static bool odd_gate(const kk_cu_gate *a) {
    if (a->up.data) return a->up.planes != a->gate.planes || a->up.encoding != a->gate.encoding;
    return a->ffn % 8 != 0;
}

static cudaError_t run_odd_gate(kk_cu_at at, const kk_cu_gate *a) {
    cudaError_t e = cudaSuccess;
    if (a->choice.logits) e = kk_cu_run_choose(at, &a->choice);
    if (e != cudaSuccess) return e;
    const size_t warps = (size_t)a->choice.n_rows * (size_t)a->choice.n_used * (size_t)a->ffn;
    return kk_launch(at, odd_gate_kernel, *a, (unsigned)((warps + 7) / 8), KK_BLOCK_THREADS, 0);
}

cudaError_t kk_cu_run_gate(kk_cu_at at, const kk_cu_gate *a) {
    if (odd_gate(a)) return run_odd_gate(at, a);
    kk_gate_args g = {};
    const int rows = a->choice.n_rows;
    g.choice = choice_of(&a->choice);
    g.gate = (const uint4 *)a->gate.data;
    g.gate_mat = matrix_size(a->gate);
    g.steps = steps_of(a->gate);
    g.strips = (a->ffn + 7) / 8;
    if (a->up.data) {
        g.up = (const uint4 *)a->up.data;
        g.up_mat = matrix_size(a->up);
    } else {
        g.up = g.gate + (size_t)g.strips * (size_t)g.steps * (size_t)a->gate.words;
        g.up_mat = g.gate_mat;
    }
    g.encoding = a->gate.encoding;
    g.words = a->gate.words;
    g.act = a->act;
    g.ffn = a->ffn;
    g.act_pitch = a->act_pitch;
    g.x = a->x;
    g.n_in = a->gate.wrap * KK_STEP;
    const bool packed = is_packed(a->gate);
    const size_t shared = linear_shared(at.shared, packed, rows, g.n_in);
    const int most = a->choice.logits ? KK_MAX_EXPERTS : KK_MOST_EXPERTS;
    if (shared > most_of(at.shared) || !choice_fits(&a->choice, most)) return cudaErrorInvalidValue;
    return kk_launch(at, kind_for(at.shared, packed).gate[rows > 8], g,
                     blocks_of(at, packed, shared, 2 * at.sms), KK_BLOCK_THREADS, shared);
}

cudaError_t kk_cu_run_down(kk_cu_at at, const kk_cu_down *a) {
    kk_down_args d = {};
    const int rows = a->choice.n_rows;
    d.choice = choice_of(&a->choice);
    d.down = (const uint4 *)a->down.data;
    d.strips = a->down.strips;
    d.steps = steps_of(a->down);
    d.wrap = a->down.wrap;
    d.encoding = a->down.encoding;
    d.words = a->down.words;
    d.act = a->act;
    d.act_pitch = a->act_pitch;
    d.out = a->out;
    d.n_out = (int)a->down.n_out;
    const size_t pairs = (size_t)rows * (size_t)d.choice.n_used;
    const size_t acts = pairs * (size_t)kk_stage_stride(a->act_pitch);
    const bool packed = is_packed(a->down);
    size_t shared = rings_of(at.shared, packed) + 2 * pairs * 8 * sizeof(float);
    d.staged = shared + acts <= most_of(at.shared);
    if (d.staged) shared += acts;
    return kk_launch(at, kind_for(at.shared, packed).down[rows > 8], d,
                     blocks_of(at, packed, shared, d.strips), KK_BLOCK_THREADS, shared);
}

static cudaError_t set_up(const linear_kind &k, int32_t shared) {
    for (int high = 0; high < 2; high++) {
        const void *kernels[] = {(const void *)k.linear[high][0], (const void *)k.linear[high][1],
                                 (const void *)k.gate[high], (const void *)k.down[high]};
        for (const void *fn : kernels) {
            const cudaError_t e = cudaFuncSetAttribute(
                fn, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most_of(shared));
            if (e != cudaSuccess) return e;
        }
    }
    return cudaSuccess;
}

cudaError_t kk_cu_setup(int32_t shared) {
    cudaError_t e = set_up(plain_kinds[is_small(shared)], shared);
    if (e == cudaSuccess) e = set_up(packed_kind, shared);
    if (e != cudaSuccess) return e;
    e = kk_cu_setup_rows();
    if (e == cudaSuccess) e = kk_cu_setup_rounds();
    return e == cudaSuccess ? kk_cu_setup_mega(shared) : e;
}

cudaError_t kk_cu_built_for(int32_t *capability) {
    cudaFuncAttributes fa;
    const cudaError_t e = cudaFuncGetAttributes(&fa, (const void *)choose_kernel<KK_MAX_EXPERTS>);
    *capability = e == cudaSuccess ? fa.ptxVersion : 0;
    return e;
}
