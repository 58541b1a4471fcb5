/* records.c - see records.h. */
#include "eval/texts/records.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "format/jsontree.h"

static bool is_blank(const char *line, size_t len) {
    while (len && strchr(" \t\r", *line)) line++, len--;
    return len == 0;
}

static kk_status keep(kk_record *out, kk_record_kind kind, const char *text, size_t len,
                      kk_err *err) {
    out->text = text ? kk_strndup(text, len) : NULL;
    if (!out->text) return kk_fail(err, KK_ENOMEM, "no memory for a text of %zu bytes", len);
    out->kind = kind;
    out->len = len;
    return KK_OK;
}

static kk_status keep_chat(kk_record *out, const json_t *o, kk_err *err) {
    char *json = json_dumps(o, JSON_COMPACT);
    const kk_status st = keep(out, KK_RECORD_CHAT, json, json ? strlen(json) : 0, err);
    free(json);
    return st;
}

static kk_status read_object(kk_record *out, const json_t *o, kk_err *err) {
    const json_t *text = json_object_get(o, "text"), *messages = json_object_get(o, "messages");
    if (!json_is_object(o)) return kk_fail(err, KK_EFORMAT, "it is no JSON object");
    if (text && !json_is_string(text)) return kk_fail(err, KK_EFORMAT, "\"text\" is no string");
    if (messages && !json_is_array(messages))
        return kk_fail(err, KK_EFORMAT, "\"messages\" is no list");
    if (messages) return keep_chat(out, o, err);
    if (!text) return KK_OK;
    return keep(out, KK_RECORD_TEXT, json_string_value(text), json_string_length(text), err);
}

kk_status kk_record_read(kk_record *out, const char *line, size_t len, kk_err *err) {
    json_t *o;
    *out = (kk_record){0};
    if (is_blank(line, len)) return KK_OK;
    KK_TRY(kk_json_tree(&o, line, len, "JSON", KK_EFORMAT, err));
    const kk_status st = read_object(out, o, err);
    json_decref(o);
    return st;
}

void kk_record_release(kk_record *r) {
    kk_free(r->text);
    *r = (kk_record){0};
}

kk_status kk_record_encode(const kk_record *r, const kk_tokenizer *tok, int32_t **ids, size_t *n,
                           kk_err *err) {
    return r->kind == KK_RECORD_CHAT ? kk_chat_encode(tok, r->text, r->len, ids, n, err)
                                     : kk_encode(tok, r->text, r->len, KK_ENCODE_BOS, ids, n, err);
}
