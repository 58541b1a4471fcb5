/* none.c - the proposer of plain decoding. */
#include "propose/propose.h"

static kk_status draft_nothing(kk_draft *drafts, int32_t n, kk_err *err) {
    (void)err;
    for (int32_t i = 0; i < n; i++) drafts[i].n = 0;
    return KK_OK;
}

const kk_proposer kk_propose_none = {.name = "none", .free = true, .draft = draft_nothing};
