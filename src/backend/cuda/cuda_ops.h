/* cuda_ops.h - what the C side of the CUDA backend asks of its kernels: plain structs of device
 * pointers, one launcher each.
 *
 * Both languages read this file.  Launchers return the launch's error; work is done in the
 * order of the stream.  `early` marks launches that may begin before the one before has ended,
 * which every kernel here is written for. */
#ifndef KK_CUDA_OPS_H
#define KK_CUDA_OPS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KK_CU_SHARED = 227 * 1024 }; /* bytes of shared memory that a block must be able to have */

/* A weight as the kernels read it: n_mat matrices in strips of 8 outputs (stream.cuh), n_out
 * padded to 16 and n_in to whole steps, as one to three bf16 planes whose sum is the weight. */
typedef struct {
    const void *data;
    int64_t n_mat, n_out, n_in;
    int32_t strips, wrap, planes; /* wrap: steps of one plane */
} kk_cu_weight;

typedef struct {
    cudaStream_t stream;
    int32_t sms;
    bool early;
} kk_cu_at;

/* ---- rows -------------------------------------------------------------------------------- */

typedef struct {
    float *out;
    kk_cu_weight table;
    const int32_t *token; /* device */
    int32_t n_rows;
    float scale;
} kk_cu_embed;
cudaError_t kk_cu_run_embed(kk_cu_at at, const kk_cu_embed *a);

/* x = (x + norm(y2; w)) * scale with y2 = norm(a; wa) + norm(b; wb), or y2 = a where b is NULL;
 * x as it is where a is NULL.  Then z = norm(x; w1) as float (zf) and bf16 (z1), and norms with
 * other weights as bf16: z2, and z3 times root.  Any output may be NULL. */
typedef struct {
    float *x;
    const float *a, *b, *wa, *wb, *w;
    float scale, eps, root;
    float *zf;
    uint16_t *z1, *z2, *z3;
    const float *w1, *w2, *w3;
    int32_t n_rows, dim, pitch;
    bool swizzled; /* bf16 rows in the order that kk_cu_run_gemm reads */
} kk_cu_between;
cudaError_t kk_cu_run_between(kk_cu_at at, const kk_cu_between *a);

typedef struct {
    float *out;
    const float *x, *w; /* w NULL: none */
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
    const int64_t *pos; /* device: the table's first row, then n positions */
    float theta, factor;
    int32_t n_rot, head_dim;
} kk_cu_rope;
enum { KK_CU_ROPES = 4 };
/* Up to KK_CU_ROPES of them in one launch. */
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
    size_t out_at, out_stride;
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

/* Greedy choices and digests of rows (core/digest.h).  Every row is shared out among blocks; the
 * last of them to finish adds up. */
enum { KK_CU_CHOOSE_BLOCKS = 64, KK_CU_CHOOSE_ROWS = 32 };
typedef struct {
    int32_t token;
    int32_t broken;
    uint64_t digest;
} kk_cu_pick; /* as kk_pick */
typedef struct {
    struct {
        uint64_t sum;
        float best;
        int32_t at, broken;
    } part[KK_CU_CHOOSE_ROWS][KK_CU_CHOOSE_BLOCKS];
    uint32_t done[KK_CU_CHOOSE_ROWS]; /* blocks; zero between launches */
} kk_cu_choose_scratch;
typedef struct {
    int32_t *token;      /* [n_rows] */
    kk_cu_pick *ring;    /* [slots][KK_CU_CHOOSE_ROWS], host memory that the device reaches */
    const int32_t *slot; /* device: which of them */
    const float *x;
    int32_t n_rows, dim;
    kk_cu_choose_scratch *scratch;
} kk_cu_choose;
cudaError_t kk_cu_run_choose_rows(kk_cu_at at, const kk_cu_choose *a);

/* Copies a few kilobytes from pinned memory, in whole words of 16 bytes. */
typedef struct {
    void *to;
    const void *from;
    size_t bytes;
} kk_cu_bring;
cudaError_t kk_cu_run_bring(kk_cu_at at, const kk_cu_bring *a);

/* Reads all of a buffer, to see how long that takes. */
typedef struct {
    const void *from;
    size_t bytes;
    uint32_t *sink; /* written where a sum is what it never is */
} kk_cu_skim;
cudaError_t kk_cu_run_skim(kk_cu_at at, const kk_cu_skim *a);

