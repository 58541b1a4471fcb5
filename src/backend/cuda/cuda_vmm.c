/* cuda_vmm.c - see cuda_vmm.h. */
#include "backend/cuda/cuda_vmm.h"

#include <cuda_runtime_api.h>
#include <string.h>

#include "core/alloc.h"

/* As CUDA 12.9 names them; older headers have no names for them, and older drivers refuse them. */
enum { HOST_NODE = 134, HOST_MAPS = 141, ON_HOST_NODE = 3 };
enum { DRIVER = 12000 /* the version of the functions that are asked for */ };

static kk_status failed(kk_err *err, CUresult r, const char *what) {
    return kk_fail(err, r == CUDA_ERROR_OUT_OF_MEMORY ? KK_ENOMEM : KK_EDEVICE,
                   "the GPU's driver failed at %s: error %d", what, (int)r);
}

static bool look_up(const char *name, void *to) {
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion(name, &f, DRIVER, cudaEnableDefault, &found);
#else
    const cudaError_t e = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    if (e != cudaSuccess) (void)cudaGetLastError();
    memcpy(to, &f, sizeof f); /* a function's address, which C does not convert */
    return e == cudaSuccess && f;
}

static bool look_up_all(kk_cuda_vmm *v) {
    return look_up("cuMemAddressReserve", &v->reserve) &&
           look_up("cuMemAddressFree", &v->unreserve) && look_up("cuMemCreate", &v->create) &&
           look_up("cuMemRelease", &v->release) && look_up("cuMemMap", &v->map) &&
           look_up("cuMemUnmap", &v->unmap) && look_up("cuMemSetAccess", &v->allow) &&
           look_up("cuMemGetAllocationGranularity", &v->granularity) &&
           look_up("cuDeviceGetAttribute", &v->attribute);
}

kk_status kk_cuda_vmm_open(kk_cuda_vmm *v, kk_err *err) {
    int maps = 0, node = 0;
    size_t a = 0, b = 0;
    *v = (kk_cuda_vmm){0};
    if (!look_up_all(v))
        return kk_fail(err, KK_EDEVICE, "its driver has no virtual memory management");
    if (v->attribute(&maps, (CUdevice_attribute)HOST_MAPS, 0) != CUDA_SUCCESS || !maps)
        return kk_fail(err, KK_EDEVICE, "its driver maps no host memory beside its own");
    if (v->attribute(&node, (CUdevice_attribute)HOST_NODE, 0) != CUDA_SUCCESS || node < 0) node = 0;
    v->device.type = v->host.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    v->device.location.type = v->access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    v->host.location.type = (CUmemLocationType)ON_HOST_NODE;
    v->host.location.id = node;
    v->access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult r = v->granularity(&a, &v->device, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r == CUDA_SUCCESS) r = v->granularity(&b, &v->host, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r != CUDA_SUCCESS) return failed(err, r, "asking for its granularity");
    if (!a || !b || (a > b ? a % b : b % a))
        return kk_fail(err, KK_EDEVICE, "its driver maps pieces of %zu and %zu bytes", a, b);
    v->piece = a > b ? a : b;
    return KK_OK;
}

kk_status kk_cuda_vmm_make(const kk_cuda_vmm *v, bool on_device, kk_cuda_memory *out, kk_err *err) {
    const CUresult r = kk_fault_point()
                           ? CUDA_ERROR_OUT_OF_MEMORY
                           : v->create(out, v->piece, on_device ? &v->device : &v->host, 0);
    if (r == CUDA_SUCCESS) return KK_OK;
    if (r != CUDA_ERROR_OUT_OF_MEMORY) return failed(err, r, "taking a piece of memory");
    return kk_fail(err, KK_ENOMEM, "%s has no %zu bytes more for weights of experts",
                   on_device ? "the GPU" : "the host, as pinned memory,", v->piece);
}

void kk_cuda_vmm_release(const kk_cuda_vmm *v, kk_cuda_memory m) { v->release(m); }

kk_status kk_cuda_vmm_reserve(const kk_cuda_vmm *v, size_t bytes, CUdeviceptr *out, kk_err *err) {
    const CUresult r =
        kk_fault_point() ? CUDA_ERROR_OUT_OF_MEMORY : v->reserve(out, bytes, v->piece, 0, 0);
    return r == CUDA_SUCCESS ? KK_OK : failed(err, r, "reserving addresses");
}

void kk_cuda_vmm_unreserve(const kk_cuda_vmm *v, CUdeviceptr at, size_t bytes) {
    v->unreserve(at, bytes);
}

kk_status kk_cuda_vmm_map(const kk_cuda_vmm *v, CUdeviceptr at, kk_cuda_memory m, kk_err *err) {
    const CUresult r = kk_fault_point() ? CUDA_ERROR_OUT_OF_MEMORY : v->map(at, v->piece, 0, m, 0);
    return r == CUDA_SUCCESS ? KK_OK : failed(err, r, "mapping memory");
}

kk_status kk_cuda_vmm_allow(const kk_cuda_vmm *v, CUdeviceptr at, size_t bytes, kk_err *err) {
    const CUresult r =
        kk_fault_point() ? CUDA_ERROR_OUT_OF_MEMORY : v->allow(at, bytes, &v->access, 1);
    return r == CUDA_SUCCESS ? KK_OK : failed(err, r, "allowing access to memory");
}

void kk_cuda_vmm_unmap(const kk_cuda_vmm *v, CUdeviceptr at) { v->unmap(at, v->piece); }
