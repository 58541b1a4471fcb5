/* gate_serving_test.c - figures of reports about a server are those of their rows, and a report
 * with one lie in it is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "eval/reports/gate_serving.h"
#include "support/doctored.h"

#define OTHER "\"0123456789abcdef\""

static const lie lies[] = {
    /* load: what is said of rows that were changed */
    {"load", "arms/1/rows/0/seconds = 9.5", "GATE_RECOUNT RATE_RECOUNT SPREAD_RECOUNT"},
    {"load", "arms/0/tok_s = 123.0", "RATE_RECOUNT"},
    {"load", "identity/0/logprob_hashes/0/together = " OTHER, "GATE_RECOUNT"},
    {"load", "identity/0/logprob_hashes/3", "SERVING_COUNTS"},
    {"load", "identity/1", "GATE_RECOUNT SERVING_COUNTS"},
    {"load", "identity/0/passes = 100000", "GATE_RECOUNT"},
    {"load", "arrival/rows/0/first_s = 30.0", "GATE_RECOUNT"},
    {"load", "arrival/rows/0/chunks = 0", "GATE_RECOUNT NOT_POSITIVE"},
    {"load", "failed = 3", "GATE_RECOUNT"},
    {"load", "mixed/rows/0", "SERVING_COUNTS"},
    {"load", "arms/2", "GATE_RECOUNT SERVING_COUNTS"},
    {"load", "arms/0/rows/1", "GATE_RECOUNT RATE_RECOUNT SERVING_COUNTS SPREAD_RECOUNT"},
    /* limits that were widened, checks that were taken away */
    {"load", "gate/checks/1/limit = 0.1", "SERVING_LIMITS"},
    {"load", "gate/checks/10", "SERVING_LIMITS"},
    {"load", "gate", "SERVING_LIMITS MEMBER_MISSING"},
    {"load", "gate/holds = true", "GATE_RECOUNT"},
    {"load", "settings/min_together/0 = 0.5", "SERVING_LIMITS"},
    {"load", "settings/clients = 4", "SERVING_COUNTS GATE_RECOUNT"},
};

static const lie long_lies[] = {
    /* soak */
    {"soak", "buckets/13/resident = 900000000", "GATE_RECOUNT"},
    {"soak", "buckets/7/kv = 1", "GATE_RECOUNT"},
    {"soak", "buckets/0/latency_median_s = 90.0", "GATE_RECOUNT"},
    {"soak", "buckets/11/first_median_s = 0.0", "GATE_RECOUNT NOT_POSITIVE"},
    {"soak", "buckets/3/failed = 2", "GATE_RECOUNT"},
    {"soak", "buckets/3/different = 1", "GATE_RECOUNT"},
    {"soak", "buckets/2", "GATE_RECOUNT SERVING_COUNTS"},
    {"soak", "settings/seconds = 7200", "GATE_RECOUNT SERVING_COUNTS PLAN_COMMAND"},
    {"soak", "gate/checks/0/limit = 0.5", "SERVING_LIMITS"},
    {"soak", "gate/checks/2", "SERVING_LIMITS"},
    {"soak", "gate/checks/6/holds = false", "GATE_RECOUNT"},
    /* chaos */
    {"chaos", "kills/0", "GATE_RECOUNT SERVING_COUNTS"},
    {"chaos", "kills/0/lost = 1", "GATE_RECOUNT"},
    {"chaos", "kills/1/different = 1", "GATE_RECOUNT"},
    {"chaos", "kills/1/ready_s = 5.0", "GATE_RECOUNT"},
    {"chaos", "faults/3", "GATE_RECOUNT"},
    {"chaos", "faults/0/wrong = 1", "GATE_RECOUNT"},
    {"chaos", "faults/0/injected = 0", "GATE_RECOUNT"},
    {"chaos", "malformed/crashes = 1", "GATE_RECOUNT"},
    {"chaos", "malformed/hangs = 7", "GATE_RECOUNT"},
    {"chaos", "malformed/resident_after = 900000000000", "GATE_RECOUNT"},
    {"chaos", "malformed/requests = 3", "GATE_RECOUNT"},
    {"chaos", "malformed_grpc", "GATE_RECOUNT MEMBER_MISSING"},
    {"chaos", "malformed_grpc/requests = 3", "GATE_RECOUNT"},
    {"chaos", "malformed_grpc/crashes = 1", "GATE_RECOUNT"},
    {"chaos", "malformed_grpc/hangs = 1", "GATE_RECOUNT"},
    {"chaos", "malformed_grpc/resident_after = 900000000000", "GATE_RECOUNT"},
    {"chaos", "settings/max_leak = 1e9", "SERVING_LIMITS"},
    {"chaos", "settings/max_ready_s = 60.0", "SERVING_LIMITS"},
    {"chaos", "gate/checks/2", "SERVING_LIMITS"},
};

static void test_lies(void **state) {
    (void)state;
    check_lies(lies, sizeof lies / sizeof *lies);
    check_lies(long_lies, sizeof long_lies / sizeof *long_lies);
}

static void test_true_reports_hold(void **state) {
    (void)state;
    check_holds("load");
    check_holds("soak");
    check_holds("chaos");
}

static double value(const json_t *report, const char *figure, const char *arm) {
    double out = -1;
    if (!kk_serving_value(report, figure, arm, &out)) fail_msg("no %s of %s", figure, arm);
    return out;
}

static void assert_near(double is, double expected) {
    if (is < expected * 0.999999 || is > expected * 1.000001)
        fail_msg("%g is not %g", is, expected);
}

