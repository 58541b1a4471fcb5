/* device.h - the CPU device: its threads, its kernels and the scratch its operations share.
 *
 * Scratch is taken while the model is being set up (prepare), never by an operation. */
#ifndef KK_CPU_DEVICE_H
#define KK_CPU_DEVICE_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/key_cache.h"
#include "core/threads.h"

struct kk_buf {
    void *data;
    size_t bytes;
    kk_mem_category category;
    bool reserved; /* address space only */
};

struct kk_weight {
    kk_matrix m;
    size_t row_bytes;
    size_t row_groups; /* affine types: groups of a row; else 0 */
};

enum { KK_ANGLE_PAGES = 128, KK_ROUNDED_PAGES = 16 };

/* Memory that only grows, while being prepared. */
typedef struct {
    void *data;
    size_t bytes;
} kk_scratch;

/* Tiles of attention by how their rows were read. */
typedef struct {
    int64_t in_place, converted;
} kk_attend_counts;

struct kk_dev {
    const kk_kernels *k;
    kk_threads *threads;
    kk_mem *mem;
    int32_t max_rows;
    kk_scratch acts;   /* rounded activations */
    kk_scratch thread; /* one piece per thread: a strip's panel, or an attention tile's scratch */
    size_t thread_stride;
    kk_scratch slot_mid, slot_act, slot_out; /* per (row, expert slot) */
    kk_scratch slot_list;                    /* rows by expert */
    kk_scratch attend_state; /* running softmax of all rows and query heads of an attention */
    kk_scratch batch;        /* pages put together by attention; see evicted.h */
    kk_scratch pairs;        /* attention's rows and query heads in latent space */
    kk_scratch angles;       /* of pages, kept until others take their place */
    size_t window_angles;    /* bytes of them for layers with a window; the rest is for others */
    struct kk_angle_page {
        kk_rope rope;
        int64_t page;
    } angle_pages[2][KK_ANGLE_PAGES]; /* with a window, without; rope.n_rot 0: none */
    kk_scratch rounded; /* latents of pages as rounded activations, kept within a forward: */
    struct kk_rounded_page {
        const uint8_t *latents;
        int64_t forward; /* 0: none */
        int32_t lo, hi;  /* rows */
    } rounded_pages[KK_ROUNDED_PAGES];
    kk_attend_counts attends;
    kk_key_cache keys;
    int64_t latents[2]; /* passes over latents: as floats; where they lie */
    kk_pick picks[KK_PICKS][KK_PICK_ROWS];
    int64_t tickets;            /* choices made */
    struct kk_sampler *sampler; /* for sampled choices, from the first of them on; else NULL */
    int32_t sampler_vocab;
};

extern const kk_backend kk_cpu_backend;

static inline float *kk_buf_f(const kk_buf *b) { return b->data; }
static inline void *kk_thread_scratch(const kk_dev *dev, int32_t thread) {
    return (uint8_t *)dev->thread.data + (size_t)thread * dev->thread_stride;
}
static inline const uint8_t *kk_weight_row(const kk_weight *w, int64_t mat, int64_t row) {
    return (const uint8_t *)w->m.data + (size_t)(mat * w->m.n_out + row) * w->row_bytes;
}

/* Scales and biases of a row of an affine type; else nothing. */
static inline kk_planes kk_weight_planes(const kk_weight *w, int64_t mat, int64_t row) {
    if (!w->row_groups) return (kk_planes){0};
    return kk_planes_at(w->m.planes, (size_t)(mat * w->m.n_out + row) * w->row_groups);
}
/* Bytes from a row's scales, or biases, to the next row's; 0: there are none. */
static inline size_t kk_weight_plane_stride(const kk_weight *w) {
    return w->row_groups * (size_t)kk_dtype_get(w->m.planes.type)->bytes;
}
/* Row `row` of the first matrix as floats. */
void kk_weight_floats(const kk_weight *w, int64_t row, float *y);

/* Rows of so many values that a thread takes at a time: to share out less than a microsecond's work
 * would take longer than to do it. */
static inline int64_t kk_cpu_row_grain(int64_t width) { return width < 8192 ? 8192 / width : 1; }

/* Rounds rows of n floats into the device's activation scratch when `round` is set, and gives
 * both views of them. */
kk_acts kk_cpu_acts(kk_dev *dev, const float *x, int32_t n_rows, int64_t n, bool round);

/* Counts `tiles` tiles like t. */
static inline void kk_cpu_count_tiles(kk_dev *dev, const kk_attend_tile *t, int64_t tiles) {
    *(kk_attends_in_place(dev->k, t) ? &dev->attends.in_place : &dev->attends.converted) += tiles;
}

void kk_cpu_frequencies(const kk_rope *p, float *freq); /* [n_rot] */
/* A row of a head, rounded to the slot's format; page: where the slot's offsets count from. */
void kk_cpu_put_row(const kk_dev *dev, const kk_kv_slot *slot, uint8_t *page, size_t off,
                    int32_t head, int64_t row, const float *x);
kk_status kk_cpu_scratch_fit(kk_dev *dev, kk_scratch *s, size_t bytes, kk_err *err);
kk_status kk_cpu_fit_threads(kk_dev *dev, size_t bytes,
                             kk_err *err); /* bytes of each thread's piece */

kk_status kk_cpu_prepare_evicted(kk_dev *dev, const kk_kv_slot *slot, int32_t n_head, int32_t rank,
                                 kk_err *err);
kk_status kk_cpu_keep(kk_dev *dev, const kk_keep_args *a, kk_err *err);
kk_status kk_cpu_keep_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err);
kk_status kk_cpu_gram(kk_dev *dev, const kk_gram_args *a, kk_err *err);
kk_status kk_cpu_squares(kk_dev *dev, const kk_squares_args *a, kk_err *err);
kk_status kk_cpu_linear(kk_dev *dev, const kk_linear_args *a, kk_err *err);
kk_status kk_cpu_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err);
kk_status kk_cpu_route(kk_dev *dev, const kk_route_args *a, kk_err *err);
kk_status kk_cpu_store(kk_dev *dev, const kk_store_args *a, kk_err *err);
kk_status kk_cpu_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err);
kk_status kk_cpu_embed(kk_dev *dev, const kk_embed_args *a, kk_err *err);
kk_status kk_cpu_norm(kk_dev *dev, const kk_norm_args *a, kk_err *err);
kk_status kk_cpu_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err);
kk_status kk_cpu_residual(kk_dev *dev, const kk_residual_args *a, kk_err *err);
kk_status kk_cpu_glu(kk_dev *dev, const kk_glu_args *a, kk_err *err);
kk_status kk_cpu_ple(kk_dev *dev, const kk_ple_args *a, kk_err *err);
kk_status kk_cpu_gather(kk_dev *dev, const kk_gather_args *a, kk_err *err);
kk_status kk_cpu_softcap(kk_dev *dev, const kk_softcap_args *a, kk_err *err);
kk_status kk_cpu_argmax(kk_dev *dev, const kk_argmax_args *a, kk_err *err);
kk_status kk_cpu_ids(kk_dev *dev, const kk_ids_args *a, kk_err *err);
kk_status kk_cpu_replay(kk_dev *dev, const kk_replay_args *a, kk_err *err);
kk_status kk_cpu_choose(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err);
kk_status kk_cpu_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                        kk_err *err);

#endif
