/* page.c - puts the JSON of reports, and what the gate says of them, into the page; see page.h.
 *
 * The JSON stands in a <script> element of the type application/json.  Outside of strings JSON has
 * no '<', '>' or '&', and inside of them all three are written as escapes: whatever a report says,
 * it cannot end that element. */
#include "eval/reports/page.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "core/writer.h"
#include "page_html.h" /* written by the build: page_head and page_tail, bytes around the JSON */

typedef struct {
    char *text;
    size_t len, cap;
    bool failed; /* no memory: everything after is ignored */
} page;

static void put(page *p, const char *text, size_t len) {
    if (!p->failed && !kk_grow((void **)&p->text, &p->cap, p->len + len + 1, 1)) p->failed = true;
    if (p->failed) return;
    memcpy(p->text + p->len, text, len);
    p->len += len;
    p->text[p->len] = 0;
}

static void put_text(page *p, const char *text) { put(p, text, strlen(text)); }

static void put_escape(page *p, unsigned code) {
    char escape[8];
    snprintf(escape, sizeof escape, "\\u%04x", code);
    put_text(p, escape);
}

/* JSON as jansson writes it, a piece at a time; never cut inside of a character that matters. */
static int put_json(const char *text, size_t len, void *to) {
    page *p = to;
    for (size_t i = 0; i < len;) {
        size_t plain = i;
        while (plain < len && text[plain] != '<' && text[plain] != '>' && text[plain] != '&')
            plain++;
        put(p, text + i, plain - i);
        if (plain < len) put_escape(p, (unsigned char)text[plain]);
        i = plain + 1;
    }
    return p->failed ? -1 : 0;
}

/* A JSON string of any bytes, of which those that are not UTF-8 become U+FFFD. */
static void put_string(page *p, const char *text) {
    const size_t len = strlen(text);
    put_text(p, "\"");
    for (size_t i = 0; i < len;) {
        uint32_t c;
        const size_t n = kk_utf8_next(text + i, len - i, &c);
        if (n == 0)
            put_escape(p, 0xfffd);
        else if (n == 1 && (c < 0x20 || strchr("\"\\<>&", (int)c)))
            put_escape(p, c);
        else
            put(p, text + i, n);
        i += n ? n : 1;
    }
    put_text(p, "\"");
}

static void put_member(page *p, const char *name, const char *text) {
    put_text(p, "\"");
    put_text(p, name);
    put_text(p, "\":");
    if (text)
        put_string(p, text);
    else
        put_text(p, "null");
    put_text(p, ",");
}

static void put_findings(page *p, const kk_verdict *v) {
    put_text(p, "\"findings\":[");
    for (size_t i = 0; i < v->n; i++) {
        put_text(p, i ? ",{" : "{");
        put_member(p, "code", v->finding[i].code);
        put_text(p, "\"text\":");
        put_string(p, v->finding[i].text);
        put_text(p, "}");
    }
    put_text(p, "],");
}

static void put_report(page *p, const kk_page_report *r) {
    const kk_verdict *v = r->verdict;
    put_text(p, "\n{");
    put_member(p, "path", r->path);
    put_member(p, "kind", v->kind);
    put_member(p, "verdict", kk_verdict_word(v));
    put_member(p, "failure", kk_verdict_failure(v));
    put_findings(p, v);
    put_text(p, "\"report\":");
    if (!v->report)
        put_text(p, "null");
    else if (json_dump_callback(v->report, put_json, p, JSON_COMPACT) != 0)
        p->failed = true;
    put_text(p, "}");
}

kk_status kk_page_make(const kk_page_report *reports, size_t n, char **html, size_t *len,
                       kk_err *err) {
    page p = {0};
    *html = NULL;
    *len = 0;
    put(&p, (const char *)page_head, sizeof page_head - 1);
    put_text(&p, "{");
    put_member(&p, "version", kk_version());
    put_text(&p, "\"reports\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) put_text(&p, ",");
        put_report(&p, &reports[i]);
    }
    put_text(&p, "]}");
    put(&p, (const char *)page_tail, sizeof page_tail - 1);
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
