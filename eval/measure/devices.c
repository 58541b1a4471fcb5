/* devices.c - asks each backend to open, which is the only honest way to know. */
#include "eval/measure/devices.h"

#include <stdio.h>

#include "backend/backend.h"

static const char *const names[KK_DEVICE_KINDS] = {"cpu", "cuda", "mlx"};

const char *kk_device_kind_name(size_t kind) { return names[kind]; }
bool kk_device_built(const char *name) { return kk_backend_named(name) != NULL; }

static kk_status measure(const kk_backend *be, kk_dev *dev, kk_device_exactness *out, kk_err *err) {
    enum { BYTES = 256 << 20 }; /* past any cache */
    kk_dev_facts facts;
    be->describe(dev, &facts);
    snprintf(out->isa, sizeof out->isa, "%s", facts.isa);
    if (be->instruments->read_rate)
        KK_TRY(be->instruments->read_rate(dev, BYTES, &out->bandwidth, err));
    out->measured = be->instruments->measure_exact != NULL;
    if (!out->measured) return KK_OK;
    kk_exact_rows rows;
    kk_err pages = {.msg = ""};
    KK_TRY(be->instruments->measure_exact(dev, &rows, &pages, err));
    snprintf(out->no_page_rows, sizeof out->no_page_rows, "%s", pages.msg);
    out->exact_rows = rows.floats;
    out->exact_packed_rows = rows.packed;
    out->exact_page_rows = rows.pages;
    return KK_OK;
}

kk_status kk_device_measure(const char *name, kk_device_exactness *out, kk_err *err) {
    const kk_backend *be;
    kk_mem mem = {.limit = 0};
    kk_dev *dev;
    *out = (kk_device_exactness){0};
    KK_TRY(kk_backend_find(&be, name, err));
    KK_TRY(be->open(&dev, &(kk_dev_opts){.mem = &mem, .max_rows = 1}, err));
    const kk_status st = measure(be, dev, out, err);
    be->close(dev);
    return st;
}

void kk_device_probe(size_t kind, kk_device_state *out) {
    *out = (kk_device_state){.name = names[kind]};
    const kk_backend *be = kk_backend_named(names[kind]);
    out->built = be != NULL;
    if (!be) return;
    kk_mem mem = {.limit = 0};
    kk_dev *dev;
    kk_err err;
    if (be->open(&dev, &(kk_dev_opts){.mem = &mem, .max_rows = 1}, &err) != KK_OK) {
        snprintf(out->why, sizeof out->why, "%s", err.msg);
        return;
    }
    out->usable = true;
    kk_dev_facts facts;
    be->describe(dev, &facts);
    out->threads = facts.threads;
    snprintf(out->isa, sizeof out->isa, "%s", facts.isa);
    be->close(dev);
}
