/* cmd_chat.c - `kakeya chat`: a conversation at the terminal.
 *
 * The whole conversation is rendered again for every turn, as the model's format wants (earlier
 * answers lose their thinking), and the session is rewound to the longest prefix it already
 * holds, so that only what is new is evaluated. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/flags.h"
#include "cli/lines.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/sampling.h"
#include "cli/term.h"
#include "cli/verbs.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    kk_sampling sampling;
    const char *system;
    int32_t predict;
    bool think, quiet, verbose;
} chat_args;

#define AT(field) offsetof(chat_args, field)
static const option chat_options[] = {
    LOADER_MODEL_OPTIONS(chat_args, load),
    OPTION_HEADING("Conversation"),
    OPTION_STRING(NULL, "system", "TEXT", AT(system), "the system's instructions"),
    OPTION_FLAG(NULL, "think", AT(think), "let the model think before it answers"),
    OPTION_INT("n", "predict", "N", AT(predict), 0, 1 << 30,
               "most tokens of an answer; 0: until it ends (default: 0)"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no greeting and no progress"),
    OPTION_FLAG("v", "verbose", AT(verbose),
                "show what every turn read, and the speed of its answer"),
    SAMPLING_OPTIONS(chat_args, sampling, "1", "64", "0.95", "from the clock"),
    LOADER_CACHE_OPTIONS(chat_args, cache),
    LOADER_DEVICE_OPTIONS(chat_args, load),
};

/* Where in the model's output the stream stands. */
typedef enum { IN_ANSWER, IN_CHANNEL_NAME, IN_THOUGHT } place;

typedef struct {
    const chat_args *args;
    kk_engine *engine;
    const kk_tokenizer *tok;
    kk_session *session;
    kk_decoder *decoder;
    lines *lines;
    json_t *messages;
    char *system; /* NULL: none */
    bool think;
    int32_t channel_open, channel_close, turn_end; /* ids; -1: not in this vocabulary */
    /* The answer being streamed. */
    place place;
    bool thought_shown;
    char *answer;
    size_t answer_len, answer_cap;
    kk_err fault; /* why the stream ended before its time; KK_OK: it did not */
    int32_t read; /* tokens evaluated to bring the session to this turn */
} chat;

/* ---- the conversation as tokens ---------------------------------------------------------- */

static kk_status encode(const chat *c, bool generation_prompt, int32_t **ids, size_t *n,
                        kk_err *err) {
    json_t *all = json_array();
    if (c->system)
        json_array_append_new(all, json_pack("{s:s, s:o}", "role", "system", "content",
                                             output_text(c->system, strlen(c->system))));
    json_array_extend(all, c->messages);
    json_t *o = json_pack("{s:o, s:b, s:b}", "messages", all, "enable_thinking", c->think,
                          "add_generation_prompt", generation_prompt);
    char *text = o ? json_dumps(o, 0) : NULL;
    json_decref(o);
    *ids = NULL;
    if (!text) {
        snprintf(err->msg, sizeof err->msg, "out of memory");
        return err->code = KK_ENOMEM;
    }
    kk_status st = kk_chat_encode(c->tok, text, strlen(text), ids, n, err);
    free(text);
    return st;
}

static size_t common(const int32_t *a, size_t na, const int32_t *b, size_t nb) {
    size_t n = 0;
    while (n < na && n < nb && a[n] == b[n]) n++;
    return n;
}

static kk_status append(chat *c, const int32_t *ids, size_t from, size_t to, kk_err *err) {
    term_progress bar;
    if (from >= to) return KK_OK;
    c->read += (int32_t)(to - from);
    term_progress_begin(&bar, "reading", "tok", c->args->quiet);
    kk_status st =
        kk_session_append(c->session, ids + from, to - from, term_progress_step, &bar, err);
    term_progress_end(&bar);
    return st;
}

/* Brings the session to these tokens.  `shared` of them come before the generation prompt, where
 * the next turn will part from this one: that point is marked. */
