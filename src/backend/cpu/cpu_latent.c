/* cpu_latent.c - attention over rows of which only latents are left, with little rebuilding.
 *
 * V_j = inv_j D_v z_j, inv_j kept beside the latent, is linear in it.  So a query's sum of values
 * is D_v (sum_j p_j inv_j z_j): what is summed up are latents, and D_v comes once, at the end.
 * Where K = V, so are the values of K that RoPE leaves alone: q . K_j = inv_j (q' . z_j), with
 * q' = D_v^T (k_norm * q) over those values, made once.  The rotated values of K have another
 * angle in every row and have to be rebuilt: those alone where K = V, all of K elsewhere.
 *
 * Stored rows come first, in the ordinary way (cpu_evicted.c); what they came to is gone on with
 * here.  Pages are taken a few at a time, as many as a scratch of fixed size holds.  A pair is a
 * (row, query head); pairs are numbered by K/V head, then row, so that those of one K/V head lie
 * together. Pairs share nothing, and are shared out among threads anyhow.
 *
 * Where K/V heads can be shared out evenly, a thread takes a head through all pages of a batch:
 * it rebuilds a page's keys where it reads them at once, no thread reads what another one wrote
 * but the rounded latents, and threads wait for each other twice a batch.  Elsewhere pages are
 * rebuilt by all threads, and then pairs shared out.
 *
 * In forwards of few rows, keys of pages whose rows are all committed stay rebuilt for the next
 * forwards, as many as key_cache.h has a place for: whole pages, as later rows see others of
 * them. */
#include "backend/cpu/evicted.h"
#include "core/mathf.h"
#include "core/span.h"

enum {
    BATCH_BYTES = 1 << 20, /* scratch of a batch of pages, or of one page where that is more */
    PAIRS_BYTES = 8 << 20, /* scratch of the pairs in latent space, or of a tile of rows */
    MOST_PAGES = 32,       /* most pages of a batch */
    MOST_ROWS = 64,        /* most rows of a pass */
    TASK_PAIRS = 64,       /* most pairs of an attention task */
    SLICE = 256,           /* latent values of a task that makes q' */
    ANGLES = 16,           /* pages of the widest head, all of it rotated, whose angles are kept */
    KEEP_ROWS = 64,        /* most rows of a forward that keeps keys: a prompt's are soon gone */
};

/* ---- scratch ---------------------------------------------------------------------------- */

static size_t whole_lines(size_t n) { return (n + 63) / 64 * 64; }

/* Byte offsets of a page's arrays in the batch's scratch. */
typedef struct {
    size_t z;       /* [KK_PAGE_ROWS][rank] latents as floats, */
    size_t acts;    /* the latents as quantised activations */
    size_t angles;  /* [KK_PAGE_ROWS][2][n_rot], unless they are kept elsewhere */
    size_t keys;    /* [n_kv][KK_PAGE_ROWS][2 * half] what is rebuilt of them */
    size_t factors; /* [2][n_kv][KK_PAGE_ROWS] of keys, of values */
    size_t bytes;
} page_layout;

/* Of a row's latents as quantised activations. */
static size_t rounded_bytes(int32_t rank) { return (size_t)rank / KK_BLOCK * sizeof(kk_act_block); }

/* floats: latents are wanted as such; half 0: keys are kept elsewhere. */
static page_layout page_layout_for(int32_t n_kv, int32_t rank, bool floats, int32_t half,
                                   int32_t n_rot) {
    const size_t rows = KK_PAGE_ROWS, f = sizeof(float);
    page_layout r = {.acts = floats ? whole_lines(rows * (size_t)rank * f) : 0};
    r.angles = r.acts + whole_lines(rows * rounded_bytes(rank));
    r.keys = r.angles + whole_lines(rows * 2 * (size_t)n_rot * f);
    r.factors = r.keys + whole_lines((size_t)n_kv * rows * 2 * (size_t)half * f);
    r.bytes = r.factors + whole_lines(2 * (size_t)n_kv * rows * f);
    return r;
}

/* Offsets of the pairs' arrays, in floats from the start of their scratch. */
typedef struct {
    size_t q;    /* [pairs][2 * half] of what is rebuilt of keys */
    size_t qz;   /* [pairs][rank] q' */
    size_t accz; /* [pairs][rank] sums of latents */
    size_t y;    /* [pairs][head_dim] D_v of these */
    size_t lane, m;
    size_t before; /* the largest score of stored rows, then how later ones shrink their sums */
    size_t inv;    /* 1 / sum of the lanes */
    size_t norm;   /* [2 * half] k_norm of what is rebuilt */
    size_t floats;
} pair_layout;

static pair_layout pair_layout_for(size_t pairs, int32_t rank, int32_t d) {
    pair_layout r = {.qz = pairs * (size_t)d};
    r.accz = r.qz + pairs * (size_t)rank;
    r.y = r.accz + pairs * (size_t)rank;
    r.lane = r.y + pairs * (size_t)d;
    r.m = r.lane + pairs * KK_LANES;
    r.before = r.m + pairs;
    r.inv = r.before + pairs;
    r.norm = r.inv + pairs;
    r.floats = r.norm + (size_t)d;
    return r;
}

static size_t panel_bytes(int32_t rank) {
    return whole_lines(((size_t)rank / KK_BLOCK + 1) * KK_PANEL_BYTES);
}

/* Bytes of a thread's scratch where it takes a head through pages: the panel of a strip or, of
 * types that are unpacked ahead, of the head; a page's keys; scores. */
static size_t head_panel(int32_t rank, int32_t d) {
    const size_t one = panel_bytes(rank), all = kk_unpacked_bytes(d / KK_STRIP, rank);
    return one > all ? one : all;
}
static size_t head_scores(int32_t rank, int32_t d) {
    return head_panel(rank, d) + whole_lines(KK_PAGE_ROWS * (size_t)d * sizeof(float));
}

