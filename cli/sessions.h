/* sessions.h - saved sessions by name: a name with a '/' is a path, another lies in the folder of
 * saved sessions as NAME.kks. */
#ifndef KAKEYA_CLI_SESSIONS_H
#define KAKEYA_CLI_SESSIONS_H

#include <time.h>

#include "cli/options.h"
#include "kakeya.h"

typedef struct {
    char text[4096];
} sessions_path;

/* The file of a name, there or not; false after saying what is wrong with the name. */
bool sessions_find(const verb *v, const char *name, sessions_path *out, int *code);
/* Where chat keeps the messages of a session's conversation: beside it. */
sessions_path sessions_conversation(const sessions_path *session);
/* Makes the folder that a new session goes to, if it is the one of saved sessions. */
void sessions_make_folder(sessions_path *path);

typedef struct {
    char name[256];
    time_t saved;
    kk_saved_info info;
    kk_err err; /* why there is no info; its code is KK_OK when there is */
} sessions_entry;

/* The folder's sessions, sorted by name; released with free.  False without memory. */
bool sessions_list(sessions_entry **out, size_t *n);
/* Removes a session, unless somebody is going on with it, and what saves that were killed have left
 * of it.  False after saying why not. */
bool sessions_remove(const verb *v, const char *name, int *code);

#endif
