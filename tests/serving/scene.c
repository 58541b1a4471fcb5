/* scene.c - see scene.h. */
#define _GNU_SOURCE
#include "serving/scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/reports/gate_serving.h"
#include "eval/reports/report.h"

/* ---- prompts ------------------------------------------------------------------------------- */

static bool said_why(const char *what, const kk_err *err) {
    fprintf(stderr, "serving: %s: %s\n", what, err->msg);
    return false;
}

bool scene_open_engine(const scene *s, kk_engine **out) {
    kk_err err;
    return kk_engine_open(out, &s->engine, &err) == KK_OK || said_why("the engine", &err);
}

bool spoken_prompt(spoken *p, const scene *s, kk_engine *e, size_t number, size_t tokens) {
    kk_err err;
    *p = (spoken){0};
    return kk_served_prompt(&p->of, e, s->prompts, s->seed, number, tokens, &err) == KK_OK ||
           said_why("a prompt", &err);
}

void spoken_free(spoken *p) {
    kk_served_free(&p->of);
    growing_free(&p->text);
    *p = (spoken){0};
}

/* ---- what the model says alone ------------------------------------------------------------- */

/* A model without a tokenizer writes ids with spaces behind them. */
static kk_status write_text(spoken *p, const kk_tokenizer *tok, kk_err *err) {
    char *text;
    size_t len;
    growing_free(&p->text);
    growing_add(&p->text, "", 0);
    for (int32_t i = 0; !tok && i < p->of.n_answer; i++)
        growing_printf(&p->text, "%d ", (int)p->of.answer[i]);
    if (!tok) return KK_OK;
    const kk_status st =
        kk_decode(tok, p->of.answer, (size_t)p->of.n_answer, true, &text, &len, err);
    if (st != KK_OK) return st;
    growing_add(&p->text, text, len);
    kk_free(text);
    return KK_OK;
}

bool spoken_answer(spoken *p, kk_engine *e, int32_t predict) {
    kk_err err;
    kk_status st = kk_served_answer(&p->of, e, predict, &err);
    if (st == KK_OK) st = write_text(p, kk_engine_tokenizer(e), &err);
    return st == KK_OK || said_why("an answer", &err);
}

bool spoken_same(const spoken *p, const client *c) {
    growing quoted = {0};
    growing_printf(&quoted, "\"");
    growing_add(&quoted, c->said.text ? c->said.text : "", c->said.len);
    growing_add(&quoted, "\"", 1);
    json_t *said = json_loads(quoted.text, JSON_DECODE_ANY, NULL);
    json_t *text = kk_report_text(p->text.text, p->text.len);
    const bool same = said && strcmp(json_string_value(said), json_string_value(text)) == 0 &&
                      c->completion == p->of.n_answer &&
                      (!c->logprobs || c->logprob_hash == p->of.logprob_hash);
    json_decref(said);
    json_decref(text);
    growing_free(&quoted);
    return same;
}

void spoken_request(const spoken *p, int32_t predict, bool stream, const char *more, growing *out) {
    growing_printf(out, "{\"prompt\":[");
    for (size_t i = 0; i < p->of.n; i++) growing_printf(out, i ? ",%d" : "%d", (int)p->of.ids[i]);
    growing_printf(out, "],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true", (int)predict);
    if (stream) growing_printf(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    growing_printf(out, "%s}", more);
}

/* ---- reports ------------------------------------------------------------------------------- */

json_t *scene_envelope(const scene *s, kk_engine *e) {
    return kk_report_run(e, &s->engine, s->command);
}

static void print_check(const json_t *c) {
    printf("%-6s %s of %s: %.4g, limit %.4g\n",
           json_is_true(json_object_get(c, "holds")) ? "holds" : "FAILS",
           json_string_value(json_object_get(c, "figure")),
           json_string_value(json_object_get(c, "arm")),
           json_number_value(json_object_get(c, "value")),
           json_number_value(json_object_get(c, "limit")));
}

/* A run whose limits do not hold writes its report too. */
int scene_write(const scene *s, const char *kind, json_t *envelope, json_t *body) {
    const kk_writer_opts over = {.replace = true};
    kk_writer *to = NULL;
    kk_err err;
    size_t i;
    json_t *c, *report = kk_report_new(kind, kk_report_join(envelope, body));
    json_t *gate = kk_serving_gate(report);
    json_object_set_new(report, "gate", gate);
    json_array_foreach(json_object_get(gate, "checks"), i, c) print_check(c);
    const bool held = json_is_true(json_object_get(gate, "holds"));
    kk_status st = KK_OK;
    if (s->report) st = kk_writer_open(&to, s->report, &over, &err);
    if (to)
        st = kk_report_write(to, report, &err);
    else
        json_decref(report);
    kk_writer_close(to);
    if (st != KK_OK) said_why(s->report, &err);
    return st == KK_OK && held ? 0 : 1;
}

/* ---- figures ------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double scene_quantile(double *values, size_t n, double share) {
    if (n == 0) return 0;
    qsort(values, n, sizeof *values, by_value);
    const size_t at = (size_t)(share * (double)n);
    return values[at < n ? at : n - 1];
}

json_t *scene_spread(const json_t *rows, const char *key) {
    const size_t n = json_array_size(rows);
    double *x = calloc(n + 1, sizeof *x);
    size_t of = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(json_array_get(rows, i), key);
        if (json_is_number(v)) x[of++] = json_number_value(v);
    }
    json_t *spread = kk_report_spread(x, of);
    free(x);
    return spread;
}

json_t *scene_rate(json_t *rows) {
    const size_t n = json_array_size(rows);
    double *x = calloc(n + 1, sizeof *x), tokens = 0, seconds = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        const double t = json_number_value(json_object_get(row, "tokens"));
        const double s = json_number_value(json_object_get(row, "seconds"));
        tokens += t;
        seconds += s;
        x[i] = s > 0 ? t / s : 0;
    }
    json_t *o = json_pack("{s:I, s:f, s:f, s:o, s:o}", "tokens", (json_int_t)tokens, "seconds",
                          seconds, "tok_s", seconds > 0 ? tokens / seconds : 0, "tok_s_spread",
                          kk_report_spread(x, n), "rows", rows);
    free(x);
    return o;
}
