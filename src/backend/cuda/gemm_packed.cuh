/* gemm_packed.cuh - products for more than 16 rows with packed weights: the tiles, rows and
 * pipelines of gemm.cuh with the arithmetic of packed.cuh.  A kernel is compiled for each encoding.
 *
 *    stage, 32 KB: as in gemm.cuh, but that a step's block of w fills its 512 bytes in part
 *    ring of 4 stages (3 where a block has less shared memory)
 *    step 0 of stage s: unpack; load step 1's codes into registers; multiply
 *    step 1: unpack; cp.async.wait_group; bar.sync: stage s + 1 has arrived, and all warps are done
 *            with stage s - 1, whose place is filled; load the next stage's first codes; multiply
 *
 * Both halves of the warps unpack the same strips: that costs fewer instructions than handing
 * unpacked ones over in shared memory, and shared memory is what bf16 products wait for. */
#ifndef KK_CUDA_GEMM_PACKED_CUH
#define KK_CUDA_GEMM_PACKED_CUH

#include "gemm.cuh"

template <bool EXPERTS, bool GLU, int W> struct kk_packed_gemm {
    using pack = kk_packing<W>;
    const kk_gemm_args &a;
    kk_filler<EXPERTS, GLU, W> filler;
    kk_tile_sums sum, c;
    kk_codes<W> code[KK_WARP_STRIPS]; /* of the next step */
    uint2 bits[KK_WARP_STRIPS];
    uint4 w[KK_WARP_STRIPS]; /* of this step */
    kk_scales scale[KK_WARP_STRIPS][2];
    uint32_t smem;
    int slot, x_off, w_off; /* the stage being multiplied; byte offsets in a stage */

    __device__ __forceinline__ kk_packed_gemm(const kk_gemm_args &args, kk_tile_lists *lists,
                                              const char *memory, int tiles)
        : a(args), filler(args, lists, tiles), smem(kk_shared(memory)), slot(0), x_off(0) {
        w_off = KK_TILE_X + (int)(threadIdx.x / KK_WARP % 4) * KK_WARP_STRIPS * 1024;
    }
    __device__ __forceinline__ uint32_t stage_at(int i) const { return smem + i * KK_TILE_STAGE; }
    __device__ __forceinline__ int after(int i) const { return i + 1 == a.stages ? 0 : i + 1; }

    /* Loads the codes and scales of a step from shared memory. */
    __device__ __forceinline__ void load(uint32_t stage, int step) {
        const uint32_t at = stage + w_off + step * 512, lane = threadIdx.x % KK_WARP;
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++) {
            code[i] = kk_codes_load<W>(at + i * 1024, lane);
            bits[i] = kk_scales_pair<W>(at + i * 1024, lane % 4 * 2);
        }
    }
    __device__ __forceinline__ void unpack() {
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++) {
            w[i] = kk_codes_bf16<W>(code[i]);
            scale[i][0] = kk_scales_of<W>(bits[i].x);
            scale[i][1] = kk_scales_of<W>(bits[i].y);
        }
    }
    /* to += the step's products with strip i as it is (half 0, 1: those of its 16 inputs alone). */
    __device__ __forceinline__ void add(kk_tile_sums &to, int m, const uint4 &one, const uint4 &two,
                                        int half) {
        float t[KK_WARP_STRIPS][4];
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++) {
            const uint4 v = pack::HALVES ? kk_half_of(w[i], half > 0) : w[i];
            kk_mma_first(t[i], one.x, one.y, one.z, one.w, v.x, v.y);
        }
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++) {
            const uint4 v = pack::HALVES ? kk_half_of(w[i], half > 0) : w[i];
            kk_mma(t[i], two.x, two.y, two.z, two.w, v.z, v.w);
        }
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++) {
            const float p = half ? scale[i][0].m : scale[i][0].d;
            const float q = half ? scale[i][1].m : scale[i][1].d;
            kk_add_scaled(to[m][i], t[i], p, q, p, q);
        }
    }
    __device__ __forceinline__ void multiply(int m, const uint4 &one, const uint4 &two) {
        float u[4];
        if constexpr (pack::AFFINE) {
            const uint32_t ones = 0x3f803f80u;
            kk_mma_first(u, one.x, one.y, one.z, one.w, ones, ones);
            kk_mma(u, two.x, two.y, two.z, two.w, ones, ones);
        }
        add(c, m, one, two, 0);
        if (pack::HALVES) add(c, m, one, two, 1);
        if constexpr (pack::AFFINE) {
#pragma unroll
            for (int i = 0; i < KK_WARP_STRIPS; i++)
                kk_add_scaled(c[m][i], u, scale[i][0].m, scale[i][1].m, scale[i][0].m,
                              scale[i][1].m);
        }
    }
    /* A step of this warp's fragments; x: the address of its rows.  The rows of the next fragment
     * are loaded ahead, whether there is one or not. */
    __device__ __forceinline__ void multiply_all(uint32_t x, int pieces) {
        uint4 one = kk_matrices(x), two = kk_matrices(x ^ 32);
#pragma unroll
        for (int m = 0; m < KK_WARP_PIECES; m++) {
            if (m >= pieces) break;
            uint4 next = one, later = two;
            if (m + 1 < KK_WARP_PIECES) {
                next = kk_matrices(x + (m + 1) * 2048);
                later = kk_matrices((x ^ 32) + (m + 1) * 2048);
            }
            multiply(m, one, two);
            one = next;
            two = later;
        }
    }
    /* The next stage has arrived for all threads; the place of the one before is filled. */
    __device__ __forceinline__ void advance() {
        if (a.stages > 3)
            kk_copies_wait<1>();
        else
            kk_copies_wait<0>();
        __syncthreads();
        filler.fill_packed(stage_at(slot == 0 ? a.stages - 1 : slot - 1));
    }
    __device__ __forceinline__ void end_slice() {
#pragma unroll
        for (int g = 0; g < KK_WARP_PIECES; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_STRIPS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[g][p][i] = __fadd_rn(sum[g][p][i], c[g][p][i]);
                    c[g][p][i] = 0;
                }
    }
    __device__ __forceinline__ void sum_tile(const kk_place &p) {
        const int lane = threadIdx.x % KK_WARP, pieces = kk_pieces_of(p);
        kk_step_count n(p.steps(a), a.cuts > 1);
        x_off = kk_first_piece(p) * 2048 + (lane & 15) * 128 + ((lane / 16 ^ lane) & 7) * 16;
#pragma unroll
        for (int g = 0; g < KK_WARP_PIECES; g++)
#pragma unroll
            for (int i = 0; i < KK_WARP_STRIPS * 4; i++) (&sum[g][0][0])[i] = (&c[g][0][0])[i] = 0;
#pragma unroll 1
        for (int left = n.end() / 2; left > 0; left--) {
            const uint32_t stage = stage_at(slot);
            unpack();
            load(stage, 1);
            multiply_all(stage + x_off, pieces);
            if (n.slice_ends()) end_slice();
            unpack();
            advance();
            slot = after(slot);
            load(stage_at(slot), 0);
            multiply_all((stage + x_off) ^ 64, pieces);
            if (n.slice_ends()) end_slice();
        }
    }
    __device__ __forceinline__ void run() {
        const int total = filler.total, grid = (int)gridDim.x;
        kk_tile_lists *lists = EXPERTS ? filler.lists : NULL;
        kk_place now;
        int at = (int)blockIdx.x, order = 0;
        if (at >= total) return;
#pragma unroll 1
        for (int i = 0; i < a.stages - 1; i++) filler.fill_packed(stage_at(i));
        if (a.stages > 3)
            kk_copies_wait<2>();
        else
            kk_copies_wait<1>();
        __syncthreads();
        load(stage_at(0), 0);
        for (; at < total; at += grid, order++) {
            now.seek(a, lists, filler.tiles, at, order);
            sum_tile(now);
            kk_tile_write<EXPERTS, GLU>(a, sum, now,
                                        EXPERTS ? lists->slot[order % KK_TILE_RING] : NULL);
        }
    }
};

template <bool EXPERTS, bool GLU, int W>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 1)
    kk_packed_gemm_kernel(const __grid_constant__ kk_gemm_args a) {
    extern __shared__ __align__(128) char smem[];
    __shared__ kk_tile_lists lists;
    kk_wait();
    kk_next();
    kk_packed_gemm<EXPERTS, GLU, W> g(a, EXPERTS ? &lists : NULL, smem,
                                      EXPERTS ? *a.n_tiles : a.tiles);
    g.run();
}

#endif
