/* attention_body.h - the part of losses_body.h that runs attention over rebuilt rows.
 *
 * Layer by layer, and within a layer chunk by chunk of queries: all queries of an aligned chunk
 * have the same rows true and the same rows rebuilt, so that one matrix of keys serves them. */

/* One layer of one sequence.  Keys and values are normed, keys rotated; [rows][n_kv_head *
 * head_dim].  Rebuilt rows are [first, first + n) of the sequence. */
typedef struct {
    step *t;
    int32_t layer, source;
    int32_t dim, n_head, n_kv_head, n_rot, window; /* window 0: all */
    const kk_theta_block *kb, *vb;
    const double *angles; /* [row][2][n_rot] */
    REAL *kp, *vp;        /* as rebuilt, before the norms; vp == kp: K = V */
    REAL *k, *v, *dk, *dv;
    REAL *true_k, *true_v; /* true keys and values of all rows */
    REAL *key, *value, *dkey,
        *dvalue; /* keys and values as a chunk sees them, and their gradients */
    REAL *q, *scores, *dscores, *att, *datt, *diff, *o_proj;
} attention;

/* The keys of a chunk: [from, to) of the sequence, of which [lost, kept) are rebuilt. */
typedef struct {
    int32_t start, end; /* queries */
    int32_t from, lost, kept;
} chunk;

static chunk chunk_at(const attention *a, int32_t start) {
    const kk_loss_setup *s = a->t->s;
    const int32_t rows = a->t->b->rows->n_rows, end = start + s->chunk;
    const kk_visible_rule rule = kk_loss_rule(s, a->window);
    const kk_visible first = kk_sees(&rule, start);
    return (chunk){.start = start,
                   .end = end < rows ? end : rows,
                   .from = (int32_t)kk_mask_from(a->window, start),
                   .lost = (int32_t)first.gone_from,
                   .kept = (int32_t)first.gone_to};
}

/* ---- keys and values --------------------------------------------------------------------- */

static void norm_rows(const attention *a, REAL *y, const REAL *x, const float *w, int32_t first,
                      int32_t n, bool rotated) {
    const double eps = (double)a->t->s->model->eps;
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < a->n_kv_head; h++) {
            const size_t at = ((size_t)r * (size_t)a->n_kv_head + (size_t)h) * (size_t)a->dim;
            norm_head(y + at, x + at, w, a->dim, eps);
            if (rotated)
                rotate_head(y + at, a->angles + (size_t)(first + r) * 2 * (size_t)a->n_rot, a->dim,
                            a->n_rot, false);
        }
}

/* dy is overwritten. */
static void norm_rows_back(const attention *a, REAL *dx, REAL *dy, const REAL *x, const float *w,
                           int32_t first, int32_t n, bool rotated) {
    const double eps = (double)a->t->s->model->eps;
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < a->n_kv_head; h++) {
            const size_t at = ((size_t)r * (size_t)a->n_kv_head + (size_t)h) * (size_t)a->dim;
            if (rotated)
                rotate_head(dy + at, a->angles + (size_t)(first + r) * 2 * (size_t)a->n_rot, a->dim,
                            a->n_rot, true);
            norm_head_back(dx + at, dy + at, x + at, w, a->dim, eps);
        }
}

static void fill_true(const attention *a) {
    const kk_captured *rows = a->t->b->rows;
    const size_t n = (size_t)rows->n_rows * (size_t)a->kb->width;
    const float *k = rows->k[a->source], *v = rows->v[a->source] ? rows->v[a->source] : k;
    for (size_t i = 0; i < n; i++) a->true_k[i] = (REAL)k[i];
    for (size_t i = 0; i < n; i++) a->true_v[i] = (REAL)v[i];
    norm_rows(a, a->true_k, a->true_k, a->t->s->k_norm[a->source], 0, rows->n_rows, true);
    norm_rows(a, a->true_v, a->true_v, NULL, 0, rows->n_rows, false);
}

