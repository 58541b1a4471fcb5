/* gate_words.c - rules about what an arm says it kept: words and names that fit each other, rows
 * rebuilt in the number that its length takes, weights and K/V that are there. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

static bool among(const char *word, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, list[i]) == 0) return true;
    return false;
}

static bool is_format(const char *word) {
    for (int f = 0; f < KK_KV_FORMATS; f++)
        if (strcmp(word, kk_kv_format_name((kk_kv_format)f)) == 0) return true;
    return false;
}

static void check_cache(kk_gate *g, const char *name, const json_t *o) {
    static const char *const sliding[] = {"native", "window", "restored"};
    static const char *const full[] = {"exact", "window", "restored"};
    const char *s = kk_gate_text(o, "kv_sliding"), *f = kk_gate_text(o, "kv_full");
    const bool all = strcmp(s, "native") == 0 && strcmp(f, "exact") == 0;
    const bool restored = strcmp(s, "restored") == 0 || strcmp(f, "restored") == 0;
    if (!among(s, sliding, 3)) kk_gate_say(g, "%.30s: no policy is called '%.30s'", name, s);
    if (!among(f, full, 3)) kk_gate_say(g, "%.30s: no policy is called '%.30s'", name, f);
    if (!is_format(kk_gate_text(o, "kv_format")))
        kk_gate_say(g, "%.30s: no K/V format is called '%.30s'", name,
                    kk_gate_text(o, "kv_format"));
    if (strncmp(name, "exact", 5) == 0 && !all)
        kk_gate_say(g, "%.30s does not keep all rows", name);
    if (strncmp(name, "restored", 8) == 0 && !restored)
        kk_gate_say(g, "%.30s restores nothing: its layers are %.20s and %.20s", name, s, f);
    if (strcmp(name, "window") == 0 && (all || restored))
        kk_gate_say(g, "%.30s keeps more than a window", name);
}

static void each_cache(kk_gate *g, void (*fn)(kk_gate *, const char *, const json_t *)) {
    static const char *const lists[] = {"policies", "rows"};
    const char *name;
    json_t *arm;
    if (kk_gate_is(g, "needle")) {
        json_object_foreach(json_object_get(g->report, "arms"), name, arm) { fn(g, name, arm); }
    }
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < kk_gate_size(g->report, lists[k]); i++) {
            const json_t *o = kk_gate_item(g->report, lists[k], i);
            if (kk_gate_get(o, "policy")) fn(g, kk_gate_text(o, "policy"), o);
        }
}

static void rule_policy_words(kk_gate *g) { each_cache(g, check_cache); }

/* ---- the projection -------------------------------------------------------------------------- */

static void needs_projection(kk_gate *g, const char *name, const json_t *o) {
    const json_t *own = kk_gate_get(g->report, "projection");
    double rank;
    if (!kk_gate_restored(g, o) && strncmp(name, "restored", 8) != 0) return;
    if (!own && kk_gate_size(g->report, "projections") == 0)
        kk_gate_say(g, "%.30s restores rows, and the report has no projection", name);
    else if (own && kk_gate_number(o, "rank", &rank) && kk_gate_get(own, "rank") &&
             rank != kk_gate_number_or(own, "rank", 0))
        kk_gate_say(g, "%.30s is of rank %.0f, and the projection of rank %.0f", name, rank,
                    kk_gate_number_or(own, "rank", 0));
}

static void rule_projection_missing(kk_gate *g) {
    each_cache(g, needs_projection);
    if (kk_gate_is(g, "sweep") && !kk_gate_get(g->report, "projection"))
        kk_gate_say(g, "a sweep restores rows, and the report has no projection");
}

/* ---- how many rows --------------------------------------------------------------------------- */

/* A rebuilt row is read by one query at least, and by those of its chunk or round at most. */
static void check_counts(kk_gate *g, const char *where, const json_t *row, double chunk) {
    const double rows = kk_gate_number_or(row, "restored_rows", 0);
    const double keys = kk_gate_number_or(json_object_get(row, "reach"), "keys_rebuilt", 0);
    const double most = chunk > KK_MAX_DRAFT + 1 ? chunk : KK_MAX_DRAFT + 1;
    if (keys < rows || keys > rows * most)
        kk_gate_say(g, "%s: %.0f rows were rebuilt, and read %.0f times", where, rows, keys);
}

