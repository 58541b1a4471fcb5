/* restored_test.c - sessions that keep a sink and a window, and rebuild or forget the rest.
 *
 * What a row sees follows from its position alone.  So the reference is a session that was given
 * the same tokens at once, and everything else must equal it to the bit: tokens in pieces, threads,
 * sizes of passes, drafts, forks, rewinds, company in a forward.  With the true rows mixed in whole
 * (mix 1), the reference is a session that keeps everything. */
#define _GNU_SOURCE
#include "backend/cpu/device.h"
#include "support/draws.h"
#include "support/projection_folder.h"
#include "support/restored.h"
#include "support/rounds.h"
#include "support/scratch.h"

#define SHIPPED KK_MODELS "/tiny/verifier"

static int32_t prompt[TINY_CONTEXT];

static int setup(void **state) {
    (void)state;
    tiny_prompt(prompt, TINY_CONTEXT, 3);
    return 0;
}

/* ---- identity ----------------------------------------------------------------------------- */

static void assert_same_logits(kk_session *a, kk_session *b) {
    float x[TINY_VOCAB], y[TINY_VOCAB];
    tiny_logits(a, x);
    tiny_logits(b, y);
    if (memcmp(x, y, sizeof x) != 0) fail_msg("logits differ after %d tokens", a->len);
}

static void assert_same_generation(kk_session *a, kk_session *b, int32_t n) {
    const kk_generate_opts how = {
        .max_tokens = n, .ignore_eos = true, .sampling = {.temp = 1, .seed = 8}};
    kk_result x, y;
    assert_ok(kk_generate(a, &how, NULL, NULL, &x, why));
    assert_ok(kk_generate(b, &how, NULL, NULL, &y, why));
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens);
    assert_true(x.logits_hash == y.logits_hash);
}

/* Token by token past everything that is kept, then in pieces over several windows. */
static void follow(kk_session *native, kk_session *other) {
    int32_t at = 0;
    while (at < 260) {
        const int32_t n = at < 110 ? 1 : 1 + at % 23;
        tiny_append(native, prompt + at, n);
        tiny_append(other, prompt + at, n);
        at += n;
        assert_same_logits(native, other);
    }
    assert_same_generation(native, other, 40);
}

static void true_rows_give_native_logits(void **state) {
    (void)state;
    static const char *const models[] = {"tiny:q4_0:7", "tiny-ple:q8_0:6"};
    int turn = 0;
    for (int m = 0; m < 2; m++) {
        kk_engine *e = restoring_engine(models[m], 1, 0);
        for (int i = 0; i < KK_KV_FORMATS * 3; i++, turn++) {
            if (i % one_in(2, 4)) continue;
            kk_session_opts how = bounds_at(turn);
            const int kinds = 1 + i % 3; /* sliding, full, both */
            how.kv_format = (kk_kv_format)(i / 3);
            how.latents = (kk_kv_format)(turn % KK_KV_FORMATS);
            how.kv_sliding = kinds & 1 ? KK_KEEP_RESTORED : KK_KEEP_ALL;
            how.kv_full = kinds & 2 ? KK_KEEP_RESTORED : KK_KEEP_ALL;
            kk_session *native = tiny_session(e, 400, how.kv_format);
            kk_session *other = session_diagnosed(e, how, 1);
            kk_key_counts counts;
            follow(native, other);
            kk_session_key_counts(other, &counts);
            assert_true(counts.rows_rebuilt > 0);
            kk_session_free(native);
            kk_session_free(other);
        }
        kk_engine_close(e);
    }
}

