/* backend.h - what a device must do.  The model calls these operations and never asks which
 * device it is on; backend/cpu implements all of them and its plain C is the reference.
 *
 * Activations are float32 buffers of rows.  A row is one token at one position of one session;
 * a forward carries rows of several sessions in groups.  Row invariance is part of every
 * contract here: an output row's bits depend on that row's inputs and on the stored K/V rows it
 * may see, never on the other rows, their number, or the number of threads.
 *
 * What a lazy device (a queue, or a graph that is evaluated later) may assume:
 *   - a kk_buf's content is accessed through read and write alone, and K/V pages of a device that
 *     has `pages` through copy and move alone: what is in them need not exist before;
 *   - arguments are valid while the call lasts.  Host memory that they point to (ids, positions,
 *     groups, page tables, rows) is copied by then; what is written to host memory (argmax, read,
 *     move, picked) is waited for;
 *   - operations take effect in the order in which they are asked for, and errors of queued ones
 *     may surface at the next call that waits;
 *   - buffers, weights and pages that are given back are in no operation asked for later, but may
 *     be in one that is still queued: the device settles that;
 *   - rows of a page at or beyond a cache's length mean nothing, and sinks are memory like pages'.
 * On the CPU operations are done when they return. */
#ifndef KK_BACKEND_H
#define KK_BACKEND_H

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/kvformat.h"
#include "core/visible.h"

typedef struct kk_dev kk_dev;
typedef struct kk_buf kk_buf;
typedef struct kk_weight kk_weight;

enum { KK_PAGE_ROWS = 64 }; /* rows of a K/V page; attention splits its sums there */

/* n_mat stacked matrices [n_out, n_in] as they lie in the file. */
typedef struct {
    kk_dtype dtype;
    int64_t n_mat, n_out, n_in;
    const void *data;
    kk_planes planes; /* affine types: scales and biases, [n_mat, n_out, n_in / group] */
} kk_matrix;

/* Where one layer's K/V lie inside a page: head after head, each a block of KK_PAGE_ROWS rows as
 * kvformat.h lays them out.
 * With k_eq_v only V is stored and K is rebuilt as RoPE(k_norm * V) in float32. */
typedef struct {
    kk_kv_format format;
    bool k_eq_v;
    int32_t n_kv_head, head_dim;
    /* Bytes from the page's start, whole multiples of 64.  Pages begin at whole multiples of 16. */
    size_t k_off, v_off;
} kk_kv_slot;

/* Bytes of one head in a page. */
static inline size_t kk_kv_head_bytes(kk_kv_format format, int32_t head_dim) {
    return KK_PAGE_ROWS * kk_kv_row_bytes(format, head_dim);
}

/* One session's rows in a forward, and its page table for one layer kind. */
typedef struct {
    int32_t row, n_rows;   /* its rows are [row, row + n_rows) of the forward */
    int64_t pos;           /* absolute position of the first of them */
    uint8_t *const *pages; /* by absolute page index; those that no row sees may be NULL */
    /* The first rows, kept apart: laid out as a page of so many rows, whose parts may then begin
     * at any byte.  NULL: they lie in their page. */
    const uint8_t *sink;
    uint8_t *const *latents; /* as pages; NULL: nothing is rebuilt */
    /* Of pages of latents: as long as a page has the same one, its rows below pos are the same.
     * NULL: not known. */
    const int64_t *latent_ids;
    /* Only the device knows how many tokens of a draft before these rows are right: pos is the
     * least it can be, and the int32 at shift, at most most_shift, is added to it.  NULL: pos is
     * known.  Only on a device that queues. */
    const kk_buf *shift;
    int32_t most_shift;
} kk_group;

typedef struct {
    const kk_group *group;
    int32_t n_groups, n_rows;
} kk_rows;

/* Frequencies of one layer kind: theta^(-2i/head_dim) / factor for i < n_rot, 0 above. */
typedef struct {
    float theta, factor;
    int32_t n_rot, head_dim;
} kk_rope;

/* Instruments for evaluations and tests.  The rows themselves, as projected, are kept beside the
 * latents, and what is rebuilt becomes mix * true + (1 - mix) * rebuilt, before the norms.  With
 * mix 1 that is what would have been stored, bit for bit. */
