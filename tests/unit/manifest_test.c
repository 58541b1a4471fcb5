/* manifest_test.c - manifests of the bridge: what is taken, every way to be refused, ten thousand
 * mutations, and that whatever is taken becomes command lines of words that were written here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bridge/manifest.h"

static const char whole[] =
    "{\"schema_version\": 2, \"preset\": \"eval-needle\", \"params\": {\"n_samples\": 3, "
    "\"device\": \"cuda\"}, \"ref\": \"0123abc\", \"requested_by\": \"ann@example.org\", "
    "\"nonce\": \"1700000000-ab12cd\", \"runner\": \"m4\", \"created\": 1700000000}";

static void takes_what_is_whole(void **state) {
    (void)state;
    kk_manifest m, again;
    kk_bytes text = {0};
    assert_int_equal(kk_manifest_parse(&m, whole, sizeof whole - 1, NULL), KK_OK);
    assert_string_equal(m.preset->name, "eval-needle");
    assert_string_equal(m.runner, "m4");
    assert_int_equal(m.value[0], 1);  /* cuda */
    assert_int_equal(m.value[2], 70); /* lines: the default */
    assert_int_equal(m.value[3], 3);
    assert_int_equal(kk_manifest_write(&m, &text, NULL), KK_OK);
    assert_int_equal(kk_manifest_parse(&again, text.data, text.n, NULL), KK_OK);
    assert_memory_equal(&m, &again, sizeof m);
    kk_bytes_free(&text);
}

