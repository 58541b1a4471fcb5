/* footprint_test.c - a session that was filled holds the bytes of one that was evaluated, and what
 * `kakeya eval memory` says of rows and growth follows from them. */
#include "support/tiny.h"

#include "eval/reports/gate.h"
#include "eval/tasks/footprint.h"

enum { MOST = 600 };

static kk_engine *pair(void) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:f32",
                                 .drafter = "synthetic",
                                 .projection = "synthetic:64",
                                 .threads = 1,
                                 .max_rows = 64,
                                 .key_cache = -1,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

/* ---- filled sessions --------------------------------------------------------------------- */

static void bytes_of(kk_engine *e, const kk_session_opts *how, int32_t n, bool filled,
                     int64_t out[KK_MEM_CATEGORIES], kk_key_counts *counts) {
    kk_session *s = NULL;
    int32_t prompt[MOST];
    tiny_prompt(prompt, n, 9);
    assert_ok(kk_session_new(&s, e, how, why));
    if (filled)
        assert_ok(kk_session_fill(s, n, why));
    else
        tiny_append(s, prompt, n);
    assert_int_equal(s->len, n);
    assert_ok(kk_drafting_flush(&s->drafting, why));
    kk_engine_memory(e, out);
    kk_session_key_counts(s, counts);
    kk_session_free(s);
}

static void compare(kk_engine *e, const kk_session_opts *how, int32_t n) {
    int64_t filled[KK_MEM_CATEGORIES], real[KK_MEM_CATEGORIES];
    kk_key_counts last, all;
    bytes_of(e, how, n, true, filled, &last);
    bytes_of(e, how, n, false, real, &all);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (filled[c] != real[c])
            fail_msg("%d tokens, %s: %lld bytes filled, %lld evaluated", n,
                     kk_mem_category_name((kk_mem_category)c), (long long)filled[c],
                     (long long)real[c]);
    /* The last token read what the last token of the real one did. */
    assert_true(last.queries > 0 && last.queries <= all.queries);
    assert_true((last.rows_rebuilt > 0) == (all.rows_rebuilt > 0));
}

static void test_filled_as_evaluated(void **state) {
    (void)state;
    static const kk_session_opts ways[] = {
        {.kv_format = KK_KV_BF16},
        {.kv_format = KK_KV_Q4, .draft_ctx = 100},
        {.kv_sliding = KK_KEEP_WINDOW, .kv_full = KK_KEEP_WINDOW},
        {.kv_full = KK_KEEP_RESTORED, .latents = KK_KV_Q8},
        {.kv_sliding = KK_KEEP_RESTORED, .sink = 7, .window = 20, .chunk = 16},
        {.kv_sliding = KK_KEEP_RESTORED, .kv_full = KK_KEEP_RESTORED, .draft_ctx = 64},
    };
    static const int32_t lengths[] = {1, 63, 64, 65, 128, 300, MOST};
    kk_engine *e = pair();
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            kk_session_opts how = ways[w];
            how.ctx = MOST;
            how.draft_max = 4;
            compare(e, &how, lengths[i]);
        }
    kk_engine_close(e);
}

