/* gate_doctored_test.c - reports whose lie was mended elsewhere, so that only what is computed
 * again finds it: arms that are not paired, rows dropped or repeated, other documents, shares and
 * medians of nothing, gates that were taken away.  And how a kind is added. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "eval/reports/gate_kinds.h"
#include "support/doctored.h"

#define SET "sets/0/arms/"
#define ALL "bench/results/lossless-all.json"
#define GPU "bench/results/compare-transformers-26b-a4b-bf16.json"
#define OTHER "\"0123456789abcdef\""
/* An older report of the tree is asked for what later schemas need once a value is another. */
#define NO_OLDER " MEMBER_MISSING EXACT_UNSAID"

static const lie lies[] = {
    /* reports about a server; gate_serving_test.c has more */
    {"load", "gate/checks/0", "SERVING_LIMITS"},
    {"load", "arms/0/rows/1", "GATE_RECOUNT RATE_RECOUNT SERVING_COUNTS SPREAD_RECOUNT"},
    /* speed-ups whose tokens or hashes differ, or that are not said to be lossless */
    {"bench", SET "dflash/rows/0/runs/0/tokens_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", SET "dflash/rows/3/runs/4/logits_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", SET "plain/rows/0/runs/2/logits_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    {"bench", SET "plain/rows/1/runs/0/tokens_hash = " OTHER, "LOSSLESS_CONTRADICTED"},
    /* An older number of the schema asks for no less. */
    {"bench", "schema = 1; " SET "dflash/rows/0/runs/0/tokens_hash = " OTHER,
     "LOSSLESS_CONTRADICTED"},
    {"bench", "schema = 1; " SET "dflash/rows/0/runs", "LOSSLESS_UNPROVEN MEMBER_MISSING"},
    {"bench", "schema = 1; rows/dense_q4_0/*/samples_ms", "MEMBER_MISSING"},
    {"bench", "schema = 2; sessions/arrival/gap_s/samples", "MEMBER_MISSING"},
    {"lossless", "schema = 1; groups", "MEMBER_MISSING"},
    {"needle", "schema = 3; machine/device = \"mlx\"", "EXACT_UNSAID"},
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
    {"bench", SET "dflash/rows/2/tokens = 31",
     "ARMS_UNPAIRED TOKENS_RECOUNT RATE_RECOUNT SPREAD_RECOUNT"},
    {"bench", SET "dflash/rows/2/prompt_tokens = 31", "ARMS_UNPAIRED SPEEDUP_PREFILL"},
    {"bench", SET "dflash/rows/5",
     "ARMS_UNPAIRED PLAN_COUNTS RATE_RECOUNT SPREAD_RECOUNT SHARE_RECOUNT ROUND_TIMES "
     "TOKENS_RECOUNT"},
    {"bench", SET "dflash/rows/0 = @" SET "dflash/rows/1",
     "ARMS_UNPAIRED ROWS_REPEATED RATE_RECOUNT LOSSLESS_CONTRADICTED SPREAD_RECOUNT SHARE_RECOUNT "
     "ROUND_TIMES TOKENS_RECOUNT"},
    {"bench", SET "plain/rows/* = @" SET "plain/rows/0",
     "ROWS_REPEATED RATE_RECOUNT LOSSLESS_CONTRADICTED SPREAD_RECOUNT SHARE_RECOUNT ROUND_TIMES "
     "ARMS_UNPAIRED"},
    {"bench", "policies/2/arms/dflash/rows/1/prompt = " OTHER, "ARMS_UNPAIRED"},
    {"bench", SET "dflash/rows/0/accepted = 1", "TOKENS_RECOUNT"},
    {"bench", SET "dflash/rows/0/rounds = 3", "TOKENS_RECOUNT ROUND_TIMES"},
    {"bench", SET "plain/rows/0/rounds = 9", "TOKENS_RECOUNT ROUND_TIMES"},
    {"bench", SET "dflash/accepted = 500", "TOKENS_RECOUNT ACCEPT_RECOUNT"},
    {"bench", "policies/2/arms/dflash/rows/0/accepted = 40", "TOKENS_RECOUNT"},
    {"accept", "rows/0/rounds = 2", "TOKENS_RECOUNT"},
    /* rows dropped or repeated: counts against the settings */
    {"needle", "rungs/5", "PLAN_COUNTS RECALL_SCOPE"},
    {"needle", "rungs/0/rows/4; rungs/0/samples = 4; rungs/0/hits = 4",
     "PLAN_COUNTS RATE_RECOUNT SPREAD_RECOUNT RECALL_SCOPE"},
    {"needle", "settings/samples = 50", "PLAN_COUNTS PLAN_COMMAND"},
    {"needle", "quality/0", "PLAN_COUNTS KL_RECOUNT"},
    {"needle", "quality/1 = @quality/0", "PLAN_COUNTS KL_RECOUNT"},
    {"needle", "settings/texts/rows = 9000", "PLAN_COUNTS"},
    {"sweep", "rows/1", "PLAN_COUNTS"},
    {"sweep", "rows/1/alpha = 0.25", "PLAN_COUNTS"},
    {"sweep", "rows/0/quality/0", "PLAN_COUNTS KL_RECOUNT"},
    {"kv", "settings/samples = 1e308", "PLAN_COUNTS PLAN_COMMAND"},
    {"sweep", "settings/samples = -1e308", "PLAN_COUNTS NOT_POSITIVE PLAN_COMMAND"},
    {"kv", "rows/2", "PLAN_COUNTS"},
    {"kv", "rows/3/format = \"q8\"", "PLAN_COUNTS"},
    {"kv", "rows/1/answers/0", "PLAN_COUNTS RECALL_RECOUNT"},
    {"memory", "rows/0", "PLAN_COUNTS GROWTH_RECOUNT"},
    {"memory", "rows/4 = @rows/0", "PLAN_COUNTS GROWTH_RECOUNT"},
    {"bench", "sets/1", "PLAN_COUNTS RATE_RECOUNT SPREAD_RECOUNT ROUND_TIMES"},
    {"bench", "settings/repeat = 50", "PLAN_COUNTS RUNS_RECOUNT PLAN_COMMAND"},
    {"bench", "policies/1", "PLAN_COUNTS"},
    {"bench", "policies/0/arms/plain/rows/4",
     "PLAN_COUNTS RATE_RECOUNT LOSSLESS_UNPROVEN SPREAD_RECOUNT POLICY_RECOUNT ROUND_TIMES "
     "ARMS_UNPAIRED TOKENS_RECOUNT SPEEDUP_SAMPLES"},
    {"bench", "sessions/together/rows/0", "PLAN_COUNTS RATE_RECOUNT SPREAD_RECOUNT"},
    {"bench", "settings/samples = 2", "PLAN_COUNTS PLAN_COMMAND"},
    {"accept", "rows/0", "PLAN_COUNTS"},
    {"compare", "rows/4", "PLAN_COUNTS SHARE_RECOUNT SPEEDUP_RECOUNT"},
    {"compare", "rows/1 = @rows/0", "PLAN_COUNTS SHARE_RECOUNT SPEEDUP_RECOUNT"},
    {"compare", "rows/1 = @rows/0; rows/1/turn = 2", "PLAN_COUNTS SHARE_RECOUNT SPEEDUP_RECOUNT"},
    {"compare", "settings/repeat = 9", "PLAN_COUNTS PLAN_COMMAND"},
    /* the plan, drawn again from its seed */
    {"needle", "rungs/*/rows/0/expected = \"OAK-1000\"; rungs/*/rows/0/answer = \"OAK-1000\"",
     "PLAN_DOCUMENTS RECALL_RECOUNT"},
    {"needle", "rungs/*/rows/0/depth = 0.5", "PLAN_DOCUMENTS"},
    {"needle", "rungs/*/rows/1/index = 7", "PLAN_DOCUMENTS"},
    {"needle", "settings/seed = 43", "PLAN_DOCUMENTS"},
    {"needle", "rungs/1/lines = 70", "PLAN_DOCUMENTS GATE_RECOUNT RECALL_SCOPE"},
    {"sweep", "rows/0/answers/0/expected = \"OAK-1000\"", "PLAN_DOCUMENTS RECALL_RECOUNT"},
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
    {"bench", "policies/1/kv_sliding = \"native\"; policies/1/kv_full = \"exact\"",
     "POLICY_WORDS BASELINE_AS_SUT"},
    {"bench", "policies/1/kv_sliding = \"eternal\"", "POLICY_WORDS"},
    {"memory", "rows/10/kv_full = \"exact\"; rows/10/kv_sliding = \"native\"", "POLICY_WORDS"},
    /* one row rebuilt in a thousand tokens; keys that exact decoding does not read */
    {"needle", "rungs/5/rows/0/restored_rows = 1", "RESTORED_COUNTS GATE_RECOUNT"},
    {"needle", "rungs/5/rows/0/restored_rows = 1; rungs/5/rows/0/reach/keys_rebuilt = 1",
     "RESTORED_COUNTS GATE_RECOUNT"},
    {"needle", "rungs/4/rows/1/reach/keys_rebuilt = 2900000", "RESTORED_COUNTS"},
    {"sweep", "rows/0/answers/0/restored_rows = 1", "RESTORED_COUNTS"},
    {"bench", "policies/2/arms/plain/rows/0/restored_rows = 1", "RESTORED_COUNTS POLICY_RECOUNT"},
    {"memory", "rows/10/restored_rows = 1", "RESTORED_COUNTS"},
    /* one token drafted, and none accepted */
    {"bench", SET "dflash/drafted = 1; " SET "dflash/accepted = 0",
     "SPEEDUP_DRAFTS ACCEPT_RECOUNT TOKENS_RECOUNT"},
    {"bench", "arms/dflash/drafted = 1; arms/dflash/accepted = 0", "SPEEDUP_DRAFTS ACCEPT_RECOUNT"},
    /* medians, shares, ratios, spreads, rates of peers */
    {"bench", "arms/plain/decode_tok_s/median = 5000.0",
     "SPREAD_RECOUNT SHARE_RECOUNT SPREAD_ORDER"},
    {"bench", "arms/plain/decode_tok_s/samples/0 = 1.0",
     "SPREAD_RECOUNT SPREAD_ORDER SHARE_RECOUNT"},
    {"bench", "arms/plain/bandwidth_share = 0.95", "SHARE_RECOUNT"},
    {"bench", "arms/plain/floor_share = 0.95", "SHARE_RECOUNT"},
    {"bench", "arms/plain/decode_gb_s = 95.0", "SHARE_RECOUNT"},
    {"bench", "arms/plain/round_ms = 0.001", "SHARE_RECOUNT"},
    {"bench", "bandwidth/before_gb_s = 999.0; bandwidth/after_gb_s = 999.0", "SHARE_RECOUNT"},
    {"bench", "rows/whole_model/1/ratio = 1.0", "SHARE_RECOUNT"},
    {"bench", "rows/whole_model/0/gb_s = 999.0", "SHARE_RECOUNT"},
    {"bench", "attention/formats/1/ratio = 0.01", "SHARE_RECOUNT"},
    {"bench", "contexts/0/decode_tok_s/max = 99999.0", "SPREAD_RECOUNT SHARE_RECOUNT SPREAD_ORDER"},
    {"bench", SET "plain/tok_s_spread/median = 9.0; " SET "plain/tok_s_spread/min = 8.0",
     "SPREAD_RECOUNT"},
    {"bench", "arms/dflash/tok_s_spread/max = 99999.0", "SPREAD_RECOUNT"},
    {"bench", SET "dflash/of_predicted = 2.0", "SHARE_RECOUNT"},
    {"bench", SET "dflash/predicted_tok_s = 2.0", "SHARE_RECOUNT"},
    {"bench", SET "plain/rows/0/seconds_min = 0.000001", "RUNS_RECOUNT"},
    {"bench", SET "plain/rows/0/runs/0/seconds = 9.0", "RUNS_RECOUNT"},
    {"bench", SET "plain/rows/0/runs/0", "RUNS_RECOUNT"},
    {"bench", "policies/2/prefill_tok_s/median = 1.0", "SPREAD_RECOUNT SPREAD_ORDER"},
    {"bench", "policies/0/prefill_tok_s/samples", "MEMBER_MISSING"},
    {"bench", "sessions/together/tok_s_spread/max = 99999.0", "SPREAD_RECOUNT"},
    {"needle", "rungs/0/prefill_tok_s_spread/max = 99999.0", "SPREAD_RECOUNT"},
    {"needle", "rungs/0/decode_tok_s_spread/n = 4", "SPREAD_RECOUNT"},
    {"compare", "decode_tok_s/peer/median = 1.0", "SHARE_RECOUNT SPREAD_ORDER"},
    {"compare", "decode_tok_s/kakeya/max = 99.0", "SHARE_RECOUNT"},
    {"compare", "prefill_tok_s/peer/min = 1.0", "SHARE_RECOUNT"},
    {"compare", "decode_ratio/max = 9.0", "SHARE_RECOUNT"},
    {"compare", "prefill_ratio/min = 0.1", "SHARE_RECOUNT"},
    {"compare", "rows/0/share_of_bandwidth = 0.5", "SHARE_RECOUNT"},
    {"compare", "share_of_bandwidth/median = 0.99", "SHARE_RECOUNT SPREAD_ORDER"},
    {"compare", "rows/2/peer/decode = 5.0", "SHARE_RECOUNT"},
    {GPU, "exactness/arms/2/logits/rms = 0.5", "SHARE_RECOUNT" NO_OLDER},
    {GPU, "exactness/holds = false", "SHARE_RECOUNT" NO_OLDER},
    {GPU, "exactness/arms/1/ratio = 0.1", "SHARE_RECOUNT" NO_OLDER},
    /* types, times, counts, warm-up, emptiness */
    {"needle", "rungs/0/recall = \"1.0\"", "MEMBER_TYPE NUMBER_AS_TEXT GATE_RECOUNT"},
    {"bench", "load_s = 0.0", "NOT_POSITIVE"},
    {"bench", SET "plain/rows/0/prefill_s = 0", "NOT_POSITIVE"},
    {"compare", "rows/0/peer/decode = -13.0", "NOT_POSITIVE SHARE_RECOUNT SPEEDUP_RECOUNT"},
    {"needle", "rungs/0/rows/0/generated = 2.5", "NOT_WHOLE RATE_RECOUNT SPREAD_RECOUNT"},
    {"memory", "rows/0/tokens = 512.5", "NOT_WHOLE PLAN_DOCUMENTS GROWTH_RECOUNT"},
    {"lossless", "cases = 100.5", "NOT_WHOLE CASES_RECOUNT"},
    {"bench", "sets/0/warm_up = []", "MEMBER_MISSING"},
    {"bench", "policies/0/warm_up/0 = null", "MEMBER_TYPE"},
    {"needle", "rungs = []", "MEMBER_MISSING MISSING_ROWS GATE_RECOUNT PLAN_COUNTS"},
    {"kv", "rows = []", "MEMBER_MISSING MISSING_ROWS PLAN_COUNTS"},
    {"projection", "stages", "MEMBER_MISSING MISSING_ROWS"},
    {"compare", "peer", "MEMBER_MISSING"},
    {"lossless", "cases_by/threads", "CASES_RECOUNT"},
    {"lossless", "settings/draft_most = 32", "CASES_RECOUNT"},
    /* groups of cases against the plan, and hashes of both arms */
    {"lossless", "groups/0/plain = " OTHER, "CASES_DIFFER"},
    {"lossless", "groups/7/drafted = " OTHER, "CASES_DIFFER"},
    {"lossless", "groups/1/policy = \"native\"", "CASES_PLAN"},
    {"lossless", "groups/2/tokens = 5", "CASES_PLAN"},
    {"lossless", "groups/2/kind = \"chat\"", "CASES_PLAN"},
    {"lossless", "groups/2/format = \"q4\"", "CASES_PLAN"},
    {"lossless", "groups/2/cases = 129", "CASES_PLAN"},
    {"lossless", "groups/19", "CASES_PLAN"},
    {"lossless", "settings/step = 72", "CASES_PLAN"},
    {"lossless", "settings/step = 1; prompts = 220", "CASES_PLAN"},
    {"lossless", "settings/seed = 8", "CASES_PLAN"},
    {"lossless", "prompt_tokens = 1000000", "CASES_PLAN"},
    {"lossless", "settings/tokens = 1200", "CASES_PLAN"},
    {"lossless", "cases_by/threads = {\"1\": 1279, \"2\": 1281}", "CASES_PLAN"},
    {"lossless", "groups/3/prompt = " OTHER, "CASES_PROMPTS"},
    {ALL, "groups/0/prompt = " OTHER, "CASES_PROMPTS"},
    {ALL, "groups/1000/prompt = @groups/1010/prompt", "CASES_PROMPTS"},
    {ALL, "groups/1099", "CASES_PLAN"},
    {"lossless", "groups", "MEMBER_MISSING"},
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
    {"needle", "rungs/4/bytes/kv.sliding = 0; rungs/4/bytes/kv.full = 0",
     "WEIGHTS_MISMATCH GATE_RECOUNT"},
    {"memory", "rows/0/bytes/weights.verifier = 1000", "WEIGHTS_MISMATCH"},
    {"bench", "bytes/weights.verifier = 99999999", "WEIGHTS_MISMATCH"},
    {"bench", "attention/formats/0/kv_bytes = 0", "NOT_POSITIVE"},
    {"needle", "projection = null", "PROJECTION_MISSING WEIGHTS_MISMATCH"},
    {"bench", "projection = null", "PROJECTION_MISSING WEIGHTS_MISMATCH"},
    {"sweep", "projection = null", "PROJECTION_MISSING"},
    {"memory", "projections = []", "PROJECTION_MISSING WEIGHTS_MISMATCH"},
    {"needle", "arms/restored/rank = 16", "PROJECTION_MISSING"},
};

static void test_lies(void **state) {
    (void)state;
    check_holds(GPU);
    check_holds(ALL);
    check_lies(lies, sizeof lies / sizeof *lies);
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
static const kk_gate_kind no_members = {
    .name = "no_members", .group = weather_groups, .n_groups = 1};
static const kk_gate_kind no_groups = {
    .name = "no_groups", .member = weather_members, .n_members = 1};
static const kk_gate_kind *const kinds[] = {&kk_kind_weather, &bare, &no_members, &no_groups};

static void judged(const char *text, bool own, const char *code) {
    kk_verdict v;
    assert_ok(own ? kk_gate_check(text, strlen(text), &v, why)
                  : kk_gate_check_kinds(kinds, 4, text, strlen(text), &v, why));
    if (!has(&v, code)) fail_msg("no %s in what is found", code);
    kk_verdict_release(&v);
}

static void test_kinds(void **state) {
    (void)state;
    judged("{\"schema\": 2, \"kind\": \"weather\", \"storms\": 0}", true, "UNKNOWN_KIND");
    judged("{\"schema\": 2, \"kind\": \"weather\", \"storms\": 2}", false, "STORMS");
    judged("{\"schema\": 2, \"kind\": \"weather\"}", false, "MEMBER_MISSING");
    judged("{\"schema\": 2, \"kind\": \"bare\"}", false, "KIND_WITHOUT_RULES");
    judged("{\"schema\": 2, \"kind\": \"no_members\"}", false, "KIND_WITHOUT_RULES");
    judged("{\"schema\": 2, \"kind\": \"no_groups\"}", false, "KIND_WITHOUT_RULES");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
