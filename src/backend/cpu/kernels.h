/* kernels.h - the arithmetic of the CPU backend, and the table of functions that carry it out.
 *
 * Every kernel has one defined order of operations, the same in reference.c (plain C) and in
 * the vector versions, so that all of them give the same bits on every machine:
 *
 *   - a dot product of floats has 16 lanes: lane i takes the elements k = i mod 16 in order,
 *     each with one fused multiply-add; then lanes are added as a tree (8 apart, 4, 2, 1);
 *   - a dot product with quantised weights first rounds the activations to int8 in blocks of
 *     32; a block's products are summed as integers, exactly, and enter one float chain per
 *     output in block order, each with one fused multiply-add, and where the type has minima or
 *     biases a second one with the sum of the activations;
 *   - attention goes page by page with a running maximum, over rows that were converted to
 *     floats as their format defines; see kk_attend_tile and kvformat.h;
 *   - exp is a fixed polynomial (mathf.h), never the C library's.
 *
 * Outputs are independent of each other, so tiles and threads change nothing. */
#ifndef KK_CPU_KERNELS_H
#define KK_CPU_KERNELS_H

#include "backend/backend.h"

enum {
    KK_LANES = 16,          /* partial sums of a float dot product */
    KK_STRIP = 16,          /* outputs a matrix kernel makes at a time */
    KK_WIDE = 2 * KK_STRIP, /* most outputs of one call */
    KK_BLOCK = 32,          /* activations that share a scale */
    KK_PANEL_BYTES = 768,   /* scratch per block of a strip */
    KK_ATTEND_ROWS = 8,     /* rows of an attention tile */
    KK_ATTEND_PAIRS = 128,  /* rows x query heads of an attention tile */
    KK_ATTEND_CHUNK = 4096, /* floats that attention converts rows to at a time */
    KK_ATTEND_SCRATCH = KK_ATTEND_CHUNK + KK_ATTEND_PAIRS * (KK_PAGE_ROWS + 1),
    KK_ATTEND_STATE = KK_LANES + 1, /* floats of a (row, head): lanes of the sum, largest score */
    KK_MAX_HEAD_DIM = 1024,
};

/* A block of 32 activations, quantised for products with quantised weights: x = d * q, and the
 * sums that multiply the weights' zero points. Blocks are contiguous, so that a row is one
 * pointer. */
typedef struct {
    int8_t q[KK_BLOCK];
    float d;
    int32_t minus;     /* -(sum of q) */
    int32_t minus_low; /* -(sum of the first 16) */
} kk_act_block;

/* Blocks whose largest value is below this count as zero: its reciprocal must be a number. */
#define KK_ACT_LEAST 1e-30f

/* A block with no value above KK_ACT_LEAST. most NaN: one of its values is infinite or NaN, and
 * every sum that includes it must become NaN. */
static inline void kk_act_empty(kk_act_block *b, float most) {
    memset(b, 0, sizeof *b);
    b->d = most / 127.0f;
}

/* Rows of activations: floats, and for quantised weights blocks. */
typedef struct {
    const float *f;        /* [rows][n] */
    const kk_act_block *b; /* [rows][n / 32] */
} kk_acts;

/* Weights to prefetch into the second-level cache. */
static inline void kk_fetch(const uint8_t *w, size_t bytes) {
    for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(w + o, 0, 2);
}

/* n_out <= KK_WIDE rows of a weight matrix against n_rows rows of activations:
 * out[out_row[r] * out_stride + o] = w[o] . x[in_row[r]]. */
typedef struct {
    kk_dtype dtype;
    int32_t n_out, n_in, n_rows;
    const uint8_t *w;
    size_t w_stride;     /* bytes from one output's weights to the next */
    kk_planes planes;    /* affine types: scales and biases of the first output's first group */
    size_t plane_stride; /* bytes from one output's scales, or biases, to the next */
    /* Weights to fetch meanwhile, as many bytes as w; NULL: none. */
    const uint8_t *ahead;
    kk_acts x;
    const int32_t *in_row, *out_row; /* NULL: 0, 1, 2, ... */
    float *out;
    size_t out_stride;
    void *panel; /* KK_PANEL_BYTES * n_in / 32 bytes, 64-byte aligned */
} kk_strip;

/* Whether strips of a type can be unpacked ahead, and the bytes of n of them. */
static inline bool kk_unpacks(kk_dtype t) { return t == KK_Q8_0; }
static inline size_t kk_unpacked_bytes(int32_t strips, int32_t n_in) {
    return (size_t)(strips + strips % 2) * ((size_t)n_in / KK_BLOCK) * KK_PANEL_BYTES;
}

/* All query heads of one K/V head, for n_rows consecutive positions of one session.
 *
 * For each (row, head), pages in order, keys j of the page that the row sees (kk_sees):
 *   s_j = scale * (q . K_j);  m' = max(m, max_j s_j);  c = exp(m - m')
 *   p_j = exp(s_j - m'), 0 for keys not seen;  l = l * c + p, in 16 lanes by j mod 16
 *   acc = acc * c, then acc += p_j * V_j in order of j
 * and at the end out = acc * (1 / sum of lanes of l).
 *
 * The pages may come in several calls, in order: the first says starts, the last ends, and what
 * the sums have come to stays in out and state meanwhile. */
