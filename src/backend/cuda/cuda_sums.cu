/* cuda_sums.cu - sums over rows in float64.
 *
 *    gram:    tiles of 128 x 128 sums, 256 threads of 8 x 8 each, in registers over all rows.  Rows
 *             come 8 at a time: global -> registers (the next 8 while these are used), float64 in
 *             shared memory, two buffers of 16 KB, one barrier for 8 rows.  A thread has pairs of
 *             neighbouring sums 32 apart, so that a warp reads shared memory without conflicts.
 *             Across: a thread has 4 rows of a column instead of 4 columns of a row.
 *             A step of a row takes a block 256 cycles of fma on sm_90 and as many of reading
 *             shared memory, of which both together leave about half.
 *    squares: a thread per value, all rows
 *    A sum is one chain of fma over the rows in order: the CPU's bits. */
#include "arith.cuh"
#include "launch.cuh"
#include "sums_ops.h"

enum { TILE = 128, SLAB = 8, THREADS = 256, SIDE = 8 };

/* Values [col, col + 4) of n that lie side by side; 0 beyond them, and where there are none. */
__device__ __forceinline__ void fetch(float v[4], const float *row, int col, int n, bool there) {
    if (there && n % 4 == 0 && col < n) {
        const float4 x = *(const float4 *)(row + col);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = there && col + i < n ? row[col + i] : 0.0f;
}

__device__ __forceinline__ void fetch(double v[4], const double *row, int col, int n, bool there) {
    if (there && n % 4 == 0 && col < n) {
        const double2 x = *(const double2 *)(row + col), y = *(const double2 *)(row + col + 2);
        v[0] = x.x, v[1] = x.y, v[2] = y.x, v[3] = y.y;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = there && col + i < n ? row[col + i] : 0.0;
}

/* Four neighbouring values of a slab's row k; or, across, of rows k to k + 3. */
template <bool ACROSS, class T>
__device__ __forceinline__ void put(double (*to)[TILE], int k, int col, const T v[4], double by) {
    if (ACROSS) {
#pragma unroll
        for (int i = 0; i < 4; i++) to[k + i][col] = (double)v[i];
        return;
    }
    double *at = &to[k][col];
    *(double2 *)at = make_double2(__dmul_rn(by, (double)v[0]), __dmul_rn(by, (double)v[1]));
    *(double2 *)(at + 2) = make_double2(__dmul_rn(by, (double)v[2]), __dmul_rn(by, (double)v[3]));
}

/* Where sum i of a thread's eight lies among the tile's 128. */
__device__ __forceinline__ int place(int thread, int i) {
    return 2 * thread + 32 * (i / 2) + i % 2;
}

__device__ __forceinline__ void read_eight(double v[SIDE], const double *from, int thread) {
#pragma unroll
    for (int i = 0; i < SIDE; i += 2) {
        const double2 x = *(const double2 *)(from + place(thread, i));
        v[i] = x.x, v[i + 1] = x.y;
    }
}

/* Adds the rows of a slab, in order. */
__device__ __forceinline__ void add_slab(double sum[SIDE][SIDE], const double (*as)[TILE],
                                         const double (*bs)[TILE], int ty, int tx) {
#pragma unroll
    for (int k = 0; k < SLAB; k++) {
        double x[SIDE], y[SIDE];
        read_eight(x, as[k], ty);
        read_eight(y, bs[k], tx);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) sum[i][j] = __fma_rn(x[i], y[j], sum[i][j]);
    }
}

/* A thread's four values of a slab that begins at row r0, in columns from c0 on. */
template <bool ACROSS, class T>
__device__ __forceinline__ void fetch_slab(T v[4], const T *from, int r0, int c0, int k, int col,
                                           int n_rows, int n) {
    if (ACROSS)
        fetch(v, from + (size_t)(c0 + col) * n_rows, r0 + k, n_rows, c0 + col < n);
    else
        fetch(v, from + (size_t)(r0 + k) * n, c0 + col, n, r0 + k < n_rows);
}

template <bool ACROSS, class T>
__global__ void __launch_bounds__(THREADS, 1) gram_kernel(const __grid_constant__ kk_cu_gram g) {
    __shared__ double as[2][SLAB][TILE], bs[2][SLAB][TILE];
    const int p0 = (int)blockIdx.y * TILE, q0 = (int)blockIdx.x * TILE;
    const int t = (int)threadIdx.x, ty = t / 16, tx = t % 16;
    const int k = ACROSS ? t % 2 * 4 : t / 32, col = ACROSS ? t / 2 : t % 32 * 4;
    const bool same = g.a == g.b;
    kk_next();
    kk_wait();
    if (same && p0 >= q0 + TILE) return; /* copies of others */
    double sum[SIDE][SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            const int p = p0 + place(ty, i), q = q0 + place(tx, j);
            sum[i][j] = p < g.n_a && q < g.n_b ? g.sum[(size_t)p * g.n_b + q] : 0.0;
        }
    T x[4], y[4];
    double by = 1;
    const int slabs = (g.n_rows + SLAB - 1) / SLAB;
    for (int s = -1; s < slabs; s++) {
        const int next = s + 1, r0 = next * SLAB;
        if (next < slabs) {
            fetch_slab<ACROSS>(x, (const T *)g.a, r0, p0, k, col, g.n_rows, g.n_a);
            fetch_slab<ACROSS>(y, (const T *)g.b, r0, q0, k, col, g.n_rows, g.n_b);
            if (g.weight) by = r0 + k < g.n_rows ? g.weight[r0 + k] : 0.0;
        }
        if (s >= 0) add_slab(sum, as[s % 2], bs[s % 2], ty, tx);
        if (next < slabs) {
            put<ACROSS>(as[next % 2], k, col, x, by);
            put<ACROSS>(bs[next % 2], k, col, y, 1.0);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            const int p = p0 + place(ty, i), q = q0 + place(tx, j);
            if (p >= g.n_a || q >= g.n_b || (same && p > q)) continue;
            g.sum[(size_t)p * g.n_b + q] = sum[i][j];
            if (same) g.sum[(size_t)q * g.n_b + p] = sum[i][j];
        }
}

cudaError_t kk_cu_run_gram(kk_cu_at at, const kk_cu_gram *a) {
    if (a->n_a < 1 || a->n_b < 1 || a->n_rows < 1) return cudaErrorInvalidValue;
    const unsigned tall = ((unsigned)a->n_a + TILE - 1) / TILE;
    const unsigned wide = ((unsigned)a->n_b + TILE - 1) / TILE;
    if (tall > 65535) return cudaErrorInvalidValue;
    const dim3 grid(wide, tall);
    void (*k)(kk_cu_gram) =
        a->across ? (a->doubles ? gram_kernel<true, double> : gram_kernel<true, float>)
                  : (a->doubles ? gram_kernel<false, double> : gram_kernel<false, float>);
    return kk_launch(at, k, *a, grid, THREADS, 0);
}

__global__ void __launch_bounds__(THREADS) squares_kernel(const __grid_constant__ kk_cu_squares s) {
    const int p = (int)(blockIdx.x * THREADS + threadIdx.x);
    kk_next();
    kk_wait();
    if (p >= s.dim) return;
    double sum = s.sum[p];
#pragma unroll 8
    for (int r = 0; r < s.n_rows; r++) {
        const double x = (double)s.x[(size_t)r * s.dim + p];
        sum = __fma_rn(x, x, sum);
    }
    s.sum[p] = sum;
}

cudaError_t kk_cu_run_squares(kk_cu_at at, const kk_cu_squares *a) {
    if (a->dim < 1 || a->n_rows < 1) return cudaErrorInvalidValue;
    return kk_launch(at, squares_kernel, *a, kk_blocks((size_t)a->dim, THREADS), THREADS, 0);
}
