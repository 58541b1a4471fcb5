/* invariance_test.c - a row's bits do not depend on how it came to be computed.
 *
 * The truth is each session fed one token at a time on one thread by this machine's best
 * kernels: a hash per row over its logits and over the taps of several layers.  Then the same
 * rows are computed again in forwards of any number of rows, in random chunks with rejected
 * drafts between them, and together with rows of other sessions; for every type of weights,
 * both K/V formats, several numbers of threads and every set of kernels.  Prompts leave the
 * window of 64 twice and cross three page borders. */
#include "support/tiny.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "core/hash.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MAX_LEN = 200, SESSIONS = 3, MAX_ROWS = 48, MAX_TAPS = 4 };

static const int32_t prompt_len[SESSIONS] = {MAX_LEN, 130, 70};

/* ---- a model on a device -------------------------------------------------------------------- */

typedef struct {
    const char *isa; /* NULL: the best */
    int32_t threads;
    kk_kv_format format;
} arm;

typedef struct {
    kk_mem *mem;
    const kk_backend *be;
    kk_dev *dev;
    kk_gemma4 *model;
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    int32_t hidden, vocab, taps[MAX_TAPS];
    float *tap_out, *logits;
} world;

static world world_open(const kk_checkpoint *ckpt, kk_mem *mem, const arm *a) {
    world w = {.mem = mem, .be = kk_backend_named("cpu")};
    const kk_dev_opts dev = {
        .threads = a->threads, .isa = a->isa, .mem = mem, .max_rows = MAX_ROWS};
    assert_ok(w.be->open(&w.dev, &dev, why));
    const kk_gemma4_opts opts = {w.be, w.dev, mem, MAX_ROWS, MAX_ROWS};
    assert_ok(kk_gemma4_new(&w.model, ckpt, &opts, why));
    const kk_config *c = kk_gemma4_config(w.model);
    assert_ok(kk_kv_layout_init(&w.layout, kk_gemma4_kv_shape(w.model), a->format, NULL, why));
    for (int k = 0; k < KK_KINDS && w.layout.page_bytes[k]; k++)
        assert_ok(kk_pool_new(&w.pool[k], mem, k ? KK_MEM_KV_FULL : KK_MEM_KV_SLIDING,
                              w.layout.page_bytes[k], why));
    w.hidden = c->hidden;
    w.vocab = c->vocab;
    const int32_t taps[MAX_TAPS] = {-1, 0, c->n_layer - 1, c->n_layer};
    memcpy(w.taps, taps, sizeof taps);
    w.tap_out = kk_calloc((size_t)(MAX_TAPS * MAX_ROWS * w.hidden), sizeof(float));
    w.logits = kk_calloc((size_t)w.vocab, sizeof(float));
    assert_true(w.tap_out && w.logits);
    return w;
}

static void world_close(world *w) {
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(w->pool[k]);
    kk_gemma4_free(w->model);
    w->be->close(w->dev);
    kk_free(w->tap_out);
    kk_free(w->logits);
}

static kk_cache *new_cache(const world *w) {
    kk_cache *c = NULL;
    const kk_cache_opts opts = {.layout = &w->layout,
                                .pool = {w->pool[0], w->pool[1]},
                                .policy = {&kk_kv_native, &kk_kv_exact},
                                .bounds = {{.window = w->layout.shape.window}},
                                .max_len = MAX_LEN + MAX_ROWS};
    assert_ok(kk_cache_new(&c, &opts, why));
    return c;
}

/* ---- forwards ------------------------------------------------------------------------------- */

typedef struct {
    kk_cache *cache;
    const int32_t *tokens; /* the next n */
    int32_t n;
} piece;

/* One forward of the pieces; hashes of all their rows in order. */
static void forward(world *w, const piece *pieces, int32_t n_pieces, uint64_t *hash) {
    kk_gemma4_group group[SESSIONS];
    int32_t rows = 0;
    for (int32_t i = 0; i < n_pieces; i++) {
        const piece *p = &pieces[i];
        assert_ok(kk_cache_reserve(p->cache, p->n, why));
        group[i] = (kk_gemma4_group){.cache = p->cache,
                                     .layout = &w->layout,
                                     .tokens = p->tokens,
                                     .n_rows = p->n,
                                     .n_logits = p->n};
        rows += p->n;
    }
    const kk_gemma4_forward_args a = {.groups = group,
                                      .n_groups = n_pieces,
                                      .tap_layers = w->taps,
                                      .n_taps = MAX_TAPS,
                                      .tap_out = w->tap_out};
    assert_ok(kk_gemma4_forward(w->model, &a, why));
    for (int32_t r = 0; r < rows; r++) {
        const size_t hidden = (size_t)w->hidden;
        assert_ok(kk_gemma4_logits(w->model, r, w->logits, why));
        hash[r] = kk_hash_row(KK_HASH_START, w->logits, (size_t)w->vocab);
        for (int t = 0; t < MAX_TAPS; t++)
            hash[r] = kk_hash_row(hash[r], w->tap_out + (size_t)(t * rows + r) * hidden, hidden);
    }
}

