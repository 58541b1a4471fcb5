/* kind_memory.c - reports of `kakeya eval memory`: what they hold, and the
 * rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/tokens", KK_MEMBER_LIST, 0},
    {"settings/tokens/*", KK_MEMBER_SIZE, 0},
    {"settings/sink", KK_MEMBER_COUNT, 0},
    {"settings/window", KK_MEMBER_COUNT, 0},
    {"settings/chunk", KK_MEMBER_SIZE, 0},
    {"settings/filled", KK_MEMBER_BOOL, 0},
    {"settings/quality", KK_MEMBER_BOOL, 0},
    {"growth?/*/policy", KK_MEMBER_TEXT, 0},
    {"growth?/*/from", KK_MEMBER_SIZE, 0},
    {"growth?/*/to", KK_MEMBER_SIZE, 0},
    {"growth?/*/categories", KK_MEMBER_LIST, 0},
    {"growth?/*/bytes_per_token", KK_MEMBER_NUMBER, 0},
    {"rows", KK_MEMBER_LIST, 0},
    {"rows/*/policy", KK_MEMBER_TEXT, 0},
    {"rows/*/kv_sliding", KK_MEMBER_TEXT, 0},
    {"rows/*/kv_full", KK_MEMBER_TEXT, 0},
    {"rows/*/kv_format", KK_MEMBER_TEXT, 0},
    {"rows/*/tokens", KK_MEMBER_SIZE, 0},
    {"rows/*/bytes", KK_MEMBER_OBJECT, 0},
    {"rows/*/restored_rows", KK_MEMBER_COUNT, 0},
    {"rows/*/answers?/*/tokens", KK_MEMBER_SIZE, 0},
    {"rows/*/answers?/*/prefill_s", KK_MEMBER_TIME, 0},
};

static const kk_gate_group *const groups[] = {&kk_group_restored, &kk_group_growth};

KK_GATE_KIND(memory, members, groups);
