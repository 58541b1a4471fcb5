/* attend_body.h - attention over pages, for kernels_body.h.
 *
 * A page is read twice, first its keys, then its values.  Few queries read its rows where they lie
 * (stored_body.h).  For more of them a few rows at a time are converted to floats in a scratch that
 * the first-level cache holds, and every query head of every row of the tile reads them there.
 * Between keys and values, the scores of each (row, head) become weights.
 * The order of float operations for a (row, head) is that of reference.c. */

/* Queries that read the same rows of a page: heads of a row, or one head of several rows.
 * The members are the floats from one query to the next. */
typedef struct {
    size_t q, s, c; /* of queries and sums; of scores and weights; of the sums' factors */
} steps;

enum { MOST_QUERIES = 4 };
_Static_assert(KK_HEAD_TILE <= MOST_QUERIES, "a tile's queries have their chains");

#include "backend/cpu/stored_body.h"

/* The state of a tile; a pair is a (row, head). */
typedef struct {
    const kk_attend_tile *t;
    float *rows;    /* [KK_ATTEND_CHUNK] */
    float *s;       /* [pairs][KK_PAGE_ROWS] scores, then weights */
    float *c;       /* [pairs] factor of earlier sums after a new largest score */
    float *lane;    /* [pairs][KK_LANES] sums of weights */
    float *m;       /* [pairs] largest score so far */
    int32_t n_rows; /* a chunk has so many rows */
    bool in_place;  /* rows are read in place, without conversion to floats, */
    stored at_hand; /* keys or values of the current page */
    kk_page_visible see[KK_ATTEND_ROWS]; /* the keys of the current page that each row sees */
} attend_work;

/* ---- keys that are rebuilt from values -------------------------------------------------- */

/* K = RoPE(k_norm * V) in place; pos is the first row's place in the table of angles. */
static void rebuild_keys(const attend_work *w, int64_t pos, int32_t n) {
    const kk_attend_tile *t = w->t;
    const int32_t d = t->head_dim;
    const float *weight = t->k_norm;
    for (int32_t j = 0; j < n; j++) {
        float *k = w->rows + (size_t)j * (size_t)d;
        EACH_LANES(d, { SET(k, vf_mul(V(k), V(weight))); });
        rotate(k, t->rope_pos + (size_t)(pos + j) * (size_t)t->n_rot * 2, d, t->n_rot);
    }
}

/* ---- scores, weights, sums -------------------------------------------------------------- */

/* Those that are fewer than a tile; the count is a constant in each case. */
#if KK_HEAD_TILE == 4
#define QUERY_CASES(n, call)                                                                       \
    switch (n) {                                                                                   \
    case 1: call(1); break;                                                                        \
    case 2: call(2); break;                                                                        \
    case 3: call(3); break;                                                                        \
    default: break;                                                                                \
    }
#else
#define QUERY_CASES(n, call) (void)(n);
#endif

/* s[h][j] = scale * q[h] . k[j] for nq queries and a few keys, KK_CHAINS sums at most, which are
 * finished together. */
INLINE void score_tile(float *s, const float *q, steps to, const float *k, int32_t d, int32_t nq,
                       int32_t keys, float scale) {
    vf acc[KK_CHAINS];
    float sums[KK_CHAINS];
    const size_t n = (size_t)d;
#pragma GCC unroll 16
    for (int32_t i = 0; i < KK_CHAINS; i++) acc[i] = vf_set1(0);
    EACH_LANES(d, {
        vf qv[MOST_QUERIES];
        UNROLL
        for (int32_t h = 0; h < nq; h++) qv[h] = vf_held(V(q + (size_t)h * to.q));
        UNROLL
        for (int32_t j = 0; j < keys; j++) {
            const vf kv = nq > 1 ? vf_held(V(k + (size_t)j * n)) : V(k + (size_t)j * n);
            UNROLL
            for (int32_t h = 0; h < nq; h++)
                acc[h * keys + j] = vf_fma(qv[h], kv, acc[h * keys + j]);
        }
    });
    finish_sums(keys == KK_CHAINS ? s : sums, acc, scale);
#pragma GCC unroll 4
    for (int32_t h = 0; keys < KK_CHAINS && h < nq; h++)
        memcpy(s + (size_t)h * to.s, sums + h * keys, (size_t)keys * sizeof *sums);
}

