/* truncated.c - see truncated.h.
 *
 * The handler runs wherever the fault was, so that it makes system calls only.  Which file an
 * address belongs to is asked of the system: /proc/self/maps has a line for each mapping. */
#define _GNU_SOURCE
#include "cli/truncated.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "cli/options.h"

enum { LONGEST = 4096 + 128 }; /* of a line: a path, and the numbers before it */

/* Reads a hexadecimal number at *at and moves behind it. */
static uintptr_t hex(const char **at) {
    uintptr_t v = 0;
    for (;; ++*at) {
        const char c = **at;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uintptr_t)(c - 'a' + 10);
        else
            return v;
    }
}

/* The path in a line "FROM-TO perms offset device inode PATH" whose range has the address. */
static const char *path_in(const char *line, uintptr_t address) {
    const uintptr_t from = hex(&line);
    if (*line++ != '-') return NULL;
    const uintptr_t to = hex(&line);
    if (address < from || address >= to) return NULL;
    const char *path = strchr(line, '/');
    return path;
}

/* Leaves the path in line; NULL: no file is mapped there. */
static const char *file_at(int maps, uintptr_t address, char line[LONGEST]) {
    char block[1024];
    size_t len = 0;
    ssize_t n;
    while ((n = read(maps, block, sizeof block)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (block[i] != '\n') {
                if (len + 1 < LONGEST) line[len++] = block[i];
                continue;
            }
            line[len] = '\0';
            len = 0;
            const char *path = path_in(line, address);
            if (path) return path;
        }
    return NULL;
}

static void say(const char *text) {
    const ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n; /* there is nobody left to tell */
}

static void on_bus(int number, siginfo_t *info, void *context) {
    static char line[LONGEST]; /* the first fault ends the program */
    const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *path = maps >= 0 ? file_at(maps, (uintptr_t)info->si_addr, line) : NULL;
    (void)context;
    if (path) {
        say("\nkakeya: '");
        say(path);
        say("' was shortened, or could not be read, while it was in use\n"
            "  Write a new file beside it and rename it: what is open stays whole then.\n");
        _exit(EXIT_FAILED);
    }
    signal(number, SIG_DFL); /* not a file: it happens again, and ends the program as it would */
}

void truncated_watch(void) {
    struct sigaction how = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&how.sa_mask);
    sigaction(SIGBUS, &how, NULL);
}
