/* gate_steps_test.c - doctored reports of steps, each refused for what was changed in it. */
#define _GNU_SOURCE
#include "support/doctored.h"

#define TURNS "policies/1/arms/plain/rows/"
static const lie lies[] = {
    {"steps", "steps/0/speed_ratio = 0.97", "STEPS_RECOUNT"},
    {"steps", "steps/1/holds = false", "STEPS_RECOUNT"},
    {"steps", "steps/1", "STEPS_RECOUNT"},
    {"steps", "steps/0/arm = \"drafted\"", "STEPS_RECOUNT"},
    {"steps", "policies/1", "STEPS_RECOUNT GATE_RECOUNT"},
    {"steps", "gate/checks/0", "STEPS_RECOUNT GATE_LIMITS"}, /* whichever it is, it is missed */
    {"steps", "gate/checks/1", "STEPS_RECOUNT GATE_LIMITS"},
    {"steps", "gate/checks/6", "STEPS_RECOUNT"},
    {"steps", "gate/checks/7", "STEPS_RECOUNT"},
    {"steps", "gate/checks/8", "STEPS_RECOUNT"},
    {"steps", "gate/checks/0/limit = 0.2", "STEPS_RECOUNT GATE_LIMITS"},
    {"steps", "gate/checks/6/limit = 0.01", "STEPS_RECOUNT"},
    {"steps", "settings/min_restored_speed = 0.85", "STEPS_RECOUNT PLAN_COMMAND"},
    {"steps", "settings/max_kl = 0.01", "STEPS_RECOUNT PLAN_COMMAND GATE_LIMITS"},
    {"steps", "settings/repeat = 9", "STEPS_RECOUNT PLAN_COMMAND"},
    {"steps", "settings/predict = 64", "STEPS_RECOUNT PLAN_COMMAND"},
    {"steps", TURNS "4",
     "STEPS_RECOUNT GATE_RECOUNT RATE_RECOUNT LOSSLESS_UNPROVEN SPREAD_RECOUNT POLICY_RECOUNT "
     "ROUND_TIMES SPEEDUP_SAMPLES"},
    {"steps", TURNS "2/prompt = \"0123456789abcdef\"", "STEPS_RECOUNT"},
    {"steps", TURNS "2 = @" TURNS "1",
     "STEPS_RECOUNT GATE_RECOUNT RATE_RECOUNT LOSSLESS_CONTRADICTED SPREAD_RECOUNT POLICY_RECOUNT "
     "ROUND_TIMES"},
    {"steps", TURNS "1/seconds = 0.0001",
     "STEPS_RECOUNT GATE_RECOUNT RATE_RECOUNT SPREAD_RECOUNT POLICY_RECOUNT ROUND_TIMES"},
    {"steps", "policies/1/arms/dflash/drafted = 0", "STEPS_RECOUNT ACCEPT_RECOUNT"},
    {"steps", "policies/1/arms/dflash/rows/3/logits_hash = \"0123456789abcdef\"",
     "GATE_RECOUNT LOSSLESS_CONTRADICTED"},
    {"steps", "policies/1/arms/dflash/rows/0/tokens_hash = \"0123456789abcdef\"",
     "GATE_RECOUNT LOSSLESS_CONTRADICTED"},
    {"steps", "policies/1/arms/plain/round_times/longest_ms = 900", "ROUND_TIMES"},
    {"steps", "rungs/1/rows/0/hit = false", "RECALL_RECOUNT"},
    {"steps", "rungs/2/rows/*/restored_rows = 0",
     "RESTORED_NOTHING GATE_RECOUNT RESTORED_COUNTS REACH_MISMATCH"},
    {"steps", "rungs/1/bytes/kv.latents = 0", "RESTORED_NO_LATENTS"},
    {"steps", "policies/1/bytes/kv.latents = 0", "RESTORED_NO_LATENTS"},
    {"steps", "gate/holds = false", "GATE_RECOUNT"},
};

static void test_lies(void **state) {
    (void)state;
    check_holds("steps");
    check_lies(lies, sizeof lies / sizeof *lies);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
