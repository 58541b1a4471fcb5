/* page_plot.c - four plots as SVG: ranges, bars, lines and a grid of shares.
 *
 * What is drawn comes from a file that may hold anything: values that are not finite are left out,
 * scales never have no width, and nothing is drawn without end. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/reports/page_parts.h"

enum { WIDTH = 400, LABELS = 128, RIGHT = 20, ROW = 19, COLOURS = 6, MOST_TICKS = 7 };

static void open_figure(kk_page *p, const char *title, double height) {
    kk_page_put(p, "<figure><figcaption>");
    kk_page_text(p, title);
    kk_page_put(p, "</figcaption><svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"", WIDTH,
                height);
    kk_page_text(p, title);
    kk_page_put(p, "\">");
}

static void close_figure(kk_page *p) { kk_page_put(p, "</svg></figure>\n"); }

static void label(kk_page *p, double x, double y, const char *how, const char *text) {
    kk_page_put(p, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, how);
    kk_page_text(p, text);
    kk_page_put(p, "</text>");
}

static void line(kk_page *p, double x1, double y1, double x2, double y2, const char *how) {
    kk_page_put(p, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>", x1, y1,
                x2, y2, how);
}

/* ---- scales ------------------------------------------------------------------------------- */

typedef struct {
    double low, high, from, to; /* values, and where they lie */
    bool log;
} scale;

static bool usable(double x) { return isfinite(x) && fabs(x) < 1e300; }

static void widen(double *low, double *high, double x) {
    if (!usable(x)) return;
    if (x < *low) *low = x;
    if (x > *high) *high = x;
}

/* The step between ticks: 1, 2 or 5 times a power of ten. */
static double nice_step(double width) {
    const double raw = width / (MOST_TICKS - 2), ten = pow(10, floor(log10(raw)));
    const double f = raw / ten;
    return ten * (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10);
}

static scale make_scale(double low, double high, bool log, double from, double to) {
    scale s = {low, high, from, to, log};
    if (!(low <= high)) s.low = 0, s.high = 1; /* nothing was usable */
    if (log) {
        if (!(s.high > 0)) s.high = 1;
        if (!(s.low > 0)) s.low = s.high / 1000;
        s.low = pow(10, floor(log10(s.low)));
        s.high = pow(10, ceil(log10(s.high)));
        if (!(s.high > s.low)) s.high = s.low * 10;
        return s;
    }
    if (s.low > 0) s.low = 0;
    if (!(s.high > s.low)) s.high = s.low + (s.low == 0 ? 1 : fabs(s.low));
    const double step = nice_step(s.high - s.low);
    s.high = step * ceil(s.high / step - 1e-9);
    if (s.low < 0) s.low = step * floor(s.low / step + 1e-9);
    return s;
}

static double place(const scale *s, double x) {
    double t;
    if (!usable(x)) return s->from;
    if (s->log)
        t = x > s->low ? log10(x / s->low) / log10(s->high / s->low) : 0;
    else
        t = (x - s->low) / (s->high - s->low);
    if (!(t > 0)) t = 0;
    if (t > 1) t = 1;
    return s->from + t * (s->to - s->from);
}

/* Values at ticks; returns how many. */
static size_t ticks(const scale *s, double out[16]) {
    size_t n = 0;
    if (s->log) {
        const double decades = log10(s->high / s->low), each = ceil(decades / (MOST_TICKS - 1));
        for (double d = 0; d <= decades + 1e-6 && n<16; d += each> 1 ? each : 1)
            out[n++] = s->low * pow(10, d);
        return n;
    }
    const double step = nice_step(s->high - s->low);
    for (double x = s->low; x <= s->high + step / 2 && n < 16; x += step) out[n++] = x;
    return n;
}

static kk_page_number tick_text(double x, bool bytes) {
    return bytes ? kk_page_bytes(x) : kk_page_figure(fabs(x) < 1e-12 ? 0 : x);
}

/* ---- ranges ------------------------------------------------------------------------------- */

static void bottom_axis(kk_page *p, const scale *s, double top, double bottom, const char *unit) {
    double at[16];
    const size_t n = ticks(s, at);
    for (size_t i = 0; i < n; i++) {
        const double x = place(s, at[i]);
        line(p, x, top, x, bottom, "grid");
        label(p, x, bottom + 13, "mid", tick_text(at[i], false).text);
    }
    label(p, s->to, bottom + 27, "end dim", unit);
}

