/* report_test.c - what all reports say of themselves, which files a folder means, and the page:
 * whole, self-contained, and safe from what stands in a report. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/file.h"
#include "eval/reports/page.h"
#include "eval/reports/report.h"
#include "support/ok.h"
#include "support/scratch.h"

/* ---- the envelope ------------------------------------------------------------------------- */

static void test_envelope(void **state) {
    (void)state;
    const char *key;
    json_t *v, *report = kk_report_new("kv", json_pack("{s:i}", "rows", 3));
    const char *const order[] = {"schema", "kind", "version", "date", "rows"};
    size_t i = 0;
    json_object_foreach(report, key, v) assert_string_equal(key, order[i++]);
    assert_int_equal(i, 5);
    assert_int_equal(json_integer_value(json_object_get(report, "schema")), KK_REPORT_SCHEMA);
    json_decref(report);
    assert_null(kk_report_new("kv", NULL));
    assert_null(kk_report_join(NULL, json_object()));
}

static void test_run(void **state) {
    (void)state;
    const kk_engine_opts o = {.synthetic = "tiny:f32", .drafter = "synthetic", .threads = 1};
    kk_engine *e;
    kk_fingerprints prints;
    assert_ok(kk_engine_open(&e, &o, why));
    kk_engine_fingerprints(e, &prints);
    assert_true(prints.model && prints.drafter && !prints.projection);
    json_t *run = kk_report_run(e, &o, "a command");
    kk_engine_close(e);
    const json_t *model = json_object_get(run, "model");
    char print[17];
    snprintf(print, sizeof print, "%016llx", (unsigned long long)prints.model);
    assert_string_equal(json_string_value(json_object_get(model, "fingerprint")), print);
    assert_true(json_is_true(json_object_get(model, "synthetic")));
    assert_string_equal(json_string_value(json_object_get(run, "command")), "a command");
    snprintf(print, sizeof print, "%016llx", (unsigned long long)prints.drafter);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(run, "drafter"), "fingerprint")), print);
    assert_true(json_is_null(json_object_get(run, "projection")));
    json_decref(run);
}

static double of(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static void test_spread(void **state) {
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2};
    json_t *s = kk_report_spread(odd, 3);
    assert_true(of(s, "median") == 3 && of(s, "min") == 1 && of(s, "max") == 5 && of(s, "n") == 3);
    json_decref(s);
    s = kk_report_spread(even, 4);
    assert_true(of(s, "median") == 2.5 && of(s, "max") == 4);
    json_decref(s);
    s = kk_report_spread(NULL, 0);
    assert_true(json_is_null(s));
    json_decref(s);
    json_t *none = kk_report_hash(0);
    assert_true(json_is_null(none));
}

/* ---- files -------------------------------------------------------------------------------- */

static void test_files(void **state) {
    scratch *s = *state;
    char folder[512], path[640];
    snprintf(folder, sizeof folder, "%s", scratch_path(s, "tree"));
    mkdir(folder, 0700);
    static const char *const names[] = {"b.json", "a.json", "notes.txt", ".hidden.json", ".json"};
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        scratch_write(path, "{}", 2);
    }
    snprintf(path, sizeof path, "%s/deep", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/deep/c.json", folder);
    scratch_write(path, "{}", 2);
    snprintf(path, sizeof path, "%s/deep/up", folder);
    assert_int_equal(symlink("..", path), 0);
    kk_report_files f = {0};
    assert_ok(kk_report_files_add(&f, folder, why));
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    assert_ok(kk_report_files_add(&f, path, why));
    assert_int_equal(f.n, 4);
    static const char *const found[] = {"/a.json", "/b.json", "/deep/c.json", "/notes.txt"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(f.path[i] + strlen(folder), found[i]);
        assert_int_equal(f.found[i], i < 3);
    }
    kk_report_files_free(&f);
}

/* ---- the page ----------------------------------------------------------------------------- */

typedef struct {
    kk_verdict verdict[12];
    kk_page_report report[12];
    size_t n;
    char *html;
    size_t len;
} page;

static void add_text(page *p, const char *path, const char *text) {
    assert_ok(kk_gate_check(text, strlen(text), &p->verdict[p->n], why));
    p->report[p->n] = (kk_page_report){.path = path, .verdict = &p->verdict[p->n]};
    p->n++;
}

static void make(page *p) { assert_ok(kk_page_make(p->report, p->n, &p->html, &p->len, why)); }

static void release(page *p) {
    kk_free(p->html);
    for (size_t i = 0; i < p->n; i++) kk_verdict_release(&p->verdict[i]);
}

static size_t count(const char *text, const char *word) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) n++;
    return n;
}

static void has(const page *p, const char *word) {
    if (!strstr(p->html, word)) fail_msg("'%s' is not on the page", word);
}

