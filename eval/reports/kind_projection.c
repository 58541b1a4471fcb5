/* kind_projection.c - reports of `kakeya train projection`: what they hold, and the rules they are
 * held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/rank", KK_MEMBER_SIZE},      {"settings/loss", KK_MEMBER_TEXT},
    {"settings/seed", KK_MEMBER_COUNT},     {"projection/rank", KK_MEMBER_SIZE},
    {"projection/params", KK_MEMBER_SIZE},  {"train/sequences", KK_MEMBER_SIZE},
    {"train/tokens", KK_MEMBER_SIZE},       {"evaluation/texts", KK_MEMBER_COUNT},
    {"evaluation/rows", KK_MEMBER_COUNT},   {"stages", KK_MEMBER_LIST},
    {"stages/*/loss", KK_MEMBER_TEXT},      {"stages/*/steps", KK_MEMBER_COUNT},
    {"stages/*/seconds", KK_MEMBER_NUMBER}, {"curve?/*/step", KK_MEMBER_SIZE},
    {"curve?/*/loss", KK_MEMBER_NUMBER},    {"curve?/*/lr", KK_MEMBER_RATE},
    {"curve?/*/parts", KK_MEMBER_OBJECT},   {"curve?/*/weights", KK_MEMBER_OBJECT},
};

static const kk_gate_group *const groups[] = {&kk_group_training};

KK_GATE_KIND(projection, members, groups);
