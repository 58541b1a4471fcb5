/* stops.c - see stops.h.
 *
 * The first text to be complete ends the answer; of several that end at the same byte, the longest
 * does.  Texts are few and short, so that comparing afresh at every byte costs less than a
 * table of transitions would take to explain. */
#include "format/stops.h"

#include <string.h>

#include "core/alloc.h"

kk_status kk_stops_init(kk_stops *s, const char *const *texts, size_t n, kk_err *err) {
    size_t longest = 0;
    *s = (kk_stops){0};
    if (n == 0) return KK_OK;
    s->texts = kk_calloc(n, sizeof *s->texts);
    s->lens = kk_calloc(n, sizeof *s->lens);
    if (!s->texts || !s->lens) goto no_memory;
    for (; s->n < n; s->n++) {
        const size_t len = strlen(texts[s->n]);
        if (len == 0) {
            kk_stops_release(s);
            return kk_fail(err, KK_EINVAL, "a stop text is empty");
        }
        if (!(s->texts[s->n] = kk_strndup(texts[s->n], len))) goto no_memory;
        s->lens[s->n] = len;
        if (len > longest) longest = len;
    }
    if (!(s->held = kk_malloc(longest + 1))) goto no_memory;
    return KK_OK;
no_memory:
    kk_stops_release(s);
    return kk_fail(err, KK_ENOMEM, "no memory for %zu stop texts", n);
}

void kk_stops_release(kk_stops *s) {
    for (size_t i = 0; i < s->n; i++) kk_free(s->texts[i]);
    kk_free(s->texts);
    kk_free(s->lens);
    kk_free(s->held);
    *s = (kk_stops){0};
}

/* Length of the longest text that the held bytes end with; 0: none. */
static size_t complete(const kk_stops *s) {
    size_t best = 0;
    for (size_t i = 0; i < s->n; i++) {
        const size_t len = s->lens[i];
        if (len > best && len <= s->n_held &&
            memcmp(s->held + s->n_held - len, s->texts[i], len) == 0)
            best = len;
    }
    return best;
}

static bool begins_one(const kk_stops *s, const char *bytes, size_t n) {
    for (size_t i = 0; i < s->n; i++)
        if (n <= s->lens[i] && memcmp(bytes, s->texts[i], n) == 0) return true;
    return false;
}

size_t kk_stops_push(kk_stops *s, char c) {
    s->held[s->n_held++] = c;
    const size_t len = complete(s);
    if (len > 0) {
        s->found = true;
        return s->n_held - len;
    }
    size_t pass = 0;
    while (pass < s->n_held && !begins_one(s, s->held + pass, s->n_held - pass)) pass++;
    return pass;
}

void kk_stops_drop(kk_stops *s, size_t n) {
    if (n == 0) return; /* there may be no memory yet */
    s->n_held -= n;
    memmove(s->held, s->held + n, s->n_held);
}
