/* numbers.h - dumped reference numbers, and how far ours are from them. */
#ifndef KK_TESTS_NUMBERS_H
#define KK_TESTS_NUMBERS_H

#include <math.h>
#include <stdlib.h>

#include "core/file.h"
#include "format/safetensors.h"
#include "support/ok.h"

typedef struct {
    kk_map map;
    kk_safetensors list;
} numbers;

static inline numbers open_numbers(const char *path) {
    numbers x = {0};
    assert_ok(kk_map_open(&x.map, path, why));
    assert_ok(kk_safetensors_parse(&x.list, x.map.span, path, why));
    return x;
}

static inline void close_numbers(numbers *x) {
    kk_safetensors_free(&x->list);
    kk_map_close(&x->map);
}

/* A copy of a tensor of d0 x d1 values of four bytes (d1 0: one dim; d0 0: any); free it. */
static inline void *take(const numbers *x, const char *name, kk_dtype type, int64_t d0,
                         int64_t d1) {
    for (size_t i = 0; i < x->list.n; i++) {
        const kk_tensor *t = &x->list.tensors[i];
        if (strcmp(t->name, name) != 0) continue;
        assert_int_equal(t->dtype, type);
        assert_int_equal(t->n_dims, d1 ? 2 : 1);
        if (d0) assert_int_equal(t->dims[0], d0);
        if (d1) assert_int_equal(t->dims[1], d1);
        void *copy = malloc(t->data.size);
        assert_non_null(copy);
        return memcpy(copy, t->data.base, t->data.size);
    }
    fail_msg("no tensor '%s'", name);
    return NULL;
}

static inline int32_t length(const numbers *x, const char *name) {
    for (size_t i = 0; i < x->list.n; i++)
        if (strcmp(x->list.tensors[i].name, name) == 0) return (int32_t)x->list.tensors[i].dims[0];
    return 0;
}

/* The largest difference, and of how large a number; what is no number is further than all. */
typedef struct {
    double gap, largest;
} distance;

static inline void widen(distance *d, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double gap = fabs((double)got[i] - (double)want[i]);
        if (!(gap <= d->gap)) d->gap = isnan(gap) ? HUGE_VAL : gap;
        if (fabs((double)want[i]) > d->largest) d->largest = fabs((double)want[i]);
    }
}

#endif