/* By how many keys as many queries may differ.  Rows of drafts that were not accepted may have
 * stood at other positions in the two answers, though at none beyond the answer and a draft.  Turns
 * that count their drafts are plain ones. */
static double drafts_apart(const kk_gate *g, const json_t *row) {
    const char *spec = kk_gate_text(json_object_get(g->report, "settings"), "spec");
    const double layers = kk_gate_number_or(json_object_get(g->report, "model"), "layers", 0);
    const double generated = kk_gate_number_or(row, "generated", 0);
    const double rows = kk_gate_number_or(row, "tokens", 0) + generated - 1;
    const double queries = kk_gate_number_or(json_object_get(row, "reach"), "queries", 0);
    if (!*spec || strcmp(spec, "none") == 0 || kk_gate_get(row, "drafted")) return 0;
    return fmax(queries - layers * rows, 0) * (generated + KK_MAX_DRAFT);
}

/* What exact decoding reads of stored rows, restored decoding reads of stored and rebuilt ones. */
static void check_keys(kk_gate *g, const char *where, const json_t *row, const json_t *exact) {
    const json_t *a = json_object_get(row, "reach"), *b = json_object_get(exact, "reach");
    const double own =
        kk_gate_number_or(a, "keys_stored", 0) + kk_gate_number_or(a, "keys_rebuilt", 0);
    const double all = kk_gate_number_or(b, "keys_stored", 0);
    if (kk_gate_number_or(a, "queries", 0) != kk_gate_number_or(b, "queries", -1)) return;
    if (fabs(own - all) > drafts_apart(g, row))
        kk_gate_say(g, "%s: attention read %.0f keys, and %.0f with all rows kept", where, own,
                    all);
}

static void check_list(kk_gate *g, const char *where, const json_t *rows, const json_t *exact,
                       double chunk) {
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!kk_gate_get(row, "reach")) continue;
        check_counts(g, where, row, chunk);
        if (exact) check_keys(g, where, row, json_array_get(exact, i));
    }
}

static const json_t *rung_like(const kk_gate *g, const json_t *r) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *o = kk_gate_item(g->report, "rungs", i);
        if (strcmp(kk_gate_text(o, "arm"), "exact") == 0 &&
            kk_gate_number_or(o, "lines", -1) == kk_gate_number_or(r, "lines", -2))
            return o;
    }
    return NULL;
}

/* Rows of full layers beyond sink, window and two chunks are gone: rebuilt for the last token. */
static void check_memory(kk_gate *g) {
    const json_t *s = json_object_get(g->report, "settings");
    const double kept = kk_gate_number_or(s, "sink", 0) + kk_gate_number_or(s, "window", 0) +
                        2 * kk_gate_number_or(s, "chunk", 0);
    const json_t *p = kk_gate_item(g->report, "projections", 0);
    const double layers = kk_gate_number_or(json_object_get(p, "layers"), "full", 0);
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        const double least = layers * (kk_gate_number_or(row, "tokens", 0) - kept);
        if (strcmp(kk_gate_text(row, "kv_full"), "restored") == 0 &&
            kk_gate_number_or(row, "restored_rows", 0) < least)
            kk_gate_say(g,
                        "%.40s: %.0f rows were rebuilt at %.0f tokens, and %.0f at least are gone",
                        kk_gate_text(row, "policy"), kk_gate_number_or(row, "restored_rows", 0),
                        kk_gate_number_or(row, "tokens", 0), least);
    }
}

