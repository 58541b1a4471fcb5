/* page.h - reports as one HTML page that needs nothing else: tables, and plots drawn as SVG.
 *
 * The verdict of the gate stands over every report, and what random weights or a replayed trace
 * gave is said in its title. */
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
