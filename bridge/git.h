/* git.h - a bare repository of our own, and what is done with it and a remote, by the program git.
 *
 * git is run with an argv, the user's own configuration, ssh and credential helpers, and no
 * terminal to ask at.  What it prints about a remote is as hostile as the remote, and is checked.
 * */
#ifndef KK_BRIDGE_GIT_H
#define KK_BRIDGE_GIT_H

#include "bridge/process.h"

enum { KK_GIT_ID = 64, KK_GIT_NAME = 250 };

typedef struct {
    const char *folder;     /* the bare repository */
    const char *const *env; /* kk_git_environment's */
    kk_stop stop;
    int64_t most_disk; /* bytes that the repository may grow to by a fetch; 0: any */
} kk_git;

/* The environment in which git is run: base without what would point it at another repository. */
kk_status kk_git_environment(kk_words *out, const char *const *base, kk_err *err);
/* Makes the repository where there is none. */
kk_status kk_git_init(const kk_git *g, kk_err *err);
/* Runs git with arguments, which end with NULL, and takes its standard output. */
kk_status kk_git_run(const kk_git *g, const char *const *args, kk_bytes *out, kk_err *err);

/* ---- a remote ---- */

typedef struct {
    char id[KK_GIT_ID + 1]; /* of a commit, in hexadecimal digits */
    char name[KK_GIT_NAME + 1];
} kk_git_ref;
typedef struct {
    kk_git_ref *ref;
    size_t n, cap;
} kk_git_refs;

/* References of a remote that match one of the patterns (which end with NULL), by their full
 * names. */
kk_status kk_git_list(const kk_git *g, const char *remote, const char *const *patterns,
                      kk_git_refs *out, kk_err *err);
void kk_git_refs_free(kk_git_refs *refs);
const kk_git_ref *kk_git_refs_find(const kk_git_refs *refs, const char *name); /* NULL: none */
/* The lines of `git ls-remote`; lines that are not as they should be are left out. */
kk_status kk_git_parse_refs(kk_git_refs *out, const char *text, size_t len, kk_err *err);

/* Brings the commit at a reference here, without its history; its id goes to *id. */
kk_status kk_git_fetch(const kk_git *g, const char *remote, const char *name,
                       char id[KK_GIT_ID + 1], kk_err *err);

/* One reference to be set. */
typedef struct {
    const char *id;     /* to this commit */
    const char *name;   /* in full */
    const char *before; /* what it must be now; "": it must not be there */
} kk_git_change;
/* All or none.  KK_EEXIST: a reference was not what it must be; KK_EIO: the remote was not
 * reached. */
kk_status kk_git_push(const kk_git *g, const char *remote, const kk_git_change *change, size_t n,
                      kk_err *err);

/* ---- commits ---- */

typedef struct {
    char id[KK_GIT_ID + 1];
    char path[KK_GIT_NAME + 1];
    int64_t size;
    bool regular; /* a plain file, neither link nor program nor another repository */
} kk_git_entry;
typedef struct {
    kk_git_entry *entry;
    size_t n, cap;
} kk_git_tree;

/* The files of a commit; KK_EFORMAT when there are more than a bus may hold. */
kk_status kk_git_ls(const kk_git *g, const char *commit, kk_git_tree *out, kk_err *err);
kk_status kk_git_parse_tree(kk_git_tree *out, const char *text, size_t len, kk_err *err);
/* Of the files of a commit these two, where they are there. */
kk_status kk_git_ls_some(const kk_git *g, const char *commit, const char *one, const char *other,
                         kk_git_tree *out, kk_err *err);
void kk_git_tree_free(kk_git_tree *t);
const kk_git_entry *kk_git_tree_find(const kk_git_tree *t, const char *path); /* NULL: none */
/* The bytes of a file of at most `most`; a pointer of git LFS is refused. */
kk_status kk_git_read(const kk_git *g, const kk_git_entry *e, int64_t most, kk_bytes *out,
                      kk_err *err);

typedef struct {
    char path[KK_GIT_NAME + 1];
    kk_bytes data;
} kk_git_file;
/* A commit of a parent ("": none) with files added or replaced. */
kk_status kk_git_commit(const kk_git *g, const char *parent, const char *message,
                        const kk_git_file *file, size_t n, char id[KK_GIT_ID + 1], kk_err *err);

#endif
