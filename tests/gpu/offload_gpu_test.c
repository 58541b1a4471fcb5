/* offload_gpu_test.c - experts that do not fit the GPU's memory: the bits of prompts, of decoding
 * and of several rows are those of a device that holds them all, before pieces of weights have been
 * swapped, after, and when they are evicted for other memory; what was read from host memory is
 * counted; what cannot fit is refused; and all memory is given back, also after failures.
 *
 *   offload_gpu_test [SPEC...]
 */
#include "core/clock.h"
#include "gpu/model_world.h"

enum { PROMPT = 310, TAIL = 24, MAX_ROWS = 512, MAX_LOGITS = 32, LOOK = 32 };
static const int64_t MB = 1000000;

static int failures;
static void check(bool good, const char *spec, const char *what) {
    printf("%s: %s: %s\n", spec, what, good ? "ok" : "FAILED");
    fflush(stdout);
    failures += !good;
}

typedef struct {
    const char *spec;
    kk_checkpoint *ckpt;
    kk_mem mem;
    int64_t experts, others; /* bytes of weights */
    int64_t limit;           /* under which a third of the experts fit */
    size_t vocab;
    int32_t tokens[PROMPT + TAIL];
    float *want, *got; /* [TAIL][vocab] */
} setting;

static kk_offload offload_of(const world *w) {
    kk_offload f;
    w->be->instruments->offloaded(w->dev, &f);
    return f;
}

static void say(const char *spec, const char *when, const kk_offload *f) {
    printf("%s: %s: %.0f MB of experts on the GPU, %.0f MB in host memory; %lld hits, %lld misses, "
           "%.0f MB read from the host, %lld swaps, %lld evicted\n",
           spec, when, (double)f->on_gpu / 1e6, (double)f->on_host / 1e6, (long long)f->hits,
           (long long)f->misses, (double)f->host_bytes / 1e6, (long long)f->swaps,
           (long long)f->evicted);
    fflush(stdout);
}

/* The prompt in chunks, then TAIL tokens in groups; their logits. */
static void run(world *w, const setting *s, int32_t chunk, int32_t group, float *logits) {
    world_start(w, PROMPT + TAIL + 32);
    for (int32_t i = 0; i < PROMPT; i += chunk)
        world_forward(w, s->tokens + i, PROMPT - i < chunk ? PROMPT - i : chunk, 0, NULL, true);
    for (int32_t i = 0; i < TAIL; i += group) {
        const int32_t n = TAIL - i < group ? TAIL - i : group;
        world_forward(w, s->tokens + PROMPT + i, n, n, logits + (size_t)i * s->vocab, true);
    }
}

static void same(world *w, const setting *s, int32_t chunk, int32_t group, const char *when) {
    char what[120];
    memset(s->got, 0, TAIL * s->vocab * sizeof *s->got);
    run(w, s, chunk, group, s->got);
    snprintf(what, sizeof what, "%s, chunks of %d, %d at a time: equal bits", when, chunk, group);
    check(memcmp(s->got, s->want, TAIL * s->vocab * sizeof *s->got) == 0, s->spec, what);
}

/* One token over and over, nothing kept: always the same experts, which then come to the device. */
static void insist(world *w, const setting *s) {
    const kk_offload before = offload_of(w);
    int32_t bad = 0;
    world_start(w, PROMPT + TAIL + 32);
    world_forward(w, s->tokens, PROMPT, 0, NULL, true);
    const double from = kk_now();
    for (int32_t i = 0; i < 12 * LOOK; i++) {
        world_forward(w, s->tokens + PROMPT, 1, 1, s->got, false);
        bad += memcmp(s->got, s->want, s->vocab * sizeof *s->got) != 0;
    }
    const double seconds = kk_now() - from;
    const kk_offload after = offload_of(w);
    say(s->spec, "after one token many times", &after);
    printf("%s: %.2f ms a forward\n", s->spec, 1e3 * seconds / (12 * LOOK));
    check(bad == 0, s->spec, "one token many times: equal bits");
    check(after.swaps > before.swaps, s->spec, "pieces were swapped");
    for (int32_t i = 0; i < LOOK; i++) world_forward(w, s->tokens + PROMPT, 1, 1, s->got, false);
    const kk_offload last = offload_of(w);
    const double here = (double)(last.gpu_bytes - after.gpu_bytes);
    const double there = (double)(last.host_bytes - after.host_bytes);
    printf("%s: in the last forwards %lld hits, %lld misses, %.2f %% from the host\n", s->spec,
           (long long)(last.hits - after.hits), (long long)(last.misses - after.misses),
           100 * there / (here + there));
    check(here > 0 && there < 0.01 * here, s->spec, "what is read again and again is on the GPU");
}

