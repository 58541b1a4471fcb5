/* state.c - see state.h. */
#define _GNU_SOURCE
#include "cli/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool state_path(const char *name, char *out, size_t cap) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state && *state == '/')
        n = snprintf(out, cap, "%s/kakeya/%s", state, name);
    else if (home && *home == '/')
        n = snprintf(out, cap, "%s/.local/state/kakeya/%s", home, name);
    if (n >= 0 && (size_t)n < cap) return true;
    out[0] = 0;
    return false;
}

void state_make_parents(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}
