/* gate_members.c - rules about the members that a kind of reports needs: that they are there, that
 * they are of the right type, that counts are whole and that times passed.
 *
 * A kind lists its members by their paths (gate_rules.h).  Each rule here walks all of these paths
 * and speaks of one fault. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

typedef enum { FINE, MISSING, OTHER_TYPE, BROKEN, NOT_POSITIVE } fault;

enum { WHERE = 160, STEP = 40 };

/* Where a member stands.  It is written out for what is found alone. */
typedef struct place {
    const struct place *in; /* NULL: the report */
    const char *name;       /* NULL: an entry of a list */
    size_t entry;
} place;

static void write_place(const place *p, char *out) {
    *out = 0;
    if (!p->in) return;
    write_place(p->in, out);
    const size_t n = strlen(out);
    if (p->name)
        snprintf(out + n, WHERE - n, "%s%.36s", n ? "." : "", p->name);
    else
        snprintf(out + n, WHERE - n, "[%zu]", p->entry);
}

static bool is_hash(const json_t *v) {
    const char *s = json_string_value(v);
    return s && strlen(s) == 16 && strspn(s, "0123456789abcdef") == 16;
}

static fault judge_number(const json_t *v, kk_member_type type) {
    const double x = json_number_value(v);
    const bool whole = type == KK_MEMBER_COUNT || type == KK_MEMBER_SIZE;
    if (!json_is_number(v)) return OTHER_TYPE;
    if (whole && x != floor(x)) return BROKEN;
    if (type == KK_MEMBER_COUNT ? x < 0 : type != KK_MEMBER_NUMBER && x <= 0) return NOT_POSITIVE;
    return FINE;
}

static fault judge_spread(const json_t *v) {
    static const char *const parts[] = {"median", "min", "max"};
    if (!json_is_object(v)) return OTHER_TYPE;
    for (size_t i = 0; i < 3; i++) {
        const json_t *x = json_object_get(v, parts[i]);
        if (!x) return MISSING;
        const fault f = judge_number(x, KK_MEMBER_RATE);
        if (f != FINE) return f;
    }
    const json_t *n = json_object_get(v, "n");
    return n ? judge_number(n, KK_MEMBER_SIZE) : MISSING;
}

static fault judge(const json_t *v, kk_member_type type) {
    switch (type) {
    case KK_MEMBER_TEXT:
        return !json_is_string(v) ? OTHER_TYPE : *json_string_value(v) ? FINE : MISSING;
    case KK_MEMBER_HASH: return is_hash(v) ? FINE : OTHER_TYPE;
    case KK_MEMBER_BOOL: return json_is_boolean(v) ? FINE : OTHER_TYPE;
    case KK_MEMBER_OBJECT: return json_is_object(v) ? FINE : OTHER_TYPE;
    case KK_MEMBER_LIST:
        return !json_is_array(v) ? OTHER_TYPE : json_array_size(v) ? FINE : MISSING;
    case KK_MEMBER_SPREAD: return judge_spread(v);
    default: return judge_number(v, type);
    }
}

/* ---- paths -------------------------------------------------------------------------------- */

typedef struct {
    kk_gate *gate;
    fault wanted; /* the one that the rule at work speaks of */
    kk_member_type type;
} search;

static void say(const search *s, const place *at, fault f) {
    static const char *const needs[] = {[KK_MEMBER_TEXT] = "a text",
                                        [KK_MEMBER_HASH] = "a hash of 16 digits",
                                        [KK_MEMBER_BOOL] = "true or false",
                                        [KK_MEMBER_NUMBER] = "a number",
                                        [KK_MEMBER_COUNT] = "a whole number",
                                        [KK_MEMBER_SIZE] = "a whole number",
                                        [KK_MEMBER_TIME] = "a time",
                                        [KK_MEMBER_RATE] = "a number",
                                        [KK_MEMBER_LIST] = "a list",
                                        [KK_MEMBER_OBJECT] = "an object",
                                        [KK_MEMBER_SPREAD] = "a spread {median, min, max, n}"};
    char where[WHERE];
    if (f != s->wanted) return;
    write_place(at, where);
    if (f == MISSING)
        kk_gate_say(s->gate, "it has no `%s`, or nothing in it", where);
    else if (f == OTHER_TYPE)
        kk_gate_say(s->gate, "`%s` is not %s", where, needs[s->type]);
    else if (f == BROKEN)
        kk_gate_say(s->gate, "`%s` is a count and not whole", where);
    else
        kk_gate_say(s->gate, "`%s` is %s", where,
                    s->type == KK_MEMBER_COUNT ? "negative" : "not greater than 0");
}

static void follow(const search *s, const json_t *at, const char *path, const place *where);

static void follow_all(const search *s, const json_t *at, const char *rest, const place *where) {
    const char *key;
    json_t *member;
    if (!json_is_array(at) && !json_is_object(at)) say(s, where, OTHER_TYPE);
    for (size_t i = 0; i < json_array_size(at); i++)
        follow(s, json_array_get(at, i), rest, &(place){.in = where, .entry = i});
    json_object_foreach((json_t *)(uintptr_t)at, key, member) {
        follow(s, member, rest, &(place){.in = where, .name = key});
    }
}

