/* machine.h - how fast memory of a given size is read, for those who hold a speed against it. */
#ifndef KK_ENGINE_MACHINE_H
#define KK_ENGINE_MACHINE_H

#include "kakeya.h"

/* As kk_measure_bandwidth, of a buffer of so many bytes (0: one far larger than any cache): a
 * small model's weights stay in a cache between tokens, and so does a buffer of their size. */
kk_status kk_measure_read(int32_t threads, int64_t bytes, double seconds, double *bytes_per_s,
                          kk_err *err);

#endif
