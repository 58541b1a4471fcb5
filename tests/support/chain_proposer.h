/* chain_proposer.h - a proposer with state of its own that only tests have, to go through all that
 * sessions go through.
 *
 * The state is a hash chained over the rows: row r adds its token, and the verifier's hidden states
 * at the tapped layers where it wants them.  Like a recurrent drafter it can go back over the last
 * few rows only, and like one that works lazily it lets rows wait until they are needed.  Whether
 * it stands for exactly the rows of the timeline can be told from outside, by chaining them again:
 * chain_stands_for.  It looks for itself before every draft. */
#ifndef KK_TESTS_CHAIN_PROPOSER_H
#define KK_TESTS_CHAIN_PROPOSER_H

#include <stdlib.h>

#include "core/hash.h"
#include "engine/session.h"

enum { CHAIN_PAST = 24, CHAIN_QUEUE = 50, CHAIN_SPEC = KK_SPEC_NGRAM + 1 };

/* What the engine registers with it. */
typedef struct {
    int32_t row_floats;   /* of the taps of a row; 0: it wants none */
    const int32_t *plain; /* a timeline to draft from; NULL: it drafts the anchor over and over */
    int32_t plain_len;
    int64_t drafts, wrong; /* made; of them by a state that did not stand for its rows */
} chain_shared;

typedef struct {
    chain_shared *shared;
    kk_proposer_opts opts;
    int64_t rows;              /* chained */
    int64_t oldest;            /* rows to which it can still go back */
    uint64_t past[CHAIN_PAST]; /* the hash after r rows, at r % CHAIN_PAST, r in [oldest, rows] */
    uint64_t queue[CHAIN_QUEUE + KK_MAX_DRAFT + 1]; /* rows that wait */
    int32_t waiting;
    const int32_t *tokens; /* of the rows reserved */
    kk_buf *taps;          /* of these, [max_rows] */
} chain;

static inline uint64_t chain_add(uint64_t hash, uint64_t row) {
    return kk_hash_bytes(hash, &row, sizeof row);
}

static inline uint64_t chain_hash(const chain *c) { return c->past[c->rows % CHAIN_PAST]; }

/* A row without taps is its token. */
static inline uint64_t chain_of_tokens(const int32_t *tokens, int64_t n) {
    uint64_t hash = KK_HASH_START;
    for (int64_t i = 0; i < n; i++) hash = chain_add(hash, (uint64_t)tokens[i]);
    return hash;
}

/* ---- rows --------------------------------------------------------------------------------- */

static inline void chain_begin(chain *c, int64_t rows, uint64_t hash) {
    c->rows = c->oldest = rows;
    c->waiting = 0;
    c->past[rows % CHAIN_PAST] = hash;
}

static inline void chain_enter(chain *c, uint64_t row) {
    const uint64_t hash = chain_add(chain_hash(c), row);
    c->past[++c->rows % CHAIN_PAST] = hash;
    if (c->rows - c->oldest >= CHAIN_PAST) c->oldest = c->rows - CHAIN_PAST + 1;
}

static inline kk_status chain_flush(void *self, kk_err *err) {
    chain *c = self;
    (void)err;
    for (int32_t i = 0; i < c->waiting; i++) chain_enter(c, c->queue[i]);
    c->waiting = 0;
    return KK_OK;
}

static inline kk_status chain_reserve(void *self, const int32_t *tokens, int32_t n, kk_taps *taps,
                                      kk_err *err) {
    chain *c = self;
    if (c->waiting > CHAIN_QUEUE || n > KK_MAX_DRAFT + 1) KK_TRY(chain_flush(c, err));
    c->tokens = tokens;
    *taps = (kk_taps){.buf = c->taps};
    return KK_OK;
}

