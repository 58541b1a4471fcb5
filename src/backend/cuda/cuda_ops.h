/* cuda_ops.h - the interface between the C side of the CUDA backend and its kernels: structs of
 * device pointers, one launcher each.
 *
 * Both languages read this file.  Launchers return the launch's error; kernels run in stream order.
 * `early` marks launches that may begin before the one before has ended (programmatic dependent
 * launch), which every kernel here supports. */
#ifndef KK_CUDA_OPS_H
#define KK_CUDA_OPS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KK_CU_SHARED_LEAST = 99 * 1024 }; /* bytes of shared memory that a block must have */

/* How a strip's K steps lie in device memory: as bf16, or packed (packed.cuh), as signed codes of
 * 4, 5, 6 or 8 bits with a scale (I), or unsigned ones with a scale and a minimum (A). */
enum {
    KK_W_BF16,
    KK_W_I4,
    KK_W_I5,
    KK_W_I6,
    KK_W_I8,
    KK_W_A4,
    KK_W_A5,
    KK_W_A8,
    KK_W_ENCODINGS,
};
/* 16-byte words of a K step of a strip. */
#define KK_CU_WORDS(encoding)                                                                      \
    ((encoding) == KK_W_BF16 ? 32                                                                  \
     : (encoding) == KK_W_I4 ? 9                                                                   \
     : (encoding) == KK_W_I5 ? 11                                                                  \
     : (encoding) == KK_W_I6 ? 14                                                                  \
     : (encoding) == KK_W_I8 ? 17                                                                  \
     : (encoding) == KK_W_A4 ? 10                                                                  \
     : (encoding) == KK_W_A5 ? 12                                                                  \
                             : 18)

/* A weight as the kernels read it: n_mat matrices [n_out][n_in] in strips of 8 outputs
 * (stream.cuh), n_out padded to 16 and n_in to whole steps of 32.  In bf16, one to three planes
 * whose sum is the weight; packed, one. */
typedef struct {
    const void *data;
    int64_t n_mat, n_out, n_in;
    int32_t strips, wrap, planes; /* wrap: K steps of one plane */
    int32_t encoding, words;      /* words: of 16 bytes, in a K step of a strip */
} kk_cu_weight;

typedef struct {
    cudaStream_t stream;
    int32_t sms;
    bool early;
    int32_t shared; /* bytes of shared memory that a block may take */
} kk_cu_at;

/* ---- rows -------------------------------------------------------------------------------- */

typedef struct {
    float *out;
    kk_cu_weight table;
    const int32_t *token; /* [n_rows], device memory */
    int32_t n_rows;
    float scale;
} kk_cu_embed;
cudaError_t kk_cu_run_embed(kk_cu_at at, const kk_cu_embed *a);

/* x = (x + norm(y2; w)) * scale with y2 = norm(a; wa) + norm(b; wb), or y2 = a where b is NULL; x
 * is unchanged where a is NULL. Then z = norm(x; w1) as f32 (zf) and bf16 (z1), and norms with
 * other weights as bf16: z2, and z3 times root.  Rows are [n_rows][dim]; any output may be NULL. */
typedef struct {
    float *x;
    const float *a, *b, *wa, *wb, *w;
    float scale, eps, root;
    float *zf;
    uint16_t *z1, *z2, *z3;
    const float *w1, *w2, *w3;
    int32_t n_rows, dim, pitch;
    bool
        swizzled; /* bf16 rows in the layout that kk_cu_run_gemm reads (kk_swizzled in arith.cuh) */
} kk_cu_between;
cudaError_t kk_cu_run_between(kk_cu_at at, const kk_cu_between *a);

typedef struct {
    float *out;
    const float *x, *w; /* w NULL: no weight */
    int32_t n_rows, dim;
    float eps;
} kk_cu_norm;
cudaError_t kk_cu_run_norm(kk_cu_at at, const kk_cu_norm *a);

