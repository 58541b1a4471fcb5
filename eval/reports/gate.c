/* gate.c - the table of rules, and how a report is taken through it; see gate.h. */
#define _GNU_SOURCE
#include "eval/reports/gate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "eval/reports/gate_rules.h"
#include "eval/reports/report.h"

enum { MOST_SAID = 8, MOST_BYTES = 256 << 20 };

static const char *const kinds[] = {"bench",  "needle",  "accept",   "sweep",     "kv",
                                    "memory", "compare", "lossless", "projection"};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct {
    kk_gate_rule rule;
    kk_gate_check_fn check;
} entry;

#define CLAIM(code, kinds, fn, text)                                                               \
    { {code, kinds, false, text}, fn }
#define ALWAYS(code, kinds, fn, text)                                                              \
    { {code, kinds, true, text}, fn }

static const entry rules[] = {
    /* what was run */
    CLAIM("MISSING_ENVELOPE", NULL, kk_rule_missing_envelope,
          "a report says version, date, command, machine, model and settings"),
    CLAIM("MISSING_COMMIT", NULL, kk_rule_missing_commit, "the version names the commit"),
    CLAIM("FINGERPRINT_MISSING", NULL, kk_rule_fingerprint_missing,
          "model, drafter and projection carry the fingerprints of their weights"),
    ALWAYS("FINGERPRINT_MISMATCH", NULL, kk_rule_fingerprint_mismatch,
           "a projection was trained for the model and the drafter of the report"),
    ALWAYS("NOT_FINITE", NULL, kk_rule_not_finite, "figures are finite numbers"),
    ALWAYS("SYNTHETIC_UNLABELLED", NULL, kk_rule_synthetic_unlabelled,
           "random weights are labelled"),
    ALWAYS("TRACE_UNLABELLED", "bench", kk_rule_trace_unlabelled,
           "a replayed acceptance is labelled, and replayed on random weights only"),
    CLAIM("MISSING_ROWS", NULL, kk_rule_missing_rows, "figures come with the rows they are of"),
    /* restoration */
    CLAIM("RESTORED_UNCOUNTED", "needle sweep memory bench", kk_rule_restored_uncounted,
          "every sample of a restored arm counts the rows that were rebuilt"),
    ALWAYS("RESTORED_NOTHING", "needle sweep memory bench", kk_rule_restored_nothing,
           "an arm called restored rebuilt rows"),
    ALWAYS("RESTORED_NO_LATENTS", "needle memory bench", kk_rule_restored_no_latents,
           "an arm called restored keeps latents, and the allocator knows of them"),
    ALWAYS("MIXED_PATHS", "needle sweep memory bench", kk_rule_mixed_paths,
           "within an arm all samples rebuilt rows, or none did"),
    ALWAYS("BASELINE_RESTORED", "needle memory bench", kk_rule_baseline_restored,
           "an arm that is not called restored rebuilt nothing"),
    ALWAYS("BASELINE_AS_SUT", "needle memory bench", kk_rule_baseline_as_sut,
           "what is under test is not the baseline by another name"),
    ALWAYS("REACH_MISMATCH", "needle sweep bench", kk_rule_reach_mismatch,
           "attention read rebuilt keys exactly where rows were rebuilt"),
    ALWAYS("POLICY_RECOUNT", "bench", kk_rule_policy_recount,
           "policies are held against exact, and their figures are those of their turns"),
    ALWAYS("SESSIONS_RECOUNT", "bench", kk_rule_sessions_recount,
           "sessions together are held against the same alone, and got the same logits"),
    /* recall */
    ALWAYS("EMPTY_NEEDLE", NULL, kk_rule_empty_needle, "every recalled code is a code"),
    ALWAYS("RECALL_RECOUNT", NULL, kk_rule_recall_recount,
           "hits and recall are what the answers give when they are read again"),
    ALWAYS("RECALL_SCOPE", "needle", kk_rule_recall_scope,
           "all arms answer the same documents on all rungs"),
    CLAIM(
        "RECALL_ALONE", "needle", kk_rule_recall_alone,
        "a gate on an arm that drops or rebuilds rows also looks at KL, to which recall is blind"),
    /* quality */
    ALWAYS("KL_RECOUNT", NULL, kk_rule_kl_recount,
           "mean, worst and change of loss are those of the quality rows"),
    CLAIM("KL_ROWS", NULL, kk_rule_kl_rows, "KL and loss are of 256 positions or more"),
    ALWAYS("KL_RANGE", NULL, kk_rule_kl_range,
           "KL is not negative, its mean not above its worst, and that of the identity is 0"),
    ALWAYS("REL_MSE_RECOUNT", NULL, kk_rule_rel_mse_recount,
           "relative errors are squared error over power, layer by layer and in sum"),
    ALWAYS("BITS_RECOUNT", "kv", kk_rule_bits_recount, "bits per value are stored bytes by values"),
    ALWAYS("KNEE_RECOUNT", "sweep", kk_rule_knee_recount,
           "the knee is the least alpha within 0.05 of the recall of alpha 1"),
    ALWAYS("SEEDS_OVERLAP", "projection", kk_rule_seeds_overlap,
           "what is evaluated was not trained on"),
    ALWAYS("LOSS_RECOUNT", "projection", kk_rule_loss_recount,
           "a loss is the sum of its parts by their weights"),
    /* gates */
    ALWAYS("GATE_CONSTANT", NULL, kk_rule_gate_constant,
           "what a gate says comes from checks with a figure and a limit"),
    ALWAYS("GATE_RECOUNT", NULL, kk_rule_gate_recount,
           "checks are what the rows give when they are computed again"),
    /* rates, and drafting */
    ALWAYS("RATE_RECOUNT", NULL, kk_rule_rate_recount,
           "rates are tokens over seconds of all rows, not a mean of rates"),
    CLAIM("SPREAD_MISSING", NULL, kk_rule_spread_missing, "every rate comes with its spread"),
    ALWAYS("SPREAD_ORDER", NULL, kk_rule_spread_order, "a spread is in order, and of its samples"),
    ALWAYS("DRAFTING_NEVER_RAN", "bench accept", kk_rule_drafting_never_ran,
           "an arm that drafts drafted"),
    ALWAYS("ACCEPT_RECOUNT", "accept bench", kk_rule_accept_recount,
           "acceptance is accepted over drafted, and the histogram counts the rounds"),
    CLAIM("LOSSLESS_UNPROVEN", NULL, kk_rule_lossless_unproven,
          "lossless means equal tokens and equal hashes of logits, row by row"),
    ALWAYS("LOSSLESS_CONTRADICTED", NULL, kk_rule_lossless_contradicted,
           "nothing that is called lossless differs"),
    ALWAYS("ROUND_TIMES", "bench", kk_rule_round_times,
           "times of rounds fit each other, their counts and the seconds they are of"),
    /* speed-ups */
    ALWAYS("SPEEDUP_RECOUNT", "bench compare", kk_rule_speedup_recount,
           "a speed-up is the ratio of two rates of the report"),
    ALWAYS("SPEEDUP_SELF", "bench", kk_rule_speedup_self,
           "no speed-up of one computation over itself"),
    ALWAYS("SPEEDUP_BASELINE", "bench", kk_rule_speedup_baseline,
           "speed-ups are over the fastest plain decoding of the report"),
    CLAIM("SPEEDUP_ROWS", "bench", kk_rule_speedup_rows, "a speed-up shows the rows of both arms"),
    CLAIM("SPEEDUP_SAMPLES", "bench compare", kk_rule_speedup_samples,
          "a speed-up is of 5 samples or more"),
    CLAIM("SPEEDUP_TOKENS", "bench", kk_rule_speedup_tokens,
          "a speed-up is of 32 tokens or more in the median sample"),
    CLAIM("SPEEDUP_WARM_UP", "bench", kk_rule_speedup_warm_up,
          "warm-up is on other prompts than the ones timed"),
    CLAIM("SPEEDUP_PREFILL", "bench", kk_rule_speedup_prefill,
          "prefill times of an arm lie within a factor of 3"),
    CLAIM("SPEEDUP_SCOPE", "bench", kk_rule_speedup_scope,
          "both arms of a speed-up time the same thing"),
    /* memory */
    ALWAYS("BYTES_CATEGORY", NULL, kk_rule_bytes_category,
           "bytes are the allocator's, by all of its categories"),
    ALWAYS("FORMULA_ALONE", NULL, kk_rule_formula_alone,
           "a formula stands beside measured bytes, never instead of them"),
    ALWAYS("FORMULA_MISMATCH", NULL, kk_rule_formula_mismatch,
           "a formula agrees with the measured bytes within 1 %"),
    ALWAYS("MEMORY_CLAIM", NULL, kk_rule_memory_claim,
           "a claim about memory can be computed from bytes of the report"),
    ALWAYS("GROWTH_RECOUNT", "memory", kk_rule_growth_recount,
           "growth with context is that of the measured rows"),
};
enum { RULES = sizeof rules / sizeof *rules };

