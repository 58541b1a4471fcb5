/* report.h - what every JSON report of an evaluation says, and how it gets into its file.
 *
 * docs/reports.md is the schema; eval/reports/gate.h holds reports to it. */
#ifndef KK_EVAL_REPORT_H
#define KK_EVAL_REPORT_H

#include <jansson.h>

#include "kakeya.h"

/* The schema that reports are written with.  Older ones are held to the same rules: what the rules
 * ask for must be there, whatever number a report gives itself. */
enum { KK_REPORT_SCHEMA = 4 };

json_t *kk_report_real(double x); /* a number, or null when it is not finite */
/* A string of any bytes: what is not UTF-8 becomes U+FFFD. */
json_t *kk_report_text(const char *text, size_t len);
json_t *kk_report_machine(const kk_machine *m, const kk_device_info *d);
json_t *kk_report_model(const kk_engine_opts *o, const kk_model_info *m);
json_t *kk_report_drafter(const kk_drafter_info *d); /* null when it has no layers */
/* Rounds by a number of tokens, up to the last that occurred; at least the rounds of 0. */
json_t *kk_report_counts(const int64_t n[KK_MAX_DRAFT + 1]);
json_t *kk_report_bytes(const int64_t bytes[KK_MEM_CATEGORIES]); /* {category: bytes} */
json_t *kk_report_hash(uint64_t hash); /* 16 hexadecimal digits; null when it is 0 */
/* An object with the fingerprint of what it describes; unchanged when that is 0. */
json_t *kk_report_printed(json_t *object, uint64_t fingerprint);
/* {median, min, max, n} of values, which are sorted; null when there are none. */
json_t *kk_report_spread(double *values, size_t n);
/* The projection of an open engine, with its fingerprint and that of the model it was made for;
 * null when there is none. */
json_t *kk_report_projection(kk_engine *e);
/* What was run: command (NULL: not known), machine, model, drafter and projection of an open
 * engine, with their fingerprints.  NULL without memory. */
/* A run that was written before its engine chose anything: adds what the engine counted of near
 * ties, where they are counted. */
void kk_report_count_ties(json_t *run, const kk_engine *e);
json_t *kk_report_run(kk_engine *e, const kk_engine_opts *o, const char *command);
/* run, as kk_report_run made it, with the members of body behind it; both are released and may be
 * NULL because there was no memory for them. */
json_t *kk_report_join(json_t *run, json_t *body);
/* What this program was compiled with: "gcc 12.2.0". */
const char *kk_report_compiler(void);
/* {name, size, digest} of a file that was read, by the last part of its path; its digest is that
 * of core/digest.h over its bytes.  NULL when it cannot be read. */
json_t *kk_report_file(const char *path);
/* The files of prompt sets by name, with commas between, in a folder, or that of one path: a list.
 * Sets that no file holds are not in it; names, folder and path may be NULL. */
json_t *kk_report_set_files(const char *folder, const char *names, const char *path);
/* schema, kind, version (with the commit), build and date, then the members of body, which is
 * released.  NULL without memory; body may be NULL because there was none for it. */
json_t *kk_report_new(const char *kind, json_t *body);

/* A report as a reader of its file gets it, numbers of as many digits; NULL without memory. */
json_t *kk_report_as_written(const json_t *report);
/* Puts the report and releases it; it may be NULL because there was no memory for it. */
kk_status kk_report_put(kk_writer *to, json_t *report, kk_err *err);
/* The same, and the file is complete. */
kk_status kk_report_write(kk_writer *to, json_t *report, kk_err *err);

/* Completes a file with any JSON, numbers to their last digit. */
kk_status kk_report_write_exact(kk_writer *to, const json_t *o, kk_err *err);

#endif
