/* cuda_device.h - the CUDA device: its memory, and the queue of operations that a forward fills.
 *
 * Operations are recorded, and launched when a result is read (read, argmax, sync) or a buffer
 * written (write). What changes from token to token (ids, positions, page tables) goes to a control
 * block, which one copy brings to the device; the rest of a decode step is the same every time, is
 * recognised by comparing the queue with earlier ones, and is replayed as a CUDA graph. */
#ifndef KK_CUDA_DEVICE_H
#define KK_CUDA_DEVICE_H

#include "backend/cuda/dense_ops.h"
#include "backend/cuda/evicted_ops.h"
#include "backend/cuda/gemm_ops.h"
#include "backend/cuda/sample_ops.h"
#include "backend/layer.h"

enum {
    KK_CUDA_GRAPHS = 48,       /* graphs kept */
    KK_CUDA_GRAPH_OPS = 1024,  /* most operations of a graph */
    KK_CUDA_GRAPH_ROWS = 64,   /* longer chunks of a prompt seldom repeat, and are not captured */
    KK_CUDA_CONTROLS = 4,      /* control blocks in flight */
    KK_CUDA_CONTROL = 8 << 20, /* bytes of a control block */
    KK_CUDA_OPS = 4096,        /* most queued operations; one more flushes */
    KK_CUDA_VIEWS = 64,        /* most distinct row sets of a queue */
    KK_CUDA_FLOWS = 8,         /* regions of dev->z for rows between a fused layer's stages */
    KK_CUDA_STAGE = 32 << 20,  /* bytes of each of two staging buffers for weights */
    KK_CUDA_BRING = 64 << 10,  /* bytes; a larger control block is copied by the copy engine */
    KK_CUDA_GROW = 1 << 20,    /* first size of a reserved buffer, in bytes */
    KK_CUDA_SLACK =
        128 << 10, /* bytes beyond it: attention reads the angles of a page to its end */
    KK_CUDA_PARTS_BYTES = 192 << 20, /* scratch of attention's pages */
    KK_CUDA_EXPERT_ROWS = 2048,      /* rows whose experts are computed in one launch */
    KK_CUDA_DECODERS = 768,          /* most decoders in lane order: three of each layer */
    KK_CUDA_ANGLES = 8,              /* most tables of angles that are kept for them */
    KK_CUDA_LATENT_ROWS = 256,       /* most rows of a launch of attention over latents */
    KK_CUDA_ROW_PLACES = 64,         /* rows of weights that may be on their way to the device */
    KK_CUDA_ROW_BYTES = 32 << 10,    /* most bytes of one */
    KK_CUDA_ROWS_AT = 16,            /* bytes of the slot before the rows of a sampled choice */
};

/* Rows of weights on their way to the device (kk_backend.weight_row), one per place: pinned memory
 * and its copy on the device.  Taken by the first such row. */
typedef struct {
    uint8_t *host, *device;               /* [KK_CUDA_ROW_PLACES][KK_CUDA_ROW_BYTES] */
    cudaEvent_t free[KK_CUDA_ROW_PLACES]; /* the place's row has been converted */
    int32_t at;
} kk_cuda_rows_in;

struct kk_buf {
    void *data; /* on the device */
    size_t bytes;
    kk_mem_category category;
    size_t most; /* not 0: reserved, may grow up to this many bytes; its user counts them */
};

struct kk_weight {
    kk_cu_weight w;
    size_t bytes;
    int32_t placed; /* 1 + its number in dev->offload; 0: it lies on the device */
};

typedef enum {
    KK_CUDA_EMBED,
    KK_CUDA_NORM,
    KK_CUDA_LINEAR,
    KK_CUDA_ROPE,
    KK_CUDA_STORE,
    KK_CUDA_ATTEND,
    KK_CUDA_RESIDUAL,
    KK_CUDA_GLU,
    KK_CUDA_ROUTE,
    KK_CUDA_EXPERTS,
    KK_CUDA_PLE,
    KK_CUDA_GATHER,
    KK_CUDA_SOFTCAP,
    KK_CUDA_ARGMAX,
    KK_CUDA_CHOOSE,
    KK_CUDA_IDS,
    KK_CUDA_REPLAY,
    KK_CUDA_SAMPLE, /* a choice that is not greedy in all rows; its arguments are `choose` */
    KK_CUDA_KEEP,
    KK_CUDA_SCALE,
    KK_CUDA_EVICTED, /* attention where rows are evicted */
    KK_CUDA_LAYER,
    KK_CUDA_EVICTED_LAYER, /* a layer whose rows are evicted */
    KK_CUDA_HEAD,          /* always directly after a layer of up to 16 rows */
} kk_cuda_kind;

