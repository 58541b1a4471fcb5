/* lineage_test.c - what is made with one precision of a model works with another, and says so; what
 * is made with another model does not.
 *
 * The shipped model, and its q4_0 and q8_0 as kk_quantize writes them. */
#define _GNU_SOURCE
#include <stdio.h>

#include "engine/fingerprint.h"
#include "engine/session.h"
#include "support/ok.h"
#include "support/scratch.h"

#define VERIFIER KK_MODELS "/tiny/verifier"
#define DRAFTER KK_MODELS "/tiny/drafter"
#define PROJECTION KK_MODELS "/tiny/projection"

enum { PROMPT = 120 };

static char q4[600], q8[600], drafter_q4[600];

static int setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    const char *dir = ((scratch *)*state)->dir;
    snprintf(q4, sizeof q4, "%s/q4_0.gguf", dir);
    snprintf(q8, sizeof q8, "%s/q8_0.gguf", dir);
    snprintf(drafter_q4, sizeof drafter_q4, "%s/drafter.gguf", dir);
    return kk_quantize(VERIFIER, q4, "q4_0", NULL, NULL, NULL) ||
           kk_quantize(VERIFIER, q8, "q8_0", NULL, NULL, NULL) ||
           kk_quantize(DRAFTER, drafter_q4, "q4_0", NULL, NULL, NULL);
}