enum { KK_DIAGNOSED_LAYERS = 256 };
typedef struct {
    float mix;
    kk_kv_slot truth[KK_DIAGNOSED_LAYERS]; /* by layer: where its rows lie in pages of latents */
} kk_diagnosis;

/* Rows that are no longer stored: core/visible.h says which.  They are rebuilt from their latents,
 * K = RoPE(norm(D_k z) * k_norm) and V = norm(D_v z), or not seen at all. */
typedef struct {
    int32_t window, chunk; /* with the sink of kk_attend_args: kk_kv_bounds */
    bool rebuilds;
    const kk_weight *k, *v; /* [n_kv_head * head_dim, rank]; K = V: v alone */
    kk_kv_slot latent;
    int64_t forward;   /* latents of evicted rows do not change within one; 0: they may */
    kk_kv_slot scales; /* 1 / rms(D_v z) of this layer's heads from scale_at on, as kept */
    int32_t scale_at;
    kk_rope rope; /* rotation of the layer's kind */
    float eps;
    int32_t layer;                 /* the layer that stored these rows */
    const kk_diagnosis *diagnosis; /* NULL in production */
} kk_evicted;

typedef enum { KK_GELU_TANH, KK_SILU } kk_activation;

/* y[r] = scale * table[token[r]] */
typedef struct {
    kk_buf *out;
    const kk_weight *table;
    const int32_t *token; /* [n_rows], host memory, checked by the caller */
    int32_t n_rows;
    float scale;
    const kk_buf *chosen; /* not NULL: instead of token, ids that choose has written */
} kk_embed_args;

/* y[r, :] = x[r, :] / rms(x[r, :]) * w, over pieces of `dim` values; w NULL: no weight. */
typedef struct {
    kk_buf *out;
    const kk_buf *x, *w;
    int32_t n_rows, dim;
    float eps;
} kk_norm_args;

/* out[i][r, :] = w[i] x[r, :] for up to four matrices that read the same rows. */
enum { KK_LINEAR_MAX = 4 };
typedef struct {
    kk_buf *out[KK_LINEAR_MAX];
    const kk_weight *w[KK_LINEAR_MAX];
    int32_t n;
    const kk_buf *x;
    int32_t n_rows;
} kk_linear_args;

/* table[first + i] = cosines, then sines, of pos[i] (pos0 + i when pos is NULL): [2][n_rot]. */
typedef struct {
    kk_buf *table;
    int64_t first, pos0, n;
    const int64_t *pos;
    kk_rope rope;
    const kk_buf *shift; /* as in kk_group */
} kk_rope_args;

/* Per head: q = RoPE(norm(q) * q_norm) in place; q NULL: there are only rows to store.  When k
 * is not NULL also stores K = RoPE(norm(k) * k_norm) and V = norm(v), rounded to the slot's
 * format, at each row's position.  v NULL: V starts from k (the raw projection); v_raw: V = v,
 * not normed. */
typedef struct {
    kk_buf *q;
    const kk_buf *k, *v;
    const kk_buf *q_norm, *k_norm;
    const kk_buf *rope_rows; /* [n_rows][2][n_rot] */
    int32_t n_rot, n_head;
    kk_kv_slot slot;
    const kk_rows *rows;
    float eps;
    bool v_raw;
} kk_store_args;

/* Stores rows of x as they are, rounded to the slot's format, at each row's position of the
 * latents' pages. */
typedef struct {
    const kk_buf *x; /* [n_rows, n_kv_head * head_dim] */
    kk_kv_slot slot;
    bool keys; /* at k_off instead */
    const kk_rows *rows;
} kk_keep_args;

/* Keeps 1 / rms(D_v z) of each head of each row, z the latents that were kept of them, rounded to
 * the scales' format, bf16, at [at, at + n_kv_head) of their rows. */
typedef struct {
    const kk_weight *v; /* [n_kv_head * head_dim, rank] */
    int32_t n_kv_head;
    kk_kv_slot latent, scales;
    int32_t at;
    const kk_rows *rows;
    float eps;
} kk_scales_args;

