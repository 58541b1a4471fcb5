/* restored_gpu_test.c - sessions on the GPU that drop rows or rebuild them: a prompt at once and in
 * pieces, native logits until rows are gone, drafts, forks, rewinds, several sessions in one
 * forward, files here and on the CPU, and how far logits are from the CPU's.
 *
 * restored_gpu_test [FOLDER | SYNTHETIC]...  A name with a slash is a folder with verifier, drafter
 * and projection.  Prints a line per check; the exit status is 1 when one failed. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

enum { CTX = 2048, LONG = 1300, TOGETHER = 5 };

static int failed;
static const char *model;
static int32_t prompt[CTX];

/* How sessions keep their rows. */
typedef struct {
    const char *name;
    kk_session_opts how;
} way;

static const way ways[] = {
    {"window", {.kv_sliding = KK_KEEP_WINDOW, .kv_full = KK_KEEP_WINDOW}},
    {"restored", {.kv_sliding = KK_KEEP_RESTORED, .kv_full = KK_KEEP_RESTORED}},
    {"restored, q8 of q8",
     {.kv_sliding = KK_KEEP_RESTORED,
      .kv_full = KK_KEEP_RESTORED,
      .kv_format = KK_KV_Q8,
      .latents = KK_KV_Q8}},
    {"sliding layers restored, q4",
     {.kv_sliding = KK_KEEP_RESTORED, .window = 100, .latents = KK_KV_Q4}},
    {"full layers restored, no sink, row by row",
     {.kv_full = KK_KEEP_RESTORED, .sink = -1, .window = 32, .chunk = 1}},
    {"sliding layers dropped, full ones restored, f32 of f32",
     {.kv_sliding = KK_KEEP_WINDOW,
      .kv_full = KK_KEEP_RESTORED,
      .sink = 30,
      .window = 20,
      .chunk = 9,
      .kv_format = KK_KV_F32,
      .latents = KK_KV_F32}},
    {"full layers dropped, a wide chunk",
     {.kv_full = KK_KEEP_WINDOW, .sink = 64, .window = 300, .chunk = 200}},
};

static bool restores(const way *w) {
    return w->how.kv_sliding == KK_KEEP_RESTORED || w->how.kv_full == KK_KEEP_RESTORED;
}

static void check(bool holds, const way *w, const char *what) {
    if (!holds) failed++;
    printf("%s  %s: %s\n", holds ? "ok  " : "FAIL", w->name, what);
    fflush(stdout);
}

static void must(kk_status st, const kk_err *err, const char *what) {
    if (st == KK_OK) return;
    printf("FAIL  %s: %s\n", what, err->msg);
    exit(1);
}

static bool is_folder(void) { return strchr(model, '/') != NULL; }

static kk_engine *open_on(const char *device) {
    static char verifier[300], drafter[300], projection[300];
    kk_engine *e = NULL;
    kk_err err;
    kk_engine_opts o = {.device = device};
    if (strcmp(device, "cuda") == 0)
        o.isa = getenv("KK_TEST_ISA"); /* a chip whose limits it keeps */
    snprintf(verifier, sizeof verifier, "%s/verifier", model);
    snprintf(drafter, sizeof drafter, "%s/drafter", model);
    snprintf(projection, sizeof projection, "%s/projection", model);
    if (is_folder()) {
        o.model = verifier;
        o.drafter = drafter;
        o.projection = projection;
    } else {
        o.synthetic = model;
        o.drafter = "synthetic";
        o.projection = "synthetic:512";
    }
    must(kk_engine_open(&e, &o, &err), &err, "opening");
    return e;
}

static kk_session *session_on(kk_engine *e, const kk_session_opts *how) {
    kk_session *s = NULL;
    kk_err err;
    kk_session_opts o = *how;
    o.ctx = CTX;
    if (o.spec == KK_SPEC_AUTO) o.spec = KK_SPEC_NONE;
    must(kk_session_new(&s, e, &o, &err), &err, "a session");
    return s;
}

static void append(kk_session *s, int32_t from, int32_t to) {
    kk_err err;
    if (from < to)
        must(kk_session_append(s, prompt + from, (size_t)(to - from), NULL, NULL, &err), &err,
             "a prompt");
}

