/* kv_format_api_test.c - every K/V format through the public calls: named, generated with, drafted
 * over, forked, saved and loaded; and refused by name on a device that lacks it. */
#define _GNU_SOURCE
#include "backend/cpu/device.h"
#include "support/saved_session.h"

enum { PROMPT = 150 };

static kk_generate_opts greedy(int32_t n) {
    return (kk_generate_opts){.max_tokens = n, .ignore_eos = true};
}

static uint64_t say(kk_session *s, int32_t n) {
    const kk_generate_opts how = greedy(n);
    kk_result r;
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    return r.logits_hash;
}

/* As a program would that has read the name on its command line. */
static kk_session *session_named(kk_engine *e, const char *name, kk_spec spec) {
    kk_session *s = NULL;
    kk_session_opts o = {.ctx = CTX, .spec = spec, .draft_fixed = true};
    assert_true(kk_kv_format_named(name, &o.kv_format));
    assert_ok(kk_session_new(&s, e, &o, why));
    assert_ok(kk_session_append(s, prompt, PROMPT, NULL, NULL, why));
    return s;
}

static void one_life(kk_engine *e, const char *name, const char *path) {
    kk_session *plain = session_named(e, name, KK_SPEC_NONE), *fork = NULL, *loaded = NULL;
    kk_session *drafted = session_named(e, name, KK_SPEC_DFLASH);
    kk_session *ngram = session_named(e, name, KK_SPEC_NGRAM);
    bool exact = false;
    const uint64_t first = say(plain, 40);
    assert_true(say(drafted, 40) == first);
    assert_true(say(ngram, 40) == first);
    assert_ok(kk_session_fork(&fork, plain, why));
    assert_ok(kk_session_save(drafted, path, why));
    kk_saved_info info;
    assert_ok(kk_saved_inspect(path, &info, why));
    assert_string_equal(kk_kv_format_name(info.kv_format), name);
    assert_ok(kk_session_load(&loaded, e, path, NULL, &exact, why));
    assert_true(exact);
    const uint64_t second = say(plain, 30);
    kk_session *others[] = {drafted, ngram, fork, loaded};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(say(others[i], 30) == second);
        kk_session_free(others[i]);
    }
    kk_session_free(plain);
}

static void every_format_lives(void **state) {
    kk_engine *e = drafting_engine("tiny:q4_0:6");
    for (int f = 0; f < KK_KV_FORMATS; f++)
        one_life(e, kk_kv_format_name((kk_kv_format)f), scratch_path(*state, "session"));
    kk_engine_close(e);
}

/* Formats give different logits: none is another under a second name. */
static void no_format_is_another(void **state) {
    (void)state;
    kk_engine *e = drafting_engine("tiny:q4_0:6");
    uint64_t hash[KK_KV_FORMATS];
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        kk_session *s = session_named(e, kk_kv_format_name((kk_kv_format)f), KK_SPEC_NONE);
        hash[f] = say(s, 20);
        for (int g = 0; g < f; g++) assert_true(hash[f] != hash[g]);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* ---- a device without one ----------------------------------------------------------------- */

static bool all_but_s8(kk_kv_format f) { return f != KK_KV_S8; }

static void lacking_formats_are_refused_by_name(void **state) {
    static kk_backend lacking;
    kk_engine *e = drafting_engine("tiny:q4_0:6");
    const char *path = scratch_path(*state, "session");
    kk_session *s = session_named(e, "s8", KK_SPEC_NONE), *other = NULL;
    assert_ok(kk_session_save(s, path, why));
    kk_session_free(s);
    lacking = kk_cpu_backend;
    lacking.name = "other";
    lacking.stores = all_but_s8;
    const kk_backend *whole = e->backend;
    e->backend = &lacking;
    kk_err err = {0};
    const kk_session_opts o = {.ctx = CTX, .kv_format = KK_KV_S8};
    assert_int_equal(kk_session_new(&other, e, &o, &err), KK_EINVAL);
    assert_string_equal(err.msg, "the device other has no K/V format 's8'");
    assert_null(other);
    memset(&err, 0, sizeof err);
    assert_int_equal(kk_session_load(&other, e, path, NULL, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "the device other has no K/V format 's8'"));
    s = session_named(e, "q8", KK_SPEC_NONE);
    kk_session_free(s);
    for (int f = -1; f <= KK_KV_FORMATS; f += KK_KV_FORMATS + 1) {
        const kk_session_opts none = {.ctx = CTX, .kv_format = (kk_kv_format)f};
        assert_int_equal(kk_session_new(&other, e, &none, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "no K/V format has the number"));
    }
    e->backend = whole;
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_lives),
        cmocka_unit_test(no_format_is_another),
        cmocka_unit_test(lacking_formats_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
