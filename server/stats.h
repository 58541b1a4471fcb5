/* stats.h - what /metrics counts, as JSON for a page that shows it while it changes. */
#ifndef KK_SERVER_STATS_H
#define KK_SERVER_STATS_H

#include "server/metrics.h"

/* NULL without memory. */
json_t *stats_json(metrics *m, const metrics_now *now);

#endif
