/* stop.h - the ids that end a generation: the model's own and the caller's. */
#ifndef KK_DECODE_STOP_H
#define KK_DECODE_STOP_H

#include "core/error.h"

/* Both lists are borrowed.  All zero: no id stops. */
typedef struct {
    const int32_t *model_ids, *user_ids;
    size_t n_model_ids, n_user_ids;
} kk_stop;

bool kk_stop_at(const kk_stop *s, int32_t id);

#endif
