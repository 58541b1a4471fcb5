/* drafts_gpu_test.c - drafted rounds on the GPU, enqueued ahead and one by one, against plain
 * decoding: tokens, hash of the logits, reason of the end, and what the drafter remembers.
 *
 * Lengths of prompts and drafts, chunks, endings, K/V formats and how much of a draft is right are
 * drawn from a seed; some prompts are so long that forwards take the kernel for long contexts.
 * Counted as well: rounds ahead, waits that leave the GPU idle, that every layer was fused, and
 * drafts by the full and the short head.
 *
 * drafts_gpu_test [N SEED {MODEL | SYNTHETIC}...]  N draws of each model; a name with a slash is
 * a folder that has verifier and drafter in it.  The exit status is 1 when a draw failed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"
#include "eval/measure/trace.h"

enum { CTX = 8192, MOST = 400, LONG = 5200, TOKENS = 64 };

static int failed;
static uint64_t state;
static int32_t prompt[LONG];

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static void must(kk_status st, const kk_err *err, const char *what) {
    if (st == KK_OK) return;
    printf("FAIL  %s: %s\n", what, err->msg);
    exit(1);
}

/* The shipped pair's short head has the ids of counts, the other the first ones. */
static kk_engine *open_on(const char *model, int32_t ahead, bool short_head) {
    static char verifier[300], drafter[300];
    const bool shipped = strchr(model, '/');
    kk_engine *e = NULL;
    kk_err err;
    kk_engine_opts o = {.device = "cuda", .ahead = ahead};
    if (short_head) o.draft_vocab = shipped ? "tests/data/counts/tiny.json:1000" : "32768";
    snprintf(verifier, sizeof verifier, "%s/verifier", model);
    snprintf(drafter, sizeof drafter, "%s/drafter", model);
    if (shipped) {
        o.model = verifier;
        o.drafter = drafter;
    } else {
        o.synthetic = model;
        o.drafter = "synthetic";
    }
    must(kk_engine_open(&e, &o, &err), &err, "opening");
    return e;
}

/* What is drawn. */
typedef struct {
    int32_t len, chunk, most, tokens, stop_at, leave_at; /* the last two: -1: not */
    bool fixed;
    kk_kv_format format;
    double p; /* 0: the drafter's own drafts */
    uint64_t seed;
} drawn;

static drawn draw(int32_t block) {
    drawn d = {.len = 1 + (int32_t)below(MOST - 1),
               .most = 1 + (int32_t)below((uint32_t)block - 1),
               .fixed = below(3) > 0,
               .tokens = 1 + (int32_t)below(TOKENS),
               .stop_at = -1,
               .leave_at = -1,
               .p = below(5) ? 0.3 + 0.1 * below(7) : 0,
               .seed = below(1000)};
    d.chunk = 1 + (int32_t)below((uint32_t)d.len);
    d.format = below(2) ? KK_KV_BF16 : (kk_kv_format)below(KK_KV_FORMATS);
    if (below(5) == 0) { /* over the ends of pages and of spans */
        d.len = 4300 + (int32_t)below(LONG - 4300);
        d.chunk = 512 + (int32_t)below(1500);
    }
    const uint32_t end = below(3);
    if (end == 1) d.stop_at = (int32_t)below((uint32_t)d.tokens);
    if (end == 2) d.leave_at = 1 + (int32_t)below((uint32_t)d.tokens);
    return d;
}

typedef struct {
    int32_t n, left, seen[TOKENS];
} listener;

static bool hear(void *user, int32_t id) {
    listener *l = user;
    l->seen[l->n++ % TOKENS] = id;
    return l->left < 0 || l->n < l->left;
}

static kk_session *prompted(kk_engine *e, const drawn *d, kk_spec spec) {
    kk_session *s = NULL;
    kk_err err;
    const kk_session_opts o = {.ctx = CTX,
                               .kv_format = d->format,
                               .spec = spec,
                               .draft_max = spec ? d->most : 0,
                               .draft_fixed = d->fixed};
    must(kk_session_new(&s, e, &o, &err), &err, "a session");
    for (int32_t i = 0; i < d->len; i += d->chunk) {
        const int32_t n = d->len - i < d->chunk ? d->len - i : d->chunk;
        must(kk_session_append(s, prompt + i, (size_t)n, NULL, NULL, &err), &err, "a prompt");
    }
    return s;
}

