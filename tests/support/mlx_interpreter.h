/* mlx_interpreter.h - the MLX device with kernels over K/V pages that are not Metal's: the same
 * text, compiled as C++ and run lane by lane. */
#ifndef KK_TESTS_MLX_INTERPRETER_H
#define KK_TESTS_MLX_INTERPRETER_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

/* Makes the device "mlx-pages", whose attention of a round is the kernels' alone. */
void mlx_interpreter_add(void);
/* Calls of the first kernel so far. */
int64_t mlx_interpreter_calls(void);
/* The device's measurement, kernels that cannot be made among it: what it says of these. */
kk_status mlx_interpreter_measure_broken(kk_exact_rows *out, kk_err *pages, kk_err *err);
/* The self-test on such a device: how many rows are alike.  Calls for more than `spoilt` parts
 * have a wrong value; INT32_MAX: none. */
kk_status mlx_interpreter_alike(int32_t spoilt, int32_t *rows, kk_err *err);

#ifdef __cplusplus
}
#endif

#endif
