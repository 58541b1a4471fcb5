/* snapshot_keeps_test.c - saved sessions whose layers keep the first and the last rows and rebuild
 * the rest, or forget it: sinks and latents come along, and nothing goes on with another
 * projection than the one that made them. */
#define _GNU_SOURCE
#include "core/file.h"
#include "core/hash.h"
#include "engine/fingerprint.h"
#include "engine/saved.h"
#include "support/saved_session.h"

/* projection NULL: none. */
static kk_engine *engine_with(const char *projection, const char *drafter) {
    kk_engine *e = NULL;
    /* With a drafter, as many layers as its taps, and the projection's, need. */
    const kk_engine_opts opts = {.synthetic = drafter ? "tiny:f32:9" : "tiny:f32:6",
                                 .drafter = drafter,
                                 .projection = projection,
                                 .threads = 1,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static const kk_session_opts restored = {.kv_sliding = KK_KEEP_RESTORED,
                                         .kv_full = KK_KEEP_RESTORED,
                                         .sink = 4,
                                         .window = 16,
                                         .chunk = 16,
                                         .spec = KK_SPEC_NONE};

/* ---- going on --------------------------------------------------------------------------- */

static void a_session_goes_on_with_what_it_kept(void **state) {
    kk_engine *e = engine_with("synthetic:64", NULL);
    const kk_session_opts ways[] = {
        restored,
        {.kv_full = KK_KEEP_RESTORED},
        {.kv_sliding = KK_KEEP_RESTORED, .sink = -1, .window = 8, .chunk = 4},
        {.kv_full = KK_KEEP_WINDOW, .window = -1, .sink = 64, .chunk = 64},
        {.kv_sliding = KK_KEEP_WINDOW, .kv_full = KK_KEEP_WINDOW, .window = 30, .chunk = 7},
        {.kv_sliding = KK_KEEP_WINDOW, .kv_full = KK_KEEP_RESTORED, .latents = KK_KV_Q8},
        {.kv_sliding = KK_KEEP_RESTORED,
         .kv_full = KK_KEEP_WINDOW,
         .latents = KK_KV_Q4,
         .kv_format = KK_KV_F32},
        {.kv_full = KK_KEEP_RESTORED, .latents = KK_KV_F32, .window = 17, .sink = 3, .chunk = 5},
        {.kv_full = KK_KEEP_RESTORED, .spec = KK_SPEC_NGRAM, .window = 40, .chunk = 32},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        some_lengths(*state, e, ways[i], i ? i % 2 : 0, i ? 2 : 1);
    kk_engine_close(e);
}

static void a_drafting_session_goes_on_with_what_it_kept(void **state) {
    kk_engine *e = engine_with("synthetic:64", "synthetic");
    kk_session_opts how = restored;
    how.spec = KK_SPEC_DFLASH;
    how.draft_max = 5;
    how.draft_fixed = true;
    some_lengths(*state, e, how, 0, 2);
    how.draft_ctx = 50; /* the drafter's sink, too */
    how.kv_sliding = KK_KEEP_ALL;
    some_lengths(*state, e, how, 1, 2);
    how.kv_full = KK_KEEP_WINDOW;
    some_lengths(*state, e, how, 2, 3);
    kk_engine_close(e);
}

/* Sessions under diagnosis are not put away, and nothing is left under the name. */
static void true_rows_are_not_saved(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/mixed.kks", ((scratch *)*state)->dir);
    kk_engine *e = engine_with("synthetic:64", NULL);
    kk_session_opts how = restored;
    kk_session *s = NULL;
    kk_err err;
    how.ctx = CTX;
    assert_ok(kk_session_new_diagnosed(&s, e, &how, 0.5f, why));
    tiny_append(s, prompt, 200);
    assert_int_equal(kk_session_save(s, path, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "under diagnosis cannot be saved"));
    assert_false(kk_file_exists(path));
    kk_session_free(s);
    kk_engine_close(e);
}

/* However a state was reached, its file is the same. */
static void the_same_state_gives_the_same_file(void **state) {
    kk_engine *e = engine_with("synthetic:64", "synthetic");
    for (int with = 0; with < 2; with++) {
        kk_session_opts how = restored;
        how.spec = with ? KK_SPEC_DFLASH : KK_SPEC_NONE;
        how.draft_max = 8;
        how.draft_ctx = 40;
        kk_session *plain = session_with(e, how), *pieces = session_with(e, how), *fork;
        tiny_append(plain, prompt, 150);
        for (int32_t i = 0; i < 150; i += 5) tiny_append(pieces, prompt + i, 5);
        assert_same_file(*state, plain, pieces);
        assert_ok(kk_session_fork(&fork, plain, why));
        tiny_append(plain, prompt, 33);
        assert_same_file(*state, fork, pieces);
        tiny_append(fork, prompt + 60, 33);
        assert_ok(kk_session_rewind(fork, 150, NULL, why));
        assert_ok(kk_session_rewind(plain, 150, NULL, why));
        assert_same_file(*state, fork, plain);
        assert_ok(kk_session_rewind(fork, 0, NULL, why)); /* other first rows, then these again */
        tiny_append(fork, prompt + 20, 3);
        assert_ok(kk_session_rewind(fork, 0, NULL, why));
        assert_ok(kk_session_rewind(plain, 0, NULL, why));
        tiny_append(fork, prompt, 2);
        tiny_append(plain, prompt, 2);
        assert_same_file(*state, fork, plain);
        kk_session_free(plain);
        kk_session_free(pieces);
        kk_session_free(fork);
    }
    kk_engine_close(e);
}

/* An engine that made no latent yet goes on as the one that made them all; and what is counted is
 * what the rows take. */
static void a_fresh_engine_goes_on(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/fresh.kks", ((scratch *)*state)->dir);
    kk_engine *e = engine_with("synthetic:64", "synthetic"),
              *fresh = engine_with("synthetic:64", "synthetic");
    kk_session_opts how = restored;
    how.spec = KK_SPEC_DFLASH;
    how.draft_max = 8;
    kk_session *s = session_with(e, how);
    int64_t first[KK_MEM_CATEGORIES], second[KK_MEM_CATEGORIES];
    tiny_append(s, prompt, 205);
    assert_ok(kk_session_save(s, path, why));
    kk_session *again = load(fresh, path);
    kk_engine_memory(e, first);
    kk_engine_memory(fresh, second);
    for (int c = KK_MEM_KV_SLIDING; c <= KK_MEM_KV_LATENTS; c++)
        assert_int_equal(first[c], second[c]);
    assert_true(first[KK_MEM_KV_LATENTS] > 0);
    assert_int_equal(again->spec, KK_SPEC_DFLASH);
    assert_true(generate(s) == generate(again));
    kk_session_free(s);
    kk_session_free(again);
    kk_engine_close(e);
    kk_engine_close(fresh);
}

/* ---- what must fit ---------------------------------------------------------------------- */

static void save_one(kk_engine *e, const char *path, const kk_session_opts *how) {
    kk_session *s = session_with(e, *how);
    tiny_append(s, prompt, 150);
    assert_ok(kk_session_save(s, path, why));
    kk_session_free(s);
}

static void assert_not_loaded(kk_engine *e, const char *path, const kk_session_opts *how,
                              kk_status wanted, const char *says) {
    kk_session *s = NULL;
    kk_err err = {0};
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    kk_engine_memory(e, before);
    const kk_status st = kk_session_load(&s, e, path, how, NULL, &err);
    if (st != wanted || !strstr(err.msg, says))
        fail_msg("status %d, '%s' without '%s'", st, err.msg, says);
    assert_null(s);
    kk_engine_memory(e, after);
    assert_memory_equal(before, after, sizeof before);
}

static void another_projection_is_refused(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/projection.kks", ((scratch *)*state)->dir);
    kk_engine *e = engine_with("synthetic:64", NULL), *other = engine_with("synthetic:32", NULL),
              *none = engine_with(NULL, NULL);
    save_one(e, path, &restored);
    kk_session_free(load(e, path));
    assert_not_loaded(other, path, NULL, KK_EFORMAT, "another projection");
    assert_not_loaded(none, path, NULL, KK_EINVAL, "restored by a projection");
    const uint64_t print = atomic_load(&e->projection_fingerprint);
    atomic_store(&e->projection_fingerprint, 99); /* of the same shapes, with other values */
    assert_not_loaded(e, path, NULL, KK_EFORMAT, "0000000000000063");
    atomic_store(&e->projection_fingerprint, print);
    /* Where nothing is rebuilt, it does not matter. */
    kk_session_opts window = restored;
    window.kv_sliding = window.kv_full = KK_KEEP_WINDOW;
    save_one(e, path, &window);
    kk_session_free(load(other, path));
    kk_session *here = load(e, path), *there = load(none, path);
    assert_true(generate(here) == generate(there));
    kk_session_free(here);
    kk_session_free(there);
    kk_engine_close(e);
    kk_engine_close(other);
    kk_engine_close(none);
}

static void what_is_kept_cannot_be_changed(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/settings.kks", ((scratch *)*state)->dir);
    kk_engine *e = engine_with("synthetic:64", NULL);
    static const struct {
        kk_session_opts asked;
        const char *says; /* NULL: fine */
    } cases[] = {
        {{.kv_sliding = KK_KEEP_WINDOW}, "sliding layers that keep rows as 'restored'"},
        {{.kv_full = KK_KEEP_WINDOW}, "cannot become 'window'"},
        {{.sink = 5}, "a sink of 4 rows: that cannot become 5"},
        {{.sink = -1}, "a sink of 4 rows: that cannot become 0"},
        {{.window = 64}, "a window of 16 rows"},
        {{.chunk = 64}, "a chunk of 16 rows"},
        {{.latents = KK_KV_Q4}, "latents in another format"},
        {{.kv_full = KK_KEEP_RESTORED, .sink = 4, .window = 16, .chunk = 16}, NULL},
        {{.latents = KK_KV_Q8}, NULL},
    };
    kk_session_opts how = restored;
    how.latents = KK_KV_Q8;
    save_one(e, path, &how);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_session *s;
        if (cases[i].says) {
            assert_not_loaded(e, path, &cases[i].asked, KK_EINVAL, cases[i].says);
            continue;
        }
        assert_ok(kk_session_load(&s, e, path, &cases[i].asked, NULL, why));
        kk_session_free(s);
    }
    const kk_session_opts all = {.spec = KK_SPEC_NONE}, window = {.kv_full = KK_KEEP_WINDOW};
    save_one(e, path, &all);
    assert_not_loaded(e, path, &window, KK_EINVAL, "full layers that keep rows as 'exact'");
    kk_engine_close(e);
}

static void a_file_says_what_it_keeps(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/info.kks", ((scratch *)*state)->dir);
    kk_engine *e = engine_with("synthetic:64", NULL);
    kk_session_opts how = restored;
    kk_saved_info info;
    how.kv_sliding = KK_KEEP_WINDOW;
    save_one(e, path, &how);
    assert_ok(kk_saved_inspect(path, &info, why));
    assert_string_equal(info.kv_sliding, "window");
    assert_string_equal(info.kv_full, "restored");
    assert_int_equal(info.sink, 4);
    assert_int_equal(info.window, 16);
    assert_int_equal(info.chunk, 16);
    assert_true(info.projection == kk_engine_projection_fingerprint(e));
    how = (kk_session_opts){.spec = KK_SPEC_NONE};
    save_one(e, path, &how);
    assert_ok(kk_saved_inspect(path, &info, why));
    assert_string_equal(info.kv_sliding, "native");
    assert_string_equal(info.kv_full, "exact");
    assert_int_equal(info.chunk, 0);
    assert_true(info.projection == 0);
    kk_engine_close(e);
}

/* ---- files that must not pass ----------------------------------------------------------- */

typedef struct {
    char path[600];
    uint8_t *bytes;
    size_t n;
    kk_saved_head head;
} saved_file;

static void file_open(saved_file *f, kk_engine *e, scratch *w, const kk_session_opts *how) {
    kk_reader *r;
    snprintf(f->path, sizeof f->path, "%s/file.kks", w->dir);
    save_one(e, f->path, how);
    f->bytes = (uint8_t *)scratch_read(f->path, &f->n);
    assert_ok(kk_reader_open(&r, f->path, why));
    assert_ok(kk_saved_read(&f->head, r, why));
    kk_reader_close(r);
}

/* Flips a bit of a part's first byte, its last, and its checksum. */
static void assert_damage_named(saved_file *f, kk_engine *e, size_t at, size_t n,
                                const char *name) {
    for (int end = 0; end < 3; end++) {
        const size_t byte = end == 0 ? at : end == 1 ? at + n - 1 : at + n + 3;
        f->bytes[byte] ^= 0x20;
        scratch_write(f->path, f->bytes, f->n);
        f->bytes[byte] ^= 0x20;
        assert_not_loaded(e, f->path, NULL, KK_EFORMAT, name);
    }
}

/* The parts of one cache from *at on; returns how many there were. */
static int damage_cache(saved_file *f, kk_engine *e, const kk_saved_cache *c,
                        const char *const names[2 * KK_KINDS], size_t *at) {
    size_t table = 0;
    int parts = 0;
    for (int k = 0; k < KK_KINDS; k++) table += ((size_t)c->kind[k].pages + 7) / 8;
    assert_damage_named(f, e, *at, table, "page tables");
    *at += table + 8;
    for (int i = 0; i < 2 * KK_KINDS; i++) {
        const size_t n = i % 2 ? (size_t)c->kind[i / 2].sink_bytes
                               : (size_t)(c->kind[i / 2].pages * c->kind[i / 2].page_bytes);
        if (n == 0) continue;
        assert_true(names[i][0]);
        assert_damage_named(f, e, *at, n, names[i]);
        *at += n + 8;
        parts++;
    }
    return parts;
}

/* Every part of a cache has a checksum of its own, and is named when it is damaged. */
static void damage_is_named(void **state) {
    static const char *const verifiers[2 * KK_KINDS] = {"sliding K/V", "first rows of sliding K/V",
                                                        "full K/V",    "first rows of full K/V",
                                                        "latents",     ""};
    static const char *const drafters[2 * KK_KINDS] = {"drafter's sliding K/V",
                                                       "",
                                                       "drafter's full K/V",
                                                       "first rows of the drafter's full K/V",
                                                       "",
                                                       ""};
    kk_engine *e = engine_with("synthetic:64", "synthetic");
    saved_file f;
    kk_saved_cache context;
    kk_session_opts how = restored;
    how.spec = KK_SPEC_DFLASH;
    how.draft_max = 8;
    how.draft_ctx = 40;
    file_open(&f, e, *state, &how);
    kk_session *s = load(e, f.path);
    const kk_drafting_member *m = &s->drafting.member[kk_drafting_saved(&s->drafting)];
    kk_saved_describe(&context, m->proposer->cache(m->self), f.head.verifier.rows);
    kk_session_free(s);
    size_t at = kk_saved_bytes(KK_SAVED_FORMAT) + 150 * 4 + 8 + 8 + 8 + TINY_VOCAB * 4 + 8;
    int parts = damage_cache(&f, e, &f.head.verifier, verifiers, &at);
    assert_damage_named(&f, e, at, 8, "sizes");
    at += 16;
    parts += damage_cache(&f, e, &context, drafters, &at);
    assert_int_equal(at, f.n);
    assert_int_equal(parts, 8 - (context.kind[KK_SLIDING].pages == 0));
    free(f.bytes);
    kk_engine_close(e);
}

/* A head that was altered with care, checksum and all. */
static void lies_are_refused(void **state) {
    kk_engine *e = engine_with("synthetic:64", NULL);
    saved_file f;
    file_open(&f, e, *state, &restored);
    static const char *const says[] = {
        "other cache settings", "other cache settings", "latents of 32 values",
        "latents of 64 values", "contradicts itself",   "contradicts itself",
        "as 'elsewhere'",       "format, number 9",     "contradicts itself",
        "contradicts itself",   "are needed",
    };
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        kk_saved_head lie = f.head;
        if (i == 0) lie.verifier.kind[KK_FULL].bounds.chunk = 32;
        if (i == 1) memcpy(lie.verifier.kind[KK_LATENT].policy, "native", 7);
        if (i == 2) lie.keeps.rank = 32;
        if (i == 3) lie.keeps.n_scales = 3;
        if (i == 4) lie.keeps.projection = 0;
        if (i == 5)
            for (int k = 0; k < 2; k++) memcpy(lie.policy[k], "window\0\0", 9);
        if (i == 6) memcpy(lie.policy[KK_FULL], "elsewhere", 10);
        if (i == 7) lie.keeps.latents = 9;
        if (i == 8) {
            memcpy(lie.policy[KK_SLIDING], "native\0\0", 9);
            memcpy(lie.policy[KK_FULL], "exact\0\0\0", 9);
        }
        if (i == 9) lie.keeps.rank = 0;
        if (i == 10) lie.verifier.kind[KK_FULL].sink_bytes *= 2;
        kk_saved_encode(&lie, f.bytes);
        scratch_write(f.path, f.bytes, f.n);
        assert_not_loaded(e, f.path, NULL, KK_EFORMAT, says[i]);
    }
    free(f.bytes);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_goes_on_with_what_it_kept),
        cmocka_unit_test(a_drafting_session_goes_on_with_what_it_kept),
        cmocka_unit_test(true_rows_are_not_saved),
        cmocka_unit_test(the_same_state_gives_the_same_file),
        cmocka_unit_test(a_fresh_engine_goes_on),
        cmocka_unit_test(another_projection_is_refused),
        cmocka_unit_test(what_is_kept_cannot_be_changed),
        cmocka_unit_test(a_file_says_what_it_keeps),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(lies_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
