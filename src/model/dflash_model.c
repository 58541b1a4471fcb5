/* dflash_model.c - the drafter's two passes; see dflash_model.h.
 *
 * Extending reads like this: taps -> fc -> hidden_norm -> per layer k and v, stored.  The same
 * normed row feeds every layer, so context rows never see attention or an MLP.  Drafting is a
 * small transformer over the blocks of all sessions at once, then the verifier's head, or a packed
 * copy of it, for the rows that stand for tokens to come. */
#include <assert.h>
#include <math.h>

#include "model/model.h"

/* ---- setting up ------------------------------------------------------------------------- */

static void fill_kv_shape(kk_dflash *m) {
    const kk_drafter_config *c = &m->cfg;
    m->kv.n_layer = c->n_layer;
    m->kv.window = c->window;
    for (int32_t i = 0; i < c->n_layer; i++) {
        m->kv.layer[i].kind = c->kind[i] == KK_SLIDING ? KK_SLIDING : KK_FULL;
        m->kv.layer[i].stores = true;
        m->kv.layer[i].n_kv_head = c->n_kv_head;
        m->kv.layer[i].head_dim = c->head_dim;
    }
}

static int32_t most_rows(const kk_dflash *m) {
    return m->max_rows > m->max_block_rows ? m->max_rows : m->max_block_rows;
}

static kk_status take_buffers(kk_dflash *m, kk_err *err) {
    const kk_drafter_config *c = &m->cfg;
    const int64_t extend = m->max_rows, block = m->max_block_rows, most = most_rows(m);
    const int64_t nq = (int64_t)c->n_head * c->head_dim, nkv = (int64_t)c->n_kv_head * c->head_dim;
    const struct {
        kk_buf **out;
        int64_t rows, width;
    } wanted[] = {
        {&m->taps, extend, (int64_t)c->n_taps * c->hidden},
        {&m->context, extend, c->hidden},
        {&m->x, block, c->hidden},
        {&m->z, block, c->hidden},
        {&m->y, block, c->hidden},
        {&m->q, block, nq},
        {&m->att, block, nq},
        {&m->gate, block, c->ffn},
        {&m->up, block, c->ffn},
        {&m->drafts_in, block, c->hidden},
        {&m->logits, block, c->vocab},
        {&m->k, most, nkv},
        {&m->v, most, nkv},
        {&m->rope_rows, most, c->head_dim},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        KK_TRY(kk_take_rows(m->be, m->dev, wanted[i].rows, wanted[i].width, wanted[i].out, err));
    return KK_OK;
}

/* The anchor's place and masks behind it, as ids of a block. */
static kk_status take_anchor(kk_dflash *m, kk_err *err) {
    KK_TRY(kk_take_rows(m->be, m->dev, m->cfg.block, 1, &m->anchor, err));
    for (int32_t i = 0; i < m->cfg.block; i++)
        KK_TRY(m->be->write(m->dev, m->anchor, (size_t)i * sizeof m->cfg.mask_id, &m->cfg.mask_id,
                            sizeof m->cfg.mask_id, err));
    return KK_OK;
}

static kk_status take_scratch(kk_dflash *m, kk_err *err) {
    const size_t most = (size_t)most_rows(m), block = (size_t)m->max_block_rows;
    KK_TRY(take_buffers(m, err));
    KK_TRY(take_anchor(m, err));
    m->positions = kk_calloc(most, sizeof *m->positions);
    m->tokens = kk_calloc(block, sizeof *m->tokens);
    m->draft_rows = kk_calloc(block, sizeof *m->draft_rows);
    m->drafts = kk_calloc(block, sizeof *m->drafts);
    bool all = m->positions && m->tokens && m->draft_rows && m->drafts;
    for (int k = 0; k < KK_LAYER_KINDS; k++) {
        m->groups[k] = kk_calloc(most, sizeof *m->groups[k]);
        all = all && m->groups[k];
    }
    return all ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for %zu drafter rows", most);
}

static float embed_scale(kk_embed_scaling scaling, float once) {
    return scaling == KK_EMBED_UNSCALED ? 1.0f : scaling == KK_EMBED_TWICE ? once * once : once;
}

kk_status kk_dflash_new(kk_dflash **out, const kk_drafter *files, const kk_drafter_config *config,
                        const kk_dflash_opts *opts, kk_err *err) {
    *out = NULL;
    KK_TRY(kk_drafter_check(config, kk_gemma4_config(opts->verifier), err));
    if (opts->max_rows < 1 || opts->max_block_rows < 2)
        return kk_fail(err, KK_EINVAL, "a drafter for %d context rows and %d block rows",
                       opts->max_rows, opts->max_block_rows);
    kk_dflash *m = kk_zalloc(sizeof *m);
    if (!m) return kk_fail(err, KK_ENOMEM, "no memory for the drafter");
    m->cfg = *config;
    m->be = opts->backend;
    m->dev = opts->dev;
    m->max_rows = opts->max_rows;
    m->max_block_rows = opts->max_block_rows;
    m->table = kk_gemma4_table(opts->verifier);
    m->embed_scale = embed_scale(config->embed_scaling, kk_gemma4_embed_scale(opts->verifier));
    fill_kv_shape(m);
    kk_status st = kk_dflash_load(m, files, err);
    if (st == KK_OK) st = kk_dflash_load_short(m, &opts->short_head, err);
    if (st == KK_OK) st = take_scratch(m, err);
    if (st != KK_OK) {
        kk_dflash_free(m);
        return st;
    }
    *out = m;
    return KK_OK;
}

void kk_dflash_free(kk_dflash *m) {
    if (!m) return;
    kk_buf *b[] = {m->taps, m->context,   m->x,      m->z, m->y, m->q,         m->att,   m->gate,
                   m->up,   m->drafts_in, m->logits, m->k, m->v, m->rope_rows, m->anchor};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) m->be->buf_free(m->dev, b[i]);
    kk_dflash_unload(m);
    kk_dflash_unload_short(m);
    kk_free(m->positions);
    kk_free(m->tokens);
    kk_free(m->draft_rows);
    kk_free(m->drafts);
    for (int k = 0; k < KK_LAYER_KINDS; k++) kk_free(m->groups[k]);
    kk_free(m);
}

