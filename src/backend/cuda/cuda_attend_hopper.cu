/* cuda_attend_hopper.cu - attention of more than 16 rows on chips with wgmma, K/V in bf16: heads of
 * 256 with V apart and of 512 where K = V, with the bits of cuda_attend_tiles.cu.  A wgmma over 16
 * values has the bits of m16n8k16 over the same 16: scores are the same chains, a page's o the same
 * chain over keys.
 *
 *    block: 64 queries (rows and query heads of one K/V head); a warpgroup (four warps) has all of
 *      them and 256 columns of o, so a head of 512 takes two warpgroups, one block a multiprocessor
 *    for each page that some query sees, in order (bar: __syncthreads):
 *      wait_group; bar       V of the page is in smem (heads of 256: K, and V comes later)
 *      K in smem: rebuilt from V where K = V, or put into wgmma's order in place; bar
 *      scores: wgmma m64n64k16, q and K from smem.  A head of 512: a chain per warpgroup, the other
 *        chain's sums through smem; bar; cp.async of what the next page needs first
 *      softmax in registers, in both warpgroups; bar; cp.async of the next page's angles to where
 *        the scores were, if they are needed and fit
 *      o = p V: wgmma m64n64k16, p from registers, V from smem, 64 columns at a time, while the 64
 *        columns before are merged into the sums so far
 *      where K = V, the two buffers are swapped: the next page's V arrives where K was
 *    shared memory: q | K | V, each [64][D] bf16 | scores of both chains [2][64][64] f32 for 512;
 *      97 KB for D = 256, 225 KB for D = 512
 *
 * A buffer is D / 64 chunks of 64 rows by 64 values, 128 bytes a row, in wgmma's 128-byte swizzle:
 * the 16 bytes c of row r lie at c ^ (r % 8).  V keeps the order of its values.  Of q and K each
 * 32 values (a step of attend.cuh) are permuted, so that the 16 values of a product are neighbours:
 * 16 bytes number w hold word w (two values) of each of the step's 16 bytes, as kk_swizzled. */
#include "attend_tiles.cuh"
#include "gemm_ops.h"
#include "launch.cuh"
#include "wgmma.cuh"

template <int D> struct wide_cut : tile_cut<D> {
    enum {
        CHUNK = KK_PAGE * 128, /* bytes of 64 rows by 64 values */
        BUFFER = KK_PAGE * D * 2,
        SHARE = tile_cut<D>::GROUPS > 1 ? 2 * TILE_QUERIES *KK_PAGE * 4 : 0,
        SHARED = 1024 + 3 * BUFFER + SHARE, /* chunks are aligned to 1024 bytes */
    };
};

/* The threads that a kernel is compiled to be launched with: 32 where there is no wgmma, by which
 * kk_run_attend_hopper knows. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WIDE_THREADS(d) wide_cut<d>::THREADS
#else
#define WIDE_THREADS(d) 32
#endif

/* ---- shared memory -------------------------------------------------------------------------- */

/* Bytes from a buffer's start to 16 bytes of a row: values 8 c .. 8 c + 7. */
__device__ __forceinline__ int wide_at(int row, int c) {
    return c / 8 * (KK_PAGE * 128) + row * 128 + ((c ^ row) & 7) * 16;
}

/* Makes what this thread wrote to shared memory visible to wgmma; before a barrier. */
__device__ __forceinline__ void wide_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Stores the 32 values of a step, given as its four 16 bytes, in wgmma's order. */
__device__ __forceinline__ void put_step(char *to, int row, int step, const uint4 (&v)[4]) {
    *(uint4 *)(to + wide_at(row, 4 * step)) = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
    *(uint4 *)(to + wide_at(row, 4 * step + 1)) = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
    *(uint4 *)(to + wide_at(row, 4 * step + 2)) = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
    *(uint4 *)(to + wide_at(row, 4 * step + 3)) = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
}

