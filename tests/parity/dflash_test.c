/* dflash_test.c - the drafter beside dumped references, and what its context may depend on.
 *
 * Two references: z-lab's own code over a random verifier (full layers, raw embedding rows), and
 * the trained drafter of models/tiny (sliding layers past their window, scaled rows).  Then the
 * promises the rest of the engine builds on: a context is the same however it was fed, and a
 * block is the same whoever shares the pass.  The last test drafts for real text; a drafter that
 * is a layer, a position or a mask off passes everything else's bits and fails there. */
#define _GNU_SOURCE
#include <stdio.h>

#include "support/draft_pair.h"
#include "support/model_folder.h"
#include "support/numbers.h"
#include "support/slow.h"
#include "support/tokens.h"

#define MOE KK_TEST_DATA "/parity/moe"
#define TINY KK_MODELS "/tiny"

static void open_pair(draft_pair *p, const char *verifier, const char *drafter,
                      const kk_drafter_config *config, const pair_how *how) {
    *p = (draft_pair){0};
    assert_ok(kk_checkpoint_open(&p->ckpt, verifier, NULL, why));
    assert_ok(kk_drafter_open(&p->files, drafter, NULL, why));
    pair_start(p, config, how);
}

static void open_tiny(draft_pair *p, kk_kv_format format, int32_t threads) {
    const pair_how how = {.format = format, .threads = threads};
    open_pair(p, TINY "/verifier", TINY "/drafter", NULL, &how);
}

/* ---- references --------------------------------------------------------------------------- */

typedef struct {
    distance hidden, logits;
    int blocks;
} gaps;

/* One dumped block: context rows [0, start), the anchor at start. */
static void compare_block(draft_pair *p, const numbers *x, const int32_t *tokens, kk_buf *taps,
                          int32_t b, gaps *g) {
    const kk_drafter_config *c = kk_dflash_config(p->drafter);
    char name[32];
    snprintf(name, sizeof name, "block.%d.start", b);
    int32_t *start = take(x, name, KK_I32, 1, 0), drafts[KK_MAX_DRAFT_BLOCK];
    snprintf(name, sizeof name, "block.%d.hidden", b);
    float *hidden = take(x, name, KK_F32, c->block, c->hidden);
    snprintf(name, sizeof name, "block.%d.logits", b);
    float *logits = take(x, name, KK_F32, c->block, c->vocab);
    float *got = malloc((size_t)c->vocab * sizeof *got);
    kk_cache *cache = pair_cache(&p->draft, *start + c->block);
    pair_extend(p, cache, taps, 0, *start);
    pair_draft(p, cache, tokens[*start], c->block - 1, drafts);
    for (int32_t r = 0; r < c->block; r++) {
        assert_ok(kk_dflash_hidden(p->drafter, r, got, why));
        widen(&g->hidden, got, hidden + (size_t)r * (size_t)c->hidden, (size_t)c->hidden);
        if (r == 0) continue;
        assert_ok(kk_dflash_logits(p->drafter, r, got, why));
        widen(&g->logits, got, logits + (size_t)r * (size_t)c->vocab, (size_t)c->vocab);
    }
    g->blocks++;
    kk_cache_free(cache);
    free(got);
    free(logits);
    free(hidden);
    free(start);
}

static gaps compare_blocks(draft_pair *p, const numbers *x, const char *name) {
    const int32_t n = length(x, "tokens");
    int32_t *tokens = take(x, "tokens", KK_I32, 0, 0);
    kk_buf *taps = pair_taps(p, n);
    kk_cache *cache = pair_cache(&p->main, n);
    gaps g = {0};
    pair_prefill(p, cache, tokens, n, taps);
    for (int32_t b = 0;; b++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, "block.%d.start", b);
        if (!length(x, tensor)) break;
        compare_block(p, x, tokens, taps, b, &g);
    }
    print_message("%s: %d blocks, hidden states within %.1e (of %.1f), logits within %.1e "
                  "(of %.1f)\n",
                  name, g.blocks, g.hidden.gap, g.hidden.largest, g.logits.gap, g.logits.largest);
    kk_cache_free(cache);
    p->be->buf_free(p->dev, taps);
    free(tokens);
    return g;
}

