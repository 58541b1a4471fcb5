/* gate_plan.c - rules about what was to be run: counts of rows, prompts, texts and samples are
 * those of the settings, and documents are drawn again from their seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "eval/reports/gate_rules.h"
#include "eval/texts/haystack.h"
#include "eval/texts/promptset.h"

static const json_t *settings_of(const kk_gate *g) {
    return json_object_get(g->report, "settings");
}

static void count(kk_gate *g, const char *what, size_t is, double asked) {
    if ((double)is != asked)
        kk_gate_say(g, "%s: there are %zu, and %.0f were asked for", what, is, asked);
}

/* ---- counts -------------------------------------------------------------------------------- */

static void count_texts(kk_gate *g, const char *what, const json_t *list, const char *arm) {
    const json_t *texts = kk_gate_get(settings_of(g), "texts");
    size_t n = 0;
    double rows = 0;
    if (!texts) return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *q = json_array_get(list, i);
        if (arm && strcmp(kk_gate_text(q, "arm"), arm) != 0) continue;
        n++;
        rows += kk_gate_number_or(q, "rows", 0);
        for (size_t j = 0; j < i; j++) {
            const json_t *o = json_array_get(list, j);
            if ((!arm || strcmp(kk_gate_text(o, "arm"), arm) == 0) &&
                strcmp(kk_gate_text(o, "text"), kk_gate_text(q, "text")) == 0)
                kk_gate_say(g, "%s: '%.40s' stands there twice", what, kk_gate_text(q, "text"));
        }
    }
    count(g, what, n, kk_gate_number_or(texts, "texts", 0));
    if (rows != kk_gate_number_or(texts, "rows", rows))
        kk_gate_say(g, "%s: %.0f positions, and the texts have %.0f", what, rows,
                    kk_gate_number_or(texts, "rows", 0));
}

static void count_needle(kk_gate *g) {
    const json_t *s = settings_of(g);
    const size_t arms = kk_gate_size(s, "arms");
    count(g, "rungs", kk_gate_size(g->report, "rungs"), (double)(arms * kk_gate_size(s, "ladder")));
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++)
        count(g, "answers of a rung", kk_gate_size(kk_gate_item(g->report, "rungs", i), "rows"),
              kk_gate_number_or(s, "samples", 0));
    for (size_t a = 1; a < arms; a++) {
        const char *arm = json_string_value(kk_gate_item(s, "arms", a));
        if (arm) count_texts(g, arm, json_object_get(g->report, "quality"), arm);
    }
}

/* Rows of a sweep, of formats: one for each of a list of the settings, in its order. */
static void count_listed(kk_gate *g, const char *list, const char *key) {
    const json_t *s = settings_of(g);
    const double answers = kk_gate_number_or(s, "samples", 0) * (double)kk_gate_size(s, "ladder");
    count(g, "rows", kk_gate_size(g->report, "rows"), (double)kk_gate_size(s, list));
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i), *asked = kk_gate_item(s, list, i);
        const json_t *is = json_object_get(row, key);
        const bool same = json_is_number(asked)
                              ? kk_gate_same(json_number_value(is), json_number_value(asked))
                              : asked && is && json_equal(is, asked);
        if (!same) kk_gate_say(g, "row %zu is not of the %s that was asked for", i, key);
        count(g, "answers of a row", kk_gate_size(row, "answers"), answers);
        count_texts(g, "texts of a row", json_object_get(row, "quality"), NULL);
    }
}

static void count_memory(kk_gate *g) {
    const json_t *s = settings_of(g);
    const size_t n = kk_gate_size(g->report, "rows"), lengths = kk_gate_size(s, "tokens");
    for (size_t i = 0; i < n; i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        size_t of = 0;
        for (size_t j = 0; j < n; j++) {
            const json_t *o = kk_gate_item(g->report, "rows", j);
            if (strcmp(kk_gate_text(o, "policy"), kk_gate_text(row, "policy")) != 0) continue;
            of++;
            if (j < i && kk_gate_number_or(o, "tokens", 0) == kk_gate_number_or(row, "tokens", 1))
                kk_gate_say(g, "%.40s stands twice at %.0f tokens", kk_gate_text(row, "policy"),
                            kk_gate_number_or(row, "tokens", 0));
        }
        count(g, kk_gate_text(row, "policy"), of, (double)lengths);
        if (kk_gate_get(row, "answers"))
            count(g, "answers of a row", kk_gate_size(row, "answers"),
                  kk_gate_number_or(s, "samples", 0));
    }
}

static size_t words_in(const char *list) {
    size_t n = *list != 0;
    for (const char *at = list; *at; at++) n += *at == ',';
    return n;
}