static void fill_rebuilt(const attention *a) {
    const step *t = a->t;
    decode(t, a->kb, a->kp);
    if (a->vp != a->kp) decode(t, a->vb, a->vp);
    norm_rows(a, a->k, a->kp, t->s->k_norm[a->source], t->first, t->n, true);
    norm_rows(a, a->v, a->vp, NULL, t->first, t->n, false);
}

/* The keys and values that the chunk sees: true rows, with the rebuilt ones in place of evicted
 * rows. */
static void mix(const attention *a, const chunk *c) {
    const size_t width = (size_t)a->kb->width, n = (size_t)(c->end - c->from) * width;
    const size_t lost = (size_t)(c->lost - c->from) * width;
    const size_t rebuilt = (size_t)(c->kept - c->lost) * width;
    memcpy(a->key, a->true_k + (size_t)c->from * width, n * sizeof(REAL));
    memcpy(a->value, a->true_v + (size_t)c->from * width, n * sizeof(REAL));
    if (!rebuilt) return;
    const size_t at = (size_t)(c->lost - a->t->first) * width;
    memcpy(a->key + lost, a->k + at, rebuilt * sizeof(REAL));
    memcpy(a->value + lost, a->v + at, rebuilt * sizeof(REAL));
}

static void unmix(const attention *a, const chunk *c) {
    const size_t width = (size_t)a->kb->width, lost = (size_t)(c->lost - c->from) * width;
    const size_t rebuilt = (size_t)(c->kept - c->lost) * width;
    for (size_t i = 0; i < rebuilt; i++) {
        const size_t at = (size_t)(c->lost - a->t->first) * width + i;
        a->dk[at] += a->dkey[lost + i];
        a->dv[at] += a->dvalue[lost + i];
    }
}

/* ---- one chunk --------------------------------------------------------------------------- */

static bool sees(const attention *a, int32_t query, int32_t key) {
    return key <= query && (!a->window || key > query - a->window);
}

static void softmax_rows(const attention *a, const chunk *c, REAL *x) {
    const int32_t n = c->end - c->from;
    for (int32_t r = 0; r < c->end - c->start; r++, x += n) {
        double most = -INFINITY, sum = 0;
        for (int32_t j = 0; j < n; j++)
            if (sees(a, c->start + r, c->from + j) && (double)x[j] > most) most = (double)x[j];
        for (int32_t j = 0; j < n; j++) {
            x[j] = sees(a, c->start + r, c->from + j) ? REAL_EXP(x[j] - (REAL)most) : 0;
            sum += (double)x[j];
        }
        for (int32_t j = 0; j < n; j++) x[j] = (REAL)((double)x[j] / sum);
    }
}

/* Softmax of one head's scores, [queries][keys]. */
static void head_scores(const attention *a, const chunk *c, int32_t head, REAL *scores) {
    const int32_t group = a->n_head / a->n_kv_head, n = c->end - c->from;
    times_transposed((product){.y = scores,
                               .x = a->q + (size_t)head * (size_t)a->dim,
                               .w = a->key + (size_t)(head / group) * (size_t)a->dim,
                               .n = c->end - c->start,
                               .m = n,
                               .k = a->dim,
                               .y_stride = n,
                               .x_stride = a->n_head * a->dim,
                               .w_stride = a->kb->width});
    softmax_rows(a, c, scores);
}

static void head_forward(const attention *a, const chunk *c, int32_t head) {
    const int32_t group = a->n_head / a->n_kv_head, n = c->end - c->from;
    head_scores(a, c, head, a->scores);
    times((product){.y = a->att + (size_t)head * (size_t)a->dim,
                    .x = a->scores,
                    .w = a->value + (size_t)(head / group) * (size_t)a->dim,
                    .n = c->end - c->start,
                    .m = a->dim,
                    .k = n,
                    .y_stride = a->n_head * a->dim,
                    .x_stride = n,
                    .w_stride = a->kb->width});
}

