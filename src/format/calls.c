/* calls.c - reads the values that chat_value.c writes, and turns them into JSON.
 *
 * Strings stand between quote marks and are otherwise untouched; keys are bare; null is None.
 * Models slip, so that JSON's own spellings (a string in plain quotes, null, white space) and bare
 * words for strings are read too.  Whatever comes in, what goes out is JSON that a strict reader
 * takes: bytes that are not UTF-8 become U+FFFD, and a number that a double or 64 bits cannot hold
 * becomes a string. */
#include "format/calls.h"

#include <string.h>

#include "core/utf8.h"
#include "format/chat.h"

enum { MOST_NESTED = 64, MOST_DIGITS = 18, MOST_EXPONENT = 308 };

typedef struct {
    const kk_call_text *call;
    size_t at;    /* next byte */
    size_t quote; /* first quote mark at or after it */
    size_t depth;
    char *out;
    size_t n;
} reader;

/* A byte becomes at most \u0001, and a bare word of one byte gets two quotes. */
size_t kk_call_capacity(size_t n) { return 8 * n + 16; }

/* ---- reading ----------------------------------------------------------------------------- */

static bool at_end(const reader *r) { return r->at >= r->call->len; }

static bool at_quote(const reader *r) {
    return r->quote < r->call->n_quotes && r->call->quotes[r->quote] == r->at;
}

/* The next byte, if it is a plain one; else 0. */
static char peek(const reader *r) { return at_end(r) || at_quote(r) ? '\0' : r->call->text[r->at]; }

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static void skip_space(reader *r) {
    while (is_space(peek(r))) r->at++;
}

static bool take(reader *r, char c) {
    skip_space(r);
    if (peek(r) != c) return false;
    r->at++;
    return true;
}

/* ---- writing ----------------------------------------------------------------------------- */

static void put(reader *r, const char *s, size_t n) {
    memcpy(r->out + r->n, s, n);
    r->n += n;
}

static void put_byte(reader *r, char c) { r->out[r->n++] = c; }