int32_t kk_cpu_latent_rows(int32_t n_head, int32_t rank) {
    const size_t fit = PAIRS_BYTES / ((size_t)n_head * (size_t)rank * 2 * sizeof(float));
    return fit > MOST_ROWS ? MOST_ROWS : fit < KK_ATTEND_ROWS ? KK_ATTEND_ROWS : (int32_t)fit;
}

kk_status kk_cpu_prepare_latents(kk_dev *dev, const kk_kv_slot *slot, int32_t n_head, int32_t rank,
                                 kk_err *err) {
    const int32_t d = slot->head_dim;
    const size_t rows = (size_t)kk_cpu_latent_rows(n_head, rank), page = KK_PAGE_ROWS;
    const size_t one = page_layout_for(slot->n_kv_head, rank, true, (d + 1) / 2, (d + 1) / 2).bytes;
    const size_t slice = page * SLICE, scores = 2 * TASK_PAIRS * page + TASK_PAIRS;
    const size_t pairs = rows * (size_t)n_head;
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->batch, one > BATCH_BYTES ? one : BATCH_BYTES, err));
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->pairs,
                              pair_layout_for(pairs, rank, d).floats * sizeof(float), err));
    memset(dev->angle_pages, 0, sizeof dev->angle_pages);
    memset(dev->rounded_pages, 0, sizeof dev->rounded_pages);
    kk_key_cache_clear(&dev->keys);
    KK_TRY(
        kk_cpu_scratch_fit(dev, &dev->rounded, KK_ROUNDED_PAGES * page * rounded_bytes(rank), err));
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->angles, ANGLES * page * (size_t)d * sizeof(float), err));
    KK_TRY(kk_cpu_fit_threads(dev, head_scores(rank, d) + scores * sizeof(float), err));
    const size_t weights = rows * (size_t)(n_head / slot->n_kv_head) * page;
    KK_TRY(kk_cpu_fit_threads(dev, (slice + weights + pairs) * sizeof(float), err));
    return kk_cpu_fit_threads(dev, KK_STRIP * (size_t)rank * sizeof(float), err);
}

/* ---- a pass ----------------------------------------------------------------------------- */

typedef struct {
    int32_t lo, hi;
} page_rows;

typedef struct {
    const kk_latent_rows *rows;
    kk_dev *dev;
    const kk_attend_args *a;
    const kk_evicted *e;
    kk_visible_rule rule;
    int32_t d, rank, n_kv, group, per_kv, pairs;
    int32_t half;   /* number of leading values of each half of a head that are rebuilt */
    int32_t slices; /* tasks per K/V head that make q' */
    page_layout page;
    pair_layout pair;
    int64_t first; /* page of the batch */
    int32_t n_pages, task_pairs;
    int64_t visible;   /* pages of the pass */
    bool begins, ends; /* first, last batch of the pass; used with by_head */
    bool by_head;      /* a task is a K/V head, and not a page's keys or some pairs */
    bool unpacked;     /* by_head, and what rebuilds its keys is unpacked for a batch */
    bool in_place;     /* latents are read in place, as bf16, and not as floats */
    size_t kept_bytes; /* of a page's keys and, behind them, factors; 0: none are kept */
    struct {
        kk_key_entry *entry; /* NULL: this page of the batch has none */
        float *keys;
    } kept[MOST_PAGES];
    int32_t rebuilt; /* pages of the batch whose keys are not ready */
    float freq[KK_MAX_HEAD_DIM / 2];
} pass;

static float *page_floats(const pass *s, int32_t i, size_t at) {
    return (float *)(void *)((uint8_t *)s->dev->batch.data + (size_t)i * s->page.bytes + at);
}
static float *page_z(const pass *s, int32_t i) { return page_floats(s, i, s->page.z); }
/* Latents are rounded once for all layers of a forward where all pages of a pass fit. */
static bool keeps_rounded(const pass *s) {
    return s->in_place && s->e->forward && s->visible <= KK_ROUNDED_PAGES;
}
static kk_act_block *page_acts(const pass *s, int32_t i) {
    if (!keeps_rounded(s)) return (kk_act_block *)(void *)page_floats(s, i, s->page.acts);
    const size_t bytes = KK_PAGE_ROWS * rounded_bytes(s->rank);
    return (kk_act_block *)(void *)((uint8_t *)s->dev->rounded.data +
                                    (size_t)((s->first + i) % KK_ROUNDED_PAGES) * bytes);
}
static bool is_kept(const pass *s, int32_t i) { return s->kept[i].entry != NULL; }
static bool is_ready(const pass *s, int32_t i) { return is_kept(s, i) && s->kept[i].entry->ready; }
static size_t key_floats(const pass *s) { return (size_t)(KK_PAGE_ROWS * 2 * s->half); }
static float *page_keys(const pass *s, int32_t i, int32_t head) {
    float *of_page = is_kept(s, i) ? s->kept[i].keys : page_floats(s, i, s->page.keys);
    return of_page + (size_t)head * key_floats(s);
}
static float *key_factors(const pass *s, int32_t i, int32_t head) {
    float *of_page = is_kept(s, i) ? s->kept[i].keys + (size_t)s->n_kv * key_floats(s)
                                   : page_floats(s, i, s->page.factors);
    return of_page + (size_t)(head * KK_PAGE_ROWS);
}
static float *value_factors(const pass *s, int32_t i, int32_t head) {
    return page_floats(s, i, s->page.factors) + (size_t)((s->n_kv + head) * KK_PAGE_ROWS);
}
static float *pair_at(const pass *s, size_t of, int32_t pair, int32_t wide) {
    return (float *)s->dev->pairs.data + of + (size_t)pair * (size_t)wide;
}
static int32_t row_of_pair(const pass *s, int32_t pair) { return pair % s->per_kv / s->group; }
static size_t place_of_pair(const pass *s, int32_t pair) {
    const int32_t head = pair / s->per_kv * s->group + pair % s->group;
    const int32_t row = s->rows->g->row + s->rows->row + row_of_pair(s, pair);
    return ((size_t)row * (size_t)s->a->n_head + (size_t)head) * (size_t)s->d;
}

