/* corpus.h - the texts a projection is trained on, as token sequences.
 *
 * From files and folders, where .jsonl holds a text or a conversation per line; from sets of
 * prompts; from documents that hide a code; and from what the
 * model itself goes on to say after prompts.  A text is held out, to judge by, or trained on, as a
 * hash of the file or prompt says, so that no two sequences of one text lie on both sides.
 *
 * Documents with a code never are those of an evaluation: they are drawn from other seeds and
 * their codes begin with other words. */
#ifndef KK_TRAIN_CORPUS_H
#define KK_TRAIN_CORPUS_H

#include "eval/texts/haystack.h"
#include "kakeya.h"

typedef enum {
    KK_TEXT_FILE,
    KK_TEXT_PROMPT,
    KK_TEXT_NEEDLE,
    KK_TEXT_RANDOM,
    KK_TEXT_KINDS
} kk_text_kind;
const char *kk_text_kind_name(kk_text_kind k); /* "file", "prompt", "needle", "random" */

typedef struct {
    int32_t *ids;
    int32_t n;
    kk_text_kind kind;
    bool held; /* to judge by */
} kk_text;

/* What was found at the paths given and not read. */
typedef struct {
    int64_t other, links; /* files of kinds that are not read; symbolic links */
    int64_t large, small; /* files of text over 4 MiB, and of a few bytes */
    int64_t lines;        /* lines of .jsonl files with neither "text" nor "messages" */
    int64_t hidden;       /* files and folders whose names begin with a dot */
    int64_t special;      /* neither files nor folders, as FIFOs are, or not to be looked at */
    int64_t deep;         /* folders in too many others */
    int32_t n_ends;       /* kinds of files, by how their names end: */
    struct {
        char end[12]; /* ".png"; "": names without an ending */
        int64_t files;
    } ends[6]; /* the first so many; others are in `other` alone */
} kk_corpus_skipped;
/* As a sentence, "" when nothing was. */
void kk_corpus_skipped_text(const kk_corpus_skipped *s, char *out, size_t cap);

typedef struct {
    kk_text *texts;
    size_t n, cap;
    int64_t tokens[2]; /* trained on; held out */
    kk_corpus_skipped skipped;
} kk_corpus;

typedef struct {
    kk_engine *engine;        /* borrowed */
    const char *const *paths; /* files and folders; none: the prompts */
    size_t n_paths;
    const char *prompts; /* folder of prompt sets; NULL: none */
    int32_t length;      /* most tokens of a sequence, but for needles */
    int32_t predict;     /* tokens the model says after a prompt */
    int32_t needles;     /* documents */
    int32_t most_lines;  /* most lines of a document */
    int64_t tokens;      /* to train on at most, needles not counted; 0: all there are */
    /* Random ids instead of texts, `length` in a sequence: of a model with random weights, which
     * has no tokenizer. */
    bool random;
    uint64_t seed;
    /* Told as it goes; false stops with KK_ESTOPPED.  May be NULL. */
    bool (*on_text)(void *user, int64_t tokens);
    void *user;
} kk_corpus_opts;

kk_status kk_corpus_new(kk_corpus *out, const kk_corpus_opts *opts, kk_err *err);
void kk_corpus_free(kk_corpus *c); /* zero value is fine; leaves it zero */
/* Tokens of the longest sequence. */
int32_t kk_corpus_longest(const kk_corpus *c);

/* What draws are seeded with: never an evaluation's seed, as long as those are small. */
uint64_t kk_corpus_seed(uint64_t seed);
uint64_t kk_corpus_held_seed(uint64_t seed); /* the same, of random ids that are held out */
/* The next document to train on. */
kk_haystack kk_corpus_needle(kk_twister *t, int32_t most_lines);

#endif
