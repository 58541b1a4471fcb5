/* cuda_attend.cu - storing K/V rows in pages and attending over them.
 *
 * A block takes one page for one K/V head and a tile of rows: scores of all its query heads, a
 * softmax within the page, and the weighted sum of the page's values.  A second kernel adds up a
 * row's pages.  A row's bits come from its own scores and from pages in ascending order, those
 * it does not see left out, so neither tiles nor other rows change them.  All sums are float32. */
#include "arith.cuh"
#include "launch.cuh"

enum { THREADS = 256, PAGE = 64, HEAD_MOST = 512, STORE_MOST = 1024 };

/* ---- store -------------------------------------------------------------------------------- */

__device__ __forceinline__ void pack_group(const kk_cu_slot &slot, uint8_t *codes, uint16_t *scale,
                                           uint16_t *bias, float a, float b) {
    const int lane = threadIdx.x % 32;
    const float top = slot.format == KK_CU_KV8 ? 255.0f : 15.0f;
    float least = fminf(a, b), most = fmaxf(a, b), sound = (a - a) + (b - b);
    for (int d = 16; d > 0; d >>= 1) {
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, d));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        sound += __shfl_xor_sync(0xffffffffu, sound, d);
    }
    least = __fadd_rn(least, sound);
    most = __fadd_rn(most, sound);
    __half hs = __float2half_rn(__fdiv_rn(__fsub_rn(most, least), top)),
           hb = __float2half_rn(least);
    uint16_t us = __half_as_ushort(hs), ub = __half_as_ushort(hb);
    if ((us & 0x7c00) == 0x7c00 || (ub & 0x7c00) == 0x7c00) {
        us = 0;
        ub = 0x7e00;
    }
    const float s = __half2float(__ushort_as_half(us)), z = __half2float(__ushort_as_half(ub));
    const float inverse = s > 0 ? __fdiv_rn(1.0f, s) : 0.0f;
    auto code = [&](float x) -> uint32_t {
        const float steps = __fmul_rn(__fsub_rn(x, z), inverse);
        return s > 0 ? (uint32_t)rintf(steps > 0 ? (steps < top ? steps : top) : 0.0f) : 0u;
    };
    if (slot.format == KK_CU_KV8) {
        codes[lane] = (uint8_t)code(a);
        codes[lane + 32] = (uint8_t)code(b);
    } else {
        codes[lane] = (uint8_t)(code(a) | code(b) << 4);
    }
    if (lane == 0) {
        *scale = us;
        *bias = ub;
    }
}

/* One warp stores one head's row. */
__device__ void put_row(const kk_cu_slot &slot, uint8_t *page, size_t off, int head, int row,
                        const float *x) {
    const int lane = threadIdx.x % 32, d = slot.head_dim;
    uint8_t *base = page + off + (size_t)head * slot.head_bytes;
    uint8_t *at = base + (size_t)row * (slot.code_bytes / PAGE);
    if (slot.format == KK_CU_F32) {
        for (int i = lane; i < d; i += 32) ((float *)at)[i] = x[i];
    } else if (slot.format == KK_CU_BF16) {
        for (int i = lane; i < d; i += 32) ((uint16_t *)at)[i] = kk_dbf16(x[i]);
    } else {
        const int groups = d / 64, bytes = slot.format == KK_CU_KV8 ? 64 : 32;
        uint16_t *scale = (uint16_t *)(base + slot.code_bytes) + (size_t)row * groups;
        for (int g = 0; g < groups; g++)
            pack_group(slot, at + g * bytes, scale + g, scale + PAGE * groups + g, x[g * 64 + lane],
                       x[g * 64 + 32 + lane]);
    }
}

/* y = x / rms(x) * w, then pairs turned; one warp, y in shared memory. */
__device__ void head_norm(float *y, const float *x, const float *w, const float *cs, int d,
                          int n_rot, float eps) {
    const int lane = threadIdx.x % 32;
    float s = 0;
    for (int i = lane; i < d; i += 32) s = __fmaf_rn(x[i], x[i], s);
    s = kk_warp_sum(s);
    const float inv = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)d), eps)));
    for (int i = lane; i < d; i += 32) {
        y[i] = __fmul_rn(x[i], inv);
        if (w) y[i] = __fmul_rn(y[i], w[i]);
    }
    __syncwarp();
    for (int i = lane; cs && i < n_rot; i += 32) {
        const float a = y[i], b = y[i + d / 2], c = cs[i], n = cs[n_rot + i];
        y[i] = __fmaf_rn(-b, n, __fmul_rn(a, c));
        y[i + d / 2] = __fmaf_rn(a, n, __fmul_rn(b, c));
    }
    __syncwarp();
}