/* The first evicted row that row r of the pass sees, if it comes before `stored`. */
static int64_t first_gone(const pass *s, int32_t r) {
    return kk_sees(&s->rule, s->rows->g->pos + s->rows->row + r).gone_from;
}
static page_rows gone_of_page(const pass *s, int32_t r, int64_t page) {
    const int64_t base = page * KK_PAGE_ROWS;
    return (page_rows){kk_in_page(first_gone(s, r) - base), kk_in_page(s->rows->stored - base)};
}
/* Rows of page i of the batch whose keys are rebuilt now. */
static page_rows rows_rebuilt(const pass *s, int32_t i) {
    if (is_ready(s, i)) return (page_rows){0, 0};
    if (is_kept(s, i)) return (page_rows){0, KK_PAGE_ROWS};
    return gone_of_page(s, 0, s->first + i);
}
static bool none_gone(const pass *s, int32_t r) { return first_gone(s, r) >= s->rows->stored; }

/* ---- queries in latent space ------------------------------------------------------------ */

/* The lanes and the largest score that a pair has from the rows that are stored. */
static void take_over(const pass *s, int32_t pair) {
    const kk_latent_rows *in = s->rows;
    const int32_t r = row_of_pair(s, pair), g = pair % s->group, kv = pair / s->per_kv;
    const int32_t tile = r / in->tile_rows, left = in->n_rows - tile * in->tile_rows;
    const int32_t n = (left < in->tile_rows ? left : in->tile_rows) * in->heads;
    const int32_t task = (tile * s->n_kv + kv) * in->parts + g / in->heads;
    const int32_t at = r % in->tile_rows * in->heads + g % in->heads;
    const float *state = (const float *)s->dev->attend_state.data +
                         (size_t)task * (size_t)(in->tile_rows * in->heads) * KK_ATTEND_STATE;
    memcpy(pair_at(s, s->pair.lane, pair, KK_LANES), state + (size_t)at * KK_LANES,
           KK_LANES * sizeof(float));
    *pair_at(s, s->pair.m, pair, 1) = state[(size_t)n * KK_LANES + (size_t)at];
    *pair_at(s, s->pair.before, pair, 1) = *pair_at(s, s->pair.m, pair, 1);
}

/* The range of a head's values that are rebuilt. */
static void copy_rebuilt(const pass *s, float *to, const float *from) {
    memcpy(to, from, (size_t)s->half * sizeof *to);
    memcpy(to + s->half, from + s->d / 2, (size_t)s->half * sizeof *to);
}

/* q' of a K/V head's pairs, `n` of its latent values from `at` on, over the values [lo, hi). */
static void rotate_back(const pass *s, int32_t kv, int32_t at, int32_t n, page_rows dims,
                        int32_t thread) {
    float *d = kk_thread_scratch(s->dev, thread), *w = d + KK_PAGE_ROWS * SLICE;
    float *one = w + (size_t)s->per_kv * KK_PAGE_ROWS;
    const float *norm = kk_buf_f(s->a->k_norm), *q = kk_buf_f(s->a->q);
    const kk_dtype type = s->e->v->m.dtype;
    const kk_dtype_info *info = kk_dtype_get(type);
    const size_t skip = (size_t)(at / info->values) * (size_t)info->bytes;
    for (int32_t o = dims.lo; o < dims.hi; o++)
        s->dev->k->floats(type, kk_weight_row(s->e->v, 0, (int64_t)kv * s->d + o) + skip,
                          d + (size_t)(o - dims.lo) * (size_t)n, (size_t)n);
    for (int32_t p = 0; p < s->per_kv; p++) {
        const float *from = q + place_of_pair(s, kv * s->per_kv + p);
        one[p] = 1;
        for (int32_t o = dims.lo; o < dims.hi; o++)
            w[p * KK_PAGE_ROWS + o - dims.lo] = norm[o] * from[o];
    }
    const kk_sums sum = {.acc = pair_at(s, s->pair.qz, kv * s->per_kv, s->rank) + at,
                         .acc_stride = (size_t)s->rank,
                         .c = one,
                         .w = w,
                         .x = d,
                         .x_stride = (size_t)n,
                         .n = n,
                         .n_acc = s->per_kv,
                         .n_x = dims.hi - dims.lo};
    s->dev->k->sums(&sum);
}

/* `at`: where a slice of a K/V head's latent values begins. */
static void start_slice(const pass *s, int32_t kv, int32_t at, int32_t thread) {
    const int32_t n = s->rank - at < SLICE ? s->rank - at : SLICE;
    for (int32_t p = kv * s->per_kv; p < (kv + 1) * s->per_kv; p++) {
        memset(pair_at(s, s->pair.accz, p, s->rank) + at, 0, (size_t)n * sizeof(float));
        memset(pair_at(s, s->pair.qz, p, s->rank) + at, 0, (size_t)n * sizeof(float));
        if (at > 0) continue;
        take_over(s, p);
        copy_rebuilt(s, pair_at(s, s->pair.q, p, 2 * s->half),
                     kk_buf_f(s->a->q) + place_of_pair(s, p));
    }
    for (int32_t part = 0; part < 2; part++) {
        const int32_t lo = part * (s->d / 2) + s->half, hi = (part + 1) * (s->d / 2);
        for (int32_t o = lo; o < hi; o += KK_PAGE_ROWS) {
            const int32_t to = o + KK_PAGE_ROWS < hi ? o + KK_PAGE_ROWS : hi;
            rotate_back(s, kv, at, n, (page_rows){o, to}, thread);
        }
    }
}

/* A task is a slice of a K/V head's latent values. */
static void start_pairs(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const pass *s = arg;
    for (int64_t t = begin; t < end; t++)
        start_slice(s, (int32_t)(t / s->slices), (int32_t)(t % s->slices) * SLICE, thread);
}

