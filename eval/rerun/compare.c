/* compare.c - two reports, member by member; see compare.h. */
#define _GNU_SOURCE /* memmem */
#include "eval/rerun/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"

enum { WHERE = 200, PATH = 200 };

typedef struct {
    const kk_compare_opts *opts;
    kk_comparison *out;
    bool failed; /* no memory for a finding */
} comparing;

/* Where a member is, for a reader and for the rules. */
typedef struct {
    char where[WHERE], path[PATH];
} place;

/* ---- rules -------------------------------------------------------------------------------- */

static bool part_fits(const char *rule, size_t n, const char *part, size_t len) {
    if (n > 1 && rule[0] == '*' && rule[n - 1] == '*')
        return memmem(part, len, rule + 1, n - 2) != NULL;
    if (n && rule[n - 1] == '*') return len >= n - 1 && memcmp(rule, part, n - 1) == 0;
    if (n && rule[0] == '*')
        return len >= n - 1 && memcmp(rule + 1, part + len - (n - 1), n - 1) == 0;
    return n == len && memcmp(rule, part, n) == 0;
}

bool kk_member_fits(const char *rule, const char *path) {
    const size_t n = strcspn(rule, "/"), len = strcspn(path, "/");
    const char *next = rule[n] ? rule + n + 1 : "";
    if (!*rule) return !*path;
    if (n == 2 && rule[0] == '*' && rule[1] == '*') {
        if (kk_member_fits(next, path)) return true;
        return *path && kk_member_fits(rule, path[len] ? path + len + 1 : "");
    }
    if (!*path || !part_fits(rule, n, path, len)) return false;
    return kk_member_fits(next, path[len] ? path + len + 1 : "");
}

static kk_member_how how_of(const comparing *c, const place *p) {
    for (const kk_member_rule *r = c->opts->members; r && r->path; r++)
        if (kk_member_fits(r->path, p->path)) return r->how;
    return KK_MEMBER_EQUAL;
}

static const char *keys_of(const comparing *c, const place *p) {
    for (const kk_list_rule *r = c->opts->lists; r && r->path; r++)
        if (kk_member_fits(r->path, p->path)) return r->keys;
    return NULL;
}

/* ---- findings ----------------------------------------------------------------------------- */

static void short_text(char out[96], const json_t *v) {
    const json_t *median = json_object_get(v, "median");
    if (!v) {
        snprintf(out, 96, "nothing");
    } else if (json_is_number(median)) {
        snprintf(out, 96, "%.6g (%.6g to %.6g, n %.0f)", json_number_value(median),
                 json_number_value(json_object_get(v, "min")),
                 json_number_value(json_object_get(v, "max")),
                 json_number_value(json_object_get(v, "n")));
    } else {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
        snprintf(out, 96, "%.90s", text ? text : "?");
        free(text);
    }
}

static bool is_told(const comparing *c, kk_compared what, const char *where) {
    for (size_t i = 0; i < c->out->n; i++)
        if (c->out->finding[i].what == what && strcmp(c->out->finding[i].where, where) == 0)
            return true;
    return false;
}

/* What was not compared is told once for all rows. */
static void tell(comparing *c, kk_compared what, const place *p, const json_t *stored,
                 const json_t *rerun) {
    kk_comparison *out = c->out;
    const bool once = what == KK_COMPARED_LACKING || what == KK_COMPARED_PARTLY;
    if (c->failed || (once && is_told(c, what, p->path))) return;
    if (!kk_grow((void **)&out->finding, &out->cap, out->n + 1, sizeof *out->finding)) {
        c->failed = true;
        return;
    }
    kk_compare_finding *f = &out->finding[out->n++];
    *f = (kk_compare_finding){.what = what};
    snprintf(f->where, sizeof f->where, "%.199s", once ? p->path : p->where);
    short_text(f->stored, stored);
    short_text(f->rerun, rerun);
}

static void judge(comparing *c, const place *p, bool same, const json_t *stored,
                  const json_t *rerun) {
    c->out->compared++;
    if (same) return;
    c->out->different += !c->opts->other_device;
    tell(c, c->opts->other_device ? KK_COMPARED_SHOWN : KK_COMPARED_DIFFERENT, p, stored, rerun);
}

/* ---- values ------------------------------------------------------------------------------- */

