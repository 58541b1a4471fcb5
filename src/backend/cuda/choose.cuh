/* choose.cuh - the router: its sums, the experts they choose, and which rows chose which expert.
 *
 * Lists of rows are made anew by every block from the router's sums: that costs less than a
 * kernel of its own. */
#ifndef KK_CUDA_CHOOSE_CUH
#define KK_CUDA_CHOOSE_CUH

#include "stream.cuh"

enum { KK_MAX_EXPERTS = 256, KK_MAX_USED = 16 };

/* One warp: a slice of a strip, straight from memory.  out[slice][row][n_out]: who chooses adds
 * the slices up. */
template <bool HIGH>
__device__ __forceinline__ void kk_router_piece(const uint4 *w, const uint16_t *x, float *out,
                                                int n_rows, int n_in, int n_out, int steps,
                                                int strip, int slice) {
    enum { AT_ONCE = HIGH ? 4 : 6 };
    const int lane = threadIdx.x % KK_WARP, g = lane / 4, t = lane % 4, wrap = n_in / KK_STEP;
    const int from = kk_slice(steps, slice), to = kk_slice(steps, slice + 1);
    const uint16_t *lo = x + (size_t)(g < n_rows ? g : 0) * n_in + t * 8;
    const uint16_t *hi = x + (size_t)(g + 8 < n_rows ? g + 8 : 0) * n_in + t * 8;
    float c[4] = {0, 0, 0, 0};
    w += (size_t)strip * steps * KK_WARP + lane;
#pragma unroll 1
    for (int s0 = from; s0 < to; s0 += AT_ONCE) {
        uint4 ws[AT_ONCE], as[AT_ONCE], bs[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int s = min(s0 + i, to - 1), k = s % wrap;
            ws[i] = w[(size_t)s * KK_WARP];
            as[i] = __ldcg((const uint4 *)(lo + k * KK_STEP));
            if (HIGH) bs[i] = __ldcg((const uint4 *)(hi + k * KK_STEP));
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (s0 + i < to) kk_step<HIGH>(c, ws[i], as[i], bs[i]);
    }
    const int o = strip * 8 + 2 * t;
    out += (size_t)slice * n_rows * n_out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = i < 2 ? g : g + 8;
        if (r < n_rows && o + i % 2 < n_out) out[(size_t)r * n_out + o + i % 2] = c[i];
    }
}

/* Who chose whom. */
struct kk_choice {
    int n_active;
    short active[KK_MAX_EXPERTS];          /* expert ids, ascending */
    short first[KK_MAX_EXPERTS + 1];       /* into pair, by active expert */
    short pair[KK_ROWS_MAX * KK_MAX_USED]; /* row * n_used + slot */
    short pair_row[KK_ROWS_MAX * KK_MAX_USED];
    short chosen[KK_ROWS_MAX * KK_MAX_USED]; /* expert of a pair */
    float weight[KK_ROWS_MAX * KK_MAX_USED], logit[KK_ROWS_MAX * KK_MAX_USED];
};

/* The n_used largest of each row's logits, ties to the lower id: an expert's slot is the number
 * of experts before it.  Then a softmax over the chosen alone, times the expert's scale.  Logits
 * come in slices still to be summed, in order.  A thread per expert, some rows at a time; ends
 * before a barrier. */