/* What rows see where some are evicted. */
typedef struct {
    int32_t gone;  /* 1: some row sees rows that have to be rebuilt */
    int32_t first; /* 1: some row sees page 0, which a sink that lies apart completes */
} kk_cuda_visible;

/* A recorded operation: its arguments, with host memory replaced by offsets in the control block.
 * Zeroed before it is filled, so that equal operations have equal bytes. */
typedef struct {
    kk_cuda_kind kind;
    int32_t view;   /* index of its rows in the queue's views */
    size_t control; /* offset of its ids, positions or row numbers */
    union {
        kk_embed_args embed;
        kk_norm_args norm;
        kk_linear_args linear;
        kk_rope_args rope;
        kk_store_args store;
        kk_attend_args attend;
        kk_residual_args residual;
        kk_glu_args glu;
        kk_route_args route;
        kk_experts_args experts;
        kk_ple_args ple;
        kk_gather_args gather;
        kk_softcap_args softcap;
        kk_argmax_args argmax;
        kk_choose_args choose;
        kk_ids_args ids;
        kk_replay_args replay;
        kk_layer_args layer; /* its rows, evicted and observer are NULL */
        kk_head_args head;
        kk_keep_args keep;
        kk_scales_args scales;
        struct {
            kk_attend_args attend; /* its evicted is NULL */
            kk_evicted how;        /* without diagnosis */
            kk_cuda_visible sees;
        } evicted;
        struct {
            kk_layer_args layer; /* where `layer` is */
            kk_evicted how;
            kk_cuda_visible sees;
        } evicted_layer;
    } a;
} kk_cuda_op;

/* A forward's rows as they lie in the control block. */
typedef struct {
    int32_t n_rows, n_groups, tiles, tile_most, page_cap;
    size_t pos, table, groups, tile, pages; /* offsets in the control block */
    size_t sinks, latents; /* the same, of sinks that lie apart and pages of latents; 0: none */
    const kk_buf *shift;   /* what is added to its positions on the device; NULL: nothing */
} kk_cuda_view;

typedef struct {
    int32_t n_ops, n_views;
    kk_cuda_op *ops;     /* [KK_CUDA_OPS] */
    kk_cuda_view *views; /* [KK_CUDA_VIEWS] */
    size_t control;      /* bytes used */
} kk_cuda_queue;

typedef struct {
    int32_t n_ops, n_views; /* n_ops 0: unused */
    kk_cuda_op *ops;        /* [KK_CUDA_GRAPH_OPS], part of dev->graph_ops */
    kk_cuda_view *views;    /* [KK_CUDA_VIEWS] */
    cudaGraphExec_t exec;   /* NULL: queued once so far, not captured */
    int64_t used;           /* dev->clock of the last use */
    bool counts;            /* it counts what it reads of experts (cuda_offload.h) */
} kk_cuda_graph;

/* A decoder of evicted rows in lane order. */
typedef struct {
    const kk_weight *w; /* NULL: unused */
    kk_cu_order order;
    int32_t head_dim, half, wide;
    void *data;
    size_t bytes;
} kk_cuda_decoder;

/* A table of kk_cu_angles. */
typedef struct {
    kk_rope rope;
    int32_t wide;
    void *data; /* NULL: unused */
    size_t bytes;
} kk_cuda_angles;

