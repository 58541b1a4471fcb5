/* cuda_evicted.cu - attention over rows of which only latents z are left, in latent space.
 *
 * V_j = v_j D_v z_j with the scale v_j that was kept beside the latent, so a softmax's sum of
 * values is D_v (sum of p_j v_j z_j): latents are summed, and D_v comes once.  Where K = V, so are
 * the values of K that RoPE leaves alone: their part of q . K_j is v_j (q' . z_j) with
 * q' = D_v^T (k_norm * q) over those values.  The other values of K are rebuilt, a page at a time:
 * times k_norm, rotated, rounded to bf16, and multiplied with q where they lie, in registers.
 * A query's arithmetic depends on neither the queries beside it nor on how rows were cut.
 *
 *    lift_kernel     q' of 16 queries, 64 latent values per block; 256 threads, a strip per warp;
 *                    smem [16][head_dim] bf16.  Only where K = V
 *    gone_kernel     256 threads per (span of pages, K/V head, 8 or 32 queries), page after page:
 *      z [64][rank] bf16 -> smem, of the next page too where it fits          -- __syncthreads
 *      a warp takes 16 MT keys and every W-th 16 pairs of values (W = 2 MT): D_k z by m16n8k16,
 *        rotation, k_norm in registers, times q -> score[slot][query][key]; q' . z, every W-th step
 *                                                                             -- __syncthreads
 *      a warp per query: slots added in order, softmax of the page, p v -> smem -- __syncthreads
 *      sums of latents: a warp takes every eighth 16 latent values, o = z^T (p v) over 64 keys,
 *        added to those of the span's pages before, in registers              -- __syncthreads
 *    smem: z | q [queries][2 wide] bf16 | score [W][queries][68] f32 | p [queries][72] bf16
 *      | sums of squares [W][64] f32 | angles of the page [wide][2] f32 | states, scales
 *      asks for what the kernels after it read first, for few rows: D_v, the layer's next weights
 *    collect_kernel  256 threads per (row, head, 256 latent values): adds spans in order, and puts
 *                    the stored rows' sum beside them; the sum of latents as two bf16 values each
 *    finish_kernel   D_v times sums of latents for 16 queries, a strip of 8 outputs per warp; rows
 *                    in float32, and rounded for the product after them
 *
 * Values of K that are rotated take angles of the page's first row, composed with those of rows
 * 0 .. 63.  A latent that no query of a block may see, or that is no number, is read as zeros; in
 * the second case its scale is NaN, for the queries that do see it. */
#include "evicted.cuh"
#include "launch.cuh"

enum {
    THREADS = 256,
    WARPS = 8,
    SCORE_PITCH = 68, /* floats; two queries and eight keys of a warp lie in different banks */
    P_PITCH = 72,     /* bf16 values */
};

/* ---- queries in latent space ----------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) lift_kernel(const __grid_constant__ kk_cu_evicted a) {
    extern __shared__ __align__(128) char smem[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int pitch16 = kk_cu_latent_pitch(a.rank), strips = pitch16 / 8;
    const int chunks = (strips + WARPS - 1) / WARPS;
    const int kv = (int)blockIdx.y / chunks, strip = (int)blockIdx.y % chunks * WARPS + warp;
    const int steps = (a.head_dim + 31) / 32, pitch = kk_rows_pitch(steps * 32);
    kk_next();
    kk_wait();
    const kk_gone_tile tile(a, (int)blockIdx.z);
    const int q0 = (int)blockIdx.x * 16, n = min(16, tile.rows * tile.group - q0);
    if (n <= 0) return;
    for (int m = warp; m < 16; m += WARPS) {
        const kk_gone_query q(tile, kv, q0 + min(m, n - 1));
        const float *row = a.q + ((size_t)(tile.first + q.row) * a.n_head + q.head) * a.head_dim;
        uint16_t *to = (uint16_t *)(smem + m * pitch);
#pragma unroll 4
        for (int dim = lane; dim < steps * 32; dim += 32) {
            const bool real = m < n && dim < a.head_dim;
            to[dim] = kk_dbf16(real ? __fmul_rn(row[dim], a.k_norm[dim]) : 0.0f);
        }
    }
    __syncthreads();
    if (strip >= strips) return;
    const uint32_t from = kk_shared(smem) + lane % 16 * pitch + lane / 16 * 16;
    const uint4 *w = (const uint4 *)a.queries + ((size_t)kv * strips + strip) * steps * 32 + lane;
    float c[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int s = 0; s < steps; s++) {
        const uint4 b = w[s * 32];
        uint32_t x[4], y[4];
        kk_load_rows(x, from + s * 64);
        kk_load_rows(y, from + s * 64 + 32);
        kk_times(c, x, b.x, b.y);
        kk_times(c, y, b.z, b.w);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (g + 8 * h >= n) continue;
        const kk_gone_query q(tile, kv, q0 + g + 8 * h);
        const size_t row = ((size_t)blockIdx.z * a.tile_rows + q.row) * a.n_head + q.head;
        *(uint32_t *)(a.lifted + row * pitch16 + kk_swizzled(strip * 8 + 2 * t)) =
            kk_dbf16x2(c[2 * h], c[2 * h + 1]);
    }
}

/* ---- a block of attention over latents ------------------------------------------------------- */