/* A buffer that takes half of what experts have on the device. */
static void give_way(world *w, const setting *s) {
    kk_err err = {0};
    kk_buf *b = NULL;
    const kk_offload before = offload_of(w);
    const kk_status st =
        w->be->buf_new(w->dev, KK_MEM_WORKSPACE, (size_t)before.on_gpu / 2, &b, &err);
    if (st != KK_OK) printf("%s\n", err.msg);
    const kk_offload after = offload_of(w);
    say(s->spec, "after a buffer was taken", &after);
    check(st == KK_OK && after.evicted > before.evicted && after.on_gpu < before.on_gpu, s->spec,
          "experts are evicted");
    same(w, s, 64, 5, "after experts were evicted");
    w->be->buf_free(w->dev, b);
    for (int32_t i = 0; i < 3 * LOOK; i++) world_forward(w, s->tokens + PROMPT, 1, 0, NULL, false);
    const kk_offload back = offload_of(w);
    say(s->spec, "after it was freed", &back);
    check(back.on_gpu > after.on_gpu, s->spec, "and come back");
}

/* Takings that fail while pieces move: what is told is an error, and every piece stays where it can
 * be read. */
static void fail_moving(world *w, const setting *s) {
    int32_t failed = 0, bad = 0, steps = 0;
    world_start(w, PROMPT + TAIL + 32);
    world_forward(w, s->tokens, PROMPT, 0, NULL, true);
    for (int64_t n = 1; n < 400; n += 1 + n / 2, steps++) {
        kk_err err = {0};
        kk_buf *b = NULL;
        const kk_offload f = offload_of(w);
        w->be->instruments->fault_after(n, false);
        const kk_status st =
            w->be->buf_new(w->dev, KK_MEM_WORKSPACE, (size_t)f.on_gpu / 8, &b, &err);
        w->be->instruments->fault_after(0, false);
        failed += st != KK_OK;
        for (int32_t i = 0; i < LOOK + 1; i++) { /* with a look, at which some come back */
            if (i == LOOK / 2) w->be->buf_free(w->dev, b);
            world_forward(w, s->tokens + PROMPT, 1, 1, s->got, false);
            bad += memcmp(s->got, s->want, s->vocab * sizeof *s->got) != 0;
        }
    }
    const kk_offload f = offload_of(w);
    say(s->spec, "after failures", &f);
    printf("%s: %d of %d failed\n", s->spec, failed, steps);
    check(bad == 0 && failed > 1, s->spec, "failures while pieces move change no bit");
}

static int64_t taken(const world *w) {
    const kk_dev_facts facts = world_kind(w);
    return facts.memory.taken;
}

static void limited(const setting *s) {
    world w;
    const double from = kk_now();
    world_open_in(&w, s->ckpt, "cuda", false, MAX_ROWS, MAX_LOGITS, s->limit);
    const double load = kk_now() - from;
    kk_offload f = offload_of(&w);
    say(s->spec, "loaded", &f);
    printf("%s: limit %.0f MB, loaded in %.2f s, %.2f GB/s\n", s->spec, (double)s->limit / 1e6,
           load, (double)(s->experts + s->others) / load / 1e9);
    check(f.limit == s->limit && f.on_gpu > s->experts / 5 && f.on_gpu < s->experts / 2 &&
              f.on_gpu + f.on_host >= s->experts,
          s->spec, "about a third of the experts is on the GPU");
    same(&w, s, PROMPT, 1, "limited");
    f = offload_of(&w);
    say(s->spec, "after a prompt", &f);
    check(f.misses > 0 && f.hits > 0 && f.host_bytes > 0, s->spec, "reads are counted");
    same(&w, s, 64, 16, "limited");
    insist(&w, s);
    same(&w, s, 100, 1, "after swaps");
    same(&w, s, 16, 3, "after swaps");
    check(taken(&w) <= s->limit + 128 * MB, s->spec, "the limit is kept");
    printf("%s: %.0f MB taken\n", s->spec, (double)taken(&w) / 1e6);
    give_way(&w, s);
    fail_moving(&w, s);
    same(&w, s, 64, 2, "after they came back");
    check(taken(&w) <= s->limit + 128 * MB, s->spec, "the limit is kept");
    world_close(&w);
    world_open_in(&w, s->ckpt, "cuda", true, MAX_ROWS, MAX_LOGITS, s->limit);
    same(&w, s, 64, 5, "small operations");
    f = offload_of(&w);
    check(f.misses > 0 && f.hits > 0, s->spec, "reads of small operations are counted");
    world_close(&w);
}