static void count_bench(kk_gate *g) {
    const json_t *s = settings_of(g), *plain;
    const char *prompts = kk_gate_text(s, "prompts");
    const double repeat = kk_gate_number_or(s, "repeat", 0);
    plain = json_object_get(json_object_get(g->report, "arms"), "plain");
    count(g, "rates of decoding", kk_gate_size(json_object_get(plain, "decode_tok_s"), "samples"),
          repeat);
    if (*prompts) count(g, "sets", kk_gate_size(g->report, "sets"), (double)words_in(prompts));
    for (size_t i = 0; i < kk_gate_size(g->report, "sets"); i++) {
        const json_t *set = kk_gate_item(g->report, "sets", i), *arms;
        const char *name;
        json_t *arm;
        arms = json_object_get(set, "arms");
        count(g, "arms of a set", json_object_size(arms), (double)kk_gate_size(s, "arms"));
        if (kk_gate_number_or(set, "prompts", 0) > kk_gate_number_or(s, "samples", 0))
            kk_gate_say(g, "%.40s has more prompts than were asked for", kk_gate_text(set, "set"));
        json_object_foreach((json_t *)(uintptr_t)arms, name, arm) {
            count(g, name, kk_gate_size(arm, "rows"), kk_gate_number_or(set, "prompts", 0));
        }
    }
    if (kk_gate_get(g->report, "policies"))
        count(g, "policies", kk_gate_size(g->report, "policies"),
              (double)kk_gate_size(s, "policies"));
    for (size_t i = 0; i < kk_gate_size(g->report, "policies"); i++) {
        const json_t *policy = kk_gate_item(g->report, "policies", i);
        const char *name;
        json_t *arm;
        json_object_foreach(json_object_get(policy, "arms"), name, arm) {
            count(g, name, kk_gate_size(arm, "rows"), repeat);
        }
    }
    const json_t *sessions = kk_gate_get(g->report, "sessions");
    if (!sessions) return;
    count(g, "turns alone", kk_gate_size(json_object_get(sessions, "alone"), "rows"), repeat);
    count(g, "turns together", kk_gate_size(json_object_get(sessions, "together"), "rows"), repeat);
}

/* One turn after the other, none of them twice. */
static void count_compare(kk_gate *g) {
    const json_t *s = settings_of(g);
    const size_t n = kk_gate_size(g->report, "rows");
    count(g, "turns", n, kk_gate_number_or(s, "repeat", kk_gate_number_or(s, "turns", 0)));
    for (size_t i = 0; i < n; i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        if (kk_gate_number_or(row, "turn", 0) != (double)(i + 1))
            kk_gate_say(g, "the turn behind %zu others is said to be number %.0f", i,
                        kk_gate_number_or(row, "turn", 0));
        for (size_t j = 0; j < i; j++) {
            const json_t *o = kk_gate_item(g->report, "rows", j);
            if (json_equal(json_object_get(row, "peer"), json_object_get(o, "peer")) &&
                json_equal(json_object_get(row, "kakeya"), json_object_get(o, "kakeya")))
                kk_gate_say(g, "turns %zu and %zu are the same", j + 1, i + 1);
        }
    }
}

static void count_accept(kk_gate *g) {
    for (size_t k = 0; k < kk_gate_size(g->report, "sets"); k++) {
        const json_t *set = kk_gate_item(g->report, "sets", k);
        size_t n = 0;
        for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
            const json_t *row = kk_gate_item(g->report, "rows", i);
            const json_t *a = kk_gate_get(set, "embed_scale"), *b = kk_gate_get(row, "embed_scale");
            n += strcmp(kk_gate_text(row, "set"), kk_gate_text(set, "set")) == 0 &&
                 (!a || !b || json_equal(a, b));
        }
        count(g, kk_gate_text(set, "set"), n, kk_gate_number_or(set, "prompts", 0));
    }
}

static void rule_plan_counts(kk_gate *g) {
    if (kk_gate_is(g, "needle")) count_needle(g);
    if (kk_gate_is(g, "sweep")) count_listed(g, "alphas", "alpha");
    if (kk_gate_is(g, "kv")) count_listed(g, "formats", "format");
    if (kk_gate_is(g, "memory")) count_memory(g);
    if (kk_gate_is(g, "bench")) count_bench(g);
    if (kk_gate_is(g, "compare")) count_compare(g);
    if (kk_gate_is(g, "accept")) count_accept(g);
}

/* ---- documents ----------------------------------------------------------------------------- */