/* ---- rows ------------------------------------------------------------------------------- */

/* Angles depend on nothing but positions, so they are kept from layer to layer and from token to
 * token.  Pages of layers with a window take turns in a part of the memory that is as large as they
 * need; of other layers the first pages are kept, as many as fit the rest. */
static size_t angle_bytes(const pass *s) {
    return KK_PAGE_ROWS * 2 * (size_t)s->a->n_rot * sizeof(float);
}
static void share_angles(const pass *s) {
    kk_dev *dev = s->dev;
    const size_t pages = (size_t)s->a->window / KK_PAGE_ROWS + 2, bytes = pages * angle_bytes(s);
    if (!s->a->window || bytes <= dev->window_angles || bytes > dev->angles.bytes) return;
    dev->window_angles = bytes;
    memset(dev->angle_pages, 0, sizeof dev->angle_pages);
}

/* Where page i's are kept, counted in pages; -1: nowhere. */
static int64_t place_of_angles(const pass *s, int32_t i) {
    const kk_dev *dev = s->dev;
    if (!s->a->n_rot) return -1;
    const size_t bytes = s->a->window ? dev->window_angles : dev->angles.bytes - dev->window_angles;
    const size_t fit = bytes / angle_bytes(s);
    const int64_t most = fit < KK_ANGLE_PAGES ? (int64_t)fit : KK_ANGLE_PAGES;
    const int64_t page = s->first + i;
    if (s->a->window) return s->visible <= most ? page % most : -1;
    return page < most ? page : -1;
}

static float *page_angles(const pass *s, int32_t i) {
    const int64_t at = place_of_angles(s, i);
    if (at < 0) return page_floats(s, i, s->page.angles);
    const size_t first = s->a->window ? 0 : s->dev->window_angles;
    uint8_t *bytes = (uint8_t *)s->dev->angles.data + first + (size_t)at * angle_bytes(s);
    return (float *)(void *)bytes;
}

static bool same_rope(const kk_rope *a, const kk_rope *b) {
    return a->n_rot == b->n_rot && a->head_dim == b->head_dim &&
           kk_f32_bits(a->theta) == kk_f32_bits(b->theta) &&
           kk_f32_bits(a->factor) == kk_f32_bits(b->factor);
}

static void fill_angles(const pass *s, int32_t i, page_rows rows) {
    const int64_t page = s->first + i, at = place_of_angles(s, i);
    const kk_rope *rope = &s->e->rope;
    if (at >= 0) {
        struct kk_angle_page *kept = &s->dev->angle_pages[!s->a->window][at];
        if (kept->page == page && same_rope(&kept->rope, rope)) return;
        *kept = (struct kk_angle_page){*rope, page};
        rows = (page_rows){0, KK_PAGE_ROWS};
    }
    float *to = page_angles(s, i);
    for (int32_t j = rows.lo; j < rows.hi; j++)
        s->dev->k->angles(to + (size_t)(j * 2 * s->a->n_rot), s->freq, s->a->n_rot,
                          page * KK_PAGE_ROWS + j);
}

/* Rows of latents as floats, and rounded, if decoders are. */
static void widen_latents(const pass *s, int32_t i, page_rows rows) {
    const kk_evicted *e = s->e;
    const size_t lo = (size_t)rows.lo, n = (size_t)(rows.hi - rows.lo), rank = (size_t)s->rank;
    float *z = page_z(s, i) + lo * rank;
    s->dev->k->widen(z, e->latent.format, s->rank,
                     s->rows->g->latents[s->first + i] + e->latent.v_off, rows.lo, (int32_t)n);
    if (kk_dtype_is_quant(e->v->m.dtype) && !is_ready(s, i))
        s->dev->k->quantize(z, n * rank, page_acts(s, i) + lo * (rank / KK_BLOCK));
}

/* Rows of latents rounded, straight from bf16, unless another layer's pass has done it. */
static void round_latents(const pass *s, int32_t i, page_rows rows, int32_t thread) {
    const kk_kernels *k = s->dev->k;
    const uint8_t *from = s->rows->g->latents[s->first + i] + s->e->latent.v_off;
    const size_t rank = (size_t)s->rank;
    if (keeps_rounded(s)) {
        struct kk_rounded_page *kept = &s->dev->rounded_pages[(s->first + i) % KK_ROUNDED_PAGES];
        if (kept->latents == from && kept->forward == s->e->forward && kept->lo <= rows.lo &&
            kept->hi >= rows.hi)
            return;
        *kept = (struct kk_rounded_page){from, s->e->forward, rows.lo, rows.hi};
    }
    kk_act_block *acts = page_acts(s, i) + (size_t)rows.lo * (rank / KK_BLOCK);
    if (k->quantize_bf16) {
        k->quantize_bf16(from + (size_t)rows.lo * rank * sizeof(uint16_t),
                         (size_t)(rows.hi - rows.lo) * rank, acts);
        return;
    }
    float *z = kk_thread_scratch(s->dev, thread); /* a few rows at a time stay near */
    for (int32_t j = rows.lo, some; j < rows.hi; j += some) {
        some = rows.hi - j < 8 ? rows.hi - j : 8;
        k->widen(z, s->e->latent.format, s->rank, from, j, some);
        k->quantize(z, (size_t)some * rank, acts);
        acts += (size_t)some * (rank / KK_BLOCK);
    }
}

