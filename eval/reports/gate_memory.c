/* gate_memory.c - rules about memory: bytes are what the allocator counted, by its categories, and
 * what is claimed of them can be computed from them. */
#include <math.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

static bool is_category(const char *name) {
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (strcmp(name, kk_mem_category_name((kk_mem_category)c)) == 0) return true;
    return false;
}

/* All of them, so that nothing resident is left out. */
static void check_bytes(kk_gate *g, const char *where, const json_t *bytes) {
    static const char *const needed[] = {
        "weights.verifier", "weights.drafter", "weights.projection", "kv.sliding",
        "kv.full",          "kv.drafter",      "kv.latents",         "workspace"};
    const char *name;
    json_t *n;
    if (!json_is_object(bytes)) {
        kk_gate_say(g, "%s: `bytes` is no account by category", where);
        return;
    }
    json_object_foreach((json_t *)bytes, name, n) {
        if (!is_category(name))
            kk_gate_say(g, "%s: the allocator knows no category '%.40s'", where, name);
        else if (!json_is_integer(n) || json_integer_value(n) < 0)
            kk_gate_say(g, "%s: %.40s is no count of bytes", where, name);
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_object_get(bytes, needed[i]))
            kk_gate_say(g, "%s: bytes without %s", where, needed[i]);
}

static void visit_bytes(kk_gate *g, const char *where, const json_t *o) {
    const json_t *bytes = kk_gate_get(o, "bytes");
    if (bytes) check_bytes(g, where, bytes);
}

static void rule_bytes_category(kk_gate *g) { kk_gate_walk(g, visit_bytes); }

/* ---- formulas ----------------------------------------------------------------------------- */

static void visit_formula(kk_gate *g, const char *where, const json_t *o) {
    if (kk_gate_get(o, "formula") && !json_is_object(json_object_get(o, "bytes")))
        kk_gate_say(g, "%s: a formula without measured bytes beside it", where);
}

static void rule_formula_alone(kk_gate *g) { kk_gate_walk(g, visit_formula); }

static void visit_agreement(kk_gate *g, const char *where, const json_t *o) {
    const json_t *bytes = json_object_get(o, "bytes");
    const char *name;
    json_t *said;
    if (!json_is_object(bytes)) return;
    json_object_foreach(json_object_get(o, "formula"), name, said) {
        const double measured = kk_gate_number_or(bytes, name, 0), is = json_number_value(said);
        if (fabs(is - measured) > KK_GATE_FORMULA * measured)
            kk_gate_say(g, "%s: the formula gives %.0f bytes of %.40s, and %.0f were measured",
                        where, is, name, measured);
    }
}

static void rule_formula_mismatch(kk_gate *g) { kk_gate_walk(g, visit_agreement); }

/* ---- claims ------------------------------------------------------------------------------- */

static bool ends(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Bytes and savings under names that nothing can be computed from. */
static bool is_loose(const char *key) {
    static const char *const known[] = {"weight_bytes", "token_bytes", "dense_bytes",
                                        "stored_bytes", "kv_bytes"};
    if (strstr(key, "saving") || strstr(key, "compression")) return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(key, known[i]) == 0) return false;
    return ends(key, "_bytes") || ends(key, "_mb");
}

/* Attention over formats: bytes of the first over bytes of each. */
static void check_ratios(kk_gate *g) {
    const json_t *attention = json_object_get(g->report, "attention");
    double first, own, said;
    if (!kk_gate_number(kk_gate_item(attention, "formats", 0), "kv_bytes", &first)) return;
    for (size_t i = 0; i < kk_gate_size(attention, "formats"); i++) {
        const json_t *f = kk_gate_item(attention, "formats", i);
        if (kk_gate_number(f, "kv_ratio", &said) && kk_gate_number(f, "kv_bytes", &own) &&
            first > 0 && !kk_gate_same(said, own / first))
            kk_gate_say(g, "%.20s: kv_ratio is %.6g, and %.0f of %.0f bytes is %.6g",
                        kk_gate_text(f, "kv_format"), said, own, first, own / first);
    }
}