static void draw_again(kk_gate *g, const char *where, const json_t *answers, size_t from, size_t n,
                       double lines) {
    kk_twister t;
    int32_t low, high;
    const double most_seed = 9007199254740992.0; /* doubles hold no odd numbers beyond */
    const double seed = kk_gate_number_or(settings_of(g), "seed", 0);
    if (!(lines >= 1 && lines <= KK_HAYSTACK_MOST_LINES) || !(seed >= 0 && seed <= most_seed)) {
        kk_gate_say(g, "%s: documents of %.0f lines by the seed %.0f cannot be drawn again", where,
                    lines, seed);
        return;
    }
    kk_twister_seed(&t, (uint64_t)seed);
    kk_haystack_rung((int32_t)lines, &low, &high);
    for (size_t i = 0; i < n; i++) {
        const kk_haystack doc = kk_haystack_draw(&t, low, high);
        const json_t *row = json_array_get(answers, from + i);
        if (!row) return; /* PLAN_COUNTS says that it is missing */
        if (strcmp(kk_gate_text(row, "expected"), doc.code) != 0 ||
            kk_gate_number_or(row, "lines", 0) != doc.lines ||
            kk_gate_number_or(row, "index", -1) != doc.index ||
            !kk_gate_same(kk_gate_number_or(row, "depth", -1), kk_haystack_depth(&doc)))
            kk_gate_say(g, "%s: the seed gives %s at line %d of %d as document %zu, not %.24s",
                        where, doc.code, doc.index, doc.lines, i, kk_gate_text(row, "expected"));
    }
}

static void draw_rows(kk_gate *g, const json_t *answers, const char *where) {
    const json_t *s = settings_of(g);
    const double samples = kk_gate_number_or(s, "samples", 0);
    if (!(samples >= 0 && samples <= (double)json_array_size(answers))) return; /* PLAN_COUNTS */
    const size_t n = (size_t)samples;
    for (size_t r = 0; r < kk_gate_size(s, "ladder"); r++)
        draw_again(g, where, answers, r * n, n, json_number_value(kk_gate_item(s, "ladder", r)));
}

static void draw_memory(kk_gate *g) {
    const json_t *s = settings_of(g);
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        const json_t *answers = kk_gate_get(row, "answers");
        double lines = 0;
        for (size_t k = 0; k < kk_gate_size(s, "tokens"); k++)
            if (json_number_value(kk_gate_item(s, "tokens", k)) ==
                kk_gate_number_or(row, "tokens", 0))
                lines = json_number_value(kk_gate_item(s, "ladder", k));
        if (answers && lines <= 0)
            kk_gate_say(g, "`settings.ladder` does not say what was drawn for row %zu", i);
        else if (answers)
            draw_again(g, kk_gate_text(row, "policy"), answers, 0, json_array_size(answers), lines);
    }
}

static void rule_plan_documents(kk_gate *g) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i), *rows = json_object_get(r, "rows");
        draw_again(g, kk_gate_text(r, "arm"), rows, 0, json_array_size(rows),
                   kk_gate_number_or(r, "lines", 0));
    }
    if (kk_gate_is(g, "sweep") || kk_gate_is(g, "kv"))
        for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++)
            draw_rows(g, json_object_get(kk_gate_item(g->report, "rows", i), "answers"), "a row");
    if (kk_gate_is(g, "sweep"))
        draw_rows(g, json_object_get(json_object_get(g->report, "exact"), "answers"), "exact");
    if (kk_gate_is(g, "memory")) draw_memory(g);
}

/* ---- prompts ------------------------------------------------------------------------------- */

static void same_hash(kk_gate *g, const char *what, size_t i, const json_t *row, const char *key,
                      uint64_t is) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)is);
    if (row && strcmp(kk_gate_text(row, key), text) != 0)
        kk_gate_say(g, "%s: prompt %zu is not the one that the seed gives", what, i);
}

/* Documents of the set "needle" are drawn from a seed of their own, and are texts. */
static void check_needles(kk_gate *g, const json_t *rows) {
    kk_twister t;
    int32_t low, high;
    kk_twister_seed(&t, KK_PROMPTSET_NEEDLE_SEED);
    kk_haystack_rung(KK_PROMPTSET_NEEDLE_LINES, &low, &high);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const kk_haystack doc = kk_haystack_draw(&t, low, high);
        char *text;
        size_t len;
        if (kk_haystack_text(&doc, &text, &len, NULL) != KK_OK) {
            g->status = KK_ENOMEM;
            return;
        }
        same_hash(g, "needle", i, json_array_get(rows, i), "text",
                  kk_hash_bytes(KK_HASH_START, text, len));
        kk_free(text);
    }
}