/* Shared memory of gone_kernel, in bytes from its start. */
struct gone_layout {
    int z, z_bytes, q, score, p, squares, angles, state, keep, bytes;
    int z_pitch, q_pitch;
};
static __host__ __device__ gone_layout layout_of(int rank, int wide, int slots, int queries,
                                                 bool ahead) {
    gone_layout l;
    l.z_pitch = kk_rows_pitch(kk_cu_latent_pitch(rank));
    l.q_pitch = 4 * wide + 16;
    l.z = 0;
    l.z_bytes = KK_PAGE * l.z_pitch;
    l.q = l.z + (ahead ? 2 : 1) * l.z_bytes;
    l.score = l.q + queries * l.q_pitch;
    l.p = l.score + slots * queries * SCORE_PITCH * 4;
    l.squares = l.p + queries * P_PITCH * 2;
    l.angles = l.squares + slots * KK_PAGE * 4;
    l.state = l.angles + wide * 8;
    l.keep = l.state + queries * 16;
    l.bytes = l.keep + KK_PAGE * 4;
    return l;
}

/* How warps divide the values of a key that are rebuilt: 16 MT keys and every 2 MT-th group of 16
 * pairs. */
static __host__ __device__ int key_tiles(int wide) { return wide >= 128 ? 4 : wide >= 64 ? 2 : 1; }

/* What a block works on. */
struct gone_block {
    const kk_cu_evicted &a;
    gone_layout at;
    char *smem;
    kk_gone_tile tile;
    int kv, q0, n; /* queries [q0, q0 + n) of the tile */
    kk_gone any;   /* rows that some of them see */

    __device__ __forceinline__ float *floats(int off) const { return (float *)(smem + off); }
    __device__ __forceinline__ kk_gone sees(int i) const {
        return kk_gone_at_row(a, tile.pos + (q0 + i) / tile.group);
    }
    /* Of the launch's scratch. */
    __device__ __forceinline__ size_t row(int i) const {
        const kk_gone_query q(tile, kv, q0 + i);
        return ((size_t)blockIdx.z * a.tile_rows + q.row) * a.n_head + q.head;
    }
};

/* The values of queries that meet rebuilt ones, in the order of KK_CU_AS_KEYS. */
__device__ __forceinline__ void stage_queries(const gone_block &b, int queries) {
    const kk_cu_evicted &a = b.a;
    const int lane = threadIdx.x % 32;
    for (int m = (int)threadIdx.x / 32; m < queries; m += WARPS) {
        const bool real = m < b.n;
        const kk_gone_query q(b.tile, b.kv, b.q0 + (real ? m : 0));
        const float *from = a.q + ((size_t)(b.tile.first + q.row) * a.n_head + q.head) * a.head_dim;
        uint16_t *to = (uint16_t *)(b.smem + b.at.q + m * b.at.q_pitch);
#pragma unroll 4
        for (int out = lane; out < 2 * a.wide; out += 32) {
            const int second = out >= a.wide, k = out - second * a.wide;
            to[out] = kk_dbf16(real && k < a.half ? from[k + second * (a.head_dim / 2)] : 0.0f);
        }
    }
}

/* What a thread brings of a page beside its latents: a row's scale, an angle of the first row. */
struct gone_coming {
    float keep;
    float2 angle;
};

/* Starts to bring a page; latents go to z. */
__device__ __forceinline__ gone_coming start_page(const gone_block &b, char *z, int page,
                                                  float freq) {
    const kk_cu_evicted &a = b.a;
    const uint8_t *mem = a.rows.pages[b.tile.info.pages + page];
    const int base = page * KK_PAGE, pieces = kk_cu_latent_pitch(a.rank) / 8, rank = a.rank;
    const int tid = (int)threadIdx.x, lane = tid % 32;
    const uint8_t *rows = mem + a.latent.v_off;
    const bool as_stored = a.latent.format == KK_CU_BF16 && rank % 8 == 0;
    for (int j = tid / 32; as_stored && j < KK_PAGE; j += WARPS) {
        const bool seen = b.any.has(base + j);
        const uint8_t *row = rows + (size_t)j * rank * 2;
        char *to = z + j * b.at.z_pitch;
#pragma unroll 2
        for (int piece = lane; piece < pieces; piece += 32) {
            const bool real = seen && piece * 8 < rank;
            kk_copy_async(to + piece * 16, real ? row + piece * 16 : rows, real);
        }
    }
    for (int j = tid / 32; !as_stored && j < KK_PAGE; j += WARPS)
        for (int piece = lane; piece < pieces; piece += 32) {
            const bool real = b.any.has(base + j) && piece * 8 < rank;
            *(uint4 *)(z + j * b.at.z_pitch + piece * 16) =
                real ? kk_latent_values(a.latent, rows, j, piece * 8) : make_uint4(0, 0, 0, 0);
        }
    kk_copy_commit();
    gone_coming next = {0, make_float2(1, 0)};
    if (tid < KK_PAGE && b.any.has(base + tid)) {
        const uint16_t *kept = (const uint16_t *)(mem + a.scales.v_off);
        next.keep = kk_dfloat(kept[(size_t)tid * a.scales.head_dim + a.scale_at + b.kv]);
    }
    if (tid < a.n_rot) {
        double s, c;
        sincos((double)__fmul_rn((float)base, freq), &s, &c);
        next.angle = make_float2((float)c, (float)s);
    }
    return next;
}

