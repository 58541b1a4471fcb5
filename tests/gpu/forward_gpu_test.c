/* forward_gpu_test.c - whole forwards on the GPU: fused and replayed as graphs, against the same
 * operations one by one (equal bits), against other groupings of rows (equal bits), rows of several
 * sessions against each session alone (equal bits), and against the CPU (near).  With `bench`,
 * times decoding instead.
 *
 *   forward_gpu_test check SPEC|FOLDER [...]
 *   forward_gpu_test bits SPEC|FOLDER [...]      without the CPU
 *   forward_gpu_test sessions SPEC|FOLDER [...]  several sessions alone
 *   forward_gpu_test formats SPEC|FOLDER [...]   every K/V format, and long contexts, alone
 *   forward_gpu_test rows SPEC|FOLDER [...]      every number of rows alone, for models that take
 *                                                long to load
 *   forward_gpu_test bench SPEC CONTEXT [CONTEXT...]
 * KK_TEST_KV names the K/V format of the last. */
#include <math.h>

#include "core/clock.h"
#include "gpu/model_world.h"

enum { PROMPT = 310, TAIL = 24, MAX_ROWS = 2048, MAX_LOGITS = 32 };

static void open_world(world *w, const kk_checkpoint *ckpt, const char *device, bool plain,
                       int64_t max_len) {
    world_open(w, ckpt, device, plain, MAX_ROWS, MAX_LOGITS);
    world_start(w, max_len);
}

/* A prompt in chunks of so many rows, then TAIL tokens in groups of so many; what was fused of
 * it. */
static kk_fused run(const kk_checkpoint *ckpt, const char *device, bool plain,
                    const int32_t *tokens, int32_t chunk, int32_t group, float *logits) {
    world w;
    open_world(&w, ckpt, device, plain, PROMPT + TAIL + 32);
    for (int32_t i = 0; i < PROMPT; i += chunk)
        world_forward(&w, tokens + i, PROMPT - i < chunk ? PROMPT - i : chunk, 0, NULL, true);
    for (int32_t i = 0; i < TAIL; i += group) {
        const int32_t n = TAIL - i < group ? TAIL - i : group;
        world_forward(&w, tokens + PROMPT + i, n, n, logits + (size_t)i * (size_t)w.cfg->vocab,
                      true);
    }
    const kk_fused f = *kk_gemma4_fused(w.model);
    world_close(&w);
    return f;
}

static double distance(const float *a, const float *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}

/* Outputs of every layer for the first rows of a prompt. */
static float *layer_outputs(const kk_checkpoint *ckpt, const char *device, const int32_t *tokens,
                            int32_t n, int32_t n_layer, int32_t hidden) {
    world w;
    kk_err err = {0};
    int32_t layers[260];
    for (int32_t i = 0; i <= n_layer + 1; i++) layers[i] = i - 1;
    float *out = calloc((size_t)(n_layer + 2) * (size_t)(n * hidden), sizeof *out);
    open_world(&w, ckpt, device, false, 256);
    must(kk_cache_reserve(w.cache, n, &err), &err, "reserve");
    const kk_gemma4_group g = {
        .cache = w.cache, .layout = &w.layout, .tokens = tokens, .n_rows = n};
    const kk_gemma4_forward_args a = {
        .groups = &g, .n_groups = 1, .tap_layers = layers, .n_taps = n_layer + 2, .tap_out = out};
    must(kk_gemma4_forward(w.model, &a, &err), &err, "forward");
    world_close(&w);
    return out;
}

static void compare_layers(const kk_checkpoint *ckpt, const int32_t *tokens) {
    enum { N = 12 };
    const kk_config *c = kk_checkpoint_config(ckpt);
    float *gpu = layer_outputs(ckpt, "cuda", tokens, N, c->n_layer, c->hidden);
    float *cpu = layer_outputs(ckpt, "cpu", tokens, N, c->n_layer, c->hidden);
    printf("  error of layer outputs against the CPU:");
    for (int32_t i = 0; i <= c->n_layer + 1; i++) {
        const size_t n = (size_t)(N * c->hidden);
        printf(" %.1e", distance(gpu + (size_t)i * n, cpu + (size_t)i * n, n));
    }
    printf("\n");
    free(gpu);
    free(cpu);
}

