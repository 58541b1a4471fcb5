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
static kk_status load(const kk_backend **out, const char *name, kk_err *err) {
    char path[4352], symbol[64];
    void *module = kk_fault_point() ? NULL : kk_module_open(name, path, sizeof path);
    if (!module) {
        const char *why = dlerror();
        return kk_fail(err, KK_EDEVICE,
                       "the device '%s' needs its module, which does not load: %.200s", name,
                       why ? why : "its folder is not known");
    }
    snprintf(symbol, sizeof symbol, "kk_%s_module", name);
    module_fn open;
    *(void **)&open = dlsym(module, symbol);
    *out = open ? open(sizeof(kk_backend)) : NULL;
    if (!open) dlclose(module);
    if (*out) return KK_OK;
    /* cppcheck-suppress resourceLeak */
    return kk_fail(err, KK_EDEVICE, "'%.300s' is the module of another build", path);
}

kk_status kk_backend_find(const kk_backend **out, const char *name, kk_err *err) {
    *out = NULL;
    if (name && strcmp(name, "cuda") == 0) return load(out, name, err);
    if (name && strcmp(name, "cpu") != 0)
        return kk_fail(err, KK_EDEVICE, "no device is named '%.40s': there are cpu and cuda", name);
    *out = &kk_cpu_backend;
    return KK_OK;
}

const kk_backend *kk_backend_named(const char *name) {
    const kk_backend *found;
    return kk_backend_find(&found, name, NULL) == KK_OK ? found : NULL;
}
