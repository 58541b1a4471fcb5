/* gemma4.c - the verifier's forward pass; see gemma4.h.
 *
 * Reads top to bottom like the model: embedding, per-layer inputs, the layers, the head.  A layer
 * and the head are one operation each, over all rows of all groups, which a device may take whole;
 * backend/layer.c says what is in them. */
#include <assert.h>
#include <math.h>

#include "core/hash.h"
#include "model/model.h"
#include "model/restorer.h"

/* ---- setting up ------------------------------------------------------------------------- */

static void fill_kv_shape(kk_gemma4 *m) {
    const kk_config *c = &m->cfg;
    m->kv.n_layer = c->n_layer;
    m->kv.window = c->window;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        m->kv.layer[i].kind = l->kind;
        m->kv.layer[i].stores = l->kv_source == i;
        m->kv.layer[i].k_eq_v = l->k_eq_v;
        m->kv.layer[i].n_kv_head = l->n_kv_head;
        m->kv.layer[i].head_dim = l->head_dim;
    }
}

static kk_status take_rows(kk_gemma4 *m, int64_t rows, int64_t width, kk_buf **out, kk_err *err) {
    return kk_take_rows(m->be, m->dev, rows, width, out, err);
}

static kk_status take_attention_scratch(kk_gemma4 *m, kk_err *err) {
    const kk_config *c = &m->cfg;
    int64_t nq = 0, nkv = 0, ffn = c->ple_dim;
    bool rebuilds = false;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        const int64_t a = (int64_t)c->n_head * l->head_dim, b = (int64_t)l->n_kv_head * l->head_dim;
        nq = a > nq ? a : nq;
        nkv = b > nkv ? b : nkv;
        ffn = l->ffn > ffn ? l->ffn : ffn;
        rebuilds |= l->k_eq_v;
    }
    /* Queries and attention's output are no longer needed when the dense part begins, which reuses
     * their buffers. */
    nq = nq > ffn ? nq : ffn;
    KK_TRY(take_rows(m, m->max_rows, nq, &m->scratch.q, err));
    KK_TRY(take_rows(m, m->max_rows, nq, &m->scratch.att, err));
    m->scratch.gate = m->scratch.q;
    m->scratch.up = m->scratch.att;
    KK_TRY(take_rows(m, m->max_rows, nkv, &m->scratch.k, err));
    KK_TRY(take_rows(m, m->max_rows, nkv, &m->scratch.v, err));
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        KK_TRY(take_rows(m, m->max_rows, 2 * c->rope[k].n_rot + 1, &m->rope_rows[k], err));
    if (!rebuilds) return KK_OK;
    const size_t row = 2 * (size_t)c->rope[KK_FULL].n_rot * sizeof(float);
    return m->be->buf_reserve(m->dev, ((size_t)c->context + 1) * (row + 1), &m->rope_pos, err);
}

static kk_status take_ffn_scratch(kk_gemma4 *m, kk_err *err) {
    const kk_config *c = &m->cfg;
    if (c->n_expert) {
        KK_TRY(take_rows(m, m->max_rows, c->n_expert_used, &m->scratch.expert, err));
        KK_TRY(take_rows(m, m->max_rows, c->n_expert_used, &m->scratch.expert_weight, err));
    }
    if (c->ple_dim) {
        const int64_t n = (int64_t)c->n_layer * c->ple_dim;
        KK_TRY(take_rows(m, m->max_rows, n, &m->scratch.ple, err));
        KK_TRY(take_rows(m, m->max_rows, n, &m->ple_tmp, err));
    }
    return KK_OK;
}

