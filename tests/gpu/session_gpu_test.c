/* session_gpu_test.c - sessions on the GPU: rounds enqueued ahead against rounds one by one,
 * several sessions that share forwards against each alone, forks, turns, every K/V format, sessions
 * saved and loaded here and on the CPU, no allocation while decoding, and a GPU without memory.
 *
 * session_gpu_test [MODEL | SYNTHETIC]...  A name with a slash is a folder.  Prints a line per
 * check; the exit status is 1 when one failed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

enum { CTX = 4096, MOST = 512, TOGETHER = 16 };

static int failed;
static const char *model;
static int32_t prompt[MOST];

static void check(bool holds, const char *what) {
    if (!holds) failed++;
    printf("%s  %s\n", holds ? "ok  " : "FAIL", what);
    fflush(stdout);
}

static void must(kk_status st, const kk_err *err, const char *what) {
    if (st == KK_OK) return;
    printf("FAIL  %s: %s\n", what, err->msg);
    exit(1);
}

static kk_engine *open_on(const char *device, int32_t ahead) {
    kk_engine *e = NULL;
    kk_err err;
    kk_engine_opts o = {.device = device, .ahead = ahead};
    if (strcmp(device, "cuda") == 0)
        o.isa = getenv("KK_TEST_ISA"); /* a chip whose limits it keeps */
    *(strchr(model, '/') ? &o.model : &o.synthetic) = model;
    must(kk_engine_open(&e, &o, &err), &err, "opening");
    return e;
}

static kk_session *session_on(kk_engine *e, kk_kv_format f, int32_t n) {
    kk_session *s = NULL;
    kk_err err;
    const kk_session_opts o = {.ctx = CTX, .kv_format = f};
    must(kk_session_new(&s, e, &o, &err), &err, "a session");
    if (n) must(kk_session_append(s, prompt, (size_t)n, NULL, NULL, &err), &err, "a prompt");
    return s;
}

static kk_result say(kk_session *s, int32_t n, const int32_t *stop) {
    kk_result r;
    kk_err err;
    const kk_generate_opts o = {
        .max_tokens = n, .ignore_eos = !stop, .stop_ids = stop, .n_stop_ids = stop != NULL};
    must(kk_generate(s, &o, NULL, NULL, &r, &err), &err, "generating");
    return r;
}

static bool same(const kk_session *a, const kk_session *b) {
    return a->len == b->len && kk_cache_len(a->cache) == kk_cache_len(b->cache) &&
           memcmp(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens) == 0;
}

static bool same_bytes(const char *a, const char *b) {
    char command[300];
    snprintf(command, sizeof command, "cmp -s %s %s", a, b);
    return system(command) == 0;
}

/* Every row of the timeline that was evaluated read all that its layers' masks show. */
static bool counts_are_those_of_positions(const kk_session *s) {
    const kk_config *c = kk_engine_config(s->engine);
    kk_key_counts want = {0}, got;
    for (int32_t l = 0; l < c->n_layer; l++)
        for (int64_t p = 0; p < kk_cache_len(s->cache); p++) {
            const bool cut = c->layer[l].kind == KK_SLIDING && p >= c->window;
            want.queries++;
            want.keys_stored += cut ? c->window : p + 1;
        }
    kk_session_key_counts(s, &got);
    return memcmp(&got, &want, sizeof got) == 0;
}

/* ---- ahead ------------------------------------------------------------------------------- */

