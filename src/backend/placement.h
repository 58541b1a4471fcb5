/* placement.h - which pieces of experts' weights lie on the device, and which in host memory.
 *
 * A weight is the stacked matrices of a layer's experts, one run of bytes that is cut into pieces
 * of equal size, whatever matrices they touch.  A piece is worth what forwards read of it: the
 * reads of the matrices that lie in it, each by its share.  As pieces have one size, the best that
 * a number of them can do is to be those worth most, and swapping the best piece of the host with
 * the worst of the device comes nearer to that each time.
 *
 * Nothing here knows of a device: cuda/cuda_offload.c moves what this says. */
#ifndef KK_PLACEMENT_H
#define KK_PLACEMENT_H

#include "core/error.h"

typedef struct {
    int32_t weight, piece;
} kk_piece;

typedef struct {
    kk_piece at;
    bool enters; /* the device; else it leaves it */
} kk_piece_move;

/* Of all reads that were told. */
typedef struct {
    int64_t hits, misses;     /* matrices read that lay on the device whole; and others */
    double bytes, host_bytes; /* of all of them; and read from host memory */
} kk_placement_reads;

typedef struct {
    int32_t n_mat; /* 0: unused */
    int32_t pieces;
    size_t mat_bytes;
    float *reads; /* [n_mat], of late */
    bool *here;   /* [pieces], on the device */
} kk_placed_weight;

typedef struct kk_ranked_piece kk_ranked_piece;
typedef struct {
    size_t piece; /* bytes */
    kk_placed_weight *weight;
    int32_t n_weights;
    int64_t pieces, here; /* of all weights; of them on the device */
    int64_t most;         /* that may lie there */
    kk_placement_reads reads;
    kk_ranked_piece *order; /* [pieces], scratch */
    size_t cap, order_cap;
} kk_placement;

/* piece: bytes.  Zeroed before; free is fine after any failure. */
void kk_placement_open(kk_placement *p, size_t piece);
void kk_placement_free(kk_placement *p);

/* A weight whose pieces all lie in host memory; *index: what it is called from now on. */
kk_status kk_placement_add(kk_placement *p, int32_t n_mat, size_t mat_bytes, int32_t *index,
                           kk_err *err);
void kk_placement_remove(kk_placement *p, int32_t index);
/* A piece lies on the device from now on, or does not any more. */
void kk_placement_put(kk_placement *p, kk_piece at, bool here);
size_t kk_placement_bytes(const kk_placed_weight *w);

/* What forwards read of a weight's matrices since it was last told, [n_mat]. */
void kk_placement_read(kk_placement *p, int32_t index, const uint32_t *reads);
/* What was read so far counts for less from now on. */
void kk_placement_age(kk_placement *p);

/* Moves in an order in which no more than p->most pieces ever lie on the device, at most `cap`:
 * pieces that have to leave because there are more; pieces that enter because more may lie there;
 * and swaps, a piece that leaves before one that enters.  *swaps: how many of these. */
int32_t kk_placement_plan(kk_placement *p, kk_piece_move *out, int32_t cap, int32_t *swaps);

#endif
