/* bench_test.c - arms give the tokens of plain decoding and are counted right, a trace accepts
 * what it says it does, and costs between the measured ones are interpolated. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <jansson.h>
#include <math.h>

#include "core/alloc.h"
#include "engine/session.h"
#include "eval/measure/bench_parts.h"
#include "eval/reports/gate.h"
#include "support/scratch.h"

/* cmocka's own compares floats. */
static void near(double a, double b, double most) {
    if (!(fabs(a - b) <= most)) fail_msg("%.9g is not %.9g", a, b);
}

/* ---- costs ------------------------------------------------------------------------------- */

static void test_costs_between(void **state) {
    (void)state;
    const kk_bench_pass p[] = {{.rows = 1, .seconds = {.median = 10}},
                               {.rows = 2, .seconds = {.median = 12}},
                               {.rows = 8, .seconds = {.median = 24}}};
    near(kk_bench_cost(p, 0, 4), 0, 0);
    near(kk_bench_cost(p, 1, 4), 10, 0);
    near(kk_bench_cost(p, 3, 1), 10, 1e-12);
    near(kk_bench_cost(p, 3, 2), 12, 1e-12);
    near(kk_bench_cost(p, 3, 5), 18, 1e-12);
    near(kk_bench_cost(p, 3, 8), 24, 1e-12);
    near(kk_bench_cost(p, 3, 10), 28, 1e-12); /* as between the last two */
}

/* ---- traces ------------------------------------------------------------------------------ */

static void test_trace_text(void **state) {
    (void)state;
    static const char *const bad[] = {"",          "geom",       "geom:",        "geom:0.5",
                                      "geom:0.5:", "geom:1:1",   "geom:0:1",     "geom:-1:1",
                                      "geom:x:1",  "geom:0.5:x", "geom:0.5:1:2", "geom:0.5:-1",
                                      "beta:0.5:1"};
    kk_trace_opts o;
    kk_err err;
    assert_ok(kk_trace_parse(&o, "geom:0.744:12", why));
    near(o.p, 0.744, 1e-12);
    assert_int_equal(o.seed, 12);
    near(kk_trace_expected(&o, 2), 0.744 + 0.744 * 0.744, 1e-12);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kk_trace_parse(&o, bad[i], &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "geom:P:SEED"));
        near(o.p, 0, 0);
    }
}

static kk_engine *open_engine(void) {
    const kk_engine_opts o = {.synthetic = "tiny:q4_0", .drafter = "synthetic", .threads = 1};
    kk_engine *e;
    assert_ok(kk_engine_open(&e, &o, why));
    return e;
}

typedef struct {
    int32_t ids[400];
    int32_t n;
} record;

static bool keep(void *user, int32_t id) {
    record *r = user;
    r->ids[r->n++] = id;
    return true;
}

/* Decodes 400 tokens, with drafts of always `draft` tokens that follow a record where given. */
static kk_result decode(kk_engine *e, const record *follow, int32_t draft, uint64_t seed,
                        record *out) {
    static const int32_t prompt[] = {2, 17, 5};
    const kk_session_opts how = {.ctx = 500,
                                 .spec = follow ? KK_SPEC_DFLASH : KK_SPEC_NONE,
                                 .draft_max = draft,
                                 .draft_fixed = true};
    const kk_generate_opts many = {.max_tokens = 400, .ignore_eos = true};
    const kk_trace_opts geometric = {.p = 0.744, .seed = seed};
    kk_session *s;
    kk_trace *t = NULL;
    kk_result result;
    out->n = 0;
    assert_ok(kk_session_new(&s, e, &how, why));
    if (follow) {
        assert_ok(kk_trace_new(&t, s, &geometric, why));
        assert_ok(kk_trace_follow(t, 3, follow->ids, follow->n, 1, why));
    }
    assert_ok(kk_session_append(s, prompt, 3, NULL, NULL, why));
    assert_ok(kk_generate(s, &many, keep, out, &result, why));
    kk_session_free(s);
    kk_trace_free(t);
    return result;
}

