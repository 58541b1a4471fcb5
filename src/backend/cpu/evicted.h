/* evicted.h - attention over rows that are not all stored in their pages. */
#ifndef KK_CPU_EVICTED_H
#define KK_CPU_EVICTED_H

#include "backend/cpu/device.h"

/* Rows [row, row + n_rows) of a group against one K/V head, for n_heads of its query heads.  What
 * depends on where K and V lie is left empty; k_off and v_off are the head's, from the slot's. */
kk_attend_tile kk_cpu_tile(const kk_attend_args *a, const kk_group *g, int32_t row, int32_t n_rows,
                           int32_t kv_head, int32_t first_head, int32_t n_heads);

void kk_cpu_attend_evicted(kk_dev *dev, const kk_attend_args *a);

/* The keys that a row of the group sees, and which of them are evicted. */
static inline kk_visible_rule kk_attend_rule(const kk_attend_args *a) {
    kk_visible_rule rule = {.mask = a->window, .bounds = {.sink = a->sink}};
    if (!a->evicted) return rule;
    rule.evicts = true;
    rule.bounds.window = a->evicted->window;
    rule.bounds.chunk = a->evicted->chunk;
    return rule;
}

/* Whether evicted rows are read in latent space: always, except under diagnosis. */
static inline bool kk_in_latents(const kk_evicted *e) { return e && e->rebuilds && !e->diagnosis; }

/* Rows [row, row + n_rows) of a group, which share a chunk, and how attention over stored rows was
 * cut into tiles: what the sums came to is in out and, by tile, in the device's attend_state. */
typedef struct {
    kk_dev *dev;
    const kk_attend_args *a;
    const kk_group *g;
    int32_t row, n_rows;
    int32_t tile_rows, heads, parts;
    int64_t stored; /* rows from the sink to here are evicted */
} kk_latent_rows;

int32_t kk_cpu_latent_rows(int32_t n_head, int32_t rank); /* the most of them at a time */
kk_status kk_cpu_prepare_latents(kk_dev *dev, const kk_kv_slot *slot, int32_t n_head, int32_t rank,
                                 kk_err *err);
/* Adds the evicted rows, and normalises the sums. */
void kk_cpu_attend_latents(const kk_latent_rows *rows);

#endif