/* Sixteen bytes of every fourth row of a page, from row FIRST of them on; offsets are immediates,
 * because address arithmetic would take more instructions than the products. */
template <int D, int I> struct wide_rows {
    static __device__ __forceinline__ void copy(const uint32_t (&to)[2], const uint8_t *from,
                                                const uint64_t keys, bool whole) {
        const int bytes = whole || keys >> 4 * I & 1 ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to[I & 1]),
                     "l"(from), "n"(I * 512), "n"(I * 4 * D * 2), "r"(bytes)
                     : "memory");
        wide_rows<D, I + 1>::copy(to, from, keys, whole);
    }
};
template <int D> struct wide_rows<D, KK_PAGE / 4> {
    static __device__ __forceinline__ void copy(const uint32_t (&)[2], const uint8_t *, uint64_t,
                                                bool) {}
};

/* Copies 64 bf16 rows of a page asynchronously; rows not in `keys` become zeros.  A thread copies
 * the same 16 bytes of rows j, j + 4, ..., whose swizzle alternates. */
template <int D>
__device__ __forceinline__ void wide_load(char *to, const uint8_t *head, uint64_t keys) {
    static_assert(wide_cut<D>::THREADS * 2 == D, "a quarter of a page's rows at a time");
    const int j = (int)threadIdx.x / (D / 8), c = (int)threadIdx.x % (D / 8);
    const uint32_t base = kk_shared(to);
    const uint32_t at[2] = {base + wide_at(j, c), base + wide_at(j + 4, c) - 512};
    const uint8_t *from = head + ((size_t)j * D + c * 8) * 2;
    if (keys == ~0ull)
        wide_rows<D, 0>::copy(at, from, 0, true);
    else
        wide_rows<D, 0>::copy(at, from, keys >> j, false);
}

/* Puts K, copied as it is stored, into wgmma's order. */
template <int D> __device__ __forceinline__ void wide_permute(char *k) {
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 32); i += wide_cut<D>::THREADS) {
        const int j = i % KK_PAGE, step = i / KK_PAGE;
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; t++) v[t] = *(const uint4 *)(k + wide_at(j, 4 * step + t));
        put_step(k, j, step, v);
    }
}

