/* wire.h - the JSON of responses, as OpenAI's clients read it. */
#ifndef KK_SERVER_WIRE_H
#define KK_SERVER_WIRE_H

#include <jansson.h>

#include "kakeya.h"
#include "server/text.h"

/* What all chunks of one response have in common. */
typedef struct {
    bool chat, stream, include_usage;
    char id[48];
    int64_t created;
    const char *model, *fingerprint;
} wire;

void wire_open(wire *w, bool chat, bool stream, bool include_usage);

typedef struct {
    int64_t prompt, cached, completion, reasoning, accepted, rejected; /* tokens */
    double prompt_s, decode_s;
    int64_t rounds, histogram[KK_MAX_DRAFT + 1]; /* of drafting: all, and by tokens accepted */
} wire_usage;

/* The whole response, or one chunk of it.  choices and usage are taken over; usage NULL: none. */
json_t *wire_response(const wire *w, json_t *choices, json_t *usage);
json_t *wire_usage_json(const wire_usage *u);
/* What it took, added to a response, or to the chunk of a stream that has the usage. */
void wire_measured(json_t *response, const wire_usage *u);
/* One choice of a response or a chunk.  `said` is a message, a delta or a text, and is taken over,
 * as is logprobs (NULL: null); finish NULL: it goes on. */
json_t *wire_choice(const wire *w, int32_t index, json_t *said, json_t *logprobs,
                    const char *finish);
/* An event of a stream, which releases the object. */
void wire_event(textbuf *out, json_t *object);

/* A token with its log-probability and the best others, as chat has it; NULL without memory. */
json_t *wire_logprob(const kk_tokenizer *tok, const kk_logprobs *of);
/* A list of these as chat has it, or in the arrays of completions; offset: characters of the text
 * before them.  The list is released. */
json_t *wire_logprobs(const wire *w, json_t *list, size_t *offset);

#endif
