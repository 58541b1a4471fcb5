/* kind_soak.c - reports of `make soak`: what they hold, and the rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/clients", KK_MEMBER_SIZE},
    {"settings/seconds", KK_MEMBER_TIME},
    {"settings/bucket_s", KK_MEMBER_TIME},
    {"settings/max_memory_drift", KK_MEMBER_NUMBER},
    {"settings/max_kv_range", KK_MEMBER_NUMBER},
    {"settings/max_prefill_growth_s", KK_MEMBER_NUMBER},
    {"buckets", KK_MEMBER_LIST},
    {"buckets/*/from_s", KK_MEMBER_NUMBER},
    {"buckets/*/turns", KK_MEMBER_SIZE},
    {"buckets/*/tokens", KK_MEMBER_SIZE},
    {"buckets/*/evaluated", KK_MEMBER_COUNT},
    {"buckets/*/failed", KK_MEMBER_COUNT},
    {"buckets/*/checked", KK_MEMBER_COUNT},
    {"buckets/*/different", KK_MEMBER_COUNT},
    {"buckets/*/resident", KK_MEMBER_SIZE},
    {"buckets/*/kv", KK_MEMBER_SIZE},
    {"buckets/*/latency_p05_s", KK_MEMBER_TIME},
    {"buckets/*/latency_median_s", KK_MEMBER_TIME},
    {"buckets/*/latency_p95_s", KK_MEMBER_TIME},
    {"buckets/*/first_median_s", KK_MEMBER_TIME},
    {"gate/checks", KK_MEMBER_LIST},
};

static const kk_gate_group *const groups[] = {&kk_group_serving};

KK_GATE_KIND(soak, members, groups);