static kk_session *prompted(kk_engine *e, const kk_session_opts *how, int32_t n) {
    kk_session *s = session_on(e, how);
    append(s, 0, n);
    return s;
}

static kk_result say(kk_session *s, int32_t n) {
    kk_result r;
    kk_err err;
    const kk_generate_opts o = {.max_tokens = n, .ignore_eos = true};
    must(kk_generate(s, &o, NULL, NULL, &r, &err), &err, "generating");
    return r;
}

static const float *logits_of(kk_session *s) {
    const float *x = NULL;
    kk_err err;
    must(kk_session_logits(s, &x, &err), &err, "logits");
    return x;
}

static size_t vocab_of(const kk_session *s) { return (size_t)s->engine->rounds.vocab; }

static bool same_logits(kk_session *a, kk_session *b) {
    const size_t bytes = vocab_of(a) * sizeof(float);
    float *x = malloc(bytes);
    memcpy(x, logits_of(a), bytes);
    const bool same = memcmp(x, logits_of(b), bytes) == 0;
    free(x);
    return same;
}

/* Relative distance of two rows of logits. */
static double apart(kk_session *a, kk_session *b) {
    const size_t n = vocab_of(a);
    float *x = malloc(n * sizeof *x);
    double off = 0, all = 0;
    memcpy(x, logits_of(a), n * sizeof *x);
    const float *y = logits_of(b);
    for (size_t i = 0; i < n; i++) {
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        all += (double)x[i] * (double)x[i];
    }
    free(x);
    return sqrt(off / all);
}

static bool same_tokens(const kk_session *a, const kk_session *b) {
    return a->len == b->len &&
           memcmp(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens) == 0;
}

/* ---- prompts ------------------------------------------------------------------------------- */

static void pieces(kk_engine *e, const way *w) {
    static const int32_t sizes[] = {1, 5, 16, 17, 64, 23, 150};
    kk_session *whole = prompted(e, &w->how, LONG), *cut = session_on(e, &w->how);
    kk_session_opts all = {.kv_format = w->how.kv_format};
    kk_session *native = prompted(e, &all, LONG);
    kk_key_counts x, y;
    for (int32_t at = 0, i = 0; at < LONG; i++) {
        const int32_t n = at < 150 ? 1 : sizes[i % (int32_t)(sizeof sizes / sizeof *sizes)];
        const int32_t to = at + n < LONG ? at + n : LONG;
        append(cut, at, to);
        at = to;
    }
    check(same_logits(whole, cut), w, "a prompt in pieces");
    kk_session_key_counts(whole, &x);
    kk_session_key_counts(native, &y);
    check(x.keys_stored < y.keys_stored && (x.keys_rebuilt > 0) == restores(w) &&
              (!restores(w) || x.rows_rebuilt > 0),
          w, "rows are gone, and rebuilt where they are to be");
    check(!same_logits(whole, native), w, "which shows in the logits");
    kk_session_free(whole);
    kk_session_free(cut);
    kk_session_free(native);
}

/* While nothing is gone, logits are those of a session that keeps all. */
static void begins_native(kk_engine *e, const way *w) {
    const kk_session_opts all = {.kv_format = w->how.kv_format};
    kk_session *native = session_on(e, &all), *s = session_on(e, &w->how);
    bool same = true;
    int32_t at = 0;
    for (; at < 20; at++) { /* the least of the windows */
        append(native, at, at + 1);
        append(s, at, at + 1);
        same = same && same_logits(native, s);
    }
    check(same, w, "logits are native's until rows are gone");
    kk_session_free(native);
    kk_session_free(s);
}

/* ---- rounds -------------------------------------------------------------------------------- */