const kk_drafter_config *kk_dflash_config(const kk_dflash *m) { return &m->cfg; }
const kk_kv_shape *kk_dflash_kv_shape(const kk_dflash *m) { return &m->kv; }
kk_buf *kk_dflash_anchor(const kk_dflash *m) { return m->anchor; }

/* ---- the rows of this pass -------------------------------------------------------------- */

static void begin_rows(kk_dflash *m) {
    m->n_groups = m->n_rows = 0;
    m->shift = NULL;
}

/* n more rows, of one session, from position pos on. */
static void add_rows(kk_dflash *m, const kk_dflash_context *c, int64_t pos, int32_t n,
                     int32_t most_shift) {
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        m->groups[k][m->n_groups] = (kk_group){.row = m->n_rows,
                                               .n_rows = n,
                                               .pos = pos,
                                               .pages = kk_cache_pages(c->cache, (kk_kind)k),
                                               .sink = kk_cache_sink(c->cache, (kk_kind)k),
                                               .shift = m->shift,
                                               .most_shift = m->shift ? most_shift : 0};
    m->n_groups++;
    for (int32_t i = 0; i < n; i++) m->positions[m->n_rows++] = pos + i;
}

static kk_rows rows_of(const kk_dflash *m, int32_t layer) {
    return (kk_rows){m->groups[m->cfg.kind[layer]], m->n_groups, m->n_rows};
}

static kk_status fill_rope(kk_dflash *m, kk_err *err) {
    const kk_rope_args r = {.table = m->rope_rows,
                            .n = m->n_rows,
                            .pos = m->positions,
                            .rope = {m->cfg.theta, 1.0f, m->cfg.head_dim / 2, m->cfg.head_dim},
                            .shift = m->shift};
    return m->be->rope(m->dev, &r, err);
}

/* One attention serves all groups of a pass, so they must ask for the same thing. */
static kk_status check_alike(const kk_dflash_context *a, const kk_dflash_context *b, kk_err *err) {
    if (a->layout->format != b->layout->format)
        return kk_fail(err, KK_EINVAL,
                       "sessions that store K/V as %s and as %s cannot share a draft",
                       kk_kv_format_name(a->layout->format), kk_kv_format_name(b->layout->format));
    if (a->full_window != b->full_window || a->sink != b->sink)
        return kk_fail(err, KK_EINVAL,
                       "sessions whose drafts look back over %d and over %d rows cannot share one",
                       a->full_window, b->full_window);
    return KK_OK;
}

/* ---- steps ------------------------------------------------------------------------------ */

static kk_status norm(kk_dflash *m, kk_buf *out, const kk_buf *x, const kk_buf *w, kk_err *err) {
    const kk_norm_args a = {out, x, w, m->n_rows, m->cfg.hidden, m->cfg.eps};
    return m->be->norm(m->dev, &a, err);
}

