/* cpu_evicted.c - attention over rows that are not all stored in their pages.
 *
 * Rows of a group that share a chunk see the same rows stored and the same rows evicted.  For them,
 * pages are taken in batches, as many at a time as a buffer of fixed size holds.  A page that is
 * stored whole is read where it lies.  Any other is assembled in that buffer, in the cache's own
 * format: the sink's rows from where they are kept, rows that are gone from their latents, the rest
 * copied.
 * From there on attention knows no difference, and its sums go on from one batch to the next.
 *
 * Rows are rebuilt whole only under diagnosis, where true ones are mixed in.  Otherwise what is
 * gone is left out here, as if it were not seen, and cpu_latent.c adds it without rebuilding most
 * of it.
 *
 * A row is rebuilt once for all queries and heads of its batch, the products are strips of ordinary
 * matrices shared out among threads, and no buffer depends on the length of the context. */
#include "backend/cpu/evicted.h"

enum { BATCH_BYTES = 2 << 20, BATCH_MOST = 16 };

/* The buffer of a batch: pages, angles, latents as floats and as rounded activations. */
typedef struct {
    int32_t pages;
    size_t slot_bytes; /* K and V of one page */
    size_t angles, latents, acts, bytes;
} batch_layout;

static size_t whole_lines(size_t n) { return (n + 63) / 64 * 64; }

static batch_layout layout_for(const kk_kv_slot *slot, int32_t rank) {
    const size_t part = (size_t)slot->n_kv_head * kk_kv_head_bytes(slot->format, slot->head_dim);
    batch_layout b = {.slot_bytes = slot->k_eq_v ? part : 2 * part};
    const size_t fit = BATCH_BYTES / b.slot_bytes;
    b.pages = fit < 1 ? 1 : fit > BATCH_MOST ? BATCH_MOST : (int32_t)fit;
    const size_t rows = (size_t)b.pages * KK_PAGE_ROWS;
    b.angles = whole_lines((size_t)b.pages * b.slot_bytes);
    b.latents = b.angles + whole_lines(rows * (size_t)slot->head_dim * sizeof(float));
    b.acts = b.latents + whole_lines(rows * (size_t)rank * sizeof(float));
    b.bytes = b.acts + rows * ((size_t)rank / KK_BLOCK) * sizeof(kk_act_block);
    return b;
}

/* A thread's scratch: the panel of a strip, then a head's decoded rows. */
static size_t panel_bytes(int32_t rank) {
    return whole_lines(((size_t)rank / KK_BLOCK + 1) * KK_PANEL_BYTES);
}

kk_status kk_cpu_prepare_evicted(kk_dev *dev, const kk_kv_slot *slot, int32_t n_head, int32_t rank,
                                 kk_err *err) {
    const size_t rows = (size_t)dev->max_rows + KK_ATTEND_ROWS;
    const size_t head = (size_t)(KK_PAGE_ROWS + 1) * (size_t)slot->head_dim;
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->batch, layout_for(slot, rank).bytes, err));
    KK_TRY(kk_cpu_fit_threads(dev, panel_bytes(rank) + head * sizeof(float), err));
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->attend_state,
                              rows * (size_t)n_head * KK_ATTEND_STATE * sizeof(float), err));
    return rank ? kk_cpu_prepare_latents(dev, slot, n_head, rank, err) : KK_OK;
}

/* ---- a segment and its batches ---------------------------------------------------------- */

typedef struct {
    kk_dev *dev;
    const kk_attend_args *a;
    const kk_group *g;
    batch_layout layout;
    int32_t row, n_rows;              /* rows of the group in this segment */
    int32_t tile_rows, heads, parts;  /* tiles of attention, as in cpu_attend.c */
    int32_t most_rows;                /* most rows of a segment */
    kk_visible_rule rule;             /* which keys each row sees */
    int64_t stored;                   /* rows from here on are read in their pages */
    int64_t gone_to;                  /* in latent space: rows from the sink to here */
    kk_visible all;                   /* the keys that some of its rows see */
    int64_t page, end;                /* the current batch */
    const uint8_t *at[BATCH_MOST];    /* the batch's pages, at the layer's slot */
    int32_t made[BATCH_MOST], n_made; /* indexes of the pages that are assembled here */
    bool starts, ends;
    bool goes_on; /* with rows in latent space */
    float freq[KK_MAX_HEAD_DIM / 2];
} segment;

