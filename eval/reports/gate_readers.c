/* gate_readers.c - how rules look into a report that may be anything; see gate_rules.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

const json_t *kk_gate_get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

bool kk_gate_number(const json_t *o, const char *key, double *out) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) return false;
    *out = json_number_value(v);
    return true;
}

double kk_gate_number_or(const json_t *o, const char *key, double otherwise) {
    double x = otherwise;
    (void)kk_gate_number(o, key, &x);
    return x;
}

const char *kk_gate_text(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

bool kk_gate_true(const json_t *o, const char *key) {
    return json_is_true(json_object_get(o, key));
}

size_t kk_gate_size(const json_t *o, const char *key) {
    return json_array_size(json_object_get(o, key));
}

const json_t *kk_gate_item(const json_t *o, const char *key, size_t i) {
    return json_array_get(json_object_get(o, key), i);
}

bool kk_gate_is(const kk_gate *g, const char *kind) { return strcmp(g->verdict->kind, kind) == 0; }

bool kk_gate_like(const kk_gate *g, const char *kind) {
    const bool both = strcmp(kind, "needle") == 0 || strcmp(kind, "bench") == 0;
    return kk_gate_is(g, kind) || (both && kk_gate_is(g, "steps"));
}

bool kk_gate_same(double a, double b) {
    const double scale = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    return fabs(a - b) <= KK_GATE_SAME * scale + KK_GATE_SAME_NEAR_0;
}

bool kk_gate_sum(const json_t *o, const char *list, const char *key, double *out) {
    *out = 0;
    for (size_t i = 0; i < kk_gate_size(o, list); i++) {
        double x;
        if (!kk_gate_number(kk_gate_item(o, list, i), key, &x)) return false;
        *out += x;
    }
    return true;
}

/* ---- the walk ----------------------------------------------------------------------------- */

enum { WHERE = 160 };

/* Whether there can be objects in it: names are put together for such values alone, since most are
 * numbers and every walk would pay for them. */
static bool is_deep(const json_t *v) { return json_is_object(v) || json_is_array(v); }

static void visit_all(kk_gate *g, const char *where, const json_t *v, kk_gate_visit visit);

static void visit_list(kk_gate *g, const char *where, const json_t *list, kk_gate_visit visit) {
    char deeper[WHERE];
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!is_deep(json_array_get(list, i))) continue;
        snprintf(deeper, sizeof deeper, "%.120s[%zu]", where, i);
        visit_all(g, deeper, json_array_get(list, i), visit);
    }
}

static void visit_all(kk_gate *g, const char *where, const json_t *v, kk_gate_visit visit) {
    char deeper[WHERE];
    const char *key;
    json_t *member;
    if (json_is_array(v)) visit_list(g, where, v, visit);
    if (!json_is_object(v)) return;
    visit(g, *where ? where : "the report", v);
    /* jansson's iterators take no const, and change nothing. */
    json_object_foreach((json_t *)v, key, member) {
        if (!is_deep(member)) continue;
        snprintf(deeper, sizeof deeper, "%.120s%s%.36s", where, *where ? "." : "", key);
        visit_all(g, deeper, member, visit);
    }
}

void kk_gate_walk(kk_gate *g, kk_gate_visit visit) { visit_all(g, "", g->report, visit); }

/* ---- shapes ------------------------------------------------------------------------------- */

const json_t *kk_gate_answers(const json_t *o) {
    const json_t *list = json_object_get(o, "answers");
    if (json_is_array(list)) return list;
    list = json_object_get(o, "rows");
    return json_object_get(json_array_get(list, 0), "answer") ? list : NULL;
}

const json_t *kk_gate_cache(const kk_gate *g, const json_t *row) {
    const char *arm = kk_gate_text(row, "arm");
    if (kk_gate_get(row, "kv_full") || kk_gate_get(row, "kv_sliding")) return row;
    return json_object_get(json_object_get(g->report, "arms"), arm);
}

static bool says(const json_t *cache, const char *word) {
    return strcmp(kk_gate_text(cache, "kv_sliding"), word) == 0 ||
           strcmp(kk_gate_text(cache, "kv_full"), word) == 0;
}

bool kk_gate_restored(const kk_gate *g, const json_t *row) {
    const json_t *cache = kk_gate_cache(g, row);
    const char *name = kk_gate_text(row, "arm");
    if (!*name) name = kk_gate_text(row, "policy");
    return says(cache, "restored") || strncmp(name, "restored", 8) == 0;
}

bool kk_gate_same_cache(const json_t *a, const json_t *b) {
    static const char *const keys[] = {"kv_sliding", "kv_full", "kv_format", "rank", "latents"};
    if (!a || !b) return false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *x = kk_gate_get(a, keys[i]), *y = kk_gate_get(b, keys[i]);
        if (!x != !y || (x && !json_equal(x, y))) return false;
    }
    return true;
}

const json_t *kk_gate_timed(const kk_gate *g, size_t i) {
    const size_t sets = kk_gate_size(g->report, "sets");
    return i < sets ? kk_gate_item(g->report, "sets", i)
                    : kk_gate_item(g->report, "policies", i - sets);
}

const char *kk_gate_timed_name(const json_t *timed) {
    const char *set = kk_gate_text(timed, "set");
    return *set ? set : kk_gate_text(timed, "policy");
}

const json_t *kk_gate_check_of(const kk_gate *g, const char *figure, const char *arm) {
    const json_t *gate = kk_gate_get(g->report, "gate");
    for (size_t i = 0; i < kk_gate_size(gate, "checks"); i++) {
        const json_t *c = kk_gate_item(gate, "checks", i);
        if (strcmp(kk_gate_text(c, "figure"), figure) == 0 &&
            strcmp(kk_gate_text(c, "arm"), arm) == 0)
            return c;
    }
    return NULL;
}