static kk_status linear(kk_dflash *m, kk_buf *out, const kk_weight *w, const kk_buf *x,
                        kk_err *err) {
    const kk_linear_args a = {{out}, {w}, 1, x, m->n_rows};
    return m->be->linear(m->dev, &a, err);
}

/* K and V of a layer into the pages; q NULL: context rows have no queries. */
static kk_status store(kk_dflash *m, int32_t layer, kk_kv_slot slot, kk_buf *q, kk_err *err) {
    const kk_dflash_layer *l = &m->layers[layer];
    const kk_rows rows = rows_of(m, layer);
    const kk_store_args s = {.q = q,
                             .k = m->k,
                             .v = m->v,
                             .q_norm = l->q_norm,
                             .k_norm = l->k_norm,
                             .rope_rows = m->rope_rows,
                             .n_rot = m->cfg.head_dim / 2,
                             .n_head = m->cfg.n_head,
                             .slot = slot,
                             .rows = &rows,
                             .eps = m->cfg.eps,
                             .v_raw = true};
    return m->be->store(m->dev, &s, err);
}

/* ---- extending a context ---------------------------------------------------------------- */

/* The rows of this pass, whose taps were gathered: their K/V of every layer. */
static kk_status extend_pass(kk_dflash *m, const kk_kv_layout *layout, kk_err *err) {
    KK_TRY(fill_rope(m, err));
    KK_TRY(linear(m, m->context, m->fc, m->taps, err));
    KK_TRY(norm(m, m->context, m->context, m->hidden_norm, err));
    for (int32_t i = 0; i < m->cfg.n_layer; i++) {
        const kk_linear_args kv = {
            {m->k, m->v}, {m->layers[i].k, m->layers[i].v}, 2, m->context, m->n_rows};
        KK_TRY(m->be->linear(m->dev, &kv, err));
        KK_TRY(store(m, i, layout->slot[i], NULL, err));
    }
    return KK_OK;
}

/* Rows [done, done + n) of a group into this pass. */
static kk_status gather_taps(kk_dflash *m, const kk_dflash_rows *g, int32_t done, int32_t n,
                             kk_err *err) {
    const int32_t width = m->cfg.n_taps * m->cfg.hidden;
    const kk_gather_args copy = {.out = m->taps,
                                 .x = g->taps,
                                 .first = g->tap_row + done,
                                 .n = n,
                                 .dim = width,
                                 .out_at = (size_t)m->n_rows * (size_t)width};
    KK_TRY(m->be->gather(m->dev, &copy, err));
    add_rows(m, &g->context, kk_cache_len(g->context.cache) + done, n, 0);
    return KK_OK;
}

kk_status kk_dflash_extend(kk_dflash *m, const kk_dflash_rows *rows, int32_t n, kk_err *err) {
    for (int32_t i = 0; i < n; i++) {
        if (rows[i].n_rows < 0 || rows[i].tap_row < 0)
            return kk_fail(err, KK_EINVAL, "a context cannot be extended by %d rows from %d",
                           rows[i].n_rows, rows[i].tap_row);
        if (rows[i].context.layout->format != rows[0].context.layout->format)
            KK_TRY(check_alike(&rows[0].context, &rows[i].context, err));
    }
    begin_rows(m);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t done = 0; done < rows[i].n_rows;) {
            const int32_t left = rows[i].n_rows - done, left_rows = m->max_rows - m->n_rows;
            const int32_t take = left < left_rows ? left : left_rows;
            KK_TRY(gather_taps(m, &rows[i], done, take, err));
            done += take;
            if (m->n_rows < m->max_rows) continue;
            KK_TRY(extend_pass(m, rows[0].context.layout, err));
            begin_rows(m);
        }
    }
    return m->n_rows ? extend_pass(m, rows[0].context.layout, err) : KK_OK;
}

kk_status kk_dflash_features(kk_dflash *m, const kk_buf *taps, int32_t tap_row, int32_t n_rows,
                             kk_buf *out, kk_err *err) {
    const int32_t width = m->cfg.n_taps * m->cfg.hidden;
    if (n_rows < 1 || n_rows > m->max_rows || tap_row < 0)
        return kk_fail(err, KK_EINVAL, "features of %d rows from %d: 1 to %d at once", n_rows,
                       tap_row, m->max_rows);
    const kk_gather_args copy = {
        .out = m->taps, .x = taps, .first = tap_row, .n = n_rows, .dim = width};
    const kk_linear_args fc = {{m->context}, {m->fc}, 1, m->taps, n_rows};
    const kk_norm_args norm_args = {out, m->context, NULL, n_rows, m->cfg.hidden, m->cfg.eps};
    KK_TRY(m->be->gather(m->dev, &copy, err));
    KK_TRY(m->be->linear(m->dev, &fc, err));
    return m->be->norm(m->dev, &norm_args, err);
}

