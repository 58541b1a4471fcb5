/* sessions.c - see sessions.h. */
#define _GNU_SOURCE
#include "cli/sessions.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/destination.h"
#include "cli/output.h"
#include "cli/state.h"

static const char suffix[] = ".kks";
enum { SUFFIX = sizeof suffix - 1, LONGEST_NAME = 200 };

static bool ends_with_suffix(const char *name) {
    const size_t n = strlen(name);
    return n > SUFFIX && strcmp(name + n - SUFFIX, suffix) == 0;
}

static bool good_name(const char *name) {
    bool good = name[0] != '\0' && name[0] != '.' && strlen(name) <= LONGEST_NAME;
    for (const char *p = name; *p; p++) good = good && (unsigned char)*p >= ' ' && *p != 127;
    return good;
}

bool sessions_find(const verb *v, const char *name, sessions_path *out, int *code) {
    int n = -1;
    if (strchr(name, '/')) {
        n = snprintf(out->text, sizeof out->text, "%s", name);
    } else if (!good_name(name)) {
        *code = options_wrong(v,
                              "a session's name has 1 to %d characters and no '.' before them, "
                              "or it is a path with a '/'",
                              LONGEST_NAME);
        return false;
    } else {
        char file[LONGEST_NAME + 32];
        snprintf(file, sizeof file, "sessions/%s%s", name, ends_with_suffix(name) ? "" : suffix);
        if (state_path(file, out->text, sizeof out->text)) return true;
    }
    if (n >= 0 && (size_t)n < sizeof out->text) return true;
    *code = output_failed("there is no folder to keep sessions in",
                          "Set HOME or XDG_STATE_HOME, or give a path, as in ./NAME.kks.");
    return false;
}

sessions_path sessions_conversation(const sessions_path *session) {
    sessions_path out = {""};
    const size_t n = strlen(session->text) - (ends_with_suffix(session->text) ? SUFFIX : 0);
    snprintf(out.text, sizeof out.text, "%.*s.chat.json", (int)n, session->text);
    return out;
}

void sessions_make_folder(sessions_path *path) {
    char folder[4096];
    if (state_path("sessions/", folder, sizeof folder) &&
        strncmp(path->text, folder, strlen(folder)) == 0)
        state_make_parents(path->text);
}

/* ---- the folder -------------------------------------------------------------------------- */

static int is_session(const struct dirent *e) {
    return e->d_name[0] != '.' && ends_with_suffix(e->d_name);
}

static int is_leftover(const struct dirent *e) { return strstr(e->d_name, ".tmp-") != NULL; }

static void free_names(struct dirent **names, int n) {
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
}

static void look_at(sessions_entry *e, const char *folder, const char *file) {
    char path[4096 + 256];
    struct stat st;
    *e = (sessions_entry){.saved = 0};
    snprintf(path, sizeof path, "%s%s", folder, file);
    snprintf(e->name, sizeof e->name, "%.*s", (int)(strlen(file) - SUFFIX), file);
    if (stat(path, &st) == 0) e->saved = st.st_mtime;
    if (kk_saved_inspect(path, &e->info, &e->err) == KK_OK) e->err.code = KK_OK;
}

bool sessions_list(sessions_entry **out, size_t *n) {
    char folder[4096];
    struct dirent **names = NULL;
    *out = NULL;
    *n = 0;
    const bool there = state_path("sessions/", folder, sizeof folder);
    const int found = there ? scandir(folder, &names, is_session, alphasort) : 0;
    if (found <= 0) {
        free_names(names, 0);
        return found == 0 || errno != ENOMEM; /* no folder, no sessions */
    }
    *out = calloc((size_t)found, sizeof **out);
    for (int i = 0; *out && i < found; i++) look_at(&(*out)[(*n)++], folder, names[i]->d_name);
    free_names(names, found);
    return *out != NULL;
}

/* "NAME.kks.tmp-PID-N" beside "NAME.kks": what a save of version 0.1 that was killed has left. */
static void remove_leftovers(const char *path) {
    char folder[4096], file[4096 + 256];
    struct dirent **names = NULL;
    const char *name = strrchr(path, '/') + 1;
    const size_t len = strlen(name);
    snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
    const int found = scandir(folder, &names, is_leftover, alphasort);
    for (int i = 0; i < found; i++) {
        const char *one = names[i]->d_name;
        if (strncmp(one, name, len) != 0 || strncmp(one + len, ".tmp-", 5) != 0) continue;
        snprintf(file, sizeof file, "%s%s", folder, one);
        unlink(file);
    }
    free_names(names, found);
}

static bool refuse(const char *name, const char *why, const char *next, int *code) {
    char what[400];
    snprintf(what, sizeof what, "cannot remove session '%.200s': %s", name, why);
    *code = output_failed(what, next);
    return false;
}

bool sessions_remove(const verb *v, const char *name, int *code) {
    sessions_path path;
    kk_saved_info info;
    if (!sessions_find(v, name, &path, code)) return false;
    if (strchr(name, '/') && !ends_with_suffix(name) &&
        kk_saved_inspect(path.text, &info, NULL) != KK_OK && access(path.text, F_OK) == 0)
        return refuse(name, "that is something else", "Remove other files with rm.", code);
    kk_writer *own = NULL; /* nobody is going on with it while it is removed */
    const kk_writer_opts opts = {.replace = true};
    struct stat st;
    if (stat(path.text, &st) == 0 && S_ISREG(st.st_mode) &&
        !destination_open(&own, path.text, &opts, code))
        return false;
    const bool removed = unlink(path.text) == 0;
    if (removed) unlink(sessions_conversation(&path).text); /* if chat saved it */
    if (removed)
        remove_leftovers(path.text);
    else
        refuse(name, strerror(errno), "'kakeya session ls' lists what there is.", code);
    destination_close(own);
    return removed;
}