/* Quotes of JSON are written as ' here. */
static json_t *report_of(const char *text) {
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *report = json_loads(copy, 0, NULL);
    if (!report) fail_msg("no JSON: %s", copy);
    return report;
}

/* Figures of load, from round numbers. */
static void test_load_figures(void **state) {
    (void)state;
    json_t *r = report_of(
        "{'kind':'load', 'settings':{'clients':8}, 'arms':["
        "{'arm':'run','spec':'none','ctx':64,'streams':1,'rows':[{'tokens':100,'seconds':2},"
        "{'tokens':100,'seconds':3}]},"
        "{'arm':'served','spec':'none','ctx':64,'streams':1,'rows':[{'tokens':100,'seconds':2.5}]},"
        "{'arm':'served','spec':'none','ctx':64,'streams':8,'rows':[{'tokens':800,'seconds':10}]},"
        "{'arm':'served','spec':'auto','ctx':64,'streams':1,'rows':[{'tokens':100,'seconds':1}]},"
        "{'arm':'served','spec':'auto','ctx':64,'streams':8,'rows':[{'tokens':800,'seconds':5}]}],"
        "'identity':[{'passes':10,'sessions_in_passes':45,'logprob_hashes':"
        "[{'alone':'a','together':'a'},{'alone':'a','together':'b'},{'alone':'','together':''}]}],"
        "'arrival':{'rows':[{'alone_s':1,'chunks':10,'first_s':0.1},"
        "{'alone_s':1,'chunks':10,'first_s':0.15}]},'failed':2}");
    assert_near(value(r, "served_ratio", "none 64"), 1);
    assert_near(value(r, "together_ratio", "none 64"), 2);
    assert_near(value(r, "together_ratio", "auto 64"), 4);
    assert_near(value(r, "drafted_ratio", "auto 64"), 1.6);
    assert_near(value(r, "different", "streams"), 2);
    assert_near(value(r, "sessions_per_pass", "streams"), 4.5);
    assert_near(value(r, "first_in_chunks", "arrival"), 1.5);
    assert_near(value(r, "failed", "requests"), 2);
    double none;
    assert_false(kk_serving_value(r, "served_ratio", "auto 64", &none));
    assert_false(kk_serving_value(r, "served_ratio", "none 128", &none));
    json_decref(r);
}

/* Fourteen buckets of 10 s: the start is 20 s long, a quarter of the rest three buckets. */
static void test_soak_figures(void **state) {
    char text[4096];
    double out;
    (void)state;
    int at = snprintf(text, sizeof text, "{'kind':'soak','settings':{'seconds':120},'buckets':[");
    for (int i = 0; i < 14; i++)
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "%s{'from_s':%d,'resident':%d,'kv':%d,'latency_median_s':%g,"
                       "'latency_p05_s':1,'latency_p95_s':3,'first_median_s':%g,'failed':0,"
                       "'different':0,'checked':2}",
                       i ? "," : "", 10 * i, i < 2 ? 1 : 1000 + 10 * i, i < 2 ? 1 : 100 + i % 2,
                       1 + 0.01 * i, 0.1 * (i + 1) * (i + 1));
    snprintf(text + at, sizeof text - (size_t)at, "]}");
    json_t *r = report_of(text);
    assert_near(value(r, "memory_drift", "server"), 1120.0 / 1030 - 1);
    assert_near(value(r, "kv_range", "server"), 0.01);
    assert_near(value(r, "latency_slope", "turns"), 0.001 * 120 / 2); /* 0.01 s every 10 s */
    /* The median of the last five is that of bucket 11, of the first five that of bucket 2. */
    assert_near(value(r, "prefill_growth_s", "turns"), 14.4 - 0.9);
    assert_near(value(r, "checked", "turns"), 28);
    /* Of an hour the start is five minutes: two of these buckets. */
    json_object_set_new(json_object_get(r, "settings"), "seconds", json_integer(3600));
    for (size_t i = 0; i < 14; i++)
        json_object_set_new(json_array_get(json_object_get(r, "buckets"), i), "from_s",
                            json_integer((json_int_t)(i < 2 ? 299 * i : 300 * (i - 1))));
    assert_near(value(r, "kv_range", "server"), 0.01);
    assert_false(kk_serving_value(r, "recall", "turns", &out));
    assert_near(value(r, "memory_drift", "server"), 1120.0 / 1030 - 1);
    json_decref(r);
}

static void test_chaos_figures(void **state) {
    (void)state;
    json_t *r = report_of(
        "{'kind':'chaos','kills':[{'ready_s':0.5,'lost':0,'turns':3},"
        "{'ready_s':0.7,'lost':2,'turns':4}],"
        "'faults':[{'fault':'full disk','injected':5,'wrong':1}],"
        "'malformed':{'requests':10,'resident_before':100,'resident_after':125},"
        "'malformed_grpc':{'requests':5,'hangs':3,'resident_before':100,'resident_after':105}}");
    assert_near(value(r, "count", "kills"), 2);
    assert_near(value(r, "lost", "kills"), 2);
    assert_near(value(r, "turns", "kills"), 7);
    assert_near(value(r, "ready_s", "kills"), 0.7);
    assert_near(value(r, "wrong", "full disk"), 1);
    assert_near(value(r, "leak", "malformed"), 2.5);
    assert_near(value(r, "leak", "malformed_grpc"), 1);
    assert_near(value(r, "hangs", "malformed_grpc"), 3);
    assert_near(value(r, "requests", "malformed"), 10);
    json_decref(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies), cmocka_unit_test(test_true_reports_hold),
        cmocka_unit_test(test_load_figures), cmocka_unit_test(test_soak_figures),
        cmocka_unit_test(test_chaos_figures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
