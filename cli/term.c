/* term.c - colour, progress lines and signals.
 *
 * Signals must be process-wide, so this file holds the command line's only mutable globals.  A
 * handler does what may be done in one: it sets a flag or leaves with _exit, putting back the
 * colour and the cursor's line first, so that no way out leaves a terminal odd. */
#define _GNU_SOURCE
#include "cli/term.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static struct {
    bool out_controls, err_controls, colour;
    volatile sig_atomic_t mode, signal, removes, reload;
    bool terminal[3]; /* whether stdin, stdout and stderr were one when reloads were asked for */
    char removed[4096 + 32]; /* while removes is set, and the file it named then */
    struct stat file;
} term;

static bool understands(int fd) {
    const char *name = getenv("TERM");
    return isatty(fd) && name && *name && strcmp(name, "dumb") != 0;
}

static void handle(int signum) {
    const bool at_once = term.mode == TERM_QUIT || term.mode == TERM_LEAVE;
    if (!at_once && (!term.signal || term.mode == TERM_INSIST)) {
        term.signal = signum;
        return;
    }
    static const char tidy[] = "\r\033[K\033[0m";
    ssize_t ignored = term.err_controls ? write(STDERR_FILENO, tidy, sizeof tidy - 1) : 0;
    (void)ignored;
    /* Its name may have passed to a file of another process, once ours was renamed. */
    struct stat now;
    if (term.removes && stat(term.removed, &now) == 0 && now.st_dev == term.file.st_dev &&
        now.st_ino == term.file.st_ino)
        unlink(term.removed);
    _exit(term.mode == TERM_LEAVE ? 0 : 128 + signum);
}

void term_open(void) {
    const char *no_color = getenv("NO_COLOR");
    term.out_controls = understands(STDOUT_FILENO);
    term.err_controls = understands(STDERR_FILENO);
    term.colour = !no_color || !*no_color;
    term.mode = TERM_QUIT;
    struct sigaction sa = {.sa_handler = handle}; /* no SA_RESTART: a read at a prompt must end */
    sigemptyset(&sa.sa_mask);
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction old;
        /* What the parent ignores (nohup) stays ignored. */
        if (sigaction(caught[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(caught[i], &sa, NULL);
    }
}

bool term_controls(FILE *f) { return f == stdout ? term.out_controls : term.err_controls; }

static const char *style(FILE *f, const char *sequence) {
    return term.colour && term_controls(f) ? sequence : "";
}
const char *term_dim(FILE *f) { return style(f, "\033[2m"); }
const char *term_bold(FILE *f) { return style(f, "\033[1m"); }
const char *term_accent(FILE *f) { return style(f, "\033[36m"); }
const char *term_reset(FILE *f) { return style(f, "\033[0m"); }

term_signal_mode term_on_signal(term_signal_mode mode) {
    const term_signal_mode before = (term_signal_mode)term.mode;
    term.mode = (sig_atomic_t)mode;
    return before;
}
void term_remove(const char *path) {
    term.removes = 0;
    if (!path || strlen(path) >= sizeof term.removed || stat(path, &term.file) != 0) return;
    memcpy(term.removed, path, strlen(path) + 1);
    term.removes = 1;
}
int term_signal(void) { return term.signal; }
void term_clear(void) { term.signal = 0; }
int term_exit_code(void) { return 128 + term.signal; }

static void handle_reload(int signum) {
    (void)signum;
    term.reload = 1;
}

void term_catch_reload(void) {
    struct sigaction sa = {.sa_handler = handle_reload}, old;
    sigemptyset(&sa.sa_mask);
    for (int fd = 0; fd < 3; fd++) term.terminal[fd] = isatty(fd);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &sa, NULL);
}

/* A terminal whose other side is gone answers nothing any more. */
static bool terminal_closed(void) {
    struct termios t;
    for (int fd = 0; fd < 3; fd++)
        if (term.terminal[fd] && tcgetattr(fd, &t) != 0) return true;
    return false;
}

bool term_reload(void) {
    if (!term.reload) return false;
    term.reload = 0;
    if (!terminal_closed()) return true;
    term.signal = SIGHUP;
    return false;
}

double term_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

term_size term_bytes(double bytes) {
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.5 && u < 4) bytes /= 1000, u++;
    term_size s;
    snprintf(s.text, sizeof s.text,
             bytes < 9.995 && u   ? "%.2f %s"
             : bytes < 99.95 && u ? "%.1f %s"
                                  : "%.0f %s",
             bytes, unit[u]);
    return s;
}

term_number term_count(int64_t n) {
    char plain[24];
    int len = snprintf(plain, sizeof plain, "%lld", (long long)n);
    term_number out;
    size_t at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0 && plain[i - 1] != '-') out.text[at++] = ',';
        out.text[at++] = plain[i];
    }
    out.text[at] = 0;
    return out;
}

/* ---- progress ---------------------------------------------------------------------------- */

void term_progress_begin(term_progress *p, const char *label, const char *unit, bool quiet) {
    *p = (term_progress){.label = label, .unit = unit, .quiet = quiet || !term.err_controls};
    p->start = p->drawn = term_now();
}

static void draw(const term_progress *p, int64_t done, int64_t total, double elapsed) {
    enum { WIDTH = 24 };
    double part = total > 0 ? (double)done / (double)total : 0, rate = (double)done / elapsed;
    int full = (int)(part * WIDTH);
    fprintf(stderr, "\r\033[K%s [", p->label);
    for (int i = 0; i < WIDTH; i++) fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f%%", 100 * part);
    if (p->unit)
        fprintf(stderr, "  %.1f %s/s", rate, p->unit);
    else
        fprintf(stderr, "  %s/s", term_bytes(rate).text);
    if (rate > 0 && done < total) {
        int left = (int)((double)(total - done) / rate + 0.5);
        fprintf(stderr, left < 60 ? "  %d s left" : "  %d:%02d left", left < 60 ? left : left / 60,
                left % 60);
    }
    fflush(stderr);
}

bool term_progress_step(void *user, int64_t done, int64_t total) {
    term_progress *p = user;
    double now = term_now();
    /* A tenth of a second between drawings; the first after half a second. */
    if (!p->quiet && now - p->drawn >= (p->shown ? 0.1 : 0.5)) {
        draw(p, done, total, now - p->start);
        p->shown = true;
        p->drawn = now;
    }
    return term.signal == 0;
}

void term_progress_end(term_progress *p) {
    if (p->shown) fprintf(stderr, "\r\033[K");
    fflush(stderr);
    p->shown = false;
}
