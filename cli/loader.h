/* loader.h - from -m, -md, --synthetic and their kin to an open engine and its sessions. */
#ifndef KAKEYA_CLI_LOADER_H
#define KAKEYA_CLI_LOADER_H

#include "cli/options.h"
#include "kakeya.h"

typedef struct {
    const char *model, *drafter, *synthetic, *device, *isa, *draft_type, *draft_embed_scale;
    const char *draft_vocab;
    const char *projection, *projection_type;
    int32_t threads, exact_rows;
    const char *page_kernel;
    bool mlock, huge_pages;
    int32_t key_cache;   /* MiB */
    uint64_t gpu_memory; /* 0: all */
    bool restores;       /* rows are to be restored: the shipped model brings its projection */
    bool keeps_few; /* an evaluation of rows that are not kept: the CPU, unless a device is named */
} loader_args;

typedef struct {
    const char *kv_sliding, *kv_full, *kv_format, *latents, *spec;
    int32_t ctx, draft_max, draft_ctx, sink, window, chunk;
    bool draft_fixed;
} loader_cache_args;
enum { LOADER_UNSET = -2 };
/* What loader_cache_args are before the options are read: 0 is a choice. */
#define LOADER_CACHE_DEFAULTS                                                                      \
    { .sink = LOADER_UNSET, .window = LOADER_UNSET }

/* Which model a verb works on: the path given, or the shipped one; and its drafter and projection,
 * "" when there is none. */
typedef struct {
    char path[4096], drafter[4096], projection[4096];
} loader_path;
/* The model alone.  False after saying what is missing, with the exit code in *code. */
bool loader_find(const verb *v, const loader_args *a, loader_path *out, int *code);
/* The path of the running program; false when the system does not say. */
bool loader_program(char *out, size_t cap);
/* A file or folder beside the shipped model, such as "prompts"; false when it is not there. */
bool loader_shipped(const char *name, char *out, size_t cap);

/* The engine's options, with the paths they point to in *path; false after saying why not. */
bool loader_options(const verb *v, const loader_args *a, loader_path *path, kk_engine_opts *out,
                    int *code);
/* Says why an engine did not open and what to do about it; returns the exit code. */
int loader_failed(const loader_args *a, const kk_err *err);
/* Opens the engine a verb asked for; NULL after saying why not. */
kk_engine *loader_open(const verb *v, const loader_args *a, int *code);
/* A session of it, from the cache options; NULL after saying why not. */
kk_session *loader_session(kk_engine *e, const loader_cache_args *a, int *code);
/* The same as options of the library. */
kk_session_opts loader_session_opts(const loader_cache_args *a);
/* Says in the engine's options that a session of these will restore rows. */
void loader_expect(loader_args *load, const loader_cache_args *a);
kk_keep loader_keep(const char *name); /* NULL, native, exact: all */
const char *loader_keep_name(kk_keep k, bool sliding);
const char *loader_format_at(int i);             /* K/V formats in order; NULL after the last */
kk_kv_format loader_kv_format(const char *name); /* NULL: the default */
const char *loader_format_name(kk_kv_format f);  /* "?": none that is known */
kk_spec loader_spec(const char *name);           /* NULL: the default */

/* Tables of options, for verbs whose struct T has the named member. */
#define LOADER_MODEL_OPTIONS(T, m)                                                                 \
    OPTION_HEADING("Model"),                                                                       \
        OPTION_STRING("m", "model", "MODEL", offsetof(T, m.model),                                 \
                      "Hugging Face folder or GGUF file (default: the small one shipped with "     \
                      "the program)"),                                                             \
        LOADER_DRAFTER_OPTIONS(T, m), LOADER_PROJECTION_OPTIONS(T, m),                             \
        OPTION_STRING(NULL, "synthetic", "SPEC", offsetof(T, m.synthetic),                         \
                      "instead of a model: its shapes with random weights, as in tiny:f32 or "     \
                      "26b-a4b:q4_0[:LAYERS]")

