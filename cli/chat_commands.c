/* chat_commands.c - what begins with a slash in `kakeya chat`.
 *
 * One table has the commands, their help and what Tab offers after them.  What commands say is not
 * data, and goes to stderr. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chatting.h"
#include "cli/flags.h"
#include "cli/notices.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/sessions.h"
#include "cli/state.h"
#include "cli/term.h"
#include "cli/verbs.h"

static void complain(const char *what) { fprintf(stderr, "%s\n", flags_for(what).text); }

static bool out_of_memory(void) {
    complain("out of memory");
    return true;
}

/* ---- the conversation -------------------------------------------------------------------- */

static bool clear(chat *c, const char *rest, int *code) {
    (void)rest, (void)code;
    talk_clear(&c->talk);
    c->saved_as[0] = 0;
    complain("a new conversation");
    return true;
}

static bool undo(chat *c, const char *rest, int *code) {
    (void)rest, (void)code;
    complain(talk_undo(&c->talk) ? "the last message and its answer are taken back"
                                 : "there is nothing to take back");
    return true;
}

static bool retry(chat *c, const char *rest, int *code) {
    (void)rest;
    if (talk_asked(&c->talk)) return chat_retry(c, code);
    complain("there is no message to answer again");
    return true;
}

static bool leave(chat *c, const char *rest, int *code) {
    (void)c, (void)rest, (void)code;
    return false;
}

static bool set_system(chat *c, const char *rest, int *code) {
    (void)code;
    if (!talk_set_system(&c->talk, rest)) return out_of_memory();
    complain(*rest ? "system instructions set" : "no system instructions");
    return true;
}

static bool attach(chat *c, const char *rest, int *code) {
    size_t len;
    (void)code;
    if (!*rest) {
        complain("/file takes a path");
        return true;
    }
    errno = 0;
    char *text = prompt_slurp(rest, &len);
    if (!text || strlen(text) != len) {
        fprintf(stderr, "cannot read '%s': %s\n", rest,
                text ? "it is not text (it has a byte of value 0)" : strerror(errno));
        free(text);
        return true;
    }
    free(c->attached);
    c->attached = text;
    fprintf(stderr, "%s: %s, goes before your next message\n", rest, term_bytes((double)len).text);
    return true;
}

/* ---- settings ---------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    option_kind kind;
    size_t offset; /* in talk */
    double min, max;
} setting;

#define SETTING(n, k, field, lo, hi)                                                               \
    { n, k, offsetof(talk, field), lo, hi }

static const setting settings[] = {
    SETTING("temp", OPT_REAL, sampling.temp, 0, 100),
    SETTING("top-k", OPT_INT, sampling.top_k, 0, 1 << 30),
    SETTING("top-p", OPT_REAL, sampling.top_p, 0, 1),
    SETTING("min-p", OPT_REAL, sampling.min_p, 0, 1),
    SETTING("repeat-penalty", OPT_REAL, sampling.repeat_penalty, 0, 100),
    SETTING("presence-penalty", OPT_REAL, sampling.presence_penalty, -100, 100),
    SETTING("frequency-penalty", OPT_REAL, sampling.frequency_penalty, -100, 100),
    SETTING("predict", OPT_INT, predict, -1, 1 << 30),
    SETTING("seed", OPT_SEED, sampling.seed, 0, 0),
};

static void print_setting(const chat *c, const setting *s) {
    const void *at = (const char *)&c->talk + s->offset;
    if (s->kind == OPT_REAL)
        fprintf(stderr, "%s %g\n", s->name, (double)*(const float *)at);
    else if (s->kind == OPT_INT)
        fprintf(stderr, "%s %d\n", s->name, *(const int32_t *)at);
    else
        fprintf(stderr, "%s %llu\n", s->name, (unsigned long long)*(const uint64_t *)at);
}

static bool store_setting(chat *c, const setting *s, const char *value) {
    void *at = (char *)&c->talk + s->offset;
    char *end;
    errno = 0;
    if (s->kind == OPT_SEED) {
        const unsigned long long seed = strtoull(value, &end, 10);
        if (end == value || *end || errno) return false;
        *(uint64_t *)at = seed;
        sampling_draw_seed(at); /* -1: a random one */
        return true;
    }
    const double x = strtod(value, &end);
    if (end == value || *end || !(x >= s->min && x <= s->max)) return false;
    if (s->kind == OPT_INT && x != (double)(int32_t)x) return false;
    if (s->kind == OPT_INT)
        *(int32_t *)at = (int32_t)x;
    else
        *(float *)at = (float)x;
    return true;
}

