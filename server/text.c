/* text.c - see text.h. */
#define _GNU_SOURCE
#include "server/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- UTF-8 ------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence at p, or 0 when there is none: overlong forms, surrogates and values
 * past U+10FFFF are not UTF-8. */
static size_t sequence(const unsigned char *p, size_t left) {
    static const unsigned least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (*p < 0x80) return 1;
    if (*p < 0xc2 || *p > 0xf4) return 0;
    const size_t len = *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
    if (len > left) return 0;
    unsigned code = *p & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return code < least[len] || code > 0x10ffff || surrogate ? 0 : len;
}

json_t *text_json(const char *bytes, size_t len) {
    json_t *s = json_stringn(bytes, len);
    if (s || len > SIZE_MAX / 3 - 1) return s;
    char *clean = malloc(3 * len + 1); /* each wrong byte becomes the three of U+FFFD */
    if (!clean) return NULL;
    size_t at = 0;
    for (size_t i = 0; i < len;) {
        const size_t n = sequence((const unsigned char *)bytes + i, len - i);
        memcpy(clean + at, n ? bytes + i : "\xef\xbf\xbd", n ? n : 3);
        at += n ? n : 3;
        i += n ? n : 1;
    }
    s = json_stringn(clean, at);
    free(clean);
    return s;
}

/* ---- a growing buffer -------------------------------------------------------------------- */

static bool reserve(textbuf *t, size_t more) {
    if (t->failed) return false;
    if (more < t->cap - t->len) return true;
    size_t cap = t->cap ? t->cap : 256;
    while (cap <= t->len + more) {
        if (cap > SIZE_MAX / 2) break;
        cap *= 2;
    }
    char *bytes = cap > t->len + more ? realloc(t->bytes, cap) : NULL;
    if (!bytes) {
        t->failed = true;
        return false;
    }
    t->bytes = bytes;
    t->cap = cap;
    return true;
}

void text_add(textbuf *t, const char *bytes, size_t n) {
    if (!reserve(t, n)) return;
    if (n) memcpy(t->bytes + t->len, bytes, n);
    t->len += n;
    t->bytes[t->len] = '\0';
}

void text_printf(textbuf *t, const char *fmt, ...) {
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line)
        t->failed = true;
    else
        text_add(t, line, (size_t)n);
}

static int add_piece(const char *bytes, size_t n, void *user) {
    textbuf *t = user;
    text_add(t, bytes, n);
    return t->failed ? -1 : 0;
}

void text_add_json(textbuf *t, json_t *object) {
    const size_t flags = JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9);
    if (!object || json_dump_callback(object, add_piece, t, flags) != 0) t->failed = true;
    json_decref(object);
}

/* What stands for a byte of ASCII in a JSON string; NULL: itself. */
static const char *escape(unsigned char c, char hex[8]) {
    static const char *const named[] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r", ['\t'] = "\\t"};
    if (c == '"') return "\\\"";
    if (c == '\\') return "\\\\";
    if (c >= 0x20) return NULL;
    if (c < sizeof named / sizeof *named && named[c]) return named[c];
    snprintf(hex, 8, "\\u%04X", c);
    return hex;
}

void text_add_escaped(textbuf *t, const char *bytes, size_t len) {
    size_t plain = 0; /* where bytes begin that stand for themselves */
    for (size_t i = 0; i < len;) {
        char hex[8];
        const size_t n = sequence((const unsigned char *)bytes + i, len - i);
        const char *instead = n == 0   ? "\xef\xbf\xbd"
                              : n == 1 ? escape((unsigned char)bytes[i], hex)
                                       : NULL;
        if (instead) {
            text_add(t, bytes + plain, i - plain);
            text_add(t, instead, strlen(instead));
            plain = i + 1;
        }
        i += n ? n : 1;
    }
    text_add(t, bytes + plain, len - plain);
}

void text_free(textbuf *t) {
    free(t->bytes);
    *t = (textbuf){0};
}

/* ---- names and time ---------------------------------------------------------------------- */

void text_random_name(char *out, size_t cap, const char *prefix) {
    unsigned char drawn[12];
    if (getentropy(drawn, sizeof drawn) != 0) { /* a system without it: unique, if guessable */
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        const uint64_t mixed[2] = {(uint64_t)t.tv_nsec * 0x9e3779b97f4a7c15u + (uint64_t)t.tv_sec,
                                   (uint64_t)(uintptr_t)out ^ (uint64_t)t.tv_nsec};
        memcpy(drawn, mixed, sizeof drawn);
    }
    int at = snprintf(out, cap, "%s", prefix);
    for (size_t i = 0; i < sizeof drawn && at > 0 && (size_t)at + 2 < cap; i++)
        at += snprintf(out + at, cap - (size_t)at, "%02x", drawn[i]);
}

double text_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
