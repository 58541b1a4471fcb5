/* analyzer.h - what clang's analyzer cannot see from one file, told to it.  Lint includes this
 * ahead of every file of src and eval; no build does.
 *
 * kk_fail returns the code it was given, never KK_OK; the allocator's functions mean what libc's
 * do.  With that it follows failures to their callers, knows zeroed memory, and finds leaks. */
#ifndef KK_ANALYZER_H
#define KK_ANALYZER_H

#define _GNU_SOURCE

#include <stdlib.h>

#include "core/alloc.h"
#include "core/error.h"

#define kk_fail(err, code, ...) (kk_fail(err, code, __VA_ARGS__), (code))
#define kk_malloc(size) malloc(size)
#define kk_zalloc(size) calloc(1, size)
#define kk_calloc(n, size) calloc(n, size)
#define kk_realloc(p, size) realloc(p, size)
#define kk_free(p) free(p)

#endif
