/* lossless_prompts.h - the prompts that drafted decoding is held against plain decoding on.
 *
 * Five kinds in the same lengths: every prompt is <bos> and the end of a stream of its kind, so
 * that a short one ends as its kind does (a question, an open line of code), and a long one has
 * left the shipped model's window of 512 several times.  The same ids at every run. */
#ifndef KK_TESTS_LOSSLESS_PROMPTS_H
#define KK_TESTS_LOSSLESS_PROMPTS_H

#include "eval/texts/haystack.h"
#include "eval/texts/lossless_plan.h"
#include "support/tokens.h"

enum lossless_kind { OF_CODE, OF_PROSE, OF_NEEDLE, OF_CHAT, OF_RANDOM, KINDS_OF_TEXT };
#define lossless_kinds kk_lossless_kinds
/* By what a prompt's length has left behind. */
enum lossless_length { WITHIN_A_PAGE, WITHIN_THE_WINDOW, WRAPPED_ONCE, WRAPPED_OFTEN, LENGTHS };
#define lossless_lengths kk_lossless_lengths

#define lossless_sizes kk_lossless_sizes
enum {
    SIZES = KK_LOSSLESS_SIZES,
    PROMPTS = SIZES * KINDS_OF_TEXT,
    LONGEST_PROMPT = 1600,
    BOS_ID = 2,
};

typedef struct {
    int32_t *ids;
    int32_t n;
    enum lossless_kind kind;
    enum lossless_length length;
} lossless_prompt;

/* What prompts are drawn from. */
typedef struct {
    kk_tokenizer *tokenizer;
    int32_t vocab;
    json_t *lines[2]; /* recorded prompts: code, chat */
    uint64_t random;
    kk_twister twister;
} lossless_source;

/* ---- streams ------------------------------------------------------------------------------ */

static const char *const lossless_sentences[] = {
    "The harbour was quiet in the morning, and the fog lay so low that the masts seemed to grow "
    "out of nothing. ",
    "Nobody remembered when the bridge had been built, but everybody had a story about the man "
    "who built it. ",
    "She put the letter back into the drawer, closed it slowly, and went out to feed the hens. ",
    "In spring the river rises above its banks and leaves a grey line on the walls of the lower "
    "houses. ",
    "There are three ways over the mountain, and the shortest of them is the worst. ",
    "A clock that is wrong twice a day is still trusted by those who have no other. ",
    "The doctor asked for tea, looked at the child, and said that sleep would do more than he "
    "could. ",
    "When the train stopped between two stations, the passengers began to talk to each other. ",
    "It was not the rain that kept them at home, it was the thought of the long way back. ",
    "He sold apples in autumn, wood in winter, and in summer he sat in front of his shop and sold "
    "nothing. ",
    "The old map showed a village where now there was a lake, and a lake where nothing was. ",
    "They agreed on everything but the price, and so they agreed on nothing. ",
};

static inline json_t *lossless_recorded(const char *a, const char *b) {
    size_t len;
    char *text = data_read("tiny/prompts.jsonl", &len), *at = text;
    json_t *all = json_array();
    for (json_t *line; (line = next_line(&at)); json_decref(line)) {
        const char *kind = json_string_value(json_object_get(line, "kind"));
        if (strcmp(kind, a) == 0 || strcmp(kind, b) == 0)
            json_array_append(all, json_object_get(line, "ids"));
    }
    free(text);
    return all;
}

static inline size_t lossless_copy(const json_t *ids, int32_t *out, size_t cap) {
    size_t n = json_array_size(ids);
    if (n > cap) n = cap;
    for (size_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    return n;
}

static inline size_t lossless_encode(lossless_source *s, const char *text, size_t len, int32_t *out,
                                     size_t cap) {
    int32_t *ids;
    size_t n;
    if (kk_encode(s->tokenizer, text, len, 0, &ids, &n, NULL) != KK_OK) abort();
    if (n > cap) n = cap;
    memcpy(out, ids, n * sizeof *out);
    kk_free(ids);
    return n;
}

/* A whole document, of somewhat more than n ids. */
static inline size_t lossless_haystack(lossless_source *s, int32_t n_wanted, int32_t *out,
                                       size_t cap) {
    const int32_t lines = n_wanted / 16 + KK_HAYSTACK_LEAST_LINES;
    const kk_haystack h = kk_haystack_draw(&s->twister, lines, lines + 4);
    char *text;
    size_t len;
    if (kk_haystack_text(&h, &text, &len, NULL) != KK_OK) abort();
    const size_t n = lossless_encode(s, text, len, out, cap);
    kk_free(text);
    return n;
}

/* The next piece of a stream for a prompt of n ids; at least one id. */
static inline size_t lossless_piece(lossless_source *s, enum lossless_kind kind, int32_t n,
                                    int32_t *out, size_t cap) {
    const uint32_t any = next_random(&s->random);
    if (kind == OF_CODE || kind == OF_CHAT) {
        const json_t *from = s->lines[kind == OF_CHAT];
        return lossless_copy(json_array_get(from, any % json_array_size(from)), out, cap);
    }
    if (kind == OF_PROSE) {
        const size_t all = sizeof lossless_sentences / sizeof *lossless_sentences;
        const char *text = lossless_sentences[any % all];
        return lossless_encode(s, text, strlen(text), out, cap);
    }
    if (kind == OF_NEEDLE) return lossless_haystack(s, n, out, cap);
    *out = (int32_t)(any % (uint32_t)s->vocab);
    return 1;
}

/* ---- prompts ------------------------------------------------------------------------------ */

static inline enum lossless_length lossless_length_of(int32_t n) {
    return (enum lossless_length)kk_lossless_length(n);
}

static inline lossless_prompt lossless_prompt_make(lossless_source *s, enum lossless_kind kind,
                                                   int32_t n) {
    enum { CAP = 2 * LONGEST_PROMPT + 4096 };
    static int32_t stream[CAP];
    size_t have = 0;
    while (have < (size_t)n) have += lossless_piece(s, kind, n, stream + have, CAP - have);
    lossless_prompt p = {.n = n, .kind = kind, .length = lossless_length_of(n)};
    p.ids = malloc((size_t)n * sizeof *p.ids);
    if (!p.ids) abort();
    memcpy(p.ids, stream + have - n, (size_t)n * sizeof *p.ids);
    if (kind != OF_RANDOM) p.ids[0] = BOS_ID;
    return p;
}

/* All of them, kinds and lengths mixed; tokenizer and vocab are of the shipped model. */
static inline void lossless_prompts_make(lossless_prompt out[PROMPTS], const char *model,
                                         int32_t vocab) {
    lossless_source s = {.vocab = vocab, .random = KK_LOSSLESS_SEED};
    kk_err err;
    kk_twister_seed(&s.twister, KK_LOSSLESS_DOCUMENT_SEED);
    if (kk_tokenizer_open(&s.tokenizer, model, &err) != KK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    s.lines[0] = lossless_recorded("code", "codepkg");
    s.lines[1] = lossless_recorded("chat", "tools");
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < KINDS_OF_TEXT; k++)
            out[i * KINDS_OF_TEXT + k] =
                lossless_prompt_make(&s, (enum lossless_kind)k, lossless_sizes[i]);
    json_decref(s.lines[0]);
    json_decref(s.lines[1]);
    kk_tokenizer_close(s.tokenizer);
}

static inline void lossless_prompts_free(lossless_prompt prompts[PROMPTS]) {
    for (int i = 0; i < PROMPTS; i++) free(prompts[i].ids);
}

#endif
