/* cuda_latents.cu - latents of rows and what is kept beside them, decoders in the order in which
 * tensor cores read them, and sinks that lie apart.
 *
 *    sinks_kernel    256 threads per (session, K/V head, K or V): copies rows of both blocks
 *    keep_kernel     one warp per head of a row: rounds it into its page
 *    decoder_kernel  one thread per 16 bytes of a decoder
 *    scales_kernel   256 threads per (16 rows, head of a layer): D_v z by m16n8k16, a warp every
 *                    eighth strip; sums of squares by lane, four lanes, warps, in order;
 *                    smem [16][rank] bf16 | [8][16] f32
 *    angles_kernel    one thread per angle */
#include "evicted.cuh"
#include "launch.cuh"

enum { THREADS = 256, WARPS = 8, TILE = 16 };

/* ---- sinks ---------------------------------------------------------------------------------- */

template <class T> __device__ __forceinline__ void copy_words(void *to, const void *from, int n) {
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < n / (int)sizeof(T); i += THREADS)
        ((T *)to)[i] = ((const T *)from)[i];
}

/* Copies rows [first, end) of a plane in the widest words that both sides allow: a sink may lie at
 * any byte. */
__device__ __forceinline__ void copy_rows(uint8_t *to, const uint8_t *from, int row, int first,
                                          int end) {
    const int n = (end - first) * row;
    to += (size_t)row * first;
    from += (size_t)row * first;
    const uintptr_t odd = (uintptr_t)to | (uintptr_t)from | (uintptr_t)n;
    if (odd % 16 == 0)
        copy_words<uint4>(to, from, n);
    else if (odd % 2 == 0)
        copy_words<uint16_t>(to, from, n);
    else
        copy_words<uint8_t>(to, from, n);
}

__global__ void __launch_bounds__(THREADS) sinks_kernel(const __grid_constant__ kk_cu_sinks a) {
    const int group = (int)blockIdx.x, head = (int)blockIdx.y, part = (int)blockIdx.z;
    kk_next();
    kk_wait();
    const kk_cu_sink sink = a.sink[group];
    const uint8_t *page = a.pages[(size_t)group * a.table];
    const int kept = min(a.rows, (int)min(sink.pos, (int64_t)KK_PAGE));
    const size_t off = (part ? a.slot.v_off : a.slot.k_off) + head * a.slot.head_bytes;
    uint8_t *to = a.to + group * a.bytes + (off - a.slot.k_off);
    const uint8_t *from = sink.rows + off / KK_PAGE * a.rows;
    if (a.slot.k_eq_v && !part) return;
    if (page) page += off;
    for (int p = 0; p < 3; p++) {
        copy_rows(to, from, a.plane[p], 0, kept);
        if (page) {
            copy_rows(to, page, a.plane[p], kept, KK_PAGE);
            page += (size_t)a.plane[p] * KK_PAGE;
        }
        to += (size_t)a.plane[p] * KK_PAGE;
        from += (size_t)a.plane[p] * a.rows;
    }
}

cudaError_t kk_cu_run_sinks(kk_cu_at at, const kk_cu_sinks *a) {
    const dim3 grid((unsigned)a->groups, (unsigned)a->slot.n_kv_head, 2);
    return kk_launch(at, sinks_kernel, *a, grid, THREADS, 0);
}

/* ---- rows of latents ------------------------------------------------------------------------ */

__global__ void __launch_bounds__(THREADS) keep_kernel(const __grid_constant__ kk_cu_keep a) {
    const int lane = threadIdx.x % 32, d = a.slot.head_dim, r = (int)blockIdx.y;
    const int h = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    kk_next();
    kk_wait();
    if (h >= a.slot.n_kv_head) return;
    const int64_t pos = a.rows.pos[r];
    uint8_t *page = a.rows.pages[a.rows.table[r] + pos / KK_PAGE];
    const float *x = a.x + ((size_t)r * a.slot.n_kv_head + h) * d;
    kk_put(a.slot, page + a.off + h * a.slot.head_bytes, (int)(pos % KK_PAGE), d,
           [&](int i) { return x[lane + 32 * i]; });
}

