/* cpu_linear.c - matrices against rows: plain layers and experts.
 *
 * Work is cut into strips of 16 outputs, or two of them, each done by one thread for all its rows,
 * so that a weight is read from memory once however many rows there are and no sum crosses threads.
 * Experts first list the (row, slot) pairs of each expert; an expert's strips then run over its
 * own rows only, and the slots of a row are added in order afterwards. */
#include "backend/cpu/device.h"
#include "core/mathf.h"

/* ---- activations ------------------------------------------------------------------------ */

typedef struct {
    kk_dev *dev;
    const float *x;
    int64_t n;
} round_job;

static void round_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const round_job *j = arg;
    kk_act_block *b = j->dev->acts.data;
    j->dev->k->quantize(j->x + begin * j->n, (size_t)((end - begin) * j->n),
                        b + begin * j->n / KK_BLOCK);
}

kk_acts kk_cpu_acts(kk_dev *dev, const float *x, int32_t n_rows, int64_t n, bool round) {
    if (!round) return (kk_acts){.f = x};
    round_job j = {dev, x, n};
    kk_threads_loop(dev->threads, n_rows, kk_cpu_row_grain(n), round_rows, &j);
    return (kk_acts){x, dev->acts.data};
}

/* ---- linear ----------------------------------------------------------------------------- */

typedef struct {
    kk_dev *dev;
    const kk_linear_args *a;
    kk_acts x;
    int32_t wide; /* outputs of a strip */
    int64_t first_strip[KK_LINEAR_MAX + 1];
} linear_job;

enum {
    RUN_BYTES = 256 << 10, /* bytes of weights that a thread takes at a time, at most two strips */
    FEW_ROWS = 8           /* taken to be an expert's share, however many rows there are */
};

/* Outputs of a strip, where there are n_out in all: two strips in one, if that is faster, leaves
 * threads enough to share, and fits the second-level cache beside what is fetched. */
static int32_t strip_outputs(const kk_dev *dev, const kk_weight *w, int32_t n_rows, int64_t n_out) {
    return dev->k->wide(w->m.dtype, n_rows) &&
                   n_out >= 2 * KK_WIDE * kk_threads_count(dev->threads) &&
                   KK_WIDE * w->row_bytes <= RUN_BYTES
               ? KK_WIDE
               : KK_STRIP;
}
static int64_t strips_in(int64_t n_out, int32_t wide) { return (n_out + wide - 1) / wide; }

/* How many strips ahead of its work a thread fetches weights.  The first of a piece are fetched
 * before they are worked on, in case this thread did not do the piece before it: work alone reads
 * in an order that gets little out of memory. */
static int64_t strips_ahead(size_t strip_bytes) { return (int64_t)((32u << 10) / strip_bytes) + 1; }

/* Which rows of which matrix a strip holds. */
typedef struct {
    const kk_weight *w;
    int64_t mat, row;
} strip_place;

/* Points s at its weights. */
static void strip_weights(kk_strip *s, strip_place at) {
    s->dtype = at.w->m.dtype;
    s->n_in = (int32_t)at.w->m.n_in;
    s->w = kk_weight_row(at.w, at.mat, at.row);
    s->w_stride = at.w->row_bytes;
    s->planes = kk_weight_planes(at.w, at.mat, at.row);
    s->plane_stride = kk_weight_plane_stride(at.w);
}

/* Fetches the scales and biases of n rows, where they lie apart from the codes; gives the codes. */
static const uint8_t *fetch_planes(strip_place at, int64_t n) {
    const int64_t left = at.w->m.n_out - at.row;
    const size_t bytes = (size_t)(left < n ? left : n) * kk_weight_plane_stride(at.w);
    const kk_planes p = kk_weight_planes(at.w, at.mat, at.row);
    kk_fetch(p.scales, bytes);
    kk_fetch(p.biases, bytes);
    return kk_weight_row(at.w, at.mat, at.row);
}

/* Strip t of all matrices; i: the matrix it belongs to, from any before it on. */
static strip_place linear_strip(const linear_job *j, int64_t t, int32_t *i) {
    while (t >= j->first_strip[*i + 1]) ++*i;
    return (strip_place){j->a->w[*i], 0, (t - j->first_strip[*i]) * j->wide};
}

