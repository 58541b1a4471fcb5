/* cmd_chat.c - `kakeya chat`: a conversation at the terminal.
 *
 * The loop, the greeting and what a turn says; the conversation itself is talk.c's, the commands
 * chat_commands.c's, the keys lines.c's. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chatting.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/term.h"
#include "cli/verbs.h"

#define AT(field) offsetof(chat_args, field)
static const option chat_options[] = {
    LOADER_MODEL_OPTIONS(chat_args, load),
    OPTION_HEADING("Conversation"),
    OPTION_STRING("p", "prompt", "TEXT", AT(prompt), "the first message"),
    OPTION_STRING("f", "file", "FILE", AT(file),
                  "a file's text, put before the first message, as /file does"),
    OPTION_STRING(NULL, "load", "NAME", AT(resume), "go on with a conversation that /save kept"),
    OPTION_STRING(NULL, "system", "TEXT", AT(system), "the system's instructions"),
    OPTION_STRING(NULL, "tools", "FILE", AT(tools),
                  "tools the model may call: a JSON list as in the OpenAI API; you are asked for "
                  "their results"),
    OPTION_FLAG(NULL, "think", AT(think), "let the model think before it answers"),
    SAMPLING_PREDICT_OPTION(chat_args, predict,
                            "most tokens of an answer; -1: until it ends, "
                            "0: none (default: -1)"),
    SAMPLING_STOP_OPTION(chat_args, stops),
    OPTION_FLAG(NULL, "no-shift", AT(no_shift),
                "stop when the context is full (default: the oldest turns are dropped)"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no greeting and no progress"),
    OPTION_FLAG("v", "verbose", AT(verbose),
                "show the seed, what every turn read, and the speed of its answer"),
    SAMPLING_OPTIONS(chat_args, sampling, "1", "64", "0.95", "-1"),
    LOADER_CACHE_OPTIONS(chat_args, cache),
    LOADER_DEVICE_OPTIONS(chat_args, load),
};

/* ---- a turn ------------------------------------------------------------------------------ */

/* What the turn cost: how much of the conversation was read again, and how fast the answer came. */
static void print_speed(const chat *c, const kk_result *r) {
    const kk_spec_stats *t = &r->spec;
    const kk_session *s = c->talk.session;
    if (r->n_tokens < 2 || r->decode_s <= 0) return;
    fprintf(stderr, "%s%d of %d tokens read; %d answered, %.1f tok/s", term_dim(stderr),
            c->talk.read, kk_session_len(s) - r->n_tokens, r->n_tokens,
            (r->n_tokens - 1) / r->decode_s);
    if (t->drafted)
        fprintf(stderr, ", %.2f tokens per round (%s)",
                (double)(t->accepted + t->rounds) / (double)t->rounds,
                kk_spec_name(kk_session_spec(s)));
    fprintf(stderr, "%s\n", term_reset(stderr));
}

static void explain(const kk_err *err, bool interactive) {
    if (err->code == KK_ESTOPPED)
        fprintf(stderr, "(stopped; the question was taken back)\n");
    else if (err->code == KK_ECONTEXT)
        fprintf(stderr, "The conversation no longer fits the context: %s.\n%s",
                flags_for(err->msg).text,
                interactive ? "/clear begins a new one; -c N gives a longer context.\n"
                            : "Give a longer context with -c N.\n");
    else
        fprintf(stderr, "kakeya: %s\n", flags_for(err->msg).text);
}

/* What there is to say after a turn.  False: the program should end. */
static bool finish_turn(chat *c, kk_status st, const kk_result *result, const kk_err *err,
                        int *code) {
    const kk_session *s = c->talk.session;
    if (st != KK_OK) {
        explain(err, lines_interactive(c->lines));
        *code = EXIT_FAILED;
        return lines_interactive(c->lines);
    }
    if (c->args->verbose) print_speed(c, result);
    if (c->talk.dropped)
        fprintf(stderr, "(the context of %d tokens is full: the oldest %d %s dropped)\n",
                kk_session_ctx(s), c->talk.dropped,
                c->talk.dropped == 1 ? "turn was" : "turns were");
    if (result->stop == KK_STOP_CONTEXT)
        fprintf(stderr, "(the context of %d tokens is full: the answer was cut)\n",
                kk_session_ctx(s));
    return true;
}