/* Makes a page ready whose copies have arrived.  Where some value of a latent is no finite number,
 * its scale is NaN or 0: such a latent becomes zeros, and what sees a NaN becomes one by the
 * scale. */
__device__ __forceinline__ void settle_page(const gone_block &b, char *z, int page,
                                            const gone_coming &now) {
    const int tid = (int)threadIdx.x, pieces = kk_cu_latent_pitch(b.a.rank) / 8;
    float *keep = b.floats(b.at.keep);
    const bool odd = tid < KK_PAGE && b.any.has(page * KK_PAGE + tid) && !(now.keep > 0);
    if (tid < KK_PAGE) keep[tid] = now.keep;
    if (tid < b.a.wide) ((float2 *)(b.smem + b.at.angles))[tid] = now.angle;
    if (!__syncthreads_or(odd)) return;
    for (int i = tid; i < KK_PAGE * pieces; i += THREADS)
        if (!(keep[i / pieces] > 0))
            *(uint4 *)(z + i / pieces * b.at.z_pitch + i % pieces * 16) = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* (cos, sin) of the sum of two angles. */
__device__ __forceinline__ float2 add_angles(float2 x, float2 y) {
    return make_float2(__fmaf_rn(-x.y, y.y, __fmul_rn(x.x, y.x)),
                       __fmaf_rn(x.y, y.x, __fmul_rn(x.x, y.y)));
}

/* The part of a decoder that rebuilds 16 pairs of values, AHEAD steps before they are used. */
template <int AHEAD> struct gone_decoder {
    const uint4 *w;
    size_t half;
    int steps;
    uint4 next[AHEAD][4];

    __device__ __forceinline__ void bring(uint4 (&to)[4], int s) const {
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = w[(i / 2) * half + (size_t)(i % 2 * steps + s) * 32];
    }
    __device__ __forceinline__ void open(const gone_block &b, int group) {
        steps = kk_cu_latent_pitch(b.a.rank) / 32;
        half = (size_t)(b.a.wide / 8) * steps * 32;
        w = (const uint4 *)b.a.keys + 2 * b.kv * half + (size_t)group * 2 * steps * 32 +
            threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) bring(next[k], min(k, steps - 1));
    }
};

/* raw = D z of this warp's keys: strips 0 and 1 of the first halves of heads, 2 and 3 of the second
 * ones. */
template <int MT, int AHEAD>
__device__ __forceinline__ void project_keys(float (&raw)[MT][4][4], gone_decoder<AHEAD> &d,
                                             uint32_t z, int z_pitch) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 16; i++) raw[m][i / 4][i % 4] = 0;
#pragma unroll 1
    for (int from = 0; from < d.steps; from += AHEAD)
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int s = from + k;
            if (s >= d.steps) break;
            uint4 now[4];
#pragma unroll
            for (int i = 0; i < 4; i++) now[i] = d.next[k][i];
            if (s + AHEAD < d.steps) d.bring(d.next[k], s + AHEAD);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t x[4], y[4];
                kk_load_rows(x, z + m * 16 * z_pitch + s * 64);
                kk_load_rows(y, z + m * 16 * z_pitch + s * 64 + 32);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    kk_times(raw[m][i], x, now[i].x, now[i].y);
                    kk_times(raw[m][i], y, now[i].z, now[i].w);
                }
            }
        }
}

/* Sums of squares of this warp's values, for the norms of keys that have norms of their own. */
template <int MT>
__device__ __forceinline__ void add_squares(const float (&raw)[MT][4][4], float *to, bool first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    s = __fmaf_rn(raw[m][i][2 * h + e], raw[m][i][2 * h + e], s);
            s = __fadd_rn(s, __shfl_xor_sync(0xffffffffu, s, 1));
            s = __fadd_rn(s, __shfl_xor_sync(0xffffffffu, s, 2));
            float *at = to + m * 16 + h * 8 + lane / 4;
            if (lane % 4 == 0) *at = first ? s : __fadd_rn(*at, s);
        }
}

/* Values times k_norm, rotated, as operands A of products over them: key[m][0] has values of the
 * first halves of heads, key[m][1] those of the second. */
