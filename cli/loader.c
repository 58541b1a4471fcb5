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

#include "cli/exactness.h"
#include "cli/output.h"
#include "cli/term.h"

bool loader_program(char *out, size_t cap) {
#ifdef __APPLE__
    uint32_t size = (uint32_t)cap;
    if (_NSGetExecutablePath(out, &size) != 0) return false;
#else
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    if (n <= 0) return false;
    out[n] = 0;
#endif
    return true;
}

/* Folder of the running program, without the slash; false when the system does not say. */
static bool program_folder(char *out, size_t cap) {
    char *slash = loader_program(out, cap) ? strrchr(out, '/') : NULL;
    if (slash) *slash = 0;
    return slash != NULL;
}

/* What ships with the program lies beside the source tree (the program in build/) or in the
 * installed share folder (the program in bin/). */
bool loader_shipped(const char *name, char *out, size_t cap) {
    static const char *const places[] = {"../models/tiny", "../share/kakeya/models/tiny",
                                         "models/tiny"};
    char folder[2048];
    if (!program_folder(folder, sizeof folder)) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const int n = snprintf(out, cap, "%s/%s/%s", folder, places[i], name);
        if (n > 0 && (size_t)n < cap && access(out, R_OK) == 0) return true;
    }
    return false;
}

static bool shipped_model(const char *name, char *out, size_t cap) {
    char config[64];
    snprintf(config, sizeof config, "%s/config.json", name);
    if (!loader_shipped(config, out, cap)) return false;
    out[strlen(out) - strlen("/config.json")] = 0;
    return true;
}