static kk_result say(kk_session *s, const drawn *d, const int32_t *stop, listener *l) {
    kk_result r;
    kk_err err;
    const kk_generate_opts o = {
        .max_tokens = d->tokens, .ignore_eos = !stop, .stop_ids = stop, .n_stop_ids = stop != NULL};
    l->left = d->leave_at;
    must(kk_generate(s, &o, hear, l, &r, &err), &err, "generating");
    return r;
}

typedef struct {
    double rounds, ahead, syncs, drafted, accepted, by_dflash, by_short, missed;
} sums;

/* One engine's drafted run of a draw, against the plain one. */
static bool agrees(kk_engine *e, const drawn *d, const int32_t *record, const int32_t *stop,
                   const listener *plain, const kk_result *want, sums *sum) {
    kk_err err;
    kk_trace *trace = NULL;
    listener got = {0}, more = {0};
    kk_session *s = prompted(e, d, KK_SPEC_DFLASH);
    const kk_trace_opts how = {.p = d->p, .seed = d->seed};
    if (d->p > 0) {
        must(kk_trace_new(&trace, s, &how, &err), &err, "a trace");
        must(kk_trace_follow(trace, d->len, record, TOKENS, 1, &err), &err, "a record");
    }
    const kk_result r = say(s, d, stop, &got);
    bool same = got.n == plain->n && memcmp(got.seen, plain->seen, sizeof got.seen) == 0 &&
                r.logits_hash == want->logits_hash && r.stop == want->stop;
    sum->rounds += (double)r.rounds;
    sum->ahead += (double)r.spec.ahead;
    sum->syncs += (double)r.syncs;
    sum->drafted += (double)r.spec.drafted;
    sum->accepted += (double)r.spec.accepted;
    sum->by_dflash += (double)r.spec.by[KK_SPEC_DFLASH].rounds;
    sum->by_short += (double)r.spec.short_rounds;
    sum->missed += (double)r.spec.short_missed;
    if (!same)
        printf("FAIL  %s, prompt %d in %d, drafts %d %s, %d tokens, stop %d, leave %d, p %.1f: "
               "%d tokens of %d, hash %s\n",
               kk_kv_format_name(d->format), d->len, d->chunk, d->most, d->fixed ? "fixed" : "free",
               d->tokens, d->stop_at, d->leave_at, d->p, got.n, plain->n,
               r.logits_hash == want->logits_hash ? "same" : "differs");
    /* The next turn, drafted from what the first one left. */
    const drawn turn = {.tokens = 12, .leave_at = -1};
    must(kk_session_append(s, prompt, 5, NULL, NULL, &err), &err, "a turn");
    say(s, &turn, NULL, &more);
    kk_session_free(s);
    kk_trace_free(trace);
    return same;
}

/* Whether every layer so far was fused, where the model is 26B-A4B on a chip that fuses every
 * format; layers of prompts too. */
static bool all_fused(kk_engine *e) {
    const kk_config *c = kk_engine_config(e);
    kk_model_info info;
    kk_fused f;
    kk_engine_info(e, &info);
    if (c->hidden != 2816 || c->n_expert != 128 || getenv("KK_TEST_ISA")) return true;
    kk_engine_fused(e, &f);
    printf("      %lld layers fused, %lld not\n", (long long)f.layers_fused,
           (long long)f.layers_by_ops);
    /* K/V in f32, which is drawn too, is not fused beside packed weights. */
    return f.layers_fused > 0 && (f.layers_by_ops == 0 || strcmp(info.weight_type, "bf16"));
}

/* Where there is a short head it drafted; how often a session left it is drawn, and a trace, which
 * says itself what is right, never does.  Without one nothing was counted. */
static bool used_heads(kk_engine *e, const sums *s) {
    const bool has = kk_dflash_short_rows(e->dflash) > 0;
    if (has)
        printf("      %.0f of %.0f drafts by the short head, %.0f tokens outside it\n", s->by_short,
               s->by_dflash, s->missed);
    const bool holds =
        has ? s->by_short > 0 && s->by_short <= s->by_dflash : s->by_short + s->missed <= 0;
    if (!holds) printf("FAIL  heads that drafted\n");
    return holds;
}

