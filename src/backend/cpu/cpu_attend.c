/* cpu_attend.c - storing K/V rows in pages and attending over them.
 *
 * A task is one K/V head (or, when there are fewer of those than threads, some of its query
 * heads) for a few rows of one session, so that a page's rows are converted to floats once for all
 * of them.  Rows never share sums, so tasks can be cut anyhow. */
#include "backend/cpu/evicted.h"

/* Both operations keep heads in buffers of fixed size. */
static kk_status check_heads(const kk_kv_slot *slot, int32_t n_head, kk_err *err) {
    const int32_t group = n_head / slot->n_kv_head;
    if (slot->head_dim <= 512 && group <= KK_ATTEND_PAIRS) return KK_OK;
    return kk_fail(err, KK_EINVAL, "attention heads of %d values, %d per K/V head, are too wide",
                   slot->head_dim, group);
}

/* ---- store ------------------------------------------------------------------------------ */

typedef struct {
    kk_dev *dev;
    const kk_store_args *a;
} store_job;

void kk_cpu_put_row(const kk_dev *dev, const kk_kv_slot *slot, uint8_t *page, size_t off,
                    int32_t head, int64_t row, const float *x) {
    const int32_t d = slot->head_dim;
    uint8_t *base = page + off + (size_t)head * kk_kv_head_bytes(slot->format, d);
    dev->k->put(slot->format, x, d, base, (int32_t)row);
}

static void store_kv(const store_job *j, int64_t r, uint8_t *page, int64_t row) {
    const kk_store_args *a = j->a;
    const kk_kv_slot *slot = &a->slot;
    const int32_t d = slot->head_dim;
    const float *cs = kk_buf_f(a->rope_rows) + (size_t)r * 2 * (size_t)a->n_rot;
    float x[KK_MAX_HEAD_DIM];
    for (int32_t h = 0; h < slot->n_kv_head; h++) {
        const size_t at = ((size_t)r * (size_t)slot->n_kv_head + (size_t)h) * (size_t)d;
        const float *k = kk_buf_f(a->k) + at, *v = a->v ? kk_buf_f(a->v) + at : k;
        if (!slot->k_eq_v) {
            j->dev->k->norm(x, k, kk_buf_f(a->k_norm), d, a->eps);
            j->dev->k->rotate(x, cs, d, a->n_rot);
            kk_cpu_put_row(j->dev, slot, page, slot->k_off, h, row, x);
        }
        if (!a->v_raw) j->dev->k->norm(x, v, NULL, d, a->eps);
        kk_cpu_put_row(j->dev, slot, page, slot->v_off, h, row, a->v_raw ? v : x);
    }
}

static void store_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const store_job *j = arg;
    const kk_store_args *a = j->a;
    const int32_t d = a->slot.head_dim;
    const kk_group *g = a->rows->group;
    for (int64_t r = begin; r < end; r++) {
        const float *cs = kk_buf_f(a->rope_rows) + (size_t)r * 2 * (size_t)a->n_rot;
        for (int32_t h = 0; a->q && h < a->n_head; h++) {
            float *q = kk_buf_f(a->q) + ((size_t)r * (size_t)a->n_head + (size_t)h) * (size_t)d;
            j->dev->k->norm(q, q, kk_buf_f(a->q_norm), d, a->eps);
            j->dev->k->rotate(q, cs, d, a->n_rot);
        }
        while (r >= g->row + g->n_rows) g++;
        const int64_t pos = g->pos + r - g->row;
        if (a->k) store_kv(j, r, g->pages[pos / KK_PAGE_ROWS], pos % KK_PAGE_ROWS);
    }
}

kk_status kk_cpu_store(kk_dev *dev, const kk_store_args *a, kk_err *err) {
    KK_TRY(check_heads(&a->slot, a->n_head, err));
    store_job j = {dev, a};
    kk_threads_loop(dev->threads, a->rows->n_rows, 4, store_rows, &j);
    return KK_OK;
}

/* ---- keep ------------------------------------------------------------------------------- */

typedef struct {
    kk_dev *dev;
    const kk_keep_args *a;
} keep_job;

static void keep_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const keep_job *j = arg;
    const kk_kv_slot *slot = &j->a->slot;
    const size_t off = j->a->keys ? slot->k_off : slot->v_off, d = (size_t)slot->head_dim;
    const kk_group *g = j->a->rows->group;
    for (int64_t r = begin; r < end; r++) {
        while (r >= g->row + g->n_rows) g++;
        const int64_t pos = g->pos + r - g->row;
        const float *x = kk_buf_f(j->a->x) + (size_t)(r * slot->n_kv_head) * d;
        for (int32_t h = 0; h < slot->n_kv_head; h++, x += d)
            kk_cpu_put_row(j->dev, slot, g->latents[pos / KK_PAGE_ROWS], off, h, pos % KK_PAGE_ROWS,
                           x);
    }
}

kk_status kk_cpu_keep(kk_dev *dev, const kk_keep_args *a, kk_err *err) {
    (void)err;
    keep_job j = {dev, a};
    kk_threads_loop(dev->threads, a->rows->n_rows, 4, keep_rows, &j);
    return KK_OK;
}

/* ---- attend ----------------------------------------------------------------------------- */

