/* cuda_attend_tiles.cu - attention of more than 16 rows, with the arithmetic of attend.cuh.
 *
 *    block: 64 queries (rows and query heads of one K/V head), 128 threads, or 256 for heads of 512
 *      a warp has 16 queries and up to 256 columns of o; a head of 512 takes two warps, which
 *      exchange their halves of the scores through smem (named barrier 1 + warp / 2)
 *    for each page that some query sees, in order:
 *      wait_group; __syncthreads     K of the page is in smem (rebuilt from V where K = V)
 *      scores 16 x 64 in registers; __syncthreads; cp.async of the next page's K
 *      softmax in registers; wait_group; __syncthreads     V of the page is in smem
 *      o = p V by ldmatrix.trans and mma; __syncthreads; cp.async of the next page's V
 *      where K = V, the two buffers are swapped: the next page's V arrives where K was
 *    shared memory: q [64][D + 32] bf16 | K [64][D + 32] bf16 | V, the same bytes
 *      | scores [64][72] f32 for heads of 512;   108 KB for D = 256, 222 KB for D = 512
 *
 * Scores and sums stay in registers, so nothing grows with the context.  A finished span of eight
 * pages is merged into the spans before it, which lie in the block's part of a.parts (global
 * memory). */
#include "attend_tiles.cuh"
#include "launch.cuh"

enum { SHARE_PITCH = 72 /* floats: pitch of the scores that two warps exchange */ };

/* How a block divides its shared memory. */
template <int D> struct mma_cut : tile_cut<D> {
    enum {
        KEY_TILES = 8 / tile_cut<D>::GROUPS, /* 8-key tiles whose scores a warp computes */
        K_PITCH = 2 * D +
                  64, /* bytes; a quarter warp reads 64 bytes of two rows without bank conflicts */
        V_PITCH =
            2 * D + 16, /* bytes; ldmatrix reads 16 bytes of eight rows without bank conflicts */
        BUFFER = KK_PAGE * K_PITCH,
        SHARED = TILE_QUERIES * K_PITCH + 2 * BUFFER +
                 (tile_cut<D>::GROUPS > 1 ? TILE_QUERIES * SHARE_PITCH * 4 : 0),
    };
};

/* ---- pages to shared memory ---------------------------------------------------------------- */

/* Copies 64 bf16 rows of a page asynchronously; rows not in `keys` become zeros. */
template <int D>
__device__ __forceinline__ void load_rows(char *to, int pitch, const uint8_t *head, uint64_t keys) {
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 8); i += mma_cut<D>::THREADS) {
        const int j = i / (D / 8), c = i % (D / 8);
        copy_async(to + j * pitch + c * 16, head + ((size_t)j * D + c * 8) * 2, keys >> j & 1);
    }
}

/* Rebuilds K from the V of a page in shared memory. */
template <int D>
__device__ __forceinline__ void rebuild_rows(char *to, const char *values, const kk_cu_attend &a,
                                             int base, uint64_t keys) {
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 16); i += mma_cut<D>::THREADS) {
        const int j = i / (D / 16), at = i % (D / 16) * 8;
        const char *from = values + j * mma_cut<D>::V_PITCH + at * 2;
        float lo[8] = {}, hi[8] = {};
        if (keys >> j & 1) {
            kk_widen(lo, *(const uint4 *)from);
            kk_widen(hi, *(const uint4 *)(from + D));
            kk_rebuild<true>(lo, hi, a.k_norm,
                             a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot, a.n_rot, at, D);
        }
        *(uint4 *)(to + j * mma_cut<D>::K_PITCH + at * 2) = kk_narrow(lo);
        *(uint4 *)(to + j * mma_cut<D>::K_PITCH + at * 2 + D) = kk_narrow(hi);
    }
}

/* Unpacks K and V of a page stored in any format. */
template <int D, bool EQ>
__device__ __forceinline__ void unpack_rows(char *k, char *v, const kk_cu_attend &a,
                                            const uint8_t *keys_at, const uint8_t *values_at,
                                            int base, uint64_t keys) {
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 16); i += mma_cut<D>::THREADS) {
        const int j = i / (D / 16), at = i % (D / 16) * 8;
        char *kj = k + j * mma_cut<D>::K_PITCH + at * 2, *vj = v + j * mma_cut<D>::V_PITCH + at * 2;
        float lo[8] = {}, hi[8] = {};
        const bool real = keys >> j & 1;
        if (real) {
            kk_stored<8>(lo, a.slot, values_at, j, at, D);
            kk_stored<8>(hi, a.slot, values_at, j, at + D / 2, D);
        }
        *(uint4 *)vj = kk_narrow(lo);
        *(uint4 *)(vj + D) = kk_narrow(hi);
        if (EQ && real)
            kk_rebuild<true>(lo, hi, a.k_norm,
                             a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot, a.n_rot, at, D);
        if (!EQ && real) {
            kk_stored<8>(lo, a.slot, keys_at, j, at, D);
            kk_stored<8>(hi, a.slot, keys_at, j, at + D / 2, D);
        }
        *(uint4 *)kj = kk_narrow(lo);
        *(uint4 *)(kj + D) = kk_narrow(hi);
    }
}