/* The taps themselves, which the dump has too. */
static void compare_taps(draft_pair *p, const numbers *x) {
    const kk_drafter_config *c = kk_dflash_config(p->drafter);
    const int32_t n = length(x, "tokens"), width = c->n_taps * c->hidden;
    int32_t *tokens = take(x, "tokens", KK_I32, 0, 0);
    float *want = take(x, "aux", KK_F32, n, width), *got = malloc((size_t)(n * width) * 4);
    kk_buf *taps = pair_taps(p, n);
    kk_cache *cache = pair_cache(&p->main, n);
    distance d = {0};
    pair_prefill(p, cache, tokens, n, taps);
    assert_ok(p->be->read(p->dev, taps, 0, got, (size_t)(n * width) * 4, why));
    widen(&d, got, want, (size_t)(n * width));
    assert_true(d.gap <= 2e-4 && d.largest > 1);
    kk_cache_free(cache);
    p->be->buf_free(p->dev, taps);
    free(got);
    free(want);
    free(tokens);
}

static void z_labs_code_agrees(void **state) {
    (void)state;
    kk_drafter *files;
    assert_ok(kk_drafter_open(&files, MOE "/dflash", NULL, why));
    kk_drafter_config config = *kk_drafter_config_of(files);
    kk_drafter_close(files);
    config.embed_scaling = KK_EMBED_UNSCALED; /* what the reference was fed */
    const pair_how how = {.format = KK_KV_F32, .threads = 2};
    draft_pair p;
    open_pair(&p, MOE, MOE "/dflash", &config, &how);
    numbers x = open_numbers(MOE "/dflash/expect.safetensors");
    compare_taps(&p, &x);
    const gaps g = compare_blocks(&p, &x, "moe/dflash");
    assert_int_equal(g.blocks, 3);
    assert_true(g.hidden.gap <= 2e-4 && g.logits.gap <= 2e-4);
    assert_true(g.hidden.largest > 0.1 && g.logits.largest > 0.1);
    close_numbers(&x);
    pair_close(&p);
}

static void the_trained_drafter_agrees(void **state) {
    (void)state;
    draft_pair p;
    open_tiny(&p, KK_KV_F32, 2);
    numbers x = open_numbers(KK_TEST_DATA "/parity/tiny-drafter/expect.safetensors");
    const gaps g = compare_blocks(&p, &x, "tiny-drafter");
    assert_int_equal(g.blocks, 4);
    assert_true(g.hidden.gap <= 2e-4 && g.logits.gap <= 2e-4);
    assert_true(g.logits.largest > 5);
    close_numbers(&x);
    pair_close(&p);
}

/* ---- how a context was fed ------------------------------------------------------------------ */

enum { PROMPT = 1100 }; /* past the drafter's window of 1,024 */

/* A prompt of the trained family, its taps, and what pages a context of it must have. */
typedef struct {
    draft_pair p;
    int32_t tokens[PROMPT];
    kk_buf *taps;
} fed;

static void open_fed(fed *f, kk_kv_format format, int32_t threads, int32_t extend_rows) {
    const pair_how how = {.format = format, .threads = threads, .extend_rows = extend_rows};
    open_pair(&f->p, TINY "/verifier", TINY "/drafter", NULL, &how);
    numbers x = open_numbers(KK_TEST_DATA "/parity/tiny-drafter/expect.safetensors");
    int32_t *tokens = take(&x, "tokens", KK_I32, 0, 0);
    assert_true(length(&x, "tokens") >= PROMPT);
    memcpy(f->tokens, tokens, sizeof f->tokens);
    free(tokens);
    close_numbers(&x);
    f->taps = pair_taps(&f->p, PROMPT);
    kk_cache *cache = pair_cache(&f->p.main, PROMPT);
    pair_prefill(&f->p, cache, f->tokens, PROMPT, f->taps);
    kk_cache_free(cache);
}

static void close_fed(fed *f) {
    f->p.be->buf_free(f->p.dev, f->taps);
    pair_close(&f->p);
}

