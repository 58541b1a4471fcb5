/* bench_sampling.c - decoding with the options that people sample with, against greedy decoding in
 * the same session, in turn. */
#include <stdio.h>

#include "core/alloc.h"
#include "eval/measure/bench_parts.h"
#include "eval/reports/report.h"

/* Greedy decoding first: the others are held against it. */
static const struct {
    const char *name;
    kk_sampling how;
    int32_t n_logprobs;
} ways[KK_BENCH_SAMPLINGS] = {
    {"greedy", {.temp = 0}, 0},
    {"temp", {.temp = 0.8f, .seed = 1}, 0},
    {"top-k-top-p", {.temp = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 1}, 0},
    {"top-p", {.temp = 0.8f, .top_p = 0.95f, .seed = 1}, 0},
    {"min-p", {.temp = 0.8f, .min_p = 0.05f, .seed = 1}, 0},
    {"repeat", {.repeat_penalty = 1.1f}, 0},
    {"penalties",
     {.temp = 1, .repeat_penalty = 1.1f, .frequency_penalty = 0.1f, .penalty_last_n = -1},
     0},
    {"logprobs", {.temp = 0.8f, .seed = 1}, 5},
};

static void ignore(void *user, const kk_logprobs *of) { (void)user, (void)of; }

static kk_status fill(kk_engine *e, kk_session *s, int32_t n, kk_err *err) {
    kk_model_info model;
    kk_engine_info(e, &model);
    int32_t *ids = kk_calloc((size_t)n, sizeof *ids);
    if (!ids) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", n);
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)model.vocab);
    }
    kk_status st = kk_session_append(s, ids, (size_t)n, NULL, NULL, err);
    kk_free(ids);
    if (st == KK_OK) st = kk_session_checkpoint(s, err);
    return st;
}

static kk_status time_way(const kk_bench_opts *o, kk_session *s, int32_t way, kk_result *r,
                          kk_err *err) {
    const kk_generate_opts how = {.max_tokens = o->predict + 1,
                                  .ignore_eos = true,
                                  .sampling = ways[way].how,
                                  .n_logprobs = ways[way].n_logprobs,
                                  .on_logprobs = ways[way].n_logprobs ? ignore : NULL};
    KK_TRY(kk_bench_step(o, NULL, err));
    KK_TRY(kk_generate(s, &how, NULL, NULL, r, err));
    return kk_session_rewind(s, o->ctx, NULL, err);
}

static kk_status time_all(const kk_bench_opts *o, kk_session *s, kk_bench_result *out,
                          kk_err *err) {
    double rate[KK_BENCH_SAMPLINGS][KK_BENCH_MAX_REPEAT];
    kk_result r;
    for (int32_t w = 0; w < KK_BENCH_SAMPLINGS; w++) KK_TRY(time_way(o, s, w, &r, err));
    for (int32_t i = 0; i < o->repeat; i++)
        for (int32_t w = 0; w < KK_BENCH_SAMPLINGS; w++) {
            kk_bench_sampling *to = &out->sampling[w];
            KK_TRY(time_way(o, s, w, &r, err));
            rate[w][i] = to->rate[i] = (double)(r.n_tokens - 1) / r.decode_s;
            to->name = ways[w].name;
            to->ahead = (double)r.spec.ahead / (double)(r.n_tokens - 1);
            to->logits_hash = r.logits_hash;
        }
    for (int32_t w = 0; w < KK_BENCH_SAMPLINGS; w++) {
        kk_bench_sampling *to = &out->sampling[w];
        to->tok_s = kk_bench_spread_of(rate[w], o->repeat);
        to->of_greedy = to->tok_s.median / out->sampling[0].tok_s.median;
    }
    out->n_sampling = KK_BENCH_SAMPLINGS;
    return KK_OK;
}

kk_status kk_bench_sample(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out, kk_err *err) {
    const kk_session_opts how = kk_bench_session(o, KK_SPEC_NONE, o->ctx + o->predict + 8);
    kk_session *s = NULL;
    KK_TRY(kk_bench_step(o, "sampling", err));
    kk_status st = kk_session_new(&s, e, &how, err);
    if (st == KK_OK) st = fill(e, s, o->ctx, err);
    if (st == KK_OK) st = time_all(o, s, out, err);
    kk_session_free(s);
    return st;
}

static json_t *options_json(int32_t way) {
    const kk_sampling *h = &ways[way].how;
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:i}", "temp",
                     kk_report_real((double)h->temp), "top_k", h->top_k, "top_p",
                     kk_report_real((double)h->top_p), "min_p", kk_report_real((double)h->min_p),
                     "repeat_penalty", kk_report_real((double)h->repeat_penalty),
                     "presence_penalty", kk_report_real((double)h->presence_penalty),
                     "frequency_penalty", kk_report_real((double)h->frequency_penalty),
                     "penalty_last_n", h->penalty_last_n, "n_logprobs", ways[way].n_logprobs);
}

json_t *kk_bench_sampling_json(const kk_bench_opts *o, const kk_bench_result *r) {
    if (r->n_sampling == 0) return NULL;
    json_t *rows = json_array();
    for (int32_t w = 0; w < r->n_sampling; w++) {
        const kk_bench_sampling *s = &r->sampling[w];
        char hash[20];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s->logits_hash);
        json_array_append_new(rows, json_pack("{s:s, s:o, s:o, s:o, s:o, s:s}", "way", s->name,
                                              "options", options_json(w), "decode_tok_s",
                                              kk_bench_rates_json(&s->tok_s, s->rate), "of_greedy",
                                              kk_report_real(s->of_greedy), "ahead_per_token",
                                              kk_report_real(s->ahead), "logits_hash", hash));
    }
    return json_pack("{s:i, s:i, s:o}", "ctx", o->ctx, "predict", o->predict, "ways", rows);
}