static kk_status take_scratch(kk_gemma4 *m, kk_err *err) {
    const kk_config *c = &m->cfg;
    const size_t rows = (size_t)m->max_rows;
    kk_buf **hidden[] = {&m->scratch.x, &m->scratch.z, &m->scratch.y, &m->scratch.y2};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        KK_TRY(take_rows(m, m->max_rows, c->hidden, hidden[i], err));
    KK_TRY(take_attention_scratch(m, err));
    KK_TRY(take_ffn_scratch(m, err));
    KK_TRY(take_rows(m, m->max_logits, c->hidden, &m->logits_in, err));
    KK_TRY(take_rows(m, m->max_logits, c->vocab, &m->logits, err));
    KK_TRY(take_rows(m, m->max_logits, 1, &m->chosen, err));
    KK_TRY(take_rows(m, m->max_logits, 1, &m->ids, err));
    KK_TRY(take_rows(m, 1, 1, &m->right, err));
    m->tokens = kk_calloc(rows, sizeof *m->tokens);
    m->positions = kk_calloc(rows, sizeof *m->positions);
    m->logit_rows = kk_calloc((size_t)m->max_logits, sizeof *m->logit_rows);
    bool all = m->tokens && m->positions && m->logit_rows;
    for (int k = 0; k < KK_LAYER_KINDS; k++) {
        m->groups[k] = kk_calloc(rows, sizeof *m->groups[k]);
        all = all && m->groups[k];
    }
    return all ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for %d rows", m->max_rows);
}

kk_status kk_gemma4_new(kk_gemma4 **out, const kk_checkpoint *ckpt, const kk_gemma4_opts *opts,
                        kk_err *err) {
    *out = NULL;
    kk_gemma4 *m = kk_zalloc(sizeof *m);
    if (!m) return kk_fail(err, KK_ENOMEM, "no memory for the model");
    m->cfg = *kk_checkpoint_config(ckpt);
    m->be = opts->backend;
    m->dev = opts->dev;
    m->mem = opts->mem;
    m->max_rows = opts->max_rows;
    m->max_logits = opts->max_logits;
    /* The model was trained with this factor rounded to bfloat16. */
    m->embed_scale = kk_bf16_f32(kk_f32_bf16(sqrtf((float)m->cfg.hidden)));
    fill_kv_shape(m);
    kk_status st = kk_gemma4_load(m, ckpt, err);
    if (st == KK_OK) st = take_scratch(m, err);
    if (st != KK_OK) {
        kk_gemma4_free(m);
        return st;
    }
    *out = m;
    return KK_OK;
}

void kk_gemma4_free(kk_gemma4 *m) {
    if (!m) return;
    kk_buf *b[] = {m->scratch.x,
                   m->scratch.z,
                   m->scratch.y,
                   m->scratch.y2,
                   m->scratch.q,
                   m->scratch.att,
                   m->scratch.k,
                   m->scratch.v,
                   m->scratch.expert,
                   m->scratch.ple,
                   m->ple_tmp,
                   m->rope_pos,
                   m->scratch.expert_weight,
                   m->logits,
                   m->logits_in,
                   m->rope_rows[0],
                   m->rope_rows[1],
                   m->chosen,
                   m->ids,
                   m->right};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) m->be->buf_free(m->dev, b[i]);
    kk_mem_count(m->mem, KK_MEM_WORKSPACE,
                 -m->rope_len * 2 * m->cfg.rope[KK_FULL].n_rot * (int64_t)sizeof(float));
    kk_gemma4_unload(m);
    kk_free(m->tokens);
    kk_free(m->positions);
    kk_free(m->logit_rows);
    for (int k = 0; k < KK_LAYER_KINDS; k++) kk_free(m->groups[k]);
    kk_free(m);
}

const kk_config *kk_gemma4_config(const kk_gemma4 *m) { return &m->cfg; }
const kk_kv_shape *kk_gemma4_kv_shape(const kk_gemma4 *m) { return &m->kv; }
const kk_weight *kk_gemma4_table(const kk_gemma4 *m) { return m->embed; }
float kk_gemma4_embed_scale(const kk_gemma4 *m) { return m->embed_scale; }

/* ---- the rows of this forward ----------------------------------------------------------- */

