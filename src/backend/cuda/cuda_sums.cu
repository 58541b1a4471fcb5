/* cuda_sums.cu - sums over rows in float64.
 *
 *    gram:    tiles of 128 x 128 sums, 256 threads of 8 x 8 each, in registers over all rows.  Rows
 *             come 8 at a time: global -> registers (the next 8 while these are used), float64 in
 *             shared memory, two buffers of 16 KB, one barrier for 8 rows.  A thread has pairs of
 *             neighbouring sums 32 apart, so that a warp reads shared memory without conflicts.
 *             A step of a row takes a block 96 reads of 128 bytes from shared memory, and 256
 *             cycles of fma on sm_90, so arithmetic is the limit.
 *    squares: a thread per value, all rows
 *    A sum is one chain of fma over the rows in order: the CPU's bits. */
#include "arith.cuh"
#include "launch.cuh"
#include "sums_ops.h"

enum { TILE = 128, SLAB = 8, THREADS = 256, SIDE = 8, EACH_COLUMNS = 4 };

/* Values [col, col + 4) of a row of n; 0 beyond it, and in rows that there are not. */
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

template <class T> __device__ __forceinline__ void put(double *to, const T v[4], double by) {
    *(double2 *)to = make_double2(__dmul_rn(by, (double)v[0]), __dmul_rn(by, (double)v[1]));
    *(double2 *)(to + 2) = make_double2(__dmul_rn(by, (double)v[2]), __dmul_rn(by, (double)v[3]));
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

template <class T>
__global__ void __launch_bounds__(THREADS, 1) gram_kernel(const __grid_constant__ kk_cu_gram g) {
    __shared__ double as[2][SLAB][TILE], bs[2][SLAB][TILE];
    const int p0 = (int)blockIdx.y * TILE, q0 = (int)blockIdx.x * TILE;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    const int k = (int)threadIdx.x / 32, col = (int)threadIdx.x % 32 * EACH_COLUMNS;
    kk_next();
    kk_wait();
    if (g.a == g.b && p0 >= q0 + TILE) return; /* a sum that its mirror image stands for */
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
        const int next = s + 1, r = next * SLAB + k;
        if (next < slabs) {
            const bool there = r < g.n_rows;
            fetch(x, (const T *)g.a + (size_t)r * g.n_a, p0 + col, g.n_a, there);
            fetch(y, (const T *)g.b + (size_t)r * g.n_b, q0 + col, g.n_b, there);
            if (g.weight) by = there ? g.weight[r] : 0.0;
        }
        if (s >= 0) add_slab(sum, as[s % 2], bs[s % 2], ty, tx);
        if (next < slabs) {
            put(&as[next % 2][k][col], x, by);
            put(&bs[next % 2][k][col], y, 1.0);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            const int p = p0 + place(ty, i), q = q0 + place(tx, j);
            if (p < g.n_a && q < g.n_b) g.sum[(size_t)p * g.n_b + q] = sum[i][j];
        }
}

cudaError_t kk_cu_run_gram(kk_cu_at at, const kk_cu_gram *a) {
    if (a->n_a < 1 || a->n_b < 1 || a->n_rows < 1) return cudaErrorInvalidValue;
    const unsigned tall = ((unsigned)a->n_a + TILE - 1) / TILE;
    const unsigned wide = ((unsigned)a->n_b + TILE - 1) / TILE;
    if (tall > 65535) return cudaErrorInvalidValue;
    const dim3 grid(wide, tall);
    return a->doubles ? kk_launch(at, gram_kernel<double>, *a, grid, THREADS, 0)
                      : kk_launch(at, gram_kernel<float>, *a, grid, THREADS, 0);
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