INLINE void score_queries(float *s, const float *q, steps to, const float *k, int32_t d, int32_t nq,
                          int32_t n, float scale) {
    const int32_t keys = nq == 3 ? KK_CHAINS / 4 : KK_CHAINS / nq;
    int32_t j = 0;
    for (; j + keys <= n; j += keys)
        score_tile(s + j, q, to, k + (size_t)j * (size_t)d, d, nq, keys, scale);
    if (j < n && n >= keys && nq > 1) { /* the last ones with some before them, once more */
        j = n - keys;
        score_tile(s + j, q, to, k + (size_t)j * (size_t)d, d, nq, keys, scale);
        return;
    }
    for (; j < n; j++) score_tile(s + j, q, to, k + (size_t)j * (size_t)d, d, nq, 1, scale);
}

/* As many queries as there are, a few at a time. */
INLINE void score_all(float *s, const float *q, steps to, const float *k, int32_t d, int32_t nq,
                      int32_t n, float scale) {
    int32_t h = 0;
    for (; h + KK_HEAD_TILE <= nq; h += KK_HEAD_TILE)
        score_queries(s + (size_t)h * to.s, q + (size_t)h * to.q, to, k, d, KK_HEAD_TILE, n, scale);
#define LAST(n_last)                                                                               \
    score_queries(s + (size_t)h * to.s, q + (size_t)h * to.q, to, k, d, n_last, n, scale)
    QUERY_CASES(nq - h, LAST)
#undef LAST
}

/* acc[h] = acc[h] * c[h], then += p[h][j] * v[j] in order of j, for j < n. */
INLINE void add_queries(float *acc, const float *c, const float *p, steps to, const float *v,
                        int32_t d, int32_t nq, int32_t n) {
    const size_t wide = (size_t)d;
    int32_t i = 0;
    for (; i + 4 * KK_LANES <= d; i += 4 * KK_LANES) {
        vf a[MOST_QUERIES][4], vj[4];
#pragma GCC unroll 4
        for (int32_t h = 0; h < nq; h++)
#pragma GCC unroll 4
            for (int32_t k = 0; k < 4; k++)
                a[h][k] = vf_mul(vf_load(acc + (size_t)h * to.q + i + 16 * k),
                                 vf_set1(c[(size_t)h * to.c]));
        for (int32_t j = 0; j < n; j++) {
            const float *at = v + (size_t)j * wide + i;
#pragma GCC unroll 4
            for (int32_t k = 0; k < 4; k++)
                vj[k] = nq > 1 ? vf_held(vf_load(at + 16 * k)) : vf_load(at + 16 * k);
#pragma GCC unroll 4
            for (int32_t h = 0; h < nq; h++) {
                const vf pj = vf_set1(p[(size_t)h * to.s + (size_t)j]);
#pragma GCC unroll 4
                for (int32_t k = 0; k < 4; k++) a[h][k] = vf_fma(pj, vj[k], a[h][k]);
            }
        }
#pragma GCC unroll 4
        for (int32_t h = 0; h < nq; h++)
#pragma GCC unroll 4
            for (int32_t k = 0; k < 4; k++) vf_store(acc + (size_t)h * to.q + i + 16 * k, a[h][k]);
    }
    for (; i < d; i++) {
        for (int32_t h = 0; h < nq; h++) {
            float a = acc[(size_t)h * to.q + (size_t)i] * c[(size_t)h * to.c];
            for (int32_t j = 0; j < n; j++)
                a = fmaf(p[(size_t)h * to.s + (size_t)j], v[(size_t)j * wide + (size_t)i], a);
            acc[(size_t)h * to.q + (size_t)i] = a;
        }
    }
}

INLINE void add_all(float *acc, const float *c, const float *p, steps to, const float *v, int32_t d,
                    int32_t nq, int32_t n) {
    int32_t h = 0;
#define AT(x, step) ((x) + (size_t)h * to.step)
    for (; h + KK_HEAD_TILE <= nq; h += KK_HEAD_TILE)
        add_queries(AT(acc, q), AT(c, c), AT(p, s), to, v, d, KK_HEAD_TILE, n);
#define LAST(n_last) add_queries(AT(acc, q), AT(c, c), AT(p, s), to, v, d, n_last, n)
    QUERY_CASES(nq - h, LAST)
#undef LAST
#undef AT
}