size_t kk_gate_count(void) { return RULES; }
kk_gate_rule kk_gate_rule_at(size_t i) { return rules[i].rule; }

/* ---- findings ----------------------------------------------------------------------------- */

static kk_finding *add(kk_gate *g) {
    kk_verdict *v = g->verdict;
    if (!kk_grow((void **)&v->finding, &v->cap, v->n + 1, sizeof *v->finding)) {
        g->status = KK_ENOMEM;
        return NULL;
    }
    kk_finding *f = &v->finding[v->n++];
    *f = (kk_finding){.code = g->code, .note = v->legacy && !g->always};
    v->violations += !f->note;
    return f;
}

void kk_gate_say(kk_gate *g, const char *fmt, ...) {
    if (++g->said > MOST_SAID) return;
    kk_finding *f = add(g);
    if (!f) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
}

static void say_rest(kk_gate *g) {
    if (g->said <= MOST_SAID) return;
    kk_finding *f = add(g);
    if (f) snprintf(f->text, sizeof f->text, "and %zu more of these", g->said - MOST_SAID);
}

/* ---- a report ----------------------------------------------------------------------------- */

/* Whether word stands in a list of words. */
static bool listed(const char *list, const char *word) {
    const size_t len = strlen(word);
    for (const char *at = list; len && (at = strstr(at, word)); at += len)
        if ((at == list || at[-1] == ' ') && (at[len] == ' ' || at[len] == 0)) return true;
    return false;
}