/* An empty device, to ask what the GPU has free. */
static int64_t free_bytes(const world *idle) {
    const kk_dev_facts facts = world_kind(idle);
    return facts.memory.free;
}

static void open_idle(world *w) {
    kk_err err = {0};
    memset(w, 0, sizeof *w);
    must(kk_backend_find(&w->be, "cuda", &err), &err, "device");
    const kk_dev_opts dev = {.mem = &w->mem, .max_rows = 1};
    must(w->be->open(&w->dev, &dev, &err), &err, "open");
}

static void refused(const setting *s, const world *idle) {
    world w;
    kk_err err = {0};
    const int64_t before = free_bytes(idle);
    const kk_status st =
        world_try(&w, s->ckpt, "cuda", false, MAX_ROWS, MAX_LOGITS, s->others * 3 / 4, &err);
    printf("%s: %s\n", s->spec, err.msg);
    check(st == KK_ENOMEM && strstr(err.msg, "gpu_memory") && strstr(err.msg, "bytes"), s->spec,
          "what cannot fit is refused");
    check(free_bytes(idle) >= before - 16 * MB, s->spec, "and takes nothing");
}

/* A limit under which all fit, until other memory is needed. */
static void roomy(const setting *s) {
    world w;
    kk_err err = {0};
    kk_buf *b;
    world_open_in(&w, s->ckpt, "cuda", false, MAX_ROWS, MAX_LOGITS, s->limit + s->experts);
    same(&w, s, 64, 1, "all fit");
    same(&w, s, 64, 1, "all fit");
    kk_offload f = offload_of(&w);
    check(f.on_host == 0 && f.on_gpu >= s->experts && f.hits == 0 && f.misses == 0, s->spec,
          "all lie on the GPU, and nothing is counted");
    must(w.be->buf_new(w.dev, KK_MEM_WORKSPACE, (size_t)s->experts, &b, &err), &err, "buffer");
    same(&w, s, 64, 1, "after many were evicted");
    f = offload_of(&w);
    say(s->spec, "after many were evicted", &f);
    check(f.evicted > 0 && f.on_host > 0 && f.hits > 0 && f.misses > 0, s->spec,
          "and are counted from then on");
    w.be->buf_free(w.dev, b);
    world_close(&w);
}

/* Without a limit, on a card that somebody else has nearly filled. */
static void automatic(const setting *s, const world *idle) {
    world w;
    kk_err err = {0};
    kk_buf *b;
    const int64_t filled = free_bytes(idle) - s->limit - 300 * MB;
    must(idle->be->buf_new(idle->dev, KK_MEM_WORKSPACE, (size_t)filled, &b, &err), &err, "fill");
    world_open_in(&w, s->ckpt, "cuda", false, MAX_ROWS, MAX_LOGITS, 0);
    same(&w, s, 64, 4, "on a full card");
    const kk_offload f = offload_of(&w);
    say(s->spec, "on a full card", &f);
    check(f.limit == 0 && f.on_host > 0 && f.on_gpu > 0 && f.misses > 0, s->spec,
          "experts that do not fit go to host memory without being asked to");
    world_close(&w);
    idle->be->buf_free(idle->dev, b);
}