template <int D> __device__ __forceinline__ void stage_queries(char *to, const tile_place &p) {
    for (int i = (int)threadIdx.x; i < TILE_QUERIES * (D / 8); i += mma_cut<D>::THREADS) {
        const int q = i / (D / 8), c = i % (D / 8);
        float f[8] = {};
        if (q < p.n) {
            const float *from = p.a->q + p.at(q, (size_t)p.a->n_head * D) + c * 8;
            *(float4 *)f = *(const float4 *)from;
            *(float4 *)(f + 4) = *(const float4 *)(from + 4);
        }
        *(uint4 *)(to + q * mma_cut<D>::K_PITCH + c * 16) = kk_narrow(f);
    }
}

/* Scaled scores of 16 queries times all 64 keys: c[i] has keys 8 i .. 8 i + 7. */
template <int D>
__device__ __forceinline__ void tile_scores(float (&c)[8][4], const char *q, const char *k,
                                            float *share, float scale, int group) {
    using cut = mma_cut<D>;
    constexpr int N = cut::KEY_TILES, STEPS = kk_cut<D>::STEPS;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *lo = q + g * cut::K_PITCH + t * 16, *hi = lo + 8 * cut::K_PITCH;
    const char *key = k + (group * N * 8 + g) * cut::K_PITCH + t * 16;
    float s[N][4];
#pragma unroll
    for (int chain = 0; chain < kk_cut<D>::CHAINS; chain++) {
        float x[N][4];
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[i][e] = 0;
#pragma unroll 2
        for (int n = 0; n < STEPS; n++) {
            const int at = kk_cut<D>::step(chain, n) * 64;
            const uint4 a = *(const uint4 *)(lo + at), b = *(const uint4 *)(hi + at);
#pragma unroll
            for (int i = 0; i < N; i++)
                kk_step<true>(x[i], *(const uint4 *)(key + i * 8 * cut::K_PITCH + at), a, b);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = chain ? __fadd_rn(s[i][e], x[i][e]) : x[i][e];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[i][e] = __fmul_rn(s[i][e], scale);
    if (cut::GROUPS == 1) return;
    float *mine = share + g * SHARE_PITCH + 2 * t;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float *to = mine + (group * N + i) * 8;
        *(float2 *)to = make_float2(c[i][0], c[i][1]);
        *(float2 *)(to + 8 * SHARE_PITCH) = make_float2(c[i][2], c[i][3]);
    }
    asm volatile("bar.sync %0, 64;" ::"r"(1 + (int)(threadIdx.x / 64)) : "memory");
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 x = *(const float2 *)(mine + i * 8);
        const float2 y = *(const float2 *)(mine + i * 8 + 8 * SHARE_PITCH);
        c[i][0] = x.x;
        c[i][1] = x.y;
        c[i][2] = y.x;
        c[i][3] = y.y;
    }
}