static void follow_one(const search *s, const json_t *at, const char *step, bool optional,
                       const char *rest, const place *where) {
    const json_t *member = json_object_get(at, step);
    const place deeper = {.in = where, .name = step};
    if (member && !json_is_null(member))
        follow(s, member, rest, &deeper);
    else if (!optional)
        say(s, &deeper, MISSING);
}

static void follow(const search *s, const json_t *at, const char *path, const place *where) {
    char step[STEP];
    size_t len = strcspn(path, "/");
    if (!*path) {
        say(s, where, judge(at, s->type));
        return;
    }
    const char *rest = path + len + (path[len] == '/');
    const bool optional = path[len - 1] == '?';
    const size_t n = len - optional < sizeof step ? len - optional : sizeof step - 1;
    memcpy(step, path, n);
    step[n] = 0;
    if (strcmp(step, "*") == 0)
        follow_all(s, at, rest, where);
    else
        follow_one(s, at, step, optional, rest, where);
}

/* What every kind needs: where it ran, and on what. */
static const kk_gate_member of_all[] = {
    {"machine/cpu", KK_MEMBER_TEXT},           {"machine/cores", KK_MEMBER_SIZE},
    {"machine/memory", KK_MEMBER_SIZE},        {"machine/device", KK_MEMBER_TEXT},
    {"machine/isa", KK_MEMBER_TEXT},           {"machine/threads", KK_MEMBER_SIZE},
    {"model/source", KK_MEMBER_TEXT},          {"model/synthetic", KK_MEMBER_BOOL},
    {"model/weight_type", KK_MEMBER_TEXT},     {"model/format", KK_MEMBER_TEXT},
    {"model/layers", KK_MEMBER_SIZE},          {"model/params", KK_MEMBER_SIZE},
    {"model/weight_bytes", KK_MEMBER_SIZE},    {"model/token_bytes", KK_MEMBER_SIZE},
    {"drafter?/layers", KK_MEMBER_SIZE},       {"drafter?/block", KK_MEMBER_SIZE},
    {"drafter?/weight_bytes", KK_MEMBER_SIZE}, {"projection?/source", KK_MEMBER_TEXT},
    {"projection?/rank", KK_MEMBER_SIZE},      {"2:build/compiler", KK_MEMBER_TEXT},
    {"2:build/optimised", KK_MEMBER_BOOL},
};

static void search_all(kk_gate *g, fault wanted) {
    const double schema = kk_gate_number_or(g->report, "schema", 0);
    const size_t common = sizeof of_all / sizeof *of_all;
    for (size_t i = 0; i < common + g->kind->n_members; i++) {
        const kk_gate_member *m = i < common ? &of_all[i] : &g->kind->member[i - common];
        const search s = {.gate = g, .wanted = wanted, .type = m->type};
        const bool later = m->path[1] == ':';
        if (later && g->older && schema < m->path[0] - '0') continue;
        follow(&s, g->report, m->path + (later ? 2 : 0), &(place){0});
    }
}

/* ---- numbers that are texts ---------------------------------------------------------------- */

/* Texts of people and of the model, which may be a number by chance. */
static bool is_prose(const char *key) {
    static const char *const prose[] = {"answer", "text", "expected", "command", "cpu", "build"};
    for (size_t i = 0; i < sizeof prose / sizeof *prose; i++)
        if (strcmp(key, prose[i]) == 0) return true;
    return false;
}

static void visit_texts(kk_gate *g, const char *where, const json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        const char *s = json_string_value(v);
        char *end = NULL;
        if (!s || !*s || is_hash(v) || is_prose(key)) continue;
        (void)strtod(s, &end);
        if (end != s && *end == 0)
            kk_gate_say(g, "%s: `%.40s` is the text \"%.30s\"", where, key, s);
    }
}

/* ---- the rules ---------------------------------------------------------------------------- */

static void rule_member_missing(kk_gate *g) { search_all(g, MISSING); }
static void rule_member_type(kk_gate *g) { search_all(g, OTHER_TYPE); }
static void rule_not_whole(kk_gate *g) { search_all(g, BROKEN); }
static void rule_not_positive(kk_gate *g) { search_all(g, NOT_POSITIVE); }
static void rule_number_as_text(kk_gate *g) { kk_gate_walk(g, visit_texts); }

static const kk_gate_entry members_rules[] = {
    {"MEMBER_MISSING", rule_member_missing, "a report has the members that its kind needs"},
    {"MEMBER_TYPE", rule_member_type, "members are of their type: no number is a text"},
    {"NUMBER_AS_TEXT", rule_number_as_text, "no figure is written as a text"},
    {"NOT_WHOLE", rule_not_whole, "counts are whole numbers"},
    {"NOT_POSITIVE", rule_not_positive, "times, rates and sizes are greater than 0"},
};
KK_GATE_GROUP(members, members_rules);
