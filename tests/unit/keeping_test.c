/* keeping_test.c - what a session is asked to keep of its rows: defaults, what is refused and why,
 * and projections of every source, rank and type behind it. */
#define _GNU_SOURCE
#include <math.h>

#include "engine/fingerprint.h"
#include "support/projection_folder.h"
#include "support/restored.h"
#include "support/scratch.h"

#define MOE KK_TEST_DATA "/parity/moe"

enum { MOE_VOCAB = 320, MOE_LEN = 150 };

/* ---- engines ------------------------------------------------------------------------------ */

/* The reference model, which stores its window of 8 rows in sliding layers, and its drafter. */
static kk_status open_moe(kk_engine **e, const char *projection, const char *type, kk_err *err) {
    const kk_engine_opts opts = {.model = MOE,
                                 .drafter = MOE "/dflash",
                                 .projection = projection,
                                 .projection_type = type,
                                 .threads = 1,
                                 .no_pin = true};
    return kk_engine_open(e, &opts, err);
}

static kk_config moe_config(void) {
    kk_checkpoint *ckpt;
    assert_ok(kk_checkpoint_open(&ckpt, MOE, NULL, why));
    const kk_config c = *kk_checkpoint_config(ckpt);
    kk_checkpoint_close(ckpt);
    return c;
}

/* Random values for this configuration, in a folder of the scratch. */
static const char *write_projection(scratch *w, const kk_projection_config *c) {
    projection_values p = projection_values_of(c);
    const char *path = scratch_path(w, "projection");
    assert_ok(kk_projection_write(path, c, &p.values, KK_F32, why));
    free(p.all);
    return path;
}

static kk_projection_config moe_projection(void) {
    const kk_config v = moe_config();
    kk_projection_config c = projection_for(&v, true);
    c.verifier = 0;
    return c;
}

/* The engine is refused, and says so. */
static void assert_unopened(const char *projection, const char *type, const char *words) {
    const int64_t blocks = kk_live_blocks();
    kk_engine *e = NULL;
    kk_err err = {0};
    const kk_status st = open_moe(&e, projection, type, &err);
    assert_true(st == KK_EINVAL || st == KK_EFORMAT || st == KK_EIO);
    assert_int_equal(err.code, st);
    if (!strstr(err.msg, words)) fail_msg("'%s' does not say '%s'", err.msg, words);
    assert_null(e);
    assert_int_equal(kk_live_blocks(), blocks);
}

/* ---- sessions ----------------------------------------------------------------------------- */

/* A session is refused, says why, and leaves nothing behind. */
static void assert_refused(kk_engine *e, kk_session_opts how, const char *words) {
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    kk_session *s = NULL;
    kk_err err = {0};
    kk_engine_memory(e, before);
    how.ctx = 400;
    if (how.spec == KK_SPEC_AUTO) how.spec = KK_SPEC_NONE;
    const kk_status st = kk_session_new(&s, e, &how, &err);
    if (st == KK_OK) fail_msg("a session was made: want '%s'", words);
    assert_int_equal(st, KK_EINVAL);
    assert_int_equal(err.code, st);
    if (!strstr(err.msg, words)) fail_msg("'%s' does not say '%s'", err.msg, words);
    assert_null(s);
    kk_engine_memory(e, after);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (c != KK_MEM_WORKSPACE) assert_int_equal(before[c], after[c]);
    assert_int_equal(e->n_sessions, 0);
}

#define WINDOW_FULL .kv_full = KK_KEEP_WINDOW
#define RESTORED_FULL .kv_full = KK_KEEP_RESTORED

