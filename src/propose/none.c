/* none.c - the proposer of plain decoding. */
#include "propose/propose.h"

static int32_t draft_nothing(void *self, const int32_t *tokens, int32_t len, int32_t *out,
                             int32_t max) {
    (void)self, (void)tokens, (void)len, (void)out, (void)max;
    return 0;
}

const kk_proposer kk_propose_none = {.name = "none", .draft = draft_nothing};