static void drafts(kk_engine *e, const way *w) {
    static const struct {
        kk_spec spec;
        int32_t most, ctx;
        const char *what;
    } specs[] = {{KK_SPEC_DFLASH, 3, 0, "drafted rounds are plain ones"},
                 {KK_SPEC_DFLASH, 7, 64, "and with a drafter that looks back over 64 rows"},
                 {KK_SPEC_NGRAM, 5, 0, "and with drafts of n-grams"}};
    kk_session *plain = prompted(e, &w->how, 700);
    const kk_result want = say(plain, 100);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        kk_session_opts how = w->how;
        how.spec = specs[i].spec;
        how.draft_max = specs[i].most;
        how.draft_ctx = specs[i].ctx;
        how.draft_fixed = true;
        kk_session *s = prompted(e, &how, 700);
        const kk_result got = say(s, 100);
        check(same_tokens(plain, s) && got.logits_hash == want.logits_hash && got.spec.drafted > 0,
              w, specs[i].what);
        kk_session_free(s);
    }
    kk_session_free(plain);
}

typedef struct {
    kk_session *s;
    int32_t n;
    kk_result r;
    kk_status st;
    kk_err err;
} speaker;

static void *speak(void *arg) {
    speaker *p = arg;
    const kk_generate_opts how = {.max_tokens = p->n, .ignore_eos = true};
    p->st = kk_generate(p->s, &how, NULL, NULL, &p->r, &p->err);
    return NULL;
}

static void together(kk_engine *e, const way *w) {
    speaker p[TOGETHER];
    pthread_t id[TOGETHER];
    kk_sharing before, after;
    bool same = true;
    for (int32_t i = 0; i < TOGETHER; i++)
        p[i] = (speaker){.s = prompted(e, &w->how, 30 + 250 * i), .n = 30 + 3 * i};
    kk_engine_sharing(e, &before);
    for (int32_t i = 0; i < TOGETHER; i++)
        if (pthread_create(&id[i], NULL, speak, &p[i]) != 0) exit(1);
    for (int32_t i = 0; i < TOGETHER; i++) pthread_join(id[i], NULL);
    kk_engine_sharing(e, &after);
    for (int32_t i = 0; i < TOGETHER; i++) {
        must(p[i].st, &p[i].err, "generating together");
        kk_session *alone = prompted(e, &w->how, 30 + 250 * i);
        same = same && say(alone, p[i].n).logits_hash == p[i].r.logits_hash &&
               same_tokens(alone, p[i].s);
        kk_session_free(alone);
        kk_session_free(p[i].s);
    }
    check(same && after.shared > before.shared + 5, w, "sessions in one forward are as alone");
}

/* ---- a session's life ---------------------------------------------------------------------- */

static void forks_and_rewinds(kk_engine *e, const way *w) {
    kk_session *a = prompted(e, &w->how, 600), *f, *b;
    kk_err err;
    must(kk_session_checkpoint(a, &err), &err, "a checkpoint");
    append(a, 600, 900);
    must(kk_session_fork(&f, a, &err), &err, "forking");
    b = prompted(e, &w->how, 900);
    const uint64_t want = say(b, 30).logits_hash;
    const bool forked = say(f, 30).logits_hash == want && say(a, 30).logits_hash == want;
    check(forked, w, "a fork goes on as its session does");
    must(kk_session_rewind(a, 610, NULL, &err), &err, "rewinding");
    append(a, 610, 900);
    check(say(a, 30).logits_hash == want, w, "rewound, and the same once more");
    kk_session_free(a);
    kk_session_free(b);
    kk_session_free(f);
}

static void files(kk_engine *gpu, kk_engine *cpu, const way *w) {
    kk_session *a = prompted(gpu, &w->how, 500), *b, *c, *d;
    bool exact = false, far = true, back = true;
    kk_err err;
    say(a, 9);
    must(kk_session_save(a, "/tmp/kk-restored-a", &err), &err, "saving");
    must(kk_session_load(&b, gpu, "/tmp/kk-restored-a", NULL, &exact, &err), &err, "loading");
    const uint64_t hash = say(a, 40).logits_hash;
    check(exact && say(b, 40).logits_hash == hash && same_tokens(a, b), w, "saved and loaded here");
    kk_session_free(b);
    if (cpu) {
        must(kk_session_load(&c, cpu, "/tmp/kk-restored-a", NULL, &far, &err), &err,
             "loading on the CPU");
        say(c, 90);
        must(kk_session_save(c, "/tmp/kk-restored-b", &err), &err, "saving on the CPU");
        must(kk_session_load(&d, gpu, "/tmp/kk-restored-b", NULL, &back, &err), &err,
             "loading it back");
        append(c, 0, 30);
        append(d, 0, 30);
        const double off = apart(c, d);
        printf("      logits of the CPU and of the GPU from the same file: %.3f apart\n", off);
        check(!far && !back && same_tokens(c, d) && off < 0.15, w, "on the CPU and back");
        kk_session_free(c);
        kk_session_free(d);
    }
    kk_session_free(a);
}