/* What a page of the batch needs once for all its heads: latents, angles, kept scales. */
static void ready_pages(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const pass *s = arg;
    const kk_evicted *e = s->e;
    for (int32_t i = (int32_t)begin; i < (int32_t)end; i++) {
        const int64_t page = s->first + i;
        const page_rows gone = gone_of_page(s, 0, page), rebuilt = rows_rebuilt(s, i);
        const uint8_t *scales = s->rows->g->latents[page] + e->scales.v_off;
        if (!s->in_place)
            widen_latents(s, i, is_ready(s, i) ? gone : rebuilt);
        else if (!is_ready(s, i))
            round_latents(s, i, rebuilt, thread);
        if (!is_ready(s, i)) fill_angles(s, i, rebuilt);
        for (int32_t j = gone.lo; j < gone.hi; j++) {
            const uint8_t *row = scales + 2 * (size_t)(j * e->scales.head_dim + e->scale_at);
            for (int32_t h = 0; h < s->n_kv; h++) {
                const float inv = kk_bf16_f32(kk_le16(row + 2 * h));
                value_factors(s, i, h)[j] = inv;
                if (s->a->slot.k_eq_v) key_factors(s, i, h)[j] = inv;
            }
        }
    }
}

static const kk_weight *key_decoder(const pass *s) { return s->a->slot.k_eq_v ? s->e->v : s->e->k; }

/* Unpacks what rebuilds the keys of a head, once for all pages of the batch. */
static void unpack_head(const pass *s, int32_t head, void *panel) {
    const kk_weight *w = key_decoder(s);
    kk_strip strip = {
        .dtype = w->m.dtype, .n_in = s->rank, .w_stride = w->row_bytes, .panel = panel};
    for (int32_t o = 0; o < 2 * s->half; o += KK_STRIP) {
        const int32_t row = o < s->half ? o : o - s->half + s->d / 2;
        strip.w = kk_weight_row(w, 0, (int64_t)head * s->d + row);
        s->dev->k->unpack(&strip, o / KK_STRIP);
    }
}

/* Rebuilds the keys of one head of page i, those of rows_rebuilt(), into x; with `score`, they are
 * scored at once, by all pairs of the head. */
static void rebuild_page(const pass *s, int32_t i, int32_t head, float *x, void *panel,
                         float *score) {
    const bool k_eq_v = s->a->slot.k_eq_v;
    const kk_weight *w = key_decoder(s);
    const page_rows rows = rows_rebuilt(s, i);
    const size_t wide = 2 * (size_t)s->half, lo = (size_t)rows.lo, rank = (size_t)s->rank;
    kk_strip strip = {.dtype = w->m.dtype,
                      .n_in = s->rank,
                      .n_rows = rows.hi - rows.lo,
                      .w_stride = w->row_bytes,
                      .x = {.f = s->in_place ? NULL : page_z(s, i) + lo * rank,
                            .b = page_acts(s, i) + lo * (rank / KK_BLOCK)},
                      .out_stride = wide,
                      .panel = panel};
    if (s->unpacked) {
        strip.n_out = (int32_t)wide;
        strip.out = x;
        s->dev->k->unpacked(&strip);
    }
    for (int32_t part = 0; part < 2 && !s->unpacked; part++) {
        for (int32_t o = 0; o < s->half; o += KK_STRIP) {
            strip.n_out = s->half - o < KK_STRIP ? s->half - o : KK_STRIP;
            strip.w = kk_weight_row(w, 0, (int64_t)head * s->d + part * (s->d / 2) + o);
            strip.out = x + part * s->half + o;
            s->dev->k->strip(&strip);
        }
    }
    const kk_keys keys = {.x = x,
                          .inv = k_eq_v ? NULL : key_factors(s, i, head) + lo,
                          .w = pair_at(s, s->pair.norm, 0, 0),
                          .cs = page_angles(s, i) + lo * 2 * (size_t)s->a->n_rot,
                          .n = rows.hi - rows.lo,
                          .dim = 2 * s->half,
                          .n_rot = s->a->n_rot,
                          .eps = s->e->eps,
                          .q = pair_at(s, s->pair.q, head * s->per_kv, (int32_t)wide),
                          .score = score ? score + lo : NULL,
                          .n_q = score ? s->per_kv : 0};
    s->dev->k->keys(&keys);
}

/* A task is numbered (page, head). */
static void rebuild_keys(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const pass *s = arg;
    for (int64_t t = begin; t < end; t++) {
        const int32_t head = (int32_t)(t % s->n_kv), i = (int32_t)(t / s->n_kv);
        const size_t lo = (size_t)rows_rebuilt(s, i).lo;
        if (is_ready(s, i)) continue;
        rebuild_page(s, i, head, page_keys(s, i, head) + lo * 2 * (size_t)s->half,
                     kk_thread_scratch(s->dev, thread), NULL);
    }
}

/* ---- attention -------------------------------------------------------------------------- */

/* Pairs [from, to) against a page of the batch. */
typedef struct {
    const pass *s;
    int32_t from, to, page;
    const float *keys; /* keys of the head, from row 0 on; NULL: the batch has them */
    bool scored;       /* score has the products with keys already */
    float *score, *more, *c;
    int32_t lo[TASK_PAIRS]; /* what each pair sees begins here */
    int32_t hi;
} tile;

/* Row j of a page's latents, in bf16. */
static const uint8_t *stored_latents(const pass *s, int32_t i, int32_t j) {
    return s->rows->g->latents[s->first + i] + s->e->latent.v_off +
           (size_t)j * (size_t)s->rank * sizeof(uint16_t);
}

static void score_pairs(const tile *m, page_rows rows) {
    const pass *s = m->s;
    const size_t wide = 2 * (size_t)s->half, lo = (size_t)rows.lo;
    const int32_t n = rows.hi - rows.lo;
    for (int32_t p = m->from, next; p < m->to && !m->scored; p = next) {
        const int32_t kv = p / s->per_kv, end = (kv + 1) * s->per_kv;
        next = end < m->to ? end : m->to;
        const float *keys = m->keys ? m->keys : page_keys(s, m->page, kv);
        s->dev->k->dots(m->score + (size_t)(p - m->from) * KK_PAGE_ROWS + lo,
                        pair_at(s, s->pair.q, p, (int32_t)wide), keys + lo * wide, (int32_t)wide,
                        next - p, n);
    }
    const float *qz = pair_at(s, s->pair.qz, m->from, s->rank);
    if (m->more && s->in_place)
        s->dev->k->dots_bf16(m->more + lo, qz, stored_latents(s, m->page, rows.lo), s->rank,
                             m->to - m->from, n);
    else if (m->more)
        s->dev->k->dots(m->more + lo, qz, page_z(s, m->page) + lo * (size_t)s->rank, s->rank,
                        m->to - m->from, n);
}

