/* gate_envelope.c - rules about what was run, and about the labels that figures need. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "eval/reports/gate_rules.h"

static void rule_missing_envelope(kk_gate *g) {
    static const char *const needed[] = {"version", "date",  "command",
                                         "machine", "model", "settings"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!kk_gate_get(g->report, needed[i])) kk_gate_say(g, "it has no `%s`", needed[i]);
}

/* "0.1.0 (c34d9868a474)", with a + where files were changed since. */
static void rule_missing_commit(kk_gate *g) {
    const char *version = kk_gate_text(g->report, "version"), *open = strchr(version, '(');
    size_t digits = 0;
    while (open && isxdigit((unsigned char)open[1 + digits])) digits++;
    if (digits < KK_GATE_COMMIT_DIGITS)
        kk_gate_say(g, "the version '%.40s' names no commit", version);
}

/* ---- fingerprints ------------------------------------------------------------------------- */

static bool is_fingerprint(const char *s) {
    return strlen(s) == 16 && strspn(s, "0123456789abcdef") == 16;
}

static void need_fingerprint(kk_gate *g, const char *where, const json_t *o, const char *key) {
    if (!is_fingerprint(kk_gate_text(o, key)))
        kk_gate_say(g, "%s has no `%s` of 16 hexadecimal digits", where, key);
}

static void visit_projection(kk_gate *g, const char *where, const json_t *o) {
    const json_t *p = kk_gate_get(o, "projection");
    if (!json_is_object(p)) return;
    /* A report of training speaks of what it made, which no engine has loaded yet. */
    if (!kk_gate_is(g, "projection")) need_fingerprint(g, "a projection", p, "fingerprint");
    need_fingerprint(g, "a projection", p, "model");
    (void)where;
}

static void rule_fingerprint_missing(kk_gate *g) {
    const json_t *drafter = kk_gate_get(g->report, "drafter");
    need_fingerprint(g, "the model", json_object_get(g->report, "model"), "fingerprint");
    if (drafter) need_fingerprint(g, "the drafter", drafter, "fingerprint");
    kk_gate_walk(g, visit_projection);
}

/* Other weights of the same model are no mistake where the report says so: it then has their
 * identity, or their source. */
static bool is_said(const kk_gate *g, const json_t *projection) {
    const json_t *model = json_object_get(g->report, "model");
    const char *identity = kk_gate_text(projection, "identity");
    if (!kk_gate_true(projection, "other_weights")) return false;
    if (*identity && strcmp(identity, kk_gate_text(model, "identity")) == 0) return true;
    return strcmp(kk_gate_text(projection, "model"), kk_gate_text(model, "quantised_from")) == 0;
}

static void compare_prints(kk_gate *g, const char *where, const json_t *projection,
                           const char *part) {
    const char *made_for = kk_gate_text(projection, part);
    const char *ran = kk_gate_text(json_object_get(g->report, part), "fingerprint");
    if (*made_for && *ran && strcmp(made_for, ran) != 0 && !is_said(g, projection))
        kk_gate_say(g, "%s: the projection was trained for the %s %.16s, and %.16s was run", where,
                    part, made_for, ran);
}

static void visit_prints(kk_gate *g, const char *where, const json_t *o) {
    const json_t *p = kk_gate_get(o, "projection");
    if (!json_is_object(p)) return;
    compare_prints(g, where, p, "model");
    compare_prints(g, where, p, "drafter");
}

static void rule_fingerprint_mismatch(kk_gate *g) { kk_gate_walk(g, visit_prints); }

/* ---- numbers ------------------------------------------------------------------------------ */

static bool is_figure(const char *key) {
    static const char *const figures[] = {
        "recall", "hits",    "mean_kl", "worst_kl",  "loss_exact", "loss_arm", "loss_change",
        "tok_s",  "seconds", "median",  "prefill_s", "decode_s",   "bits",     "ratio",
        "value",  "loss",    "ms",      "min",       "max",        "limit",    "rel_mse"};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (strcmp(key, figures[i]) == 0) return true;
    return false;
}

/* JSON has no such number, so they appear as null or as words. */
static bool is_no_number(const json_t *v) {
    static const char *const words[] = {"nan",  "-nan",     "inf",      "-inf",
                                        "+inf", "infinity", "-infinity"};
    const char *s = json_string_value(v);
    if (json_is_null(v)) return true;
    for (size_t i = 0; s && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0) return true;
    return false;
}