typedef struct {
    float *x;
    const float *a, *w;
    int32_t n_rows, dim;
    float eps, scale;
} kk_cu_residual;
cudaError_t kk_cu_run_residual(kk_cu_at at, const kk_cu_residual *a);

typedef struct {
    float *out;
    const float *gate, *up;
    int32_t n_rows, dim, up_stride, up_offset, silu;
} kk_cu_glu;
cudaError_t kk_cu_run_glu(kk_cu_at at, const kk_cu_glu *a);

typedef struct {
    float *table;
    int64_t n;
    const int64_t *pos; /* device memory: the table's first row, then n positions */
    float theta, factor;
    int32_t n_rot, head_dim;
} kk_cu_rope;
enum { KK_CU_ROPES = 4 };
/* Up to KK_CU_ROPES tables in one launch. */
cudaError_t kk_cu_run_ropes(kk_cu_at at, const kk_cu_rope *a, int n);

typedef struct {
    float *out;
    const float *proj, *w;
    kk_cu_weight table;
    const int32_t *token;
    int32_t n_rows, n_layer, dim;
    float proj_scale, scale, eps;
} kk_cu_ple;
cudaError_t kk_cu_run_ple(kk_cu_at at, const kk_cu_ple *a);

typedef struct {
    float *out;
    const float *x;
    const int32_t *row; /* device; NULL: first, first + 1, ... */
    int32_t n, dim, first;
    const size_t *out_at; /* device */
    size_t out_stride;
} kk_cu_gather;
cudaError_t kk_cu_run_gather(kk_cu_at at, const kk_cu_gather *a);

typedef struct {
    float *x;
    size_t n;
    float cap;
} kk_cu_softcap;
cudaError_t kk_cu_run_softcap(kk_cu_at at, const kk_cu_softcap *a);

typedef struct {
    int32_t *out; /* device */
    const float *x;
    int32_t n_rows, dim, banned;
} kk_cu_argmax;
cudaError_t kk_cu_run_argmax(kk_cu_at at, const kk_cu_argmax *a);

/* Greedy choices and digests of rows (core/digest.h). Every row is divided among blocks; the last
 * of them to finish merges their results. */
enum { KK_CU_CHOOSE_BLOCKS = 64, KK_CU_CHOOSE_ROWS = 32 };
typedef struct {
    int32_t token;
    int32_t broken;
    uint64_t digest;
    int32_t drafted; /* written where a draft is compared alone */
    int32_t unused;
} kk_cu_pick; /* the fields of kk_pick */
typedef struct {
    struct {
        uint64_t sum;
        float best;
        int32_t at, broken;
    } part[KK_CU_CHOOSE_ROWS][KK_CU_CHOOSE_BLOCKS];
    uint32_t done[KK_CU_CHOOSE_ROWS]; /* blocks that finished a row; zero between launches */
} kk_cu_choose_scratch;
typedef struct {
    int32_t *token;      /* [n_rows] */
    kk_cu_pick *ring;    /* [slots][KK_CU_CHOOSE_ROWS], pinned host memory mapped into the device */
    const int32_t *slot; /* device memory: the slot to write */
    const float *x;
    int32_t n_rows, dim;
    kk_cu_choose_scratch *scratch;
} kk_cu_choose;
cudaError_t kk_cu_run_choose_rows(kk_cu_at at, const kk_cu_choose *a);

/* ---- drafted rounds (cuda_rounds.cu): operations of backend.h ------------------------------- */

typedef struct {
    unsigned long long best[KK_CU_CHOOSE_ROWS];
    uint32_t done[KK_CU_CHOOSE_ROWS];
} kk_cu_top_scratch; /* zero between launches */
typedef struct {
    int32_t *out; /* [n_rows] */
    const float *x;
    int32_t n_rows, dim, banned;
    kk_cu_top_scratch *scratch;
} kk_cu_top;
cudaError_t kk_cu_run_top(kk_cu_at at, const kk_cu_top *a);

typedef struct {
    int32_t *out;
    const int32_t *id; /* device memory */
    int32_t n;
} kk_cu_ids;
cudaError_t kk_cu_run_ids(kk_cu_at at, const kk_cu_ids *a);

