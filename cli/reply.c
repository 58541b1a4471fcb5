/* reply.c - see reply.h. */
#include "cli/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/term.h"

bool reply_open(reply *r, const kk_answer_opts *opts, kk_err *err) {
    r->calls = json_array();
    r->line = true;
    if (r->calls) return kk_answer_new(&r->answer, opts, err) == KK_OK;
    *err = (kk_err){.code = KK_ENOMEM, .msg = "out of memory for the answer"};
    return false;
}

void reply_close(reply *r) {
    kk_answer_free(r->answer);
    json_decref(r->calls);
    free(r->text.bytes);
    free(r->thought.bytes);
    *r = (reply){.quiet = r->quiet};
}

bool reply_stopped(const reply *r) { return r->answer && kk_answer_stopped(r->answer); }

/* ---- keeping ----------------------------------------------------------------------------- */

static bool no_memory(reply *r) {
    r->fault = (kk_err){.code = KK_ENOMEM, .msg = "out of memory for the answer"};
    return false;
}

static bool keep(reply *r, reply_text *to, const char *text, size_t len) {
    if (to->len + len + 1 > to->cap) {
        const size_t cap = 2 * (to->len + len) + 256;
        char *grown = realloc(to->bytes, cap);
        if (!grown) return no_memory(r);
        to->bytes = grown;
        to->cap = cap;
    }
    memcpy(to->bytes + to->len, text, len);
    to->len += len;
    to->bytes[to->len] = '\0';
    return true;
}

static bool keep_call(reply *r, const kk_answer_span *s) {
    json_t *arguments = s->arguments ? json_loads(s->arguments, 0, NULL) : NULL;
    json_t *one = arguments ? json_pack("{s:s, s:o}", "name", s->name, "arguments", arguments)
                            : json_pack("{s:o}", "text", output_text(s->text, s->len));
    return json_array_append_new(r->calls, one) == 0 || no_memory(r);
}

/* ---- showing ----------------------------------------------------------------------------- */

static void print(reply *r, const char *text, size_t len) {
    if (len == 0) return;
    fwrite(text, 1, len, stdout);
    r->line = text[len - 1] == '\n';
    r->any = true;
}

/* Between parts: a call stands on a line of its own, an empty line follows a thought. */
static void separate(reply *r, kk_answer_kind next) {
    if (!r->any || (r->last == next && next != KK_ANSWER_CALL)) return;
    if (!r->line) putchar('\n');
    if (r->last == KK_ANSWER_THOUGHT) putchar('\n');
    r->line = true;
}

static void print_call(reply *r, const kk_answer_span *s) {
    fputs(term_accent(stdout), stdout);
    if (s->name)
        printf("tool call: %s %s", s->name, s->arguments);
    else
        printf("a tool call that cannot be read: %.*s", (int)s->len, s->text);
    printf("%s\n", term_reset(stdout));
    r->any = r->line = true;
}

static void show(reply *r, const kk_answer_span *s) {
    if (s->kind == KK_ANSWER_THOUGHT && !term_controls(stdout)) return;
    separate(r, s->kind);
    r->last = s->kind;
    if (s->kind == KK_ANSWER_CALL) {
        print_call(r, s);
    } else if (s->kind == KK_ANSWER_THOUGHT) {
        fputs(term_dim(stdout), stdout);
        print(r, s->text, s->len);
        fputs(term_reset(stdout), stdout);
    } else {
        print(r, s->text, s->len);
    }
}

static bool take(reply *r, const kk_answer_span *spans, size_t n) {
    bool kept = true;
    for (size_t i = 0; i < n && kept; i++) {
        const kk_answer_span *s = &spans[i];
        if (!r->quiet) show(r, s);
        kept = s->kind == KK_ANSWER_CALL
                   ? keep_call(r, s)
                   : keep(r, s->kind == KK_ANSWER_TEXT ? &r->text : &r->thought, s->text, s->len);
    }
    return kept && (r->quiet || n == 0 || fflush(stdout) == 0);
}

bool reply_token(reply *r, int32_t id) {
    const kk_answer_span *spans;
    size_t n;
    return kk_answer_push(r->answer, id, &spans, &n, &r->fault) == KK_OK && take(r, spans, n) &&
           !kk_answer_stopped(r->answer) && term_signal() == 0;
}

void reply_finish(reply *r) {
    const kk_answer_span *spans;
    size_t n;
    if (kk_answer_finish(r->answer, &spans, &n, NULL) == KK_OK) take(r, spans, n);
    if (r->quiet) return;
    if (!r->any || r->last != KK_ANSWER_CALL) putchar('\n');
    fflush(stdout);
}