struct kk_dev {
    kk_mem *mem;
    int32_t max_rows, sms;
    int32_t shared; /* bytes of shared memory that a block may take */
    char name[64];
    cudaStream_t stream;
    kk_cuda_queue q;
    uint8_t *control_host[KK_CUDA_CONTROLS]; /* pinned */
    cudaEvent_t control_free[KK_CUDA_CONTROLS];
    int32_t control_at;
    uint8_t *control; /* on the device */
    kk_cuda_graph graphs[KK_CUDA_GRAPHS];
    kk_cuda_op *graph_ops; /* [KK_CUDA_GRAPHS][KK_CUDA_GRAPH_OPS]: the graphs' ops */
    kk_cuda_view *graph_views;
    int64_t clock;
    int64_t replays, runs; /* flushes that replayed a graph, and other flushes */
    kk_status lost;        /* status of queued work whose failure has not been reported yet */
    kk_dev_counts counts;
    int64_t free_at_open, weights;   /* bytes; of the weights that are not placed in pieces */
    int64_t held, limit;             /* bytes taken of its memory; and allowed, 0: all */
    struct kk_cuda_offload *offload; /* NULL: all weights lie on the device */
    /* greedy choices of the last KK_PICKS tickets */
    kk_cu_pick *picks;             /* [KK_PICKS][KK_CU_CHOOSE_ROWS], pinned */
    kk_cu_logprobs *pick_logprobs; /* as picks */
    cudaEvent_t pick_from[KK_PICKS],
        pick_done[KK_PICKS];      /* events before and after the work of a ticket */
    int64_t pick_flush[KK_PICKS]; /* dev->clock of the flush that computes them */
    bool pick_drafts[KK_PICKS];   /* they were compared with a draft */
    cudaEvent_t lap[KK_PICKS]
                   [2]; /* begin and end of the work before a choice that is timed apart */
    bool lapped[KK_PICKS];
    kk_cu_top_scratch *top_scratch;
    int64_t tickets;
    kk_cu_choose_scratch *choose_scratch;
    kk_cu_sample_scratch *sample_scratch;
    int32_t sample_blocks[2]; /* blocks that run at once: sample_ops.h */
    bool fuse, early;
    struct kk_cuda_stage *stage; /* staging buffers, while weights are being loaded */
    kk_cuda_rows_in rows_in;
    /* scratch that operations share; they run in stream order */
    struct {
        void *data;
        size_t bytes;
    } x, act, logits, parts, z, each, lists, barrier;
    struct {
        void *data;
        size_t bytes;
    } sinks, sums, lifted, latent_sums, stored_weight; /* of attention where rows are evicted */
    kk_cuda_decoder *decoders;                         /* [KK_CUDA_DECODERS] */
    kk_cuda_angles angles[KK_CUDA_ANGLES];
    kk_cu_mega *mega; /* the persistent kernel's parameter, as it is being filled */
};

/* Reserves bytes in the control block, which the caller writes; NULL if they do not fit. */
void *kk_cuda_reserve(kk_dev *dev, size_t bytes, size_t *off);
/* What the rows of a sampled choice ask for, in the control block. */
kk_status kk_cuda_put_rows(kk_dev *dev, const kk_choose_args *a, int32_t slot, size_t *off,
                           kk_err *err);
bool kk_cuda_is_sampled(const kk_choose_args *a);

kk_status kk_cuda_fail(kk_err *err, cudaError_t e, const char *what);
/* Launches what is queued.  Errors of the work itself show at the next synchronisation. */
kk_status kk_cuda_flush(kk_dev *dev, kk_err *err);
kk_status kk_cuda_sync(kk_dev *dev, kk_err *err);
/* kk_cuda_sync for callers that cannot report an error: the next flush reports it. */
void kk_cuda_settle(kk_dev *dev);
/* Drops graphs that contain this pointer, a buffer's or a weight's, before it is freed: the address
 * may soon be another's. */
void kk_cuda_forget(kk_dev *dev, const void *p);

/* Launches recorded operations. */
kk_status kk_cuda_plan(kk_dev *dev, const kk_cuda_op *ops, int32_t n, const kk_cuda_view *views,
                       int32_t n_views, kk_err *err);
/* Whether a fused kernel supports this layer with the rows of v; and the head after such a
 * layer. */
bool kk_cuda_takes_layer(const kk_dev *dev, const kk_layer_args *a, const kk_cuda_view *v);
bool kk_cuda_takes_head(const kk_dev *dev, const kk_head_args *h, const kk_cuda_op *before,
                        const kk_cuda_view *v);
/* Launches the layer at ops[0] together with the layers and the head that follow it; *used of n
 * operations. */
kk_status kk_cuda_run_layers(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err);
/* The same as a sequence of kernels: dense layers of any number of rows; layers of mixed experts of
 * more rows than a decode kernel takes, and of any number where rows are evicted. */
bool kk_cuda_takes_prompt(const kk_dev *dev, const kk_layer_args *a, int32_t n_rows);
kk_status kk_cuda_run_prompt(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err);
kk_cu_rows kk_cuda_rows(const kk_dev *dev, const kk_cuda_view *v);
bool kk_cuda_stores(kk_kv_format f);
kk_cu_slot kk_cuda_slot(const kk_kv_slot *s); /* the format must be one that kk_cuda_stores */
kk_cu_at kk_cuda_at(const kk_dev *dev);
/* A product of any number of rows, swizzled where they are more than 16: in one launch, unless few
 * rows are too wide for that.  sliced: whether it lies in dev->parts instead of its place, in K
 * slices that are still to be added; NULL: they are added. */
