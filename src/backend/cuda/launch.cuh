/* launch.cuh - launching a kernel, as a programmatic dependent launch where the caller allows
 * it. */
#ifndef KK_CUDA_LAUNCH_CUH
#define KK_CUDA_LAUNCH_CUH

#include "cuda_ops.h"

template <class A>
static inline cudaError_t kk_launch(const kk_cu_at &at, void (*kernel)(A), const A &args, dim3 grid,
                                    int threads, size_t shared) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute early[1] = {};
    c.gridDim = grid;
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared;
    c.stream = at.stream;
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = early;
    c.numAttrs = at.early ? 1 : 0;
    return cudaLaunchKernelEx(&c, kernel, args);
}

static inline unsigned kk_blocks(size_t n, size_t per) {
    const size_t b = (n + per - 1) / per;
    return (unsigned)(b < 1 ? 1 : b > 65535 ? 65535 : b);
}

#endif
