/* compare_test.c - a report beside the report of the same run executed again: what was made up is
 * found by its name, times are never judged, and what was not compared is said. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "eval/rerun/compare.h"
#include "eval/rerun/kinds.h"
#include "eval/texts/subset.h"
#include "support/scratch.h"

static json_t *parsed(const char *text) {
    json_error_t why;
    json_t *o = json_loads(text, 0, &why);
    if (!o) fail_msg("%s at %d", why.text, why.column);
    return o;
}

/* ---- paths -------------------------------------------------------------------------------- */

static void test_paths(void **state) {
    (void)state;
    assert_true(kk_member_fits("rungs/rows/hit", "rungs/rows/hit"));
    assert_false(kk_member_fits("rungs/rows/hit", "rungs/rows"));
    assert_false(kk_member_fits("rungs/rows", "rungs/rows/hit"));
    assert_true(kk_member_fits("rungs/*_spread", "rungs/decode_tok_s_spread"));
    assert_false(kk_member_fits("rungs/*_spread", "rungs/decode_tok_s"));
    assert_true(kk_member_fits("**/seconds*", "sets/arms/plain/rows/seconds_min"));
    assert_true(kk_member_fits("**/seconds*", "seconds"));
    assert_true(kk_member_fits("arms/plain/**", "arms/plain/by/ngram"));
    assert_true(kk_member_fits("arms/plain/**", "arms/plain"));
    assert_false(kk_member_fits("arms/plain/**", "arms/dflash/tokens"));
    assert_true(kk_member_fits("arms/*/tokens", "arms/dflash/tokens"));
    assert_false(kk_member_fits("arms/*/tokens", "arms/tokens"));
    assert_true(kk_member_fits("", ""));
    assert_false(kk_member_fits("", "rows"));
}

/* ---- one member changed ------------------------------------------------------------------- */

static const char needle_text[] =
    "{'kind': 'needle', 'date': 'then', 'model': {'fingerprint': 'ab'},"
    " 'settings': {'arms': ['exact', 'restored'], 'samples': 2},"
    " 'rungs': [{'arm': 'exact', 'lines': 50, 'hits': 2, 'recall': 1.0,"
    "   'decode_tok_s': 9.5, 'decode_tok_s_spread': {'median': 9.5, 'min': 9.0, 'max': 10.0,"
    "   'n': 2}, 'bytes': {'kv.full': 4096, 'workspace': 100},"
    "   'rows': [{'sample': 0, 'answer': 'A', 'hit': true, 'prefill_s': 1.5, 'reach': {'queries': "
    "7}},"
    "            {'sample': 1, 'answer': 'B', 'hit': true, 'prefill_s': 1.6, 'reach': {'queries': "
    "8}}]}],"
    " 'quality': [{'arm': 'restored', 'text': 'code 3', 'rows': 300, 'mean_kl': 0.0123456}],"
    " 'sums': [{'arm': 'restored', 'mean_kl': 0.0123456}]}";

static json_t *report(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    assert_non_null(copy);
    for (size_t i = 0; i <= strlen(text); i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    json_t *o = parsed(copy);
    free(copy);
    return o;
}

static kk_compare_opts how_of(const kk_rerun_kind *kind) {
    return (kk_compare_opts){.members = kind->members, .lists = kind->lists};
}

static const kk_compare_finding *found(const kk_comparison *c, kk_compared what,
                                       const char *where) {
    for (size_t i = 0; i < c->n; i++)
        if (c->finding[i].what == what && strcmp(c->finding[i].where, where) == 0)
            return &c->finding[i];
    return NULL;
}

static size_t count(const kk_comparison *c, kk_compared what) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) n += c->finding[i].what == what;
    return n;
}

/* Walks to a member: names, and numbers for places of lists. */
static json_t *at(json_t *o, const char *path) {
    char part[40];
    while (*path) {
        const size_t n = strcspn(path, "/");
        assert_true(n < sizeof part);
        memcpy(part, path, n);
        part[n] = 0;
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(part)) : json_object_get(o, part);
        assert_non_null(o);
        path += n + (path[n] == '/');
    }
    return o;
}

static void put(json_t *o, const char *path, const char *key, json_t *v) {
    assert_int_equal(json_object_set_new(at(o, path), key, v), 0);
}

