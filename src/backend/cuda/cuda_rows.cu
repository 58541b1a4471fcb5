/* cuda_rows.cu - kernels that compute each row on its own, the layout of weights, and greedy
 * choices.
 *
 *    element-wise kernels: 256 threads, grid-stride loop over [n_rows][dim], no shared memory
 *    norm, residual, ple:  512 threads, one row per block, sums[16] f32 in smem (rows.cuh)
 *    argmax:               1024 threads per row; warp shuffle, 32 partial results in smem, shuffle
 *    choose_rows:          64 blocks x 256 threads per row: arg max and digest of each chunk,
 *                          warp -> block -> global; the last block of a row (atomic counter) merges
 *                          them and writes token and digest to pinned host memory
 *    Every kernel calls kk_next before kk_wait (programmatic dependent launch), except `bring`. */
#include "core/digest.h"
#include "launch.cuh"
#include "packed.cuh"
#include "rows.cuh"

enum { THREADS = 256 };

#define EACH(i, n)                                                                                 \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                        \
         i += (size_t)gridDim.x * blockDim.x)

/* ---- weights ------------------------------------------------------------------------------ */

/* Index of input k of output o of matrix m, in bf16 values; add plane * wrap * 256 for a later
 * plane. */
__device__ __forceinline__ size_t weight_at(const kk_cu_weight &w, int64_t m, int64_t o, int k) {
    const size_t steps = (size_t)w.wrap * w.planes;
    const size_t strip = (size_t)m * w.strips + (size_t)(o / 8);
    const int lane = (int)(o % 8) * 4 + k % 32 / 8;
    return (strip * steps + (size_t)(k / 32)) * 256 + (size_t)lane * 8 + (size_t)(k % 8);
}

__device__ __forceinline__ float weight_value(const kk_cu_weight &w, int64_t m, int64_t o, int k) {
    float v = kk_weight_value(w, m, o, k);
    for (int i = 1; i < w.planes; i++)
        v = __fadd_rn(v, kk_weight_value(w, m, o, i * w.wrap * KK_STEP + k));
    return v;
}

__global__ void lay_kernel(const __grid_constant__ kk_cu_lay a) {
    const int n_in = (int)a.w.n_in;
    uint16_t *to = (uint16_t *)a.to;
    EACH(i, (size_t)a.n_rows * (size_t)n_in) {
        const int64_t r = (int64_t)(i / (size_t)n_in);
        const int k = (int)(i % (size_t)n_in);
        const size_t at = weight_at(a.w, a.mat, a.row + r, k);
        if (a.bf16) {
            to[at] = ((const uint16_t *)a.from)[i];
            continue;
        }
        float left = ((const float *)a.from)[i];
        for (int p = 0; p < a.w.planes; p++) {
            const uint16_t h = kk_dbf16(left);
            to[at + (size_t)p * a.w.wrap * 256] = h;
            left = __fsub_rn(left, kk_dfloat(h));
        }
    }
}

cudaError_t kk_cu_run_lay(kk_cu_at at, const kk_cu_lay *a) {
    return kk_launch(at, lay_kernel, *a, kk_blocks((size_t)a->n_rows * (size_t)a->w.n_in, THREADS),
                     THREADS, 0);
}

/* ---- rows --------------------------------------------------------------------------------- */

__global__ void embed_kernel(const __grid_constant__ kk_cu_embed a) {
    kk_next();
    kk_wait();
    const int n = (int)a.table.n_in;
    EACH(i, (size_t)a.n_rows * (size_t)n) {
        const int r = (int)(i / (size_t)n), k = (int)(i % (size_t)n);
        a.out[i] = __fmul_rn(weight_value(a.table, 0, a.token[r], k), a.scale);
    }
}
cudaError_t kk_cu_run_embed(kk_cu_at at, const kk_cu_embed *a) {
    return kk_launch(at, embed_kernel, *a,
                     kk_blocks((size_t)a->n_rows * (size_t)a->table.n_in, THREADS), THREADS, 0);
}

cudaError_t kk_cu_run_between(kk_cu_at at, const kk_cu_between *a) {
    if (a->dim > KK_ROW_MOST) return cudaErrorInvalidValue;
    void (*k)(kk_cu_between) = a->dim <= KK_ROW_SPAN       ? kk_between_kernel<1>
                               : a->dim <= 2 * KK_ROW_SPAN ? kk_between_kernel<2>
                                                           : kk_between_kernel<4>;
    return kk_launch(at, k, *a, (unsigned)a->n_rows, KK_ROW_THREADS, 0);
}

