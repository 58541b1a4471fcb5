/* stop.c - see stop.h.  The lists are a handful of ids, so a search is a walk. */
#include "decode/stop.h"

static bool lists(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

bool kk_stop_at(const kk_stop *s, int32_t id) {
    return lists(s->model_ids, s->n_model_ids, id) || lists(s->user_ids, s->n_user_ids, id);
}
