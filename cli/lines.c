/* lines.c - a message from the terminal or a pipe.
 *
 * libedit keeps the terminal in its own mode while a line is edited and puts it back around
 * signals.  It reads through read_key below, because its own reader tries again after a signal
 * and would leave Ctrl-C without effect until the next key.
 *
 * The terminal is asked to mark what is pasted (bracketed paste: ESC[200~ before it and ESC[201~
 * after it), so that line breaks in it are text and do not send the message. */
#define _GNU_SOURCE
#include "cli/lines.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/prompt.h"
#include "cli/state.h"
#include "cli/term.h"

enum { HISTORY_LINES = 1000 };

struct lines {
    EditLine *editor; /* NULL: plain lines from stdin */
    History *history;
    char history_path[1024]; /* "": nowhere to keep it */
    char prompt[300];        /* escape sequences in it stand between \1 */
    lines_complete complete;
    void *user;
    char *plain; /* prompt_line's buffer */
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

enum { INVISIBLE = '\1' }; /* around escape sequences of a prompt */

static lines *of(EditLine *editor) {
    lines *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    return l;
}

static char *prompt_of(EditLine *editor) { return of(editor)->prompt; }

/* libedit writes an escape sequence with the character after it, so that the last one must not
 * stand at the end. */
static void set_prompt(lines *l, const char *text) {
    const char *on = term_bold(stdout), *off = term_reset(stdout);
    if (*on)
        snprintf(l->prompt, sizeof l->prompt, "\1%s\1%.200s\1%s\1 ", on, text, off);
    else
        snprintf(l->prompt, sizeof l->prompt, "%.200s ", text);
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

/* ---- pasting ----------------------------------------------------------------------------- */

static const char paste_end[] = "\033[201~";

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

/* All up to the end of what is pasted, released with free; NULL when there is nothing. */
static char *read_paste(EditLine *editor) {
    char *text = NULL, bytes[MB_LEN_MAX];
    size_t len = 0, last = 0;
    wchar_t key;
    while (read_key(editor, &key) == 1) {
        if (key == L'\n' && last == L'\r') key = 0; /* of a CR LF */
        last = (size_t)key;
        if (key == L'\r') key = L'\n';
        const bool control =
            (key < L' ' && key != L'\n' && key != L'\t' && key != 27) || key == 127;
        const int n = control ? 0 : wctomb(bytes, key);
        if (n > 0 && !add(&text, &len, bytes, (size_t)n)) break;
        if (!ends_with(text ? text : "", len, paste_end)) continue;
        len -= strlen(paste_end);
        break;
    }
    while (len && text[len - 1] == '\n') len--; /* the last line is not sent by its line break */
    if (text) text[len] = 0;
    return text;
}

static unsigned char paste(EditLine *editor, wint_t key) {
    (void)key;
    char *text = read_paste(editor);
    if (text && *text) el_insertstr(editor, text);
    free(text);
    return CC_REFRESH;
}

/* Asks the terminal to mark what is pasted, or no longer. */
static void mark_pastes(const lines *l, bool on) {
    if (!l->editor) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", isatty(STDOUT_FILENO) ? stdout : stderr);
    fflush(stdout);
}

/* ---- completion -------------------------------------------------------------------------- */

static size_t shared(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

/* The next candidate, from number *i on, that goes on from the line: only those can be inserted. */
static char *next_candidate(lines *l, const char *line, size_t n, int *i) {
    char *one;
    while ((one = l->complete(l->user, line, n, (*i)++)) && strncmp(one, line, n) != 0) free(one);
    return one;
}

/* The candidates in columns of their own lines, below the line that is edited. */
static void show_candidates(lines *l, const char *line, size_t n) {
    char *one;
    const char *gap = "";
    printf("\n");
    for (int i = 0; (one = next_candidate(l, line, n, &i)); gap = "  ") {
        size_t end = strlen(one);
        while (end && one[end - 1] == ' ') one[--end] = 0;
        const char *word = strrchr(one, ' ');
        printf("%s%s", gap, word ? word + 1 : one);
        free(one);
    }
    printf("\n");
    fflush(stdout);
}

/* Tab: what all candidates have in common; when that is here already, the candidates. */
static unsigned char complete(EditLine *editor, wint_t key) {
    lines *l = of(editor);
    const LineInfo *at = el_line(editor);
    const size_t n = (size_t)(at->cursor - at->buffer);
    int i = 0, count = 1;
    char *line = strndup(at->buffer, n), *best = line ? next_candidate(l, line, n, &i) : NULL;
    size_t common = best ? strlen(best) : 0;
    (void)key;
    for (char *one; best && (one = next_candidate(l, line, n, &i)); count++) {
        const size_t same = shared(best, one);
        if (same < common) common = same;
        free(one);
    }
    unsigned char what = CC_ERROR;
    if (best && common > n) {
        best[common] = 0;
        el_insertstr(editor, best + n);
        what = CC_REFRESH;
    } else if (best && count > 1) {
        show_candidates(l, line, n);
        what = CC_REDISPLAY;
    }
    free(best);
    free(line);
    return what;
}

/* ---- opening ----------------------------------------------------------------------------- */

/* The editor must know how wide a character is; in a plain C locale it would not. */
static void use_utf8(void) {
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* Names of functions are set as wide characters: el_set would convert them into copies that
 * libedit never releases. */
static void bind_keys(EditLine *editor) {
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(editor, EL_ADDFN, L"kakeya-paste", L"insert what is pasted", paste);
    el_set(editor, EL_BIND, "\033[200~", "kakeya-paste", NULL);
    if (!of(editor)->complete) return;
    el_wset(editor, EL_ADDFN, L"kakeya-complete", L"complete a command", complete);
    el_set(editor, EL_BIND, "\t", "kakeya-complete", NULL);
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
    el_set(l->editor, EL_PROMPT_ESC, prompt_of, INVISIBLE);
    el_set(l->editor, EL_EDITOR, "emacs");
    el_set(l->editor, EL_HIST, history, l->history);
    el_set(l->editor, EL_SIGNAL, 1);
    el_set(l->editor, EL_GETCFN, read_key);
    bind_keys(l->editor);
    el_source(l->editor, NULL);
    mark_pastes(l, true);
}

lines *lines_open(lines_complete complete_with, void *user) {
    lines *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->complete = complete_with;
    l->user = user;
    if (isatty(STDIN_FILENO) && term_controls(stderr)) open_editor(l);
    return l;
}

void lines_close(lines *l) {
    if (!l) return;
    save_history(l);
    mark_pastes(l, false);
    if (l->editor) el_end(l->editor);
    if (l->history) history_end(l->history);
    free(l->plain);
    free(l);
}

bool lines_interactive(const lines *l) { return l->editor != NULL; }

/* ---- messages ---------------------------------------------------------------------------- */

/* The next line without its newline, borrowed until the next call.  At a terminal it may have
 * line breaks in it, pasted or from the history. */
static lines_event read_line(lines *l, const char *prompt, const char **line, size_t *len) {
    int n = 0;
    set_prompt(l, prompt);
    if (l->editor) {
        *line = el_gets(l->editor, &n);
    } else {
        const ssize_t got = prompt_line(&l->plain, &l->plain_cap, stdin);
        if (got < 0 && errno && !term_signal())
            fprintf(stderr, "kakeya: cannot read a line: %s\n", strerror(errno));
        *line = got >= 0 ? l->plain : NULL;
        n = (int)got;
    }
    if (term_signal()) return LINES_INTERRUPTED;
    if (!*line || n <= 0) return LINES_END;
    *len = (size_t)n;
    while (*len && ((*line)[*len - 1] == '\n' || (*line)[*len - 1] == '\r')) --*len;
    return LINES_TEXT;
}

typedef struct {
    char *text;
    size_t len;
    bool block, more; /* between three quotes; another line belongs to it */
} message;

/* Adds a line to the message and sees whether it goes on.  False without memory. */
static bool add_line(message *m, const char *line, size_t len) {
    static const char quotes[] = "\"\"\"";
    const bool first = !m->more, whole = memchr(line, '\n', len) != NULL;
    if (first && !whole && len >= 3 && memcmp(line, quotes, 3) == 0) {
        m->block = true;
        line += 3;
        len -= 3;
    }
    m->more = m->block ? !ends_with(line, len, quotes) : !whole && ends_with(line, len, "\\");
    if (m->block && !m->more) len -= 3;
    if (!m->block && m->more) len -= 1;
    const bool opening = m->block && first && len == 0; /* nothing after the quotes */
    return add(&m->text, &m->len, line, len) &&
           (!m->more || opening || add(&m->text, &m->len, "\n", 1));
}

lines_event lines_read(lines *l, const char *prompt, char **text) {
    message m = {NULL, 0, false, false};
    const char *line;
    size_t len;
    *text = NULL;
    do {
        lines_event e = read_line(l, m.more ? "." : prompt, &line, &len);
        if (e == LINES_END && m.more) break; /* an unfinished block ends with the input */
        if (e == LINES_TEXT && !add_line(&m, line, len)) e = LINES_END;
        if (e != LINES_TEXT) {
            free(m.text);
            return e;
        }
    } while (m.more);
    if (l->editor) remember(l, m.text);
    save_history(l);
    *text = m.text;
    return LINES_TEXT;
}