static kk_status bring_to(chat *c, const int32_t *ids, size_t n, size_t shared, kk_err *err) {
    size_t held = (size_t)kk_session_len(c->session);
    size_t keep = common(kk_session_tokens(c->session), held, ids, n);
    if (keep == n) keep--; /* the last token must be evaluated to choose the next */
    kk_status st = kk_session_rewind(c->session, (int32_t)keep, &c->read, err);
    if (st == KK_OK && keep < shared) {
        st = append(c, ids, keep, shared, err);
        if (st == KK_OK) st = kk_session_checkpoint(c->session, err);
        keep = shared;
    }
    return st == KK_OK ? append(c, ids, keep, n, err) : st;
}

static kk_status prepare(chat *c, kk_err *err) {
    int32_t *ids = NULL, *base = NULL;
    size_t n = 0, n_base = 0;
    kk_status st = encode(c, true, &ids, &n, err);
    if (st == KK_OK) st = encode(c, false, &base, &n_base, err);
    if (st == KK_OK) st = bring_to(c, ids, n, common(ids, n, base, n_base), err);
    kk_free(ids);
    kk_free(base);
    return st;
}

/* ---- the answer, as it comes ------------------------------------------------------------- */

static bool keep_answer(chat *c, const char *text, size_t len) {
    if (c->answer_len + len + 1 > c->answer_cap) {
        size_t cap = 2 * (c->answer_len + len + 1);
        char *grown = realloc(c->answer, cap);
        if (!grown) return false;
        c->answer = grown;
        c->answer_cap = cap;
    }
    memcpy(c->answer + c->answer_len, text, len);
    c->answer_len += len;
    return true;
}

/* Thinking is for people at a terminal; a program reading the answers does not get it. */
static void show_thought(chat *c, const char *text, size_t len) {
    if (!lines_interactive(c->lines) || len == 0) return;
    printf("%s%.*s%s", term_dim(stdout), (int)len, text, term_reset(stdout));
    c->thought_shown = true;
}

static bool show_answer(chat *c, const char *text, size_t len) {
    if (c->answer_len == 0) /* no empty lines before the answer */
        while (len && (*text == '\n' || *text == ' ')) text++, len--;
    if (len == 0) return true;
    if (c->thought_shown) printf("\n\n");
    c->thought_shown = false;
    fwrite(text, 1, len, stdout);
    return keep_answer(c, text, len);
}

