/* parity_parts.h - what comparing a verifier and comparing its drafter have in common: dumped
 * numbers, pages in float32, and the largest difference. */
#ifndef KK_EVAL_PARITY_PARTS_H
#define KK_EVAL_PARITY_PARTS_H

#include "core/file.h"
#include "eval/tasks/parity.h"
#include "format/safetensors.h"
#include "model/dflash_model.h"

/* A folder's expect.safetensors; tensors are views into it. */
typedef struct {
    kk_map map;
    kk_safetensors list;
} kk_parity_file;

kk_status kk_parity_file_open(kk_parity_file *out, const char *folder, kk_err *err);
void kk_parity_file_close(kk_parity_file *f);                               /* zero value is fine */
const kk_tensor *kk_parity_find(const kk_parity_file *f, const char *name); /* NULL: absent */
/* A tensor that must be there with this type and these dims (d0 -1: any; d1 0: one dim). */
kk_status kk_parity_need(const kk_parity_file *f, const char *name, kk_dtype type, int64_t d0,
                         int64_t d1, const kk_tensor **out, kk_err *err);
/* A copy of `tokens`, which may lie unaligned in the file, each checked against the vocabulary;
 * kk_free it. */
kk_status kk_parity_tokens(const kk_parity_file *f, int32_t vocab, int32_t **out, int32_t *n,
                           kk_err *err);

/* Widens the gap by the differences from a dumped [rows, width]; what is not a number is wider
 * than anything. */
void kk_parity_widen(kk_parity_gap *gap, const float *got, const kk_tensor *want, int32_t layer);

/* Whether a gap is within a tolerance: by its root mean square where tol_rms is not 0. */
static inline bool kk_parity_holds(const kk_parity_gap *gap, double tol, double tol_rms) {
    return tol_rms > 0 ? gap->rms <= tol_rms && gap->max >= 0 : gap->max <= tol;
}

/* How near two logits must be for either to come first: the largest difference that the tolerance
 * lets pass, on both; 0 where no tie is. */
static inline double kk_parity_slack(const kk_parity_gap *gap, double tol_rms) {
    if (!(tol_rms > 0 && gap->rms > 0)) return 0;
    return 2 * gap->max * (gap->rms < tol_rms ? tol_rms / gap->rms : 1);
}

/* A model's pages and one cache of them. */
typedef struct {
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    kk_cache *cache;
} kk_parity_pages;

/* On a device, or be NULL in ordinary memory. */
kk_status kk_parity_pages_open(kk_parity_pages *out, const kk_kv_shape *shape, kk_mem *mem,
                               const kk_backend *be, kk_dev *dev, kk_err *err);
void kk_parity_pages_close(kk_parity_pages *p); /* zero value is fine */
/* An empty cache in place of the one before. */
kk_status kk_parity_pages_clear(kk_parity_pages *p, int64_t max_len, kk_err *err);

/* Compares the drafter in CASE/dflash, over the verifier of the case. */
typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    kk_mem *mem;
    kk_gemma4 *verifier; /* for at least max_rows rows */
    kk_parity_pages *pages;
    int32_t max_rows;
    double tol, tol_rms;
} kk_parity_bench;
kk_status kk_parity_drafter(const char *folder, const kk_parity_bench *bench, kk_parity_draft *out,
                            kk_err *err);

#endif