static void compare(comparing *c, const place *p, const json_t *stored, const json_t *rerun);

static place below(const place *p, const char *key) {
    place q;
    snprintf(q.where, sizeof q.where, "%.140s%s%.58s", p->where, *p->where ? "." : "", key);
    snprintf(q.path, sizeof q.path, "%.140s%s%.58s", p->path, *p->path ? "/" : "", key);
    return q;
}

/* A number printed as 1 and as 1.0 is the same number. */
static bool same_scalar(const json_t *a, const json_t *b, double within) {
    if (!json_is_number(a) || !json_is_number(b)) return json_equal(a, b) == 1;
    const double x = json_number_value(a), y = json_number_value(b);
    const bool counts = json_is_integer(a) && json_is_integer(b);
    return x == y || (!counts && fabs(x - y) <= within * fmax(fabs(x), fabs(y)));
}

/* Workspace holds keys of restored rows that stay rebuilt (--key-cache), and which of them find a
 * place depends on how many forwards there were: on choices of the controller, who goes by time. */
static bool is_workspace(const place *p) {
    const size_t n = strlen(p->path);
    return n >= 10 && strcmp(p->path + n - 10, "/workspace") == 0;
}

/* What a number of bytes may be more than another, as a part of it. */
static double slack_of(const place *p) { return is_workspace(p) ? 0.02 : 0; }

static bool same_bytes(const place *p, const json_t *a, const json_t *b) {
    const double x = json_number_value(a), y = json_number_value(b);
    return json_is_integer(a) && json_is_integer(b) && fabs(x - y) <= slack_of(p) * x;
}

static void compare_objects(comparing *c, const place *p, const json_t *stored,
                            const json_t *rerun) {
    const char *key;
    json_t *member;
    /* jansson's iterators take no const, and change nothing. */
    json_object_foreach((json_t *)stored, key, member) {
        const place q = below(p, key);
        compare(c, &q, member, json_object_get(rerun, key));
    }
    json_object_foreach((json_t *)rerun, key, member) {
        const place q = below(p, key);
        if (json_object_get(stored, key) || how_of(c, &q) == KK_MEMBER_LEFT) continue;
        tell(c, KK_COMPARED_LACKING, &q, NULL, member);
    }
}

static void compare_places(comparing *c, const place *p, const json_t *stored,
                           const json_t *rerun) {
    const size_t n = json_array_size(stored), m = json_array_size(rerun);
    if (n != m) {
        judge(c, p, false, stored, rerun);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        place q = *p;
        snprintf(q.where, sizeof q.where, "%.170s[%zu]", p->where, i);
        compare(c, &q, json_array_get(stored, i), json_array_get(rerun, i));
    }
}

/* ---- lists whose entries have names -------------------------------------------------------- */

/* "restored 290": the members that name an entry. */
static void name_of(char *out, size_t cap, const json_t *entry, const char *keys) {
    size_t at = 0;
    out[0] = 0;
    while (*keys) {
        const size_t len = strcspn(keys, " ");
        char key[40], value[96];
        snprintf(key, sizeof key, "%.*s", (int)(len < 39 ? len : 39), keys);
        const json_t *v = json_object_get(entry, key);
        keys += len + (keys[len] == ' ');
        if (!v) continue;
        if (json_is_string(v))
            snprintf(value, sizeof value, "%.90s", json_string_value(v));
        else
            short_text(value, v);
        const int n = snprintf(out + at, cap - at, "%s%.60s", at ? " " : "", value);
        if (n < 0 || (size_t)n >= cap - at) return;
        at += (size_t)n;
    }
}

static const json_t *find(const json_t *list, const char *keys, const char *name, size_t *count) {
    const json_t *found = NULL;
    *count = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        char other[160];
        name_of(other, sizeof other, json_array_get(list, i), keys);
        if (strcmp(other, name) != 0) continue;
        if (!found) found = json_array_get(list, i);
        ++*count;
    }
    return found;
}

