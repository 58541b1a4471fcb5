/* loader.c - finds the model, opens the engine, and knows what to advise when that fails. */
#define _GNU_SOURCE
#include "cli/loader.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "cli/output.h"
#include "cli/term.h"

/* Folder of the running program, without the slash; false when the system does not say. */
static bool program_folder(char *out, size_t cap) {
#ifdef __APPLE__
    uint32_t size = (uint32_t)cap;
    if (_NSGetExecutablePath(out, &size) != 0) return false;
#else
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    if (n <= 0) return false;
    out[n] = 0;
#endif
    char *slash = strrchr(out, '/');
    if (!slash) return false;
    *slash = 0;
    return true;
}

/* The shipped model lies beside the source tree (the program in build/) or in the installed
 * share folder (the program in bin/). */
static bool shipped(loader_path *out) {
    static const char *const places[] = {
        "../models/tiny/verifier", "../share/kakeya/models/tiny/verifier", "models/tiny/verifier"};
    char folder[2048], config[4200];
    if (!program_folder(folder, sizeof folder)) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(out->path, sizeof out->path, "%s/%s", folder, places[i]);
        snprintf(config, sizeof config, "%s/config.json", out->path);
        if (access(config, R_OK) == 0) return true;
    }
    return false;
}

bool loader_find(const verb *v, const loader_args *a, loader_path *out, int *code) {
    if (a->model && a->synthetic) {
        *code = options_wrong(v, "-m and --synthetic exclude each other");
        return false;
    }
    if (!a->model) {
        if (shipped(out)) return true;
        *code = output_failed(
            "no model was given, and this copy came without its small one (models/tiny)",
            "Name one with -m MODEL (a Hugging Face folder or a GGUF file), or see the "
            "engine run\n  on random weights with --synthetic tiny:f32.");
        return false;
    }
    if (snprintf(out->path, sizeof out->path, "%s", a->model) >= (int)sizeof out->path) {
        *code =
            output_failed("the model's path is too long", "Use a shorter one, or a symbolic link.");
        return false;
    }
    if (access(a->model, R_OK) != 0) {
        char what[4200];
        snprintf(what, sizeof what, "cannot open model '%.2000s': %s", a->model, strerror(errno));
        *code = output_failed(what,
                              "-m takes a Hugging Face folder (config.json and *.safetensors) or a "
                              "GGUF file.");
        return false;
    }
    return true;
}

bool loader_options(const verb *v, const loader_args *a, loader_path *path, kk_engine_opts *out,
                    int *code) {
    bool synthetic = a->synthetic && !a->model;
    if (!synthetic && !loader_find(v, a, path, code)) return false;
    *out = (kk_engine_opts){.model = synthetic ? NULL : path->path,
                            .synthetic = a->synthetic,
                            .device = a->device,
                            .isa = a->isa,
                            .threads = a->threads,
                            .mlock = a->mlock,
                            .huge_pages = a->huge_pages};
    return true;
}

int loader_failed(const loader_args *a, const kk_err *err) {
    if (a->synthetic && err->code == KK_ENOMEM)
        return output_failed(err->msg, "Take fewer layers (26b-a4b:q4_0:12) or a smaller type, or "
                                       "close other programs.");
    return output_error(err);
}

kk_engine *loader_open(const verb *v, const loader_args *a, int *code) {
    loader_path path;
    kk_engine_opts opts;
    kk_engine *e;
    kk_err err;
    if (!loader_options(v, a, &path, &opts, code)) return NULL;
    /* Files are mapped and open at once; random weights take their time. */
    bool say = opts.synthetic && term_controls(stderr);
    if (say) fprintf(stderr, "making random weights...");
    kk_status st = kk_engine_open(&e, &opts, &err);
    if (say) fprintf(stderr, "\r\033[K");
    if (st != KK_OK) *code = loader_failed(a, &err);
    return e;
}

kk_session *loader_session(kk_engine *e, const loader_cache_args *a, int *code) {
    bool f32 = a->kv_format && strcmp(a->kv_format, "f32") == 0;
    kk_session_opts opts = {.ctx = a->ctx, .kv_format = f32 ? KK_KV_F32 : KK_KV_BF16};
    kk_session *s;
    kk_err err;
    if (kk_session_new(&s, e, &opts, &err) != KK_OK) *code = output_error(&err);
    return s;
}
