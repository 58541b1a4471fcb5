/* sessions_json.h - the JSON of sessions: bodies of requests checked, and what is answered. */
#ifndef KK_SERVER_SESSIONS_JSON_H
#define KK_SERVER_SESSIONS_JSON_H

#include "server/request.h"
#include "server/service.h"

/* Options of a new session in *how, which holds the server's own: label, context, kv_format,
 * kv_sliding, kv_full, sink, window, chunk, spec, draft_max, stop_token_ids.  Sampling is
 * request_generation's. */
bool sessions_json_how(const json_t *body, int32_t vocab, sessions_how *how, fault *f);

/* All of *how as such a body, to be stored; NULL without memory.  Released with free(). */
char *sessions_how_text(const sessions_how *how);
/* The same back; false: it is none.  What it does not say stays as it is in *how. */
bool sessions_how_parse(const char *text, int32_t vocab, sessions_how *how);

/* What is to be appended: one of tokens, text and messages. */
typedef struct {
    int32_t *tokens; /* [n]; NULL: not these */
    size_t n;
    const char *text; /* borrowed from the body; NULL: not this */
    size_t len;
    char *messages; /* an object for kk_chat_encode; NULL: not these */
} sessions_addition;
bool sessions_json_addition(const json_t *body, int32_t vocab, int32_t max_messages, bool think,
                            sessions_addition *out, fault *f);
void sessions_addition_free(sessions_addition *a);

/* {"at": tokens} or {"turn": n}, or neither. */
bool sessions_json_place(const json_t *body, sessions_place *out, fault *f);
/* A list of ids, [0, n) of *out, at most `most`; absent: none.  Released with free(). */
bool sessions_json_ids(const json_t *body, const char *name, int32_t vocab, size_t most,
                       int32_t **out, size_t *n, fault *f);

json_t *sessions_info_json(const sessions_info *i);
json_t *sessions_appended_json(const char *id, const sessions_appended *a);
json_t *sessions_generated_json(const sessions_generated *g);

#endif