static void visit_numbers(kk_gate *g, const char *where, const json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v) {
        if (!is_no_number(v) || (json_is_null(v) && !is_figure(key))) continue;
        const char *word = json_string_value(v);
        kk_gate_say(g, "%s: `%.40s` is %s", where, key, word ? word : "null");
    }
}

static void rule_not_finite(kk_gate *g) { kk_gate_walk(g, visit_numbers); }

/* ---- labels ------------------------------------------------------------------------------- */

static bool commanded(const kk_gate *g, const char *option) {
    return strstr(kk_gate_text(g->report, "command"), option) != NULL;
}

static void rule_synthetic_unlabelled(kk_gate *g) {
    const json_t *model = json_object_get(g->report, "model");
    const bool random = strcmp(kk_gate_text(model, "format"), "synthetic") == 0;
    if ((random || commanded(g, "--synthetic")) && !kk_gate_true(model, "synthetic"))
        kk_gate_say(g, "the weights were random (%s), and `model.synthetic` does not say so",
                    random ? "model.format is synthetic" : "--synthetic");
}

static void check_trace(kk_gate *g, const char *where, const json_t *arms, bool traced) {
    const json_t *arm = kk_gate_get(arms, "dflash");
    if (!arm) return;
    const bool labelled = kk_gate_get(arm, "accept_trace") != NULL;
    if (traced && !labelled)
        kk_gate_say(g, "%s: drafts of dflash replay a trace, and its figures do not say so", where);
    if (!traced && labelled)
        kk_gate_say(g, "%s: dflash replays a trace, and the settings do not say so", where);
}

static void rule_trace_unlabelled(kk_gate *g) {
    const json_t *settings = json_object_get(g->report, "settings");
    const bool said = kk_gate_get(settings, "accept_trace") != NULL;
    const bool traced = said || commanded(g, "--accept-trace");
    if (traced && !said) kk_gate_say(g, "--accept-trace was given, and the settings do not say so");
    check_trace(g, "arms", json_object_get(g->report, "arms"), traced);
    const json_t *set;
    for (size_t i = 0; (set = kk_gate_timed(g, i)); i++)
        check_trace(g, kk_gate_timed_name(set), json_object_get(set, "arms"), traced);
    if (traced && !kk_gate_true(json_object_get(g->report, "model"), "synthetic"))
        kk_gate_say(g, "a trace was replayed on weights that are not said to be random");
}

/* ---- rows --------------------------------------------------------------------------------- */

static void visit_recall(kk_gate *g, const char *where, const json_t *o) {
    double recall;
    if (kk_gate_number(o, "recall", &recall) && json_array_size(kk_gate_answers(o)) == 0)
        kk_gate_say(g, "%s: recall %.4g without the answers it was counted in", where, recall);
}

static void rule_missing_rows(kk_gate *g) {
    static const struct {
        const char *kind, *list;
    } lists[] = {{"needle", "rungs"},      {"sweep", "rows"},  {"kv", "rows"},
                 {"memory", "rows"},       {"accept", "rows"}, {"compare", "rows"},
                 {"projection", "stages"}, {"steps", "rungs"}, {"steps", "policies"}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (kk_gate_is(g, lists[i].kind) && kk_gate_size(g->report, lists[i].list) == 0)
            kk_gate_say(g, "there are no `%s`", lists[i].list);
    kk_gate_walk(g, visit_recall);
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry envelope_rules[] = {
    {"MISSING_ENVELOPE", rule_missing_envelope,
     "a report says version, date, command, machine, model and settings"},
    {"MISSING_COMMIT", rule_missing_commit, "the version names the commit"},
    {"FINGERPRINT_MISSING", rule_fingerprint_missing,
     "model, drafter and projection carry the fingerprints of their weights"},
    {"FINGERPRINT_MISMATCH", rule_fingerprint_mismatch,
     "a projection was trained for the model and the drafter of the report"},
    {"SYNTHETIC_UNLABELLED", rule_synthetic_unlabelled, "random weights are labelled"},
    {"MISSING_ROWS", rule_missing_rows, "figures come with the rows they are of"},
};
KK_GATE_GROUP(envelope, envelope_rules);

static const kk_gate_entry values_rules[] = {
    {"NOT_FINITE", rule_not_finite, "figures are finite numbers"},
};
KK_GATE_GROUP(values, values_rules);

static const kk_gate_entry trace_rules[] = {
    {"TRACE_UNLABELLED", rule_trace_unlabelled,
     "a replayed acceptance is labelled, and replayed on random weights only"},
};
KK_GATE_GROUP(trace, trace_rules);
