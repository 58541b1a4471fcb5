/* cuda_gemm_packed.cu - the tiled products of gemm_packed.cuh for every encoding. */
#include "gemm_packed.cuh"
#include "launch.cuh"

typedef void (*gemm_fn)(kk_gemm_args);
struct encoding_kernels {
    gemm_fn fn[2][2]; /* by experts and gated products */
};
template <int W> constexpr encoding_kernels kernels_of() {
    return {{{kk_packed_gemm_kernel<false, false, W>, kk_packed_gemm_kernel<false, true, W>},
             {kk_packed_gemm_kernel<true, false, W>, kk_packed_gemm_kernel<true, true, W>}}};
}
/* By encoding, from KK_W_I4 on. */
static const encoding_kernels kernels[KK_W_ENCODINGS - 1] = {
    kernels_of<KK_W_I4>(), kernels_of<KK_W_I5>(), kernels_of<KK_W_I6>(), kernels_of<KK_W_I8>(),
    kernels_of<KK_W_A4>(), kernels_of<KK_W_A5>(), kernels_of<KK_W_A8>()};

/* Bytes of a ring, and its stages where blocks have less shared memory. */
static int ring_bytes(int stages) { return stages * KK_TILE_STAGE; }
enum { STAGES = 4, STAGES_SMALL = 3, SMALL_BELOW = 160 * 1024 };

cudaError_t kk_run_packed_gemm(const kk_cu_at &at, kk_gemm_args a, bool experts, int encoding,
                               unsigned blocks) {
    if (encoding < KK_W_I4 || encoding >= KK_W_ENCODINGS) return cudaErrorInvalidValue;
    a.stages = at.shared < SMALL_BELOW ? STAGES_SMALL : STAGES;
    return kk_launch(at, kernels[encoding - 1].fn[experts][a.part[0].up != NULL], a, blocks,
                     KK_BLOCK_THREADS, (size_t)ring_bytes(a.stages));
}

/* Chips with less shared memory refuse the larger ring, which is not used there. */
cudaError_t kk_setup_packed_gemm() {
    for (const encoding_kernels &k : kernels)
        for (const auto &experts : k.fn)
            for (const gemm_fn fn : experts) {
                const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
                cudaError_t e = cudaFuncSetAttribute((const void *)fn, limit, ring_bytes(STAGES));
                if (e != cudaSuccess) {
                    (void)cudaGetLastError();
                    e = cudaFuncSetAttribute((const void *)fn, limit, ring_bytes(STAGES_SMALL));
                }
                if (e != cudaSuccess) return e;
            }
    return cudaSuccess;
}