typedef struct {
    const int32_t *draft, *token; /* [n_rows] */
    int32_t *right, *next[2];
    kk_cu_pick *ring;
    const int32_t *slot; /* as in kk_cu_choose */
    int32_t n_rows;
} kk_cu_match;
cudaError_t kk_cu_run_match(kk_cu_at at, const kk_cu_match *a);

/* at[i * stride + k] += *by, i < rows, k < each, of every range. */
enum { KK_CU_SHIFTS = 24 };
typedef struct {
    const int32_t *by;
    struct {
        int64_t *at;
        int32_t rows, each, stride;
    } of[KK_CU_SHIFTS];
    int32_t n;
} kk_cu_shift;
cudaError_t kk_cu_run_shift(kk_cu_at at, const kk_cu_shift *a);

typedef struct {
    int32_t *ids;
    const int32_t *record, *shift; /* shift NULL: none */
    const int32_t *how;            /* device memory: at, right */
    int32_t n, n_record, vocab;
} kk_cu_replay;
cudaError_t kk_cu_run_replay(kk_cu_at at, const kk_cu_replay *a);
cudaError_t kk_cu_setup_rounds(void);

/* Copies a few kilobytes from pinned host memory, in 16-byte words. */
typedef struct {
    void *to;
    const void *from;
    size_t bytes;
} kk_cu_bring;
cudaError_t kk_cu_run_bring(kk_cu_at at, const kk_cu_bring *a);

/* Reads all of a buffer once, to measure the read bandwidth. */
typedef struct {
    const void *from;
    size_t bytes;
    uint32_t *sink; /* written for one value of the sum alone, so that the loads are not removed */
} kk_cu_skim;
cudaError_t kk_cu_run_skim(kk_cu_at at, const kk_cu_skim *a);

/* Converts rows of f32 to bf16, with zeros from dim to pitch. */
typedef struct {
    uint16_t *out;
    const float *x;
    int32_t n_rows, dim, pitch;
    bool swizzled; /* in the layout that kk_cu_run_gemm reads */
} kk_cu_round;
cudaError_t kk_cu_run_round(kk_cu_at at, const kk_cu_round *a);

/* ---- products ---------------------------------------------------------------------------- */

enum {
    KK_CU_PARTS = 4,
    KK_CU_ROWS = 16,
    KK_CU_BLOCK = 256 /* threads of an expert kernel's block */
};
enum { KK_CU_EXPERTS = 512, KK_CU_USED = 16 }; /* most experts, and most experts of a row */
enum { KK_CU_FEW_EXPERTS = 256 }; /* most that the experts' kernels choose from on the way */

/* out[i] = w[i] x for up to 16 rows of bf16; or out[i] = act(w[i] x) * (up[i] x) as bf16. */
typedef struct {
    struct {
        kk_cu_weight w, up; /* up.data NULL: no gate */
        void *out;
        int32_t pitch;
    } part[KK_CU_PARTS];
    int32_t n_parts;
    const uint16_t *x;
    int32_t n_rows, n_in; /* n_in padded to whole steps is x's pitch */
    int32_t silu;
} kk_cu_linear;
cudaError_t kk_cu_run_linear(kk_cu_at at, const kk_cu_linear *a);
/* The most rows of one launch at this width, where a block has so much shared memory. */
int32_t kk_cu_linear_rows(int32_t shared, int32_t n_in);

/* The router's top-k, from logits, or as expert and weight hold it already. */
typedef struct {
    const float *logits; /* NULL: expert and weight hold the choice */
    int32_t slices;      /* K slices of the logits, [n_rows][n_expert] each, still to be added */
    const float *scale;
    int32_t *expert;
    float *weight;
    int32_t n_rows, n_used, n_expert;
} kk_cu_choice;
cudaError_t kk_cu_run_choose(kk_cu_at at, const kk_cu_choice *a);