/* Rows of floats as bf16, with zeros from dim to pitch. */
typedef struct {
    uint16_t *out;
    const float *x;
    int32_t n_rows, dim, pitch;
    bool swizzled; /* in the order that kk_cu_run_gemm reads */
} kk_cu_round;
cudaError_t kk_cu_run_round(kk_cu_at at, const kk_cu_round *a);

/* ---- products ---------------------------------------------------------------------------- */

enum { KK_CU_PARTS = 4, KK_CU_ROWS = 16, KK_CU_BLOCK = 256 /* threads of experts' kernels */ };
enum { KK_CU_EXPERTS = 512, KK_CU_USED = 16 }; /* to choose from, and chosen by a row, at most */

/* out[i] = w[i] x, for up to 16 rows of bf16; or out[i] = act(w[i] x) * (up[i] x) as bf16. */
typedef struct {
    struct {
        kk_cu_weight w, up; /* up.data NULL: none */
        void *out;
        int32_t pitch;
    } part[KK_CU_PARTS];
    int32_t n_parts;
    const uint16_t *x;
    int32_t n_rows, n_in; /* n_in padded: x's pitch */
    int32_t silu;
} kk_cu_linear;
cudaError_t kk_cu_run_linear(kk_cu_at at, const kk_cu_linear *a);
/* Rows that one launch can take at this width. */
int32_t kk_cu_linear_rows(int32_t n_in);

/* The router's choice, from logits, or as it lies in expert and weight already. */
typedef struct {
    const float *logits; /* NULL: already there */
    int32_t slices;      /* parts of the logits, [n_rows][n_expert] each, still to be summed */
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

/* The same for any number of rows, in tiles: out[i] = w[i] x and its kin, bit for bit.  Rows of
 * bf16, those read and those written, are turned (kk_swizzled in arith.cuh). */
cudaError_t kk_cu_run_gemm(kk_cu_at at, const kk_cu_linear *a);
/* One part whose K slices are still to be summed: out[slice][n_rows][n_out], *slices of them. */
cudaError_t kk_cu_run_cut_gemm(kk_cu_at at, const kk_cu_linear *a, int32_t *slices);

/* Experts for any number of rows whose choice is known; x is turned.  ffn fills strips, and gate
 * and up have as many planes. */
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
/* Whether they can be; else they go 16 rows at a time. */
bool kk_cu_experts_tiled(const kk_cu_weight *gate, const kk_cu_weight *up, int32_t ffn);
size_t kk_cu_experts_scratch(int32_t pairs, int32_t n_expert);
cudaError_t kk_cu_run_experts(kk_cu_at at, const kk_cu_experts *a);
cudaError_t kk_cu_setup_gemm(void);

/* Lays a matrix out in strips: rows of n_in floats or bf16 values in device memory, first row
 * `row` of matrix `mat`.  Planes beyond the first take what the ones before left. */
typedef struct {
    void *to;
    kk_cu_weight w;
    const void *from;
    bool bf16;
    int64_t mat, row, n_rows;
} kk_cu_lay;
cudaError_t kk_cu_run_lay(kk_cu_at at, const kk_cu_lay *a);

/* ---- attention ---------------------------------------------------------------------------- */

/* The K/V formats that kernels are compiled for; kk_cuda_format finds them. */
enum { KK_CU_F32, KK_CU_BF16, KK_CU_Q8, KK_CU_Q4 };
enum { KK_CU_TILE_ROWS = 64 }; /* of a tile, where a session has more than KK_CU_ROWS */

/* Some rows of one session, one after the other. */
typedef struct {
    int64_t pos;                  /* of its first row */
    int64_t group_pos, group_end; /* positions of all of the session's rows */
    int32_t row, rows;
    int32_t pages; /* where the session's table starts in pages */
    int32_t unused;
} kk_cu_tile;

/* A forward's rows: what changes from one to the next lies in device memory. */
typedef struct {
    const int64_t *pos;   /* of each row */
    const int32_t *table; /* of each row: where its session's table starts in pages */
    uint8_t *const *pages;
    const kk_cu_tile *tile;
    int32_t n_rows, tiles;
    int32_t tile_most;  /* rows of a tile at most */
    int32_t most_pages; /* that a tile sees at most */
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
    float *out;         /* NULL: not wanted */
    uint16_t *out_bf16; /* NULL: not wanted */
    const float *q, *k_norm, *rope_pos;
    int32_t n_rot, n_head, window, sink;
    bool block;
    kk_cu_slot slot;
    kk_cu_rows rows;
    float scale;
    float *parts; /* room for the sums of pages */
    int32_t bf16_pitch;
    int32_t first_tile, n_tiles;
    int32_t first_row; /* of each tile; tile_most rows are done from there */
} kk_cu_attend;
/* Few rows: a page and a K/V head at a time, then pages are added up.  Bytes of parts that a row
 * needs where a tile sees this many pages. */
size_t kk_cu_attend_row_bytes(int32_t n_head, int32_t head_dim, int32_t pages);
cudaError_t kk_cu_run_attend(kk_cu_at at, const kk_cu_attend *a);
/* Many rows, all of each tile; the same bits.  Not for every size of heads.  Bytes of parts that a
 * tile needs. */
bool kk_cu_attend_tiles(int32_t head_dim);
size_t kk_cu_attend_tile_bytes(const kk_cu_attend *a);
cudaError_t kk_cu_run_attend_tiles(kk_cu_at at, const kk_cu_attend *a);

/* ---- a whole forward of few rows ---------------------------------------------------------- */

enum { KK_CU_MEGA_LAYERS = 40 }; /* of one launch: all of this is the kernel's parameter */

/* The sizes of 26B-A4B, for which the kernel is compiled: what is known then need not be looked up
 * and divided by. */
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
        *experts_down; /* v NULL: K = V */
    const float *norm_in, *norm_att, *norm_ffn, *norm_experts, *router_scale;
    const float *norm_dense, *norm_moe, *norm_out, *expert_scale;
    float scale;
    int32_t q_strips, kv_strips, att_width;
    int32_t qkv_units; /* set by the launch */
} kk_cu_mega_layer;

