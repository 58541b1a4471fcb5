/* registry.c - devices by name.
 *
 * The CPU is built in.  CUDA is a module, so that one program runs with and without a GPU's
 * driver; it is looked for when it is asked for by name.  core/module.c says where. */
#include <stdio.h>

#include "backend/backend.h"
#include "backend/cpu/device.h"
#include "core/module.h"

typedef const kk_backend *(*module_fn)(size_t bytes);

static kk_status load(const kk_backend **out, const char *name, kk_err *err) {
    kk_module module;
    char user[64];
    snprintf(user, sizeof user, "the device '%s'", name);
    KK_TRY(kk_module_load(&module, name, user, err));
    module_fn table;
    *(void **)&table = module.entry;
    *out = table(sizeof(kk_backend));
    return *out ? KK_OK : kk_module_mismatch(&module, err);
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
