/* page.c - the frame of the page: its style, the list of verdicts, and of every report what was run
 * and what the gate found; see page.h. */
#include "eval/reports/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/writer.h"
#include "eval/reports/page_parts.h"

enum { MOST_TEXT = 600, MOST_FINDINGS = 40 };

/* ---- text --------------------------------------------------------------------------------- */

static bool room(kk_page *p, size_t more) {
    if (!p->failed && !kk_grow((void **)&p->text, &p->cap, p->len + more + 1, 1)) p->failed = true;
    return !p->failed;
}

void kk_page_put(kk_page *p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n <= 0 || !room(p, (size_t)n)) return;
    va_start(args, fmt);
    vsnprintf(p->text + p->len, (size_t)n + 1, fmt, args);
    va_end(args);
    p->len += (size_t)n;
}

void kk_page_text(kk_page *p, const char *text) {
    size_t len = strlen(text);
    const bool cut = len > MOST_TEXT;
    if (cut) len = MOST_TEXT;
    /* jansson gives UTF-8, and so do we: never half a character. */
    while (cut && len && ((unsigned char)text[len] & 0xc0) == 0x80) len--;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        switch (c) {
        case '<': kk_page_put(p, "&lt;"); break;
        case '>': kk_page_put(p, "&gt;"); break;
        case '&': kk_page_put(p, "&amp;"); break;
        case '"': kk_page_put(p, "&quot;"); break;
        case '\'': kk_page_put(p, "&#39;"); break;
        default:
            /* Control characters are none of HTML's. */
            if ((unsigned char)c < 0x20 && c != '\n' && c != '\t')
                kk_page_put(p, "&#xfffd;");
            else if (room(p, 1))
                p->text[p->len++] = c;
        }
    }
    if (cut) kk_page_put(p, "&hellip;");
}

/* ---- numbers ------------------------------------------------------------------------------ */

kk_page_number kk_page_figure(double x) {
    kk_page_number n;
    char digits[32];
    if (!isfinite(x)) {
        snprintf(n.text, sizeof n.text, "-");
    } else if (fabs(x) < 1000 || fabs(x) >= 1e15) {
        snprintf(n.text, sizeof n.text, "%.4g", x);
    } else {
        const int len = snprintf(digits, sizeof digits, "%.0f", x);
        int at = 0;
        for (int i = 0; i < len; i++) {
            const int left = len - i;
            if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') n.text[at++] = ',';
            n.text[at++] = digits[i];
        }
        n.text[at] = 0;
    }
    return n;
}

kk_page_number kk_page_bytes(double x) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    kk_page_number n;
    size_t u = 0;
    while (fabs(x) >= 999.5 && u < 4) x /= 1000, u++;
    snprintf(n.text, sizeof n.text, "%.3g %s", x, units[u]);
    return n;
}

kk_page_number kk_page_share(double x) {
    kk_page_number n;
    snprintf(n.text, sizeof n.text, "%.4g %%", 100 * x);
    return n;
}

/* ---- tables ------------------------------------------------------------------------------- */

void kk_page_table(kk_page *p, const char *heads) {
    kk_page_put(p, "<div class=\"wide\"><table><thead><tr>");
    for (const char *at = heads; *at;) {
        const size_t len = strcspn(at, "|");
        const bool number = *at == '#';
        kk_page_put(p, "<th%s>%.*s</th>", number ? " class=\"n\"" : "", (int)len - number,
                    at + number);
        at += len + (at[len] == '|');
    }
    kk_page_put(p, "</tr></thead><tbody>");
}

void kk_page_row(kk_page *p) { kk_page_put(p, "<tr>"); }

void kk_page_cell(kk_page *p, const char *text) {
    kk_page_put(p, "<td>");
    kk_page_text(p, text);
    kk_page_put(p, "</td>");
}

void kk_page_cell_number(kk_page *p, kk_page_number n) {
    kk_page_put(p, "<td class=\"n\">%s</td>", n.text);
}

void kk_page_cell_of(kk_page *p, const json_t *o, const char *key) {
    double x;
    if (kk_gate_number(o, key, &x))
        kk_page_cell_number(p, kk_page_figure(x));
    else
        kk_page_put(p, "<td class=\"n dim\">&ndash;</td>");
}

void kk_page_table_end(kk_page *p) { kk_page_put(p, "</tbody></table></div>\n"); }