static void weigh_pairs(tile *m) {
    const pass *s = m->s;
    for (int32_t p = m->from; p < m->to; p++) {
        const size_t at = (size_t)(p - m->from);
        const page_rows gone = gone_of_page(s, row_of_pair(s, p), s->first + m->page);
        const kk_weighing w = {.score = m->score + at * KK_PAGE_ROWS,
                               .more = m->more ? m->more + at * KK_PAGE_ROWS : NULL,
                               .key = key_factors(s, m->page, p / s->per_kv),
                               .value = value_factors(s, m->page, p / s->per_kv),
                               .scale = s->a->scale,
                               .lo = gone.lo,
                               .hi = gone.hi,
                               .m = pair_at(s, s->pair.m, p, 1),
                               .c = m->c + at,
                               .lane = pair_at(s, s->pair.lane, p, KK_LANES)};
        m->lo[at] = gone.lo;
        if (gone.lo < gone.hi) s->dev->k->weigh(&w);
    }
}

/* Pairs that see the same rows are taken together. */
static void sum_pairs(const tile *m) {
    const pass *s = m->s;
    const int32_t pairs = m->to - m->from;
    for (int32_t p = 0, next; p < pairs; p = next) {
        for (next = p + 1; next < pairs && m->lo[next] == m->lo[p];) next++;
        const kk_sums sum = {
            .acc = pair_at(s, s->pair.accz, m->from + p, s->rank),
            .acc_stride = (size_t)s->rank,
            .c = m->c + p,
            .w = m->score + p * KK_PAGE_ROWS + m->lo[p],
            .x = s->in_place ? NULL : page_z(s, m->page) + (size_t)m->lo[p] * (size_t)s->rank,
            .bf16 = s->in_place ? stored_latents(s, m->page, m->lo[p]) : NULL,
            .x_stride = (size_t)s->rank,
            .n = s->rank,
            .n_acc = next - p,
            .n_x = m->hi - m->lo[p]};
        if (m->lo[p] < m->hi) s->dev->k->sums(&sum);
    }
}

/* Attention of pairs [from, to) over the evicted rows of the page. */
static void attend_page(tile *m, int32_t from, int32_t to) {
    const page_rows rows = gone_of_page(m->s, 0, m->s->first + m->page);
    m->from = from;
    m->to = to;
    m->hi = rows.hi;
    score_pairs(m, rows);
    weigh_pairs(m);
    sum_pairs(m);
}

static tile open_tile(const pass *s, float *scratch) {
    tile m = {.s = s, .score = scratch};
    m.more = s->half < s->d / 2 ? m.score + TASK_PAIRS * KK_PAGE_ROWS : NULL;
    m.c = m.score + 2 * TASK_PAIRS * KK_PAGE_ROWS;
    return m;
}

static void attend_pairs(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const pass *s = arg;
    tile m = open_tile(s, kk_thread_scratch(s->dev, thread));
    for (int64_t t = begin; t < end; t++) {
        const int32_t from = (int32_t)t * s->task_pairs, to = from + s->task_pairs;
        for (m.page = 0; m.page < s->n_pages; m.page++)
            attend_page(&m, from, to < s->pairs ? to : s->pairs);
    }
}

/* ---- the end ---------------------------------------------------------------------------- */

/* 1 / sum of the lanes, and what a new largest score made of the sums of stored rows. */
static void close_pairs(const pass *s, int32_t from, int32_t to) {
    for (int32_t p = from; p < to; p++) {
        float *before = pair_at(s, s->pair.before, p, 1);
        *before = kk_exp(*before - *pair_at(s, s->pair.m, p, 1));
        *pair_at(s, s->pair.inv, p, 1) = 1.0f / kk_lanes_sum(pair_at(s, s->pair.lane, p, KK_LANES));
    }
}

/* out = (out * before + D_v accz) / sum of the lanes, for a strip of a K/V head's values.  Sums of
 * latents are not rounded to int8 as other activations are: that would be one error for all rows,
 * where those of single rows even out. */
static void finish_strip(const pass *s, int32_t kv, int32_t o, float *d) {
    const kk_weight *w = s->e->v;
    const int32_t first = kv * s->per_kv;
    const kk_strip strip = {.dtype = KK_F32,
                            .n_out = s->d - o < KK_STRIP ? s->d - o : KK_STRIP,
                            .n_in = s->rank,
                            .n_rows = s->per_kv,
                            .w = (const uint8_t *)d,
                            .w_stride = (size_t)s->rank * sizeof *d,
                            .x = {.f = pair_at(s, s->pair.accz, first, s->rank)},
                            .out = pair_at(s, s->pair.y, first, s->d) + o,
                            .out_stride = (size_t)s->d};
    for (int32_t i = 0; i < strip.n_out; i++)
        s->dev->k->floats(w->m.dtype, kk_weight_row(w, 0, (int64_t)kv * s->d + o + i),
                          d + (size_t)i * (size_t)s->rank, (size_t)s->rank);
    s->dev->k->strip(&strip);
    for (int32_t p = first; p < first + s->per_kv; p++) {
        float *out = kk_buf_f(s->a->out) + place_of_pair(s, p) + o;
        const float inv = *pair_at(s, s->pair.inv, p, 1);
        const float before = *pair_at(s, s->pair.before, p, 1);
        const float *y = pair_at(s, s->pair.y, p, s->d) + o;
        const bool none = none_gone(s, row_of_pair(s, p));
        for (int32_t i = 0; i < strip.n_out; i++)
            out[i] = (none ? out[i] : out[i] * before + y[i]) * inv;
    }
}