static void draw_range(kk_page *p, const scale *s, const kk_page_range *r, double y) {
    char how[16];
    snprintf(how, sizeof how, "s%d", (int)(r->colour % COLOURS));
    label(p, LABELS - 8, y + 4, "end", r->label);
    if (!usable(r->mid)) return;
    kk_page_put(p, "<g class=\"%s\">", how);
    line(p, place(s, r->low), y, place(s, r->high), y, "range");
    kk_page_put(p, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"dot\"/></g>", place(s, r->mid),
                y);
}

void kk_page_ranges(kk_page *p, const char *title, const char *unit, bool log,
                    const kk_page_range *rows, size_t n) {
    double low = DBL_MAX, high = -DBL_MAX;
    if (n == 0) return;
    if (n > KK_PAGE_BARS) n = KK_PAGE_BARS;
    for (size_t i = 0; i < n; i++) {
        if (!log || rows[i].low > 0) widen(&low, &high, rows[i].low);
        if (!log || rows[i].mid > 0) widen(&low, &high, rows[i].mid);
        widen(&low, &high, rows[i].high);
    }
    const scale s = make_scale(low, high, log, LABELS, WIDTH - RIGHT);
    const double bottom = 8 + (double)n * ROW;
    open_figure(p, title, bottom + 34);
    bottom_axis(p, &s, 4, bottom, unit);
    for (size_t i = 0; i < n; i++) draw_range(p, &s, &rows[i], 8 + ((double)i + 0.5) * ROW);
    close_figure(p);
}

/* ---- bars --------------------------------------------------------------------------------- */

/* Names with the colours of their classes, a line under a plot. */
static void legend(kk_page *p, const char *const *names, size_t n) {
    kk_page_put(p, "<p class=\"legend\">");
    for (size_t i = 0; i < n; i++) {
        kk_page_put(p, "<span><i class=\"s%zu\"></i>", i % COLOURS);
        kk_page_text(p, names[i]);
        kk_page_put(p, "</span> ");
    }
    kk_page_put(p, "</p>\n");
}

static void draw_bar(kk_page *p, const scale *s, const kk_page_bar *b, size_t parts, double y) {
    double sum = 0;
    label(p, LABELS - 8, y + 4, "end", b->label);
    for (size_t i = 0; i < parts; i++) {
        if (!usable(b->part[i]) || b->part[i] <= 0) continue;
        const double x = place(s, sum), to = place(s, sum + b->part[i]);
        kk_page_put(
            p, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" class=\"s%zu fill\"/>", x,
            y - 6, to - x, 12, i % COLOURS);
        sum += b->part[i];
    }
}

void kk_page_bars(kk_page *p, const char *title, const char *unit, const char *const *names,
                  size_t parts, const kk_page_bar *rows, size_t n) {
    double high = 0;
    if (n == 0) return;
    if (n > KK_PAGE_BARS) n = KK_PAGE_BARS;
    if (parts > KK_PAGE_PARTS) parts = KK_PAGE_PARTS;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t j = 0; j < parts; j++)
            if (usable(rows[i].part[j]) && rows[i].part[j] > 0) sum += rows[i].part[j];
        if (sum > high && usable(sum)) high = sum;
    }
    const scale s = make_scale(0, high, false, LABELS, WIDTH - RIGHT);
    const double bottom = 8 + (double)n * ROW;
    open_figure(p, title, bottom + 34);
    bottom_axis(p, &s, 4, bottom, unit);
    for (size_t i = 0; i < n; i++) draw_bar(p, &s, &rows[i], parts, 8 + ((double)i + 0.5) * ROW);
    close_figure(p);
    if (parts > 1) legend(p, names, parts);
}

/* ---- lines -------------------------------------------------------------------------------- */

enum { TOP = 20, LEFT = 58, BOTTOM = 196 };

static void draw_axes(kk_page *p, const kk_page_axes *axes, const scale *sx, const scale *sy) {
    double at[16];
    size_t n = ticks(sy, at);
    for (size_t i = 0; i < n; i++) {
        const double y = place(sy, at[i]);
        line(p, LEFT, y, WIDTH - RIGHT, y, "grid");
        label(p, LEFT - 6, y + 4, "end", tick_text(at[i], axes->bytes).text);
    }
    n = ticks(sx, at);
    for (size_t i = 0; i < n; i++)
        label(p, place(sx, at[i]), BOTTOM + 14, "mid", tick_text(at[i], false).text);
    label(p, WIDTH - RIGHT, BOTTOM + 28, "end dim", axes->x);
    if (axes->y) label(p, LEFT - 6, TOP - 9, "end dim", axes->y);
}

/* A logarithmic axis has no place for 0. */
static bool drawn(const scale *sy, double x, double y) {
    return usable(x) && usable(y) && (!sy->log || y > 0);
}

