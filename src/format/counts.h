/* counts.h - how often each token came up in texts: which part of a vocabulary a drafter's short
 * head is to know.
 *
 * A JSON object:
 *   "kakeya_counts"  1, the version
 *   "vocab"          size of the vocabulary that the ids are of
 *   "tokens"         tokens that were counted
 *   "ids"            every id that came up, the most frequent first
 *   "counts"         how often each did; they fall, and sum to "tokens" */
#ifndef KK_FORMAT_COUNTS_H
#define KK_FORMAT_COUNTS_H

#include "core/error.h"

typedef struct {
    int32_t vocab, n;
    int64_t tokens;
    int32_t *id;    /* [n] */
    int64_t *count; /* [n] */
} kk_counts;

/* From how often each id of the vocabulary came up; of equal ones the lower id comes first. */
kk_status kk_counts_make(kk_counts *out, const int64_t *by_id, int32_t vocab, kk_err *err);
/* Refuses what does not hold together, naming it.  label: what messages call the file. */
kk_status kk_counts_parse(kk_counts *out, const char *json, size_t len, const char *label,
                          kk_err *err);
kk_status kk_counts_read(kk_counts *out, const char *path, kk_err *err);
/* Completes an open file. */
kk_status kk_counts_write(const kk_counts *c, kk_writer *to, kk_err *err);
void kk_counts_free(kk_counts *c); /* zero value is fine; leaves it zero */
/* The share of the counted tokens that the first n ids are. */
double kk_counts_share(const kk_counts *c, int32_t n);

#endif
