/* kvformat.h - how K/V rows are stored: one descriptor per format, one table of all of them.
 *
 * The table in kvformat.c is the only list of formats.  Caches, devices, saved files, reports and
 * the command line read names, sizes and conversions there.  A device may have no kernels for a
 * format and refuses it by name (backend.h); no format is ever read as another.
 *
 * A row is the values of one K/V head at one position.  Groups of neighbouring values are rounded
 * together, and a group's bytes lie in one or more planes: the first holds its codes, others what
 * the codes share, a scale say.  A block is the memory of some rows of one head, in a page or in a
 * sink: plane after plane, each [rows][head_dim / group][bytes]. */
#ifndef KK_CORE_KVFORMAT_H
#define KK_CORE_KVFORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "kakeya.h"

enum { KK_KV_PLANES = 3 }; /* at most */

/* Where the bytes of one row begin in each plane, counted from the start of its block. */
typedef struct {
    size_t at[KK_KV_PLANES];
} kk_kv_place;

typedef struct {
    const char *name;            /* as users and saved reports spell it */
    int32_t group;               /* values rounded together; a row is whole groups of them */
    int32_t plane[KK_KV_PLANES]; /* bytes of a group in each plane; 0: there is no such plane */
    /* Rounds a row of n values into its block, and reads it as floats, which is all that attention
     * needs of a format.  These two define the arithmetic: every kernel gives the same bits. */
    void (*pack)(const float *x, int32_t n, uint8_t *block, kk_kv_place to);
    void (*unpack)(float *y, int32_t n, const uint8_t *block, kk_kv_place from);
} kk_kv_format_info;

/* NULL: no format has that number. */
const kk_kv_format_info *kk_kv_format_get(kk_kv_format f);

/* Bytes of a row in one plane, and in all planes, of a format that exists. */
size_t kk_kv_plane_bytes(kk_kv_format f, int plane, int32_t head_dim);
size_t kk_kv_row_bytes(kk_kv_format f, int32_t head_dim);
kk_kv_place kk_kv_row_place(kk_kv_format f, int32_t head_dim, int32_t block_rows, int32_t row);

#endif