static void ahead_is_the_same(kk_engine *ahead, kk_engine *plain) {
    static const int32_t lengths[] = {5, 62, 63, 64, 200};
    bool tokens = true, hashes = true, files = true, turns = true, forks = true, counts = true;
    double syncs = 0, rounds = 0, enqueued = 0;
    kk_err err;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int32_t end = 0; end < 4; end++) { /* the limit, or a stop id at 1, 2, 9 */
            kk_session *a = session_on(ahead, KK_KV_BF16, lengths[i]), *f;
            kk_session *b = session_on(plain, KK_KV_BF16, lengths[i]), *g;
            const int32_t *stop = NULL;
            if (end) {
                kk_session *c = session_on(plain, KK_KV_BF16, lengths[i]);
                static int32_t id;
                say(c, 10, NULL);
                id = c->tokens[lengths[i] + (end == 1 ? 0 : end == 2 ? 1 : 8)];
                stop = &id;
                kk_session_free(c);
            }
            kk_result x = say(a, 40, stop), y = say(b, 40, stop);
            tokens = tokens && same(a, b);
            hashes = hashes && x.logits_hash == y.logits_hash && x.rounds == y.rounds;
            counts = counts && counts_are_those_of_positions(a) && counts_are_those_of_positions(b);
            if (!end) {
                syncs += (double)x.syncs;
                rounds += (double)x.rounds;
                enqueued += (double)x.spec.ahead;
            }
            must(kk_session_save(a, "/tmp/kk-a", &err), &err, "saving");
            must(kk_session_save(b, "/tmp/kk-b", &err), &err, "saving");
            files = files && same_bytes("/tmp/kk-a", "/tmp/kk-b");
            must(kk_session_fork(&f, a, &err), &err, "forking");
            must(kk_session_fork(&g, b, &err), &err, "forking");
            forks = forks && say(f, 8, NULL).logits_hash == say(g, 8, NULL).logits_hash;
            must(kk_session_append(a, prompt, 7, NULL, NULL, &err), &err, "a turn");
            must(kk_session_append(b, prompt, 7, NULL, NULL, &err), &err, "a turn");
            turns = turns && say(a, 12, NULL).logits_hash == say(b, 12, NULL).logits_hash;
            kk_session_free(a);
            kk_session_free(b);
            kk_session_free(f);
            kk_session_free(g);
        }
    check(tokens, "ahead: tokens");
    check(hashes, "ahead: hashes");
    check(files, "ahead: saved files");
    check(forks, "ahead: forks");
    check(counts, "ahead: key counts");
    check(turns, "ahead: next turns");
    printf("      %.3f waits per round that left the GPU idle, %.3f rounds ahead\n", syncs / rounds,
           enqueued / rounds);
    check(syncs <= 0.05 * rounds && enqueued > 0.9 * rounds, "ahead: no waiting");
}

/* A mask that may depend on the tokens keeps choices on the host; this one allows all. */
static const uint32_t *on_the_host(void *user, const int32_t *tokens, int32_t n) {
    (void)user, (void)tokens, (void)n;
    return NULL;
}

/* What the host makes of the logits is what the GPU made of them. */
static void digests_agree(kk_engine *e) {
    kk_session *a = session_on(e, KK_KV_BF16, 40), *b = session_on(e, KK_KV_BF16, 40);
    kk_err err;
    kk_result x = say(a, 6, NULL);
    const kk_generate_opts tiny = {.max_tokens = 6, .ignore_eos = true, .mask_at = on_the_host};
    kk_result y;
    must(kk_generate(b, &tiny, NULL, NULL, &y, &err), &err, "generating");
    check(same(a, b) && x.logits_hash == y.logits_hash && y.spec.ahead == 0,
          "choices and digests of the GPU and of the host");
    kk_session_free(a);
    kk_session_free(b);
}

/* ---- several sessions ---------------------------------------------------------------------- */

typedef struct {
    kk_session *s;
    kk_generate_opts how;
    kk_result r;
    kk_status st;
    kk_err err;
} speaker;

static void *speak(void *arg) {
    speaker *p = arg;
    p->st = kk_generate(p->s, &p->how, NULL, NULL, &p->r, &p->err);
    return NULL;
}

/* Every session has a length of its own and stops at its own time; `sampled`: every third one
 * samples, beside greedy ones. */