static void windows_are_refused(void **state) {
    (void)state;
    static const struct {
        kk_session_opts how;
        const char *words;
    } cases[] = {
        {{WINDOW_FULL, .sink = -1, .window = -1}, "nothing would be kept"},
        {{RESTORED_FULL, .sink = -1, .window = -1}, "nothing would be kept"},
        {{.kv_sliding = KK_KEEP_RESTORED, .sink = -1, .window = -1}, "nothing would be kept"},
        {{WINDOW_FULL, .sink = 65}, "a sink of 65 rows: 0 to 64"},
        {{RESTORED_FULL, .sink = 65}, "a sink of 65 rows: 0 to 64"},
        {{RESTORED_FULL, .sink = -2}, "a sink of -2 rows"},
        {{RESTORED_FULL, .sink = INT32_MAX, .window = INT32_MAX}, "a sink of 2147483647 rows"},
        {{WINDOW_FULL, .window = -2}, "a window of -2 rows"},
        {{WINDOW_FULL, .window = TINY_CONTEXT + 1}, "the model's context"},
        {{RESTORED_FULL, .window = INT32_MAX}, "the model's context"},
        {{.kv_sliding = KK_KEEP_RESTORED, .window = TINY_WINDOW + 1}, "see 64 at most"},
        {{.kv_sliding = KK_KEEP_WINDOW, .window = TINY_WINDOW + 1}, "see 64 at most"},
        {{WINDOW_FULL, .chunk = -1}, "chunks of -1 rows"},
        {{RESTORED_FULL, .chunk = 4097}, "chunks of 4097 rows"},
        {{.kv_full = (kk_keep)3}, "number 3"},
        {{.kv_sliding = (kk_keep)-1}, "number -1"},
        {{RESTORED_FULL, .latents = (kk_kv_format)9}, "no format of latents has the number 9"},
        {{.latents = (kk_kv_format)-1}, "no format of latents has the number -1"},
    };
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(e, cases[i].how, cases[i].words);
    kk_engine_close(e);
}

/* True rows are mixed into restored ones only, and by a share. */
static void diagnoses_are_checked(void **state) {
    (void)state;
    static const struct {
        kk_session_opts how;
        float mix;
        const char *words;
    } cases[] = {
        {{.ctx = 400}, 1, "into restored ones only"}, {{WINDOW_FULL}, 1, "into restored ones only"},
        {{RESTORED_FULL}, 1.5f, "by 0 to 1"},         {{RESTORED_FULL}, -0.1f, "by 0 to 1"},
        {{RESTORED_FULL}, NAN, "by 0 to 1"},
    };
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_session *s;
        kk_err err;
        assert_int_equal(kk_session_new_diagnosed(&s, e, &cases[i].how, cases[i].mix, &err),
                         KK_EINVAL);
        assert_null(s);
        assert_non_null(strstr(err.msg, cases[i].words));
    }
    kk_session *s = session_diagnosed(e, (kk_session_opts){RESTORED_FULL}, 0.25f), *fork;
    assert_ok(kk_session_fork(&fork, s, why));
    assert_true(fork->diagnosis && fork->diagnosis != s->diagnosis);
    assert_true(fork->diagnosis->mix == 0.25f && kk_cache_alike(fork->cache, s->cache));
    kk_session_free(s);
    kk_session_free(fork);
    s = session_of(e, (kk_session_opts){RESTORED_FULL});
    assert_null(s->diagnosis);
    kk_session_free(s);
    kk_engine_close(e);
}

/* A round must fit the window where rows are rebuilt, and only there. */
static void rounds_must_fit_the_window(void **state) {
    (void)state;
    static const struct {
        kk_spec spec;
        int32_t draft_max, window;
        bool fits;
    } cases[] = {
        {KK_SPEC_NGRAM, 0, 15, false},  {KK_SPEC_NGRAM, 0, 16, true},  {KK_SPEC_NGRAM, 4, 4, false},
        {KK_SPEC_NGRAM, 4, 5, true},    {KK_SPEC_DFLASH, 3, 3, false}, {KK_SPEC_DFLASH, 3, 4, true},
        {KK_SPEC_DFLASH, 1, -1, false}, {KK_SPEC_NONE, 0, -1, true},
    };
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_session_opts how = {.kv_sliding = KK_KEEP_RESTORED,
                               .spec = cases[i].spec,
                               .draft_max = cases[i].draft_max,
                               .window = cases[i].window};
        if (cases[i].fits)
            kk_session_free(session_of(e, how));
        else
            assert_refused(e, how, "is smaller than a round of");
        how.kv_sliding = KK_KEEP_WINDOW;
        kk_session_free(session_of(e, how));
    }
    kk_engine_close(e);
}