static size_t differing(const float *a, const float *b, size_t rows, size_t width) {
    size_t n = 0;
    for (size_t r = 0; r < rows; r++) n += memcmp(a + r * width, b + r * width, width * 4) != 0;
    return n;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int compare_logits(const kk_checkpoint *ckpt, const char *spec, const int32_t *tokens,
                          const float *want) {
    const size_t vocab = (size_t)kk_checkpoint_config(ckpt)->vocab;
    float *cpu = calloc(TAIL * vocab, 4);
    double row[TAIL];
    run(ckpt, "cpu", false, tokens, 64, 8, cpu);
    const double d = distance(want, cpu, TAIL * vocab);
    for (size_t r = 0; r < TAIL; r++) row[r] = distance(want + r * vocab, cpu + r * vocab, vocab);
    qsort(row, TAIL, sizeof *row, compare_doubles);
    printf("%s: logits against the CPU: relative error %.2e, of rows: median %.2e, worst %.2e\n",
           spec, d, row[TAIL / 2], row[TAIL - 1]);
    free(cpu);
    /* Random weights flip experts: only trained ones must come near. */
    return strchr(spec, '/') && !(d < 0.05);
}

/* The first rows behind the prompt many times over, nothing kept, against what they gave one by
 * one: kernels that race do not always lose. */
static int repeat(const kk_checkpoint *ckpt, const char *spec, const int32_t *tokens, int32_t rows,
                  const float *want) {
    enum { TIMES = 100 };
    world w;
    open_world(&w, ckpt, "cuda", false, PROMPT + TAIL + 32);
    const size_t all = (size_t)rows * (size_t)w.cfg->vocab;
    float *got = calloc(all, sizeof *got);
    int bad = 0;
    world_forward(&w, tokens, PROMPT, 0, NULL, true);
    for (int i = 0; i < TIMES; i++) {
        world_forward(&w, tokens + PROMPT, rows, rows, got, false);
        bad += memcmp(got, want, all * sizeof *got) != 0;
    }
    printf("%s: %d rows %d times: %d differ\n", spec, rows, TIMES, bad);
    fflush(stdout);
    free(got);
    world_close(&w);
    return bad;
}

/* 26B-A4B in bf16 or packed is fused whole, layers in decoding and in prompts, and the head up to
 * 16 rows; 31B, E4B and E2B but for the head: else the arms would compare small operations with
 * themselves.  Nothing is fused on a plain device. */
static int check_fused(const kk_checkpoint *ckpt, const char *spec, const kk_fused *f, bool plain,
                       bool few_rows) {
    kk_model_info info;
    kk_checkpoint_info(ckpt, &info);
    const kk_config *c = kk_checkpoint_config(ckpt);
    const bool dense =
        !plain && (c->hidden == 5376 || c->hidden == 2560 || c->hidden == 1536) && !c->n_expert;
    const bool must = !plain && c->hidden == 2816 && c->n_expert == 128 &&
                      strcmp(info.weight_type, "f32") != 0 &&
                      strcmp(info.weight_type, "f16") != 0; /* of 26B-A4B, however many layers */
    const bool none = f->layers_fused == 0 && f->heads_fused == 0;
    const bool all = f->layers_fused > 0 && f->layers_by_ops == 0 &&
                     (!few_rows || (f->heads_fused > 0 && f->heads_by_ops == 0));
    const bool layers = f->layers_fused > 0 && f->layers_by_ops == 0;
    const bool good = plain ? none : (!must || all) && (!dense || layers);
    printf("%s: %lld layers and %lld heads fused, %lld and %lld by small operations%s\n", spec,
           (long long)f->layers_fused, (long long)f->heads_fused, (long long)f->layers_by_ops,
           (long long)f->heads_by_ops, good ? "" : ": WRONG");
    return !good;
}

/* The same, of forwards of few rows with K/V in a format: chips with less shared memory than 227 KB
 * fuse bf16 alone, and f32 is not fused beside packed weights. */
static int check_format(const kk_checkpoint *ckpt, const char *spec, const kk_fused *f, bool plain,
                        kk_kv_format format) {
    kk_model_info info;
    kk_checkpoint_info(ckpt, &info);
    const bool packed = strcmp(info.weight_type, "bf16") != 0;
    const bool small =
        (getenv("KK_TEST_ISA") && format != KK_KV_BF16) || (packed && format == KK_KV_F32);
    if (!small || plain) return check_fused(ckpt, spec, f, plain, true);
    return packed && f->layers_fused != 0; /* not compiled */
}

/* Forwards of 1 to 16 rows behind a prompt, each number once: all of every one is fused. */
static int every_number_of_rows(const kk_checkpoint *ckpt, const char *spec,
                                const int32_t *tokens) {
    world w;
    int bad = 0;
    open_world(&w, ckpt, "cuda", false, PROMPT + TAIL + 32);
    world_forward(&w, tokens, PROMPT, 0, NULL, true);
    for (int32_t rows = 1; rows <= 16; rows++) {
        const kk_fused before = *kk_gemma4_fused(w.model);
        world_forward(&w, tokens + PROMPT, rows, rows, NULL, false);
        const kk_fused *now = kk_gemma4_fused(w.model);
        const kk_fused f = {
            now->layers_fused - before.layers_fused, now->layers_by_ops - before.layers_by_ops,
            now->heads_fused - before.heads_fused, now->heads_by_ops - before.heads_by_ops};
        bad += check_fused(ckpt, spec, &f, false, true);
    }
    world_close(&w);
    return bad;
}

/* ---- several sessions ----------------------------------------------------------------------- */

enum { SESSIONS = 16, LONG = 5150 };

/* Sessions of different lengths: at, before and after borders of pages, past the window, and so
 * long that its forwards take the kernel for long contexts. */
static const int32_t lengths[SESSIONS] = {1,   63,   64,   65,  127, 500,  5,   200,
                                          310, 1024, 1100, 128, 62,  LONG, 320, 33};

/* Rows of each session in one forward, 16 at most in all. */
static const int32_t splits[][SESSIONS] = {{1, 1},
                                           {1, 1, 1, 1, 1, 1, 1, 1},
                                           {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                           {2, 1},
                                           {5, 1, 3, 7},
                                           {1, 13, 1, 1},
                                           {8, 8},
                                           {0, 4, 0, 4, 0, 4, 0, 4},
                                           {3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9}};

typedef struct {
    world w; /* whose cache is that of the session in hand */
    kk_cache *cache[SESSIONS];
    int32_t tokens[SESSIONS][LONG + 16];
    float *want[SESSIONS]; /* [16][vocab]: logits of the next 16 rows alone */
} crowd;

/* One forward of so many rows of each session, nothing kept; logits in the order of sessions. */
static kk_fused together(crowd *c, const int32_t *rows, float *got) {
    kk_gemma4_group g[SESSIONS];
    kk_err err = {0};
    int32_t n = 0, all = 0;
    for (int32_t i = 0; i < SESSIONS; i++) {
        if (!rows[i]) continue;
        must(kk_cache_reserve(c->cache[i], rows[i], &err), &err, "reserve");
        g[n++] = (kk_gemma4_group){.cache = c->cache[i],
                                   .layout = &c->w.layout,
                                   .tokens = c->tokens[i] + lengths[i],
                                   .n_rows = rows[i],
                                   .n_logits = rows[i]};
        all += rows[i];
    }
    const kk_gemma4_forward_args a = {.groups = g, .n_groups = n};
    const kk_fused before = *kk_gemma4_fused(c->w.model);
    must(kk_gemma4_forward(c->w.model, &a, &err), &err, "forward");
    world_logits(&c->w, all, got);
    const kk_fused *now = kk_gemma4_fused(c->w.model);
    return (kk_fused){
        now->layers_fused - before.layers_fused, now->layers_by_ops - before.layers_by_ops,
        now->heads_fused - before.heads_fused, now->heads_by_ops - before.heads_by_ops};
}

static void open_crowd(crowd *c, const kk_checkpoint *ckpt, bool plain, kk_kv_format f) {
    uint64_t z = 4711;
    world_open(&c->w, ckpt, "cuda", plain, MAX_ROWS, MAX_LOGITS);
    world_format(&c->w, f);
    for (int32_t i = 0; i < SESSIONS; i++) {
        for (int32_t t = 0; t < LONG + 16; t++) {
            z = z * 6364136223846793005u + 1442695040888963407u;
            c->tokens[i][t] = (int32_t)((z >> 33) % (uint64_t)c->w.cfg->vocab);
        }
        c->w.cache = NULL;
        world_start(&c->w, lengths[i] + 64);
        for (int32_t t = 0; t < lengths[i]; t += MAX_ROWS)
            world_forward(&c->w, c->tokens[i] + t,
                          lengths[i] - t < MAX_ROWS ? lengths[i] - t : MAX_ROWS, 0, NULL, true);
        c->cache[i] = c->w.cache;
        c->want[i] = calloc((size_t)16 * (size_t)c->w.cfg->vocab, sizeof(float));
        world_forward(&c->w, c->tokens[i] + lengths[i], 16, 16, c->want[i], false);
    }
    c->w.cache = NULL;
}

static void close_crowd(crowd *c) {
    for (int32_t i = 0; i < SESSIONS; i++) {
        kk_cache_free(c->cache[i]);
        free(c->want[i]);
    }
    world_close(&c->w);
}

/* Rows of up to 16 sessions in one forward have the bits that each session's have alone, fused or
 * not, every one of many times. */
static int sessions_together(const kk_checkpoint *ckpt, const char *spec, bool plain,
                             kk_kv_format format) {
    static crowd c;
    open_crowd(&c, ckpt, plain, format);
    const int times = plain ? 1 : format == KK_KV_BF16 ? 20 : 5;
    const size_t vocab = (size_t)c.w.cfg->vocab;
    float *got = calloc(16 * vocab, sizeof *got);
    int bad = 0;
    for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
        int wrong = 0, first = -1;
        for (int time = 0; time < times; time++) {
            const kk_fused f = together(&c, splits[k], got);
            if (time == 0) bad += check_format(ckpt, spec, &f, plain, format);
            for (int32_t i = 0, row = 0; i < SESSIONS; row += splits[k][i++]) {
                const size_t n =
                    differing(got + (size_t)row * vocab, c.want[i], (size_t)splits[k][i], vocab);
                if (n && first < 0) first = i;
                wrong += n != 0;
            }
        }
        printf("%s: sessions together, %s%s, split %zu: %d differ from alone", spec,
               kk_kv_format_name(format), plain ? " (plain)" : "", k, wrong);
        printf(first >= 0 ? ", first of %d tokens\n" : "\n", first >= 0 ? lengths[first] : 0);
        fflush(stdout);
        bad += wrong;
    }
    free(got);
    close_crowd(&c);
    return bad;
}

static kk_checkpoint *open_checkpoint(const char *spec) {
    static kk_mem mem;
    kk_err err = {0};
    kk_checkpoint *ckpt;
    const kk_checkpoint_opts how = {0};
    must(strchr(spec, '/') ? kk_checkpoint_open(&ckpt, spec, &how, &err)
                           : kk_checkpoint_synthetic(&ckpt, spec, &mem, &err),
         &err, spec);
    return ckpt;
}

/* ---- K/V formats and long contexts ---------------------------------------------------------- */

/* Lengths of a session, ascending, from which forwards of a few rows go on: over the end of a page
 * (320, 5184), of a span of eight pages (5120, 8192), and with a full window; from 4097 tokens on
 * heads of 512 take the way for long contexts. */
static const int32_t starts[] = {310, 1090, 2040, 4090, 5100, 5119, 5183, 8185};
enum { STARTS = sizeof starts / sizeof *starts, KEPT = 7, STEPS = STARTS * (16 + KEPT) };

/* A digest of every row of logits of a run. */
typedef struct {
    uint64_t of[STEPS * 16];
    size_t n;
    kk_fused fused; /* by the forwards of up to 16 rows */
} digests;

static void add_digests(digests *d, world *w, const int32_t *tokens, int32_t rows, bool keep,
                        float *logits) {
    const kk_fused before = *kk_gemma4_fused(w->model);
    world_forward(w, tokens, rows, rows, logits, keep);
    const kk_fused *now = kk_gemma4_fused(w->model);
    d->fused.layers_fused += now->layers_fused - before.layers_fused;
    d->fused.layers_by_ops += now->layers_by_ops - before.layers_by_ops;
    d->fused.heads_fused += now->heads_fused - before.heads_fused;
    d->fused.heads_by_ops += now->heads_by_ops - before.heads_by_ops;
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *at = (const uint8_t *)(logits + (size_t)r * (size_t)w->cfg->vocab);
        uint64_t h = 0xcbf29ce484222325u, word;
        for (size_t i = 0; i < (size_t)w->cfg->vocab / 2; i++) {
            memcpy(&word, at + i * 8, 8);
            h = (h ^ word) * 0x100000001b3u;
        }
        d->of[d->n++] = h;
    }
}