static void head_back(const attention *a, const chunk *c, int32_t head) {
    const int32_t group = a->n_head / a->n_kv_head, n = c->end - c->from, rows = c->end - c->start;
    const int32_t nq = a->n_head * a->dim;
    const size_t at = (size_t)head * (size_t)a->dim, kv = (size_t)(head / group) * (size_t)a->dim;
    head_scores(a, c, head, a->scores);
    transposed_times((product){.y = a->dvalue + kv,
                               .x = a->scores,
                               .w = a->datt + at,
                               .n = n,
                               .m = a->dim,
                               .k = rows,
                               .y_stride = a->kb->width,
                               .x_stride = n,
                               .w_stride = nq,
                               .add = true});
    times_transposed((product){.y = a->dscores,
                               .x = a->datt + at,
                               .w = a->value + kv,
                               .n = rows,
                               .m = n,
                               .k = a->dim,
                               .y_stride = n,
                               .x_stride = nq,
                               .w_stride = a->kb->width});
    for (int32_t r = 0; r < rows; r++) {
        const REAL *p = a->scores + (size_t)r * (size_t)n;
        REAL *d = a->dscores + (size_t)r * (size_t)n;
        double mean = 0;
        for (int32_t j = 0; j < n; j++) mean += (double)p[j] * (double)d[j];
        for (int32_t j = 0; j < n; j++) d[j] = (REAL)((double)p[j] * ((double)d[j] - mean));
    }
    transposed_times((product){.y = a->dkey + kv,
                               .x = a->dscores,
                               .w = a->q + at,
                               .n = n,
                               .m = a->dim,
                               .k = rows,
                               .y_stride = a->kb->width,
                               .x_stride = n,
                               .w_stride = nq,
                               .add = true});
}

/* diff = O_rebuilt - O_true; its squares are counted. */
static double compare(const attention *a, const chunk *c) {
    const int32_t hidden = a->t->s->model->hidden, nq = a->n_head * a->dim;
    const size_t n = (size_t)(c->end - c->start) * (size_t)hidden;
    const float *o = a->t->b->rows->o[a->layer] + (size_t)c->start * (size_t)hidden;
    kk_loss_result *out = a->t->out;
    double sum = 0;
    times_transposed((product){.y = a->diff,
                               .x = a->att,
                               .w = a->o_proj,
                               .n = c->end - c->start,
                               .m = hidden,
                               .k = nq,
                               .y_stride = hidden,
                               .x_stride = nq,
                               .w_stride = nq});
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a->diff[i] - (double)o[i];
        a->diff[i] = (REAL)d;
        sum += d * d;
        out->output_energy += (double)o[i] * (double)o[i];
        out->output_abs += fabs((double)o[i]);
    }
    out->output_error += sum;
    out->outputs += (int64_t)n;
    return sum;
}

/* scale: the factor of the sum of squares in this layer's share of the loss. */
static double run_chunk(const attention *a, const chunk *c, double scale) {
    const int32_t hidden = a->t->s->model->hidden, nq = a->n_head * a->dim;
    const int32_t rows = c->end - c->start;
    const size_t keys = (size_t)(c->end - c->from) * (size_t)a->kb->width;
    const float *q = a->t->b->rows->q[a->layer] + (size_t)c->start * (size_t)nq;
    mix(a, c);
    for (size_t i = 0; i < (size_t)rows * (size_t)nq; i++) a->q[i] = (REAL)q[i];
    for (int32_t h = 0; h < a->n_head; h++) head_forward(a, c, h);
    const double sum = compare(a, c);
    if (c->lost == c->kept) return sum; /* nothing of it was rebuilt */
    for (size_t i = 0; i < (size_t)rows * (size_t)hidden; i++)
        a->diff[i] = (REAL)(2 * scale * (double)a->diff[i]);
    times((product){.y = a->datt,
                    .x = a->diff,
                    .w = a->o_proj,
                    .n = rows,
                    .m = nq,
                    .k = hidden,
                    .y_stride = nq,
                    .x_stride = hidden,
                    .w_stride = nq});
    memset(a->dkey, 0, keys * sizeof(REAL));
    memset(a->dvalue, 0, keys * sizeof(REAL));
    for (int32_t h = 0; h < a->n_head; h++) head_back(a, c, h);
    unmix(a, c);
    return sum;
}

/* ---- one layer --------------------------------------------------------------------------- */