/* Position of the group's first row. */
static int64_t position_of(const kk_gemma4_group *g) { return kk_cache_len(g->cache) + g->ahead; }

static kk_status check_group(const kk_gemma4 *m, const kk_gemma4_group *first,
                             const kk_gemma4_group *g, kk_err *err) {
    if (g->n_rows < 1 || g->n_rows > m->max_rows - m->n_rows)
        return kk_fail(err, KK_EINVAL, "%d more rows do not fit a forward of %d", g->n_rows,
                       m->max_rows);
    if (g->n_logits < 0 || g->n_logits > g->n_rows || g->n_logits > m->max_logits - m->n_logits)
        return kk_fail(err, KK_EINVAL, "logits of %d of %d rows do not fit, the limit is %d",
                       g->n_logits, g->n_rows, m->max_logits);
    if (g->layout->format != first->layout->format)
        return kk_fail(
            err, KK_EINVAL, "sessions that store K/V as %s and as %s cannot share a pass",
            kk_kv_format_name(g->layout->format), kk_kv_format_name(first->layout->format));
    if (!kk_cache_alike(first->cache, g->cache))
        return kk_fail(err, KK_EINVAL,
                       "sessions that keep different rows of K/V cannot share a pass");
    if (position_of(g) + g->most_shift + g->n_rows > m->cfg.context)
        return kk_fail(err, KK_ECONTEXT, "position %lld is past the model's context of %d",
                       (long long)(position_of(g) + g->n_rows - 1), m->cfg.context);
    for (int32_t r = 0; g->tokens && r < g->n_rows; r++)
        if (g->tokens[r] < 0 || g->tokens[r] >= m->cfg.vocab)
            return kk_fail(err, KK_EINVAL, "token id %d is outside the vocabulary of %d",
                           g->tokens[r], m->cfg.vocab);
    return KK_OK;
}

static kk_status gather_groups(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err) {
    m->n_rows = m->n_logits = 0;
    m->forwards++;
    const kk_gemma4_group *first = &a->groups[0];
    int32_t by;
    m->takes_ids = first->tokens ? NULL : first->ids ? first->ids : m->chosen;
    assert(first->tokens || (a->n_groups == 1 && (first->ids || first->n_rows == 1)));
    assert(!first->shift || a->n_groups == 1);
    m->shift = first->shift;
    KK_TRY(kk_resolve_shift(m->be, m->dev, &m->shift, &by, err));
    m->most_shift = m->shift ? first->most_shift : 0;
    for (int32_t i = 0; i < a->n_groups; i++) {
        const kk_gemma4_group *g = &a->groups[i];
        KK_TRY(check_group(m, a->groups, g, err));
        const int64_t pos = position_of(g) + by;
        for (int k = 0; k < KK_LAYER_KINDS; k++)
            m->groups[k][i] = (kk_group){.row = m->n_rows,
                                         .n_rows = g->n_rows,
                                         .pos = pos,
                                         .pages = kk_cache_pages(g->cache, (kk_kind)k),
                                         .sink = kk_cache_sink(g->cache, (kk_kind)k),
                                         .latents = kk_cache_pages(g->cache, KK_LATENT),
                                         .latent_ids = kk_cache_page_ids(g->cache, KK_LATENT),
                                         .shift = m->shift,
                                         .most_shift = m->most_shift};
        for (int32_t r = 0; r < g->n_rows; r++, m->n_rows++) {
            m->tokens[m->n_rows] = g->tokens ? g->tokens[r] : 0;
            m->positions[m->n_rows] = pos + r;
            if (r >= g->n_rows - g->n_logits) m->logit_rows[m->n_logits++] = m->n_rows;
        }
    }
    return m->n_rows ? KK_OK : kk_fail(err, KK_EINVAL, "a forward of no rows");
}

/* Angles of these rows, and, where K is rebuilt from V of all rows, of every position up to
 * theirs. */
