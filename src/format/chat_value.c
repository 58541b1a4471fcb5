/* chat_value.c - how the Gemma 4 format writes values: strings between quote marks and otherwise
 * untouched, maps with sorted keys, numbers as Python prints them (the reference renderer is a
 * Python template, and the model has read its output). */
#define _GNU_SOURCE
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "format/chat.h"

const char *kk_chat_mark_text(kk_chat_mark m) {
    static const char *const texts[KK_MARKS] = {
        "<bos>",        "<|turn>",      "<turn|>",          "<|think|>",
        "<|channel>",   "<channel|>",   "<|tool>",          "<tool|>",
        "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
        "<|\"|>",
    };
    return texts[m];
}

/* ---- writing ---------------------------------------------------------------------------- */

void kk_chat_text_free(kk_chat_text *out) {
    kk_free(out->text);
    kk_free(out->marks);
    *out = (kk_chat_text){0};
}

void kk_chat_fail(kk_chat_text *out, kk_status code, const char *fmt, ...) {
    if (out->status != KK_OK) return;
    char msg[sizeof out->err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    out->status = kk_fail(out->err, code, "%s", msg);
}

static void no_memory(kk_chat_text *out) {
    kk_chat_fail(out, KK_ENOMEM, "no memory to render a conversation");
}

void kk_chat_bytes(kk_chat_text *out, const char *s, size_t n) {
    if (out->status != KK_OK) return;
    size_t need;
    if (!kk_add(out->len, n, &need) || !kk_add(need, 1, &need) ||
        !kk_grow((void **)&out->text, &out->cap, need, 1)) {
        no_memory(out);
        return;
    }
    memcpy(out->text + out->len, s, n);
    out->len += n;
    out->text[out->len] = '\0';
}

void kk_chat_put(kk_chat_text *out, const char *s) { kk_chat_bytes(out, s, strlen(s)); }

void kk_chat_put_mark(kk_chat_text *out, kk_chat_mark m) {
    if (out->status != KK_OK) return;
    if (!kk_grow((void **)&out->marks, &out->marks_cap, out->n_marks + 1, sizeof *out->marks)) {
        no_memory(out);
        return;
    }
    out->marks[out->n_marks++] = (kk_chat_place){out->len, m};
    kk_chat_put(out, kk_chat_mark_text(m));
}

void kk_chat_string(kk_chat_text *out, const json_t *s) {
    kk_chat_bytes(out, json_string_value(s), json_string_length(s));
}

void kk_chat_upper(kk_chat_text *out, const json_t *s) {
    const char *text = json_string_value(s);
    const size_t n = json_string_length(s);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        char bytes[4];
        const size_t len = kk_utf8_next(text + i, n - i, &cp); /* the parser checked UTF-8 */
        kk_chat_bytes(out, bytes, kk_utf8_put(bytes, kk_utf8_upper(cp)));
        i += len;
    }
}

void kk_chat_quoted(kk_chat_text *out, const json_t *s) {
    kk_chat_put_mark(out, KK_MARK_QUOTE);
    kk_chat_string(out, s);
    kk_chat_put_mark(out, KK_MARK_QUOTE);
}

/* ---- numbers ---------------------------------------------------------------------------- */

/* The fewest digits that read back as the same number, with the exponent of the first one.  The
 * decimal point is taken from no locale: only digits are kept. */
static int shortest_digits(double v, char digits[24], int *exponent) {
    char text[40];
    int precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, v);
    while (strtod(text, NULL) != v && ++precision < 17);
    const char *e = strchr(text, 'e');
    int n = 0;
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    *exponent = atoi(e + 1);
    while (n > 1 && digits[n - 1] == '0') n--;
    return n;
}

/* A float as Python's repr has it: 1.0, 0.001, 1e-05, 1e+16. */
static void put_real(kk_chat_text *out, double v) {
    char digits[24], text[64];
    int exponent, at = 0;
    if (signbit(v)) text[at++] = '-';
    const int n = shortest_digits(fabs(v), digits, &exponent);
    const bool scientific = exponent < -4 || exponent >= 16;
    int point = scientific ? 1 : exponent + 1; /* digits before the decimal point */
    if (point <= 0) {
        text[at++] = '0';
        text[at++] = '.';
        for (int i = point; i < 0; i++) text[at++] = '0';
    }
    for (int i = 0; i < n || i < point; i++) {
        if (i == point && i > 0) text[at++] = '.';
        text[at++] = i < n ? digits[i] : '0';
    }
    if (!scientific && point >= n) {
        text[at++] = '.';
        text[at++] = '0';
    }
    if (scientific)
        at += snprintf(text + at, sizeof text - (size_t)at, "e%c%02d", exponent < 0 ? '-' : '+',
                       abs(exponent));
    kk_chat_bytes(out, text, (size_t)at);
}