template <int MT>
__device__ __forceinline__ void rotate_keys(uint32_t (&key)[MT][2][4], float (&raw)[MT][4][4],
                                            const gone_block &b, int group, int row0) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float2 *angles = (const float2 *)(b.smem + b.at.angles);
    const float2 *table = (const float2 *)b.a.angles;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int k = group * 16 + i * 8 + 2 * t + e;
            const bool real = k < b.a.half;
            const float u = real ? b.a.k_norm[k] : 0;
            const float v = real ? b.a.k_norm[k + b.a.head_dim / 2] : 0;
            const float2 by = table[8 * b.a.wide + k];
            float2 now = add_angles(angles[k], table[(row0 + g) * b.a.wide + k]);
#pragma unroll
            for (int r = 0; r < 2 * MT; r++) {
                float &x = raw[r / 2][i][r % 2 * 2 + e], &y = raw[r / 2][i + 2][r % 2 * 2 + e];
                const float p = __fmul_rn(x, u), q = __fmul_rn(y, v);
                x = __fmaf_rn(-q, now.y, __fmul_rn(p, now.x));
                y = __fmaf_rn(p, now.y, __fmul_rn(q, now.x));
                now = add_angles(now, by);
            }
        }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                key[m][h][i] = kk_dbf16x2(raw[m][2 * h + i / 2][i % 2 * 2],
                                          raw[m][2 * h + i / 2][i % 2 * 2 + 1]);
}

/* Adds scores of keys row0 + 16 m + g, + 8 and queries 8 nt + 2 t, + 1 to a slot's. */
template <int MT>
__device__ __forceinline__ void add_scores(const float (&c)[MT][4], float *slot, int row0, int nt,
                                           bool first) {
    const int lane = threadIdx.x % 32;
    float *to = slot + (nt * 8 + lane % 4 * 2) * SCORE_PITCH + row0 + lane / 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *at = to + i % 2 * SCORE_PITCH + m * 16 + i / 2 * 8;
            *at = first ? c[m][i] : __fadd_rn(*at, c[m][i]);
        }
}

/* Scores of rebuilt values with all queries. */
template <int MT, int NT>
__device__ __forceinline__ void score_keys(const gone_block &b, const uint32_t (&key)[MT][2][4],
                                           float *slot, int group, int row0, bool first) {
    const int lane = threadIdx.x % 32;
    const char *q = b.smem + b.at.q + lane / 4 * b.at.q_pitch + (group * 16 + lane % 4 * 2) * 2;
#pragma unroll
    for (int nt = 0; nt < NT; nt++, q += 8 * b.at.q_pitch) {
        float c[MT][4] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t b0 = *(const uint32_t *)(q + h * b.a.wide * 2);
            const uint32_t b1 = *(const uint32_t *)(q + h * b.a.wide * 2 + 16);
#pragma unroll
            for (int m = 0; m < MT; m++) kk_times(c[m], key[m][h], b0, b1);
        }
        add_scores<MT>(c, slot, row0, nt, first);
    }
}

/* Scores of the values that RoPE leaves alone, in latent space: every W-th step. */
template <int MT, int NT>
__device__ __forceinline__ void score_latents(const gone_block &b, float *slot, int first, int row0,
                                              uint32_t z) {
    const int lane = threadIdx.x % 32, pitch = kk_cu_latent_pitch(b.a.rank);
#pragma unroll 1
    for (int nt = 0; nt < NT; nt++) {
        const size_t row = b.row(min(nt * 8 + lane / 4, b.n - 1));
        const uint16_t *q = b.a.lifted + row * pitch + lane % 4 * 8;
        float c[MT][4] = {};
#pragma unroll 2
        for (int s = first; s < pitch / 32; s += 2 * MT) {
            const uint4 w = *(const uint4 *)(q + s * 32);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t x[4], y[4];
                kk_load_rows(x, z + m * 16 * b.at.z_pitch + s * 64);
                kk_load_rows(y, z + m * 16 * b.at.z_pitch + s * 64 + 32);
                kk_times(c[m], x, w.x, w.y);
                kk_times(c[m], y, w.z, w.w);
            }
        }
        add_scores<MT>(c, slot, row0, nt, false);
    }
}

/* A query's state: its largest score and sum of weights so far, and the factors of the sums before
 * this page and of the page's. */
struct gone_state {
    float m, l, before, now;
};

/* The scaled score of a key. */
template <int W>
__device__ __forceinline__ float score_of(const gone_block &b, int queries, int i, int j) {
    const float *slot = b.floats(b.at.score) + i * SCORE_PITCH + j;
    float s = slot[0], by = b.floats(b.at.keep)[j];
#pragma unroll
    for (int k = 1; k < W; k++) s = __fadd_rn(s, slot[k * queries * SCORE_PITCH]);
    if (!b.a.k_eq_v) {
        const float *square = b.floats(b.at.squares) + j;
        by = square[0];
#pragma unroll
        for (int k = 1; k < W; k++) by = __fadd_rn(by, square[k * KK_PAGE]);
        by = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(by, (float)b.a.head_dim), b.a.eps)));
    }
    return __fmul_rn(__fmul_rn(s, by), b.a.scale);
}