/* out = softmax(scale q K^T) V over the keys that a row at pos sees: j <= pos, and of these
 * j < sink or j > pos - window (window 0: all), less what `evicted` hides.  With block, the rows
 * of a group see each other whole: j up to the group's last row, and the window counts from the
 * group's first row for all of them.  A sink that lies apart (kk_group) is read from there.  With
 * evicted, the window is the model's own and hides the sink too: sink only says which rows are
 * stored apart. */
typedef struct {
    kk_buf *out; /* [n_rows, n_head * head_dim] */
    const kk_buf *q;
    const kk_buf *k_norm;   /* k_eq_v: to rebuild K */
    const kk_buf *rope_pos; /* k_eq_v: [position][2][n_rot]; with evicted: see kk_backend.angles */
    int32_t n_rot, n_head, window, sink;
    bool block;
    kk_kv_slot slot;
    const kk_rows *rows;
    float scale;
    const kk_evicted *evicted; /* NULL: all rows that the mask shows are stored */
} kk_attend_args;

/* x = (x + norm(a) * w) * scale; w NULL: x = (x + a) * scale */
typedef struct {
    kk_buf *x;
    const kk_buf *a, *w;
    int32_t n_rows, dim;
    float eps, scale;
} kk_residual_args;

/* out = act(gate) * up; up's rows may lie wider apart and start later (per-layer inputs). */
typedef struct {
    kk_buf *out;
    const kk_buf *gate, *up;
    int32_t n_rows, dim, up_stride, up_offset;
    kk_activation act;
} kk_glu_args;

/* The router: r = norm(x) * scale * hidden^-1/2; softmax over r . proj; the n_used largest
 * (ties: the lower id), renormalised, times per_expert_scale. */
typedef struct {
    kk_buf *expert; /* [n_rows, n_used] int32 */
    kk_buf *weight; /* [n_rows, n_used] float */
    const kk_buf *x, *scale, *per_expert_scale;
    const kk_weight *proj;
    int32_t n_rows, n_used;
    float eps;
} kk_route_args;

/* out[r] = sum over slots s, in order, of weight[r,s] * down_e(gelu(gate_e x) * up_e x),
 * e = expert[r,s].  up NULL: gate holds gate rows, then up rows, of each expert. */
typedef struct {
    kk_buf *out;
    const kk_buf *x, *expert, *weight;
    const kk_weight *gate, *up, *down;
    int32_t n_rows, n_used, ffn;
} kk_experts_args;

/* Per-layer inputs: out = (norm(proj * proj_scale) * w + scale * table[token]) / sqrt(2), over
 * pieces of dim values; proj and out are [n_rows, n_layer * dim]. */
typedef struct {
    kk_buf *out;
    const kk_buf *proj, *w;
    const kk_weight *table;
    const int32_t *token;
    int32_t n_rows, n_layer, dim;
    float proj_scale, scale, eps;
    const kk_buf *chosen; /* as in kk_embed_args */
} kk_ple_args;

/* out[out_at + i * out_stride ...] = x[row[i]], dim values each */
typedef struct {
    kk_buf *out;
    const kk_buf *x;
    const int32_t *row; /* host memory; NULL: first, first + 1, ... */
    int32_t n, dim, first;
    size_t out_at, out_stride; /* in floats; stride 0: dim */
} kk_gather_args;

/* out[r] = the index of the largest of x[r, 0..dim), the lowest of equals, never `banned`; NaN
 * comes after all numbers */
typedef struct {
    int32_t *out; /* [n_rows], host memory: waits for the result */
    const kk_buf *x;
    int32_t n_rows, dim, banned; /* banned -1: none */
    /* Not NULL: the results become the ids [ids_at, ids_at + n_rows) there instead, int32, and
     * nothing is waited for. */
    kk_buf *ids;
    int32_t ids_at;
    const kk_buf *map; /* not NULL: the result is map[index], int32, as it is when its turn comes */
} kk_argmax_args;

/* out[i] = id[i], int32, in the order of operations; unlike write it waits for nothing. */
typedef struct {
    kk_buf *out;
    const int32_t *id; /* [n], host memory */
    int32_t n;
} kk_ids_args;

/* How the token after a row is chosen; sample.h has the arithmetic.  All zero: the largest
 * logit. */
