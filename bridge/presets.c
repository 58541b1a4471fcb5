/* presets.c - see presets.h.  docs/bridge.md shows the same table, and a test compares the two.
 *
 * Names that begin with mlx and k3 are those of the original, whose commands ran on MLX alone: here
 * they pass --device mlx.  The others take the device as a parameter. */
#include "bridge/presets.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define SAMPLES(n)                                                                                 \
    { .name = "n_samples", .min = 1, .max = 50, .otherwise = (n) }
#define TOKENS(least, n)                                                                           \
    { .name = "max_new_tokens", .min = (least), .max = 512, .otherwise = (n) }
#define BLOCK(n)                                                                                   \
    { .name = "block_size", .min = 1, .max = 16, .otherwise = (n) }
#define LINES                                                                                      \
    { .name = "lines", .min = 1, .max = 2000, .otherwise = 70 }
#define SEED                                                                                       \
    { .name = "seed", .min = 0, .max = 1000000, .otherwise = 42 }
#define CONTEXT(n)                                                                                 \
    { .name = "ctx", .min = 1, .max = 65536, .otherwise = (n) }
#define REPEAT                                                                                     \
    { .name = "repeat", .min = 1, .max = 20, .otherwise = 5 }
#define SET                                                                                        \
    { .name = "set", .words = "code chat needle json edit prose" }
#define DEVICE                                                                                     \
    { .name = "device", .words = "cpu cuda mlx" }

#define FAMILY "?model ?drafter ?projection "
#define REPORT "-q --report @report"
#define CODE "bench --device mlx ?model ?drafter --arms plain,dflash --set code "
#define CODE_REST                                                                                  \
    "--samples {n_samples} -n {max_new_tokens} --draft-max {block_size} --prefill 0 --rows none "