/* A warp per head of a row: query heads, then K, then V. */
__global__ void __launch_bounds__(THREADS, 2) store_kernel(const __grid_constant__ kk_cu_store a) {
    __shared__ float room[THREADS / 32][STORE_MOST];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = a.slot.head_dim;
    const int n_kv = a.slot.n_kv_head, r = (int)blockIdx.y;
    const int heads = (a.q ? a.n_head : 0) + (a.k ? 2 * n_kv : 0);
    int h = (int)blockIdx.x * (THREADS / 32) + warp;
    kk_next();
    kk_wait();
    if (h >= heads) return;
    float *y = room[warp];
    const float *cs = a.rope_rows + (size_t)r * 2 * (size_t)a.n_rot;
    if (a.q) {
        if (h < a.n_head) {
            float *q = a.q + ((size_t)r * (size_t)a.n_head + (size_t)h) * (size_t)d;
            head_norm(y, q, a.q_norm, cs, d, a.n_rot, a.eps);
            for (int i = lane; i < d; i += 32) q[i] = y[i];
            return;
        }
        h -= a.n_head;
    }
    const bool value = h >= n_kv;
    if (value) h -= n_kv;
    if (!value && a.slot.k_eq_v) return;
    const int64_t pos = a.rows.pos[r];
    uint8_t *page = a.rows.pages[a.rows.table[r] + pos / PAGE];
    const size_t at = ((size_t)r * (size_t)n_kv + (size_t)h) * (size_t)d;
    const float *x = (value && a.v ? a.v : a.k) + at;
    if (!value) {
        head_norm(y, x, a.k_norm, cs, d, a.n_rot, a.eps);
        put_row(a.slot, page, a.slot.k_off, h, (int)(pos % PAGE), y);
    } else {
        if (!a.v_raw) head_norm(y, x, NULL, NULL, d, 0, a.eps);
        put_row(a.slot, page, a.slot.v_off, h, (int)(pos % PAGE), a.v_raw ? x : y);
    }
}

cudaError_t kk_cu_run_store(kk_cu_at at, const kk_cu_store *a) {
    if (a->slot.head_dim > STORE_MOST) return cudaErrorInvalidValue;
    const int heads = (a->q ? a->n_head : 0) + (a->k ? 2 * a->slot.n_kv_head : 0);
    const dim3 grid(kk_blocks((size_t)heads, THREADS / 32), (unsigned)a->rows.n_rows);
    return kk_launch(at, store_kernel, *a, grid, THREADS, 0);
}

/* ---- attend ------------------------------------------------------------------------------- */

/* Eight values of a stored row: chunk c of row j of a head. */
__device__ __forceinline__ void load8(float *to, const kk_cu_slot &s, const uint8_t *head, int j,
                                      int c) {
    const int d = s.head_dim;
    if (s.format == KK_CU_BF16) {
        const uint4 v = *(const uint4 *)(head + ((size_t)j * d + c * 8) * 2);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[2 * i] = __uint_as_float(w[i] << 16);
            to[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
        return;
    }
    if (s.format == KK_CU_F32) {
        const float *p = (const float *)head + (size_t)j * d + c * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = p[i];
        return;
    }
    const int groups = d / 64, g = c / 8;
    const uint16_t *scales = (const uint16_t *)(head + s.code_bytes) + j * groups + g;
    const float scale = __half2float(__ushort_as_half(scales[0]));
    const float bias = __half2float(__ushort_as_half(scales[PAGE * groups]));
    const bool wide = s.format == KK_CU_KV8;
    const uint8_t *codes =
        wide ? head + (size_t)j * d + c * 8 : head + (size_t)j * (d / 2) + g * 32 + c % 4 * 8;
    const uint2 v = *(const uint2 *)codes;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t code = (i < 4 ? v.x : v.y) >> (i % 4 * 8) & 0xff;
        if (!wide) code = c % 8 < 4 ? code & 15 : code >> 4;
        to[i] = __fmaf_rn((float)code, scale, bias);
    }
}

/* What a row sees: [0, sink) and [from, to). */
struct sight {
    int64_t sink, from, to;
};

