/* file.h - files that are read, by map or front to back; writer.h is for those that are written. */
#ifndef KK_CORE_FILE_H
#define KK_CORE_FILE_H

#include "core/error.h"
#include "core/span.h"

/* A read-only map of a file.  An empty file maps to a span of size 0. */
typedef struct {
    kk_span span;
} kk_map;

kk_status kk_map_open(kk_map *out, const char *path, kk_err *err);
void kk_map_close(kk_map *m); /* zero value is fine; leaves it zero */
/* Locks the map in memory, or asks for huge pages under it.  Best effort for the second. */
kk_status kk_map_lock(const kk_map *m, const char *path, kk_err *err);
void kk_map_huge(const kk_map *m);

/* A whole small file in memory, NUL-terminated after *len bytes; released with kk_free.
 * Refuses files over max bytes. */
kk_status kk_file_read(const char *path, size_t max, char **text, size_t *len, kk_err *err);
/* A regular file read front to back, without a map: one that shrinks meanwhile is a failure like
 * any other. */
typedef struct kk_reader kk_reader;
kk_status kk_reader_open(kk_reader **out, const char *path, kk_err *err);
void kk_reader_close(kk_reader *r); /* NULL is fine */
/* All of it will be read soon: the system may fetch it ahead, in large blocks. */
void kk_reader_expect(const kk_reader *r);
uint64_t kk_reader_size(const kk_reader *r);    /* when it was opened */
const char *kk_reader_path(const kk_reader *r); /* borrowed */
/* The next len bytes, all of them: KK_EFORMAT where the file ends before. */
kk_status kk_reader_get(kk_reader *r, void *to, size_t len, kk_err *err);
bool kk_file_exists(const char *path);
bool kk_dir_exists(const char *path);
/* Makes a folder; one that is there is fine.  Not the folders above it. */
kk_status kk_dir_make(const char *path, kk_err *err);
/* dir + "/" + name, released with kk_free; NULL without memory. */
char *kk_path_join(const char *dir, const char *name);

#endif