static void refuses_by_name(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } changes[] = {
        {"\"schema_version\": 2", "\"schema_version\": 0", "schema_version is 0"},
        {"\"schema_version\": 2", "\"schema_version\": 3", "schema_version is 3"},
        {"\"schema_version\": 2", "\"schema_version\": 2.0", "schema_version"},
        {"\"schema_version\": 2", "\"schema_version\": 1", "no member"},
        {"\"schema_version\": 2, ", "", "schema_version"},
        {"eval-needle", "eval-needles", "no preset 'eval-needles'"},
        {"eval-needle", "pytest-path", "runs nothing that a request brings"},
        {"eval-needle", "eval needle", "preset"},
        {"\"preset\": \"eval-needle\", ", "", "preset"},
        {"\"n_samples\": 3", "\"n_samples\": 0", "n_samples is 0, and takes 1 to 50"},
        {"\"n_samples\": 3", "\"n_samples\": 51", "n_samples is 51"},
        {"\"n_samples\": 3", "\"n_samples\": 3.0", "not a whole number"},
        {"\"n_samples\": 3", "\"n_samples\": null", "not a whole number"},
        {"\"n_samples\": 3", "\"n_samples\": 99999999999999999999", "no JSON"},
        {"\"n_samples\": 3", "\"n_samples\": 3, \"n_samples\": 4", "no JSON"},
        {"\"n_samples\": 3", "\"path\": \"tests\"", "no parameter 'path'"},
        {"\"cuda\"", "\"cud\"", "device is 'cud'"},
        {"\"cuda\"", "\"cpu cuda\"", "device is 'cpu cuda'"},
        {"\"cuda\"", "\"\"", "device is ''"},
        {"\"cuda\"", "1", "device is not a string"},
        {"{\"n_samples\"", "[{\"n_samples\"", "no JSON"},
        {"0123abc", "", "ref"},
        {"0123abc", "-x", "ref"},
        {"0123abc", "a b", "ref"},
        {"0123abc", "a\\u0000b", "no JSON"},
        {"ann@example.org", "-ann", "requested_by"},
        {"ann@example.org", "an n", "requested_by"},
        {"ann@example.org", "", "requested_by"},
        {"1700000000-ab12cd", "abc", "nonce"},
        {"1700000000-ab12cd", "-abcd", "nonce"},
        {"1700000000-ab12cd", "ABCDE", "nonce"},
        {"1700000000-ab12cd", "../..", "nonce"},
        {"\"m4\"", "4", "runner"},
        {"\"m4\"", "\"m 4\"", "runner"},
        {"\"created\": 1700000000", "\"created\": \"now\"", "created"},
        {"\"created\"", "\"command\"", "no member \"command\""},
        {"}", "", "no JSON"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char text[1024];
        const char *at = strstr(whole, changes[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, changes[i].to,
                 at + strlen(changes[i].from));
        kk_manifest m;
        kk_err err = {.msg = ""};
        if (kk_manifest_parse(&m, text, strlen(text), &err) != KK_EINVAL ||
            !strstr(err.msg, changes[i].says))
            fail_msg("%s\n  gave: %s", text, err.msg);
    }
    kk_manifest m;
    char *large = calloc(1, KK_MANIFEST_BYTES + 1);
    memset(large, ' ', KK_MANIFEST_BYTES + 1);
    assert_int_equal(kk_manifest_parse(&m, large, KK_MANIFEST_BYTES + 1, NULL), KK_EINVAL);
    memcpy(large, whole, sizeof whole - 1);
    assert_int_equal(kk_manifest_parse(&m, large, KK_MANIFEST_BYTES, NULL), KK_OK);
    free(large);
    assert_int_equal(kk_manifest_parse(&m, "[]", 2, NULL), KK_EINVAL);
    assert_int_equal(kk_manifest_parse(&m, "", 0, NULL), KK_EINVAL);
}

static void parameters_as_typed(void **state) {
    (void)state;
    kk_manifest m = {.version = 2};
    kk_manifest_defaults(&m, kk_presets_find("eval-needle"));
    assert_int_equal(kk_manifest_set(&m, "n_samples=50", NULL), KK_OK);
    assert_int_equal(kk_manifest_set(&m, "arms=exact,restored", NULL), KK_OK);
    assert_int_equal(m.value[1], 1);
    static const char *const wrong[] = {"n_samples=51",
                                        "n_samples=0",
                                        "n_samples=",
                                        "n_samples",
                                        "n_samples=1 ",
                                        "n_samples=1e1",
                                        "zzz=1",
                                        "=1",
                                        "arms=exac",
                                        "arms=exact exact",
                                        ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (kk_manifest_set(&m, wrong[i], NULL) != KK_EINVAL) fail_msg("took '%s'", wrong[i]);
    assert_int_equal(m.value[3], 50); /* a value that is refused changes nothing */
}

static void branches(void **state) {
    (void)state;
    kk_manifest m;
    char name[300], small[20];
    assert_int_equal(kk_manifest_parse(&m, whole, sizeof whole - 1, NULL), KK_OK);
    assert_true(kk_manifest_branch(&m, "bus/", "-x", name, sizeof name));
    assert_string_equal(name, "bus/eval-needle-1700000000-ab12cd-x");
    assert_false(kk_manifest_branch(&m, "bus/", "", small, sizeof small));
    assert_true(kk_manifest_on_branch(&m, "bus/", name));
    assert_true(kk_manifest_on_branch(&m, "bus/", "bus/eval-needle-1700000000-ab12cd"));
    assert_false(kk_manifest_on_branch(&m, "bus/", "bus/eval-needle-1700000000-ab12c"));
    assert_false(kk_manifest_on_branch(&m, "bus/", "bus/eval-needle-1700000000-ab12cd/x"));
    assert_false(kk_manifest_on_branch(&m, "bus/", "eval-needle-1700000000-ab12cd"));
    assert_false(kk_manifest_suffix_ok(".."));
    assert_false(kk_manifest_suffix_ok("-a.lock"));
    assert_false(kk_manifest_suffix_ok("a."));
    assert_false(kk_manifest_suffix_ok("a b"));
    assert_false(kk_manifest_suffix_ok("1234567890123456789012345678901234567890x"));
}

/* ---- command lines ------------------------------------------------------------------------- */

static const char *const cases[] = {"/cases/one", "/cases/two"};
static const kk_preset_paths paths = {.model = "/models/v",
                                      .drafter = "/models/d",
                                      .projection = "",
                                      .reports = "/reports",
                                      .cases = cases,
                                      .n_cases = 2};

/* Every word of a plan is a word of the preset, a value, or a path of the machine. */
static void check_plan(const kk_manifest *m, const kk_plan *plan) {
    assert_true(plan->n >= 1);
    for (size_t i = 0; i < plan->n; i++) {
        const kk_words *argv = &plan->command[i];
        assert_string_equal(argv->word[0], "/bin/kakeya");
        assert_null(argv->word[argv->n]);
        assert_true(argv->n >= 3);
        for (size_t k = 1; k < argv->n; k++) {
            assert_null(strpbrk(argv->word[k], "{}@?;|&$`<>*'\"\\ \n"));
            assert_true(argv->word[k][0] != 0);
        }
        (void)m;
    }
}

static void plans(void **state) {
    (void)state;
    for (size_t i = 0; kk_presets_at(i); i++) {
        kk_manifest m = {.nonce = "abcd"};
        kk_plan plan;
        kk_manifest_defaults(&m, kk_presets_at(i));
        assert_int_equal(
            kk_plan_make(&plan, m.preset, m.value, "/bin/kakeya", &paths, m.nonce, NULL), KK_OK);
        check_plan(&m, &plan);
        kk_plan_free(&plan);
    }
    kk_manifest m = {.nonce = "abcd"};
    kk_plan plan;
    kk_err err;
    kk_manifest_defaults(&m, kk_presets_find("eval-accept"));
    assert_int_equal(kk_plan_make(&plan, m.preset, m.value, "/bin/kakeya", &paths, "abcd", &err),
                     KK_OK);
    static const char *const want[] = {
        "/bin/kakeya", "eval",      "accept", "--device",  "cpu",
        "-m",          "/models/v", "-md",    "/models/d", "--set",
        "code",        "--samples", "8",      "-n",        "64",
        "--draft-max", "4",         "-q",     "--report",  "results/eval-accept-abcd.json"};
    assert_int_equal(plan.command[0].n, sizeof want / sizeof *want);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_string_equal(plan.command[0].word[i], want[i]);
    kk_plan_free(&plan);
    /* A path that the machine lacks is named. */
    kk_preset_paths none = {.model = ""};
    assert_int_equal(kk_plan_make(&plan, kk_presets_find("parity"), m.value, "k", &none, "x", &err),
                     KK_EINVAL);
    assert_non_null(strstr(err.msg, "cases"));
    kk_plan_free(&plan);
    assert_int_equal(
        kk_plan_make(&plan, kk_presets_find("k3-evidence-gate"), m.value, "k", &none, "x", &err),
        KK_EINVAL);
    kk_plan_free(&plan);
    /* More cases than a request may run commands. */
    const char *many[KK_PLAN_COMMANDS + 1];
    for (size_t i = 0; i <= KK_PLAN_COMMANDS; i++) many[i] = "/case";
    none.cases = many, none.n_cases = KK_PLAN_COMMANDS + 1;
    assert_int_equal(kk_plan_make(&plan, kk_presets_find("parity"), m.value, "k", &none, "x", &err),
                     KK_EINVAL);
    kk_plan_free(&plan);
}

/* ---- mutations ----------------------------------------------------------------------------- */

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x;
}

/* Bytes changed, removed, doubled; and tokens that mean something put where they do not belong. */
static size_t mutate(char *text, size_t n, size_t cap, uint64_t *x) {
    static const char *const tokens[] = {
        "\"",   "{",     "}",    "[",   "null", "-1",         "1e99",   "../",        "\\u0000",
        "; id", "$(id)", "true", "2.5", "\xff", "\"params\"", "--help", "99999999999"};
    for (uint64_t i = 1 + next(x) % 4; i-- && n > 2;) {
        const size_t at = next(x) % n, len = 1 + next(x) % 8;
        switch (next(x) % 4) {
        case 0: text[at] = (char)next(x); break;
        case 1:
            if (at + len < n) memmove(text + at, text + at + len, n - at - len), n -= len;
            break;
        case 2:
            if (at + len < n && n + len < cap)
                memmove(text + at + len, text + at, n - at), n += len;
            break;
        default: {
            const char *t = tokens[next(x) % (sizeof tokens / sizeof *tokens)];
            if (n + strlen(t) >= cap) break;
            memmove(text + at + strlen(t), text + at, n - at);
            memcpy(text + at, t, strlen(t));
            n += strlen(t);
        }
        }
    }
    return n;
}

static void check_taken(const kk_manifest *m) {
    kk_plan plan;
    assert_true(kk_manifest_name_ok(m->requested_by) && kk_manifest_nonce_ok(m->nonce) &&
                kk_manifest_ref_ok(m->ref));
    for (size_t k = 0; k < kk_preset_params(m->preset); k++) {
        const kk_param *p = &m->preset->params[k];
        size_t len;
        assert_true(p->words ? kk_param_word(p, m->value[k], &len) != NULL
                             : m->value[k] >= p->min && m->value[k] <= p->max);
    }
    assert_int_equal(
        kk_plan_make(&plan, m->preset, m->value, "/bin/kakeya", &paths, m->nonce, NULL), KK_OK);
    check_plan(m, &plan);
    kk_plan_free(&plan);
}

static void mutations(void **state) {
    (void)state;
    uint64_t x = 0x9e3779b97f4a7c15u;
    int taken = 0;
    for (int i = 0; i < 10000; i++) {
        char text[2048];
        kk_manifest m;
        kk_err err = {.msg = ""};
        memcpy(text, whole, sizeof whole);
        const size_t n = mutate(text, sizeof whole - 1, sizeof text, &x);
        const kk_status st = kk_manifest_parse(&m, text, n, &err);
        assert_true(st == KK_OK || (st == KK_EINVAL && err.msg[0]));
        if (st == KK_OK) check_taken(&m), taken++;
    }
    assert_in_range(taken, 10, 5000); /* mutations that reach the checks behind the parser */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_is_whole),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(parameters_as_typed),
        cmocka_unit_test(branches),
        cmocka_unit_test(plans),
        cmocka_unit_test(mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