/* Direction and size of the rebuilt rows themselves. */
static void hybrid_terms(const attention *a, REAL *dkp, REAL *dvp) {
    step *t = a->t;
    const double *w = t->weight, n = t->n_used;
    const size_t at = (size_t)t->first * (size_t)a->kb->width;
    const pair k = {a->kb, a->kp, kk_theta_target(a->kb, t->b->rows) + at, dkp, t->n};
    const pair v = {a->vb, a->vp, kk_theta_target(a->vb, t->b->rows) + at, dvp, t->n};
    const float *k_norm = t->s->k_norm[a->source];
    if (w[KK_PART_COS_K] > 0)
        count(t, a->layer, KK_PART_COS_K, cos_term(&k, k_norm, w[KK_PART_COS_K] / n));
    if (w[KK_PART_COS_V] > 0)
        count(t, a->layer, KK_PART_COS_V, cos_term(&v, NULL, w[KK_PART_COS_V] / n));
    if (w[KK_PART_MAG_K] > 0) count(t, a->layer, KK_PART_MAG_K, mag_term(&k, w[KK_PART_MAG_K] / n));
    if (w[KK_PART_MAG_V] > 0) count(t, a->layer, KK_PART_MAG_V, mag_term(&v, w[KK_PART_MAG_V] / n));
}

static void layer_back(const attention *a, REAL *dkp, REAL *dvp) {
    const step *t = a->t;
    norm_rows_back(a, dkp, a->dk, a->kp, t->s->k_norm[a->source], t->first, t->n, true);
    norm_rows_back(a, dvp, a->dv, a->vp, NULL, t->first, t->n, false);
    decode_back(t, a->kb, dkp);
    if (dvp != dkp) decode_back(t, a->vb, dvp);
}

static void run_layer(attention *a, REAL *dkp, REAL *dvp) {
    step *t = a->t;
    const size_t kv = (size_t)t->n * (size_t)a->kb->width;
    const int32_t hidden = t->s->model->hidden;
    const size_t weights = (size_t)hidden * (size_t)a->n_head * (size_t)a->dim;
    int64_t queries = 0;
    double sum = 0;
    for (size_t i = 0; i < weights; i++) a->o_proj[i] = (REAL)t->s->o_proj[a->layer][i];
    fill_true(a);
    fill_rebuilt(a);
    memset(a->dk, 0, kv * sizeof(REAL));
    memset(a->dv, 0, kv * sizeof(REAL));
    memset(dkp, 0, kv * sizeof(REAL));
    memset(dvp, 0, kv * sizeof(REAL));
    for (int32_t i = 0; i < t->b->n; i++) {
        const chunk c = chunk_at(a, t->b->at[i]);
        queries += c.end - c.start;
    }
    const double values = (double)queries * hidden;
    for (int32_t i = 0; i < t->b->n; i++) {
        const chunk c = chunk_at(a, t->b->at[i]);
        sum += run_chunk(a, &c, t->weight[KK_PART_OUTPUT] / (values * t->n_used));
    }
    count(t, a->layer, KK_PART_OUTPUT, sum / values);
    if (a->layer == a->source) hybrid_terms(a, dkp, dvp);
    layer_back(a, dkp, dvp);
}

/* ---- all layers -------------------------------------------------------------------------- */

static double *layer_angles(const kk_config *c, int32_t layer, int32_t rows) {
    const kk_layer_config *l = &c->layer[layer];
    const kk_rope_config *rope = &c->rope[l->kind];
    const size_t n = (size_t)rope->n_rot;
    double *out = kk_calloc((size_t)rows * 2 * n + 1, sizeof *out);
    if (!out) return NULL;
    for (size_t i = 0; i < n; i++) {
        const double f =
            pow((double)rope->theta, -2.0 * (double)i / l->head_dim) / (double)rope->factor;
        for (size_t r = 0; r < (size_t)rows; r++) {
            out[r * 2 * n + i] = cos((double)r * f);
            out[r * 2 * n + n + i] = sin((double)r * f);
        }
    }
    return out;
}