/* Forwards of 1 to 16 rows at every start, nothing kept; then a few whose rows the next one
 * reads. */
static void digest_format(digests *d, world *w, kk_kv_format f, const int32_t *tokens,
                          float *logits) {
    static const int32_t kept[KEPT] = {1, 2, 1, 5, 1, 3, 1};
    memset(d, 0, sizeof *d);
    world_format(w, f);
    world_start(w, starts[STARTS - 1] + 64);
    for (size_t i = 0; i < STARTS; i++) {
        while (kk_cache_len(w->cache) < starts[i]) {
            const int32_t at = (int32_t)kk_cache_len(w->cache), left = starts[i] - at;
            world_forward(w, tokens + at, left < MAX_ROWS ? left : MAX_ROWS, 0, NULL, true);
        }
        for (int32_t rows = 1; rows <= 16; rows++)
            add_digests(d, w, tokens + starts[i], rows, false, logits);
        for (int32_t k = 0; k < KEPT; k++)
            add_digests(d, w, tokens + kk_cache_len(w->cache), kept[k], true, logits);
    }
}

/* Fused and one operation at a time give the same bits, in every format, at every length. */
static int every_format(const kk_checkpoint *ckpt, const char *spec) {
    static digests fused[KK_KV_FORMATS], plain;
    const int32_t n = starts[STARTS - 1] + 64, vocab = kk_checkpoint_config(ckpt)->vocab;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    float *logits = calloc((size_t)16 * (size_t)vocab, sizeof *logits);
    uint64_t z = 99;
    int bad = 0;
    world w;
    for (int32_t i = 0; i < n; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((z >> 33) % (uint64_t)vocab);
    }
    for (int pass = 0; pass < 2; pass++) {
        world_open(&w, ckpt, "cuda", pass == 1, MAX_ROWS, MAX_LOGITS);
        for (int f = 0; f < KK_KV_FORMATS; f++) {
            digests *d = pass ? &plain : &fused[f];
            digest_format(d, &w, (kk_kv_format)f, tokens, logits);
            bad += check_format(ckpt, spec, &d->fused, pass == 1, (kk_kv_format)f);
            if (!pass) continue;
            size_t differ = 0, first = d->n;
            for (size_t i = 0; i < d->n; i++) {
                if (d->of[i] == fused[f].of[i]) continue;
                differ++;
                if (first == d->n) first = i;
            }
            printf("%s: K/V in %s: %zu of %zu rows differ between fused and plain", spec,
                   kk_kv_format_name((kk_kv_format)f), differ, d->n);
            printf(differ ? ", first number %zu\n" : "\n", first);
            fflush(stdout);
            bad += differ != 0 || fused[f].n != d->n || d->n == 0;
        }
        world_close(&w);
    }
    for (int f = 0; f < KK_KV_FORMATS; f++)
        bad += sessions_together(ckpt, spec, false, (kk_kv_format)f);
    free(tokens);
    free(logits);
    return bad;
}