#define LOADER_DRAFTER_OPTIONS(T, m)                                                               \
    OPTION_STRING("md", "model-draft", "DRAFTER", offsetof(T, m.drafter),                          \
                  "DFlash drafter made for the model: a folder or a GGUF file; none: without "     \
                  "one; synthetic: random weights beside --synthetic (default: none with -m, "     \
                  "else the shipped model's own)"),                                                \
        OPTION_CHOICE("draft-type", "TYPE", offsetof(T, m.draft_type), "q8_0 q4_0 file", NULL,     \
                      "the drafter's weights in memory: q8_0 (default), q4_0, or as in its file "  \
                      "(default on a GPU)"),                                                       \
        OPTION_STRING(NULL, "draft-vocab", "IDS", offsetof(T, m.draft_vocab),                      \
                      "drafts by a short head, of the ids most frequent in texts: a file that "    \
                      "'kakeya train counts' wrote, or FILE:N for N of its ids; N: of "            \
                      "token-counts.json in the drafter's folder; full: by all ids (default: by "  \
                      "that file where it is there)"),                                             \
        OPTION_CHOICE("draft-embed-scale", "SCALE", offsetof(T, m.draft_embed_scale),              \
                      "1 once twice", NULL,                                                        \
                      "for diagnosis: how often the embedding scale is applied to what the "       \
                      "drafter reads: 1 (never), once or twice (default: as the drafter says)")

#define LOADER_PROJECTION_OPTIONS(T, m)                                                            \
    OPTION_STRING("mp", "model-projection", "DIR", offsetof(T, m.projection),                      \
                  "folder of a projection trained for the model, to restore K/V rows with; "       \
                  "synthetic:RANK: random weights beside --synthetic (default: none with -m, "     \
                  "else the shipped model's own where rows are restored)"),                        \
        OPTION_CHOICE("projection-type", "TYPE", offsetof(T, m.projection_type), "q8_0 file",      \
                      NULL, "its decoders in memory: q8_0 (default), or as in its file")

#define LOADER_DEVICES "cpu cuda mlx"
#define LOADER_DEVICES_TO_COME NULL

#define LOADER_DEVICE_OPTIONS(T, m)                                                                \
    OPTION_HEADING("Device"),                                                                      \
        OPTION_INT("t", "threads", "N", offsetof(T, m.threads), 0, 1024,                           \
                   "threads (default: one for every core)"),                                       \
        OPTION_CHOICE("device", "NAME", offsetof(T, m.device), LOADER_DEVICES,                     \
                      LOADER_DEVICES_TO_COME,                                                      \
                      "cpu; cuda: an NVIDIA GPU; mlx: Apple's MLX (default: the fastest of cpu "   \
                      "and cuda here that can do it)"),                                            \
        OPTION_INT(NULL, "exact-rows", "N", offsetof(T, m.exact_rows), -1, 32,                     \
                   "of mlx: rows of a round that have the same bits alone, within which it "       \
                   "drafts (default: what 'kakeya doctor --device mlx' measured here, else 1); "   \
                   "-1: no limit, and drafted text is not proven to be plain text's"),             \
        OPTION_CHOICE("page-kernel", "WHEN", offsetof(T, m.page_kernel), "on off", NULL,           \
                      "of mlx with Metal: attention by kernels that read K/V pages where they "    \
                      "lie (default: where 'kakeya doctor --device mlx' found them right here)"),  \
        OPTION_STRING(NULL, "isa", "NAME", offsetof(T, m.isa),                                     \
                      "for diagnosis: avx512, avx2, neon or reference (default: the best); of "    \
                      "cuda: sm_80 or sm_86, to keep to the limits of such a chip"),               \
        OPTION_INT(NULL, "key-cache", "MIB", offsetof(T, m.key_cache), -1, 1 << 20,                \
                   "of cpu: most memory, of all sessions together, for keys of restored rows "     \
                   "that are not rebuilt for every token (default: 32); -1: none"),                \
        OPTION_SIZE("gpu-memory", offsetof(T, m.gpu_memory),                                       \
                    "of cuda: most memory of the GPU that is taken, as in 24GB (default: all); "   \
                    "experts that do not fit lie in host memory, and are read from there"),        \
        OPTION_FLAG(NULL, "mlock", offsetof(T, m.mlock), "lock the weights in memory"),            \
        OPTION_FLAG(NULL, "huge-pages", offsetof(T, m.huge_pages),                                 \
                    "ask for huge pages under the weights; a file gets them when the page "        \
                    "cache takes it in, not later")

