/* cuda_vmm.h - CUDA's virtual memory management: ranges of addresses whose pieces lie in the
 * device's memory or in pinned host memory, which kernels read alike.
 *
 * Its functions are the driver's, and are looked up when they are needed, so that the module links
 * the runtime alone and loads where the driver is older. */
#ifndef KK_CUDA_VMM_H
#define KK_CUDA_VMM_H

#include <cuda.h>
#include <stdbool.h>

#include "core/error.h"

typedef CUmemGenericAllocationHandle kk_cuda_memory; /* a piece of memory, mapped or not */

typedef struct {
    __typeof__(cuMemAddressReserve) *reserve;
    __typeof__(cuMemAddressFree) *unreserve;
    __typeof__(cuMemCreate) *create;
    __typeof__(cuMemRelease) *release;
    __typeof__(cuMemMap) *map;
    __typeof__(cuMemUnmap) *unmap;
    __typeof__(cuMemSetAccess) *allow;
    __typeof__(cuMemGetAllocationGranularity) *granularity;
    __typeof__(cuDeviceGetAttribute) *attribute;
    CUmemAllocationProp device, host;
    CUmemAccessDesc access;
    size_t piece; /* bytes, of either memory */
} kk_cuda_vmm;

/* Fails with KK_EDEVICE where host memory cannot be mapped, and says why. */
kk_status kk_cuda_vmm_open(kk_cuda_vmm *v, kk_err *err);

/* A piece of memory, zeroed or not. */
kk_status kk_cuda_vmm_make(const kk_cuda_vmm *v, bool on_device, kk_cuda_memory *out, kk_err *err);
void kk_cuda_vmm_release(const kk_cuda_vmm *v, kk_cuda_memory m);
/* Addresses without memory. */
kk_status kk_cuda_vmm_reserve(const kk_cuda_vmm *v, size_t bytes, CUdeviceptr *out, kk_err *err);
void kk_cuda_vmm_unreserve(const kk_cuda_vmm *v, CUdeviceptr at, size_t bytes);
/* Puts a piece of memory at an address; kernels may read and write it once it is allowed.  Neither
 * may happen, nor unmapping, while work that uses the address is under way. */
kk_status kk_cuda_vmm_map(const kk_cuda_vmm *v, CUdeviceptr at, kk_cuda_memory m, kk_err *err);
kk_status kk_cuda_vmm_allow(const kk_cuda_vmm *v, CUdeviceptr at, size_t bytes, kk_err *err);
void kk_cuda_vmm_unmap(const kk_cuda_vmm *v, CUdeviceptr at);

#endif
