/* kind_load.c - reports of `make load`: what they hold, and the rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/clients", KK_MEMBER_SIZE},
    {"settings/turns", KK_MEMBER_SIZE},
    {"settings/predict", KK_MEMBER_SIZE},
    {"settings/requests", KK_MEMBER_COUNT},
    {"settings/specs", KK_MEMBER_SIZE},
    {"settings/ctx", KK_MEMBER_LIST},
    {"settings/ctx/*", KK_MEMBER_SIZE},
    {"settings/min_served", KK_MEMBER_NUMBER},
    {"settings/min_together", KK_MEMBER_LIST},
    {"settings/min_drafted", KK_MEMBER_NUMBER},
    {"settings/max_chunks", KK_MEMBER_NUMBER},
    {"arms", KK_MEMBER_LIST},
    {"arms/*/arm", KK_MEMBER_TEXT},
    {"arms/*/spec", KK_MEMBER_TEXT},
    {"arms/*/ctx", KK_MEMBER_SIZE},
    {"arms/*/streams", KK_MEMBER_SIZE},
    {"arms/*/tok_s", KK_MEMBER_RATE},
    {"arms/*/rows", KK_MEMBER_LIST},
    {"arms/*/rows/*/tokens", KK_MEMBER_SIZE},
    {"arms/*/rows/*/seconds", KK_MEMBER_TIME},
    {"identity", KK_MEMBER_LIST},
    {"identity/*/passes", KK_MEMBER_COUNT},
    {"identity/*/sessions_in_passes", KK_MEMBER_COUNT},
    {"identity/*/logprob_hashes", KK_MEMBER_LIST},
    {"identity/*/logprob_hashes/*/alone", KK_MEMBER_HASH},
    {"identity/*/logprob_hashes/*/together", KK_MEMBER_HASH},
    {"arrival/prompt", KK_MEMBER_SIZE},
    {"arrival/rows", KK_MEMBER_LIST},
    {"arrival/rows/*/alone_s", KK_MEMBER_TIME},
    {"arrival/rows/*/chunks", KK_MEMBER_SIZE},
    {"arrival/rows/*/first_s", KK_MEMBER_TIME},
    {"mixed/seconds", KK_MEMBER_TIME},
    {"mixed/rows", KK_MEMBER_LIST},
    {"mixed/rows/*/seconds", KK_MEMBER_TIME},
    {"mixed/rows/*/status", KK_MEMBER_COUNT},
    {"failed", KK_MEMBER_COUNT},
    {"gate/checks", KK_MEMBER_LIST},
};

static const kk_gate_group *const groups[] = {&kk_group_serving};

KK_GATE_KIND(load, members, groups);