static bool show(chat *c, const char *text, size_t len) {
    if (c->place == IN_CHANNEL_NAME) { /* "thought", then a newline */
        const char *end = memchr(text, '\n', len);
        if (!end) return true;
        c->place = IN_THOUGHT;
        len -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    bool ok = true;
    if (c->place == IN_THOUGHT)
        show_thought(c, text, len);
    else
        ok = show_answer(c, text, len);
    return fflush(stdout) == 0 && ok;
}

static bool on_token(void *user, int32_t id) {
    chat *c = user;
    const char *text;
    size_t len;
    if (kk_decoder_push(c->decoder, id, &text, &len, &c->fault) != KK_OK || !show(c, text, len))
        return false;
    if (id == c->channel_open) c->place = IN_CHANNEL_NAME;
    if (id == c->channel_close) c->place = IN_ANSWER;
    return term_signal() == 0;
}

static kk_status answer(chat *c, kk_result *result, kk_err *err) {
    kk_generate_opts opts = {.max_tokens = c->args->predict,
                             .sampling = c->args->sampling,
                             .stop_ids = &c->turn_end,
                             .n_stop_ids = c->turn_end >= 0};
    const char *text;
    size_t len;
    c->place = IN_ANSWER;
    c->thought_shown = false;
    c->answer_len = 0;
    c->fault.code = KK_OK;
    kk_status st = kk_generate(c->session, &opts, on_token, c, result, err);
    if (st == KK_OK && c->fault.code != KK_OK) {
        *err = c->fault;
        st = err->code;
    }
    if (kk_decoder_finish(c->decoder, &text, &len, NULL) == KK_OK) show(c, text, len);
    printf("\n");
    return st;
}

static void add_message(chat *c, const char *role, const char *text, size_t len) {
    json_array_append_new(c->messages,
                          json_pack("{s:s, s:o}", "role", role, "content", output_text(text, len)));
}

/* What the turn cost: how much of the conversation was read again, and how fast the answer came. */
static void print_speed(const chat *c, const kk_result *r) {
    const kk_spec_stats *t = &r->spec;
    if (r->n_tokens < 2 || r->decode_s <= 0) return;
    fprintf(stderr, "%s%d of %d tokens read; %d answered, %.1f tok/s", term_dim(stderr), c->read,
            kk_session_len(c->session) - r->n_tokens, r->n_tokens, (r->n_tokens - 1) / r->decode_s);
    if (t->drafted)
        fprintf(stderr, ", %.2f tokens per round (%s)",
                (double)(t->accepted + t->rounds) / (double)t->rounds,
                kk_spec_name(kk_session_spec(c->session)));
    fprintf(stderr, "%s\n", term_reset(stderr));
}

static void explain(const kk_err *err, bool interactive) {
    if (err->code == KK_ESTOPPED)
        fprintf(stderr, "(stopped; the question was taken back)\n");
    else if (err->code == KK_ECONTEXT)
        fprintf(stderr, "The conversation no longer fits the context: %s.\n%s",
                flags_for(err->msg).text,
                interactive ? "/clear begins a new one; -c N gives more room.\n"
                            : "Give more room with -c N.\n");
    else
        fprintf(stderr, "kakeya: %s\n", flags_for(err->msg).text);
}

/* One question and its answer.  False: the program should end. */
static bool turn(chat *c, const char *text, int *code) {
    kk_err err = {.code = KK_OK};
    kk_result result = {0};
    add_message(c, "user", text, strlen(text));
    kk_status st = prepare(c, &err);
    if (st == KK_OK) st = answer(c, &result, &err);
    if (st != KK_OK) {
        /* The question is taken back, so that the conversation is as it was. */
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
        explain(&err, lines_interactive(c->lines));
        *code = EXIT_FAILED;
        return lines_interactive(c->lines);
    }
    add_message(c, "assistant", c->answer, c->answer_len);
    if (c->args->verbose) print_speed(c, &result);
    if (result.stop == KK_STOP_CONTEXT)
        fprintf(stderr, "(the context is full: /clear begins a new conversation)\n");
    return true;
}

/* ---- commands: what they say is not data, and goes to stderr ------------------------------ */

static void print_commands(void) {
    fprintf(stderr,
            "/system TEXT    set the system's instructions; without TEXT: none\n"
            "/think on|off   let the model think before it answers\n"
            "/clear          forget the conversation\n"
            "/exit           leave (or Ctrl-D)\n"
            "Ctrl-C stops an answer.  A backslash at the end of a line goes on in the next;\n"
            "\"\"\" begins and ends a block of lines.\n");
}

static void set_system(chat *c, const char *text) {
    free(c->system);
    c->system = *text ? strdup(text) : NULL;
    fprintf(stderr, c->system ? "system instructions set\n" : "no system instructions\n");
}

static void set_think(chat *c, const char *text) {
    if (strcmp(text, "on") == 0)
        c->think = true;
    else if (strcmp(text, "off") == 0)
        c->think = false;
    else if (*text)
        fprintf(stderr, "/think takes on or off\n");
    fprintf(stderr, "thinking is %s\n", c->think ? "on" : "off");
}

/* False: /exit. */
static bool command(chat *c, const char *text) {
    static const char *const names[] = {"/help", "/clear", "/exit", "/system", "/think"};
    char name[16];
    size_t len = strcspn(text, " \n");
    const char *rest = text + len + strspn(text + len, " \n");
    snprintf(name, sizeof name, "%.*s", (int)(len < 15 ? len : 15), text);
    if (strcmp(name, "/exit") == 0 || strcmp(name, "/quit") == 0) return false;
    if (strcmp(name, "/help") == 0) {
        print_commands();
    } else if (strcmp(name, "/clear") == 0) {
        json_array_clear(c->messages);
        fprintf(stderr, "a new conversation\n");
    } else if (strcmp(name, "/system") == 0) {
        set_system(c, rest);
    } else if (strcmp(name, "/think") == 0) {
        set_think(c, rest);
    } else {
        const char *near = options_nearest(name, names, OPTION_COUNT(names));
        fprintf(stderr, "there is no %s; %s%s\n", name, near ? "did you mean " : "see ",
                near ? near : "/help");
    }
    return true;
}

/* ---- the loop ---------------------------------------------------------------------------- */

/* After a signal: Ctrl-C at a terminal only ends what was going on. */
static bool carry_on(chat *c, int *code) {
    if (!term_signal()) return true;
    if (lines_interactive(c->lines) && term_signal() == SIGINT) {
        term_clear();
        return true;
    }
    *code = term_exit_code();
    return false;
}

static int converse(chat *c) {
    int code = EXIT_DONE;
    char *text = NULL;
    lines_event e;
    while ((e = lines_read(c->lines, &text)) != LINES_END) {
        bool go_on = true;
        if (e == LINES_INTERRUPTED)
            printf("\n(/exit or Ctrl-D leaves)\n");
        else if (text[0] == '/')
            go_on = command(c, text);
        else if (text[strspn(text, " \t\n")])
            go_on = turn(c, text, &code);
        free(text);
        if (!carry_on(c, &code) || !go_on) return code;
        if (lines_interactive(c->lines)) code = EXIT_DONE; /* was told, and went on */
    }
    if (lines_interactive(c->lines)) printf("\n");
    return code;
}

static void greet(const chat *c) {
    kk_model_info info;
    kk_engine_info(c->engine, &info);
    fprintf(stderr, "%s%s %s, context %s; /help shows the commands%s\n", term_dim(stderr),
            info.name, info.weight_type, term_count(kk_session_ctx(c->session)).text,
            term_reset(stderr));
}

static int open_and_converse(chat *c) {
    int code = EXIT_FAILED;
    kk_err err;
    if (!(c->engine = loader_open(&verb_chat, &c->args->load, &code))) return code;
    if (!(c->tok = kk_engine_tokenizer(c->engine)))
        return output_failed("this model has no tokenizer, so it cannot chat",
                             "Use 'kakeya run --tokens 2,17,5', or put tokenizer.json beside it.");
    if (!(c->session = loader_session(c->engine, &c->args->cache, &code))) return code;
    if (kk_decoder_new(&c->decoder, c->tok, false, &err) != KK_OK) return output_error(&err);
    c->channel_open = kk_tokenizer_special(c->tok, "<|channel>");
    c->channel_close = kk_tokenizer_special(c->tok, "<channel|>");
    c->turn_end = kk_tokenizer_special(c->tok, "<turn|>");
    c->messages = json_array();
    c->lines = lines_open();
    c->think = c->args->think;
    c->system = c->args->system ? strdup(c->args->system) : NULL;
    if (!c->messages || !c->lines) return output_failed("out of memory", NULL);
    if (!c->args->quiet && lines_interactive(c->lines)) greet(c);
    term_on_signal(lines_interactive(c->lines) ? TERM_INSIST : TERM_ASK);
    return converse(c);
}

static int run(int argc, char **argv) {
    chat_args args = {.sampling = {.temp = 1, .top_k = 64, .top_p = 0.95f},
                      .cache = LOADER_CACHE_DEFAULTS};
    args.sampling.seed = (uint64_t)time(NULL);
    int code;
    if (!options_parse(&verb_chat, argc, argv, &args, NULL, &code)) return code;
    loader_expect(&args.load, &args.cache);
    chat c = {.args = &args};
    code = open_and_converse(&c);
    lines_close(c.lines);
    json_decref(c.messages);
    kk_decoder_free(c.decoder);
    kk_session_free(c.session);
    kk_engine_close(c.engine);
    free(c.system);
    free(c.answer);
    return code;
}

const verb verb_chat = {
    .name = "chat",
    .summary = "talk with a model at the terminal",
    .usage = "[-m MODEL] [options]",
    .about = "Reads messages and streams the answers.  At a terminal lines can be edited, the up\n"
             "arrow brings back earlier ones, and Ctrl-C stops an answer.  Without one every line\n"
             "of standard input is a message.  A backslash at the end of a line goes on in the\n"
             "next; three quotes (\"\"\") begin and end a block of lines.\n\n"
             "Commands: /help /system TEXT /think on|off /clear /exit",
    .examples = "  kakeya chat -m gemma-4-26b-a4b-q4_0.gguf\n"
                "  kakeya chat -m gemma-4-26b-a4b-q4_0.gguf --think -c 32768\n"
                "  echo 'Name three seas.' | kakeya chat -m gemma-4-26b-a4b-q4_0.gguf --temp 0\n",
    .options = chat_options,
    .n_options = OPTION_COUNT(chat_options),
    .run = run,
};
