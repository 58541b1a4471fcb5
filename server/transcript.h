/* transcript.h - a history of tokens read back as the messages of a chat. */
#ifndef KK_SERVER_TRANSCRIPT_H
#define KK_SERVER_TRANSCRIPT_H

#include <jansson.h>

#include "kakeya.h"

/* A list of messages: {"role", "start", "end", "parts": [{"kind", "text", ...}]}.  The tokens of a
 * message are [start, end) of the history, with the marks of its turn.  role: "system", "user",
 * "assistant", or "text" for what stands in no turn.  kind: "text", "thought", "call" (with "name"
 * and "arguments" where it could be read), "response" (what a tool answered) and "tool" (one that
 * was declared).  A message whose turn did not end has "open": true, one that thinks before it
 * answers "thinking": true, and one that waits for a tool "awaits_tool": true.  NULL: *err says
 * why. */
json_t *transcript_json(const kk_tokenizer *tok, const int32_t *tokens, size_t n, kk_err *err);

#endif
