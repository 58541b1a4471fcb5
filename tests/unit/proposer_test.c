/* proposer_test.c - a proposer with state of its own, which the library has never heard of, goes
 * through all that a session may go through: drafts that are partly right, appends in pieces,
 * rewinds, checkpoints, forks, saved files.  Its state always stands for exactly the rows of the
 * timeline; and where one call to it is left out, this test sees it. */
#define _GNU_SOURCE
#include "support/chain_proposer.h"
#include "support/rounds.h"
#include "support/same_cache.h"
#include "support/scratch.h"
#include "support/tiny.h"

enum { CTX = 500, CHUNK = 40 };

static const kk_generate_opts sampled = {.ignore_eos = true,
                                         .sampling = {.temp = 0.9f, .top_k = 60, .seed = 17}};

/* ---- a session with drafts that are often right --------------------------------------------- */

typedef struct {
    kk_engine *e;
    kk_proposer proposer;
    chain_shared shared;
    kk_session *s;
    int32_t plain[CTX];
    uint64_t random;
    const char *file;
} world;

static const int32_t tapped[] = {0, 2};

static void open_world(world *w, const kk_proposer *p, const char *file) {
    *w = (world){.e = tiny_engine("tiny:q4_0:4", 1, CHUNK), .proposer = *p, .file = file};
    assert_ok(chain_register(w->e, &w->proposer, &w->shared, tapped, p->wants_taps ? 2 : 0, why));
}

static kk_session *session(kk_engine *e, kk_spec spec) {
    kk_session *s = NULL;
    const kk_session_opts opts = {.ctx = CTX, .spec = spec, .draft_fixed = true};
    assert_ok(kk_session_new(&s, e, &opts, why));
    return s;
}

static void close_world(world *w) {
    kk_session_free(w->s);
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(w->e, bytes);
    assert_int_equal(bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL], 0);
    kk_engine_close(w->e);
}

static void generate(world *w, kk_session *s, int32_t n) {
    kk_session *p = session(w->e, KK_SPEC_NONE);
    kk_generate_opts how = sampled;
    kk_result want, got;
    how.max_tokens = n;
    tiny_append(p, s->tokens, s->len);
    assert_ok(kk_generate(p, &how, NULL, NULL, &want, why));
    memcpy(w->plain, p->tokens, (size_t)p->len * sizeof *w->plain);
    w->shared.plain = w->plain;
    w->shared.plain_len = p->len;
    assert_ok(kk_generate(s, &how, NULL, NULL, &got, why));
    assert_true(got.logits_hash == want.logits_hash || s->len != p->len);
    assert_memory_equal(s->tokens, p->tokens, (size_t)p->len * sizeof *s->tokens);
    kk_session_free(p);
}

static bool stands(world *w, kk_session *s) {
    const int32_t rows = (int32_t)kk_cache_len(s->cache);
    if (w->shared.wrong) return false;
    if (!w->shared.row_floats) return chain_stands_for(s, NULL);
    kk_session *fresh = session(w->e, (kk_spec)CHAIN_SPEC);
    if (rows) tiny_append(fresh, s->tokens, rows);
    const bool same = chain_stands_for(s, fresh);
    kk_session_free(fresh);
    return same;
}

static void append(kk_session *s, int32_t n, uint32_t seed) {
    int32_t more[CTX];
    tiny_prompt(more, n, seed);
    tiny_append(s, more, n);
}

/* The session in w becomes the one that was loaded; false: it could not be. */
static bool goes_through_a_file(world *w) {
    kk_session *loaded = NULL;
    assert_ok(kk_session_save(w->s, w->file, why));
    if (kk_session_load(&loaded, w->e, w->file, NULL, NULL, NULL) != KK_OK) return false;
    assert_int_equal(loaded->spec, CHAIN_SPEC);
    kk_session_free(w->s);
    w->s = loaded;
    return true;
}

/* ---- any history ---------------------------------------------------------------------------- */

static int32_t below(world *w, int32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((w->random >> 33) % (uint64_t)n);
}