/* A context of the first n rows, fed in pieces. */
static kk_cache *feed_context(fed *f, int32_t n, int32_t piece) {
    kk_cache *cache = pair_cache(&f->p.draft, PROMPT + KK_MAX_DRAFT_BLOCK);
    for (int32_t at = 0; at < n; at += piece)
        pair_extend(&f->p, cache, f->taps, at, n - at < piece ? n - at : piece);
    return cache;
}

/* Rows [from, n) of every layer, K and V, of two caches of one layout. */
static void assert_same_rows(const fed *f, const kk_cache *a, const kk_cache *b, int64_t n) {
    const kk_kv_layout *l = &f->p.draft.layout;
    const size_t value = l->format == KK_KV_F32 ? 4 : 2;
    for (int32_t i = 0; i < l->shape.n_layer; i++) {
        const kk_kind kind = l->shape.layer[i].kind;
        const int64_t window = l->shape.window;
        const size_t row = (size_t)l->slot[i].head_dim * value;
        for (int64_t r = kind == KK_SLIDING && n > window ? n - window + 1 : 0; r < n; r++) {
            const uint8_t *pa = kk_cache_pages(a, kind)[r / KK_PAGE_ROWS];
            const uint8_t *pb = kk_cache_pages(b, kind)[r / KK_PAGE_ROWS];
            for (int32_t h = 0; h < l->slot[i].n_kv_head; h++) {
                const size_t at = ((size_t)h * KK_PAGE_ROWS + (size_t)(r % KK_PAGE_ROWS)) * row;
                assert_memory_equal(pa + l->slot[i].k_off + at, pb + l->slot[i].k_off + at, row);
                assert_memory_equal(pa + l->slot[i].v_off + at, pb + l->slot[i].v_off + at, row);
            }
        }
    }
}

/* The bits of everything a draft shows: tokens, hidden states and logits. */
typedef struct {
    int32_t tokens[7];
    float hidden[8][256], logits[7][4096];
} block_bits;

static block_bits *read_bits(draft_pair *p, block_bits *out) {
    for (int32_t r = 0; r < 8; r++) assert_ok(kk_dflash_hidden(p->drafter, r, out->hidden[r], why));
    for (int32_t r = 1; r < 8; r++)
        assert_ok(kk_dflash_logits(p->drafter, r, out->logits[r - 1], why));
    return out;
}

static block_bits *draft_bits(fed *f, kk_cache *cache, int32_t n) {
    block_bits *out = calloc(1, sizeof *out);
    pair_draft(&f->p, cache, f->tokens[n < PROMPT ? n : 0], 7, out->tokens);
    return read_bits(&f->p, out);
}

static void a_context_is_the_same_however_it_was_fed(void **state) {
    (void)state;
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16};
    static const int32_t pieces[] = {1, 7, 64, PROMPT};
    for (int k = 0; k < 2; k++) {
        fed f;
        /* Passes of 50 rows cut pieces of 64 and the whole once more. */
        open_fed(&f, formats[k], 2, 50);
        kk_cache *first = feed_context(&f, PROMPT, PROMPT);
        block_bits *want = draft_bits(&f, first, PROMPT);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            kk_cache *cache = feed_context(&f, PROMPT, pieces[i]);
            assert_same_rows(&f, first, cache, PROMPT);
            block_bits *got = draft_bits(&f, cache, PROMPT);
            assert_memory_equal(got, want, sizeof *got);
            free(got);
            kk_cache_free(cache);
        }
        free(want);
        kk_cache_free(first);
        close_fed(&f);
    }
}

/* Drafts in between write their own rows behind the context and leave no trace in it; neither
 * does the number of threads or the size of a pass. */
