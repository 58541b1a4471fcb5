/* stream.h - reads a prompt into a session, generates from it and shows what comes, for verbs that
 * continue a text: run and session.
 *
 * The text goes to stdout as it is chosen; progress, timings and memory go to stderr.  With json,
 * everything is kept and reported as one object at the end. */
#ifndef KAKEYA_CLI_STREAM_H
#define KAKEYA_CLI_STREAM_H

#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/reply.h"
#include "kakeya.h"

typedef struct {
    kk_engine *engine;   /* borrowed */
    kk_session *session; /* borrowed */
    bool json, quiet, verbose;
    bool chat;                 /* what comes is an answer: thoughts and calls are taken out of it */
    const option_words *stops; /* borrowed; NULL: none */
    double load_s;

    /* What one run gathers. */
    reply reply; /* without an answer: the model has no tokenizer, ids are printed */
    size_t n_prompt;
    uint64_t seed;
    int32_t *ids; /* generated */
    size_t n_ids, cap;
    json_t *logprobs; /* with json: an array to add to; NULL: not asked for */
    bool out_of_memory;
    double prefill_s;
    kk_result result;
} stream;

/* The first fields are set by the caller, the rest zero.  False after saying why not. */
bool stream_open(stream *s, int *code);
void stream_close(stream *s);
/* With verbose: the model and its drafter. */
void stream_loaded(const stream *s);
/* Appends the prompt to the session.  False after saying why not. */
bool stream_prompt(stream *s, const prompt_args *a, const prompt_tokens *p, int *code);
/* Generates and shows the text, as many tokens as predict says (-1: until it ends); the exit code
 * when it failed, else EXIT_DONE, also when a signal ended it early. */
int stream_generate(stream *s, const kk_generate_opts *opts, int32_t predict);
/* What it took: the object (with `more`'s keys besides; may be NULL) or the lines on stderr.
 * Returns the exit code. */
int stream_report(stream *s, json_t *more);

#endif
