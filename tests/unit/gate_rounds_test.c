/* gate_rounds_test.c - times of single rounds in a bench: each figure of them that does not fit the
 * others is refused. */
#define _GNU_SOURCE
#include "support/doctored.h"

/* What the rule of round times finds, one after the other; "": nothing. */
static void findings(const json_t *report, char *said, size_t cap) {
    kk_verdict v = judge(report);
    size_t n = 0;
    *said = 0;
    for (size_t i = 0; i < v.n && n < cap; i++)
        if (strcmp(v.finding[i].code, "ROUND_TIMES") == 0)
            n += (size_t)snprintf(said + n, cap - n, "%s; ", v.finding[i].text);
    kk_verdict_release(&v);
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
    {{ROW "rounds"}, {2}, "and there were"},
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
    {{TIMES "longest_ms"}, {1.5}, "no round took"},
    /* pooled */
    {{"sets/0/arms/plain/round_times/steady/cv"}, {0.5}, "coefficient"},
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
    {{"policies/2/arms/dflash/round_times/longest_ms"}, {2}, "its generations"},
    {{"contexts/1/round_times/longest_ms"}, {2}, "its generations"},
    {{"contexts/0/turns/1/steady/cv"}, {0.5}, "coefficient"},
    {{"contexts/0/turns/1"}, {0}, "4 repeats, and rates of 5"},
    {{"contexts/0/turns"}, {0}, "0 repeats"},
    /* left out here and not there */
    {{"contexts/1/round_times"}, {0}, "has no `round_times`"},
    {{"arms/plain/round_times"}, {0}, "has no `round_times`"},
    {{ROW "round_times"}, {0}, "has no `round_times`"},
};

static void test_lies(void **state) {
    (void)state;
    json_t *honest = good("bench");
    char said[3000];
    findings(honest, said, sizeof said);
    assert_string_equal(said, "");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        json_t *report = json_deep_copy(honest);
        for (int k = 0; k < 4 && lies[i].path[k]; k++)
            scale(report, lies[i].path[k], lies[i].by[k]);
        findings(report, said, sizeof said);
        if (!*said || !strstr(said, lies[i].says))
            fail_msg("%s: '%s' is not in '%s'", lies[i].path[0], lies[i].says, said);
        json_decref(report);
    }
    json_decref(honest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