static void put_escaped(reader *r, unsigned char c) {
    static const char hex[] = "0123456789abcdef";
    const char code[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    if (c == '\n')
        put(r, "\\n", 2);
    else
        put(r, code, sizeof code);
}

/* One character of a string; returns the bytes it took. */
static size_t put_char(reader *r, const char *s, size_t n) {
    uint32_t cp;
    const size_t len = kk_utf8_next(s, n, &cp);
    if (len == 0 || cp == 0) {
        put(r, "\xef\xbf\xbd", 3); /* U+FFFD */
        return 1;
    }
    if (*s == '"' || *s == '\\') put_byte(r, '\\');
    if (cp < 0x20)
        put_escaped(r, (unsigned char)cp);
    else
        put(r, s, len);
    return len;
}

static void put_string(reader *r, const char *s, size_t n) {
    put_byte(r, '"');
    for (size_t i = 0; i < n;) i += put_char(r, s + i, n - i);
    put_byte(r, '"');
}

/* ---- values ------------------------------------------------------------------------------ */

/* A string between two quote marks. */
static bool marked_string(reader *r) {
    const size_t mark = strlen(kk_chat_mark_text(KK_MARK_QUOTE));
    if (r->quote + 1 >= r->call->n_quotes) return false;
    const size_t from = r->at + mark, to = r->call->quotes[r->quote + 1];
    put_string(r, r->call->text + from, to - from);
    r->at = to + mark;
    r->quote += 2;
    return true;
}

/* What a backslash and c stand for in JSON; 0: nothing, or \u, which is left as it is. */
static char unescaped(char c) {
    static const char from[] = "\"\\/nrtbf", to[] = "\"\\/\n\r\t\b\f";
    const char *p = c ? strchr(from, c) : NULL;
    return p ? to[p - from] : '\0';
}

/* A string in plain quotes, as JSON has it. */
static bool plain_string(reader *r) {
    put_byte(r, '"');
    for (r->at++; !at_end(r) && !at_quote(r);) {
        const char *s = r->call->text + r->at;
        if (*s == '"') {
            put_byte(r, '"');
            r->at++;
            return true;
        }
        const char c = *s == '\\' && r->at + 1 < r->call->len ? unescaped(s[1]) : '\0';
        if (c) put_char(r, &c, 1);
        r->at += c ? 2 : put_char(r, s, r->call->len - r->at);
    }
    return false;
}

static size_t digits(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

/* Whether the bytes are an exponent, sign and digits, that leaves a number of so many digits before
 * its point within a double. */
static bool small_exponent(const char *s, size_t n, size_t whole) {
    const size_t sign = n > 0 && (*s == '+' || *s == '-');
    const size_t d = digits(s + sign, n - sign);
    size_t value = 0;
    if (d == 0 || d > 4 || sign + d != n) return false;
    for (size_t i = 0; i < d; i++) value = 10 * value + (size_t)(s[sign + i] - '0');
    return *s == '-' || whole + value <= MOST_EXPONENT;
}

/* Whether the bytes are a number of JSON that a reader with 64 bits or doubles can hold. */
static bool is_number(const char *s, size_t n) {
    size_t at = n > 0 && *s == '-';
    const size_t whole = digits(s + at, n - at);
    if (whole == 0 || whole > MOST_DIGITS || (whole > 1 && s[at] == '0')) return false;
    at += whole;
    if (at < n && s[at] == '.') {
        const size_t part = digits(s + at + 1, n - at - 1);
        if (part == 0) return false;
        at += 1 + part;
    }
    if (at == n) return true;
    return (s[at] == 'e' || s[at] == 'E') && small_exponent(s + at + 1, n - at - 1, whole);
}

static bool is(const char *s, size_t n, const char *word) {
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

/* Anything that is not quoted: true, false, None, a number, or a word for a string. */
static bool bare_value(reader *r) {
    const char *s = r->call->text + r->at;
    size_t n = 0;
    for (char c; (c = peek(r)) && !strchr(",]}{[", c); n++) r->at++;
    while (n > 0 && is_space(s[n - 1])) n--;
    if (n == 0) return false;
    if (is(s, n, "true") || is(s, n, "false") || is_number(s, n))
        put(r, s, n);
    else if (is(s, n, "None") || is(s, n, "null"))
        put(r, "null", 4);
    else
        put_string(r, s, n);
    return true;
}

static bool value(reader *r);

static bool key(reader *r) {
    skip_space(r);
    if (at_quote(r)) return marked_string(r);
    if (peek(r) == '"') return plain_string(r);
    const char *s = r->call->text + r->at;
    size_t n = 0;
    for (char c; (c = peek(r)) && !strchr(":,]}{[", c); n++) r->at++;
    while (n > 0 && is_space(s[n - 1])) n--;
    put_string(r, s, n);
    return n > 0;
}

static bool member(reader *r) {
    if (!key(r) || !take(r, ':')) return false;
    put_byte(r, ':');
    return value(r);
}

/* What stands between two brackets, the first of which was read. */
static bool items(reader *r, char open, char shut, bool (*item)(reader *)) {
    put_byte(r, open);
    if (++r->depth > MOST_NESTED) return false;
    bool more = !take(r, shut);
    while (more) {
        if (!item(r)) return false;
        more = !take(r, shut);
        if (more && !take(r, ',')) return false;
        if (more) put_byte(r, ',');
    }
    r->depth--;
    put_byte(r, shut);
    return true;
}

static bool value(reader *r) {
    skip_space(r);
    if (at_quote(r)) return marked_string(r);
    if (peek(r) == '"') return plain_string(r);
    if (take(r, '{')) return items(r, '{', '}', member);
    if (take(r, '[')) return items(r, '[', ']', value);
    return bare_value(r);
}

/* ---- the call ---------------------------------------------------------------------------- */

static bool good_name(const char *name, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == '"' || name[i] == 127) return false;
    return n > 0 && kk_utf8_valid(name, n);
}

bool kk_call_read(const kk_call_text *call, const char **name, size_t *name_len, char *json,
                  size_t *json_len) {
    static const char start[] = "call:";
    reader r = {.call = call, .out = json};
    skip_space(&r);
    if (call->len - r.at < strlen(start) || memcmp(call->text + r.at, start, strlen(start)) != 0)
        return false;
    r.at += strlen(start);
    *name = call->text + r.at;
    while (peek(&r) && peek(&r) != '{') r.at++;
    *name_len = (size_t)(call->text + r.at - *name);
    if (!good_name(*name, *name_len) || !take(&r, '{')) return false;
    if (!items(&r, '{', '}', member)) return false;
    skip_space(&r);
    *json_len = r.n;
    return at_end(&r);
}