/* Layers of mixed experts with the sizes above, one session's rows, K/V in bf16; then perhaps the
 * head. */
typedef struct {
    int32_t n_layer, n_rows;
    /* For kk_cu_mega_fits alone; strips are of one expert's matrices. */
    int32_t hidden, ffn, expert_ffn, n_expert, n_used, router_steps, expert_strips, down_strips;
    float eps;
    float *x;               /* [n_rows][hidden], replaced by the last layer's output */
    float *y, *dense, *moe; /* [n_rows][hidden], scratch */
    float *logits;          /* [8][n_rows][n_expert], scratch */
    uint16_t *z1, *z2, *z3; /* [n_rows][hidden], scratch */
    uint16_t *att;          /* [n_rows][att_width] */
    uint16_t *act;          /* [n_rows][ffn] */
    uint16_t *expert_act;   /* [n_rows * n_used][expert_ffn] */
    int32_t *expert;        /* the last layer's choice */
    float *weight;
    uint32_t *barrier; /* 0 before and after */
    const void *head;  /* NULL: no head */
    const float *norm_head;
    const int32_t *head_row; /* device; NULL: head_first, head_first + 1, ... */
    int32_t head_first, n_logits, vocab;
    float cap, *head_out;
    /* Set by the launch. */
    int32_t shift[7], part_floats, part_pitch;
    int32_t parts_at, stage_at, shared; /* bytes of shared memory */
    uint64_t *trace;                    /* NULL; measurements: clocks at barriers, [mark][block] */
    kk_cu_mega_layer layer[KK_CU_MEGA_LAYERS];
} kk_cu_mega;
/* Whether the sizes are those, and whether a layer is of that kind: the kernel does not look. */
bool kk_cu_mega_fits(const kk_cu_mega *a);
bool kk_cu_mega_takes(const kk_cu_mega_layer *l);
cudaError_t kk_cu_run_mega(kk_cu_at at, kk_cu_mega *a);

cudaError_t kk_cu_setup_mega(void);
cudaError_t kk_cu_setup_rows(void);
cudaError_t kk_cu_setup(void); /* shared-memory limits of all kernels, once per device */

#ifdef __cplusplus
}
#endif
#endif