kk_attend_tile kk_cpu_tile(const kk_attend_args *a, const kk_group *g, int32_t row, int32_t n_rows,
                           int32_t kv_head, int32_t first_head, int32_t n_heads) {
    const kk_kv_slot *slot = &a->slot;
    const int32_t d = slot->head_dim, group = a->n_head / slot->n_kv_head;
    const size_t head_off = (size_t)kv_head * kk_kv_head_bytes(slot->format, d);
    const size_t stride = (size_t)(a->n_head * d);
    const size_t at =
        (size_t)(g->row + row) * stride + (size_t)((kv_head * group + first_head) * d);
    /* Where pages are rebuilt whole, a row sees all that the mask shows. */
    const bool whole = a->evicted && a->evicted->rebuilds && !kk_in_latents(a->evicted);
    const kk_visible_rule mask = {.mask = a->window};
    return (kk_attend_tile){
        .q = kk_buf_f(a->q) + at,
        .out = kk_buf_f(a->out) + at,
        .q_stride = stride,
        .n_rows = n_rows,
        .n_group = n_heads,
        .head_dim = d,
        .rule = whole ? mask : kk_attend_rule(a),
        .pos = g->pos + row,
        .block_first = g->pos,
        .block_end = a->block ? g->pos + g->n_rows : 0,
        .scale = a->scale,
        .format = slot->format,
        .k_off = head_off,
        .v_off = head_off,
        .k_eq_v = slot->k_eq_v,
        .k_norm = slot->k_eq_v ? kk_buf_f(a->k_norm) : NULL,
        .n_rot = a->n_rot,
    };
}

typedef struct {
    kk_dev *dev;
    const kk_attend_args *a;
    int32_t tile_rows, heads, parts; /* query heads of a task; tasks per K/V head */
} attend_job;

static int64_t group_tasks(const attend_job *j, const kk_group *g) {
    const int64_t tiles = (g->n_rows + j->tile_rows - 1) / j->tile_rows;
    return tiles * j->a->slot.n_kv_head * j->parts;
}

static void attend_task(const attend_job *j, const kk_group *g, int64_t task, int32_t thread) {
    const kk_attend_args *a = j->a;
    const kk_kv_slot *slot = &a->slot;
    const int64_t part = task % j->parts, head = task / j->parts % slot->n_kv_head;
    const int32_t tile = (int32_t)(task / j->parts / slot->n_kv_head) * j->tile_rows;
    const int32_t left = g->n_rows - tile;
    kk_attend_tile t = kk_cpu_tile(a, g, tile, left < j->tile_rows ? left : j->tile_rows,
                                   (int32_t)head, (int32_t)part * j->heads, j->heads);
    t.scratch = kk_thread_scratch(j->dev, thread);
    t.state = t.scratch + KK_ATTEND_SCRATCH;
    t.pages = (const uint8_t *const *)g->pages;
    t.k_off += slot->k_off;
    t.v_off += slot->v_off;
    t.rope_pos = slot->k_eq_v ? kk_buf_f(a->rope_pos) : NULL;
    t.starts = t.ends = true;
    j->dev->k->attend(&t);
}

static void attend_tasks(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const attend_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        const kk_group *g = j->a->rows->group;
        int64_t task = t;
        for (; task >= group_tasks(j, g); g++) task -= group_tasks(j, g);
        attend_task(j, g, task, thread);
    }
}

static int64_t all_tasks(const attend_job *j) {
    int64_t n = 0;
    for (int32_t g = 0; g < j->a->rows->n_groups; g++) n += group_tasks(j, &j->a->rows->group[g]);
    return n;
}

/* Rows of a group are tiles of tile_rows and one of what is left. */
static void count_tiles(const attend_job *j) {
    const kk_attend_args *a = j->a;
    for (int32_t i = 0; i < a->rows->n_groups; i++) {
        const kk_group *g = &a->rows->group[i];
        const int32_t whole = g->n_rows / j->tile_rows, left = g->n_rows % j->tile_rows;
        const int64_t tasks = (int64_t)a->slot.n_kv_head * j->parts;
        kk_attend_tile t = kk_cpu_tile(a, g, 0, j->tile_rows, 0, 0, j->heads);
        kk_cpu_count_tiles(j->dev, &t, whole * tasks);
        t.n_rows = left;
        if (left > 0) kk_cpu_count_tiles(j->dev, &t, tasks);
    }
}

kk_status kk_cpu_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    KK_TRY(check_heads(&a->slot, a->n_head, err));
    if (a->evicted || a->rows->group[0].sink) {
        kk_cpu_attend_evicted(dev, a);
        return KK_OK;
    }
    const int32_t group = a->n_head / a->slot.n_kv_head;
    attend_job j = {.dev = dev, .a = a, .heads = group, .parts = 1};
    j.tile_rows =
        KK_ATTEND_PAIRS / group < KK_ATTEND_ROWS ? KK_ATTEND_PAIRS / group : KK_ATTEND_ROWS;
    while (j.heads % 2 == 0 && all_tasks(&j) < kk_threads_count(dev->threads)) {
        j.heads /= 2;
        j.parts *= 2;
    }
    count_tiles(&j);
    kk_threads_loop(dev->threads, all_tasks(&j), 1, attend_tasks, &j);
    return KK_OK;
}