static inline uint64_t chain_row(const chain *c, int32_t i) {
    const uint64_t token = (uint64_t)c->tokens[i];
    const size_t n = (size_t)c->shared->row_floats;
    if (n == 0) return token;
    float row[4096];
    const size_t bytes = n * sizeof *row;
    if (bytes > sizeof row ||
        c->opts.backend->read(c->opts.dev, c->taps, (size_t)i * bytes, row, bytes, NULL) != KK_OK)
        abort();
    return kk_hash_row(token, row, n);
}

static inline kk_status chain_absorb(void *self, int32_t n, kk_err *err) {
    chain *c = self;
    KK_TRY(chain_flush(c, err));
    for (int32_t i = 0; i < n; i++) chain_enter(c, chain_row(c, i));
    return KK_OK;
}

static inline void chain_commit(void *self, int32_t n) {
    chain *c = self;
    if (n > KK_MAX_DRAFT + 1) { /* a chunk, where it has no absorb */
        chain_absorb(c, n, NULL);
        return;
    }
    for (int32_t i = 0; i < n; i++) c->queue[c->waiting + i] = chain_row(c, i);
    c->waiting += n;
}

static inline bool chain_can_truncate(const void *self, int64_t rows) {
    const chain *c = self;
    return rows >= c->oldest && rows <= c->rows + c->waiting;
}

static inline void chain_truncate(void *self, int64_t rows) {
    chain *c = self;
    c->waiting = rows > c->rows ? (int32_t)(rows - c->rows) : 0;
    if (rows < c->rows) c->rows = rows;
}

/* ---- marks and files ---------------------------------------------------------------------- */

typedef struct {
    int64_t rows;
    uint64_t hash;
} chain_mark;

static inline kk_status chain_take_mark(void *self, void **out, kk_err *err) {
    chain *c = self;
    *out = NULL;
    KK_TRY(chain_flush(c, err));
    chain_mark *m = kk_malloc(sizeof *m);
    if (!m) return kk_fail(err, KK_ENOMEM, "no memory for a mark of a chain");
    *m = (chain_mark){c->rows, chain_hash(c)};
    *out = m;
    return KK_OK;
}

static inline void chain_unmark(void *mark) { kk_free(mark); }

static inline void chain_restore(void *self, const void *mark) {
    const chain_mark *m = mark;
    chain_begin(self, m ? m->rows : 0, m ? m->hash : KK_HASH_START);
}

static inline int64_t chain_mark_bytes(const void *mark, const void *older) {
    (void)mark, (void)older;
    return sizeof(chain_mark);
}

/* Two parts. */
static inline kk_status chain_save(const void *self, const void *mark, const void *older,
                                   kk_section_out *to, kk_err *err) {
    const chain_mark *m = mark;
    (void)self, (void)older;
    KK_TRY(to->put(to, &m->rows, sizeof m->rows, err));
    KK_TRY(to->end_part(to, err));
    KK_TRY(to->put(to, &m->hash, sizeof m->hash, err));
    return to->end_part(to, err);
}

static inline kk_status chain_load(void *self, int64_t rows, kk_section_in *from, kk_err *err) {
    int64_t said;
    uint64_t hash;
    KK_TRY(from->get(from, &said, sizeof said, err));
    KK_TRY(from->end_part(from, "rows of a chain", err));
    KK_TRY(from->get(from, &hash, sizeof hash, err));
    KK_TRY(from->end_part(from, "hash of a chain", err));
    if (said != rows)
        return kk_fail(err, KK_EFORMAT, "a chain of %lld rows, not %lld", (long long)said,
                       (long long)rows);
    chain_begin(self, rows, hash);
    return KK_OK;
}

/* ---- life --------------------------------------------------------------------------------- */

static inline void chain_close(void *self) {
    chain *c = self;
    c->opts.backend->buf_free(c->opts.dev, c->taps);
    kk_free(c);
}