static kk_session *crowd_session(kk_engine *e, kk_kv_format f, int32_t i, bool sampled,
                                 kk_generate_opts *how) {
    *how = (kk_generate_opts){.max_tokens = 20 + 3 * i, .ignore_eos = true};
    if (sampled && i % 3 == 0) how->sampling = (kk_sampling){.temp = 0.8f, .seed = 7 + (uint64_t)i};
    return session_on(e, f, 1 + 29 * i);
}

static bool is_26b(const kk_engine *e) {
    const kk_config *c = kk_engine_config(e);
    return c->hidden == 2816 && c->n_expert == 128;
}

/* n sessions at once, each in a thread, against the same one after the other: tokens and logits are
 * the same, forwards were shared, and all of them were fused where one session's are. */
static void crowd_is_the_same(kk_engine *e, kk_kv_format f, int32_t n, bool sampled) {
    speaker p[TOGETHER];
    pthread_t id[TOGETHER];
    kk_sharing before, after;
    kk_fused f0, f1;
    bool same_all = true;
    char what[120];
    for (int32_t i = 0; i < n; i++) p[i].s = crowd_session(e, f, i, sampled, &p[i].how);
    kk_engine_sharing(e, &before);
    kk_engine_fused(e, &f0);
    for (int32_t i = 0; i < n; i++)
        if (pthread_create(&id[i], NULL, speak, &p[i]) != 0) exit(1);
    for (int32_t i = 0; i < n; i++) pthread_join(id[i], NULL);
    kk_engine_sharing(e, &after);
    kk_engine_fused(e, &f1);
    for (int32_t i = 0; i < n; i++) {
        must(p[i].st, &p[i].err, "generating together");
        speaker alone = {.s = crowd_session(e, f, i, sampled, &alone.how)};
        speak(&alone);
        must(alone.st, &alone.err, "generating alone");
        const bool good = alone.r.logits_hash == p[i].r.logits_hash && same(alone.s, p[i].s);
        if (!good) printf("      session %d of %d differs\n", i, n);
        same_all = same_all && good;
        kk_session_free(alone.s);
        kk_session_free(p[i].s);
    }
    snprintf(what, sizeof what, "%d sessions together, %s%s: tokens and logits as alone", n,
             kk_kv_format_name(f), sampled ? ", some sampled" : "");
    check(same_all, what);
    printf("      %lld of %lld forwards shared, by %lld sessions at most; %lld layers fused, %lld "
           "not\n",
           (long long)(after.shared - before.shared), (long long)(after.rounds - before.rounds),
           (long long)after.most, (long long)(f1.layers_fused - f0.layers_fused),
           (long long)(f1.layers_by_ops - f0.layers_by_ops));
    check(after.shared > before.shared + 10, "forwards were shared");
    const bool packed = !strstr(model, ":bf16"); /* kernels of packed weights: not for f32 */
    if (is_26b(e) && (f == KK_KV_BF16 || !getenv("KK_TEST_ISA")) && !(packed && f == KK_KV_F32))
        check(f1.layers_by_ops == f0.layers_by_ops && f1.heads_by_ops == f0.heads_by_ops,
              "and every one of them was fused");
}

static uint64_t heard; /* log-probabilities of a generation */
static void hear_logprobs(void *user, const kk_logprobs *of) {
    const uint8_t *at = (const uint8_t *)of;
    const size_t n = offsetof(kk_logprobs, best) + (size_t)of->n_best * sizeof *of->best;
    (void)user;
    for (size_t i = 0; i < n; i++) heard = (heard ^ at[i]) * 0x100000001b3u;
}

