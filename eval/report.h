/* report.h - what every JSON report of an evaluation says, and how it gets into its file. */
#ifndef KK_EVAL_REPORT_H
#define KK_EVAL_REPORT_H

#include <jansson.h>

#include "kakeya.h"

json_t *kk_report_real(double x); /* a number, or null when it is not finite */
/* A string of any bytes: what is not UTF-8 becomes U+FFFD. */
json_t *kk_report_text(const char *text, size_t len);
json_t *kk_report_machine(const kk_machine *m, const kk_device_info *d);
json_t *kk_report_model(const kk_engine_opts *o, const kk_model_info *m);
json_t *kk_report_drafter(const kk_drafter_info *d); /* null when it has no layers */
const char *kk_report_kv_format(kk_kv_format f);     /* "bf16", "q4", ... */
/* Rounds by a number of tokens, up to the last that occurred; at least the rounds of 0. */
json_t *kk_report_counts(const int64_t n[KK_MAX_DRAFT + 1]);
json_t *kk_report_bytes(const int64_t bytes[KK_MEM_CATEGORIES]); /* {category: bytes} */
/* kind, version (with the commit) and date, then the members of body, which is released.  NULL
 * without memory; body may be NULL because there was none for it. */
json_t *kk_report_new(const char *kind, json_t *body);

/* Writes the report and releases it; it may be NULL because there was no memory for it.  The file
 * appears whole or not at all. */
kk_status kk_report_write(const char *path, json_t *report, kk_err *err);

#endif
