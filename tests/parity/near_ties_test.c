/* near_ties_test.c - near ties of a generation: of the tokens that were handed out, and of greedy
 * choices alone, whoever makes them and however rounds were grouped.
 *
 * The device is the CPU, which says that only so many of its rows are exact, and that every choice
 * of a token that 3 divides was near. */
#include "backend/cpu/device.h"
#include "core/tie.h"
#include "support/tiny.h"

static kk_backend device;

static void own_describe(const kk_dev *dev, kk_dev_facts *out) {
    kk_cpu_backend.describe(dev, out);
    out->exact_rows = 16;
}

static kk_status own_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                            kk_err *err) {
    KK_TRY(kk_cpu_backend.picked(dev, ticket, out, n, seconds, err));
    for (int32_t i = 0; i < n; i++) out[i].near_tie = out[i].token % 3 == 0;
    return KK_OK;
}

static kk_engine *engine_on(const char *name) {
    kk_engine *e = NULL;
    device = kk_cpu_backend;
    device.name = "own";
    device.describe = own_describe;
    device.picked = own_picked;
    kk_backend_add(&device);
    const kk_engine_opts opts = {
        .synthetic = "tiny:bf16", .threads = 2, .no_pin = true, .device = name};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_session *session_on(kk_engine *e, kk_spec spec) {
    static const int32_t prompt[] = {2, 300, 7, 12, 300, 7, 12, 300, 7, 99, 41, 300, 7, 12};
    kk_session *s = NULL;
    const kk_session_opts o = {.ctx = 512, .spec = spec};
    assert_ok(kk_session_new(&s, e, &o, why));
    assert_ok(kk_session_append(s, prompt, sizeof prompt / sizeof *prompt, NULL, NULL, why));
    return s;
}

/* Counts what it is handed, up to a limit. */
typedef struct {
    int32_t n, most, divisible;
} seen;

static bool look(void *user, int32_t id) {
    seen *s = user;
    /* The first choice after a prompt is made from its logits, by the library. */
    if (s->n++ > 0) s->divisible += id % 3 == 0;
    return s->n < s->most;
}

static void test_handed_out(void **state) {
    (void)state;
    kk_engine *e = engine_on("own");
    int64_t choices = 0, near = 0;
    for (int32_t most = 1; most < 200; most += 23) {
        for (kk_spec spec = KK_SPEC_NONE; spec <= KK_SPEC_NGRAM; spec += 2) {
            kk_session *s = session_on(e, spec);
            seen it = {.most = most};
            kk_result r;
            const kk_generate_opts o = {.max_tokens = 220, .ignore_eos = true};
            float row[TINY_VOCAB];
            tiny_logits(s, row);
            const bool first = kk_near_tie(row, TINY_VOCAB, KK_LOGIT_TOLERANCE);
            assert_ok(kk_generate(s, &o, look, &it, &r, why));
            assert_int_equal(r.n_tokens, most);
            assert_int_equal(r.near_ties, it.divisible + first);
            if (spec == KK_SPEC_NGRAM && most > 100) assert_true(r.spec.accepted > 0);
            choices += r.n_tokens;
            near += r.near_ties;
            kk_session_free(s);
        }
    }
    kk_device_info d;
    kk_engine_device(e, &d);
    assert_true(near > 0 && near < choices);
    assert_true(d.choices == choices && d.near_ties == near);
    assert_string_equal(d.exact_by, "neither");
    kk_engine_close(e);
}

/* Drawn tokens are no greedy choices, and a device that is exact has nothing to count. */
static void test_not_counted(void **state) {
    (void)state;
    static const char *const names[] = {"own", "cpu"};
    for (int i = 0; i < 2; i++) {
        kk_engine *e = engine_on(names[i]);
        kk_session *s = session_on(e, KK_SPEC_NONE);
        kk_result r;
        const kk_generate_opts o = {
            .max_tokens = 40, .ignore_eos = true, .sampling = {.temp = i ? 0 : 0.8f, .seed = 4}};
        kk_device_info d;
        assert_ok(kk_generate(s, &o, NULL, NULL, &r, why));
        kk_engine_device(e, &d);
        assert_int_equal(r.near_ties, 0);
        assert_true(d.choices == 0 && d.near_ties == 0);
        assert_string_equal(d.exact_by, i ? "kernels" : "neither");
        kk_session_free(s);
        kk_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handed_out),
        cmocka_unit_test(test_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