static void draw_series(kk_page *p, const scale *sx, const scale *sy, const kk_page_series *s,
                        size_t number) {
    const size_t n = s->n < KK_PAGE_POINTS ? s->n : KK_PAGE_POINTS;
    kk_page_put(p, "<g class=\"s%zu\"><polyline class=\"line%s\" points=\"", number % COLOURS,
                number >= COLOURS ? " dashed" : "");
    for (size_t i = 0; i < n; i++)
        if (drawn(sy, s->x[i], s->y[i]))
            kk_page_put(p, "%.1f,%.1f ", place(sx, s->x[i]), place(sy, s->y[i]));
    kk_page_put(p, "\"/>");
    for (size_t i = 0; n <= 24 && i < n; i++)
        if (drawn(sy, s->x[i], s->y[i]))
            kk_page_put(p, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" class=\"dot\"/>",
                        place(sx, s->x[i]), place(sy, s->y[i]));
    kk_page_put(p, "</g>");
}

void kk_page_lines(kk_page *p, const kk_page_axes *axes, const kk_page_series *series, size_t n) {
    double x0 = DBL_MAX, x1 = -DBL_MAX, y0 = DBL_MAX, y1 = -DBL_MAX;
    const char *names[KK_PAGE_SERIES];
    size_t points = 0;
    if (n > KK_PAGE_SERIES) n = KK_PAGE_SERIES;
    for (size_t i = 0; i < n; i++) {
        names[i] = series[i].name;
        for (size_t j = 0; j < series[i].n && j < KK_PAGE_POINTS; j++, points++) {
            widen(&x0, &x1, series[i].x[j]);
            if (!axes->log_y || series[i].y[j] > 0) widen(&y0, &y1, series[i].y[j]);
        }
    }
    if (points == 0) return;
    const scale sx = make_scale(x0, x1, false, LEFT, WIDTH - RIGHT);
    const scale sy = make_scale(y0, y1, axes->log_y, BOTTOM, TOP);
    open_figure(p, axes->title, BOTTOM + 36);
    draw_axes(p, axes, &sx, &sy);
    for (size_t i = 0; i < n; i++) draw_series(p, &sx, &sy, &series[i], i);
    close_figure(p);
    if (n > 1) legend(p, names, n);
}

/* ---- a grid of shares --------------------------------------------------------------------- */

enum { CELL = 22, HEAT_LEFT = 92, HEAT_TOP = 4 };

static void draw_cell(kk_page *p, const kk_page_grid *g, size_t r, size_t c, double width) {
    const double x = HEAT_LEFT + (double)c * width, y = HEAT_TOP + (double)r * CELL;
    const double share = g->share[r][c];
    if (!(share >= 0)) {
        kk_page_put(p, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" class=\"none\"/>",
                    x + 1, y + 1, width - 2, CELL - 2);
        return;
    }
    const double full = share < 1 ? share : 1;
    kk_page_put(p,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" class=\"heat\" "
                "fill-opacity=\"%.2f\"/>",
                x + 1, y + 1, width - 2, CELL - 2, 0.06 + 0.84 * full);
    char text[16];
    snprintf(text, sizeof text, "%.0f", 100 * full);
    label(p, x + width / 2, y + CELL / 2.0 + 4, full > 0.55 ? "mid on" : "mid", text);
}

void kk_page_heat(kk_page *p, const kk_page_grid *g) {
    const size_t rows = g->n_rows < KK_PAGE_SERIES ? g->n_rows : KK_PAGE_SERIES;
    const size_t columns = g->n_columns < KK_PAGE_SERIES ? g->n_columns : KK_PAGE_SERIES;
    if (rows == 0 || columns == 0) return;
    const double width = (double)(WIDTH - HEAT_LEFT - RIGHT) / (double)columns;
    const double bottom = HEAT_TOP + (double)rows * CELL;
    open_figure(p, g->title, bottom + 34);
    for (size_t r = 0; r < rows; r++) {
        label(p, HEAT_LEFT - 8, HEAT_TOP + (double)r * CELL + CELL / 2.0 + 4, "end", g->row[r]);
        for (size_t c = 0; c < columns; c++) draw_cell(p, g, r, c, width);
    }
    for (size_t c = 0; c < columns; c++)
        label(p, HEAT_LEFT + ((double)c + 0.5) * width, bottom + 14, "mid", g->column[c]);
    label(p, WIDTH - RIGHT, bottom + 28, "end dim", g->columns);
    label(p, HEAT_LEFT - 8, bottom + 28, "end dim", g->rows);
    close_figure(p);
}