static kk_status fill_rope(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err) {
    const bool all_rows =
        m->be->angles || !kk_cache_how(a->groups[0].cache)->policy[KK_FULL]->evicts;
    for (int k = 0; k < KK_LAYER_KINDS; k++) {
        const kk_rope_config *rc = &m->cfg.rope[k];
        int32_t d = 0;
        for (int32_t i = 0; i < m->cfg.n_layer; i++)
            if ((int)m->cfg.layer[i].kind == k) d = m->cfg.layer[i].head_dim;
        if (!d) continue;
        kk_rope_args r = {.table = m->rope_rows[k],
                          .n = m->n_rows,
                          .pos = m->positions,
                          .rope = {rc->theta, rc->factor, rc->n_rot, d},
                          .shift = m->shift};
        KK_TRY(m->be->rope(m->dev, &r, err));
        if (k != KK_FULL || !m->rope_pos || !all_rows) continue;
        int64_t end = 0;
        for (int32_t i = 0; i < m->n_rows; i++)
            end = m->positions[i] + 1 > end ? m->positions[i] + 1 : end;
        end += m->most_shift;
        if (end <= m->rope_len) continue;
        const int64_t bytes = (end - m->rope_len) * 2 * rc->n_rot * (int64_t)sizeof(float);
        if (!kk_mem_try_count(m->mem, KK_MEM_WORKSPACE, bytes))
            return kk_fail(err, KK_ENOMEM, "the memory limit is reached at position %lld",
                           (long long)end);
        r = (kk_rope_args){.table = m->rope_pos,
                           .first = m->rope_len,
                           .pos0 = m->rope_len,
                           .n = end - m->rope_len,
                           .rope = r.rope};
        const kk_status st = m->be->rope(m->dev, &r, err);
        if (st != KK_OK) {
            kk_mem_count(m->mem, KK_MEM_WORKSPACE, -bytes);
            return st;
        }
        m->rope_len = end;
    }
    return KK_OK;
}

/* A drafted-for group's rows of this layer, beside those of the other tapped layers. */
static kk_status tap_groups(kk_gemma4 *m, const kk_gemma4_forward_args *a, int32_t slot,
                            kk_err *err) {
    const size_t dim = (size_t)m->cfg.hidden, stride = (size_t)a->n_tapped * dim;
    for (int32_t i = 0, row = 0; i < a->n_groups; row += a->groups[i++].n_rows) {
        const kk_gemma4_group *g = &a->groups[i];
        if (!g->taps) continue;
        const kk_gather_args copy = {.out = g->taps,
                                     .x = m->scratch.x,
                                     .first = row,
                                     .n = g->n_rows,
                                     .dim = m->cfg.hidden,
                                     .out_at = (size_t)g->tap_row * stride + (size_t)slot * dim,
                                     .out_stride = stride};
        KK_TRY(m->be->gather(m->dev, &copy, err));
    }
    return KK_OK;
}

static kk_status tap(kk_gemma4 *m, const kk_gemma4_forward_args *a, int32_t layer, const kk_buf *x,
                     kk_err *err) {
    const size_t n = (size_t)m->n_rows * (size_t)m->cfg.hidden;
    for (int32_t i = 0; i < a->n_taps; i++)
        if (a->tap_layers[i] == layer)
            KK_TRY(m->be->read(m->dev, x, 0, a->tap_out + (size_t)i * n, n * sizeof(float), err));
    return KK_OK;
}

/* ---- values that are not finite --------------------------------------------------------- */

static kk_status say_broken(const kk_gemma4 *m, int32_t layer, int64_t pos, kk_err *err) {
    if (layer < 0)
        return kk_fail(err, KK_ENUMERIC,
                       "the logits are not finite: the embedding of the token at position %lld is "
                       "the first output with NaN or infinity",
                       (long long)pos);
    if (layer == m->cfg.n_layer)
        return kk_fail(err, KK_ENUMERIC,
                       "the logits after position %lld are not finite: the head makes NaN or "
                       "infinity of a last layer, %d, that is finite",
                       (long long)pos, m->cfg.n_layer - 1);
    return kk_fail(err, KK_ENUMERIC,
                   "the logits are not finite: layer %d (from 0) is the first with NaN or "
                   "infinity, at position %lld",
                   layer, (long long)pos);
}