/* The report says another value than the rerun gives. */
static void differs(const kk_rerun_kind *kind, const char *text, const char *path, const char *key,
                    json_t *fabricated, const char *where) {
    const kk_compare_opts how = how_of(kind);
    json_t *stored = report(text), *rerun = report(text);
    kk_comparison c;
    put(stored, path, key, fabricated);
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    if (c.different != 1 || !found(&c, KK_COMPARED_DIFFERENT, where))
        fail_msg("%zu differ, and %s is %sfound", c.different, where,
                 found(&c, KK_COMPARED_DIFFERENT, where) ? "" : "not ");
    kk_comparison_release(&c);
    json_decref(stored);
    json_decref(rerun);
}

static void test_needle(void **state) {
    (void)state;
    const kk_rerun_kind *k = &kk_rerun_needle;
    const char *t = needle_text;
    differs(k, t, "rungs/0", "recall", json_real(0.5), "rungs[exact 50].recall");
    differs(k, t, "rungs/0", "hits", json_integer(1), "rungs[exact 50].hits");
    differs(k, t, "rungs/0/rows/1", "hit", json_false(), "rungs[exact 50].rows[1].hit");
    differs(k, t, "rungs/0/rows/1", "answer", json_string("C"), "rungs[exact 50].rows[1].answer");
    differs(k, t, "rungs/0/bytes", "kv.full", json_integer(2048), "rungs[exact 50].bytes.kv.full");
    differs(k, t, "quality/0", "mean_kl", json_real(0.0123455), "quality[restored code 3].mean_kl");
    differs(k, t, "sums/0", "mean_kl", json_real(0), "sums[restored].mean_kl");
    differs(k, t, "model", "fingerprint", json_string("ac"), "model.fingerprint");
    /* A number told as text, one that is gone, and one that no rerun gives. */
    differs(k, t, "rungs/0", "recall", json_string("1.0"), "rungs[exact 50].recall");
    differs(k, t, "rungs/0/rows/0", "hit", json_null(), "rungs[exact 50].rows[0].hit");
    differs(k, t, "", "claim", json_integer(3), "claim");
}

static void test_same(void **state) {
    (void)state;
    const kk_compare_opts how = how_of(&kk_rerun_needle);
    json_t *stored = report(needle_text), *rerun = report(needle_text);
    kk_comparison c;
    /* Times and dates may be any, and a number is the same with and without its point. */
    put(rerun, "", "date", json_string("now"));
    put(rerun, "rungs/0/rows/0", "prefill_s", json_real(99));
    put(rerun, "rungs/0", "recall", json_integer(1));
    put(rerun, "rungs/0/decode_tok_s_spread", "median", json_real(9.75));
    put(rerun, "model", "identity", json_string("new"));
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_int_equal(c.different, 0);
    assert_true(c.compared > 15);
    const kk_compare_finding *f =
        found(&c, KK_COMPARED_TIMED, "rungs[exact 50].decode_tok_s_spread");
    assert_non_null(f);
    assert_string_equal(f->stored, "9.5 (9 to 10, n 2)");
    assert_string_equal(f->rerun, "9.75 (9 to 10, n 2)");
    assert_non_null(found(&c, KK_COMPARED_LACKING, "model/identity"));
    kk_comparison_release(&c);
    json_decref(stored);
    json_decref(rerun);
}

/* ---- rows --------------------------------------------------------------------------------- */

static void test_rows(void **state) {
    (void)state;
    kk_compare_opts how = how_of(&kk_rerun_needle);
    json_t *stored = report(needle_text), *rerun = report(needle_text);
    kk_comparison c;
    /* A row that the report dropped, then one that stands in it twice. */
    json_array_remove(at(stored, "rungs/0/rows"), 0);
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "rungs[exact 50].rows[0]"));
    kk_comparison_release(&c);
    json_array_append(at(stored, "rungs/0/rows"), at(stored, "rungs/0/rows/0"));
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "rungs[exact 50].rows[1]"));
    kk_comparison_release(&c);
    /* One that it made up. */
    json_t *more = json_deep_copy(at(rerun, "rungs/0/rows/1"));
    json_object_set_new(more, "sample", json_integer(2));
    json_decref(stored);
    stored = report(needle_text);
    json_array_append_new(at(stored, "rungs/0/rows"), more);
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_int_equal(c.different, 1);
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "rungs[exact 50].rows[2]"));
    kk_comparison_release(&c);
    json_decref(stored);
    json_decref(rerun);
}

