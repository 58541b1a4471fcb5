/* kind_kv.c - reports of `kakeya eval kv`: what they hold, and the rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/formats", KK_MEMBER_LIST, 0},
    {"settings/ladder", KK_MEMBER_LIST, 0},
    {"settings/samples", KK_MEMBER_SIZE, 0},
    {"settings/seed", KK_MEMBER_COUNT, 0},
    {"settings/texts", KK_MEMBER_OBJECT, 0},
    {"rows", KK_MEMBER_LIST, 0},
    {"rows/*/format", KK_MEMBER_TEXT, 0},
    {"rows/*/values", KK_MEMBER_SIZE, 0},
    {"rows/*/stored_bytes", KK_MEMBER_SIZE, 0},
    {"rows/*/bits", KK_MEMBER_RATE, 0},
    {"rows/*/rel_mse/all", KK_MEMBER_NUMBER, 0},
    {"rows/*/layers", KK_MEMBER_LIST, 0},
    {"rows/*/samples", KK_MEMBER_SIZE, 0},
    {"rows/*/hits", KK_MEMBER_COUNT, 0},
    {"rows/*/recall", KK_MEMBER_NUMBER, 0},
    {"rows/*/answers", KK_MEMBER_LIST, 0},
    {"rows/*/answers/*/lines", KK_MEMBER_SIZE, 0},
    {"rows/*/answers/*/tokens", KK_MEMBER_SIZE, 0},
    {"rows/*/answers/*/hit", KK_MEMBER_BOOL, 0},
    {"rows/*/answers/*/generated", KK_MEMBER_SIZE, 0},
    {"rows/*/answers/*/prefill_s", KK_MEMBER_TIME, 0},
    {"rows/*/quality", KK_MEMBER_LIST, 0},
    {"rows/*/quality/*/text", KK_MEMBER_TEXT, 0},
    {"rows/*/quality/*/rows", KK_MEMBER_SIZE, 0},
    {"rows/*/quality/*/mean_kl", KK_MEMBER_NUMBER, 0},
    {"rows/*/quality/*/worst_kl", KK_MEMBER_NUMBER, 0},
    {"rows/*/mean_kl", KK_MEMBER_NUMBER, 0},
    {"rows/*/worst_kl", KK_MEMBER_NUMBER, 0},
    {"rows/*/bytes", KK_MEMBER_OBJECT, 0},
};

static const kk_gate_group *const groups[] = {&kk_group_bits};

KK_GATE_KIND(kv, members, groups);