/* Rows that some chunk sees rebuilt: a layer without a window sees the most of them. */
static void find_rebuilt(step *t) {
    const kk_loss_setup *s = t->s;
    int32_t first = t->b->rows->n_rows, end = 0;
    for (int32_t i = 0; i < s->model->n_layer; i++) {
        if (!used(s, i)) continue;
        const attention a = {
            .t = t, .window = s->model->layer[i].kind == KK_SLIDING ? s->model->window : 0};
        for (int32_t k = 0; k < t->b->n; k++) {
            const chunk c = chunk_at(&a, t->b->at[k]);
            if (c.lost == c.kept) continue;
            first = c.lost < first ? c.lost : first;
            end = c.kept > end ? c.kept : end;
        }
    }
    t->first = end > first ? first : 0;
    t->n = end > first ? end - first : 0;
}

static attention layer_of(step *t, int32_t i) {
    const kk_config *c = t->s->model;
    const kk_layer_config *l = &c->layer[i];
    const int32_t source = l->kv_source;
    return (attention){.t = t,
                       .layer = i,
                       .source = source,
                       .dim = l->head_dim,
                       .n_head = c->n_head,
                       .n_kv_head = l->n_kv_head,
                       .n_rot = c->rope[l->kind].n_rot,
                       .window = l->kind == KK_SLIDING ? c->window : 0,
                       .kb = &t->s->shape->block[t->s->shape->k_block[source]],
                       .vb = &t->s->shape->block[t->s->shape->v_block[source]]};
}

static kk_status one_layer(step *t, int32_t i, kk_err *err) {
    attention a = layer_of(t, i);
    const size_t kv = (size_t)a.kb->width, nq = (size_t)a.n_head * (size_t)a.dim;
    const size_t rows = (size_t)t->b->rows->n_rows, n = (size_t)t->n, q = (size_t)t->s->chunk;
    const size_t hidden = (size_t)t->s->model->hidden;
    const bool same = a.kb == a.vb;
    REAL *dkp, *dvp = NULL;
    struct {
        REAL **out;
        size_t n;
    } arrays[] = {{&a.kp, n * kv},         {&a.vp, same ? 0 : n * kv},
                  {&a.k, n * kv},          {&a.v, n * kv},
                  {&a.dk, n * kv},         {&a.dv, n * kv},
                  {&a.true_k, rows * kv},  {&a.true_v, rows * kv},
                  {&a.key, rows * kv},     {&a.value, rows * kv},
                  {&a.dkey, rows * kv},    {&a.dvalue, rows * kv},
                  {&a.q, q * nq},          {&a.scores, q * rows},
                  {&a.dscores, q * rows},  {&a.att, q * nq},
                  {&a.datt, q * nq},       {&a.diff, q * hidden},
                  {&dkp, n * kv},          {&dvp, same ? 0 : n * kv},
                  {&a.o_proj, hidden * nq}};
    enum { PARTS = sizeof arrays / sizeof *arrays };
    double *angles = layer_angles(t->s->model, i, (int32_t)rows);
    REAL *own[PARTS];
    bool all = angles != NULL;
    for (int k = 0; k < PARTS; k++) {
        *arrays[k].out = own[k] = kk_malloc((arrays[k].n + 1) * sizeof(REAL));
        all = all && own[k];
    }
    a.angles = angles;
    if (same) {
        a.vp = a.kp;
        dvp = dkp;
    }
    if (all) run_layer(&a, dkp, dvp);
    for (int k = 0; k < PARTS; k++) kk_free(own[k]);
    kk_free(angles);
    return all ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for attention over %zu rows", rows);
}

static kk_status attention_loss(step *t, kk_err *err) {
    find_rebuilt(t);
    if (!t->n)
        return kk_fail(err, KK_EINVAL, "no query of these chunks sees a row that was rebuilt");
    kk_status st = take_latents(t) ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for latents");
    if (st == KK_OK) encode(t, NULL);
    for (int32_t i = 0; i < t->s->model->n_layer && st == KK_OK; i++)
        if (used(t->s, i)) st = one_layer(t, i, err);
    if (st == KK_OK) encode_back(t);
    give_latents(t);
    return st;
}