static void check(kk_engine *ahead, kk_engine *one, int32_t n) {
    sums a = {0}, b = {0};
    int32_t right[2] = {0};
    for (int32_t i = 0; i < n; i++) {
        const drawn d = draw(kk_dflash_config(one->dflash)->block);
        drawn all = {
            .len = d.len, .chunk = d.len, .tokens = TOKENS, .leave_at = -1, .format = d.format};
        listener record = {0}, plain = {0};
        for (int32_t k = 0; k < d.len; k++) prompt[k] = (int32_t)below((uint32_t)one->rounds.vocab);
        kk_session *s = prompted(one, &all, KK_SPEC_NONE);
        say(s, &all, NULL, &record);
        kk_session_free(s);
        const int32_t *stop = d.stop_at < 0 ? NULL : &record.seen[d.stop_at];
        s = prompted(one, &d, KK_SPEC_NONE);
        const kk_result want = say(s, &d, stop, &plain);
        kk_session_free(s);
        right[0] += agrees(ahead, &d, record.seen, stop, &plain, &want, &a);
        right[1] += agrees(one, &d, record.seen, stop, &plain, &want, &b);
    }
    failed += right[0] < n || right[1] < n;
    const bool fused = all_fused(ahead) && all_fused(one);
    if (!fused) printf("FAIL  some layers were not fused\n");
    failed += !fused;
    failed += !used_heads(ahead, &a);
    failed += !used_heads(one, &b);
    printf("%s  %d of %d draws ahead, %d one by one\n", failed ? "FAIL" : "ok  ", right[0], n,
           right[1]);
    printf("      ahead: %.0f rounds, %.2f ahead, %.3f waits that left the GPU idle; %.0f drafted, "
           "%.0f right (one by one %.0f rounds, %.0f right)\n",
           a.rounds, a.ahead / a.rounds, a.syncs / a.rounds, a.drafted, a.accepted, b.rounds,
           b.accepted);
    fflush(stdout);
}

/* A long answer: what is asked of rounds ahead, counted. */
static void counts(kk_engine *e) {
    kk_err err;
    static int32_t record[TOKENS * 4];
    kk_session *s = NULL;
    kk_trace *trace;
    kk_result r;
    const kk_session_opts plain = {.ctx = CTX}, o = {.ctx = CTX,
                                                     .spec = KK_SPEC_DFLASH,
                                                     .draft_max = 3,
                                                     .draft_fixed = true};
    const kk_generate_opts how = {.max_tokens = 4 * TOKENS, .ignore_eos = true};
    const kk_trace_opts geometric = {.p = 0.744, .seed = 1};
    for (int pass = 0; pass < 2; pass++) {
        must(kk_session_new(&s, e, pass ? &o : &plain, &err), &err, "a session");
        must(kk_session_append(s, prompt, 100, NULL, NULL, &err), &err, "a prompt");
        if (pass) {
            must(kk_trace_new(&trace, s, &geometric, &err), &err, "a trace");
            must(kk_trace_follow(trace, 100, record, 4 * TOKENS, 1, &err), &err, "a record");
        }
        must(kk_generate(s, &how, NULL, NULL, &r, &err), &err, "generating");
        if (!pass) memcpy(record, s->tokens + 100, sizeof record);
        if (pass) kk_trace_free(trace);
        kk_session_free(s);
    }
    printf(
        "      %lld rounds, %.3f idle waits a round, %.3f ahead, %.2f tokens a round, draft %.3f "
        "ms, verify %.3f ms\n",
        (long long)r.rounds, (double)r.syncs / (double)r.rounds,
        (double)r.spec.ahead / (double)r.rounds, 4.0 * TOKENS / (double)r.rounds,
        1e3 * r.spec.draft_s / (double)r.rounds, 1e3 * r.spec.verify_s / (double)r.rounds);
    const bool holds =
        (double)r.syncs <= 0.05 * (double)r.rounds && (double)r.spec.ahead > 0.9 * (double)r.rounds;
    failed += !holds;
    printf("%s  drafted rounds wait for nothing\n", holds ? "ok  " : "FAIL");
}

int main(int argc, char **argv) {
    static const char *standard[] = {"", "20", "7", "./models/tiny", "26b-a4b:bf16:6"};
    if (argc < 2) argc = 5, argv = (char **)(uintptr_t)standard;
    const int32_t n = atoi(argv[1]);
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 7;
    for (int i = 3; i < argc; i++) {
        for (int head = 0; head < 2; head++) {
            printf("%s, %s head\n", argv[i], head ? "short" : "full");
            fflush(stdout);
            kk_engine *ahead = open_on(argv[i], 1, head), *one = open_on(argv[i], -1, head);
            check(ahead, one, n);
            counts(ahead);
            kk_engine_close(ahead);
            kk_engine_close(one);
        }
    }
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
