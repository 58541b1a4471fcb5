/* linalg.c - see linalg.h.  LAPACK is called by its Fortran names, whose matrices are column-major:
 * a symmetric matrix reads the same either way, a lower triangle as an upper one. */
#include "train/linalg.h"

#include <cblas.h>

#include "core/alloc.h"
#include "core/threads.h"

void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t uplo_len);
void dsyevd_(const char *job, const char *uplo, const int *n, double *a, const int *lda, double *w,
             double *work, const int *lwork, int *iwork, const int *liwork, int *info,
             size_t job_len, size_t uplo_len);

/* A product too large for code that does without a buffer. */
static kk_status take_buffer(kk_err *err) {
    enum { SIDE = 128 };
    double *a = kk_calloc((size_t)3 * SIDE * SIDE, sizeof *a);
    if (!a) return kk_fail(err, KK_ENOMEM, "no memory for a matrix of %d rows", SIDE);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1.0, a, SIDE,
                a + SIDE * SIDE, SIDE, 0.0, a + 2 * SIDE * SIDE, SIDE);
    kk_free(a);
    return KK_OK;
}

kk_status kk_linalg_threads(int32_t n, kk_err *err) {
    const int32_t cores =
        kk_cores_available(); /* threads that OpenBLAS started when it was loaded */
    const size_t more = n > cores ? (size_t)(n - cores) : 0;
    const size_t bytes = (more + 1) * (KK_LINALG_BUFFER);
    void *space = kk_mem_reserve(bytes);
    if (!space)
        return kk_fail(err, KK_ENOMEM,
                       "no %zu MB of address space for matrix products by %d threads", bytes >> 20,
                       n > 0 ? n : cores);
    kk_mem_unreserve(space, bytes);
    openblas_set_num_threads(n > 0 ? (int)n : (int)cores);
    return take_buffer(err);
}

kk_status kk_linalg_cholesky(double *a, int32_t n, kk_err *err) {
    const int size = (int)n;
    int info = 0;
    dpotrf_("U", &size, a, &size, &info, 1);
    if (info != 0)
        return kk_fail(err, KK_EINVAL,
                       "the features are not independent: their products have no factor at %d of "
                       "%d",
                       info, size);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = i + 1; j < n; j++) a[(size_t)i * (size_t)n + (size_t)j] = 0;
    return KK_OK;
}

void kk_linalg_solve_lower(const double *l, int32_t n, bool transposed, double *b, int32_t m) {
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, transposed ? CblasTrans : CblasNoTrans,
                CblasNonUnit, n, m, 1.0, l, n, b, m);
}

/* LAPACK gives the smallest first. */
static void reverse(double *a, int32_t n, double *values) {
    for (int32_t i = 0, j = n - 1; i < j; i++, j--) {
        double *x = a + (size_t)i * (size_t)n, *y = a + (size_t)j * (size_t)n;
        const double w = values[i];
        values[i] = values[j];
        values[j] = w;
        cblas_dswap(n, x, 1, y, 1);
    }
}

kk_status kk_linalg_eigen(double *a, int32_t n, double *values, kk_err *err) {
    const int size = (int)n, ask = -1;
    int info = 0, ints = 0;
    double reals = 0;
    dsyevd_("V", "U", &size, a, &size, values, &reals, &ask, &ints, &ask, &info, 1, 1);
    const int lwork = (int)reals;
    double *work = kk_calloc((size_t)lwork, sizeof *work);
    int *iwork = kk_calloc((size_t)ints, sizeof *iwork);
    kk_status st = work && iwork ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for eigenvectors");
    if (st == KK_OK) {
        dsyevd_("V", "U", &size, a, &size, values, work, &lwork, iwork, &ints, &info, 1, 1);
        if (info != 0)
            st = kk_fail(err, KK_EINVAL, "no eigenvectors were found: LAPACK says %d", info);
    }
    kk_free(work);
    kk_free(iwork);
    if (st == KK_OK) reverse(a, n, values);
    return st;
}
