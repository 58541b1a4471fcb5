/* gate_parts_test.c - doctored reports that single parts of conditions refuse: members that are
 * missing or odd where a rule reads them, values beyond what can be, hashes that are too long.
 *
 * tests/tools/mutate_gate.py --clauses found that no other test told these parts from others. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/doctored.h"

static const lie lies[] = {
    /* Other weights of the model, of its identity, pass where the report says so. */
    {"bench",
     "lossless = true; projection/other_weights = true; projection/identity = "
     "\"0123456789abcdef\"; model/identity = \"0123456789abcdef\"; "
     "projection/model = \"0123456789abcdef\"",
     "LOSSLESS_UNPROVEN"},
    {"bench",
     "projection/identity = \"0123456789abcdef\"; model/identity = \"0123456789abcdef\"; "
     "projection/model = \"0123456789abcdef\"",
     "FINGERPRINT_MISMATCH"},
    {"bench", "model/fingerprint = \"140a45516edd20da0\"",
     "FINGERPRINT_MISSING FINGERPRINT_MISMATCH"},
    {"bench", "model/fingerprint = \"140a45516edd20daX\"",
     "FINGERPRINT_MISSING FINGERPRINT_MISMATCH"},
    {"bench", "sets/0/arms/dflash/rows/0/runs/0/tokens_hash = \"140a45516edd20daX\"",
     "MEMBER_TYPE LOSSLESS_CONTRADICTED"},
    {"bench", "model/fingerprint = \"140a45516edd20dX\"",
     "FINGERPRINT_MISSING FINGERPRINT_MISMATCH"},
    {"bench", "sets/0/arms/dflash/rows/0/runs/0/tokens_hash = \"140a45516edd20da0\"",
     "MEMBER_TYPE LOSSLESS_CONTRADICTED"},
    {"bench", "sets/0/arms/dflash/rows/0/runs/0/tokens_hash = \"140a45516edd20dX\"",
     "MEMBER_TYPE LOSSLESS_CONTRADICTED"},
    {"needle", "rungs/0/compression = 4.0", "MEMORY_CLAIM"},
    {"needle", "rungs/0/saved_mb = 12", "MEMORY_CLAIM"},
    {"projection", "evaluation/seeds", "SEEDS_OVERLAP"},
    {"projection", "evaluation/seeds = [7, 1]; train/seeds = [2, 7]", "SEEDS_OVERLAP"},
    {"projection", "curve/0/loss", "MEMBER_MISSING"},
    {"memory", "growth/0/from", "MEMBER_MISSING GROWTH_RECOUNT"},
    {"memory", "growth/0/to", "MEMBER_MISSING GROWTH_RECOUNT"},
    {"memory", "growth/0/to = 0", "NOT_POSITIVE GROWTH_RECOUNT"},
    {"memory", "growth/0/to = @growth/0/from", "GROWTH_RECOUNT"},
    {"memory", "growth/0/categories = []", "MEMBER_MISSING GROWTH_RECOUNT"},
    {"memory", "growth/0/categories/0 = 5", "GROWTH_RECOUNT"},
    {"memory", "growth/0/bytes_per_token", "MEMBER_MISSING"},
    {"kv", "rows/1/values = 0", "NOT_POSITIVE BITS_RECOUNT"},
    {"kv", "rows/1/values", "MEMBER_MISSING BITS_RECOUNT"},
    {"kv", "rows/1/stored_bytes", "MEMBER_MISSING BITS_RECOUNT"},
    {"sweep", "knee", "MEMBER_MISSING"},
    {"needle", "gate/checks/1/arm = \"exact\"", "GATE_LIMITS"},
    {"needle", "gate/checks/2/arm = \"exact\"", "GATE_LIMITS BASELINE_AS_SUT"},
    {"needle", "gate/checks/3/arm = \"exact\"", "GATE_RECOUNT GATE_LIMITS BASELINE_AS_SUT"},
    {"needle", "gate/checks/4/arm = \"exact\"", "GATE_RECOUNT GATE_LIMITS BASELINE_AS_SUT"},
    {"needle", "rungs/1/rows/0/reach/queries = 0", "NOT_POSITIVE REACH_MISMATCH"},
    {"needle", "rungs/1/rows/0/reach/keys_stored = 0",
     "NOT_POSITIVE RESTORED_COUNTS REACH_MISMATCH"},
    {"needle", "rungs/1/rows/0/reach/keys_stored", "MEMBER_MISSING RESTORED_COUNTS REACH_MISMATCH"},
    {"needle", "rungs/1/rows/0/reach/queries", "MEMBER_MISSING REACH_MISMATCH"},
    {"needle", "rungs/1/rows/0/reach/keys_rebuilt", "MEMBER_MISSING"},
    {"bench", "policies/1/ratio", "MEMBER_MISSING"},
    {"bench", "policies/0/arms/plain/token_ms/median = 0",
     "NOT_POSITIVE SPREAD_ORDER POLICY_RECOUNT"},
    {"bench", "policies/0/kv_sliding = \"window\"", "POLICY_WORDS POLICY_RECOUNT"},
    {"bench", "policies/2/arms/plain/reach/queries = 0", "REACH_MISMATCH"},
    {"bench", "sets/0/set = \"random\"; settings/ctx = 0",
     "NOT_POSITIVE PLAN_PROMPTS PLAN_COMMAND"},
    {"bench", "sets/0/set = \"random\"; settings/ctx = 1e7", "PLAN_PROMPTS PLAN_COMMAND"},
    {"bench", "sets/0/set = \"random\"; settings/vocab = 1e8", "PLAN_PROMPTS"},
    {"bench", "command = \"kakeya bench --repeat=9\"", "PLAN_COMMAND"},
    {"needle", "rungs/0/rows/0 = @rungs/0/rows/1",
     "RATE_RECOUNT PLAN_DOCUMENTS SPREAD_RECOUNT RECALL_SCOPE"},
    {"sweep", "rows/0/layers/0/power = 0", "REL_MSE_RECOUNT"},
    {"needle", "sums/0/worst_kl", "MEMBER_MISSING"},
    {"needle", "quality/0/worst_kl", "MEMBER_MISSING"},
    {"compare", "rows/1/peer = @rows/0/peer", "SHARE_RECOUNT SPEEDUP_RECOUNT"},
    {"compare", "rows/1/kakeya = @rows/0/kakeya", "SHARE_RECOUNT SPEEDUP_RECOUNT"},
    {"needle", "gate/checks/4/figure = \"worst_kl\"; gate/checks/4/value = 0.001",
     "GATE_RECOUNT GATE_LIMITS"},
    {"needle", "gate/holds", "MEMBER_MISSING"},
    {"needle", "gate = {\"min_recall\": 0.9}", "MEMBER_MISSING GATE_LIMITS"},
    {"needle", "gate = {\"holds\": true, \"min_recall\": 0.9}",
     "MEMBER_MISSING GATE_RECOUNT GATE_LIMITS"},
    {"needle", "gate/checks/1/limit", "MEMBER_MISSING GATE_RECOUNT GATE_LIMITS"},
    {"needle", "gate/checks/1/value", "MEMBER_MISSING"},
    {"needle", "gate/checks/1/value = 0.5", "GATE_RECOUNT"},
    {"needle", "gate/checks/1/arm", "MEMBER_MISSING GATE_RECOUNT GATE_LIMITS RECALL_ALONE"},
    {"needle", "gate/checks = []", "MEMBER_MISSING GATE_CONSTANT GATE_LIMITS"},
    {"needle", "rungs/1/recall; rungs/3/recall", "MEMBER_MISSING GATE_RECOUNT"},
    {"kv", "rows/0/rel_mse", "MEMBER_MISSING"},
    {"bench", "contexts/0/round_times/n = 9.5", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/n = -1", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/longest_ms = 0.0001", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/longest_ms = 1e9", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/first_ms = []", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/first_ms/0 = \"x\"", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/first_ms/0 = 0", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/steady/n = 3", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/steady/cv", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/steady/mean_ms", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/steady/mean_ms = 1e6", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/steady/deviation_ms = 1e6", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times", "MEMBER_MISSING ROUND_TIMES"},
    {"bench", "contexts/0/turns", "MEMBER_MISSING ROUND_TIMES"},
    {"bench", "contexts/0/turns = []", "MEMBER_MISSING ROUND_TIMES"},
    {"bench", "contexts/0/turns/0/sum_ms = 1e6", "ROUND_TIMES"},
    {"bench", "contexts/0/turns/0/steady/n = 1", "ROUND_TIMES"},
    {"bench", "sets/0/arms/plain/round_times", "MEMBER_MISSING ROUND_TIMES"},
    {"bench", "sets/0/arms/plain/round_times/sum_ms = 1e6", "ROUND_TIMES"},
    {"bench", "sets/0/arms/plain/rows/0/round_times", "MEMBER_MISSING ROUND_TIMES"},
    {"bench", "sets/0/arms/plain/rows/0/round_times/sum_ms = 1e6", "ROUND_TIMES"},
    {"bench", "arms/plain/round_times", "MEMBER_MISSING ROUND_TIMES"},
    {"bench", "arms/dflash/round_times", "ROUND_TIMES"},
    {"bench", "arms/dflash/round_times/sum_ms = 1e6", "ROUND_TIMES"},
    {"bench", "arms/dflash/round_times/steady/n = 1", "ROUND_TIMES"},
    {"bench", "sets/0/arms/dflash/rows/0/tokens = 1",
     "RATE_RECOUNT SPREAD_RECOUNT ARMS_UNPAIRED TOKENS_RECOUNT"},
    {"bench", "sets/0/arms/dflash/rows/0/rounds = 0", "NOT_POSITIVE ROUND_TIMES TOKENS_RECOUNT"},
    {"bench",
     "arms/dflash/lossless = true; sets/0/arms/dflash/different = 0; "
     "sets/0/arms/dflash/rows/0/runs = []",
     "MEMBER_MISSING LOSSLESS_UNPROVEN RUNS_RECOUNT"},
    {"bench", "sets/0/arms/dflash/rows = []",
     "MEMBER_MISSING LOSSLESS_UNPROVEN PLAN_COUNTS SPREAD_RECOUNT ARMS_UNPAIRED TOKENS_RECOUNT "
     "SPEEDUP_ROWS"},
    {"bench", "projection/other_weights = true; projection/model = \"0123456789abcdef\"",
     "FINGERPRINT_MISMATCH"},
    {"bench",
     "projection/other_weights = true; projection/identity = \"81428593a742420c\"; "
     "projection/model = \"0123456789abcdef\"",
     "FINGERPRINT_MISMATCH"},
    {"bench", "projection/identity = \"81428593a742420c\"; projection/model = \"0123456789abcdef\"",
     "FINGERPRINT_MISMATCH"},
    {"bench",
     "projection/other_weights = true; projection/identity = \"\"; model/identity = \"\"; "
     "projection/model = \"0123456789abcdef\"",
     "FINGERPRINT_MISMATCH"},
    {"bench",
     "settings/accept_trace = {\"kind\": \"geom\", \"p\": 0.7, \"seed\": 1}; "
     "arms/dflash/accept_trace = {\"kind\": \"geom\", \"p\": 0.7, \"seed\": 1}",
     "TRACE_UNLABELLED"},
    {"bench", "attention/formats/0/kv_bytes", "MEMBER_MISSING"},
    {"bench", "attention/formats/1/kv_ratio = 9.0", "MEMORY_CLAIM"},
    {"bench", "attention/formats/1/kv_bytes = 5", "MEMORY_CLAIM"},
    {"sweep", "rows/0/quality/0/worst_kl", "MEMBER_MISSING"},
    {"sweep", "rows/0/mean_kl = 9.0; rows/0/worst_kl = 1.0", "KL_RECOUNT KL_RANGE"},
    {"sweep", "rows/1/rel_mse/all", "MEMBER_MISSING"},
    {"kv", "rows/1/bits = 1.0", "BITS_RECOUNT"},
    {"memory", "rows/0/bytes/kv.full = \"x\"", "BYTES_CATEGORY GROWTH_RECOUNT"},
    {"memory", "rows/0/bytes", "MEMBER_MISSING GROWTH_RECOUNT"},
    {"memory", "growth/2/ratio = 9.0", "GROWTH_RECOUNT"},
    {"memory", "growth/2/against", "GROWTH_RECOUNT"},
    {"memory", "growth/2/against = @growth/2/policy", "GROWTH_RECOUNT"},
    {"accept", "rows/0/accepted = 999", "ACCEPT_RECOUNT TOKENS_RECOUNT"},
    {"accept", "rows/0/rounds = 0", "TOKENS_RECOUNT"},
    {"accept", "rows/0/tokens = 0", "NOT_POSITIVE TOKENS_RECOUNT"},
    {"load", "settings/turns = 0", "NOT_POSITIVE PLAN_COMMAND SERVING_COUNTS"},
    {"load", "mixed/rows/0", "SERVING_COUNTS"},
    {"load", "identity/0/logprob_hashes/0/together = \"0123456789abcdef\"", "GATE_RECOUNT"},
    {"load", "arms/0/tok_s = 0", "NOT_POSITIVE RATE_RECOUNT"},
    {"load", "arms/1/rows/0/seconds = 0", "NOT_POSITIVE GATE_RECOUNT RATE_RECOUNT SPREAD_RECOUNT"},
    {"load", "arrival/rows/0/chunks = 0", "NOT_POSITIVE GATE_RECOUNT"},
    {"soak", "buckets/3/resident = 0", "NOT_POSITIVE GATE_RECOUNT"},
    {"soak", "buckets/3", "GATE_RECOUNT SERVING_COUNTS"},
    {"soak", "buckets/3/from_s = 1e5", "GATE_RECOUNT SERVING_COUNTS"},
    {"soak", "settings/bucket_s = 0", "NOT_POSITIVE PLAN_COMMAND SERVING_COUNTS"},
    {"chaos", "malformed/requests = 0", "NOT_POSITIVE GATE_RECOUNT"},
    {"chaos", "kills/0/lost = 1", "GATE_RECOUNT"},
    {"chaos", "kills/0/ready_s = 9", "GATE_RECOUNT"},
    {"chaos", "faults/0", "GATE_RECOUNT"},
    {"steps", "steps/0/holds = false", "STEPS_RECOUNT"},
    {"steps", "steps/1", "STEPS_RECOUNT"},
    {"steps", "policies/1", "GATE_RECOUNT STEPS_RECOUNT"},
    {"kv", "rows/1/quality/0/worst_kl = 99.0", "KL_RECOUNT"},
    {"needle",
     "gate/checks/4/figure = \"worst_kl\"; gate/checks/4/limit = 99.0; gate/checks/4/value = "
     "@sums/0/worst_kl; settings/max_kl = null",
     "GATE_RECOUNT PLAN_COMMAND"},
    {"projection", "train/seeds = [5]; evaluation/seeds = [5]", "SEEDS_OVERLAP"},
    {"bench", "contexts/0/round_times/n = 2.5; contexts/0/turns/0/n = 0.5", "ROUND_TIMES"},
    {"bench", "contexts/0/round_times/steady/mean_ms = 0.001", "ROUND_TIMES"},
    {"bench", "sets/0/set = \"random\"; settings/vocab = 16777217", "PLAN_PROMPTS"},
    {"bench", "sets/0/set = \"random\"; settings/ctx = 1048577", "PLAN_PROMPTS PLAN_COMMAND"},
    {"soak", "buckets/13/first_median_s = \"x\"", "MEMBER_TYPE GATE_RECOUNT"},
    {"soak", "buckets = []", "MEMBER_MISSING GATE_RECOUNT SERVING_COUNTS"},
    {"load", "arms/1/tok_s = null", "MEMBER_MISSING NOT_FINITE"},
    {"needle", "rungs/0/lines = 100000; rungs/2/lines = 100000",
     "GATE_RECOUNT PLAN_DOCUMENTS RECALL_SCOPE"},
    {"sweep", "rows/0/layers/0/kind = \"odd\"", "REL_MSE_RECOUNT"},
    {"needle", "rungs/0/rows/0/prefill_s", "MEMBER_MISSING SPREAD_RECOUNT"},
    {"needle", "rungs/0/rows/0/prefill_s = \"1\"", "MEMBER_TYPE NUMBER_AS_TEXT SPREAD_RECOUNT"},
    {"bench", "arms/plain/token_bytes = 1", "SHARE_RECOUNT"},
    {"bench", "arms/plain/token_bytes = 99999999999", "SHARE_RECOUNT"},
    {"bench", "model/token_bytes = 1", "SHARE_RECOUNT"},
    {"memory", "growth/0/to = 1", "GROWTH_RECOUNT"},
    {"memory", "growth/0/policy = \"nobody\"", "GROWTH_RECOUNT"},
    {"accept", "rows/0/plain = null", "MEMBER_MISSING LOSSLESS_UNPROVEN"},
    {"steps", "policies/1/arms/dflash/lossless = false", "LOSSLESS_CONTRADICTED"},
    {"bench", "x_bytes = 3", "MEMORY_CLAIM"},
    {"bench", "bytes = 3", "MEMBER_TYPE BYTES_CATEGORY"},
    {"needle", "rungs/0/rows/0/answer = \"1\"", "RECALL_RECOUNT"},
    {"needle", "rungs/0/rows/0/hit = \"yes\"", "MEMBER_TYPE RECALL_RECOUNT"},
    {"needle", "settings/texts/source = \"5\"", "NUMBER_AS_TEXT"},
    {"bench", "machine/cores = \"4\"", "MEMBER_TYPE NUMBER_AS_TEXT"},
};