template <int D>
__device__ __forceinline__ void
tile_sums(float (&acc)[mma_cut<D>::NT][4], const uint32_t (&p)[4][4], const char *v,
          const tile_fold &f, bool careful, const tile_place &place, int q0, int base) {
    const int lane = threadIdx.x % 32;
    /* The maximum mostly stays, and a factor of 1 changes nothing. */
    if (__any_sync(0xffffffffu, f.a[0] != 1.0f || f.a[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < mma_cut<D>::NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][i] = __fmul_rn(acc[n][i], f.a[i / 2]);
    }
    const char *at = v + lane % 16 * mma_cut<D>::V_PITCH + lane / 16 * 16;
#pragma unroll
    for (int n = 0; n < mma_cut<D>::NT; n += 2) {
        uint32_t b[4][4];
        float o[2][4];
#pragma unroll
        for (int s = 0; s < 4; s++)
            load_transposed(b[s], at + 16 * s * mma_cut<D>::V_PITCH + n * 16);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            kk_mma_first(o[e], p[0][0], p[0][1], p[0][2], p[0][3], b[0][2 * e], b[0][2 * e + 1]);
#pragma unroll
            for (int s = 1; s < 4; s++)
                kk_mma(o[e], p[s][0], p[s][1], p[s][2], p[s][3], b[s][2 * e], b[s][2 * e + 1]);
        }
        if (careful) {
            careful_work w;
#pragma unroll
            for (int s = 0; s < 4; s++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    w.b[s][i] = b[s][i];
                    w.p[s][i] = p[s][i];
                    w.o[s / 2][i] = o[s / 2][i];
                }
            w.place = place;
            w.q0 = q0;
            w.base = base;
            careful_sums(w);
#pragma unroll
            for (int i = 0; i < 8; i++) o[i / 4][i % 4] = w.o[i / 4][i % 4];
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[n + e][i] = __fmaf_rn(o[e][i], f.b[i / 2], acc[n + e][i]);
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Whether a value of the page is not finite and its key hidden from some of the block's rows. */
template <int D> __device__ __forceinline__ bool odd_values(const char *v, uint64_t some) {
    bool odd = false;
    for (int i = (int)threadIdx.x; i < KK_PAGE * (D / 8); i += mma_cut<D>::THREADS) {
        const int j = i / (D / 8);
        if (!(some >> j & 1)) continue;
        const uint4 x = *(const uint4 *)(v + j * mma_cut<D>::V_PITCH + i % (D / 8) * 16);
        odd = odd || kk_not_finite(x.x) || kk_not_finite(x.y) || kk_not_finite(x.z) ||
              kk_not_finite(x.w);
    }
    return __syncthreads_or(odd);
}

template <int D, bool EQ, bool BF16>
__global__ void __launch_bounds__(mma_cut<D>::THREADS, D > 256 ? 1 : 2)
    tiles_kernel(const __grid_constant__ kk_cu_attend a) {
    using cut = mma_cut<D>;
    extern __shared__ __align__(128) char shared[];
    char *queries = shared, *k = shared + TILE_QUERIES * cut::K_PITCH, *v = k + cut::BUFFER;
    float *share = (float *)(shared + TILE_QUERIES * cut::K_PITCH + 2 * cut::BUFFER);
    const int warp = threadIdx.x / 32, group = warp % cut::GROUPS, q0 = warp / cut::GROUPS * 16;
    const int tile = a.n_tiles - 1 - (int)blockIdx.z; /* the longest tile first */
    kk_next();
    kk_wait();
    tile_place p;
    p.a = &a;
    p.info = a.rows.tile + a.first_tile + tile;
    p.kv = (int)blockIdx.y;
    p.group = a.n_head / a.slot.n_kv_head;
    p.first = ((int)gridDim.x - 1 - (int)blockIdx.x) * TILE_QUERIES;
    p.n = min((int)TILE_QUERIES, p.info->rows * p.group - p.first);
    if (p.n <= 0) return;
    const kk_visible first = kk_visible_of(a, *p.info, p.row(0));
    const kk_visible last = kk_visible_of(a, *p.info, p.row(p.n - 1));
    const kk_visible any = kk_visible_any(first, last);
    const kk_tile_pages pages = kk_pages_between(first, last);
    float *kept = a.parts + (((size_t)tile * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) *
                                (size_t)cut::KEPT;
    const auto head_at = [&](int page, bool keys) {
        return kk_page_at(a, *p.info, page) + (keys ? a.slot.k_off : a.slot.v_off) +
               (size_t)p.kv * a.slot.head_bytes;
    };
    const auto load = [&](char *to, int unit, bool keys) {
        if (BF16 && unit < pages.n) {
            const int page = pages.at(unit);
            load_rows<D>(to, keys ? cut::K_PITCH : cut::V_PITCH, head_at(page, keys),
                         kk_seen(any, page * KK_PAGE));
        }
        commit();
    };
    if (!EQ) load(k, 0, true);
    load(v, 0, false);
    stage_queries<D>(queries, p);
    float acc[cut::NT][4];
    tile_rows rows;
    clear_span<D>(acc, rows);
    int spans = 0;
    for (int unit = 0; unit < pages.n; unit++) {
        const int page = pages.at(unit);
        const int base = page * KK_PAGE;
        if (unit && page / KK_SPAN != pages.at(unit - 1) / KK_SPAN) {
            fold_span<D>(acc, rows, kept, spans++ == 0, false);
            clear_span<D>(acc, rows);
        }
        if (!BF16 || EQ) {
            wait_for<0>();
            __syncthreads();
            if (BF16)
                rebuild_rows<D>(k, v, a, base, kk_seen(any, base));
            else
                unpack_rows<D, EQ>(k, v, a, head_at(page, true), head_at(page, false), base,
                                   kk_seen(any, base));
        } else {
            wait_for<1>(); /* V may still be in flight */
        }
        __syncthreads();
        float c[8][4];
        tile_scores<D>(c, queries + q0 * cut::K_PITCH, k, share + q0 * SHARE_PITCH, a.scale, group);
        __syncthreads();
        load(k, unit + 1, !EQ); /* where K = V: the next page's V, and the buffers are swapped */
        const int g = threadIdx.x % 32 / 4;
        const uint64_t seen[2] = {p.seen(q0 + g, base), p.seen(q0 + g + 8, base)};
        const tile_fold f = __all_sync(0xffffffffu, (seen[0] & seen[1]) == ~0ull)
                                ? tile_softmax<true>(c, rows, seen)
                                : tile_softmax<false>(c, rows, seen);
        uint32_t w[4][4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            w[s][0] = kk_dbf16x2(c[2 * s][0], c[2 * s][1]);
            w[s][1] = kk_dbf16x2(c[2 * s][2], c[2 * s][3]);
            w[s][2] = kk_dbf16x2(c[2 * s + 1][0], c[2 * s + 1][1]);
            w[s][3] = kk_dbf16x2(c[2 * s + 1][2], c[2 * s + 1][3]);
        }
        if (!EQ && BF16) {
            wait_for<1>();
            __syncthreads();
        }
        const uint64_t some = kk_seen(any, base) & ~(kk_seen(first, base) & kk_seen(last, base));
        const bool careful = some && odd_values<D>(v, some);
        tile_sums<D>(acc, w, v + group * cut::COLUMNS * 2, f, careful, p, q0, base);
        if (!EQ && BF16) {
            __syncthreads();
            load(v, unit + 1, false);
        }
        if (EQ && BF16) {
            char *const was = k;
            k = v;
            v = was;
        }
    }
    fold_span<D>(acc, rows, kept, spans == 0, true);
    write_rows<D>(acc, rows, p, q0, group * cut::COLUMNS);
    wait_for<0>();
}

template <int D, bool EQ, bool BF16>
static cudaError_t run(kk_cu_at at, const kk_cu_attend *a, dim3 grid) {
    const cudaError_t e =
        cudaFuncSetAttribute((const void *)tiles_kernel<D, EQ, BF16>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, mma_cut<D>::SHARED);
    if (e != cudaSuccess) return e;
    return kk_launch(at, tiles_kernel<D, EQ, BF16>, *a, grid, mma_cut<D>::THREADS,
                     mma_cut<D>::SHARED);
}

template <int D> static cudaError_t run_head(kk_cu_at at, const kk_cu_attend *a, dim3 grid) {
    const bool bf16 = a->slot.format == KK_CU_BF16;
    if (a->slot.k_eq_v)
        return bf16 ? run<D, true, true>(at, a, grid) : run<D, true, false>(at, a, grid);
    return bf16 ? run<D, false, true>(at, a, grid) : run<D, false, false>(at, a, grid);
}

bool kk_cu_attend_tiles(int32_t shared, int32_t head_dim) {
    switch (head_dim) {
    case 64: return shared >= (int)mma_cut<64>::SHARED;
    case 128: return shared >= (int)mma_cut<128>::SHARED;
    case 256: return shared >= (int)mma_cut<256>::SHARED;
    case 512: return shared >= (int)mma_cut<512>::SHARED;
    default: return false;
    }
}

size_t kk_cu_attend_tile_bytes(const kk_cu_attend *a) {
    const int d = a->slot.head_dim;
    const int kept = d == 64    ? (int)tile_cut<64>::KEPT
                     : d == 128 ? (int)tile_cut<128>::KEPT
                     : d == 256 ? (int)tile_cut<256>::KEPT
                                : (int)tile_cut<512>::KEPT;
    return (size_t)kept * sizeof(float) * tile_blocks(a) * (size_t)a->slot.n_kv_head;
}

cudaError_t kk_cu_run_attend_tiles(kk_cu_at at, const kk_cu_attend *a) {
    const dim3 grid(tile_blocks(a), (unsigned)a->slot.n_kv_head, (unsigned)a->n_tiles);
    bool taken;
    const cudaError_t e = kk_run_attend_hopper(at, a, &taken);
    if (taken || e != cudaSuccess) return e;
    switch (a->slot.head_dim) {
    case 64: return run_head<64>(at, a, grid);
    case 128: return run_head<128>(at, a, grid);
    case 256: return run_head<256>(at, a, grid);
    case 512: return run_head<512>(at, a, grid);
    default: return cudaErrorInvalidValue;
    }
}
