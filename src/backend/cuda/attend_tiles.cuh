/* attend_tiles.cuh - what the kernels for attention of more than 16 rows share: a block's queries,
 * the softmax of a page in registers, the merge of spans, and the output.  cuda_attend_tiles.cu
 * multiplies with mma, cuda_attend_hopper.cu with wgmma; the bits are the same (attend.cuh).
 *
 * A warp has 16 queries and COLUMNS columns of o, in the layout of m16n8k16 sums: lane 4 g + t has
 * rows g and g + 8, and columns 8 n + 2 t and 8 n + 2 t + 1 of every n. */
#ifndef KK_CUDA_ATTEND_TILES_CUH
#define KK_CUDA_ATTEND_TILES_CUH

#include "attend.cuh"

enum { TILE_QUERIES = 64 };

template <int D> struct tile_cut {
    enum {
        GROUPS = D > 256 ? 2 : 1, /* groups of four warps, which divide the columns */
        THREADS = 128 * GROUPS,
        COLUMNS = D / GROUPS, /* columns of a warp */
        NT = COLUMNS / 8,
        KEPT = THREADS * (NT + 1) * 4, /* floats of a.parts per block */
    };
};

/* ---- asynchronous copies -------------------------------------------------------------------- */

__device__ __forceinline__ void copy_async(char *to, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(kk_shared(to)), "l"(from),
                 "r"(real ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_for() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- a block's queries ---------------------------------------------------------------------- */

struct tile_place {
    const kk_cu_attend *a;
    const kk_cu_tile *info;
    int kv, group, first, n; /* queries [first, first + n) of the tile */

    __device__ __forceinline__ int row(int i) const { return (first + i) / group; }
    __device__ __forceinline__ int head(int i) const { return kv * group + (first + i) % group; }
    __device__ __forceinline__ size_t at(int i, size_t pitch) const {
        return (size_t)(info->row + row(i)) * pitch + (size_t)head(i) * a->slot.head_dim;
    }
    __device__ __forceinline__ uint64_t seen(int i, int base) const {
        return i < n ? kk_seen(kk_visible_of(*a, *info, row(i)), base) : 0;
    }
};

/* Running maximum and sum of a lane's queries g and g + 8. */
struct tile_rows {
    float m[2], l[2];
};
/* Factors of the sums so far (a) and of the page (b) in a merge. */
struct tile_fold {
    float a[2], b[2];
};

/* Scores become p; the page's m and l are merged into the rows'. */
template <bool WHOLE> /* every key is visible */
__device__ __forceinline__ tile_fold tile_softmax(float (&c)[8][4], tile_rows &rows,
                                                  const uint64_t (&seen)[2]) {
    const int t = threadIdx.x % 4;
    tile_fold f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t keys[2] = {(uint32_t)seen[h] >> 2 * t, (uint32_t)(seen[h] >> 32) >> 2 * t};
        float m = -INFINITY;
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!WHOLE && !(keys[i / 4] >> (i % 4 * 8 + e) & 1)) c[i][2 * h + e] = -INFINITY;
                m = fmaxf(m, c[i][2 * h + e]);
            }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float p = kk_dexp(__fsub_rn(c[i][2 * h + e], m));
                c[i][2 * h + e] = WHOLE || keys[i / 4] >> (i % 4 * 8 + e) & 1 ? p : 0.0f;
            }
        float l[2];
#pragma unroll
        for (int e = 0; e < 2;
             e++) { /* keys 32, 16 and 8 apart in this lane, 4 and 2 in other lanes */
            float x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = __fadd_rn(c[i][2 * h + e], c[i + 4][2 * h + e]);
            l[e] = __fadd_rn(__fadd_rn(x[0], x[2]), __fadd_rn(x[1], x[3]));
            l[e] = __fadd_rn(l[e], __shfl_xor_sync(0xffffffffu, l[e], 2));
            l[e] = __fadd_rn(l[e], __shfl_xor_sync(0xffffffffu, l[e], 1));
        }
        const float top = fmaxf(rows.m[h], m);
        const bool any = WHOLE || seen[h] != 0;
        f.a[h] = any ? kk_dexp(__fsub_rn(rows.m[h], top)) : 1.0f;
        f.b[h] = any ? kk_dexp(__fsub_rn(m, top)) : 0.0f;
        if (any) {
            rows.m[h] = top;
            rows.l[h] = __fmaf_rn(__fadd_rn(l[0], l[1]), f.b[h], __fmul_rn(rows.l[h], f.a[h]));
        }
    }
    return f;
}

__device__ __forceinline__ void load_transposed(uint32_t (&b)[4], const char *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(kk_shared(at))
                 : "memory");
}

/* Keeps those of two neighbouring keys' values that are in the mask, from bit `at` on. */
__device__ __forceinline__ uint32_t only_keys(uint32_t two, uint64_t keys, int at) {
    return two & ((keys >> at & 1 ? 0xffffu : 0) | (keys >> (at + 1) & 1 ? 0xffff0000u : 0));
}

/* Two 8-column products where a value that only some rows see is not finite: one row at a time.
 * Passed in a struct, so that the usual path keeps its operands in registers. */
