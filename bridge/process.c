/* process.c - see process.h.
 *
 * One loop waits for output, for the end of the program and for the limits.  The program may leave
 * descendants that hold its pipes open, so the end of the program ends the loop, not the end of
 * its output: what is left in the pipes is read, and the group is killed.
 *
 * A guard is a second process that waits on a pipe which only this process holds the other end of.
 * When this process is killed, the pipe closes, and the guard kills the group. */
#define _GNU_SOURCE
#include "bridge/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bridge/folder.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/error.h"

#ifdef __APPLE__       /* glibc declares it */
extern char **environ; /* replaced in the child alone */
#endif

enum {
    GRACE_MS = 2000,  /* between SIGTERM and SIGKILL */
    TICK_MS = 50,     /* between looks at the limits */
    DISK_TICKS = 4,   /* looks at the limits between looks at the disk */
    GUARD_FDS = 1024, /* descriptors that a guard closes */
};

typedef struct {
    const kk_process *p;
    kk_process_result *r;
    pid_t pid, guard;
    int out, err, leash; /* read ends; the write end of the guard's pipe; -1: closed */
    double start;
} running;

/* ---- descriptors -------------------------------------------------------------------------- */

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static bool make_pipe(int fd[2]) {
    fd[0] = fd[1] = -1;
    if (kk_fault_point() || pipe(fd) != 0) return false;
    fcntl(fd[0], F_SETFD, FD_CLOEXEC);
    fcntl(fd[1], F_SETFD, FD_CLOEXEC);
    return true;
}

/* A descriptor from which input can be read: a file without a name, as a pipe would have to be
 * written while the program runs. */
