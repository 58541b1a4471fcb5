/* accept_test.c - prompts from files and from seeds, and acceptance of the shipped drafter and of
 * n-grams, which leaves tokens and logits as they are. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <jansson.h>
#include <math.h>

#include "core/alloc.h"
#include "engine/session.h"
#include "eval/tasks/accept.h"
#include "support/scratch.h"

#define TINY KK_MODELS "/tiny"

/* cmocka's own compares floats. */
static void near(double a, double b, double most) {
    if (!(fabs(a - b) <= most)) fail_msg("%.9g is not %.9g", a, b);
}

static kk_tokenizer *open_tokenizer(void) {
    kk_tokenizer *tok;
    assert_ok(kk_tokenizer_open(&tok, TINY "/verifier", why));
    return tok;
}

/* ---- prompts ----------------------------------------------------------------------------- */

static void test_lines(void **state) {
    scratch *s = *state;
    static const char text[] = "{\"text\": \"def f(x):\", \"new\": 7, \"kind\": \"code\"}\n"
                               "\n"
                               "{\"prompt\": \"def f(x):\"}\r\n"
                               "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
                               "{\"ids\": [2, 17, 5]}"; /* no newline at the end */
    kk_tokenizer *tok = open_tokenizer();
    kk_promptset set;
    const char *path = scratch_path(s, "mine.jsonl");
    scratch_write(path, text, sizeof text - 1);
    assert_ok(kk_promptset_read(&set, path, tok, 100, why));
    assert_string_equal(set.name, "mine");
    assert_int_equal(set.n, 4);
    assert_int_equal(set.prompts[0].most, 7);
    assert_int_equal(set.prompts[0].ids[0], 2); /* <bos> */
    assert_int_equal(set.prompts[0].n, set.prompts[1].n);
    assert_memory_equal(set.prompts[0].ids, set.prompts[1].ids, 4 * set.prompts[0].n);
    /* A conversation is rendered up to where the answer begins. */
    assert_int_equal(set.prompts[2].ids[1], kk_tokenizer_special(tok, "<|turn>"));
    assert_true(set.prompts[2].n > 8);
    assert_int_equal(set.prompts[3].n, 3);
    assert_int_equal(set.prompts[3].ids[1], 17);
    /* What a prompt says of its length, unless the caller allows less. */
    assert_int_equal(kk_prompt_predict(&set.prompts[0], 0), 7);
    assert_int_equal(kk_prompt_predict(&set.prompts[0], 3), 3);
    assert_int_equal(kk_prompt_predict(&set.prompts[0], 30), 7);
    assert_int_equal(kk_prompt_predict(&set.prompts[1], 30), 30);
    assert_int_equal(kk_prompt_predict(&set.prompts[1], 0), 128);
    kk_promptset_free(&set);

    assert_ok(kk_promptset_read(&set, path, tok, 2, why));
    assert_int_equal(set.n, 2);
    kk_promptset_free(&set);
    kk_tokenizer_close(tok);
}

static void test_bad_lines(void **state) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "no prompt in"},
        {"\n \n", "no prompt in"},
        {"{\"text\": \"a\"}\n{\"text\"", "line 2"},
        {"[1, 2]", "line 1"},
        {"{\"txet\": \"a\"}", "no \"text\""},
        {"{\"text\": 5}", "no \"text\""},
        {"{\"ids\": [1, -4]}", "ids"},
        {"{\"ids\": [1, 2.5]}", "ids"},
        {"{\"ids\": []}", "empty"},
        {"{\"text\": \"a\", \"new\": 0}", "\"new\""},
        {"{\"text\": \"a\", \"new\": \"many\"}", "\"new\""},
        {"{\"messages\": []}", "messages"},
    };
    scratch *s = *state;
    kk_tokenizer *tok = open_tokenizer();
    const char *path = scratch_path(s, "bad.jsonl");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kk_promptset set;
        kk_err err;
        scratch_write(path, bad[i].text, strlen(bad[i].text));
        const int64_t live = kk_live_bytes();
        assert_int_not_equal(kk_promptset_read(&set, path, tok, 9, &err), KK_OK);
        if (!strstr(err.msg, bad[i].says)) fail_msg("'%s' says: %s", bad[i].text, err.msg);
        assert_null(set.prompts);
        assert_int_equal(kk_live_bytes(), live);
    }
    kk_promptset set;
    kk_err err;
    scratch_write(path, "{\"text\": \"a\"}", 13);
    assert_int_equal(kk_promptset_read(&set, path, NULL, 9, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "no tokenizer"));
    assert_int_equal(kk_promptset_read(&set, scratch_path(s, "none"), tok, 9, &err), KK_EIO);
    kk_tokenizer_close(tok);
}

