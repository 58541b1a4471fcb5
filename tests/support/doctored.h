/* doctored.h - reports with one lie in them.
 *
 * A true report is read from a file, edited by the least change that tells the lie, and judged. */
#ifndef KK_TEST_DOCTORED_H
#define KK_TEST_DOCTORED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/reports/gate.h"
#include "eval/reports/report.h"
#include "support/ok.h"

static json_t *read_good(const char *kind) {
    char path[300];
    if (strchr(kind, '/'))
        snprintf(path, sizeof path, "%s/../../%s", KK_TEST_DATA, kind);
    else
        snprintf(path, sizeof path, "%s/reports/%s.json", KK_TEST_DATA, kind);
    json_t *report = json_load_file(path, 0, NULL);
    if (!report) fail_msg("cannot read %s", path);
    return report;
}

/* "kind": that of tests/data/reports; otherwise a path from the root of the tree.  A file is read
 * once, and stays in a static table until the program ends. */
static inline json_t *good(const char *kind) {
    enum { MOST = 16 };
    static json_t *known[MOST];
    static const char *name[MOST];
    size_t i = 0;
    while (i < MOST && known[i] && strcmp(name[i], kind) != 0) i++;
    assert_true(i < MOST);
    if (!known[i]) known[i] = read_good(kind);
    name[i] = kind;
    return json_deep_copy(known[i]);
}

/* With all digits: limits are tried on both sides. */
static inline kk_verdict judge(const json_t *report) {
    char *text = json_dumps(report, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    kk_verdict v;
    assert_ok(kk_gate_check(text, strlen(text), &v, why));
    free(text);
    return v;
}

/* ---- doctoring ---------------------------------------------------------------------------- */

static json_t *at(json_t *from, const char *path) {
    char step[80];
    while (*path && from) {
        const size_t len = strcspn(path, "/");
        snprintf(step, sizeof step, "%.*s", (int)len, path);
        from = json_is_array(from) ? json_array_get(from, (size_t)atoi(step))
                                   : json_object_get(from, step);
        path += len + (path[len] == '/');
    }
    return from;
}

/* Puts value in place of what the path leads to, or takes that away when there is none.  A '*' is
 * every entry of a list. */
static void put(json_t *in, const char *path, json_t *value) {
    char step[80];
    const size_t len = strcspn(path, "/");
    const bool last = path[len] == 0;
    snprintf(step, sizeof step, "%.*s", (int)len, path);
    if (strcmp(step, "*") == 0) {
        for (size_t i = 0; i < json_array_size(in); i++) {
            char deeper[120];
            snprintf(deeper, sizeof deeper, "%zu%s%s", i, last ? "" : "/", path + len + !last);
            put(in, deeper, value);
        }
    } else if (!last) {
        put(at(in, step), path + len + 1, value);
    } else if (json_is_array(in)) {
        const size_t i = (size_t)atoi(step);
        if ((value ? json_array_set(in, i, value) : json_array_remove(in, i)) != 0)
            fail_msg("there is no entry '%s'", path);
    } else {
        if ((value ? json_object_set(in, step, value) : json_object_del(in, step)) != 0)
            fail_msg("there is no member '%s'", path);
    }
}

/* One edit: "path = JSON", "path = @other/path" (a copy), or "path" alone (taken away). */
static void edit(json_t *report, const char *text, size_t len) {
    char line[800], *value = NULL;
    assert_true(len < sizeof line);
    snprintf(line, sizeof line, "%.*s", (int)len, text);
    char *sign = strstr(line, " = ");
    if (sign) {
        *sign = 0;
        value = sign + 3;
    }
    json_t *v = !value          ? NULL
                : *value == '@' ? json_deep_copy(at(report, value + 1))
                                : json_loads(value, JSON_DECODE_ANY, NULL);
    if (value && !v) fail_msg("'%s' is no JSON", value);
    put(report, line, v);
    json_decref(v);
}

static inline json_t *doctored(const char *kind, const char *edits) {
    json_t *report = good(kind);
    while (*edits) {
        const size_t len = strcspn(edits, ";");
        edit(report, edits, len);
        edits += len;
        edits += strspn(edits, "; ");
    }
    return report;
}

/* ---- judging ------------------------------------------------------------------------------ */

typedef struct {
    const char *kind, *edits, *codes; /* those it is refused with, all of them */
} lie;

static inline bool has(const kk_verdict *v, const char *code) {
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->finding[i].code, code) == 0) return true;
    return false;
}

/* Whether the word stands in the list of words. */
static inline bool listed(const char *list, const char *word) {
    const size_t len = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += len)
        if ((p == list || p[-1] == ' ') && (p[len] == ' ' || !p[len])) return true;
    return false;
}

static inline void print_findings(const kk_verdict *v) {
    for (size_t i = 0; i < v->n; i++)
        print_message("  %s: %s\n", v->finding[i].code, v->finding[i].text);
}

/* Whether it is refused with every code that stands beside it, and with no other. */
static inline bool is_caught(const lie *l) {
    json_t *report = doctored(l->kind, l->edits);
    kk_verdict v = judge(report);
    bool caught = v.violations > 0;
    char code[40];
    for (const char *at = l->codes; *at; at += strspn(at, " ")) {
        const size_t len = strcspn(at, " ");
        snprintf(code, sizeof code, "%.*s", (int)len, at);
        caught &= has(&v, code);
        at += len;
    }
    for (size_t i = 0; i < v.n; i++) caught &= listed(l->codes, v.finding[i].code);
    if (!caught) {
        print_message("%s: %s\n  should give: %s\n", l->kind, l->edits, l->codes);
        print_findings(&v);
    }
    kk_verdict_release(&v);
    json_decref(report);
    return caught;
}

static inline void check_lies(const lie *lies, size_t n) {
    size_t missed = 0;
    for (size_t i = 0; i < n; i++) {
        missed += !is_caught(&lies[i]);
#ifdef KK_MUTANTS /* one is enough, and there are many mutants */
        if (missed) break;
#endif
    }
    if (missed)
        fail_msg("%zu of %zu doctored reports are not refused as they should be", missed, n);
}

/* A report of the tree or of the tests that is true. */
static inline void check_holds(const char *kind) {
    json_t *report = good(kind);
    kk_verdict v = judge(report);
    if (v.n) print_findings(&v);
    assert_int_equal(v.n, 0);
    kk_verdict_release(&v);
    json_decref(report);
}

#endif