#define LOADER_FORMAT_OPTION(to)                                                                   \
    OPTION_NAMED("kv-format", "TYPE", to, loader_format_at, "d4 e8",                               \
                 "how K/V rows are stored ('kakeya eval kv' compares their sizes and errors)")

#define LOADER_DRAFT_MAX_OPTION(to)                                                                \
    {                                                                                              \
        .kind = OPT_INT, .name = "draft-max", .arg = "N", .offset = (to), .min = 1,                \
        .max = KK_MAX_DRAFT, .hint = "to draft nothing, give --spec none",                         \
        .help = "most tokens drafted in a round, up to the drafter's block less one (default: "    \
                "that; ngram 15)"                                                                  \
    }

#define LOADER_ROWS_OPTIONS(T, m)                                                                  \
    OPTION_INT(NULL, "sink", "N", offsetof(T, m.sink), 0, 64,                                      \
               "rows kept of the start by window and restored (default: 4)"),                      \
        OPTION_INT(NULL, "window", "N", offsetof(T, m.window), 0, 1 << 30,                         \
                   "rows kept before the present chunk (default: 64)"),                            \
        OPTION_INT(NULL, "chunk", "N", offsetof(T, m.chunk), 1, 4096,                              \
                   "rows go so many at a time (default: 64)"),                                     \
        OPTION_NAMED("latents", "TYPE", offsetof(T, m.latents), loader_format_at, NULL,            \
                     "how what rows are restored from is stored")

#define LOADER_KEEP_OPTIONS(T, m)                                                                  \
    OPTION_CHOICE("kv-sliding", "POLICY", offsetof(T, m.kv_sliding), "native window restored",     \
                  NULL,                                                                            \
                  "what sliding layers keep of their rows: native, all they can see (default); "   \
                  "window, a few, and the rest is lost; restored, a few, and the rest is rebuilt " \
                  "by the projection"),                                                            \
        OPTION_CHOICE("kv-full", "POLICY", offsetof(T, m.kv_full), "exact window restored", NULL,  \
                      "the same of full layers: exact (default), window or restored"),             \
        LOADER_ROWS_OPTIONS(T, m)

#define LOADER_CACHE_OPTIONS(T, m)                                                                 \
    OPTION_HEADING("Context"),                                                                     \
        OPTION_INT("c", "ctx-size", "N", offsetof(T, m.ctx), 0, 1 << 30,                           \
                   "most tokens held (default: 4096, or the model's own if smaller)"),             \
        LOADER_KEEP_OPTIONS(T, m), LOADER_FORMAT_OPTION(offsetof(T, m.kv_format)),                 \
        OPTION_HEADING("Drafting (changes the speed, never the tokens)"),                          \
        OPTION_CHOICE("spec", "PROPOSER", offsetof(T, m.spec), "auto dflash ngram none", NULL,     \
                      "who drafts tokens: dflash (the drafter), ngram (what followed before in "   \
                      "the same text), auto (both: in each round whichever promises more) or "     \
                      "none (default: auto with a drafter, else none)"),                           \
        LOADER_DRAFT_MAX_OPTION(offsetof(T, m.draft_max)),                                         \
        OPTION_FLAG(NULL, "draft-fixed", offsetof(T, m.draft_fixed),                               \
                    "always draft --draft-max tokens, whether it pays or not"),                    \
        OPTION_INT(NULL, "draft-ctx", "N", offsetof(T, m.draft_ctx), 1, 1 << 30,                   \
                   "tokens the drafter's full layers look back over (default: all)")

#endif