/* The shipped model, whose sliding layers see 512 rows, past its windows twice. */
static void true_rows_give_native_logits_of_the_shipped_model(void **state) {
    enum { N = 1150, PIECE = 115 };
    kk_engine *e = NULL;
    scratch_setup(state);
    const kk_engine_opts opts = {.model = SHIPPED,
                                 .projection = scratch_path(*state, "projection"),
                                 .threads = 2,
                                 .no_pin = true};
    assert_ok(projection_unlearned(opts.projection, SHIPPED, why));
    assert_ok(kk_engine_open(&e, &opts, why));
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        if (f && (slow() || (few_draws() && f != KK_KV_Q4))) continue;
        kk_session_opts how = bounds_at(f + 3);
        how.ctx = 1200;
        how.kv_format = (kk_kv_format)f;
        kk_session *native = session_of(e, how);
        how.kv_sliding = how.kv_full = KK_KEEP_RESTORED;
        kk_session *other = session_diagnosed(e, how, 1);
        for (int32_t at = 0; at < N; at += PIECE) {
            const float *x, *y;
            tiny_append(native, prompt + at, PIECE);
            tiny_append(other, prompt + at, PIECE);
            assert_ok(kk_session_logits(native, &x, why));
            assert_ok(kk_session_logits(other, &y, why));
            if (memcmp(x, y, (size_t)e->rounds.vocab * sizeof *x) != 0)
                fail_msg("format %d: logits differ after %d tokens", f, native->len);
        }
        assert_same_generation(native, other, 16);
        kk_session_free(native);
        kk_session_free(other);
    }
    kk_engine_close(e);
    scratch_teardown(state);
}

/* ---- what is gone, and when --------------------------------------------------------------- */

/* (layer, query) pairs read one by one, for rows [from, to) that came in one pass. */
static void count_pass(const kk_session *s, int64_t from, int64_t to, kk_key_counts *sum) {
    const kk_config *c = kk_engine_config(s->engine);
    const kk_session_keeps *k = &s->keeps;
    for (int32_t l = 0; l < c->n_layer; l++) {
        const kk_keep keep = k->kind[c->layer[l].kind];
        const int64_t sight = c->layer[l].kind == KK_SLIDING ? c->window : INT32_MAX;
        for (int64_t p = from; p < to; p++) {
            const int64_t a = keep == KK_KEEP_ALL ? 0 : p / k->chunk * k->chunk;
            const bool opens = p == from || p == a; /* the first of its chunk in this pass */
            sum->queries++;
            for (int64_t j = p >= sight ? p - sight + 1 : 0; j <= p; j++) {
                const bool gone = keep != KK_KEEP_ALL && j >= k->sink && j < a - k->window;
                sum->keys_stored += !gone;
                sum->keys_rebuilt += gone && keep == KK_KEEP_RESTORED;
                sum->rows_rebuilt += gone && keep == KK_KEEP_RESTORED && opens;
            }
        }
    }
}

/* Whether a row at p misses any in some layer that does not keep all. */
static bool misses(const kk_session *s, int64_t p) {
    kk_key_counts sum = {0}, all = {0};
    const kk_config *c = kk_engine_config(s->engine);
    count_pass(s, p, p + 1, &sum);
    for (int32_t l = 0; l < c->n_layer; l++) {
        const int64_t sight = c->layer[l].kind == KK_SLIDING ? c->window : INT32_MAX;
        all.keys_stored += p + 1 < sight ? p + 1 : sight;
    }
    return sum.keys_stored != all.keys_stored;
}

static void assert_counts(const kk_session *s, const kk_key_counts *want) {
    kk_key_counts got;
    kk_session_key_counts(s, &got);
    if (memcmp(&got, want, sizeof got) != 0)
        fail_msg("after %d tokens: %lld queries, keys %lld stored %lld rebuilt, %lld rows; want "
                 "%lld, %lld %lld, %lld",
                 s->len, (long long)got.queries, (long long)got.keys_stored,
                 (long long)got.keys_rebuilt, (long long)got.rows_rebuilt, (long long)want->queries,
                 (long long)want->keys_stored, (long long)want->keys_rebuilt,
                 (long long)want->rows_rebuilt);
}