cudaError_t kk_cu_run_keep(kk_cu_at at, const kk_cu_keep *a) {
    const dim3 grid(kk_blocks((size_t)a->slot.n_kv_head, WARPS), (unsigned)a->rows.n_rows);
    return kk_launch(at, keep_kernel, *a, grid, THREADS, 0);
}

/* ---- decoders ------------------------------------------------------------------------------- */

static __host__ __device__ int outputs_of(const kk_cu_decoder &a) {
    return a.order == KK_CU_AS_VALUES ? a.head_dim
           : a.order == KK_CU_AS_KEYS ? 2 * a.wide
                                      : (a.rank + 31) / 32 * 32;
}
static __host__ __device__ int steps_of(const kk_cu_decoder &a) {
    return ((a.order == KK_CU_AS_QUERIES ? a.head_dim : a.rank) + 31) / 32;
}
size_t kk_cu_decoder_bytes(const kk_cu_decoder *a) {
    return (size_t)outputs_of(*a) / 8 * (size_t)steps_of(*a) * 512;
}

__device__ float decoder_value(const kk_cu_decoder &a, int out, int in) {
    int dim = out, value = in;
    if (a.order == KK_CU_AS_KEYS) {
        const int second = out >= a.wide, i = out - second * a.wide;
        if (i >= a.half) return 0;
        dim = i + second * (a.head_dim / 2);
    } else if (a.order == KK_CU_AS_QUERIES) {
        dim = in;
        value = out;
        if (dim % (a.head_dim / 2) < a.half) return 0;
    }
    return dim < a.head_dim && value < a.rank ? a.from[(size_t)dim * a.rank + value] : 0;
}