static void take_a_step(world *w) {
    kk_session *s = w->s, *other = NULL;
    const int32_t n = 1 + below(w, 60);
    switch (below(w, 8)) {
    case 0: append(s, n, (uint32_t)n); break;
    case 1: generate(w, s, n); break;
    case 2: assert_ok(kk_session_rewind(s, s->len - (n < s->len ? n / 4 : 0), NULL, why)); break;
    case 3: assert_ok(kk_session_rewind(s, 1 + below(w, s->len), NULL, why)); break;
    case 4: assert_ok(kk_session_checkpoint(s, why)); break;
    case 5: assert_true(goes_through_a_file(w)); break;
    case 6: /* from a checkpoint, where there is one before it */
        assert_ok(kk_session_fork_at(&other, s, below(w, s->len + 1), NULL, why));
        assert_true(stands(w, s) && stands(w, other));
        kk_session_free(other);
        break;
    default:
        assert_ok(kk_session_fork(&other, s, why));
        generate(w, s, 10);
        assert_true(stands(w, s));
        kk_session_free(s);
        w->s = other;
    }
    if (w->s->len > CTX - 130) assert_ok(kk_session_rewind(w->s, CTX / 3, NULL, why));
}

static void walk(world *w, int steps, uint64_t seed) {
    w->random = seed;
    w->s = session(w->e, (kk_spec)CHAIN_SPEC);
    append(w->s, 70, 3);
    for (int i = 0; i < steps; i++) {
        take_a_step(w);
        if (!stands(w, w->s)) fail_msg("after %d steps, at %d tokens", i + 1, w->s->len);
    }
    assert_true(w->shared.drafts > 10);
}

static void file_in(scratch *dir, char path[600]) { snprintf(path, 600, "%s/chain.kks", dir->dir); }

static void its_state_follows_any_history(void **state) {
    char path[600];
    world w;
    file_in(*state, path);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        open_world(&w, &chain_proposer, path);
        walk(&w, 120, seed);
        close_world(&w);
    }
    const kk_proposer with_taps = chain_with_taps();
    open_world(&w, &with_taps, path);
    walk(&w, 60, 9);
    close_world(&w);
}

/* ---- each call matters ---------------------------------------------------------------------- */

/* Everything once, in an order that leaves no call without effect; false: the state was wrong. */
static bool live(world *w) {
    kk_session *fork;
    w->s = session(w->e, (kk_spec)CHAIN_SPEC);
    append(w->s, 60, 3);
    if (!stands(w, w->s)) return false;
    assert_ok(kk_session_checkpoint(w->s, why));
    generate(w, w->s, 40);
    if (!stands(w, w->s)) return false;
    assert_ok(kk_session_rewind(w->s, w->s->len - 5, NULL, why));
    if (!stands(w, w->s)) return false;
    append(w->s, 3, 4);
    assert_ok(kk_session_rewind(w->s, w->s->len - 35, NULL, why)); /* further than it remembers */
    if (!stands(w, w->s)) return false;
    assert_ok(kk_session_rewind(w->s, 60, NULL, why)); /* the checkpoint */
    if (!stands(w, w->s)) return false;
    assert_ok(kk_session_fork(&fork, w->s, why));
    const bool forked = stands(w, fork);
    kk_session_free(fork);
    if (!forked) return false;
    generate(w, w->s, 20);
    append(w->s, 4, 5); /* they wait */
    return goes_through_a_file(w) && stands(w, w->s);
}

static bool lives_with(const kk_proposer *p, const char *path) {
    world w;
    open_world(&w, p, path);
    const bool good = live(&w);
    close_world(&w);
    return good;
}

static void commit_one_less(void *self, int32_t n) { chain_commit(self, n > 1 ? n - 1 : n); }
static void commit_one_more(void *self, int32_t n) { chain_commit(self, n > 0 ? n + 1 : n); }
static void truncate_one_less(void *self, int64_t rows) { chain_truncate(self, rows + 1); }
static void forget_mark(void *self, const void *mark) { (void)self, (void)mark; }

/* Rows that wait in the queue are not in it. */
static kk_status mark_without_waiting(void *self, void **out, kk_err *err) {
    chain *c = self;
    chain_mark *m = *out = kk_malloc(sizeof *m);
    if (!m) return kk_fail(err, KK_ENOMEM, "no memory for a mark of a chain");
    *m = (chain_mark){c->rows, chain_hash(c)};
    return KK_OK;
}