void kk_page_bytes_table(kk_page *p, const json_t *bytes) {
    const char *name;
    json_t *n;
    if (!json_is_object(bytes)) return;
    kk_page_put(p, "<h3>Bytes, by the allocator</h3>");
    kk_page_table(p, "category|#bytes|#");
    json_object_foreach((json_t *)bytes, name, n) {
        if (json_number_value(n) == 0) continue;
        kk_page_row(p);
        kk_page_cell(p, name);
        kk_page_cell_number(p, kk_page_figure(json_number_value(n)));
        kk_page_cell_number(p, kk_page_bytes(json_number_value(n)));
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

/* ---- the frame ---------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1b1b1a;--dim:#6d6c68;--rule:#dcdad4;--page:#fdfdfb;"
    "--bad:#a8261c;--good:#1d6b3a;--c0:#1f5f99;--c1:#c2571a;--c2:#2d7d46;--c3:#8a4a9e;--c4:#a88400;"
    "--c5:#b3365b}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e2dc;--dim:#98968f;--rule:#34343a;"
    "--page:#16171a;--bad:#ff8a7a;--good:#7fd49b;--c0:#6fb1ea;--c1:#f0975c;--c2:#76c98d;"
    "--c3:#c596d8;--c4:#dcbb4a;--c5:#ec86a6}}"
    "*{box-sizing:border-box}"
    "body{margin:0 auto;max-width:44rem;padding:1.5rem 1rem 4rem;background:var(--page);"
    "color:var(--ink);font:1rem/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "-webkit-text-size-adjust:100%}"
    "h1{font-size:1.5rem;line-height:1.2;margin:0 0 .3rem}"
    "h2{font-size:1.2rem;line-height:1.3;margin:3.2rem 0 .2rem;padding-top:1.1rem;"
    "border-top:1px solid var(--rule);overflow-wrap:anywhere}"
    "h3{font-size:1rem;margin:1.8rem 0 .4rem}"
    "p{margin:.3rem 0}.dim,figcaption,dt,th,caption{color:var(--dim)}"
    "code,.file{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em;"
    "overflow-wrap:anywhere}"
    "a{color:inherit;text-decoration-color:var(--rule);text-underline-offset:.2em}"
    ".holds{color:var(--good)}.refused{color:var(--bad)}.legacy{color:var(--dim)}"
    ".verdict{font-weight:600}"
    "ul.findings{margin:.4rem 0;padding-left:1.1rem;font-size:.9rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.8rem 0;"
    "font-size:.875rem}dd{margin:0;overflow-wrap:anywhere}"
    ".wide{overflow-x:auto;margin:.5rem 0}"
    "table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;"
    "min-width:60%}"
    "th{font-weight:400;text-align:left}"
    "th,td{padding:.22rem .9rem .22rem 0;border-bottom:1px solid var(--rule);white-space:nowrap;"
    "vertical-align:top}"
    "th:last-child,td:last-child{padding-right:0}.n{text-align:right}"
    "figure{margin:1.2rem 0 .2rem}figcaption{font-size:.875rem;margin-bottom:.2rem}"
    "svg{display:block;width:100%;max-width:33rem;height:auto}"
    "svg text{font-size:10.5px;fill:var(--ink)}svg .end{text-anchor:end}"
    "svg .mid{text-anchor:middle}svg .dim{fill:var(--dim)}svg .on{fill:var(--page)}"
    ".grid{stroke:var(--rule);stroke-width:.8}"
    ".range{stroke:currentColor;stroke-width:2.4;stroke-opacity:.45;stroke-linecap:round}"
    ".dot,.fill{fill:currentColor}.line{fill:none;stroke:currentColor;stroke-width:1.6;"
    "stroke-linejoin:round}.dashed{stroke-dasharray:4 3}"
    ".heat{fill:var(--c0)}.none{fill:none;stroke:var(--rule)}"
    ".s0{color:var(--c0)}.s1{color:var(--c1)}.s2{color:var(--c2)}.s3{color:var(--c3)}"
    ".s4{color:var(--c4)}.s5{color:var(--c5)}"
    ".legend{font-size:.8rem;color:var(--dim)}.legend span{margin-right:1rem;white-space:nowrap}"
    "@media(max-width:30rem){svg text{font-size:12px}}"
    ".legend i{display:inline-block;width:.65em;height:.65em;margin-right:.4em;"
    "background:currentColor}";

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static bool is_random(const json_t *report) {
    return kk_gate_true(json_object_get(report, "model"), "synthetic");
}

static bool is_traced(const json_t *report) {
    return kk_gate_get(json_object_get(report, "settings"), "accept_trace") != NULL;
}

/* What random weights gave is never shown without saying so. */
static void put_labels(kk_page *p, const json_t *report) {
    if (is_random(report)) kk_page_put(p, ", random weights");
    if (is_traced(report)) kk_page_put(p, ", replayed acceptance");
}

static void put_contents(kk_page *p, const kk_page_report *reports, size_t n) {
    kk_page_table(p, "report|kind|gate|run");
    for (size_t i = 0; i < n; i++) {
        const kk_verdict *v = reports[i].verdict;
        kk_page_put(p, "<tr><td><a class=\"file\" href=\"#r%zu\">", i);
        kk_page_text(p, file_name(reports[i].path));
        kk_page_put(p, "</a></td><td>");
        kk_page_text(p, *v->kind ? v->kind : "?");
        put_labels(p, v->report);
        const char *failure = kk_verdict_failure(v);
        kk_page_put(p, "</td><td class=\"%s\">%s</td>", kk_verdict_word(v), kk_verdict_word(v));
        kk_page_put(p, failure ? "<td class=\"refused\">failed: %s</td></tr>" : "<td>%s</td></tr>",
                    failure ? failure : "");
    }
    kk_page_table_end(p);
}

static void put_findings(kk_page *p, const kk_verdict *v) {
    size_t shown = 0;
    kk_page_put(p, "<ul class=\"findings\">");
    for (size_t i = 0; i < v->n && shown < MOST_FINDINGS; i++) {
        if (v->finding[i].note) continue;
        shown++;
        kk_page_put(p, "<li><code>%s</code> ", v->finding[i].code);
        kk_page_text(p, v->finding[i].text);
        kk_page_put(p, "</li>");
    }
    kk_page_put(p, "</ul>\n");
}

static void put_verdict(kk_page *p, const kk_verdict *v) {
    const char *failure = kk_verdict_failure(v);
    if (failure) kk_page_put(p, "<p class=\"verdict refused\">Failed: %s.</p>\n", failure);
    kk_page_put(p, "<p class=\"verdict %s\">", kk_verdict_word(v));
    if (v->violations) {
        kk_page_put(p, "Refused by the gate.</p>");
        put_findings(p, v);
    } else if (v->legacy) {
        kk_page_put(p, "Legacy: written before schema 1. It contradicts nothing, and supports no "
                       "new claim.</p>\n");
    } else {
        kk_page_put(p, "Holds: figures were computed again from their rows, and every rule is "
                       "met.</p>\n");
    }
}

static void fact(kk_page *p, const char *name, const char *text) {
    if (!*text) return;
    kk_page_put(p, "<dt>%s</dt><dd>", name);
    kk_page_text(p, text);
    kk_page_put(p, "</dd>");
}

static void put_facts(kk_page *p, const json_t *r) {
    const json_t *model = json_object_get(r, "model"), *machine = json_object_get(r, "machine");
    const json_t *drafter = kk_gate_get(r, "drafter"), *projection = kk_gate_get(r, "projection");
    char text[320];
    kk_page_put(p, "<dl>");
    snprintf(text, sizeof text, "%.80s%s %.20s, %.0f layers%s%.16s", kk_gate_text(model, "source"),
             is_random(r) ? " (random weights)" : "", kk_gate_text(model, "weight_type"),
             kk_gate_number_or(model, "layers", 0), *kk_gate_text(model, "fingerprint") ? ", " : "",
             kk_gate_text(model, "fingerprint"));
    fact(p, "model", json_is_object(model) ? text : kk_gate_text(r, "model"));
    if (drafter) {
        snprintf(text, sizeof text, "%.0f layers, block %.0f%s%.16s",
                 kk_gate_number_or(drafter, "layers", 0), kk_gate_number_or(drafter, "block", 0),
                 *kk_gate_text(drafter, "fingerprint") ? ", " : "",
                 kk_gate_text(drafter, "fingerprint"));
        fact(p, "drafter", text);
    }
    if (projection) {
        snprintf(text, sizeof text, "from %.24s, rank %.0f%s%.16s",
                 kk_gate_text(projection, "source"), kk_gate_number_or(projection, "rank", 0),
                 *kk_gate_text(projection, "fingerprint") ? ", " : "",
                 kk_gate_text(projection, "fingerprint"));
        fact(p, "projection", text);
    }
    snprintf(text, sizeof text, "%.60s, %.20s, %.0f threads", kk_gate_text(machine, "cpu"),
             kk_gate_text(machine, "isa"), kk_gate_number_or(machine, "threads", 0));
    fact(p, "machine", json_is_object(machine) ? text : "");
    fact(p, "version", kk_gate_text(r, "version"));
    fact(p, "date", kk_gate_text(r, "date"));
    if (*kk_gate_text(r, "command")) {
        kk_page_put(p, "<dt>command</dt><dd><code>");
        kk_page_text(p, kk_gate_text(r, "command"));
        kk_page_put(p, "</code></dd>");
    }
    kk_page_put(p, "</dl>\n");
}

typedef void (*kind_fn)(kk_page *p, const json_t *report);

static kind_fn kind_of(const char *kind) {
    static const struct {
        const char *name;
        kind_fn fn;
    } kinds[] = {{"bench", kk_page_bench},
                 {"accept", kk_page_accept},
                 {"lossless", kk_page_lossless},
                 {"compare", kk_page_compare},
                 {"needle", kk_page_needle},
                 {"sweep", kk_page_sweep},
                 {"kv", kk_page_kv},
                 {"memory", kk_page_memory},
                 {"projection", kk_page_projection}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i].name) == 0) return kinds[i].fn;
    return NULL;
}