typedef struct {
    kk_sampling how;
    /* The tokens before it: those that the host knows, then those that lie on the device alone,
     * because they were chosen or drafted there.  Its position is how many they are together. */
    const int32_t *history; /* [n_history] */
    int64_t n_history;
    int32_t pending, n_pending; /* kk_choose_args.pending[pending .. pending + n_pending) */
    bool logprobs;              /* those of the choice and of the n_best likeliest are wanted */
    int32_t n_best;             /* at most KK_MAX_LOGPROBS */
    const kk_logit_bias *bias;  /* [n_bias] */
    size_t n_bias;
    const uint32_t *mask; /* as in kk_sample_row; allows some id.  NULL: all */
} kk_choose_row;

/* Choices that stay on the device: token[r] by row[r], of x[r].  Starts all that is queued and
 * returns without waiting for it.  What was chosen comes to the host as well, for `picked` to wait
 * for. */
enum { KK_PICK_ROWS = 32, KK_PICKS = 4 };
typedef struct {
    kk_buf *token; /* [n_rows] int32, for a later embed */
    const kk_buf *x;
    int32_t n_rows, dim;      /* KK_PICK_ROWS rows at most */
    const kk_choose_row *row; /* [n_rows]; NULL: the largest of each */
    const kk_buf *pending;    /* int32; `token` itself only where there is one row */
    /* Where the rows verify a draft: the ids of the rows, int32, the first of them not drafted.
     * *right becomes the number of drafted ids that were chosen after the row before them, up to
     * the first that was not; the token chosen there becomes the first id of each of `next`, where
     * it is not NULL.  draft NULL: nothing is compared. */
    const kk_buf *draft;
    kk_buf *right, *next[2];
} kk_choose_args;

typedef struct {
    int32_t token;
    bool broken;          /* x[r] has a value that is not finite: the token means nothing */
    uint64_t digest;      /* digest of x[r] (core/digest.h) */
    kk_logprobs logprobs; /* where they were asked for, and the row is not broken */
    int32_t drafted; /* the id of row r + 1, where choose compared a draft; -1: there is none */
    bool near_tie;   /* a greedy choice that was near (core/tie.h), of a device that measures
                      * what is exact; others leave it false */
} kk_pick;

/* x = cap * tanh(x / cap); NaN of a value that is not finite */
typedef struct {
    kk_buf *x;
    int32_t n_rows, dim;
    float cap;
} kk_softcap_args;

/* ---- whole layers ---------------------------------------------------------------------------
 *
 * A device may take a decoder layer, or the head, as one operation; where it has none, or does not
 * take this one, kk_layer_run and kk_head_run (layer.h) make it of the small operations above. */

/* A layer's matrices, [out, in], and vectors; NULL where it has none.  Pointers alone, so that
 * equal layers have equal bytes. */
typedef struct {
    kk_weight *q, *k, *v, *o, *gate, *up, *down;               /* v NULL: V starts from k */
    kk_weight *router, *expert_gate, *expert_up, *expert_down; /* expert_up NULL: see kk_experts */
    kk_weight *ple_gate, *ple_proj;
    kk_buf *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm, *q_norm, *k_norm;
    kk_buf *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2, *router_scale, *expert_scale;
    kk_buf *post_ple_norm;
} kk_layer_weights;

/* Scratch of a layer. When it is done, only x, the K/V pages, expert and expert_weight are
 * defined; the device may leave anything in the others. gate may be q and up may be att, which
 * are no longer needed then. */
typedef struct {
    kk_buf *x;                      /* [rows, hidden], the residual stream */
    kk_buf *z, *y, *y2;             /* [rows, hidden] */
    kk_buf *q, *att;                /* [rows, n_head * head_dim] */
    kk_buf *k, *v;                  /* [rows, n_kv_head * head_dim] */
    kk_buf *gate, *up;              /* [rows, ffn] */
    kk_buf *expert, *expert_weight; /* [rows, n_used] */
    kk_buf *ple;                    /* [rows, ple_stride], per-layer inputs */
} kk_layer_scratch;