static void test_lies(void **state) {
    (void)state;
    check_lies(lies, sizeof lies / sizeof *lies);
}

/* True reports of the tree that have what those of tests/data have not: a trace,
 * rows measured to be exact, other devices, random ids, more or fewer members. */
static void test_true(void **state) {
    static const char *const reports[] = {
        "arms-26b-a4b-q4_0-12-layers-trace",
        "restored-mlx",
        "memory-26b",
        "load-26b-a4b-q4_0-12-layers",
        "gpu-26b-a4b-q4_k_m",
        "gpu-policies-26b-a4b-bf16",
        "26b-a4b-q8_0-12-layers",
        "ladder-training",
        "gpu-drafts-3-26b-a4b-bf16",
        "gpu-sampling-26b-a4b-bf16",
        "projection-mse",
        "sessions-gpu-26b-a4b-bf16-8",
    };
    (void)state;
    for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) {
        char path[300];
        snprintf(path, sizeof path, KK_TEST_DATA "/../../bench/results/%s.json", reports[i]);
        json_t *report = json_load_file(path, 0, NULL);
        if (!report) fail_msg("cannot read %s", path);
        kk_verdict v = judge(report);
        if (v.n) print_findings(&v);
        assert_int_equal(v.n, 0);
        kk_verdict_release(&v);
        json_decref(report);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
