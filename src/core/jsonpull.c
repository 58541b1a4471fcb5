/* jsonpull.c - see jsonpull.h.
 *
 * Strings are the bulk of the work, so they have the fast path: one scan to the closing quote,
 * and only those with an escape are copied.  Grammar is checked as strictly in what is skipped as
 * in what is used, so that a damaged file is refused whatever part of it we need. */
#include "core/jsonpull.h"

#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"

enum { MAX_DEPTH = 64 };

void kk_jsonpull_open(kk_jsonpull *p, const char *text, size_t len, const char *label) {
    if (!text) text = ""; /* an empty file is mapped nowhere */
    *p = (kk_jsonpull){.text = text, .pos = text, .end = text + len, .label = label};
}

void kk_jsonpull_close(kk_jsonpull *p) {
    kk_free(p->scratch);
    p->scratch = NULL;
    p->scratch_cap = 0;
}

kk_status kk_jsonpull_fail(const kk_jsonpull *p, const char *what, kk_err *err) {
    return kk_fail(err, KK_EFORMAT, "%s: %s at byte %zu", p->label, what,
                   (size_t)(p->pos - p->text));
}

bool kk_json_is(kk_json_str s, const char *text) {
    return strlen(text) == s.len && memcmp(s.text, text, s.len) == 0;
}