static kk_engine *engine(const char *model, const char *drafter, const char *projection) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .model = model, .drafter = drafter, .projection = projection, .threads = 1, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static void kinship(void **state) {
    (void)state;
    static const struct {
        kk_lineage made, here;
        kk_kin kin;
    } cases[] = {
        {{1, 1, 9}, {1, 1, 9}, KK_KIN_SAME},      {{1, 0, 0}, {1, 1, 9}, KK_KIN_SAME},
        {{1, 0, 0}, {2, 1, 9}, KK_KIN_PRECISION}, /* quantised from it; an earlier build's file */
        {{3, 1, 0}, {2, 1, 0}, KK_KIN_PRECISION}, {{3, 3, 9}, {2, 2, 9}, KK_KIN_PRECISION},
        {{3, 3, 0}, {2, 2, 0}, KK_KIN_NONE},      {{3, 3, 9}, {2, 2, 8}, KK_KIN_NONE},
        {{3, 0, 0}, {2, 2, 9}, KK_KIN_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(kk_lineage_compare(&cases[i].made, &cases[i].here), cases[i].kin);
}

static void precisions_of_a_model_are_kin(void **state) {
    (void)state;
    kk_engine *e[3] = {engine(VERIFIER, NULL, NULL), engine(q4, NULL, NULL),
                       engine(q8, NULL, NULL)};
    kk_lineage l[3];
    for (int i = 0; i < 3; i++) l[i] = kk_engine_lineage(e[i]);
    for (int i = 0; i < 3; i++) {
        assert_true(l[i].source == l[0].weights); /* which kk_quantize wrote down */
        assert_true(l[i].identity == l[0].identity);
        for (int k = 0; k < i; k++) assert_true(l[i].weights != l[k].weights);
        kk_engine_close(e[i]);
    }
}

static void a_projection_works_with_every_precision(void **state) {
    (void)state;
    const char *const models[] = {VERIFIER, q4, q8};
    for (int i = 0; i < 3; i++) {
        kk_engine *e = engine(models[i], NULL, PROJECTION);
        kk_projection_info info;
        assert_true(kk_engine_projection(e, &info));
        assert_int_equal(info.other_weights, i > 0);
        assert_true(info.checked);
        kk_engine_close(e);
    }
}

static void other_models_are_refused(void **state) {
    (void)state;
    kk_engine *e = NULL;
    kk_err err = {0};
    const kk_engine_opts opts = {
        .synthetic = "tiny:bf16", .projection = PROJECTION, .threads = 1, .no_pin = true};
    assert_int_not_equal(kk_engine_open(&e, &opts, &err), KK_OK);
    assert_non_null(strstr(err.msg, "another model"));
}

/* ---- sessions ---------------------------------------------------------------------------- */

static kk_session *begin(kk_engine *e, bool restores) {
    kk_session *s = NULL;
    int32_t ids[PROMPT];
    const kk_session_opts opts = {.ctx = 512,
                                  .kv_sliding = restores ? KK_KEEP_RESTORED : KK_KEEP_ALL,
                                  .kv_full = restores ? KK_KEEP_RESTORED : KK_KEEP_ALL,
                                  .window = restores ? 16 : 0,
                                  .chunk = restores ? 16 : 0};
    for (int i = 0; i < PROMPT; i++) ids[i] = 3 + (i * 37) % 3000;
    assert_ok(kk_session_new(&s, e, &opts, why));
    assert_ok(kk_session_append(s, ids, PROMPT, NULL, NULL, why));
    return s;
}

static void go_on(kk_session *s) {
    const kk_generate_opts how = {.max_tokens = 8, .ignore_eos = true};
    kk_result r;
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_int_equal(r.n_tokens, 8);
}

static void a_session_goes_on_with_other_weights(void **state) {
    for (int restores = 0; restores < 2; restores++) {
        const char *projection = restores ? PROJECTION : NULL;
        kk_engine *whole = engine(VERIFIER, DRAFTER, projection);
        kk_engine *packed = engine(q4, drafter_q4, projection);
        kk_session *s = begin(whole, restores), *other, *again;
        kk_saved_info info;
        bool exact = true;
        const char *path = scratch_path(*state, "session.kks");
        go_on(s);
        assert_false(kk_session_other_weights(s));
        assert_ok(kk_session_save(s, path, why));
        assert_ok(kk_session_load(&other, packed, path, NULL, &exact, why));
        assert_false(exact);
        assert_true(kk_session_other_weights(other));
        assert_int_equal(kk_session_spec(other), kk_session_spec(s)); /* its drafter's state came */
        go_on(other);
        /* Whoever has it next is told, also with the weights that saved it last. */
        assert_ok(kk_session_fork(&again, other, why));
        assert_true(kk_session_other_weights(again));
        kk_session_free(again);
        assert_ok(kk_session_save(other, path, why));
        assert_ok(kk_saved_inspect(path, &info, why));
        assert_true(info.other_weights && info.identity != 0 && info.format == 4);
        assert_ok(kk_session_load(&again, packed, path, NULL, &exact, why));
        assert_true(exact);
        assert_true(kk_session_other_weights(again));
        kk_session_free(again);
        assert_ok(kk_session_load(&again, whole, path, NULL, &exact, why));
        assert_false(exact);
        go_on(again);
        kk_session_free(again);
        kk_session_free(other);
        kk_session_free(s);
        kk_engine_close(packed);
        kk_engine_close(whole);
    }
}

/* Rounding a projection in memory is a precision too; another training is another projection. */
static void latents_belong_to_a_projection(void **state) {
    kk_engine *packed = engine(VERIFIER, NULL, PROJECTION), *whole = NULL;
    const kk_engine_opts file = {.model = VERIFIER,
                                 .projection = PROJECTION,
                                 .projection_type = "file",
                                 .threads = 1,
                                 .no_pin = true};
    kk_session *s = begin(packed, true), *other;
    bool exact = true;
    const char *path = scratch_path(*state, "latents.kks");
    assert_ok(kk_session_save(s, path, why));
    assert_ok(kk_engine_open(&whole, &file, why));
    assert_ok(kk_session_load(&other, whole, path, NULL, &exact, why));
    assert_false(exact);
    assert_true(kk_session_other_weights(other));
    go_on(other);
    kk_session_free(other);
    kk_session_free(s);
    kk_engine_close(whole);
    kk_engine_close(packed);
}

/* ---- the files of a projection ----------------------------------------------------------- */

static void copy_projection(const char *to, size_t flip) {
    static const char *const names[] = {"projection.json", "projection.safetensors"};
    char path[700];
    mkdir(to, 0777);
    for (int i = 0; i < 2; i++) {
        size_t n;
        snprintf(path, sizeof path, PROJECTION "/%s", names[i]);
        char *bytes = scratch_read(path, &n);
        snprintf(path, sizeof path, "%s/%s", to, names[i]);
        if (i == 1 && flip) bytes[n - flip] ^= 1;
        scratch_write(path, bytes, n);
        free(bytes);
    }
}

static void edit(const char *dir, const char *from, const char *to) {
    char path[700];
    size_t n;
    snprintf(path, sizeof path, "%s/projection.json", dir);
    char *text = scratch_read(path, &n), *at = strstr(text, from);
    if (!at) fail_msg("no %s in %s", from, path);
    char *out = calloc(1, n + strlen(to) + 1);
    snprintf(out, n + strlen(to) + 1, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    scratch_write(path, out, strlen(out));
    free(out);
    free(text);
}

static void refused(const char *dir, const char *says) {
    kk_projection *p;
    kk_err err = {0};
    assert_int_equal(kk_projection_open(&p, dir, NULL, &err), KK_EFORMAT);
    if (!strstr(err.msg, says)) fail_msg("'%s' does not say '%s'", err.msg, says);
}

static void halves_of_two_trainings_are_refused(void **state) {
    const char *dir = scratch_path(*state, "halves");
    kk_projection *p;
    char *line, text[64] = "";
    size_t n;
    copy_projection(dir, 0);
    assert_ok(kk_projection_open(&p, dir, NULL, why));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)kk_projection_config_of(p)->data);
    kk_projection_close(p);
    copy_projection(dir, 1); /* the last value is another */
    refused(dir, "projection.safetensors in");
    copy_projection(dir, 2000000); /* and one in the middle */
    refused(dir, "is not the one that projection.json was written with");
    copy_projection(dir, 0);
    edit(dir, "[1, 4, 10]", "[1, 5, 10]");
    refused(dir, "projection.json was changed after it was written");
    copy_projection(dir, 0);
    edit(dir, text, "0123456789abcdef");
    refused(dir, "projection.json was changed after it was written");
    copy_projection(dir, 0);
    edit(dir, "\"data_checksum\"", "\"other\"");
    refused(dir, "has its own checksum and not the other");
    /* An earlier build's has neither: it is read, and not called checked. */
    copy_projection(dir, 0);
    edit(dir, "\"data_checksum\"", "\"other\"");
    edit(dir, "\"config_checksum\"", "\"another\"");
    kk_engine *e = engine(VERIFIER, NULL, dir);
    kk_projection_info info;
    assert_true(kk_engine_projection(e, &info));
    assert_false(info.checked);
    kk_engine_close(e);
    line = scratch_read(PROJECTION "/projection.json", &n);
    assert_non_null(strstr(line, "verifier_identity"));
    free(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinship),
        cmocka_unit_test(precisions_of_a_model_are_kin),
        cmocka_unit_test(a_projection_works_with_every_precision),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(a_session_goes_on_with_other_weights),
        cmocka_unit_test(latents_belong_to_a_projection),
        cmocka_unit_test(halves_of_two_trainings_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