/* Where rows were drawn, totals are not compared, and bytes are at most the report's. */
static void test_drawn(void **state) {
    (void)state;
    kk_compare_opts how = how_of(&kk_rerun_needle);
    how.drawn = true;
    json_t *stored = report(needle_text), *rerun = report(needle_text);
    kk_comparison c;
    json_array_remove(at(rerun, "rungs/0/rows"), 0);
    put(rerun, "rungs/0", "recall", json_real(0));
    put(rerun, "rungs/0/bytes", "kv.full", json_integer(4000));
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_int_equal(c.different, 0);
    assert_non_null(found(&c, KK_COMPARED_PARTLY, "rungs/recall"));
    assert_int_equal(count(&c, KK_COMPARED_PARTLY), 3); /* hits, recall and sums */
    kk_comparison_release(&c);
    put(rerun, "rungs/0/bytes", "kv.full", json_integer(4097));
    put(rerun, "rungs/0/rows/0", "hit", json_false());
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_int_equal(c.different, 2);
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "rungs[exact 50].bytes.kv.full"));
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "rungs[exact 50].rows[1].hit"));
    kk_comparison_release(&c);
    json_decref(stored);
    json_decref(rerun);
}

/* Kept keys fill workspace in another order from run to run: it may be two in a hundred off. */
static void test_workspace(void **state) {
    (void)state;
    static const struct {
        int bytes, different, drawn_different;
    } cases[] = {{100000, 0, 0}, {102000, 0, 0}, {102001, 1, 1}, {98000, 0, 0}, {97999, 1, 0}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        kk_compare_opts how = how_of(&kk_rerun_needle);
        json_t *stored = report(needle_text), *rerun = report(needle_text);
        kk_comparison c;
        how.drawn = i % 2;
        put(stored, "rungs/0/bytes", "workspace", json_integer(100000));
        put(rerun, "rungs/0/bytes", "workspace", json_integer(cases[i / 2].bytes));
        assert_ok(kk_compare(stored, rerun, &how, &c, why));
        assert_int_equal(c.different,
                         how.drawn ? cases[i / 2].drawn_different : cases[i / 2].different);
        kk_comparison_release(&c);
        json_decref(stored);
        json_decref(rerun);
    }
}

/* ---- drafts ------------------------------------------------------------------------------- */

static const char bench_text[] =
    "{'kind': 'bench', 'settings': {'draft_fixed': false},"
    " 'arms': {'plain': {'logits_hash': 'a2bb', 'rounds': 9, 'seconds': 2.5},"
    "          'dflash': {'tokens': 9, 'rounds': 4, 'accepted': 5, 'seconds': 1.5,"
    "                     'speedup': 1.6}},"
    " 'sets': [{'set': 'code', 'arms': {'dflash': {'rows': [{'prompt': 'f00d', 'tokens': 9,"
    "   'rounds': 4, 'accepted': 5, 'seconds': 1.5, 'same_hash': true}]}}}]}";

static void test_drafts(void **state) {
    (void)state;
    kk_compare_opts how = how_of(&kk_rerun_bench);
    json_t *stored = report(bench_text), *rerun = report(bench_text);
    kk_comparison c;
    put(rerun, "arms/dflash", "accepted", json_integer(3));
    put(rerun, "sets/0/arms/dflash/rows/0", "accepted", json_integer(3));
    put(rerun, "arms/dflash", "seconds", json_real(7));
    assert_ok(kk_compare(stored, rerun, &how, &c, why)); /* of a fixed length */
    assert_int_equal(c.different, 2);
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "arms.dflash.accepted"));
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "sets[code].arms.dflash.rows[f00d].accepted"));
    kk_comparison_release(&c);
    how.free_drafts = true;
    put(rerun, "arms/plain", "rounds", json_integer(8)); /* plain decoding chooses nothing */
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_int_equal(c.different, 1);
    assert_non_null(found(&c, KK_COMPARED_DIFFERENT, "arms.plain.rounds"));
    assert_int_equal(count(&c, KK_COMPARED_SHOWN), 2);
    kk_comparison_release(&c);
    json_decref(stored);
    json_decref(rerun);
    differs(&kk_rerun_bench, bench_text, "arms/plain", "logits_hash", json_string("a2bc"),
            "arms.plain.logits_hash");
    differs(&kk_rerun_bench, bench_text, "sets/0/arms/dflash/rows/0", "tokens", json_integer(10),
            "sets[code].arms.dflash.rows[f00d].tokens");
}

