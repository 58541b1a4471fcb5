/* sweep_ask.h - the same documents asked again and again of an open engine, each time of sessions
 * that keep their rows in another way. */
#ifndef KK_EVAL_SWEEP_ASK_H
#define KK_EVAL_SWEEP_ASK_H

#include <jansson.h>

#include "eval/tasks/quality.h"
#include "eval/texts/haystack.h"
#include "kakeya.h"

enum { KK_ASK_RUNGS = 16, KK_ASK_SAMPLES = 10000 };

typedef struct {
    kk_haystack doc;
    int32_t *ids; /* as a user's turn */
    int32_t n;
    int32_t number; /* of all that the seed names, from 0 */
} kk_ask_document;

typedef struct {
    uint64_t seed;
    kk_ask_document *document;
    int32_t n;
} kk_ask_set;

/* For each rung of about so many lines, from the seed anew: samples documents. */
typedef struct {
    int32_t ladder[KK_ASK_RUNGS], n_rungs, samples;
    uint64_t seed;
    kk_subset subset; /* which of the documents are kept */
} kk_ask_draw;
kk_status kk_ask_documents(kk_ask_set *out, kk_engine *e, const kk_ask_draw *draw, kk_err *err);
void kk_ask_free(kk_ask_set *set); /* zero value is fine; leaves it zero */
/* Tokens of the longest and the shortest. */
int32_t kk_ask_longest(const kk_ask_set *set);
int32_t kk_ask_shortest(const kk_ask_set *set);
/* The most lines of padding whose document has at most so many tokens; 0: even the shortest one has
 * more. */
kk_status kk_ask_lines(kk_engine *e, int32_t tokens, int32_t *lines, kk_err *err);

typedef struct {
    int32_t generated; /* stop ids included */
    char *answer;
    size_t answer_len;
    bool hit;
    double prefill_s, decode_s;
    kk_key_counts counts;
    uint64_t logits_hash;
} kk_asked;

/* What all documents were answered, and what recall is blind to. */
typedef struct {
    kk_asked *answer; /* [set] */
    int32_t n, hits;
    kk_key_counts counts;             /* of all answers */
    int64_t bytes[KK_MEM_CATEGORIES]; /* the most after any document was read or answered */
    kk_quality_row *quality;          /* by text */
    size_t n_quality;
    kk_quality_sum sum;
} kk_ask_result;

typedef struct {
    kk_engine *engine;
    kk_session_opts session; /* ctx 0: what a document needs */
    const float *mix; /* true rows are mixed into rebuilt ones by so much; NULL: they are not */
    int32_t predict;  /* most tokens of an answer */
    /* Told when a document was read, before it is answered; false stops with KK_ESTOPPED. */
    kk_status (*after_read)(void *user, kk_session *s, kk_err *err);
    bool (*go_on)(void *user);
    void *user;
} kk_ask_how;

/* On failure *out holds nothing. */
kk_status kk_ask_all(kk_ask_result *out, const kk_ask_set *set, const kk_ask_how *how, kk_err *err);
void kk_ask_release(kk_ask_result *r); /* zero value is fine; leaves it zero */

/* Compares the texts, and adds what was found to out[arm]; any number of arms. */
kk_status kk_ask_quality(const kk_quality_opts *opts, const kk_quality_texts *texts,
                         kk_ask_result *const *out, kk_err *err);

/* samples, hits, recall, restored_rows and answers, put into an object, and, where texts were
 * compared, quality, mean_kl, worst_kl and loss_change. */
void kk_ask_into(json_t *object, const kk_ask_set *set, const kk_ask_result *r);

#endif