/* Intermediate results of a layer, for observers. */
typedef enum {
    KK_PART_Q, /* queries, normed and rotated: [row][n_head * head_dim] */
    KK_PART_K, /* keys as projected, neither normed nor rotated: [row][n_kv_head * head_dim] */
    KK_PART_V, /* values as projected; none where K = V */
    KK_PART_O, /* what attention adds before its norm: [row][hidden] */
} kk_layer_part;

/* Called for each part that the layer has, in order, with rows of `width` values.  What it returns
 * ends the layer unless it is KK_OK. */
typedef struct {
    kk_status (*part)(void *user, kk_layer_part part, const kk_buf *rows, int32_t width,
                      kk_err *err);
    void *user;
} kk_layer_observer;

/* One decoder layer over all rows, norm(x; w) and the steps as above:
 *   q, k, v = W norm(x; input_norm); k and v where it stores
 *   x += norm(o attend(store(q, k, v)); post_attention_norm)
 *   f  = down(gelu(gate z) * up z), z = norm(x; pre_ffn_norm)
 *   f  = norm(f; post_ffn_norm_1) + norm(experts(norm(x; pre_ffn_norm_2)); post_ffn_norm_2), where
 *        there are experts; route reads x itself
 *   x += norm(f; post_ffn_norm)
 *   x += norm(ple_proj(gelu(ple_gate x) * ple[ple_offset..]); post_ple_norm), where ple_dim > 0
 *   x *= scale
 * Fields that small operations have mean what they mean there. */
typedef struct {
    kk_layer_weights w;
    kk_layer_scratch scratch;
    const kk_buf *k_norm;               /* norm of the layer whose K/V rows are read */
    const kk_buf *rope_rows, *rope_pos; /* as in kk_store_args and kk_attend_args */
    const kk_rows *rows;
    const kk_evicted *evicted;         /* NULL: all rows that the mask shows are stored */
    const kk_layer_observer *observer; /* not NULL: the layer is made of small operations */
    kk_kv_slot slot;
    bool stores; /* K/V rows of its own; else it reads another layer's */
    int32_t hidden, ffn, n_head, n_rot, window, sink;
    int32_t n_used, expert_ffn; /* n_used 0: no experts */
    int32_t ple_dim, ple_stride, ple_offset;
    float eps, scale;
} kk_layer_args;

/* logits[i] = cap * tanh(table norm(x[row[i]]; norm) / cap); cap 0: not capped. */
typedef struct {
    kk_buf *logits, *in; /* [n, vocab]; in: [n, hidden], scratch */
    const kk_buf *x, *norm;
    const kk_weight *table;
    const int32_t *row; /* host memory */
    int32_t n, hidden, vocab;
    float eps, cap;
} kk_head_args;

/* Of products with float32 weights, and with packed ones; and of attention by kernels that read
 * K/V pages where they lie, where the device has such: 0: it has none, or they are not used. */
typedef struct {
    int32_t floats, packed, pages;
} kk_exact_rows;

typedef struct {
    int32_t threads; /* 0: all */
    bool pin;
    const char *isa; /* NULL: the best; of a GPU: a smaller chip whose limits it keeps, for tests */
    kk_mem *mem;
    int32_t max_rows; /* the most rows any operation will be given */
    /* Bytes of keys of evicted rows that stay rebuilt between forwards, of all sessions together,
     * where the device keeps some; 0: as many as suit it, -1: none. */
    int64_t key_cache;
    /* Bytes of its own memory that a device takes at most; 0: all. */
    int64_t gpu_memory;
    /* For tests and measurements, where a device fuses or overlaps its work: nothing is fused;
     * fused, but nothing begins before what is before it has ended. */
    bool plain, late;
    /* Of a device whose products choose their kernels by the number of rows: rows of a product
     * that were measured (kk_instruments) to have the bits they have alone.  Products of a round
     * take no more at once.  0: 1; -1: all of them, whether that is exact or not. */
    kk_exact_rows exact;
} kk_dev_opts;