static void rule_restored_counts(kk_gate *g) {
    const json_t *settings = json_object_get(g->report, "settings");
    const double chunk = kk_gate_number_or(settings, "chunk", 0);
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i), *cache = kk_gate_cache(g, r);
        if (kk_gate_restored(g, r))
            check_list(g, kk_gate_text(r, "arm"), json_object_get(r, "rows"),
                       json_object_get(rung_like(g, r), "rows"),
                       kk_gate_number_or(cache, "chunk", 0));
    }
    if (kk_gate_is(g, "sweep"))
        for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++)
            check_list(g, "a row", json_object_get(kk_gate_item(g->report, "rows", i), "answers"),
                       json_object_get(json_object_get(g->report, "exact"), "answers"), chunk);
    for (size_t i = 0; i < kk_gate_size(g->report, "policies"); i++) {
        const json_t *p = kk_gate_item(g->report, "policies", i), *plain, *exact;
        plain = json_object_get(json_object_get(p, "arms"), "plain");
        exact = json_object_get(json_object_get(kk_gate_item(g->report, "policies", 0), "arms"),
                                "plain");
        if (kk_gate_restored(g, p))
            check_list(g, kk_gate_text(p, "policy"), json_object_get(plain, "rows"),
                       json_object_get(exact, "rows"), chunk);
    }
    if (kk_gate_is(g, "memory")) check_memory(g);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Weights in memory have a few tables more than the model's own. */
static void check_weights(kk_gate *g, const char *where, const json_t *bytes) {
    const double own = kk_gate_number_or(json_object_get(g->report, "model"), "weight_bytes", 0);
    double is;
    if (own > 0 && kk_gate_number(bytes, "weights.verifier", &is) &&
        (is < own || is > KK_GATE_WEIGHTS_OVER * own))
        kk_gate_say(g, "%s: %.0f bytes of weights, and the model has %.0f", where, is, own);
    if (kk_gate_number_or(bytes, "kv.sliding", 1) <= 0 ||
        kk_gate_number_or(bytes, "kv.full", 1) <= 0)
        kk_gate_say(g, "%s: K/V of 0 bytes", where);
}

/* The drafter has its own weights, and a copy of the verifier's head at most. */
static void check_drafter(kk_gate *g, const char *where, const json_t *bytes) {
    const double own = kk_gate_number_or(kk_gate_get(g->report, "drafter"), "weight_bytes", 0);
    const double model = kk_gate_number_or(json_object_get(g->report, "model"), "weight_bytes", 0);
    double is;
    if (!kk_gate_number(bytes, "weights.drafter", &is)) return;
    if (own > 0 ? is < own || is > own + model : is > 0)
        kk_gate_say(g, "%s: %.0f bytes of a drafter, and that of the report has %.0f", where, is,
                    own);
}

/* A projection has its own weights; on a CUDA device, decoders in bf16 beside them. */
static bool is_projection(const json_t *one, double bytes, bool cuda) {
    const double own = kk_gate_number_or(one, "weight_bytes", 0);
    const double more = 2 * kk_gate_number_or(one, "params", 0);
    return kk_gate_same(bytes, own) || (cuda && own > 0 && bytes > own && bytes <= own + more);
}

/* Of several projections, those of a policy that restores nothing are none. */
static void check_projection(kk_gate *g, const char *where, const json_t *bytes) {
    const json_t *machine = kk_gate_get(g->report, "machine");
    const bool cuda = strcmp(kk_gate_text(machine, "device"), "cuda") == 0;
    bool known = false;
    double is;
    if (!kk_gate_number(bytes, "weights.projection", &is)) return;
    known = is_projection(kk_gate_get(g->report, "projection"), is, cuda);
    for (size_t i = 0; i < kk_gate_size(g->report, "projections"); i++)
        known |= is_projection(kk_gate_item(g->report, "projections", i), is, cuda);
    if (!known)
        kk_gate_say(g, "%s: %.0f bytes of a projection, which the report has not", where, is);
}

static void visit_bytes(kk_gate *g, const char *where, const json_t *o) {
    const json_t *bytes = kk_gate_get(o, "bytes");
    if (!json_is_object(bytes)) return;
    check_weights(g, where, bytes);
    check_drafter(g, where, bytes);
    check_projection(g, where, bytes);
}

static void rule_weights_mismatch(kk_gate *g) { kk_gate_walk(g, visit_bytes); }

/* ---- gates and constants --------------------------------------------------------------------- */

