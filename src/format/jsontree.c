/* jsontree.c - see jsontree.h. */
#include "format/jsontree.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/jsonpull.h"

static kk_status no_memory(const kk_jsonpull *p, kk_err *err) {
    return kk_fail(err, KK_ENOMEM, "no memory for a tree of %s", p->label);
}

/* Hands a new value over, or says that there was no memory for it. */
static kk_status give(const kk_jsonpull *p, json_t *value, json_t **out, kk_err *err) {
    *out = value;
    return value ? KK_OK : no_memory(p, err);
}

static kk_status read_value(kk_jsonpull *p, json_t **out, kk_err *err);

static kk_status fill_array(kk_jsonpull *p, json_t *array, kk_err *err) {
    for (;;) {
        json_t *item;
        bool more;
        KK_TRY(kk_jsonpull_item(p, &more, err));
        if (!more) return KK_OK;
        KK_TRY(read_value(p, &item, err));
        if (json_array_append_new(array, item) != 0) return no_memory(p, err);
    }
}

static kk_status read_member(kk_jsonpull *p, json_t *object, kk_json_str key, kk_err *err) {
    json_t *value;
    if (memchr(key.text, '\0', key.len)) return kk_jsonpull_fail(p, "a key has a NUL in it", err);
    char *name = kk_strndup(key.text, key.len); /* the next string may overwrite key */
    if (!name) return no_memory(p, err);
    kk_status st = read_value(p, &value, err);
    if (st == KK_OK && json_object_set_new_nocheck(object, name, value) != 0)
        st = no_memory(p, err);
    kk_free(name);
    return st;
}

static kk_status fill_object(kk_jsonpull *p, json_t *object, kk_err *err) {
    for (;;) {
        kk_json_str key;
        bool more;
        KK_TRY(kk_jsonpull_key(p, &key, &more, err));
        if (!more) return KK_OK;
        KK_TRY(read_member(p, object, key, err));
    }
}

static kk_status read_container(kk_jsonpull *p, kk_json_kind kind, json_t **out, kk_err *err) {
    KK_TRY(kk_jsonpull_enter(p, kind, err));
    KK_TRY(give(p, kind == KK_JSON_OBJECT ? json_object() : json_array(), out, err));
    const kk_status st =
        kind == KK_JSON_OBJECT ? fill_object(p, *out, err) : fill_array(p, *out, err);
    if (st != KK_OK) json_decref(*out);
    return st;
}

static kk_status read_string(kk_jsonpull *p, json_t **out, kk_err *err) {
    kk_json_str s;
    KK_TRY(kk_jsonpull_string(p, &s, err));
    return give(p, json_stringn_nocheck(s.text, s.len), out, err);
}

/* strtod wants the locale's decimal point, JSON has a full stop. */
static kk_status read_real(const kk_jsonpull *p, const char *text, size_t len, json_t **out,
                           kk_err *err) {
    char *copy = kk_strndup(text, len);
    if (!copy) return no_memory(p, err);
    char *point = strchr(copy, '.');
    if (point) *point = *localeconv()->decimal_point;
    const double v = strtod(copy, NULL);
    kk_free(copy);
    if (isinf(v)) return kk_jsonpull_fail(p, "a number is too large", err);
    return give(p, json_real(v), out, err);
}

static kk_status read_number(kk_jsonpull *p, json_t **out, kk_err *err) {
    int64_t whole;
    const char *start = p->pos; /* the caller peeked, so this is the number's first byte */
    kk_jsonpull again = *p;
    if (kk_jsonpull_int(&again, &whole, NULL) == KK_OK) {
        *p = again;
        return give(p, json_integer(whole), out, err);
    }
    KK_TRY(kk_jsonpull_skip(p, err));
    return read_real(p, start, (size_t)(p->pos - start), out, err);
}

static kk_status read_value(kk_jsonpull *p, json_t **out, kk_err *err) {
    const kk_json_kind kind = kk_jsonpull_peek(p);
    bool flag;
    switch (kind) {
    case KK_JSON_OBJECT:
    case KK_JSON_ARRAY: return read_container(p, kind, out, err);
    case KK_JSON_STRING: return read_string(p, out, err);
    case KK_JSON_NUMBER: return read_number(p, out, err);
    case KK_JSON_BOOL:
        KK_TRY(kk_jsonpull_bool(p, &flag, err));
        return give(p, json_boolean(flag), out, err);
    case KK_JSON_NULL:
        KK_TRY(kk_jsonpull_null(p, &flag, err));
        return give(p, json_null(), out, err);
    case KK_JSON_NONE: break;
    }
    return kk_jsonpull_skip(p, err); /* fails, and says why */
}

kk_status kk_json_tree(json_t **out, const char *text, size_t len, const char *label, kk_status bad,
                       kk_err *err) {
    kk_jsonpull p;
    json_t *root;
    *out = NULL;
    kk_jsonpull_open(&p, text, len, label);
    kk_status st = read_value(&p, &root, err);
    if (st == KK_OK && (st = kk_jsonpull_end(&p, err)) != KK_OK) json_decref(root);
    kk_jsonpull_close(&p);
    if (st == KK_OK) *out = root;
    if (st != KK_EFORMAT) return st;
    if (err) err->code = bad;
    return bad;
}