/* What a device says of itself. */
typedef struct {
    char isa[64];    /* instruction set or device: "avx512", "NVIDIA H200 sm_90" */
    int32_t threads; /* cores, or multiprocessors */
    /* Rows of a round that are proven to have the bits of plain decoding, as soon as the weights
     * are there; 0: any number, by the way its kernels are made; -1: not proven. */
    int32_t exact_rows;
    bool exact_packed; /* the number is that of packed weights, as most of them are */
    bool page_kernel;  /* attention of a round reads K/V pages where they lie (kk_exact_rows) */
    /* Bytes, of a device with memory of its own; all 0 elsewhere. */
    struct {
        int64_t total, free;
        int64_t taken;   /* since it was opened, by any process */
        int64_t weights; /* bytes of that which are weights */
    } memory;
} kk_dev_facts;

/* Scratch for max_rows rows, taken now so that no operation ever allocates.  Each part is
 * independent, and reserved where it is not 0. */
typedef struct {
    const kk_weight *w; /* operations on such a weight, */
    int32_t n_used;     /* by so many slots of a row */
    struct {
        int32_t n_expert, n_used, ffn;
        int64_t hidden;
    } experts; /* route and experts of such a width */
    struct {
        const kk_kv_slot *slot;
        int32_t n_head, rank;
        const kk_weight *k, *v; /* their decoders, where they are known, and the rotation */
        kk_rope rope;
    } evicted; /* attention over evicted rows of such a slot; rank 0: they are not rebuilt */
} kk_prepare_args;

/* K/V pages of a device that keeps them in memory of its own.  What it hands out are addresses of
 * its choosing: everyone may add offsets within what was taken and compare them, and only the
 * device may read or write there, so they need be no pointers of this process. */
typedef struct {
    kk_status (*take)(kk_dev *dev, size_t bytes, uint8_t **out, kk_err *err); /* any content */
    void (*give)(kk_dev *dev, uint8_t *base, size_t bytes);
    /* Between places in pages, in the order of operations; an error surfaces later. */
    void (*copy)(kk_dev *dev, uint8_t *to, const uint8_t *from, size_t n);
    /* Between a place in pages and host memory, whichever way; done when it returns. */
    kk_status (*move)(kk_dev *dev, void *to, const void *from, size_t n, kk_err *err);
} kk_page_ops;

typedef struct {
    kk_status (*keep)(kk_dev *dev, const kk_keep_args *a, kk_err *err);
    kk_status (*keep_scales)(kk_dev *dev, const kk_scales_args *a, kk_err *err);
} kk_latent_ops;

/* Sums over rows, of which a projection's closed form is made (train/sums.h), in float64: of
 * features that nearly depend on each other it wants more digits than float32 has.  Each sum is one
 * chain over the rows in order, rounded once a row, from what was there before.  So the bits do not
 * depend on how rows are cut into calls, and all devices have the same.
 *
 * sum[p][q] += (weight[r] a[r][p]) b[r][q], the product in parentheses rounded before.  Where a is
 * b, sums with p > q are copies of those with p < q. */
typedef struct {
    kk_buf *sum;          /* [n_a, n_b] float64 */
    const kk_buf *a, *b;  /* [n_rows, n_a], [n_rows, n_b] */
    const kk_buf *weight; /* [n_rows] float64; NULL: 1 */
    int32_t n_rows, n_a, n_b;
    bool doubles; /* a and b are float64; else float32 */
    bool across;  /* a is [n_a, n_rows] and b [n_b, n_rows]; without weights */
} kk_gram_args;

/* sum[at + p] += x[r][p]^2 */
typedef struct {
    kk_buf *sum; /* float64 */
    const kk_buf *x;
    size_t at;
    int32_t n_rows, dim;
} kk_squares_args;

typedef struct {
    kk_status (*gram)(kk_dev *dev, const kk_gram_args *a, kk_err *err);
    kk_status (*squares)(kk_dev *dev, const kk_squares_args *a, kk_err *err);
} kk_sum_ops;

/* Bytes of weights that will be loaded, as the file has them. */
typedef struct {
    int64_t experts, others;
} kk_expected;

/* Of a device since it was opened: what it was waited for, what it did the slow way, and what it
 * launched. */
typedef struct {
    int64_t syncs;   /* waits that left it without work */
    int64_t waits;   /* waits for something with more behind it */
    int64_t repeats; /* products of few rows that read their weights more than once */
    int64_t wgmma;   /* launches that only sm_90a has instructions for, by all devices */
} kk_dev_counts;