static void test_made_prompts(void **state) {
    (void)state;
    kk_tokenizer *tok = open_tokenizer();
    kk_promptset one, two;
    assert_ok(kk_promptset_needles(&one, tok, 3, why));
    assert_ok(kk_promptset_named(&two, NULL, "needle", tok, 2, why));
    assert_int_equal(one.n, 3);
    assert_int_equal(two.n, 2);
    assert_int_equal(one.prompts[1].n, two.prompts[1].n);
    assert_memory_equal(one.prompts[1].ids, two.prompts[1].ids, 4 * one.prompts[1].n);
    kk_promptset_free(&one);
    kk_promptset_free(&two);
    kk_tokenizer_close(tok);

    assert_ok(kk_promptset_random(&one, 50, 2, 40, 1, why));
    assert_ok(kk_promptset_random(&two, 50, 2, 40, 2, why));
    assert_memory_not_equal(one.prompts[0].ids, two.prompts[0].ids, 4 * 40);
    assert_memory_not_equal(one.prompts[0].ids, one.prompts[1].ids, 4 * 40);
    for (int i = 0; i < 40; i++) assert_in_range(one.prompts[0].ids[i], 0, 49);
    assert_int_equal(kk_promptset_longest(&one, 12), 52);
    kk_promptset_free(&one);
    kk_promptset_free(&two);
}

/* ---- acceptance -------------------------------------------------------------------------- */

static kk_accept_opts options(const char *sets) {
    return (kk_accept_opts){.engine = {.model = TINY "/verifier", .drafter = TINY "/drafter"},
                            .session = {.spec = KK_SPEC_DFLASH},
                            .names = sets,
                            .folder = TINY "/prompts",
                            .samples = 2,
                            .predict = 24};
}

static int64_t total(const int64_t n[KK_MAX_DRAFT + 1], bool weighted) {
    int64_t sum = 0;
    for (int i = 0; i <= KK_MAX_DRAFT; i++) sum += weighted ? i * n[i] : n[i];
    return sum;
}

static void check_figures(const kk_accept_figures *f) {
    const kk_spec_stats *t = &f->spec;
    assert_int_equal(f->different, 0);
    assert_int_equal(total(t->histogram, false), t->rounds);
    assert_int_equal(total(t->histogram, true), t->accepted);
    assert_int_equal(total(t->drafts, true), t->drafted);
    /* The first token of each generation takes no round, every other comes from one. */
    assert_int_equal(f->tokens, t->accepted + t->rounds + f->prompts);
    near(f->length, (double)(t->accepted + t->rounds) / (double)t->rounds, 1e-9);
    near(f->rate, (double)t->accepted / (double)t->drafted, 1e-9);
}

