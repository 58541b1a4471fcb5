/* request.h - the JSON of a request, checked: every wrong value is named in the fault. */
#ifndef KK_SERVER_REQUEST_H
#define KK_SERVER_REQUEST_H

#include <jansson.h>

#include "kakeya.h"
#include "server/fault.h"

enum {
    REQUEST_STOPS = 16,
    REQUEST_BIASES = 1024,
    REQUEST_VALUES = 1 << 19, /* of a body: a long context as token ids */
    REQUEST_CONTAINERS = 1 << 16,
};

typedef struct {
    bool chat;            /* messages, or a prompt */
    kk_sampling sampling; /* what a request that does not say gets */
    bool think;
    int32_t max_messages, max_choices, vocab;
} request_defaults;

typedef struct {
    json_t *root; /* owns what is borrowed below */
    bool chat, stream, include_usage;
    bool think, echo, ignore_eos;
    bool one_call;      /* parallel_tool_calls: false */
    int32_t n;          /* choices of each prompt */
    int32_t max_tokens; /* 0: until the model ends or the context is full */
    int32_t logprobs;   /* the best so many; -1: none, not even of the chosen */
    kk_sampling sampling;
    bool seeded; /* sampling.seed was given */
    const char *stops[REQUEST_STOPS];
    size_t n_stops;
    kk_logit_bias *bias;
    size_t n_bias;
    const json_t *messages, *tools; /* of a chat; tools NULL: none */
    const json_t *prompt;           /* of a completion: text, ids, or a list of these */
} request;

/* False: it is refused, and *f says why.  *out is to be released in any case. */
bool request_parse(request *out, const char *body, size_t len, const request_defaults *d, fault *f);
/* The same of a body that says only how to generate, without a prompt; it may be empty. */
bool request_generation(request *out, const char *body, size_t len, const request_defaults *d,
                        fault *f);
/* The conversation of a chat, or its first message alone, as the library reads it: released with
 * free(); NULL without memory. */
char *request_conversation(const request *r, bool system_only, bool generation_prompt, size_t *len);
void request_free(request *r);
/* Whether JSON has few enough values to be made a tree, which takes hundreds of bytes for each. */
bool request_is_small(const char *body, size_t len, fault *f);
/* An object of a body, for endpoints that need no more; NULL after writing down why not. */
json_t *request_object(const char *body, size_t len, fault *f);

#endif