static int check(const char *spec, bool against_cpu) {
    kk_checkpoint *ckpt = open_checkpoint(spec);
    const int32_t vocab = kk_checkpoint_config(ckpt)->vocab;
    const size_t all = (size_t)TAIL * (size_t)vocab;
    int32_t tokens[PROMPT + TAIL];
    uint64_t z = 12345;
    for (int i = 0; i < PROMPT + TAIL; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((z >> 33) % (uint64_t)vocab);
    }
    float *want = calloc(all, 4), *got = calloc(all, 4);
    static const struct {
        bool plain;
        int32_t chunk, group;
    } arms[] = {{false, 64, 2},   {true, 64, 1},  {false, PROMPT, 16}, {false, 150, 8},
                {false, 129, 24}, {false, 37, 5}, {false, PROMPT, 17}, {true, PROMPT, 24}};
    int bad = 0;
    if (against_cpu) compare_layers(ckpt, tokens);
    const kk_fused one = run(ckpt, "cuda", false, tokens, 16, 1, want); /* decode kernels alone */
    bad += check_fused(ckpt, spec, &one, false, true);
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        const kk_fused f =
            run(ckpt, "cuda", arms[i].plain, tokens, arms[i].chunk, arms[i].group, got);
        bad += check_fused(ckpt, spec, &f, arms[i].plain, arms[i].group <= 16);
        const size_t n = differing(got, want, TAIL, (size_t)vocab);
        printf("%s: %s, chunks of %d, %d rows at a time: %zu of %d rows differ (distance %.2e)\n",
               spec, arms[i].plain ? "plain" : "fused", arms[i].chunk, arms[i].group, n, TAIL,
               distance(got, want, all));
        fflush(stdout);
        bad += n != 0;
    }
    bad += every_number_of_rows(ckpt, spec, tokens);
    bad += sessions_together(ckpt, spec, true, KK_KV_BF16);
    bad += every_format(ckpt, spec);
    /* All in which rows are staged or listed in another way than with one fewer. */
    static const int32_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 14, 15, 16};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bad += repeat(ckpt, spec, tokens, rows[i], want);
    if (against_cpu) bad += compare_logits(ckpt, spec, tokens, want);
    free(want);
    free(got);
    kk_checkpoint_close(ckpt);
    return bad;
}
/* ---- speed ---------------------------------------------------------------------------------- */