typedef struct {
    const float *q; /* [n_rows] rows of q_stride floats; n_group heads of head_dim lie together */
    float *out;     /* the same layout */
    size_t q_stride;
    int32_t n_rows, n_group, head_dim;
    kk_visible_rule rule; /* which keys rows see; evicted rows are left out */
    int64_t pos;
    /* Not 0: the rows see each other whole, as part of a block of positions [first, end). */
    int64_t block_first, block_end;
    float scale;
    kk_kv_format format;
    const uint8_t *const *pages; /* from page number page_base on */
    int64_t page_base;
    int64_t page_from, page_to; /* pages of this call; page_to 0: all pages */
    size_t k_off, v_off;        /* byte offsets of this K/V head in a page */
    bool k_eq_v;
    const float *k_norm;   /* [head_dim] */
    const float *rope_pos; /* [position][2][n_rot], from the first of page_base on */
    int32_t n_rot;
    float *scratch; /* KK_ATTEND_SCRATCH floats, 64-byte aligned */
    float *state;   /* KK_ATTEND_STATE floats for each (row, head), 64-byte aligned */
    bool starts, ends;
} kk_attend_tile;

static inline kk_visible kk_tile_sees(const kk_attend_tile *t, int32_t row) {
    kk_visible v = kk_sees(&t->rule, t->block_end ? t->block_first : t->pos + row);
    if (t->block_end) v.to = t->block_end;
    return v;
}

/* The page to read after this one: no page that lies whole between the sink and the other rows. */
static inline int64_t kk_visible_next_page(kk_visible v, int64_t page) {
    const int64_t from = v.from / KK_PAGE_ROWS;
    return page + 1 < from && (page + 1) * KK_PAGE_ROWS >= v.sink_to ? from : page + 1;
}
static inline int64_t kk_visible_first_page(kk_visible v) {
    return (v.sink_to ? v.sink_from : v.from) / KK_PAGE_ROWS;
}

/* The keys that some row of a tile sees: the first row sees furthest back, the last furthest ahead.
 * */
static inline kk_visible kk_tile_sees_all(const kk_attend_tile *t) {
    kk_visible all = kk_tile_sees(t, 0);
    all.to = kk_tile_sees(t, t->n_rows - 1).to;
    return all;
}

/* The visible rows of a page: [lo, hi) without [hole, hole_end). */
typedef struct {
    int32_t lo, hole, hole_end, hi;
} kk_page_visible;

static inline int32_t kk_in_page(int64_t j) {
    return (int32_t)(j < 0 ? 0 : j > KK_PAGE_ROWS ? KK_PAGE_ROWS : j);
}
static inline kk_page_visible kk_visible_in_page(kk_visible v, int64_t page) {
    const int64_t base = page * KK_PAGE_ROWS;
    const int32_t first = kk_in_page(v.sink_from - base), sink = kk_in_page(v.sink_to - base);
    const int32_t from = kk_in_page(v.from - base), to = kk_in_page(v.to - base);
    if (first >= sink) return (kk_page_visible){from, to, to, to};
    if (from >= to) return (kk_page_visible){first, sink, sink, sink};
    return (kk_page_visible){first, sink, from, to};
}

/* Scores of one query against rows of a page become the weights of what is summed: for j in
 * [lo, hi)
 *   s_j = ((score_j + more_j) * key_j) * scale;  m' = max(m, max_j s_j);  c = exp(m - m')
 *   p_j = exp(s_j - m');  l = l * c + p, in 16 lanes by j mod 16;  score_j = p_j * value_j
 * The scores of other rows are ignored, and undefined afterwards. */
typedef struct {
    float *score;             /* [KK_PAGE_ROWS] */
    const float *more;        /* [KK_PAGE_ROWS]; NULL: nothing is added */
    const float *key, *value; /* [KK_PAGE_ROWS] */
    float scale;
    int32_t lo, hi;
    float *m, *c, *lane;
} kk_weighing;

/* acc[p] = acc[p] * c[p], then += w[p][j] * x[j] in order of j < n_x, for n values each. */
typedef struct {
    float *acc;
    size_t acc_stride;
    const float *c;
    const float *w; /* [n_acc][KK_PAGE_ROWS] */
    const float *x;
    size_t x_stride;
    const uint8_t *bf16; /* not NULL: instead of x, rows of n values, n a multiple of 64 */
    int32_t n, n_acc, n_x;
} kk_sums;

/* Rows of keys [n][dim] as they come out of a decoder, in place: times w, then pairs
 * (i, i + dim / 2), i < n_rot, rotated by cs: [n][2][n_rot].  inv: 1 / rms of each row as it was.
 * With queries, score[p][j] = q[p] . x[j] of what they become, and x itself is undefined after. */
typedef struct {
    float *x, *inv; /* inv NULL: not wanted */
    const float *w, *cs;
    int32_t n, dim, n_rot;
    float eps;
    const float *q; /* [n_q][dim] */
    float *score;   /* [n_q][KK_PAGE_ROWS] */
    int32_t n_q;
} kk_keys;

