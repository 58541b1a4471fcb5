/* choose.cuh - top-k of the router's logits, and the list of rows of each active expert.
 *
 *    kk_choose_row   one warp per row: n_used rounds of arg max by __reduce_max_sync over logits
 *                    in registers, softmax over the chosen alone, times the expert's scale
 *    kk_list_rows    a block: one thread per (row, expert) pair, positions by counting; 3 barriers
 *    kk_list_pairs   one warp: the same by ballots over the bits of the expert ids
 *    kk_list_one     one warp, one row: experts in the router's order
 *    kk_choice (shared memory, about 4 KB): active experts, first pair of each, pairs by expert
 *
 * Every block computes the lists for itself: that is faster than a kernel of its own. */
#ifndef KK_CUDA_CHOOSE_CUH
#define KK_CUDA_CHOOSE_CUH

#include "cuda_ops.h"
#include "stream.cuh"

/* Kernels of their own choose from up to KK_MOST_EXPERTS; a block that chooses on the way, in a
 * warp's registers, from up to KK_MAX_EXPERTS. */
enum { KK_MAX_EXPERTS = 256, KK_MOST_EXPERTS = KK_CU_EXPERTS, KK_MAX_USED = KK_CU_USED };

/* Rows by active expert, and experts by row.  A pair is row * n_used + slot. */
struct kk_choice {
    int n_active;
    short active[KK_ROWS_MAX * KK_MAX_USED + 1]; /* expert ids, ascending */
    short first[KK_ROWS_MAX * KK_MAX_USED + 1];  /* index of its first pair, by active expert */
    short pair[KK_ROWS_MAX * KK_MAX_USED];       /* row * n_used + slot */
    short pair_row[KK_ROWS_MAX * KK_MAX_USED];
    __align__(16) short chosen[KK_ROWS_MAX * KK_MAX_USED]; /* expert of a pair */
    __align__(16) short leader
        [KK_ROWS_MAX *
         KK_MAX_USED]; /* chosen, for the first pair of each expert; 0x7fff for others */
    float weight[KK_ROWS_MAX * KK_MAX_USED];
};

/* Integers in the order of the floats; 0 means no expert. */
__device__ __forceinline__ uint32_t kk_key(float f) {
    const uint32_t u = __float_as_uint(__fadd_rn(f, 0.0f)); /* -0 is 0 */
    return max(1u, u & 0x80000000u ? ~u : u | 0x80000000u);
}
__device__ __forceinline__ float kk_unkey(uint32_t k) {
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

/* One warp: the n_used largest of a row's logits, ties to the lower id, then a softmax over the
 * chosen alone, times the expert's scale.  Logits come as K slices still to be added, in order.
 * All loads are issued first. */
template <int MOST = KK_MAX_EXPERTS>
__device__ __forceinline__ void kk_choose_row(kk_choice *c, const float *logits, int slices,
                                              int slice_stride, const float *scale, int row,
                                              int n_used, int n_expert) {
    enum { PER = MOST / KK_WARP };
    const int lane = kk_tid() % KK_WARP;
    uint32_t key[PER];
    float by[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + i * KK_WARP;
        key[i] = 0;
        by[i] = 0;
        if (e >= n_expert) continue;
        by[i] = scale[e];
        const float *at = logits + (size_t)row * n_expert + e;
        float part[KK_SLICES];
#pragma unroll
        for (int k = 0; k < KK_SLICES; k++)
            part[k] = k < slices ? __ldcg(at + (size_t)k * slice_stride) : 0.0f;
        float v = part[0];
#pragma unroll
        for (int k = 1; k < KK_SLICES; k++) v = __fadd_rn(v, part[k]);
        key[i] = kk_key(v);
    }
    uint32_t mine = 0, top = 0;
    short *chosen = c->chosen + row * n_used;
    float *weight = c->weight + row * n_used;
#pragma unroll 1
    for (int s = 0; s < n_used; s++) {
        uint32_t best = key[0], at = 0xffffffffu;
        float of = 0;
#pragma unroll
        for (int i = 1; i < PER; i++) best = max(best, key[i]);
        const uint32_t most = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
        for (int i = PER - 1; i >= 0; i--)
            if (key[i] == most) {
                at = (uint32_t)(lane + i * KK_WARP);
                of = by[i];
            }
        const uint32_t lanes = __ballot_sync(0xffffffffu, best == most);
        const uint32_t first = lanes & (lanes - 1) ? __reduce_min_sync(0xffffffffu, at) : at;
        if (best == most && at == first) {
            chosen[s] = (short)at;
            weight[s] = of;
#pragma unroll
            for (int i = 0; i < PER; i++)
                if (at == (uint32_t)(lane + i * KK_WARP)) key[i] = 0;
        }
        if (s == 0) top = most;
        if (lane == s) mine = most;
    }
    const float w = lane < n_used ? kk_dexp(__fsub_rn(kk_unkey(mine), kk_unkey(top))) : 0.0f;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < n_used; s++) sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, w, s));
    __syncwarp();
    if (lane < n_used) weight[lane] = __fmul_rn(__fdiv_rn(w, sum), weight[lane]);
}

/* Lists rows by expert from `chosen`, eight pairs at a time: one thread per pair counts the pairs
 * of lower experts, and earlier ones of its own.  Called by all threads of a block, which are more
 * than the pairs. */