static const setting *setting_named(const char *name, size_t n) {
    for (size_t i = 0; i < OPTION_COUNT(settings); i++)
        if (strlen(settings[i].name) == n && memcmp(settings[i].name, name, n) == 0)
            return &settings[i];
    if (n == strlen("temperature") && memcmp(name, "temperature", n) == 0) return &settings[0];
    return NULL;
}

static void refuse_value(const setting *s, const char *value) {
    if (s->kind == OPT_SEED)
        fprintf(stderr,
                "%s takes a whole number of at most 64 bits, or -1 for a random one, "
                "not '%s'\n",
                s->name, value);
    else
        fprintf(stderr, "%s takes a number%s from %g to %g, not '%s'\n", s->name,
                s->kind == OPT_REAL ? "" : " without a point", s->min, s->max, value);
}

/* /set, /set NAME, /set NAME VALUE */
static bool set(chat *c, const char *rest, int *code) {
    const size_t n = strcspn(rest, " =\n");
    const setting *s = setting_named(rest, n);
    const char *value = rest + n + strspn(rest + n, " =\n");
    (void)code;
    if (n == 0)
        for (size_t i = 0; i < OPTION_COUNT(settings); i++) print_setting(c, &settings[i]);
    else if (!s)
        fprintf(stderr, "there is no setting '%.*s'; /set shows them all\n", (int)n, rest);
    else if (*value && !store_setting(c, s, value))
        refuse_value(s, value);
    else
        print_setting(c, s);
    return true;
}

static bool think(chat *c, const char *rest, int *code) {
    (void)code;
    if (strcmp(rest, "on") == 0)
        c->talk.think = true;
    else if (strcmp(rest, "off") == 0)
        c->talk.think = false;
    else if (*rest)
        complain("/think takes on or off");
    complain(c->talk.think ? "thinking is on" : "thinking is off");
    return true;
}

/* ---- saved conversations ----------------------------------------------------------------- */

static bool say_where(const char *name, kk_err *err) {
    fprintf(stderr, "%s: %s\n", name, flags_for(err->msg).text);
    return false;
}

static bool save_to(chat *c, const char *name, sessions_path *session, const sessions_path *file) {
    kk_err err;
    sessions_make_folder(session);
    /* The session first: a conversation without one is only slower to take up. */
    if (kk_session_len(c->talk.session) > 0 &&
        kk_session_save(c->talk.session, session->text, &err) != KK_OK)
        return say_where(name, &err);
    return talk_save(&c->talk, file->text, &err) == KK_OK || say_where(name, &err);
}

/* Under a name that nobody has, or that is to be replaced.  False after saying why not. */
static bool save_as(chat *c, const char *name, bool forced, int *code) {
    sessions_path session;
    *code = EXIT_FAILED;
    if (!sessions_find(&verb_chat, name, &session, code)) return false;
    const sessions_path file = sessions_conversation(&session);
    const bool there = access(file.text, F_OK) == 0 || access(session.text, F_OK) == 0;
    if (there && !forced && strcmp(name, c->saved_as) != 0) {
        fprintf(stderr, "there is a '%s' already: /save %s --force replaces it\n", name, name);
        return false;
    }
    return save_to(c, name, &session, &file);
}

/* /save NAME [--force] */
static bool save(chat *c, const char *rest, int *code) {
    static const char force[] = " --force";
    int failed = EXIT_FAILED;
    char name[256];
    snprintf(name, sizeof name, "%s", *rest ? rest : c->saved_as);
    const size_t n = strlen(name), tail = strlen(force);
    const bool forced = n > tail && strcmp(name + n - tail, force) == 0;
    if (forced) name[n - tail] = 0;
    if (!name[0]) complain("/save takes a name");
    if (!name[0] || !save_as(c, name, forced, &failed)) {
        *code = failed;
        return true;
    }
    snprintf(c->saved_as, sizeof c->saved_as, "%s", name);
    fprintf(stderr, "saved: /load %s goes on with it\n", name);
    return true;
}