static void a_draft_leaves_no_trace(void **state) {
    (void)state;
    fed a, b;
    open_fed(&a, KK_KV_BF16, 1, PAIR_CHUNK);
    open_fed(&b, KK_KV_BF16, 2, 3);
    kk_cache *plain = feed_context(&a, 200, 200);
    kk_cache *drafted = pair_cache(&b.p.draft, PROMPT + KK_MAX_DRAFT_BLOCK);
    for (int32_t at = 0; at < 200;) {
        int32_t drafts[7];
        const int32_t n = 1 + at % 7, rows = 200 - at < n ? 200 - at : n;
        pair_draft(&b.p, drafted, b.tokens[at], 7, drafts);
        pair_extend(&b.p, drafted, b.taps, at, rows);
        at += rows;
    }
    assert_same_rows(&a, plain, drafted, 200);
    block_bits *x = draft_bits(&a, plain, 200), *y = draft_bits(&b, drafted, 200);
    assert_memory_equal(x, y, sizeof *x);
    free(x);
    free(y);
    kk_cache_free(plain);
    kk_cache_free(drafted);
    close_fed(&a);
    close_fed(&b);
}

/* ---- who shares a pass ---------------------------------------------------------------------- */

static void blocks_of_several_sessions_are_those_of_each(void **state) {
    (void)state;
    static const int32_t len[3] = {5, 127, PROMPT - 1}, wanted[3] = {7, 3, 7};
    fed f;
    open_fed(&f, KK_KV_BF16, 2, PAIR_CHUNK);
    kk_cache *alone[3], *together[3];
    int32_t one[3][7] = {{0}}, all[3][7] = {{0}};
    block_bits *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    kk_dflash_rows rows[3];
    kk_dflash_block blocks[3];
    for (int i = 2; i >= 0; i--) { /* block 0 last, to be read */
        alone[i] = feed_context(&f, len[i], len[i]);
        pair_draft(&f.p, alone[i], f.tokens[len[i]], wanted[i], one[i]);
    }
    read_bits(&f.p, want);
    for (int i = 0; i < 3; i++) {
        together[i] = pair_cache(&f.p.draft, PROMPT + KK_MAX_DRAFT_BLOCK);
        assert_ok(kk_cache_reserve(together[i], len[i], why));
        rows[i] = (kk_dflash_rows){pair_context(&f.p, together[i]), f.taps, 0, len[i]};
    }
    assert_ok(kk_dflash_extend(f.p.drafter, rows, 3, why));
    for (int i = 0; i < 3; i++) {
        kk_cache_commit(together[i], len[i]);
        assert_ok(kk_cache_reserve(together[i], wanted[i] + 1, why));
        assert_same_rows(&f, alone[i], together[i], len[i]);
        blocks[i] = (kk_dflash_block){
            .context = rows[i].context, .anchor = f.tokens[len[i]], .n = wanted[i], .out = all[i]};
    }
    assert_ok(kk_dflash_draft(f.p.drafter, blocks, 3, why));
    read_bits(&f.p, got);
    assert_memory_equal(got, want, sizeof *got);
    assert_memory_equal(all, one, sizeof all);
    for (int i = 0; i < 3; i++) {
        kk_cache_free(alone[i]);
        kk_cache_free(together[i]);
    }
    free(want);
    free(got);
    close_fed(&f);
}

static void what_cannot_be_drafted_is_refused(void **state) {
    (void)state;
    fed f;
    open_fed(&f, KK_KV_BF16, 2, PAIR_CHUNK);
    kk_cache *cache = feed_context(&f, 10, 10), *other = feed_context(&f, 10, 10);
    int32_t out[8];
    assert_ok(kk_cache_reserve(cache, 8, why));
    assert_ok(kk_cache_reserve(other, 8, why));
    kk_dflash_block b[2] = {
        {.context = pair_context(&f.p, cache), .anchor = 5, .n = 7, .out = out},
        {.context = pair_context(&f.p, other), .anchor = 5, .n = 7, .out = out}};
    kk_err err;
    b[0].n = 0;
    assert_int_equal(kk_dflash_draft(f.p.drafter, b, 1, &err), KK_EINVAL);
    assert_string_equal(err.msg, "0 tokens cannot be drafted in a block of 8");
    b[0].n = 8;
    assert_int_equal(kk_dflash_draft(f.p.drafter, b, 1, &err), KK_EINVAL);
    b[0].n = 7;
    b[0].anchor = 4096;
    assert_int_equal(kk_dflash_draft(f.p.drafter, b, 1, &err), KK_EINVAL);
    b[0].anchor = 5;
    b[1].context.full_window = 64;
    assert_int_equal(kk_dflash_draft(f.p.drafter, b, 2, &err), KK_EINVAL);
    assert_int_equal(kk_dflash_draft(f.p.drafter, b, 0, &err), KK_EINVAL);
    assert_ok(kk_dflash_draft(f.p.drafter, b, 1, why));
    float row[4096];
    assert_int_equal(kk_dflash_logits(f.p.drafter, 0, row, &err), KK_EINVAL);
    assert_int_equal(kk_dflash_hidden(f.p.drafter, 8, row, &err), KK_EINVAL);
    kk_cache_free(cache);
    kk_cache_free(other);
    close_fed(&f);
}