static void test_fill_refused(void **state) {
    (void)state;
    kk_engine *e = pair();
    kk_session *s = tiny_session(e, 100, KK_KV_BF16);
    kk_err err;
    assert_int_equal(kk_session_fill(s, 0, &err), KK_EINVAL);
    assert_int_equal(kk_session_fill(s, 101, &err), KK_EINVAL);
    assert_ok(kk_session_fill(s, 100, why));
    assert_int_equal(kk_session_fill(s, 100, &err), KK_EINVAL);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- the table --------------------------------------------------------------------------- */

static const kk_footprint_opts small = {
    .engine = {.synthetic = "tiny:f32",
               .drafter = "synthetic",
               .threads = 1,
               .max_rows = 64,
               .no_pin = true},
    .projection = {"synthetic:64", "synthetic:128"},
    .n_projections = 2,
    .tokens = {256, 512, 1024},
    .n_lengths = 3,
    .draft_ctx = 128,
    .command = "kakeya eval memory --synthetic tiny:f32",
};

static const kk_footprint_row *row_of(const kk_footprint_result *r, int32_t policy,
                                      int32_t tokens) {
    for (int32_t i = 0; i < r->n_rows; i++)
        if (r->row[i].policy == policy && r->row[i].tokens == tokens) return &r->row[i];
    fail_msg("no row of policy %d at %d tokens", policy, tokens);
    return NULL;
}

static int32_t policy_of(const kk_footprint_result *r, const char *name) {
    for (int32_t i = 0; i < r->n_policies; i++)
        if (strcmp(r->policy[i], name) == 0) return i;
    fail_msg("no policy '%s'", name);
    return -1;
}

static int64_t grows(const kk_footprint_row *r, bool drafter) {
    return r->bytes[KK_MEM_KV_FULL] + r->bytes[KK_MEM_KV_LATENTS] +
           (drafter ? r->bytes[KK_MEM_KV_DRAFTER] : 0);
}

static double slope(const kk_footprint_result *r, int32_t policy, bool drafter) {
    return (double)(grows(row_of(r, policy, 1024), drafter) -
                    grows(row_of(r, policy, 256), drafter)) /
           (1024 - 256);
}

static void check_growth(const kk_footprint_result *r) {
    bool headline = false;
    for (int32_t i = 0; i < r->n_growths; i++) {
        const kk_footprint_growth *g = &r->growth[i];
        const double own = slope(r, g->policy, g->drafter);
        assert_true(g->bytes_per_token == own);
        if (g->against < 0) continue;
        assert_true(g->ratio == slope(r, g->against, g->drafter) / own);
        headline |= g->policy == policy_of(r, "restored r64 bf16") && !g->drafter &&
                    g->against == policy_of(r, "exact bf16");
    }
    assert_true(headline);
}

static void check_report(const kk_footprint_result *r) {
    char *text = json_dumps(r->report, JSON_REAL_PRECISION(6));
    kk_verdict v;
    assert_non_null(text);
    assert_ok(kk_gate_check(text, strlen(text), &v, why));
    for (size_t i = 0; i < v.n; i++)
        if (strcmp(v.finding[i].code, "MISSING_COMMIT") != 0)
            fail_msg("%s: %s", v.finding[i].code, v.finding[i].text);
    assert_string_equal(v.kind, "memory");
    kk_verdict_release(&v);
    free(text);
}

static void test_table(void **state) {
    (void)state;
    kk_footprint_result r;
    assert_ok(kk_footprint_run(&small, &r, why));
    assert_int_equal(r.n_policies, 2 + 3 + 2 * 4);
    assert_int_equal(r.n_rows, 3 * r.n_policies);
    const int32_t exact = policy_of(&r, "exact bf16"),
                  restored = policy_of(&r, "restored r64 bf16");
    const kk_footprint_row *a = row_of(&r, exact, 1024), *b = row_of(&r, restored, 1024);
    /* Full layers keep all of 1024 rows, and of 256 rows a quarter. */
    assert_int_equal(a->bytes[KK_MEM_KV_FULL], 4 * row_of(&r, exact, 256)->bytes[KK_MEM_KV_FULL]);
    assert_int_equal(a->bytes[KK_MEM_KV_LATENTS], 0);
    assert_int_equal(a->restored_rows, 0);
    assert_int_equal(b->bytes[KK_MEM_KV_FULL], row_of(&r, restored, 256)->bytes[KK_MEM_KV_FULL]);
    /* Sixteen pages of latents, with scales beside them, in whole pages of the system. */
    assert_int_equal(b->bytes[KK_MEM_KV_LATENTS] % (16 * 4096), 0);
    assert_in_range(b->bytes[KK_MEM_KV_LATENTS], 1024 * 64 * 2 + 1, 2 * 1024 * 64 * 2);
    assert_true(b->restored_rows > 0);
    const kk_footprint_row *bounded = row_of(&r, policy_of(&r, "exact bf16, draft-ctx 128"), 1024);
    assert_true(bounded->bytes[KK_MEM_KV_DRAFTER] < a->bytes[KK_MEM_KV_DRAFTER]);
    check_growth(&r);
    check_report(&r);
    kk_footprint_release(&r);
}

/* Two projections of one rank have names of their own. */
static void test_same_rank(void **state) {
    (void)state;
    kk_footprint_opts o = small;
    kk_footprint_result r;
    o.projection[1] = o.projection[0];
    o.n_lengths = 1;
    o.draft_ctx = 0;
    assert_ok(kk_footprint_run(&o, &r, why));
    for (int32_t i = 0; i < r.n_policies; i++)
        for (int32_t j = 0; j < i; j++) assert_string_not_equal(r.policy[i], r.policy[j]);
    assert_int_equal(r.n_growths, 0);
    kk_footprint_release(&r);
}

static void refused(const kk_footprint_opts *o, kk_status code, const char *why_not) {
    kk_footprint_result r;
    kk_err err = {0};
    assert_int_equal(kk_footprint_run(o, &r, &err), code);
    if (!strstr(err.msg, why_not)) fail_msg("'%s' does not say '%s'", err.msg, why_not);
    assert_null(r.report);
    assert_null(r.row);
}

static void test_refused(void **state) {
    (void)state;
    kk_footprint_opts o = small;
    o.tokens[2] = 1 << 20;
    refused(&o, KK_ECONTEXT, "1048576 tokens: this model takes at most");
    o = small;
    o.tokens[1] = 256;
    refused(&o, KK_EINVAL, "lengths are positive and rise");
    o = small;
    o.tokens[0] = 0;
    refused(&o, KK_EINVAL, "a length of 0 tokens");
    o = small;
    o.n_lengths = 0;
    refused(&o, KK_EINVAL, "0 lengths");
    o = small;
    o.quality = true;
    refused(&o, KK_EINVAL, "answer nothing");
    o = small;
    o.engine.drafter = NULL;
    refused(&o, KK_EINVAL, "none is loaded");
    o = small;
    o.projection[1] = "/no/such/folder";
    refused(&o, KK_EIO, "/no/such/folder");
    o = small;
    o.session.window = 500;
    refused(&o, KK_EINVAL, "a window of 500 rows");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filled_as_evaluated),
        cmocka_unit_test(test_fill_refused),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_same_rank),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
