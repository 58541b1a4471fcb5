/* gate_doctored_test.c - reports whose lie was mended elsewhere, so that only what is computed
 * again finds it: arms that are not paired, rows dropped or repeated, other documents, shares and
 * medians of nothing, gates that were taken away.  And what is too large, and how a kind is
 * added. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "eval/reports/gate_kinds.h"
#include "support/doctored.h"

#define SET "sets/0/arms/"
#define GPU "bench/results/compare-transformers-26b-a4b-bf16.json"
#define OTHER "\"0123456789abcdef\""

static const lie lies[] = {
    /* speed-ups whose tokens or hashes differ, or that are not said to be lossless */
    {"bench", SET "dflash/rows/0/runs/0/tokens_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", SET "dflash/rows/3/runs/4/logits_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", SET "plain/rows/0/runs/2/logits_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", SET "plain/rows/1/runs/0/tokens_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    /* An older number of the schema asks for no less. */
    {"bench", "schema = 1; " SET "dflash/rows/0/runs/0/tokens_hash = " OTHER,
     "LOSSLESS_CONTRADICTED"},
    {"bench", "schema = 1; " SET "dflash/rows/0/runs", "LOSSLESS_UNPROVEN MEMBER_MISSING"},
    {"bench", SET "dflash/lossless = false", "SPEEDUP_DRAFTS LOSSLESS_CONTRADICTED"},
    {"bench", SET "dflash/lossless", "SPEEDUP_DRAFTS LOSSLESS_UNPROVEN MEMBER_MISSING"},
    {"bench", SET "dflash/lossless = \"true\"", "SPEEDUP_DRAFTS LOSSLESS_UNPROVEN MEMBER_TYPE"},
    {"bench", "arms/dflash/lossless = false", "SPEEDUP_DRAFTS LOSSLESS_CONTRADICTED"},
    {"bench", "arms/dflash/lossless = \"yes\"", "SPEEDUP_DRAFTS LOSSLESS_UNPROVEN"},
    {"bench", "arms/dflash/lossless", "SPEEDUP_DRAFTS"},
    {"bench", SET "dflash/different = 3", "LOSSLESS_CONTRADICTED"},
    {"bench", "lossless = true", "LOSSLESS_UNPROVEN"},
    {"bench", "policies/0/arms/dflash/rows/0/tokens_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", "policies/0/arms/dflash/lossless", "SPEEDUP_DRAFTS LOSSLESS_UNPROVEN"},
    {"accept", "rows/0/plain/logits_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"accept", "rows/1/plain/tokens_hash", "LOSSLESS_UNPROVEN MEMBER_MISSING"},
    {"accept", "lossless = \"true\"", "LOSSLESS_UNPROVEN MEMBER_TYPE"},
    /* arms that are not paired */
    {"bench", SET "dflash/rows/0/prompt = " OTHER, "ARMS_UNPAIRED"},
    {"bench", SET "dflash/rows/2/tokens = 31", "ARMS_UNPAIRED TOKENS_RECOUNT"},
    {"bench", SET "dflash/rows/2/prompt_tokens = 31", "ARMS_UNPAIRED"},
    {"bench", SET "dflash/rows/5", "ARMS_UNPAIRED PLAN_COUNTS"},
    {"bench", SET "dflash/rows/0 = @" SET "dflash/rows/1", "ARMS_UNPAIRED ROWS_REPEATED"},
    {"bench", SET "plain/rows/* = @" SET "plain/rows/0", "ROWS_REPEATED"},
    {"bench", "policies/2/arms/dflash/rows/1/prompt = " OTHER, "ARMS_UNPAIRED"},
    {"bench", SET "dflash/rows/0/accepted = 1", "TOKENS_RECOUNT"},
    {"bench", SET "dflash/rows/0/rounds = 3", "TOKENS_RECOUNT"},
    {"bench", SET "plain/rows/0/rounds = 9", "TOKENS_RECOUNT"},
    {"bench", SET "dflash/accepted = 500", "TOKENS_RECOUNT"},
    {"bench", "policies/2/arms/dflash/rows/0/accepted = 40", "TOKENS_RECOUNT"},
    {"accept", "rows/0/rounds = 2", "TOKENS_RECOUNT"},
    /* rows dropped or repeated: counts against the settings */
    {"needle", "rungs/5", "PLAN_COUNTS"},
    {"needle", "rungs/0/rows/4; rungs/0/samples = 4; rungs/0/hits = 4", "PLAN_COUNTS"},
    {"needle", "settings/samples = 50", "PLAN_COUNTS"},
    {"needle", "quality/0", "PLAN_COUNTS"},
    {"needle", "quality/1 = @quality/0", "PLAN_COUNTS"},
    {"needle", "settings/texts/rows = 9000", "PLAN_COUNTS"},
    {"sweep", "rows/1", "PLAN_COUNTS"},
    {"sweep", "rows/1/alpha = 0.25", "PLAN_COUNTS"},
    {"sweep", "rows/0/quality/0", "PLAN_COUNTS"},
    {"kv", "settings/samples = 1e308", "PLAN_COUNTS"},
    {"sweep", "settings/samples = -1e308", "PLAN_COUNTS"},
    {"kv", "rows/2", "PLAN_COUNTS"},
    {"kv", "rows/3/format = \"q8\"", "PLAN_COUNTS"},
    {"kv", "rows/1/answers/0", "PLAN_COUNTS"},
    {"memory", "rows/0", "PLAN_COUNTS"},
    {"memory", "rows/4 = @rows/0", "PLAN_COUNTS"},
    {"bench", "sets/1", "PLAN_COUNTS"},
    {"bench", "settings/repeat = 50", "PLAN_COUNTS RUNS_RECOUNT"},
    {"bench", "policies/1", "PLAN_COUNTS"},
    {"bench", "policies/0/arms/plain/rows/4", "PLAN_COUNTS"},
    {"bench", "sessions/together/rows/0", "PLAN_COUNTS"},
    {"bench", "settings/samples = 2", "PLAN_COUNTS"},
    {"accept", "rows/0", "PLAN_COUNTS"},
    {"compare", "rows/4", "PLAN_COUNTS"},
    {"compare", "rows/1 = @rows/0", "PLAN_COUNTS"},
    {"compare", "rows/1 = @rows/0; rows/1/turn = 2", "PLAN_COUNTS"},
    {"compare", "settings/repeat = 9", "PLAN_COUNTS PLAN_COMMAND"},
    /* the plan, drawn again from its seed */
    {"needle", "rungs/*/rows/0/expected = \"OAK-1000\"; rungs/*/rows/0/answer = \"OAK-1000\"",
     "PLAN_DOCUMENTS"},
    {"needle", "rungs/*/rows/0/depth = 0.5", "PLAN_DOCUMENTS"},
    {"needle", "rungs/*/rows/1/index = 7", "PLAN_DOCUMENTS"},
    {"needle", "settings/seed = 43", "PLAN_DOCUMENTS"},
    {"needle", "rungs/1/lines = 70", "PLAN_DOCUMENTS"},
    {"sweep", "rows/0/answers/0/expected = \"OAK-1000\"", "PLAN_DOCUMENTS"},
    {"sweep", "exact/answers/1/lines = 99", "PLAN_DOCUMENTS"},
    {"kv", "rows/2/answers/1/index = 5", "PLAN_DOCUMENTS"},
    {"memory", "rows/0/answers/0/lines = 7", "PLAN_DOCUMENTS"},
    {"memory", "settings/ladder", "PLAN_DOCUMENTS"},
    {"bench", "sets/0/set = \"needle\"", "PLAN_PROMPTS"},
    {"bench", "sets/0/set = \"random\"", "PLAN_PROMPTS"},
    {"needle", "settings/min_recall = 0.1; gate/checks/0/limit = 0.1; gate/checks/1/limit = 0.1",
     "PLAN_COMMAND"},
    /* an exact arm dressed as restored, unknown words */
    {"needle", "arms/restored/kv_full = \"exact\"; arms/restored/kv_sliding = \"native\"",
     "POLICY_WORDS"},
    {"needle", "arms/exact/kv_full = \"window\"", "POLICY_WORDS"},
    {"needle", "arms/window/kv_full = \"magic\"", "POLICY_WORDS"},
    {"needle", "arms/exact/kv_format = \"q1\"", "POLICY_WORDS"},
    {"bench", "policies/2/kv_full = \"exact\"; policies/2/kv_sliding = \"native\"", "POLICY_WORDS"},
    {"bench", "policies/1/kv_sliding = \"native\"; policies/1/kv_full = \"exact\"", "POLICY_WORDS"},
    {"bench", "policies/1/kv_sliding = \"eternal\"", "POLICY_WORDS"},
    {"memory", "rows/10/kv_full = \"exact\"; rows/10/kv_sliding = \"native\"", "POLICY_WORDS"},
    /* one row rebuilt in a thousand tokens; keys that exact decoding does not read */
    {"needle", "rungs/5/rows/0/restored_rows = 1", "RESTORED_COUNTS"},
    {"needle", "rungs/5/rows/0/restored_rows = 1; rungs/5/rows/0/reach/keys_rebuilt = 1",
     "RESTORED_COUNTS"},
    {"needle", "rungs/4/rows/1/reach/keys_rebuilt = 2900000", "RESTORED_COUNTS"},
    {"sweep", "rows/0/answers/0/restored_rows = 1", "RESTORED_COUNTS"},
    {"bench", "policies/2/arms/plain/rows/0/restored_rows = 1", "RESTORED_COUNTS"},
    {"memory", "rows/10/restored_rows = 1", "RESTORED_COUNTS"},
    /* one token drafted, and none accepted */
    {"bench", SET "dflash/drafted = 1; " SET "dflash/accepted = 0", "SPEEDUP_DRAFTS"},
    {"bench", "arms/dflash/drafted = 1; arms/dflash/accepted = 0", "SPEEDUP_DRAFTS"},
    /* medians, shares, ratios, spreads, rates of peers */
    {"bench", "arms/plain/decode_tok_s/median = 5000.0", "SPREAD_RECOUNT SHARE_RECOUNT"},
    {"bench", "arms/plain/decode_tok_s/samples/0 = 1.0", "SPREAD_RECOUNT"},
    {"bench", "arms/plain/bandwidth_share = 0.95", "SHARE_RECOUNT"},
    {"bench", "arms/plain/floor_share = 0.95", "SHARE_RECOUNT"},
    {"bench", "arms/plain/decode_gb_s = 95.0", "SHARE_RECOUNT"},
    {"bench", "arms/plain/round_ms = 0.001", "SHARE_RECOUNT"},
    {"bench", "bandwidth/before_gb_s = 999.0; bandwidth/after_gb_s = 999.0", "SHARE_RECOUNT"},
    {"bench", "rows/whole_model/1/ratio = 1.0", "SHARE_RECOUNT"},
    {"bench", "rows/whole_model/0/gb_s = 999.0", "SHARE_RECOUNT"},
    {"bench", "attention/formats/1/ratio = 0.01", "SHARE_RECOUNT"},
    {"bench", "contexts/0/decode_tok_s/max = 99999.0", "SPREAD_RECOUNT SHARE_RECOUNT"},
    {"bench", SET "plain/tok_s_spread/median = 9.0; " SET "plain/tok_s_spread/min = 8.0",
     "SPREAD_RECOUNT"},
    {"bench", "arms/dflash/tok_s_spread/max = 99999.0", "SPREAD_RECOUNT"},
    {"bench", SET "dflash/of_predicted = 2.0", "SHARE_RECOUNT"},
    {"bench", SET "dflash/predicted_tok_s = 2.0", "SHARE_RECOUNT"},
    {"bench", SET "plain/rows/0/seconds_min = 0.000001", "RUNS_RECOUNT"},
    {"bench", SET "plain/rows/0/runs/0/seconds = 9.0", "RUNS_RECOUNT"},
    {"bench", SET "plain/rows/0/runs/0", "RUNS_RECOUNT"},
    {"bench", "policies/2/prefill_tok_s/median = 1.0", "SPREAD_RECOUNT"},
    {"bench", "policies/0/prefill_tok_s/samples", "MEMBER_MISSING"},
    {"bench", "sessions/together/tok_s_spread/max = 99999.0", "SPREAD_RECOUNT"},
    {"needle", "rungs/0/prefill_tok_s_spread/max = 99999.0", "SPREAD_RECOUNT"},
    {"needle", "rungs/0/decode_tok_s_spread/n = 4", "SPREAD_RECOUNT"},
    {"compare", "decode_tok_s/peer/median = 1.0", "SHARE_RECOUNT"},
    {"compare", "decode_tok_s/kakeya/max = 99.0", "SHARE_RECOUNT"},
    {"compare", "prefill_tok_s/peer/min = 1.0", "SHARE_RECOUNT"},
    {"compare", "decode_ratio/max = 9.0", "SHARE_RECOUNT"},
    {"compare", "prefill_ratio/min = 0.1", "SHARE_RECOUNT"},
    {"compare", "rows/0/share_of_bandwidth = 0.5", "SHARE_RECOUNT"},
    {"compare", "share_of_bandwidth/median = 0.99", "SHARE_RECOUNT"},
    {"compare", "rows/2/peer/decode = 5.0", "SHARE_RECOUNT"},
    {GPU, "exactness/arms/2/logits/rms = 0.5", "SHARE_RECOUNT"},
    {GPU, "exactness/holds = false", "SHARE_RECOUNT"},
    {GPU, "exactness/arms/1/ratio = 0.1", "SHARE_RECOUNT"},
    /* types, times, counts, warm-up, emptiness */
    {"needle", "rungs/0/recall = \"1.0\"", "MEMBER_TYPE NUMBER_AS_TEXT"},
    {"bench", "load_s = 0.0", "NOT_POSITIVE"},
    {"bench", SET "plain/rows/0/prefill_s = 0", "NOT_POSITIVE"},
    {"compare", "rows/0/peer/decode = -13.0", "NOT_POSITIVE"},
    {"needle", "rungs/0/rows/0/generated = 2.5", "NOT_WHOLE"},
    {"memory", "rows/0/tokens = 512.5", "NOT_WHOLE"},
    {"lossless", "cases = 100.5", "NOT_WHOLE"},
    {"bench", "sets/0/warm_up = []", "MEMBER_MISSING"},
    {"bench", "policies/0/warm_up/0 = null", "MEMBER_TYPE"},
    {"needle", "rungs = []", "MEMBER_MISSING"},
    {"kv", "rows = []", "MEMBER_MISSING"},
    {"projection", "stages", "MEMBER_MISSING"},
    {"compare", "peer", "MEMBER_MISSING"},
    {"lossless", "cases_by/threads", "CASES_RECOUNT"},
    {"lossless", "settings/draft_most = 32", "CASES_RECOUNT"},
    {"needle", "schema", "BAD_SCHEMA"},
    {"bench", "schema", "BAD_SCHEMA"},
    /* gates taken away, limits made wider, constants */
    {"needle", "gate = null", "GATE_LIMITS"},
    {"needle", "gate/checks/4", "GATE_LIMITS"},
    {"needle", "gate/checks/0", "GATE_LIMITS"},
    {"needle", "gate/checks/4/limit = 5.0", "GATE_LIMITS"},
    {"needle", "gate/checks/5/limit = 0.1", "GATE_LIMITS"},
    {"needle", "gate/checks/2/limit = 0.06", "GATE_LIMITS"},
    {"needle", "holds = true", "CONSTANT"},
    {"bench", "arms/dflash/passed = true", "CONSTANT"},
    {"sweep", "rows/2/answers/0/logits_hash = " OTHER, "CONSTANT"},
    {"sweep", "identity/same_logits = false", "CONSTANT"},
    {"bench", "sessions/arrival/logits_hashes/0/beside = " OTHER, "SESSIONS_RECOUNT"},
    {"bench", "sessions/arrival/logits_hashes", "MEMBER_MISSING"},
    /* bytes */
    {"bench", "bytes/kv.full = 0", "WEIGHTS_MISMATCH"},
    {"needle", "rungs/4/bytes/kv.sliding = 0; rungs/4/bytes/kv.full = 0", "WEIGHTS_MISMATCH"},
    {"memory", "rows/0/bytes/weights.verifier = 1000", "WEIGHTS_MISMATCH"},
    {"bench", "bytes/weights.verifier = 99999999", "WEIGHTS_MISMATCH"},
    {"bench", "attention/formats/0/kv_bytes = 0", "NOT_POSITIVE"},
    {"needle", "projection = null", "PROJECTION_MISSING"},
    {"bench", "projection = null", "PROJECTION_MISSING"},
    {"sweep", "projection = null", "PROJECTION_MISSING"},
    {"memory", "projections = []", "PROJECTION_MISSING"},
    {"needle", "arms/restored/rank = 16", "PROJECTION_MISSING"},
};

static void test_lies(void **state) {
    (void)state;
    check_holds(GPU);
    check_lies(lies, sizeof lies / sizeof *lies);
}

/* ---- limits at their edges ------------------------------------------------------------------ */

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

static void test_edges(void **state) {
    (void)state;
    /* 256 positions of a KL. */
    static const char few[] = "rows/1/quality = [{\"text\": \"a\", \"rows\": %d}]";
    char edits[200];
    snprintf(edits, sizeof edits, few, 255);
    assert_true(finds("kv", edits, "KL_ROWS", "255 positions"));
    snprintf(edits, sizeof edits, few, 256);
    assert_false(finds("kv", edits, "KL_ROWS", "positions"));
    /* 5 samples: turns of a comparison. */
    assert_true(finds("compare", "decode_ratio/n = 4", "SPEEDUP_SAMPLES", "4 turns"));
    assert_false(finds("compare", "decode_ratio/n = 5", "SPEEDUP_SAMPLES", "turns"));
    /* 32 tokens of the median sample. */
    assert_true(finds("bench", SET "dflash/rows/*/tokens = 31", "SPEEDUP_TOKENS", "31 tokens"));
    assert_false(finds("bench", SET "dflash/rows/*/tokens = 32", "SPEEDUP_TOKENS", "tokens"));
    /* Prefill within a factor of 3. */
#define PREFILL SET "plain/rows/*/prompt_tokens = 1; " SET "plain/rows/*/prefill_s = 1.0; "
    assert_true(finds("bench", PREFILL SET "plain/rows/0/prefill_s = 3.01", "SPEEDUP_PREFILL",
                      "dflash on"));
    assert_false(finds("bench", PREFILL SET "plain/rows/0/prefill_s = 3.0", "SPEEDUP_PREFILL",
                       "dflash on code"));
    /* One token in 20 from a draft. */
    assert_true(finds("bench", SET "dflash/tokens = 21; " SET "dflash/accepted = 1",
                      "SPEEDUP_DRAFTS", "1 of 21"));
    assert_false(finds("bench", SET "dflash/tokens = 20; " SET "dflash/accepted = 1",
                       "SPEEDUP_DRAFTS", "of 20"));
    /* A restored arm recalls 0.05 less than exact at most. */
    assert_true(finds("needle", "gate/checks/2/limit = 0.0501", "GATE_LIMITS", "0.05 was asked"));
    assert_true(finds("needle", "gate/checks/2/limit = 0.0499", "GATE_LIMITS", "0.05 was asked"));
    assert_false(finds("needle", "gate/checks/2/limit = 0.05", "GATE_LIMITS", "recall_drop"));
}

/* ---- size ---------------------------------------------------------------------------------- */

static char *many(const char *item, size_t bytes, size_t *len) {
    char *text = malloc(bytes + 64);
    size_t n = (size_t)sprintf(text, "{\"schema\": 2, \"kind\": \"needle\", \"rungs\": [{}");
    while (n + strlen(item) < bytes) n += (size_t)sprintf(text + n, "%s", item);
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

/* ---- a kind is added ------------------------------------------------------------------------- */

static void rule_calm(kk_gate *g) {
    if (kk_gate_number_or(g->report, "storms", 0) > 0) kk_gate_say(g, "there were storms");
}
static const kk_gate_entry calm_rules[] = {{"STORMS", rule_calm, "nothing stormed"}};
static const kk_gate_group calm = {calm_rules, 1};
static const kk_gate_group *const weather_groups[] = {&calm};
static const kk_gate_member weather_members[] = {{"storms", KK_MEMBER_COUNT}};
static KK_GATE_KIND(weather, weather_members, weather_groups);
static const kk_gate_kind bare = {.name = "bare"};
static const kk_gate_kind *const kinds[] = {&kk_kind_weather, &bare};

static void judged(const char *text, bool own, const char *code) {
    kk_verdict v;
    assert_ok(own ? kk_gate_check(text, strlen(text), &v, why)
                  : kk_gate_check_kinds(kinds, 2, text, strlen(text), &v, why));
    if (!has(&v, code)) fail_msg("no %s in what is found", code);
    kk_verdict_release(&v);
}

static void test_kinds(void **state) {
    (void)state;
    judged("{\"schema\": 2, \"kind\": \"weather\", \"storms\": 0}", true, "UNKNOWN_KIND");
    judged("{\"schema\": 2, \"kind\": \"weather\", \"storms\": 2}", false, "STORMS");
    judged("{\"schema\": 2, \"kind\": \"weather\"}", false, "MEMBER_MISSING");
    judged("{\"schema\": 2, \"kind\": \"bare\"}", false, "KIND_WITHOUT_RULES");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
