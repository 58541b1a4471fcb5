/* mlx_seen.h - which stored positions a row's attention reads, as ranges in their order. */
#ifndef KK_MLX_SEEN_H
#define KK_MLX_SEEN_H

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

extern "C" {
#include "backend/backend.h"
}

using kk_mlx_ranges = std::vector<std::pair<int64_t, int64_t>>; /* [from, to) */

static inline kk_visible_rule kk_mlx_rule_of(const kk_attend_args *a) {
    kk_visible_rule rule = {};
    rule.mask = a->window;
    rule.bounds.sink = a->sink;
    if (!a->evicted) return rule;
    rule.evicts = true;
    rule.bounds.window = a->evicted->window;
    rule.bounds.chunk = a->evicted->chunk;
    return rule;
}

/* What row `row` of a group sees, empty ranges left out.  Rows that are rebuilt are a range of
 * their own. */
static inline kk_mlx_ranges kk_mlx_seen(const kk_attend_args *a, const kk_visible_rule &rule,
                                        const kk_group *g, int32_t row) {
    kk_visible v = kk_sees(&rule, a->block ? g->pos : g->pos + row);
    if (a->block) v.to = g->pos + g->n_rows;
    kk_mlx_ranges all;
    const bool rebuilds = a->evicted && a->evicted->rebuilds;
    if (v.sink_from < v.sink_to) all.push_back({v.sink_from, v.sink_to});
    if (rebuilds && v.gone_from < v.gone_to) {
        /* The rows after the sink are gone: what is stored begins behind them. */
        if (v.from < v.gone_from) all.push_back({v.from, v.gone_from});
        all.push_back({v.gone_from, v.gone_to});
        v.from = std::max(v.from, v.gone_to);
    }
    if (v.from < v.to) all.push_back({v.from, v.to});
    return all;
}

#endif
