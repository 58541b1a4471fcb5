/* fuzz_report.c - any bytes as a report: judged without harm, and any JSON makes a page whose marks
 * are its own: the two scripts that it has by itself, and between them no mark. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_verdict v;
    kk_err err;
    char *html;
    size_t len;
    need(kk_gate_check((const char *)data, size, &v, &err) == KK_OK);
    need(v.report || v.violations); /* what cannot be read is said to be so */
    for (size_t i = 0; i < v.n; i++) need(v.finding[i].text[0] && v.finding[i].code[0]);
    const kk_page_report r = {.path = "a<b>.json", .verdict = &v};
    need(kk_page_make(&r, 1, &html, &len, &err) == KK_OK);
    need(strlen(html) == len && !strstr(html, "<b>"));
    const char *json = strstr(html, "<script type=\"application/json\" id=\"reports\">");
    need(json != NULL);
    json = strchr(json, '>') + 1;
    need(strncmp(json + strcspn(json, "<>&"), "</script>\n<script>\n", 19) == 0);
    kk_free(html);
    kk_verdict_release(&v);
    return 0;
}
