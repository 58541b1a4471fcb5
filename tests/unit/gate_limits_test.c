/* gate_limits_test.c - every limit of the gate on both of its sides, what is too large for it, and
 * that it runs out of memory without a leak.  A limit that is one step higher or lower fails a line
 * of test_edges (tests/tools/mutate_gate.py). */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <time.h>

#include "core/alloc.h"
#include "support/doctored.h"
#include "support/scratch.h"

#define SET "sets/0/arms/"

/* Whether a report of the tests, edited so, has a finding of this code that says the word. */
static bool finds(const char *kind, const char *edits, const char *code, const char *word) {
    json_t *report = doctored(kind, edits);
    kk_verdict v = judge(report);
    bool found = false;
    for (size_t i = 0; i < v.n; i++)
        found |= strcmp(v.finding[i].code, code) == 0 && strstr(v.finding[i].text, word);
    kk_verdict_release(&v);
    json_decref(report);
    return found;
}

/* ---- limits at their edges ------------------------------------------------------------------ */

#define EXPERTS(rate)                                                                              \
    "device_memory = {\"total\": 100, \"over_weights\": 10, \"experts\": {\"limit\": 50, "         \
    "\"on_gpu\": 20, \"on_host\": 30, \"hits\": 1, \"misses\": 2, \"read_gpu\": 3"                 \
    ", \"read_host\": 1, \"hit_rate\": " rate ", \"tokens\": 5, \"swaps\": 0, \"evicted\": 0}}"
#define PREFILL SET "plain/rows/*/prompt_tokens = 1; " SET "plain/rows/*/prefill_s = 1.0; "
#define RATIO "sessions/alone/tok_s = 1.0; sessions/together/tok_s = 1.0; sessions/ratio = "
#define LAYER "rows/1/layers/0/error = 0.0; rows/1/layers/0/power = 1.0; rows/1/layers/0/rel_mse = "
#define LOSS                                                                                       \
    "quality/*/loss_exact = 1.0; quality/*/loss_arm = 1.0; sums/0/mean_kl = @quality/0/mean_kl; "  \
    "quality/*/mean_kl = @quality/0/mean_kl; quality/*/worst_kl = @quality/0/worst_kl; "           \
    "sums/0/worst_kl = @quality/0/worst_kl; sums/0/loss_change = "
#define FORMULA "rows/1/bytes/kv.full = 100; rows/1/formula = {\"kv.full\": "
#define DRAFTER                                                                                    \
    "model/weight_bytes = 1000; bytes/weights.verifier = 1000; drafter/weight_bytes = 100; "       \
    "bytes/weights.drafter = "
#define PROJECTION(device)                                                                         \
    "machine/device = \"" device "\"; projection = {\"weight_bytes\": 100, \"params\": 10}; "      \
    "bytes/weights.projection = "
#define KNEE                                                                                       \
    "rows/2/recall = 1.0; rows/1/recall = 0.0; rows/0/alpha = 0.25; knee = 0.25; rows/0/recall = "
/* Rounds of 1 ms each. */
#define ROUNDS(n, after, first)                                                                    \
    SET "plain/rows/0/rounds = " n "; " SET "plain/rows/0/round_times = {\"n\": " n                \
        ", \"sum_ms\": " n ", \"mean_ms\": 1, \"longest_ms\": 1, \"warm_up\": 8, \"first_ms\": "   \
        "[" first ", 1, 1, 1, 1, 1, 1, 1], \"steady\": {\"n\": " after                             \
        ", \"mean_ms\": 1, \"deviation_ms\": 0, \"cv\": 0}}; " SET "plain/rows/0/seconds = "

/* A generation with one round after the first eight, of which nothing varies. */
#define ONE_MORE(cv)                                                                               \
    SET "plain/rows/0/rounds = 9; " SET "plain/rows/0/round_times = {\"n\": 9, \"sum_ms\": 9, "    \
        "\"mean_ms\": 1, \"longest_ms\": 1, \"warm_up\": 8, \"first_ms\": [1, 1, 1, 1, 1, 1, 1, "  \
        "1], \"steady\": {\"n\": 1, \"mean_ms\": 1, \"deviation_ms\": 0, \"cv\": " cv "}}"

/* Of 17 tokens behind 1,124 in 12 layers, 13,680 queries are of no drafts. */
#define KEYS(queries, rebuilt)                                                                     \
    "rungs/1/rows/0/reach/queries = " queries "; rungs/5/rows/0/reach/queries = " queries          \
    "; rungs/5/rows/0/reach/keys_rebuilt = " rebuilt
#define FASTER(how) "arms/other = {\"tok_s\": 1e6, \"kv_sliding\": " how "}"