/* Options come out as they were meant; what nobody asked for stays nothing. */
static void defaults_are_filled_in(void **state) {
    (void)state;
    kk_engine *e = restoring_engine("tiny:q4_0:7", 1, 0);
    kk_session_opts got;
    kk_session *s = session_of(e, (kk_session_opts){.kv_sliding = KK_KEEP_RESTORED}), *fork;
    assert_ok(kk_session_fork(&fork, s, why));
    kk_session_options(fork, &got);
    assert_true(got.kv_sliding == KK_KEEP_RESTORED && got.kv_full == KK_KEEP_ALL);
    assert_true(got.sink == 4 && got.window == 64 && got.chunk == 64);
    kk_session_free(fork);
    kk_session_free(s);
    s = session_of(e, (kk_session_opts){WINDOW_FULL, .sink = 9, .window = -1, .chunk = 1});
    kk_session_options(s, &got);
    assert_true(got.kv_full == KK_KEEP_WINDOW && got.sink == 9 && got.window == -1);
    assert_int_equal(got.chunk, 1);
    kk_session_free(s);
    s = session_of(e, (kk_session_opts){.sink = 9, .window = 7}); /* everything is kept */
    assert_null(kk_cache_sink(s->cache, KK_FULL));
    assert_true(s->keeps.sink == 0 && s->keeps.window == 0 && s->keeps.chunk == 0);
    kk_session_free(s);
    kk_engine_close(e);
}

static void a_projection_is_needed(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:7", 1, 0);
    assert_refused(e, (kk_session_opts){RESTORED_FULL}, "restoring full layers needs a projection");
    assert_refused(e, (kk_session_opts){.kv_sliding = KK_KEEP_RESTORED},
                   "restoring sliding layers needs a projection");
    kk_session_free(session_of(e, (kk_session_opts){WINDOW_FULL}));
    kk_engine_close(e);
}

/* ---- projections -------------------------------------------------------------------------- */

/* Decoders for layers of one kind alone restore that kind alone. */
static void layers_without_decoders_are_kept(void **state) {
    const kk_config v = moe_config();
    for (int kind = 0; kind < KK_LAYER_KINDS; kind++) {
        kk_projection_config c = moe_projection();
        kk_engine *e = NULL;
        for (int32_t i = 0; i < v.n_layer; i++) c.layer[i].restored &= (int)v.layer[i].kind == kind;
        assert_ok(open_moe(&e, write_projection(*state, &c), NULL, why));
        const kk_session_opts sliding = {.kv_sliding = KK_KEEP_RESTORED, .window = 8};
        const kk_session_opts full = {RESTORED_FULL, .window = 8};
        const kk_session_opts both = {RESTORED_FULL, .kv_sliding = KK_KEEP_RESTORED, .window = 8};
        kk_session_free(session_of(e, kind == KK_SLIDING ? sliding : full));
        assert_refused(e, kind == KK_SLIDING ? full : sliding,
                       "the projection has no decoders for layer");
        assert_refused(e, both, "the projection has no decoders for layer");
        kk_engine_close(e);
    }
}

static void projections_are_refused(void **state) {
    scratch *w = *state;
    kk_engine *e = NULL;
    kk_err err = {0};
    assert_unopened("/nowhere/at/all", NULL, "/nowhere/at/all");
    kk_projection_config c = moe_projection();
    assert_unopened(write_projection(w, &c), "q5_k", "kept as q8_0 or file, not 'q5_k'");
    c.verifier = 0x1234;
    assert_unopened(write_projection(w, &c), NULL, "trained for another model (0000000000001234)");
    c = moe_projection();
    c.rank = 0;
    projection_values none = {.all = NULL};
    assert_int_equal(kk_projection_write(scratch_path(w, "zero"), &c, &none.values, KK_F32, &err),
                     KK_EINVAL);
    assert_non_null(strstr(err.msg, "rank is 0"));
    kk_config other;
    assert_ok(kk_config_preset(&other, "tiny", 6, why));
    c = projection_for(&other, true);
    assert_unopened(write_projection(w, &c), NULL, "the projection is of another model");
    const kk_engine_opts zero = {.synthetic = "tiny:q4_0:7", .projection = "synthetic:0"};
    assert_int_equal(kk_engine_open(&e, &zero, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "rank is 0"));
    assert_null(e);
}

/* rank 0 in the text of a folder that is otherwise whole. */
static void a_rank_of_nothing_is_refused(void **state) {
    scratch *w = *state;
    const kk_projection_config c = moe_projection();
    char path[600], *at;
    size_t len;
    snprintf(path, sizeof path, "%s", write_projection(w, &c));
    strcat(path, "/projection.json");
    char *text = scratch_read(path, &len);
    at = strstr(text, "\"rank\": 32");
    assert_non_null(at);
    memcpy(at, "\"rank\":  0", 10);
    scratch_write(path, text, len);
    free(text);
    assert_unopened(scratch_path(w, "projection"), NULL, "rank is 0");
}