/* Rows that are rebuilt here are those that the CPU rebuilds: logits are as near as native ones. */
static void near_the_cpu(kk_engine *gpu, kk_engine *cpu, const way *w) {
    const kk_session_opts all = {.kv_format = w->how.kv_format};
    kk_session *a = prompted(gpu, &all, 900), *b = prompted(cpu, &all, 900);
    kk_session *c = prompted(gpu, &w->how, 900), *d = prompted(cpu, &w->how, 900);
    const double native = apart(b, a), ours = apart(d, c), other = apart(b, d);
    printf("      from the CPU: %.4f, native %.4f; the policy itself moves logits by %.3f\n", ours,
           native, other);
    check(ours < 0.04 || ours < 3 * native, w, "logits are the CPU's");
    kk_session_free(a);
    kk_session_free(b);
    kk_session_free(c);
    kk_session_free(d);
}

static void nothing_is_allocated(kk_engine *e, const way *w) {
    kk_session *s = prompted(e, &w->how, 200);
    const kk_generate_opts how = {.max_tokens = 150, .ignore_eos = true};
    kk_err err;
    say(s, 3);
    kk_fault_after(1, true);
    e->backend->instruments->fault_after(1, true);
    const kk_status st = kk_generate(s, &how, NULL, NULL, NULL, &err);
    kk_fault_after(0, false);
    e->backend->instruments->fault_after(0, false);
    if (st != KK_OK) printf("      %s\n", err.msg);
    check(st == KK_OK, w, "nothing is allocated after the first tokens");
    kk_session_free(s);
}

/* True rows are mixed in by the CPU alone. */
static void diagnosis_is_refused(kk_engine *e) {
    kk_session *s = NULL;
    kk_err err = {0};
    kk_session_opts how = ways[1].how;
    how.ctx = CTX;
    how.spec = KK_SPEC_NONE;
    kk_status st = kk_session_new_diagnosed(&s, e, &how, 1, &err);
    if (st == KK_OK) st = kk_session_append(s, prompt, 300, NULL, NULL, &err);
    check(st == KK_EDEVICE && strstr(err.msg, "mix true rows"), &ways[1], "diagnosis is refused");
    kk_session_free(s);
}

int main(int argc, char **argv) {
    static const char *standard[] = {"", "./models/tiny", "26b-a4b:bf16:6"};
    if (argc < 2) argc = 3, argv = (char **)(uintptr_t)standard;
    for (int i = 1; i < argc; i++) {
        model = argv[i];
        printf("%s\n", model);
        kk_engine *gpu = open_on("cuda"), *cpu = is_folder() ? open_on("cpu") : NULL;
        uint64_t z = 5;
        for (int32_t k = 0; k < CTX; k++) {
            z = z * 6364136223846793005u + 1442695040888963407u;
            prompt[k] = (int32_t)((z >> 33) % (uint64_t)gpu->rounds.vocab);
        }
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            pieces(gpu, &ways[k]);
            begins_native(gpu, &ways[k]);
            drafts(gpu, &ways[k]);
            together(gpu, &ways[k]);
            forks_and_rewinds(gpu, &ways[k]);
            files(gpu, cpu, &ways[k]);
            if (cpu) near_the_cpu(gpu, cpu, &ways[k]);
            nothing_is_allocated(gpu, &ways[k]);
        }
        diagnosis_is_refused(gpu);
        kk_engine_close(gpu);
        if (cpu) kk_engine_close(cpu);
    }
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