__device__ __forceinline__ sight sight_of(const kk_cu_attend &a, const kk_cu_tile &t, int row) {
    const int64_t at = a.block ? t.group_pos : t.pos + row;
    sight s = {a.sink, 0, a.block ? t.group_end : at + 1};
    if (a.window && at >= a.window) s.from = at - a.window + 1;
    if (s.sink >= s.from) s.sink = s.from = 0;
    return s;
}

/* The pages that some row of a tile sees: [0, sinks), then from `window` on. */
struct tile_pages {
    int sinks, window, n;
    __device__ __forceinline__ int at(int u) const { return u < sinks ? u : window + u - sinks; }
};

__device__ __forceinline__ tile_pages pages_of(const kk_cu_attend &a, const kk_cu_tile &t) {
    const sight first = sight_of(a, t, 0), last = sight_of(a, t, t.rows - 1);
    tile_pages p;
    p.window = (int)(first.from / PAGE);
    /* A row further on may have a sink apart from its window. */
    p.sinks = first.from == 0 ? 0 : (int)((last.sink + PAGE - 1) / PAGE);
    if (p.sinks > p.window) p.sinks = p.window;
    p.n = p.sinks + (int)((last.to + PAGE - 1) / PAGE) - p.window;
    return p;
}

/* parts[tile][row][head][unit]: maximum, sum, then the values. */
__device__ __forceinline__ float *part_of(const kk_cu_attend &a, int tile, int row, int head,
                                          int unit) {
    const size_t d2 = (size_t)a.slot.head_dim + 4;
    const size_t index =
        (((size_t)tile * a.rows.tile_most + row) * a.n_head + head) * a.rows.most_pages + unit;
    return a.parts + index * d2;
}