static void a_call_left_out_is_seen(void **state) {
    char path[600];
    file_in(*state, path);
    assert_true(lives_with(&chain_proposer, path));
    const kk_proposer taps = chain_with_taps();
    assert_true(lives_with(&taps, path));
    enum { LEFT_OUT = 11 };
    kk_proposer without[LEFT_OUT];
    for (int i = 0; i < LEFT_OUT; i++) without[i] = i < 10 ? chain_proposer : taps;
    without[0].commit = NULL;
    without[1].truncate = NULL;
    without[2].can_truncate = NULL;
    without[3].mark = NULL;
    without[4].restore = NULL;
    without[5].mark = mark_without_waiting;
    without[6].commit = commit_one_less;
    without[7].commit = commit_one_more;
    without[8].truncate = truncate_one_less;
    without[9].restore = forget_mark;
    without[10].absorb = NULL; /* commit serves */
    for (int i = 0; i < LEFT_OUT - 1; i++)
        if (lives_with(&without[i], path)) fail_msg("fault %d was not seen", i);
    assert_true(lives_with(&without[LEFT_OUT - 1], path));
}

/* ---- files ---------------------------------------------------------------------------------- */

static void damaged_state_is_refused(void **state) {
    char path[600];
    world w;
    kk_err err = {0};
    kk_session *s = NULL;
    file_in(*state, path);
    open_world(&w, &chain_proposer, path);
    w.s = session(w.e, (kk_spec)CHAIN_SPEC);
    append(w.s, 60, 3);
    assert_ok(kk_session_save(w.s, path, why));
    size_t n;
    char *bytes = scratch_read(path, &n);
    static const struct {
        size_t from_end;
        const char *names;
    } flips[] = {{1, "hash of a chain"}, {12, "hash of a chain"}, {20, "rows of a chain"}};
    for (int i = 0; i < 3; i++) {
        bytes[n - flips[i].from_end] = (char)(bytes[n - flips[i].from_end] ^ 4);
        scratch_write(path, bytes, n);
        bytes[n - flips[i].from_end] = (char)(bytes[n - flips[i].from_end] ^ 4);
        assert_int_equal(kk_session_load(&s, w.e, path, NULL, NULL, &err), KK_EFORMAT);
        assert_null(s);
        if (!strstr(err.msg, flips[i].names)) fail_msg("%s", err.msg);
    }
    /* An engine that does not have the proposer goes on without drafts, and says so when asked. */
    scratch_write(path, bytes, n);
    kk_engine *other = tiny_engine("tiny:q4_0:4", 1, CHUNK);
    assert_ok(kk_session_load(&s, other, path, NULL, NULL, why));
    assert_int_equal(s->spec, KK_SPEC_NONE);
    assert_same_state(s, w.s);
    kk_session_free(s);
    const kk_session_opts asked = {.spec = (kk_spec)CHAIN_SPEC};
    assert_int_equal(kk_session_load(&s, other, path, &asked, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "number 4"));
    kk_engine_close(other);
    free(bytes);
    close_world(&w);
}

/* However a state was reached, its file is the same. */
static void the_same_rows_give_the_same_file(void **state) {
    char path[600];
    world w;
    size_t n[2];
    char *bytes[2];
    file_in(*state, path);
    open_world(&w, &chain_proposer, path);
    for (int i = 0; i < 2; i++) {
        kk_session *s = session(w.e, (kk_spec)CHAIN_SPEC);
        if (i == 0) append(s, 130, 3);
        int32_t all[130];
        tiny_prompt(all, 130, 3);
        for (int32_t at = 0; i == 1 && at < 130; at += 13) tiny_append(s, all + at, 13);
        assert_ok(kk_session_save(s, path, why));
        bytes[i] = scratch_read(path, &n[i]);
        kk_session_free(s);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]);
    free(bytes[1]);
    close_world(&w);
}

/* ---- several in a session ------------------------------------------------------------------- */

/* The state of one that does not draft follows, too; a failure at one leaves none behind. */
static void members_follow_together(void **state) {
    (void)state;
    world w;
    kk_err err = {0};
    open_world(&w, &chain_proposer, NULL);
    kk_session *s = w.s = session(w.e, KK_SPEC_NGRAM);
    const kk_proposer_opts how = {.shared = &w.shared,
                                  .backend = w.e->backend,
                                  .dev = w.e->dev,
                                  .max_len = CTX,
                                  .max_rows = CHUNK};
    const kk_proposer taps = chain_with_taps();
    assert_ok(kk_drafting_add(&s->drafting, &chain_proposer, &how, NULL, why));
    append(s, 90, 3);
    assert_ok(kk_session_checkpoint(s, why));
    for (int i = 0; i < 12; i++) {
        const kk_generate_opts greedy = {.max_tokens = 20, .ignore_eos = true};
        assert_ok(kk_generate(s, &greedy, NULL, NULL, NULL, why));
        assert_ok(kk_session_rewind(s, i % 3 ? s->len - 7 : 90, NULL, why));
        chain *c = s->drafting.member[1].self;
        const int64_t rows = kk_cache_len(s->cache);
        assert_true(kk_drafting_stands_for(&s->drafting, rows));
        chain_flush(c, NULL);
        assert_true(chain_hash(c) == chain_of_tokens(s->tokens, rows));
    }
    assert_int_equal(kk_drafting_add(&s->drafting, &taps, &how, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "2 at most"));
    kk_drafting two = {.n = 1, .member = {{.proposer = &taps}}};
    assert_int_equal(kk_drafting_add(&two, &taps, &how, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "hidden states"));
    close_world(&w);
}

