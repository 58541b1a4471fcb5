/* gate_sessions.c - rules about the sessions of a bench that decoded together. */
#include <string.h>

#include "eval/reports/gate_rules.h"

static void check_ratio(kk_gate *g, const json_t *s) {
    const double alone = kk_gate_number_or(kk_gate_get(s, "alone"), "tok_s", 0);
    const double together = kk_gate_number_or(kk_gate_get(s, "together"), "tok_s", 0);
    double said;
    if (alone <= 0 || together <= 0) {
        kk_gate_say(g, "sessions: no rates of the same sessions alone and together");
        return;
    }
    if (!kk_gate_number(s, "ratio", &said) || !kk_gate_same(said, together / alone))
        kk_gate_say(g, "sessions: `ratio` is %.6g, and the rates give %.6g",
                    kk_gate_number_or(s, "ratio", 0), together / alone);
}

/* Whether turns, hashes and the arrival say that everybody got the same. */
static bool were_identical(const json_t *s, size_t n) {
    double alone, together;
    bool same = kk_gate_sum(kk_gate_get(s, "alone"), "rows", "different", &alone) &&
                kk_gate_sum(kk_gate_get(s, "together"), "rows", "different", &together) &&
                alone + together == 0 && kk_gate_true(kk_gate_get(s, "arrival"), "identical");
    const json_t *arrival = kk_gate_get(s, "arrival");
    for (size_t i = 0; i < kk_gate_size(arrival, "logits_hashes"); i++) {
        const json_t *h = kk_gate_item(arrival, "logits_hashes", i);
        const char *one = kk_gate_text(h, "alone");
        same = same && *one && strcmp(one, kk_gate_text(h, "beside")) == 0;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *h = kk_gate_item(s, "logits_hashes", i);
        const char *one = kk_gate_text(h, "alone");
        same = same && *one && strcmp(one, kk_gate_text(h, "together")) == 0;
    }
    return same;
}

static void rule_sessions_recount(kk_gate *g) {
    const json_t *s = kk_gate_get(g->report, "sessions");
    const size_t hashes = kk_gate_size(s, "logits_hashes");
    if (!s) return;
    check_ratio(g, s);
    if ((double)hashes != kk_gate_number_or(s, "n", 0))
        kk_gate_say(g, "sessions: hashes of %zu of %.0f", hashes, kk_gate_number_or(s, "n", 0));
    if (kk_gate_true(s, "identical") != were_identical(s, hashes))
        kk_gate_say(g, "sessions: `identical` is not what turns and hashes say");
    const double rounds = kk_gate_number_or(s, "rounds", 0);
    if (kk_gate_number_or(s, "sessions_in_rounds", 0) < rounds || rounds <= 0)
        kk_gate_say(g, "sessions: %.0f rounds with %.0f sessions", rounds,
                    kk_gate_number_or(s, "sessions_in_rounds", 0));
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry sessions_rules[] = {
    {"SESSIONS_RECOUNT", rule_sessions_recount,
     "sessions together are held against the same alone, and got the same logits"},
};
KK_GATE_GROUP(sessions, sessions_rules);
