/* counts_test.c - counts of tokens: what is written is read back, what does not hold together is
 * refused by name, and which ids a short head takes of them. */
#define _GNU_SOURCE
#include "core/alloc.h"
#include "engine/draft_vocab.h"
#include "format/counts.h"
#include "support/ok.h"
#include "support/scratch.h"

/* ---- the format --------------------------------------------------------------------------- */

static void refused(const char *json, const char *says) {
    kk_counts c;
    kk_err err = {0};
    assert_int_equal(kk_counts_parse(&c, json, strlen(json), "counts", &err), KK_EFORMAT);
    assert_true(c.n == 0 && !c.id && !c.count);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

#define HEAD "{\"kakeya_counts\": 1, \"vocab\": 10, "

static void faults_are_named(void **state) {
    (void)state;
    refused("", "counts");
    refused("[]", "kakeya_counts is missing");
    refused("{\"kakeya_counts\": 2}", "kakeya_counts");
    refused("{\"kakeya_counts\": 1, \"ids\": [], \"counts\": [], \"tokens\": 0}", "vocab");
    refused("{\"kakeya_counts\": 1, \"vocab\": 0, \"tokens\": 0, \"ids\": [], \"counts\": []}",
            "vocab");
    refused(HEAD "\"tokens\": 3, \"ids\": [1, 2], \"counts\": [3]}", "one length");
    refused(HEAD "\"tokens\": 3, \"ids\": 1, \"counts\": [3]}", "one length");
    refused(HEAD "\"tokens\": -3, \"ids\": [1], \"counts\": [3]}", "tokens");
    refused(HEAD "\"tokens\": 3, \"ids\": [10], \"counts\": [3]}", "ids[0] is 10");
    refused(HEAD "\"tokens\": 3, \"ids\": [-1], \"counts\": [3]}", "ids[0] is -1");
    refused(HEAD "\"tokens\": 4, \"ids\": [1, 1], \"counts\": [2, 2]}", "a second time");
    refused(HEAD "\"tokens\": 5, \"ids\": [1, 2], \"counts\": [2, 3]}", "counts[1] is 3");
    refused(HEAD "\"tokens\": 5, \"ids\": [1, 2], \"counts\": [4, 0]}", "counts[1] is 0");
    refused(HEAD "\"tokens\": 5, \"ids\": [1, 2], \"counts\": [4, 2]}", "counts[1] is 2");
    refused(HEAD "\"tokens\": 9, \"ids\": [1, 2], \"counts\": [4, 4]}", "1 less");
    refused(HEAD "\"tokens\": 5, \"ids\": [1, \"2\"], \"counts\": [4, 1]}", "ids[1]");
    refused(HEAD "\"tokens\": 9223372036854775807, \"ids\": [1, 2], "
                 "\"counts\": [9223372036854775807, 9223372036854775807]}",
            "counts[1]");
}

static kk_counts made(const int64_t *by_id, int32_t vocab) {
    kk_counts c;
    assert_ok(kk_counts_make(&c, by_id, vocab, why));
    return c;
}

static void what_was_counted_is_read_back(void **state) {
    enum { VOCAB = 500 };
    int64_t by_id[VOCAB] = {0};
    for (int32_t i = 0; i < VOCAB; i += 2) by_id[i] = i % 50 + 1;
    kk_counts c = made(by_id, VOCAB), back;
    assert_int_equal(c.n, VOCAB / 2);
    assert_int_equal(c.id[0], 48); /* of ten with 49 the lowest */
    assert_int_equal(c.id[1], 98);
    const char *path = scratch_path(*state, "counts.json");
    kk_writer *to;
    assert_ok(kk_writer_open(&to, path, &(kk_writer_opts){0}, why));
    assert_ok(kk_counts_write(&c, to, why));
    kk_writer_close(to);
    assert_ok(kk_counts_read(&back, path, why));
    assert_true(back.vocab == VOCAB && back.n == c.n && back.tokens == c.tokens);
    assert_memory_equal(back.id, c.id, (size_t)c.n * sizeof *c.id);
    assert_memory_equal(back.count, c.count, (size_t)c.n * sizeof *c.count);
    assert_true(kk_counts_share(&back, 0) <= 0 && kk_counts_share(&back, c.n) >= 1);
    assert_true(kk_counts_share(&back, 10) > 10 * 48.0 / (double)c.tokens);
    kk_counts_free(&c);
    kk_counts_free(&back);
    int64_t none[3] = {0};
    c = made(none, 3);
    assert_true(c.n == 0 && c.tokens == 0 && kk_counts_share(&c, 5) <= 0);
    kk_counts_free(&c);
    kk_err err;
    assert_int_equal(kk_counts_make(&c, none, 0, &err), KK_EINVAL);
}

/* ---- ids of a short head ------------------------------------------------------------------- */

enum { VOCAB = 1000, NEVER = 7 };

/* Ids from the highest down, each once more than the one before. */
static const char *counts_in(scratch *s, const char *name, int32_t n) {
    int64_t by_id[VOCAB] = {0};
    for (int32_t i = 0; i < n; i++) by_id[VOCAB - 1 - i] = n - i;
    kk_counts c = made(by_id, VOCAB);
    const char *path = scratch_path(s, name);
    kk_writer *to;
    assert_ok(kk_writer_open(&to, path, &(kk_writer_opts){.replace = true}, why));
    assert_ok(kk_counts_write(&c, to, why));
    kk_writer_close(to);
    kk_counts_free(&c);
    return path;
}

static int32_t rows_of(const char *asked, const char *folder, bool random) {
    kk_draft_vocab v;
    assert_ok(kk_draft_vocab_find(&v, asked, folder, random, VOCAB, NEVER, why));
    for (int32_t i = 0; i < v.n; i++) {
        assert_int_not_equal(v.id[i], NEVER);
        if (!random) assert_int_equal(v.id[i], VOCAB - 1 - i);
    }
    const int32_t n = v.n;
    kk_free(v.id);
    return n;
}

static void no_head(const char *asked, const char *folder, kk_status st, const char *says) {
    kk_draft_vocab v;
    kk_err err = {0};
    assert_int_equal(kk_draft_vocab_find(&v, asked, folder, false, VOCAB, NEVER, &err), st);
    assert_null(v.id);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void ids_by_what_is_asked_for(void **state) {
    scratch *s = *state;
    char both[400];
    const char *path = counts_in(s, "mine.json", 300);
    assert_int_equal(rows_of(NULL, NULL, false), 0);
    assert_int_equal(rows_of(NULL, s->dir, false), 0); /* nothing lies there yet */
    assert_int_equal(rows_of("full", s->dir, false), 0);
    assert_int_equal(rows_of(path, NULL, false), 256); /* whole strips of 300 */
    snprintf(both, sizeof both, "%s:128", path);
    assert_int_equal(rows_of(both, NULL, false), 128);
    no_head("128", s->dir, KK_EINVAL, "no counts beside");
    no_head("/nowhere/counts.json", s->dir, KK_EIO, "nowhere");
    snprintf(both, sizeof both, "%s:10", path);
    no_head(both, NULL, KK_EINVAL, "fewer than 64");
    counts_in(s, "token-counts.json", 700);
    assert_int_equal(rows_of(NULL, s->dir, false), 640);
    assert_int_equal(rows_of("128", s->dir, false), 128);
    assert_int_equal(rows_of("full", s->dir, false), 0);
    /* Random weights have no texts: the first ids, without the mask. */
    assert_int_equal(rows_of("512", s->dir, true), 512);
    assert_int_equal(rows_of(NULL, s->dir, true), 0);
}

static void counts_of_another_vocabulary_are_refused(void **state) {
    kk_draft_vocab v;
    kk_err err = {0};
    const char *path = counts_in(*state, "other.json", 300);
    assert_int_equal(kk_draft_vocab_find(&v, path, NULL, false, VOCAB + 1, NEVER, &err),
                     KK_EFORMAT);
    assert_non_null(strstr(err.msg, "1000"));
    assert_non_null(strstr(err.msg, "1001"));
}

/* Every allocation and every read may fail: a sentence, and nothing left. */
static void memory_may_run_out(void **state) {
    const char *path = counts_in(*state, "faults.json", 200);
    const int64_t blocks = kk_live_blocks();
    for (int64_t n = 1;; n++) {
        kk_draft_vocab v;
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = kk_draft_vocab_find(&v, path, NULL, false, VOCAB, NEVER, &err);
        kk_fault_after(0, false);
        kk_free(v.id);
        assert_int_equal(kk_live_blocks(), blocks);
        if (st == KK_OK) {
            assert_true(n > 8);
            return;
        }
        assert_true(st == KK_ENOMEM || st == KK_EIO);
        assert_true(err.msg[0] && !v.id);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test_setup_teardown(what_was_counted_is_read_back, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(ids_by_what_is_asked_for, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(counts_of_another_vocabulary_are_refused, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(memory_may_run_out, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
