/* gate.c - how a report is taken through the rules of its kind; see gate.h. */
#define _GNU_SOURCE
#include "eval/reports/gate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/file.h"
#include "eval/reports/gate_kinds.h"
#include "eval/reports/report.h"

#define ADDRESS(name) &kk_kind_##name,
static const kk_gate_kind *const own_kinds[] = {KK_GATE_KINDS(ADDRESS)};
enum { KINDS = sizeof own_kinds / sizeof *own_kinds };

/* What every report is held to, whatever its kind. */
static const kk_gate_group *const common[] = {
    &kk_group_envelope, &kk_group_exact,  &kk_group_members, &kk_group_values, &kk_group_answers,
    &kk_group_quality,  &kk_group_checks, &kk_group_rates,   &kk_group_bytes,  &kk_group_lossless,
    &kk_group_plan,     &kk_group_shares, &kk_group_words,
};
enum { COMMON = sizeof common / sizeof *common };

/* ---- the list of rules -------------------------------------------------------------------- */

static bool in_group(const kk_gate_group *group, const char *code) {
    for (size_t i = 0; i < group->n; i++)
        if (strcmp(group->rule[i].code, code) == 0) return true;
    return false;
}

static bool in_kind(const kk_gate_kind *kind, const char *code) {
    for (size_t i = 0; i < kind->n_groups; i++)
        if (in_group(kind->group[i], code)) return true;
    return false;
}

typedef bool (*rule_fn)(void *user, const kk_gate_entry *rule);

static bool each_of(const kk_gate_group *group, rule_fn fn, void *user) {
    for (size_t i = 0; i < group->n; i++)
        if (!fn(user, &group->rule[i])) return false;
    return true;
}

/* Every rule once; fn stops it with false. */
static void each_rule(rule_fn fn, void *user) {
    for (size_t i = 0; i < COMMON; i++)
        if (!each_of(common[i], fn, user)) return;
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 0; i < own_kinds[k]->n_groups; i++) {
            const kk_gate_group *group = own_kinds[k]->group[i];
            bool seen = false;
            for (size_t j = 0; j < k; j++) seen |= in_kind(own_kinds[j], group->rule[0].code);
            if (!seen && !each_of(group, fn, user)) return;
        }
}

static bool count_one(void *user, const kk_gate_entry *rule) {
    (void)rule;
    ++*(size_t *)user;
    return true;
}

size_t kk_gate_count(void) {
    size_t n = 0;
    each_rule(count_one, &n);
    return n;
}

typedef struct {
    size_t left;
    const kk_gate_entry *found;
} nth;

static bool find_nth(void *user, const kk_gate_entry *rule) {
    nth *n = user;
    if (n->left--) return true;
    n->found = rule;
    return false;
}

kk_gate_rule kk_gate_rule_at(size_t i) {
    nth n = {.left = i};
    each_rule(find_nth, &n);
    kk_gate_rule r = {.code = n.found->code, .text = n.found->text};
    size_t at = 0;
    for (size_t k = 0; k < KINDS; k++)
        if (in_kind(own_kinds[k], r.code) && at < sizeof r.kinds)
            at += (size_t)snprintf(r.kinds + at, sizeof r.kinds - at, "%s%s", at ? " " : "",
                                   own_kinds[k]->name);
    return r;
}

/* ---- findings ----------------------------------------------------------------------------- */

static kk_finding *add(kk_gate *g) {
    kk_verdict *v = g->verdict;
    if (!kk_grow((void **)&v->finding, &v->cap, v->n + 1, sizeof *v->finding)) {
        g->status = KK_ENOMEM;
        return NULL;
    }
    kk_finding *f = &v->finding[v->n++];
    *f = (kk_finding){.code = g->code};
    v->violations++;
    return f;
}

void kk_gate_say(kk_gate *g, const char *fmt, ...) {
    if (++g->said > KK_GATE_MOST_SAID) return;
    kk_finding *f = add(g);
    if (!f) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
}

static void say_rest(kk_gate *g) {
    if (g->said <= KK_GATE_MOST_SAID) return;
    kk_finding *f = add(g);
    if (f) snprintf(f->text, sizeof f->text, "and %zu more of these", g->said - KK_GATE_MOST_SAID);
}

/* ---- a report ----------------------------------------------------------------------------- */

static void apply_group(kk_gate *g, const kk_gate_group *group) {
    for (size_t i = 0; i < group->n; i++) {
        g->code = group->rule[i].code;
        g->said = 0;
        group->rule[i].check(g);
        say_rest(g);
    }
}

static void apply(kk_gate *g) {
    for (size_t i = 0; i < COMMON; i++) apply_group(g, common[i]);
    for (size_t i = 0; i < g->kind->n_groups; i++) apply_group(g, g->kind->group[i]);
}