template <int THREADS>
__device__ __forceinline__ void kk_choose(kk_choice *c, const float *logits, int slices,
                                          int slice_stride, const float *scale, int n_rows,
                                          int n_used, int n_expert) {
    __shared__ __align__(16) float logit[THREADS];
    const int wide = (n_expert + 3) / 4 * 4, at_once = THREADS / wide;
    const int mine = (int)threadIdx.x / wide, e = (int)threadIdx.x - mine * wide;
#pragma unroll 1
    for (int r = mine; r - mine < n_rows; r += at_once) {
        const bool real = mine < at_once && r < n_rows && e < n_expert;
        float part[KK_SLICES], v = -INFINITY; /* beyond the experts there are */
#pragma unroll
        for (int k = 0; k < KK_SLICES; k++)
            part[k] = real && k < slices
                          ? __ldcg(logits + (size_t)k * slice_stride + (size_t)r * n_expert + e)
                          : 0.0f;
        if (real) {
            v = part[0];
#pragma unroll
            for (int k = 1; k < KK_SLICES; k++) v = __fadd_rn(v, part[k]);
        }
        logit[threadIdx.x] = v;
        if (real && e < n_used) c->chosen[r * n_used + e] = (short)e; /* where none is a number */
        kk_sync();
        int before = real ? 0 : n_used;
        const float *row = logit + mine * wide;
#pragma unroll 2
        for (int i = 0; real && i < wide; i += 4) {
            const float4 o = *(const float4 *)(row + i);
            before += o.x > v || (o.x == v && i < e);
            before += o.y > v || (o.y == v && i + 1 < e);
            before += o.z > v || (o.z == v && i + 2 < e);
            before += o.w > v || (o.w == v && i + 3 < e);
        }
        if (before < n_used) {
            c->chosen[r * n_used + before] = (short)e;
            c->logit[r * n_used + before] = v;
        }
        kk_sync();
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n_rows * n_used; i += THREADS) {
        const float *of = c->logit + i / n_used * n_used;
        float sum = 0;
#pragma unroll 1
        for (int s = 0; s < n_used; s++) sum = __fadd_rn(sum, kk_dexp(__fsub_rn(of[s], of[0])));
        const float w = kk_dexp(__fsub_rn(c->logit[i], of[0]));
        c->weight[i] = __fmul_rn(__fdiv_rn(w, sum), scale[c->chosen[i]]);
    }
}

/* Lists of rows by expert from `chosen`; all threads of the block. */
template <int THREADS>
__device__ __forceinline__ void kk_list_rows(kk_choice *c, int n_rows, int n_used, int n_expert) {
    __shared__ int total[THREADS / KK_WARP], actives[THREADS / KK_WARP];
    const int lane = threadIdx.x % KK_WARP, warp = threadIdx.x / KK_WARP, e = (int)threadIdx.x;
    const int pairs = n_rows * n_used;
    kk_sync();
    int n = 0;
    if (e < n_expert)
#pragma unroll 4
        for (int i = 0; i < pairs; i++) n += c->chosen[i] == e;
    int before = n;
    for (int d = 1; d < KK_WARP; d <<= 1) {
        const int up = __shfl_up_sync(0xffffffffu, before, d);
        if (lane >= d) before += up;
    }
    const unsigned some = __ballot_sync(0xffffffffu, n > 0);
    if (lane == KK_WARP - 1) total[warp] = before;
    if (lane == 0) actives[warp] = __popc(some);
    kk_sync();
    before -= n;
    int index = __popc(some & ((1u << lane) - 1)), all = 0;
#pragma unroll 4
    for (int i = 0; i < THREADS / KK_WARP; i++) {
        if (i < warp) {
            before += total[i];
            index += actives[i];
        }
        all += actives[i];
    }
    if (n > 0) {
        c->active[index] = (short)e;
        c->first[index] = (short)before;
#pragma unroll 1
        for (int i = 0; i < pairs; i++)
            if (c->chosen[i] == e) {
                c->pair[before] = (short)i;
                c->pair_row[before++] = (short)(i / n_used);
            }
    }
    if (e == 0) {
        c->n_active = all;
        c->first[all] = (short)pairs;
    }
    kk_sync();
}

struct kk_choice_args {
    const float *logits;      /* NULL: the choice lies in expert and weight already */
    int slices, slice_stride; /* logits are still to be summed over these */
    const float *scale;       /* per expert */
    int *expert;              /* [n_rows][n_used] */
    float *weight;
    int n_rows, n_used, n_expert;
};

template <int THREADS>
__device__ __forceinline__ void kk_make_choice(kk_choice *c, const kk_choice_args &a, bool write) {
    if (a.logits) {
        kk_choose<THREADS>(c, a.logits, a.slices, a.slice_stride, a.scale, a.n_rows, a.n_used,
                           a.n_expert);
    } else {
        for (int i = (int)threadIdx.x; i < a.n_rows * a.n_used; i += THREADS) {
            c->chosen[i] = (short)a.expert[i];
            c->weight[i] = a.weight[i];
        }
    }
    kk_list_rows<THREADS>(c, a.n_rows, a.n_used, a.n_expert);
    if (write && a.logits)
        for (int i = (int)threadIdx.x; i < a.n_rows * a.n_used; i += THREADS) {
            a.expert[i] = c->chosen[i];
            a.weight[i] = c->weight[i];
        }
}

#endif