/* The session that was saved with a conversation, in place of ours, with a context no shorter
 * than ours; without it, or when it does not fit, the conversation is read again. */
static void take_session(chat *c, const char *name, const char *path) {
    kk_session_opts opts = loader_session_opts(&c->args->cache);
    const int32_t ctx = kk_session_ctx(c->talk.session);
    kk_saved_info saved;
    kk_session *s;
    bool exact;
    kk_err err;
    if (access(path, F_OK) != 0) return;
    kk_status st = kk_saved_inspect(path, &saved, &err);
    if (st == KK_OK && opts.ctx == 0 && ctx > saved.ctx) opts.ctx = ctx;
    if (st == KK_OK) st = kk_session_load(&s, c->talk.engine, path, &opts, &exact, &err);
    if (st != KK_OK) {
        fprintf(stderr, "(%s; the conversation will be read again)\n", flags_for(err.msg).text);
        return;
    }
    kk_session_free(c->talk.session);
    c->talk.session = s;
    if (!c->args->quiet) notices_saved(name, &saved, s, exact);
}

bool chat_load(chat *c, const char *name, int *code) {
    sessions_path session;
    kk_err err;
    if (!sessions_find(&verb_chat, name, &session, code)) return false;
    const sessions_path file = sessions_conversation(&session);
    if (talk_load(&c->talk, file.text, &err) != KK_OK) {
        *code = EXIT_FAILED;
        return say_where(name, &err);
    }
    take_session(c, name, session.text);
    snprintf(c->saved_as, sizeof c->saved_as, "%s", name);
    if (!c->args->quiet)
        fprintf(stderr, "%s: %zu messages\n", name, json_array_size(c->talk.messages));
    return true;
}

static bool load(chat *c, const char *rest, int *code) {
    if (*rest) {
        chat_load(c, rest, code);
    } else {
        complain("/load takes a name; Tab offers those there are");
        *code = EXIT_FAILED;
    }
    return true;
}

/* ---- the table --------------------------------------------------------------------------- */

static bool help(chat *c, const char *rest, int *code);

static const struct {
    const char *name, *arg, *help;
    bool (*run)(chat *c, const char *rest, int *code);
    const char *words; /* what Tab offers after it, with a space between */
} commands[] = {
    {"/help", "", "these commands", help, NULL},
    {"/system", "TEXT", "set the system's instructions; without TEXT: none", set_system, NULL},
    {"/think", "on|off", "let the model think before it answers", think, "on off"},
    {"/set", "NAME VALUE", "as in /set temp 0.7; without a value: show it", set,
     "temp top-k top-p min-p repeat-penalty presence-penalty frequency-penalty predict seed"},
    {"/file", "PATH", "put a file's text before the next message", attach, NULL},
    {"/undo", "", "take back the last message and its answer", undo, NULL},
    {"/retry", "", "answer the last message again", retry, NULL},
    {"/save", "NAME", "keep the conversation under a name", save, NULL},
    {"/load", "NAME", "go on with a conversation that was saved", load, NULL},
    {"/clear", "", "forget the conversation", clear, NULL},
    {"/bye", "", "leave (also /exit, /quit, Ctrl-D)", leave, NULL},
    {"/exit", NULL, NULL, leave, NULL},
    {"/quit", NULL, NULL, leave, NULL},
};

static bool help(chat *c, const char *rest, int *code) {
    (void)c, (void)rest, (void)code;
    for (size_t i = 0; i < OPTION_COUNT(commands); i++)
        if (commands[i].help)
            fprintf(stderr, "%-8s %-11s %s\n", commands[i].name, commands[i].arg, commands[i].help);
    complain("Ctrl-C stops an answer.  A backslash at the end of a line goes on in the next;\n"
             "\"\"\" begins and ends a block of lines.  What is pasted is one message.");
    return true;
}

bool chat_is_command(const char *text) {
    size_t n = 1;
    if (text[0] != '/') return false;
    while (islower((unsigned char)text[n])) n++;
    return n > 1 && (!text[n] || text[n] == ' ' || text[n] == '\n');
}

