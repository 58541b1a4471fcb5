/* kind_sweep.c - reports of `kakeya eval sweep`: what they hold, and the rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/alphas", KK_MEMBER_LIST},
    {"settings/ladder", KK_MEMBER_LIST},
    {"settings/samples", KK_MEMBER_SIZE},
    {"settings/seed", KK_MEMBER_COUNT},
    {"settings/kv_sliding", KK_MEMBER_TEXT},
    {"settings/kv_full", KK_MEMBER_TEXT},
    {"settings/texts", KK_MEMBER_OBJECT},
    {"knee", KK_MEMBER_NUMBER},
    {"identity/documents", KK_MEMBER_SIZE},
    {"identity/texts", KK_MEMBER_COUNT},
    {"identity/same_logits", KK_MEMBER_BOOL},
    {"exact/answers", KK_MEMBER_LIST},
    {"exact/answers/*/logits_hash", KK_MEMBER_HASH},
    {"rows", KK_MEMBER_LIST},
    {"rows/*/alpha", KK_MEMBER_NUMBER},
    {"rows/*/rel_mse/all", KK_MEMBER_NUMBER},
    {"rows/*/layers", KK_MEMBER_LIST},
    {"rows/*/samples", KK_MEMBER_SIZE},
    {"rows/*/hits", KK_MEMBER_COUNT},
    {"rows/*/recall", KK_MEMBER_NUMBER},
    {"rows/*/restored_rows", KK_MEMBER_COUNT},
    {"rows/*/answers", KK_MEMBER_LIST},
    {"rows/*/answers/*/lines", KK_MEMBER_SIZE},
    {"rows/*/answers/*/tokens", KK_MEMBER_SIZE},
    {"rows/*/answers/*/hit", KK_MEMBER_BOOL},
    {"rows/*/answers/*/generated", KK_MEMBER_SIZE},
    {"rows/*/answers/*/prefill_s", KK_MEMBER_TIME},
    {"rows/*/answers/*/restored_rows", KK_MEMBER_COUNT},
    {"rows/*/answers/*/reach/queries", KK_MEMBER_SIZE},
    {"rows/*/answers/*/logits_hash", KK_MEMBER_HASH},
    {"rows/*/quality", KK_MEMBER_LIST},
    {"rows/*/quality/*/text", KK_MEMBER_TEXT},
    {"rows/*/quality/*/rows", KK_MEMBER_SIZE},
    {"rows/*/quality/*/mean_kl", KK_MEMBER_NUMBER},
    {"rows/*/quality/*/worst_kl", KK_MEMBER_NUMBER},
    {"rows/*/mean_kl", KK_MEMBER_NUMBER},
    {"rows/*/worst_kl", KK_MEMBER_NUMBER},
};

static const kk_gate_group *const groups[] = {&kk_group_restored, &kk_group_knee};

KK_GATE_KIND(sweep, members, groups);
