/* page.h - reports as one HTML page that needs nothing else.
 *
 * The page is the static file eval/reports/page/page.html, joined with its style and scripts at
 * build time.  Here the JSON of the reports is put into it, each with the verdict of the gate; the
 * scripts draw tables and plots from that. */
#ifndef KK_EVAL_PAGE_H
#define KK_EVAL_PAGE_H

#include "eval/reports/gate.h"

typedef struct {
    const char *path;
    const kk_verdict *verdict;
} kk_page_report;

/* *html is NUL-terminated after *len bytes, released with kk_free. */
kk_status kk_page_make(const kk_page_report *reports, size_t n, char **html, size_t *len,
                       kk_err *err);
/* The file is complete afterwards, and only to be closed. */
kk_status kk_page_write(kk_writer *to, const kk_page_report *reports, size_t n, kk_err *err);

#endif