static int distinct_experts(world *w, int32_t rows) {
    const int32_t used = kk_gemma4_config(w->model)->n_expert_used;
    int32_t id[64 * 16];
    bool seen[512] = {false};
    int n = 0;
    kk_err err;
    if (!used || rows * used > 1024) return 0;
    w->be->read(w->dev, w->model->scratch.expert, 0, id, (size_t)(rows * used) * 4, &err);
    for (int32_t i = 0; i < rows * used; i++) {
        n += !seen[id[i] & 511];
        seen[id[i] & 511] = true;
    }
    return n;
}

static void time_rows(world *w, int64_t ctx, int32_t rows, int32_t reps, uint64_t *z) {
    double took[256], host = 0;
    kk_err err = {0};
    float *row = calloc((size_t)w->cfg->vocab, 4);
    for (int32_t i = -4; i < reps; i++) {
        int32_t t[MAX_ROWS];
        for (int32_t r = 0; r < rows; r++) {
            *z = *z * 6364136223846793005u + 1442695040888963407u;
            t[r] = (int32_t)((*z >> 33) % (uint64_t)w->cfg->vocab);
        }
        const double a = kk_now();
        world_forward(w, t, rows, rows < MAX_LOGITS ? rows : MAX_LOGITS, NULL, false);
        const double b = kk_now();
        must(w->be->instruments->sync(w->dev, &err), &err, "sync");
        if (i >= 0) took[i] = kk_now() - a;
        if (i >= 0) host += b - a;
    }
    qsort(took, (size_t)reps, sizeof *took, compare_doubles);
    const double ms = 1e3 * took[reps / 2];
    const double a = kk_now();
    must(kk_gemma4_logits(w->model, 0, row, &err), &err, "logits");
    printf("context %lld, %2d rows: median %.3f ms (least %.3f, most %.3f) = %.1f forwards/s; "
           "recording %.3f ms; %d distinct experts in the last layer; reading a row of logits "
           "%.3f ms\n",
           (long long)ctx, rows, ms, 1e3 * took[0], 1e3 * took[reps - 1], 1e3 / ms,
           1e3 * host / reps, distinct_experts(w, rows), 1e3 * (kk_now() - a));
    fflush(stdout);
    free(row);
}