static inline kk_status chain_open(void **self, const kk_proposer_opts *opts, kk_err *err) {
    *self = NULL;
    chain *c = kk_zalloc(sizeof *c);
    if (!c) return kk_fail(err, KK_ENOMEM, "no memory for a chain");
    c->shared = opts->shared;
    c->opts = *opts;
    chain_begin(c, 0, KK_HASH_START);
    const size_t row = (size_t)c->shared->row_floats * sizeof(float);
    const kk_status st = row ? opts->backend->buf_new(opts->dev, KK_MEM_WORKSPACE,
                                                      (size_t)opts->max_rows * row, &c->taps, err)
                             : KK_OK;
    if (st != KK_OK) {
        chain_close(c);
        return st;
    }
    *self = c;
    return KK_OK;
}

static inline int64_t chain_rows(const void *self) {
    const chain *c = self;
    return c->rows + c->waiting;
}

/* Right at first, then wrong, at a depth that changes. */
static inline void chain_draft_one(chain *c, kk_draft *d) {
    chain_shared *all = c->shared;
    const int32_t right = (int32_t)(all->drafts++ * 3 % (d->max + 1));
    for (d->n = 0; d->n < d->max; d->n++) {
        const int32_t at = d->len + d->n;
        const int32_t next = at < all->plain_len ? all->plain[at] : d->tokens[d->len - 1];
        d->out[d->n] = d->n < right ? next : next ^ 1;
    }
    chain_flush(c, NULL);
    if (c->rows != d->len - 1) all->wrong++;
    if (!all->row_floats && chain_hash(c) != chain_of_tokens(d->tokens, d->len - 1)) all->wrong++;
}

static inline kk_status chain_draft(const kk_proposer *me, kk_draft *drafts, int32_t n,
                                    kk_err *err) {
    (void)me, (void)err;
    for (int32_t i = 0; i < n; i++) chain_draft_one(drafts[i].self, &drafts[i]);
    return KK_OK;
}

static const kk_proposer chain_proposer = {.name = "chain",
                                           .open = chain_open,
                                           .close = chain_close,
                                           .reserve = chain_reserve,
                                           .commit = chain_commit,
                                           .flush = chain_flush,
                                           .can_truncate = chain_can_truncate,
                                           .truncate = chain_truncate,
                                           .mark = chain_take_mark,
                                           .unmark = chain_unmark,
                                           .restore = chain_restore,
                                           .mark_bytes = chain_mark_bytes,
                                           .save = chain_save,
                                           .load = chain_load,
                                           .rows = chain_rows,
                                           .draft = chain_draft};

/* The same with the verifier's hidden states in it. */
static inline kk_proposer chain_with_taps(void) {
    kk_proposer p = chain_proposer;
    p.name = "tapped chain";
    p.wants_taps = true;
    p.absorb = chain_absorb;
    return p;
}

/* Sessions of e may draft by it, with .spec = CHAIN_SPEC.  All three must outlive the engine. */
static inline kk_status chain_register(kk_engine *e, const kk_proposer *p, chain_shared *shared,
                                       const int32_t *taps, int32_t n_taps, kk_err *err) {
    const kk_proposer_entry entry = {
        .proposer = p, .shared = shared, .taps = taps, .n_taps = n_taps, .standard = 7};
    shared->row_floats = n_taps * kk_engine_config(e)->hidden;
    return kk_engine_add_proposer(e, (kk_spec)CHAIN_SPEC, &entry, err);
}

/* Whether the first member of a session stands for exactly the rows of its cache: their number,
 * and the hash that `fresh` gives, a session that was given the same rows in one piece; without
 * taps fresh may be NULL.  Moves nothing but rows that wait. */
static inline bool chain_stands_for(kk_session *s, kk_session *fresh) {
    chain *c = s->drafting.member[0].self;
    const int64_t rows = kk_cache_len(s->cache);
    if (chain_rows(c) != rows) return false;
    chain_flush(c, NULL);
    if (!fresh) return chain_hash(c) == chain_of_tokens(s->tokens, rows);
    chain *f = fresh->drafting.member[0].self;
    chain_flush(f, NULL);
    return f->rows == rows && chain_hash(f) == chain_hash(c);
}

#endif