/* Sampled rounds on the GPU, enqueued ahead, against logits read to the host: the same tokens. */
static void samples_agree(kk_engine *e) {
    static const kk_logit_bias bias[] = {{7, 2}, {3, -1}, {7, 0.5f}, {100, 3}};
    static uint32_t mask[1 << 14];
    memset(mask, 0x5a, sizeof mask);
    const struct {
        const char *name;
        kk_generate_opts how;
    } ways[] = {
        {"temperature", {.sampling = {.temp = 0.8f, .seed = 3}}},
        {"top-k and top-p", {.sampling = {.temp = 1, .top_k = 40, .top_p = 0.95f, .seed = 4}}},
        {"top-p", {.sampling = {.temp = 1.2f, .top_p = 0.9f, .seed = 5}}},
        {"min-p", {.sampling = {.temp = 1.2f, .min_p = 0.05f, .seed = 5}}},
        {"repeat penalty", {.sampling = {.repeat_penalty = 1.5f, .penalty_last_n = 8}}},
        {"all penalties",
         {.sampling = {.temp = 2,
                       .repeat_penalty = 1.1f,
                       .frequency_penalty = 1,
                       .presence_penalty = 0.5f,
                       .penalty_last_n = -1}}},
        {"bias", {.sampling = {.temp = 5, .seed = 9}, .bias = bias, .n_bias = 4}},
        {"mask", {.sampling = {.temp = 1, .seed = 1}, .mask = mask}},
        {"log-probabilities",
         {.sampling = {.temp = 1, .seed = 2}, .n_logprobs = 5, .on_logprobs = hear_logprobs}},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        kk_session *a = session_on(e, KK_KV_BF16, 60), *b = session_on(e, KK_KV_BF16, 60);
        kk_generate_opts how = ways[i].how;
        kk_result x, y;
        kk_err err;
        char what[100];
        how.max_tokens = 60;
        how.ignore_eos = true;
        heard = 0;
        must(kk_generate(a, &how, NULL, NULL, &x, &err), &err, "sampling");
        const uint64_t here = heard;
        heard = 0;
        how.mask_at = on_the_host;
        must(kk_generate(b, &how, NULL, NULL, &y, &err), &err, "sampling on the host");
        snprintf(what, sizeof what, "sampled here and on the host: %s (%lld of %d rounds ahead)",
                 ways[i].name, (long long)x.spec.ahead, x.rounds);
        check(same(a, b) && x.logits_hash == y.logits_hash && here == heard && y.spec.ahead == 0 &&
                  x.spec.ahead > 50,
              what);
        kk_session_free(a);
        kk_session_free(b);
    }
}

/* ---- caches -------------------------------------------------------------------------------- */

static void formats_move(kk_engine *gpu, kk_engine *cpu) {
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        char what[100];
        bool exact = false, far = true, back = true;
        kk_err err;
        check(gpu->backend->stores((kk_kv_format)f), "the GPU stores what the CPU stores");
        kk_session *a = session_on(gpu, (kk_kv_format)f, 150), *b, *c, *d;
        say(a, 9, NULL);
        must(kk_session_save(a, "/tmp/kk-a", &err), &err, "saving");
        must(kk_session_load(&b, gpu, "/tmp/kk-a", NULL, &exact, &err), &err, "loading");
        must(kk_session_load(&c, cpu, "/tmp/kk-a", NULL, &far, &err), &err, "loading on the CPU");
        say(c, 5, NULL);
        must(kk_session_save(c, "/tmp/kk-b", &err), &err, "saving on the CPU");
        must(kk_session_load(&d, gpu, "/tmp/kk-b", NULL, &back, &err), &err, "loading it back");
        const uint64_t hash = say(a, 20, NULL).logits_hash;
        const bool goes_on = say(b, 20, NULL).logits_hash == hash && same(a, b);
        say(d, 5, NULL);
        snprintf(what, sizeof what, "%s: saved and loaded here, on the CPU and back",
                 kk_kv_format_name((kk_kv_format)f));
        check(goes_on && exact && !far && !back, what);
        kk_session_free(a);
        kk_session_free(b);
        kk_session_free(c);
        kk_session_free(d);
    }
}

/* ---- memory -------------------------------------------------------------------------------- */

