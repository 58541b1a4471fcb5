/* snapshot_fault_test.c - saving and loading while the n-th taking or system call fails, for
 * every n: a status with a sentence, no file half written or left over, nothing kept by the
 * engine, and the session that was being saved as it was. */
#define _GNU_SOURCE
#include <errno.h>

#include "support/scratch.h"
#include "support/tiny.h"

enum { CTX = 200, TOKENS = 150 };

static kk_engine *open_engine(void) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:bf16:9",
                                 .drafter = "synthetic",
                                 .projection = "synthetic:64",
                                 .threads = 1,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

/* Without a drafter, with one, and with one over rows that are restored. */
static const kk_session_opts ways[] = {
    {.ctx = CTX, .spec = KK_SPEC_NONE},
    {.ctx = CTX, .spec = KK_SPEC_DFLASH},
    {.ctx = CTX,
     .spec = KK_SPEC_DFLASH,
     .draft_ctx = 40,
     .kv_sliding = KK_KEEP_WINDOW,
     .kv_full = KK_KEEP_RESTORED},
};
enum { WAYS = sizeof ways / sizeof *ways };

static kk_session *open_session(kk_engine *e, const kk_session_opts *how) {
    kk_session *s = NULL;
    int32_t tokens[TOKENS];
    tiny_prompt(tokens, TOKENS, 3);
    assert_ok(kk_session_new(&s, e, how, why));
    tiny_append(s, tokens, TOKENS);
    return s;
}

static void check_failure(kk_status st, const kk_err *err) {
    assert_true(st == KK_ENOMEM || st == KK_EIO);
    assert_int_equal(err->code, st);
    assert_true(strlen(err->msg) > 10);
}

static void saving_fails_cleanly(void **state) {
    scratch *w = *state;
    char path[600];
    snprintf(path, sizeof path, "%s/saved.kks", w->dir);
    kk_engine *e = open_engine();
    for (int with = 0; with < WAYS; with++) {
        kk_session *s = open_session(e, &ways[with]), *again;
        assert_ok(kk_session_save(s, path, why));
        kk_session_free(s);
        assert_ok(kk_session_load(&s, e, path, NULL, NULL, why));
        size_t n, m;
        char *before = scratch_read(path, &n);
        const int entries = scratch_entries(w->dir);
        const int64_t bytes = kk_live_bytes(), blocks = kk_live_blocks();
        int64_t failures = 0, full = 0;
        for (;; failures++) {
            kk_err err = {0};
            kk_fault_after(failures + 1, false);
            const kk_status st = kk_session_save(s, path, &err);
            kk_fault_after(0, false);
            assert_int_equal(kk_live_bytes(), bytes);
            assert_int_equal(kk_live_blocks(), blocks);
            assert_int_equal(scratch_entries(w->dir), entries);
            char *after = scratch_read(path, &m);
            assert_int_equal(n, m);
            assert_memory_equal(before, after, n);
            free(after);
            if (st == KK_OK) break;
            check_failure(st, &err);
            full += strstr(err.msg, strerror(ENOSPC)) != NULL;
        }
        assert_true(full > 0);      /* a disk that fills up is called that */
        assert_true(failures >= 8); /* memory, create, writes, sync, rename */
        assert_ok(kk_session_load(&again, e, path, NULL, NULL, why));
        assert_same_state(s, again);
        kk_session_free(s);
        kk_session_free(again);
        free(before);
    }
    kk_engine_close(e);
}

static void loading_fails_cleanly(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/load.kks", ((scratch *)*state)->dir);
    kk_engine *e = open_engine();
    for (int with = 0; with < WAYS; with++) {
        kk_session *s = open_session(e, &ways[with]), *again;
        int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
        assert_ok(kk_session_save(s, path, why));
        assert_ok(kk_session_load(&again, e, path, NULL, NULL, why)); /* pools grow once */
        kk_session_free(again);
        const int64_t bytes = kk_live_bytes(), blocks = kk_live_blocks();
        kk_engine_memory(e, before);
        for (int64_t n = 1;; n++) {
            kk_err err = {0};
            kk_fault_after(n, false);
            const kk_status st = kk_session_load(&again, e, path, NULL, NULL, &err);
            kk_fault_after(0, false);
            if (st == KK_OK) {
                assert_true(n > 12);
                break;
            }
            assert_null(again);
            check_failure(st, &err);
            assert_int_equal(kk_live_bytes(), bytes);
            assert_int_equal(kk_live_blocks(), blocks);
            kk_engine_memory(e, after);
            assert_memory_equal(before, after, sizeof before);
        }
        assert_same_state(s, again);
        kk_session_free(s);
        kk_session_free(again);
    }
    kk_engine_close(e);
}

/* A limit that the rows do not fit under is a reason, not a crash. */
static void a_memory_limit_is_kept(void **state) {
    char path[600];
    snprintf(path, sizeof path, "%s/limit.kks", ((scratch *)*state)->dir);
    kk_engine *e = open_engine();
    kk_session *s = open_session(e, &ways[2]);
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    assert_ok(kk_session_save(s, path, why));
    kk_session_free(s);
    kk_engine_memory(e, before);
    int64_t held = 0, refused = 0;
    for (int c = KK_MEM_KV_SLIDING; c < KK_MEM_CATEGORIES; c++) held += before[c];
    kk_status st = KK_ENOMEM;
    for (e->mem.limit = held + 1; st != KK_OK; e->mem.limit += 100000, refused++) {
        kk_err err = {0};
        st = kk_session_load(&s, e, path, NULL, NULL, &err);
        if (st == KK_OK) break;
        assert_int_equal(st, KK_ENOMEM);
        assert_null(s);
        kk_engine_memory(e, after);
        assert_memory_equal(before, after, sizeof before);
    }
    assert_true(refused > 3);
    kk_session_free(s);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saving_fails_cleanly),
        cmocka_unit_test(loading_fails_cleanly),
        cmocka_unit_test(a_memory_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