/* What lies just within a limit, and what lies just beyond it. */
static const struct {
    const char *kind, *within, *beyond, *code, *word;
} edges[] = {
    {"kv", "rows/1/quality = [{\"text\": \"a\", \"rows\": 256}]",
     "rows/1/quality = [{\"text\": \"a\", \"rows\": 255}]", "KL_ROWS", "positions"},
    {"compare", "decode_ratio/n = 5", "decode_ratio/n = 4", "SPEEDUP_SAMPLES", "turns"},
    {"bench", SET "dflash/rows/*/tokens = 32", SET "dflash/rows/*/tokens = 31", "SPEEDUP_TOKENS",
     "31 tokens"},
    {"bench", PREFILL SET "plain/rows/0/prefill_s = 3.0",
     PREFILL SET "plain/rows/0/prefill_s = 3.1", "SPEEDUP_PREFILL", "prefill of plain varied"},
    {"bench", SET "dflash/tokens = 20; " SET "dflash/accepted = 1",
     SET "dflash/tokens = 21; " SET "dflash/accepted = 1", "SPEEDUP_DRAFTS", "1 of 2"},
    {"needle", "gate/checks/2/limit = 0.05", "gate/checks/2/limit = 0.0501", "GATE_LIMITS",
     "0.05 was asked"},
    {"needle", "gate/checks/2/limit = 0.05", "gate/checks/2/limit = 0.0499", "GATE_LIMITS",
     "0.05 was asked"},
    {"bench", "version = \"0.1.0 (1234567)\"", "version = \"0.1.0 (123456)\"", "MISSING_COMMIT",
     "names no commit"},
    {"bench", RATIO "1.00002", RATIO "1.00003", "SESSIONS_RECOUNT", "ratio"},
    {"kv", LAYER "1e-9", LAYER "1.1e-9", "REL_MSE_RECOUNT", "something else"},
    {"needle", "gate/checks/0/limit = 1.000001", "gate/checks/0/limit = 1.0000011", "GATE_RECOUNT",
     "is said to hold"},
    {"needle", "quality/*/mean_kl = 1e-9; gate/checks/4/limit = 0",
     "quality/*/mean_kl = 1.1e-9; gate/checks/4/limit = 0", "GATE_RECOUNT",
     "mean_kl of restored is 1"},
    {"needle", "gate/checks/2/value = 1.9e-6", "gate/checks/2/value = 2e-6", "GATE_RECOUNT",
     "recall_drop"},
    {"needle", LOSS "1e-4", LOSS "1.1e-4", "KL_RECOUNT", "loss_change"},
    {"needle", "quality/0/mean_kl = -1e-6", "quality/0/mean_kl = -1.1e-6", "KL_RANGE",
     "mean_kl is -"},
    {"bench", EXPERTS("0.75"), EXPERTS("0.76"), "MEMORY_CLAIM", "3 of 4 bytes is 0.75"},
    {"memory", FORMULA "101}", FORMULA "102}", "FORMULA_MISMATCH", "100 were measured"},
    {"memory", FORMULA "99}", FORMULA "98}", "FORMULA_MISMATCH", "100 were measured"},
    {"bench", "model/weight_bytes = 100; bytes/weights.verifier = 102",
     "model/weight_bytes = 100; bytes/weights.verifier = 103", "WEIGHTS_MISMATCH",
     "the report: 10"},
    {"bench", "model/weight_bytes = 100; bytes/weights.verifier = 100",
     "model/weight_bytes = 100; bytes/weights.verifier = 99", "WEIGHTS_MISMATCH",
     "99 bytes of weights"},
    {"bench", DRAFTER "100", DRAFTER "99", "WEIGHTS_MISMATCH", "99 bytes of a drafter"},
    {"bench", DRAFTER "1100", DRAFTER "1101", "WEIGHTS_MISMATCH", "1101 bytes of a drafter"},
    {"bench", PROJECTION("cuda") "120", PROJECTION("cuda") "121", "WEIGHTS_MISMATCH",
     "121 bytes of a projection"},
    {"bench", PROJECTION("cuda") "100", PROJECTION("cuda") "99", "WEIGHTS_MISMATCH",
     "99 bytes of a projection"},
    {"bench", PROJECTION("cpu") "100", PROJECTION("cpu") "101", "WEIGHTS_MISMATCH",
     "101 bytes of a projection"},
    {"memory", "rows/8/restored_rows = 824", "rows/8/restored_rows = 823", "RESTORED_COUNTS",
     "824 at least are gone"},
    {"soak", "buckets/3/from_s = 3.5", "buckets/3/from_s = 3.51", "SERVING_COUNTS",
     "bucket 3 begins"},
    {"soak", "buckets/3/from_s = 2.5", "buckets/3/from_s = 2.49", "SERVING_COUNTS",
     "bucket 3 begins"},
    {"soak", "settings/seconds = 15", "settings/seconds = 15.1", "SERVING_COUNTS", "do not make"},
    {"soak", "buckets/13; buckets/12; buckets/11; buckets/10",
     "buckets/13; buckets/12; buckets/11; buckets/10; buckets/9", "GATE_RECOUNT",
     "prefill_growth_s of turns, and the report has no rows"},
    {"bench", FASTER("\"window\""), FASTER("\"native\""), "SPEEDUP_BASELINE", "other is faster"},
    {"bench", FASTER("\"native\", \"kv_full\": \"window\""),
     FASTER("\"native\", \"kv_full\": \"exact\""), "SPEEDUP_BASELINE", "other is faster"},
    {"bench", FASTER("\"native\", \"drafted\": 1"), FASTER("\"native\", \"drafted\": 0"),
     "SPEEDUP_BASELINE", "other is faster"},
    {"bench", FASTER("\"native\", \"restored_rows\": 1"),
     FASTER("\"native\", \"restored_rows\": 0"), "SPEEDUP_BASELINE", "other is faster"},
    {"needle", KEYS("13692", "5153616"), KEYS("13692", "5153617"), "RESTORED_COUNTS",
     "with all rows"},
    {"needle", KEYS("13680", "5153040"), KEYS("13680", "5153041"), "RESTORED_COUNTS",
     "with all rows"},
    {"needle", "settings/spec = \"auto\"; " KEYS("13692", "5153041"),
     "settings/spec = \"none\"; " KEYS("13692", "5153041"), "RESTORED_COUNTS", "with all rows"},
    {"needle", "settings/seed = 0", "settings/seed = -1", "PLAN_DOCUMENTS", "cannot be drawn"},
    {"bench", "arms/plain/speedup = 1", "arms/plain/speedup = 1.1", "SPEEDUP_SELF", "plain"},
    {"bench", "machine/fast = true", "model/fast = true", "CONSTANT", "`fast`"},
    {"sweep", KNEE "0.95", KNEE "0.949", "KNEE_RECOUNT", "the knee is said to be at 0.25"},
    {"bench", ROUNDS("32", "24", "1") "0.064", ROUNDS("32", "24", "1") "0.0641", "ROUND_TIMES",
     "took only"},
    {"bench", ROUNDS("31", "23", "1") "1.0", ROUNDS("32", "24", "1") "1.0", "ROUND_TIMES",
     "took only"},
    {"bench", ROUNDS("32", "24", "1.0001") "0.04", ROUNDS("32", "24", "1.0002") "0.04",
     "ROUND_TIMES", "longest round takes"},
    {"bench", ROUNDS("32", "24", "1") "0.0319994", ROUNDS("32", "24", "1") "0.0319993",
     "ROUND_TIMES", "rounds took 32 ms"},
    {"bench", ONE_MORE("null"), ONE_MORE("0.5"), "ROUND_TIMES", "coefficient of variation of 1"},
    {"needle", "settings/seed = 9007199254740992", "settings/seed = 9007199254740994",
     "PLAN_DOCUMENTS", "cannot be drawn"},
};