typedef struct {
    kk_cu_choice choice;
    kk_cu_weight gate, up; /* up.data NULL: gate holds gate rows, then up rows */
    const uint16_t *x;     /* [n_rows][n_in] */
    uint16_t *act;         /* [n_rows * n_used][act_pitch] */
    int32_t ffn, act_pitch;
} kk_cu_gate;
cudaError_t kk_cu_run_gate(kk_cu_at at, const kk_cu_gate *a);

typedef struct {
    kk_cu_choice choice;
    kk_cu_weight down;
    const uint16_t *act;
    int32_t act_pitch;
    float *out;
} kk_cu_down;
cudaError_t kk_cu_run_down(kk_cu_at at, const kk_cu_down *a);

/* kk_cu_run_linear for any number of rows, in tiles, with the same bits.  Rows of bf16, both x and
 * out, are swizzled (kk_swizzled in arith.cuh). */
cudaError_t kk_cu_run_gemm(kk_cu_at at, const kk_cu_linear *a);
/* One matrix whose K slices are not added: out[slice][n_rows][n_out], *slices of them. */
cudaError_t kk_cu_run_cut_gemm(kk_cu_at at, const kk_cu_linear *a, int32_t *slices);

/* Experts for any number of rows whose choice is known; x is swizzled.  ffn is a multiple of 8, and
 * gate and up have the same encoding and number of planes. */
typedef struct {
    kk_cu_choice choice;
    kk_cu_weight gate, up, down; /* up.data NULL: gate holds gate rows, then up rows */
    const uint16_t *x;           /* [n_rows][n_in] */
    uint16_t *act;               /* [n_rows * n_used][act_pitch] */
    int32_t ffn, act_pitch;
    float *each;   /* [n_rows * n_used][n_out] */
    void *scratch; /* kk_cu_experts_scratch bytes */
    float *out;    /* [n_rows][n_out] */
} kk_cu_experts;
/* Whether the tiled kernel supports these shapes; otherwise the caller runs 16 rows at a time. */
bool kk_cu_experts_tiled(const kk_cu_weight *gate, const kk_cu_weight *up, int32_t ffn);
size_t kk_cu_experts_scratch(int32_t pairs, int32_t n_expert);
cudaError_t kk_cu_run_experts(kk_cu_at at, const kk_cu_experts *a);
cudaError_t kk_cu_setup_gemm(void);

/* Converts a matrix to strips: rows of n_in f32 or bf16 values in device memory, first row `row` of
 * matrix `mat`. Each plane beyond the first holds the rounding error of the ones before. */
typedef struct {
    void *to;
    kk_cu_weight w;
    const void *from;
    bool bf16;
    int64_t mat, row, n_rows;
} kk_cu_lay;
cudaError_t kk_cu_run_lay(kk_cu_at at, const kk_cu_lay *a);

/* Packs rows of quantised values as files hold them, rows [row, row + n_rows) of all matrices' rows
 * one after the other.  dtype, plane_dtype: of core/dtype.h. */
typedef struct {
    void *to;
    kk_cu_weight w;
    const void *from, *scales, *biases; /* MLX: planes of the same rows; otherwise NULL */
    int32_t dtype, plane_dtype;
    size_t row_bytes, block_bytes;
    int32_t group; /* MLX: codes that share a scale */
    int64_t row, n_rows;
} kk_cu_pack;
cudaError_t kk_cu_run_pack(kk_cu_at at, const kk_cu_pack *a);

/* ---- attention ---------------------------------------------------------------------------- */

/* The K/V formats that kernels are compiled for; cuda_plan.c maps kk_kv_format to them. */
enum { KK_CU_F32, KK_CU_BF16, KK_CU_Q8, KK_CU_Q4, KK_CU_S8 };
enum { KK_CU_TILE_ROWS = 64 }; /* rows of a tile, where a session has more than KK_CU_ROWS */

/* Consecutive rows of one session. */
typedef struct {
    int64_t pos;                  /* position of the tile's first row */
    int64_t group_pos, group_end; /* first and end position of all of the session's rows */
    int32_t row, rows;
    int32_t pages; /* index of the session's page table in pages */
    int32_t unused;
} kk_cu_tile;

