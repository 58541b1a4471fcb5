/* lineage.h - which model weights belong to, as numbers: what is made with one precision of a model
 * works with another, and not with another model.
 *
 * Three numbers, each 0 where it is not known:
 *   weights   of the very tensors: their names, types, shapes and a sample of their bytes
 *   source    those of the weights that these were quantised from, which kk_quantize writes into
 *             the file (key `kakeya.source`); their own, where the file says nothing
 *   identity  of the configuration and the tokenizer, which all precisions of a model share */
#ifndef KK_FORMAT_LINEAGE_H
#define KK_FORMAT_LINEAGE_H

#include "format/projection.h"

typedef struct {
    uint64_t weights, source, identity;
} kk_lineage;

typedef enum {
    KK_KIN_SAME,      /* the same weights: equal bits may be promised */
    KK_KIN_PRECISION, /* other weights of the same model */
    KK_KIN_NONE,      /* another model */
} kk_kin;
kk_kin kk_lineage_compare(const kk_lineage *made_with, const kk_lineage *here);

/* None of these is ever 0. */
uint64_t kk_lineage_weights(const kk_checkpoint *c);
uint64_t kk_lineage_source(const kk_checkpoint *c, uint64_t weights);
/* tok: NULL when the model has none. */
uint64_t kk_lineage_identity(const kk_config *c, const kk_tokenizer *tok);
uint64_t kk_lineage_drafter(const kk_drafter *d);
uint64_t kk_lineage_drafter_identity(const kk_drafter_config *c);
/* As it is kept in memory. */
uint64_t kk_lineage_projection(const kk_projection *p);

/* Sixteen hexadecimal digits. */
void kk_lineage_text(uint64_t h, char out[17]);
bool kk_lineage_parse(const char *text, size_t len, uint64_t *out);

#endif
