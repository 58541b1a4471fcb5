/* kind_accept.c - reports of `kakeya eval accept`: what they hold, and the
 * rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/spec", KK_MEMBER_TEXT, 0},
    {"settings/samples", KK_MEMBER_SIZE, 0},
    {"settings/draft_max", KK_MEMBER_COUNT, 0},
    {"lossless", KK_MEMBER_BOOL, 0},
    {"sets", KK_MEMBER_LIST, 0},
    {"all", KK_MEMBER_LIST, 0},
    {"sets/*/set", KK_MEMBER_TEXT, 0},
    {"sets/*/prompts", KK_MEMBER_SIZE, 0},
    {"sets/*/tokens", KK_MEMBER_SIZE, 0},
    {"sets/*/rounds", KK_MEMBER_SIZE, 0},
    {"sets/*/drafted", KK_MEMBER_COUNT, 0},
    {"sets/*/accepted", KK_MEMBER_COUNT, 0},
    {"sets/*/rate", KK_MEMBER_NUMBER, 0},
    {"sets/*/length", KK_MEMBER_RATE, 0},
    {"sets/*/histogram", KK_MEMBER_LIST, 0},
    {"sets/*/lossless", KK_MEMBER_BOOL, 0},
    {"sets/*/different", KK_MEMBER_COUNT, 0},
    {"all/*/prompts", KK_MEMBER_SIZE, 0},
    {"all/*/tokens", KK_MEMBER_SIZE, 0},
    {"all/*/rounds", KK_MEMBER_SIZE, 0},
    {"all/*/drafted", KK_MEMBER_COUNT, 0},
    {"all/*/accepted", KK_MEMBER_COUNT, 0},
    {"all/*/histogram", KK_MEMBER_LIST, 0},
    {"all/*/lossless", KK_MEMBER_BOOL, 0},
    {"rows", KK_MEMBER_LIST, 0},
    {"rows/*/set", KK_MEMBER_TEXT, 0},
    {"rows/*/prompt", KK_MEMBER_HASH, 0},
    {"rows/*/text", KK_MEMBER_HASH, 2},
    {"rows/*/tokens", KK_MEMBER_SIZE, 0},
    {"rows/*/rounds", KK_MEMBER_COUNT, 0},
    {"rows/*/drafted", KK_MEMBER_COUNT, 0},
    {"rows/*/accepted", KK_MEMBER_COUNT, 0},
    {"rows/*/plain/tokens_hash", KK_MEMBER_HASH, 2},
    {"rows/*/plain/logits_hash", KK_MEMBER_HASH, 2},
    {"rows/*/tokens_hash", KK_MEMBER_HASH, 2},
    {"rows/*/logits_hash", KK_MEMBER_HASH, 2},
};

static const kk_gate_group *const groups[] = {&kk_group_drafting, &kk_group_pairs};

KK_GATE_KIND(accept, members, groups);
