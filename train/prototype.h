/* prototype.h - the features that the Python prototype's projection read, for comparison.
 *
 * The drafter runs over the whole text with nothing of the verifier but its token table: embedding
 * rows enter as hidden states, no context, and every position sees every other, later ones too.
 * Features are the keys, and for V the values, of all layers as projected (before norms and RoPE).
 * They change when the text grows, so no cache can keep them. */
#ifndef KK_TRAIN_PROTOTYPE_H
#define KK_TRAIN_PROTOTYPE_H

#include "engine/engine.h"

typedef struct kk_prototype kk_prototype;

int32_t kk_prototype_width(const kk_engine *e); /* keys of a position, and values; 0: no drafter */
kk_status kk_prototype_new(kk_prototype **out, kk_engine *e, int32_t max_rows, kk_err *err);
void kk_prototype_free(kk_prototype *p); /* NULL is fine */
/* keys, values: [n][layer][n_kv_head * head_dim] */
kk_status kk_prototype_run(kk_prototype *p, const int32_t *tokens, int32_t n, float *keys,
                           float *values, kk_err *err);

#endif