/* A task is numbered (K/V head, strip). */
static void finish_strips(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const pass *s = arg;
    const int32_t strips = (s->d + KK_STRIP - 1) / KK_STRIP;
    for (int64_t t = begin; t < end; t++)
        finish_strip(s, (int32_t)(t / strips), (int32_t)(t % strips) * KK_STRIP,
                     kk_thread_scratch(s->dev, thread));
}

/* ---- a head at a time -------------------------------------------------------------------- */

/* A task is a K/V head: all of its pairs over the pages of the batch, with the beginning before the
 * first page and the end after the last. */
static void attend_heads(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const pass *s = arg;
    uint8_t *scratch = kk_thread_scratch(s->dev, thread);
    float *one = (float *)(void *)(scratch + head_panel(s->rank, s->d));
    tile m = open_tile(s, (float *)(void *)(scratch + head_scores(s->rank, s->d)));
    for (int32_t kv = (int32_t)begin; kv < (int32_t)end; kv++) {
        const int32_t first = kv * s->per_kv, last = first + s->per_kv;
        for (int32_t at = 0; s->begins && at < s->rank; at += SLICE) start_slice(s, kv, at, thread);
        if (s->unpacked && s->rebuilt) unpack_head(s, kv, scratch);
        for (m.page = 0; m.page < s->n_pages; m.page++) {
            const size_t lo = (size_t)rows_rebuilt(s, m.page).lo;
            float *keys = is_kept(s, m.page) ? page_keys(s, m.page, kv) : one;
            m.keys = keys;
            m.scored = s->per_kv == 1 && !is_kept(s, m.page);
            if (!is_ready(s, m.page))
                rebuild_page(s, m.page, kv, keys + lo * 2 * (size_t)s->half, scratch,
                             m.scored ? m.score : NULL);
            for (int32_t p = first; p < last; p += TASK_PAIRS)
                attend_page(&m, p, p + TASK_PAIRS < last ? p + TASK_PAIRS : last);
        }
        if (!s->ends) continue;
        close_pairs(s, first, last);
        for (int32_t o = 0; o < s->d; o += KK_STRIP)
            finish_strip(s, kv, o, (float *)(void *)scratch);
    }
}

/* ---- all of it -------------------------------------------------------------------------- */

/* K is rebuilt in strips of 16 outputs: rotated pairs are rounded up to whole strips. */
static int32_t rebuilt_half(const kk_attend_args *a) {
    const int32_t half = a->slot.head_dim / 2;
    const int32_t strips = (a->n_rot + KK_STRIP - 1) / KK_STRIP * KK_STRIP;
    return a->slot.k_eq_v && strips < half ? strips : half;
}

/* Whether latents are read where they lie: the pairs of a K/V head are few, and floats are nowhere
 * else wanted. */
static bool reads_latents(const pass *s) {
    const kk_evicted *e = s->e;
    return s->per_kv <= s->dev->k->in_place && e->latent.format == KK_KV_BF16 &&
           s->rank % 64 == 0 && kk_dtype_is_quant(e->v->m.dtype) &&
           (s->a->slot.k_eq_v || kk_dtype_is_quant(e->k->m.dtype));
}

static pass open_pass(const kk_latent_rows *rows) {
    const kk_attend_args *a = rows->a;
    pass s = {.rows = rows,
              .dev = rows->dev,
              .a = a,
              .e = a->evicted,
              .d = a->slot.head_dim,
              .rank = a->evicted->latent.head_dim,
              .n_kv = a->slot.n_kv_head,
              .group = a->n_head / a->slot.n_kv_head,
              .half = rebuilt_half(a)};
    s.per_kv = rows->n_rows * s.group;
    s.pairs = s.per_kv * s.n_kv;
    s.slices = (s.rank + SLICE - 1) / SLICE;
    s.pair = pair_layout_for((size_t)s.pairs, s.rank, s.d);
    s.rule = kk_attend_rule(a);
    const int32_t threads = kk_threads_count(s.dev->threads);
    const int32_t even = (s.pairs + threads - 1) / threads;
    s.by_head = s.n_kv % threads == 0 || s.n_kv >= 4 * threads;
    s.in_place = s.by_head && reads_latents(&s);
    s.unpacked = s.by_head && s.dev->k->unpack && kk_unpacks(key_decoder(&s)->m.dtype) &&
                 s.half % KK_STRIP == 0;
    s.page = page_layout_for(s.n_kv, s.rank, !s.in_place, s.by_head ? 0 : s.half, a->n_rot);
    s.task_pairs = even < TASK_PAIRS ? even : TASK_PAIRS;
    if (s.e->forward && rows->g->latent_ids && a->rows->n_rows <= KEEP_ROWS)
        s.kept_bytes =
            whole_lines((size_t)s.n_kv * (key_floats(&s) + KK_PAGE_ROWS) * sizeof(float));
    kk_cpu_frequencies(&a->evicted->rope, s.freq);
    copy_rebuilt(&s, pair_at(&s, s.pair.norm, 0, 0), kk_buf_f(a->k_norm));
    return s;
}

/* Looks up which pages of the batch have their keys.  A page may be kept once all its rows are
 * committed. */
static void find_kept(pass *s) {
    kk_key_cache *c = &s->dev->keys;
    s->rebuilt = s->n_pages;
    for (int32_t i = 0; i < s->n_pages; i++) {
        const int64_t page = s->first + i;
        s->kept[i].entry = NULL;
        if (!s->kept_bytes || (page + 1) * KK_PAGE_ROWS > s->rows->g->pos) continue;
        const kk_key_name name = {.latents = s->rows->g->latents[page],
                                  .id = s->rows->g->latent_ids[page],
                                  .decoder = key_decoder(s),
                                  .layer = s->e->layer};
        kk_key_entry *e = kk_key_cache_place(c, &name, s->kept_bytes, s->e->forward);
        s->kept[i].entry = e;
        if (!e) continue;
        s->kept[i].keys = kk_key_cache_data(c, e, s->kept_bytes);
        s->rebuilt -= e->ready;
        *(e->ready ? &c->found : &c->made) += 1;
    }
}