kk_status kk_cuda_multiply(kk_dev *dev, const kk_cu_linear *l, bool *sliced, kk_err *err);
kk_status kk_cuda_linear_now(kk_dev *dev, const kk_linear_args *a, kk_err *err);
/* The same of rows that lie in dev->x as bf16. */
kk_status kk_cuda_linear_rounded(kk_dev *dev, const kk_linear_args *a, kk_err *err);
/* Launches ops[0] and those after it that go with it as one kernel (cuda_pairs.c); *used of n
 * operations, 0: none. */
kk_status kk_cuda_run_pairs(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                            const kk_cuda_view *views, int32_t *used, kk_err *err);
kk_status kk_cuda_store_now(kk_dev *dev, const kk_store_args *a, const kk_cuda_view *v,
                            kk_err *err);
/* Converts rows to bf16 in dev->x, swizzled for tiled products or not. */
kk_status kk_cuda_round(kk_dev *dev, const float *x, int32_t n_rows, int32_t dim, int32_t pitch,
                        bool swizzled, kk_err *err);
/* Experts of bf16 rows at x (swizzled where they are tiled).  route: the router whose logits they
 * choose from; NULL: the choice is known. */
kk_status kk_cuda_experts_now(kk_dev *dev, const kk_experts_args *a, const kk_route_args *route,
                              const uint16_t *x, kk_err *err);
/* The router over normed bf16 rows at x (swizzled where they are more than 16); then the top-k,
 * unless that is left to the experts. */
kk_status kk_cuda_choose_now(kk_dev *dev, const kk_route_args *a, const uint16_t *x, bool later,
                             kk_err *err);
/* Whether so few rows choose from so few experts that these choose faster on the way. */
bool kk_cuda_chooses_later(const kk_route_args *a);
kk_status kk_cuda_attend_now(kk_dev *dev, const kk_attend_args *a, const kk_cuda_view *v,
                             float *out, uint16_t *out_bf16, int32_t pitch, kk_err *err);
/* The arguments of attention, except its outputs. */
kk_cu_attend kk_cuda_attend_args(const kk_dev *dev, const kk_attend_args *a, const kk_cuda_view *v);
kk_cu_store kk_cuda_store_args(const kk_dev *dev, const kk_store_args *a, const kk_cuda_view *v);
/* Attention over the rows that are stored. how: which ones are not; sums: where m and l of its
 * softmax go, NULL: nowhere. */
kk_status kk_cuda_attend_stored(kk_dev *dev, const kk_attend_args *a, const kk_evicted *how,
                                kk_cuda_visible sees, const kk_cuda_view *v, float *sums,
                                kk_err *err);

/* Rows that are evicted (cuda_evicted.c). */
kk_status kk_cuda_prepare_evicted(kk_dev *dev, const kk_prepare_args *a, kk_err *err);
/* What an operation needs that is made when it is first recorded. */
kk_status kk_cuda_ready_evicted(kk_dev *dev, const kk_attend_args *a, kk_err *err);
kk_status kk_cuda_ready_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err);
/* Memory for so many sessions' sinks in this slot. */
kk_status kk_cuda_ready_sinks(kk_dev *dev, const kk_kv_slot *slot, int32_t groups, kk_err *err);
/* Puts sinks that lie apart into copies of their pages, and has attention read these. */
kk_status kk_cuda_join_sinks(kk_dev *dev, const kk_attend_args *a, const kk_cuda_view *v,
                             kk_cu_attend *t, kk_err *err);
kk_status kk_cuda_keep_now(kk_dev *dev, const kk_keep_args *a, const kk_cuda_view *v, kk_err *err);
/* Scales of consecutive layers, in one launch; *used of n operations. */
kk_status kk_cuda_scales_now(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err);
/* What comes after attention in a layer. */
typedef struct {
    uint16_t *rounded; /* its rows once more as bf16, swizzled or not; where some are gone */
    bool swizzled;
    const kk_weight *next; /* read next, by few rows; NULL: nobody says */
} kk_cuda_then;
/* then NULL: what comes after is not known. */
kk_status kk_cuda_evicted_now(kk_dev *dev, const kk_attend_args *a, const kk_evicted *how,
                              kk_cuda_visible sees, const kk_cuda_then *then, const kk_cuda_view *v,
                              kk_err *err);