/* Seconds that random tokens take until the session has so many, in chunks. */
static double prefill(world *w, int64_t until, int32_t chunk, bool keep, uint64_t *z) {
    kk_err err = {0};
    const double t = kk_now();
    for (int64_t at = kk_cache_len(w->cache); at < until; at += chunk) {
        int32_t tokens[MAX_ROWS];
        const int32_t rows = (int32_t)(until - at < chunk ? until - at : chunk);
        for (int32_t r = 0; r < rows; r++) {
            *z = *z * 6364136223846793005u + 1442695040888963407u;
            tokens[r] = (int32_t)((*z >> 33) % (uint64_t)w->cfg->vocab);
        }
        world_forward(w, tokens, rows, 0, NULL, keep);
    }
    must(w->be->instruments->sync(w->dev, &err), &err, "sync");
    return kk_now() - t;
}

/* Forwards of one row of each of so many sessions, each of ctx tokens. */
static void time_sessions(world *w, int64_t ctx, int32_t n, uint64_t *z) {
    enum { REPS = 20 };
    kk_cache *mine = w->cache, *cache[SESSIONS];
    kk_gemma4_group g[SESSIONS];
    int32_t token[SESSIONS];
    double took[REPS];
    kk_err err = {0};
    for (int32_t i = 0; i < n; i++) {
        w->cache = NULL;
        world_start(w, ctx + 64);
        prefill(w, ctx, MAX_ROWS, true, z);
        cache[i] = w->cache;
        g[i] = (kk_gemma4_group){.cache = cache[i],
                                 .layout = &w->layout,
                                 .tokens = &token[i],
                                 .n_rows = 1,
                                 .n_logits = 1};
    }
    w->cache = mine;
    const kk_gemma4_forward_args a = {.groups = g, .n_groups = n};
    for (int32_t i = -4; i < REPS; i++) {
        for (int32_t k = 0; k < n; k++) {
            *z = *z * 6364136223846793005u + 1442695040888963407u;
            token[k] = (int32_t)((*z >> 33) % (uint64_t)w->cfg->vocab);
            must(kk_cache_reserve(cache[k], 1, &err), &err, "reserve");
        }
        const double from = kk_now();
        must(kk_gemma4_forward(w->model, &a, &err), &err, "forward");
        must(w->be->instruments->sync(w->dev, &err), &err, "sync");
        if (i >= 0) took[i] = kk_now() - from;
    }
    qsort(took, REPS, sizeof *took, compare_doubles);
    printf("context %lld, %2d sessions: median %.3f ms (least %.3f, most %.3f)\n", (long long)ctx,
           n, 1e3 * took[REPS / 2], 1e3 * took[0], 1e3 * took[REPS - 1]);
    fflush(stdout);
    for (int32_t i = 0; i < n; i++) kk_cache_free(cache[i]);
}

