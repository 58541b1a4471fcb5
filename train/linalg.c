/* linalg.c - see linalg.h.  LAPACK is called by its Fortran names, whose matrices are column-major:
 * a symmetric matrix reads the same either way, a lower triangle as an upper one. */
#include "train/linalg.h"

#include <cblas.h>
#include <string.h>

#include "core/alloc.h"
#include "core/threads.h"

void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t uplo_len);
void dsyevd_(const char *job, const char *uplo, const int *n, double *a, const int *lda, double *w,
             double *work, const int *lwork, int *iwork, const int *liwork, int *info,
             size_t job_len, size_t uplo_len);
void dtrtri_(const char *uplo, const char *diag, const int *n, double *a, const int *lda, int *info,
             size_t uplo_len, size_t diag_len);
void dsytrd_(const char *uplo, const int *n, double *a, const int *lda, double *d, double *e,
             double *tau, double *work, const int *lwork, int *info, size_t uplo_len);
void dstemr_(const char *job, const char *range, const int *n, double *d, double *e,
             const double *vl, const double *vu, const int *il, const int *iu, int *m, double *w,
             double *z, const int *ldz, const int *nzc, int *isuppz, int *tryrac, double *work,
             const int *lwork, int *iwork, const int *liwork, int *info, size_t job_len,
             size_t range_len);
void dormtr_(const char *side, const char *uplo, const char *trans, const int *m, const int *n,
             const double *a, const int *lda, const double *tau, double *c, const int *ldc,
             double *work, const int *lwork, int *info, size_t side_len, size_t uplo_len,
             size_t trans_len);

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

static kk_status factor(const char *half, double *a, int32_t n, kk_err *err) {
    const int size = (int)n;
    int info = 0;
    dpotrf_(half, &size, a, &size, &info, 1);
    if (info != 0)
        return kk_fail(err, KK_EINVAL,
                       "the features are not independent: their products have no factor at %d of "
                       "%d",
                       info, size);
    return KK_OK;
}

kk_status kk_linalg_cholesky(double *a, int32_t n, kk_err *err) {
    KK_TRY(factor("U", a, n, err));
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

kk_status kk_linalg_whitener(double *a, int32_t n, kk_err *err) {
    const int size = (int)n;
    int info = 0;
    KK_TRY(factor("L", a, n, err));
    dtrtri_("L", "N", &size, a, &size, &info, 1, 1);
    if (info != 0)
        return kk_fail(err, KK_EINVAL, "the features' factor has no inverse at %d of %d", info,
                       size);
    for (size_t i = 1; i < (size_t)n; i++) memset(a + i * (size_t)n, 0, i * sizeof *a);
    return KK_OK;
}

/* ---- some eigenvectors ------------------------------------------------------------------- */

/* A symmetric matrix as a tridiagonal one, Q T Q^T, with the scratch of both steps. */
typedef struct {
    double *d, *e, *tau, *values, *work;
    int *ints, *support;
    int n, rank, lwork, liwork;
} tridiagonal;

/* The most that each step asks for. */
static void ask_sizes(tridiagonal *t, double *a, double *out) {
    const int ask = -1, il = t->n - t->rank + 1;
    const double none = 0;
    double reals[3] = {0, 0, 0};
    int info, found, able = 1;
    dsytrd_("U", &t->n, a, &t->n, t->d, t->e, t->tau, &reals[0], &ask, &info, 1);
    dormtr_("L", "U", "N", &t->n, &t->rank, a, &t->n, t->tau, out, &t->n, &reals[1], &ask, &info, 1,
            1, 1);
    dstemr_("V", "I", &t->n, t->d, t->e, &none, &none, &il, &t->n, &found, t->values, out, &t->n,
            &t->rank, t->support, &able, &reals[2], &ask, &t->liwork, &ask, &info, 1, 1);
    for (int i = 0; i < 3; i++) t->lwork = (int)reals[i] > t->lwork ? (int)reals[i] : t->lwork;
}

static kk_status find_some(tridiagonal *t, double *a, double *out, kk_err *err) {
    const int il = t->n - t->rank + 1;
    const double none = 0;
    int info = 0, found = 0, able = 1;
    dsytrd_("U", &t->n, a, &t->n, t->d, t->e, t->tau, t->work, &t->lwork, &info, 1);
    if (info == 0)
        dstemr_("V", "I", &t->n, t->d, t->e, &none, &none, &il, &t->n, &found, t->values, out,
                &t->n, &t->rank, t->support, &able, t->work, &t->lwork, t->ints, &t->liwork, &info,
                1, 1);
    if (info == 0 && found == t->rank)
        dormtr_("L", "U", "N", &t->n, &t->rank, a, &t->n, t->tau, out, &t->n, t->work, &t->lwork,
                &info, 1, 1, 1);
    if (info == 0 && found == t->rank) return KK_OK;
    return kk_fail(err, KK_EINVAL, "%d of %d eigenvectors were found: LAPACK says %d", found,
                   t->rank, info);
}

kk_status kk_linalg_eigen_top(double *a, int32_t n, int32_t rank, double *out, kk_err *err) {
    const size_t size = (size_t)n;
    tridiagonal t = {.n = (int)n, .rank = (int)rank};
    if (rank < 1 || rank > n) return kk_fail(err, KK_EINVAL, "%d eigenvectors of %d", rank, n);
    double *vectors = kk_calloc(4 * size, sizeof *vectors);
    t.support = kk_calloc(2 * (size_t)rank, sizeof *t.support);
    kk_status st = vectors && t.support ? KK_OK : KK_ENOMEM;
    if (st == KK_OK) {
        t.d = vectors;
        t.e = vectors + size;
        t.tau = vectors + 2 * size;
        t.values = vectors + 3 * size;
        ask_sizes(&t, a, out);
        t.work = kk_calloc((size_t)t.lwork, sizeof *t.work);
        t.ints = kk_calloc((size_t)t.liwork, sizeof *t.ints);
        st = t.work && t.ints ? find_some(&t, a, out, err) : KK_ENOMEM;
    }
    if (st == KK_ENOMEM) kk_fail(err, KK_ENOMEM, "no memory for eigenvectors");
    /* LAPACK gives the smallest first. */
    for (int32_t i = 0, j = rank - 1; st == KK_OK && i < j; i++, j--)
        cblas_dswap(n, out + (size_t)i * size, 1, out + (size_t)j * size, 1);
    kk_free(vectors);
    kk_free(t.support);
    kk_free(t.work);
    kk_free(t.ints);
    return st;
}
