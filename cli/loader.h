/* loader.h - from -m, --synthetic and their kin to an open engine. */
#ifndef KAKEYA_CLI_LOADER_H
#define KAKEYA_CLI_LOADER_H

#include "cli/options.h"
#include "kakeya.h"

typedef struct {
    const char *model, *synthetic, *device, *isa;
    int32_t threads;
    bool mlock, huge_pages;
} loader_args;

typedef struct {
    const char *kv_sliding, *kv_full, *kv_format, *spec;
    int32_t ctx;
} loader_cache_args;

/* Which model a verb works on: the path given, or the shipped one.  False after saying what is
 * missing, with the exit code in *code. */
typedef struct {
    char path[4096];
} loader_path;
bool loader_find(const verb *v, const loader_args *a, loader_path *out, int *code);

/* The engine's options, with the path they point to in *path; false after saying why not. */
bool loader_options(const verb *v, const loader_args *a, loader_path *path, kk_engine_opts *out,
                    int *code);
/* Says why an engine did not open and what to do about it; returns the exit code. */
int loader_failed(const loader_args *a, const kk_err *err);
/* Opens the engine a verb asked for; NULL after saying why not. */
kk_engine *loader_open(const verb *v, const loader_args *a, int *code);
/* A session of it, from the cache options; NULL after saying why not. */
kk_session *loader_session(kk_engine *e, const loader_cache_args *a, int *code);

/* Tables of options, for verbs whose struct T has the named member. */
#define LOADER_MODEL_OPTIONS(T, m)                                                                 \
    OPTION_HEADING("Model"),                                                                       \
        OPTION_STRING("m", "model", "MODEL", offsetof(T, m.model),                                 \
                      "Hugging Face folder or GGUF file"),                                         \
        OPTION_STRING(NULL, "synthetic", "SPEC", offsetof(T, m.synthetic),                         \
                      "instead of a model: its shapes with random weights, as in tiny:f32 or "     \
                      "26b-a4b:q4_0[:LAYERS]")

#define LOADER_DEVICE_OPTIONS(T, m)                                                                \
    OPTION_HEADING("Device"),                                                                      \
        OPTION_INT("t", "threads", "N", offsetof(T, m.threads), 0, 1024,                           \
                   "threads (default: one for every core)"),                                       \
        OPTION_CHOICE("device", "NAME", offsetof(T, m.device), "cpu", "cuda mlx", "cpu"),          \
        OPTION_STRING(NULL, "isa", "NAME", offsetof(T, m.isa),                                     \
                      "for diagnosis: avx512, avx2, neon or reference (default: the best)"),       \
        OPTION_FLAG(NULL, "mlock", offsetof(T, m.mlock), "lock the weights in memory"),            \
        OPTION_FLAG(NULL, "huge-pages", offsetof(T, m.huge_pages),                                 \
                    "ask the system for huge pages under the weights")

#define LOADER_CACHE_OPTIONS(T, m)                                                                 \
    OPTION_HEADING("Context"),                                                                     \
        OPTION_INT("c", "ctx-size", "N", offsetof(T, m.ctx), 0, 1 << 30,                           \
                   "most tokens held (default: 4096, or the model's own if smaller)"),             \
        OPTION_CHOICE("kv-sliding", "POLICY", offsetof(T, m.kv_sliding), "native",                 \
                      "window restored", "what sliding layers keep: native, the window"),          \
        OPTION_CHOICE("kv-full", "POLICY", offsetof(T, m.kv_full), "exact", "window restored",     \
                      "what full layers keep: exact, everything"),                                 \
        OPTION_CHOICE("kv-format", "TYPE", offsetof(T, m.kv_format), "bf16 f32", "q8 q4 d4 e8",    \
                      "how K/V rows are stored: bf16 (default) or f32"),                           \
        OPTION_CHOICE("spec", "PROPOSER", offsetof(T, m.spec), "none", "dflash ngram",             \
                      "who drafts tokens: none")

#endif