/* x: [n][dim]; row[i]: which row of the forward its i-th is, NULL: the i-th. */
static kk_status check_finite(kk_gemma4 *m, int32_t layer, const kk_buf *x, const int32_t *row,
                              int32_t n, int32_t dim, kk_err *err) {
    const size_t bytes = (size_t)dim * sizeof(float);
    float *values = kk_malloc(bytes);
    kk_status st = values ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for a row of %d", dim);
    for (int32_t i = 0; st == KK_OK && i < n; i++) {
        st = m->be->read(m->dev, x, (size_t)i * bytes, values, bytes, err);
        if (st == KK_OK && !kk_hash_finite(values, (size_t)dim))
            st = say_broken(m, layer, m->positions[row ? row[i] : i], err);
    }
    kk_free(values);
    return st;
}

static kk_status look_at(kk_gemma4 *m, const kk_gemma4_forward_args *a, int32_t layer,
                         kk_err *err) {
    if (!a->finite) return KK_OK;
    if (layer == m->cfg.n_layer)
        return check_finite(m, layer, m->logits, m->logit_rows, m->n_logits, m->cfg.vocab, err);
    return check_finite(m, layer, m->scratch.x, NULL, m->n_rows, m->cfg.hidden, err);
}

/* ---- steps ------------------------------------------------------------------------------ */

static kk_status norm(kk_gemma4 *m, kk_buf *out, const kk_buf *x, const kk_buf *w, kk_err *err) {
    const kk_norm_args a = {out, x, w, m->n_rows, m->cfg.hidden, m->cfg.eps};
    return m->be->norm(m->dev, &a, err);
}

static kk_status linear(kk_gemma4 *m, kk_buf *out, const kk_weight *w, const kk_buf *x,
                        kk_err *err) {
    const kk_linear_args a = {{out}, {w}, 1, x, m->n_rows};
    return m->be->linear(m->dev, &a, err);
}

static kk_status embed(kk_gemma4 *m, kk_err *err) {
    const kk_config *c = &m->cfg;
    const kk_buf *chosen = m->takes_ids;
    const kk_embed_args e = {m->scratch.x, m->embed, m->tokens, m->n_rows, m->embed_scale, chosen};
    KK_TRY(m->be->embed(m->dev, &e, err));
    if (!c->ple_dim) return KK_OK;
    KK_TRY(linear(m, m->ple_tmp, m->ple_proj, m->scratch.x, err));
    const kk_ple_args p = {.out = m->scratch.ple,
                           .proj = m->ple_tmp,
                           .w = m->ple_norm,
                           .table = m->ple_table,
                           .token = m->tokens,
                           .n_rows = m->n_rows,
                           .n_layer = c->n_layer,
                           .dim = c->ple_dim,
                           .proj_scale = 1.0f / sqrtf((float)c->hidden),
                           .scale = sqrtf((float)c->ple_dim),
                           .eps = c->eps,
                           .chosen = chosen};
    return m->be->ple(m->dev, &p, err);
}

/* ---- rows that are no longer stored ----------------------------------------------------- */

/* The layer kinds whose rows are rebuilt. */
static void restored_kinds(const kk_gemma4_forward_args *a, bool kinds[KK_KINDS]) {
    const kk_cache_opts *how = kk_cache_how(a->groups[0].cache);
    for (int k = 0; k < KK_KINDS; k++) kinds[k] = how->policy[k] && how->policy[k]->rebuilds;
}

