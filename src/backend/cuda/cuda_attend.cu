/* cuda_attend.cu - kernels that store K/V rows in pages and attend over them, and the choice
 * between them.
 *
 *    store_kernel       256 threads, one warp per head of a row: norm, rotate, quantise -> page;
 *                       smem [8 warps][1024] f32
 *    attend_kernel<D>   512 threads, attend.cuh's pipeline over (page, K/V head, query tile) units,
 *                       22,784 B of smem, m, l, o per page -> parts in global memory
 *    combine_kernel     512 threads, one warp per 32 columns of a query: merges parts in page order
 *    attend_any_kernel  256 threads per (page, K/V head, tile), heads of other sizes, float32:
 *                       smem q [8][d] | keys [64][d], then partial o [groups][8][d], <= 160 KB
 *
 * attend.cuh states the arithmetic; head sizes that no known model has take attend_any_kernel,
 * which is slow. */
#include "attend.cuh"
#include "launch.cuh"

enum { THREADS = 256, PAGE = KK_PAGE, HEAD_MOST = 512, STORE_MOST = 1024 };

/* ---- store -------------------------------------------------------------------------------- */

__device__ void put_row(const kk_cu_slot &slot, uint8_t *page, size_t off, int head, int row,
                        const float *x) {
    kk_put(slot, page + off + (size_t)head * slot.head_bytes, row, slot.head_dim,
           [&](int i) { return x[threadIdx.x % 32 + 32 * i]; });
}

/* One warp per head of a row: query heads, then K, then V. */
__global__ void __launch_bounds__(THREADS, 2) store_kernel(const __grid_constant__ kk_cu_store a) {
    __shared__ float rows[THREADS / 32][STORE_MOST];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = a.slot.head_dim;
    const int n_kv = a.slot.n_kv_head, r = (int)blockIdx.y;
    const int heads = (a.q ? a.n_head : 0) + (a.k ? 2 * n_kv : 0);
    int h = (int)blockIdx.x * (THREADS / 32) + warp;
    kk_next();
    kk_wait();
    if (h >= heads) return;
    float *y = rows[warp];
    const float *cs = a.rope_rows + (size_t)r * 2 * (size_t)a.n_rot;
    if (a.q) {
        if (h < a.n_head) {
            float *q = a.q + ((size_t)r * (size_t)a.n_head + (size_t)h) * (size_t)d;
            kk_head_norm_any(y, q, a.q_norm, cs, d, a.n_rot, a.eps);
            for (int i = lane; i < d; i += 32) q[i] = y[i];
            return;
        }
        h -= a.n_head;
    }
    const bool value = h >= n_kv;
    if (value) h -= n_kv;
    if (!value && a.slot.k_eq_v) return;
    const int64_t pos = a.rows.pos[r];
    uint8_t *page = a.rows.pages[a.rows.table[r] + pos / KK_PAGE];
    const size_t at = ((size_t)r * (size_t)n_kv + (size_t)h) * (size_t)d;
    const float *x = (value && a.v ? a.v : a.k) + at;
    if (!value) {
        kk_head_norm_any(y, x, a.k_norm, cs, d, a.n_rot, a.eps);
        put_row(a.slot, page, a.slot.k_off, h, (int)(pos % KK_PAGE), y);
    } else {
        if (!a.v_raw) kk_head_norm_any(y, x, NULL, NULL, d, 0, a.eps);
        put_row(a.slot, page, a.slot.v_off, h, (int)(pos % KK_PAGE), a.v_raw ? x : y);
    }
}

cudaError_t kk_cu_run_store(kk_cu_at at, const kk_cu_store *a) {
    if (a->slot.head_dim > STORE_MOST) return cudaErrorInvalidValue;
    const int heads = (a->q ? a->n_head : 0) + (a->k ? 2 * a->slot.n_kv_head : 0);
    const dim3 grid(kk_blocks((size_t)heads, THREADS / 32), (unsigned)a->rows.n_rows);
    return kk_launch(at, store_kernel, *a, grid, THREADS, 0);
}

/* ---- heads of any other size -------------------------------------------------------------- */

/* Heads of any other size: 64 keys are unpacked to shared memory, one thread computes the scores of
 * one key. */
