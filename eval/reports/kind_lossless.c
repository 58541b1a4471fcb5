/* kind_lossless.c - reports of `make lossless-all`: what they hold, and the rules they are held to.
 *
 * The plan of the cases is known (eval/texts/lossless_plan.h): a report that stores its groups is
 * held to it prompt by prompt, and its counts are counted again. */
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_kinds.h"
#include "eval/texts/lossless_plan.h"

static const kk_gate_member members[] = {
    {"settings/tokens", KK_MEMBER_SIZE},
    {"settings/draft_most", KK_MEMBER_SIZE},
    {"settings/step", KK_MEMBER_SIZE},
    {"settings/seed", KK_MEMBER_COUNT},
    {"settings/document_seed", KK_MEMBER_COUNT},
    {"settings/formats", KK_MEMBER_LIST},
    {"prompts", KK_MEMBER_SIZE},
    {"prompt_tokens", KK_MEMBER_SIZE},
    {"cases", KK_MEMBER_SIZE},
    {"mismatches", KK_MEMBER_COUNT},
    {"compared", KK_MEMBER_LIST},
    {"cases_by", KK_MEMBER_OBJECT},
    {"cases_by/*/*", KK_MEMBER_COUNT},
    {"seconds", KK_MEMBER_TIME},
    {"groups", KK_MEMBER_LIST},
    {"groups/*/prompt", KK_MEMBER_HASH},
    {"groups/*/kind", KK_MEMBER_TEXT},
    {"groups/*/tokens", KK_MEMBER_SIZE},
    {"groups/*/format", KK_MEMBER_TEXT},
    {"groups/*/policy", KK_MEMBER_TEXT},
    {"groups/*/cases", KK_MEMBER_SIZE},
    {"groups/*/plain", KK_MEMBER_HASH},
    {"groups/*/drafted", KK_MEMBER_HASH},
};

static bool compared(const kk_gate *g, const char *what) {
    for (size_t i = 0; i < kk_gate_size(g->report, "compared"); i++) {
        const char *one = json_string_value(kk_gate_item(g->report, "compared", i));
        if (one && strcmp(one, what) == 0) return true;
    }
    return false;
}

static void rule_cases_compared(kk_gate *g) {
    if (!compared(g, "tokens")) kk_gate_say(g, "tokens were not compared");
    if (!compared(g, "logits hash")) kk_gate_say(g, "hashes of logits were not compared");
}

/* ---- counts -------------------------------------------------------------------------------- */