typedef struct {
    int32_t lo, hi;
} span_of_rows;

static span_of_rows cut(int64_t base, int64_t lo, int64_t hi, kk_page_visible see) {
    const int32_t a = kk_in_page(lo - base), b = kk_in_page(hi - base);
    return (span_of_rows){a > see.lo ? a : see.lo, b < see.hi ? b : see.hi};
}

static bool rebuilds_pages(const segment *s) {
    return s->a->evicted && s->a->evicted->rebuilds && !kk_in_latents(s->a->evicted);
}

/* Rows of a page that are rebuilt for the segment. */
static span_of_rows gone_rows(const segment *s, int64_t page) {
    if (!rebuilds_pages(s)) return (span_of_rows){0, 0};
    return cut(page * KK_PAGE_ROWS, s->a->sink, s->stored, kk_visible_in_page(s->all, page));
}

/* Rows that are read from the sink: those of this forward are copied there only when they are
 * committed. */
static int64_t sink_rows(const segment *s) {
    if (!s->g->sink) return 0;
    return s->a->sink < s->g->pos ? s->a->sink : s->g->pos;
}

static uint8_t *batch_page(const segment *s, int32_t i) {
    return (uint8_t *)s->dev->batch.data + (size_t)i * s->layout.slot_bytes;
}
static float *batch_angles(const segment *s, int32_t i) {
    float *angles = (float *)(void *)((uint8_t *)s->dev->batch.data + s->layout.angles);
    return angles + (size_t)i * KK_PAGE_ROWS * 2 * (size_t)s->a->n_rot;
}
static size_t rank_of(const segment *s) { return (size_t)s->a->evicted->latent.head_dim; }
static float *batch_latents(const segment *s, int32_t i) {
    float *z = (float *)(void *)((uint8_t *)s->dev->batch.data + s->layout.latents);
    return z + (size_t)i * KK_PAGE_ROWS * rank_of(s);
}
static kk_act_block *batch_acts(const segment *s, int32_t i) {
    kk_act_block *b = (kk_act_block *)(void *)((uint8_t *)s->dev->batch.data + s->layout.acts);
    return b + (size_t)i * KK_PAGE_ROWS * (rank_of(s) / KK_BLOCK);
}

/* ---- putting pages together ------------------------------------------------------------- */

static void fill_angles(const segment *s, int32_t i) {
    const int32_t n_rot = s->a->n_rot;
    float *row = batch_angles(s, i);
    for (int64_t j = 0; j < KK_PAGE_ROWS; j++, row += 2 * n_rot)
        s->dev->k->angles(row, s->freq, n_rot, (s->page + i) * KK_PAGE_ROWS + j);
}

/* What a page of the batch needs once for all its heads: angles, and latents to multiply. */
static void ready_pages(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const segment *s = arg;
    for (int32_t i = (int32_t)begin; i < (int32_t)end; i++) {
        const kk_evicted *e = s->a->evicted;
        const int64_t page = s->page + i;
        const span_of_rows gone = gone_rows(s, page);
        const int32_t n = gone.hi - gone.lo;
        if (s->a->slot.k_eq_v || n > 0) fill_angles(s, i);
        if (n <= 0) continue;
        const size_t rank = rank_of(s);
        float *z = batch_latents(s, i) + (size_t)gone.lo * rank;
        s->dev->k->widen(z, e->latent.format, e->latent.head_dim,
                         s->g->latents[page] + e->latent.v_off, gone.lo, n);
        if (kk_dtype_is_quant(e->v->m.dtype))
            s->dev->k->quantize(z, (size_t)n * rank,
                                batch_acts(s, i) + (size_t)gone.lo * (rank / KK_BLOCK));
    }
}

