/* placement.c - what pieces are worth, and which of them move; see placement.h. */
#include "backend/placement.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

/* A swap must promise more than chance: what reads are worth varies, as counts do, by about the
 * root of `spread`, and the best of thousands of pieces by several times that. */
static const float sure = 4.0f;
static const float least = 8.0f;        /* reads of a piece; a swap takes as long as more of them */
static const float keeps = 7.0f / 8.0f; /* of earlier reads, each time they age */

/* Of equal worth, pieces near the start of their weight stay on the device: all weights then have
 * the same share of it. */
struct kk_ranked_piece {
    float worth, spread, depth; /* spread: variance of worth; depth: how far into its weight */
    kk_piece at;
};

void kk_placement_open(kk_placement *p, size_t piece) {
    *p = (kk_placement){.piece = piece, .most = INT64_MAX};
}

static void release(kk_placed_weight *w) {
    kk_free(w->reads);
    kk_free(w->here);
    *w = (kk_placed_weight){0};
}

void kk_placement_free(kk_placement *p) {
    for (int32_t i = 0; i < p->n_weights; i++) release(&p->weight[i]);
    kk_free(p->weight);
    kk_free(p->order);
    *p = (kk_placement){.piece = p->piece};
}

size_t kk_placement_bytes(const kk_placed_weight *w) { return (size_t)w->n_mat * w->mat_bytes; }

/* The first unused place, which may be behind the last. */
static kk_placed_weight *free_place(kk_placement *p, int32_t *index) {
    for (*index = 0; *index < p->n_weights; ++*index)
        if (!p->weight[*index].n_mat) return &p->weight[*index];
    void *list = p->weight;
    if (!kk_grow(&list, &p->cap, (size_t)p->n_weights + 1, sizeof *p->weight)) return NULL;
    p->weight = list;
    p->weight[p->n_weights] = (kk_placed_weight){0};
    return &p->weight[p->n_weights++];
}

kk_status kk_placement_add(kk_placement *p, int32_t n_mat, size_t mat_bytes, int32_t *index,
                           kk_err *err) {
    size_t bytes;
    if (n_mat < 1 || mat_bytes < 1 || !kk_mul((size_t)n_mat, mat_bytes, &bytes) ||
        bytes / p->piece >= INT32_MAX)
        return kk_fail(err, KK_EINVAL, "%d matrices of %zu bytes", n_mat, mat_bytes);
    const size_t pieces = bytes / p->piece + (bytes % p->piece != 0);
    kk_placed_weight *w = free_place(p, index);
    void *order = p->order;
    if (!w || !kk_grow(&order, &p->order_cap, (size_t)p->pieces + pieces, sizeof *p->order))
        return kk_fail(err, KK_ENOMEM, "no memory for a list of %zu pieces", pieces);
    p->order = order;
    w->reads = kk_calloc((size_t)n_mat, sizeof *w->reads);
    w->here = kk_calloc(pieces, sizeof *w->here);
    if (!w->reads || !w->here) {
        release(w);
        return kk_fail(err, KK_ENOMEM, "no memory for a list of %zu pieces", pieces);
    }
    w->n_mat = n_mat;
    w->mat_bytes = mat_bytes;
    w->pieces = (int32_t)pieces;
    p->pieces += w->pieces;
    return KK_OK;
}

void kk_placement_remove(kk_placement *p, int32_t index) {
    kk_placed_weight *w = &p->weight[index];
    for (int32_t i = 0; i < w->pieces; i++) kk_placement_put(p, (kk_piece){index, i}, false);
    p->pieces -= w->pieces;
    release(w);
}

void kk_placement_put(kk_placement *p, kk_piece at, bool here) {
    bool *was = &p->weight[at.weight].here[at.piece];
    p->here += (int)here - (int)*was;
    *was = here;
}

/* ---- reads -------------------------------------------------------------------------------- */

/* Bytes of a matrix that lie in a piece. */
static size_t overlap(const kk_placement *p, const kk_placed_weight *w, int32_t mat,
                      int32_t piece) {
    const size_t a = (size_t)mat * w->mat_bytes, b = (size_t)piece * p->piece;
    const size_t from = a > b ? a : b;
    const size_t to = a + w->mat_bytes < b + p->piece ? a + w->mat_bytes : b + p->piece;
    return to > from ? to - from : 0;
}

