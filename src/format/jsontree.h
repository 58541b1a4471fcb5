/* jsontree.h - JSON text as a tree of jansson values, read by our own reader.
 *
 * jansson's parser ignores some failed allocations and goes on without the bytes it could not
 * store, so that a text could be read wrong without an error.  Its values are sound. */
#ifndef KK_FORMAT_JSONTREE_H
#define KK_FORMAT_JSONTREE_H

#include <jansson.h>

#include "core/error.h"

/* *out is released with json_decref.  bad: the status of text that is not JSON.  Whole numbers
 * that fit no 64 bits become floats.  Of equal keys the last one counts. */
kk_status kk_json_tree(json_t **out, const char *text, size_t len, const char *label, kk_status bad,
                       kk_err *err);

#endif