/* One warp: the softmax of one query within the page. */
template <int W>
__device__ __forceinline__ void weigh_page(const gone_block &b, int queries, int i, int page) {
    const int lane = threadIdx.x % 32, base = page * KK_PAGE;
    const kk_gone see = b.sees(i);
    const bool s0 = see.has(base + lane), s1 = see.has(base + lane + 32);
    const float x = s0 ? score_of<W>(b, queries, i, lane) : -INFINITY;
    const float y = s1 ? score_of<W>(b, queries, i, lane + 32) : -INFINITY;
    float m = fmaxf(x, y);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
    const float p0 = s0 ? kk_dexp(__fsub_rn(x, m)) : 0.0f;
    const float p1 = s1 ? kk_dexp(__fsub_rn(y, m)) : 0.0f;
    const float l = kk_warp_sum(__fadd_rn(p0, p1));
    const float v0 = b.floats(b.at.keep)[lane], v1 = b.floats(b.at.keep)[lane + 32];
    uint16_t *p = (uint16_t *)(b.smem + b.at.p) + i * P_PITCH;
    p[lane] = s0 ? kk_dbf16(__fmul_rn(p0, v0)) : (uint16_t)0;
    p[lane + 32] = s1 ? kk_dbf16(__fmul_rn(p1, v1)) : (uint16_t)0;
    const bool any = __any_sync(0xffffffffu, s0 || s1);
    if (lane != 0) return;
    gone_state &s = ((gone_state *)(b.smem + b.at.state))[i];
    s.before = 1;
    s.now = 0;
    if (!any) return;
    const float top = fmaxf(s.m, m);
    s.before = kk_dexp(__fsub_rn(s.m, top));
    s.now = kk_dexp(__fsub_rn(m, top));
    s.l = __fmaf_rn(l, s.now, __fmul_rn(s.l, s.before));
    s.m = top;
}

/* Sums of latents over the page, added to those before: sum[k][nt] has latent values
 * 16 (warp + 8 k) + g, + 8 of queries 8 nt + 2 t, + 1. */
template <int NT, int RT>
__device__ __forceinline__ void sum_latents(float (&sum)[RT][NT][4], const gone_block &b,
                                            const char *latents) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const gone_state *state = (const gone_state *)(b.smem + b.at.state);
    const uint32_t z =
        kk_shared(latents) + (lane % 8 + lane / 16 * 8) * b.at.z_pitch + lane / 8 % 2 * 16;
    const uint16_t *p = (const uint16_t *)(b.smem + b.at.p) + g * P_PITCH + 2 * t;
#pragma unroll
    for (int k = 0; k < RT; k++) {
        const int from = (warp + WARPS * k) * 16;
        if (from >= kk_cu_latent_pitch(b.a.rank)) break;
        uint32_t x[4][4];
#pragma unroll
        for (int s = 0; s < 4; s++) kk_load_columns(x[s], z + s * 16 * b.at.z_pitch + from * 2);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float o[4] = {0, 0, 0, 0};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const uint16_t *at = p + nt * 8 * P_PITCH + s * 16;
                kk_times(o, x[s], *(const uint32_t *)at, *(const uint32_t *)(at + 8));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const gone_state &f = state[nt * 8 + 2 * t + i % 2];
                sum[k][nt][i] = __fmaf_rn(o[i], f.now, __fmul_rn(sum[k][nt][i], f.before));
            }
        }
    }
}

template <int NT, int RT>
__device__ __forceinline__ void write_parts(const float (&sum)[RT][NT][4], const gone_block &b) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const gone_state *state = (const gone_state *)(b.smem + b.at.state);
    const size_t stride = (size_t)kk_cu_latent_pitch(b.a.rank) + 4;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = nt * 8 + 2 * t + e;
            if (i >= b.n) continue;
            float *to = b.a.parts + (b.row(i) * b.a.spans + blockIdx.x) * stride;
            if (warp == 0 && g == 0) *(float2 *)to = make_float2(state[i].m, state[i].l);
#pragma unroll
            for (int k = 0; k < RT; k++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int r = (warp + WARPS * k) * 16 + g + 8 * h;
                    if (r < b.a.rank) to[4 + r] = sum[k][nt][2 * h + e];
                }
        }
}

