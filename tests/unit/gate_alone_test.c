/* gate_alone_test.c - doctored reports that one place of the gate alone finds: where others would
 * notice the lie too, it was mended for them.  tests/tools/mutate_gate.py found what was missing
 * here: it takes every place away in turn and sees that a test fails. */
#define _GNU_SOURCE
#include "support/doctored.h"

#define SET "sets/0/arms/"
#define GPU "bench/results/compare-transformers-26b-a4b-bf16.json"
#define OTHER "\"0123456789abcdef\""
#define NO_OLDER " MEMBER_MISSING EXACT_UNSAID"
#define TRACE "{\"kind\": \"geom\"}"
#define TRACED                                                                                     \
    "arms/dflash/accept_trace = " TRACE "; sets/*/arms/dflash/accept_trace = " TRACE               \
    "; policies/0/arms/dflash/accept_trace = " TRACE                                               \
    "; policies/2/arms/dflash/accept_trace = " TRACE

static const lie lies[] = {
    /* checks of the report's own gate */
    {"needle", "gate/checks/0/arm = \"nobody\"; gate/holds = false",
     "GATE_RECOUNT GATE_LIMITS RECALL_ALONE"},
    {"needle", "gate/checks/0/figure = \"vibes\"; gate/holds = false", "GATE_RECOUNT GATE_LIMITS"},
    /* labels of a replayed acceptance */
    {"bench", "settings/accept_trace = " TRACE "; model/synthetic = true", "TRACE_UNLABELLED"},
    {"bench",
     "command = \"kakeya bench --accept-trace geom:0.7:1\"; model/synthetic = true; " TRACED,
     "TRACE_UNLABELLED"},
    {"bench", "settings/accept_trace = " TRACE "; " TRACED, "TRACE_UNLABELLED"},
    {"sweep", "projection/model", "FINGERPRINT_MISSING"},
    /* lossless, and how many generations differ */
    {"bench",
     SET "dflash/rows/0/runs/0/tokens_hash = " OTHER "; " SET "dflash/lossless = false; " SET
         "dflash/different = 5; arms/dflash/lossless = false; arms/dflash/different = 1",
     "LOSSLESS_CONTRADICTED SPEEDUP_DRAFTS"},
    {"accept", "sets/0/lossless = false", "LOSSLESS_CONTRADICTED"},
    {"accept", "rows/0/lossless = true", "LOSSLESS_UNPROVEN"},
    {"bench", "sampling", "SAMPLING_RECOUNT"},
    {"bench", SET "dflash/different = 1", "LOSSLESS_CONTRADICTED"},
    {"kv", "rows/1/bits", "MEMBER_MISSING"},
    {"load", "arrival/rows = []", "GATE_RECOUNT MEMBER_MISSING SERVING_COUNTS"},
    {"load", "arrival/rows/1", "SERVING_COUNTS"},
    {"load", "settings/arrivals = 4", "SERVING_COUNTS"},
    {"load", "settings/arrivals = 4; command = \"serving load --arrivals 5\"",
     "SERVING_COUNTS PLAN_COMMAND"},
    {"soak", "buckets/13/first_median_s", "GATE_RECOUNT MEMBER_MISSING"},
    {"steps", "steps/0/speed_ratio", "STEPS_RECOUNT MEMBER_MISSING"},
    {"bench", "sessions/ratio", "SESSIONS_RECOUNT MEMBER_MISSING"},
    {"bench", "arms/dflash/timing; arms/plain/timing", "SPEEDUP_SCOPE"},
    {"chaos", "malformed/resident_after", "GATE_RECOUNT MEMBER_MISSING"},
    {"chaos", "malformed/resident_before", "GATE_RECOUNT MEMBER_MISSING"},
    {"accept", "all/0/lossless = false", "LOSSLESS_CONTRADICTED"},
    {GPU, "forwards = 5", "MEMBER_TYPE" NO_OLDER},
    {"memory", "growth/2/against = \"nobody\"", "GROWTH_RECOUNT"},
    /* what was to be run */
    {"bench", "sets/0/set = \"random\"; settings/vocab = 0", "PLAN_PROMPTS"},
    {"bench", "settings/arms = [\"plain\"]", "PLAN_COUNTS"},
    {"bench", "sessions/alone/rows/0", "PLAN_COUNTS RATE_RECOUNT SPREAD_RECOUNT"},
    {"compare", "rows/1/turn = 5", "PLAN_COUNTS"},
    {"memory", "settings/samples = 3", "PLAN_COUNTS PLAN_COMMAND"},
    {"needle", "settings/texts/texts = 3", "PLAN_COUNTS"},
    {"kv", "rows/1/quality/1/text = @rows/1/quality/0/text", "PLAN_COUNTS"},
    {"needle", "settings/seed = -1", "PLAN_DOCUMENTS NOT_POSITIVE"},
    {"needle", "rungs/*/lines = 1e9; settings/ladder = [1e9]",
     "PLAN_DOCUMENTS GATE_RECOUNT PLAN_COUNTS RECALL_SCOPE"},
    {"needle", "settings/max_kl; gate/checks/4", "PLAN_COMMAND"},
    {"soak", "settings/clients = 40", "PLAN_COMMAND"},
    {"load", "settings/predict = 640", "PLAN_COMMAND"},
    {"sweep", "settings/sink = 4.0; settings/window = 16", "PLAN_COMMAND"},
    {"bench", "settings/arm_predict = 48; settings/draft_max = 5", "PLAN_COMMAND"},
    {"lossless", "settings/document_seed = 12", "CASES_PLAN"},
    {"load", "gate/checks/1/figure = \"vibes\"", "GATE_RECOUNT SERVING_LIMITS"},
    /* policies */
    {"bench", "policies/2/arms/plain/keys_per_query/rebuilt = 1.0", "POLICY_RECOUNT"},
    {"bench", "policies/2/arms/plain/restored_rows = 1", "POLICY_RECOUNT"},
    {"bench", "policies/2/arms/plain/token_ms", "POLICY_RECOUNT MEMBER_MISSING"},
    {"bench", "policies/2/arms/dflash/token_ms/median = 99.0", "POLICY_RECOUNT SPREAD_ORDER"},
    {"bench", "policies/2/arms/dflash/token_ms/min = 0.0001", "POLICY_RECOUNT"},
    {"bench", "policies/2/arms/dflash/token_ms/n = 4", "POLICY_RECOUNT"},
    {"bench", "policies/0/kv_full = \"window\"", "POLICY_RECOUNT POLICY_WORDS"},
    /* quality and answers */
    {"projection", "curve/0/parts", "LOSS_RECOUNT MEMBER_MISSING"},
    {"needle", "gate/checks/4/figure = \"worst_kl\"; gate/checks/4/arm = \"exact\"",
     "BASELINE_AS_SUT GATE_LIMITS GATE_RECOUNT"},
    {"kv", "rows/2/layers/1/rel_mse", "REL_MSE_RECOUNT"},
    {"kv", "rows/2/layers/1/power", "REL_MSE_RECOUNT"},
    {"kv", "rows/2/layers/1/error", "REL_MSE_RECOUNT"},
    {"sweep", "rows/2/alpha = 0.99", "KNEE_RECOUNT PLAN_COUNTS CONSTANT"},
    {"sweep", "rows/0/quality = []", "KL_RECOUNT MEMBER_MISSING KL_ROWS PLAN_COUNTS"},
    {"needle",
     "rungs/0/rows/0/expected = \"A-1111111111111111111111111111111111111111111111111111\"",
     "EMPTY_NEEDLE RECALL_RECOUNT PLAN_DOCUMENTS RECALL_SCOPE"},
    /* times of rounds */
    {"bench", "sets; arms/dflash; arms/plain/round_times = @contexts/1/round_times",
     "ROUND_TIMES LOSSLESS_UNPROVEN PLAN_COUNTS"},
    /* rates, shares, medians, ratios */
    {"bench", "sessions/alone/tok_s = 0", "SESSIONS_RECOUNT NOT_POSITIVE RATE_RECOUNT"},
    {"bench", SET "dflash/best_tok_s = 100.0; " SET "dflash/of_best = 0.5", "SHARE_RECOUNT"},
    {"bench", "rows/dense_q4_0/1/ratio = 9.0", "SHARE_RECOUNT"},
    {"bench", "rows/dense_q4_0/1/ms = 17.6; rows/dense_q4_0/1/ratio", "SHARE_RECOUNT"},
    {"bench", "rows/dense_q4_0/1/ms_min = 0.001", "SHARE_RECOUNT"},
    {"bench", "rows/dense_q4_0/1/ms_max = 999.0", "SHARE_RECOUNT"},
    {"bench", "sessions/arrival/gap_s/median = 0.02", "SPREAD_RECOUNT SPREAD_ORDER"},
    {"compare", "bandwidth_gb_s/median = 1.0", "SHARE_RECOUNT SPREAD_ORDER"},
    {"compare", "prefill_tok_s/kakeya/min = 1.0", "SHARE_RECOUNT"},
    {"compare",
     "rows/*/share_of_bandwidth = 0.5; share_of_bandwidth = {\"median\": 0.5, \"min\": 0.5, "
     "\"max\": 0.5, \"n\": 5}",
     "SHARE_RECOUNT"},
    {"compare", "prefill_ratio/median = 1.13", "SPEEDUP_RECOUNT SPREAD_ORDER SHARE_RECOUNT"},
    {GPU, "forwards/1/ratio = 9.0", "SHARE_RECOUNT" NO_OLDER},
    {GPU, "contexts/0/decode_tok_s/kakeya/median = 443.5", "SHARE_RECOUNT" NO_OLDER},
    {"bench", "arms/dflash/tok_s = null; arms/dflash/tokens = 1000",
     "RATE_RECOUNT NOT_FINITE SPEEDUP_RECOUNT"},
    {"bench", "arms/dflash/tok_s = null; arms/dflash/seconds = 99.0",
     "RATE_RECOUNT NOT_FINITE SPEEDUP_RECOUNT"},
    {"bench", "arms/dflash/accept_len = 9.0", "ACCEPT_RECOUNT"},
    {"accept", "all/0/length = 9.0", "ACCEPT_RECOUNT"},
    {"needle", "rungs/0/prefill_tok_s = 1.0", "RATE_RECOUNT"},
    {"needle", "rungs/0/tokens = 5.0", "RATE_RECOUNT"},
    {"bench", "arms/plain/decode_tok_s/n = 4", "SPREAD_ORDER SPREAD_RECOUNT SHARE_RECOUNT"},
    {"bench", "arms/dflash/tok_s = null", "SPEEDUP_RECOUNT NOT_FINITE"},
    {"bench", "arms/dflash/speedup = 1", "SPEEDUP_RECOUNT"},
    /* steps */
    {"steps",
     "policies/0/arms/plain/rows/2/prompt = @policies/0/arms/plain/rows/1/prompt; "
     "policies/1/arms/plain/rows/2/prompt = @policies/0/arms/plain/rows/1/prompt; "
     "policies/1/arms/dflash/rows/2/prompt = @policies/0/arms/plain/rows/1/prompt",
     "STEPS_RECOUNT"},
    {"steps",
     "policies/0/arms/plain/rows/2/tokens = 31; policies/0/arms/plain/rows/2/seconds = "
     "0.040051446875",
     "STEPS_RECOUNT RATE_RECOUNT ROUND_TIMES"},
    {"steps", "settings/accept_trace = " TRACE, "TRACE_UNLABELLED"},
    {"steps",
     "policies/1/policy = \"exact\"; policies/1/kv_sliding = \"native\"; policies/1/kv_full = "
     "\"exact\"",
     "STEPS_RECOUNT BASELINE_RESTORED"},
    {"steps", "rungs/1/rows/0/tokens = 5", "RECALL_SCOPE RATE_RECOUNT"},
    /* bytes */
    {"bench", "bytes/weights.drafter = 1000", "WEIGHTS_MISMATCH"},
    {"bench", "bytes/weights.drafter = 99999999", "WEIGHTS_MISMATCH"},
    {"bench", "bytes/weights.projection = 1000", "WEIGHTS_MISMATCH"},
    {"needle", "rungs/0/bytes/weights.drafter = 1000", "WEIGHTS_MISMATCH"},
    {"lossless", "compared = [\"logits hash\"]", "CASES_COMPARED"},
};

static void test_lies(void **state) {
    (void)state;
    check_lies(lies, sizeof lies / sizeof *lies);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
