/* kind_kv.c - reports of `kakeya eval kv`: what they hold, and the rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/formats", KK_MEMBER_LIST},
    {"settings/ladder", KK_MEMBER_LIST},
    {"settings/samples", KK_MEMBER_SIZE},
    {"settings/seed", KK_MEMBER_COUNT},
    {"settings/texts", KK_MEMBER_OBJECT},
    {"rows", KK_MEMBER_LIST},
    {"rows/*/format", KK_MEMBER_TEXT},
    {"rows/*/values", KK_MEMBER_SIZE},
    {"rows/*/stored_bytes", KK_MEMBER_SIZE},
    {"rows/*/bits", KK_MEMBER_RATE},
    {"rows/*/rel_mse/all", KK_MEMBER_NUMBER},
    {"rows/*/layers", KK_MEMBER_LIST},
    {"rows/*/samples", KK_MEMBER_SIZE},
    {"rows/*/hits", KK_MEMBER_COUNT},
    {"rows/*/recall", KK_MEMBER_NUMBER},
    {"rows/*/answers", KK_MEMBER_LIST},
    {"rows/*/answers/*/lines", KK_MEMBER_SIZE},
    {"rows/*/answers/*/tokens", KK_MEMBER_SIZE},
    {"rows/*/answers/*/hit", KK_MEMBER_BOOL},
    {"rows/*/answers/*/generated", KK_MEMBER_SIZE},
    {"rows/*/answers/*/prefill_s", KK_MEMBER_TIME},
    {"rows/*/quality", KK_MEMBER_LIST},
    {"rows/*/quality/*/text", KK_MEMBER_TEXT},
    {"rows/*/quality/*/rows", KK_MEMBER_SIZE},
    {"rows/*/quality/*/mean_kl", KK_MEMBER_NUMBER},
    {"rows/*/quality/*/worst_kl", KK_MEMBER_NUMBER},
    {"rows/*/mean_kl", KK_MEMBER_NUMBER},
    {"rows/*/worst_kl", KK_MEMBER_NUMBER},
    {"rows/*/bytes", KK_MEMBER_OBJECT},
};

static const kk_gate_group *const groups[] = {&kk_group_bits};

KK_GATE_KIND(kv, members, groups);
