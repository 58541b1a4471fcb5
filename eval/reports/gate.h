/* gate.h - may a report say what it says?
 *
 * A report is held to a table of rules, each of which computes a claim again from the report's own
 * rows or asks for what the claim rests on.  docs/reports.md is the schema they speak of.
 *
 * A report without a schema number is legacy: rules that find contradictions apply to it in full,
 * what the others find is kept as notes, and it supports no new claim. */
#ifndef KK_EVAL_GATE_H
#define KK_EVAL_GATE_H

#include <jansson.h>

#include "kakeya.h"

typedef struct {
    const char *code; /* "RECALL_RECOUNT" */
    bool note;        /* told, and no violation */
    char text[320];   /* one sentence with the value that was wrong */
} kk_finding;

typedef struct {
    json_t *report; /* NULL: the text is no JSON object */
    char kind[24];  /* "": not known */
    bool legacy;
    bool other; /* a JSON object that does not even look like a report */
    kk_finding *finding;
    size_t n, cap;
    size_t violations;
} kk_verdict;

/* Any bytes may be given; fails for want of memory only, and *out then holds nothing. */
kk_status kk_gate_check(const char *text, size_t len, kk_verdict *out, kk_err *err);
/* Of a file: fails too when it cannot be read. */
kk_status kk_gate_file(const char *path, kk_verdict *out, kk_err *err);
void kk_verdict_release(kk_verdict *v);
const char *kk_verdict_word(const kk_verdict *v); /* "holds", "legacy" or "refused" */
/* What failed in the run that it tells of, by its own words; NULL: nothing.  An honest report of a
 * run that failed holds. */
const char *kk_verdict_failure(const kk_verdict *v);

/* The rules, in the order in which they are applied. */
typedef struct {
    const char *code;
    const char *kinds; /* of reports, with a space between; NULL: all */
    bool always;       /* a contradiction, which a legacy report may not have either */
    const char *text;  /* what must be so */
} kk_gate_rule;
size_t kk_gate_count(void);
kk_gate_rule kk_gate_rule_at(size_t i);

/* Files to be looked at: what a path names, or every *.json below a folder, in order of names. */
typedef struct {
    char **path;
    bool *found; /* in a folder, where other JSON may lie as well */
    size_t n, cap, found_cap;
} kk_report_files;
kk_status kk_report_files_add(kk_report_files *f, const char *path, kk_err *err);
void kk_report_files_free(kk_report_files *f);

#endif
