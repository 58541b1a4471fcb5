/* registry.c - devices by name.
 *
 * The CPU is built in.  CUDA is a module beside the program, or beside the shared library, so
 * that one program runs with and without a GPU's driver; it is looked for when it is asked for
 * by name, and nowhere else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "backend/backend.h"
#include "backend/cpu/device.h"

typedef const kk_backend *(*module_fn)(size_t bytes);

#ifdef __APPLE__
#define MODULE_SUFFIX ".dylib"
#else
#define MODULE_SUFFIX ".so"
#endif

/* A module stays loaded: its device table is handed out without an end to its use. */
static const kk_backend *load(const char *name) {
    Dl_info here;
    char path[4096], symbol[64];
    if (!dladdr(&kk_cpu_backend, &here) || !here.dli_fname) return NULL;
    const char *slash = strrchr(here.dli_fname, '/');
    const int folder = slash ? (int)(slash - here.dli_fname + 1) : 0;
    const int n =
        snprintf(path, sizeof path, "%.*slibkakeya_%s" MODULE_SUFFIX, folder, here.dli_fname, name);
    if (n < 0 || (size_t)n >= sizeof path || kk_fault_point()) return NULL;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
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
