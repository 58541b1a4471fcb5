/* gate_rounds_test.c - times of single rounds: how they are summed up, that a bench's own report of
 * them holds, and that each figure of it that does not fit the others is refused. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/measure/bench_parts.h"
#include "eval/reports/gate.h"
#include "support/scratch.h"

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-9 * (1 + fabs(b)))) fail_msg("%.12g is not %.12g", a, b);
}

/* ---- sums --------------------------------------------------------------------------------- */

static void test_sums(void **state) {
    (void)state;
    const double a[] = {9e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 4e-3, 6e-3};
    const double b[] = {3e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 8e-3};
    kk_bench_rounds one = kk_bench_rounds_of(a, 11), two = kk_bench_rounds_of(b, 9);
    assert_int_equal(one.n, 11);
    assert_int_equal(one.n_first, 8);
    assert_int_equal(one.n_steady, 3);
    near(one.first_ms[0], 9);
    near(one.longest_ms, 9);
    near(one.sum_ms, 28);
    near(one.steady_mean_ms, 4);
    near(one.steady_squares, 8); /* (2 - 4)^2 + (6 - 4)^2 */
    near(kk_bench_rounds_cv(&one), sqrt(8.0 / 3) / 4);
    assert_true(kk_bench_rounds_cv(&two) < 0); /* of a single round */
    /* Together: 2, 4, 6 and 8 are steady, and the first eight are the first one's. */
    kk_bench_rounds_add(&one, &two);
    assert_int_equal(one.n, 20);
    assert_int_equal(one.n_steady, 4);
    near(one.first_ms[0], 9);
    near(one.steady_mean_ms, 5);
    near(one.steady_squares, 20);
    kk_bench_rounds none = kk_bench_rounds_of(a, 0);
    kk_bench_rounds_add(&none, &two);
    assert_int_equal(none.n, 9);
    near(none.first_ms[0], 3);
}

/* ---- lies --------------------------------------------------------------------------------- */

/* Arms, policies and two lengths of context, of a model with random weights. */
static json_t *measure(scratch *s) {
    kk_bench_opts o = {.engine = {.synthetic = "tiny:q4_0:3",
                                  .drafter = "synthetic",
                                  .projection = "synthetic:16",
                                  .threads = 1},
                       .ctx = 150,
                       .longer = {170},
                       .n_longer = 1,
                       .predict = 33,
                       .repeat = 2,
                       .arms = {KK_SPEC_NONE, KK_SPEC_DFLASH},
                       .n_arms = 2,
                       .samples = 2,
                       .arm_predict = 41,
                       .draft_max = 3,
                       .draft_fixed = true,
                       .trace = {.p = 0.744, .seed = 1},
                       .ways = {[KK_BENCH_EXACT] = true, [KK_BENCH_RESTORED_FULL] = true},
                       .keep = {.window = 16, .chunk = 16}};
    kk_bench_result *r = calloc(1, sizeof *r);
    kk_writer *to;
    assert_ok(kk_bench_run(&o, r, why));
    assert_ok(kk_writer_open(&to, scratch_path(s, "rounds.json"), NULL, why));
    assert_ok(kk_bench_write(to, &o, r, "kakeya bench", why));
    kk_writer_close(to);
    kk_bench_release(r);
    free(r);
    json_t *report = json_load_file(scratch_path(s, "rounds.json"), 0, NULL);
    assert_non_null(report);
    return report;
}

