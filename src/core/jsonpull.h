/* jsonpull.h - a strict JSON reader that builds nothing: the caller asks for what it expects and
 * walks the text once.
 *
 * It is for files too large for a tree: a tokenizer.json has 33 MB and 1.3 million strings, most
 * of which can be used where they lie.  Every call leaves the reader after what it read; after a
 * failure only kk_jsonpull_close is allowed.  The text must outlive the reader. */
#ifndef KK_CORE_JSONPULL_H
#define KK_CORE_JSONPULL_H

#include "core/error.h"

typedef enum {
    KK_JSON_NONE, /* nothing that starts a value: the text ends, or is wrong here */
    KK_JSON_NULL,
    KK_JSON_BOOL,
    KK_JSON_NUMBER,
    KK_JSON_STRING,
    KK_JSON_ARRAY,
    KK_JSON_OBJECT,
} kk_json_kind;

typedef struct {
    const char *text, *pos, *end;
    const char *label; /* what to call the text in messages */
    bool fresh;        /* just inside a bracket: no comma comes before the next element */
    int depth;
    char *scratch; /* strings that had escapes */
    size_t scratch_cap;
} kk_jsonpull;

typedef struct {
    const char *text;
    size_t len;
} kk_json_str;

void kk_jsonpull_open(kk_jsonpull *p, const char *text, size_t len, const char *label);
void kk_jsonpull_close(kk_jsonpull *p);

/* What comes next, without reading it. */
kk_json_kind kk_jsonpull_peek(kk_jsonpull *p);

/* Enter reads the opening bracket of an object or array.  Then key or item is called until *more
 * is false, which reads the closing one; after each true the value must be read or skipped. */
kk_status kk_jsonpull_enter(kk_jsonpull *p, kk_json_kind kind, kk_err *err);
kk_status kk_jsonpull_key(kk_jsonpull *p, kk_json_str *key, bool *more, kk_err *err);
kk_status kk_jsonpull_item(kk_jsonpull *p, bool *more, kk_err *err);

/* *out is borrowed until the next key or string is read. */
kk_status kk_jsonpull_string(kk_jsonpull *p, kk_json_str *out, kk_err *err);
kk_status kk_jsonpull_int(kk_jsonpull *p, int64_t *out, kk_err *err);
kk_status kk_jsonpull_bool(kk_jsonpull *p, bool *out, kk_err *err);
/* Reads a null when one comes next, and says so. */
kk_status kk_jsonpull_null(kk_jsonpull *p, bool *was_null, kk_err *err);
kk_status kk_jsonpull_skip(kk_jsonpull *p, kk_err *err); /* any value */
kk_status kk_jsonpull_end(kk_jsonpull *p, kk_err *err);  /* nothing but white space may follow */

/* Fails naming the place the reader is at. */
kk_status kk_jsonpull_fail(const kk_jsonpull *p, const char *what, kk_err *err);
bool kk_json_is(kk_json_str s, const char *text);

#endif