/* Values 8 c .. 8 c + 7 of a key that RoPE does not rotate, rebuilt from V. */
__device__ __forceinline__ uint4 wide_normed(const char *value, const float *norm) {
    const float4 x = *(const float4 *)norm, y = *(const float4 *)(norm + 4);
    float f[8];
    kk_widen(f, *(const uint4 *)value);
    const float w[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
    for (int e = 0; e < 8; e++) f[e] = __fmul_rn(f[e], w[e]);
    return kk_narrow(f);
}

/* Whether the angles of a page lie in shared memory, where the scores of both chains do later. */
template <int D, bool EQ> __device__ __forceinline__ bool wide_staged(const kk_cu_attend &a) {
    return EQ && a.n_rot > 0 && a.n_rot % 32 == 0 &&
           KK_PAGE * 2 * a.n_rot * 4 <= (int)wide_cut<D>::SHARE;
}
/* Byte offset of 16 bytes (four floats) of a key's angles, swizzled by key. */
__device__ __forceinline__ int angle_at(int n_rot, int j, int c) {
    return j * n_rot * 8 + (c ^ (j & 7)) * 16;
}
/* Copies the angles of a page asynchronously; keys that no row sees may have none. */
template <int D>
__device__ __forceinline__ void wide_angles(char *to, const kk_cu_attend &a, int base,
                                            uint64_t keys) {
    const int per = a.n_rot / 2; /* 16 bytes of a key */
    const float *from = a.rope_pos + (size_t)base * 2 * (size_t)a.n_rot;
    for (int i = (int)threadIdx.x; i < KK_PAGE * per; i += wide_cut<D>::THREADS) {
        const int j = i / per, c = i - j * per;
        const bool real = keys >> j & 1;
        copy_async(to + angle_at(a.n_rot, j, c), real ? from + 4 * i : from, real);
    }
}

/* Values 8 c .. 8 c + 7 of a key and their partners half a head on, rebuilt from V: times k_norm,
 * and rotated by the angles in shared memory. */
template <int D>
__device__ __forceinline__ void wide_rotated(uint4 &low, uint4 &high, const char *values, int j,
                                             int c, const float *norm, const char *angles,
                                             int n_rot) {
    float lo[8], hi[8];
    kk_widen(lo, *(const uint4 *)(values + wide_at(j, c)));
    kk_widen(hi, *(const uint4 *)(values + wide_at(j, c + D / 16)));
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const float4 x = *(const float4 *)(norm + 8 * c + e);
        const float4 y = *(const float4 *)(norm + 8 * c + D / 2 + e);
        const float4 cos4 = *(const float4 *)(angles + angle_at(n_rot, j, 2 * c + e / 4));
        const float4 sin4 =
            *(const float4 *)(angles + angle_at(n_rot, j, n_rot / 4 + 2 * c + e / 4));
        const float nx[4] = {x.x, x.y, x.z, x.w}, ny[4] = {y.x, y.y, y.z, y.w};
        const float co[4] = {cos4.x, cos4.y, cos4.z, cos4.w};
        const float si[4] = {sin4.x, sin4.y, sin4.z, sin4.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float v = __fmul_rn(lo[e + i], nx[i]), w = __fmul_rn(hi[e + i], ny[i]);
            lo[e + i] = __fmaf_rn(-w, si[i], __fmul_rn(v, co[i]));
            hi[e + i] = __fmaf_rn(v, si[i], __fmul_rn(w, co[i]));
        }
    }
    low = kk_narrow(lo);
    high = kk_narrow(hi);
}

/* Rebuilds K from the V of a page in shared memory.  A thread takes 32 values of the lower half of
 * a key and their partners half a head on; a warp 32 keys, so that all its lanes take the same
 * branch.  angles: of the page, in shared memory; NULL: they are read from the table, which has
 * none for keys that no row sees; their scores are masked. */
template <int D>
__device__ __forceinline__ void wide_rebuild(char *to, const char *values, const kk_cu_attend &a,
                                             const char *angles, int base, uint64_t keys) {
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 64); i += wide_cut<D>::THREADS) {
        const int j = i % KK_PAGE, step = i / KK_PAGE;
        uint4 low[4], high[4];
        if (32 * step >= a.n_rot) {
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const int c = 4 * step + t;
                low[t] = wide_normed(values + wide_at(j, c), a.k_norm + 8 * c);
                high[t] = wide_normed(values + wide_at(j, c + D / 16), a.k_norm + 8 * c + D / 2);
            }
        } else if (angles) {
#pragma unroll
            for (int t = 0; t < 4; t++)
                wide_rotated<D>(low[t], high[t], values, j, 4 * step + t, a.k_norm, angles,
                                a.n_rot);
        } else {
            const float *table = a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const int c = 4 * step + t;
                float lo[8] = {}, hi[8] = {};
                if (keys >> j & 1) {
                    kk_widen(lo, *(const uint4 *)(values + wide_at(j, c)));
                    kk_widen(hi, *(const uint4 *)(values + wide_at(j, c + D / 16)));
                    kk_rebuild<true>(lo, hi, a.k_norm, table, a.n_rot, 8 * c, D);
                }
                low[t] = kk_narrow(lo);
                high[t] = kk_narrow(hi);
            }
        }
        put_step(to, j, step, low);
        put_step(to, j, step + D / 64, high);
    }
}