static void check_random(kk_gate *g, const json_t *rows) {
    const json_t *s = settings_of(g);
    const double vocab = kk_gate_number_or(s, "vocab", 0), ctx = kk_gate_number_or(s, "ctx", 0);
    kk_promptset p;
    if (!(vocab >= 1 && vocab <= 1 << 24) || !(ctx >= 1 && ctx <= 1 << 20) ||
        (double)json_array_size(rows) * ctx > 1 << 24) {
        kk_gate_say(g, "random ids of a vocabulary of %.0f cannot be drawn again", vocab);
        return;
    }
    if (kk_promptset_random(&p, (int32_t)vocab, json_array_size(rows), (int32_t)ctx,
                            KK_PROMPTSET_RANDOM_SEED, NULL) != KK_OK) {
        g->status = KK_ENOMEM;
        return;
    }
    for (size_t i = 0; i < p.n; i++)
        same_hash(g, "random", i, json_array_get(rows, i), "prompt", kk_prompt_hash(&p.prompts[i]));
    kk_promptset_free(&p);
}

static void rule_plan_prompts(kk_gate *g) {
    if (!kk_gate_is(g, "bench")) return;
    for (size_t i = 0; i < kk_gate_size(g->report, "sets"); i++) {
        const json_t *set = kk_gate_item(g->report, "sets", i);
        const char *name = kk_gate_text(set, "set");
        const json_t *rows =
            json_object_get(json_object_get(json_object_get(set, "arms"), "plain"), "rows");
        if (json_array_size(rows) == 0) continue;
        if (strcmp(name, "needle") == 0) check_needles(g, rows);
        if (strcmp(name, "random") == 0) check_random(g, rows);
    }
}

/* ---- the command --------------------------------------------------------------------------- */

bool kk_gate_typed(const kk_gate *g, const char *option, double *out) {
    const char *command = kk_gate_text(g->report, "command");
    const size_t len = strlen(option);
    for (const char *at = command; (at = strstr(at, option)); at += len)
        if (at > command && at[-1] == ' ' && (at[len] == ' ' || at[len] == '=')) {
            char *end;
            *out = strtod(at + len + 1, &end);
            return end > at + len + 1 && strchr(" ,", *end); /* the end of the text as well */
        }
    return false;
}

/* Options of which a report's settings hold the number: always, or where its kind has it there. */
static const struct {
    const char *option, *key;
    bool always;
} options[] = {
    {"--repeat", "repeat", true},
    {"--read-time", "read_s", true},
    {"--min-recall", "min_recall", true},
    {"--max-kl", "max_kl", true},
    {"--seed", "seed", true},
    {"--min-kv-ratio", "min_kv_ratio", true},
    {"--min-restored", "min_restored_speed", true},
    {"--min-drafted", "min_drafted_speed", true},
    {"--samples", "samples", false},
    {"--turns", "repeat", false},
    {"--threads", "threads", false},
    {"-t", "threads", false},
    {"-n", "predict", false},
    {"--predict", "predict", false},
    {"--arm-predict", "arm_predict", false},
    {"--prefill", "prefill", false},
    {"--inner", "inner", false},
    {"--ctx", "ctx", false},
    {"--draft-max", "draft_max", false},
    {"--sink", "sink", false},
    {"--window", "window", false},
    {"--chunk", "chunk", false},
    {"--rank", "rank", false},
    {"--clients", "clients", false},
    {"--seconds", "seconds", false},
    {"--turns", "turns", false},
    {"--requests", "requests", false},
    {"--bucket", "bucket_s", false},
    {"--kills", "kills", false},
    {"--arrivals", "arrivals", false},
};

static void rule_plan_command(kk_gate *g) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        double asked, said = -1;
        const bool has = kk_gate_number(settings_of(g), options[i].key, &said);
        if (!kk_gate_typed(g, options[i].option, &asked)) continue;
        /* A training that climbs a ladder was given the limits of the ladder's own reports. */
        if (!has && (!options[i].always || kk_gate_is(g, "projection"))) continue;
        if (!has || !kk_gate_same(said, asked))
            kk_gate_say(g, "%s %.6g was given, and the settings say %.6g", options[i].option, asked,
                        said);
    }
}

static const kk_gate_entry plan_rules[] = {
    {"PLAN_COUNTS", rule_plan_counts,
     "rows, prompts, texts, samples and turns are as many as the settings ask for, none twice"},
    {"PLAN_DOCUMENTS", rule_plan_documents, "documents are those that the seed gives"},
    {"PLAN_PROMPTS", rule_plan_prompts, "prompts that come from a seed are those it gives"},
    {"PLAN_COMMAND", rule_plan_command, "settings are those of the command"},
};
KK_GATE_GROUP(plan, plan_rules);