bool chat_retry(chat *c, int *code) {
    kk_err err = {.code = KK_OK};
    kk_result result;
    const kk_status st = talk_retry(&c->talk, &result, &err);
    return finish_turn(c, st, &result, &err, code);
}

/* What /file read, an empty line, and the message.  Released with free. */
static char *with_attached(const chat *c, const char *text) {
    char *all = NULL;
    return asprintf(&all, "%s\n\n%s", c->attached, text) < 0 ? NULL : all;
}

bool chat_turn(chat *c, const char *text, int *code) {
    kk_err err = {.code = KK_OK};
    kk_result result;
    char *all = c->attached ? with_attached(c, text) : NULL;
    if (c->attached && !all) {
        *code = output_failed("out of memory", NULL);
        return false;
    }
    if (all) text = all;
    const kk_status st = talk_ask(&c->talk, text, strlen(text), &result, &err);
    if (st == KK_OK) {
        free(c->attached);
        c->attached = NULL;
    }
    free(all);
    return finish_turn(c, st, &result, &err, code);
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

/* What the next message is asked for with. */
static void prompt_for(const chat *c, char *out, size_t cap) {
    const char *tool = talk_awaits(&c->talk);
    if (tool)
        snprintf(out, cap, "result of %.100s>", tool);
    else
        snprintf(out, cap, ">");
}

/* One message or command.  False: the program should end. */
static bool act(chat *c, const char *text, int *code) {
    if (chat_is_command(text)) return chat_command(c, text, code);
    if (text[strspn(text, " \t\n")]) return chat_turn(c, text, code);
    return true;
}

static int converse(chat *c) {
    int code = EXIT_DONE;
    char *text = NULL, prompt[128];
    lines_event e;
    for (;;) {
        prompt_for(c, prompt, sizeof prompt);
        if ((e = lines_read(c->lines, prompt, &text)) == LINES_END) break;
        if (e == LINES_INTERRUPTED) printf("\n(/bye or Ctrl-D leaves)\n");
        const bool go_on = e == LINES_INTERRUPTED || act(c, text, &code);
        free(text);
        if (!carry_on(c, &code) || !go_on) return code;
        if (lines_interactive(c->lines)) code = EXIT_DONE; /* was told, and went on */
    }
    if (lines_interactive(c->lines)) printf("\n");
    return code;
}

/* ---- the start --------------------------------------------------------------------------- */

/* What a person calls the model: the file or folder that was named. */
static const char *model_name(const loader_args *a, char *out, size_t cap) {
    if (!a->model) return a->synthetic ? a->synthetic : "the small model that comes with kakeya";
    snprintf(out, cap, "%s", a->model);
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--) out[n - 1] = 0;
    const char *slash = strrchr(out, '/');
    return slash && slash[1] ? slash + 1 : out;
}

static void greet(const chat *c) {
    kk_model_info info;
    char name[256];
    kk_engine_info(c->talk.engine, &info);
    const bool known = strcmp(info.name, "custom") != 0;
    fprintf(stderr, "%s%s%s%s (%s%s%s), context of %s tokens; /help shows the commands%s\n",
            term_bold(stderr), model_name(&c->args->load, name, sizeof name), term_reset(stderr),
            term_dim(stderr), known ? info.name : "", known ? ", " : "", info.weight_type,
            term_count(kk_session_ctx(c->talk.session)).text, term_reset(stderr));
}

static bool start_talk(chat *c, int *code) {
    const chat_args *a = c->args;
    talk *t = &c->talk;
    *code = EXIT_FAILED;
    t->stops = &a->stops;
    t->sampling = a->sampling;
    t->predict = a->predict;
    t->no_shift = a->no_shift;
    t->quiet = a->quiet;
    if (talk_open(t) && (c->lines = lines_open(chat_complete, c))) return true;
    output_failed("out of memory", NULL);
    return false;
}

/* What the conversation begins with: the saved one, if it is to go on, and over it what the command
 * line gives. */