/* What this rule finds, one after the other; "": nothing. */
static void judge(const json_t *report, char *said, size_t cap) {
    char *text = json_dumps(report, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    kk_verdict v;
    assert_ok(kk_gate_check(text, strlen(text), &v, why));
    size_t n = 0;
    *said = 0;
    for (size_t i = 0; i < v.n && n < cap; i++)
        if (strcmp(v.finding[i].code, "ROUND_TIMES") == 0)
            n += (size_t)snprintf(said + n, cap - n, "%s; ", v.finding[i].text);
    kk_verdict_release(&v);
    free(text);
}

/* The value that a path such as "sets/0/arms" leads to. */
static json_t *at(json_t *from, const char *path) {
    while (*path && from) {
        char step[60];
        const size_t len = strcspn(path, "/");
        snprintf(step, sizeof step, "%.*s", (int)len, path);
        from = json_is_array(from) ? json_array_get(from, (size_t)atoi(step))
                                   : json_object_get(from, step);
        path += len + (path[len] == '/');
    }
    return from;
}

/* Times it; 0: takes it away. */
static void scale(json_t *report, const char *path, double by) {
    char parent[200];
    snprintf(parent, sizeof parent, "%s", path);
    char *last = strrchr(parent, '/');
    *last++ = 0;
    json_t *in = at(report, parent), *old = at(report, path);
    if (!json_is_number(old) && by != 0) fail_msg("%s is no number", path);
    const double x = by * json_number_value(old);
    if (json_is_array(in) && by == 0)
        json_array_remove(in, (size_t)atoi(last));
    else if (json_is_array(in))
        json_array_set_new(in, (size_t)atoi(last), json_real(x));
    else if (by == 0)
        json_object_del(in, last);
    else if (json_is_integer(old))
        json_object_set_new(in, last, json_integer((json_int_t)x));
    else
        json_object_set_new(in, last, json_real(x));
}

#define ROW "sets/0/arms/plain/rows/0/"
#define TIMES ROW "round_times/"

/* Up to four members are changed by a factor each; the finding must say the words. */
static const struct {
    const char *path[4];
    double by[4];
    const char *says;
} lies[] = {
    {{TIMES "n"}, {2}, "first rounds"},
    {{ROW "rounds"}, {2}, "and there were 80"},
    {{ROW "seconds"}, {0.3}, "of a generation of"},
    {{ROW "seconds"}, {3}, "only"},
    {{TIMES "sum_ms"}, {0.9}, "a mean of"},
    {{TIMES "sum_ms", TIMES "mean_ms"}, {0.9, 0.9}, "in all"},
    {{TIMES "mean_ms"}, {0.99}, "a mean of"},
    {{TIMES "longest_ms"}, {0.01}, "longest"},
    {{TIMES "longest_ms"}, {500}, "longest"},
    {{TIMES "first_ms/0"}, {0}, "7 first rounds"},
    {{TIMES "first_ms/3"}, {1.5}, "in all"},
    {{TIMES "first_ms/3"}, {-1}, "not counts and times"},
    {{TIMES "warm_up"}, {2}, "warm-up"},
    {{TIMES "steady/n"}, {0}, "not counts and times"},
    {{TIMES "steady/mean_ms"}, {0.9}, "in all"},
    {{TIMES "steady/cv"}, {0.5}, "coefficient of variation"},
    {{TIMES "steady/cv"}, {0}, "coefficient of variation"},
    {{TIMES "steady/deviation_ms", TIMES "steady/cv"}, {30000, 30000}, "deviate"},
    /* pooled */
    {{"sets/0/arms/plain/round_times/n"}, {2}, "its generations"},
    {{"sets/0/arms/plain/round_times/longest_ms"}, {1.1}, "its generations"},
    {{"sets/0/arms/plain/round_times/first_ms/2"}, {1.1}, "first generation"},
    {{"sets/0/arms/plain/round_times/steady/mean_ms",
      "sets/0/arms/plain/round_times/steady/deviation_ms"},
     {0.9, 0.9},
     "its generations"},
    {{"sets/0/arms/plain/round_times/steady/deviation_ms",
      "sets/0/arms/plain/round_times/steady/cv"},
     {0.5, 0.5},
     "its generations"},
    {{"arms/dflash/round_times/steady/deviation_ms", "arms/dflash/round_times/steady/cv"},
     {0.5, 0.5},
     "its generations"},
    {{"policies/1/arms/plain/rows/1/round_times/steady/cv"}, {0.5}, "coefficient"},
    {{"policies/1/arms/dflash/round_times/longest_ms"}, {2}, "its generations"},
    {{"contexts/1/round_times/longest_ms"}, {2}, "its generations"},
    {{"contexts/0/turns/1/steady/cv"}, {0.5}, "coefficient"},
    {{"contexts/0/turns/1"}, {0}, "1 repeats, and rates of 2"},
    {{"contexts/0/turns"}, {0}, "0 repeats"},
    /* left out here and not there */
    {{"contexts/1/round_times"}, {0}, "has no `round_times`"},
    {{"arms/plain/round_times"}, {0}, "has no `round_times`"},
    {{ROW "round_times"}, {0}, "has no `round_times`"},
};

static void test_lies(void **state) {
    json_t *honest = measure(*state);
    char said[3000];
    judge(honest, said, sizeof said);
    assert_string_equal(said, "");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        json_t *report = json_deep_copy(honest);
        for (int k = 0; k < 4 && lies[i].path[k]; k++)
            scale(report, lies[i].path[k], lies[i].by[k]);
        judge(report, said, sizeof said);
        if (!*said || !strstr(said, lies[i].says))
            fail_msg("%s: '%s' is not in '%s'", lies[i].path[0], lies[i].says, said);
        json_decref(report);
    }
    json_decref(honest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test_setup_teardown(test_lies, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