/* As long as nothing is gone, logits are native's; and what is read is what a count says. */
static void short_prompts_are_native(void **state) {
    (void)state;
    int cases = 0;
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    for (int i = 0; i < 2 * 4 * BOUNDS; i++) {
        if (i % one_in(3, 5)) continue;
        kk_session_opts how = keeping_at(i);
        how.kv_format = (kk_kv_format)(i % KK_KV_FORMATS);
        kk_session *native = tiny_session(e, 400, how.kv_format), *s = session_of(e, how);
        kk_key_counts want = {0};
        bool gone = false, rebuilds = false;
        for (int32_t at = 0; at < 135; at++) {
            tiny_append(s, prompt + at, 1);
            count_pass(s, at, at + 1, &want);
            gone |= misses(s, at);
            assert_counts(s, &want);
            rebuilds |= s->counts.rows_rebuilt > 0;
            if (gone) continue;
            tiny_append(native, prompt + at, 1);
            assert_same_logits(native, s);
        }
        cases += gone; /* sliding layers with a window as wide as their own miss nothing */
        assert_int_equal(rebuilds, want.rows_rebuilt > 0);
        kk_session_free(native);
        kk_session_free(s);
    }
    assert_true(cases >= (slow() ? 1 : few_draws() ? 12 : 40));
    kk_engine_close(e);
}