static void test_edges(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        if (finds(edges[i].kind, edges[i].within, edges[i].code, edges[i].word))
            fail_msg("%s (%s) is within", edges[i].within, edges[i].code);
        if (!finds(edges[i].kind, edges[i].beyond, edges[i].code, edges[i].word))
            fail_msg("%s (%s) is beyond", edges[i].beyond, edges[i].code);
    }
}

/* Of many findings of a rule eight are told, and the rest is counted. */
static void test_many(void **state) {
    (void)state;
    json_t *report = doctored("needle", "rungs/*/rows/*/hit = false");
    kk_verdict v = judge(report);
    size_t told = 0, more = 0;
    for (size_t i = 0; i < v.n; i++) {
        const bool own = strcmp(v.finding[i].code, "RECALL_RECOUNT") == 0;
        told += own && !strstr(v.finding[i].text, "more of these");
        more += own && strstr(v.finding[i].text, "more of these");
    }
    assert_int_equal(told, 8);
    assert_int_equal(more, 1);
    kk_verdict_release(&v);
    json_decref(report);
}

/* ---- size ---------------------------------------------------------------------------------- */

static char *many(const char *item, size_t bytes, size_t *len) {
    char *text = malloc(bytes + 64);
    size_t n = (size_t)sprintf(text, "{\"schema\": 2, \"kind\": \"needle\", \"rungs\": [{}");
    const size_t step = strlen(item);
    while (n + step < bytes) {
        memcpy(text + n, item, step);
        n += step;
    }
    *len = n + (size_t)sprintf(text + n, "]}");
    return text;
}