static void attend_batch(pass *s) {
    kk_threads *threads = s->dev->threads;
    find_kept(s);
    kk_threads_loop(threads, s->n_pages, 1, ready_pages, s);
    if (s->by_head) {
        kk_threads_loop(threads, s->n_kv, 1, attend_heads, s);
    } else {
        kk_threads_loop(threads, (int64_t)s->n_pages * s->n_kv, 1, rebuild_keys, s);
        kk_threads_loop(threads, (s->pairs + s->task_pairs - 1) / s->task_pairs, 1, attend_pairs,
                        s);
    }
    for (int32_t i = 0; i < s->n_pages; i++)
        if (is_kept(s, i)) s->kept[i].entry->ready = true;
}

void kk_cpu_attend_latents(const kk_latent_rows *rows) {
    pass s = open_pass(rows);
    kk_threads *threads = s.dev->threads;
    const int64_t first = first_gone(&s, 0) / KK_PAGE_ROWS;
    const int64_t end = (rows->stored + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS;
    const size_t fit = s.dev->batch.bytes / s.page.bytes;
    const int64_t most = fit < MOST_PAGES ? (int64_t)fit : MOST_PAGES;
    s.visible = end - first;
    share_angles(&s);
    s.dev->latents[s.in_place]++;
    if (!s.by_head) kk_threads_loop(threads, (int64_t)s.n_kv * s.slices, 1, start_pairs, &s);
    for (s.first = first; s.first < end; s.first += s.n_pages) {
        s.n_pages = (int32_t)(end - s.first < most ? end - s.first : most);
        s.begins = s.first == first;
        s.ends = s.first + s.n_pages >= end;
        attend_batch(&s);
    }
    if (s.by_head) return;
    close_pairs(&s, 0, s.pairs);
    kk_threads_loop(threads, (int64_t)s.n_kv * ((s.d + KK_STRIP - 1) / KK_STRIP), 1, finish_strips,
                    &s);
}

/* ---- scales ----------------------------------------------------------------------------- */

typedef struct {
    kk_dev *dev;
    const kk_scales_args *a;
    int32_t first, n; /* rows of this task */
    float *z;         /* [n][rank] */
    kk_act_block *acts;
} scales_job;

typedef struct {
    uint8_t *page;
    int32_t row;
} row_place;

static row_place place_of_row(const kk_rows *rows, int32_t r) {
    const kk_group *g = rows->group;
    while (r >= g->row + g->n_rows) g++;
    const int64_t pos = g->pos + r - g->row;
    return (row_place){g->latents[pos / KK_PAGE_ROWS], (int32_t)(pos % KK_PAGE_ROWS)};
}

static void load_latents(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const scales_job *j = arg;
    const kk_kv_slot *slot = &j->a->latent;
    const size_t rank = (size_t)slot->head_dim;
    for (int32_t r = (int32_t)begin; r < (int32_t)end; r++) {
        const row_place at = place_of_row(j->a->rows, j->first + r);
        float *z = j->z + (size_t)r * rank;
        j->dev->k->widen(z, slot->format, slot->head_dim, at.page + slot->v_off, at.row, 1);
        if (kk_dtype_is_quant(j->a->v->m.dtype))
            j->dev->k->quantize(z, rank, j->acts + (size_t)r * (rank / KK_BLOCK));
    }
}

/* A task is a K/V head. */
static void keep_scales(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const scales_job *j = arg;
    const kk_scales_args *a = j->a;
    const int32_t d = (int32_t)(a->v->m.n_out / a->n_kv_head), rank = a->latent.head_dim;
    uint8_t *panel = kk_thread_scratch(j->dev, thread);
    float *raw = (float *)(void *)(panel + panel_bytes(rank));
    kk_strip strip = {.dtype = a->v->m.dtype,
                      .n_in = rank,
                      .n_rows = j->n,
                      .w_stride = a->v->row_bytes,
                      .x = {j->z, j->acts},
                      .out_stride = (size_t)d,
                      .panel = panel};
    for (int64_t h = begin; h < end; h++) {
        for (int32_t o = 0; o < d; o += KK_STRIP) {
            strip.n_out = d - o < KK_STRIP ? d - o : KK_STRIP;
            strip.w = kk_weight_row(a->v, 0, h * d + o);
            strip.out = raw + o;
            j->dev->k->strip(&strip);
        }
        for (int32_t r = 0; r < j->n; r++) {
            const row_place at = place_of_row(a->rows, j->first + r);
            const uint16_t inv =
                kk_f32_bf16(j->dev->k->inv_rms(raw + (size_t)r * (size_t)d, d, a->eps));
            memcpy(at.page + a->scales.v_off +
                       2 * (size_t)(at.row * a->scales.head_dim + a->at + (int32_t)h),
                   &inv, sizeof inv);
        }
    }
}

kk_status kk_cpu_keep_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err) {
    (void)err;
    const page_layout layout = page_layout_for(a->n_kv_head, a->latent.head_dim, true, 0, 0);
    uint8_t *base = dev->batch.data;
    scales_job j = {.dev = dev,
                    .a = a,
                    .z = (float *)(void *)(base + layout.z),
                    .acts = (kk_act_block *)(void *)(base + layout.acts)};
    for (; j.first < a->rows->n_rows; j.first += j.n) {
        const int32_t left = a->rows->n_rows - j.first;
        j.n = left < KK_PAGE_ROWS ? left : KK_PAGE_ROWS;
        kk_threads_loop(dev->threads, j.n, 4, load_latents, &j);
        kk_threads_loop(dev->threads, a->n_kv_head, 1, keep_scales, &j);
    }
    return KK_OK;
}
