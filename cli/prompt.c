/* prompt.c - where a prompt comes from and how it becomes tokens. */
#define _GNU_SOURCE
#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"

void prompt_free(prompt_tokens *p) {
    free(p->ids);
    *p = (prompt_tokens){NULL, 0};
}

static bool read_ids(const verb *v, const prompt_args *a, prompt_tokens *out, int *code) {
    const char *bad;
    *out = (prompt_tokens){NULL, 0};
    if (!options_int_list(a->tokens, 0, INT32_MAX, &out->ids, &out->n, &bad)) {
        *code = options_wrong(v, "--tokens takes ids such as 2,17,5; '%.20s' is not one", bad);
        return false;
    }
    if (out->n) return true;
    prompt_free(out);
    *code = options_wrong(v, "--tokens is empty: give ids such as 2,17,5");
    return false;
}

bool prompt_check(const verb *v, const prompt_args *a, int *code) {
    int sources = (a->text != NULL) + (a->file != NULL) + (a->tokens != NULL);
    const char *wrong = NULL;
    if (sources > 1) wrong = "give one of -p, -f and --tokens";
    if (sources == 0 && isatty(STDIN_FILENO))
        wrong = "give a prompt: -p TEXT, -f FILE, --tokens IDS, or text on standard input";
    if (a->tokens && (a->chat || a->system))
        wrong = "--tokens are taken as they are: leave out --chat and --system";
    if (a->system && !a->chat) wrong = "--system needs --chat";
    if (wrong) {
        *code = options_wrong(v, "%s", wrong);
        return false;
    }
    if (!a->tokens) return true;
    prompt_tokens ids;
    bool ok = read_ids(v, a, &ids, code);
    prompt_free(&ids);
    return ok;
}

char *prompt_slurp(const char *path, size_t *len) {
    bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) return NULL;
    size_t cap = 1 << 16, n = 0;
    char *text = malloc(cap);
    while (text) {
        n += fread(text + n, 1, cap - n - 1, f);
        if (n + 1 < cap) break; /* the end, or an error */
        char *more = realloc(text, cap *= 2);
        if (!more) free(text);
        text = more;
    }
    if (text && ferror(f)) {
        free(text);
        text = NULL;
    }
    int why = errno;
    if (!standard) fclose(f);
    errno = why;
    if (text) text[n] = 0;
    *len = n;
    return text;
}

char *prompt_conversation(const char *user, size_t len, const char *system) {
    json_t *messages = json_array(), *o = json_object();
    if (system)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content",
                                                  output_text(system, strlen(system))));
    json_array_append_new(
        messages, json_pack("{s:s, s:o}", "role", "user", "content", output_text(user, len)));
    json_object_set_new(o, "messages", messages);
    json_object_set_new(o, "enable_thinking", json_false());
    json_object_set_new(o, "add_generation_prompt", json_true());
    char *text = json_dumps(o, 0);
    json_decref(o);
    return text;
}

/* Copies the library's ids to our own memory, so that prompt_free has one way to release. */
static bool keep(int32_t *ids, size_t skip, size_t n, prompt_tokens *out) {
    out->ids = malloc((n + 1) * sizeof *ids);
    out->n = n > skip ? n - skip : 0;
    if (out->ids && out->n) memcpy(out->ids, ids + skip, out->n * sizeof *ids);
    kk_free(ids);
    return out->ids != NULL;
}

static bool encode(const prompt_args *a, const kk_tokenizer *tok, const char *text, size_t len,
                   prompt_tokens *out, int *code) {
    int32_t *ids = NULL;
    size_t n = 0;
    kk_err err = {.code = KK_ENOMEM, .msg = "out of memory"};
    kk_status st = KK_ENOMEM;
    if (a->chat) {
        char *json = prompt_conversation(text, len, a->system);
        if (json) st = kk_chat_encode(tok, json, strlen(json), &ids, &n, &err);
        free(json);
    } else {
        st = kk_encode(tok, text, len, a->goes_on ? 0 : KK_ENCODE_BOS, &ids, &n, &err);
    }
    /* A rendered conversation always has its <bos>. */
    if (st == KK_OK && keep(ids, a->goes_on && a->chat, n, out)) return true;
    *code = output_error(&err);
    return false;
}

bool prompt_read(const verb *v, const prompt_args *a, const kk_tokenizer *tok, prompt_tokens *out,
                 int *code) {
    *out = (prompt_tokens){NULL, 0};
    if (a->tokens) return read_ids(v, a, out, code);
    if (!tok) {
        *code = output_failed("this model has no tokenizer, so it cannot read text",
                              "Give ids instead, as in --tokens 2,17,5.");
        return false;
    }
    if (a->text) return encode(a, tok, a->text, strlen(a->text), out, code);
    const char *path = a->file ? a->file : "-";
    size_t len;
    char *text = prompt_slurp(path, &len);
    if (!text) {
        char what[400];
        snprintf(what, sizeof what, "cannot read the prompt from '%.200s': %s", path,
                 strerror(errno));
        *code = output_failed(what, "-f takes a readable file, or - for standard input.");
        return false;
    }
    bool ok = encode(a, tok, text, len, out, code);
    free(text);
    return ok;
}
