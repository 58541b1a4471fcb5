/* evicted.cuh - what kernels over latents share: which rows are gone, and latents as operands of
 * tensor cores.
 *
 * A latent is rounded to bf16 as it is read, and so are decoders when they are laid out.  Products
 * are chains of m16n8k16 with float32 sums over the latent's values in ascending order. */
#ifndef KK_CUDA_EVICTED_CUH
#define KK_CUDA_EVICTED_CUH

#include "evicted_ops.h"
#include "kv_rows.cuh"
#include "stream.cuh"

/* The evicted rows [from, to) that a row at position `at` sees: core/visible.h. */
struct kk_gone {
    int from, to;
    __device__ __forceinline__ bool has(int j) const { return j >= from && j < to; }
};
__device__ __forceinline__ kk_gone kk_gone_at_row(const kk_cu_evicted &a, int at) {
    const int from = max(a.window ? max(at - a.window + 1, 0) : 0, a.sink);
    return {from, max(at - at % a.chunk - a.keep, from)};
}

/* The part of a tile that a launch works on. */
struct kk_gone_tile {
    kk_cu_tile info;
    int first, rows, group; /* first row in the forward; rows; query heads of a K/V head */
    int pos;                /* position of the first row */
    int span;               /* number of the first span that its first row sees */
    __device__ __forceinline__ kk_gone_tile(const kk_cu_evicted &a, int tile) {
        info = a.rows.tile[a.first_tile + tile];
        first = info.row + a.first_row;
        rows = min(info.rows - a.first_row, a.tile_rows);
        group = a.n_head / a.n_kv_head;
        pos = (int)info.pos + a.first_row;
        span = kk_gone_at_row(a, pos).from / KK_PAGE / a.span;
    }
};

/* Queries of a tile and K/V head, row after row. */
struct kk_gone_query {
    int row, head; /* row of the tile */
    __device__ __forceinline__ kk_gone_query(const kk_gone_tile &t, int kv, int i)
        : row(i / t.group), head(kv * t.group + i % t.group) {}
};

/* Copies 16 bytes to shared memory asynchronously; zeros unless `real`. */
__device__ __forceinline__ void kk_copy_async(char *to, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(kk_shared(to)), "l"(from),
                 "r"(real ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void kk_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until no more than N groups of this thread's copies are in flight. */
template <int N> __device__ __forceinline__ void kk_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Eight values of a latent from `at` on, a multiple of 8, as bf16; 0 from rank on. */
__device__ __forceinline__ uint4 kk_latent_values(const kk_cu_slot &s, const uint8_t *rows, int j,
                                                  int at) {
    const int rank = s.head_dim;
    float f[8];
    if (rank % 8 == 0) {
        if (at >= rank) return make_uint4(0, 0, 0, 0);
        if (s.format == KK_CU_BF16) return *(const uint4 *)(rows + ((size_t)j * rank + at) * 2);
        kk_stored<8>(f, s, rows, j, at, rank);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f[i] = 0;
            if (at + i < rank) kk_stored<1>(f + i, s, rows, j, at + i, rank);
        }
    }
    return kk_narrow(f);
}

/* Sixteen rows of 16 values in shared memory as the operand A of a product: at: of this lane, which
 * is row lane % 16, value 8 * (lane / 16). */
__device__ __forceinline__ void kk_load_rows(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}
/* The same of the transposed rows: at: row lane % 8 + 8 * (lane / 16), value 8 * (lane / 8 % 2). */
__device__ __forceinline__ void kk_load_columns(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void kk_times(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    kk_mma(c, a[0], a[1], a[2], a[3], b0, b1);
}

/* Bytes from one row of so many bf16 values in shared memory to the next: rows that ldmatrix reads
 * together lie in different banks. */
__host__ __device__ __forceinline__ int kk_rows_pitch(int values) {
    return (values * 2 + 127) / 128 * 128 + 16;
}

#endif