/* A pass rebuilds a row once for all its rows of a chunk. */
static void passes_share_rebuilt_rows(void **state) {
    (void)state;
    enum { N = 330, ROWS = 40 };
    kk_engine *e = restoring_engine("tiny:q4_0:7", 2, ROWS);
    for (int i = 0; i < 2 * 4 * BOUNDS; i++) {
        const kk_session_opts how = keeping_at(i);
        kk_session *s = session_of(e, how);
        kk_key_counts want = {0};
        tiny_append(s, prompt, N);
        for (int64_t at = 0, end; at < N; at = end) {
            const int64_t last = ((at + s->keeps.window) / s->keeps.chunk + 1) * s->keeps.chunk;
            const bool restored = s->layout->latents.rank > 0;
            end = at + ROWS < N ? at + ROWS : N;
            if (restored && last < end) end = last;
            count_pass(s, at, end, &want);
        }
        assert_counts(s, &want);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* ---- how rows came ------------------------------------------------------------------------ */

static void assert_same_as(kk_session *got, kk_session *want) {
    char differs[200];
    assert_same_state(got, want);
    if (!same_cache(got->cache, want->cache, false, differs, sizeof differs))
        fail_msg("after %d tokens: %s", got->len, differs);
}

static kk_session *given_at_once(kk_engine *e, kk_session_opts how, const int32_t *tokens,
                                 int32_t n) {
    how.spec = KK_SPEC_NONE;
    how.draft_max = 0;
    kk_session *s = session_of(e, how);
    if (n) tiny_append(s, tokens, n);
    return s;
}

/* In pieces of these sizes, on engines with other threads and passes. */
static void pieces_change_nothing(void **state) {
    (void)state;
    enum { N = 290 };
    static const int32_t pieces[] = {1, 7, 64, N};
    static const struct { int32_t threads, max_rows; } engines[] = {{1, 0}, {2, 24}, {3, 300}};
    kk_engine *e[3];
    for (int i = 0; i < 3; i++)
        e[i] = restoring_engine("tiny:q4_0:7", engines[i].threads, engines[i].max_rows);
    for (int i = 0; i < 2 * 4 * BOUNDS; i++) {
        if (i % one_in(3, 7)) continue;
        kk_session_opts how = keeping_at(i);
        how.kv_format = (kk_kv_format)((i / 2) % KK_KV_FORMATS);
        how.latents = (kk_kv_format)((i / 3) % KK_KV_FORMATS);
        kk_session *want = given_at_once(e[0], how, prompt, N);
        for (int k = i / 2 % 2; k < 4; k += 2) {
            kk_session *s = session_of(e[(i + k) % 3], how);
            for (int32_t at = 0; at < N; at += pieces[k])
                tiny_append(s, prompt + at, N - at < pieces[k] ? N - at : pieces[k]);
            assert_same_as(s, want);
            kk_session_free(s);
        }
        kk_session_free(want);
    }
    for (int i = 0; i < 3; i++) kk_engine_close(e[i]);
}

/* ---- drafting ----------------------------------------------------------------------------- */

static uint64_t generate(kk_session *s, int32_t n, uint64_t seed) {
    const kk_generate_opts how = {
        .max_tokens = n, .ignore_eos = true, .sampling = {.temp = 0.7f, .top_k = 3, .seed = seed}};
    kk_result r;
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    return r.logits_hash;
}

/* Drafts of several lengths, right or not, over borders of chunks, pages and windows. */
static void drafts_change_nothing(void **state) {
    (void)state;
    static const int32_t drafts[] = {1, 3, 4, 15};
    kk_engine *e = restoring_engine("tiny:q4_0:7", 2, 0);
    int64_t drafted = 0;
    for (int i = 0; i < 2 * 4 * BOUNDS; i++) {
        if (i % one_in(3, 9)) continue;
        kk_session_opts how = keeping_at(i);
        how.kv_format = (kk_kv_format)(i % KK_KV_FORMATS);
        kk_session *plain = given_at_once(e, how, prompt, 100);
        const uint64_t first = generate(plain, 90, 5);
        tiny_append(plain, prompt, 9);
        const uint64_t second = generate(plain, 20, 6);
        for (int spec = KK_SPEC_DFLASH; spec <= KK_SPEC_NGRAM; spec++) {
            how.spec = (kk_spec)spec;
            how.draft_max = drafts[(i + spec) % 4];
            how.draft_fixed = true;
            if (draft_too_long(&how)) how.draft_max = 1;
            if (draft_too_long(&how) || (i + spec) % 3 == 0) continue;
            if (spec == KK_SPEC_DFLASH && how.draft_max > 7) how.draft_max = 7;
            kk_session *s = session_of(e, how);
            tiny_append(s, prompt, 100);
            assert_true(generate(s, 90, 5) == first);
            tiny_append(s, prompt, 9);
            assert_true(generate(s, 20, 6) == second);
            assert_same_as(s, plain);
            drafted++;
            kk_session_free(s);
        }
        kk_session_free(plain);
    }
    assert_true(drafted > (slow() ? 0 : few_draws() ? 10 : 30));
    kk_engine_close(e);
}

/* ---- forks, checkpoints, rewinds ---------------------------------------------------------- */

static uint32_t draw(uint64_t *random, uint32_t n) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % n;
}

/* A step that leaves a timeline of some length; the fork, where there is one, goes its own way. */
static void wander(kk_session **s, uint64_t *random) {
    kk_session *fork = NULL;
    const int32_t left = (*s)->ctx - (*s)->len, some = 1 + (int32_t)draw(random, 90);
    switch (draw(random, 6)) {
    case 0:
    case 1: tiny_append(*s, prompt + draw(random, 500), some < left ? some : left); break;
    case 2:
        if (left > 20) generate(*s, 1 + (int32_t)draw(random, 15), *random);
        break;
    case 3:
        assert_ok(kk_session_rewind(*s, 1 + (int32_t)draw(random, (uint32_t)(*s)->len), NULL, why));
        break;
    case 4: assert_ok(kk_session_checkpoint(*s, why)); break;
    default:
        assert_ok(kk_session_fork(&fork, *s, why));
        if (left > 40) tiny_append(*s, prompt + 700, 33);
        kk_session_free(*s);
        *s = fork;
    }
}

/* Against sessions of an engine that rebuilds all keys for every token. */
static void wandering_changes_nothing(void **state) {
    (void)state;
    enum { STEPS = 15 };
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 48);
    kk_engine *plain = restoring_engine_keys("tiny:q4_0:7", 1, 48, -1);
    for (int i = 0; i < 2 * 4 * BOUNDS; i++) {
        if (i % one_in(3, 11)) continue;
        uint64_t random = (uint64_t)i + 77;
        kk_session_opts how = keeping_at(i);
        how.spec = i % 3 == 0 ? KK_SPEC_DFLASH : i % 3 == 1 ? KK_SPEC_NGRAM : KK_SPEC_NONE;
        how.draft_max = how.spec == KK_SPEC_NONE ? 0 : 3;
        if (draft_too_long(&how)) how.spec = KK_SPEC_NONE;
        kk_session *s = session_of(e, how);
        tiny_append(s, prompt, 150);
        for (int step = 0; step < STEPS; step++) {
            wander(&s, &random);
            if (step % 5 != 4) continue;
            kk_session *fresh = given_at_once(plain, how, s->tokens, s->len);
            kk_session *twin = NULL; /* looking at the logits settles it */
            assert_ok(kk_session_fork(&twin, s, why));
            assert_same_logits(twin, fresh);
            char differs[200];
            if (!same_cache(twin->cache, fresh->cache, false, differs, sizeof differs))
                fail_msg("case %d, step %d, %d tokens: %s", i, step, s->len, differs);
            kk_session_free(twin);
            kk_session_free(fresh);
        }
        kk_session_free(s);
    }
    const int64_t some = slow() ? 0 : few_draws() ? 30 : 100;
    assert_true(e->dev->keys.found > some && e->dev->keys.made > some);
    assert_true(plain->dev->keys.found == 0 && plain->dev->keys.made == 0);
    kk_engine_close(plain);
    kk_engine_close(e);
}