template <int V>
__global__ void __launch_bounds__(KK_ROW_THREADS, 1)
    norm_kernel(const __grid_constant__ kk_cu_norm a) {
    __shared__ float sums[16];
    const size_t at = (size_t)blockIdx.x * (size_t)a.dim;
    kk_next();
    kk_wait();
    kk_row<V> x = kk_row_load<V>(a.x + at, a.dim), w;
    if (a.w) w = kk_row_load<V>(a.w, a.dim);
    const float inv = kk_inv_rms(x, a.dim, a.eps, sums);
#pragma unroll
    for (int i = 0; i < 4 * V; i++) {
        x.v[i] = __fmul_rn(x.v[i], inv);
        if (a.w) x.v[i] = __fmul_rn(x.v[i], w.v[i]);
    }
    kk_row_store(a.out + at, x, a.dim);
}
cudaError_t kk_cu_run_norm(kk_cu_at at, const kk_cu_norm *a) {
    if (a->dim > KK_ROW_MOST) return cudaErrorInvalidValue;
    void (*k)(kk_cu_norm) = a->dim <= KK_ROW_SPAN       ? norm_kernel<1>
                            : a->dim <= 2 * KK_ROW_SPAN ? norm_kernel<2>
                                                        : norm_kernel<4>;
    return kk_launch(at, k, *a, (unsigned)a->n_rows, KK_ROW_THREADS, 0);
}

template <int V>
__global__ void __launch_bounds__(KK_ROW_THREADS, 1)
    residual_kernel(const __grid_constant__ kk_cu_residual a) {
    __shared__ float sums[16];
    const size_t at = (size_t)blockIdx.x * (size_t)a.dim;
    kk_next();
    kk_wait();
    kk_row<V> y = kk_row_load<V>(a.a + at, a.dim), x = kk_row_load<V>(a.x + at, a.dim);
    if (a.w) {
        const kk_row<V> w = kk_row_load<V>(a.w, a.dim);
        kk_scale(y, y, kk_inv_rms(y, a.dim, a.eps, sums), w);
    }
#pragma unroll
    for (int i = 0; i < 4 * V; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), a.scale);
    kk_row_store(a.x + at, x, a.dim);
}
cudaError_t kk_cu_run_residual(kk_cu_at at, const kk_cu_residual *a) {
    if (a->dim > KK_ROW_MOST) return cudaErrorInvalidValue;
    void (*k)(kk_cu_residual) = a->dim <= KK_ROW_SPAN       ? residual_kernel<1>
                                : a->dim <= 2 * KK_ROW_SPAN ? residual_kernel<2>
                                                            : residual_kernel<4>;
    return kk_launch(at, k, *a, (unsigned)a->n_rows, KK_ROW_THREADS, 0);
}

__global__ void glu_kernel(const __grid_constant__ kk_cu_glu a) {
    kk_next();
    kk_wait();
    EACH(i, (size_t)a.n_rows * (size_t)a.dim) {
        const size_t r = i / (size_t)a.dim, c = i % (size_t)a.dim;
        const float up = a.up[r * (size_t)a.up_stride + (size_t)a.up_offset + c], g = a.gate[i];
        a.out[i] = __fmul_rn(a.silu ? kk_dsilu(g) : kk_dgelu(g), up);
    }
}
cudaError_t kk_cu_run_glu(kk_cu_at at, const kk_cu_glu *a) {
    return kk_launch(at, glu_kernel, *a, kk_blocks((size_t)a->n_rows * (size_t)a->dim, THREADS),
                     THREADS, 0);
}

typedef struct {
    kk_cu_rope of[KK_CU_ROPES];
} ropes_args;

/* RoPE angles are products of floats, as in the reference. */
__global__ void ropes_kernel(const __grid_constant__ ropes_args args) {
    const kk_cu_rope &a = args.of[blockIdx.y];
    kk_next();
    kk_wait();
    EACH(i, (size_t)a.n * (size_t)a.n_rot) {
        const int64_t r = (int64_t)(i / (size_t)a.n_rot);
        const int k = (int)(i % (size_t)a.n_rot);
        const double exponent = -2.0 * k / a.head_dim;
        const float freq = __fdiv_rn((float)pow((double)a.theta, exponent), a.factor);
        const double angle = (double)__fmul_rn((float)a.pos[1 + r], freq);
        float *row = a.table + (size_t)((a.pos[0] + r) * 2 * a.n_rot);
        row[k] = (float)cos(angle);
        row[a.n_rot + k] = (float)sin(angle);
    }
}
cudaError_t kk_cu_run_ropes(kk_cu_at at, const kk_cu_rope *a, int n) {
    ropes_args args = {};
    size_t most = 0;
    int used = 0;
    for (int i = 0; i < n; i++) {
        const size_t angles = (size_t)(a[i].n * a[i].n_rot);
        if (!angles) continue;
        args.of[used++] = a[i];
        if (angles > most) most = angles;
    }
    if (!used) return cudaSuccess;
    return kk_launch(at, ropes_kernel, args, dim3(kk_blocks(most, 64), (unsigned)used), 64, 0);
}

