/* prompt.c - where a prompt comes from and how it becomes tokens. */
#define _GNU_SOURCE
#include "cli/prompt.h"

#include <errno.h>
#include <stdarg.h>
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
    const char *of_chat = a->system  ? "--system"
                          : a->tools ? "--tools"
                          : a->think ? "--think"
                                     : NULL;
    if (a->tokens && (a->chat || of_chat)) {
        *code = options_wrong(v, "--tokens are taken as they are: leave out %s",
                              a->chat ? "--chat" : of_chat);
        return false;
    }
    if (of_chat && !a->chat) {
        *code = options_wrong(v, "%s needs --chat", of_chat);
        return false;
    }
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
        char *more = NULL;
        if (cap >= PROMPT_LONGEST)
            errno = EFBIG;
        else
            more = realloc(text, cap *= 2);
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

static bool reserve(char **line, size_t *cap, size_t n) {
    if (n + 1 < *cap) return true;
    if (*cap >= PROMPT_LONGEST) {
        errno = EFBIG;
        return false;
    }
    const size_t more = *cap ? 2 * *cap : 256;
    char *grown = realloc(*line, more);
    if (!grown) return false;
    *line = grown;
    *cap = more;
    return true;
}

ssize_t prompt_line(char **line, size_t *cap, FILE *f) {
    size_t n = 0;
    int c = 0;
    errno = 0;
    while (c != '\n' && (c = getc_unlocked(f)) != EOF) {
        if (!reserve(line, cap, n)) return -1;
        (*line)[n++] = (char)c;
    }
    if (n == 0 || (c == EOF && errno)) return -1;
    (*line)[n] = 0;
    return (ssize_t)n;
}

const char prompt_tools_advice[] =
    "--tools takes a JSON list of tools as in the OpenAI API: [{\"type\": \"function\", "
    "\"function\":\n  {\"name\": ..., \"parameters\": ...}}].";

static void set_error(kk_err *err, kk_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void set_error(kk_err *err, kk_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    err->code = code;
}

json_t *prompt_json(const char *path, kk_err *err) {
    json_error_t fault;
    size_t len;
    errno = 0;
    char *text = prompt_slurp(path, &len);
    if (!text) {
        set_error(err, KK_EIO, "cannot read '%.150s': %s", path, strerror(errno));
        return NULL;
    }
    json_t *o = json_loadb(text, len, 0, &fault);
    free(text);
    if (!o)
        set_error(err, KK_EFORMAT, "'%.100s' is not JSON: line %d: %.80s", path, fault.line,
                  fault.text);
    return o;
}

json_t *prompt_tools(const char *path, kk_err *err) {
    json_t *o = prompt_json(path, err);
    if (!o) return NULL;
    json_t *tools = json_is_object(o) ? json_object_get(o, "tools") : o;
    if (json_array_size(tools) > 0) {
        json_incref(tools);
    } else {
        set_error(err, KK_EFORMAT, "'%.150s' has no list of tools, or an empty one", path);
        tools = NULL;
    }
    json_decref(o);
    return tools;
}

char *prompt_conversation(const char *user, size_t len, const char *system, json_t *tools,
                          bool think) {
    json_t *messages = json_array(), *o = json_object();
    if (system)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content",
                                                  output_text(system, strlen(system))));
    json_array_append_new(
        messages, json_pack("{s:s, s:o}", "role", "user", "content", output_text(user, len)));
    json_object_set_new(o, "messages", messages);
    json_object_set_new(o, "enable_thinking", json_boolean(think));
    if (tools) json_object_set(o, "tools", tools);
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
        json_t *tools = a->tools ? prompt_tools(a->tools, &err) : NULL;
        if (a->tools && !tools) {
            *code = output_failed(err.msg, prompt_tools_advice);
            return false;
        }
        char *json = prompt_conversation(text, len, a->system, tools, a->think);
        if (json) st = kk_chat_encode(tok, json, strlen(json), &ids, &n, &err);
        free(json);
        json_decref(tools);
    } else {
        st = kk_encode(tok, text, len, a->goes_on ? 0 : KK_ENCODE_BOS, &ids, &n, &err);
    }
    /* A rendered conversation always has its <bos>. */
    if (st == KK_OK && keep(ids, a->goes_on && a->chat, n, out)) return true;
    *code = output_error(&err);
    return false;
}

/* Encoding takes seconds for what is megabytes too long. */
static bool can_fit(const kk_tokenizer *tok, const kk_session *s, size_t len, int *code) {
    const size_t least = kk_encode_least(tok, len);
    kk_err err = {.code = KK_ECONTEXT};
    if (least <= (size_t)kk_session_ctx(s)) return true;
    snprintf(err.msg, sizeof err.msg,
             "the prompt has %zu tokens at least, the context holds %d: raise `ctx`", least,
             kk_session_ctx(s));
    *code = output_error(&err);
    return false;
}

bool prompt_read(const verb *v, const prompt_args *a, const kk_tokenizer *tok, const kk_session *s,
                 prompt_tokens *out, int *code) {
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
    bool ok = can_fit(tok, s, len, code) && encode(a, tok, text, len, out, code);
    free(text);
    return ok;
}
