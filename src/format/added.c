/* added.c - see added.h.
 *
 * The tokens are a sorted array, and a match narrows a range of it byte by byte: no tree to build
 * or keep.  Six thousand tokens of mostly one prefix make a range search as short as a walk. */
#include "format/added.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

void kk_added_free(kk_added *a) {
    for (size_t i = 0; i < a->n; i++) kk_free(a->tokens[i].text);
    kk_free(a->tokens);
    *a = (kk_added){0};
}

/* One step of a text: its next byte as the set sees it, and how many bytes that took. */
static size_t folded(const kk_added *a, const char *s, size_t n, char *c) {
    *c = s[0];
    if (!a->fold || n < 3 || memcmp(s, space_mark, 3) != 0) return 1;
    *c = ' ';
    return 3;
}

kk_status kk_added_add(kk_added *a, const char *text, size_t len, int32_t id, unsigned flags,
                       kk_err *err) {
    char *copy = NULL;
    if (!kk_grow((void **)&a->tokens, &a->cap, a->n + 1, sizeof *a->tokens) ||
        !(copy = kk_malloc(len + 1)))
        return kk_fail(err, KK_ENOMEM, "no memory for %zu added tokens", a->n + 1);
    size_t n = 0;
    for (size_t at = 0; at < len; n++) at += folded(a, text + at, len - at, &copy[n]);
    copy[n] = '\0';
    a->tokens[a->n++] = (kk_added_token){copy, n, id, flags};
    return KK_OK;
}

static int by_text(const void *pa, const void *pb) {
    const kk_added_token *a = pa, *b = pb;
    const int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Folding can make two texts the same; then the smaller id wins. */
static int by_text_and_id(const void *pa, const void *pb) {
    const kk_added_token *a = pa, *b = pb;
    const int order = by_text(pa, pb);
    return order ? order : (a->id > b->id) - (a->id < b->id);
}

void kk_added_finish(kk_added *a) {
    if (a->n) qsort(a->tokens, a->n, sizeof *a->tokens, by_text_and_id);
    for (size_t i = 0; i < a->n; i++) {
        const unsigned char first = (unsigned char)a->tokens[i].text[0];
        a->starts_special[first] = true;
        if (!(a->tokens[i].flags & KK_ADDED_SPECIAL)) a->starts[first] = true;
        if (a->fold && first == ' ') a->starts[0xe2] = a->starts_special[0xe2] = true;
    }
}

/* Narrows [*low, *high), whose tokens agree in their first `depth` bytes, to those that have c
 * next.  Tokens that end at depth sort first and are left behind. */
static void narrow(const kk_added *a, size_t *low, size_t *high, size_t depth, char c) {
    const unsigned char want = (unsigned char)c;
    size_t from = *low, to = *high;
    while (from < to) { /* the first that has c or more */
        const size_t mid = from + (to - from) / 2;
        const kk_added_token *t = &a->tokens[mid];
        if (t->len <= depth || (unsigned char)t->text[depth] < want)
            from = mid + 1;
        else
            to = mid;
    }
    *low = from;
    for (to = *high; from < to;) { /* the first that has more */
        const size_t mid = from + (to - from) / 2;
        if ((unsigned char)a->tokens[mid].text[depth] <= want)
            from = mid + 1;
        else
            to = mid;
    }
    *high = from;
}

/* The longest token that the text has at `start`. */
static const kk_added_token *match_at(const kk_added *a, const char *text, size_t len, size_t start,
                                      bool special, size_t *end) {
    const kk_added_token *best = NULL;
    size_t low = 0, high = a->n, depth = 0, at = start;
    while (at < len && low < high) {
        char c;
        const size_t step = folded(a, text + at, len - at, &c);
        narrow(a, &low, &high, depth, c);
        depth++;
        at += step;
        for (size_t i = low; i < high && a->tokens[i].len == depth; i++) {
            if (!special && (a->tokens[i].flags & KK_ADDED_SPECIAL)) continue;
            best = &a->tokens[i];
            *end = at;
            break;
        }
    }
    return best;
}

bool kk_added_find(const kk_added *a, const char *text, size_t len, size_t from, bool special,
                   kk_added_match *out) {
    const bool *starts = special ? a->starts_special : a->starts;
    for (size_t at = from; a->n && at < len; at++) {
        size_t end;
        if (!starts[(unsigned char)text[at]]) continue;
        const kk_added_token *t = match_at(a, text, len, at, special, &end);
        if (!t) continue;
        if (t->flags & KK_ADDED_LSTRIP) at -= kk_utf8_space_after(text + from, at - from, false);
        if (t->flags & KK_ADDED_RSTRIP) end += kk_utf8_space_before(text + end, len - end, false);
        *out = (kk_added_match){t, at, end};
        return true;
    }
    return false;
}

const kk_added_token *kk_added_by_text(const kk_added *a, const char *text, size_t len) {
    const kk_added_token key = {(char *)(uintptr_t)text, len, 0, 0};
    return a->n ? bsearch(&key, a->tokens, a->n, sizeof key, by_text) : NULL;
}