/* ---- the table ------------------------------------------------------------------------------ */

static void the_table_refuses_what_cannot_be(void **state) {
    (void)state;
    static const int32_t other[] = {1, 2};
    kk_engine *e = tiny_engine("tiny:f32:4", 1, 0);
    chain_shared shared = {0};
    kk_err err = {0};
    kk_session *s = NULL;
    const kk_session_opts none = {.spec = (kk_spec)CHAIN_SPEC}, far = {.spec = (kk_spec)40};
    assert_int_equal(kk_session_new(&s, e, &none, &err), KK_EINVAL);
    assert_int_equal(kk_session_new(&s, e, &far, &err), KK_EINVAL);
    const kk_proposer taps = chain_with_taps();
    assert_ok(chain_register(e, &taps, &shared, tapped, 2, why));
    assert_int_equal(chain_register(e, &taps, &shared, tapped, 2, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "number 4"));
    const kk_proposer_entry entry = {
        .proposer = &taps, .shared = &shared, .taps = other, .n_taps = 2, .standard = 3};
    assert_int_equal(kk_engine_add_proposer(e, (kk_spec)(CHAIN_SPEC + 1), &entry, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "other layers"));
    assert_int_equal(kk_engine_add_proposer(e, KK_SPEC_NONE, &entry, &err), KK_EINVAL);
    assert_int_equal(kk_engine_add_proposer(e, (kk_spec)KK_MOST_SPECS, &entry, &err), KK_EINVAL);
    kk_engine_close(e);
}

/* ---- takings that fail ---------------------------------------------------------------------- */

static kk_status some_life(kk_engine *e, const char *path, kk_err *err) {
    const kk_session_opts opts = {.ctx = CTX, .spec = (kk_spec)CHAIN_SPEC, .draft_fixed = true};
    int32_t prompt[50];
    kk_session *s = NULL, *fork = NULL, *loaded = NULL;
    tiny_prompt(prompt, 50, 2);
    kk_status st = kk_session_new(&s, e, &opts, err);
    if (st == KK_OK) st = kk_session_append(s, prompt, 50, NULL, NULL, err);
    if (st == KK_OK) st = kk_session_checkpoint(s, err);
    if (st == KK_OK) st = kk_session_append(s, prompt, 45, NULL, NULL, err); /* two chunks */
    if (st == KK_OK) st = kk_session_fork(&fork, s, err);
    if (st == KK_OK) st = kk_session_save(fork, path, err);
    if (st == KK_OK) st = kk_session_load(&loaded, e, path, NULL, NULL, err);
    if (s) assert_true(chain_stands_for(s, NULL));
    kk_session_free(s);
    kk_session_free(fork);
    kk_session_free(loaded);
    return st;
}

static void failures_leave_nothing(void **state) {
    char path[600];
    world w;
    file_in(*state, path);
    open_world(&w, &chain_proposer, path);
    assert_ok(some_life(w.e, path, why)); /* the engine has what it keeps */
    const int64_t bytes = kk_live_bytes();
    int64_t n = 1;
    for (kk_status st = KK_ENOMEM; st != KK_OK; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        st = some_life(w.e, path, &err);
        kk_fault_after(0, false);
        assert_int_equal(kk_live_bytes(), bytes);
        assert_true(st == KK_OK || (err.code == st && strlen(err.msg) > 10));
    }
    assert_true(n > 20);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_state_follows_any_history),
        cmocka_unit_test(a_call_left_out_is_seen),
        cmocka_unit_test(damaged_state_is_refused),
        cmocka_unit_test(the_same_rows_give_the_same_file),
        cmocka_unit_test(members_follow_together),
        cmocka_unit_test(the_table_refuses_what_cannot_be),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