/* Latents of 8 and 4 bits come in groups of 64. */
static void ranks_must_fit_their_format(void **state) {
    const kk_projection_config c = moe_projection();
    kk_engine *e = NULL;
    assert_ok(open_moe(&e, write_projection(*state, &c), NULL, why));
    assert_refused(e, (kk_session_opts){RESTORED_FULL, .latents = KK_KV_Q8}, "latents of 32");
    assert_refused(e, (kk_session_opts){RESTORED_FULL, .latents = KK_KV_Q4}, "latents of 32");
    kk_session_free(session_of(e, (kk_session_opts){RESTORED_FULL, .latents = KK_KV_F32}));
    kk_engine_close(e);
}

/* ---- sources ------------------------------------------------------------------------------ */

static void append(kk_session *s, int32_t n, int32_t piece) {
    int32_t tokens[MOE_LEN];
    for (int32_t i = 0; i < n; i++) tokens[i] = (i * 29 + 3) % MOE_VOCAB;
    for (int32_t at = 0; at < n; at += piece)
        tiny_append(s, tokens + at, n - at < piece ? n - at : piece);
}

static void assert_same_rows(kk_session *a, kk_session *b) {
    const float *x, *y;
    char differs[200];
    assert_ok(kk_session_logits(a, &x, why));
    assert_ok(kk_session_logits(b, &y, why));
    assert_memory_equal(x, y, MOE_VOCAB * sizeof *x);
    if (!same_cache(a->cache, b->cache, false, differs, sizeof differs)) fail_msg("%s", differs);
}

/* Whatever latents are made of, they and what is rebuilt from them do not depend on how rows
 * came; and different sources rebuild different rows. */
static void every_source_is_one_of_positions(void **state) {
    static const kk_source sources[] = {KK_SOURCE_TAPS, KK_SOURCE_CONTEXT, KK_SOURCE_EMBED};
    static const struct {
        int32_t rank;
        const char *type;
    } kinds[] = {{32, NULL}, {32, "file"}, {20, NULL}, {1, "file"}};
    float seen[12][MOE_VOCAB];
    for (size_t i = 0; i < 12; i++) {
        kk_projection_config c = moe_projection();
        kk_engine *e = NULL;
        c.source = sources[i % 3];
        c.rank = kinds[i / 3].rank;
        if (c.source == KK_SOURCE_EMBED) c.n_taps = 0, c.n_in = c.hidden;
        assert_ok(open_moe(&e, NULL, NULL, why));
        const kk_drafter_config d = *kk_dflash_config(e->dflash);
        kk_engine_close(e);
        if (c.source == KK_SOURCE_CONTEXT) {
            c.n_taps = d.n_taps;
            memcpy(c.taps, d.taps, sizeof c.taps);
            c.n_in = d.hidden;
        }
        memset(c.taps + c.n_taps, 0, sizeof c.taps - (size_t)c.n_taps * sizeof *c.taps);
        assert_ok(open_moe(&e, write_projection(*state, &c), kinds[i / 3].type, why));
        const kk_session_opts how = {
            .kv_sliding = KK_KEEP_RESTORED, RESTORED_FULL, .sink = 2, .window = 5, .chunk = 3};
        kk_session *whole = session_of(e, how), *pieces = session_of(e, how);
        append(whole, MOE_LEN, MOE_LEN);
        append(pieces, MOE_LEN, 1 + (int32_t)i);
        assert_same_rows(whole, pieces);
        memcpy(seen[i], whole->logits, sizeof seen[i]);
        for (size_t k = 0; k < i; k++) assert_memory_not_equal(seen[k], seen[i], sizeof seen[i]);
        kk_session_free(whole);
        kk_session_free(pieces);
        kk_engine_close(e);
    }
}

#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_are_refused),        cmocka_unit_test(diagnoses_are_checked),
        cmocka_unit_test(rounds_must_fit_the_window), cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(a_projection_is_needed),     IN_SCRATCH(layers_without_decoders_are_kept),
        IN_SCRATCH(projections_are_refused),          IN_SCRATCH(a_rank_of_nothing_is_refused),
        IN_SCRATCH(ranks_must_fit_their_format),      IN_SCRATCH(every_source_is_one_of_positions),
    };
    return cmocka_run_group_tests_name("keeping", tests, NULL, NULL);
}