bool chat_command(chat *c, const char *text, int *code) {
    const char *names[OPTION_COUNT(commands)];
    char name[24], *rest = strdup(text + strcspn(text, " \n"));
    if (!rest) return out_of_memory();
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, " \n"), text);
    char *from = rest + strspn(rest, " \n"), *end = from + strlen(from);
    while (end > from && isspace((unsigned char)end[-1])) *--end = 0;
    bool go_on = true, found = false;
    for (size_t i = 0; i < OPTION_COUNT(commands); i++) {
        names[i] = commands[i].name;
        if (found || strcmp(name, commands[i].name) != 0) continue;
        found = true;
        go_on = commands[i].run(c, from, code);
    }
    if (!found) {
        const char *near = options_nearest(name, names, OPTION_COUNT(names));
        fprintf(stderr, "there is no %s; %s%s\n", name, near ? "did you mean " : "see ",
                near ? near : "/help");
    }
    free(rest);
    return go_on;
}

/* ---- completion -------------------------------------------------------------------------- */

/* The i-th word of a list that begins with the n bytes at start; "" when there is none. */
static const char *word_at(const char *words, const char *start, size_t n, int i, size_t *len) {
    for (const char *at = words; at && *at; at += *len, at += *at == ' ') {
        *len = strcspn(at, " ");
        if (*len >= n && memcmp(at, start, n) == 0 && i-- == 0) return at;
    }
    *len = 0;
    return "";
}

static char *joined(const char *line, size_t n, const char *more, size_t len) {
    char *text = malloc(n + len + 1);
    if (!text) return NULL;
    memcpy(text, line, n);
    memcpy(text + n, more, len);
    text[n + len] = 0;
    return text;
}

static char *complete_command(const char *line, size_t n, int i) {
    for (size_t k = 0; k < OPTION_COUNT(commands); k++) {
        if (!commands[k].help || strncmp(commands[k].name, line, n) != 0 || i-- > 0) continue;
        const bool more = *commands[k].arg != 0;
        char *text = joined(commands[k].name, strlen(commands[k].name), " ", more);
        return text;
    }
    return NULL;
}

/* The i-th path that a pattern of the shell matches, released with free; NULL: there is none. */
static char *matching(const char *pattern, int i) {
    char *path = NULL;
    glob_t found;
    if (glob(pattern, GLOB_MARK, NULL, &found) != 0) return NULL;
    if ((size_t)i < found.gl_pathc) path = strdup(found.gl_pathv[i]);
    globfree(&found);
    return path;
}

static char *complete_path(const char *line, size_t from, size_t n, int i) {
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%.*s*", (int)(n - from), line + from);
    char *path = matching(pattern, i), *text = path ? joined(line, from, path, strlen(path)) : NULL;
    free(path);
    return text;
}

static char *complete_saved(const char *line, size_t from, size_t n, int i) {
    static const char tail[] = ".chat.json";
    char folder[4096], pattern[4400];
    if (!state_path("sessions/", folder, sizeof folder)) return NULL;
    snprintf(pattern, sizeof pattern, "%s%.*s*%s", folder, (int)(n - from), line + from, tail);
    char *path = matching(pattern, i), *text = NULL;
    if (path) {
        const char *name = strrchr(path, '/') + 1;
        text = joined(line, from, name, strlen(name) - strlen(tail));
    }
    free(path);
    return text;
}

char *chat_complete(void *user, const char *line, size_t n, int i) {
    size_t len, name = strcspn(line, " ");
    (void)user;
    if (line[0] != '/' || i < 0) return NULL;
    if (name >= n) return complete_command(line, n, i);
    const size_t from = name + strspn(line + name, " ");
    if (strncmp(line, "/file ", 6) == 0) return complete_path(line, from, n, i);
    if (strncmp(line, "/load ", 6) == 0 || strncmp(line, "/save ", 6) == 0)
        return complete_saved(line, from, n, i);
    for (size_t k = 0; k < OPTION_COUNT(commands); k++) {
        if (!commands[k].words || strlen(commands[k].name) != name ||
            memcmp(commands[k].name, line, name) != 0)
            continue;
        const char *word = word_at(commands[k].words, line + from, n - from, i, &len);
        return len ? joined(line, from, word, len) : NULL;
    }
    return NULL;
}
