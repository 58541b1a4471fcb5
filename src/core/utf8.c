/* utf8.c - see utf8.h.  Validity is decided by the second byte's range alone (Unicode's table of
 * well-formed sequences), so that a truncated character and a wrong one are told apart early: a
 * stream holds back the first and passes the second on. */
#include "core/utf8.h"

/* What a lead byte announces: its length, and the range its second byte must lie in. */
typedef struct {
    size_t len; /* 0: no character starts with this byte */
    uint8_t low, high;
} lead;

static lead lead_of(uint8_t b) {
    if (b < 0x80) return (lead){1, 0, 0};
    if (b < 0xc2) return (lead){0, 0, 0};
    if (b < 0xe0) return (lead){2, 0x80, 0xbf};
    if (b == 0xe0) return (lead){3, 0xa0, 0xbf};
    if (b == 0xed) return (lead){3, 0x80, 0x9f};
    if (b < 0xf0) return (lead){3, 0x80, 0xbf};
    if (b == 0xf0) return (lead){4, 0x90, 0xbf};
    if (b < 0xf4) return (lead){4, 0x80, 0xbf};
    if (b == 0xf4) return (lead){4, 0x80, 0x8f};
    return (lead){0, 0, 0};
}

/* How many of the n bytes agree with a character that starts at s. */
static size_t agreeing(const char *s, size_t n, lead l) {
    size_t i = 1;
    for (; i < l.len && i < n; i++) {
        const uint8_t b = (uint8_t)s[i];
        if (i == 1 ? b < l.low || b > l.high : (b & 0xc0) != 0x80) break;
    }
    return i;
}

size_t kk_utf8_next(const char *s, size_t n, uint32_t *cp) {
    if (n == 0) return 0;
    const uint8_t first = (uint8_t)s[0];
    if (first < 0x80) {
        *cp = first;
        return 1;
    }
    const lead l = lead_of(first);
    if (l.len == 0 || agreeing(s, n, l) < l.len) return 0;
    uint32_t value = first & (0x7fu >> l.len);
    for (size_t i = 1; i < l.len; i++) value = value << 6 | ((uint8_t)s[i] & 0x3fu);
    *cp = value;
    return l.len;
}

size_t kk_utf8_put(char out[4], uint32_t cp) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    const size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00 >> len & 0xf0) | cp);
    return len;
}

bool kk_utf8_valid(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t len = kk_utf8_next(s + i, n - i, &cp);
        if (len == 0) return false;
        i += len;
    }
    return true;
}

size_t kk_utf8_unfinished(const char *s, size_t n) {
    const size_t most = n < 3 ? n : 3;
    for (size_t tail = 1; tail <= most; tail++) {
        const lead l = lead_of((uint8_t)s[n - tail]);
        if (l.len > tail && agreeing(s + n - tail, tail, l) == tail) return tail;
    }
    return 0;
}

bool kk_utf8_is_space(uint32_t cp) {
    if (cp <= 0x20) return cp == 0x20 || (cp >= 0x09 && cp <= 0x0d);
    if (cp < 0x1680) return cp == 0x85 || cp == 0xa0;
    return cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static bool is_blank(uint32_t cp, bool separators) {
    return kk_utf8_is_space(cp) || (separators && cp >= 0x1c && cp <= 0x1f);
}

size_t kk_utf8_space_before(const char *s, size_t n, bool separators) {
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        const size_t len = kk_utf8_next(s + i, n - i, &cp);
        if (len == 0 || !is_blank(cp, separators)) break;
        i += len;
    }
    return i;
}

size_t kk_utf8_space_after(const char *s, size_t n, bool separators) {
    size_t end = n;
    while (end > 0) {
        size_t start = end - 1;
        while (start > 0 && end - start < 4 && ((uint8_t)s[start] & 0xc0) == 0x80) start--;
        uint32_t cp;
        if (kk_utf8_next(s + start, end - start, &cp) != end - start) break;
        if (!is_blank(cp, separators)) break;
        end = start;
    }
    return n - end;
}

/* Alphabets in which the capital of the letter at cp lies a fixed distance before it.  step 2:
 * capitals and small letters alternate. */
static const struct {
    uint32_t first, last, distance, step;
} capitals[] = {
    {'A', 'Z', 32, 1},       {0xc0, 0xd6, 32, 1},       {0xd8, 0xde, 32, 1},
    {0x100, 0x12e, 1, 2},    {0x132, 0x136, 1, 2},      {0x139, 0x147, 1, 2},
    {0x14a, 0x176, 1, 2},    {0x179, 0x17d, 1, 2},      {0x391, 0x3a1, 32, 1},
    {0x3a3, 0x3ab, 32, 1},   {0x400, 0x40f, 80, 1},     {0x410, 0x42f, 32, 1},
    {0x460, 0x480, 1, 2},    {0x48a, 0x4be, 1, 2},      {0x4d0, 0x52e, 1, 2},
    {0x531, 0x556, 48, 1},   {0x1e00, 0x1e94, 1, 2},    {0x1ea0, 0x1efe, 1, 2},
    {0xff21, 0xff3a, 32, 1}, {0x10400, 0x10427, 40, 1},
};

enum { ALPHABETS = sizeof capitals / sizeof capitals[0] };

uint32_t kk_utf8_lower(uint32_t cp) {
    for (int i = 0; i < ALPHABETS; i++) {
        if (cp < capitals[i].first) break;
        if (cp <= capitals[i].last && (cp - capitals[i].first) % capitals[i].step == 0)
            return cp + capitals[i].distance;
    }
    return cp;
}

uint32_t kk_utf8_upper(uint32_t cp) {
    for (int i = 0; i < ALPHABETS; i++) {
        const uint32_t first = capitals[i].first + capitals[i].distance;
        const uint32_t last = capitals[i].last + capitals[i].distance;
        if (cp >= first && cp <= last && (cp - first) % capitals[i].step == 0)
            return cp - capitals[i].distance;
    }
    return cp;
}
