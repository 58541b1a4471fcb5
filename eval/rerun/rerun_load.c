/* rerun_load.c - reports of `make load`: what the server said to many clients at once is computed
 * again by the model alone.
 *
 * A report stores the hash of the log-probabilities of every stream, as the model has them alone
 * and as they came from the server beside the others.  Both must be what this engine computes for
 * the same prompt, which follows from the settings; so do the requests of mixed lengths and the
 * numbers of tokens.  Speeds, passes and what shared them depend on when the clients came, and are
 * not executed again.  All streams are: a draw executes as much. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "eval/reports/report.h"
#include "eval/rerun/kinds.h"
#include "eval/tasks/served.h"

enum { MOST_REQUESTS = 4096 };

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    {"gate", KK_MEMBER_LEFT}, /* of what is compared here, or of times; `report check` has it */
    {"arms/seconds", KK_MEMBER_LEFT},
    {"arms/tok_s", KK_MEMBER_LEFT},
    {"arms/tok_s_spread", KK_MEMBER_LEFT},
    {"arms/rows/seconds", KK_MEMBER_LEFT},
    {"identity/passes", KK_MEMBER_LEFT},
    {"identity/sessions_in_passes", KK_MEMBER_LEFT},
    {"arrival/rows", KK_MEMBER_LEFT},
    {"mixed/seconds", KK_MEMBER_LEFT},
    {"mixed/requests_s", KK_MEMBER_LEFT},
    {"mixed/first_s", KK_MEMBER_LEFT},
    {"mixed/latency_s", KK_MEMBER_LEFT},
    {"mixed/rows/seconds", KK_MEMBER_LEFT},
    {"mixed/rows/first_s", KK_MEMBER_LEFT},
    {NULL, KK_MEMBER_EQUAL},
};

/* Others stand in the order of the settings. */
static const kk_list_rule lists[] = {{"files", "name"}, {NULL, NULL}};

static const char *const spec_names[] = {"none", "auto"};

typedef struct {
    const kk_rerun *r;
    kk_engine *e;
    int32_t clients, turns, predict, requests;
    int32_t ctx[KK_SERVED_LENGTHS], n_ctx;
    size_t specs; /* 1: the model has no drafter */
    uint64_t seed;
    /* By length, and then by stream. */
    size_t tokens[KK_SERVED_LENGTHS * KK_SERVED_STREAMS];
    uint64_t hash[KK_SERVED_LENGTHS * KK_SERVED_STREAMS];
} load;

static kk_status read_settings(load *l, kk_err *err) {
    const json_t *s = kk_rerun_settings(l->r);
    KK_TRY(kk_rerun_need(s, "clients", 1, KK_SERVED_STREAMS, &l->clients, err));
    KK_TRY(kk_rerun_need(s, "turns", 1, 1000, &l->turns, err));
    KK_TRY(kk_rerun_need(s, "predict", 2, 4096, &l->predict, err));
    KK_TRY(kk_rerun_need(s, "requests", 0, MOST_REQUESTS, &l->requests, err));
    l->seed = (uint64_t)kk_rerun_int(s, "seed", 0);
    return kk_rerun_list(s, "ctx", 1 << 20, l->ctx, KK_SERVED_LENGTHS, &l->n_ctx, err);
}

/* ---- what the model says -------------------------------------------------------------------- */

static kk_status answer_one(load *l, int32_t k, int32_t i, kk_err *err) {
    const size_t at = (size_t)(k * l->clients + i);
    kk_served p;
    KK_TRY(kk_served_prompt(&p, l->e, l->r->prompts, l->seed, (size_t)i, (size_t)l->ctx[k], err));
    kk_status st = kk_served_answer(&p, l->e, l->predict, err);
    if (st == KK_OK && p.n < KK_SERVED_SHORTEST && l->requests)
        st = kk_fail(err, KK_EFORMAT,
                     "the report's setting `ctx` gives a prompt of %zu tokens; requests of mixed "
                     "lengths take parts of %d or more",
                     p.n, (int)KK_SERVED_SHORTEST);
    l->tokens[at] = p.n;
    l->hash[at] = p.logprob_hash;
    kk_served_free(&p);
    return st;
}

static kk_status answer_all(load *l, kk_err *err) {
    for (int32_t k = 0; k < l->n_ctx; k++)
        for (int32_t i = 0; i < l->clients; i++) {
            if (!kk_rerun_tell(l->r, "answers", k * l->clients + i, l->n_ctx * l->clients))
                return kk_fail(err, KK_ESTOPPED, "stopped while streams were answered again");
            KK_TRY(answer_one(l, k, i, err));
        }
    return KK_OK;
}

/* ---- members -------------------------------------------------------------------------------- */

/* A stream's tokens after its first, which the time begins with. */
static json_t *arm(const load *l, const char *name, size_t spec, int32_t k, int32_t streams) {
    const json_int_t tokens = (json_int_t)streams * (l->predict - 1);
    json_t *rows = json_array();
    for (int32_t t = 0; t < l->turns; t++)
        json_array_append_new(rows, json_pack("{s:I}", "tokens", tokens));
    return json_pack("{s:s, s:s, s:i, s:i, s:I, s:o}", "arm", name, "spec", spec_names[spec], "ctx",
                     l->ctx[k], "streams", streams, "tokens", tokens * l->turns, "rows", rows);
}