struct careful_work {
    float o[2][4];
    uint32_t b[4][4], p[4][4];
    tile_place place;
    int q0;
    int base;
};
inline __device__ __noinline__ void careful_sums(careful_work &w) {
    const int g = threadIdx.x % 32 / 4, t2 = threadIdx.x % 4 * 2;
    const int last = min(w.q0 + 15, w.place.n - 1);
    for (int r = w.place.row(w.q0); w.q0 < w.place.n && r <= w.place.row(last); r++) {
        const uint64_t keys = kk_seen(kk_visible_of(*w.place.a, *w.place.info, r), w.base);
        float x[2][4] = {};
        for (int s = 0; s < 4; s++)
            for (int e = 0; e < 2; e++)
                kk_mma(x[e], w.p[s][0], w.p[s][1], w.p[s][2], w.p[s][3],
                       only_keys(w.b[s][2 * e], keys, 16 * s + t2),
                       only_keys(w.b[s][2 * e + 1], keys, 16 * s + 8 + t2));
        for (int e = 0; e < 2; e++)
            for (int i = 0; i < 4; i++)
                if (w.place.row(w.q0 + g + i / 2 * 8) == r) w.o[e][i] = x[e][i];
    }
}

/* ---- spans ---------------------------------------------------------------------------------- */

/* Merges a span into those before it, which lie in global memory of this thread alone; the result
 * stays in registers too. */
template <int D>
__device__ __forceinline__ void fold_span(float (&acc)[tile_cut<D>::NT][4], tile_rows &rows,
                                          float *kept, bool first, bool last) {
    constexpr int NT = tile_cut<D>::NT;
    float4 *at = (float4 *)kept + threadIdx.x;
    if (!first) {
        const float4 was = at[NT * tile_cut<D>::THREADS];
        const float m[2] = {was.x, was.y}, l[2] = {was.z, was.w};
        tile_fold f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool any = rows.l[h] != 0; /* the span had a visible key */
            const float top = fmaxf(m[h], rows.m[h]);
            f.a[h] = any ? kk_dexp(__fsub_rn(m[h], top)) : 1.0f;
            f.b[h] = any ? kk_dexp(__fsub_rn(rows.m[h], top)) : 0.0f;
            rows.l[h] = any ? __fmaf_rn(rows.l[h], f.b[h], __fmul_rn(l[h], f.a[h])) : l[h];
            rows.m[h] = any ? top : m[h];
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const float4 x = at[n * tile_cut<D>::THREADS];
            const float y[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[n][i] = __fmaf_rn(acc[n][i], f.b[i / 2], __fmul_rn(y[i], f.a[i / 2]));
        }
    }
    if (last) return;
#pragma unroll
    for (int n = 0; n < NT; n++)
        at[n * tile_cut<D>::THREADS] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    at[NT * tile_cut<D>::THREADS] = make_float4(rows.m[0], rows.m[1], rows.l[0], rows.l[1]);
}

template <int D>
__device__ __forceinline__ void clear_span(float (&acc)[tile_cut<D>::NT][4], tile_rows &rows) {
    rows = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int n = 0; n < tile_cut<D>::NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0;
}

template <int D>
__device__ __forceinline__ void write_rows(const float (&acc)[tile_cut<D>::NT][4],
                                           const tile_rows &rows, const tile_place &p, int q0,
                                           int column) {
    const kk_cu_attend &a = *p.a;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int q = q0 + threadIdx.x % 32 / 4 + 8 * h;
        if (q >= p.n) continue;
        const size_t row = p.at(q, (size_t)a.n_head * D);
        const float inverse = __fdiv_rn(1.0f, rows.l[h]);
        if (a.sums && column == 0 && t == 0)
            *(float2 *)(a.sums + 2 * row / D) = make_float2(rows.m[h], rows.l[h]);
        /* Addresses are computed once: 64-bit arithmetic for every pair is most of a kernel. */
        float *wide = a.out ? a.out + row + column + 2 * t : NULL;
        uint16_t *narrow =
            a.out_bf16 ? a.out_bf16 + p.at(q, (size_t)a.bf16_pitch) + column + 2 * t : NULL;
#pragma unroll
        for (int n = 0; n < tile_cut<D>::NT; n++) {
            const float x = __fadd_rn(__fmul_rn(acc[n][2 * h], inverse), 0.0f);
            const float y = __fadd_rn(__fmul_rn(acc[n][2 * h + 1], inverse), 0.0f);
            if (wide) *(float2 *)(wide + n * 8) = make_float2(x, y);
            if (narrow) *(uint32_t *)(narrow + n * 8) = kk_dbf16x2(x, y);
        }
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

static inline unsigned tile_blocks(const kk_cu_attend *a) { /* of a tile and K/V head */
    const int queries = a->rows.tile_most * (a->n_head / a->slot.n_kv_head);
    return (unsigned)((queries + TILE_QUERIES - 1) / TILE_QUERIES);
}

/* Heads of 256 and 512 with K/V in bf16 on chips with wgmma (cuda_attend_hopper.cu).  False in
 * *taken: this chip, shape or format is not supported, and nothing was launched. */
cudaError_t kk_run_attend_hopper(kk_cu_at at, const kk_cu_attend *a, bool *taken);

#endif