/* Copies rows of a head between pages of from_rows and KK_PAGE_ROWS rows, plane by plane. */
static void copy_rows(const kk_kv_slot *slot, uint8_t *to, const uint8_t *from, int32_t from_rows,
                      span_of_rows rows) {
    if (rows.lo >= rows.hi) return;
    for (int p = 0; p < KK_KV_PLANES; p++) {
        const size_t row = kk_kv_plane_bytes(slot->format, p, slot->head_dim);
        memcpy(to + (size_t)rows.lo * row, from + (size_t)rows.lo * row,
               (size_t)(rows.hi - rows.lo) * row);
        to += row * KK_PAGE_ROWS;
        from += row * (size_t)from_rows;
    }
}

/* raw = D z for rows of a head, [n][head_dim], mixed with the true rows under diagnosis. */
static void project_rows(const segment *s, int32_t i, int32_t head, bool keys, span_of_rows gone,
                         void *panel, float *raw) {
    const kk_evicted *e = s->a->evicted;
    const kk_weight *w = keys ? e->k : e->v;
    const size_t rank = rank_of(s), first = (size_t)gone.lo;
    const int32_t d = s->a->slot.head_dim;
    kk_strip strip = {.dtype = w->m.dtype,
                      .n_in = (int32_t)rank,
                      .n_rows = gone.hi - gone.lo,
                      .w_stride = w->row_bytes,
                      .x = {.f = batch_latents(s, i) + first * rank,
                            .b = batch_acts(s, i) + first * (rank / KK_BLOCK)},
                      .out_stride = (size_t)d,
                      .panel = panel};
    for (int32_t o = 0; o < d; o += KK_STRIP) {
        strip.n_out = d - o < KK_STRIP ? d - o : KK_STRIP;
        strip.w = kk_weight_row(w, 0, (int64_t)head * d + o);
        strip.out = raw + o;
        s->dev->k->strip(&strip);
    }
    if (!e->diagnosis) return;
    const kk_kv_slot *slot = &e->diagnosis->truth[e->layer];
    const float mix = e->diagnosis->mix;
    const float *truth = (const float *)(const void *)(s->g->latents[s->page + i] +
                                                       (keys ? slot->k_off : slot->v_off)) +
                         ((size_t)head * KK_PAGE_ROWS + first) * (size_t)d;
    for (size_t k = 0; k < (size_t)(gone.hi - gone.lo) * (size_t)d; k++)
        raw[k] = mix * truth[k] + (1.0f - mix) * raw[k];
}

static void rebuild_rows(const segment *s, int32_t i, int32_t head, bool keys, span_of_rows gone,
                         int32_t thread) {
    const kk_attend_args *a = s->a;
    const int32_t d = a->slot.head_dim, page = s->made[i];
    if (gone.lo >= gone.hi) return;
    uint8_t *panel = kk_thread_scratch(s->dev, thread);
    float *raw = (float *)(void *)(panel + panel_bytes(a->evicted->latent.head_dim));
    float *x = raw + (size_t)KK_PAGE_ROWS * (size_t)d;
    project_rows(s, page, head, keys, gone, panel, raw);
    kk_kv_slot to = a->slot;
    to.v_off -= to.k_off;
    to.k_off = 0;
    for (int32_t j = gone.lo; j < gone.hi; j++, raw += d) {
        s->dev->k->norm(x, raw, keys ? kk_buf_f(a->k_norm) : NULL, d, a->evicted->eps);
        if (keys)
            s->dev->k->rotate(x, batch_angles(s, page) + (size_t)j * 2 * (size_t)a->n_rot, d,
                              a->n_rot);
        kk_cpu_put_row(s->dev, &to, batch_page(s, page), keys ? 0 : to.v_off, head, j, x);
    }
}