static json_t *identity(const load *l, size_t spec, int32_t k) {
    json_t *hashes = json_array();
    for (int32_t i = 0; i < l->clients; i++) {
        const uint64_t hash = l->hash[k * l->clients + i];
        json_array_append_new(hashes, json_pack("{s:o, s:o}", "alone", kk_report_hash(hash),
                                                "together", kk_report_hash(hash)));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:o}", "spec", spec_names[spec], "ctx", l->ctx[k],
                     "streams", l->clients, "different", 0, "logprob_hashes", hashes);
}

/* Requests are drawn in the order they were sent, and stand in the report in that of their answers.
 * Of each row, order [n] is the request that it is of; a row that is of none gets one that is left.
 */
static void match(const kk_served_request *drawn, size_t n, const json_t *rows, size_t *order,
                  bool *taken) {
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        size_t at = 0;
        while (at < n && (taken[at] || kk_rerun_int(row, "prompt", -1) != (int64_t)drawn[at].n ||
                          kk_rerun_int(row, "predict", -1) != drawn[at].predict))
            at++;
        order[i] = at;
        if (at < n) taken[at] = true;
    }
    for (size_t i = 0, left = 0; i < n; i++) {
        if (order[i] < n) continue;
        while (taken[left]) left++;
        taken[left] = true;
        order[i] = left;
    }
}

static kk_status mixed_rows(const load *l, json_t **out, kk_err *err) {
    const json_t *stored = json_object_get(json_object_get(l->r->stored, "mixed"), "rows");
    const size_t n = (size_t)l->requests;
    kk_served_request *drawn = kk_calloc(n + 1, sizeof *drawn);
    size_t *order = kk_calloc(n + 1, sizeof *order);
    bool *taken = kk_calloc(n + 1, sizeof *taken);
    const bool good = drawn && order && taken;
    uint64_t state = l->seed;
    *out = good ? json_array() : NULL;
    for (size_t i = 0; good && i < n; i++)
        drawn[i] = kk_served_draw(&state, l->tokens, (size_t)l->n_ctx, (size_t)l->clients);
    if (good) match(drawn, n, stored, order, taken);
    for (size_t i = 0; good && i < n; i++)
        json_array_append_new(*out, json_pack("{s:i, s:i, s:i}", "prompt", (int)drawn[order[i]].n,
                                              "predict", drawn[order[i]].predict, "status", 200));
    kk_free(drawn);
    kk_free(order);
    kk_free(taken);
    return good ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for %zu requests", n);
}

static kk_status make_report(const load *l, json_t **report, kk_err *err) {
    json_t *settings = json_deep_copy(kk_rerun_settings(l->r)), *rows;
    json_t *arms = json_array(), *same = json_array();
    json_object_set_new(settings, "specs", json_integer((json_int_t)l->specs));
    for (int32_t k = 0; k < l->n_ctx; k++)
        for (size_t spec = 0; spec < l->specs; spec++) {
            json_array_append_new(arms, arm(l, "run", spec, k, 1));
            json_array_append_new(arms, arm(l, "served", spec, k, 1));
            json_array_append_new(arms, arm(l, "served", spec, k, l->clients));
            json_array_append_new(same, identity(l, spec, k));
        }
    const kk_status st = mixed_rows(l, &rows, err);
    json_t *body =
        st != KK_OK ? NULL
                    : json_pack("{s:O, s:O, s:O, s:{s:i, s:i}, s:{s:o}, s:i}", "settings", settings,
                                "arms", arms, "identity", same, "arrival", "prompt", KK_SERVED_LONG,
                                "short", KK_SERVED_SHORT, "mixed", "rows", rows, "failed", 0);
    json_decref(settings);
    json_decref(arms);
    json_decref(same);
    if (st != KK_OK) return st;
    *report = kk_report_new("load", kk_report_join(kk_report_run(l->e, &l->r->engine, ""), body));
    return KK_OK;
}

static kk_status with_engine(load *l, json_t **report, kk_err *err) {
    kk_drafter_info drafter;
    l->specs = kk_engine_drafter(l->e, &drafter) ? 2 : 1;
    KK_TRY(answer_all(l, err));
    return make_report(l, report, err);
}

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    load *l = kk_calloc(1, sizeof *l);
    if (!l) return kk_fail(err, KK_ENOMEM, "no memory for the streams");
    l->r = r;
    kk_status st = read_settings(l, err);
    if (st == KK_OK) st = kk_engine_open(&l->e, &r->engine, err);
    if (st == KK_OK) st = with_engine(l, report, err);
    kk_engine_close(l->e);
    kk_free(l);
    return st;
}

const kk_rerun_kind kk_rerun_load = {.kind = "load",
                                     .whole = "every stream is answered again",
                                     .members = members,
                                     .lists = lists,
                                     .run = run};