/* The lanes of a sum, added as a tree. */
static inline float kk_lanes_sum(const float *lane) {
    float s8[8], s4[4];
    for (int i = 0; i < 8; i++) s8[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++) s4[i] = s8[i] + s8[i + 4];
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}

typedef struct {
    const char *name;
    /* n a multiple of 32 */
    void (*quantize)(const float *x, size_t n, kk_act_block *b);
    /* The same of bf16; NULL: by quantize alone. */
    void (*quantize_bf16)(const uint8_t *x, size_t n, kk_act_block *b);
    void (*strip)(const kk_strip *s);
    /* Strips of weights that many rows meet again and again, one call after another: unpack puts
     * one into `panel` as its strip number `at`, and unpacked is `strip` for those that were put
     * there, n_out of them from the first on, a multiple of KK_STRIP; w is not read.  For types
     * with kk_unpacks; NULL: for none. */
    void (*unpack)(const kk_strip *s, int32_t at);
    void (*unpacked)(const kk_strip *s);
    /* Whether so many rows are done sooner with KK_WIDE outputs at a time than with KK_STRIP. */
    bool (*wide)(kk_dtype t, int32_t n_rows);
    void (*attend)(const kk_attend_tile *t);
    /* The most queries for which rows are read in place; for more they are converted to floats
     * first. */
    int32_t in_place;
    /* Rows [lo, lo + n) of a head of a page, in any of the cache's formats, as floats. */
    void (*widen)(float *y, kk_kv_format f, int32_t head_dim, const uint8_t *head, int32_t lo,
                  int32_t n);
    /* s[p][j] = q[p] . k[j], s of KK_PAGE_ROWS values a row, q and k of n. */
    void (*dots)(float *s, const float *q, const float *k, int32_t n, int32_t n_q, int32_t n_k);
    /* The same with rows of bf16 where they lie; n a multiple of 64, and at most in_place queries
     * (kk_sums.bf16 too). */
    void (*dots_bf16)(float *s, const float *q, const uint8_t *k, int32_t n, int32_t n_q,
                      int32_t n_k);
    void (*weigh)(const kk_weighing *w);
    void (*sums)(const kk_sums *s);
    void (*keys)(const kk_keys *k);
    float (*inv_rms)(const float *x, int32_t n, float eps); /* 1 / rms(x) */
    /* As kk_dequantize. */
    void (*floats)(kk_dtype t, const uint8_t *src, float *dst, size_t n);
    /* y = x / rms(x) * w;  w NULL: no weight;  y may be x */
    void (*norm)(float *y, const float *x, const float *w, int32_t n, float eps);
    /* Rotates pairs (i, i + n / 2), i < n_rot; cs: cosines, then sines. */
    void (*rotate)(float *x, const float *cs, int32_t n, int32_t n_rot);
    /* cs: cosines, then sines, of position * freq[i], i < n_rot. */
    void (*angles)(float *cs, const float *freq, int32_t n_rot, int64_t position);
    void (*glu)(float *y, const float *gate, const float *up, int32_t n, kk_activation act);
    /* y = (x + a) * scale, with a already normed;  y += w * x;  y = cap * tanh(x / cap) */
    void (*add_scale)(float *y, const float *a, int32_t n, float scale);
    void (*axpy)(float *y, float w, const float *x, int32_t n);
    void (*softcap)(float *x, int32_t n, float cap);
    /* Index of the largest of x, the first of several. NaN comes after all numbers; 0 where all
     * are NaN. */
    int32_t (*largest)(const float *x, int32_t n);
    /* Rounds a row to its format, into its place in a head of a page. */
    void (*put)(kk_kv_format f, const float *x, int32_t head_dim, uint8_t *head, int32_t row);
} kk_kernels;

/* Whether a tile reads stored rows where they lie: few queries, a format that has kernels for it,
 * rows of whole groups of 64 values, and where keys are rebuilt a small rotated part of whole
 * registers.  Where registers are few, formats with scales gain only if keys are rebuilt. */
static inline bool kk_attends_in_place(const kk_kernels *k, const kk_attend_tile *t) {
    const bool scaled = t->format == KK_KV_Q8 || t->format == KK_KV_Q4 || t->format == KK_KV_S8;
    if (t->format != KK_KV_BF16 && !(scaled && (t->k_eq_v || k->in_place > 1))) return false;
    return t->n_rows * t->n_group <= k->in_place && t->head_dim % 64 == 0 && t->head_dim <= 512 &&
           (!t->k_eq_v || (t->n_rot % KK_LANES == 0 && t->n_rot > 0 && t->n_rot <= 96));
}

extern const kk_kernels kk_kernels_reference;
#if defined(__x86_64__)
extern const kk_kernels kk_kernels_avx2, kk_kernels_avx512;
#elif defined(__aarch64__)
extern const kk_kernels kk_kernels_neon;
#endif

/* The kernels named, or the best this processor runs when name is NULL; NULL: not here. */
const kk_kernels *kk_kernels_named(const char *name);

#endif
