/* generation.h - one choice of a response while the model writes it: taken apart into text, thought
 * and calls, and sent or gathered. */
#ifndef KK_SERVER_GENERATION_H
#define KK_SERVER_GENERATION_H

#include "server/exchange.h"
#include "server/metrics.h"
#include "server/request.h"
#include "server/wire.h"

/* A small model writes a token in a fraction of a millisecond, and a look at the socket is a call
 * of the system: a client that left is noticed so many seconds later at most. */
#define GENERATION_LOOK_S 2e-3

/* A chunk of a stream but for what is said in it: all chunks of a choice are alike. */
typedef struct {
    textbuf event;
    size_t gap; /* bytes of the event before what is said; 0: it was not made yet */
} generation_frame;

typedef struct {
    /* Set by the caller; borrowed. */
    struct server *server;
    exchange *x;
    const request *request;
    const wire *wire;
    int32_t index;
    void (*before_end)(void *user); /* before the client sees that it ended well; NULL: nothing */
    void *user;

    kk_answer *answer;
    textbuf said, thought;      /* where nothing is streamed */
    generation_frame frames[2]; /* of text and of thoughts */
    textbuf event;              /* being written */
    json_t *calls;
    json_t *pending;  /* log-probabilities of tokens whose text has not come */
    json_t *logprobs; /* of those whose text has */
    size_t offset;    /* characters of the text before the next of these */
    kk_answer_kind inside;
    int32_t n_calls, n_tokens, reasoning;
    double first;  /* text_now() of the first token; 0: none came */
    double looked; /* text_now() when the client was last looked at */
    fault failed;  /* status 0: nothing */
    metrics_finish finish;
} generation;

/* prompt: what the answer follows; a thought that it leaves open goes on. */
kk_status generation_open(generation *g, const int32_t *prompt, size_t n, kk_err *err);
void generation_close(generation *g);
/* Continues the session; false: it failed, or nobody waits for it (g->failed, g->finish). */
bool generation_run(generation *g, kk_session *s, kk_result *sum);
/* The two halves of that: a token of the answer (a kk_on_token), and what was held back at its end,
 * with the last chunk; g->finish says how it ended. */
bool generation_token(void *g, int32_t id);
bool generation_end(generation *g);
/* The text that an answer begins with: the prompt itself, for `echo`. */
bool generation_echo(generation *g, const char *text, size_t len);
/* The choice as one, for a response that is not streamed. */
json_t *generation_choice(generation *g);

/* Whether there is still somebody, and time, to work for; else writes down why not. */
bool generation_goes_on(generation *g);

#endif