/* Fills K of rows [from, to) of a full layer with something else. */
static void spoil(const fed *f, kk_cache *cache, int32_t layer, int64_t from, int64_t to) {
    const kk_kv_slot *slot = &f->p.draft.layout.slot[layer];
    const size_t row = (size_t)slot->head_dim * sizeof(float);
    for (int64_t r = from; r < to; r++) {
        uint8_t *page = kk_cache_pages(cache, KK_FULL)[r / KK_PAGE_ROWS] + slot->k_off;
        for (int32_t h = 0; h < slot->n_kv_head; h++)
            memset(page + (size_t)(h * KK_PAGE_ROWS + r % KK_PAGE_ROWS) * row, 0x41, row);
    }
}

/* With --draft-ctx a full layer sees the sink and the last rows: what lies between may hold
 * anything. */
static void rows_out_of_sight_do_not_matter(void **state) {
    (void)state;
    enum { LEN = 300, NEAR = 100, SINK = 4 };
    fed f;
    open_fed(&f, KK_KV_F32, 2, PAIR_CHUNK);
    const int32_t full = f.p.draft.layout.shape.n_layer - 1;
    assert_int_equal(f.p.draft.layout.shape.layer[full].kind, KK_FULL);
    kk_cache *cache = feed_context(&f, LEN, LEN);
    block_bits *seen[4];
    for (int i = 0; i < 4; i++) {
        seen[i] = calloc(1, sizeof *seen[i]);
        kk_dflash_block block = {.context = pair_context(&f.p, cache),
                                 .anchor = f.tokens[LEN],
                                 .n = 7,
                                 .out = seen[i]->tokens};
        if (i > 0) {
            block.context.full_window = NEAR;
            block.context.sink = SINK;
        }
        if (i == 2) spoil(&f, cache, full, SINK, LEN - NEAR + 1);
        if (i == 3) spoil(&f, cache, full, SINK - 1, SINK);
        assert_ok(kk_cache_reserve(cache, 8, why));
        assert_ok(kk_dflash_draft(f.p.drafter, &block, 1, why));
        read_bits(&f.p, seen[i]);
    }
    assert_memory_not_equal(seen[1]->hidden, seen[0]->hidden, sizeof seen[0]->hidden);
    assert_memory_equal(seen[2], seen[1], sizeof *seen[1]);
    assert_memory_not_equal(seen[3]->hidden, seen[2]->hidden, sizeof seen[0]->hidden);
    for (int i = 0; i < 4; i++) free(seen[i]);
    kk_cache_free(cache);
    close_fed(&f);
}