static void skip_space(kk_jsonpull *p) {
    const char *at = p->pos;
    while (at < p->end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    p->pos = at;
}

/* Reads c when it comes next. */
static bool accept(kk_jsonpull *p, char c) {
    if (p->pos == p->end || *p->pos != c) return false;
    p->pos++;
    return true;
}

kk_json_kind kk_jsonpull_peek(kk_jsonpull *p) {
    skip_space(p);
    if (p->pos == p->end) return KK_JSON_NONE;
    switch (*p->pos) {
    case '{': return KK_JSON_OBJECT;
    case '[': return KK_JSON_ARRAY;
    case '"': return KK_JSON_STRING;
    case 't':
    case 'f': return KK_JSON_BOOL;
    case 'n': return KK_JSON_NULL;
    default: break;
    }
    return *p->pos == '-' || (*p->pos >= '0' && *p->pos <= '9') ? KK_JSON_NUMBER : KK_JSON_NONE;
}

static kk_status expect(kk_jsonpull *p, kk_json_kind kind, kk_err *err) {
    static const char *const wanted[] = {"a value was expected",       "null was expected",
                                         "true or false was expected", "a number was expected",
                                         "a string was expected",      "an array was expected",
                                         "an object was expected"};
    if (kk_jsonpull_peek(p) == kind) return KK_OK;
    return kk_jsonpull_fail(p, p->pos == p->end ? "the text ends too early" : wanted[kind], err);
}

/* ---- containers ------------------------------------------------------------------------- */

kk_status kk_jsonpull_enter(kk_jsonpull *p, kk_json_kind kind, kk_err *err) {
    KK_TRY(expect(p, kind, err));
    if (p->depth == MAX_DEPTH) return kk_jsonpull_fail(p, "brackets are nested too deep", err);
    p->pos++;
    p->depth++;
    p->fresh = true;
    return KK_OK;
}

/* The comma or closing bracket before the next element. */
static kk_status step(kk_jsonpull *p, char closing, bool *more, kk_err *err) {
    skip_space(p);
    *more = true;
    if (accept(p, closing)) {
        *more = false;
        p->depth--;
        p->fresh = false;
        return KK_OK;
    }
    if (!p->fresh && !accept(p, ','))
        return kk_jsonpull_fail(
            p, closing == '}' ? "',' or '}' was expected" : "',' or ']' was expected", err);
    p->fresh = false;
    return KK_OK;
}

kk_status kk_jsonpull_item(kk_jsonpull *p, bool *more, kk_err *err) {
    return step(p, ']', more, err);
}

kk_status kk_jsonpull_key(kk_jsonpull *p, kk_json_str *key, bool *more, kk_err *err) {
    KK_TRY(step(p, '}', more, err));
    if (!*more) return KK_OK;
    KK_TRY(kk_jsonpull_string(p, key, err));
    skip_space(p);
    return accept(p, ':') ? KK_OK : kk_jsonpull_fail(p, "':' was expected", err);
}

/* ---- strings ---------------------------------------------------------------------------- */

static bool hex4(const char *s, const char *end, uint32_t *out) {
    uint32_t value = 0;
    if (end - s < 4) return false;
    for (int i = 0; i < 4; i++) {
        const char c = s[i];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return false;
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

/* \uXXXX, or two of them that make one character; the reader stands after the u. */
static bool unicode_escape(kk_jsonpull *p, uint32_t *cp) {
    if (!hex4(p->pos, p->end, cp)) return false;
    p->pos += 4;
    if (*cp < 0xd800 || *cp > 0xdfff) return true;
    uint32_t low;
    if (*cp > 0xdbff || p->end - p->pos < 6 || p->pos[0] != '\\' || p->pos[1] != 'u' ||
        !hex4(p->pos + 2, p->end, &low) || low < 0xdc00 || low > 0xdfff)
        return false;
    p->pos += 6;
    *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* One escape, the reader standing after the backslash, written at out (at most 4 bytes). */
static kk_status unescape(kk_jsonpull *p, char *out, size_t *n, kk_err *err) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    *n = 1;
    if (p->pos == p->end) return kk_jsonpull_fail(p, "a string does not end", err);
    const char c = *p->pos++;
    const char *known = c ? strchr(from, c) : NULL;
    uint32_t cp;
    if (known) {
        *out = to[known - from];
    } else if (c == 'u' && unicode_escape(p, &cp)) {
        *n = kk_utf8_put(out, cp);
    } else {
        p->pos--;
        return kk_jsonpull_fail(p, "a string has a wrong escape", err);
    }
    return KK_OK;
}

/* Moves to the next quote, backslash or forbidden byte; *bits gathers the bytes passed. */
static void scan_plain(kk_jsonpull *p, unsigned char *bits) {
    const char *at = p->pos;
    while (at < p->end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
        *bits |= (unsigned char)*at++;
    p->pos = at;
}

static kk_status check_string(const kk_jsonpull *p, kk_json_str s, unsigned char bits,
                              kk_err *err) {
    if (bits < 0x80 || kk_utf8_valid(s.text, s.len)) return KK_OK;
    return kk_jsonpull_fail(p, "a string is not UTF-8", err);
}

/* The rest of a string whose first escape the reader stands at; start is where it began. */
static kk_status copy_string(kk_jsonpull *p, const char *start, unsigned char bits,
                             kk_json_str *out, kk_err *err) {
    size_t len = 0;
    for (;;) {
        const size_t run = (size_t)(p->pos - start);
        if (!kk_grow((void **)&p->scratch, &p->scratch_cap, len + run + 4, 1))
            return kk_fail(err, KK_ENOMEM, "no memory for a string of %s", p->label);
        memcpy(p->scratch + len, start, run);
        len += run;
        if (accept(p, '"')) break;
        if (!accept(p, '\\'))
            return kk_jsonpull_fail(
                p, p->pos == p->end ? "a string does not end" : "a string has a control character",
                err);
        size_t n;
        KK_TRY(unescape(p, p->scratch + len, &n, err));
        len += n;
        start = p->pos;
        scan_plain(p, &bits);
    }
    *out = (kk_json_str){p->scratch, len};
    return check_string(p, *out, bits, err);
}

kk_status kk_jsonpull_string(kk_jsonpull *p, kk_json_str *out, kk_err *err) {
    KK_TRY(expect(p, KK_JSON_STRING, err));
    p->fresh = false;
    const char *start = ++p->pos;
    unsigned char bits = 0;
    scan_plain(p, &bits);
    if (p->pos == p->end || *p->pos != '"') return copy_string(p, start, bits, out, err);
    *out = (kk_json_str){start, (size_t)(p->pos - start)};
    p->pos++;
    return check_string(p, *out, bits, err);
}

/* ---- other values ----------------------------------------------------------------------- */

static bool digits(kk_jsonpull *p) {
    const char *start = p->pos;
    while (p->pos < p->end && *p->pos >= '0' && *p->pos <= '9') p->pos++;
    return p->pos > start;
}

/* Reads a number's text; *whole is false when it has a fraction or an exponent. */
static kk_status scan_number(kk_jsonpull *p, bool *whole, kk_err *err) {
    KK_TRY(expect(p, KK_JSON_NUMBER, err));
    p->fresh = false;
    accept(p, '-');
    bool ok = accept(p, '0') || digits(p);
    *whole = true;
    if (ok && accept(p, '.')) {
        *whole = false;
        ok = digits(p);
    }
    if (ok && (accept(p, 'e') || accept(p, 'E'))) {
        *whole = false;
        if (!accept(p, '-')) accept(p, '+');
        ok = digits(p);
    }
    return ok ? KK_OK : kk_jsonpull_fail(p, "a number is malformed", err);
}

kk_status kk_jsonpull_int(kk_jsonpull *p, int64_t *out, kk_err *err) {
    bool whole;
    skip_space(p);
    const char *at = p->pos;
    KK_TRY(scan_number(p, &whole, err));
    if (!whole) return kk_jsonpull_fail(p, "a whole number was expected", err);
    const bool negative = *at == '-';
    int64_t value = 0;
    for (at += negative; at < p->pos; at++) {
        const int64_t digit = negative ? '0' - *at : *at - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return kk_jsonpull_fail(p, "a number is too large", err);
    }
    *out = value;
    return KK_OK;
}

static bool word(kk_jsonpull *p, const char *text) {
    const size_t len = strlen(text);
    if ((size_t)(p->end - p->pos) < len || memcmp(p->pos, text, len) != 0) return false;
    p->pos += len;
    p->fresh = false;
    return true;
}

kk_status kk_jsonpull_bool(kk_jsonpull *p, bool *out, kk_err *err) {
    KK_TRY(expect(p, KK_JSON_BOOL, err));
    *out = *p->pos == 't';
    return word(p, *out ? "true" : "false") ? KK_OK
                                            : kk_jsonpull_fail(p, "a word is malformed", err);
}

kk_status kk_jsonpull_null(kk_jsonpull *p, bool *was_null, kk_err *err) {
    *was_null = kk_jsonpull_peek(p) == KK_JSON_NULL;
    if (!*was_null || word(p, "null")) return KK_OK;
    return kk_jsonpull_fail(p, "a word is malformed", err);
}

static kk_status skip_container(kk_jsonpull *p, kk_json_kind kind, kk_err *err) {
    KK_TRY(kk_jsonpull_enter(p, kind, err));
    for (;;) {
        kk_json_str key;
        bool more;
        if (kind == KK_JSON_OBJECT)
            KK_TRY(kk_jsonpull_key(p, &key, &more, err));
        else
            KK_TRY(kk_jsonpull_item(p, &more, err));
        if (!more) return KK_OK;
        KK_TRY(kk_jsonpull_skip(p, err));
    }
}

kk_status kk_jsonpull_skip(kk_jsonpull *p, kk_err *err) {
    const kk_json_kind kind = kk_jsonpull_peek(p);
    kk_json_str string;
    bool flag;
    switch (kind) {
    case KK_JSON_NULL: return kk_jsonpull_null(p, &flag, err);
    case KK_JSON_BOOL: return kk_jsonpull_bool(p, &flag, err);
    case KK_JSON_NUMBER: return scan_number(p, &flag, err);
    case KK_JSON_STRING: return kk_jsonpull_string(p, &string, err);
    case KK_JSON_ARRAY:
    case KK_JSON_OBJECT: return skip_container(p, kind, err);
    case KK_JSON_NONE: break;
    }
    return kk_jsonpull_fail(
        p, p->pos == p->end ? "the text ends too early" : "a value was expected", err);
}

kk_status kk_jsonpull_end(kk_jsonpull *p, kk_err *err) {
    skip_space(p);
    return p->pos == p->end ? KK_OK : kk_jsonpull_fail(p, "the text goes on after its end", err);
}