/* Per-layer embeddings: one block per row and layer, dim values. */
__global__ void __launch_bounds__(KK_ROW_THREADS, 1)
    ple_kernel(const __grid_constant__ kk_cu_ple a) {
    __shared__ float sums[16];
    const size_t r = blockIdx.y, l = blockIdx.x, at = (r * gridDim.x + l) * (size_t)a.dim;
    kk_next();
    kk_wait();
    kk_row<1> c = kk_row_load<1>(a.proj + at, a.dim);
    const kk_row<1> w = kk_row_load<1>(a.w, a.dim);
#pragma unroll
    for (int i = 0; i < 4; i++) c.v[i] = __fmul_rn(c.v[i], a.proj_scale);
    kk_scale(c, c, kk_inv_rms(c, a.dim, a.eps, sums), w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = 4 * (int)threadIdx.x + i;
        if (k >= a.dim) continue;
        const float t = weight_value(a.table, 0, a.token[r], (int)l * a.dim + k);
        c.v[i] = __fmul_rn(__fadd_rn(c.v[i], __fmul_rn(t, a.scale)), 0.70710678118654752f);
    }
    kk_row_store(a.out + at, c, a.dim);
}
cudaError_t kk_cu_run_ple(kk_cu_at at, const kk_cu_ple *a) {
    if (a->dim > KK_ROW_SPAN) return cudaErrorInvalidValue;
    return kk_launch(at, ple_kernel, *a, dim3((unsigned)a->n_layer, (unsigned)a->n_rows),
                     KK_ROW_THREADS, 0);
}

__global__ void gather_kernel(const __grid_constant__ kk_cu_gather a) {
    kk_next();
    kk_wait();
    const size_t dim = (size_t)a.dim, stride = a.out_stride ? a.out_stride : dim;
    EACH(i, (size_t)a.n * dim) {
        const size_t r = i / dim, c = i % dim;
        const size_t from = (size_t)(a.row ? a.row[r] : a.first + (int)r);
        a.out[*a.out_at + r * stride + c] = a.x[from * dim + c];
    }
}
cudaError_t kk_cu_run_gather(kk_cu_at at, const kk_cu_gather *a) {
    return kk_launch(at, gather_kernel, *a, kk_blocks((size_t)a->n * (size_t)a->dim, THREADS),
                     THREADS, 0);
}

__global__ void softcap_kernel(const __grid_constant__ kk_cu_softcap a) {
    kk_next();
    kk_wait();
    EACH(i, a.n) a.x[i] = kk_dsoftcap(a.x[i], a.cap);
}
cudaError_t kk_cu_run_softcap(kk_cu_at at, const kk_cu_softcap *a) {
    return kk_launch(at, softcap_kernel, *a, kk_blocks(a->n, 4 * THREADS), THREADS, 0);
}

__global__ void round_kernel(const __grid_constant__ kk_cu_round a) {
    kk_next();
    kk_wait();
    EACH(i, (size_t)a.n_rows * (size_t)a.pitch) {
        const size_t r = i / (size_t)a.pitch, c = i % (size_t)a.pitch;
        a.out[i] = c < (size_t)a.dim ? kk_dbf16(a.x[r * (size_t)a.dim + c]) : (uint16_t)0;
    }
}
/* Swizzled (kk_swizzled): a thread stores 16 bytes, two neighbours out of each eight values of
 * 32. */