/* ---- company ------------------------------------------------------------------------------ */

enum { COMPANY = 3 };

/* Sessions of other lengths in one forward, drafting or not. */
static void company_changes_nothing(void **state) {
    (void)state;
    static const int32_t lengths[COMPANY] = {3, 130, 190};
    static const kk_sampling how_to = {.temp = 0.7f, .top_k = 3, .seed = 9};
    kk_engine *e = restoring_engine("tiny:q4_0:7", 2, 0);
    for (int i = 0; i < 2 * 4 * BOUNDS; i++) {
        if (i % one_in(3, 7)) continue;
        kk_session_opts how = keeping_at(i);
        kk_session *alone[COMPANY], *s[COMPANY];
        kk_round rounds[COMPANY], *all[COMPANY];
        kk_spec_stats stats[COMPANY] = {{0}};
        how.spec = KK_SPEC_NGRAM;
        how.draft_max = 3;
        how.draft_fixed = true;
        if (draft_too_long(&how)) how.spec = KK_SPEC_NONE;
        for (int k = 0; k < COMPANY; k++) {
            alone[k] = given_at_once(e, how, prompt, lengths[k]);
            s[k] = session_of(e, how);
            tiny_append(s[k], prompt, lengths[k]);
            rounds[k] = round_of(s[k], &how_to, 30, &stats[k]);
            all[k] = &rounds[k];
            assert_ok(round_step(s[k], &rounds[k], why));
        }
        for (int step = 0; step < 7; step++) {
            assert_ok(kk_round_run(&e->rounds, all, COMPANY, why));
            for (int k = 0; k < COMPANY; k++) {
                rounds[k].tokens_left -= rounds[k].n_out;
                kk_round_commit(&rounds[k], rounds[k].n_out);
                s[k]->len = rounds[k].len;
            }
        }
        for (int k = 0; k < COMPANY; k++) {
            const kk_generate_opts same = {
                .max_tokens = s[k]->len - lengths[k], .ignore_eos = true, .sampling = how_to};
            kk_result r;
            assert_ok(kk_generate(alone[k], &same, NULL, NULL, &r, why));
            assert_true(r.logits_hash == rounds[k].hash);
            assert_same_as(s[k], alone[k]);
            kk_session_free(alone[k]);
            kk_session_free(s[k]);
        }
    }
    kk_engine_close(e);
}