/* later: copies of the next page are under way too. */
template <int MT, int NT, int RT>
__device__ __forceinline__ void gone_page(float (&sum)[RT][NT][4], const gone_block &b,
                                          char *latents, int page, const gone_coming &now,
                                          bool later) {
    /* As many steps as registers hold. */
    constexpr int W = 2 * MT, Q = 8 * NT, AHEAD = NT > 1 || RT > 4 ? 1 : MT > 2 ? 3 : 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slot = warp / (4 / MT), row0 = warp % (4 / MT) * 16 * MT;
    float *score = b.floats(b.at.score) + slot * Q * SCORE_PITCH;
    const uint32_t z = kk_shared(latents) + (row0 + lane % 16) * b.at.z_pitch + lane / 16 * 16;
    gone_decoder<AHEAD> decoder;
    decoder.open(b, slot); /* a slot has a group: W is at most wide / 16 */
    if (later)
        kk_copy_wait<1>();
    else
        kk_copy_wait<0>();
    settle_page(b, latents, page, now);
    bool first = true;
    for (int group = slot; group < b.a.wide / 16; group += W, first = false) {
        float raw[MT][4][4];
        uint32_t key[MT][2][4];
        if (!first) decoder.open(b, group);
        project_keys<MT, AHEAD>(raw, decoder, z, b.at.z_pitch);
        if (!b.a.k_eq_v)
            add_squares<MT>(raw, b.floats(b.at.squares) + slot * KK_PAGE + row0, first);
        rotate_keys<MT>(key, raw, b, group, row0);
        score_keys<MT, NT>(b, key, score, group, row0, first);
    }
    if (b.a.queries) score_latents<MT, NT>(b, score, slot, row0, z);
    __syncthreads();
    for (int i = warp; i < b.n; i += WARPS) weigh_page<W>(b, Q, i, page);
    __syncthreads();
    sum_latents<NT, RT>(sum, b, latents);
    __syncthreads();
}

/* Asks for share `at` of `n` of some bytes to be brought to L2. */
__device__ __forceinline__ void prefetch_share(const void *from, size_t bytes, int at, int n) {
    const size_t each = (bytes / 128 + n - 1) / n * 128, begin = each * at;
    const size_t end = min(bytes, begin + each);
    for (size_t i = begin + threadIdx.x * 128; i < end; i += THREADS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)from + i));
}

/* The decoder of a head's keys: blocks of its pages bring a part each while latents are on their
 * way. */
__device__ __forceinline__ void prefetch_keys(const kk_cu_evicted &a, int kv) {
    enum { SHARES = 16 };
    const size_t bytes = (size_t)(a.wide / 4) * (kk_cu_latent_pitch(a.rank) / 32) * 512;
    prefetch_share((const char *)a.keys + kv * bytes, bytes, (int)blockIdx.x % SHARES, SHARES);
}

/* What the kernels after this one read, while memory is idle: decoders of values, and then what the
 * caller names. */
__device__ __forceinline__ void prefetch_next(const kk_cu_evicted &a) {
    if (!a.next_bytes) return;
    const size_t head = (size_t)(a.head_dim / 8) * (kk_cu_latent_pitch(a.rank) / 32) * 512;
    const int blocks = (int)(gridDim.x * gridDim.y * gridDim.z);
    const int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    prefetch_share(a.values, head * a.n_kv_head, block, blocks);
    prefetch_share(a.next, a.next_bytes, block, blocks);
}

