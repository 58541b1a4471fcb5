/* gate.h - may a report say what it says?
 *
 * A report is held to a table of rules, each of which computes a claim again from the report's own
 * rows or asks for what the claim rests on.  docs/reports.md is the schema they speak of. */
#ifndef KK_EVAL_GATE_H
#define KK_EVAL_GATE_H

#include <jansson.h>

#include "kakeya.h"

typedef struct {
    const char *code; /* "RECALL_RECOUNT" */
    char text[320];   /* one sentence with the value that was wrong */
} kk_finding;

typedef struct {
    json_t *report; /* NULL: the text is no JSON object */
    char kind[24];  /* "": not known */
    bool other;     /* a JSON object that does not even look like a report */
    kk_finding *finding;
    size_t n, cap;
    size_t violations; /* findings */
} kk_verdict;

/* Any bytes may be given; fails for want of memory only, and *out then holds nothing. */
kk_status kk_gate_check(const char *text, size_t len, kk_verdict *out, kk_err *err);
/* Of a file: fails too when it cannot be read. */
kk_status kk_gate_file(const char *path, kk_verdict *out, kk_err *err);
void kk_verdict_release(kk_verdict *v);
const char *kk_verdict_word(const kk_verdict *v); /* "holds" or "refused" */
/* What failed in the run that it tells of, by its own words; NULL: nothing.  An honest report of a
 * run that failed holds. */
const char *kk_verdict_failure(const kk_verdict *v);

/* The rules, those of all kinds first. */
typedef struct {
    const char *code;
    const char *text; /* what must be so */
    char kinds[120];  /* of reports, with a space between; "": all */
} kk_gate_rule;
size_t kk_gate_count(void);
kk_gate_rule kk_gate_rule_at(size_t i);

/* The most that is read of one report: bytes, values in all, entries of one list. */
enum {
    KK_GATE_MOST_BYTES = 16 << 20,
    KK_GATE_MOST_VALUES = 400000,
    KK_GATE_MOST_ENTRIES = 4096,
    KK_GATE_MOST_DEPTH = 32, /* of folders */
};

/* Files to be looked at: what a path names, or every *.json below a folder, in order of names. */
typedef struct {
    char **path;
    bool *found; /* in a folder, where other JSON may lie as well */
    size_t n, cap, found_cap;
} kk_report_files;
kk_status kk_report_files_add(kk_report_files *f, const char *path, kk_err *err);
void kk_report_files_free(kk_report_files *f);

#endif
