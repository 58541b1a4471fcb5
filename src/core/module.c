/* module.c - where modules lie: beside the program or the shared library, as in a build folder, or
 * in `kakeya` below the library folder, as they are installed.
 *
 * The program's own folder is the one its file lies in, whatever it was called by. */
#define _GNU_SOURCE
#include "core/module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"

#ifdef __APPLE__
#define MODULE_SUFFIX ".dylib"
#else
#define MODULE_SUFFIX ".so"
#endif

#ifndef KK_MODULE_FOLDER
#define KK_MODULE_FOLDER "../lib/kakeya" /* from the program's folder */
#endif

enum { FOLDERS = 2, PLACES = 3 };
static const char *const places[PLACES] = {"", "kakeya/", KK_MODULE_FOLDER "/"};

/* Cuts a file's path after its folder; false when it names none. */
static bool keep_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    slash[1] = '\0';
    return true;
}

/* Where this code was loaded from: the shared library, a module that carries a copy of it, or the
 * program as it was called. */
static bool folder_of_code(char *out, size_t cap) {
    Dl_info here;
    if (!dladdr(places, &here) || !here.dli_fname) return false;
    const size_t n = strlen(here.dli_fname);
    if (n >= cap) return false;
    memcpy(out, here.dli_fname, n + 1);
    return keep_folder(out);
}

static bool folder_of_program(char *out, size_t cap) {
    const ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    if (n <= 0) return false;
    out[n] = '\0';
    return keep_folder(out);
}

/* The first file of that name where modules lie. */
static bool find_module(kk_module *m, const char *name) {
    char folder[4096];
    for (int i = 0; i < FOLDERS * PLACES; i++) {
        const bool known = i < PLACES ? folder_of_code(folder, sizeof folder)
                                      : folder_of_program(folder, sizeof folder);
        if (!known) continue;
        const int n = snprintf(m->path, sizeof m->path, "%s%slibkakeya_%s" MODULE_SUFFIX, folder,
                               places[i % PLACES], name);
        if (n > 0 && (size_t)n < sizeof m->path && access(m->path, F_OK) == 0) return true;
    }
    return false;
}

bool kk_module_is_there(const char *name) {
    kk_module m;
    return find_module(&m, name);
}

/* Leaves in m->path where the module was, or its name when no folder has it. */
static void *open_module(kk_module *m, const char *name) {
    if (find_module(m, name)) return dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    snprintf(m->path, sizeof m->path, "libkakeya_%s" MODULE_SUFFIX, name);
    return dlopen(m->path, RTLD_NOW | RTLD_LOCAL); /* for the reason */
}

kk_status kk_module_load(kk_module *out, const char *name, const char *user, kk_err *err) {
    char symbol[64];
    *out = (kk_module){.entry = NULL};
    void *module = kk_fault_point() ? NULL : open_module(out, name);
    if (!module) {
        const char *why = dlerror();
        return kk_fail(err, KK_EDEVICE,
                       "%s needs its module libkakeya_%s" MODULE_SUFFIX
                       ", which does not load: %.200s",
                       user, name, why ? why : "its folder is not known");
    }
    snprintf(symbol, sizeof symbol, "kk_%s_module", name);
    out->entry = dlsym(module, symbol);
    if (out->entry) return KK_OK;
    dlclose(module);
    return kk_module_mismatch(out, err);
}

kk_status kk_module_mismatch(const kk_module *m, kk_err *err) {
    return kk_fail(err, KK_EDEVICE, "'%.190s' is the module of another build", m->path);
}