static int open_input(const kk_process *p) {
    if (!p->input) return open("/dev/null", O_RDONLY | O_CLOEXEC);
    char name[] = "/tmp/kakeya-input-XXXXXX";
    const int fd = mkstemp(name);
    if (fd < 0) return -1;
    unlink(name);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (size_t at = 0; at < p->input_len;) {
        const ssize_t n = write(fd, (const char *)p->input + at, p->input_len - at);
        if (n < 0) {
            close(fd);
            return -1;
        }
        at += (size_t)n;
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

/* ---- starting ----------------------------------------------------------------------------- */

static void restore_signals(void) {
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD};
    sigset_t none;
    sigemptyset(&none);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) signal(caught[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* In the child: becomes the program, or says on `told` which error kept it from that. */
static void become(const kk_process *p, int in, int out, int err, int told) {
    setsid(); /* a group of its own, and no terminal: a question fails instead of waiting */
    restore_signals();
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) goto fail;
    if (p->most_disk > 0) {
        const struct rlimit most = {(rlim_t)p->most_disk, (rlim_t)p->most_disk};
        setrlimit(RLIMIT_FSIZE, &most);
    }
    if (p->folder && chdir(p->folder) != 0) goto fail;
    if (p->env) environ = (char **)(uintptr_t)p->env;
    execvp(p->argv[0], (char *const *)(uintptr_t)p->argv);
fail:;
    const int why = errno;
    const ssize_t ignored = write(told, &why, sizeof why);
    (void)ignored;
    _exit(127);
}

/* In the guard: waits for the end of the leash. */
static void watch(int leash, pid_t group) {
    setpgid(0, 0);
    signal(SIGINT, SIG_IGN), signal(SIGTERM, SIG_IGN), signal(SIGHUP, SIG_IGN);
    for (int fd = 0; fd < GUARD_FDS; fd++)
        if (fd != leash) close(fd);
    char byte; /* none is ever written */
    while (read(leash, &byte, 1) < 0 && errno == EINTR) continue;
    kill(-group, SIGKILL);
    _exit(0);
}

static void start_guard(running *g) {
    int fd[2];
    if (!make_pipe(fd)) return; /* it is a precaution */
    g->guard = fork();
    if (g->guard == 0) {
        close(fd[1]);
        watch(fd[0], g->pid);
    }
    close(fd[0]);
    g->leash = fd[1];
    if (g->guard < 0) shut(&g->leash);
}

/* It is killed before it can see the end of its pipe. */
static void end_guard(running *g) {
    if (g->guard > 0) {
        kill(g->guard, SIGKILL);
        while (waitpid(g->guard, NULL, 0) < 0 && errno == EINTR) continue;
    }
    shut(&g->leash);
}

/* Forks with the pipes; *told: the read end on which the child says why it could not start. */
static kk_status fork_child(running *g, int *told, kk_err *err) {
    int out[2] = {-1, -1}, more[2] = {-1, -1}, say[2] = {-1, -1};
    const int in = open_input(g->p);
    const bool ready =
        in >= 0 && make_pipe(out) && (g->p->joined || make_pipe(more)) && make_pipe(say);
    if (ready) g->pid = fork();
    const int why = errno;
    if (ready && g->pid == 0) become(g->p, in, out[1], g->p->joined ? out[1] : more[1], say[1]);
    int in_end = in;
    shut(&in_end), shut(&out[1]), shut(&more[1]), shut(&say[1]);
    g->out = out[0], g->err = more[0], *told = say[0];
    if (ready && g->pid > 0) return KK_OK;
    return kk_fail(err, KK_EIO, "cannot start %.100s: %s", g->p->argv[0], strerror(why));
}

static kk_status start(running *g, kk_err *err) {
    int told = -1, why = 0;
    const kk_status st = fork_child(g, &told, err);
    if (st == KK_OK) {
        ssize_t n;
        do n = read(told, &why, sizeof why);
        while (n < 0 && errno == EINTR);
        if (n != (ssize_t)sizeof why) why = 0;
    }
    shut(&told);
    if (st != KK_OK) return st;
    if (!why) return KK_OK;
    while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR) continue;
    g->pid = -1;
    return kk_fail(err, KK_EIO, "cannot start %.100s: %s", g->p->argv[0], strerror(why));
}

/* ---- running ------------------------------------------------------------------------------ */

/* Takes what a pipe holds now; closes it at its end. */
static void take(int *fd, kk_bytes *to, size_t most) {
    char part[16384];
    if (*fd < 0) return;
    for (;;) {
        const ssize_t n = read(*fd, part, sizeof part);
        if (n == 0) shut(fd);
        if (n <= 0) return;
        /* One byte more than allowed is kept, to tell that there was more. */
        const size_t left = most ? most + 1 - to->n : (size_t)n;
        kk_bytes_add(to, part, (size_t)n < left ? (size_t)n : left);
        if (most && to->n > most) return;
    }
}

static void take_all(running *g) {
    take(&g->out, &g->r->out, g->p->most_output);
    take(&g->err, &g->r->err, g->p->most_output);
}

static void wait_output(const running *g, int ms) {
    struct pollfd fd[2];
    nfds_t n = 0;
    if (g->out >= 0) fd[n++] = (struct pollfd){.fd = g->out, .events = POLLIN};
    if (g->err >= 0) fd[n++] = (struct pollfd){.fd = g->err, .events = POLLIN};
    poll(fd, n, ms);
}

/* Whether a limit is reached, and which. */
static bool over(const running *g, int tick, kk_process_end *why) {
    const kk_process *p = g->p;
    if (p->most_output && g->r->out.n + g->r->err.n > p->most_output) {
        *why = KK_ENDED_OUTPUT;
    } else if (p->timeout_s > 0 && kk_now() - g->start > p->timeout_s) {
        *why = KK_ENDED_TIMEOUT;
    } else if (p->disk && p->most_disk > 0 && tick % DISK_TICKS == 0 &&
               kk_folder_bytes(p->disk) > p->most_disk) {
        *why = KK_ENDED_DISK;
    } else if (p->stop.asked && p->stop.asked(p->stop.user)) {
        *why = KK_ENDED_STOPPED;
    } else {
        return false;
    }
    return true;
}

/* Whether the leader has ended.  It is not waited for yet: while it is not, its group has its
 * number, and what is left of the group can be killed. */
static bool ended(const running *g) {
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)g->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ? errno != EINTR
                                                                                : info.si_pid != 0;
}

/* Asks the group to end, then makes it.  A program that was told to end may say so. */
static void end_group(running *g) {
    const double asked = kk_now();
    kill(-g->pid, SIGTERM);
    while (!ended(g)) {
        if (kk_now() - asked > GRACE_MS / 1000.0) kill(-g->pid, SIGKILL);
        wait_output(g, 10);
        if (g->p->most_output && g->r->out.n + g->r->err.n > g->p->most_output)
            shut(&g->out), shut(&g->err);
        take_all(g);
    }
}