/* p = 0 for the keys of a page that a row does not see, whose exponentials are only small. */
INLINE void blank(float *p, kk_page_visible see) {
    for (int32_t j = 0; j < see.lo; j++) p[j] = 0;
    for (int32_t j = see.hole; j < see.hole_end; j++) p[j] = 0;
    for (int32_t j = see.hi; j < KK_PAGE_ROWS; j++) p[j] = 0;
}

/* The largest score of a pair with this page's. */
INLINE float largest_score(const float *s, float before) {
    const vf top =
        vf_max(vf_max(vf_load(s), vf_load(s + 16)), vf_max(vf_load(s + 32), vf_load(s + 48)));
    const float page_top = vf_hmax(top);
    return page_top > before ? page_top : before;
}

/* The scores of a pair become weights, and its sums of them are brought up to date. */
INLINE void weigh_pair(float *s, float top, float shrink, float *lane, kk_page_visible see) {
    for (int32_t j = 0; j < KK_PAGE_ROWS; j += KK_LANES)
        vf_store(s + j, exp_lanes(vf_sub(vf_load(s + j), vf_set1(top))));
    blank(s, see);
    vf l = vf_mul(vf_load(lane), vf_set1(shrink));
    for (int32_t j = 0; j < KK_PAGE_ROWS; j += KK_LANES) l = vf_add(l, vf_load(s + j));
    vf_store(lane, l);
}

static void weigh_row(float *s, float *m, float *c, float *lane, kk_page_visible see) {
    const float top = largest_score(s, *m);
    float shrink[KK_LANES];
    vf_store(shrink, exp_lanes(vf_set1(*m - top)));
    weigh_pair(s, top, shrink[0], lane, see);
    *m = top;
    *c = shrink[0];
}

/* ---- pages ------------------------------------------------------------------------------ */