/* Sessions that keep other rows are refused in one forward, and nothing happens to them. */
static void strangers_are_refused(void **state) {
    (void)state;
    static const kk_sampling how_to = {.temp = 0};
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    const kk_session_opts opts[] = {
        {.kv_full = KK_KEEP_RESTORED, .sink = 4, .window = 32, .chunk = 32},
        {.kv_full = KK_KEEP_RESTORED, .sink = 4, .window = 32, .chunk = 16},
        {.kv_full = KK_KEEP_RESTORED, .sink = 4, .window = 32, .chunk = 32, .latents = KK_KV_Q8},
        {.kv_full = KK_KEEP_WINDOW, .sink = 4, .window = 32, .chunk = 32},
        {.kv_full = KK_KEEP_ALL},
    };
    for (size_t i = 1; i < sizeof opts / sizeof *opts; i++) {
        kk_session *s[2] = {session_of(e, opts[0]), session_of(e, opts[i])};
        kk_round rounds[2], *all[2] = {&rounds[0], &rounds[1]};
        kk_spec_stats stats[2] = {{0}};
        kk_err err = {0};
        for (int k = 0; k < 2; k++) {
            tiny_append(s[k], prompt, 90);
            rounds[k] = round_of(s[k], &how_to, 9, &stats[k]);
            assert_ok(round_step(s[k], &rounds[k], why));
        }
        assert_int_equal(kk_round_run(&e->rounds, all, 2, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "cannot share a pass"));
        for (int k = 0; k < 2; k++) {
            assert_int_equal(s[k]->len, 91);
            assert_int_equal(kk_cache_len(s[k]->cache), 90);
            kk_session_free(s[k]);
        }
    }
    kk_engine_close(e);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Pages of latents, as the pool counts them: whole pages of the system. */
static int64_t latent_bytes(const kk_session *s, int64_t pages) {
    const int64_t page = (int64_t)s->layout->page_bytes[KK_LATENT];
    return pages * ((page + 4095) / 4096 * 4096);
}

/* The row of a latent in each format, and one bf16 scale for each K/V head that is rebuilt. */
static void check_latent_page(const kk_session *s, int32_t rank) {
    const kk_projection_config *c = kk_restorer_config(s->engine->restorer);
    int64_t heads = 0;
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->layer[i].restored) heads += c->layer[i].n_kv_head;
    const int64_t want =
        KK_PAGE_ROWS * ((int64_t)kk_kv_row_bytes(s->keeps.latents, rank) + heads * (int64_t)2);
    const int64_t got = (int64_t)s->layout->page_bytes[KK_LATENT];
    assert_true(got >= want && got < want + 64);
}