static void refused_size(const char *item, size_t bytes, const char *says) {
    size_t len;
    char *text = many(item, bytes, &len);
    kk_verdict v;
    const clock_t begin = clock();
    assert_ok(kk_gate_check(text, len, &v, why));
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 3);
    assert_string_equal(v.finding[0].code, "TOO_LARGE");
    if (!strstr(v.finding[0].text, says)) fail_msg("'%s'", v.finding[0].text);
    if (strstr(says, "values") || strstr(says, "bytes")) assert_null(v.report); /* not parsed */
    kk_verdict_release(&v);
    free(text);
}

static void test_size(void **state) {
    (void)state;
    refused_size(",{}", 24 << 20, "bytes, and");
    refused_size(",{}", 8 << 20, "values, and");
    refused_size(",{\"a\": 1}", 100 << 10, "entries, and");
}

/* Spaces before and after make a text as long as is wanted. */
static bool too_large(const char *report, size_t spaces) {
    const size_t n = strlen(report);
    char *text = malloc(n + spaces + 1);
    kk_verdict v;
    memset(text, ' ', n + spaces);
    memcpy(text, report, n);
    assert_ok(kk_gate_check(text, n + spaces, &v, why));
    const bool is = v.n > 0 && strcmp(v.finding[0].code, "TOO_LARGE") == 0;
    kk_verdict_release(&v);
    free(text);
    return is;
}

/* n zeros in lists of at most 1,000, as a report of no kind: it is parsed, and asked no more. */
static char *zeros(size_t n, size_t in_one) {
    char *text = malloc(4 * n + 100), *at = text;
    at += sprintf(at, "{\"a\": [");
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s0%s", i % in_one == 0 ? "[" : "",
                      i + 1 == n              ? "]"
                      : (i + 1) % in_one == 0 ? "],"
                                              : ",");
    sprintf(at, "]}");
    return text;
}

/* Commas and brackets are counted: one for every zero, and those of the lists around them. */
static bool many_values(size_t n) {
    char *text = zeros(n, 1000);
    const bool is = too_large(text, 0);
    free(text);
    return is;
}

static void test_size_edges(void **state) {
    (void)state;
    static const char small[] = "{\"a\": 1}";
    assert_false(too_large(small, (16 << 20) - strlen(small)));
    assert_true(too_large(small, (16 << 20) - strlen(small) + 1));
    /* n - 1 commas, the brackets of 400 lists, and the two around them. */
    assert_false(many_values(400000 - 400 - 2 + 1));
    assert_true(many_values(400000 - 400 - 2 + 2));
    char *text = zeros(4096, 4096);
    assert_false(too_large(text, 0));
    free(text);
    text = zeros(4097, 4097);
    assert_true(too_large(text, 0));
    free(text);
}

/* A report lies as deep as 32 folders, and no deeper. */
static void test_depth(void **state) {
    scratch *s = *state;
    char path[900];
    kk_report_files files = {0};
    kk_err err;
    snprintf(path, sizeof path, "%s", scratch_path(s, "deep"));
    mkdir(path, 0700);
    const size_t top = strlen(path);
    for (int i = 0; i < 32; i++) {
        strcat(path, "/f");
        mkdir(path, 0700);
    }
    char file[920];
    snprintf(file, sizeof file, "%s/a.json", path);
    scratch_write(file, "{}", 2);
    char folder[900];
    snprintf(folder, sizeof folder, "%.*s", (int)top, path);
    assert_ok(kk_report_files_add(&files, folder, why));
    assert_int_equal(files.n, 1);
    kk_report_files_free(&files);
    strcat(path, "/f");
    mkdir(path, 0700);
    assert_int_equal(kk_report_files_add(&files, folder, &err), KK_EINVAL);
    kk_report_files_free(&files);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Any taking that fails is said, and nothing leaks. */
static void test_no_memory(void **state) {
    (void)state;
    json_t *report = doctored("bench", "arms/dflash/speedup = 7.0");
    char *text = json_dumps(report, 0);
    const int64_t live = kk_live_bytes();
    bool whole = false;
    for (int64_t n = 1; !whole; n++) {
        kk_verdict v;
        kk_err err = {0};
        kk_fault_after(n, true);
        const kk_status st = kk_gate_check(text, strlen(text), &v, &err);
        kk_fault_after(0, false);
        whole = st == KK_OK && v.violations > 0;
        if (st == KK_OK) kk_verdict_release(&v);
        assert_true(st == KK_OK || st == KK_ENOMEM);
        assert_int_equal(kk_live_bytes(), live);
    }
    free(text);
    json_decref(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_many),
#ifndef KK_MUTANTS /* of time, not of a limit */
        cmocka_unit_test(test_size),
#endif
        cmocka_unit_test(test_size_edges),
        cmocka_unit_test_setup_teardown(test_depth, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