static bool begin_with(chat *c, int *code) {
    const chat_args *a = c->args;
    talk *t = &c->talk;
    kk_err err;
    json_t *tools = NULL;
    *code = EXIT_FAILED;
    if (a->tools && !(tools = prompt_tools(a->tools, &err))) {
        output_failed(err.msg, prompt_tools_advice);
        return false;
    }
    if (a->resume && !chat_load(c, a->resume, code)) {
        json_decref(tools);
        return false;
    }
    if (tools) {
        json_decref(t->tools);
        t->tools = tools;
    }
    if (a->think) t->think = true;
    if (!a->system || talk_set_system(t, a->system)) return true;
    output_failed("out of memory", NULL);
    return false;
}

/* The message that the command line gives, before any is typed.  False: the program should end. */
static bool first_turn(chat *c, int *code) {
    const chat_args *a = c->args;
    if (!a->prompt) return true;
    if (lines_interactive(c->lines)) fprintf(stderr, "> %s\n", a->prompt);
    const bool go_on = chat_turn(c, a->prompt, code);
    return carry_on(c, code) && go_on;
}

static int open_and_converse(chat *c) {
    const chat_args *a = c->args;
    talk *t = &c->talk;
    int code = EXIT_FAILED;
    size_t len;
    if (a->file && !(c->attached = prompt_slurp(a->file, &len)))
        return output_failed("cannot read the file that -f names", "Check the path.");
    if (!(t->engine = loader_open(&verb_chat, &a->load, &code))) return code;
    if (!(t->tok = kk_engine_tokenizer(t->engine)))
        return output_failed("this model has no tokenizer, so it cannot chat",
                             "Use 'kakeya run --tokens 2,17,5', or put tokenizer.json beside it.");
    if (!(t->session = loader_session(t->engine, &a->cache, &code))) return code;
    if (!start_talk(c, &code)) return code;
    if (!a->quiet && lines_interactive(c->lines)) greet(c);
    if (a->verbose)
        fprintf(stderr, "%sseed %llu%s\n", term_dim(stderr), (unsigned long long)t->sampling.seed,
                term_reset(stderr));
    if (!begin_with(c, &code)) return code;
    term_on_signal(lines_interactive(c->lines) ? TERM_INSIST : TERM_ASK);
    code = EXIT_DONE;
    return first_turn(c, &code) ? converse(c) : code;
}

static int run(int argc, char **argv) {
    chat_args args = {.sampling = {.temp = 1, .top_k = 64, .top_p = 0.95f, .seed = SAMPLING_DRAW},
                      .predict = -1,
                      .cache = LOADER_CACHE_DEFAULTS};
    int code;
    if (!options_parse(&verb_chat, argc, argv, &args, NULL, &code)) return code;
    sampling_draw_seed(&args.sampling.seed);
    loader_expect(&args.load, &args.cache);
    chat c = {.args = &args};
    code = open_and_converse(&c);
    lines_close(c.lines);
    talk_close(&c.talk);
    kk_engine_close(c.talk.engine);
    free(c.attached);
    return code;
}

const verb verb_chat = {
    .name = "chat",
    .summary = "talk with a model at the terminal",
    .usage = "[-m MODEL] [-p TEXT] [options]",
    .about = "Reads messages and streams the answers.  At a terminal lines can be edited, the up\n"
             "arrow brings back earlier ones, Tab completes commands, what is pasted is one\n"
             "message, and Ctrl-C stops an answer.  Without a terminal every line of standard\n"
             "input is a message.  A backslash at the end of a line goes on in the next; three\n"
             "quotes (\"\"\") begin and end a block of lines.\n\n"
             "Commands: /help /system TEXT /think on|off /set NAME VALUE /file PATH /undo /retry\n"
             "/save NAME /load NAME /clear /bye",
    .examples = "  kakeya chat -m gemma-4-26b-a4b-q4_0.gguf\n"
                "  kakeya chat -m gemma-4-26b-a4b-q4_0.gguf --think -c 32768\n"
                "  kakeya chat -p 'Name three seas.' --system 'Answer in one line.'\n"
                "  echo 'Name three seas.' | kakeya chat -m gemma-4-26b-a4b-q4_0.gguf --temp 0\n",
    .options = chat_options,
    .n_options = OPTION_COUNT(chat_options),
    .run = run,
};
