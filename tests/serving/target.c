/* target.c - see target.h. */
#define _GNU_SOURCE
#include "serving/target.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

static void nap(void) {
    const struct timespec t = {.tv_nsec = 1000 * 1000};
    nanosleep(&t, NULL);
}

/* The child goes when this program goes, however that ends. */
static pid_t start(const char *const *argv, int out, int err) {
    const pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    signal(SIGXFSZ,
           SIG_IGN); /* a file that may not grow is an error to be handled, as a full disk */
    if (out >= 0) dup2(out, STDOUT_FILENO);
    if (err >= 0) dup2(err, STDERR_FILENO);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static pid_t start_server(target *t) {
    const char *argv[TARGET_MOST_ARGS + 6] = {t->kakeya, "serve", "--port", "0"};
    size_t n = 4;
    for (size_t i = 0; i < TARGET_MOST_ARGS && t->args[i]; i++) argv[n++] = t->args[i];
    const int log = open(t->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (log < 0) return -1;
    const pid_t pid = start(argv, log, log);
    close(log);
    return pid;
}

bool target_runs(target *t) {
    if (t->pid <= 0) return false;
    if (waitpid(t->pid, NULL, WNOHANG) == 0) return true;
    t->pid = 0;
    return false;
}

/* Whether the log has the words, and what stands behind them. */
static bool has_said(const target *t, const char *words, char *behind, size_t cap) {
    char text[8192];
    FILE *f = fopen(t->log, "re");
    if (!f) return false;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *at = strstr(text, words);
    if (!at || !strchr(at, '\n')) return false;
    snprintf(behind, cap, "%.*s", (int)strcspn(at + strlen(words), "\n"), at + strlen(words));
    return true;
}

static bool wait_for_words(target *t, const char *words, char *behind, size_t cap, double until) {
    while (kk_now() < until && target_runs(t)) {
        if (has_said(t, words, behind, cap)) return true;
        nap();
    }
    return false;
}

static int port_in(const char *address) {
    const char *colon = strrchr(address, ':');
    return colon ? atoi(colon + 1) : 0;
}

bool target_listen(target *t, double seconds) {
    char behind[200];
    const double from = kk_now();
    t->port = 0;
    t->ready_s = -from;
    t->pid = start_server(t);
    if (t->pid <= 0) return false;
    if (!wait_for_words(t, "listening on http://", behind, sizeof behind, from + seconds))
        return false;
    t->port = port_in(behind);
    return t->port > 0;
}

bool target_ready(target *t, double seconds) {
    char behind[200];
    const bool ready = wait_for_words(t, "ready: ", behind, sizeof behind, kk_now() + seconds);
    t->ready_s += kk_now();
    t->grpc_port = ready && has_said(t, "gRPC on ", behind, sizeof behind) ? port_in(behind) : 0;
    return ready;
}

bool target_start(target *t, double seconds) {
    return target_listen(t, seconds) && target_ready(t, seconds);
}

void target_kill(target *t) {
    if (t->pid <= 0) return;
    kill(t->pid, SIGKILL);
    waitpid(t->pid, NULL, 0);
    t->pid = 0;
}

bool target_stop(target *t, double seconds) {
    int status = -1;
    if (t->pid <= 0) return false;
    kill(t->pid, SIGTERM);
    const double until = kk_now() + seconds;
    pid_t ended = 0;
    while (ended == 0 && kk_now() < until) {
        ended = waitpid(t->pid, &status, WNOHANG);
        if (ended == 0) nap();
    }
    if (ended == 0) {
        target_kill(t);
        return false;
    }
    t->pid = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int64_t target_resident(const target *t) {
    char path[64], line[200];
    long long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)t->pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %lld kB", &kb) == 1) break;
    fclose(f);
    return 1024 * kb;
}

double metric_of(const growing *text, const char *name) {
    const size_t len = strlen(name);
    for (const char *at = text->text; at && (at = strstr(at, name)); at += len)
        if ((at == text->text || at[-1] == '\n') && at[len] == ' ') return atof(at + len + 1);
    return -1;
}

double target_metric(const target *t, const char *name) {
    growing text = {0};
    double value = -1;
    if (client_ask(t->port, "/metrics", NULL, &text, 10)) value = metric_of(&text, name);
    growing_free(&text);
    return value;
}

bool target_run(const char *const *argv, growing *out) {
    int ends[2], status = -1;
    char block[4096];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    const pid_t pid = start(argv, ends[1], -1);
    close(ends[1]);
    for (ssize_t n; pid > 0 && (n = read(ends[0], block, sizeof block)) > 0;)
        growing_add(out, block, (size_t)n);
    close(ends[0]);
    if (pid > 0) waitpid(pid, &status, 0);
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