template <int D> __device__ __forceinline__ void wide_queries(char *to, const tile_place &p) {
    for (int i = (int)threadIdx.x; i < TILE_QUERIES * (D / 32); i += wide_cut<D>::THREADS) {
        const int q = i % TILE_QUERIES, step = i / TILE_QUERIES;
        const float *from = p.a->q + p.at(min(q, p.n - 1), (size_t)p.a->n_head * D) + 32 * step;
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            float f[8];
            *(float4 *)f = *(const float4 *)(from + 8 * t);
            *(float4 *)(f + 4) = *(const float4 *)(from + 8 * t + 4);
            v[t] = q < p.n ? kk_narrow(f) : make_uint4(0, 0, 0, 0);
        }
        put_step(to, q, step, v);
    }
}

/* ---- products ------------------------------------------------------------------------------- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUMS(c)                                                                                    \
    FOUR(c, 0), FOUR(c, 1), FOUR(c, 2), FOUR(c, 3), FOUR(c, 4), FOUR(c, 5), FOUR(c, 6), FOUR(c, 7)
#define WGMMA                                                                                      \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                                        \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31}, "

/* c (+)= q k over 16 values, 64 queries by 64 keys. */
template <bool FIRST>
__device__ __forceinline__ void multiply_keys(float (&c)[8][4], uint64_t q, uint64_t k) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" WGMMA "%32, %33, p, 1, 1, 0, 0;\n}"
                 : SUMS(c)
                 : "l"(q), "l"(k), "n"(FIRST ? 0 : 1)
                 : "memory");
}
/* o (+)= p V over 16 keys, 64 queries by 64 columns. */
template <bool FIRST>
__device__ __forceinline__ void multiply_values(float (&o)[8][4], const uint32_t (&p)[4],
                                                uint64_t v) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" WGMMA
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}"
                 : SUMS(o)
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "n"(FIRST ? 0 : 1)
                 : "memory");
}
/* Waits until at most N groups are at work; c: sums that may be read then. */
template <int N> __device__ __forceinline__ void products_wait(float (&c)[8][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : SUMS(c) : "n"(N) : "memory");
}

/* One chain of the scores.  q, k: shared addresses of their buffers. */
template <int D>
__device__ __forceinline__ void wide_chain(float (&c)[8][4], uint32_t q, uint32_t k, int chain) {
#pragma unroll
    for (int n = 0; n < kk_cut<D>::STEPS; n++) {
        const int step = kk_cut<D>::step(chain, n);
        const uint32_t at = (uint32_t)(step / 2 * wide_cut<D>::CHUNK + step % 2 * 64);
        if (n == 0)
            multiply_keys<true>(c, kk_wgmma_rows(q + at), kk_wgmma_rows(k + at));
        else
            multiply_keys<false>(c, kk_wgmma_rows(q + at), kk_wgmma_rows(k + at));
        multiply_keys<false>(c, kk_wgmma_rows(q + at + 32), kk_wgmma_rows(k + at + 32));
    }
}

/* Scaled scores of the warpgroup's 64 queries and all 64 keys.  Ends with a barrier, after which K
 * may be overwritten. */
template <int D>
__device__ __forceinline__ void wide_scores(float (&c)[8][4], uint32_t q, uint32_t k, float4 *share,
                                            float scale, int group) {
    float4 other[8];
    kk_wgmma_fence();
    if (wide_cut<D>::GROUPS == 1) {
        float x[8][4];
        wide_chain<D>(c, q, k, 0);
        wide_chain<D>(x, q, k, 1);
        kk_wgmma_commit();
        products_wait<0>(c);
        products_wait<0>(x);
#pragma unroll
        for (int i = 0; i < 8; i++) other[i] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        __syncthreads();
    } else {
        const int thread = (int)threadIdx.x % 128;
        wide_chain<D>(c, q, k, group);
        kk_wgmma_commit();
        products_wait<0>(c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            share[(group * 8 + i) * 128 + thread] = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) other[i] = share[((1 - group) * 8 + i) * 128 + thread];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        c[i][0] = __fmul_rn(__fadd_rn(c[i][0], other[i].x), scale);
        c[i][1] = __fmul_rn(__fadd_rn(c[i][1], other[i].y), scale);
        c[i][2] = __fmul_rn(__fadd_rn(c[i][2], other[i].z), scale);
        c[i][3] = __fmul_rn(__fadd_rn(c[i][3], other[i].w), scale);
    }
}