__device__ void scores_any(const kk_cu_attend &a, const uint8_t *head, const float *q, int n,
                           float (*score)[PAGE], int64_t base, float *keys) {
    const int d = a.slot.head_dim;
    for (int i = (int)threadIdx.x; i < PAGE * (d / 8); i += THREADS)
        kk_stored<8>(keys + i / (d / 8) * d + i % (d / 8) * 8, a.slot, head, i / (d / 8),
                     i % (d / 8) * 8, d);
    __syncthreads();
    const int j = (int)threadIdx.x;
    if (j < PAGE) {
        float *k = keys + j * d;
        if (a.slot.k_eq_v) {
            const float *cs = a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot;
            for (int i = 0; i < d; i++) k[i] = __fmul_rn(k[i], a.k_norm[i]);
            for (int i = 0; i < a.n_rot; i++) {
                const float x = k[i], y = k[i + d / 2], c = cs[i], s = cs[a.n_rot + i];
                k[i] = __fmaf_rn(-y, s, __fmul_rn(x, c));
                k[i + d / 2] = __fmaf_rn(x, s, __fmul_rn(y, c));
            }
        }
        for (int i = 0; i < n; i++) {
            float s = 0;
            for (int c = 0; c < d; c++) s = __fmaf_rn(q[i * d + c], k[c], s);
            score[i][j] = __fmul_rn(s, a.scale);
        }
    }
    __syncthreads();
}

/* Queries that attend_any_kernel computes at a time. */
enum { BATCH = 8 };
/* One warp: a page's scores of one query become softmax weights in place; maximum and sum go to
 * `to`. */
__device__ __forceinline__ void softmax_any(float *score, const kk_visible s, int64_t base,
                                            float *to) {
    const int lane = threadIdx.x % 32;
    const int64_t j = base + lane, k = j + 32;
    const bool sj = (j >= s.sink_from && j < s.sink) || (j >= s.from && j < s.to);
    const bool sk = (k >= s.sink_from && k < s.sink) || (k >= s.from && k < s.to);
    const float x = sj ? score[lane] : -INFINITY;
    const float y = sk ? score[lane + 32] : -INFINITY;
    float m = fmaxf(x, y);
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
    const float p = sj ? kk_dexp(__fsub_rn(x, m)) : 0.0f;
    const float r2 = sk ? kk_dexp(__fsub_rn(y, m)) : 0.0f;
    const float l = kk_warp_sum(__fadd_rn(p, r2));
    score[lane] = p;
    score[lane + 32] = r2;
    /* A page without visible keys has maximum -inf, which is distinct from weights that are all
     * 0. */
    const unsigned lo = __ballot_sync(0xffffffffu, sj), hi = __ballot_sync(0xffffffffu, sk);
    if (lane == 0) {
        to[0] = lo | hi ? m : -INFINITY;
        to[1] = l;
    }
}