static size_t bytes_elsewhere(const kk_placement *p, const kk_placed_weight *w, int32_t mat) {
    const size_t first = (size_t)mat * w->mat_bytes / p->piece;
    const size_t last = ((size_t)(mat + 1) * w->mat_bytes - 1) / p->piece;
    size_t bytes = 0;
    for (size_t i = first; i <= last; i++)
        if (!w->here[i]) bytes += overlap(p, w, mat, (int32_t)i);
    return bytes;
}

void kk_placement_read(kk_placement *p, int32_t index, const uint32_t *reads) {
    kk_placed_weight *w = &p->weight[index];
    for (int32_t i = 0; i < w->n_mat; i++) {
        if (!reads[i]) continue;
        const size_t bytes = bytes_elsewhere(p, w, i);
        *(bytes ? &p->reads.misses : &p->reads.hits) += reads[i];
        p->reads.bytes += (double)reads[i] * (double)w->mat_bytes;
        p->reads.host_bytes += (double)reads[i] * (double)bytes;
        w->reads[i] += (float)reads[i];
    }
}

void kk_placement_age(kk_placement *p) {
    for (int32_t i = 0; i < p->n_weights; i++)
        for (int32_t m = 0; m < p->weight[i].n_mat; m++) p->weight[i].reads[m] *= keeps;
}

static kk_ranked_piece weigh(const kk_placement *p, int32_t index, int32_t piece) {
    const kk_placed_weight *w = &p->weight[index];
    const size_t from = (size_t)piece * p->piece, to = from + p->piece - 1;
    const size_t first = from / w->mat_bytes, last = to / w->mat_bytes;
    kk_ranked_piece r = {.depth = (float)piece / (float)w->pieces, .at = {index, piece}};
    for (size_t m = first; m <= last && m < (size_t)w->n_mat; m++) {
        const float part = (float)overlap(p, w, (int32_t)m, piece) / (float)p->piece;
        r.worth += w->reads[m] * part;
        r.spread += w->reads[m] * part * part;
    }
    return r;
}

/* ---- which pieces move -------------------------------------------------------------------- */

/* Those worth least first, of these the deepest. */
static int by_worth(const void *a, const void *b) {
    const kk_ranked_piece *x = a, *y = b;
    if (x->worth != y->worth) return x->worth < y->worth ? -1 : 1;
    if (x->depth != y->depth) return x->depth > y->depth ? -1 : 1;
    if (x->at.weight != y->at.weight) return x->at.weight > y->at.weight ? -1 : 1;
    return x->at.piece > y->at.piece ? -1 : x->at.piece < y->at.piece;
}

/* Pieces of the device, and behind them those of the host, each from the least. */
static void rank(kk_placement *p) {
    int64_t here = 0, there = p->here;
    for (int32_t i = 0; i < p->n_weights; i++) {
        const kk_placed_weight *w = &p->weight[i];
        for (int32_t k = 0; k < w->pieces; k++)
            p->order[w->here[k] ? here++ : there++] = weigh(p, i, k);
    }
    qsort(p->order, (size_t)here, sizeof *p->order, by_worth);
    qsort(p->order + here, (size_t)(there - here), sizeof *p->order, by_worth);
}

static bool pays(const kk_ranked_piece *hot, const kk_ranked_piece *cold) {
    const float more = hot->worth - cold->worth;
    return more > least && more * more > sure * sure * (hot->spread + cold->spread);
}

int32_t kk_placement_plan(kk_placement *p, kk_piece_move *out, int32_t cap, int32_t *swaps) {
    int32_t n = 0;
    *swaps = 0;
    if (!p->pieces) return 0;
    rank(p);
    const kk_ranked_piece *cold = p->order, *end = p->order + p->here;
    const kk_ranked_piece *hot = p->order + p->pieces; /* the best of the host is before it */
    int64_t here = p->here;
    for (; here > p->most && n < cap; here--) out[n++] = (kk_piece_move){(cold++)->at, false};
    for (; here < p->most && n < cap && hot > end; here++)
        out[n++] = (kk_piece_move){(--hot)->at, true};
    while (here == p->most && n + 1 < cap && cold < end && hot > end && pays(hot - 1, cold)) {
        out[n++] = (kk_piece_move){(cold++)->at, false};
        out[n++] = (kk_piece_move){(--hot)->at, true};
        ++*swaps;
    }
    return n;
}