static void keep(const piece *p) { kk_cache_commit(p->cache, kk_cache_len(p->cache) + p->n); }

/* ---- the truth ------------------------------------------------------------------------------ */

typedef struct {
    const char *spec;
    const arm *arm;
    int32_t tokens[SESSIONS][MAX_LEN];
    uint64_t hash[SESSIONS][MAX_LEN];
    uint64_t random;
} truth;

static int32_t below(truth *t, int32_t n) {
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((t->random >> 33) % (uint64_t)n);
}

static void check_rows(const truth *t, int32_t session, int64_t pos, const uint64_t *hash,
                       int32_t n, const char *how) {
    for (int32_t i = 0; i < n; i++)
        if (hash[i] != t->hash[session][pos + i])
            fail_msg("%s, %s, %d threads, %s K/V, %s: session %d position %d, row %d of %d, has "
                     "other bits than alone",
                     t->spec, t->arm->isa ? t->arm->isa : "best", t->arm->threads,
                     kk_kv_format_name(t->arm->format), how, session, (int)pos + i, i, n);
}

static void find_truth(truth *t, const kk_checkpoint *ckpt, kk_mem *mem, kk_kv_format format) {
    const arm alone = {NULL, 1, format};
    world w = world_open(ckpt, mem, &alone);
    for (int32_t s = 0; s < SESSIONS; s++) {
        tiny_prompt(t->tokens[s], prompt_len[s], (uint32_t)s + 1);
        kk_cache *cache = new_cache(&w);
        for (int32_t i = 0; i < prompt_len[s]; i++) {
            const piece p = {cache, t->tokens[s] + i, 1};
            forward(&w, &p, 1, &t->hash[s][i]);
            keep(&p);
        }
        kk_cache_free(cache);
    }
    world_close(&w);
}

/* ---- other ways to the same rows ------------------------------------------------------------ */

/* A forward of every number of rows, from the start and across borders of page and window; taken
 * back each time. */
static void any_row_count(truth *t, world *w, int32_t len) {
    static const int32_t starts[] = {0, 55, 120};
    uint64_t hash[MAX_ROWS];
    kk_cache *cache = new_cache(w);
    for (size_t i = 0; i < COUNT(starts); i++) {
        while (kk_cache_len(cache) < starts[i]) {
            const int32_t at = (int32_t)kk_cache_len(cache), left = starts[i] - at;
            const piece p = {cache, t->tokens[0] + at, left < 21 ? left : 21};
            forward(w, &p, 1, hash);
            check_rows(t, 0, at, hash, p.n, "on the way");
            keep(&p);
        }
        for (int32_t n = 1; n <= 18; n++) {
            const piece p = {cache, t->tokens[0] + starts[i], n == 18 ? 33 : n};
            if (starts[i] + p.n > len) break;
            forward(w, &p, 1, hash);
            check_rows(t, 0, starts[i], hash, p.n, "in one forward");
        }
    }
    kk_cache_free(cache);
}

/* Random chunks; before some of them a draft that is wrong from some row on, of which only the
 * right rows, or none, are kept. */
static void random_chunks(truth *t, world *w, int32_t len) {
    uint64_t hash[MAX_ROWS];
    kk_cache *cache = new_cache(w);
    while (kk_cache_len(cache) < len) {
        const int32_t at = (int32_t)kk_cache_len(cache), left = len - at;
        int32_t n = 1 + below(t, below(t, 2) ? 6 : MAX_ROWS), right = n, rows[MAX_ROWS];
        n = n < left ? n : left;
        memcpy(rows, t->tokens[0] + at, (size_t)n * sizeof *rows);
        right = below(t, 3) ? n : below(t, n + 1);
        for (int32_t i = right; i < n; i++) rows[i] = (rows[i] + 1 + below(t, 1000)) % w->vocab;
        const piece p = {cache, rows, n};
        forward(w, &p, 1, hash);
        check_rows(t, 0, at, hash, right, "in random chunks");
        kk_cache_commit(cache, at + right);
    }
    kk_cache_free(cache);
}