static void compare_named(comparing *c, const place *p, const char *keys, const json_t *stored,
                          const json_t *rerun) {
    char name[160];
    size_t count;
    for (size_t i = 0; i < json_array_size(rerun); i++) {
        const json_t *entry = json_array_get(rerun, i);
        place q = *p;
        name_of(name, sizeof name, entry, keys);
        snprintf(q.where, sizeof q.where, "%.100s[%.90s]", p->where, name);
        const json_t *was = find(stored, keys, name, &count);
        if (count == 1)
            compare(c, &q, was, entry);
        else
            judge(c, &q, false, was, entry); /* it is missing, or stands there twice */
    }
    for (size_t i = 0; !c->opts->drawn && i < json_array_size(stored); i++) {
        place q = *p;
        name_of(name, sizeof name, json_array_get(stored, i), keys);
        snprintf(q.where, sizeof q.where, "%.100s[%.90s]", p->where, name);
        (void)find(rerun, keys, name, &count);
        if (count == 0) judge(c, &q, false, json_array_get(stored, i), NULL);
    }
}

/* ---- one member ---------------------------------------------------------------------------- */

static void compare_equal(comparing *c, const place *p, const json_t *stored, const json_t *rerun) {
    if (json_is_object(stored) && json_is_object(rerun)) {
        compare_objects(c, p, stored, rerun);
    } else if (json_is_array(stored) && json_is_array(rerun)) {
        const char *keys = keys_of(c, p);
        if (keys)
            compare_named(c, p, keys, stored, rerun);
        else
            compare_places(c, p, stored, rerun);
    } else {
        const bool same =
            rerun && (same_scalar(stored, rerun, c->opts->within) || same_bytes(p, stored, rerun));
        judge(c, p, same, stored, rerun);
    }
}

/* The numbers of an object, or one number: none of the rerun is more than the report's. */
static void compare_most(comparing *c, const place *p, const json_t *stored, const json_t *rerun) {
    const char *key;
    json_t *member;
    if (json_is_object(stored) && json_is_object(rerun)) {
        json_object_foreach((json_t *)stored, key, member) {
            const place q = below(p, key);
            compare_most(c, &q, member, json_object_get(rerun, key));
        }
        return;
    }
    const bool fits = json_is_number(stored) && json_is_number(rerun) &&
                      json_number_value(rerun) <= (1 + slack_of(p)) * json_number_value(stored);
    judge(c, p, fits, stored, rerun);
}

static void compare(comparing *c, const place *p, const json_t *stored, const json_t *rerun) {
    kk_member_how how = how_of(c, p);
    if (how == KK_MEMBER_DRAFTED_TOTAL) how = c->opts->drawn ? KK_MEMBER_TOTAL : KK_MEMBER_DRAFTED;
    if (how == KK_MEMBER_DRAFTED) how = c->opts->free_drafts ? KK_MEMBER_SHOWN : KK_MEMBER_EQUAL;
    if (how == KK_MEMBER_TOTAL && !c->opts->drawn) how = KK_MEMBER_EQUAL;
    if (how == KK_MEMBER_MOST && !c->opts->drawn) how = KK_MEMBER_EQUAL;
    switch (how) {
    case KK_MEMBER_LEFT: return;
    case KK_MEMBER_TOTAL:
        if (!json_is_null(stored)) tell(c, KK_COMPARED_PARTLY, p, stored, rerun);
        return;
    case KK_MEMBER_MOST: compare_most(c, p, stored, rerun); return;
    case KK_MEMBER_TIMED:
        if (json_is_null(stored) && json_is_null(rerun)) return;
        tell(c, KK_COMPARED_TIMED, p, stored, rerun);
        return;
    case KK_MEMBER_SHOWN:
        if (!rerun || json_equal(stored, rerun) != 1) tell(c, KK_COMPARED_SHOWN, p, stored, rerun);
        return;
    case KK_MEMBER_DRAFTED:
    case KK_MEMBER_DRAFTED_TOTAL:
    case KK_MEMBER_EQUAL: compare_equal(c, p, stored, rerun); return;
    }
}

kk_status kk_compare(const json_t *stored, const json_t *rerun, const kk_compare_opts *opts,
                     kk_comparison *out, kk_err *err) {
    *out = (kk_comparison){.n = 0};
    comparing c = {.opts = opts, .out = out};
    const place root = {.where = "", .path = ""};
    compare(&c, &root, stored, rerun);
    if (!c.failed) return KK_OK;
    kk_comparison_release(out);
    return kk_fail(err, KK_ENOMEM, "no memory for what was compared");
}

void kk_comparison_release(kk_comparison *c) {
    kk_free(c->finding);
    *c = (kk_comparison){.n = 0};
}
