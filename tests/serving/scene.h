/* scene.h - what the measurements of a server share: options, prompts, what the model answers to
 * them alone, and the report. */
#ifndef KK_SERVING_SCENE_H
#define KK_SERVING_SCENE_H

#include <jansson.h>

#include "eval/tasks/served.h"
#include "kakeya.h"
#include "serving/target.h"

enum { SCENE_MOST_CLIENTS = KK_SERVED_STREAMS, SCENE_MOST_MODEL_ARGS = 12 };

/* Options of all measurements; which of them one takes is in its own file. */
typedef struct {
    const char *kakeya, *report, *prompts;         /* prompts: folder of *.jsonl */
    const char *model_args[SCENE_MOST_MODEL_ARGS]; /* as `kakeya serve` takes them */
    size_t n_model_args;
    kk_engine_opts engine; /* the same model in this process */
    bool drafts;           /* it has a drafter */
    char command[600];
    char work[64]; /* a folder of this run, removed at its end */

    int clients, turns, predict, kills, requests, arrivals, port;
    int32_t ctx[4];
    size_t n_ctx;
    double seconds, bucket_s;
    uint64_t seed;
    double min_served, min_drafted, max_chunks;
    double min_together[4]; /* by ctx */
} scene;

/* Opens this process's engine; false after saying why not. */
bool scene_open_engine(const scene *s, kk_engine **out);

/* A prompt, and what the model answers to it when it runs alone, greedily. */
typedef struct {
    kk_served of;
    growing text; /* of the answer */
} spoken;

/* The prompt of that number: text of the prompt sets, or random ids where there is no tokenizer. */
bool spoken_prompt(spoken *p, const scene *s, kk_engine *e, size_t number, size_t tokens);
/* Answers it in this process. */
bool spoken_answer(spoken *p, kk_engine *e, int32_t predict);
/* Whether a stream said what the model says alone. */
bool spoken_same(const spoken *p, const client *c);
void spoken_free(spoken *p);

/* The body of a request to /v1/completions for it; more: further members, as in ", \"n\": 2". */
void spoken_request(const spoken *p, int32_t predict, bool stream, const char *more, growing *out);

/* What was run, for a report; released by scene_write. */
json_t *scene_envelope(const scene *s, kk_engine *e);
/* Judges what was measured, says so, and writes the report of that kind where one was asked for;
 * takes both over.  0: all limits hold. */
int scene_write(const scene *s, const char *kind, json_t *envelope, json_t *body);

/* {tokens, seconds, tok_s, tok_s_spread, rows} of rows of {tokens, seconds}, which it releases. */
json_t *scene_rate(json_t *rows);
/* {median, min, max, n} of a member over rows that have it. */
json_t *scene_spread(const json_t *rows, const char *key);
/* The value below which that share of n values lies; they are sorted. */
double scene_quantile(double *values, size_t n, double share);

/* The measurements: 0 all held, 1 something did not. */
int measure_load(const scene *s);
int measure_soak(const scene *s);
int measure_chaos(const scene *s);
int measure_ask(const scene *s);

#endif