/* A forward's rows.  What changes from one forward to the next lies in device memory. */
typedef struct {
    const int64_t *pos;   /* position of each row */
    const int32_t *table; /* of each row: index of its session's page table in pages */
    uint8_t *const *pages;
    const kk_cu_tile *tile;
    int32_t n_rows, tiles;
    int32_t tile_most;  /* most rows of a tile */
    int32_t most_pages; /* most pages that a tile sees */
} kk_cu_rows;

typedef struct {
    int32_t format;
    bool k_eq_v;
    int32_t n_kv_head, head_dim;
    size_t k_off, v_off, head_bytes, code_bytes;
} kk_cu_slot;

typedef struct {
    float *q;
    const float *k, *v, *q_norm, *k_norm, *rope_rows;
    int32_t n_rot, n_head;
    kk_cu_slot slot;
    kk_cu_rows rows;
    float eps;
    bool v_raw;
} kk_cu_store;
cudaError_t kk_cu_run_store(kk_cu_at at, const kk_cu_store *a);

typedef struct {
    float *out;         /* f32 rows; NULL: not wanted */
    uint16_t *out_bf16; /* bf16 rows; NULL: not wanted */
    const float *q, *k_norm, *rope_pos;
    int32_t n_rot, n_head, window, sink;
    int32_t keep,
        chunk; /* rows that were evicted are not seen: kk_kv_bounds; chunk 0: all are kept */
    bool block;
    kk_cu_slot slot;
    kk_cu_rows rows;
    float scale;
    float *parts; /* scratch for (m, l, o) of pages (attend.cuh) */
    float *sums;  /* [n_rows][n_head][2]: m and l of the softmax; NULL: not wanted */
    /* Sinks that lie apart: a copy of page 0's slot per session, sink_bytes each; NULL: none do. */
    const uint8_t *sinks;
    size_t sink_bytes;
    int32_t table; /* entries of a session's page table */
    int32_t bf16_pitch;
    int32_t first_tile, n_tiles;
    int32_t first_row; /* first row of each tile in this launch, which computes tile_most rows */
} kk_cu_attend;
/* Up to 16 rows per tile, split over pages, then merged.  kk_cu_attend_row_bytes: bytes of parts
 * per row where a tile sees this many pages. */
size_t kk_cu_attend_row_bytes(int32_t n_head, int32_t head_dim, int32_t pages);
cudaError_t kk_cu_run_attend(kk_cu_at at, const kk_cu_attend *a);
/* More rows: all rows of each tile in one block, the same bits.  kk_cu_attend_tiles: whether it
 * supports a head size in so much shared memory; kk_cu_attend_tile_bytes: bytes of parts per
 * tile. */
bool kk_cu_attend_tiles(int32_t shared, int32_t head_dim);
size_t kk_cu_attend_tile_bytes(const kk_cu_attend *a);
cudaError_t kk_cu_run_attend_tiles(kk_cu_at at, const kk_cu_attend *a);

/* ---- a whole forward of few rows ---------------------------------------------------------- */

enum {
    KK_CU_MEGA_LAYERS = 40
}; /* most layers of one launch: the whole struct is the kernel's parameter */

/* The sizes of 26B-A4B, for which the persistent kernel is compiled: constants save loads and
 * divisions. */
enum {
    KK_CU_26B_HIDDEN = 2816,
    KK_CU_26B_FFN = 2112,
    KK_CU_26B_EXPERT_FFN = 704,
    KK_CU_26B_EXPERTS = 128,
    KK_CU_26B_USED = 8,
    KK_CU_26B_HEADS = 16,
};

