/* term.h - what a person at a terminal sees and presses: colour, progress lines, Ctrl-C.
 *
 * Process-wide state (there is one terminal and one set of signals) lives in term.c and nowhere
 * else. */
#ifndef KAKEYA_CLI_TERM_H
#define KAKEYA_CLI_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Looks at the terminals, NO_COLOR and TERM once; installs the signal handlers. */
void term_open(void);
/* Whether control sequences may be written to f: a terminal that understands them. */
bool term_controls(FILE *f);
/* Escape sequences for f, or "" where colour is not wanted. */
const char *term_dim(FILE *f);
const char *term_bold(FILE *f);
const char *term_accent(FILE *f); /* what is not part of the text, and should be seen */
const char *term_reset(FILE *f);

/* What SIGINT, SIGTERM and SIGHUP do from now on. */
typedef enum {
    TERM_QUIT,   /* end the process at once with 128 + signal: nothing to clean up */
    TERM_LEAVE,  /* the same with 0: to be ended so is no failure */
    TERM_ASK,    /* remember it for term_signal; a second one ends the process */
    TERM_INSIST, /* remember it, however often: something must be cleaned up first */
} term_signal_mode;
term_signal_mode term_on_signal(term_signal_mode mode); /* returns what they did before */
/* A file that is removed when a signal ends the process, instead of the one before; NULL: none. */
void term_remove(const char *path);
int term_signal(void);    /* the signal that arrived since the last clear; 0: none */
void term_clear(void);    /* forgets it */
int term_exit_code(void); /* 128 + that signal */
/* From now on SIGHUP asks to read files again, as daemons have it, unless the parent ignored it. */
void term_catch_reload(void);
/* Whether it came since the last call.  Where it came because the terminal was closed, that is a
 * signal to end instead, for term_signal. */
bool term_reload(void);

/* One line on stderr that redraws itself; nothing at all when stderr is not a terminal, when
 * quiet, or when it is over before anyone could read it. */
typedef struct {
    const char *label;
    const char *unit; /* "tok": shows a rate; NULL: bytes */
    bool quiet;
    bool shown;
    double start, drawn;
} term_progress;
void term_progress_begin(term_progress *p, const char *label, const char *unit, bool quiet);
/* A kk_progress: user is the term_progress; false once a signal arrived. */
bool term_progress_step(void *user, int64_t done, int64_t total);
void term_progress_end(term_progress *p); /* erases the line */

double term_now(void); /* monotonic seconds */

/* "2.15 GB", powers of 1000, in a buffer of the caller. */
typedef struct {
    char text[24];
} term_size;
term_size term_bytes(double bytes);
/* "1,234,567" */
typedef struct {
    char text[32];
} term_number;
term_number term_count(int64_t n);

#endif
