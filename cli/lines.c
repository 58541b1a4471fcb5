/* lines.c - a message from the terminal or a pipe.
 *
 * libedit keeps the terminal in its own mode while a line is edited and puts it back around
 * signals.  It reads through read_key below, because its own reader tries again after a signal
 * and would leave Ctrl-C without effect until the next key. */
#define _GNU_SOURCE
#include "cli/lines.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/state.h"
#include "cli/term.h"

enum { HISTORY_LINES = 1000 };

struct lines {
    EditLine *editor; /* NULL: plain lines from stdin */
    History *history;
    char history_path[1024]; /* "": nowhere to keep it */
    const char *prompt;
    char *plain; /* getline's buffer */
    size_t plain_cap;
};

/* ---- history ----------------------------------------------------------------------------- */

static void remember(lines *l, const char *line) {
    HistEvent event;
    if (!l->history || line[strspn(line, " \t\n")] == 0) return;
    history(l->history, &event, H_ENTER, line);
}

static void save_history(lines *l) {
    HistEvent event;
    if (!l->history || !l->history_path[0]) return;
    state_make_parents(l->history_path);
    history(l->history, &event, H_SAVE, l->history_path);
}

/* ---- the editor -------------------------------------------------------------------------- */

static char *prompt_of(EditLine *editor) {
    lines *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

/* Reads one character of the locale's encoding.  Ends the line when a signal is waiting. */
static int read_key(EditLine *editor, wchar_t *key) {
    mbstate_t state = {0};
    (void)editor;
    for (;;) {
        char byte;
        ssize_t n = term_signal() ? -1 : read(STDIN_FILENO, &byte, 1);
        if (n == 0) return 0;
        if (n < 0) {
            if (errno == EINTR && !term_signal()) continue;
            return -1;
        }
        size_t used = mbrtowc(key, &byte, 1, &state);
        if (used == (size_t)-2) continue; /* more bytes to come */
        if (used == (size_t)-1) {
            memset(&state, 0, sizeof state); /* not a character: leave it out */
            continue;
        }
        return 1;
    }
}

/* The editor must know how wide a character is; in a plain C locale it would not. */
static void use_utf8(void) {
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static void open_editor(lines *l) {
    HistEvent event;
    use_utf8();
    l->editor = el_init("kakeya", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    l->history = history_init();
    if (!l->editor || !l->history) return;
    state_path("history", l->history_path, sizeof l->history_path);
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    if (l->history_path[0]) history(l->history, &event, H_LOAD, l->history_path);
    el_set(l->editor, EL_CLIENTDATA, l);
    el_set(l->editor, EL_PROMPT, prompt_of);
    el_set(l->editor, EL_EDITOR, "emacs");
    el_set(l->editor, EL_HIST, history, l->history);
    el_set(l->editor, EL_SIGNAL, 1);
    el_set(l->editor, EL_GETCFN, read_key);
    el_set(l->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(l->editor, NULL);
}

lines *lines_open(void) {
    lines *l = calloc(1, sizeof *l);
    if (l && isatty(STDIN_FILENO) && term_controls(stderr)) open_editor(l);
    return l;
}

void lines_close(lines *l) {
    if (!l) return;
    save_history(l);
    if (l->editor) el_end(l->editor);
    if (l->history) history_end(l->history);
    free(l->plain);
    free(l);
}

bool lines_interactive(const lines *l) { return l->editor != NULL; }

/* ---- messages ---------------------------------------------------------------------------- */

/* The next physical line without its newline, borrowed until the next call. */
static lines_event read_line(lines *l, const char *prompt, const char **line, size_t *len) {
    int n = 0;
    l->prompt = prompt;
    if (l->editor) {
        *line = el_gets(l->editor, &n);
    } else {
        ssize_t got = getline(&l->plain, &l->plain_cap, stdin);
        *line = got >= 0 ? l->plain : NULL;
        n = (int)got;
    }
    if (term_signal()) return LINES_INTERRUPTED;
    if (!*line || n <= 0) return LINES_END;
    if (l->editor) remember(l, *line);
    *len = (size_t)n;
    while (*len && ((*line)[*len - 1] == '\n' || (*line)[*len - 1] == '\r')) --*len;
    return LINES_TEXT;
}

static bool add(char **text, size_t *at, const char *more, size_t len) {
    char *grown = realloc(*text, *at + len + 2);
    if (!grown) return false;
    memcpy(grown + *at, more, len);
    *at += len;
    grown[*at] = 0;
    *text = grown;
    return true;
}

static bool ends_with(const char *line, size_t len, const char *tail) {
    size_t n = strlen(tail);
    return len >= n && memcmp(line + len - n, tail, n) == 0;
}

lines_event lines_read(lines *l, char **text) {
    static const char quotes[] = "\"\"\"";
    const char *line;
    size_t len, at = 0;
    bool block = false, more = false;
    *text = NULL;
    do {
        lines_event e = read_line(l, more ? ". " : "> ", &line, &len);
        if (e == LINES_END && more) break; /* an unfinished block ends with the input */
        if (e != LINES_TEXT) {
            free(*text);
            *text = NULL;
            return e;
        }
        if (!more && len >= 3 && memcmp(line, quotes, 3) == 0) {
            block = true;
            line += 3;
            len -= 3;
        }
        more = block ? !ends_with(line, len, quotes) : ends_with(line, len, "\\");
        if (block && !more) len -= 3;
        if (!block && more) len -= 1;
        bool opening = block && at == 0 && len == 0; /* nothing after the quotes: no empty line */
        if (!add(text, &at, line, len) || (more && !opening && !add(text, &at, "\n", 1)))
            return LINES_END;
    } while (more);
    save_history(l);
    return LINES_TEXT;
}
