/* kind_projection.c - reports of `kakeya train projection`: what they hold, and the rules they are
 * held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/rank", KK_MEMBER_SIZE, 0},      {"settings/loss", KK_MEMBER_TEXT, 0},
    {"settings/seed", KK_MEMBER_COUNT, 0},     {"projection/rank", KK_MEMBER_SIZE, 0},
    {"projection/params", KK_MEMBER_SIZE, 0},  {"train/sequences", KK_MEMBER_SIZE, 0},
    {"train/tokens", KK_MEMBER_SIZE, 0},       {"evaluation/texts", KK_MEMBER_COUNT, 0},
    {"evaluation/rows", KK_MEMBER_COUNT, 0},   {"stages", KK_MEMBER_LIST, 0},
    {"stages/*/loss", KK_MEMBER_TEXT, 0},      {"stages/*/steps", KK_MEMBER_COUNT, 0},
    {"stages/*/seconds", KK_MEMBER_NUMBER, 0}, {"curve?/*/step", KK_MEMBER_SIZE, 0},
    {"curve?/*/loss", KK_MEMBER_NUMBER, 0},    {"curve?/*/lr", KK_MEMBER_RATE, 0},
    {"curve?/*/parts", KK_MEMBER_OBJECT, 0},   {"curve?/*/weights", KK_MEMBER_OBJECT, 0},
};

static const kk_gate_group *const groups[] = {&kk_group_training};

KK_GATE_KIND(projection, members, groups);
