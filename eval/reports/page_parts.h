/* page_parts.h - what the files of the page share: a growing text, tables, and the four plots.
 *
 * Coordinates of plots are units of a drawing 400 wide that scales with the page, so that labels
 * stay legible on a phone.  Colours are classes; the page's style sheet gives them, by day and by
 * night. */
#ifndef KK_EVAL_PAGE_PARTS_H
#define KK_EVAL_PAGE_PARTS_H

#include "eval/reports/gate_rules.h"
#include "eval/reports/page.h"

typedef struct {
    char *text;
    size_t len, cap;
    bool failed; /* no memory: everything after is ignored */
} kk_page;

/* Marks: written as they are. */
void kk_page_put(kk_page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What a report says: escaped, and shortened where it is very long. */
void kk_page_text(kk_page *p, const char *text);

/* A number as a reader wants it, in a buffer of the caller. */
typedef struct {
    char text[40];
} kk_page_number;
kk_page_number kk_page_figure(double x); /* "2,314", "0.0123" */
kk_page_number kk_page_bytes(double x);  /* "5.9 MB" */
kk_page_number kk_page_share(double x);  /* "98.5 %" */

/* ---- tables ------------------------------------------------------------------------------- */

/* Heads with a '|' between; a head that begins with '#' is of a column of numbers. */
void kk_page_table(kk_page *p, const char *heads);
void kk_page_row(kk_page *p);
void kk_page_cell(kk_page *p, const char *text);
void kk_page_cell_number(kk_page *p, kk_page_number n);
/* The number of a member, or a dash. */
void kk_page_cell_of(kk_page *p, const json_t *o, const char *key);
void kk_page_table_end(kk_page *p);

/* ---- plots -------------------------------------------------------------------------------- */

enum { KK_PAGE_SERIES = 12, KK_PAGE_POINTS = 256, KK_PAGE_BARS = 48, KK_PAGE_PARTS = 6 };

/* From low to high with a mark at mid, one under the other. */
typedef struct {
    char label[56];
    int32_t colour;
    double low, mid, high;
} kk_page_range;
void kk_page_ranges(kk_page *p, const char *title, const char *unit, bool log,
                    const kk_page_range *rows, size_t n);

/* Parts side by side that make a whole. */
typedef struct {
    char label[56];
    double part[KK_PAGE_PARTS];
} kk_page_bar;
void kk_page_bars(kk_page *p, const char *title, const char *unit, const char *const *names,
                  size_t parts, const kk_page_bar *rows, size_t n);

typedef struct {
    char name[56];
    double x[KK_PAGE_POINTS], y[KK_PAGE_POINTS];
    size_t n;
} kk_page_series;
typedef struct {
    const char *title, *x, *y; /* what the axes are */
    bool bytes;                /* y is bytes */
    bool log_y;
} kk_page_axes;
void kk_page_lines(kk_page *p, const kk_page_axes *axes, const kk_page_series *series, size_t n);

/* Shares from 0 to 1 on a grid; a negative one is a cell without samples. */
typedef struct {
    const char *title;
    const char *columns, *rows; /* what they are */
    size_t n_columns, n_rows;
    char column[KK_PAGE_SERIES][16], row[KK_PAGE_SERIES][24];
    double share[KK_PAGE_SERIES][KK_PAGE_SERIES]; /* [row][column] */
} kk_page_grid;
void kk_page_heat(kk_page *p, const kk_page_grid *grid);

/* ---- reports, by kind --------------------------------------------------------------------- */

void kk_page_bytes_table(kk_page *p, const json_t *bytes);
void kk_page_bench(kk_page *p, const json_t *report);
void kk_page_accept(kk_page *p, const json_t *report);
void kk_page_lossless(kk_page *p, const json_t *report);
void kk_page_compare(kk_page *p, const json_t *report);
void kk_page_needle(kk_page *p, const json_t *report);
void kk_page_sweep(kk_page *p, const json_t *report);
void kk_page_kv(kk_page *p, const json_t *report);
void kk_page_memory(kk_page *p, const json_t *report);
void kk_page_projection(kk_page *p, const json_t *report);

#endif