/* What layer i's attention does about them; false: all its rows are stored. */
static bool evicts(const kk_gemma4 *m, const kk_gemma4_forward_args *a, int32_t i,
                   kk_evicted *out) {
    const kk_layer_config *lc = &m->cfg.layer[i];
    const kk_rope_config *rope = &m->cfg.rope[lc->kind];
    const kk_kv_policy *policy = kk_cache_how(a->groups[0].cache)->policy[lc->kind];
    const kk_kv_layout *layout = a->groups[0].layout;
    if (!policy->evicts) return false;
    const kk_kv_bounds *bounds = &kk_cache_how(a->groups[0].cache)->bounds[lc->kind];
    *out = (kk_evicted){.window = bounds->window,
                        .chunk = bounds->chunk,
                        .rope = {rope->theta, rope->factor, rope->n_rot, lc->head_dim},
                        .eps = m->cfg.eps};
    if (!policy->rebuilds) return true;
    out->rebuilds = true;
    out->k = kk_restorer_k(a->restorer, lc->kv_source);
    out->v = kk_restorer_v(a->restorer, lc->kv_source);
    out->latent = layout->latent;
    out->scales = layout->scales;
    out->forward = m->forwards;
    bool kinds[KK_KINDS];
    restored_kinds(a, kinds);
    out->scale_at = kk_kv_scale_at(&m->kv, kinds, lc->kv_source);
    out->layer = lc->kv_source;
    out->diagnosis = layout->latents.diagnosis;
    return true;
}

/* Latents of these rows, and the scales of what will be rebuilt from them. */
static kk_status keep_latents(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err) {
    const kk_rows rows = {m->groups[0], a->n_groups, m->n_rows};
    const kk_kv_layout *layout = a->groups[0].layout;
    bool kinds[KK_KINDS];
    if (!layout->latents.rank) return KK_OK;
    KK_TRY(kk_restorer_keep(a->restorer, layout, &rows, err));
    restored_kinds(a, kinds);
    for (int32_t i = 0; layout->latents.n_scales && i < m->cfg.n_layer; i++) {
        const kk_scales_args s = {.v = kk_restorer_v(a->restorer, i),
                                  .n_kv_head = m->kv.layer[i].n_kv_head,
                                  .latent = layout->latent,
                                  .scales = layout->scales,
                                  .at = kk_kv_scale_at(&m->kv, kinds, i),
                                  .rows = &rows,
                                  .eps = m->cfg.eps};
        if (m->kv.layer[i].stores && kinds[m->kv.layer[i].kind])
            KK_TRY(m->be->latents->keep_scales(m->dev, &s, err));
    }
    return KK_OK;
}

static kk_status show_restorer(kk_gemma4 *m, const kk_gemma4_forward_args *a, int32_t layer,
                               kk_err *err) {
    if (!a->groups[0].layout->latents.rank) return KK_OK;
    return kk_restorer_see(a->restorer, layer, m->scratch.x, m->n_rows, err);
}

/* ---- layers ----------------------------------------------------------------------------- */

/* The observer of a layer. */
typedef struct {
    kk_gemma4 *m;
    const kk_gemma4_forward_args *a;
    int32_t layer;
    const kk_rows *rows;
} watched;

/* The rows as projected, beside their latents, for diagnosis. */
static kk_status keep_truth(const watched *w, kk_layer_part part, const kk_buf *rows, kk_err *err) {
    const kk_kv_layout *layout = w->a->groups[0].layout;
    if (!layout->latents.diagnosis || (part != KK_PART_K && part != KK_PART_V)) return KK_OK;
    const kk_keep_args keep = {.x = rows,
                               .slot = layout->latents.diagnosis->truth[w->layer],
                               .keys = part == KK_PART_K && w->m->layers[w->layer].w.v,
                               .rows = w->rows};
    return w->m->be->latents->keep(w->m->dev, &keep, err);
}

