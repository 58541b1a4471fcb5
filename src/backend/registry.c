/* registry.c - devices by name.
 *
 * The CPU is built in.  CUDA is a module, so that one program runs with and without a GPU's
 * driver; it is looked for when it is asked for by name.  module.c says where. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "backend/backend.h"
#include "backend/cpu/device.h"
#include "backend/module.h"

typedef const kk_backend *(*module_fn)(size_t bytes);

/* A module stays loaded: its device table is handed out without an end to its use. */
static const kk_backend *load(const char *name) {
    char path[4352], symbol[64];
    void *module = kk_fault_point() ? NULL : kk_module_open(name, path, sizeof path);
    if (!module) return NULL;
    snprintf(symbol, sizeof symbol, "kk_%s_module", name);
    module_fn open;
    *(void **)&open = dlsym(module, symbol);
    if (!open) dlclose(module);
    /* cppcheck-suppress resourceLeak */
    return open ? open(sizeof(kk_backend)) : NULL;
}

const kk_backend *kk_backend_named(const char *name) {
    if (!name || strcmp(name, "cpu") == 0) return &kk_cpu_backend;
    return strcmp(name, "cuda") == 0 ? load(name) : NULL;
}