/* Embedding scale and masks are settings: each gives drafts of its own. */
static void settings_reach_the_draft(void **state) {
    (void)state;
    enum { WAYS = 5 };
    fed f;
    float hidden[WAYS][256];
    for (int i = 0; i < WAYS; i++) {
        open_fed(&f, KK_KV_F32, 2, PAIR_CHUNK);
        kk_drafter_config c = *kk_drafter_config_of(f.p.files);
        if (i == 1) c.embed_scaling = KK_EMBED_UNSCALED;
        if (i == 2) c.embed_scaling = KK_EMBED_TWICE;
        if (i == 3) c.sliding_causal = false;
        if (i == 4) c.full_causal = true;
        kk_dflash_free(f.p.drafter);
        const kk_dflash_opts opts = {.backend = f.p.be,
                                     .dev = f.p.dev,
                                     .verifier = f.p.verifier,
                                     .max_rows = PAIR_CHUNK,
                                     .max_block_rows = 8};
        assert_ok(kk_dflash_new(&f.p.drafter, f.p.files, &c, &opts, why));
        kk_cache *cache = feed_context(&f, 100, 100);
        int32_t drafts[7];
        pair_draft(&f.p, cache, f.tokens[100], 7, drafts);
        assert_ok(kk_dflash_hidden(f.p.drafter, 3, hidden[i], why));
        for (int k = 0; k < i; k++) assert_memory_not_equal(hidden[i], hidden[k], sizeof hidden[i]);
        kk_cache_free(cache);
        close_fed(&f);
    }
}

/* ---- the mask ------------------------------------------------------------------------------- */

static int32_t largest(const float *x, int32_t n, int32_t banned) {
    int32_t best = banned == 0 ? 1 : 0;
    for (int32_t i = 0; i < n; i++)
        if (i != banned && x[i] > x[best]) best = i;
    return best;
}

/* A verifier whose row for the mask is so large that many a draft would be the mask. */
static void the_mask_is_never_drafted(void **state) {
    scratch *s = *state;
    enum { MASK = 4, VOCAB = 96, LEN = 40 };
    draft_pair p = {0};
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_F32);
    kk_tensor *table = model_find(m, "embed_tokens.weight");
    float *row = (float *)(uintptr_t)table->data.base + MASK * config.hidden;
    for (int32_t i = 0; i < config.hidden; i++) row[i] *= 100;
    model_write(s->dir, m);
    model_free(m);
    assert_ok(kk_checkpoint_open(&p.ckpt, s->dir, NULL, why));
    assert_ok(kk_drafter_synthetic(&p.files, &config, "f32", &p.mem, why));
    const pair_how how = {.format = KK_KV_F32, .threads = 1};
    pair_start(&p, NULL, &how);
    assert_int_equal(kk_dflash_config(p.drafter)->mask_id, MASK);
    int32_t tokens[LEN], would = 0;
    for (int32_t i = 0; i < LEN; i++) tokens[i] = (i * 37 + 11) % VOCAB;
    kk_buf *taps = pair_taps(&p, LEN);
    kk_cache *cache = pair_cache(&p.main, LEN), *context = pair_cache(&p.draft, LEN + 16);
    pair_prefill(&p, cache, tokens, LEN, taps);
    for (int32_t at = 0; at < LEN; at++) {
        int32_t drafts[15];
        float logits[VOCAB];
        pair_draft(&p, context, tokens[at], 15, drafts);
        for (int32_t i = 0; i < 15; i++) {
            assert_ok(kk_dflash_logits(p.drafter, i + 1, logits, why));
            would += largest(logits, VOCAB, -1) == MASK;
            assert_int_not_equal(drafts[i], MASK);
            assert_int_equal(drafts[i], largest(logits, VOCAB, MASK));
        }
        pair_extend(&p, context, taps, at, 1);
    }
    assert_true(would > 0);
    kk_cache_free(cache);
    kk_cache_free(context);
    p.be->buf_free(p.dev, taps);
    pair_close(&p);
}

/* ---- drafts for real text ------------------------------------------------------------------- */

enum { MOST = 2048, BLOCK = 8 };

/* Greedy decoding with drafts; tokens per round, counted as models/tiny/README.md does. */
typedef struct {
    int64_t rounds, tokens;
} accepted;

static int32_t choice(draft_pair *p, int32_t row) {
    static float logits[4096];
    assert_ok(kk_gemma4_logits(p->verifier, row, logits, why));
    return largest(logits, 4096, -1);
}

/* One round from an anchor that is in no cache yet: how many of the drafts are right, and the
 * next anchor. */