static void follow(running *g) {
    int status = 0, tick = 0;
    kk_process_end why = KK_ENDED_EXIT;
    fcntl(g->out, F_SETFL, O_NONBLOCK);
    if (g->err >= 0) fcntl(g->err, F_SETFL, O_NONBLOCK);
    for (int ms = 1; !ended(g); tick++) {
        if (over(g, tick, &why)) {
            end_group(g);
            break;
        }
        wait_output(g, g->out < 0 && g->err < 0 ? 1 : ms);
        take_all(g);
        ms = ms < TICK_MS ? ms * 2 : TICK_MS;
    }
    kill(-g->pid, SIGKILL); /* what it left behind */
    pid_t waited;
    do waited = waitpid(g->pid, &status, 0);
    while (waited < 0 && errno == EINTR);
    if (waited != g->pid) status = SIGKILL; /* SIGCHLD is ignored: how it ended is not known */
    take_all(g);
    if (g->p->most_output && g->r->out.n + g->r->err.n > g->p->most_output) why = KK_ENDED_OUTPUT;
    if (why == KK_ENDED_EXIT && WIFSIGNALED(status)) {
        /* SIGXFSZ is our own limit on the size of a file. */
        why = WTERMSIG(status) == SIGXFSZ ? KK_ENDED_DISK : KK_ENDED_SIGNAL;
    }
    g->r->end = why;
    g->r->code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
}

kk_status kk_process_run(const kk_process *p, kk_process_result *r, kk_err *err) {
    running g = {.p = p, .r = r, .pid = -1, .guard = -1, .out = -1, .err = -1, .leash = -1};
    *r = (kk_process_result){.end = KK_ENDED_EXIT};
    g.start = kk_now();
    kk_status st = start(&g, err);
    if (st == KK_OK) {
        if (p->guarded) start_guard(&g);
        follow(&g);
        end_guard(&g);
    }
    shut(&g.out), shut(&g.err);
    r->seconds = kk_now() - g.start;
    if (st == KK_OK && (r->out.failed || r->err.failed))
        st = kk_no_memory(err, "the output of another program");
    return st;
}

void kk_process_release(kk_process_result *r) {
    kk_bytes_free(&r->out);
    kk_bytes_free(&r->err);
}

kk_process_text kk_process_describe(const kk_process_result *r) {
    kk_process_text t;
    static const char *const words[] = {
        "exit", "signal", "timeout", "too much output", "too much on disk", "stopped"};
    if (r->end <= KK_ENDED_SIGNAL)
        snprintf(t.text, sizeof t.text, "%s %d", words[r->end], r->code);
    else
        snprintf(t.text, sizeof t.text, "%s", words[r->end]);
    return t;
}

/* The bytes [*start, end) are the last line before end that is not empty. */
static size_t last_line(const kk_bytes *b, size_t end, size_t *start) {
    while (end > 0 && (unsigned char)b->data[end - 1] <= ' ') end--;
    for (*start = end; *start > 0 && b->data[*start - 1] != '\n'; --*start) continue;
    return end;
}

static void copy_plain(const kk_bytes *b, size_t start, size_t end, char *out, size_t cap) {
    size_t n = 0;
    for (size_t i = start; i < end && n + 1 < cap; i++) {
        const unsigned char c = (unsigned char)b->data[i];
        out[n++] = c >= ' ' && c < 127 ? (char)c : '?';
    }
    out[n] = 0;
}

void kk_process_last_line(const kk_bytes *b, char *out, size_t cap) {
    size_t start;
    const size_t end = last_line(b, b->n, &start);
    copy_plain(b, start, end, out, cap);
}

void kk_process_complaint(const kk_bytes *b, const char *word, char *out, size_t cap) {
    size_t start, end;
    for (end = last_line(b, b->n, &start); end > start; end = last_line(b, start, &start)) {
        if (end - start < strlen(word) || memcmp(b->data + start, word, strlen(word)) != 0)
            continue;
        copy_plain(b, start, end, out, cap);
        return;
    }
    kk_process_last_line(b, out, cap);
}