static kk_status on_part(void *user, kk_layer_part part, const kk_buf *rows, int32_t width,
                         kk_err *err) {
    const watched *w = user;
    const kk_gemma4_watch *watch = w->a->watch;
    if (watch) KK_TRY(watch->part(watch->user, w->layer, part, rows, w->m->n_rows, width, err));
    return keep_truth(w, part, rows, err);
}

static kk_status layer(kk_gemma4 *m, const kk_gemma4_forward_args *a, int32_t i, kk_err *err) {
    const kk_config *c = &m->cfg;
    const kk_layer_config *lc = &c->layer[i];
    const kk_kv_layout *layout = a->groups[0].layout;
    const kk_rows rows = {m->groups[lc->kind], a->n_groups, m->n_rows};
    watched who = {m, a, i, &rows};
    const kk_layer_observer observer = {on_part, &who};
    kk_evicted evicted;
    const bool some = evicts(m, a, i, &evicted);
    const kk_visible_rule rule = kk_cache_rule(a->groups[0].cache, lc->kind);
    const kk_layer_args l = {.w = m->layers[i].w,
                             .scratch = m->scratch,
                             .k_norm = m->layers[lc->kv_source].w.k_norm,
                             .rope_rows = m->rope_rows[lc->kind],
                             .rope_pos = m->rope_pos,
                             .rows = &rows,
                             .evicted = some ? &evicted : NULL,
                             .observer = a->watch || layout->latents.diagnosis ? &observer : NULL,
                             .slot = layout->slot[lc->kv_source],
                             .stores = lc->kv_source == i,
                             .hidden = c->hidden,
                             .ffn = lc->ffn,
                             .n_head = c->n_head,
                             .n_rot = c->rope[lc->kind].n_rot,
                             .window = rule.mask,
                             .sink = rule.bounds.sink,
                             .n_used = c->n_expert ? c->n_expert_used : 0,
                             .expert_ffn = c->expert_ffn,
                             .ple_dim = c->ple_dim,
                             .ple_stride = c->n_layer * c->ple_dim,
                             .ple_offset = i * c->ple_dim,
                             .eps = c->eps,
                             .scale = m->layers[i].scalar};
    return kk_layer_run(m->be, m->dev, &l, &m->fused, err);
}

static kk_status head(kk_gemma4 *m, kk_err *err) {
    const kk_config *c = &m->cfg;
    const kk_head_args h = {.logits = m->logits,
                            .in = m->logits_in,
                            .x = m->scratch.x,
                            .norm = m->norm,
                            .table = m->embed,
                            .row = m->logit_rows,
                            .n = m->n_logits,
                            .hidden = c->hidden,
                            .vocab = c->vocab,
                            .eps = c->eps,
                            .cap = c->softcap};
    return m->n_logits ? kk_head_run(m->be, m->dev, &h, &m->fused, err) : KK_OK;
}

kk_status kk_gemma4_forward(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err) {
    KK_TRY(gather_groups(m, a, err));
    KK_TRY(fill_rope(m, a, err));
    KK_TRY(embed(m, err));
    KK_TRY(tap(m, a, -1, m->scratch.x, err));
    KK_TRY(look_at(m, a, -1, err));
    KK_TRY(show_restorer(m, a, -1, err));
    for (int32_t i = 0; i < m->cfg.n_layer; i++) {
        KK_TRY(layer(m, a, i, err));
        KK_TRY(show_restorer(m, a, i, err));
        KK_TRY(tap(m, a, i, m->scratch.x, err));
        KK_TRY(look_at(m, a, i, err));
        for (int32_t t = 0; t < a->n_tapped; t++)
            if (a->tapped[t] == i) KK_TRY(tap_groups(m, a, t, err));
    }
    KK_TRY(keep_latents(m, a, err));
    if (a->n_taps) {
        KK_TRY(norm(m, m->scratch.z, m->scratch.x, m->norm, err));
        KK_TRY(tap(m, a, m->cfg.n_layer, m->scratch.z, err));
    }
    KK_TRY(head(m, err));
    KK_TRY(look_at(m, a, m->cfg.n_layer, err));
    for (int32_t i = 0; i < a->n_groups; i++) {
        const kk_gemma4_group *g = &a->groups[i];
        if (g->counts && !g->shift) kk_cache_count(g->cache, position_of(g), g->n_rows, g->counts);
    }
    return KK_OK;
}