typedef struct {
    kk_cu_store store;
    kk_cu_attend attend;
    const void *q, *k, *v, *o, *router, *gate, *up, *down, *experts,
        *experts_down; /* weights in strips; v NULL: K = V */
    const float *norm_in, *norm_att, *norm_ffn, *norm_experts, *router_scale;
    const float *norm_dense, *norm_moe, *norm_out, *expert_scale;
    float scale;
    int32_t q_strips, kv_strips, att_width;
    struct {
        uint8_t q, k, v, o, gate, down, experts, experts_down; /* up: as gate */
    } as;                                                      /* encodings of the weights */
    int32_t qkv_units;                                         /* set by the launcher */
    int32_t spans;        /* most spans of eight pages of a session; 0: by page alone */
    const size_t *tap_at; /* device: where in `tap` the layer's output goes too; NULL: nowhere */
} kk_cu_mega_layer;

/* Layers of mixed experts with the sizes above over rows of one session or of several, whose K/V
 * have one format in all layers; then optionally the head. */
typedef struct {
    int32_t n_layer, n_rows;
    /* Checked by kk_cu_mega_fits, not read by the kernel; strips of one expert's matrices. */
    int32_t hidden, ffn, expert_ffn, n_expert, n_used, router_steps, expert_strips, down_strips;
    float eps;
    float *x;   /* [n_rows][hidden], replaced by the last layer's output */
    float *tap; /* outputs of tapped layers, rows tap_stride floats apart */
    size_t tap_stride;
    float *y, *dense, *moe; /* [n_rows][hidden], scratch */
    float *logits;          /* [8][n_rows][n_expert], scratch */
    uint16_t *z1, *z2, *z3; /* [n_rows][hidden], scratch */
    uint16_t *att;          /* [n_rows][att_width] */
    uint16_t *act;          /* [n_rows][ffn] */
    uint16_t *expert_act;   /* [n_rows * n_used][expert_ffn] */
    int32_t *expert;        /* [n_rows][n_used]: the last layer's choice */
    float *weight;
    uint32_t *barrier; /* counters of the grid barrier; 0 before and after a launch */
    const void *head;  /* output embedding in strips; NULL: no head */
    const float *norm_head;
    const int32_t *head_row; /* device memory; NULL: head_first, head_first + 1, ... */
    int32_t head_first, n_logits, vocab;
    int32_t head_as; /* encoding of the head */
    bool packed;     /* set by the launcher: some weight is packed */
    float cap, *head_out;
    /* Set by the launcher: first block of each phase, floats and pitch of partial sums. */
    int32_t shift[7], part_floats, part_pitch;
    int32_t parts_at, stage_at, shared; /* byte offsets in dynamic shared memory, and its size */
    uint64_t *trace; /* NULL; for measurements: clocks at barriers, [mark][block] */
    kk_cu_mega_layer layer[KK_CU_MEGA_LAYERS];
} kk_cu_mega;
/* Bytes of shared memory that a block must have for K/V in other formats than bf16. */
enum { KK_FORMATS_SHARED = 227 * 1024 };
/* Whether the sizes are those above, and whether a layer is supported: the kernel does not
 * check. */
bool kk_cu_mega_fits(const kk_cu_mega *a);
bool kk_cu_mega_takes(kk_cu_at at, const kk_cu_mega_layer *l);
/* Decides how the parts of a layer's attention lie (attend.rows.most_pages is that of the session
 * before, and then how many parts a row and head have), and returns their bytes. */
enum { KK_CU_LONG_ROT = 64 }; /* rotated pairs of the heads that attend_long.cuh is compiled for */
size_t kk_cu_mega_parts(kk_cu_at at, kk_cu_mega_layer *l, int32_t n_rows);
cudaError_t kk_cu_run_mega(kk_cu_at at, kk_cu_mega *a);

cudaError_t kk_cu_setup_mega(int32_t shared);
cudaError_t kk_cu_setup_rows(void);
/* Raises the shared-memory limits of all kernels to what a block may take, once per device. */
cudaError_t kk_cu_setup(int32_t shared);
/* The chip that the kernels in use were compiled for, 80 for sm_80: less than the device's own
 * where the driver translated intermediate code. */
cudaError_t kk_cu_built_for(int32_t *capability);

#ifdef __cplusplus
}
#endif
#endif