static int bench(const char *spec, int n, char **contexts) {
    kk_err err = {0};
    kk_mem mem = {0};
    kk_checkpoint *ckpt;
    world w;
    uint64_t z = 7;
    double t = kk_now();
    must(kk_checkpoint_synthetic(&ckpt, spec, &mem, &err), &err, spec);
    printf("%s: random weights made in %.1f s\n", spec, kk_now() - t);
    t = kk_now();
    open_world(&w, ckpt, "cuda", getenv("KK_TEST_PLAIN") != NULL, 8192);
    printf("loaded in %.1f s on %s\n", kk_now() - t, world_kind(&w).isa);
    kk_kv_format format = KK_KV_BF16;
    if (getenv("KK_TEST_KV") && !kk_kv_format_named(getenv("KK_TEST_KV"), &format)) return 1;
    world_format(&w, format);
    world_start(&w, atoll(contexts[n - 1]) + 64);
    fflush(stdout);
    for (int i = 0; i < n; i++) {
        const int64_t ctx = atoll(contexts[i]), from = kk_cache_len(w.cache);
        /* Kernels are loaded when they first run. */
        if (i == 0) prefill(&w, MAX_ROWS - 1, MAX_ROWS, false, &z);
        t = prefill(&w, ctx, MAX_ROWS, true, &z);
        printf("%lld rows of prompt in %.3f s = %.0f tok/s\n", (long long)(ctx - from), t,
               (double)(ctx - from) / t);
        fflush(stdout);
        if (getenv("KK_TEST_PREFILL_ONLY")) continue;
        static const int32_t rows[] = {1, 2, 4, 8, 16};
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            time_rows(&w, ctx, rows[k], rows[k] == 1 ? 100 : 20, &z);
        static const int32_t sessions[] = {2, 4, 8, 16};
        for (size_t k = 0; k < sizeof sessions / sizeof *sessions; k++)
            time_sessions(&w, ctx, sessions[k], &z);
    }
    world_close(&w);
    kk_checkpoint_close(ckpt);
    return 0;
}