static void linear_strips(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const linear_job *j = arg;
    kk_strip s = {.n_rows = j->a->n_rows, .x = j->x, .panel = kk_thread_scratch(j->dev, thread)};
    const size_t strip_bytes = (size_t)j->wide * j->a->w[0]->row_bytes;
    const int64_t ahead = strips_ahead(strip_bytes), all = j->first_strip[j->a->n];
    int32_t i = 0, next = 0;
    for (int64_t t = begin; t < end && t < begin + ahead; t++)
        kk_fetch(fetch_planes(linear_strip(j, t, &next), j->wide), strip_bytes);
    for (int64_t t = begin; t < end; t++) {
        const strip_place at = linear_strip(j, t, &i);
        strip_weights(&s, at);
        s.ahead = t + ahead < all ? fetch_planes(linear_strip(j, t + ahead, &next), j->wide) : NULL;
        const int64_t left = at.w->m.n_out - at.row;
        s.n_out = left < j->wide ? (int32_t)left : j->wide;
        s.out = kk_buf_f(j->a->out[i]) + at.row;
        s.out_stride = (size_t)at.w->m.n_out;
        j->dev->k->strip(&s);
    }
}

/* Small enough to share out evenly: a thread's pieces follow each other, and the first strips of
 * the next are fetched with the last of this one. */
static int64_t strip_grain(const kk_dev *dev, int64_t strips, size_t strip_bytes) {
    const int64_t even = strips / (2 * kk_threads_count(dev->threads));
    const int64_t run = (int64_t)(RUN_BYTES / strip_bytes) + 1;
    return even < 1 ? 1 : even > run ? run : even;
}

kk_status kk_cpu_linear(kk_dev *dev, const kk_linear_args *a, kk_err *err) {
    (void)err;
    linear_job j = {.dev = dev, .a = a};
    bool round = false;
    int64_t n_out = 0;
    for (int32_t i = 0; i < a->n; i++) {
        round |= kk_dtype_is_quant(a->w[i]->m.dtype);
        n_out += a->w[i]->m.n_out;
    }
    j.wide = strip_outputs(dev, a->w[0], a->n_rows, n_out);
    for (int32_t i = 0; i < a->n; i++)
        j.first_strip[i + 1] = j.first_strip[i] + strips_in(a->w[i]->m.n_out, j.wide);
    j.x = kk_cpu_acts(dev, kk_buf_f(a->x), a->n_rows, a->w[0]->m.n_in, round);
    const int64_t strips = j.first_strip[a->n];
    const size_t strip_bytes = (size_t)j.wide * a->w[0]->row_bytes;
    kk_threads_loop(dev->threads, strips, strip_grain(dev, strips, strip_bytes), linear_strips, &j);
    return KK_OK;
}

/* ---- router ----------------------------------------------------------------------------- */

typedef struct {
    kk_dev *dev;
    const kk_route_args *a;
    int32_t hidden, n_expert;
    float *normed, *logits; /* [n_rows, hidden], [n_rows, n_expert] */
} route_job;

static void normalise_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const route_job *j = arg;
    const float root = 1.0f / sqrtf((float)j->hidden);
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        float *y = j->normed + r * (size_t)j->hidden;
        j->dev->k->norm(y, kk_buf_f(j->a->x) + r * (size_t)j->hidden, kk_buf_f(j->a->scale),
                        j->hidden, j->a->eps);
        for (int32_t i = 0; i < j->hidden; i++) y[i] *= root;
    }
}

/* The largest logits, ties to the lower id, then softmax over them alone: the same as softmax
 * over all of them, cut and renormalised.  Logits that were taken are lost. */
static void choose_experts(const route_job *j, size_t r) {
    const int32_t n_used = j->a->n_used;
    float *logit = j->logits + r * (size_t)j->n_expert;
    int32_t *expert = (int32_t *)j->a->expert->data + r * (size_t)n_used;
    float *w = kk_buf_f(j->a->weight) + r * (size_t)n_used, sum = 0;
    for (int32_t s = 0; s < n_used; s++) {
        int32_t best = 0;
        for (int32_t e = 1; e < j->n_expert; e++)
            if (logit[e] > logit[best]) best = e;
        expert[s] = best;
        w[s] = logit[best];
        logit[best] = -INFINITY;
    }
    const float top = w[0];
    for (int32_t s = 0; s < n_used; s++) sum += w[s] = kk_exp(w[s] - top);
    for (int32_t s = 0; s < n_used; s++)
        w[s] = w[s] / sum * kk_buf_f(j->a->per_expert_scale)[expert[s]];
}

