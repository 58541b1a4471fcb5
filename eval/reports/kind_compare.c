/* kind_compare.c - comparisons with other engines (bench/peers): what they hold, and the rules they
 * are held to. */
#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/predict", KK_MEMBER_SIZE},
    {"settings/prefill", KK_MEMBER_SIZE},
    {"peer/name", KK_MEMBER_TEXT},
    {"peer/build", KK_MEMBER_TEXT},
    {"decode_tok_s/kakeya", KK_MEMBER_SPREAD},
    {"decode_tok_s/peer", KK_MEMBER_SPREAD},
    {"prefill_tok_s/kakeya", KK_MEMBER_SPREAD},
    {"prefill_tok_s/peer", KK_MEMBER_SPREAD},
    {"decode_ratio", KK_MEMBER_SPREAD},
    {"prefill_ratio", KK_MEMBER_SPREAD},
    {"rows", KK_MEMBER_LIST},
    {"rows/*/turn", KK_MEMBER_SIZE},
    {"rows/*/kakeya/decode", KK_MEMBER_RATE},
    {"rows/*/kakeya/prefill", KK_MEMBER_RATE},
    {"rows/*/peer/decode", KK_MEMBER_RATE},
    {"rows/*/peer/prefill", KK_MEMBER_RATE},
    {"contexts?/*/ctx", KK_MEMBER_SIZE},
    {"contexts?/*/decode_tok_s/kakeya", KK_MEMBER_SPREAD},
    {"3:contexts?/*/decode_tok_s/kakeya/samples", KK_MEMBER_LIST},
    {"contexts?/*/decode_tok_s/peer", KK_MEMBER_SPREAD},
    {"3:contexts?/*/decode_tok_s/peer/samples", KK_MEMBER_LIST},
    {"forwards?/*/ms", KK_MEMBER_TIME},
    {"3:forwards?/*/samples_ms", KK_MEMBER_LIST},
    {"forwards?/*/peer_ms", KK_MEMBER_SPREAD},
    {"3:forwards?/*/peer_ms/samples", KK_MEMBER_LIST},
    {"exactness?/limit", KK_MEMBER_RATE},
    {"exactness?/holds", KK_MEMBER_BOOL},
    {"exactness?/arms", KK_MEMBER_LIST},
    {"exactness?/arms/*/logits/rms", KK_MEMBER_RATE},
};

static const kk_gate_group *const groups[] = {&kk_group_speedup};

KK_GATE_KIND(compare, members, groups);
