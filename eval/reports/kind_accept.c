/* kind_accept.c - reports of `kakeya eval accept`: what they hold, and the
 * rules they are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/spec", KK_MEMBER_TEXT},
    {"settings/samples", KK_MEMBER_SIZE},
    {"settings/draft_max", KK_MEMBER_COUNT},
    {"lossless", KK_MEMBER_BOOL},
    {"sets", KK_MEMBER_LIST},
    {"all", KK_MEMBER_LIST},
    {"sets/*/set", KK_MEMBER_TEXT},
    {"sets/*/prompts", KK_MEMBER_SIZE},
    {"sets/*/tokens", KK_MEMBER_SIZE},
    {"sets/*/rounds", KK_MEMBER_SIZE},
    {"sets/*/drafted", KK_MEMBER_COUNT},
    {"sets/*/accepted", KK_MEMBER_COUNT},
    {"sets/*/rate", KK_MEMBER_NUMBER},
    {"sets/*/length", KK_MEMBER_RATE},
    {"sets/*/histogram", KK_MEMBER_LIST},
    {"sets/*/lossless", KK_MEMBER_BOOL},
    {"sets/*/different", KK_MEMBER_COUNT},
    {"all/*/prompts", KK_MEMBER_SIZE},
    {"all/*/tokens", KK_MEMBER_SIZE},
    {"all/*/rounds", KK_MEMBER_SIZE},
    {"all/*/drafted", KK_MEMBER_COUNT},
    {"all/*/accepted", KK_MEMBER_COUNT},
    {"all/*/histogram", KK_MEMBER_LIST},
    {"all/*/lossless", KK_MEMBER_BOOL},
    {"rows", KK_MEMBER_LIST},
    {"rows/*/set", KK_MEMBER_TEXT},
    {"rows/*/prompt", KK_MEMBER_HASH},
    {"rows/*/text", KK_MEMBER_HASH},
    {"rows/*/tokens", KK_MEMBER_SIZE},
    {"rows/*/rounds", KK_MEMBER_COUNT},
    {"rows/*/drafted", KK_MEMBER_COUNT},
    {"rows/*/accepted", KK_MEMBER_COUNT},
    {"rows/*/plain/tokens_hash", KK_MEMBER_HASH},
    {"rows/*/plain/logits_hash", KK_MEMBER_HASH},
    {"rows/*/tokens_hash", KK_MEMBER_HASH},
    {"rows/*/logits_hash", KK_MEMBER_HASH},
};

static const kk_gate_group *const groups[] = {&kk_group_drafting, &kk_group_pairs};

KK_GATE_KIND(accept, members, groups);