static void choose_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    for (int64_t r = begin; r < end; r++) choose_experts(arg, (size_t)r);
}

kk_status kk_cpu_route(kk_dev *dev, const kk_route_args *a, kk_err *err) {
    /* The experts' scratch is free until they run. */
    route_job j = {.dev = dev,
                   .a = a,
                   .hidden = (int32_t)a->proj->m.n_in,
                   .n_expert = (int32_t)a->proj->m.n_out,
                   .normed = dev->slot_out.data,
                   .logits = dev->slot_mid.data};
    kk_buf in = {.data = j.normed}, out = {.data = j.logits};
    const kk_linear_args proj = {
        .out = {&out}, .w = {a->proj}, .n = 1, .x = &in, .n_rows = a->n_rows};
    kk_threads_loop(dev->threads, a->n_rows, kk_cpu_row_grain(j.hidden), normalise_rows, &j);
    KK_TRY(kk_cpu_linear(dev, &proj, err));
    kk_threads_loop(dev->threads, a->n_rows, kk_cpu_row_grain((int64_t)a->n_used * j.n_expert),
                    choose_rows, &j);
    return KK_OK;
}

/* ---- experts ---------------------------------------------------------------------------- */

typedef struct {
    kk_dev *dev;
    const kk_experts_args *a;
    kk_acts x;
    int32_t n_active;
    int32_t *active; /* [n_active] expert ids */
    int32_t *first;  /* [n_active + 1] into the lists */
    int32_t *row;    /* the rows of each active expert */
    int32_t *slot;   /* where their results go: row * n_used + slot */
    /* the current matrix, its outputs, and the outputs of a strip */
    const kk_weight *w;
    int64_t first_out, n_out;
    int32_t wide;
    const int32_t *in_row;
    float *out;
    size_t out_stride;
} experts_job;

/* The (row, slot) pairs of each expert that has some, in row order. */
static void list_rows(experts_job *j) {
    const kk_experts_args *a = j->a;
    const int32_t n_expert = (int32_t)a->gate->m.n_mat, slots = a->n_rows * a->n_used;
    const int32_t *expert = a->expert->data;
    int32_t *list = j->dev->slot_list.data;
    j->row = list;
    j->slot = j->row + slots;
    j->active = j->slot + slots;
    j->first = j->active + n_expert;
    j->n_active = 0;
    int32_t at = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        const int32_t begin = at;
        for (int32_t s = 0; s < slots; s++) {
            if (expert[s] != e) continue;
            j->row[at] = s / a->n_used;
            j->slot[at++] = s;
        }
        if (at == begin) continue;
        j->active[j->n_active] = e;
        j->first[j->n_active++] = begin;
    }
    j->first[j->n_active] = at;
}

static strip_place expert_strip(const experts_job *j, int64_t t) {
    const int64_t per_expert = strips_in(j->n_out, j->wide);
    return (strip_place){j->w, j->active[t / per_expert], j->first_out + t % per_expert * j->wide};
}

static void expert_strips(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const experts_job *j = arg;
    const kk_weight *w = j->w;
    const size_t strip_bytes = (size_t)j->wide * w->row_bytes;
    const int64_t per_expert = strips_in(j->n_out, j->wide), all = j->n_active * per_expert;
    const int64_t ahead = strips_ahead(strip_bytes);
    kk_strip s = {
        .x = j->x, .out_stride = j->out_stride, .panel = kk_thread_scratch(j->dev, thread)};
    for (int64_t t = begin; t < end && t < begin + ahead; t++)
        kk_fetch(fetch_planes(expert_strip(j, t), j->wide), strip_bytes);
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = t / per_expert, o = t % per_expert * j->wide, left = j->n_out - o;
        s.n_out = left < j->wide ? (int32_t)left : j->wide;
        s.n_rows = j->first[i + 1] - j->first[i];
        s.in_row = j->in_row + j->first[i];
        s.out_row = j->slot + j->first[i];
        strip_weights(&s, expert_strip(j, t));
        s.ahead = t + ahead < all ? fetch_planes(expert_strip(j, t + ahead), j->wide) : NULL;
        s.out = j->out + o;
        j->dev->k->strip(&s);
    }
}

