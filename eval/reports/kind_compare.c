/* kind_compare.c - comparisons with other engines (bench/peers): what they hold, and the rules they
 * are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/predict", KK_MEMBER_SIZE, 0},
    {"settings/prefill", KK_MEMBER_SIZE, 0},
    {"peer/name", KK_MEMBER_TEXT, 0},
    {"peer/build", KK_MEMBER_TEXT, 0},
    {"decode_tok_s/kakeya", KK_MEMBER_SPREAD, 0},
    {"decode_tok_s/peer", KK_MEMBER_SPREAD, 0},
    {"prefill_tok_s/kakeya", KK_MEMBER_SPREAD, 0},
    {"prefill_tok_s/peer", KK_MEMBER_SPREAD, 0},
    {"decode_ratio", KK_MEMBER_SPREAD, 0},
    {"prefill_ratio", KK_MEMBER_SPREAD, 0},
    {"rows", KK_MEMBER_LIST, 0},
    {"rows/*/turn", KK_MEMBER_SIZE, 0},
    {"rows/*/kakeya/decode", KK_MEMBER_RATE, 0},
    {"rows/*/kakeya/prefill", KK_MEMBER_RATE, 0},
    {"rows/*/peer/decode", KK_MEMBER_RATE, 0},
    {"rows/*/peer/prefill", KK_MEMBER_RATE, 0},
    {"exactness?/limit", KK_MEMBER_RATE, 0},
    {"exactness?/holds", KK_MEMBER_BOOL, 0},
    {"exactness?/arms", KK_MEMBER_LIST, 0},
    {"exactness?/arms/*/logits/rms", KK_MEMBER_RATE, 0},
};

static const kk_gate_group *const groups[] = {&kk_group_speedup};

KK_GATE_KIND(compare, members, groups);