static void test_trace_accepts(void **state) {
    (void)state;
    kk_engine *e = open_engine();
    static record plain, traced;
    const kk_result p = decode(e, NULL, 0, 0, &plain);
    const kk_trace_opts geometric = {.p = 0.744};
    int64_t rounds = 0, accepted = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        const kk_result t = decode(e, &plain, 7, seed, &traced);
        /* Whatever was accepted: the same tokens, the same logits. */
        assert_int_equal(traced.n, plain.n);
        assert_memory_equal(traced.ids, plain.ids, sizeof plain.ids);
        assert_int_equal(t.logits_hash, p.logits_hash);
        assert_int_equal(t.spec.drafted, t.spec.rows - t.spec.rounds);
        rounds += t.spec.rounds;
        accepted += t.spec.accepted;
    }
    /* The mean of some 430 draws with a deviation of 2.5 lies within 0.4 of what is expected. */
    const double mean = (double)accepted / (double)rounds;
    if (fabs(mean - kk_trace_expected(&geometric, 7)) > 0.4) fail_msg("%g accepted a round", mean);
    /* The draws are the seed's. */
    static record again;
    const kk_result a = decode(e, &plain, 7, 3, &traced), b = decode(e, &plain, 7, 3, &again);
    const kk_result c = decode(e, &plain, 7, 4, &again);
    assert_memory_equal(a.spec.histogram, b.spec.histogram, sizeof a.spec.histogram);
    assert_memory_not_equal(a.spec.histogram, c.spec.histogram, sizeof a.spec.histogram);
    kk_engine_close(e);
}