static void put_integer(kk_chat_text *out, json_int_t v) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v);
    kk_chat_put(out, text);
}

/* ---- maps ------------------------------------------------------------------------------- */

static int by_key(const void *pa, const void *pb) {
    const kk_chat_member *a = pa, *b = pb;
    size_t i = 0, j = 0;
    while (i < a->key_len && j < b->key_len) {
        uint32_t ca, cb;
        i += kk_utf8_next(a->key + i, a->key_len - i, &ca);
        j += kk_utf8_next(b->key + j, b->key_len - j, &cb);
        ca = kk_utf8_lower(ca);
        cb = kk_utf8_lower(cb);
        if (ca != cb) return ca < cb ? -1 : 1;
    }
    if (i < a->key_len || j < b->key_len) return i < a->key_len ? 1 : -1;
    return a->order < b->order ? -1 : a->order > b->order;
}

kk_chat_member *kk_chat_sorted(kk_chat_text *out, const json_t *map, size_t *n) {
    *n = 0;
    const size_t size = json_object_size(map);
    if (out->status != KK_OK || size == 0) return NULL;
    kk_chat_member *members = kk_calloc(size, sizeof *members);
    if (!members) {
        no_memory(out);
        return NULL;
    }
    json_t *walk = (json_t *)(uintptr_t)map; /* jansson's iterators take no const */
    for (void *it = json_object_iter(walk); it; it = json_object_iter_next(walk, it), (*n)++) {
        const char *key = json_object_iter_key(it);
        members[*n] = (kk_chat_member){key, strlen(key), json_object_iter_value(it), *n};
    }
    qsort(members, *n, sizeof *members, by_key);
    return members;
}

void kk_chat_members(kk_chat_text *out, const json_t *map, bool quote_keys) {
    size_t n;
    kk_chat_member *members = kk_chat_sorted(out, map, &n);
    for (size_t i = 0; i < n; i++) {
        if (i) kk_chat_put(out, ",");
        if (quote_keys) kk_chat_put_mark(out, KK_MARK_QUOTE);
        kk_chat_bytes(out, members[i].key, members[i].key_len);
        if (quote_keys) kk_chat_put_mark(out, KK_MARK_QUOTE);
        kk_chat_put(out, ":");
        kk_chat_value(out, members[i].value, quote_keys);
    }
    kk_free(members);
}

/* ---- values ----------------------------------------------------------------------------- */

static void put_list(kk_chat_text *out, const json_t *list, bool quote_keys) {
    kk_chat_put(out, "[");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i) kk_chat_put(out, ",");
        kk_chat_value(out, json_array_get(list, i), quote_keys);
    }
    kk_chat_put(out, "]");
}

void kk_chat_value(kk_chat_text *out, const json_t *v, bool quote_keys) {
    if (out->status != KK_OK) return;
    switch (json_typeof(v)) {
    case JSON_STRING: kk_chat_quoted(out, v); return;
    case JSON_TRUE: kk_chat_put(out, "true"); return;
    case JSON_FALSE: kk_chat_put(out, "false"); return;
    case JSON_NULL: kk_chat_put(out, "None"); return;
    case JSON_INTEGER: put_integer(out, json_integer_value(v)); return;
    case JSON_REAL: put_real(out, json_real_value(v)); return;
    case JSON_ARRAY: put_list(out, v, quote_keys); return;
    case JSON_OBJECT: break;
    }
    kk_chat_put(out, "{");
    kk_chat_members(out, v, quote_keys);
    kk_chat_put(out, "}");
}

bool kk_chat_truth(const json_t *v) {
    if (!v) return false;
    switch (json_typeof(v)) {
    case JSON_STRING: return json_string_length(v) > 0;
    case JSON_INTEGER: return json_integer_value(v) != 0;
    case JSON_REAL: return json_real_value(v) != 0;
    case JSON_ARRAY: return json_array_size(v) > 0;
    case JSON_OBJECT: return json_object_size(v) > 0;
    case JSON_TRUE: return true;
    case JSON_FALSE:
    case JSON_NULL: break;
    }
    return false;
}