static int check_sessions(const char *spec) {
    kk_checkpoint *ckpt = open_checkpoint(spec);
    const int bad = sessions_together(ckpt, spec, false, KK_KV_BF16) +
                    sessions_together(ckpt, spec, true, KK_KV_BF16);
    kk_checkpoint_close(ckpt);
    return bad;
}

/* Every number of rows, behind prompts in chunks of some sizes, against rows one by one of a plain
 * device, which takes neither fused layers nor the kernels of wide products. */
static int check_rows(const char *spec) {
    static const int32_t chunks[] = {PROMPT, 150, 37, 16};
    kk_checkpoint *ckpt = open_checkpoint(spec);
    const size_t vocab = (size_t)kk_checkpoint_config(ckpt)->vocab;
    float *want = calloc((size_t)TAIL * vocab, 4), *got = calloc((size_t)TAIL * vocab, 4);
    int32_t tokens[PROMPT + TAIL];
    uint64_t z = 12345;
    int bad = 0;
    world w;
    for (int i = 0; i < PROMPT + TAIL; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((z >> 33) % (uint64_t)vocab);
    }
    const kk_fused plain = run(ckpt, "cuda", true, tokens, 16, 1, want);
    bad += check_fused(ckpt, spec, &plain, true, true);
    open_world(&w, ckpt, "cuda", false, PROMPT + TAIL + 32);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        world_start(&w, PROMPT + TAIL + 32);
        for (int32_t i = 0; i < PROMPT; i += chunks[c])
            world_forward(&w, tokens + i, PROMPT - i < chunks[c] ? PROMPT - i : chunks[c], 0, NULL,
                          true);
        size_t wrong = 0;
        for (int32_t rows = 1; rows <= TAIL; rows++) {
            world_forward(&w, tokens + PROMPT, rows, rows, got, false);
            const size_t n = differing(got, want, (size_t)rows, vocab);
            if (n)
                printf("%s: %zu of %d rows differ (distance %.2e)\n", spec, n, rows,
                       distance(got, want, (size_t)rows * vocab));
            wrong += n;
        }
        printf("%s: 1 to %d rows behind a prompt in chunks of %d: %zu rows differ from plain\n",
               spec, TAIL, chunks[c], wrong);
        fflush(stdout);
        bad += wrong != 0;
    }
    bad += check_fused(ckpt, spec, kk_gemma4_fused(w.model), false, false);
    kk_dev_counts counts;
    w.be->instruments->counts(w.dev, &counts);
    kk_model_info info;
    kk_checkpoint_info(ckpt, &info);
    const bool may = strcmp(info.weight_type, "bf16") != 0 || getenv("KK_TEST_ISA");
    printf("%s: %lld products read their weights more than once\n", spec,
           (long long)counts.repeats);
    bad += counts.repeats != 0 && !may;
    world_close(&w);
    free(want);
    free(got);
    kk_checkpoint_close(ckpt);
    return bad;
}

static int check_formats(const char *spec) {
    kk_checkpoint *ckpt = open_checkpoint(spec);
    const int bad = every_format(ckpt, spec);
    kk_checkpoint_close(ckpt);
    return bad;
}

int main(int argc, char **argv) {
    int bad = 0;
    const bool sessions = argc > 1 && strcmp(argv[1], "sessions") == 0;
    const bool formats = argc > 1 && strcmp(argv[1], "formats") == 0;
    const bool rows = argc > 1 && strcmp(argv[1], "rows") == 0;
    if (argc > 3 && strcmp(argv[1], "bench") == 0) return bench(argv[2], argc - 3, argv + 3);
    for (int i = 2; i < argc; i++)
        bad += sessions  ? check_sessions(argv[i])
               : formats ? check_formats(argv[i])
               : rows    ? check_rows(argv[i])
                         : check(argv[i], strcmp(argv[1], "bits") != 0);
    printf("%d failures\n", bad);
    return bad != 0;
}
