/* gate_serving.h - the figures of reports about a server (load, soak, chaos), from their rows.
 *
 * What writes such a report and the gate that checks it compute them in one place; the limits that
 * a report must check are here too. */
#ifndef KK_EVAL_GATE_SERVING_H
#define KK_EVAL_GATE_SERVING_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A figure that a report must check. */
typedef struct {
    char figure[32], arm[32];
    double limit;
    bool at_least; /* else it is the most that is allowed */
} kk_serving_limit;

enum { KK_SERVING_MOST_LIMITS = 40 };

/* All that a report with this `kind` and these `settings` must check. */
size_t kk_serving_limits(const json_t *report, kk_serving_limit out[KK_SERVING_MOST_LIMITS]);
/* The value of a figure by the report's rows; false: it has none for it. */
bool kk_serving_value(const json_t *report, const char *figure, const char *arm, double *out);
/* The `gate` of a report that has all else: {holds, checks}. */
json_t *kk_serving_gate(const json_t *report);

#endif