/* Heads of any other size: keys are laid out in shared memory, a thread has a key. */
__device__ void scores_any(const kk_cu_attend &a, const uint8_t *head, const float *q, int n,
                           float (*score)[PAGE], int64_t base, float *keys) {
    const int d = a.slot.head_dim;
    for (int i = (int)threadIdx.x; i < PAGE * (d / 8); i += THREADS)
        load8(keys + i / (d / 8) * d + i % (d / 8) * 8, a.slot, head, i / (d / 8), i % (d / 8));
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

/* Heads of sizes that no real model has: slow, and nothing is known beforehand. */
enum { BATCH = 8 };
__global__ void __launch_bounds__(THREADS, 2)
    attend_any_kernel(const __grid_constant__ kk_cu_attend a) {
    extern __shared__ __align__(16) float shared[];
    __shared__ float score[BATCH][PAGE];
    const int d = a.slot.head_dim, n_kv = a.slot.n_kv_head, group = a.n_head / n_kv;
    const int unit = (int)blockIdx.x, kv = (int)blockIdx.y, tile = (int)blockIdx.z + a.first_tile;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    kk_next();
    kk_wait();
    const kk_cu_tile info = a.rows.tile[tile];
    const tile_pages pages = pages_of(a, info);
    if (unit >= pages.n) return;
    const int page = pages.at(unit), row0 = info.row, rows = info.rows;
    const int64_t base = (int64_t)page * PAGE;
    const uint8_t *mem = a.rows.pages[info.pages + page];
    const size_t head_off = (size_t)kv * a.slot.head_bytes;
    const uint8_t *keys = mem + (a.slot.k_eq_v ? a.slot.v_off : a.slot.k_off) + head_off;
    const uint8_t *values = mem + a.slot.v_off + head_off;
    if (!a.slot.k_eq_v) { /* the values come after the scores, but may already be under way */
        const uint8_t *line = values + (size_t)threadIdx.x * 128;
        for (size_t off = 0; off + threadIdx.x * 128 < a.slot.head_bytes; off += THREADS * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(line + off));
    }
    float *q = shared, *red = shared + BATCH * d; /* [BATCH][d]; [groups][BATCH][d], or keys */
    const int chunks = d / 8, most = THREADS / chunks;
    const int groups = most >= PAGE ? PAGE : most >= 32 ? 32 : most >= 16 ? 16 : most >= 8 ? 8 : 4;
    const int per = PAGE / groups; /* keys of a group */
    for (int b0 = 0; b0 < rows * group; b0 += BATCH) {
        const int n = min((int)BATCH, rows * group - b0);
        for (int i = (int)threadIdx.x; i < n * d; i += THREADS) {
            const int r = (b0 + i / d) / group, h = kv * group + (b0 + i / d) % group;
            q[i] = a.q[((size_t)(row0 + r) * a.n_head + h) * d + i % d];
        }
        __syncthreads();
        scores_any(a, keys, q, n, score, base, red);
        __syncthreads();
        for (int i = warp; i < n; i += THREADS / 32) { /* softmax within the page */
            const int r = (b0 + i) / group, h = kv * group + (b0 + i) % group;
            const sight s = sight_of(a, info, r);
            const int64_t j = base + lane, k = j + 32;
            const bool sj = j < s.sink || (j >= s.from && j < s.to);
            const bool sk = k < s.sink || (k >= s.from && k < s.to);
            const float x = sj ? score[i][lane] : -INFINITY;
            const float y = sk ? score[i][lane + 32] : -INFINITY;
            float m = fmaxf(x, y);
            for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
            const float p = sj ? kk_dexp(__fsub_rn(x, m)) : 0.0f;
            const float r2 = sk ? kk_dexp(__fsub_rn(y, m)) : 0.0f;
            const float l = kk_warp_sum(__fadd_rn(p, r2));
            score[i][lane] = p;
            score[i][lane + 32] = r2;
            /* Rows that are not seen may hold anything: mark them apart from a weight of 0. */
            const unsigned lo = __ballot_sync(0xffffffffu, sj), hi = __ballot_sync(0xffffffffu, sk);
            float *to = part_of(a, tile - a.first_tile, r, h, unit);
            if (lane == 0) {
                to[0] = lo | hi ? m : -INFINITY;
                to[1] = l;
            }
        }
        __syncthreads();
        const int c = (int)threadIdx.x % chunks, g = (int)threadIdx.x / chunks;
        if (g < groups) {
            float acc[BATCH][8];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
                for (int e = 0; e < 8; e++) acc[i][e] = 0;
            /* Four keys at a time, so that their loads are under way together. */
            for (int j0 = g * per; j0 < (g + 1) * per; j0 += 4) {
                float v[4][8];
#pragma unroll
                for (int k = 0; k < 4; k++) load8(v[k], a.slot, values, j0 + (k < per ? k : 0), c);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (k >= per) break;
#pragma unroll
                    for (int i = 0; i < BATCH; i++) {
                        const float p = i < n ? score[i][j0 + k] : 0.0f;
#pragma unroll
                        for (int e = 0; e < 8; e++) /* a row with no weight may hold anything */
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
            part_of(a, tile - a.first_tile, r, h, unit)[4 + i % d] = s;
        }
        __syncthreads();
    }
}

/* ---- heads of 64, 128, 256 or 512 values ---------------------------------------------------- */

__device__ __forceinline__ void widen(float *to, const uint4 &v) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __uint_as_float(w[i] << 16);
        to[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* score[u][j] = scale * q[u] . K_j for this thread's key and all of n queries. */
template <int D, int NQ, bool BF16>
__device__ __forceinline__ void page_scores(const kk_cu_attend &a, const uint8_t *keys,
                                            const uint4 (&kraw)[8], const float *q, int n,
                                            int64_t base, const float *norm, float (*score)[PAGE]) {
    constexpr int TPK = D / 64;
    const int j = (int)threadIdx.x / TPK, t = (int)threadIdx.x % TPK;
    float s[NQ];
#pragma unroll
    for (int i = 0; i < NQ; i++) s[i] = 0;
    const float *cs = a.slot.k_eq_v ? a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot : NULL;
    /* Chunk i and its partner half a head on, so that pairs can be turned. */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float k[2][8];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (BF16)
                widen(k[half], kraw[i + 4 * half]);
            else
                load8(k[half], a.slot, keys, j, t + TPK * (i + 4 * half));
        }
        const int first = (t + TPK * i) * 8;
        if (a.slot.k_eq_v) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                k[0][e] = __fmul_rn(k[0][e], norm[first + e]);
                k[1][e] = __fmul_rn(k[1][e], norm[first + D / 2 + e]);
                if (first + e >= a.n_rot) continue;
                const float x = k[0][e], y = k[1][e];
                const float co = cs[first + e], si = cs[a.n_rot + first + e];
                k[0][e] = __fmaf_rn(-y, si, __fmul_rn(x, co));
                k[1][e] = __fmaf_rn(x, si, __fmul_rn(y, co));
            }
        }
#pragma unroll
        for (int u = 0; u < NQ; u++) {
            if (u >= n) break;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *x = q + u * D + first + half * (D / 2);
                const float4 lo = *(const float4 *)x, hi = *(const float4 *)(x + 4);
                s[u] = __fmaf_rn(lo.x, k[half][0], s[u]);
                s[u] = __fmaf_rn(lo.y, k[half][1], s[u]);
                s[u] = __fmaf_rn(lo.z, k[half][2], s[u]);
                s[u] = __fmaf_rn(lo.w, k[half][3], s[u]);
                s[u] = __fmaf_rn(hi.x, k[half][4], s[u]);
                s[u] = __fmaf_rn(hi.y, k[half][5], s[u]);
                s[u] = __fmaf_rn(hi.z, k[half][6], s[u]);
                s[u] = __fmaf_rn(hi.w, k[half][7], s[u]);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < NQ; u++) {
        if (u >= n) break;
#pragma unroll
        for (int o = TPK / 2; o > 0; o >>= 1)
            s[u] = __fadd_rn(s[u], __shfl_xor_sync(0xffffffffu, s[u], o));
        if (t == 0) score[u][j] = __fmul_rn(s[u], a.scale);
    }
}

/* red[g][i] = the sum of the values of eight keys, weighed by score[i]. */
template <int D, int NQ, bool BF16>
__device__ __forceinline__ void page_values(const kk_cu_attend &a, const uint8_t *values,
                                            const uint4 (&vraw)[8], int n,
                                            const float (*score)[PAGE], float *red) {
    constexpr int CHUNKS = D / 8;
    const int c = (int)threadIdx.x % CHUNKS, g = (int)threadIdx.x / CHUNKS;
    float acc[NQ][8];
#pragma unroll
    for (int i = 0; i < NQ; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) acc[i][e] = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float v[8];
        if (BF16)
            widen(v, vraw[k]);
        else
            load8(v, a.slot, values, g * 8 + k, c);
#pragma unroll
        for (int i = 0; i < NQ; i++) {
            if (i >= n) break;
            const float p = score[i][g * 8 + k];
            if (p == 0.0f) continue; /* a row that is not seen may hold anything */
#pragma unroll
            for (int e = 0; e < 8; e++) acc[i][e] = __fmaf_rn(p, v[e], acc[i][e]);
        }
    }
#pragma unroll
    for (int i = 0; i < NQ; i++) {
        if (i >= n) break;
        float4 *to = (float4 *)(red + (g * NQ + i) * D + c * 8);
        to[0] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        to[1] = make_float4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]);
    }
}