__global__ void decoder_kernel(const __grid_constant__ kk_cu_decoder a) {
    const size_t all = (size_t)outputs_of(a) / 8 * steps_of(a) * 32;
    uint4 *to = (uint4 *)a.to + a.head * all;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < all;
         i += (size_t)gridDim.x * THREADS) {
        const int lane = (int)(i % 32), step = (int)(i / 32 % steps_of(a));
        const int out = (int)(i / 32 / steps_of(a)) * 8 + lane / 4;
        uint32_t word[4];
        for (int k = 0; k < 4; k++) {
            const int in = step * 32 + 8 * k + lane % 4 * 2;
            word[k] = kk_dbf16x2(decoder_value(a, out, in), decoder_value(a, out, in + 1));
        }
        to[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

cudaError_t kk_cu_run_decoder(kk_cu_at at, const kk_cu_decoder *a) {
    return kk_launch(at, decoder_kernel, *a, kk_blocks(kk_cu_decoder_bytes(a) / 16, THREADS),
                     THREADS, 0);
}

/* ---- scales --------------------------------------------------------------------------------- */

/* Latents of the tile's rows to shared memory; rows that are not there become zeros. */
__device__ __forceinline__ void stage_latents(char *to, int pitch, const kk_cu_scales &a, int first,
                                              int n) {
    const int pieces = (a.latent.head_dim + 31) / 32 * 4;
    for (int i = (int)threadIdx.x; i < TILE * pieces; i += THREADS) {
        const int r = i / pieces, c = i % pieces;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < n) {
            const int64_t pos = a.rows.pos[first + r];
            const uint8_t *page = a.rows.pages[a.rows.table[first + r] + pos / KK_PAGE];
            v = kk_latent_values(a.latent, page + a.latent.v_off, (int)(pos % KK_PAGE), c * 8);
        }
        *(uint4 *)(to + r * pitch + c * 16) = v;
    }
}

__global__ void __launch_bounds__(THREADS) scales_kernel(const __grid_constant__ kk_cu_scales a) {
    extern __shared__ __align__(128) char smem[];
    __shared__ float part[WARPS][TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = (int)blockIdx.x * TILE;
    const int n = min((int)TILE, a.rows.n_rows - first), steps = (a.latent.head_dim + 31) / 32;
    const int pitch = kk_rows_pitch(steps * 32);
    int layer = 0, head = (int)blockIdx.y;
    while (head >= a.of[layer].n_kv_head) head -= a.of[layer++].n_kv_head;
    const int d = a.of[layer].head_dim;
    kk_next();
    kk_wait();
    stage_latents(smem, pitch, a, first, n);
    __syncthreads();
    const uint32_t z = kk_shared(smem) + lane % 16 * pitch + lane / 16 * 16;
    const uint4 *w = (const uint4 *)a.of[layer].values + (size_t)head * (d / 8) * steps * 32 + lane;
    float lo = 0, hi = 0;
    for (int strip = warp; strip < d / 8; strip += WARPS) {
        float c[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (int s = 0; s < steps; s++) {
            const uint4 b = w[(size_t)(strip * steps + s) * 32];
            uint32_t x[4], y[4];
            kk_load_rows(x, z + s * 64);
            kk_load_rows(y, z + s * 64 + 32);
            kk_times(c, x, b.x, b.y);
            kk_times(c, y, b.z, b.w);
        }
        lo = __fmaf_rn(c[1], c[1], __fmaf_rn(c[0], c[0], lo));
        hi = __fmaf_rn(c[3], c[3], __fmaf_rn(c[2], c[2], hi));
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
        lo = __fadd_rn(lo, __shfl_xor_sync(0xffffffffu, lo, o));
        hi = __fadd_rn(hi, __shfl_xor_sync(0xffffffffu, hi, o));
    }
    if (lane % 4 == 0) {
        part[warp][lane / 4] = lo;
        part[warp][lane / 4 + 8] = hi;
    }
    __syncthreads();
    const int r = (int)threadIdx.x;
    if (r >= n) return;
    float sum = part[0][r];
    for (int i = 1; i < WARPS; i++) sum = __fadd_rn(sum, part[i][r]);
    const float inv = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)d), a.eps)));
    const int64_t pos = a.rows.pos[first + r];
    uint8_t *page = a.rows.pages[a.rows.table[first + r] + pos / KK_PAGE];
    ((uint16_t *)(page + a.scales.v_off))[(size_t)(pos % KK_PAGE) * a.scales.head_dim +
                                          a.of[layer].at + head] = kk_dbf16(inv);
}

cudaError_t kk_cu_run_scales(kk_cu_at at, const kk_cu_scales *a) {
    const dim3 grid(kk_blocks((size_t)a->rows.n_rows, TILE), (unsigned)a->heads);
    return kk_launch(at, scales_kernel, *a, grid, THREADS,
                     (size_t)TILE * (size_t)kk_rows_pitch(kk_cu_latent_pitch(a->latent.head_dim)));
}

/* ---- angles --------------------------------------------------------------------------------- */

__global__ void angles_kernel(const __grid_constant__ kk_cu_angles a) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= KK_CU_LATENT_ROWS * a.wide) return;
    const int pos = i / a.wide, k = i % a.wide;
    double s = 0, c = 1;
    if (k < a.n_rot) {
        const float freq = __fdiv_rn((float)pow((double)a.theta, -2.0 * k / a.head_dim), a.factor);
        sincos((double)__fmul_rn((float)pos, freq), &s, &c);
    }
    ((float2 *)a.to)[i] = make_float2((float)c, (float)s);
}

cudaError_t kk_cu_run_angles(kk_cu_at at, const kk_cu_angles *a) {
    at.early = false;
    return kk_launch(at, angles_kernel, *a,
                     kk_blocks((size_t)KK_CU_LATENT_ROWS * (size_t)a->wide, THREADS), THREADS, 0);
}
