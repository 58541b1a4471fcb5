/* fuzz_counts.c - any bytes as counts of tokens: refused with a sentence, or ids and counts that a
 * short head can trust. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/counts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const kk_counts *c) {
    int64_t sum = 0;
    bool *seen = calloc((size_t)c->vocab, sizeof *seen);
    if (!seen || c->n < 0 || c->n > c->vocab) abort();
    for (int32_t i = 0; i < c->n; i++) {
        if (c->id[i] < 0 || c->id[i] >= c->vocab || seen[c->id[i]]) abort();
        if (c->count[i] < 1 || (i > 0 && c->count[i] > c->count[i - 1])) abort();
        seen[c->id[i]] = true;
        sum += c->count[i];
    }
    if (sum != c->tokens) abort();
    const double share = kk_counts_share(c, c->n / 2);
    if (!(share >= 0 && share <= 1)) abort();
    free(seen);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_counts c;
    kk_err err = {0};
    if (kk_counts_parse(&c, (const char *)data, size, "counts", &err) == KK_OK)
        check(&c);
    else if (err.msg[0] == '\0' || c.id || c.count)
        abort();
    kk_counts_free(&c);
    if (kk_live_blocks() != 0) abort();
    return 0;
}