/* Every axis counts every case, and draft lengths are those of the settings. */
static void rule_cases_recount(kk_gate *g) {
    static const char *const axes[] = {"prompt",  "length",   "block",    "format", "policy",
                                       "threads", "sampling", "proposer", "ending"};
    const json_t *by = json_object_get(g->report, "cases_by"), *settings;
    const double cases = kk_gate_number_or(g->report, "cases", 0);
    const char *axis, *name;
    json_t *values, *count;
    settings = json_object_get(g->report, "settings");
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (!json_is_object(json_object_get(by, axes[i])))
            kk_gate_say(g, "cases are not counted by %s", axes[i]);
    json_object_foreach((json_t *)(uintptr_t)by, axis, values) {
        double sum = 0;
        json_object_foreach(values, name, count) sum += json_number_value(count);
        if (sum != cases)
            kk_gate_say(g, "by %.40s there are %.0f cases, and %.0f in all", axis, sum, cases);
    }
    const size_t blocks = json_object_size(json_object_get(by, "block"));
    if ((double)blocks != kk_gate_number_or(settings, "draft_most", 0))
        kk_gate_say(g, "cases of %zu lengths of drafts, and %.0f were asked for", blocks,
                    kk_gate_number_or(settings, "draft_most", 0));
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* One case more of a value of an axis. */
static void count_one(json_t *by, const char *axis, const char *value) {
    json_t *values = json_object_get(by, axis);
    if (!values) {
        json_object_set_new(by, axis, json_object());
        values = json_object_get(by, axis);
    }
    const json_int_t n = json_integer_value(json_object_get(values, value));
    json_object_set_new(values, value, json_integer(n + 1));
}

static void count_group(json_t *by, int32_t prompt, int32_t format) {
    char threads[12], block[12];
    for (int32_t c = 0; c < KK_LOSSLESS_GROUP; c++) {
        const int32_t t = c / (KK_LOSSLESS_SAMPLINGS * KK_LOSSLESS_BLOCKS);
        const int32_t s = c / KK_LOSSLESS_BLOCKS % KK_LOSSLESS_SAMPLINGS;
        const int32_t b = c % KK_LOSSLESS_BLOCKS;
        snprintf(threads, sizeof threads, "%d", t + 1);
        snprintf(block, sizeof block, "%d", b + 1);
        count_one(by, "threads", threads);
        count_one(by, "block", block);
        count_one(by, "sampling", kk_lossless_samplings[s]);
        count_one(by, "ending", kk_lossless_endings[kk_lossless_ending(prompt, s)]);
        count_one(by, "proposer",
                  kk_lossless_proposers[kk_lossless_proposer(prompt, format, t, s, b)]);
    }
}

static void count_planned(json_t *by, const json_t *formats, size_t prompts, int32_t step) {
    for (size_t i = 0; i < prompts; i++)
        for (size_t f = 0; f < json_array_size(formats); f++) {
            const int32_t number = (int32_t)i * step;
            const int32_t n = kk_lossless_sizes[number / KK_LOSSLESS_KINDS];
            const char *format = json_string_value(json_array_get(formats, f));
            for (int c = 0; c < KK_LOSSLESS_GROUP; c++) {
                count_one(by, "prompt", kk_lossless_kinds[number % KK_LOSSLESS_KINDS]);
                count_one(by, "length", kk_lossless_lengths[kk_lossless_length(n)]);
                count_one(by, "format", format ? format : "");
                count_one(by, "policy",
                          kk_lossless_policies[kk_lossless_policy((int32_t)i, (int32_t)f)]);
            }
            count_group(by, (int32_t)i, (int32_t)f);
        }
}

/* Values that came up in no case may stand there with 0. */
static void compare_counts(kk_gate *g, const json_t *planned) {
    const json_t *by = json_object_get(g->report, "cases_by");
    const char *axis, *value;
    json_t *values, *n;
    json_object_foreach((json_t *)(uintptr_t)by, axis, values) {
        json_object_foreach(values, value, n) {
            const json_t *is = json_object_get(json_object_get(planned, axis), value);
            if (json_integer_value(is) != json_integer_value(n))
                kk_gate_say(g, "%lld cases of %.30s %.30s, and the plan has %lld",
                            (long long)json_integer_value(n), axis, value,
                            (long long)json_integer_value(is));
        }
    }
}

static void check_group(kk_gate *g, size_t at, size_t formats, int32_t step) {
    const json_t *o = kk_gate_item(g->report, "groups", at);
    const json_t *settings = json_object_get(g->report, "settings");
    const int32_t prompt = (int32_t)(at / formats), format = (int32_t)(at % formats);
    const int32_t number = prompt * step;
    const int32_t size = number / KK_LOSSLESS_KINDS;
    const char *name = json_string_value(kk_gate_item(settings, "formats", (size_t)format));
    if (strcmp(kk_gate_text(o, "kind"), kk_lossless_kinds[number % KK_LOSSLESS_KINDS]) != 0 ||
        kk_gate_number_or(o, "tokens", 0) != kk_lossless_sizes[size] ||
        strcmp(kk_gate_text(o, "format"), name ? name : "") != 0 ||
        strcmp(kk_gate_text(o, "policy"),
               kk_lossless_policies[kk_lossless_policy(prompt, format)]) != 0 ||
        kk_gate_number_or(o, "cases", 0) != KK_LOSSLESS_GROUP)
        kk_gate_say(g, "group %zu is not the one that the plan has there", at);
}

/* Lengths of the prompts and of what was generated. */
static void check_tokens(kk_gate *g, size_t prompts, int32_t step) {
    const double said = kk_gate_number_or(g->report, "prompt_tokens", 0);
    const double made = kk_gate_number_or(json_object_get(g->report, "settings"), "tokens", 0);
    int64_t sum = 0;
    for (size_t i = 0; i < prompts; i++)
        sum += kk_lossless_sizes[(int32_t)i * step / KK_LOSSLESS_KINDS];
    if (said != (double)sum)
        kk_gate_say(g, "prompts of %.0f tokens, and those of the plan have %lld", said,
                    (long long)sum);
    if (made != KK_LOSSLESS_TOKENS)
        kk_gate_say(g, "generations of %.0f tokens, and the plan has %d", made, KK_LOSSLESS_TOKENS);
}

/* Prompts of the plan of which every step-th is taken. */
static double drawn_prompts(double step) {
    const int32_t n = (KK_LOSSLESS_PROMPTS - 1) / (int32_t)step + 1;
    return n;
}

static void rule_cases_plan(kk_gate *g) {
    const json_t *s = json_object_get(g->report, "settings");
    const size_t n = kk_gate_size(g->report, "groups"), formats = kk_gate_size(s, "formats");
    const double step = kk_gate_number_or(s, "step", 0);
    const double prompts = kk_gate_number_or(g->report, "prompts", 0);
    if (!kk_gate_get(g->report, "groups")) return; /* MEMBER_MISSING asks */
    if (!(step >= 1 && step <= KK_LOSSLESS_PROMPTS) || formats == 0 || formats > KK_KV_FORMATS ||
        prompts != drawn_prompts(step) || (double)n != prompts * (double)formats ||
        kk_gate_number_or(s, "seed", 0) != KK_LOSSLESS_SEED ||
        kk_gate_number_or(s, "document_seed", 0) != KK_LOSSLESS_DOCUMENT_SEED) {
        kk_gate_say(g, "%zu groups of %.0f prompts, every %.6g-th of %d, in %zu formats", n,
                    prompts, step, KK_LOSSLESS_PROMPTS, formats);
        return;
    }
    for (size_t i = 0; i < n; i++) check_group(g, i, formats, (int32_t)step);
    check_tokens(g, (size_t)prompts, (int32_t)step);
    json_t *planned = json_object();
    count_planned(planned, json_object_get(s, "formats"), (size_t)prompts, (int32_t)step);
    compare_counts(g, planned);
    json_decref(planned);
}

/* ---- differences --------------------------------------------------------------------------- */

static void rule_cases_differ(kk_gate *g) {
    const double mismatches = kk_gate_number_or(g->report, "mismatches", 0);
    if (mismatches > 0)
        kk_gate_say(g, "%.0f of %.0f cases differ", mismatches,
                    kk_gate_number_or(g->report, "cases", 0));
    for (size_t i = 0; i < kk_gate_size(g->report, "groups"); i++) {
        const json_t *o = kk_gate_item(g->report, "groups", i);
        if (strcmp(kk_gate_text(o, "plain"), kk_gate_text(o, "drafted")) != 0)
            kk_gate_say(g, "group %zu: drafting gave other tokens or logits than plain decoding",
                        i);
    }
}

/* A prompt of one token is <bos>, but for random ones. */
static bool is_start(const json_t *group) {
    return kk_gate_number_or(group, "tokens", 0) == 1 &&
           strcmp(kk_gate_text(group, "kind"), "random") != 0;
}

/* The same prompt has the same hash in all formats, and no two have but those that are <bos>. */
static void rule_cases_prompts(kk_gate *g) {
    const size_t formats = kk_gate_size(json_object_get(g->report, "settings"), "formats");
    for (size_t i = 0; formats && i < kk_gate_size(g->report, "groups"); i++) {
        const json_t *own = kk_gate_item(g->report, "groups", i);
        for (size_t j = 0; j < i; j++) {
            const json_t *one = kk_gate_item(g->report, "groups", j);
            const bool same = i / formats == j / formats || (is_start(own) && is_start(one));
            if ((strcmp(kk_gate_text(own, "prompt"), kk_gate_text(one, "prompt")) == 0) != same) {
                kk_gate_say(g, "groups %zu and %zu: the hashes of their prompts do not fit", j, i);
                break;
            }
        }
    }
}

static const kk_gate_entry cases_rules[] = {
    {"CASES_COMPARED", rule_cases_compared, "tokens and hashes of logits were compared"},
    {"CASES_RECOUNT", rule_cases_recount, "every axis counts every case"},
    {"CASES_PLAN", rule_cases_plan, "groups and counts of cases are those of the plan"},
    {"CASES_PROMPTS", rule_cases_prompts, "a group has its own prompt, the same in every format"},
    {"CASES_DIFFER", rule_cases_differ, "no case of drafting differs from plain decoding"},
};
static const kk_gate_group cases = {cases_rules, sizeof cases_rules / sizeof *cases_rules};

static const kk_gate_group *const groups[] = {&cases};

KK_GATE_KIND(lossless, members, groups);
