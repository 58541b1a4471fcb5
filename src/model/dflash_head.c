/* dflash_head.c - the drafter's short head: rows of the verifier's for part of the vocabulary.
 *
 *    row      [0, n_spare)                   [n_spare, n)
 *    stands   for the ids that sessions had  for the likeliest ids, always the same
 *    for      last, which come and go
 *
 * `map` has the id of each row where choices are made.  A spare row and its place in the map change
 * by operations in the device's order, and so does a draft read both: one that was enqueued before
 * has the row and the id that were there before. */
#include <assert.h>

#include "model/model.h"

enum { MOST_SPARE = 1024, SPARE_SHARE = 8 /* of the rows are spare */ };

/* ---- setting up ------------------------------------------------------------------------- */

/* A row of the verifier's head as the weight has it.  Whole blocks of 32 values. */
static void copy_row(const kk_dflash_short *h, int32_t id, uint8_t *to) {
    const size_t width = (size_t)h->table.dims[1];
    if (h->table.dtype == h->type) {
        memcpy(to, h->table.data.base + (size_t)id * h->row_bytes, h->row_bytes);
        return;
    }
    kk_tensor_floats(&h->table, (int64_t)id * (int64_t)width, h->values, width);
    kk_quantize_row(h->type, h->values, to, width);
}

/* The likeliest ids come last, where rows are not spare. */
static void place_ids(kk_dflash_short *h, int32_t vocab, const int32_t *id) {
    for (int32_t i = 0; i < vocab; i++) h->row[i] = -1;
    for (int32_t r = 0; r < h->n; r++) {
        h->id[r] = id[r < h->n_spare ? h->n - h->n_spare + r : r - h->n_spare];
        h->row[h->id[r]] = r;
    }
}

static kk_status take_places(kk_dflash *m, const kk_short_rows *rows, kk_err *err) {
    kk_dflash_short *h = &m->short_head;
    const size_t n = (size_t)h->n, width = (size_t)m->cfg.hidden;
    if (!kk_dtype_bytes(h->type, width, &h->row_bytes) || width % 32 != 0 ||
        !kk_mul(n, h->row_bytes, &h->bytes))
        return kk_fail(err, KK_EINVAL, "rows of %zu values cannot be a short head of %s", width,
                       kk_dtype_get(h->type)->name);
    h->id = kk_calloc(n, sizeof *h->id);
    h->row = kk_calloc((size_t)m->cfg.vocab, sizeof *h->row);
    h->used = kk_calloc(n, sizeof *h->used);
    h->fresh = kk_calloc(n, sizeof *h->fresh);
    h->values = kk_calloc(width, sizeof *h->values);
    h->one = kk_malloc(h->row_bytes);
    h->data = kk_mem_take(rows->mem, KK_MEM_WEIGHTS_DRAFTER, h->bytes);
    if (!h->id || !h->row || !h->used || !h->fresh || !h->values || !h->one || !h->data)
        return kk_fail(err, KK_ENOMEM, "no memory for a short head of %d rows", h->n);
    place_ids(h, m->cfg.vocab, rows->id);
    return KK_OK;
}

static kk_matrix rows_at(const kk_dflash *m, int32_t n, const void *data) {
    return (kk_matrix){
        .dtype = m->short_head.type, .n_mat = 1, .n_out = n, .n_in = m->cfg.hidden, .data = data};
}

/* The device's weight and map.  One that has copied the rows needs ours no longer, which stay
 * counted as what it holds. */
static kk_status hand_over(kk_dflash *m, kk_err *err) {
    kk_dflash_short *h = &m->short_head;
    const size_t ids = (size_t)h->n * sizeof *h->id;
    for (int32_t r = 0; r < h->n; r++) copy_row(h, h->id[r], h->data + (size_t)r * h->row_bytes);
    const kk_matrix all = rows_at(m, h->n, h->data), first = rows_at(m, 1, h->one);
    KK_TRY(m->be->weight_new(m->dev, &all, &h->w, err));
    KK_TRY(m->be->prepare(m->dev, &(kk_prepare_args){.w = h->w, .n_used = 1}, err));
    KK_TRY(m->be->buf_new(m->dev, KK_MEM_WORKSPACE, ids, &h->map, err));
    KK_TRY(m->be->write(m->dev, h->map, 0, h->id, ids, err));
    if (h->n_spare) { /* what the first row takes of the device is taken now */
        copy_row(h, h->id[0], h->one);
        KK_TRY(m->be->weight_row(m->dev, h->w, 0, &first, err));
    }
    if (!m->be->own_memory) return KK_OK;
    kk_mem_give(h->mem, KK_MEM_WEIGHTS_DRAFTER, h->data, h->bytes);
    kk_mem_count(h->mem, KK_MEM_WEIGHTS_DRAFTER, (int64_t)h->bytes);
    h->data = NULL;
    h->on_device = true;
    return KK_OK;
}