static const kk_preset presets[] = {
    {.name = "mlx-env-probe",
     .summary = "what the machine is, and which devices it has",
     .commands = {"doctor --json"},
     .minutes = 10},
    {.name = "mlx-backend-tests",
     .summary = "the reference cases of the machine, on MLX",
     .commands = {"parity --device mlx @case"},
     .minutes = 45},
    {.name = "integration-tests",
     .summary = "the reference cases of the machine, then a model asked",
     .commands = {"parity --device {device} @case",
                  "eval needle --device {device} " FAMILY "--arms exact --ladder 70 --samples 2 "
                  "-n 16 " REPORT},
     .params = {DEVICE},
     .minutes = 60},
    {.name = "k3-step1-incremental",
     .summary = "needles with restored rows",
     .commands = {"eval needle --device mlx " FAMILY "--arms exact,restored --ladder 70 --samples "
                  "{n_samples} -n {max_new_tokens} " REPORT},
     .params = {SAMPLES(5), TOKENS(1, 64)},
     .minutes = 120},
    {.name = "k3-step2-fused",
     .summary = "both steps: restored rows, and drafts with them, against exact decoding",
     .commands = {"eval steps --device mlx " FAMILY "--samples {n_samples} -n {max_new_tokens} "
                  "--draft-max {block_size} " REPORT},
     .params = {SAMPLES(5), TOKENS(32, 64), BLOCK(4)},
     .minutes = 120},
    {.name = "k3-native-baseline",
     .summary = "needles with exact rows",
     .commands = {"eval needle --device mlx " FAMILY "--arms exact --ladder 70 --samples "
                  "{n_samples} -n {max_new_tokens} " REPORT},
     .params = {SAMPLES(5), TOKENS(1, 64)},
     .minutes = 120},
    {.name = "k3-step2-fused-allmlx",
     .summary = "as k3-step2-fused: the drafter is always on the device",
     .commands = {"eval steps --device mlx " FAMILY "--samples {n_samples} -n {max_new_tokens} "
                  "--draft-max {block_size} " REPORT},
     .params = {SAMPLES(5), TOKENS(32, 64), BLOCK(4)},
     .minutes = 120},
    {.name = "k3-drafter-parity",
     .summary = "the reference cases, drafters among them, by root mean square",
     .commands = {"parity --device mlx --tol-rms 0.02 @case"},
     .minutes = 60},
    {.name = "k3-drafter-parity-fp32",
     .summary = "the same by the largest difference",
     .commands = {"parity --device mlx --tol 5e-4 --tol-hidden 5e-3 @case"},
     .minutes = 60},
    {.name = "k3-kv-quant-eval",
     .summary = "formats of stored K/V rows compared",
     .commands = {"eval kv --device mlx ?model --samples {n_samples} -n {max_new_tokens} " REPORT},
     .params = {SAMPLES(5), TOKENS(1, 32)},
     .minutes = 90},
    {.name = "k3-evidence-gate",
     .summary = "the gate over the machine's folder of reports",
     .commands = {"report check @reports"},
     .minutes = 10},
    {.name = "k3-fused-singlefused-probe",
     .summary = "drafts of fixed length on code, a few",
     .commands = {CODE CODE_REST "--draft-fixed " REPORT},
     .params = {SAMPLES(2), TOKENS(1, 16), BLOCK(4)},
     .minutes = 60},
    {.name = "k3-fused-allmlx-code-trim",
     .summary = "as k3-fused-allmlx-code: there is one decode loop",
     .commands = {CODE CODE_REST REPORT},
     .params = {SAMPLES(8), TOKENS(1, 128), BLOCK(4)},
     .minutes = 120},
    {.name = "k3-fused-allmlx-code",
     .summary = "decoding with drafts against plain, on code",
     .commands = {CODE CODE_REST REPORT},
     .params = {SAMPLES(8), TOKENS(1, 128), BLOCK(4)},
     .minutes = 120},
    {.name = "k3-fused-allmlx-natural",
     .summary = "needles with restored rows and drafts, to the end of the answer",
     .commands = {"eval needle --device mlx " FAMILY "--arms exact,restored,drafted --ladder 70 "
                  "--samples {n_samples} -n {max_new_tokens} " REPORT},
     .params = {SAMPLES(5), TOKENS(1, 48)},
     .minutes = 120},
    {.name = "bench",
     .summary = "speed of prefill and decoding, and of arms that draft",
     .commands = {"bench --device {device} ?model ?drafter --arms {arms} --set {set} --ctx {ctx} "
                  "-n {max_new_tokens} --repeat {repeat} " REPORT},
     .params = {DEVICE,
                {.name = "arms", .words = "plain plain,dflash plain,ngram plain,dflash,ngram,auto"},
                SET,
                CONTEXT(64),
                TOKENS(1, 32),
                REPEAT},
     .minutes = 120},
    {.name = "bench-policies",
     .summary = "speed of decoding by what layers keep of their rows",
     .commands = {"bench --device {device} " FAMILY "--policies all --ctx {ctx} -n "
                  "{max_new_tokens} --repeat {repeat} --prefill 0 --rows none " REPORT},
     .params = {DEVICE, CONTEXT(1024), TOKENS(1, 32), REPEAT},
     .minutes = 120},
    {.name = "parity",
     .summary = "the reference cases of the machine",
     .commands = {"parity --device {device} @case"},
     .params = {DEVICE},
     .minutes = 60},
    {.name = "eval-needle",
     .summary = "needles found in padding",
     .commands = {"eval needle --device {device} " FAMILY "--arms {arms} --ladder {lines} "
                  "--samples {n_samples} -s {seed} -n {max_new_tokens} " REPORT},
     .params = {DEVICE,
                {.name = "arms",
                 .words = "exact exact,restored exact,window,restored exact,restored,drafted"},
                LINES,
                SAMPLES(5),
                SEED,
                TOKENS(1, 32)},
     .minutes = 120},
    {.name = "eval-accept",
     .summary = "drafted tokens accepted",
     .commands = {"eval accept --device {device} ?model ?drafter --set {set} --samples "
                  "{n_samples} -n {max_new_tokens} --draft-max {block_size} " REPORT},
     .params = {DEVICE, SET, SAMPLES(8), TOKENS(1, 64), BLOCK(4)},
     .minutes = 120},
    {.name = "eval-kv",
     .summary = "formats of stored K/V rows compared",
     .commands = {"eval kv --device {device} ?model --ladder {lines} --samples {n_samples} -s "
                  "{seed} -n {max_new_tokens} " REPORT},
     .params = {DEVICE, LINES, SAMPLES(5), SEED, TOKENS(1, 32)},
     .minutes = 90},
    {.name = "eval-steps",
     .summary = "the two steps of a port: restored rows, and drafts with them",
     .commands = {"eval steps --device {device} " FAMILY "--lines {lines} --samples {n_samples} -s "
                  "{seed} -n {max_new_tokens} --draft-max {block_size} " REPORT},
     .params = {DEVICE, LINES, SAMPLES(5), SEED, TOKENS(32, 64), BLOCK(4)},
     .minutes = 120},
};

const kk_preset *kk_presets_at(size_t i) {
    return i < sizeof presets / sizeof *presets ? &presets[i] : NULL;
}

const kk_preset *kk_presets_find(const char *name) {
    for (size_t i = 0; kk_presets_at(i); i++)
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    return NULL;
}

const char *kk_presets_without(const char *name) {
    return strcmp(name, "pytest-path") == 0
               ? "it ran files of the request, and a runner runs nothing that a request brings"
               : NULL;
}

size_t kk_preset_params(const kk_preset *p) {
    size_t n = 0;
    while (n < KK_PRESET_PARAMS && p->params[n].name) n++;
    return n;
}

