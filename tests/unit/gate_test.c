/* gate_test.c - every rule of `kakeya report check` fires for the fault it is about.
 *
 * tests/data/reports holds one good report of each kind, all of which pass.  A doctored one is made
 * from it by the least change that tells the lie, and must be refused with exactly the codes that
 * stand beside it.  Most are lies that reports of inference engines have told. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/file.h"
#include "support/doctored.h"

static kk_verdict judge_text(const char *text) {
    kk_verdict v;
    assert_ok(kk_gate_check(text, strlen(text), &v, why));
    return v;
}

/* Experts in host memory, as a bench has them. */
#define EXPERTS(read_gpu, read_host, rate)                                                         \
    "device_memory = {\"total\": 100, \"over_weights\": 10, \"experts\": {\"limit\": 50, "         \
    "\"on_gpu\": 20, \"on_host\": 30, \"hits\": 1, \"misses\": 2, \"read_gpu\": " read_gpu         \
    ", \"read_host\": " read_host ", \"hit_rate\": " rate                                          \
    ", \"tokens\": 5, \"swaps\": 0, \"evicted\": 0}}"

/* ---- the lies ------------------------------------------------------------------------------ */

static const lie lies[] = {
    /* members: taken away, of another type, not whole, not positive */
    {"needle", "rungs/0/rows/0/generated", "MEMBER_MISSING RATE_RECOUNT SPREAD_RECOUNT"},
    {"bench", "sets/0/arms/plain/rows/0/tokens = \"31\"",
     "MEMBER_TYPE NUMBER_AS_TEXT SPREAD_RECOUNT ARMS_UNPAIRED TOKENS_RECOUNT"},
    {"bench", "sets/0/arms/plain/rows/0/rounds = 30.5", "NOT_WHOLE ROUND_TIMES TOKENS_RECOUNT"},
    {"bench", "sets/0/arms/plain/rows/0/seconds = -0.1",
     "NOT_POSITIVE RATE_RECOUNT SPREAD_RECOUNT ROUND_TIMES RUNS_RECOUNT"},
    /* what was run */
    {"needle", "command", "MISSING_ENVELOPE"},
    {"kv", "machine = null", "MISSING_ENVELOPE MEMBER_MISSING EXACT_UNSAID"},
    {"bench", "version = \"0.1.0\"", "MISSING_COMMIT"},
    {"needle", "model/fingerprint", "FINGERPRINT_MISSING"},
    {"bench", "drafter/fingerprint = \"?\"", "FINGERPRINT_MISSING"},
    {"sweep", "projection/fingerprint", "FINGERPRINT_MISSING"},
    {"needle", "projection/model = \"aaaaaaaaaaaaaaaa\"", "FINGERPRINT_MISMATCH"},
    /* trained on one drafter, run with another */
    {"needle",
     "projection/drafter = \"bbbbbbbbbbbbbbbb\"; drafter = {\"fingerprint\": \"cccccccccccccccc\"}",
     "FINGERPRINT_MISMATCH MEMBER_MISSING"},
    {"needle",
     "arms/restored/projection = {\"fingerprint\": \"cccccccccccccccc\", \"model\": "
     "\"dddddddddddddddd\"}",
     "FINGERPRINT_MISMATCH"},
    /* other weights of the same model, which has neither that identity nor that source */
    {"needle",
     "projection/model = \"aaaaaaaaaaaaaaaa\"; projection/other_weights = true; "
     "projection/identity = \"bbbbbbbbbbbbbbbb\"; model/identity = \"cccccccccccccccc\"",
     "FINGERPRINT_MISMATCH"},
    {"bench", "load_s = \"NaN\"", "NOT_FINITE MEMBER_TYPE NUMBER_AS_TEXT"},
    {"needle", "rungs/0/rows/0/prefill_s = null", "NOT_FINITE MEMBER_MISSING SPREAD_RECOUNT"},
    {"bench", "model/format = \"synthetic\"", "SYNTHETIC_UNLABELLED"},
    {"bench", "command = \"kakeya bench --synthetic tiny:f32\"", "SYNTHETIC_UNLABELLED"},
    {"bench", "settings/accept_trace = {\"kind\": \"geom\"}", "TRACE_UNLABELLED"},
    {"bench", "arms/dflash/accept_trace = {\"kind\": \"geom\"}", "TRACE_UNLABELLED"},
    {"bench", "command = \"kakeya bench --accept-trace geom:0.7:1\"", "TRACE_UNLABELLED"},
    /* what a device computes exactly; gate_exact_test.c has more */
    {"bench", "schema = 4", "EXACT_UNSAID"},
    {"bench",
     "schema = 4; machine/device = \"mlx\"; machine/exact_by = \"measured\"; "
     "machine/exact_rows = 8",
     "TIES_RECOUNT"},
    {"accept", "rows = []; lossless = null; sets/*/lossless = null; all/*/lossless = null",
     "MISSING_ROWS MEMBER_MISSING LOSSLESS_UNPROVEN PLAN_COUNTS"},
    {"memory", "rows/0/answers", "MISSING_ROWS"},

    /* the "restored" arm ran the native model: nothing was rebuilt */
    {"needle", "rungs/*/rows/*/restored_rows = 0; rungs/*/rows/*/reach/keys_rebuilt = 0",
     "RESTORED_NOTHING GATE_RECOUNT RESTORED_COUNTS"},
    {"sweep", "rows/0/answers/*/restored_rows = 0; rows/0/answers/*/reach/keys_rebuilt = 0",
     "RESTORED_NOTHING RESTORED_COUNTS"},
    {"memory", "rows/*/restored_rows = 0; rows/*/answers/*/restored_rows = 0",
     "RESTORED_NOTHING RESTORED_COUNTS REACH_MISMATCH"},
    {"bench", "sets/0/arms/dflash/kv_full = \"restored\"", "RESTORED_NOTHING"},
    /* it only says that it restored */
    {"needle", "rungs/4/rows/0/restored_rows; rungs/4/rows/0/restoration_active = true",
     "RESTORED_UNCOUNTED GATE_RECOUNT MEMBER_MISSING RESTORED_COUNTS CONSTANT"},
    {"needle", "rungs/4/bytes/kv.latents = 0", "RESTORED_NO_LATENTS GATE_RECOUNT"},
    {"memory", "rows/10/bytes/kv.latents = 0", "RESTORED_NO_LATENTS GROWTH_RECOUNT"},
    {"needle", "rungs/4/rows/2/restored_rows = 0; rungs/4/rows/2/reach/keys_rebuilt = 0",
     "MIXED_PATHS GATE_RECOUNT RESTORED_COUNTS"},
    {"memory", "rows/10/restored_rows = 0", "MIXED_PATHS RESTORED_COUNTS"},
    {"bench", "sets/0/arms/plain/rows/1/restored_rows = 5", "MIXED_PATHS"},
    {"bench", "sets/0/arms/plain/rows/*/restored_rows = 5", "BASELINE_RESTORED"},
    /* the baseline stands in for what is under test */
    {"needle", "arms/restored = @arms/exact", "BASELINE_AS_SUT POLICY_WORDS MEMBER_MISSING"},
    {"needle", "gate/checks/2/arm = \"exact\"", "BASELINE_AS_SUT GATE_LIMITS"},
    {"memory", "rows/5/kv_format = \"bf16\"; rows/1/kv_format = \"bf16\"", "BASELINE_AS_SUT"},
    {"needle", "rungs/4/rows/0/reach/keys_rebuilt = 0", "REACH_MISMATCH RESTORED_COUNTS"},
    {"needle", "rungs/0/rows/0/reach/queries = 0", "REACH_MISMATCH NOT_POSITIVE"},

    /* decoding by policy: the restored one rebuilt nothing, or stands for another */
    {"bench",
     "policies/2/arms/plain/rows/*/restored_rows = 0; "
     "policies/2/arms/plain/rows/*/reach/keys_rebuilt = 0",
     "RESTORED_NOTHING POLICY_RECOUNT RESTORED_COUNTS"},
    {"bench", "policies/2/arms/plain/rows/0/restored_rows",
     "RESTORED_UNCOUNTED POLICY_RECOUNT MEMBER_MISSING RESTORED_COUNTS"},
    {"bench", "policies/2/bytes/kv.latents = 0", "RESTORED_NO_LATENTS"},
    {"bench", "policies/0/arms/plain/rows/*/restored_rows = 5",
     "BASELINE_RESTORED REACH_MISMATCH POLICY_RECOUNT"},
    {"bench", "policies/1 = @policies/0", "BASELINE_AS_SUT"},
    {"bench", "policies/0", "POLICY_RECOUNT PLAN_COUNTS RESTORED_COUNTS"},
    {"bench", "policies/2/ratio = 1.5", "POLICY_RECOUNT"},
    {"bench", "policies/2/arms/plain/token_ms/max = 99.0", "POLICY_RECOUNT"},
    {"bench", "policies/2/arms/dflash/rows_per_token = 100.0", "POLICY_RECOUNT"},
    {"bench", "policies/1/arms/plain/keys_per_query/stored = 929.0", "POLICY_RECOUNT"},
    {"bench", "policies/2/arms/dflash/rows/1/logits_hash = \"0123456789abcdef\"",
     "LOSSLESS_CONTRADICTED"},
    /* sessions together: another ratio, other logits, a session that nobody looked at */
    {"bench", "sessions/ratio = 8.0", "SESSIONS_RECOUNT"},
    {"bench", "sessions/logits_hashes/1/together = \"0000000000000000\"", "SESSIONS_RECOUNT"},
    {"bench", "sessions/together/rows/0/different = 1", "SESSIONS_RECOUNT"},
    {"bench", "sessions/arrival/identical = false", "SESSIONS_RECOUNT"},
    {"bench", "sessions/n = 8", "SESSIONS_RECOUNT"},
    {"bench", "sessions/rounds = 0", "SESSIONS_RECOUNT NOT_POSITIVE"},
    {"bench", "sessions/together/rows/0/tokens = 9999", "RATE_RECOUNT SPREAD_RECOUNT"},
    /* ways to sample: another ratio, none to hold it against */
    {"bench", "sampling/ways/1/of_greedy = 0.99", "SAMPLING_RECOUNT"},
    {"bench", "sampling/ways/0/way = \"temp\"", "SAMPLING_RECOUNT"},
    {"bench", "policies/2/arms/dflash/speedup = 8.0", "SPEEDUP_RECOUNT"},
    {"bench", "policies/0/warm_up/0 = @policies/0/arms/plain/rows/2/prompt", "SPEEDUP_WARM_UP"},
    {"bench", "policies/2/arms/dflash/accept_trace = {\"kind\": \"geom\"}", "TRACE_UNLABELLED"},

    /* recall of nothing is always perfect */
    {"sweep", "rows/*/answers/*/expected = \"\"", "EMPTY_NEEDLE RECALL_RECOUNT PLAN_DOCUMENTS"},
    {"needle", "rungs/2/rows/0/hit = true", "RECALL_RECOUNT"},
    {"needle", "rungs/4/rows/0/answer = \"The code is ALPHA-55061.\"", "RECALL_RECOUNT"},
    {"needle", "rungs/2/hits = 5", "RECALL_RECOUNT"},
    {"kv", "rows/2/samples = 50", "RECALL_RECOUNT"},
    {"sweep", "rows/1/recall = 0.9", "RECALL_RECOUNT"},
    {"needle", "settings/ladder = [20, 60, 280]", "RECALL_SCOPE PLAN_COUNTS"},
    {"needle", "rungs/4/rows/0/expected = \"OAK-1000\"; rungs/4/rows/0/answer = \"OAK-1000\"",
     "RECALL_SCOPE PLAN_DOCUMENTS"},
    /* judged by recall, which is blind to everything else */
    {"needle", "quality = []; sums = []; gate/checks/3",
     "RECALL_ALONE GATE_RECOUNT PLAN_COUNTS GATE_LIMITS"},

    {"needle", "sums/1/mean_kl = 0.002", "KL_RECOUNT"},
    {"needle", "sums/1/worst_kl = 0.05", "KL_RECOUNT"},
    {"needle", "sums/0/loss_change = 0.0", "KL_RECOUNT"},
    {"sweep", "rows/0/mean_kl = 0.1", "KL_RECOUNT"},
    {"memory", "rows/10/mean_kl = 0.01", "KL_RECOUNT"},
    {"kv", "rows/1/quality/*/rows = 9", "KL_ROWS KL_RECOUNT PLAN_COUNTS"},
    {"needle", "quality/0/worst_kl = 0.0001", "KL_RANGE"},
    /* the identity changes something */
    {"kv",
     "rows/0/quality = @rows/1/quality; rows/0/mean_kl = @rows/1/mean_kl; rows/0/worst_kl = "
     "@rows/1/worst_kl",
     "KL_RANGE"},
    /* the ratio of a training report is of something else */
    {"projection", "stages/1/layers/0/rel_mse = 0.001", "REL_MSE_RECOUNT"},
    {"projection", "stages/1/rel_mse/full = 0.001", "REL_MSE_RECOUNT"},
    {"sweep", "rows/0/layers", "REL_MSE_RECOUNT MEMBER_MISSING"},
    {"kv", "rows/2/layers/1/power", "REL_MSE_RECOUNT"},
    {"kv", "rows/2/bits = 4.0", "BITS_RECOUNT"},
    {"kv", "rows/2/stored_bytes", "BITS_RECOUNT MEMBER_MISSING"},
    {"sweep", "knee = 0.5", "KNEE_RECOUNT"},
    {"projection", "evaluation/seeds = [1000, 1002]", "SEEDS_OVERLAP"},
    {"projection", "train/seeds", "SEEDS_OVERLAP"},
    /* a lambda that does nothing */
    {"projection", "curve/*/weights/cos_k = 0.0", "LOSS_RECOUNT"},

    /* gates that cannot fail */
    {"needle", "gate/architectural_correctness = true", "GATE_CONSTANT CONSTANT"},
    {"needle", "gate/checks = []", "GATE_CONSTANT MEMBER_MISSING GATE_LIMITS"},
    {"needle", "gate/checks/4/limit = 0.001", "GATE_RECOUNT GATE_LIMITS"},
    {"needle", "gate/checks/4/value = 43.9", "GATE_RECOUNT"},
    {"needle", "gate/holds = false", "GATE_RECOUNT"},
    {"needle", "gate/checks/0/figure = \"vibes\"", "GATE_RECOUNT GATE_LIMITS"},

    /* a mean of rates, with one sample that was warm */
    {"bench", "sets/0/arms/dflash/tok_s = 2600.0", "RATE_RECOUNT SPEEDUP_RECOUNT"},
    {"bench", "sets/0/arms/plain/rows/0/seconds = 9.0",
     "RATE_RECOUNT SPREAD_RECOUNT ROUND_TIMES RUNS_RECOUNT"},
    {"bench", "arms/plain/tokens = 9000", "RATE_RECOUNT"},
    {"needle", "rungs/0/decode_tok_s = 2000.0", "RATE_RECOUNT"},
    {"bench", "sets/0/arms/dflash/tok_s_spread", "SPREAD_MISSING MEMBER_MISSING"},
    {"needle", "rungs/3/prefill_tok_s_spread = {\"median\": 1.0}",
     "SPREAD_MISSING MEMBER_MISSING SPREAD_RECOUNT"},
    {"bench", "sets/1/arms/plain/tok_s_spread/min = 99999.0", "SPREAD_ORDER SPREAD_RECOUNT"},
    {"bench", "arms/plain/decode_tok_s/samples = [1800.0, 1801.0, 1802.0]",
     "SPREAD_ORDER PLAN_COUNTS SPREAD_RECOUNT SHARE_RECOUNT"},
    /* the speed-up of a path that never ran */
    {"bench",
     "arms/dflash/drafted = 0; arms/dflash/accepted = 0; arms/dflash/accept_len = 1; "
     "arms/dflash/histogram",
     "DRAFTING_NEVER_RAN SPEEDUP_SELF SPEEDUP_DRAFTS"},
    {"accept", "all/0/drafted = 0; all/0/accepted = 0; all/0/length; all/0/histogram",
     "DRAFTING_NEVER_RAN MEMBER_MISSING"},
    {"accept", "all/0/rate = 0.9", "ACCEPT_RECOUNT"},
    {"accept", "sets/0/histogram/0 = 99", "ACCEPT_RECOUNT"},
    /* lossless by the look of the text */
    {"bench", "sets/0/arms/dflash/rows/0/runs/0/logits_hash", "LOSSLESS_UNPROVEN MEMBER_MISSING"},
    {"accept", "rows/*/tokens_hash", "LOSSLESS_UNPROVEN MEMBER_MISSING"},
    {"lossless", "compared = [\"tokens\"]", "CASES_COMPARED"},
    {"accept", "rows/0/tokens_hash = \"0123456789abcdef\"", "LOSSLESS_CONTRADICTED"},
    {"bench", "sets/0/arms/dflash/different = 1", "LOSSLESS_CONTRADICTED"},
    {"lossless", "mismatches = 2", "CASES_DIFFER"},
    {"lossless", "cases_by/format/bf16 = 31", "CASES_RECOUNT CASES_PLAN"},

    {"bench", "arms/dflash/speedup = 1.5", "SPEEDUP_RECOUNT"},
    {"compare", "decode_ratio/median = 1.13", "SPEEDUP_RECOUNT SHARE_RECOUNT"},
    /* native against native: the noise of a machine */
    {"bench", "arms/plain/speedup = 2.18", "SPEEDUP_RECOUNT SPEEDUP_SELF"},
    {"bench", "arms/dflash/baseline = \"dflash\"; arms/dflash/speedup = 1.27",
     "SPEEDUP_RECOUNT SPEEDUP_SELF SPEEDUP_BASELINE"},
    /* a baseline that could have been faster */
    {"bench",
     "sets/0/arms/fused = {\"tok_s\": 9000.0, \"tok_s_spread\": {\"median\": 9000.0, "
     "\"min\": 9000.0, \"max\": 9000.0, \"n\": 1}}",
     "SPEEDUP_BASELINE MEMBER_MISSING LOSSLESS_UNPROVEN PLAN_COUNTS ROUND_TIMES ARMS_UNPAIRED"},
    {"bench", "sets/0/arms/plain/rows; sets/0/arms/plain/lossless = null",
     "SPEEDUP_ROWS MEMBER_MISSING LOSSLESS_UNPROVEN PLAN_COUNTS SPREAD_RECOUNT ARMS_UNPAIRED "
     "TOKENS_RECOUNT"},
    {"compare", "decode_ratio/n = 3", "SPEEDUP_SAMPLES SHARE_RECOUNT"},
    {"bench", "sets/0/arms/plain/rows/5; sets/0/arms/plain/rows/4",
     "RATE_RECOUNT SPEEDUP_SAMPLES LOSSLESS_UNPROVEN PLAN_COUNTS SPREAD_RECOUNT SHARE_RECOUNT "
     "ROUND_TIMES ARMS_UNPAIRED TOKENS_RECOUNT"},
    /* half of the answers are seven tokens long */
    {"bench", "sets/0/arms/dflash/rows/*/tokens = 7",
     "RATE_RECOUNT SPEEDUP_TOKENS SPREAD_RECOUNT ARMS_UNPAIRED TOKENS_RECOUNT"},
    {"bench", "sets/0/warm_up/0 = @sets/0/arms/plain/rows/0/prompt", "SPEEDUP_WARM_UP"},
    {"bench", "sets/1/warm_up", "SPEEDUP_WARM_UP MEMBER_MISSING"},
    {"bench", "sets/0/arms/plain/rows/3/prefill_s = 5.0", "SPEEDUP_PREFILL"},
    {"bench", "sets/0/arms/plain/timing = \"all\"", "SPEEDUP_SCOPE"},

    /* bytes that leave out what is resident */
    {"needle", "rungs/0/bytes/kv.drafter", "BYTES_CATEGORY"},
    {"needle", "rungs/0/bytes/kv.mirror = 16711680", "BYTES_CATEGORY"},
    {"bench", "bytes = 16711680", "BYTES_CATEGORY MEMBER_TYPE"},
    {"kv", "rows/1/bytes/kv.full = -1", "BYTES_CATEGORY WEIGHTS_MISMATCH"},
    {"memory", "settings/formula = {\"kv.full\": 1024}", "FORMULA_ALONE"},
    {"memory", "rows/1/formula = {\"kv.full\": 69632}", "FORMULA_MISMATCH"},
    {"needle", "savings_vs_naive_pct = 89.8", "MEMORY_CLAIM"},
    {"bench", "resident_kv_bytes = 16711680", "MEMORY_CLAIM"},
    {"bench", "attention/formats/1/kv_ratio = 0.25", "MEMORY_CLAIM"},
    {"bench", EXPERTS("3", "1", "0.8"), "MEMORY_CLAIM"},
    {"bench", EXPERTS("-1", "5", "-0.25"), "NOT_POSITIVE"},
    {"bench", EXPERTS("0.5", "1.5", "0.25"), "NOT_WHOLE"},
    {"memory", "growth/2/ratio = 43.9", "GROWTH_RECOUNT"},
    {"memory", "growth/0/bytes_per_token = 5.0", "GROWTH_RECOUNT"},
    {"memory", "growth/0/to = 131072", "GROWTH_RECOUNT"},
    /* times of rounds; more in gate_rounds_test.c */
    {"bench", "arms/plain/round_times = {\"n\": 3}", "ROUND_TIMES"},
    /* steps; more in steps_test.c */
    {"steps", "steps/0/speed_ratio = 0.97", "STEPS_RECOUNT"},
};
enum { LIES = sizeof lies / sizeof *lies };

