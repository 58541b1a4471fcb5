/* linalg.h - the dense linear algebra of training, over BLAS and LAPACK.
 *
 * Matrices are row-major and tight.  Products are called as cblas functions where they are needed;
 * here is what needs a workspace or can fail.  Results depend on the number of BLAS threads, and
 * on nothing else that may differ between two runs on one machine. */
#ifndef KK_TRAIN_LINALG_H
#define KK_TRAIN_LINALG_H

#include "kakeya.h"

/* OpenBLAS gives each of its threads, and the caller, a buffer of this many bytes (as Debian builds
 * it) and tries again without an end when the system has none.  So address space is asked for
 * before OpenBLAS may need it. */
#define KK_LINALG_BUFFER ((size_t)128 << 20)

/* Threads of every product from now on, in the whole process; 0: all cores.  Takes what BLAS needs
 * beside its operands, so that no later product waits for memory. */
kk_status kk_linalg_threads(int32_t n, kk_err *err);
/* The lower L with L L^T = a, [n, n]; what stands above the diagonal becomes zero.  Fails when a is
 * not positive definite. */
kk_status kk_linalg_cholesky(double *a, int32_t n, kk_err *err);
/* b = L^-1 b, or L^-T b with transposed: b is [n, m]. */
void kk_linalg_solve_lower(const double *l, int32_t n, bool transposed, double *b, int32_t m);
/* Eigenvalues of a symmetric [n, n], largest first, with its eigenvectors as rows of a. */
kk_status kk_linalg_eigen(double *a, int32_t n, double *values, kk_err *err);
/* The eigenvectors of the `rank` largest alone, as rows of out [rank, n], largest first; a is lost.
 * Of thousands of features these take a fraction of the time of all. */
kk_status kk_linalg_eigen_top(double *a, int32_t n, int32_t rank, double *out, kk_err *err);
/* The upper W with W W^T = a^-1, which is L^-T of kk_linalg_cholesky, in place of a; what stands
 * below the diagonal becomes zero.  Fails as that does. */
kk_status kk_linalg_whitener(double *a, int32_t n, kk_err *err);

#endif