/* A page's o of 64 columns begins. */
__device__ __forceinline__ void begin_sums(float (&o)[8][4], const uint32_t (&p)[4][4],
                                           uint32_t v) {
    kk_wgmma_fence();
    multiply_values<true>(o, p[0], kk_wgmma_rows(v));
#pragma unroll
    for (int s = 1; s < 4; s++)
        multiply_values<false>(o, p[s], kk_wgmma_rows(v + 2048 * (uint32_t)s));
    kk_wgmma_commit();
}

/* Merges the o of 64 columns into the sums so far. */
template <int NT>
__device__ __forceinline__ void merge_sums(float (&acc)[NT][4], const float (&o)[8][4],
                                           const tile_fold &f, int block) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[block * 8 + n][i] = __fmaf_rn(o[n][i], f.b[i / 2], acc[block * 8 + n][i]);
}

template <int NT>
__device__ __forceinline__ void scale_sums(float (&acc)[NT][4], const tile_fold &f) {
    /* The maximum mostly stays, and a factor of 1 changes nothing. */
    if (!__any_sync(0xffffffffu, f.a[0] != 1.0f || f.a[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = __fmul_rn(acc[n][i], f.a[i / 2]);
}

/* v: shared address of the warpgroup's first column. */
template <int D>
__device__ __forceinline__ void wide_sums(float (&acc)[tile_cut<D>::NT][4],
                                          const uint32_t (&p)[4][4], uint32_t v,
                                          const tile_fold &f) {
    constexpr uint32_t CHUNK = wide_cut<D>::CHUNK;
    float one[8][4], two[8][4];
    begin_sums(one, p, v);
    begin_sums(two, p, v + CHUNK);
    scale_sums(acc, f);
    products_wait<1>(one);
    merge_sums(acc, one, f, 0);
    begin_sums(one, p, v + 2 * CHUNK);
    products_wait<1>(two);
    merge_sums(acc, two, f, 1);
    begin_sums(two, p, v + 3 * CHUNK);
    products_wait<1>(one);
    merge_sums(acc, one, f, 2);
    products_wait<0>(two);
    merge_sums(acc, two, f, 3);
}

/* The same where a value that only some rows see is not finite. */
template <int D>
__device__ __forceinline__ void
wide_careful(float (&acc)[tile_cut<D>::NT][4], const uint32_t (&p)[4][4], const char *v,
             const tile_fold &f, const tile_place &place, int q0, int base, int column) {
    const int lane = threadIdx.x % 32;
    scale_sums(acc, f);
#pragma unroll
    for (int n = 0; n < tile_cut<D>::NT; n += 2) {
        careful_work w;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            load_transposed(w.b[s], v + wide_at(16 * s + lane % 16, column / 8 + n + lane / 16));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                w.p[s][i] = p[s][i];
                w.o[s / 2][i] = 0;
            }
        }
        w.place = place;
        w.q0 = q0;
        w.base = base;
        careful_sums(w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[n + i / 4][i % 4] =
                __fmaf_rn(w.o[i / 4][i % 4], f.b[i % 4 / 2], acc[n + i / 4][i % 4]);
    }
}

/* Whether a value of the page is not finite and its key hidden from some of the block's rows. */
template <int D> __device__ __forceinline__ bool wide_odd(const char *v, uint64_t some) {
    bool odd = false;
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 8); i += wide_cut<D>::THREADS) {
        const int j = i % KK_PAGE;
        if (!(some >> j & 1)) continue;
        const uint4 x = *(const uint4 *)(v + wide_at(j, i / KK_PAGE));
        odd = odd || kk_not_finite(x.x) || kk_not_finite(x.y) || kk_not_finite(x.z) ||
              kk_not_finite(x.w);
    }
    return __syncthreads_or(odd);
}