static void test_good(void **state) {
    static const char *const kinds[] = {"bench",  "needle",  "accept",   "sweep",      "kv",
                                        "memory", "compare", "lossless", "projection", "steps"};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) check_holds(kinds[i]);
}

static void test_lies(void **state) {
    (void)state;
    check_lies(lies, LIES);
}

/* No rule is without a lie that it catches, here or in gate_doctored_test.c. */
static void test_every_rule(void **state) {
    (void)state;
    char *other = NULL;
    size_t len;
    assert_ok(
        kk_file_read(KK_TEST_DATA "/../unit/gate_doctored_test.c", 1 << 20, &other, &len, why));
    for (size_t r = 0; r < kk_gate_count(); r++) {
        const kk_gate_rule rule = kk_gate_rule_at(r);
        bool caught = strstr(other, rule.code) != NULL;
        for (size_t i = 0; i < LIES; i++) caught |= listed(lies[i].codes, rule.code);
        if (!caught) fail_msg("no doctored report is refused with %s", rule.code);
        assert_true(strlen(rule.text) > 10);
    }
    kk_free(other);
    /* And the list has the first rule and the last. */
    bool first = false, last = false;
    for (size_t r = 0; r < kk_gate_count(); r++) {
        first |= strcmp(kk_gate_rule_at(r).code, "MISSING_ENVELOPE") == 0;
        last |= strcmp(kk_gate_rule_at(r).code, "STEPS_RECOUNT") == 0;
        if (strcmp(kk_gate_rule_at(r).code, "SPEEDUP_RECOUNT") == 0)
            assert_string_equal(kk_gate_rule_at(r).kinds, "bench compare steps");
        if (strcmp(kk_gate_rule_at(r).code, "MISSING_ENVELOPE") == 0)
            assert_string_equal(kk_gate_rule_at(r).kinds, "");
    }
    assert_true(first && last);
}

