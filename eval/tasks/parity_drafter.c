/* parity_drafter.c - runs a case's drafter beside its dumped blocks.
 *
 * CASE/dflash is a drafter's folder with expect.safetensors: `tokens` [T], perhaps `aux` [T, taps],
 * and for N = 0, 1, ... `block.N.start` (rows before it are context, tokens[start] is the
 * anchor), `block.N.hidden` [block, hidden] after the final norm and `block.N.logits`
 * [block, vocab] after the soft-cap.  Dumped blocks are made of raw rows of the token table
 * unless config.json says otherwise.
 *
 * Taps come from the verifier under test.  Each context is fed at once, in pieces and row by row,
 * which must make no difference to any bit. */
#include <stdio.h>
#include <string.h>

#include "eval/tasks/parity_parts.h"

static const int32_t pieces[] = {0, 1, 7};
static const char *const scale_names[] = {
    [KK_EMBED_ONCE] = "once", [KK_EMBED_UNSCALED] = "1", [KK_EMBED_TWICE] = "twice"};
enum { N_PIECES = sizeof pieces / sizeof *pieces };

typedef struct {
    const kk_parity_bench *bench;
    kk_drafter *files;
    kk_drafter_config config;
    kk_dflash *model;
    kk_parity_pages pages;
    kk_parity_file dump;
    kk_buf *taps; /* [n_tokens][n_taps][hidden] */
    int32_t *tokens, n_tokens;
    float *hidden, *logits; /* of a block: [block, hidden], [block, vocab] */
    float *first_hidden, *first_logits;
} subject;

/* ---- setting up -------------------------------------------------------------------------- */

static kk_status open_drafter(subject *s, const char *folder, kk_err *err) {
    const kk_parity_bench *b = s->bench;
    KK_TRY(kk_drafter_open(&s->files, folder, NULL, err));
    s->config = *kk_drafter_config_of(s->files);
    if (!s->config.embed_said) s->config.embed_scaling = KK_EMBED_UNSCALED;
    const kk_dflash_opts opts = {.backend = b->be,
                                 .dev = b->dev,
                                 .verifier = b->verifier,
                                 .max_rows = b->max_rows,
                                 .max_block_rows = s->config.block};
    KK_TRY(kk_dflash_new(&s->model, s->files, &s->config, &opts, err));
    return kk_parity_pages_open(&s->pages, kk_dflash_kv_shape(s->model), b->mem, b->be, b->dev,
                                err);
}

static kk_status make_buffers(subject *s, kk_err *err) {
    const kk_parity_bench *b = s->bench;
    const size_t block = (size_t)s->config.block, width = (size_t)s->config.hidden;
    const size_t row = (size_t)s->config.n_taps * width * sizeof(float);
    KK_TRY(b->be->buf_new(b->dev, KK_MEM_WORKSPACE, (size_t)s->n_tokens * row, &s->taps, err));
    s->hidden = kk_calloc(block * width, sizeof(float));
    s->first_hidden = kk_calloc(block * width, sizeof(float));
    s->logits = kk_calloc(block * (size_t)s->config.vocab, sizeof(float));
    s->first_logits = kk_calloc(block * (size_t)s->config.vocab, sizeof(float));
    if (s->hidden && s->first_hidden && s->logits && s->first_logits) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory for a block of %d", s->config.block);
}

static void close_subject(subject *s) {
    kk_parity_pages_close(&s->pages);
    kk_dflash_free(s->model);
    s->bench->be->buf_free(s->bench->dev, s->taps);
    kk_drafter_close(s->files);
    kk_parity_file_close(&s->dump);
    kk_free(s->tokens);
    kk_free(s->hidden);
    kk_free(s->first_hidden);
    kk_free(s->logits);
    kk_free(s->first_logits);
}