/* MT: key_tiles; 8 NT queries; up to 128 RT latent values. */
template <int MT, int NT, int RT>
__global__ void __launch_bounds__(THREADS, 1) gone_kernel(const __grid_constant__ kk_cu_evicted a) {
    extern __shared__ __align__(128) char smem[];
    const int tid = (int)threadIdx.x, kv = (int)blockIdx.y % a.n_kv_head;
    float freq = 0;
    if (tid < a.n_rot)
        freq = __fdiv_rn((float)pow((double)a.theta, -2.0 * tid / a.head_dim), a.factor);
    kk_next();
    kk_wait();
    const kk_gone_tile tile(a, (int)blockIdx.z);
    const int q0 = (int)blockIdx.y / a.n_kv_head * 8 * NT;
    const int n = min(8 * NT, tile.rows * tile.group - q0);
    if (n <= 0) return;
    const kk_gone first = kk_gone_at_row(a, tile.pos + q0 / tile.group);
    const kk_gone last = kk_gone_at_row(a, tile.pos + (q0 + n - 1) / tile.group);
    const gone_block b = {a,    layout_of(a.rank, a.wide, 2 * MT, 8 * NT, a.ahead),
                          smem, tile,
                          kv,   q0,
                          n,    {first.from, last.to}};
    const int from = (tile.span + (int)blockIdx.x) * a.span;
    const int begin = max(from, b.any.from / KK_PAGE);
    const int end = min(from + a.span, (b.any.to + KK_PAGE - 1) / KK_PAGE);
    if (begin >= end || b.any.from >= b.any.to) return prefetch_next(a);
    if (tid < 8 * NT) ((gone_state *)(smem + b.at.state))[tid] = {-INFINITY, 0, 1, 0};
    for (int i = tid; i < 8 * NT * P_PITCH; i += THREADS) ((uint16_t *)(smem + b.at.p))[i] = 0;
    float sum[RT][NT][4];
#pragma unroll
    for (int i = 0; i < RT * NT * 4; i++) sum[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
    const auto latents = [&](int page) {
        return smem + b.at.z + (a.ahead ? (page - begin) % 2 * b.at.z_bytes : 0);
    };
    gone_coming now = start_page(b, latents(begin), begin, freq);
    prefetch_keys(a, kv);
    stage_queries(b, 8 * NT);
    for (int page = begin; page < end; page++) {
        gone_coming next = now;
        const bool more = page + 1 < end, later = a.ahead && more;
        if (later) next = start_page(b, latents(page + 1), page + 1, freq);
        gone_page<MT, NT, RT>(sum, b, latents(page), page, now, later);
        if (more && !later) next = start_page(b, latents(page + 1), page + 1, freq);
        now = next;
    }
    prefetch_next(a);
    write_parts<NT, RT>(sum, b);
}

/* ---- adding up ------------------------------------------------------------------------------- */

enum { BATCH = 16 }; /* spans whose sums are on their way at once */

__global__ void __launch_bounds__(THREADS) collect_kernel(const __grid_constant__ kk_cu_evicted a) {
    extern __shared__ __align__(16) float by[]; /* [spans] factors of this row's spans */
    __shared__ float tops[WARPS], all;
    const int tid = (int)threadIdx.x, lane = tid % 32, head = (int)blockIdx.x;
    const int r = (int)blockIdx.y % a.tile_rows, pitch = kk_cu_latent_pitch(a.rank);
    const int column = (int)blockIdx.z * THREADS + tid; /* this thread's latent value */
    kk_next();
    kk_wait();
    const kk_gone_tile tile(a, (int)blockIdx.y / a.tile_rows);
    if (r >= tile.rows) return;
    const size_t row = (size_t)blockIdx.y * a.n_head + head;
    const kk_gone see = kk_gone_at_row(a, tile.pos + r);
    uint16_t *to = a.sum + row * 2 * pitch;
    if (see.from >= see.to) {
        if (column < pitch) to[column] = to[pitch + column] = 0;
        if (column == 0) a.weight[row] = 1;
        return;
    }
    const float2 stored = ((const float2 *)a.sums)[(size_t)(tile.first + r) * a.n_head + head];
    const size_t stride = (size_t)pitch + 4;
    const int first = see.from / KK_PAGE / a.span, n = (see.to - 1) / KK_PAGE / a.span + 1 - first;
    const float *part = a.parts + (row * a.spans + (first - tile.span)) * stride;
    float top = -INFINITY;
    for (int i = tid; i < n; i += THREADS) top = fmaxf(top, part[i * stride]);
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    if (lane == 0) tops[tid / 32] = top;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) top = fmaxf(top, tops[i]);
    for (int i = tid; i < n; i += THREADS) by[i] = kk_dexp(__fsub_rn(part[i * stride], top));
    __syncthreads();
    if (tid < 32) {
        float l = 0;
        for (int i = lane; i < n; i += 32) l = __fmaf_rn(part[i * stride + 1], by[i], l);
        l = kk_warp_sum(l);
        if (lane == 0) all = l;
    }
    __syncthreads();
    const float most = fmaxf(stored.x, top);
    const float near = __fmul_rn(stored.y, kk_dexp(__fsub_rn(stored.x, most)));
    const float far = kk_dexp(__fsub_rn(top, most));
    const float sum = __fmaf_rn(all, far, near);
    if (column == 0) a.weight[row] = __fdiv_rn(near, sum);
    if (column >= pitch) return;
    const float *from = part + 4 + min(column, a.rank - 1);
    float x = 0;
    for (int k = 0; k < n; k += BATCH) {
        float v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) v[i] = from[min(k + i, n - 1) * stride];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (k + i < n) x = __fmaf_rn(v[i], by[k + i], x);
    }
    x = column < a.rank ? __fmul_rn(x, __fdiv_rn(far, sum)) : 0;
    const uint16_t high = kk_dbf16(x);
    to[kk_swizzled(column)] = high;
    to[pitch + kk_swizzled(column)] = kk_dbf16(__fsub_rn(x, kk_dfloat(high)));
}