static void apply(kk_gate *g) {
    for (size_t i = 0; i < RULES; i++) {
        const kk_gate_rule *r = &rules[i].rule;
        if (r->kinds && !listed(r->kinds, g->verdict->kind)) continue;
        g->code = r->code;
        g->always = r->always;
        g->said = 0;
        rules[i].check(g);
        say_rest(g);
    }
}

/* What keeps the rules from being asked at all. */
static bool refused(kk_gate *g, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static bool refused(kk_gate *g, const char *code, const char *fmt, ...) {
    g->code = code;
    g->always = true;
    kk_finding *f = add(g);
    if (!f) return true;
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
    return true;
}

static bool blank(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\n", text[i])) return false;
    return true;
}

static bool parse(kk_gate *g, const char *text, size_t len) {
    json_error_t e;
    kk_verdict *v = g->verdict;
    if (blank(text, len)) return !refused(g, "EMPTY_FILE", "there is nothing in it");
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return !refused(g, "NOT_JSON", "not JSON at line %d, column %d: %s", e.line, e.column,
                        e.text);
    if (!json_is_object(root)) {
        json_decref(root);
        v->other = true;
        return !refused(g, "NOT_A_REPORT", "it holds no JSON object");
    }
    v->report = root;
    g->report = root;
    return true;
}

static bool read_schema(kk_gate *g) {
    const json_t *schema = json_object_get(g->report, "schema");
    kk_verdict *v = g->verdict;
    v->legacy = !schema;
    if (!schema) return true;
    if (!json_is_integer(schema) || json_integer_value(schema) < 1)
        return !refused(g, "BAD_SCHEMA", "`schema` is no number from 1");
    if (json_integer_value(schema) > KK_REPORT_SCHEMA)
        return !refused(g, "FUTURE_SCHEMA",
                        "schema %lld is newer than this program, which knows %d: check it with "
                        "the version that wrote it",
                        (long long)json_integer_value(schema), KK_REPORT_SCHEMA);
    return true;
}

static bool read_kind(kk_gate *g) {
    const char *kind = kk_gate_text(g->report, "kind");
    kk_verdict *v = g->verdict;
    if (!*kind) {
        v->other = v->legacy;
        return !refused(g, "NOT_A_REPORT", "it does not say its `kind`");
    }
    snprintf(v->kind, sizeof v->kind, "%s", kind);
    for (size_t i = 0; i < KINDS; i++)
        if (strcmp(kind, kinds[i]) == 0) return true;
    return !refused(g, "UNKNOWN_KIND", "there are no reports of the kind '%.40s'", kind);
}

kk_status kk_gate_check(const char *text, size_t len, kk_verdict *out, kk_err *err) {
    *out = (kk_verdict){0};
    kk_gate g = {.verdict = out};
    if (parse(&g, text, len) && read_schema(&g) && read_kind(&g)) apply(&g);
    if (g.status == KK_OK) return KK_OK;
    kk_verdict_release(out);
    return kk_fail(err, KK_ENOMEM, "no memory for what is wrong with a report");
}

kk_status kk_gate_file(const char *path, kk_verdict *out, kk_err *err) {
    char *text;
    size_t len;
    *out = (kk_verdict){0};
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    const kk_status st = kk_gate_check(text, len, out, err);
    kk_free(text);
    return st;
}

void kk_verdict_release(kk_verdict *v) {
    json_decref(v->report);
    kk_free(v->finding);
    *v = (kk_verdict){0};
}

const char *kk_verdict_word(const kk_verdict *v) {
    return v->violations ? "refused" : v->legacy ? "legacy" : "holds";
}
