/* rows.h - copying rows between pages, and between a page and the memory of a sink. */
#ifndef KK_KV_ROWS_H
#define KK_KV_ROWS_H

#include "kv/kv.h"

/* Rows [first, first + n) from one block to another; a block is memory laid out as a page of so
 * many rows: a page, or a sink. */
typedef struct {
    uint8_t *to;
    const uint8_t *from;
    int32_t to_rows, from_rows;
    int32_t first, n;
    const kk_pool *pool; /* pool of both pages where they are remote; NULL: ordinary memory */
} kk_kv_passage;

/* Copies them of every layer of the kind. */
void kk_kv_rows_copy(const kk_kv_layout *l, kk_kind kind, const kk_kv_passage *p);
/* Bytes of a block of so many rows, at most KK_PAGE_ROWS. */
size_t kk_kv_block_bytes(const kk_kv_layout *l, kk_kind kind, int32_t rows);

#endif