__global__ void round_swizzled_kernel(const __grid_constant__ kk_cu_round a) {
    kk_next();
    kk_wait();
    const size_t per = (size_t)a.pitch / 8;
    EACH(i, (size_t)a.n_rows * per) {
        const size_t r = i / per, piece = i % per;
        const float *x = a.x + r * (size_t)a.dim;
        const int from = (int)(piece / 4) * 32 + (int)(piece % 4) * 2;
        uint32_t word[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int k = from + t * 8;
            word[t] = kk_dbf16x2(k < a.dim ? x[k] : 0, k + 1 < a.dim ? x[k + 1] : 0);
        }
        ((uint4 *)a.out)[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}
cudaError_t kk_cu_run_round(kk_cu_at at, const kk_cu_round *a) {
    const size_t n = (size_t)a->n_rows * (size_t)a->pitch;
    if (a->swizzled)
        return kk_launch(at, round_swizzled_kernel, *a, kk_blocks(n / 8, THREADS), THREADS, 0);
    return kk_launch(at, round_kernel, *a, kk_blocks(n, THREADS), THREADS, 0);
}

/* ---- choice ------------------------------------------------------------------------------- */

/* Whether a precedes b: numbers before NaN, larger first, then the lower index. */
__device__ __forceinline__ bool before(float a, int i, float b, int j) {
    const bool na = isnan(a), nb = isnan(b);
    if (na != nb) return nb;
    if (!na && a != b) return a > b;
    return i < j;
}

__global__ void __launch_bounds__(1024, 1) argmax_kernel(const __grid_constant__ kk_cu_argmax a) {
    __shared__ float value[32];
    __shared__ int index[32];
    kk_next();
    kk_wait();
    const float *x = a.x + (size_t)blockIdx.x * (size_t)a.dim;
    float best = NAN;
    int at = 0x7fffffff;
    for (int i = (int)threadIdx.x; i < a.dim; i += (int)blockDim.x) {
        if (i == a.banned && a.dim > 1) continue;
        if (at == 0x7fffffff || before(x[i], i, best, at)) {
            best = x[i];
            at = i;
        }
    }
    for (int round = 0; round < 2; round++) {
        for (int d = 16; d > 0; d >>= 1) {
            const float b = __shfl_xor_sync(0xffffffffu, best, d);
            const int j = __shfl_xor_sync(0xffffffffu, at, d);
            if (before(b, j, best, at)) {
                best = b;
                at = j;
            }
        }
        if (round) break;
        if (threadIdx.x % 32 == 0) {
            value[threadIdx.x / 32] = best;
            index[threadIdx.x / 32] = at;
        }
        __syncthreads();
        best = value[threadIdx.x % 32];
        at = index[threadIdx.x % 32];
    }
    if (threadIdx.x == 0) a.out[blockIdx.x] = at;
}
cudaError_t kk_cu_run_argmax(kk_cu_at at, const kk_cu_argmax *a) {
    return kk_launch(at, argmax_kernel, *a, (unsigned)a->n_rows, 1024, 0);
}

/* ---- choices that stay here ---------------------------------------------------------------- */

enum { CHOOSE_THREADS = 256 };

typedef struct {
    uint64_t sum;
    float best;
    int at;     /* -1: no value yet */
    int broken; /* not 0: a value was not finite */
} found;

__device__ __forceinline__ void join(found &a, uint64_t sum, float best, int at) {
    a.sum += sum;
    if (at >= 0 && (a.at < 0 || before(best, at, a.best, a.at))) {
        a.best = best;
        a.at = at;
    }
}

/* Merges the results of a warp's lanes, in all of them. */
__device__ __forceinline__ void join_warp(found &f) {
    for (int d = 16; d > 0; d >>= 1) {
        const uint64_t sum = __shfl_xor_sync(0xffffffffu, f.sum, d);
        const float best = __shfl_xor_sync(0xffffffffu, f.best, d);
        const int at = __shfl_xor_sync(0xffffffffu, f.at, d);
        f.broken |= __shfl_xor_sync(0xffffffffu, f.broken, d);
        join(f, sum, best, at);
    }
}

/* Adds one chunk of a row: its digest, its largest value. */
__device__ __forceinline__ void see_chunk(found &f, const float *x, int chunk, int dim) {
    uint32_t word[KK_DIGEST_WORDS];
    const int first = chunk * KK_DIGEST_WORDS;
    const int n = min(dim - first, (int)KK_DIGEST_WORDS);
    const uint32_t *from = (const uint32_t *)x + first;
    uint64_t carry = 0;
#pragma unroll
    for (int i = 0; i < KK_DIGEST_WORDS; i += 4) {
        if (n == KK_DIGEST_WORDS && dim % 4 == 0) {
            const uint4 v = *(const uint4 *)(from + i);
            word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
        } else {
            for (int k = i; k < i + 4; k++) word[k] = k < n ? from[k] : 0;
        }
    }
    if (n == KK_DIGEST_WORDS) {
        f.sum += kk_digest_chunk((uint64_t)chunk, word, KK_DIGEST_WORDS, &carry);
#pragma unroll
        for (int i = 0; i < KK_DIGEST_WORDS; i++) join(f, 0, __uint_as_float(word[i]), first + i);
    } else {
        f.sum += kk_digest_chunk((uint64_t)chunk, word, n, &carry);
        for (int i = 0; i < n; i++) join(f, 0, __uint_as_float(word[i]), first + i);
    }
    f.broken |= kk_digest_broken(carry);
}

__global__ void __launch_bounds__(CHOOSE_THREADS)
    choose_rows_kernel(const __grid_constant__ kk_cu_choose a) {
    __shared__ found warps[CHOOSE_THREADS / 32];
    __shared__ bool last;
    const int row = (int)blockIdx.y, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    kk_next();
    kk_wait();
    const float *x = a.x + (size_t)row * (size_t)a.dim;
    const int chunks = (a.dim + KK_DIGEST_WORDS - 1) / KK_DIGEST_WORDS;
    found f = {0, 0, -1, 0};
    for (int c = (int)(blockIdx.x * blockDim.x + threadIdx.x); c < chunks;
         c += (int)(gridDim.x * blockDim.x))
        see_chunk(f, x, c, a.dim);
    join_warp(f);
    if (lane == 0) warps[warp] = f;
    __syncthreads();
    if (warp == 0) {
        f = lane < CHOOSE_THREADS / 32 ? warps[lane] : found{0, 0, -1, 0};
        join_warp(f);
    }
    auto *part = a.scratch->part[row];
    if (threadIdx.x == 0) {
        part[blockIdx.x].sum = f.sum;
        part[blockIdx.x].best = f.best;
        part[blockIdx.x].at = f.at;
        part[blockIdx.x].broken = f.broken;
        __threadfence();
        last = atomicAdd(&a.scratch->done[row], 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || warp != 0) return;
    __threadfence();
    f = {0, 0, -1, 0};
    for (unsigned b = (unsigned)lane; b < gridDim.x; b += 32) {
        join(f, __ldcg(&part[b].sum), __ldcg(&part[b].best), __ldcg(&part[b].at));
        f.broken |= __ldcg(&part[b].broken);
    }
    join_warp(f);
    if (lane == 0) {
        a.scratch->done[row] = 0;
        a.token[row] = f.at;
        kk_cu_pick *to = a.ring + (size_t)*a.slot * KK_CU_CHOOSE_ROWS + row;
        to->token = f.at;
        to->broken = f.broken;
        to->digest = kk_digest_end(f.sum, (uint64_t)a.dim);
        __threadfence_system();
    }
}
cudaError_t kk_cu_run_choose_rows(kk_cu_at at, const kk_cu_choose *a) {
    if (a->n_rows < 1 || a->n_rows > KK_CU_CHOOSE_ROWS) return cudaErrorInvalidValue;
    return kk_launch(at, choose_rows_kernel, *a, dim3(KK_CU_CHOOSE_BLOCKS, (unsigned)a->n_rows),
                     CHOOSE_THREADS, 0);
}

/* ---- copies and reads ---------------------------------------------------------------------- */

/* Copies the control block.  Later kernels may read it before their own griddepcontrol.wait, so
 * none may start before this one has ended: it never calls kk_next. */
__global__ void bring_kernel(const __grid_constant__ kk_cu_bring a) {
    kk_wait();
    for (size_t i = threadIdx.x; i < (a.bytes + 15) / 16; i += blockDim.x)
        ((uint4 *)a.to)[i] = __ldcv((const uint4 *)a.from + i);
    __threadfence();
}
cudaError_t kk_cu_run_bring(kk_cu_at at, const kk_cu_bring *a) {
    return kk_launch(at, bring_kernel, *a, 1, 512, 0);
}

__global__ void skim_kernel(const __grid_constant__ kk_cu_skim a) {
    const uint4 *from = (const uint4 *)a.from;
    const size_t n = a.bytes / 16, step = (size_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = __ldcs(from + i + k * step);
#pragma unroll
        for (int k = 0; k < 4; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step) {
        const uint4 v = __ldcs(from + i);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x51ca7e11u) *a.sink = sum;
}
cudaError_t kk_cu_run_skim(kk_cu_at at, const kk_cu_skim *a) {
    return kk_launch(at, skim_kernel, *a, (unsigned)(at.sms * 8), 512, 0);
}

/* The small kernels around the persistent one ask for the same shared-memory carveout: changing it
 * takes time, twice per token. */
cudaError_t kk_cu_setup_rows(void) {
    const void *around[] = {(const void *)bring_kernel, (const void *)ropes_kernel,
                            (const void *)embed_kernel, (const void *)choose_rows_kernel};
    for (const void *k : around) {
        const cudaError_t e = cudaFuncSetAttribute(
            k, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