__device__ __forceinline__ void kk_list_rows(kk_choice *c, int n_rows, int n_used) {
    const int pairs = n_rows * n_used, i = kk_tid(), rounds = (pairs + 7) / 8;
    if (i >= pairs && i < rounds * 8) c->chosen[i] = c->leader[i] = 0x7fff;
    kk_sync();
    int e = 0, less = 0, before = 0;
    if (i < pairs) {
        e = c->chosen[i];
#pragma unroll 1
        for (int k = 0; k < rounds; k++) {
            const uint4 v = ((const uint4 *)c->chosen)[k];
            const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int m = 0; m < 8; m++) {
                const int o = (int)(word[m / 2] >> (m % 2 * 16) & 0xffff);
                less += o < e;
                before += o == e && 8 * k + m < i;
            }
        }
        c->leader[i] = before == 0 ? (short)e : (short)0x7fff;
        c->pair[less + before] = (short)i;
        c->pair_row[less + before] = (short)(i / n_used);
    }
    kk_sync();
    if (i == pairs) e = 0x7fff; /* this thread counts all leaders */
    if ((i < pairs && before == 0) || i == pairs) {
        int index = 0;
#pragma unroll 1
        for (int k = 0; k < rounds; k++) {
            const uint4 v = ((const uint4 *)c->leader)[k];
            const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int m = 0; m < 8; m++) index += (int)(word[m / 2] >> (m % 2 * 16) & 0xffff) < e;
        }
        c->active[index] = (short)e;
        c->first[index] = (short)(i == pairs ? pairs : less);
        if (i == pairs) c->n_active = index;
    }
    kk_sync();
}

/* The same lists by one warp, PER pairs per lane, by radix partition over the bits of the ids. */
template <int PER, int EXPERTS>
__device__ __forceinline__ void kk_list_pairs(kk_choice *c, int pairs, int n_used) {
    const int lane = kk_tid() % KK_WARP;
    int e[PER], less[PER];
    uint32_t same[PER][PER],
        word[EXPERTS /
             32]; /* same: mask of pairs with this pair's expert; word: mask of active experts */
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const bool is = lane + j * KK_WARP < pairs;
        e[j] = is ? c->chosen[lane + j * KK_WARP] : 0;
        less[j] = 0;
        const uint32_t there = __ballot_sync(0xffffffffu, is);
#pragma unroll
        for (int k = 0; k < PER; k++) same[k][j] = there;
    }
#pragma unroll 1
    for (int bit = EXPERTS / 2; bit > 0; bit /= 2) {
        uint32_t set[PER];
#pragma unroll
        for (int j = 0; j < PER; j++) set[j] = __ballot_sync(0xffffffffu, (e[j] & bit) != 0);
#pragma unroll
        for (int j = 0; j < PER; j++)
#pragma unroll
            for (int k = 0; k < PER; k++) {
                if (e[j] & bit) less[j] += __popc(same[j][k] & ~set[k]);
                same[j][k] &= e[j] & bit ? set[k] : ~set[k];
            }
    }
    int n = 0;
#pragma unroll
    for (int q = 0; q < EXPERTS / 32; q++) {
        uint32_t own = 0;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (lane + j * KK_WARP < pairs && e[j] / 32 == q) own |= 1u << e[j] % 32;
        word[q] = __reduce_or_sync(0xffffffffu, own);
        n += __popc(word[q]);
    }
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int i = lane + j * KK_WARP;
        if (i >= pairs) continue;
        int before = __popc(same[j][j] & ((1u << lane) - 1)), index = 0;
#pragma unroll
        for (int k = 0; k < j; k++) before += __popc(same[j][k]);
        c->pair[less[j] + before] = (short)i;
        c->pair_row[less[j] + before] = (short)(i / n_used);
        if (before) continue;
#pragma unroll
        for (int q = 0; q < EXPERTS / 32; q++) {
            const uint32_t below = e[j] / 32 == q ? (1u << e[j] % 32) - 1 : 0xffffffffu;
            if (q <= e[j] / 32) index += __popc(word[q] & below);
        }
        c->active[index] = (short)e[j];
        c->first[index] = (short)less[j];
    }
    if (lane == 0) {
        c->first[n] = (short)pairs;
        c->n_active = n;
    }
}

/* The lists of a single row, by the warp that chose: experts in the router's order. */
__device__ __forceinline__ void kk_list_one(kk_choice *c, int n_used) {
    const int i = kk_tid() % KK_WARP;
    if (i < n_used) {
        c->active[i] = c->chosen[i];
        c->pair[i] = (short)i;
        c->pair_row[i] = 0;
    }
    if (i <= n_used) c->first[i] = (short)i;
    if (i == 0) c->n_active = n_used;
}

struct kk_choice_args {
    const float *logits;      /* NULL: expert and weight hold the choice already */
    int slices, slice_stride; /* K slices of the logits, still to be added */
    const float *scale;       /* per expert */
    int *expert;              /* [n_rows][n_used] */
    float *weight;
    int n_rows, n_used, n_expert;
};

template <int THREADS>
__device__ __forceinline__ void kk_make_choice(kk_choice *c, const kk_choice_args &a, bool write) {
    if (a.logits) {
#pragma unroll 1
        for (int r = (int)threadIdx.x / KK_WARP; r < a.n_rows; r += THREADS / KK_WARP)
            kk_choose_row(c, a.logits, a.slices, a.slice_stride, a.scale, r, a.n_used, a.n_expert);
    } else {
        for (int i = (int)threadIdx.x; i < a.n_rows * a.n_used; i += THREADS) {
            c->chosen[i] = (short)a.expert[i];
            c->weight[i] = a.weight[i];
        }
    }
    kk_list_rows(c, a.n_rows, a.n_used);
    if (write && a.logits)
        for (int i = (int)threadIdx.x; i < a.n_rows * a.n_used; i += THREADS) {
            a.expert[i] = c->chosen[i];
            a.weight[i] = c->weight[i];
        }
}

#endif