bool loader_find(const verb *v, const loader_args *a, loader_path *out, int *code) {
    if (a->model && a->synthetic) {
        *code = options_wrong(v, "-m and --synthetic exclude each other");
        return false;
    }
    if (!a->model) {
        if (shipped_model("verifier", out->path, sizeof out->path)) return true;
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

/* ---- the drafter ------------------------------------------------------------------------- */

static bool given_drafter(const verb *v, const loader_args *a, loader_path *path, int *code) {
    if (snprintf(path->drafter, sizeof path->drafter, "%s", a->drafter) >=
        (int)sizeof path->drafter) {
        *code = output_failed("the drafter's path is too long",
                              "Use a shorter one, or a symbolic link.");
        return false;
    }
    if (strcmp(a->drafter, "synthetic") == 0) {
        if (a->synthetic && !a->model) return true;
        *code = options_wrong(v, "-md synthetic goes with --synthetic; a model's own drafter is "
                                 "named by its folder or file");
        return false;
    }
    if (access(a->drafter, R_OK) == 0) return true;
    char what[4200];
    snprintf(what, sizeof what, "cannot open drafter '%.2000s': %s", a->drafter, strerror(errno));
    *code =
        output_failed(what, "-md takes a folder with config.json and safetensors, a GGUF file, or "
                            "none.");
    return false;
}

/* The shipped model brings its drafter; a model that was named brings what was named with it. */
static bool find_drafter(const verb *v, const loader_args *a, loader_path *path, int *code) {
    path->drafter[0] = 0;
    if (a->drafter && strcmp(a->drafter, "none") == 0) return true;
    if (a->drafter) return given_drafter(v, a, path, code);
    if (!a->model && !a->synthetic &&
        !shipped_model("drafter", path->drafter, sizeof path->drafter))
        path->drafter[0] = 0;
    return true;
}

static bool check_drafter(const verb *v, const loader_args *a, const loader_path *path, int *code) {
    const char *flag = a->draft_type          ? "--draft-type"
                       : a->draft_vocab       ? "--draft-vocab"
                       : a->draft_embed_scale ? "--draft-embed-scale"
                                              : NULL;
    if (!flag || path->drafter[0]) return true;
    *code = options_wrong(v, "%s needs a drafter: name one with -md DRAFTER", flag);
    return false;
}

/* ---- the projection ---------------------------------------------------------------------- */

static bool find_projection(const loader_args *a, loader_path *path, int *code) {
    path->projection[0] = 0;
    if (a->projection && strcmp(a->projection, "none") == 0) return true;
    if (!a->projection) {
        if (!a->restores || a->model || a->synthetic ||
            !loader_shipped("projection", path->projection, sizeof path->projection))
            path->projection[0] = 0;
        return true;
    }
    if (snprintf(path->projection, sizeof path->projection, "%s", a->projection) >=
        (int)sizeof path->projection) {
        *code = output_failed("the projection's path is too long",
                              "Use a shorter one, or a symbolic link.");
        return false;
    }
    if (a->synthetic && strncmp(a->projection, "synthetic:", 10) == 0) return true;
    if (access(a->projection, R_OK) == 0) return true;
    char what[4200];
    snprintf(what, sizeof what, "cannot open projection '%.2000s': %s", a->projection,
             strerror(errno));
    *code =
        output_failed(what, "-mp takes a folder that 'kakeya train projection' wrote, or none.");
    return false;
}

/* ---- the engine -------------------------------------------------------------------------- */

/* What `kakeya doctor` measured here, where no option says otherwise.  Kernels over K/V pages are
 * used where it found them right, or where they are asked for. */
static void take_measured(const loader_args *a, kk_engine_opts *out) {
    kk_device_exactness known;
    const bool measured = exactness_known(a->device, &known);
    const bool off = a->page_kernel && strcmp(a->page_kernel, "off") == 0;
    if (measured && a->exact_rows == 0) {
        out->exact_rows = known.exact_rows;
        out->exact_packed_rows = known.exact_packed_rows;
        out->exact_measured = true;
    }
    if (!off && measured) out->exact_page_rows = known.exact_page_rows;
    if (!a->page_kernel || off || out->exact_page_rows > 0) return;
    out->exact_page_rows = a->exact_rows > 0 ? a->exact_rows : 1; /* on, and not measured */
}

bool loader_options(const verb *v, const loader_args *a, loader_path *path, kk_engine_opts *out,
                    int *code) {
    bool synthetic = a->synthetic && !a->model;
    if (!synthetic && !loader_find(v, a, path, code)) return false;
    if (!find_drafter(v, a, path, code) || !check_drafter(v, a, path, code)) return false;
    if (!find_projection(a, path, code)) return false;
    *out = (kk_engine_opts){.model = synthetic ? NULL : path->path,
                            .synthetic = a->synthetic,
                            .drafter = path->drafter[0] ? path->drafter : NULL,
                            .draft_type = a->draft_type,
                            .draft_embed_scale = a->draft_embed_scale,
                            .draft_vocab = a->draft_vocab,
                            .projection = path->projection[0] ? path->projection : NULL,
                            .projection_type = a->projection_type,
                            .device = a->device || !a->keeps_few ? a->device : "cpu",
                            .isa = a->isa,
                            .threads = a->threads,
                            .mlock = a->mlock,
                            .huge_pages = a->huge_pages,
                            .gpu_memory = a->gpu_memory,
                            .key_cache = a->key_cache < 0 ? -1 : (int64_t)a->key_cache << 20,
                            .exact_rows = a->exact_rows,
                            .exact_packed_rows = a->exact_rows};
    if (a->device && strcmp(a->device, "mlx") == 0) take_measured(a, out);
    return true;
}

int loader_failed(const loader_args *a, const kk_err *err) {
    const bool fits_not = err->code == KK_EINVAL || err->code == KK_EFORMAT;
    if (fits_not && (a->projection || a->restores) && strstr(err->msg, "projection"))
        return output_failed(err->msg, "-mp takes a projection that was trained for this model; "
                                       "'kakeya train projection' makes one.");
    if (fits_not && a->draft_vocab && strstr(err->msg, "count"))
        return output_failed(err->msg, "'kakeya train counts' writes a file of counts.");
    if (fits_not && a->drafter && strstr(err->msg, "drafter"))
        return output_failed(err->msg,
                             "-md takes a drafter that was made for this model, or none.");
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

/* ---- sessions ---------------------------------------------------------------------------- */

const char *loader_format_at(int i) { return kk_kv_format_name((kk_kv_format)i); }

kk_kv_format loader_kv_format(const char *name) {
    kk_kv_format f = KK_KV_BF16;
    if (name) kk_kv_format_named(name, &f); /* the options' table has checked it */
    return f;
}

const char *loader_format_name(kk_kv_format f) {
    const char *name = kk_kv_format_name(f);
    return name ? name : "?";
}

kk_spec loader_spec(const char *name) {
    const char *unnamed = kk_spec_name(KK_SPEC_AUTO); /* as numbers after the last are, too */
    for (kk_spec s = KK_SPEC_NONE; name && strcmp(kk_spec_name(s), unnamed) != 0; s++)
        if (strcmp(name, kk_spec_name(s)) == 0) return s;
    return KK_SPEC_AUTO;
}

static const char *const keeps[][2] = {
    [KK_KEEP_ALL] = {"exact", "native"},
    [KK_KEEP_WINDOW] = {"window", "window"},
    [KK_KEEP_RESTORED] = {"restored", "restored"},
};

kk_keep loader_keep(const char *name) {
    for (size_t i = 0; name && i < OPTION_COUNT(keeps); i++)
        if (strcmp(name, keeps[i][0]) == 0) return (kk_keep)i;
    return KK_KEEP_ALL;
}

const char *loader_keep_name(kk_keep k, bool sliding) {
    return (size_t)k < OPTION_COUNT(keeps) ? keeps[k][sliding] : "?";
}

void loader_expect(loader_args *load, const loader_cache_args *a) {
    load->restores |= loader_keep(a->kv_sliding) == KK_KEEP_RESTORED ||
                      loader_keep(a->kv_full) == KK_KEEP_RESTORED;
}

/* To the library 0 is the default, and -1 is none. */
static int32_t or_none(int32_t given) {
    return given == LOADER_UNSET ? 0 : given == 0 ? -1 : given;
}

kk_session_opts loader_session_opts(const loader_cache_args *a) {
    return (kk_session_opts){.ctx = a->ctx,
                             .kv_format = loader_kv_format(a->kv_format),
                             .spec = loader_spec(a->spec),
                             .draft_max = a->draft_max,
                             .draft_fixed = a->draft_fixed,
                             .draft_ctx = a->draft_ctx,
                             .kv_sliding = loader_keep(a->kv_sliding),
                             .kv_full = loader_keep(a->kv_full),
                             .sink = or_none(a->sink),
                             .window = or_none(a->window),
                             .chunk = a->chunk,
                             .latents = loader_kv_format(a->latents)};
}

kk_session *loader_session(kk_engine *e, const loader_cache_args *a, int *code) {
    const kk_session_opts opts = loader_session_opts(a);
    kk_drafter_info drafter;
    kk_session *s;
    kk_err err;
    if (kk_session_new(&s, e, &opts, &err) == KK_OK) return s;
    if (opts.spec == KK_SPEC_DFLASH && !kk_engine_drafter(e, &drafter))
        *code = output_failed(err.msg, "Name one with -md DRAFTER; --spec ngram needs none.");
    else
        *code = output_error(&err);
    if (err.code == KK_EINVAL) *code = EXIT_USAGE; /* everything it was made from was a flag */
    return NULL;
}