/* Scores become p, the operands of p V; the page's m and l are merged into the rows'. */
__device__ __forceinline__ tile_fold wide_softmax(uint32_t (&w)[4][4], float (&c)[8][4],
                                                  tile_rows &rows, const tile_place &p, int q0,
                                                  int base) {
    const int q = q0 + (int)threadIdx.x % 32 / 4;
    const uint64_t seen[2] = {p.seen(q, base), p.seen(q + 8, base)};
    const tile_fold f = __all_sync(0xffffffffu, (seen[0] & seen[1]) == ~0ull)
                            ? tile_softmax<true>(c, rows, seen)
                            : tile_softmax<false>(c, rows, seen);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        w[s][0] = kk_dbf16x2(c[2 * s][0], c[2 * s][1]);
        w[s][1] = kk_dbf16x2(c[2 * s][2], c[2 * s][3]);
        w[s][2] = kk_dbf16x2(c[2 * s + 1][0], c[2 * s + 1][1]);
        w[s][3] = kk_dbf16x2(c[2 * s + 1][2], c[2 * s + 1][3]);
    }
    return f;
}

#endif

/* The block's queries.  info: the tile's description, in shared memory, as every page reads it. */
__device__ __forceinline__ tile_place wide_place(const kk_cu_attend &a, kk_cu_tile *info,
                                                 int tile) {
    tile_place p;
    p.a = &a;
    p.info = info;
    p.kv = (int)blockIdx.y;
    p.group = a.n_head / a.slot.n_kv_head;
    p.first = ((int)gridDim.x - 1 - (int)blockIdx.x) * TILE_QUERIES;
    if (threadIdx.x == 0) *info = a.rows.tile[a.first_tile + tile];
    __syncthreads();
    p.n = min((int)TILE_QUERIES, info->rows * p.group - p.first);
    return p;
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int D, bool EQ>
__global__ void __launch_bounds__(WIDE_THREADS(D), D > 256 ? 1 : 2)
    wide_kernel(const __grid_constant__ kk_cu_attend a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using cut = wide_cut<D>;
    extern __shared__ char unaligned[];
    __shared__ kk_cu_tile info; /* read for every page */
    char *queries = unaligned + (-kk_shared(unaligned) & 1023), *k = queries + cut::BUFFER;
    char *v = k + cut::BUFFER;
    float4 *share = (float4 *)(v + cut::BUFFER);
    const int group = (int)threadIdx.x / 128, q0 = (int)threadIdx.x % 128 / 32 * 16;
    const int column = group * cut::COLUMNS;
    const int tile = a.n_tiles - 1 - (int)blockIdx.z; /* the longest tile first */
    kk_next();
    kk_wait();
    const tile_place p = wide_place(a, &info, tile);
    if (p.n <= 0) return;
    const kk_visible first = kk_visible_of(a, *p.info, p.row(0));
    const kk_visible last = kk_visible_of(a, *p.info, p.row(p.n - 1));
    const kk_visible any = kk_visible_any(first, last);
    const kk_tile_pages pages = kk_pages_between(first, last);
    const bool staged = wide_staged<D, EQ>(a);
    float *kept = a.parts + (((size_t)tile * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) *
                                (size_t)cut::KEPT;
    const auto head_at = [&](int page, bool keys) {
        return kk_page_at(a, *p.info, page) + (keys ? a.slot.k_off : a.slot.v_off) +
               (size_t)p.kv * a.slot.head_bytes;
    };
    const auto load = [&](char *to, int unit, bool keys) {
        if (unit < pages.n) {
            const int page = pages.at(unit);
            wide_load<D>(to, head_at(page, keys), kk_seen(any, page * KK_PAGE));
        }
        commit();
    };
    const auto load_angles = [&](int unit) {
        if (unit >= pages.n) return;
        const int base = pages.at(unit) * KK_PAGE;
        wide_angles<D>((char *)share, a, base, kk_seen(any, base));
        commit();
    };
    if (staged) load_angles(0);
    if (!EQ) load(k, 0, true);
    load(v, 0, false);
    wide_queries<D>(queries, p);
    float acc[cut::NT][4];
    tile_rows rows;
    clear_span<D>(acc, rows);
    int spans = 0;
    for (int unit = 0; unit < pages.n; unit++) {
        const int page = pages.at(unit), base = page * KK_PAGE;
        const uint64_t keys = kk_seen(any, base);
        if (unit && page / KK_SPAN != pages.at(unit - 1) / KK_SPAN) {
            fold_span<D>(acc, rows, kept, spans++ == 0, false);
            clear_span<D>(acc, rows);
        }
        wait_for<EQ ? 0 : 1>(); /* V may still be in flight */
        __syncthreads();
        if (EQ)
            wide_rebuild<D>(k, v, a, staged ? (const char *)share : NULL, base, keys);
        else
            wide_permute<D>(k);
        wide_publish();
        __syncthreads();
        float c[8][4];
        wide_scores<D>(c, kk_shared(queries), kk_shared(k), share, a.scale, group);
        load(k, unit + 1, !EQ); /* where K = V: the next page's V, and the buffers are swapped */
        uint32_t w[4][4];
        const tile_fold f = wide_softmax(w, c, rows, p, q0, base);
        if (staged) {
            __syncthreads(); /* both warpgroups have read the other's scores */
            load_angles(unit + 1);
        }
        if (!EQ) {
            wait_for<1>();
            wide_publish();
            __syncthreads();
        }
        const uint64_t some = keys & ~(kk_seen(first, base) & kk_seen(last, base));
        if (some && wide_odd<D>(v, some))
            wide_careful<D>(acc, w, v, f, p, q0, base, column);
        else
            wide_sums<D>(acc, w, kk_shared(v) + (uint32_t)(column / 64 * cut::CHUNK), f);
        if (!EQ) {
            __syncthreads();
            load(v, unit + 1, false);
        }
        if (EQ) {
            char *const was = k;
            k = v;
            v = was;
        }
    }
    fold_span<D>(acc, rows, kept, spans == 0, true);
    write_rows<D>(acc, rows, p, q0, column);
    wait_for<0>();
#endif
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D, bool EQ> static cudaError_t run(kk_cu_at at, const kk_cu_attend *a, bool *taken) {
    const void *fn = (const void *)wide_kernel<D, EQ>;
    cudaFuncAttributes compiled;
    cudaError_t e = cudaFuncGetAttributes(&compiled, fn);
    if (e != cudaSuccess || compiled.maxThreadsPerBlock < (int)wide_cut<D>::THREADS) return e;
    e = cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, wide_cut<D>::SHARED);
    if (e != cudaSuccess) return e;
    *taken = true;
    kk_cu_wgmma_launched();
    const dim3 grid(tile_blocks(a), (unsigned)a->slot.n_kv_head, (unsigned)a->n_tiles);
    return kk_launch(at, wide_kernel<D, EQ>, *a, grid, wide_cut<D>::THREADS, wide_cut<D>::SHARED);
}

cudaError_t kk_run_attend_hopper(kk_cu_at at, const kk_cu_attend *a, bool *taken) {
    *taken = false;
    /* Less shared memory than heads of 512 need is another chip, or the limits of one. */
    if (a->slot.format != KK_CU_BF16 || at.shared < (int)wide_cut<512>::SHARED) return cudaSuccess;
    if (a->slot.head_dim == 512 && a->slot.k_eq_v) return run<512, true>(at, a, taken);
    if (a->slot.head_dim == 256 && !a->slot.k_eq_v) return run<256, false>(at, a, taken);
    return cudaSuccess;
}
