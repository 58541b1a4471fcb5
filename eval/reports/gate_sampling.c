/* gate_sampling.c - rules about the ways to sample that a bench compared with greedy decoding. */
#include <string.h>

#include "eval/reports/gate_rules.h"

static void rule_sampling_recount(kk_gate *g) {
    const json_t *s = kk_gate_get(g->report, "sampling");
    const json_t *first = kk_gate_item(s, "ways", 0);
    const double greedy = kk_gate_number_or(kk_gate_get(first, "decode_tok_s"), "median", 0);
    if (!s && strstr(kk_gate_text(g->report, "command"), " --sampling"))
        kk_gate_say(g, "sampling: the command asks for ways to sample, and the report has none");
    if (!s) return;
    if (strcmp(kk_gate_text(first, "way"), "greedy") != 0 || greedy <= 0) {
        kk_gate_say(g, "sampling: the first way is not greedy decoding, with its rate");
        return;
    }
    for (size_t i = 0; i < kk_gate_size(s, "ways"); i++) {
        const json_t *w = kk_gate_item(s, "ways", i);
        const double rate = kk_gate_number_or(kk_gate_get(w, "decode_tok_s"), "median", 0);
        const double said = kk_gate_number_or(w, "of_greedy", 0);
        if (!kk_gate_same(said, rate / greedy))
            kk_gate_say(g, "sampling: `of_greedy` of %.20s is %.6g, and the rates give %.6g",
                        kk_gate_text(w, "way"), said, rate / greedy);
    }
}

static const kk_gate_entry sampling_rules[] = {
    {"SAMPLING_RECOUNT", rule_sampling_recount,
     "ways to sample are held against greedy decoding of the same run"},
};
KK_GATE_GROUP(sampling, sampling_rules);
