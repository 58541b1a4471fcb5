/* kind_memory.c - reports of `kakeya eval memory`: what they hold, and the
 * rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/tokens", KK_MEMBER_LIST},
    {"settings/tokens/*", KK_MEMBER_SIZE},
    {"settings/sink", KK_MEMBER_COUNT},
    {"settings/window", KK_MEMBER_COUNT},
    {"settings/chunk", KK_MEMBER_SIZE},
    {"settings/filled", KK_MEMBER_BOOL},
    {"settings/quality", KK_MEMBER_BOOL},
    {"projections?/*/rank", KK_MEMBER_SIZE},
    {"projections?/*/model", KK_MEMBER_HASH},
    {"projections?/*/fingerprint", KK_MEMBER_HASH},
    {"projections?/*/weight_bytes", KK_MEMBER_SIZE},
    {"growth?/*/policy", KK_MEMBER_TEXT},
    {"growth?/*/from", KK_MEMBER_SIZE},
    {"growth?/*/to", KK_MEMBER_SIZE},
    {"growth?/*/categories", KK_MEMBER_LIST},
    {"growth?/*/bytes_per_token", KK_MEMBER_NUMBER},
    {"rows", KK_MEMBER_LIST},
    {"rows/*/policy", KK_MEMBER_TEXT},
    {"rows/*/kv_sliding", KK_MEMBER_TEXT},
    {"rows/*/kv_full", KK_MEMBER_TEXT},
    {"rows/*/kv_format", KK_MEMBER_TEXT},
    {"rows/*/tokens", KK_MEMBER_SIZE},
    {"rows/*/bytes", KK_MEMBER_OBJECT},
    {"rows/*/restored_rows", KK_MEMBER_COUNT},
    {"rows/*/answers?/*/tokens", KK_MEMBER_SIZE},
    {"rows/*/answers?/*/prefill_s", KK_MEMBER_TIME},
    {"rows/*/answers?/*/hit", KK_MEMBER_BOOL},
    {"rows/*/answers?/*/generated", KK_MEMBER_SIZE},
    {"rows/*/answers?/*/restored_rows", KK_MEMBER_COUNT},
    {"rows/*/quality?/*/mean_kl", KK_MEMBER_NUMBER},
    {"rows/*/quality?/*/worst_kl", KK_MEMBER_NUMBER},
};

static const kk_gate_group *const groups[] = {&kk_group_restored, &kk_group_growth};

KK_GATE_KIND(memory, members, groups);
