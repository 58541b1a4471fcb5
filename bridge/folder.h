/* folder.h - the folders that a runner works in: how much they hold, how they go, and their files.
 * */
#ifndef KK_BRIDGE_FOLDER_H
#define KK_BRIDGE_FOLDER_H

#include "bridge/words.h"

/* Bytes of the regular files below it, links not followed; 0 when there is none. */
int64_t kk_folder_bytes(const char *path);
/* Removes it and all below it, links not followed; one that is not there is fine. */
kk_status kk_folder_remove(const char *path, kk_err *err);
/* Makes it and the folders above it, for the user alone. */
kk_status kk_folder_make(const char *path, kk_err *err);
/* A new folder of a name of its own under $base, which is not made; its path goes to out. */
kk_status kk_folder_temporary(const char *base, char *out, size_t cap, kk_err *err);

/* A whole file written, in a folder that is there. */
kk_status kk_folder_put(const char *path, const void *data, size_t len, kk_err *err);

/* Regular files of a folder that end in suffix ("": all), in order of names; not below it. */
kk_status kk_folder_files(const char *path, const char *suffix, kk_words *names, kk_err *err);

/* Whether bytes are the pointer that git LFS leaves where it did not fetch a file. */
bool kk_lfs_pointer(const void *data, size_t len);
/* The same of a file, or of a file directly inside of a folder, whose path then goes to found. */
bool kk_lfs_pointer_in(const char *path, char *found, size_t cap);

#endif