/* ---- what is no report of ours ------------------------------------------------------------- */

static void refused_text(const char *text, const char *code, const char *says) {
    kk_verdict v = judge_text(text);
    assert_int_equal(v.violations, 1);
    assert_string_equal(v.finding[0].code, code);
    if (!strstr(v.finding[0].text, says)) fail_msg("'%s' is not in '%s'", says, v.finding[0].text);
    kk_verdict_release(&v);
}

static void test_no_report(void **state) {
    (void)state;
    refused_text("", "EMPTY_FILE", "nothing");
    refused_text(" \n", "EMPTY_FILE", "nothing");
    refused_text("{\"kind\":\n  oops}", "NOT_JSON", "line 2, column 6");
    refused_text("{\"kind\": 1e999}", "NOT_JSON", "line 1");
    refused_text("{\"kind\": \"kv\", \"kind\": \"kv\"}", "NOT_JSON", "kind");
    refused_text("[1]", "NOT_A_REPORT", "object");
    refused_text("{\"vocab_size\": 3}", "NOT_A_REPORT", "neither its `schema` nor its `kind`");
    refused_text("{\"schema\": 5, \"kind\": \"needle\"}", "FUTURE_SCHEMA", "schema 5 is newer");
    refused_text("{\"schema\": \"1\", \"kind\": \"needle\"}", "BAD_SCHEMA", "number");
    refused_text("{\"schema\": 0, \"kind\": \"needle\"}", "BAD_SCHEMA", "number");
    refused_text("{\"schema\": 1, \"kind\": \"horoscope\"}", "UNKNOWN_KIND", "horoscope");
    refused_text("{\"kind\": \"needle\"}", "BAD_SCHEMA", "schema");
    kk_verdict v = judge_text("{\"vocab_size\": 3}");
    assert_true(v.other); /* in a folder it is passed over */
    kk_verdict_release(&v);
    v = judge_text("{\"schema\": 1, \"vocab_size\": 3}");
    assert_false(v.other);
    kk_verdict_release(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_every_rule),
        cmocka_unit_test(test_no_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