static int32_t draft_round(draft_pair *p, kk_cache *cache, kk_cache *context, kk_buf *taps,
                           int32_t rows[BLOCK], int32_t *next) {
    int32_t m = 0;
    pair_draft(p, context, rows[0], BLOCK - 1, rows + 1);
    pair_forward(p, cache, rows, BLOCK, BLOCK, taps, 0);
    while (m < BLOCK - 1 && choice(p, m) == rows[m + 1]) m++;
    *next = choice(p, m);
    kk_cache_commit(cache, kk_cache_len(cache) + m + 1);
    pair_extend(p, context, taps, 0, m + 1);
    return m;
}

static void continue_prompt(draft_pair *p, const int32_t *ids, int32_t n, int32_t most,
                            accepted *a) {
    kk_cache *cache = pair_cache(&p->main, n + most + BLOCK);
    kk_cache *context = pair_cache(&p->draft, n + most + BLOCK);
    kk_buf *taps = pair_taps(p, n < BLOCK ? BLOCK : n);
    pair_prefill(p, cache, ids, n, taps);
    pair_extend(p, context, taps, 0, n);
    int32_t anchor = choice(p, 0), made = 1;
    const kk_config *c = kk_gemma4_config(p->verifier);
    bool over = false;
    while (!over && made < most) {
        int32_t rows[BLOCK] = {anchor}, got = 0;
        const int32_t m = draft_round(p, cache, context, taps, rows, &anchor);
        for (int32_t i = 0; i <= m && !over; i++, got++) {
            const int32_t id = i < m ? rows[i + 1] : anchor;
            for (int32_t k = 0; k < c->n_stop_ids; k++) over |= id == c->stop_ids[k];
        }
        a->rounds++;
        a->tokens += got;
        made += got;
    }
    kk_cache_free(cache);
    kk_cache_free(context);
    p->be->buf_free(p->dev, taps);
}

static double tokens_per_round(draft_pair *p, const char *kind, int32_t prompts) {
    size_t len;
    accepted a = {0};
    static int32_t ids[MOST];
    char *text = data_read("tiny/prompts.jsonl", &len), *at = text;
    for (json_t *line; prompts > 0 && (line = next_line(&at)); json_decref(line)) {
        const json_t *list = json_object_get(line, "ids");
        const size_t n = json_array_size(list);
        if (strcmp(json_string_value(json_object_get(line, "kind")), kind) != 0) continue;
        assert_in_range(n, 1, MOST);
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        const json_int_t most = json_integer_value(json_object_get(line, "new"));
        continue_prompt(p, ids, (int32_t)n, (int32_t)most, &a);
        prompts--;
    }
    free(text);
    assert_int_equal(prompts, 0);
    const double mean = (double)a.tokens / (double)a.rounds;
    print_message("%-8s %lld rounds, %.2f tokens a round\n", kind, (long long)a.rounds, mean);
    return mean;
}

static void drafts_of_real_text_are_accepted(void **state) {
    (void)state;
    /* The card's figures over 50 prompts each, and how far a few may fall short of them. */
    static const struct {
        const char *kind;
        double card;
    } kinds[] = {{"code", 4.77}, {"codepkg", 4.60}, {"json", 7.66},
                 {"edit", 6.12}, {"tools", 6.37},   {"chat", 5.83}};
    draft_pair p;
    open_tiny(&p, KK_KV_BF16, 2);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        assert_true(tokens_per_round(&p, kinds[i].kind, slow() ? 1 : 6) >
                    kinds[i].card * (slow() ? 0.6 : 0.75));
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(z_labs_code_agrees),
        cmocka_unit_test(the_trained_drafter_agrees),
        cmocka_unit_test(a_context_is_the_same_however_it_was_fed),
        cmocka_unit_test(a_draft_leaves_no_trace),
        cmocka_unit_test(blocks_of_several_sessions_are_those_of_each),
        cmocka_unit_test(what_cannot_be_drafted_is_refused),
        cmocka_unit_test(rows_out_of_sight_do_not_matter),
        cmocka_unit_test(settings_reach_the_draft),
        cmocka_unit_test_setup_teardown(the_mask_is_never_drafted, scratch_setup, scratch_teardown),
        cmocka_unit_test(drafts_of_real_text_are_accepted),
    };
    return cmocka_run_group_tests_name("dflash", tests, NULL, NULL);
}