__global__ void __launch_bounds__(THREADS) finish_kernel(const __grid_constant__ kk_cu_evicted a) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int pitch = kk_cu_latent_pitch(a.rank), steps = pitch / 32, strips = a.head_dim / 8;
    const int chunks = (strips + WARPS - 1) / WARPS;
    const int kv = (int)blockIdx.y / chunks, strip = (int)blockIdx.y % chunks * WARPS + warp;
    kk_next();
    kk_wait();
    const kk_gone_tile tile(a, (int)blockIdx.z);
    const int q0 = (int)blockIdx.x * 16, n = min(16, tile.rows * tile.group - q0);
    if (n <= 0 || strip >= strips) return;
    const auto row_of = [&](int i) {
        const kk_gone_query q(tile, kv, q0 + min(i, n - 1));
        return ((size_t)blockIdx.z * a.tile_rows + q.row) * a.n_head + q.head;
    };
    const uint16_t *lo = a.sum + row_of(g) * 2 * pitch + t * 8;
    const uint16_t *hi = a.sum + row_of(g + 8) * 2 * pitch + t * 8;
    const uint4 *w = (const uint4 *)a.values + ((size_t)kv * strips + strip) * steps * 32 + lane;
    float c[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int s = 0; s < steps; s++) {
        const uint4 d = w[s * 32];
#pragma unroll
        for (int plane = 0; plane < 2; plane++)
            kk_step<true>(c, d, *(const uint4 *)(lo + plane * pitch + s * 32),
                          *(const uint4 *)(hi + plane * pitch + s * 32));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (g + 8 * h >= n) continue;
        const kk_gone_query q(tile, kv, q0 + g + 8 * h);
        const size_t row = (size_t)(tile.first + q.row) * a.n_head + q.head;
        float2 *out = (float2 *)(a.out + row * a.head_dim + strip * 8 + 2 * t);
        const float by = a.weight[row_of(g + 8 * h)];
        const float2 x = *out;
        const float2 y =
            make_float2(__fmaf_rn(x.x, by, c[2 * h]), __fmaf_rn(x.y, by, c[2 * h + 1]));
        *out = y;
        if (!a.rounded) continue;
        const int column = q.head * a.head_dim + strip * 8 + 2 * t;
        *(uint32_t *)(a.rounded + (size_t)(tile.first + q.row) * a.n_head * a.head_dim +
                      (a.swizzled ? kk_swizzled(column) : column)) = kk_dbf16x2(y.x, y.y);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

size_t kk_cu_evicted_parts(const kk_cu_evicted *a) {
    const size_t one = (size_t)kk_cu_latent_pitch(a->rank) + 4;
    return (size_t)a->n_head * (size_t)a->spans * one * sizeof(float);
}

int32_t kk_cu_evicted_shared(const kk_cu_evicted *a, int32_t queries) {
    return layout_of(a->rank, a->wide, 2 * key_tiles(a->wide), queries, a->ahead).bytes;
}

template <int MT, int NT, int RT>
static cudaError_t run_gone(kk_cu_at at, const kk_cu_evicted *args, dim3 grid) {
    kk_cu_evicted two = *args;
    two.ahead = args->span > 1;
    const bool fits = kk_cu_evicted_shared(&two, 8 * NT) <= at.shared;
    const kk_cu_evicted *a = fits ? &two : args;
    const int shared = kk_cu_evicted_shared(a, 8 * NT);
    const cudaError_t e = cudaFuncSetAttribute((const void *)gone_kernel<MT, NT, RT>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e != cudaSuccess) return e;
    return kk_launch(at, gone_kernel<MT, NT, RT>, *a, grid, THREADS, (size_t)shared);
}
template <int MT> static cudaError_t run_queries(kk_cu_at at, const kk_cu_evicted *a, dim3 grid) {
    if (a->queries_at_once == 32) return run_gone<MT, 4, 4>(at, a, grid);
    return a->rank <= 512 ? run_gone<MT, 1, 4>(at, a, grid) : run_gone<MT, 1, 8>(at, a, grid);
}

cudaError_t kk_cu_run_evicted(kk_cu_at at, const kk_cu_evicted *a) {
    const int queries = a->tile_rows * (a->n_head / a->n_kv_head);
    const unsigned tiles = (unsigned)((queries + 15) / 16), n_kv = (unsigned)a->n_kv_head;
    const unsigned groups = (unsigned)((queries + a->queries_at_once - 1) / a->queries_at_once);
    const dim3 grid((unsigned)a->spans, n_kv * groups, (unsigned)a->n_tiles);
    cudaError_t e = cudaSuccess;
    if (a->queries) {
        const unsigned chunks = (unsigned)(kk_cu_latent_pitch(a->rank) / 8 + WARPS - 1) / WARPS;
        const int wide = (a->head_dim + 31) / 32 * 32;
        e = kk_launch(at, lift_kernel, *a, dim3(tiles, n_kv * chunks, grid.z), THREADS,
                      (size_t)16 * (size_t)kk_rows_pitch(wide));
    }
    if (e != cudaSuccess) return e;
    switch (key_tiles(a->wide)) {
    case 4: e = run_queries<4>(at, a, grid); break;
    case 2: e = run_queries<2>(at, a, grid); break;
    default: e = run_queries<1>(at, a, grid); break;
    }
    if (e != cudaSuccess) return e;
    e = kk_launch(at, collect_kernel, *a,
                  dim3((unsigned)a->n_head, (unsigned)(a->n_tiles * a->tile_rows),
                       (unsigned)(kk_cu_latent_pitch(a->rank) + THREADS - 1) / THREADS),
                  THREADS, (size_t)a->spans * sizeof(float));
    if (e != cudaSuccess) return e;
    const unsigned chunks = (unsigned)(a->head_dim / 8 + WARPS - 1) / WARPS;
    return kk_launch(at, finish_kernel, *a, dim3(tiles, n_kv * chunks, grid.z), THREADS, 0);
}
