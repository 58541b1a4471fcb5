/* ngram.c - see ngram.h.
 *
 * Two indexes over the same tokens: by the last KK_NGRAM_LEAST tokens and by the last
 * KK_NGRAM_LONG.  Each maps a hash of that key to the latest place that ends with it, from where
 * a chain leads to the earlier ones.  One index would do for a language without frequent pairs;
 * in code, a line end and an indent have hundreds of occurrences, and the one that goes on for
 * twenty tokens is not among the latest.
 *
 * Invariants, between calls:
 *   (1) tokens[0, len) are the tokens indexed, and every end in [key, len] is in each index once;
 *   (2) in a chain ends fall, and head is the last one entered.
 * So the ends entered last can be taken out again in the reverse order, exactly: this is how the
 * index follows a timeline that was taken back.  The copy of the tokens is what tells; comparing
 * it costs a few bytes per token where the forward that follows reads thousands. */
#include "propose/ngram.h"

#include <assert.h>
#include <string.h>

enum { INDEXES = 2 };
static const int32_t key_len[INDEXES] = {KK_NGRAM_LONG, KK_NGRAM_LEAST}; /* tried in this order */

/* An end is the count of tokens up to and including the key, so 0 stands for none. */
typedef struct {
    int32_t *head; /* [buckets] */
    int32_t *next; /* [max_len + 1], by end: the one before it in its chain */
} chains;

struct kk_ngram {
    kk_mem *mem;
    int32_t *tokens; /* [max_len] */
    chains index[INDEXES];
    size_t block;  /* bytes of all arrays, which are one block */
    uint32_t mask; /* buckets - 1 */
    int32_t max_len, len, matched;
};

kk_status kk_ngram_new(kk_ngram **out, kk_mem *mem, int32_t max_len, kk_err *err) {
    *out = NULL;
    if (max_len < 1) return kk_fail(err, KK_EINVAL, "an n-gram index of %d tokens", max_len);
    uint32_t buckets = 64;
    while (buckets < (uint32_t)max_len) buckets *= 2;
    const size_t ends = (size_t)max_len + 1;
    const size_t per_index = buckets + ends;
    size_t block;
    if (!kk_mul((size_t)max_len + INDEXES * per_index, sizeof(int32_t), &block))
        return kk_fail(err, KK_ENOMEM, "an n-gram index of %d tokens", max_len);

    kk_ngram *g = kk_zalloc(sizeof *g);
    int32_t *at = g ? kk_mem_take(mem, KK_MEM_WORKSPACE, block) : NULL;
    if (!at) {
        kk_free(g);
        return kk_fail(err, KK_ENOMEM, "no memory for an n-gram index of %d tokens", max_len);
    }
    *g = (kk_ngram){
        .mem = mem, .tokens = at, .block = block, .mask = buckets - 1, .max_len = max_len};
    at += max_len;
    for (int i = 0; i < INDEXES; i++, at += per_index)
        g->index[i] = (chains){.head = at, .next = at + buckets};
    *out = g;
    return KK_OK;
}

void kk_ngram_free(kk_ngram *g) {
    if (!g) return;
    kk_mem_give(g->mem, KK_MEM_WORKSPACE, g->tokens, g->block);
    kk_free(g);
}

int32_t kk_ngram_matched(const kk_ngram *g) { return g->matched; }

/* ---- the index -------------------------------------------------------------------------- */

static int32_t *head_of(const kk_ngram *g, int i, int32_t end) {
    uint64_t h = 0;
    for (int32_t t = end - key_len[i]; t < end; t++)
        h = (h ^ (uint32_t)g->tokens[t]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return g->index[i].head + ((uint32_t)(h >> 20) & g->mask);
}

static void enter(kk_ngram *g, int32_t token) {
    g->tokens[g->len++] = token;
    for (int i = 0; i < INDEXES; i++) {
        if (g->len < key_len[i]) continue;
        int32_t *head = head_of(g, i, g->len);
        g->index[i].next[g->len] = *head;
        *head = g->len;
    }
}

static void take_out(kk_ngram *g) {
    for (int i = 0; i < INDEXES; i++) {
        if (g->len < key_len[i]) continue;
        int32_t *head = head_of(g, i, g->len);
        assert(*head == g->len);
        *head = g->index[i].next[g->len];
    }
    g->len--;
}

/* Makes the index that of tokens[0, len). */
static void follow(kk_ngram *g, const int32_t *tokens, int32_t len) {
    const int32_t both = g->len < len ? g->len : len;
    int32_t same = both;
    if (memcmp(g->tokens, tokens, (size_t)both * sizeof *tokens) != 0)
        for (same = 0; g->tokens[same] == tokens[same];) same++;
    while (g->len > same) take_out(g);
    while (g->len < len) enter(g, tokens[g->len]);
}

/* ---- drafting --------------------------------------------------------------------------- */

/* How many tokens before end are those before the end of the timeline. */
static int32_t match_len(const kk_ngram *g, int32_t end) {
    const int32_t most = end < KK_NGRAM_MOST ? end : KK_NGRAM_MOST;
    int32_t k = 0;
    while (k < most && g->tokens[end - 1 - k] == g->tokens[g->len - 1 - k]) k++;
    return k;
}

/* The end of the longest match that index i knows, 0 when there is none.  Entries of other keys
 * in the same bucket are skipped, up to a limit too. */
static int32_t find(const kk_ngram *g, int i, int32_t *matched) {
    *matched = 0;
    if (g->len < key_len[i]) return 0;
    int32_t best = 0, looked = 0;
    int32_t end = g->index[i].next[g->len];
    for (int32_t step = 0; end && looked < KK_NGRAM_LOOK && step < 4 * KK_NGRAM_LOOK; step++) {
        const int32_t k = match_len(g, end);
        if (k >= key_len[i]) {
            looked++;
            if (k > *matched) *matched = k, best = end;
            if (k == KK_NGRAM_MOST) break;
        }
        end = g->index[i].next[end];
    }
    return best;
}

static void draft_one(kk_draft *d) {
    kk_ngram *g = d->self;
    assert(d->len >= 1 && d->len <= g->max_len);
    follow(g, d->tokens, d->len);
    int32_t from = 0;
    for (int i = 0; i < INDEXES && !from; i++) from = find(g, i, &g->matched);
    d->n = from ? d->max : 0;
    d->match = from ? g->matched : 0;
    for (int32_t i = 0; i < d->n; i++)
        d->out[i] = from + i < d->len ? g->tokens[from + i] : d->out[from + i - d->len];
}

static kk_status draft(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err) {
    (void)me, (void)err;
    for (int32_t i = 0; i < n; i++) draft_one(&drafts[i]);
    return KK_OK;
}

static kk_status open_index(void **self, const kk_proposer_opts *opts, kk_err *err) {
    kk_ngram *g;
    *self = NULL;
    KK_TRY(kk_ngram_new(&g, opts->mem, opts->max_len, err));
    *self = g;
    return KK_OK;
}

static void close_index(void *self) { kk_ngram_free(self); }

/* The index reads the timeline when it drafts, so that it need not be told of appended or
 * removed rows, of marks or of files. */
const kk_proposer kk_propose_ngram = {
    .name = "ngram", .free = true, .open = open_index, .close = close_index, .draft = draft};