/* One page, one K/V head, a tile of rows.  D threads: for scores D / 64 of them share a key, with
 * 64 values each; for the sums of values, eight groups of eight keys, 8 values a thread.  All
 * loads of a bf16 page are asked for before anything is computed.  NQ queries at a time; how many
 * changes nothing but speed. */
template <int D, int NQ, bool BF16>
__global__ void __launch_bounds__(D, 1) attend_kernel(const __grid_constant__ kk_cu_attend a) {
    constexpr int TPK = D / 64, CHUNKS = D / 8;
    extern __shared__ __align__(16) float shared[];
    float *q = shared, *red = shared + NQ * D; /* [NQ][D]; [8][NQ][D] */
    __shared__ float score[NQ][PAGE];
    __shared__ float norm[D];
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int group = a.n_head / a.slot.n_kv_head;
    const int unit = (int)blockIdx.x, kv = (int)blockIdx.y, tile = (int)blockIdx.z + a.first_tile;
    kk_next();
    if (a.slot.k_eq_v) norm[tid] = a.k_norm[tid];
    kk_wait();
    const kk_cu_tile info = a.rows.tile[tile];
    const tile_pages pages = pages_of(a, info);
    if (unit >= pages.n) return;
    const int page = pages.at(unit), total = info.rows * group;
    const int64_t base = (int64_t)page * PAGE;
    const uint8_t *mem = a.rows.pages[info.pages + page] + (size_t)kv * a.slot.head_bytes;
    const uint8_t *keys = mem + (a.slot.k_eq_v ? a.slot.v_off : a.slot.k_off);
    const uint8_t *values = mem + a.slot.v_off;
    const int j = tid / TPK, t = tid % TPK;       /* the key of this thread, its part of it */
    const int c = tid % CHUNKS, g = tid / CHUNKS; /* its values, its keys */
    uint4 kraw[8], vraw[8];
    if (BF16) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            kraw[i] = *(const uint4 *)(keys + (j * D + (t + TPK * i) * 8) * 2);
#pragma unroll
        for (int i = 0; i < 8; i++)
            vraw[i] = *(const uint4 *)(values + ((g * 8 + i) * D + c * 8) * 2);
    }
    for (int b0 = 0; b0 < total; b0 += NQ) {
        const int n = min(NQ, total - b0);
        for (int i = warp; i < n; i += D / 32) { /* a warp brings a query */
            const int r = (b0 + i) / group, h = kv * group + (b0 + i) % group;
            const float4 *from =
                (const float4 *)(a.q + ((size_t)(info.row + r) * a.n_head + h) * D);
#pragma unroll
            for (int k = 0; k < (D + 127) / 128; k++)
                if (k * 32 + lane < D / 4)
                    ((float4 *)(q + i * D))[k * 32 + lane] = from[k * 32 + lane];
        }
        __syncthreads();
        page_scores<D, NQ, BF16>(a, keys, kraw, q, n, base, norm, score);
        __syncthreads();
        for (int i = warp; i < n; i += D / 32) { /* softmax within the page */
            const int r = (b0 + i) / group, h = kv * group + (b0 + i) % group;
            const sight see = sight_of(a, info, r);
            const int64_t p0 = base + lane, p1 = p0 + 32;
            const bool s0 = p0 < see.sink || (p0 >= see.from && p0 < see.to);
            const bool s1 = p1 < see.sink || (p1 >= see.from && p1 < see.to);
            const float x = s0 ? score[i][lane] : -INFINITY;
            const float y = s1 ? score[i][lane + 32] : -INFINITY;
            float m = fmaxf(x, y);
            for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
            const float w0 = s0 ? kk_dexp(__fsub_rn(x, m)) : 0.0f;
            const float w1 = s1 ? kk_dexp(__fsub_rn(y, m)) : 0.0f;
            const float l = kk_warp_sum(__fadd_rn(w0, w1));
            const bool any = __any_sync(0xffffffffu, s0 || s1);
            score[i][lane] = w0;
            score[i][lane + 32] = w1;
            float *to = part_of(a, tile - a.first_tile, r, h, unit);
            if (lane == 0) *(float2 *)to = make_float2(any ? m : -INFINITY, l);
        }
        __syncthreads();
        page_values<D, NQ, BF16>(a, values, vraw, n, score, red);
        __syncthreads();
        for (int i = 0; i < n; i++) {
            const int r = (b0 + i) / group, h = kv * group + (b0 + i) % group;
            float s = red[i * D + tid];
#pragma unroll
            for (int k = 1; k < 8; k++) s = __fadd_rn(s, red[(k * NQ + i) * D + tid]);
            part_of(a, tile - a.first_tile, r, h, unit)[4 + tid] = s;
        }
        if (b0 + NQ < total) __syncthreads();
    }
}