/* Experts in host memory: the share of bytes that did not come from there. */
static void check_hits(kk_gate *g) {
    const json_t *e = kk_gate_get(json_object_get(g->report, "device_memory"), "experts");
    double gpu, host, said;
    if (kk_gate_number(e, "read_gpu", &gpu) && kk_gate_number(e, "read_host", &host) &&
        kk_gate_number(e, "hit_rate", &said) && !kk_gate_same(said, gpu / (gpu + host)))
        kk_gate_say(g, "hit_rate is %.6g, and %.0f of %.0f bytes is %.6g", said, gpu, gpu + host,
                    gpu / (gpu + host));
}

static void visit_claims(kk_gate *g, const char *where, const json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v) if (json_is_number(v) && is_loose(key))
        kk_gate_say(g, "%s: `%.40s` (%.6g) is no account of the allocator and no ratio of such",
                    where, key, json_number_value(v));
}

static void rule_memory_claim(kk_gate *g) {
    kk_gate_walk(g, visit_claims);
    check_ratios(g);
    check_hits(g);
}

/* ---- growth ------------------------------------------------------------------------------- */

static const json_t *row_at(const kk_gate *g, const char *policy, double tokens) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        if (strcmp(kk_gate_text(row, "policy"), policy) == 0 &&
            kk_gate_number_or(row, "tokens", -1) == tokens)
            return row;
    }
    return NULL;
}

/* Bytes per token of some categories between two lengths of context. */
static bool slope(const kk_gate *g, const char *policy, const json_t *growth, double *out) {
    double from, to, sum = 0;
    if (!kk_gate_number(growth, "from", &from) || !kk_gate_number(growth, "to", &to) || to <= from)
        return false;
    const json_t *a = json_object_get(row_at(g, policy, from), "bytes");
    const json_t *b = json_object_get(row_at(g, policy, to), "bytes");
    for (size_t i = 0; i < kk_gate_size(growth, "categories"); i++) {
        const char *name = json_string_value(kk_gate_item(growth, "categories", i));
        double before, after;
        if (!name || !kk_gate_number(a, name, &before) || !kk_gate_number(b, name, &after))
            return false;
        sum += after - before;
    }
    *out = sum / (to - from);
    return kk_gate_size(growth, "categories") > 0;
}

static void check_growth(kk_gate *g, const json_t *growth) {
    const char *policy = kk_gate_text(growth, "policy"), *of = kk_gate_text(growth, "against");
    double own, other, said;
    if (!slope(g, policy, growth, &own)) {
        kk_gate_say(g, "growth of %.40s without rows of `from` and `to` tokens", policy);
        return;
    }
    if (kk_gate_number(growth, "bytes_per_token", &said) && !kk_gate_same(said, own))
        kk_gate_say(g, "%.40s is said to grow by %.6g bytes a token, and its rows by %.6g", policy,
                    said, own);
    if (!kk_gate_number(growth, "ratio", &said)) return;
    if (!slope(g, of, growth, &other) || own <= 0)
        kk_gate_say(g, "%.40s: %.4gx against '%.40s' without rows of both", policy, said, of);
    else if (!kk_gate_same(said, other / own))
        kk_gate_say(g, "%.40s: %.6gx against %.40s, and the rows give %.6gx", policy, said, of,
                    other / own);
}

static void rule_growth_recount(kk_gate *g) {
    for (size_t i = 0; i < kk_gate_size(g->report, "growth"); i++)
        check_growth(g, kk_gate_item(g->report, "growth", i));
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry bytes_rules[] = {
    {"BYTES_CATEGORY", rule_bytes_category, "bytes are the allocator's, by all of its categories"},
    {"FORMULA_ALONE", rule_formula_alone,
     "a formula stands beside measured bytes, never instead of them"},
    {"FORMULA_MISMATCH", rule_formula_mismatch,
     "a formula agrees with the measured bytes within 1 %"},
    {"MEMORY_CLAIM", rule_memory_claim,
     "a claim about memory can be computed from bytes of the report"},
};
KK_GATE_GROUP(bytes, bytes_rules);

static const kk_gate_entry growth_rules[] = {
    {"GROWTH_RECOUNT", rule_growth_recount, "growth with context is that of the measured rows"},
};
KK_GATE_GROUP(growth, growth_rules);