/* Rows of two or three sessions in one forward, in any order, each at its own pace. */
static void mixed_sessions(truth *t, world *w, const int32_t *len) {
    kk_cache *cache[SESSIONS];
    for (int32_t s = 0; s < SESSIONS; s++) cache[s] = new_cache(w);
    for (;;) {
        uint64_t hash[MAX_ROWS], *h = hash;
        piece pieces[SESSIONS];
        int32_t who[SESSIONS], n = 0;
        const int32_t first = below(t, SESSIONS), skipped = below(t, 2 * SESSIONS);
        bool done = true;
        for (int32_t i = 0; i < SESSIONS; i++) {
            const int32_t s = (first + i) % SESSIONS, at = (int32_t)kk_cache_len(cache[s]);
            const int32_t rows = 1 + below(t, below(t, 2) ? 3 : MAX_ROWS / SESSIONS);
            if (at == len[s]) continue;
            done = false;
            if (s == skipped) continue;
            who[n] = s;
            pieces[n++] =
                (piece){cache[s], t->tokens[s] + at, rows < len[s] - at ? rows : len[s] - at};
        }
        if (done) break;
        if (n == 0) continue;
        forward(w, pieces, n, hash);
        for (int32_t i = 0; i < n; h += pieces[i++].n) {
            check_rows(t, who[i], kk_cache_len(pieces[i].cache), h, pieces[i].n, "among sessions");
            keep(&pieces[i]);
        }
    }
    for (int32_t s = 0; s < SESSIONS; s++) kk_cache_free(cache[s]);
}

/* ---- every arm ------------------------------------------------------------------------------ */

static bool usable(const char *isa) {
    kk_mem mem = {0};
    kk_dev *dev;
    const kk_dev_opts opts = {.threads = 1, .isa = isa, .mem = &mem, .max_rows = 1};
    const kk_backend *be = kk_backend_named("cpu");
    if (be->open(&dev, &opts, NULL) != KK_OK) return false;
    be->close(dev);
    return true;
}

/* Kernels that the compiler says this processor runs; the backend must have them. */
static bool expected(const char *isa) {
    if (strcmp(isa, "reference") == 0) return true;
#if defined(__x86_64__)
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    /* Dot products are not in all of them. */
    return strcmp(isa, "neon") == 0 && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return false;
}

static void run_arm(truth *t, const kk_checkpoint *ckpt, kk_mem *mem, const arm *a) {
    /* The plain kernels are slow: just over one border, and two short sessions beside. */
    const bool slow = strcmp(a->isa, "reference") == 0;
    static const int32_t few[SESSIONS] = {10, 7, 1};
    world w = world_open(ckpt, mem, a);
    t->arm = a;
    t->random = (uint64_t)a->threads;
    if (slow) {
        random_chunks(t, &w, KK_PAGE_ROWS + 3);
    } else {
        any_row_count(t, &w, MAX_LEN);
        random_chunks(t, &w, MAX_LEN);
    }
    mixed_sessions(t, &w, slow ? few : prompt_len);
    world_close(&w);
}

/* Two layers are one that slides and one with K = V; of seven of the per-layer kind the last two,
 * one of each kind, read K/V of others. */
static const char *const specs[] = {
    "tiny:f32:2",  "tiny:bf16:2", "tiny:f16:2",      "tiny:q8_0:2",
    "tiny:q4_0:2", "tiny:q5_0:2", "tiny:q5_1:2",     "tiny:q4_k:2",
    "tiny:q5_k:2", "tiny:q6_k:2", "tiny-ple:bf16:7", "tiny-ple:q4_k:7",
};

/* Formats take turns, so that each meets every set of kernels and every number of threads over
 * the types. */
static void weights_of(void **state) {
    static const char *const isas[] = {"reference", "avx2", "avx512", "neon"};
    static const kk_kv_format formats[] = {KK_KV_BF16, KK_KV_F32};
    static truth known[COUNT(formats)];
    const char *const *spec = *state;
    kk_mem mem = {0};
    kk_checkpoint *ckpt = NULL;
    assert_ok(kk_checkpoint_synthetic(&ckpt, *spec, &mem, why));
    for (size_t f = 0; f < COUNT(formats); f++) {
        known[f].spec = *spec;
        find_truth(&known[f], ckpt, &mem, formats[f]);
    }
    size_t turn = (size_t)(spec - specs), arms = 0;
    for (size_t i = 0; i < COUNT(isas); i++) {
        if (usable(isas[i]) != expected(isas[i]))
            fail_msg("%s: %s by this processor, %s by the backend", isas[i],
                     expected(isas[i]) ? "runs" : "does not run", usable(isas[i]) ? "runs" : "not");
        if (!usable(isas[i])) {
            print_message("%s: left out, not of this processor\n", isas[i]);
            continue;
        }
        for (int32_t threads = 1; threads <= 3; threads++, turn++) {
            if (i == 0 && threads != 2) continue;
            const arm a = {isas[i], threads, formats[turn % 2]};
            run_arm(&known[turn % 2], ckpt, &mem, &a);
            arms++;
        }
    }
    assert_int_equal(arms, 1 + 3 * (expected("avx2") + expected("avx512") + expected("neon")));
    kk_checkpoint_close(ckpt);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) assert_int_equal(mem.bytes[c], 0);
}

int main(void) {
    struct CMUnitTest tests[COUNT(specs)];
    for (size_t i = 0; i < COUNT(specs); i++)
        tests[i] =
            (struct CMUnitTest){specs[i], weights_of, NULL, NULL, (void *)(uintptr_t)&specs[i]};
    return cmocka_run_group_tests_name("invariance", tests, NULL, NULL);
}