template <int D> static cudaError_t run_pages(kk_cu_at at, const kk_cu_attend *a, dim3 grid) {
    const int most = a->rows.tile_most * (a->n_head / a->slot.n_kv_head);
    const bool bf16 = a->slot.format == KK_CU_BF16;
    void (*kernel)(kk_cu_attend);
    const int nq = most <= 2 ? 2 : 8;
    if (nq == 2)
        kernel = bf16 ? attend_kernel<D, 2, true> : attend_kernel<D, 2, false>;
    else
        kernel = bf16 ? attend_kernel<D, 8, true> : attend_kernel<D, 8, false>;
    const cudaError_t e = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024);
    if (e != cudaSuccess) return e;
    return kk_launch(at, kernel, *a, grid, D, (size_t)9 * (size_t)nq * D * sizeof(float));
}

static cudaError_t run_any(kk_cu_at at, const kk_cu_attend *a, dim3 grid) {
    const int d = a->slot.head_dim, chunks = d / 8, most = THREADS / chunks;
    const int groups = most >= PAGE ? PAGE : most >= 32 ? 32 : most >= 16 ? 16 : most >= 8 ? 8 : 4;
    size_t room = (size_t)groups * BATCH * (size_t)d;
    if (room < (size_t)PAGE * (size_t)d) room = (size_t)PAGE * (size_t)d;
    const size_t shared = ((size_t)BATCH * (size_t)d + room) * sizeof(float);
    const cudaError_t e = cudaFuncSetAttribute(
        (const void *)attend_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024);
    if (e != cudaSuccess) return e;
    return kk_launch(at, attend_any_kernel, *a, grid, THREADS, shared);
}