/* Puts recorded ids into a draft: ids[i] = record[at + i] for i < right, one that differs from it
 * at i = right, those of the draft behind it; nothing beyond the record.  ids begin at ids_at. */
typedef struct {
    kk_buf *ids;
    const kk_buf *record; /* [n_record] int32 */
    int32_t ids_at, n, n_record, right, vocab;
    int32_t at;          /* may be negative: before the record */
    const kk_buf *shift; /* as in kk_group, of at */
} kk_replay_args;

/* For tests and measurements; `sync` for the engine too. */
typedef struct {
    /* All that was asked for is done.  The engine asks for it after rows of a prompt on a device
     * that does not queue, so that what fails there is told before they are committed. */
    kk_status (*sync)(kk_dev *dev, kk_err *err);
    void (*counts)(const kk_dev *dev, kk_dev_counts *out);
    /* Weights that do not fit its memory; waits for it.  NULL: it has no others. */
    void (*offloaded)(kk_dev *dev, kk_offload *out);
    /* Bytes per second at which it reads a buffer of its own; NULL: as fast as the machine. */
    kk_status (*read_rate)(kk_dev *dev, size_t bytes, double *out, kk_err *err);
    /* kk_fault_after of a module that has an allocator of its own; NULL: it has none. */
    void (*fault_after)(int64_t n, bool forever);
    kk_status (*replay)(kk_dev *dev, const kk_replay_args *a, kk_err *err);
    /* Bytes in which it keeps so many values of a matrix of a type; NULL: as in the file. */
    int64_t (*stored)(kk_dtype type, int64_t values);
    /* Measures kk_dev_opts.exact; NULL: its kernels need no measurement.  *pages: why there are
     * none over K/V pages, where out->pages is 0. */
    kk_status (*measure_exact)(kk_dev *dev, kk_exact_rows *out, kk_err *pages, kk_err *err);
} kk_instruments;

