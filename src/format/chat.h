/* chat.h - the text of a conversation while it is written: characters, and where in them the
 * format put its own marks.
 *
 * The marks are what makes a conversation safe to encode.  Only they become special tokens; a
 * user who types one gets the characters he typed. */
#ifndef KK_FORMAT_CHAT_H
#define KK_FORMAT_CHAT_H

#include <jansson.h>

#include "core/error.h"

typedef enum {
    KK_MARK_BOS,
    KK_MARK_TURN,
    KK_MARK_TURN_END,
    KK_MARK_THINK,
    KK_MARK_CHANNEL,
    KK_MARK_CHANNEL_END,
    KK_MARK_TOOL,
    KK_MARK_TOOL_END,
    KK_MARK_CALL,
    KK_MARK_CALL_END,
    KK_MARK_RESPONSE,
    KK_MARK_RESPONSE_END,
    KK_MARK_QUOTE,
    KK_MARKS,
} kk_chat_mark;

const char *kk_chat_mark_text(kk_chat_mark m); /* such as "<|turn>" */

typedef struct {
    size_t at; /* byte of the text it starts at */
    kk_chat_mark mark;
} kk_chat_place;

/* A failure sticks: writing goes on without effect, and the end asks once. */
typedef struct {
    char *text;
    size_t len, cap;
    kk_chat_place *marks;
    size_t n_marks, marks_cap;
    kk_status status;
    kk_err *err;
} kk_chat_text;

void kk_chat_text_free(kk_chat_text *out);
void kk_chat_fail(kk_chat_text *out, kk_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void kk_chat_bytes(kk_chat_text *out, const char *s, size_t n);
void kk_chat_put(kk_chat_text *out, const char *s);
void kk_chat_put_mark(kk_chat_text *out, kk_chat_mark m);
/* A JSON string as it is, or upper case. */
void kk_chat_string(kk_chat_text *out, const json_t *s);
void kk_chat_upper(kk_chat_text *out, const json_t *s);
/* A string between quote marks. */
void kk_chat_quoted(kk_chat_text *out, const json_t *s);
/* Any value as the format writes values.  quote_keys: keys of maps stand between quote marks. */
void kk_chat_value(kk_chat_text *out, const json_t *v, bool quote_keys);
/* The members of a map as key:value,key:value. */
void kk_chat_members(kk_chat_text *out, const json_t *map, bool quote_keys);
/* Values and lists are true as Python has it: null, false, 0 and what is empty are not. */
bool kk_chat_truth(const json_t *v);

/* The members of a map in the format's order: by key, case aside. */
typedef struct {
    const char *key;
    size_t key_len;
    const json_t *value;
    size_t order; /* in the map: equal keys keep it */
} kk_chat_member;
/* NULL when the map is empty or there is no memory (which sticks).  Released with kk_free. */
kk_chat_member *kk_chat_sorted(kk_chat_text *out, const json_t *map, size_t *n);

/* One tool's declaration, marks included; where names it in messages. */
void kk_chat_tool(kk_chat_text *out, const json_t *tool, size_t index);

#endif