static void test_trace_needs_drafter(void **state) {
    (void)state;
    kk_engine *e = open_engine();
    const kk_session_opts how = {.spec = KK_SPEC_NONE};
    const kk_trace_opts geometric = {.p = 0.5};
    kk_session *s;
    kk_trace *t;
    kk_err err;
    assert_ok(kk_session_new(&s, e, &how, why));
    assert_int_equal(kk_trace_new(&t, s, &geometric, &err), KK_EINVAL);
    assert_null(t);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- arms -------------------------------------------------------------------------------- */

static kk_bench_opts options(void) {
    return (kk_bench_opts){
        .engine = {.synthetic = "tiny:q4_0", .drafter = "synthetic", .threads = 1},
        .ctx = 24,
        .predict = 4,
        .repeat = 2,
        .read_s = 0.02,
        .arms = {KK_SPEC_NONE, KK_SPEC_DFLASH, KK_SPEC_NGRAM},
        .n_arms = 3,
        .samples = 2,
        .arm_predict = 41,
        .trace = {.p = 0.744, .seed = 1}};
}

static void test_arms(void **state) {
    scratch *s = *state;
    kk_bench_opts o = options();
    kk_bench_result *r = calloc(1, sizeof *r);
    o.draft_max = 5;
    o.draft_fixed = true;
    o.attention = true;
    assert_ok(kk_bench_run(&o, r, why));
    assert_int_equal(r->n_sets, 1);
    const kk_bench_set *set = &r->set[0];
    assert_string_equal(set->name, "random");
    assert_int_equal(set->prompts, 2);
    for (int i = 0; i < 3; i++) {
        const kk_bench_arm *a = &set->arm[i];
        assert_int_equal(a->different, 0);
        assert_int_equal(a->runs, 4);
        assert_int_equal(a->tokens, 80); /* two prompts; the first token takes no round */
        assert_int_equal(a->tokens, a->spec.accepted + a->spec.rounds);
        assert_true(a->seconds > 0 && a->tok_s > 0 && a->predicted_s > 0);
        assert_true(a->overhead > 0 && a->overhead < 1);
        near(a->of_predicted, a->predicted_s / a->seconds, 1e-9);
        const kk_bench_row *one = &set->row[i], *two = &set->row[3 + i];
        assert_true(one->predicted_s > 0 && two->predicted_s > 0);
        near(a->predicted_s, one->predicted_s + two->predicted_s, 1e-9);
        assert_int_equal(r->all.arm[i].tokens, a->tokens);
    }
    near(set->arm[0].speedup, 1, 1e-9);
    assert_int_equal(set->arm[0].spec.drafted, 0);
    assert_true(set->arm[0].floor_share > 0);
    assert_true(set->arm[1].spec.accepted > 0); /* by the trace */
    near(set->arm[1].rows, 6, 0.7);             /* the last round has fewer tokens left */
    assert_in_range(set->arm[1].best_draft, 0, 5);
    assert_true(set->arm[1].best_tok_s > 0 && set->arm[2].best_tok_s == 0);
    /* Costs: of one row and up to the longest draft. */
    assert_int_equal(set->verify[0].rows, 1);
    assert_int_equal(set->verify[set->n_verify - 1].rows, 6);
    assert_int_equal(set->draft[set->n_draft - 1].rows, 5);
    for (int32_t i = 0; i < set->n_verify; i++) assert_true(set->verify[i].seconds.median > 0);
    /* In turn with the generations: of two prompts before each of two repeats, and after them. */
    assert_int_equal(set->verify[0].seconds.n, 6);
    assert_int_equal(set->draft[0].seconds.n, 6);
    /* Attention of every format, bf16 first; two full layers and ten sliding ones. */
    assert_int_equal(r->n_attention, 5);
    assert_int_equal(r->attention[0].format, KK_KV_BF16);
    near(r->attention[1].kv_ratio, 2, 0.01);
    assert_true(r->attention[3].kv_ratio < r->attention[2].kv_ratio);

    const char *path = scratch_path(s, "bench.json");
    kk_writer *to;
    assert_ok(kk_writer_open(&to, path, NULL, why));
    assert_ok(kk_bench_write(to, &o, r, "a command", why));
    kk_writer_close(to);
    json_t *report = json_load_file(path, 0, NULL);
    const json_t *arm = json_object_get(json_object_get(report, "arms"), "dflash");
    assert_true(json_is_true(json_object_get(arm, "lossless")));
    assert_true(json_is_object(json_object_get(arm, "accept_trace"))); /* said beside the figures */
    assert_int_equal(json_array_size(json_object_get(report, "sets")), 1);
    json_decref(report);
    kk_bench_release(r);
    free(r);
}

/* ---- policies ---------------------------------------------------------------------------- */

static kk_bench_opts by_policy(void) {
    kk_bench_opts o = options();
    o.engine.projection = "synthetic:64";
    o.ctx = 150;
    o.predict = 33;
    o.repeat = 3;
    o.n_arms = 0;
    o.draft_max = 4;
    o.draft_fixed = true;
    for (int w = 0; w < KK_BENCH_WAYS; w++) o.ways[w] = true;
    o.ways_possible = true;
    o.keep = (kk_session_opts){.window = 16, .chunk = 16, .latents = KK_KV_Q8};
    return o;
}

static void check_turns(const kk_bench_turns *t, const kk_bench_opts *o, bool rebuilds) {
    int64_t tokens = 0, rounds = 0, accepted = 0, rows = 0;
    double seconds = 0;
    assert_int_equal(t->n, o->repeat);
    for (int32_t i = 0; i < t->n; i++) {
        const kk_bench_turn *one = &t->turn[i];
        assert_int_equal(one->tokens, o->predict);
        assert_int_equal(one->tokens, one->rounds + one->accepted);
        assert_int_equal(one->counts.rows_rebuilt > 0, rebuilds);
        assert_int_equal(one->counts.keys_rebuilt > 0, rebuilds);
        assert_true(one->counts.keys_rebuilt >= one->counts.rows_rebuilt);
        for (int32_t k = 0; k < i; k++) assert_int_not_equal(one->prompt, t->turn[k].prompt);
        assert_true(1e3 * one->seconds / one->tokens >= t->ms.min * 0.999999);
        assert_true(1e3 * one->seconds / one->tokens <= t->ms.max * 1.000001);
        tokens += one->tokens;
        rounds += one->rounds;
        accepted += one->accepted;
        rows += one->counts.rows_rebuilt;
        seconds += one->seconds;
    }
    assert_int_equal(t->tokens, tokens);
    assert_int_equal(t->spec.rounds, rounds);
    assert_int_equal(t->counts.rows_rebuilt, rows);
    near(t->seconds, seconds, 1e-9);
    near(t->tok_s, (double)tokens / seconds, 1e-6 * t->tok_s);
    near(t->accept_len, (double)(rounds + accepted) / (double)rounds, 1e-9);
    near(t->rows_per_token, (double)rows / (double)tokens, 1e-9);
    assert_true(t->ms.min > 0 && t->ms.min <= t->ms.median && t->ms.median <= t->ms.max);
}

/* Keys that a query of a plain turn reads, by kind of layer: rows that it sees, and of them kept.
 * Positions are those of the turn; a is the start of a row's chunk. */
static double keys_expected(const kk_bench_opts *o, int32_t window, bool evicts, bool rebuilt) {
    double sum = 0;
    for (int32_t p = o->ctx; p < o->ctx + o->predict; p++) {
        const int32_t first = window && p >= window ? p - window + 1 : 0;
        const int32_t gone = p / 16 * 16 - 16;
        for (int32_t j = first; j <= p; j++) sum += (evicts && j >= 4 && j < gone) == rebuilt;
    }
    return sum / o->predict;
}

static int64_t kv_bytes(const kk_bench_policy *p) {
    return p->bytes[KK_MEM_KV_SLIDING] + p->bytes[KK_MEM_KV_FULL];
}

static void check_policies(const kk_bench_opts *o, const kk_bench_result *r) {
    const double sliding = r->model.sliding_layers, full = r->model.full_layers;
    assert_int_equal(r->n_policies, KK_BENCH_WAYS);
    for (int32_t i = 0; i < r->n_policies; i++) {
        const kk_bench_policy *p = &r->policy[i];
        const bool s = p->how.kv_sliding == KK_KEEP_RESTORED,
                   f = p->how.kv_full == KK_KEEP_RESTORED;
        const bool window = p->way == KK_BENCH_WINDOW;
        assert_int_equal(p->way, i);
        check_turns(&p->plain, o, s || f);
        near(p->ratio, p->plain.ms.median / r->policy[0].plain.ms.median, 1e-9);
        near(p->plain.rebuilt_keys,
             (s * sliding * keys_expected(o, r->model.window, true, true) +
              f * full * keys_expected(o, 0, true, true)) /
                 (sliding + full),
             1e-9);
        near(p->plain.stored_keys,
             (sliding * keys_expected(o, r->model.window, s || window, false) +
              full * keys_expected(o, 0, f || window, false)) /
                 (sliding + full),
             1e-9);
        assert_int_equal(p->prefill_tok_s.n, 2);
        /* Latents where rows are rebuilt, and fewer bytes of rows where they are not kept. */
        assert_int_equal(p->bytes[KK_MEM_KV_LATENTS] > 0, s || f);
        assert_true(i == 0 || kv_bytes(p) < kv_bytes(&r->policy[0]));
        if (window) {
            assert_int_equal(p->dflash.n, 0);
            continue;
        }
        check_turns(&p->dflash, o, s || f);
        assert_int_equal(p->dflash.different, 0);
        assert_true(p->dflash.spec.accepted > 0); /* by the trace */
        near(p->dflash.speedup, p->dflash.tok_s / p->plain.tok_s, 1e-9);
        /* What a round rebuilds serves all its rows. */
        if (s || f) assert_true(p->dflash.rows_per_token < 0.8 * p->plain.rows_per_token);
    }
}

static void test_policies(void **state) {
    scratch *s = *state;
    kk_bench_opts o = by_policy();
    kk_bench_result *r = calloc(1, sizeof *r);
    const int64_t live = kk_live_bytes();
    assert_ok(kk_bench_run(&o, r, why));
    check_policies(&o, r);
    assert_string_equal(r->policy_text, "random ids");

    const char *path = scratch_path(s, "policies.json");
    kk_writer *to;
    assert_ok(kk_writer_open(&to, path, NULL, why));
    assert_ok(kk_bench_write(to, &o, r, "kakeya bench --synthetic --accept-trace", why));
    kk_writer_close(to);
    json_t *report = json_load_file(path, 0, NULL);
    const json_t *list = json_object_get(report, "policies");
    const json_t *settings = json_object_get(report, "settings");
    assert_int_equal(json_array_size(list), KK_BENCH_WAYS);
    const json_t *restored = json_array_get(list, KK_BENCH_RESTORED);
    assert_string_equal(json_string_value(json_object_get(restored, "kv_full")), "restored");
    assert_string_equal(json_string_value(json_object_get(restored, "latents")), "q8");
    assert_int_equal(json_integer_value(json_object_get(restored, "rank")), 64);
    assert_int_equal(json_integer_value(json_object_get(settings, "window")), 16);
    const json_t *dflash = json_object_get(json_object_get(restored, "arms"), "dflash");
    assert_true(json_is_true(json_object_get(dflash, "lossless")));
    assert_true(json_is_null(json_object_get(dflash, "speedup"))); /* of 3 turns */
    assert_true(json_is_object(json_object_get(report, "projection")));
    json_decref(report);
    /* The rules find nothing but what a version without a commit lacks. */
    kk_verdict v;
    assert_ok(kk_gate_file(path, &v, why));
    for (size_t i = 0; i < v.n; i++)
        if (strcmp(v.finding[i].code, "MISSING_COMMIT") != 0)
            fail_msg("%s: %s", v.finding[i].code, v.finding[i].text);
    kk_verdict_release(&v);
    kk_bench_release(r);
    assert_int_equal(kk_live_bytes(), live);
    free(r);
}

/* Policies that the engine cannot do are left out where all are asked for, and refused by name. */
static void test_possible_policies(void **state) {
    (void)state;
    kk_bench_opts o = by_policy();
    kk_bench_result *r = calloc(1, sizeof *r);
    o.engine.projection = NULL;
    o.engine.drafter = NULL;
    o.trace.p = 0;
    o.repeat = 1;
    o.predict = 2;
    assert_ok(kk_bench_run(&o, r, why));
    assert_int_equal(r->n_policies, 2);
    assert_int_equal(r->policy[1].way, KK_BENCH_WINDOW);
    assert_int_equal(r->policy[0].dflash.n, 0);
    kk_bench_release(r);
    free(r);
}

/* Several contexts in one run, as in runs of their own, with rounds ahead or without; and which
 * experts rows use: one row its own, more rows more of them, and bytes for each. */
static void test_contexts(void **state) {
    (void)state;
    kk_bench_result *r = calloc(2, sizeof *r);
    kk_bench_opts o = {.engine = {.synthetic = "tiny:bf16:3", .threads = 1, .ahead = 1},
                       .ctx = 20,
                       .longer = {50, 90},
                       .n_longer = 2,
                       .predict = 6,
                       .repeat = 2,
                       .read_s = 0.02,
                       .rows = {1, 3, 40},
                       .n_rows = 3};
    assert_ok(kk_bench_run(&o, &r[0], why));
    o.engine.ahead = -1;
    assert_ok(kk_bench_run(&o, &r[1], why));
    assert_true(r[0].decode.logits_hash == r[1].decode.logits_hash);
    near(r[0].decode.ahead, 5.0 / 6, 1e-9); /* all but the first of a generation */
    near(r[1].decode.ahead, 0, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[0].longer[i].ctx, o.longer[i]);
        assert_int_equal(r[0].longer[i].tok_s.n, 2);
        assert_true(r[0].longer[i].logits_hash == r[1].longer[i].logits_hash);
    }
    const kk_bench_pass *p = r[0].whole;
    near(p[0].experts, rint(p[0].experts), 1e-9); /* each layer uses as many for one row */
    assert_int_equal(p[0].bytes, r[0].model.token_bytes);
    assert_true(p[1].experts > p[0].experts && p[1].experts <= 3 * p[0].experts);
    assert_true(p[2].experts > p[1].experts);
    const double each = (double)(p[1].bytes - p[0].bytes) / (p[1].experts - p[0].experts);
    near((double)(p[2].bytes - p[0].bytes), each * (p[2].experts - p[0].experts), 1);
    kk_bench_release(&r[0]);
    kk_bench_release(&r[1]);
    free(r);
}