const char *kk_param_word(const kk_param *p, int64_t i, size_t *len) {
    const char *at = p->words;
    for (; at && i > 0; i--) {
        at += strcspn(at, " ");
        at = *at ? at + 1 : NULL;
    }
    if (!at || i < 0) return NULL;
    *len = strcspn(at, " ");
    return at;
}

/* ---- command lines ------------------------------------------------------------------------- */

typedef struct {
    const kk_preset *preset;
    const int64_t *value;
    const kk_preset_paths *paths;
    const char *path; /* of the case of this command; NULL: none */
    const char *tag;
} filling;

static bool is(const char *word, size_t n, const char *name) {
    return strlen(name) == n && memcmp(word, name, n) == 0;
}

static void add_path(kk_words *to, const char *flag, const char *path) {
    if (!path || !*path) return;
    kk_words_add(to, "%s", flag);
    kk_words_add(to, "%s", path);
}

/* A value in the text of a word. */
static void add_value(kk_bytes *to, const filling *f, const char *name, size_t n) {
    for (size_t i = 0; i < kk_preset_params(f->preset); i++) {
        const kk_param *p = &f->preset->params[i];
        if (!is(name, n, p->name)) continue;
        size_t len = 0;
        const char *word = kk_param_word(p, f->value[i], &len);
        if (p->words)
            kk_bytes_print(to, "%.*s", (int)len, word ? word : "");
        else
            kk_bytes_print(to, "%lld", (long long)f->value[i]);
    }
}

/* A word with its parameters filled in. */
static void add_word(kk_words *to, const filling *f, const char *word, size_t n) {
    kk_bytes text = {0};
    for (size_t i = 0; i < n;) {
        const char *close = word[i] == '{' ? memchr(word + i, '}', n - i) : NULL;
        if (close) {
            add_value(&text, f, word + i + 1, (size_t)(close - word) - i - 1);
            i = (size_t)(close - word) + 1;
        } else {
            kk_bytes_add(&text, word + i++, 1);
        }
    }
    to->failed |= text.failed;
    kk_words_add(to, "%s", kk_bytes_text(&text));
    kk_bytes_free(&text);
}

static void add(kk_words *to, const filling *f, const char *word, size_t n) {
    if (is(word, n, "?model"))
        add_path(to, "-m", f->paths->model);
    else if (is(word, n, "?drafter"))
        add_path(to, "-md", f->paths->drafter);
    else if (is(word, n, "?projection"))
        add_path(to, "-mp", f->paths->projection);
    else if (is(word, n, "@case"))
        kk_words_add(to, "%s", f->path);
    else if (is(word, n, "@reports"))
        kk_words_add(to, "%s", f->paths->reports);
    else if (is(word, n, "@report"))
        kk_words_add(to, "results/%s-%s.json", f->preset->name, f->tag);
    else
        add_word(to, f, word, n);
}

static kk_status add_command(kk_plan *plan, const char *program, const char *line, const filling *f,
                             kk_err *err) {
    if (plan->n == KK_PLAN_COMMANDS)
        return kk_fail(err, KK_EINVAL, "%s would run more than %d commands", f->preset->name,
                       KK_PLAN_COMMANDS);
    kk_words *to = &plan->command[plan->n++];
    kk_words_add(to, "%s", program);
    for (const char *at = line; *at;) {
        const size_t n = strcspn(at, " ");
        if (n) add(to, f, at, n);
        at += n + (at[n] == ' ');
    }
    return to->failed ? kk_no_memory(err, "a command line") : KK_OK;
}

kk_status kk_plan_make(kk_plan *plan, const kk_preset *p, const int64_t *value, const char *program,
                       const kk_preset_paths *paths, const char *tag, kk_err *err) {
    *plan = (kk_plan){.n = 0};
    filling f = {.preset = p, .value = value, .paths = paths, .tag = tag};
    for (size_t i = 0; i < KK_PRESET_COMMANDS && p->commands[i]; i++) {
        const bool each = strstr(p->commands[i], "@case") != NULL;
        if (each && !paths->n_cases)
            return kk_fail(err, KK_EINVAL,
                           "the configuration of this runner has no \"cases\", "
                           "which %s needs",
                           p->name);
        if (strstr(p->commands[i], "@reports") && !(paths->reports && *paths->reports))
            return kk_fail(err, KK_EINVAL,
                           "the configuration of this runner has no \"reports\", "
                           "which %s needs",
                           p->name);
        for (size_t c = 0; c < (each ? paths->n_cases : 1); c++) {
            f.path = each ? paths->cases[c] : NULL;
            KK_TRY(add_command(plan, program, p->commands[i], &f, err));
        }
    }
    return KK_OK;
}

void kk_plan_free(kk_plan *plan) {
    for (size_t i = 0; i < plan->n; i++) kk_words_free(&plan->command[i]);
    plan->n = 0;
}