/* The taps of all tokens, through the verifier. */
static kk_status fill_taps(subject *s, kk_err *err) {
    const kk_parity_bench *b = s->bench;
    KK_TRY(kk_parity_pages_clear(b->pages, s->n_tokens, err));
    for (int32_t at = 0; at < s->n_tokens; at += b->max_rows) {
        const int32_t left = s->n_tokens - at, n = left < b->max_rows ? left : b->max_rows;
        const kk_gemma4_group group = {.cache = b->pages->cache,
                                       .layout = &b->pages->layout,
                                       .tokens = s->tokens + at,
                                       .n_rows = n,
                                       .taps = s->taps,
                                       .tap_row = at};
        const kk_gemma4_forward_args args = {.groups = &group,
                                             .n_groups = 1,
                                             .tapped = s->config.taps,
                                             .n_tapped = s->config.n_taps};
        KK_TRY(kk_cache_reserve(b->pages->cache, n, err));
        KK_TRY(kk_gemma4_forward(b->verifier, &args, err));
        kk_cache_commit(b->pages->cache, at + n);
    }
    return KK_OK;
}

static kk_status compare_taps(subject *s, kk_parity_draft *out, kk_err *err) {
    const int32_t width = s->config.n_taps * s->config.hidden;
    const kk_tensor *want;
    if (!kk_parity_find(&s->dump, "aux")) return KK_OK;
    KK_TRY(kk_parity_need(&s->dump, "aux", KK_F32, s->n_tokens, width, &want, err));
    float *got = kk_calloc((size_t)s->n_tokens * (size_t)width, sizeof *got);
    if (!got) return kk_fail(err, KK_ENOMEM, "no memory for %d taps", s->n_tokens);
    const kk_status st = s->bench->be->read(s->bench->dev, s->taps, 0, got,
                                            (size_t)s->n_tokens * (size_t)width * sizeof *got, err);
    if (st == KK_OK) kk_parity_widen(&out->taps, got, want, 0);
    kk_free(got);
    return st;
}

/* ---- blocks ------------------------------------------------------------------------------ */

/* Rows [0, start) into an empty context, piece by piece, then the block behind them. */
static kk_status run_block(subject *s, int32_t start, int32_t piece, int32_t *drafts, kk_err *err) {
    kk_cache *cache;
    KK_TRY(kk_parity_pages_clear(&s->pages, (int64_t)start + s->config.block, err));
    cache = s->pages.cache;
    const kk_dflash_context context = {.cache = cache, .layout = &s->pages.layout};
    if (piece == 0) piece = start;
    for (int32_t at = 0; at < start; at += piece) {
        const int32_t n = start - at < piece ? start - at : piece;
        const kk_dflash_rows rows = {context, s->taps, at, n};
        KK_TRY(kk_cache_reserve(cache, n, err));
        KK_TRY(kk_dflash_extend(s->model, &rows, 1, err));
        kk_cache_commit(cache, at + n);
    }
    const kk_dflash_block block = {
        .context = context, .anchor = s->tokens[start], .n = s->config.block - 1, .out = drafts};
    KK_TRY(kk_cache_reserve(cache, s->config.block, err));
    KK_TRY(kk_dflash_draft(s->model, &block, 1, err));
    for (int32_t r = 0; r < s->config.block; r++) {
        const size_t h = (size_t)r * (size_t)s->config.hidden;
        const size_t v = (size_t)r * (size_t)s->config.vocab;
        KK_TRY(kk_dflash_hidden(s->model, r, s->hidden + h, err));
        if (r) KK_TRY(kk_dflash_logits(s->model, r, s->logits + v, err));
    }
    return KK_OK;
}

static bool same_bits(const subject *s) {
    const size_t block = (size_t)s->config.block * sizeof(float);
    return memcmp(s->hidden, s->first_hidden, block * (size_t)s->config.hidden) == 0 &&
           memcmp(s->logits, s->first_logits, block * (size_t)s->config.vocab) == 0;
}

/* Counts drafts that are the largest of their row in the dump, and those within slack of it; the
 * mask does not count. */
static void count_drafts(const subject *s, const float *want, const int32_t *drafts, double slack,
                         kk_parity_draft *out) {
    const int32_t vocab = s->config.vocab, mask = s->config.mask_id;
    for (int32_t r = 1; r < s->config.block; r++) {
        const float *row = want + (size_t)r * (size_t)vocab;
        int32_t best = mask == 0 ? 1 : 0;
        for (int32_t i = 0; i < vocab; i++)
            if (i != mask && row[i] > row[best]) best = i;
        const int32_t got = drafts[r - 1];
        out->drafts_equal += got == best;
        out->drafts_near += got != best && (double)row[best] - (double)row[got] <= slack;
    }
    out->n_drafts += s->config.block - 1;
}