/* Every element that is opened is closed, in order. */
static void check_nesting(const char *html) {
    const char *open[64];
    size_t len[64], depth = 0;
    for (const char *at = strchr(html, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        assert_non_null(end);
        const bool closes = at[1] == '/';
        const char *name = at + 1 + closes;
        const size_t n = strcspn(name, " />");
        if (*name == '!' || end[-1] == '/' || strncmp(name, "meta", 4) == 0) continue;
        if (!closes) {
            assert_true(depth < 64);
            open[depth] = name;
            len[depth++] = n;
            continue;
        }
        assert_true(depth > 0);
        depth--;
        if (len[depth] != n || strncmp(open[depth], name, n) != 0)
            fail_msg("<%.*s> is closed by </%.*s>", (int)len[depth], open[depth], (int)n, name);
    }
    assert_int_equal(depth, 0);
}

static void test_page(void **state) {
    static const char *const kinds[] = {"bench",  "needle",  "accept",   "sweep",     "kv",
                                        "memory", "compare", "lossless", "projection"};
    (void)state;
    page p = {.n = 0};
    for (size_t i = 0; i < 9; i++) {
        char path[300], *text;
        size_t len;
        snprintf(path, sizeof path, "%s/reports/%s.json", KK_TEST_DATA, kinds[i]);
        assert_ok(kk_file_read(path, 1 << 20, &text, &len, why));
        add_text(&p, kinds[i], text);
        kk_free(text);
    }
    make(&p);
    assert_int_equal(strlen(p.html), p.len);
    check_nesting(p.html);
    has(&p, "9 reports: 9 hold, 0 legacy, 0 refused");
    has(&p, "prefers-color-scheme:dark");
    has(&p, "width=device-width");
    /* Plots of every sort. */
    has(&p, "Recall in percent, restored");
    has(&p, "KL against exact decoding");
    has(&p, "K/V and latents against context");
    has(&p, "Time per round");
    has(&p, "Tokens per second");
    assert_true(count(p.html, "<svg ") >= 12);
    /* Nothing from elsewhere. */
    static const char *const foreign[] = {"http:", "https:",  " src=", "@import",
                                          "url(",  "<script", "<link"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strstr(p.html, foreign[i])) fail_msg("the page has '%s' in it", foreign[i]);
    assert_null(strstr(p.html, "nan"));
    assert_null(strstr(p.html, "inf\""));
    release(&p);
}

/* A report is text from elsewhere: none of it becomes a mark. */
static void test_hostile(void **state) {
    (void)state;
    page p = {.n = 0};
    add_text(&p, "<img>&'\"",
             "{\"schema\": 1, \"kind\": \"needle\", \"version\": \"</style><script>x</script>\","
             "\"command\": \"a\\u0007b<b>\", \"model\": {\"source\": \"<script>\", \"synthetic\": "
             "true}, \"rungs\": [{\"arm\": \"<i>\", \"recall\": 1e300, \"tokens\": 1e308, \"rows\":"
             "[{\"depth\": -1e300, \"hit\": true, \"answer\": \"x\"}], \"bytes\": {\"kv.full\": "
             "1e308}}, {\"arm\": \"<i>\", \"tokens\": -1e308}], \"quality\": [{\"arm\": \"<u>\"}],"
             "\"sums\": [{\"arm\": \"<u>\", \"mean_kl\": 1e-300, \"worst_kl\": 1e300}]}");
    add_text(&p, "broken", "{");
    make(&p);
    check_nesting(p.html);
    assert_null(strstr(p.html, "<script"));
    assert_null(strstr(p.html, "<img"));
    assert_null(strstr(p.html, "<i>"));
    assert_null(strchr(p.html, 7));
    has(&p, "&lt;img&gt;&amp;&#39;&quot;");
    has(&p, "random weights");
    has(&p, "Refused by the gate");
    has(&p, "NOT_JSON");
    has(&p, "0 hold, 0 legacy, 2 refused");
    release(&p);
}

static void test_labels(void **state) {
    (void)state;
    page p = {.n = 0};
    add_text(&p, "old.json",
             "{\"kind\": \"bench\", \"model\": {\"synthetic\": true, \"format\": \"synthetic\"}, "
             "\"settings\": {\"accept_trace\": {\"kind\": \"geom\"}}}");
    make(&p);
    has(&p, "old.json, random weights, replayed acceptance</h2>");
    has(&p, "supports no new claim");
    release(&p);
}

/* An honest report of a failed run is failed in the list, whatever the gate says of its honesty. */
static void test_failed_runs(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } runs[] = {
        {"{\"kind\": \"needle\", \"gate\": {\"holds\": false}}", "failed: the run failed its own"},
        {"{\"kind\": \"lossless\", \"mismatches\": 2}", "failed: drafted and plain decoding"},
        {"{\"kind\": \"bench\", \"sets\": [{\"arms\": {\"ngram\": {\"lossless\": false}}}]}",
         "failed: drafting changed"},
        {"{\"kind\": \"bench\", \"sessions\": {\"identical\": false}}",
         "failed: sessions together"},
        {"{\"kind\": \"sweep\", \"identity\": false}", "failed: alpha 1"},
        {"{\"kind\": \"needle\", \"gate\": {\"holds\": true}}", NULL},
        {"{\"kind\": \"bench\", \"arms\": {\"ngram\": {\"lossless\": true}}}", NULL},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        page p = {.n = 0};
        add_text(&p, "run.json", runs[i].text);
        make(&p);
        check_nesting(p.html);
        assert_int_equal(count(p.html, "<td class=\"refused\">failed: "), runs[i].says != NULL);
        assert_int_equal(count(p.html, "; 1 of a run that failed"), runs[i].says != NULL);
        if (runs[i].says) has(&p, runs[i].says);
        release(&p);
    }
}

static void test_page_no_memory(void **state) {
    (void)state;
    page p = {.n = 0};
    add_text(&p, "a", "{\"kind\": \"sweep\", \"rows\": [{\"alpha\": 1, \"recall\": 1}]}");
    const int64_t live = kk_live_bytes();
    bool whole = false;
    for (int64_t n = 1; !whole; n++) {
        kk_err err;
        kk_fault_after(n, true);
        const kk_status st = kk_page_make(p.report, p.n, &p.html, &p.len, &err);
        kk_fault_after(0, false);
        whole = st == KK_OK;
        kk_free(p.html);
        p.html = NULL;
        assert_true(st == KK_OK || st == KK_ENOMEM);
        assert_int_equal(kk_live_bytes(), live);
    }
    release(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_envelope),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_spread),
        cmocka_unit_test_setup_teardown(test_files, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_failed_runs),
        cmocka_unit_test(test_page_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
