/* kvformats_test.c - the formats that `kakeya eval kv` compares are those that sessions really use:
 * what a session stores is what is compared, bit for bit. */
#include "support/tiny.h"

#include <math.h>

#include "eval/tasks/kvformats.h"
#include "eval/tasks/sweep_rows.h"

enum { PROMPT = 150 };

/* The first layer's rows do not depend on how rows are stored, so that a session of any format
 * must hold exactly what its format makes of the float32 session's. */
static void compare_first_layer(kk_engine *e, kk_session *exact, kk_kv_format f,
                                const int32_t *prompt) {
    kk_session *s = tiny_session(e, PROMPT, f);
    tiny_append(s, prompt, PROMPT);
    const kk_kv_slot *from = &exact->layout->slot[0], *to = &s->layout->slot[0];
    float x[512], y[512], stored[512];
    uint8_t block[sizeof x];
    double error = 0;
    const kk_cache_page a = kk_cache_page_at(exact->cache, KK_SLIDING, 0);
    const kk_cache_page b = kk_cache_page_at(s->cache, KK_SLIDING, 0);
    const size_t dim = (size_t)from->head_dim;
    assert_int_equal(a.index, b.index);
    assert_int_equal(a.rows, b.rows);
    for (int32_t row = 0; row < a.rows; row++)
        for (int32_t h = 0; h < from->n_kv_head; h++)
            for (int part = 0; part < 2; part++) {
                kk_page_row_floats(from, a.data, part ? from->v_off : from->k_off, h, row, x);
                kk_page_row_floats(to, b.data, part ? to->v_off : to->k_off, h, row, stored);
                kk_kvformats_round_trip(f, x, y, (int32_t)dim, block);
                assert_memory_equal(y, stored, dim * sizeof *y);
                for (size_t i = 0; i < dim; i++) error += fabs((double)(y[i] - x[i]));
            }
    assert_true((error == 0) == (f == KK_KV_F32));
    kk_session_free(s);
}

static void test_stored_as_said(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32", 1, 64);
    int32_t prompt[PROMPT];
    tiny_prompt(prompt, PROMPT, 3);
    kk_session *exact = tiny_session(e, PROMPT, KK_KV_F32);
    tiny_append(exact, prompt, PROMPT);
    assert_false(exact->layout->slot[0].k_eq_v);
    for (int f = 0; f < KK_KV_FORMATS; f++) compare_first_layer(e, exact, (kk_kv_format)f, prompt);
    kk_session_free(exact);
    kk_engine_close(e);
}

static void refused(const kk_kvformats_opts *o, kk_status code, const char *why_not) {
    kk_kvformats_result r;
    kk_err err = {0};
    assert_int_equal(kk_kvformats_run(o, &r, &err), code);
    if (!strstr(err.msg, why_not)) fail_msg("'%s' does not say '%s'", err.msg, why_not);
    assert_null(r.report);
}

static void test_refused(void **state) {
    (void)state;
    kk_kvformats_opts o = {.engine = {.synthetic = "tiny:f32", .threads = 1, .no_pin = true},
                           .format = {KK_KV_Q8},
                           .n_formats = 1,
                           .draw = {.ladder = {70}, .n_rungs = 1, .samples = 1},
                           .predict = 4};
    refused(&o, KK_EINVAL, "no tokenizer");
    o.predict = 0;
    refused(&o, KK_EINVAL, "answers of 0 tokens");
    o.n_formats = 0;
    refused(&o, KK_EINVAL, "0 formats");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_as_said),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