kk_status kk_gemma4_diagnose(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err) {
    kk_gemma4_forward_args again = *a;
    again.finite = true;
    KK_TRY(kk_gemma4_forward(m, &again, err));
    return kk_fail(err, KK_ENUMERIC,
                   "the logits were not finite, and are when the same rows are run again: the "
                   "device computed wrongly");
}

kk_status kk_gemma4_logits(kk_gemma4 *m, int32_t i, float *out, kk_err *err) {
    if (i < 0 || i >= m->n_logits)
        return kk_fail(err, KK_EINVAL, "logits row %d of %d", i, m->n_logits);
    const size_t n = (size_t)m->cfg.vocab * sizeof *out;
    return m->be->read(m->dev, m->logits, (size_t)i * n, out, n, err);
}

kk_status kk_gemma4_choose(kk_gemma4 *m, const kk_choose_row *rows, int64_t *ticket, kk_err *err) {
    const kk_choose_args a = {.token = m->chosen,
                              .x = m->logits,
                              .n_rows = m->n_logits,
                              .dim = m->cfg.vocab,
                              .row = rows,
                              .pending = m->chosen};
    return m->be->choose(m->dev, &a, ticket, err);
}

kk_status kk_gemma4_choose_drafted(kk_gemma4 *m, const kk_choose_row *rows, kk_buf *anchor,
                                   int64_t *ticket, kk_err *err) {
    const kk_choose_args a = {.token = m->chosen,
                              .x = m->logits,
                              .n_rows = m->n_logits,
                              .dim = m->cfg.vocab,
                              .row = rows,
                              .pending = m->ids,
                              .draft = m->ids,
                              .right = m->right,
                              .next = {m->ids, anchor}};
    return m->be->choose(m->dev, &a, ticket, err);
}

kk_buf *kk_gemma4_ids(const kk_gemma4 *m) { return m->ids; }
const kk_buf *kk_gemma4_right(const kk_gemma4 *m) { return m->right; }

kk_status kk_gemma4_set_id(kk_gemma4 *m, kk_buf *to, int32_t id, kk_err *err) {
    return m->be->ids(m->dev, &(kk_ids_args){to, &id, 1}, err);
}

kk_status kk_gemma4_lap(kk_gemma4 *m, bool ends, kk_err *err) {
    return m->be->lap ? m->be->lap(m->dev, ends, err) : KK_OK;
}

double kk_gemma4_lap_s(kk_gemma4 *m, int64_t ticket) {
    return m->be->lap_s ? m->be->lap_s(m->dev, ticket) : 0;
}

kk_status kk_gemma4_picked(kk_gemma4 *m, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                           kk_err *err) {
    return m->be->picked(m->dev, ticket, out, n, seconds, err);
}

const kk_fused *kk_gemma4_fused(const kk_gemma4 *m) { return &m->fused; }

kk_status kk_gemma4_expect(kk_gemma4 *m, int64_t len, kk_err *err) {
    if (!m->rope_pos) return KK_OK;
    const size_t row = 2 * (size_t)m->cfg.rope[KK_FULL].n_rot * sizeof(float);
    const int64_t most = len < m->cfg.context ? len : m->cfg.context;
    return m->be->buf_grow(m->dev, m->rope_pos, (size_t)most * row, err);
}

kk_status kk_gemma4_experts(kk_gemma4 *m, int32_t *out, kk_err *err) {
    const size_t n = (size_t)m->n_rows * (size_t)m->cfg.n_expert_used;
    return m->be->read(m->dev, m->scratch.expert, 0, out, n * sizeof *out, err);
}