/* Bytes of kept rows and of scratch do not depend on how long the context is. */
static void bytes_do_not_grow(void **state) {
    (void)state;
    kk_engine *e = restoring_engine_keys("tiny:q4_0:7", 2, 0, -1);
    for (int i = 0; i < 5; i++) {
        const bool window = i == 4;
        const int32_t most = few_draws() || i % 2 ? 2048 : TINY_CONTEXT;
        kk_session_opts how = {.ctx = TINY_CONTEXT,
                               .kv_sliding = window ? KK_KEEP_WINDOW : KK_KEEP_RESTORED,
                               .kv_full = window ? KK_KEEP_WINDOW : KK_KEEP_RESTORED,
                               .latents = (kk_kv_format)(i % 4),
                               .sink = 4,
                               .window = 32,
                               .chunk = 32};
        kk_session *s = session_of(e, how);
        int64_t early[KK_MEM_CATEGORIES], late[KK_MEM_CATEGORIES];
        tiny_append(s, prompt, 1024);
        kk_engine_memory(e, early);
        tiny_append(s, prompt + 1024, most - 1024 - 20);
        generate(s, 20, 1);
        kk_engine_memory(e, late);
        for (int c = 0; c < KK_MEM_CATEGORIES; c++)
            if (c != KK_MEM_KV_LATENTS) assert_int_equal(early[c], late[c]);
        assert_int_equal(early[KK_MEM_KV_LATENTS], window ? 0 : latent_bytes(s, 1024 / 64));
        assert_int_equal(late[KK_MEM_KV_LATENTS], window ? 0 : latent_bytes(s, most / 64));
        if (!window) check_latent_page(s, RESTORED_RANK);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* Rows of a page whose keys are kept are taken back and written again, in place. */
static void rows_written_again_are_rebuilt_again(void **state) {
    (void)state;
    enum { FULL = 132, BACK = 110, END = 230 };
    const kk_session_opts how = {.ctx = 512,
                                 .kv_sliding = KK_KEEP_RESTORED,
                                 .kv_full = KK_KEEP_RESTORED,
                                 .window = 32,
                                 .chunk = 32};
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    kk_engine *plain = restoring_engine_keys("tiny:q4_0:7", 1, 0, -1);
    kk_session *s = session_of(e, how);
    int32_t tokens[END];
    for (int32_t i = 0; i < END; i++) tokens[i] = prompt[i < BACK ? i : i + 300];
    tiny_append(s, prompt, FULL - 8);
    for (int32_t i = FULL - 8; i < FULL; i++) tiny_append(s, prompt + i, 1);
    const int64_t made = e->dev->keys.made;
    assert_true(made > 0);
    int32_t evaluated = -1;
    assert_ok(kk_session_rewind(s, BACK, &evaluated, why));
    assert_int_equal(evaluated, 0);
    for (int32_t i = BACK; i < END; i++) tiny_append(s, tokens + i, 1);
    assert_true(e->dev->keys.made > made);
    kk_session *want = given_at_once(plain, how, tokens, END);
    assert_same_as(s, want);
    kk_session_free(want);
    kk_session_free(s);
    kk_engine_close(plain);
    kk_engine_close(e);
}

/* Keys that stay rebuilt are counted as workspace, and keep to their budget whatever the length. */
static void kept_keys_keep_to_their_budget(void **state) {
    (void)state;
    enum { BUDGET = 1 << 20 };
    kk_engine *e = restoring_engine_keys("tiny:q4_0:7", 2, 0, BUDGET);
    kk_session *s = session_of(e, (kk_session_opts){.ctx = TINY_CONTEXT,
                                                    .kv_sliding = KK_KEEP_RESTORED,
                                                    .kv_full = KK_KEEP_RESTORED,
                                                    .sink = 4,
                                                    .window = 32,
                                                    .chunk = 32});
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    tiny_append(s, prompt, 512);
    kk_engine_memory(e, before);
    const int64_t taken = e->dev->keys.taken;
    tiny_append(s, prompt + 512, 1536);
    generate(s, 20, 1);
    kk_engine_memory(e, after);
    assert_int_equal(after[KK_MEM_WORKSPACE] - before[KK_MEM_WORKSPACE],
                     e->dev->keys.taken - taken);
    assert_true(e->dev->keys.taken > BUDGET / 2 && e->dev->keys.taken <= BUDGET);
    assert_true(e->dev->keys.found > 0);
    kk_session_free(s);
    kk_engine_close(e);
}

/* Latents of sliding layers go with their window; those of full layers stay. */
static void latents_go_with_their_layers(void **state) {
    (void)state;
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    for (int full = 0; full < 2; full++) {
        kk_session_opts how = {.ctx = 1100,
                               .kv_sliding = KK_KEEP_RESTORED,
                               .kv_full = full ? KK_KEEP_RESTORED : KK_KEEP_WINDOW,
                               .sink = 4,
                               .window = 16,
                               .chunk = 16};
        kk_session *s = session_of(e, how);
        int64_t bytes[KK_MEM_CATEGORIES];
        for (int32_t at = 0; at < 1024; at += 32) {
            tiny_append(s, prompt + at, 32);
            const int64_t end = (at + 32 + 63) / 64;
            const int64_t first =
                full || at + 32 < TINY_WINDOW ? 0 : (at + 32 - TINY_WINDOW + 1) / 64;
            kk_engine_memory(e, bytes);
            assert_int_equal(bytes[KK_MEM_KV_LATENTS], latent_bytes(s, end - first));
        }
        kk_session_free(s);
        kk_engine_memory(e, bytes);
        assert_int_equal(
            bytes[KK_MEM_KV_LATENTS] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_SLIDING], 0);
    }
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(true_rows_give_native_logits),
        cmocka_unit_test(true_rows_give_native_logits_of_the_shipped_model),
        cmocka_unit_test(short_prompts_are_native),
        cmocka_unit_test(passes_share_rebuilt_rows),
        cmocka_unit_test(pieces_change_nothing),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(wandering_changes_nothing),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(bytes_do_not_grow),
        cmocka_unit_test(rows_written_again_are_rebuilt_again),
        cmocka_unit_test(kept_keys_keep_to_their_budget),
        cmocka_unit_test(latents_go_with_their_layers),
    };
    return cmocka_run_group_tests_name("restored", tests, setup, NULL);
}
