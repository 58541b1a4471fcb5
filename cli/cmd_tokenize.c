/* cmd_tokenize.c - `kakeya tokenize`: text to ids and back, or a conversation to its text; one
 * JSON object per line, for tests and for other programs. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/loader.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/term.h"
#include "cli/verbs.h"

typedef struct {
    loader_args load;
    const char *text, *file, *jsonl;
    bool chat, bos;
} tokenize_args;

#define AT(field) offsetof(tokenize_args, field)
static const option tokenize_options[] = {
    OPTION_HEADING("Options"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "folder with tokenizer.json, a tokenizer.json, or a GGUF file"),
    OPTION_STRING("p", "prompt", "TEXT", AT(text), "encode this text"),
    OPTION_STRING("f", "file", "FILE", AT(file),
                  "encode a file's text; - is standard input (default: that)"),
    OPTION_STRING(NULL, "jsonl", "FILE", AT(jsonl),
                  "encode \"text\" of the JSON object on each line; - is standard input"),
    OPTION_FLAG(NULL, "chat", AT(chat),
                "render conversations (\"messages\", \"tools\", ...) instead; needs no model"),
    OPTION_FLAG(NULL, "bos", AT(bos), "put <bos> first, as run does"),
};

/* Prints {"ids": [...], "back": "..."}.  Special strings in the text become special tokens. */
static bool print_encoded(const kk_tokenizer *tok, const char *text, size_t len, bool bos,
                          int *code) {
    int32_t *ids = NULL;
    size_t n = 0, back_len = 0;
    char *back = NULL;
    kk_err err;
    kk_status st =
        kk_encode(tok, text, len, KK_ENCODE_SPECIAL | (bos ? KK_ENCODE_BOS : 0u), &ids, &n, &err);
    if (st == KK_OK) st = kk_decode(tok, ids, n, true, &back, &back_len, &err);
    if (st == KK_OK) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
        if (!output_json(json_pack("{s:o, s:o}", "ids", list, "back", output_text(back, back_len))))
            st = KK_ENOMEM, snprintf(err.msg, sizeof err.msg, "out of memory for the output");
    }
    if (st != KK_OK) *code = output_failed(err.msg, NULL);
    kk_free(ids);
    kk_free(back);
    return st == KK_OK;
}

static bool print_rendered(const char *json, size_t len, int *code) {
    char *text;
    size_t n;
    kk_err err;
    if (kk_chat_render(json, len, &text, &n, &err) != KK_OK) {
        *code = output_failed(err.msg, "A line is an object with \"messages\", as in {\"messages\":"
                                       " [{\"role\": \"user\", \"content\": \"Hi\"}]}.");
        return false;
    }
    bool ok = output_json(json_pack("{s:o}", "text", output_text(text, n)));
    kk_free(text);
    if (!ok) *code = output_failed("out of memory for the output", NULL);
    return ok;
}

static bool encode_line(const kk_tokenizer *tok, const char *line, size_t len, long number,
                        bool bos, int *code) {
    json_error_t fault;
    json_t *o = json_loadb(line, len, JSON_ALLOW_NUL, &fault);
    json_t *text = json_object_get(o, "text");
    bool ok = json_is_string(text);
    if (ok) {
        ok = print_encoded(tok, json_string_value(text), json_string_length(text), bos, code);
    } else {
        char what[280];
        snprintf(what, sizeof what, "line %ld: %.200s", number,
                 o ? "no string called \"text\"" : fault.text);
        *code = output_failed(what, "Each line is a JSON object such as {\"text\": \"Hello\"}.");
    }
    json_decref(o);
    return ok;
}