/* What keeps the rules from being asked at all.  Always false. */
static bool refuse(kk_gate *g, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static bool refuse(kk_gate *g, const char *code, const char *fmt, ...) {
    g->code = code;
    kk_finding *f = add(g);
    if (!f) return false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
    return false;
}

static bool blank(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\n", text[i])) return false;
    return true;
}

/* The size is judged before anything is parsed: a parsed value takes a hundred times the bytes of
 * its text.  Commas and brackets within strings are counted too, which is no harm: a report has
 * few of them. */
static bool check_size(kk_gate *g, const char *text, size_t len) {
    size_t values = 0;
    if (len > KK_GATE_MOST_BYTES)
        return refuse(g, "TOO_LARGE", "it has %zu bytes, and %d is the most of a report", len,
                      KK_GATE_MOST_BYTES);
    for (size_t i = 0; i < len; i++) values += text[i] == ',' || text[i] == '{' || text[i] == '[';
    if (values > KK_GATE_MOST_VALUES)
        return refuse(g, "TOO_LARGE", "it has about %zu values, and %d is the most of a report",
                      values, KK_GATE_MOST_VALUES);
    return true;
}

/* The longest list: rules compare entries of a list with one another. */
static size_t longest(const json_t *v) {
    size_t most = json_array_size(v), i;
    const char *key;
    json_t *member;
    json_array_foreach(v, i, member) {
        const size_t n = longest(member);
        if (n > most) most = n;
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        const size_t n = longest(member);
        if (n > most) most = n;
    }
    return most;
}

static bool parse(kk_gate *g, const char *text, size_t len) {
    json_error_t e;
    kk_verdict *v = g->verdict;
    if (!check_size(g, text, len)) return false;
    if (blank(text, len)) return refuse(g, "EMPTY_FILE", "there is nothing in it");
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return refuse(g, "NOT_JSON", "not JSON at line %d, column %d: %s", e.line, e.column,
                      e.text);
    if (!json_is_object(root)) {
        json_decref(root);
        v->other = true;
        return refuse(g, "NOT_A_REPORT", "it holds no JSON object");
    }
    v->report = root;
    g->report = root;
    const size_t entries = longest(root);
    if (entries > KK_GATE_MOST_ENTRIES)
        return refuse(g, "TOO_LARGE", "a list has %zu entries, and %d is the most of a report",
                      entries, KK_GATE_MOST_ENTRIES);
    return true;
}

static bool read_schema(kk_gate *g) {
    const json_t *schema = json_object_get(g->report, "schema");
    if (!schema && !json_object_get(g->report, "kind")) {
        g->verdict->other = true;
        return refuse(g, "NOT_A_REPORT", "it says neither its `schema` nor its `kind`");
    }
    if (!json_is_integer(schema) || json_integer_value(schema) < 1)
        return refuse(g, "BAD_SCHEMA", "`schema` is no number from 1");
    const json_int_t n = json_integer_value(schema);
    if (n > KK_REPORT_SCHEMA)
        return refuse(g, "FUTURE_SCHEMA",
                      "schema %lld is newer than this program, which knows %d: check it with "
                      "the version that wrote it",
                      (long long)n, KK_REPORT_SCHEMA);
    return true;
}

static bool read_kind(kk_gate *g, const kk_gate_kind *const *kinds, size_t n) {
    const char *kind = kk_gate_text(g->report, "kind");
    if (!*kind) return refuse(g, "NOT_A_REPORT", "it does not say its `kind`");
    snprintf(g->verdict->kind, sizeof g->verdict->kind, "%s", kind);
    for (size_t i = 0; i < n; i++)
        if (strcmp(kind, kinds[i]->name) == 0) g->kind = kinds[i];
    if (!g->kind)
        return refuse(g, "UNKNOWN_KIND", "there are no reports of the kind '%.40s'", kind);
    if (g->kind->n_members == 0 || g->kind->n_groups == 0)
        return refuse(g, "KIND_WITHOUT_RULES", "nothing is known that holds of the kind '%.40s'",
                      kind);
    return true;
}

kk_status kk_gate_check_kinds(const kk_gate_kind *const *kinds, size_t n_kinds, const char *text,
                              size_t len, kk_verdict *out, kk_err *err) {
    *out = (kk_verdict){0};
    kk_gate g = {.verdict = out};
    if (parse(&g, text, len) && read_schema(&g) && read_kind(&g, kinds, n_kinds)) {
        g.older = kk_gate_is_older(g.report);
        apply(&g);
    }
    if (g.status == KK_OK) return KK_OK;
    kk_verdict_release(out);
    return kk_fail(err, KK_ENOMEM, "no memory for what is wrong with a report");
}

kk_status kk_gate_check(const char *text, size_t len, kk_verdict *out, kk_err *err) {
    return kk_gate_check_kinds(own_kinds, KINDS, text, len, out, err);
}

/* A file over the limit is not even read. */
static bool too_large(const char *path, kk_verdict *out) {
    struct stat st;
    kk_gate g = {.verdict = out};
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= KK_GATE_MOST_BYTES)
        return false;
    (void)refuse(&g, "TOO_LARGE", "it has %lld bytes, and %d is the most of a report",
                 (long long)st.st_size, KK_GATE_MOST_BYTES);
    return true;
}

kk_status kk_gate_file(const char *path, kk_verdict *out, kk_err *err) {
    char *text;
    size_t len;
    *out = (kk_verdict){0};
    if (too_large(path, out)) return KK_OK;
    KK_TRY(kk_file_read(path, KK_GATE_MOST_BYTES, &text, &len, err));
    const kk_status st = kk_gate_check(text, len, out, err);
    kk_free(text);
    return st;
}

void kk_verdict_release(kk_verdict *v) {
    json_decref(v->report);
    kk_free(v->finding);
    *v = (kk_verdict){0};
}

const char *kk_verdict_word(const kk_verdict *v) { return v->violations ? "refused" : "holds"; }