/* A block per query head of a row: its pages in ascending order. */
__global__ void __launch_bounds__(THREADS, 2)
    combine_kernel(const __grid_constant__ kk_cu_attend a) {
    extern __shared__ float weight[]; /* [pages] */
    __shared__ float total;
    const int d = a.slot.head_dim, head = (int)blockIdx.x;
    const int tile = (int)blockIdx.z + a.first_tile, r = (int)blockIdx.y;
    kk_next();
    kk_wait();
    const kk_cu_tile info = a.rows.tile[tile];
    if (r >= info.rows) return;
    const tile_pages pages = pages_of(a, info);
    const float *part = part_of(a, tile - a.first_tile, r, head, 0);
    const size_t stride = (size_t)d + 4;
    const int lane = (int)threadIdx.x;
    if (lane < 32) {
        float m = -INFINITY, l = 0;
        for (int u = lane; u < pages.n; u += 32) m = fmaxf(m, part[(size_t)u * stride]);
        for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
        /* Lanes by the page's own number, so that what others see moves nothing. */
        for (int u = 0; u < pages.sinks; u++)
            if (pages.at(u) % 32 == lane && part[(size_t)u * stride] != -INFINITY) {
                const float w = kk_dexp(__fsub_rn(part[(size_t)u * stride], m));
                weight[u] = w;
                l = __fmaf_rn(part[(size_t)u * stride + 1], w, l);
            } else if (pages.at(u) % 32 == lane) {
                weight[u] = -1;
            }
        const int from = (lane - pages.window % 32 + 32) % 32;
        for (int u = pages.sinks + from; u < pages.n; u += 32) {
            const float mu = part[(size_t)u * stride];
            if (mu == -INFINITY) {
                weight[u] = -1;
                continue;
            }
            const float w = kk_dexp(__fsub_rn(mu, m));
            weight[u] = w;
            l = __fmaf_rn(part[(size_t)u * stride + 1], w, l);
        }
        l = kk_warp_sum(l);
        if (lane == 0) total = __fdiv_rn(1.0f, l);
    }
    __syncthreads();
    const size_t row = (size_t)(info.row + r);
    for (int i = (int)threadIdx.x; i < d; i += THREADS) {
        float s = 0;
#pragma unroll 4
        for (int u = 0; u < pages.n; u++) {
            const float v = part[(size_t)u * stride + 4 + i];
            if (weight[u] >= 0) s = __fmaf_rn(v, weight[u], s);
        }
        s = __fmul_rn(s, total);
        if (a.out) a.out[(row * a.n_head + head) * d + i] = s;
        if (a.out_bf16) a.out_bf16[row * (size_t)a.bf16_pitch + (size_t)head * d + i] = kk_dbf16(s);
    }
}

size_t kk_cu_attend_row_bytes(int32_t n_head, int32_t head_dim, int32_t pages) {
    return (size_t)n_head * (size_t)pages * ((size_t)head_dim + 4) * sizeof(float);
}

cudaError_t kk_cu_run_attend(kk_cu_at at, const kk_cu_attend *a) {
    const int d = a->slot.head_dim;
    if (d > HEAD_MOST || d % 8) return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->rows.most_pages, (unsigned)a->slot.n_kv_head,
                    (unsigned)a->n_tiles);
    const cudaError_t e = d == 64    ? run_pages<64>(at, a, grid)
                          : d == 128 ? run_pages<128>(at, a, grid)
                          : d == 256 ? run_pages<256>(at, a, grid)
                          : d == 512 ? run_pages<512>(at, a, grid)
                                     : run_any(at, a, grid);
    if (e != cudaSuccess) return e;
    const dim3 heads((unsigned)a->n_head, (unsigned)a->rows.tile_most, (unsigned)a->n_tiles);
    /* The compiler reads weights in vectors that may run past the last: memcheck saw 12 bytes. */
    return kk_launch(at, combine_kernel, *a, heads, THREADS,
                     ((size_t)a->rows.most_pages + 4) * sizeof(float));
}