static void test_other_device(void **state) {
    (void)state;
    kk_compare_opts how = how_of(&kk_rerun_bench);
    how.other_device = true;
    json_t *stored = report(bench_text), *rerun = report(bench_text);
    kk_comparison c;
    put(rerun, "arms/plain", "logits_hash", json_string("0000"));
    assert_ok(kk_compare(stored, rerun, &how, &c, why));
    assert_int_equal(c.different, 0);
    assert_non_null(found(&c, KK_COMPARED_SHOWN, "arms.plain.logits_hash"));
    kk_comparison_release(&c);
    json_decref(stored);
    json_decref(rerun);
}

/* A training on another processor: its sums may have another order, its counts are the same. */
static void test_within(void **state) {
    (void)state;
    static const char text[] = "{'kind': 'projection', 'train': {'tokens': 5000},"
                               " 'stages': [{'loss': 'mse', 'rel_mse': 0.0605903}]}";
    static const struct {
        double rel_mse;
        int tokens;
        bool other;
        size_t different;
    } cases[] = {{0.0605902, 5000, false, 1}, {0.0605902, 5000, true, 0},
                 {0.0606903, 5000, true, 1},  {0.0604903, 5000, true, 1},
                 {0.0605303, 5000, true, 0},  {0.0605903, 5001, true, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_compare_opts how = how_of(&kk_rerun_projection);
        json_t *stored = report(text), *rerun = report(text);
        kk_comparison c;
        if (cases[i].other) how.within = kk_rerun_projection.within;
        put(rerun, "stages/0", "rel_mse", json_real(cases[i].rel_mse));
        put(rerun, "train", "tokens", json_integer(cases[i].tokens));
        assert_ok(kk_compare(stored, rerun, &how, &c, why));
        assert_int_equal(c.different, cases[i].different);
        kk_comparison_release(&c);
        json_decref(stored);
        json_decref(rerun);
    }
    assert_true(kk_rerun_needle.within == 0 && kk_rerun_bench.within == 0);
}

/* ---- what is read, and what is drawn ------------------------------------------------------ */

static void refused(scratch *in, const char *text, const char *why) {
    kk_rerun r;
    kk_err err;
    const char *path = scratch_path(in, "report.json");
    scratch_write(path, text, strlen(text));
    assert_int_equal(kk_rerun_read(&r, path, &err), KK_EFORMAT);
    if (!strstr(err.msg, why)) fail_msg("'%s' is not in '%s'", why, err.msg);
    assert_null(r.stored);
}

static void test_refused(void **state) {
    refused(*state, "{\"kind\": \"compare\", \"settings\": {}}", "compares with another program");
    refused(*state, "{\"kind\": \"bridge\", \"settings\": {}}",
            "'bridge' cannot be executed again: no rules");
    refused(*state, "{\"kind\": \"needle\"}", "no settings");
    refused(*state, "[1]", "no kind");
    refused(*state, "{\"kind\": ", "is not JSON at line 1");
}

static void test_subset(void **state) {
    (void)state;
    bool a[100], b[100];
    size_t n = 0, same = 0;
    kk_subset seven = {.n = 7, .seed = 3};
    assert_ok(kk_subset_draw(a, 100, &seven, why));
    for (int i = 0; i < 100; i++) n += a[i];
    assert_int_equal(n, 7);
    assert_ok(kk_subset_draw(b, 100, &seven, why));
    assert_memory_equal(a, b, sizeof a);
    seven.seed = 4;
    assert_ok(kk_subset_draw(b, 100, &seven, why));
    for (int i = 0; i < 100; i++) same += a[i] && b[i];
    assert_true(same < 7);
    seven.n = 100;
    assert_ok(kk_subset_draw(a, 100, &seven, why));
    for (int i = 0; i < 100; i++) assert_true(a[i]);
    seven.n = -1;
    assert_int_equal(kk_subset_draw(a, 100, &seven, NULL), KK_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_needle),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_drawn),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_other_device),
        cmocka_unit_test(test_within),
        cmocka_unit_test_setup_teardown(test_refused, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_subset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