/* Every so-many-th taking fails, and all that was taken before is given back. */
static void faults(const char *spec, const world *idle) {
    setting s = {.spec = spec};
    kk_err err = {0};
    int32_t failed = 0;
    world w;
    must(kk_checkpoint_synthetic(&s.ckpt, spec, &s.mem, &err), &err, spec);
    for (size_t i = 0; i < kk_checkpoint_count(s.ckpt); i++) {
        const kk_tensor *t = kk_checkpoint_at(s.ckpt, i);
        *(t->n_dims > 2 ? &s.experts : &s.others) += (int64_t)kk_tensor_bytes(t);
    }
    const int64_t limit = s.others + s.experts / 3 + 500 * MB, before = free_bytes(idle);
    int64_t least = before;
    for (int64_t n = 1;; n += 1 + n / 4) {
        idle->be->instruments->fault_after(n, false);
        err.msg[0] = 0;
        const kk_status st = world_try(&w, s.ckpt, "cuda", false, 64, MAX_LOGITS, limit, &err);
        idle->be->instruments->fault_after(0, false);
        if (st == KK_OK) break;
        failed++;
        if (!err.msg[0]) check(false, spec, "a failure says what it is");
        if (free_bytes(idle) < least) least = free_bytes(idle);
    }
    const kk_offload f = offload_of(&w);
    say(spec, "loaded at last", &f);
    check(f.on_host > 0, spec, "and some lie in host memory");
    w.be->close((kk_gemma4_free(w.model), w.dev));
    printf("%s: %d loads failed; %.1f MB less are free\n", spec, failed,
           (double)(before - free_bytes(idle)) / 1e6);
    check(failed > 8 && least >= before - 16 * MB && free_bytes(idle) >= before - 16 * MB, spec,
          "failures give everything back");
    kk_checkpoint_close(s.ckpt);
}

static void test(const char *spec) {
    setting s = {.spec = spec};
    kk_err err = {0};
    world w, idle;
    must(kk_checkpoint_synthetic(&s.ckpt, spec, &s.mem, &err), &err, spec);
    for (size_t i = 0; i < kk_checkpoint_count(s.ckpt); i++) {
        const kk_tensor *t = kk_checkpoint_at(s.ckpt, i);
        *(t->n_dims > 2 ? &s.experts : &s.others) += (int64_t)kk_tensor_bytes(t);
    }
    s.limit = (s.others + s.experts / 3 + 500 * MB) * 33 / 32;
    s.vocab = (size_t)kk_checkpoint_config(s.ckpt)->vocab;
    s.want = calloc(TAIL * s.vocab, sizeof *s.want);
    s.got = calloc(TAIL * s.vocab, sizeof *s.got);
    for (int32_t i = 0; i < PROMPT + TAIL; i++)
        s.tokens[i] = (int32_t)(((uint32_t)i * 2654435761u >> 8) % (uint32_t)s.vocab);
    open_idle(&idle);
    const int64_t before = free_bytes(&idle);
    world_open(&w, s.ckpt, "cuda", false, MAX_ROWS, MAX_LOGITS);
    run(&w, &s, 64, 1, s.want);
    kk_offload f = offload_of(&w);
    check(f.on_gpu == 0 && f.on_host == 0 && f.limit == 0, spec,
          "without a limit nothing is divided");
    world_close(&w);
    limited(&s);
    check(free_bytes(&idle) >= before - 64 * MB, spec, "all memory is given back");
    printf("%s: %.1f MB less are free\n", spec, (double)(before - free_bytes(&idle)) / 1e6);
    roomy(&s);
    automatic(&s, &idle);
    refused(&s, &idle);
    idle.be->close(idle.dev);
    free(s.want);
    free(s.got);
    kk_checkpoint_close(s.ckpt);
}

int main(int argc, char **argv) {
    static char bf16[] = "26b-a4b:bf16:6", q4_0[] = "26b-a4b:q4_0:6";
    char *usual[] = {argv[0], bf16, q4_0};
    if (argc < 2) argc = 3, argv = usual;
    for (int i = 1; i < argc; i++) test(argv[i]);
    world idle;
    open_idle(&idle);
    faults("26b-a4b:q4_0:1", &idle);
    idle.be->close(idle.dev);
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