static kk_status judge_block(subject *s, int32_t n, const int32_t *drafts, kk_parity_draft *out,
                             kk_err *err) {
    const kk_tensor *hidden, *logits;
    const int32_t block = s->config.block, vocab = s->config.vocab;
    char name[32];
    snprintf(name, sizeof name, "block.%d.hidden", n);
    KK_TRY(kk_parity_need(&s->dump, name, KK_F32, block, s->config.hidden, &hidden, err));
    snprintf(name, sizeof name, "block.%d.logits", n);
    KK_TRY(kk_parity_need(&s->dump, name, KK_F32, block, vocab, &logits, err));
    /* The anchor's logits are nobody's draft and are not computed: take the dump's word. */
    memcpy(s->logits, logits->data.base, (size_t)vocab * sizeof(float));
    kk_parity_widen(&out->hidden, s->hidden, hidden, n);
    kk_parity_widen(&out->logits, s->logits, logits, n);
    float *want = kk_calloc((size_t)block * (size_t)vocab, sizeof *want); /* aligned */
    if (!want) return kk_fail(err, KK_ENOMEM, "no memory for a block of %d", block);
    memcpy(want, logits->data.base, logits->data.size);
    count_drafts(s, want, drafts, kk_parity_slack(&out->logits, s->bench->tol_rms), out);
    kk_free(want);
    return KK_OK;
}

static kk_status compare_block(subject *s, int32_t n, const kk_tensor *at, kk_parity_draft *out,
                               kk_err *err) {
    int32_t start, drafts[KK_MAX_DRAFT_BLOCK];
    memcpy(&start, at->data.base, sizeof start);
    if (start < 0 || start >= s->n_tokens)
        return kk_fail(err, KK_EFORMAT, "expect.safetensors: block %d starts at %d of %d tokens", n,
                       start, s->n_tokens);
    for (int32_t i = 0; i < N_PIECES; i++) {
        KK_TRY(run_block(s, start, pieces[i], drafts, err));
        if (i > 0) {
            out->same_bits = out->same_bits && same_bits(s);
            continue;
        }
        memcpy(s->first_hidden, s->hidden,
               (size_t)s->config.block * (size_t)s->config.hidden * sizeof(float));
        memcpy(s->first_logits, s->logits,
               (size_t)s->config.block * (size_t)s->config.vocab * sizeof(float));
    }
    return judge_block(s, n, drafts, out, err);
}

static kk_status run(subject *s, const char *folder, kk_parity_draft *out, kk_err *err) {
    KK_TRY(open_drafter(s, folder, err));
    KK_TRY(kk_parity_file_open(&s->dump, folder, err));
    KK_TRY(kk_parity_tokens(&s->dump, s->config.vocab, &s->tokens, &s->n_tokens, err));
    KK_TRY(make_buffers(s, err));
    KK_TRY(fill_taps(s, err));
    KK_TRY(compare_taps(s, out, err));
    out->block = s->config.block;
    out->embed_scale = scale_names[s->config.embed_scaling];
    out->same_bits = true;
    for (;; out->n_blocks++) {
        const kk_tensor *start;
        char name[32];
        snprintf(name, sizeof name, "block.%d.start", out->n_blocks);
        if (!kk_parity_find(&s->dump, name)) break;
        KK_TRY(kk_parity_need(&s->dump, name, KK_I32, 1, 0, &start, err));
        KK_TRY(compare_block(s, out->n_blocks, start, out, err));
    }
    return KK_OK;
}

kk_status kk_parity_drafter(const char *folder, const kk_parity_bench *bench, kk_parity_draft *out,
                            kk_err *err) {
    const double tol = bench->tol, rms = bench->tol_rms;
    subject s = {.bench = bench};
    *out = (kk_parity_draft){.present = true};
    const kk_status st = run(&s, folder, out, err);
    close_subject(&s);
    out->ok = st == KK_OK && out->n_blocks > 0 && out->same_bits &&
              kk_parity_holds(&out->taps, tol, rms) && kk_parity_holds(&out->hidden, tol, rms) &&
              kk_parity_holds(&out->logits, tol, rms) &&
              out->drafts_equal + (rms > 0 ? out->drafts_near : 0) == out->n_drafts;
    return st;
}