static void put_report(kk_page *p, const kk_page_report *r, size_t number) {
    const kk_verdict *v = r->verdict;
    const kind_fn fn = kind_of(v->kind);
    kk_page_put(p, "<h2 id=\"r%zu\">", number);
    kk_page_text(p, file_name(r->path));
    put_labels(p, v->report);
    kk_page_put(p, "</h2>\n<p class=\"file dim\">");
    kk_page_text(p, r->path);
    kk_page_put(p, "</p>\n");
    put_verdict(p, v);
    if (!v->report) return;
    put_facts(p, v->report);
    if (fn) fn(p, v->report);
}

static void put_page(kk_page *p, const kk_page_report *reports, size_t n) {
    size_t holds = 0, refused = 0, failed = 0;
    for (size_t i = 0; i < n; i++) {
        refused += reports[i].verdict->violations > 0;
        holds += reports[i].verdict->violations == 0 && !reports[i].verdict->legacy;
        failed += kk_verdict_failure(reports[i].verdict) != NULL;
    }
    kk_page_put(p,
                "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                "<title>Kakeya reports</title><style>%s</style></head><body>\n",
                style);
    kk_page_put(p,
                "<h1>Kakeya reports</h1><p class=\"dim\">%zu report%s: %zu hold%s, %zu legacy, "
                "%zu refused",
                n, n == 1 ? "" : "s", holds, holds == 1 ? "s" : "", n - holds - refused, refused);
    if (failed) kk_page_put(p, "; %zu of a run that failed", failed);
    kk_page_put(p, ". Made by kakeya ");
    kk_page_text(p, kk_version());
    kk_page_put(p, ".</p>\n");
    put_contents(p, reports, n);
    for (size_t i = 0; i < n; i++) put_report(p, &reports[i], i);
    kk_page_put(p, "</body></html>\n");
}

kk_status kk_page_make(const kk_page_report *reports, size_t n, char **html, size_t *len,
                       kk_err *err) {
    kk_page p = {0};
    *html = NULL;
    *len = 0;
    put_page(&p, reports, n);
    if (p.failed) {
        kk_free(p.text);
        return kk_fail(err, KK_ENOMEM, "no memory for a page of %zu reports", n);
    }
    *html = p.text;
    *len = p.len;
    return KK_OK;
}

kk_status kk_page_write(kk_writer *to, const kk_page_report *reports, size_t n, kk_err *err) {
    char *html;
    size_t len;
    KK_TRY(kk_page_make(reports, n, &html, &len, err));
    kk_status st = kk_writer_put(to, html, len, err);
    if (st == KK_OK) st = kk_writer_commit(to, err);
    kk_free(html);
    return st;
}
