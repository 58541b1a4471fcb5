/* rerun.h - a report executed again from its own settings, and held against what came of it.
 *
 * The engine is exact: with the same weights, kind of device and build, tokens, hashes, recall, KL,
 * bytes and the acceptance of drafts of fixed length come out equal to the digit.  What a
 * controller chose by time is shown; times stand beside each other and are not judged.
 *
 * A kind of report registers how it is run and what is expected of its members: a file with a
 * kk_rerun_kind, and a line in the table of rerun.c.  A kind without one is refused. */
#ifndef KK_EVAL_RERUN_H
#define KK_EVAL_RERUN_H

#include "eval/rerun/compare.h"
#include "eval/texts/subset.h"
#include "kakeya.h"

enum { KK_RERUN_FILES = 64, KK_RERUN_NOTES = 12 };

struct kk_rerun_kind;

/* A report that was read, and what it is to be executed with. */
typedef struct {
    json_t *stored;
    const struct kk_rerun_kind *kind;
    kk_engine_opts engine;          /* the caller's, before kk_rerun_run */
    const char *const *projections; /* folders, where a report is of several; the engine's apart */
    size_t n_projections;
    const char *prompts;      /* folder of the shipped prompt sets; NULL: there is none */
    const char *const *files; /* texts and prompts that are not shipped, found by their names */
    size_t n_files;
    kk_subset subset; /* of the kind's units; n 0: all is executed */
    /* Told what happens; false stops with KK_ESTOPPED.  May be NULL. */
    bool (*tell)(void *user, const char *what);
    /* Trains a projection from the settings of `stored`, and gives its report; NULL: it cannot be
     * trained here. */
    kk_status (*train)(void *user, const json_t *stored, json_t **report, kk_err *err);
    void *user;
} kk_rerun;

typedef struct {
    json_t *report; /* of the rerun, as it would be written */
    kk_comparison found;
    char note[KK_RERUN_NOTES][240]; /* sentences: another version, another machine */
    size_t n_notes;
} kk_rerun_result;

/* Reads a report; refuses, with a sentence, what is none and a kind that cannot be executed again.
 * On failure *out holds nothing. */
kk_status kk_rerun_read(kk_rerun *out, const char *path, kk_err *err);
void kk_rerun_release(kk_rerun *r);

/* Refuses models, projections and files that are not those of the report before anything is
 * computed.  On failure *out holds nothing. */
kk_status kk_rerun_run(const kk_rerun *r, kk_rerun_result *out, kk_err *err);
void kk_rerun_result_release(kk_rerun_result *r);

/* What is drawn where not all is executed, in words: "documents, and as many texts".  NULL: a draw
 * executes all as well, and kk_rerun_whole says why: "a projection is trained as a whole". */
const char *kk_rerun_unit(const kk_rerun *r);
const char *kk_rerun_whole(const kk_rerun *r);

#endif