__global__ void __launch_bounds__(THREADS, 2)
    attend_any_kernel(const __grid_constant__ kk_cu_attend a) {
    extern __shared__ __align__(16) float shared[];
    __shared__ float score[BATCH][PAGE];
    const int d = a.slot.head_dim, n_kv = a.slot.n_kv_head, group = a.n_head / n_kv;
    const int unit = (int)blockIdx.x, kv = (int)blockIdx.y, tile = (int)blockIdx.z + a.first_tile;
    const int warp = threadIdx.x / 32;
    kk_next();
    kk_wait();
    const kk_cu_tile info = a.rows.tile[tile];
    const kk_tile_pages pages = kk_pages_of(a, info);
    if (unit >= pages.n) return;
    const int page = pages.at(unit), row0 = info.row + a.first_row, rows = kk_rows_now(a, info);
    const int64_t base = (int64_t)page * PAGE;
    const uint8_t *mem = kk_page_at(a, info, page);
    const size_t head_off = (size_t)kv * a.slot.head_bytes;
    const uint8_t *keys = mem + (a.slot.k_eq_v ? a.slot.v_off : a.slot.k_off) + head_off;
    const uint8_t *values = mem + a.slot.v_off + head_off;
    if (!a.slot.k_eq_v) { /* prefetches V, which is needed after the scores */
        const uint8_t *line = values + (size_t)threadIdx.x * 128;
        for (size_t off = 0; off + threadIdx.x * 128 < a.slot.head_bytes; off += THREADS * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(line + off));
    }
    float *q = shared,
          *red = shared +
                 BATCH * d; /* q [BATCH][d]; then keys [PAGE][d], reused for [groups][BATCH][d] */
    const int chunks = d / 8, most = THREADS / chunks;
    const int groups = most >= PAGE ? PAGE : most >= 32 ? 32 : most >= 16 ? 16 : most >= 8 ? 8 : 4;
    const int per = PAGE / groups; /* keys per thread group */
    for (int b0 = 0; b0 < rows * group; b0 += BATCH) {
        const int n = min((int)BATCH, rows * group - b0);
        for (int i = (int)threadIdx.x; i < n * d; i += THREADS) {
            const int r = (b0 + i / d) / group, h = kv * group + (b0 + i / d) % group;
            q[i] = a.q[((size_t)(row0 + r) * a.n_head + h) * d + i % d];
        }
        __syncthreads();
        scores_any(a, keys, q, n, score, base, red);
        __syncthreads();
        for (int i = warp; i < n;
             i += THREADS / 32) { /* softmax within the page, one query per warp */
            const int r = (b0 + i) / group, h = kv * group + (b0 + i) % group;
            softmax_any(score[i], kk_visible_of(a, info, a.first_row + r), base,
                        kk_part(a, tile - a.first_tile, r, h, unit));
        }
        __syncthreads();
        const int c = (int)threadIdx.x % chunks, g = (int)threadIdx.x / chunks;
        if (g < groups) {
            float acc[BATCH][8];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
                for (int e = 0; e < 8; e++) acc[i][e] = 0;
            /* Four keys at a time, so that their loads overlap. */
            for (int j0 = g * per; j0 < (g + 1) * per; j0 += 4) {
                float v[4][8];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    kk_stored<8>(v[k], a.slot, values, j0 + (k < per ? k : 0), c * 8, d);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (k >= per) break;
#pragma unroll
                    for (int i = 0; i < BATCH; i++) {
                        const float p = i < n ? score[i][j0 + k] : 0.0f;
#pragma unroll
                        for (int e = 0; e < 8; e++) /* V of a masked key may be NaN */
                            acc[i][e] = __fmaf_rn(p, p == 0.0f ? 0.0f : v[k][e], acc[i][e]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (i < n)
#pragma unroll
                    for (int e = 0; e < 8; e++) red[(g * BATCH + i) * d + c * 8 + e] = acc[i][e];
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n * d; i += THREADS) {
            const int r = (b0 + i / d) / group, h = kv * group + (b0 + i / d) % group;
            float s = red[i];
            for (int k = 1; k < groups; k++) s = __fadd_rn(s, red[k * BATCH * d + i]);
            kk_part(a, tile - a.first_tile, r, h, unit)[4 + i % d] = s;
        }
        __syncthreads();
    }
}

static cudaError_t run_any(kk_cu_at at, const kk_cu_attend *a, dim3 grid) {
    const int d = a->slot.head_dim, chunks = d / 8, most = THREADS / chunks;
    const int groups = most >= PAGE ? PAGE : most >= 32 ? 32 : most >= 16 ? 16 : most >= 8 ? 8 : 4;
    size_t floats = (size_t)groups * BATCH * (size_t)d;
    if (floats < (size_t)PAGE * (size_t)d) floats = (size_t)PAGE * (size_t)d;
    const size_t shared = ((size_t)BATCH * (size_t)d + floats) * sizeof(float);
    const cudaError_t e = cudaFuncSetAttribute(
        (const void *)attend_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (e != cudaSuccess) return e;
    return kk_launch(at, attend_any_kernel, *a, grid, THREADS, shared);
}

/* ---- few rows ------------------------------------------------------------------------------ */

template <int D>
__global__ void __launch_bounds__(512, 1) attend_kernel(const __grid_constant__ kk_cu_attend a) {
    extern __shared__ __align__(16) char smem[];
    __shared__ kk_cu_attend args; /* copied from the parameter, since it is read many times */
    kk_next();
    if (threadIdx.x == 0) args = a;
    kk_wait();
    __syncthreads();
    kk_attend_prepare(args, smem, (int)blockIdx.x, (int)gridDim.x);
    kk_attend_head<D>(args, smem, (int)blockIdx.x, (int)gridDim.x);
}

__global__ void __launch_bounds__(512, 1) combine_kernel(const __grid_constant__ kk_cu_attend a) {
    __shared__ kk_cu_attend args;
    kk_next();
    if (threadIdx.x == 0) args = a;
    kk_wait();
    __syncthreads();
    kk_combine_stage(args, (int)blockIdx.x, (int)gridDim.x);
}

template <int D> static cudaError_t run_pages(kk_cu_at at, const kk_cu_attend *a) {
    return kk_launch(at, attend_kernel<D>, *a, dim3((unsigned)at.sms), 512, KK_ATTEND_SMEM);
}

size_t kk_cu_attend_row_bytes(int32_t n_head, int32_t head_dim, int32_t pages) {
    return (size_t)n_head * (size_t)pages * ((size_t)head_dim + 4) * sizeof(float);
}

cudaError_t kk_cu_run_attend(kk_cu_at at, const kk_cu_attend *a) {
    const int d = a->slot.head_dim;
    if (d > HEAD_MOST || d % 8) return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->rows.most_pages, (unsigned)a->slot.n_kv_head,
                    (unsigned)a->n_tiles);
    const cudaError_t e = d == 64    ? run_pages<64>(at, a)
                          : d == 128 ? run_pages<128>(at, a)
                          : d == 256 ? run_pages<256>(at, a)
                          : d == 512 ? run_pages<512>(at, a)
                                     : run_any(at, a, grid);
    if (e != cudaSuccess) return e;
    return kk_launch(at, combine_kernel, *a, dim3((unsigned)at.sms), 512, 0);
}
