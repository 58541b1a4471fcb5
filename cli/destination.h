/* destination.h - the files that commands write, opened before the work whose result they take, so
 * that what cannot be written is said at once.
 *
 * A signal that ends the process removes the temporary files of those that are open. */
#ifndef KAKEYA_CLI_DESTINATION_H
#define KAKEYA_CLI_DESTINATION_H

#include "cli/options.h"
#include "kakeya.h"

/* False after saying why not.  One file at a time. */
bool destination_open(kk_writer **out, const char *path, const kk_writer_opts *opts, int *code);
void destination_close(kk_writer *w); /* NULL is fine */

/* --report and its --force; "-" is standard output, and so is --json. */
typedef struct {
    const char *path; /* NULL: no report */
    bool force, json;
    kk_writer *file; /* NULL: no report */
} destination_report;

#define DESTINATION_REPORT_OPTIONS(T, m)                                                           \
    OPTION_STRING(NULL, "report", "FILE", offsetof(T, m.path),                                     \
                  "write a JSON report; -: to standard output, and all else to standard error"),   \
        OPTION_FLAG(NULL, "json", offsetof(T, m.json), "the same as --report -"),                  \
        OPTION_FLAG(NULL, "force", offsetof(T, m.force), "replace a report that is there")

/* Opens the report if one is wanted.  e and more [n], which may hold NULL, are what is read: none
 * of it may be the report.  False after saying why not. */
bool destination_open_report(destination_report *r, const kk_engine_opts *e,
                             const char *const *more, size_t n, int *code);
void destination_close_report(destination_report *r);

/* The descriptor of standard output for a result, as a path; from then on printf goes to standard
 * error.  False without a descriptor. */
typedef struct {
    char path[32];
} destination_stdout;
bool destination_keep_stdout(destination_stdout *out);

#endif