static void test_drafter(void **state) {
    scratch *s = *state;
    kk_accept_opts o = options("code,json");
    o.other_scale = "1";
    kk_accept_result *r = calloc(1, sizeof *r);
    assert_ok(kk_accept_run(&o, r, why));
    assert_true(r->lossless);
    assert_int_equal(r->n_sets, 2);
    assert_int_equal(r->n_arms, 2);
    for (int i = 0; i < 2; i++) {
        for (int arm = 0; arm < 2; arm++) check_figures(&r->set[i].arm[arm]);
        assert_int_equal(r->set[i].arm[0].prompts, 2);
        assert_int_equal(r->set[i].arm[0].tokens, r->set[i].arm[1].tokens);
    }
    check_figures(&r->all.arm[0]);
    assert_int_equal(r->all.arm[0].tokens, r->set[0].arm[0].tokens + r->set[1].arm[0].tokens);
    /* A trained drafter is mostly right, and lost without the scale it was trained with. */
    assert_true(r->set[1].arm[0].rate > 0.5);
    assert_true(r->all.arm[1].rate < 0.25);

    const char *path = scratch_path(s, "accept.json");
    kk_writer *to;
    assert_ok(kk_writer_open(&to, path, NULL, why));
    assert_ok(kk_accept_write(to, &o, r, "a command", why));
    kk_writer_close(to);
    json_t *report = json_load_file(path, 0, NULL);
    assert_true(json_is_true(json_object_get(report, "lossless")));
    const json_t *sets = json_object_get(report, "sets");
    assert_int_equal(json_array_size(sets), 4);
    const json_t *last = json_array_get(sets, 3);
    assert_string_equal(json_string_value(json_object_get(last, "set")), "json");
    assert_string_equal(json_string_value(json_object_get(last, "embed_scale")), "1");
    json_decref(report);
    kk_accept_release(r);
    free(r);
}

static void test_ngram(void **state) {
    (void)state;
    kk_accept_opts o = options("edit");
    o.engine.drafter = NULL;
    o.session = (kk_session_opts){.spec = KK_SPEC_NGRAM, .kv_format = KK_KV_Q4};
    o.sampling = (kk_sampling){.temp = 0.7f, .seed = 5};
    o.predict = 60;
    kk_accept_result *r = calloc(1, sizeof *r);
    assert_ok(kk_accept_run(&o, r, why));
    check_figures(&r->all.arm[0]);
    assert_true(r->all.arm[0].length > 1.2); /* a file is mostly copied */
    kk_accept_release(r);
    free(r);
}

/* ---- what cannot be ---------------------------------------------------------------------- */

static void refused(const kk_accept_opts *o, const char *says) {
    kk_accept_result *r = calloc(1, sizeof *r);
    kk_err err;
    const int64_t live = kk_live_bytes();
    assert_int_not_equal(kk_accept_run(o, r, &err), KK_OK);
    if (!strstr(err.msg, says)) fail_msg("instead of '%s': %s", says, err.msg);
    assert_int_equal(kk_live_bytes(), live);
    kk_accept_release(r);
    free(r);
}

static void test_refused(void **state) {
    (void)state;
    kk_accept_opts o = options("code");
    o.engine.drafter = NULL;
    refused(&o, "needs a drafter");
    o = options("code");
    o.session.spec = KK_SPEC_NONE;
    refused(&o, "proposer");
    o = options("code");
    o.session.draft_max = 8;
    refused(&o, "block");
    o = options("nothing");
    refused(&o, "nothing.jsonl");
    o = options("code");
    o.folder = NULL;
    refused(&o, "not beside it");
    o = options(NULL);
    refused(&o, "either");
    o = options("code");
    o.samples = 0;
    refused(&o, "prompts of a set");
}

static bool stop_at_once(void *user, const char *set, int32_t done, int32_t of) {
    (void)user, (void)set, (void)done, (void)of;
    return false;
}

static void test_stopped(void **state) {
    (void)state;
    kk_accept_opts o = options("code");
    o.on_prompt = stop_at_once;
    refused(&o, "stopped");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_bad_lines, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_made_prompts),
        cmocka_unit_test_setup_teardown(test_drafter, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_ngram),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
