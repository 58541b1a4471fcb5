/* haystack.c - draws documents, writes them, and judges answers. */
#include "eval/texts/haystack.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"

static const char *const prefixes[] = {"ALPHA",  "BETA", "GAMMA", "DELTA", "EPSILON",
                                       "ZETA",   "ETA",  "THETA", "IOTA",  "KAPPA",
                                       "ORCHID", "PINE", "MAPLE", "OAK",   "BIRCH"};
enum { PREFIXES = sizeof prefixes / sizeof *prefixes, MARGIN = 4 };

void kk_haystack_rung(int32_t n, int32_t *low, int32_t *high) {
    const int64_t least = (85 * (int64_t)n + 50) / 100, most = (115 * (int64_t)n + 50) / 100;
    *low = least > KK_HAYSTACK_LEAST_LINES ? (int32_t)least : KK_HAYSTACK_LEAST_LINES;
    *high = most > *low ? (int32_t)most : *low + 1;
}

kk_haystack kk_haystack_draw(kk_twister *t, int32_t low, int32_t high) {
    kk_haystack h = {.lines = kk_twister_between(t, low, high)};
    const char *prefix = prefixes[kk_twister_between(t, 0, PREFIXES - 1)];
    snprintf(h.code, sizeof h.code, "%s-%d", prefix, kk_twister_between(t, 1000, 9999));
    h.index = kk_twister_between(t, MARGIN, h.lines - MARGIN);
    return h;
}

kk_status kk_haystack_text(const kk_haystack *h, char **text, size_t *len, kk_err *err) {
    enum { LINE = 88, REST = 160 };
    const size_t cap = (size_t)h->lines * LINE + REST;
    size_t n = 0;
    char *out = kk_malloc(cap);
    *text = NULL;
    if (!out) return kk_fail(err, KK_ENOMEM, "no memory for a document of %d lines", h->lines);
    for (int32_t i = 0; i <= h->lines; i++) {
        if (i == h->index)
            n += (size_t)snprintf(out + n, cap - n,
                                  "\n**IMPORTANT: the secret access code is %s.**\n\n", h->code);
        if (i < h->lines)
            n += (size_t)snprintf(
                out + n, cap - n,
                "Note %04d: this line is unrelated padding and does not hold the answer.\n", i);
    }
    n += (size_t)snprintf(out + n, cap - n, "\nQuestion: What is the secret access code? Answer:");
    *text = out;
    *len = n;
    return KK_OK;
}

double kk_haystack_depth(const kk_haystack *h) { return (double)h->index / h->lines; }

bool kk_haystack_found(const kk_haystack *h, const char *answer) {
    const size_t len = strlen(h->code);
    for (const char *at = answer; (at = strstr(at, h->code)); at++) {
        const bool begins = at == answer || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[len])) return true;
    }
    return false;
}