INLINE row_range common(row_range a, row_range b) {
    return (row_range){a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
}

/* Keys `at` of the page, of which `chunk` lie in the scratch, against n rows of the tile from r on,
 * which see them all: row by row with all heads, or head by head with all rows. */
static void score_part(const attend_work *w, int32_t r, int32_t n, row_range at, row_range chunk) {
    const kk_attend_tile *t = w->t;
    const int32_t d = t->head_dim, heads = t->n_group, n_keys = at.hi - at.lo;
    if (n_keys <= 0) return;
    const float *q = t->q + (size_t)r * t->q_stride;
    const float *k = w->rows + (size_t)(at.lo - chunk.lo) * (size_t)d;
    float *s = w->s + (size_t)(r * heads) * KK_PAGE_ROWS + at.lo;
    const steps by_head = {(size_t)d, KK_PAGE_ROWS, 1};
    const steps by_row = {t->q_stride, (size_t)heads * KK_PAGE_ROWS, (size_t)heads};
    const steps to = n == 1 ? by_head : by_row;
    const int32_t nq = n == 1 ? heads : n;
    for (int32_t h = 0; h < (n == 1 ? 1 : heads); h++, s += KK_PAGE_ROWS, q += d) {
        if (w->in_place)
            (w->at_hand.norm ? score_rebuilt : score_as_stored)(t->format, s, q, to, &w->at_hand,
                                                                at, nq, t->scale);
        else
            score_all(s, q, to, k, d, nq, n_keys, t->scale);
    }
}

/* As score_part; sums from before the page shrink once, before its first values come in. */
static void add_part(const attend_work *w, int32_t r, int32_t n, row_range at, row_range chunk) {
    const kk_attend_tile *t = w->t;
    const int32_t d = t->head_dim, heads = t->n_group, n_keys = at.hi - at.lo;
    if (n_keys <= 0) return;
    float *acc = t->out + (size_t)r * t->q_stride, *c = w->c + r * heads;
    const float *v = w->rows + (size_t)(at.lo - chunk.lo) * (size_t)d;
    const float *p = w->s + (size_t)(r * heads) * KK_PAGE_ROWS + at.lo;
    const steps by_head = {(size_t)d, KK_PAGE_ROWS, 1};
    const steps by_row = {t->q_stride, (size_t)heads * KK_PAGE_ROWS, (size_t)heads};
    const steps to = n == 1 ? by_head : by_row;
    const int32_t nq = n == 1 ? heads : n;
    for (int32_t h = 0; h < (n == 1 ? 1 : heads); h++, p += KK_PAGE_ROWS, acc += d) {
        if (w->in_place)
            add_in_place(t->format, acc, c + h, p, to, &w->at_hand, at, nq);
        else
            add_all(acc, c + h, p, to, v, d, nq, n_keys);
    }
    for (int32_t i = 0; i < n * heads; i++) c[i] = 1;
}

typedef void part_fn(const attend_work *w, int32_t r, int32_t n, row_range at, row_range chunk);

/* The keys of the chunk that a row sees, before the gap in its window or after it. */
INLINE row_range seen_part(const attend_work *w, int32_t r, bool after, row_range chunk) {
    const kk_page_visible *see = &w->see[r];
    return common(after ? (row_range){see->hole_end, see->hi} : (row_range){see->lo, see->hole},
                  chunk);
}

/* Calls fn for the keys that rows [r, r + n) see. They see nearly the same ones: those in common
 * are taken by all rows at once, those before and after by each row alone, so that every row
 * takes its keys in order. */
INLINE void apply_by_rows(const attend_work *w, int32_t r, int32_t n, bool after, row_range chunk,
                          part_fn *fn) {
    row_range at[MOST_QUERIES], all = chunk;
    for (int32_t i = 0; i < n; i++) {
        at[i] = seen_part(w, r + i, after, chunk);
        all = common(all, at[i]);
    }
    if (all.lo >= all.hi) all.lo = all.hi = chunk.hi;
    for (int32_t i = 0; i < n; i++)
        fn(w, r + i, 1, (row_range){at[i].lo, at[i].hi < all.lo ? at[i].hi : all.lo}, chunk);
    fn(w, r, n, all, chunk);
    for (int32_t i = 0; i < n; i++) fn(w, r + i, 1, (row_range){all.hi, at[i].hi}, chunk);
}

/* The keys of the chunk that some of rows [r, r + n) see, if none has a gap in its window; else
 * none. */
INLINE row_range seen_between(const attend_work *w, int32_t r, int32_t n, row_range chunk) {
    row_range all = {chunk.hi, chunk.lo};
    for (int32_t i = r; i < r + n; i++) {
        const kk_page_visible *see = &w->see[i];
        if (see->hole < see->hi) return (row_range){0, 0};
        if (see->lo < all.lo) all.lo = see->lo;
        if (see->hi > all.hi) all.hi = see->hi;
    }
    return common(all, chunk);
}

INLINE void hide(float *s, row_range at) {
    for (int32_t j = at.lo; j < at.hi; j++) s[j] = -INFINITY;
}

/* Scores of all rows with all keys that one of them sees; those that a row does not see are
 * masked after. A few keys more are computed, which is cheaper than taking them row by row. */
static __attribute__((noinline)) void score_rows(const attend_work *w, int32_t r, int32_t n,
                                                 row_range chunk) {
    const row_range all = seen_between(w, r, n, chunk);
    if (all.lo >= all.hi) {
        for (int after = 0; after < 2; after++) apply_by_rows(w, r, n, after, chunk, score_part);
        return;
    }
    score_part(w, r, n, all, chunk);
    const int32_t heads = w->t->n_group;
    for (int32_t p = r * heads; p < (r + n) * heads; p++) {
        float *s = w->s + (size_t)p * KK_PAGE_ROWS;
        const row_range see = common((row_range){w->see[p / heads].lo, w->see[p / heads].hi}, all);
        hide(s, (row_range){all.lo, see.lo < all.hi ? see.lo : all.hi});
        hide(s, (row_range){see.hi > all.lo ? see.hi : all.lo, all.hi});
    }
}

static __attribute__((noinline)) void add_rows(const attend_work *w, int32_t r, int32_t n,
                                               row_range chunk) {
    bool whole = true, hole = false;
    for (int32_t i = r; i < r + n; i++) {
        whole = whole && w->see[i].lo <= chunk.lo && w->see[i].hole >= chunk.hi;
        hole = hole || w->see[i].hole_end < w->see[i].hi;
    }
    if (whole) {
        add_part(w, r, n, chunk, chunk);
        return;
    }
    apply_by_rows(w, r, n, false, chunk, add_part);
    if (hole) apply_by_rows(w, r, n, true, chunk, add_part);
}

/* All rows of the tile with what they see of the chunk.  Where a row has few heads, several rows
 * at a time make up for it: keys and values are then read once for all of them. */
INLINE void each_row(const attend_work *w, row_range chunk, bool scores) {
    int32_t rows = 1;
    if (w->t->n_group < KK_HEAD_TILE) rows = KK_HEAD_TILE;
    for (int32_t r = 0, n; r < w->t->n_rows; r += n) {
        n = w->t->n_rows - r < rows ? w->t->n_rows - r : rows;
        if (n > 1 && scores)
            score_rows(w, r, n, chunk);
        else if (n > 1)
            add_rows(w, r, n, chunk);
        else
            for (int after = 0; after < 2; after++)
                (scores ? score_part : add_part)(w, r, 1, seen_part(w, r, after, chunk), chunk);
    }
}

/* Pairs [first, first + n) of the tile; what their sums shrink by is computed side by side. */
static __attribute__((noinline)) void weigh_pairs(const attend_work *w, int32_t first, int32_t n) {
    const kk_attend_tile *t = w->t;
    float top[KK_LANES] = {0}, shrink[KK_LANES] = {0};
    for (int32_t i = 0; i < n; i++) {
        const int32_t p = first + i;
        const kk_page_visible *see = &w->see[p / t->n_group];
        if (see->lo >= see->hi) continue;
        top[i] = largest_score(w->s + (size_t)p * KK_PAGE_ROWS, w->m[p]);
        shrink[i] = w->m[p] - top[i];
    }
    vf_store(shrink, exp_lanes(vf_load(shrink)));
    for (int32_t i = 0; i < n; i++) {
        const int32_t p = first + i;
        const kk_page_visible see = w->see[p / t->n_group];
        if (see.lo >= see.hi) continue;
        weigh_pair(w->s + (size_t)p * KK_PAGE_ROWS, top[i], shrink[i],
                   w->lane + (size_t)p * KK_LANES, see);
        w->m[p] = top[i];
        w->c[p] = shrink[i];
    }
}

static void weigh_page(const attend_work *w) {
    const int32_t pairs = w->t->n_rows * w->t->n_group;
    if (w->t->n_rows == 1) {
        for (int32_t p = 0; w->see[0].lo < w->see[0].hi && p < pairs; p++)
            weigh_row(w->s + (size_t)p * KK_PAGE_ROWS, w->m + p, w->c + p,
                      w->lane + (size_t)p * KK_LANES, w->see[0]);
        return;
    }
    for (int32_t p = 0; p < pairs; p += KK_LANES)
        weigh_pairs(w, p, pairs - p < KK_LANES ? pairs - p : KK_LANES);
}

/* A page's keys, or its values, in parts that the scratch holds as floats.  next: the page that
 * comes after, to be fetched. */
static void page_converted(attend_work *w, int64_t page, kk_page_visible see, const uint8_t *at,
                           const uint8_t *next, bool keys) {
    const kk_attend_tile *t = w->t;
    const size_t off = keys && !t->k_eq_v ? t->k_off : t->v_off;
    for (row_range c = {see.lo, 0}; c.lo < see.hi; c.lo = c.hi) {
        c.hi = c.lo + w->n_rows < see.hi ? c.lo + w->n_rows : see.hi;
        load_rows(w->rows, t->format, t->head_dim, at + off, next + off, c);
        if (keys && t->k_eq_v)
            rebuild_keys(w, (page - t->page_base) * KK_PAGE_ROWS + c.lo, c.hi - c.lo);
        each_row(w, c, keys);
    }
}

/* The same, reading rows in place. */
static void page_in_place(attend_work *w, int64_t page, kk_page_visible see, const uint8_t *at,
                          const uint8_t *next, bool keys) {
    const kk_attend_tile *t = w->t;
    const size_t off = keys && !t->k_eq_v ? t->k_off : t->v_off;
    const row_range all = {see.lo, see.hi};
    stored *r = &w->at_hand;
    *r = (stored){.codes = at + off,
                  .ahead = next == at ? NULL : next + off,
                  .d = t->head_dim,
                  .n_rot = t->n_rot};
    ready_in_place(t->format, r, all, w->rows);
    if (!keys || !t->k_eq_v) {
        each_row(w, all, keys);
        return;
    }
    float *rotated = w->rows + STORED_SCALES;
    const float *angles =
        t->rope_pos + (size_t)(page - t->page_base) * KK_PAGE_ROWS * 2 * (size_t)t->n_rot;
    r->norm = t->k_norm;
    r->rotated = rotated;
    for (row_range c = {see.lo, 0}; c.lo < see.hi; c.lo = c.hi) {
        c.hi = c.lo + w->n_rows < see.hi ? c.lo + w->n_rows : see.hi;
        r->first = c.lo;
        rotate_in_place(t->format, r, angles, c, rotated);
        each_row(w, c, true);
    }
}

/* at and next: this page, and the one that comes after, to be fetched. */
static void attend_page(attend_work *w, int64_t page, kk_page_visible see, const uint8_t *at,
                        const uint8_t *next) {
    const kk_attend_tile *t = w->t;
    for (int32_t r = 0; r < t->n_rows; r++)
        w->see[r] = kk_visible_in_page(kk_tile_sees(t, r), page);
    const int32_t pairs = t->n_rows * t->n_group;
    for (int32_t i = 0; i < pairs * KK_PAGE_ROWS; i += KK_LANES)
        vf_store(w->s + i, vf_set1(-INFINITY));
    (w->in_place ? page_in_place : page_converted)(w, page, see, at, next, true);
    weigh_page(w);
    if (t->k_eq_v) next = at; /* it has been fetched */
    (w->in_place ? page_in_place : page_converted)(w, page, see, at, next, false);
}

static void start_tile(const attend_work *w) {
    const kk_attend_tile *t = w->t;
    for (int32_t p = 0; p < t->n_rows * t->n_group; p++) {
        w->m[p] = -INFINITY;
        vf_store(w->lane + (size_t)p * KK_LANES, vf_set1(0));
    }
    for (int32_t r = 0; r < t->n_rows; r++)
        memset(t->out + (size_t)r * t->q_stride, 0,
               (size_t)(t->n_group * t->head_dim) * sizeof(float));
}

/* out = acc / sum of the lanes */
static void finish_tile(const attend_work *w) {
    const kk_attend_tile *t = w->t;
    const float *lane = w->lane;
    for (int32_t r = 0; r < t->n_rows; r++) {
        for (int32_t h = 0; h < t->n_group; h++, lane += KK_LANES) {
            float *out = t->out + (size_t)r * t->q_stride + (size_t)(h * t->head_dim);
            const vf inv = vf_set1(1.0f / vf_sum(vf_load(lane)));
            EACH_LANES(t->head_dim, { SET(out, vf_mul(V(out), inv)); });
        }
    }
}

static void attend(const kk_attend_tile *t) {
    attend_work w = {.t = t, .rows = t->scratch, .n_rows = KK_ATTEND_CHUNK / t->head_dim};
    w.in_place = kk_attends_in_place(&KK_KERNELS, t);
    if (w.in_place && t->k_eq_v) w.n_rows = STORED_ROTATED / (2 * t->n_rot);
    w.s = w.rows + KK_ATTEND_CHUNK;
    w.c = w.s + KK_ATTEND_PAIRS * KK_PAGE_ROWS;
    w.lane = t->state;
    w.m = w.lane + (size_t)(t->n_rows * t->n_group) * KK_LANES;
    if (t->starts) start_tile(&w);
    const kk_visible all = kk_tile_sees_all(t);
    const int64_t end = (all.to + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS;
    const int64_t to = t->page_to && t->page_to < end ? t->page_to : end;
    int64_t page = t->page_to ? t->page_from : kk_visible_first_page(all);
    for (int64_t after; page < to; page = after) {
        after = kk_visible_next_page(all, page);
        const uint8_t *at = t->pages[page - t->page_base];
        attend_page(&w, page, kk_visible_in_page(all, page), at,
                    after < to ? t->pages[after - t->page_base] : at);
    }
    if (t->ends) finish_tile(&w);
}
