/* module.c - where the modules of devices lie: beside the program or the shared library, as in a
 * build folder, or in `kakeya` below the library folder, as they are installed.
 *
 * The program's own folder is the one its file lies in, whatever it was called by. */
#define _GNU_SOURCE
#include "backend/module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/device.h"

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

/* Where this code was loaded from: the shared library, or the program as it was called. */
static bool folder_of_code(char *out, size_t cap) {
    Dl_info here;
    if (!dladdr(&kk_cpu_backend, &here) || !here.dli_fname) return false;
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

void *kk_module_open(const char *name, char *path, size_t cap) {
    char folder[4096];
    for (int i = 0; i < FOLDERS * PLACES; i++) {
        const bool known = i < PLACES ? folder_of_code(folder, sizeof folder)
                                      : folder_of_program(folder, sizeof folder);
        if (!known) continue;
        const int n =
            snprintf(path, cap, "%s%slibkakeya_%s" MODULE_SUFFIX, folder, places[i % PLACES], name);
        if (n > 0 && (size_t)n < cap && access(path, F_OK) == 0)
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    snprintf(path, cap, "libkakeya_%s" MODULE_SUFFIX, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL); /* for the reason */
}
