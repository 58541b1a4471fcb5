/* needle.h - does a model find one code in a long document, and with what it keeps of it?
 *
 * For each rung of a ladder (about so many lines of padding) and each sample, a document is drawn
 * from the seed, read into a new session, and its question answered greedily.  Every rung starts
 * from the seed anew, so that a rung's documents do not depend on the others.  Arms are ways to
 * keep K/V rows: exact keeps all, window drops, restored and drafted rebuild.  All answer the same
 * documents, one arm after the other, and what a session of another arm needs is not there yet.
 *
 * Bytes are read from the engine's allocator while a document is being read and after its answer,
 * and the most of each category is kept.  What attention read is counted by attention.  Rates are
 * tokens over seconds of all samples of a rung; a short document of another seed warms the engine
 * up before the first of an arm.
 *
 * Recall says little about a cache that keeps what the question asks for.  With several arms their
 * next-token distributions on ordinary text are compared too: quality.h. */
#ifndef KK_EVAL_NEEDLE_H
#define KK_EVAL_NEEDLE_H

#include "eval/tasks/quality.h"
#include "eval/texts/haystack.h"
#include "kakeya.h"

enum { KK_NEEDLE_RUNGS = 16, KK_NEEDLE_SAMPLES = 10000 };

typedef enum {
    KK_NEEDLE_EXACT,
    KK_NEEDLE_WINDOW,
    KK_NEEDLE_RESTORED,
    KK_NEEDLE_DRAFTED, /* restored, and a drafter drafts the answers */
    KK_NEEDLE_ARMS
} kk_needle_way;
const char *kk_needle_way_name(kk_needle_way w); /* "exact", "window", ... */

typedef struct {
    kk_haystack doc;
    int32_t number;    /* of the rung's documents, from 0 */
    int32_t tokens;    /* of the prompt */
    int32_t generated; /* stop ids included */
    char *answer;      /* any bytes, NUL-terminated after answer_len */
    size_t answer_len;
    bool hit;
    double prefill_s, decode_s;
    kk_key_counts counts;
    uint64_t logits_hash; /* of the answer */
} kk_needle_sample;

typedef struct {
    int32_t lines, low, high; /* asked for; the documents have low to high */
    kk_needle_sample *samples;
    int32_t n_drawn;   /* documents to be asked about */
    int32_t n_samples; /* of them with an answer */
    int32_t hits;
    double recall;                      /* hits of samples */
    double tokens;                      /* of a prompt, on average */
    double prefill_tok_s, decode_tok_s; /* 0: nothing was decoded */
    int64_t bytes[KK_MEM_CATEGORIES];   /* the most at any time of any sample */
    kk_key_counts counts;               /* of all samples */
} kk_needle_rung;

typedef struct {
    kk_needle_way way;
    kk_session_opts how; /* with the defaults filled in */
    kk_needle_rung rung[KK_NEEDLE_RUNGS];
    int32_t n_rungs;
    kk_quality_row *quality; /* [texts.n] of the result; NULL of exact */
    kk_quality_sum sum;
} kk_needle_arm;

typedef struct {
    kk_machine machine;
    kk_model_info model;
    kk_projection_info projection; /* rank 0: none */
    kk_device_info device;
    double load_s;
    int32_t ctx;
    kk_needle_arm arm[KK_NEEDLE_ARMS];
    int32_t n_arms;
    kk_quality_source source; /* of the texts */
    kk_quality_texts texts;   /* none with one arm */
    json_t *run;              /* kk_report_run */
} kk_needle_result;

/* What happens, as it happens. */
typedef enum {
    KK_NEEDLE_READING,  /* done of total tokens of the document; 0 before the first */
    KK_NEEDLE_TEXT,     /* more of the answer: len bytes of text */
    KK_NEEDLE_JUDGED,   /* the sample is complete */
    KK_NEEDLE_COMPARED, /* done of total tokens of ordinary text, by all arms; no rung or sample */
} kk_needle_moment;
typedef struct {
    kk_needle_moment moment;
    const kk_needle_arm *arm;
    const kk_needle_rung *rung;
    const kk_needle_sample *sample; /* its number is sample - rung->samples */
    int64_t done, total;
    const char *text;
    size_t len;
} kk_needle_event;

typedef struct {
    kk_engine_opts engine;
    /* Of the sessions; ctx 0: what the longest document and its answer need.  kv_sliding and
     * kv_full say which layers the arms are about; when both keep all, all layers. */
    kk_session_opts session;
    kk_needle_way arms[KK_NEEDLE_ARMS];
    int32_t n_arms;  /* exact comes first; 0: exact alone */
    uint64_t seed;   /* under 2^63 */
    int32_t samples; /* of each rung */
    int32_t ladder[KK_NEEDLE_RUNGS];
    int32_t n_rungs;
    int32_t predict; /* most tokens of an answer */
    bool raw;        /* continue the document as it is, instead of answering a user's turn */
    const char *const *texts; /* files to compare arms on */
    size_t n_texts;           /* 0: of the folder, what is held out of training */
    const char *prompts;      /* that folder; NULL: there is none */
    int32_t text_tokens;      /* most of a text */
    kk_subset subset;         /* which documents are asked about, and as many texts are compared */
    const char *command;      /* what was typed, for the report; NULL: not known */
    /* False stops with KK_ESTOPPED.  May be NULL. */
    bool (*on_event)(void *user, const kk_needle_event *event);
    void *user;
} kk_needle_opts;

/* Whether the model opens and every document fits its context: *ctx is what the longest needs with
 * its answer.  Nothing is asked, and arms that rebuild rows need no projection yet. */
kk_status kk_needle_fits(const kk_needle_opts *opts, int32_t *ctx, kk_err *err);
/* On failure *out holds nothing; otherwise release it. */
kk_status kk_needle_run(const kk_needle_opts *opts, kk_needle_result *out, kk_err *err);
void kk_needle_release(kk_needle_result *r);

/* K/V rows and latents, in all: of the session, and of its drafter. */
int64_t kk_needle_kv_bytes(const kk_needle_rung *r);

/* ---- the gate ----------------------------------------------------------------------------- */

/* What is asked for; negative: not. */
typedef struct {
    float min_recall;   /* of every rung, but of the arm window, which is there to be beaten */
    float max_kl;       /* mean, of restored and drafted */
    float min_kv_ratio; /* bytes of exact over those of restored and drafted, at every rung */
} kk_needle_limits;

typedef struct {
    const char *figure; /* as in docs/reports.md */
    const char *arm;
    double limit, value;
    bool holds;
} kk_needle_check;
enum { KK_NEEDLE_CHECKS = KK_NEEDLE_ARMS + 2 * 4 };

/* The checks, and how many: those of the limits, and always that restored and drafted have rebuilt
 * rows in every sample and recall no rung worse than exact by more than 5 points. */
int32_t kk_needle_judge(const kk_needle_result *r, const kk_needle_limits *limits,
                        kk_needle_check out[KK_NEEDLE_CHECKS]);

/* The result as a JSON report, NULL without memory; and the same written. */
json_t *kk_needle_report(const kk_needle_opts *opts, const kk_needle_result *r,
                         const kk_needle_limits *limits);
kk_status kk_needle_write(kk_writer *to, const kk_needle_opts *opts, const kk_needle_result *r,
                          const kk_needle_limits *limits, kk_err *err);

#endif