/* K or V of one head of one page: a task is numbered (page, head, part). */
static void make_parts(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const segment *s = arg;
    const kk_kv_slot *slot = &s->a->slot;
    const int32_t parts = slot->k_eq_v ? 1 : 2;
    const size_t head_bytes = kk_kv_head_bytes(slot->format, slot->head_dim);
    for (int64_t t = begin; t < end; t++) {
        const int32_t head = (int32_t)(t / parts % slot->n_kv_head);
        const int32_t i = (int32_t)(t / parts / slot->n_kv_head);
        const bool keys = parts == 2 && t % 2 == 0;
        const int64_t page = s->page + s->made[i], base = page * KK_PAGE_ROWS;
        const kk_page_visible see = kk_visible_in_page(s->all, page);
        const size_t off = keys ? slot->k_off : slot->v_off, at = (size_t)head * head_bytes;
        uint8_t *to = batch_page(s, s->made[i]) + (off - slot->k_off) + at;
        const int64_t sink = s->g->sink ? s->a->sink : 0, kept = sink_rows(s);
        if (kept)
            copy_rows(slot, to, s->g->sink + (off + at) / KK_PAGE_ROWS * (size_t)sink,
                      (int32_t)sink, cut(base, 0, kept, see));
        rebuild_rows(s, i, head, keys, gone_rows(s, page), thread);
        const int64_t from = s->stored > sink ? s->stored : sink;
        const span_of_rows here[] = {cut(base, kept, sink, see),
                                     cut(base, from, base + KK_PAGE_ROWS, see)};
        for (int k = 0; k < 2; k++)
            if (here[k].lo < here[k].hi)
                copy_rows(slot, to, s->g->pages[page] + off + at, KK_PAGE_ROWS, here[k]);
    }
}

/* ---- attention over a batch ------------------------------------------------------------- */

static void attend_tiles(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const segment *s = arg;
    const kk_kv_slot *slot = &s->a->slot;
    for (int64_t task = begin; task < end; task++) {
        const int32_t part = (int32_t)(task % s->parts);
        const int32_t head = (int32_t)(task / s->parts % slot->n_kv_head);
        const int32_t tile = (int32_t)(task / s->parts / slot->n_kv_head) * s->tile_rows;
        const int32_t left = s->n_rows - tile;
        kk_attend_tile t =
            kk_cpu_tile(s->a, s->g, s->row + tile, left < s->tile_rows ? left : s->tile_rows, head,
                        part * s->heads, s->heads);
        t.pages = s->at;
        t.page_base = t.page_from = s->page;
        t.page_to = s->end;
        t.v_off += slot->v_off - slot->k_off;
        t.rope_pos = batch_angles(s, 0);
        t.scratch = kk_thread_scratch(s->dev, thread);
        t.state = (float *)s->dev->attend_state.data +
                  (size_t)task * (size_t)(s->tile_rows * s->heads) * KK_ATTEND_STATE;
        t.starts = s->starts;
        t.ends = s->ends && !s->goes_on;
        s->dev->k->attend(&t);
    }
}

/* The pages from s->page on that follow one another, as many as fit a batch; returns the
 * one after. */
