/* cuda_offload.h - weights of experts that exceed the device's memory: pieces of them lie in pinned
 * host memory, and kernels read them over the bus.
 *
 * A weight of experts is one range of addresses, whose pieces of 2 MiB lie here or there
 * (cuda_vmm.h), so that kernels, graphs and their bits are the same.  Which pieces lie on the
 * device is decided by what forwards read (placement.h): launches that read experts count them on
 * the device, and now and then, while it is idle, some pieces are swapped.
 *
 * Invariants:
 * 1. Mappings change only while the stream is idle.
 * 2. dev->held, which pieces on the device are part of, never passes dev->limit.
 * 3. A piece is mapped at all times: one that moves is copied first, and mapped back where its new
 *    memory cannot be mapped. */
#ifndef KK_CUDA_OFFLOAD_H
#define KK_CUDA_OFFLOAD_H

#include "backend/cuda/cuda_device.h"

/* Decides whether weights of experts may have to lie in host memory, now or when other memory is
 * needed, as it may be under a limit; refuses what cannot fit even so. */
kk_status kk_cuda_expect(kk_dev *dev, const kk_expected *w, kk_err *err);
/* Whether weights of experts are placed in pieces from now on. */
bool kk_cuda_offloads(const kk_dev *dev);
/* Addresses and memory for a weight of experts of `share` bytes in the file. */
kk_status kk_cuda_offload_new(kk_dev *dev, kk_weight *w, size_t share, kk_err *err);
void kk_cuda_offload_free(kk_dev *dev, kk_weight *w);
/* Copies n bytes of device memory to byte `at` of such a weight, in stream order. */
kk_status kk_cuda_offload_fill(kk_dev *dev, const kk_weight *w, size_t at, const void *from,
                               size_t n, kk_err *err);

/* Whether forwards are to count what they read: some pieces lie in host memory.  A graph that
 * counts is another one. */
bool kk_cuda_counts(const kk_dev *dev);
/* After a launch that read the experts of so many (row, expert) pairs; up may be NULL. */
kk_status kk_cuda_count_reads(kk_dev *dev, const kk_weight *gate, const kk_weight *up,
                              const kk_weight *down, const int32_t *expert, int32_t pairs,
                              kk_err *err);
/* At the beginning of a forward: now and then lets pieces move. */
kk_status kk_cuda_tend(kk_dev *dev, kk_err *err);
/* Moves pieces to host memory until at least so many bytes more can be had on the device; false:
 * there is no such piece, or no host memory. */
bool kk_cuda_evict_experts(kk_dev *dev, size_t bytes);

void kk_cuda_offloaded(kk_dev *dev, kk_offload *out);
int64_t kk_cuda_offload_bytes(const kk_dev *dev); /* of weights of experts, on the device */
void kk_cuda_close_offload(kk_dev *dev);

#endif
