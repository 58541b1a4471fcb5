/* outcome.c - whether the run that a report tells of failed, by what the report itself says: its
 * own limits, drafts or sessions that changed what was generated, an identity that was none.
 *
 * The gate judges whether a report is honest; an honest report of a failed run holds. */
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate.h"

enum { DEEPEST = 32 };

/* Members whose false is a failure of the run, wherever they stand. */
static const struct {
    const char *name, *text;
} promises[] = {
    {"lossless", "drafting changed what was generated"},
    {"identical", "sessions together got other logits than alone"},
    {"identity", "alpha 1 did not give the exact logits"},
};

static const char *broken_promise(const json_t *v, int depth) {
    const char *key, *found = NULL;
    json_t *member;
    size_t i;
    if (depth == DEEPEST) return NULL;
    for (size_t k = 0; k < sizeof promises / sizeof *promises; k++)
        if (json_is_false(json_object_get(v, promises[k].name))) return promises[k].text;
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        if (!found) found = broken_promise(member, depth + 1);
    }
    json_array_foreach(v, i, member) {
        if (!found) found = broken_promise(member, depth + 1);
    }
    return found;
}

const char *kk_verdict_failure(const kk_verdict *v) {
    const json_t *gate = json_object_get(v->report, "gate");
    const json_t *mismatches = json_object_get(v->report, "mismatches");
    if (json_is_false(json_object_get(gate, "holds"))) return "the run failed its own limits";
    if (json_number_value(mismatches) > 0) return "drafted and plain decoding differ";
    return broken_promise(v->report, 0);
}