static int each_line(const tokenize_args *a, const kk_tokenizer *tok) {
    FILE *f = strcmp(a->jsonl, "-") == 0 ? stdin : fopen(a->jsonl, "rb");
    if (!f) {
        char what[400];
        snprintf(what, sizeof what, "cannot open '%.200s': %s", a->jsonl, strerror(errno));
        return output_failed(what, "--jsonl takes a readable file, or - for standard input.");
    }
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int code = EXIT_DONE;
    for (long number = 1; (n = prompt_line(&line, &cap, f)) >= 0; number++) {
        size_t len = (size_t)n;
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r')) len--;
        if (len == 0) continue;
        bool ok = a->chat ? print_rendered(line, len, &code)
                          : encode_line(tok, line, len, number, a->bos, &code);
        if (!ok) break;
    }
    if (n < 0 && errno) {
        char what[400];
        snprintf(what, sizeof what, "cannot read the lines of '%.200s': %s", a->jsonl,
                 strerror(errno));
        code = output_failed(what, "Check the file.");
    }
    free(line);
    if (f != stdin) fclose(f);
    return code;
}

static int render_text(const char *text, size_t len) {
    int code = EXIT_DONE;
    char *json = prompt_conversation(text, len, NULL, NULL, false);
    if (!json) return output_failed("out of memory", NULL);
    print_rendered(json, strlen(json), &code);
    free(json);
    return code;
}

/* Prints what was asked for of a text, or of each line when there is none. */
static int tokenize(const tokenize_args *a, const char *text, size_t len) {
    loader_path path;
    kk_tokenizer *tok;
    kk_err err;
    int code;
    if (a->chat) return text ? render_text(text, len) : each_line(a, NULL);
    if (!loader_find(&verb_tokenize, &a->load, &path, &code)) return code;
    if (kk_tokenizer_open(&tok, path.path, &err) != KK_OK)
        return output_failed(err.msg, "-m takes a folder with tokenizer.json, a tokenizer.json or "
                                      "a GGUF file.");
    code = EXIT_DONE;
    if (text)
        print_encoded(tok, text, len, a->bos, &code);
    else
        code = each_line(a, tok);
    kk_tokenizer_close(tok);
    return code;
}

static int tokenize_file(const tokenize_args *a, const char *path) {
    size_t len;
    char *text = prompt_slurp(path, &len);
    if (!text) {
        char what[400];
        snprintf(what, sizeof what, "cannot read '%.200s': %s", path, strerror(errno));
        return output_failed(what, "-f takes a readable file, or - for standard input.");
    }
    const int code = tokenize(a, text, len);
    free(text);
    return code;
}

static int run(int argc, char **argv) {
    tokenize_args a = {0};
    int code;
    if (!options_parse(&verb_tokenize, argc, argv, &a, NULL, &code)) return code;
    const int sources = (a.text != NULL) + (a.file != NULL) + (a.jsonl != NULL);
    if (sources > 1 || (sources == 0 && isatty(STDIN_FILENO)))
        return options_wrong(&verb_tokenize,
                             "give one of -p, -f and --jsonl, or text on standard input");
    if (a.text) return tokenize(&a, a.text, strlen(a.text));
    return a.jsonl ? tokenize(&a, NULL, 0) : tokenize_file(&a, a.file ? a.file : "-");
}

const verb verb_tokenize = {
    .name = "tokenize",
    .summary = "turn text into token ids, or a conversation into its text",
    .usage = "[-m MODEL] [-p TEXT | -f FILE | --jsonl FILE] [--chat]",
    .about = "Prints {\"ids\": [...], \"back\": \"...\"} for the text (of -p, of a file, or of\n"
             "standard input), or for each line's \"text\"; \"back\" is the ids decoded again.  "
             "Special strings become special tokens.  With\n"
             "--chat it prints {\"text\": \"...\"}: the conversation in the model's own format.",
    .examples = "  kakeya tokenize -m gemma-4-26b.gguf -p 'Hello world'\n"
                "  kakeya tokenize -m gemma-4-26b --jsonl texts.jsonl\n"
                "  kakeya tokenize < book.txt\n"
                "  kakeya tokenize --chat -p 'Why is the sky blue?'\n",
    .options = tokenize_options,
    .n_options = OPTION_COUNT(tokenize_options),
    .run = run,
};