static void refused(const kk_bench_opts *o, const char *says) {
    kk_bench_result *r = calloc(1, sizeof *r);
    kk_err err;
    const int64_t live = kk_live_bytes();
    assert_int_not_equal(kk_bench_run(o, r, &err), KK_OK);
    if (!strstr(err.msg, says)) fail_msg("instead of '%s': %s", says, err.msg);
    assert_int_equal(kk_live_bytes(), live);
    free(r);
}

static void test_refused(void **state) {
    scratch *s = *state;
    kk_bench_opts o = options();
    o.arms[0] = KK_SPEC_NGRAM;
    refused(&o, "start with plain");
    o = options();
    o.longer[0] = o.ctx;
    o.n_longer = 1;
    refused(&o, "ascending");
    o = options();
    o.samples = 0;
    refused(&o, "prompts of a set");
    o = options();
    o.engine.drafter = NULL;
    refused(&o, "needs a drafter");
    /* One prompt cannot be timed and warmed up on as well. */
    o = options();
    o.prompts = scratch_path(s, "one.jsonl");
    scratch_write(o.prompts, "{\"ids\": [1, 2, 3]}", 18);
    refused(&o, "warm up");
    /* Policies that would lose nothing, or have nothing to restore from. */
    o = by_policy();
    o.ctx = 36;
    refused(&o, "nothing of it would be gone");
    o = by_policy();
    o.ways_possible = false;
    o.keep.window = 48;
    refused(&o, "sliding layers of this model see 64 rows");
    o = by_policy();
    o.ways_possible = false;
    o.engine.projection = NULL;
    refused(&o, "needs a projection");
    o = by_policy();
    o.prompts = scratch_path(s, "one.jsonl");
    refused(&o, "turns and a warm-up");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_between),
        cmocka_unit_test(test_trace_text),
        cmocka_unit_test(test_trace_accepts),
        cmocka_unit_test(test_trace_needs_drafter),
        cmocka_unit_test_setup_teardown(test_arms, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_policies, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_possible_policies),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test_setup_teardown(test_refused, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