static int64_t gather_batch(segment *s) {
    const int64_t end = (s->all.to + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS;
    int64_t after = s->page;
    s->n_made = 0;
    for (s->end = s->page; s->end < end && s->end - s->page < s->layout.pages; s->end++) {
        const int32_t i = (int32_t)(s->end - s->page);
        /* A sink that overlaps the window is one range with it, though its page may be evicted. */
        const bool whole = s->end * KK_PAGE_ROWS >= s->stored && s->g->pages[s->end];
        s->at[i] = whole ? s->g->pages[s->end] + s->a->slot.k_off : batch_page(s, i);
        if (!whole) s->made[s->n_made++] = i;
        after = kk_visible_next_page(s->all, s->end);
        if (after != s->end + 1) {
            s->end++;
            break;
        }
    }
    s->ends = after >= end;
    return after;
}

static void run_segment(segment *s) {
    const kk_kv_slot *slot = &s->a->slot;
    const int64_t tiles = (s->n_rows + s->tile_rows - 1) / s->tile_rows;
    const int32_t parts = slot->k_eq_v ? 1 : 2;
    kk_threads *threads = s->dev->threads;
    s->starts = true;
    s->page = kk_visible_first_page(s->all);
    const kk_attend_tile tile = kk_cpu_tile(
        s->a, s->g, s->row, s->n_rows < s->tile_rows ? s->n_rows : s->tile_rows, 0, 0, s->heads);
    do {
        const int64_t after = gather_batch(s);
        kk_cpu_count_tiles(s->dev, &tile, tiles * slot->n_kv_head * s->parts);
        if (s->a->evicted && (s->n_made || slot->k_eq_v))
            kk_threads_loop(threads, s->end - s->page, 1, ready_pages, s);
        if (s->n_made)
            kk_threads_loop(threads, (int64_t)s->n_made * slot->n_kv_head * parts, 1, make_parts,
                            s);
        kk_threads_loop(threads, tiles * slot->n_kv_head * s->parts, 1, attend_tiles, s);
        s->starts = false;
        s->page = after;
    } while (!s->ends);
}

/* ---- segments --------------------------------------------------------------------------- */

/* Rows of the group from `row` on that share a chunk, and what of theirs is stored. */
static void open_segment(segment *s, int32_t row) {
    const int64_t pos = s->g->pos + row, left = kk_chunk_end(&s->rule.bounds, pos) - pos;
    s->row = row;
    s->n_rows = s->g->n_rows - row < s->most_rows ? s->g->n_rows - row : s->most_rows;
    if (s->a->evicted && left < s->n_rows) s->n_rows = (int32_t)left;
    const kk_attend_tile t = kk_cpu_tile(s->a, s->g, row, s->n_rows, 0, 0, 1);
    const kk_visible first = kk_sees(&s->rule, pos);
    s->all = kk_tile_sees_all(&t);
    s->stored = rebuilds_pages(s) ? kk_kept_from(&s->rule.bounds, pos)
                                  : s->all.from / KK_PAGE_ROWS * KK_PAGE_ROWS;
    s->goes_on = kk_in_latents(s->a->evicted) && kk_visible_gone(first) > 0;
    s->gone_to = s->goes_on ? first.gone_to : 0;
}

/* The running softmax of the stored rows is continued in latent space. */
static void add_latents(const segment *s) {
    const kk_latent_rows rows = {.dev = s->dev,
                                 .a = s->a,
                                 .g = s->g,
                                 .row = s->row,
                                 .n_rows = s->n_rows,
                                 .tile_rows = s->tile_rows,
                                 .heads = s->heads,
                                 .parts = s->parts,
                                 .stored = s->gone_to};
    kk_cpu_attend_latents(&rows);
}

void kk_cpu_attend_evicted(kk_dev *dev, const kk_attend_args *a) {
    const int32_t group = a->n_head / a->slot.n_kv_head;
    segment s = {.dev = dev, .a = a, .rule = kk_attend_rule(a), .heads = group, .parts = 1};
    s.layout = layout_for(&a->slot, rebuilds_pages(&s) ? (int32_t)rank_of(&s) : 0);
    s.most_rows =
        kk_in_latents(a->evicted) ? kk_cpu_latent_rows(a->n_head, (int32_t)rank_of(&s)) : INT32_MAX;
    s.tile_rows =
        KK_ATTEND_PAIRS / group < KK_ATTEND_ROWS ? KK_ATTEND_PAIRS / group : KK_ATTEND_ROWS;
    while (s.heads % 2 == 0 && a->slot.n_kv_head * s.parts < kk_threads_count(dev->threads)) {
        s.heads /= 2;
        s.parts *= 2;
    }
    if (a->evicted) kk_cpu_frequencies(&a->evicted->rope, s.freq);
    for (int32_t g = 0; g < a->rows->n_groups; g++) {
        s.g = &a->rows->group[g];
        for (int32_t row = 0; row < s.g->n_rows; row += s.n_rows) {
            open_segment(&s, row);
            run_segment(&s);
            if (s.goes_on) add_latents(&s);
        }
    }
}