/* ---- drafting --------------------------------------------------------------------------- */

static kk_status check_block(const kk_dflash *m, const kk_dflash_block *b, kk_err *err) {
    if (b->n < 1 || b->n > m->cfg.block - 1)
        return kk_fail(err, KK_EINVAL, "%d tokens cannot be drafted in a block of %d", b->n,
                       m->cfg.block);
    if (b->n + 1 > m->max_block_rows - m->n_rows)
        return kk_fail(err, KK_EINVAL, "%d more rows do not fit a draft of %d", b->n + 1,
                       m->max_block_rows);
    if (!b->ids && (b->anchor < 0 || b->anchor >= m->cfg.vocab))
        return kk_fail(err, KK_EINVAL, "token id %d is outside the vocabulary of %d", b->anchor,
                       m->cfg.vocab);
    return KK_OK;
}

/* Each block's rows: the anchor, then masks, all of whose outputs are drafts. */
static kk_status gather_blocks(kk_dflash *m, const kk_dflash_block *blocks, int32_t n,
                               kk_err *err) {
    begin_rows(m);
    m->n_drafts = 0;
    if (n < 1) return kk_fail(err, KK_EINVAL, "a draft of no blocks");
    for (int32_t i = 0; i < n; i++) {
        const kk_dflash_block *b = &blocks[i];
        KK_TRY(check_block(m, b, err));
        KK_TRY(check_alike(&blocks[0].context, &b->context, err));
        const int32_t first = m->n_rows;
        int32_t by;
        assert(n == 1 || (!b->ids && !b->shift));
        assert(b->short_head == blocks[0].short_head);
        m->shift = b->shift;
        KK_TRY(kk_resolve_shift(m->be, m->dev, &m->shift, &by, err));
        add_rows(m, &b->context, kk_cache_len(b->context.cache) + b->ahead + by, b->n + 1,
                 b->most_shift);
        m->tokens[first] = b->anchor;
        for (int32_t r = first + 1; r < m->n_rows; r++) {
            m->tokens[r] = m->cfg.mask_id;
            m->draft_rows[m->n_drafts++] = r;
        }
    }
    m->first_block = blocks[0].n + 1;
    m->by_short = blocks[0].short_head && m->short_head.n > 0;
    return KK_OK;
}

/* x += o(attention(norm(x))) */
static kk_status attention(kk_dflash *m, const kk_dflash_context *c, int32_t i, kk_err *err) {
    const kk_drafter_config *cfg = &m->cfg;
    const kk_dflash_layer *l = &m->layers[i];
    const bool sliding = cfg->kind[i] == KK_SLIDING;
    const kk_rows rows = rows_of(m, i);
    KK_TRY(norm(m, m->z, m->x, l->input_norm, err));
    const kk_linear_args qkv = {{m->q, m->k, m->v}, {l->q, l->k, l->v}, 3, m->z, m->n_rows};
    KK_TRY(m->be->linear(m->dev, &qkv, err));
    KK_TRY(store(m, i, c->layout->slot[i], m->q, err));
    const kk_attend_args t = {.out = m->att,
                              .q = m->q,
                              .n_head = cfg->n_head,
                              .window = sliding ? cfg->window : c->full_window,
                              .sink = !sliding && c->full_window ? c->sink : 0,
                              .block = !(sliding ? cfg->sliding_causal : cfg->full_causal),
                              .slot = c->layout->slot[i],
                              .rows = &rows,
                              .scale = 1.0f / sqrtf((float)cfg->head_dim)};
    KK_TRY(m->be->attend(m->dev, &t, err));
    KK_TRY(linear(m, m->y, l->o, m->att, err));
    const kk_residual_args r = {m->x, m->y, NULL, m->n_rows, cfg->hidden, cfg->eps, 1.0f};
    return m->be->residual(m->dev, &r, err);
}