static kk_status check_rows(const kk_dflash *m, const kk_short_rows *rows, kk_err *err) {
    const int32_t vocab = m->cfg.vocab;
    if (rows->n > vocab)
        return kk_fail(err, KK_EINVAL, "a short head of %d rows for a vocabulary of %d", rows->n,
                       vocab);
    for (int32_t i = 0; i < rows->n; i++)
        if (rows->id[i] < 0 || rows->id[i] >= vocab)
            return kk_fail(err, KK_EINVAL, "a short head with id %d: the vocabulary has %d",
                           rows->id[i], vocab);
    return KK_OK;
}

kk_status kk_dflash_load_short(kk_dflash *m, const kk_short_rows *rows, kk_err *err) {
    kk_dflash_short *h = &m->short_head;
    if (rows->n == 0) return KK_OK;
    KK_TRY(check_rows(m, rows, err));
    const int32_t share = rows->n / SPARE_SHARE;
    h->table = *rows->table;
    h->type = rows->type;
    h->mem = rows->mem;
    h->n = rows->n;
    if (m->be->weight_row) h->n_spare = share < MOST_SPARE ? share : MOST_SPARE;
    KK_TRY(take_places(m, rows, err));
    return hand_over(m, err);
}

void kk_dflash_unload_short(kk_dflash *m) {
    kk_dflash_short *h = &m->short_head;
    m->be->weight_free(m->dev, h->w);
    m->be->buf_free(m->dev, h->map);
    if (h->data) kk_mem_give(h->mem, KK_MEM_WEIGHTS_DRAFTER, h->data, h->bytes);
    if (h->on_device) kk_mem_count(h->mem, KK_MEM_WEIGHTS_DRAFTER, -(int64_t)h->bytes);
    kk_free(h->id);
    kk_free(h->row);
    kk_free(h->used);
    kk_free(h->fresh);
    kk_free(h->values);
    kk_free(h->one);
}

/* ---- the ids it has --------------------------------------------------------------------- */

int32_t kk_dflash_short_rows(const kk_dflash *m) { return m->short_head.n; }

bool kk_dflash_has_short(const kk_dflash *m, int32_t id) {
    return m->short_head.n > 0 && m->short_head.row[id] >= 0;
}

/* The spare row that was used longest ago. */
static int32_t oldest(const kk_dflash_short *h) {
    int32_t best = 0;
    for (int32_t r = 1; r < h->n_spare; r++)
        if (h->used[r] < h->used[best]) best = r;
    return best;
}

/* True: a row has become this id's. */
static bool admit(kk_dflash_short *h, int32_t id) {
    int32_t r = h->row[id];
    const bool is_new = r < 0;
    if (is_new) {
        r = oldest(h);
        h->row[h->id[r]] = -1;
        h->row[id] = r;
        h->id[r] = id;
        h->fresh[r] = true;
    }
    if (r < h->n_spare) h->used[r] = ++h->clock;
    return is_new;
}

/* The map goes first: what sends a row also starts what was recorded before it, which must not
 * become part of a draft's recorded operations. */
static kk_status send_fresh(kk_dflash *m, kk_err *err) {
    kk_dflash_short *h = &m->short_head;
    const kk_matrix row = rows_at(m, 1, h->one);
    const kk_ids_args ids = {h->map, h->id, h->n_spare};
    KK_TRY(m->be->ids(m->dev, &ids, err));
    for (int32_t r = 0; r < h->n_spare; r++) {
        if (!h->fresh[r]) continue;
        copy_row(h, h->id[r], h->one);
        KK_TRY(m->be->weight_row(m->dev, h->w, r, &row, err));
        h->fresh[r] = false;
    }
    return KK_OK;
}

kk_status kk_dflash_note(kk_dflash *m, const int32_t *tokens, int32_t n, kk_err *err) {
    kk_dflash_short *h = &m->short_head;
    bool any = false;
    if (h->n_spare == 0) return KK_OK;
    for (int32_t i = 0; i < n; i++) {
        assert(tokens[i] >= 0 && tokens[i] < m->cfg.vocab);
        if (tokens[i] != m->cfg.mask_id) any |= admit(h, tokens[i]);
    }
    return any ? send_fresh(m, err) : KK_OK;
}