static void nothing_is_allocated(kk_engine *e) {
    kk_session *s = session_on(e, KK_KV_BF16, 50);
    kk_err err;
    const kk_generate_opts how = {.max_tokens = 100, .ignore_eos = true};
    say(s, 3, NULL);
    kk_fault_after(1, true);
    e->backend->instruments->fault_after(1, true);
    const kk_status st = kk_generate(s, &how, NULL, NULL, NULL, &err);
    kk_fault_after(0, false);
    e->backend->instruments->fault_after(0, false);
    if (st != KK_OK) printf("      %s\n", err.msg);
    check(st == KK_OK, "nothing is allocated after the first tokens");
    kk_session_free(s);
}

static void out_of_memory_loses_nothing(kk_engine *e) {
    kk_session *a = session_on(e, KK_KV_Q8, 0), *b = session_on(e, KK_KV_F32, 90);
    kk_err err = {0};
    const uint64_t hash = say(b, 10, NULL).logits_hash;
    e->backend->instruments->fault_after(1, true);
    const kk_status st = kk_session_append(a, prompt, 90, NULL, NULL, &err);
    e->backend->instruments->fault_after(0, false);
    printf("      %s\n", err.msg);
    check(st == KK_ENOMEM && a->len == 0, "a GPU without memory refuses");
    kk_session_free(a);
    kk_session_free(b);
    b = session_on(e, KK_KV_F32, 90);
    check(say(b, 10, NULL).logits_hash == hash, "and goes on");
    kk_session_free(b);
}

static void show_memory(kk_engine *e) {
    kk_session *s = session_on(e, KK_KV_BF16, 300);
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_dev_facts facts;
    kk_engine_memory(e, bytes);
    e->backend->describe(e->dev, &facts);
    for (int c = KK_MEM_KV_SLIDING; c < KK_MEM_CATEGORIES; c++)
        if (bytes[c])
            printf("      %s %.1f MB\n", kk_mem_category_name((kk_mem_category)c),
                   (double)bytes[c] / 1e6);
    printf("      taken of the GPU over the weights: %.1f MB, %d rows in a forward\n",
           (double)(facts.memory.taken - facts.memory.weights) / 1e6, e->rounds.max_rows);
    kk_session_free(s);
}

int main(int argc, char **argv) {
    static const char *standard[] = {"", "./models/tiny/verifier"};
    if (argc < 2) argc = 2, argv = (char **)(uintptr_t)standard;
    for (int i = 1; i < argc; i++) {
        model = argv[i];
        printf("%s\n", model);
        kk_engine *gpu = open_on("cuda", 0), *plain = open_on("cuda", -1);
        kk_engine *cpu = strchr(model, '/') ? open_on("cpu", 0) : NULL; /* large ones only here */
        uint64_t state = 7;
        for (int32_t k = 0; k < MOST; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            prompt[k] = (int32_t)((state >> 33) % (uint64_t)gpu->rounds.vocab);
        }
        ahead_is_the_same(gpu, plain);
        digests_agree(gpu);
        samples_agree(gpu);
        crowd_is_the_same(gpu, KK_KV_BF16, 2, false);
        crowd_is_the_same(gpu, KK_KV_BF16, 8, false);
        crowd_is_the_same(gpu, KK_KV_BF16, TOGETHER, false);
        crowd_is_the_same(gpu, KK_KV_BF16, TOGETHER, true);
        for (int f = 0; f < KK_KV_FORMATS; f++)
            if (f != KK_KV_BF16) crowd_is_the_same(gpu, (kk_kv_format)f, 8, true);
        if (cpu) formats_move(gpu, cpu);
        nothing_is_allocated(gpu);
        out_of_memory_loses_nothing(gpu);
        show_memory(gpu);
        kk_engine_close(gpu);
        kk_engine_close(plain);
        kk_engine_close(cpu);
    }
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