typedef struct {
    const char *name;
    int32_t rows;    /* rows of a forward that suit it, where the caller does not say */
    bool queues;     /* operations return before they are done: it pays to enqueue rounds ahead */
    bool own_memory; /* weights are copied to it */
    bool angles;     /* where rows are evicted too, K of stored rows is rebuilt with rope_pos */
    int32_t sample_vocab; /* `choose` samples from rows of up to so many logits; 0: it does not */
    const kk_page_ops *pages;          /* NULL: K/V pages lie in ordinary memory */
    const kk_latent_ops *latents;      /* NULL: it keeps no latents and rebuilds no rows */
    const kk_sum_ops *sums;            /* NULL: it adds up no rows */
    const kk_instruments *instruments; /* never NULL */

    /* Whether this machine has one, asked before weights are made for it; NULL: it has. */
    kk_status (*usable)(kk_err *err);
    kk_status (*open)(kk_dev **out, const kk_dev_opts *opts, kk_err *err);
    void (*close)(kk_dev *dev); /* NULL is fine; free buffers and weights first */
    void (*describe)(const kk_dev *dev, kk_dev_facts *out);
    /* Whether it has kernels for a K/V format that exists; NULL: for all.  Operations on others are
     * refused by name. */
    bool (*stores)(kk_kv_format f);

    /* Before weights are loaded, so that those of experts may go elsewhere; refuses what
     * cannot fit.  NULL: it does not matter. */
    kk_status (*expect)(kk_dev *dev, const kk_expected *w, kk_err *err);
    /* Zeroed.  reserve: address space for something that grows; count what is used of it. */
    kk_status (*buf_new)(kk_dev *dev, kk_mem_category c, size_t bytes, kk_buf **out, kk_err *err);
    kk_status (*buf_reserve)(kk_dev *dev, size_t bytes, kk_buf **out, kk_err *err);
    /* So many bytes of a reserved buffer may be used from now on; what it holds stays. */
    kk_status (*buf_grow)(kk_dev *dev, kk_buf *b, size_t bytes, kk_err *err);
    void (*buf_free)(kk_dev *dev, kk_buf *b);
    kk_status (*write)(kk_dev *dev, kk_buf *b, size_t off, const void *src, size_t n, kk_err *err);
    kk_status (*read)(kk_dev *dev, const kk_buf *b, size_t off, void *dst, size_t n, kk_err *err);
    /* The CPU keeps a pointer to m->data; other devices copy. */
    kk_status (*weight_new)(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err);
    void (*weight_free)(kk_dev *dev, kk_weight *w);
    /* Optional.  Row `row` of w, one matrix, becomes the only row of m, which is of the type that w
     * was made of, in the order of operations; it waits for nothing.  The first call for a weight
     * may allocate.  Where weight_new keeps a pointer, what it points to is written. */
    kk_status (*weight_row)(kk_dev *dev, kk_weight *w, int64_t row, const kk_matrix *m,
                            kk_err *err);
    kk_status (*prepare)(kk_dev *dev, const kk_prepare_args *a, kk_err *err);

    kk_status (*embed)(kk_dev *dev, const kk_embed_args *a, kk_err *err);
    kk_status (*norm)(kk_dev *dev, const kk_norm_args *a, kk_err *err);
    kk_status (*linear)(kk_dev *dev, const kk_linear_args *a, kk_err *err);
    kk_status (*rope)(kk_dev *dev, const kk_rope_args *a, kk_err *err);
    kk_status (*store)(kk_dev *dev, const kk_store_args *a, kk_err *err);
    kk_status (*attend)(kk_dev *dev, const kk_attend_args *a, kk_err *err);
    kk_status (*residual)(kk_dev *dev, const kk_residual_args *a, kk_err *err);
    kk_status (*glu)(kk_dev *dev, const kk_glu_args *a, kk_err *err);
    kk_status (*route)(kk_dev *dev, const kk_route_args *a, kk_err *err);
    kk_status (*experts)(kk_dev *dev, const kk_experts_args *a, kk_err *err);
    kk_status (*ple)(kk_dev *dev, const kk_ple_args *a, kk_err *err);
    kk_status (*gather)(kk_dev *dev, const kk_gather_args *a, kk_err *err);
    kk_status (*softcap)(kk_dev *dev, const kk_softcap_args *a, kk_err *err);
    kk_status (*argmax)(kk_dev *dev, const kk_argmax_args *a, kk_err *err);
    kk_status (*ids)(kk_dev *dev, const kk_ids_args *a, kk_err *err);
    /* Optional, and called through kk_layer_run and kk_head_run.  *taken is false before: a device
     * that leaves it so has done nothing, and the small operations follow.  What it takes has the
     * bits that they would have had. */
    kk_status (*layer)(kk_dev *dev, const kk_layer_args *a, bool *taken, kk_err *err);
    kk_status (*head)(kk_dev *dev, const kk_head_args *a, bool *taken, kk_err *err);

    /* *ticket: what to ask for; good until KK_PICKS choices later. */
    kk_status (*choose)(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err);
    /* *seconds: which the device worked on what was queued for this choice, by its own clock; 0
     * where operations are done when they return. */
    kk_status (*picked)(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                        kk_err *err);
    /* Optional, both: a part of the work before the next choice that is timed apart, from a call
     * with ends false to one with ends true, each of which starts what is queued; and the seconds
     * of that part, once the choice was picked. */
    kk_status (*lap)(kk_dev *dev, bool ends, kk_err *err);
    double (*lap_s)(kk_dev *dev, int64_t ticket);
} kk_backend;

/* A failure that says that a device has no such K/V format. */
kk_status kk_no_kv_format(const char *device, kk_kv_format f, kk_err *err);
/* Whether the device has it, and that failure where it has not. */
kk_status kk_backend_stores(const kk_backend *b, kk_kv_format f, kk_err *err);

/* "cpu", which NULL is too; others are modules, libkakeya_NAME.  NULL: there is none. */
const kk_backend *kk_backend_named(const char *name);
/* The same, with the reason where there is none. */
kk_status kk_backend_find(const kk_backend **out, const char *name, kk_err *err);
/* Whether there is one to be found, which may yet not load. */
bool kk_backend_is_there(const char *name);
/* A device of the program's own, found by its name from now on; NULL: none any more.  Before any
 * engine is opened. */
void kk_backend_add(const kk_backend *be);

#endif
