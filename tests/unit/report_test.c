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
    const char *const order[] = {"schema", "kind", "version", "build", "date", "rows"};
    size_t i = 0;
    json_object_foreach(report, key, v) assert_string_equal(key, order[i++]);
    assert_int_equal(i, 6);
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

/* The JSON that the page carries, parsed; the caller's to release. */
static json_t *embedded(const page *p) {
    static const char begin[] = "<script type=\"application/json\" id=\"reports\">";
    const char *from = strstr(p->html, begin);
    assert_non_null(from);
    from += strlen(begin);
    const char *to = strstr(from, "</script>");
    assert_non_null(to);
    for (const char *at = from; at < to; at++)
        if (strchr("<>&", *at)) fail_msg("'%c' stands in the JSON: %.40s", *at, at);
    json_error_t error;
    json_t *data = json_loadb(from, (size_t)(to - from), JSON_REJECT_DUPLICATES, &error);
    if (!data) fail_msg("no JSON at %d: %s", error.position, error.text);
    return data;
}

static const json_t *entry(const json_t *data, size_t i) {
    return json_array_get(json_object_get(data, "reports"), i);
}

static const char *word(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

/* Every report as it was read, with its verdict, in a page that asks for nothing from elsewhere. */
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
    json_t *data = embedded(&p);
    assert_string_equal(word(data, "version"), kk_version());
    assert_int_equal(json_array_size(json_object_get(data, "reports")), 9);
    for (size_t i = 0; i < 9; i++) {
        const json_t *e = entry(data, i);
        assert_string_equal(word(e, "path"), kinds[i]);
        assert_string_equal(word(e, "kind"), kinds[i]);
        assert_string_equal(word(e, "verdict"), "holds");
        assert_true(json_is_null(json_object_get(e, "failure")));
        assert_true(json_equal(json_object_get(e, "report"), p.verdict[i].report));
    }
    json_decref(data);
    /* The policy lets the page's own script and style run, and nothing be fetched. */
    has(&p, "default-src 'none'; script-src 'sha256-");
    has(&p, "; style-src 'sha256-");
    static const char *const foreign[] = {" src=", "@import", "url(",   "<link",
                                          "eval(", "@SCRIPT", "@STYLE", "innerHTML"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strstr(p.html, foreign[i])) fail_msg("the page has '%s' in it", foreign[i]);
    assert_int_equal(count(p.html, "<script"), 2);
    release(&p);
}

/* A report is text from elsewhere: none of it becomes a mark. */
static void test_hostile(void **state) {
    static const char text[] =
        "{\"schema\": 1, \"kind\": \"needle\", \"version\": \"</style></script><img src=x>\","
        "\"command\": \"a\\u0007b<!--<script>\", \"<i>&\": \"\\ud83d\\ude00\", \"n\": 1e308}";
    (void)state;
    page p = {.n = 0};
    add_text(&p, "<img>&'\"\\\n\xff\xc3\xa9", text);
    add_text(&p, "broken", "{\"a\": </script>");
    make(&p);
    assert_int_equal(count(p.html, "<script"), 2);
    assert_int_equal(count(p.html, "</script"), 2);
    assert_null(strstr(p.html, "<img"));
    assert_null(strchr(p.html, 7));
    json_t *data = embedded(&p);
    assert_string_equal(word(entry(data, 0), "path"), "<img>&'\"\\\n\xef\xbf\xbd\xc3\xa9");
    assert_string_equal(word(entry(data, 0), "verdict"), "refused");
    assert_true(json_equal(json_object_get(entry(data, 0), "report"), p.verdict[0].report));
    const json_t *found = json_array_get(json_object_get(entry(data, 1), "findings"), 0);
    assert_string_equal(word(found, "code"), "NOT_JSON");
    assert_string_equal(word(found, "text"), p.verdict[1].finding[0].text);
    assert_true(json_is_null(json_object_get(entry(data, 1), "report")));
    json_decref(data);
    release(&p);
}

/* An honest report of a failed run is marked as failed, whatever the gate says of its honesty. */
static void test_failed_runs(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } runs[] = {
        {"{\"kind\": \"needle\", \"gate\": {\"holds\": false}}", "the run failed its own"},
        {"{\"kind\": \"lossless\", \"mismatches\": 2}", "drafted and plain decoding"},
        {"{\"kind\": \"bench\", \"sets\": [{\"arms\": {\"ngram\": {\"lossless\": false}}}]}",
         "drafting changed"},
        {"{\"kind\": \"bench\", \"sessions\": {\"identical\": false}}", "sessions together"},
        {"{\"kind\": \"sweep\", \"identity\": false}", "alpha 1"},
        {"{\"kind\": \"needle\", \"gate\": {\"holds\": true}}", NULL},
        {"{\"kind\": \"bench\", \"arms\": {\"ngram\": {\"lossless\": true}}}", NULL},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        page p = {.n = 0};
        add_text(&p, "run.json", runs[i].text);
        make(&p);
        json_t *data = embedded(&p);
        const char *failure = word(entry(data, 0), "failure");
        if (runs[i].says ? strncmp(failure, runs[i].says, strlen(runs[i].says)) != 0 : *failure)
            fail_msg("%s: '%s'", runs[i].text, failure);
        json_decref(data);
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
        cmocka_unit_test(test_failed_runs),
        cmocka_unit_test(test_page_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