/* Outputs [first_out, first_out + n_out) of every active expert, for its own rows. */
static void run_expert_matrix(experts_job *j, const kk_weight *w, int64_t first_out, int64_t n_out,
                              const int32_t *in_row, float *out, size_t out_stride) {
    const int32_t few = j->a->n_rows < FEW_ROWS ? j->a->n_rows : FEW_ROWS;
    j->w = w;
    j->wide = strip_outputs(j->dev, w, few, j->n_active * n_out);
    j->first_out = first_out;
    j->n_out = n_out;
    j->in_row = in_row;
    j->out = out;
    j->out_stride = out_stride;
    const int64_t strips = j->n_active * strips_in(n_out, j->wide);
    const size_t strip_bytes = (size_t)j->wide * w->row_bytes;
    kk_threads_loop(j->dev->threads, strips, strip_grain(j->dev, strips, strip_bytes),
                    expert_strips, j);
}

static void activate_slots(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const experts_job *j = arg;
    const size_t ffn = (size_t)j->a->ffn;
    const float *mid = j->dev->slot_mid.data;
    float *act = j->dev->slot_act.data;
    for (size_t s = (size_t)begin; s < (size_t)end; s++)
        j->dev->k->glu(act + s * ffn, mid + s * 2 * ffn, mid + s * 2 * ffn + ffn, j->a->ffn,
                       KK_GELU_TANH);
}

/* Adds the slots of each row, in order, for the current range of outputs. */
static void add_slots(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const experts_job *j = arg;
    const int32_t n = j->a->n_used;
    const float *w = kk_buf_f(j->a->weight), *o = j->dev->slot_out.data;
    for (int64_t r = begin; r < end; r++) {
        float *y = kk_buf_f(j->a->out) + (size_t)(r * j->a->down->m.n_out + j->first_out);
        memset(y, 0, (size_t)j->n_out * sizeof *y);
        for (int64_t s = r * n; s < r * n + n; s++)
            j->dev->k->axpy(y, w[s], o + (size_t)s * j->out_stride, (int32_t)j->n_out);
    }
}

kk_status kk_cpu_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err) {
    (void)err;
    experts_job j = {.dev = dev, .a = a};
    const int64_t slots = (int64_t)a->n_rows * a->n_used, hidden = a->down->m.n_out;
    const size_t ffn = (size_t)a->ffn;
    float *mid = dev->slot_mid.data;
    list_rows(&j);
    const bool round_x =
        kk_dtype_is_quant(a->gate->m.dtype) || (a->up && kk_dtype_is_quant(a->up->m.dtype));
    j.x = kk_cpu_acts(dev, kk_buf_f(a->x), a->n_rows, a->gate->m.n_in, round_x);
    run_expert_matrix(&j, a->gate, 0, a->gate->m.n_out, j.row, mid, 2 * ffn);
    if (a->up) run_expert_matrix(&j, a->up, 0, a->ffn, j.row, mid + ffn, 2 * ffn);
    kk_threads_loop(dev->threads, slots, kk_cpu_row_grain(4 * (int64_t)a->ffn), activate_slots, &j);
    j.x = kk_cpu_acts(dev, dev->slot_act.data, (int32_t)slots, a->ffn,
                      kk_dtype_is_quant(a->down->m.dtype));
    /* As many outputs at a time as the scratch holds for all slots: all, when decoding. */
    const int64_t fit = (int64_t)(dev->slot_out.bytes / sizeof(float)) / slots;
    const int64_t slice = fit < hidden ? fit / KK_STRIP * KK_STRIP : hidden;
    for (int64_t o = 0; o < hidden; o += slice) {
        const int64_t n = hidden - o < slice ? hidden - o : slice;
        run_expert_matrix(&j, a->down, o, n, j.slot, dev->slot_out.data, (size_t)n);
        kk_threads_loop(dev->threads, a->n_rows, kk_cpu_row_grain(a->n_used * n), add_slots, &j);
    }
    return KK_OK;
}