/* x += down(silu(gate z) * up z), z = norm(x) */
static kk_status mlp(kk_dflash *m, const kk_dflash_layer *l, kk_err *err) {
    const int32_t ffn = m->cfg.ffn;
    KK_TRY(norm(m, m->z, m->x, l->post_attention_norm, err));
    const kk_linear_args gu = {{m->gate, m->up}, {l->gate, l->up}, 2, m->z, m->n_rows};
    KK_TRY(m->be->linear(m->dev, &gu, err));
    const kk_glu_args g = {m->gate, m->gate, m->up, m->n_rows, ffn, ffn, 0, KK_SILU};
    KK_TRY(m->be->glu(m->dev, &g, err));
    KK_TRY(linear(m, m->y, l->down, m->gate, err));
    const kk_residual_args r = {m->x, m->y, NULL, m->n_rows, m->cfg.hidden, m->cfg.eps, 1.0f};
    return m->be->residual(m->dev, &r, err);
}

/* The soft-cap keeps the order of logits, so the largest is found without it.  The short head has
 * no row for the mask. */
static kk_status head(kk_dflash *m, kk_buf *ids, kk_err *err) {
    KK_TRY(norm(m, m->z, m->x, m->norm, err));
    const kk_gather_args g = {.out = m->drafts_in,
                              .x = m->z,
                              .row = m->draft_rows,
                              .n = m->n_drafts,
                              .dim = m->cfg.hidden};
    KK_TRY(m->be->gather(m->dev, &g, err));
    const kk_weight *table = m->by_short ? m->short_head.w : m->head ? m->head : m->table;
    const kk_linear_args w = {{m->logits}, {table}, 1, m->drafts_in, m->n_drafts};
    KK_TRY(m->be->linear(m->dev, &w, err));
    const kk_argmax_args best = {.out = m->drafts,
                                 .x = m->logits,
                                 .n_rows = m->n_drafts,
                                 .dim = m->by_short ? m->short_head.n : m->cfg.vocab,
                                 .banned = m->by_short ? -1 : m->cfg.mask_id,
                                 .ids = ids,
                                 .ids_at = 1,
                                 .map = m->by_short ? m->short_head.map : NULL};
    return m->be->argmax(m->dev, &best, err);
}

kk_status kk_dflash_draft(kk_dflash *m, const kk_dflash_block *blocks, int32_t n, kk_err *err) {
    KK_TRY(gather_blocks(m, blocks, n, err));
    KK_TRY(fill_rope(m, err));
    const kk_buf *anchor = blocks[0].ids ? m->anchor : NULL;
    const kk_embed_args e = {m->x, m->table, m->tokens, m->n_rows, m->embed_scale, anchor};
    KK_TRY(m->be->embed(m->dev, &e, err));
    for (int32_t i = 0; i < m->cfg.n_layer; i++) {
        KK_TRY(attention(m, &blocks[0].context, i, err));
        KK_TRY(mlp(m, &m->layers[i], err));
    }
    KK_TRY(head(m, blocks[0].ids, err));
    if (blocks[0].ids) return KK_OK;
    const int32_t *draft = m->drafts;
    for (int32_t i = 0; i < n; draft += blocks[i++].n)
        for (int32_t k = 0; k < blocks[i].n; k++) blocks[i].out[k] = draft[k];
    return KK_OK;
}

/* ---- diagnosis -------------------------------------------------------------------------- */

static kk_status check_row(const kk_dflash *m, int32_t row, int32_t first, kk_err *err) {
    if (row >= first && row < m->first_block) return KK_OK;
    return kk_fail(err, KK_EINVAL, "row %d of a block of %d, counted from %d", row, m->first_block,
                   first);
}

kk_status kk_dflash_hidden(kk_dflash *m, int32_t row, float *out, kk_err *err) {
    const size_t bytes = (size_t)m->cfg.hidden * sizeof *out;
    KK_TRY(check_row(m, row, 0, err));
    return m->be->read(m->dev, m->z, (size_t)row * bytes, out, bytes, err);
}

kk_status kk_dflash_logits(kk_dflash *m, int32_t row, float *out, kk_err *err) {
    const float cap = m->cfg.softcap;
    const size_t bytes = (size_t)m->cfg.vocab * sizeof *out;
    KK_TRY(check_row(m, row, 1, err));
    if (m->by_short)
        return kk_fail(err, KK_EINVAL, "logits of a draft by a short head of %d rows",
                       m->short_head.n);
    KK_TRY(m->be->read(m->dev, m->logits, (size_t)(row - 1) * bytes, out, bytes, err));
    for (int32_t i = 0; cap > 0 && i < m->cfg.vocab; i++) out[i] = cap * tanhf(out[i] / cap);
    return KK_OK;
}
