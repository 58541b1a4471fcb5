/* sample_ops.h - sampled choices (cuda_sample.cu), between C and CUDA as cuda_ops.h is. */
#ifndef KK_CUDA_SAMPLE_OPS_H
#define KK_CUDA_SAMPLE_OPS_H

#include "cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t id;
    float logprob;
} kk_cu_logprob;
enum { KK_CU_LOGPROBS = 20 };
typedef struct {
    kk_cu_logprob chosen;
    int32_t n_best;
    kk_cu_logprob best[KK_CU_LOGPROBS];
} kk_cu_logprobs;

enum {
    KK_CU_SAMPLE_THREADS = 512,
    KK_CU_SAMPLE_BLOCKS = 64,    /* of a team, at most */
    KK_CU_SAMPLE_TEAMS = 4,      /* rows at once */
    KK_CU_SAMPLE_WARP_IDS = 480, /* ids of a warp, at most */
    KK_CU_SAMPLE_VOCAB = KK_CU_SAMPLE_WARP_IDS * (KK_CU_SAMPLE_THREADS / 32) * KK_CU_SAMPLE_BLOCKS,
    KK_CU_SAMPLE_BINS = 2048, /* of rank.h */
    KK_CU_SAMPLE_STEPS = 12,  /* of three searches of a row */
    KK_CU_SAMPLE_LISTS = 4,
    KK_CU_SAMPLE_LIST = 256,
};
typedef struct {
    int32_t id;
    float bias;
} kk_cu_bias;
/* What a row asks for, in the control block; places are bytes from its start, 0: none. */
typedef struct {
    uint64_t top_p;      /* P of sample.h */
    uint64_t min_weight; /* of min-p; 0: all */
    uint64_t bits;       /* the draw */
    float temp, repeat, frequency, presence;
    int32_t top_k; /* 0: all */
    int32_t penalises, logprobs, n_best;
    int32_t n_known, pending, n_pending; /* the penalties' window */
    int32_t n_bias;
    uint32_t known, bias, mask; /* ids; kk_cu_bias by id; words */
    int32_t cuts_p;             /* top-p is asked for */
} kk_cu_sample_row;
typedef struct {
    uint64_t best, raw; /* first in rank: of the values, of the logits */
    uint64_t digest, z;
    uint32_t broken, unused;
} kk_cu_sample_head; /* of a row; zero between launches */
typedef struct {
    uint64_t weight[KK_CU_SAMPLE_BINS];
    uint32_t count[KK_CU_SAMPLE_BINS];
} kk_cu_sample_bins;
typedef struct {
    uint64_t candidate[KK_CU_SAMPLE_LIST];
    uint64_t part[KK_CU_SAMPLE_BLOCKS], cut; /* of equal candidates */
    uint32_t n, unused;
} kk_cu_sample_list;
typedef struct {
    kk_cu_sample_bins bins[KK_CU_SAMPLE_STEPS];
    kk_cu_sample_list list[KK_CU_SAMPLE_LISTS];
    uint64_t part[KK_CU_SAMPLE_BLOCKS]; /* sums of blocks */
    uint32_t arrived, left, unused[2];  /* blocks; zero between launches */
} kk_cu_sample_team;
typedef struct {
    kk_cu_sample_team team[KK_CU_SAMPLE_TEAMS];
    kk_cu_sample_head head[KK_CU_CHOOSE_ROWS];
} kk_cu_sample_scratch;
typedef struct {
    int32_t *token;           /* [n_rows] */
    kk_cu_pick *ring;         /* as in kk_cu_choose */
    kk_cu_logprobs *logprobs; /* [slots][KK_CU_CHOOSE_ROWS], of the rows that ask for them */
    const int32_t *slot;
    const float *x;
    int32_t n_rows, dim;
    const int32_t *pending;       /* NULL: no row has any */
    const kk_cu_sample_row *rows; /* [n_rows] */
    const uint8_t *data;          /* what its places count from */
    kk_cu_sample_scratch *scratch;
    int32_t blocks, teams, warp_ids; /* the launcher's */
} kk_cu_sample;
/* resident: blocks that run at once, of the kernels for one row and for several. */
cudaError_t kk_cu_setup_sample(int32_t sms, int32_t resident[2]);
cudaError_t kk_cu_run_sample(kk_cu_at at, const kk_cu_sample *a, const int32_t resident[2]);

#ifdef __cplusplus
}
#endif

#endif
