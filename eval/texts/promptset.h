/* promptset.h - prompts as ids: from a JSONL file, from a seed, or random ones.
 *
 * A line of a file is an object with one of
 *   "text" or "prompt"  a text to continue, with the model's <bos>;
 *   "messages"          a conversation to answer, with "tools" and "enable_thinking" if given;
 *   "ids"               token ids as they are;
 * and perhaps "new", the most tokens to generate after it.  Other members are not looked at, and
 * neither are empty lines. */
#ifndef KK_EVAL_PROMPTSET_H
#define KK_EVAL_PROMPTSET_H

#include "kakeya.h"

enum {
    KK_PROMPTSET_MOST = 4096, /* prompts of a set */
    /* Of the set "needle". */
    KK_PROMPTSET_NEEDLE_SEED = 42,
    KK_PROMPTSET_NEEDLE_LINES = 60,
    /* Of random ids in a bench. */
    KK_PROMPTSET_RANDOM_SEED = 7,
};

typedef struct {
    int32_t *ids;
    size_t n;
    int32_t most;  /* tokens to generate; 0: not said */
    uint64_t text; /* hash of the line, the document or the ids it was made of */
} kk_prompt;

typedef struct {
    char name[64];
    kk_prompt *prompts;
    size_t n;
} kk_promptset;

/* The first `most` prompts of a file, named by its last part without ".jsonl". */
kk_status kk_promptset_read(kk_promptset *out, const char *path, const kk_tokenizer *tok,
                            size_t most, kk_err *err);
/* n documents that hide a code, of about 60 lines, as users' turns; see haystack.h. */
kk_status kk_promptset_needles(kk_promptset *out, const kk_tokenizer *tok, size_t n, kk_err *err);
/* A set by its name: "needle", or a file NAME.jsonl of the folder (NULL: there is none). */
kk_status kk_promptset_named(kk_promptset *out, const char *folder, const char *name,
                             const kk_tokenizer *tok, size_t most, kk_err *err);
/* n prompts of len random ids each. */
kk_status kk_promptset_random(kk_promptset *out, int32_t vocab, size_t n, int32_t len,
                              uint64_t seed, kk_err *err);
void kk_promptset_free(kk_promptset *s); /* zero value is fine; leaves it zero */

/* Tokens of the longest prompt with what is to be generated after it. */
int32_t kk_promptset_longest(const kk_promptset *s, int32_t predict);
/* How many tokens to generate after a prompt: what it says itself (else 128), but no more than
 * predict; 0: no limit of the caller's. */
int32_t kk_prompt_predict(const kk_prompt *p, int32_t predict);
/* Of its ids, to name it in a report. */
uint64_t kk_prompt_hash(const kk_prompt *p);

#endif