static void need_check(kk_gate *g, const char *figure, const char *arm, double limit) {
    const json_t *c = kk_gate_check_of(g, figure, arm);
    if (!c)
        kk_gate_say(g, "%.30s of %.30s was to be checked with the limit %.6g, and is not", figure,
                    arm, limit);
    else if (!kk_gate_same(kk_gate_number_or(c, "limit", NAN), limit))
        kk_gate_say(g, "%.30s of %.30s has the limit %.6g, and %.6g was asked for", figure, arm,
                    kk_gate_number_or(c, "limit", NAN), limit);
}

/* What the settings ask for, and what every restored arm is held to. */
static void rule_gate_limits(kk_gate *g) {
    const json_t *s = json_object_get(g->report, "settings");
    double limit;
    for (size_t i = 0; i < kk_gate_size(s, "arms"); i++) {
        const char *arm = json_string_value(kk_gate_item(s, "arms", i));
        if (!arm) continue;
        if (kk_gate_number(s, "min_recall", &limit) && strcmp(arm, "window") != 0)
            need_check(g, "recall", arm, limit);
        if (strcmp(arm, "restored") != 0) continue;
        need_check(g, "recall_drop", arm, KK_GATE_RECALL_DROP);
        need_check(g, "restored_rows", arm, 1);
        if (kk_gate_number(s, "max_kl", &limit)) need_check(g, "mean_kl", arm, limit);
        if (kk_gate_number(s, "min_kv_ratio", &limit)) need_check(g, "kv_ratio", arm, limit);
    }
}

/* Where a report may say true or false: some rule computes it, or it was chosen. */
static bool is_known(const char *where, const char *key) {
    static const char *const known[] = {"hit",         "lossless",  "identical",
                                        "filled",      "synthetic", "other_weights",
                                        "same_tokens", "same_hash", "same_logits"};
    if (strncmp(where, "settings", 8) == 0 || strncmp(where, "machine", 7) == 0 ||
        strcmp(where, "build") == 0)
        return true;
    if (strcmp(key, "holds") == 0)
        return strncmp(where, "gate", 4) == 0 || strncmp(where, "steps[", 6) == 0 ||
               strcmp(where, "exactness") == 0;
    return among(key, known, sizeof known / sizeof *known);
}

static void visit_constants(kk_gate *g, const char *where, const json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key,
                        v) if (json_is_boolean(v) && !is_known(where, key))
        kk_gate_say(g, "%s: nothing computes `%.40s`", where, key);
}

/* Alpha 1 is the identity where it gave the logits of exact decoding. */
static void check_identity(kk_gate *g) {
    const json_t *said = json_object_get(json_object_get(g->report, "identity"), "same_logits");
    const size_t n = kk_gate_size(g->report, "rows");
    const json_t *one = n ? kk_gate_item(g->report, "rows", n - 1) : NULL;
    const json_t *exact = json_object_get(g->report, "exact");
    bool same = kk_gate_number_or(one, "alpha", 0) == 1;
    for (size_t i = 0; i < kk_gate_size(exact, "answers"); i++) {
        const char *a = kk_gate_text(kk_gate_item(exact, "answers", i), "logits_hash");
        same &= *a && strcmp(a, kk_gate_text(kk_gate_item(one, "answers", i), "logits_hash")) == 0;
    }
    if (json_is_true(said) != same)
        kk_gate_say(g, "`identity.same_logits` is not what the hashes say");
}

static void rule_constant(kk_gate *g) {
    kk_gate_walk(g, visit_constants);
    if (kk_gate_is(g, "sweep")) check_identity(g);
}

/* ---- the rules ------------------------------------------------------------------------------- */

static const kk_gate_entry words_rules[] = {
    {"POLICY_WORDS", rule_policy_words, "an arm keeps what its name and its words say"},
    {"PROJECTION_MISSING", rule_projection_missing, "what restores rows has a projection"},
    {"RESTORED_COUNTS", rule_restored_counts,
     "rows rebuilt and keys read are as many as length, chunk and exact decoding give"},
    {"WEIGHTS_MISMATCH", rule_weights_mismatch,
     "weights are those of model, drafter and projection, and K/V takes bytes"},
    {"GATE_LIMITS", rule_gate_limits, "every limit that was asked for is checked, and no wider"},
    {"CONSTANT", rule_constant, "nothing is said to be true that nothing computes"},
};
KK_GATE_GROUP(words, words_rules);
