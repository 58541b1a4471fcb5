/* needle.h - does a model find one code in a long document?
 *
 * For each rung of a ladder (about so many lines of padding) and each sample, a document is drawn
 * from the seed, read into a new session with exact caches, and its question answered greedily.
 * Every rung starts from the seed anew, so that a rung's documents do not depend on the others.
 *
 * Bytes are read from the engine's allocator while a document is being read and after its answer,
 * and the most of each category is kept.  Rates are tokens over seconds of all samples of a rung;
 * a short document of another seed warms the engine up before the first. */
#ifndef KK_EVAL_NEEDLE_H
#define KK_EVAL_NEEDLE_H

#include "eval/haystack.h"
#include "kakeya.h"

enum { KK_NEEDLE_RUNGS = 16, KK_NEEDLE_SAMPLES = 10000 };

typedef struct {
    kk_haystack doc;
    int32_t tokens;    /* of the prompt */
    int32_t generated; /* stop ids included */
    char *answer;      /* any bytes, NUL-terminated after answer_len */
    size_t answer_len;
    bool hit;
    double prefill_s, decode_s;
} kk_needle_sample;

typedef struct {
    int32_t lines, low, high; /* asked for; the documents have low to high */
    kk_needle_sample *samples;
    int32_t n_samples; /* with an answer */
    int32_t hits;
    double recall;                      /* hits of samples */
    double tokens;                      /* of a prompt, on average */
    double prefill_tok_s, decode_tok_s; /* 0: nothing was decoded */
    int64_t bytes[KK_MEM_CATEGORIES];   /* the most at any time of any sample */
} kk_needle_rung;

typedef struct {
    kk_machine machine;
    kk_model_info model;
    kk_drafter_info drafter; /* layers 0: none */
    kk_device_info device;
    kk_fingerprints prints;
    double load_s;
    int32_t ctx;
    kk_needle_rung rung[KK_NEEDLE_RUNGS];
    int32_t n_rungs;
} kk_needle_result;

/* What happens, as it happens. */
typedef enum {
    KK_NEEDLE_READING, /* done of total tokens of the document; 0 before the first */
    KK_NEEDLE_TEXT,    /* more of the answer: len bytes of text */
    KK_NEEDLE_JUDGED,  /* the sample is complete */
} kk_needle_moment;
typedef struct {
    kk_needle_moment moment;
    const kk_needle_rung *rung;
    const kk_needle_sample *sample; /* its number is sample - rung->samples */
    int64_t done, total;
    const char *text;
    size_t len;
} kk_needle_event;

typedef struct {
    kk_engine_opts engine;
    kk_kv_format kv_format;
    int32_t ctx;     /* 0: what the longest document and its answer need */
    uint64_t seed;   /* under 2^63 */
    int32_t samples; /* of each rung */
    int32_t ladder[KK_NEEDLE_RUNGS];
    int32_t n_rungs;
    int32_t predict; /* most tokens of an answer */
    bool raw;        /* continue the document as it is, instead of answering a user's turn */
    /* False stops with KK_ESTOPPED.  May be NULL. */
    bool (*on_event)(void *user, const kk_needle_event *event);
    void *user;
} kk_needle_opts;

/* On failure *out holds nothing; otherwise release it. */
kk_status kk_needle_run(const kk_needle_opts *opts, kk_needle_result *out, kk_err *err);
void kk_needle_release(kk_needle_result *r);

/* Whether every rung recalls at least this share of its needles. */
bool kk_needle_holds(const kk_needle_result *r, float min_recall);

/* Writes the result as a JSON report, with the gate when min_recall is not negative.  command is
 * what was typed; NULL: not known. */
kk_status kk_needle_write(const char *path, const kk_needle_opts *opts, const kk_needle_result *r,
                          float min_recall, const char *command, kk_err *err);

#endif
