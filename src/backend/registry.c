/* registry.c - devices by name.
 *
 * The CPU is built in.  Others are modules, so that one program runs with and without a GPU's
 * driver; they are looked for when they are asked for by name.  core/module.c says where. */
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

static const kk_backend *added;

void kk_backend_add(const kk_backend *be) { added = be; }

/* A name is part of a file's. */
static bool is_word(const char *name) {
    size_t n = 0;
    while (name[n] >= 'a' && name[n] <= 'z') n++;
    return n > 0 && n <= 15 && name[n] == '\0';
}

static bool is_added(const char *name) { return added && strcmp(name, added->name) == 0; }

bool kk_backend_is_there(const char *name) {
    return strcmp(name, kk_cpu_backend.name) == 0 || is_added(name) || kk_module_is_there(name);
}

kk_status kk_backend_find(const kk_backend **out, const char *name, kk_err *err) {
    *out = NULL;
    if (!name || strcmp(name, kk_cpu_backend.name) == 0) {
        *out = &kk_cpu_backend;
        return KK_OK;
    }
    if (is_added(name)) {
        *out = added;
        return KK_OK;
    }
    if (!is_word(name) || !kk_backend_is_there(name))
        return kk_fail(err, KK_EDEVICE,
                       "the device '%.40s' needs its module libkakeya_%.40s, which is not "
                       "installed: cpu is built in",
                       name, name);
    return load(out, name, err);
}

const kk_backend *kk_backend_named(const char *name) {
    const kk_backend *found;
    return kk_backend_find(&found, name, NULL) == KK_OK ? found : NULL;
}
