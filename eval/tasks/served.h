/* served.h - what `make load` asks of a server, and what the model says to it alone.
 *
 * Both follow from the settings of the report: prompts from the shipped sets, answers because the
 * engine is exact, and requests of mixed lengths from the seed.  So `kakeya report rerun` computes
 * them without a server, and what a server said to many clients at once must be that. */
#ifndef KK_EVAL_SERVED_H
#define KK_EVAL_SERVED_H

#include "kakeya.h"

enum {
    KK_SERVED_STREAMS = 64,  /* clients at most */
    KK_SERVED_LENGTHS = 4,   /* of prompts */
    KK_SERVED_SHORTEST = 18, /* tokens of a prompt that requests of mixed lengths are parts of */
    KK_SERVED_LONG = 4096,   /* tokens of the prompt that a short request arrives beside */
    KK_SERVED_SHORT = 16,    /* and of that request */
};

typedef struct {
    int32_t *ids; /* the prompt */
    size_t n;
    int32_t *answer; /* ids; NULL: it was not answered */
    int32_t n_answer;
    uint64_t logprob_hash; /* of the float bits of the answer's log-probabilities */
} kk_served;

/* The prompt of that number, of at most so many tokens: text of the sets `code` and `prose` in the
 * folder, or random ids where there is no tokenizer or no folder. */
kk_status kk_served_prompt(kk_served *out, kk_engine *e, const char *folder, uint64_t seed,
                           size_t number, size_t tokens, kk_err *err);
/* Answers it with so many tokens, greedily, past stop ids and without drafts. */
kk_status kk_served_answer(kk_served *p, kk_engine *e, int32_t predict, kk_err *err);
void kk_served_free(kk_served *p); /* zero value is fine; leaves it zero */

/* A request of a length of its own: part of the prompt of a stream. */
typedef struct {
    size_t ctx, stream; /* of the prompt */
    size_t from, n;     /* tokens of it */
    int32_t predict;
    bool streamed, sampled;
} kk_served_request;

/* The next one.  lengths [n_ctx * streams]: tokens of the prompts, KK_SERVED_SHORTEST at least,
 * those of one ctx side by side. */
kk_served_request kk_served_draw(uint64_t *state, const size_t *lengths, size_t n_ctx,
                                 size_t streams);

#endif
