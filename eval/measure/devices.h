/* devices.h - which backends this build has, and which of them open on this machine. */
#ifndef KK_EVAL_DEVICES_H
#define KK_EVAL_DEVICES_H

#include "kakeya.h"

enum { KK_DEVICE_KINDS = 3 }; /* "cpu", "cuda", "mlx" */

const char *kk_device_kind_name(size_t kind);
bool kk_device_built(const char *name);

typedef struct {
    const char *name;
    bool built, usable;
    char isa[64];
    int32_t threads;
    char why[240]; /* not usable: the backend's own words */
} kk_device_state;
/* Opens the backend and closes it again. */
void kk_device_probe(size_t kind, kk_device_state *out);

/* What is measured of a device whose results may depend on how many rows are computed together. */
typedef struct {
    char isa[64];
    bool measured; /* false: its kernels give a row the same bits by the way they are made */
    /* Rows of a product that have the bits they have alone, by weights as floats and packed. */
    int32_t exact_rows, exact_packed_rows;
    /* The same of attention by kernels over K/V pages; 0: there are none, or they are wrong. */
    int32_t exact_page_rows;
    char no_page_rows[240]; /* why it is 0 */
    double bandwidth;       /* bytes per second at which it reads memory; 0: not measured */
} kk_device_exactness;
kk_status kk_device_measure(const char *name, kk_device_exactness *out, kk_err *err);

#endif