/* Frees what was made from a weight; all of it, where w is NULL. */
void kk_cuda_drop_decoders(kk_dev *dev, const void *w);
kk_status kk_cuda_keep(kk_dev *dev, const kk_keep_args *a, kk_err *err);
kk_status kk_cuda_keep_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err);

/* Sums over rows, launched at once behind what is queued (cuda_sums.c). */
kk_status kk_cuda_gram(kk_dev *dev, const kk_gram_args *a, kk_err *err);
kk_status kk_cuda_squares(kk_dev *dev, const kk_squares_args *a, kk_err *err);

kk_status kk_cuda_embed(kk_dev *dev, const kk_embed_args *a, kk_err *err);
kk_status kk_cuda_norm(kk_dev *dev, const kk_norm_args *a, kk_err *err);
kk_status kk_cuda_linear(kk_dev *dev, const kk_linear_args *a, kk_err *err);
kk_status kk_cuda_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err);
kk_status kk_cuda_store(kk_dev *dev, const kk_store_args *a, kk_err *err);
kk_status kk_cuda_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err);
kk_status kk_cuda_residual(kk_dev *dev, const kk_residual_args *a, kk_err *err);
kk_status kk_cuda_glu(kk_dev *dev, const kk_glu_args *a, kk_err *err);
kk_status kk_cuda_route(kk_dev *dev, const kk_route_args *a, kk_err *err);
kk_status kk_cuda_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err);
kk_status kk_cuda_ple(kk_dev *dev, const kk_ple_args *a, kk_err *err);
kk_status kk_cuda_gather(kk_dev *dev, const kk_gather_args *a, kk_err *err);
kk_status kk_cuda_softcap(kk_dev *dev, const kk_softcap_args *a, kk_err *err);
kk_status kk_cuda_argmax(kk_dev *dev, const kk_argmax_args *a, kk_err *err);
kk_status kk_cuda_ids(kk_dev *dev, const kk_ids_args *a, kk_err *err);
kk_status kk_cuda_replay(kk_dev *dev, const kk_replay_args *a, kk_err *err);
kk_status kk_cuda_lap(kk_dev *dev, bool ends, kk_err *err);
double kk_cuda_lap_s(kk_dev *dev, int64_t ticket);
kk_status kk_cuda_layer(kk_dev *dev, const kk_layer_args *a, bool *taken, kk_err *err);
kk_status kk_cuda_head(kk_dev *dev, const kk_head_args *a, bool *taken, kk_err *err);
kk_status kk_cuda_choose(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err);
kk_status kk_cuda_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                         kk_err *err);
/* Makes so many bytes of a reserved buffer usable; where it moves, all graphs are dropped. */
kk_status kk_cuda_grow(kk_dev *dev, kk_buf *b, size_t bytes, kk_err *err);
/* Makes scratch that large; where it moves, all graphs are dropped. */
kk_status kk_cuda_fit(kk_dev *dev, void **data, size_t *have, size_t bytes, kk_err *err);
kk_status kk_cuda_take_for(kk_dev *dev, kk_mem_category c, size_t bytes, void **out, kk_err *err);
void kk_cuda_give_for(kk_dev *dev, kk_mem_category c, void *p, size_t bytes);
/* Allocates device memory, counted as workspace. */
kk_status kk_cuda_take(kk_dev *dev, size_t bytes, void **out, kk_err *err);
void kk_cuda_give(kk_dev *dev, void *p, size_t bytes); /* NULL is fine */
/* The same without an account; pieces of experts' weights give way.  Nothing else calls cudaMalloc
 * or cudaFree. */
kk_status kk_cuda_hold(kk_dev *dev, size_t bytes, const char *what, void **out, kk_err *err);
void kk_cuda_let_go(kk_dev *dev, void *p, size_t bytes); /* NULL is fine */
kk_status kk_cuda_weight_new(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err);
void kk_cuda_weight_free(kk_dev *dev, kk_weight *w);
kk_status kk_cuda_weight_row(kk_dev *dev, kk_weight *w, int64_t row, const kk_matrix *m,
                             kk_err *err);
void kk_cuda_drop_places(kk_dev *dev); /* of such rows; nothing may be queued */
/* Frees the staging buffers when weights are loaded. */
void kk_cuda_drop_stage(kk_dev *dev);

static inline float *kk_cuda_f(const kk_buf *b) { return b ? b->data : NULL; }

#define KK_CUDA_TRY(call, what, err)                                                               \
    do {                                                                                           \
        const cudaError_t e_ = (call);                                                             \
        if (e_ != cudaSuccess) return kk_cuda_fail(err, e_, what);                                 \
    } while (0)

#endif
