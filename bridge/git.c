/* git.c - see git.h.
 *
 * A commit is made by one run of `git fast-import`, which takes files, tree and commit from one
 * stream: no index, no work tree, no filter of a .gitattributes between our bytes and the blob. */
#define _GNU_SOURCE
#include "bridge/git.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bridge/folder.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"

enum {
    MOST_LISTED = 8 << 20, /* bytes of a listing */
    MOST_ENTRIES = 2000,   /* files of a commit */
    MOST_BLOB = 64 << 20,
};
static const double git_timeout_s = 300;

/* ---- running ------------------------------------------------------------------------------ */

kk_status kk_git_environment(kk_words *out, const char *const *base, kk_err *err) {
    static const char *const without[] = {"GIT_DIR=",
                                          "GIT_WORK_TREE=",
                                          "LC_ALL=",
                                          "GIT_INDEX_FILE=",
                                          "GIT_OBJECT_DIRECTORY=",
                                          "LANGUAGE=",
                                          "GIT_TERMINAL_PROMPT=",
                                          "GIT_NAMESPACE=",
                                          "GIT_ALTERNATE_OBJECT_DIRECTORIES=",
                                          "GIT_PREFIX="};
    for (; base && *base; base++) {
        bool keep = true;
        for (size_t i = 0; i < sizeof without / sizeof *without; i++)
            keep &= strncmp(*base, without[i], strlen(without[i])) != 0;
        if (keep) kk_words_add(out, "%s", *base);
    }
    kk_words_add(out, "GIT_TERMINAL_PROMPT=0");
    kk_words_add(out, "LC_ALL=C");
    return out->failed ? kk_no_memory(err, "the environment of git") : KK_OK;
}

/* Runs git, and leaves to the caller what an exit code means. */
static kk_status run_git(const kk_git *g, const char *const *args, const kk_bytes *input,
                         kk_process_result *r, kk_err *err) {
    kk_words argv = {0};
    static const char *const first[] = {"git",
                                        "-c",
                                        "gc.auto=0",
                                        "-c",
                                        "core.hooksPath=/dev/null",
                                        "-c",
                                        "protocol.ext.allow=never",
                                        "-c",
                                        "fetch.fsckObjects=true",
                                        "-c",
                                        "push.followTags=false",
                                        "-c",
                                        "push.gpgSign=false",
                                        "-c",
                                        "advice.detachedHead=false",
                                        NULL};
    kk_words_add_all(&argv, first);
    const bool fetches = g->most_disk && strcmp(args[0], "fetch") == 0;
    kk_words_add(&argv, "--git-dir=%s", g->folder);
    kk_words_add_all(&argv, args);
    const kk_process p = {.argv = kk_words_argv(&argv),
                          .env = g->env,
                          .input = input ? kk_bytes_text(input) : NULL,
                          .input_len = input ? input->n : 0,
                          .timeout_s = git_timeout_s,
                          .most_output = MOST_BLOB,
                          .disk = fetches ? g->folder : NULL,
                          .most_disk = fetches ? g->most_disk : 0,
                          .stop = g->stop};
    *r = (kk_process_result){.code = 0};
    const kk_status st =
        argv.failed ? kk_no_memory(err, "a command line") : kk_process_run(&p, r, err);
    kk_words_free(&argv);
    if (st != KK_OK || r->end == KK_ENDED_EXIT) return st;
    if (r->end == KK_ENDED_STOPPED) return kk_fail(err, KK_ESTOPPED, "stopped");
    return kk_fail(err, KK_EIO, "git %s ended by %s", args[0], kk_process_describe(r).text);
}

static kk_status git_failed(const char *what, const kk_process_result *r, kk_err *err) {
    /* The first complaint is the fault; what follows is advice. */
    static const char *const words[] = {"ssh: ", "remote: ", "fatal: ", "error: "};
    const char *said = kk_bytes_text(&r->err), *at = NULL;
    char line[160] = "";
    for (size_t i = 0; i < sizeof words / sizeof *words && !at; i++)
        for (at = strstr(said, words[i]); at && at != said && at[-1] != '\n';)
            at = strstr(at + 1, words[i]);
    if (at) {
        char rest[160];
        snprintf(rest, sizeof rest, "%.*s", (int)strcspn(at, "\n"), at);
        kk_plain(rest, line, sizeof line);
    } else {
        kk_process_last_line(&r->err, line, sizeof line);
    }
    return kk_fail(err, KK_EIO, "git %s: %s", what, line[0] ? line : kk_process_describe(r).text);
}

static kk_status run_with(const kk_git *g, const char *const *args, const kk_bytes *input,
                          kk_bytes *out, kk_err *err) {
    kk_process_result r;
    kk_status st = run_git(g, args, input, &r, err);
    if (st == KK_OK && r.code != 0) st = git_failed(args[0], &r, err);
    if (st == KK_OK && out) {
        *out = r.out;
        r.out = (kk_bytes){0};
    }
    kk_process_release(&r);
    return st;
}

kk_status kk_git_run(const kk_git *g, const char *const *args, kk_bytes *out, kk_err *err) {
    return run_with(g, args, NULL, out, err);
}

kk_status kk_git_init(const kk_git *g, kk_err *err) {
    char *head = kk_path_join(g->folder, "HEAD");
    const bool there = head && kk_file_exists(head);
    kk_free(head);
    if (there) return KK_OK;
    KK_TRY(kk_folder_make(g->folder, err));
    const char *const args[] = {"init", "-q", "--bare", "--template=", NULL};
    return kk_git_run(g, args, NULL, err);
}

/* ---- listings ----------------------------------------------------------------------------- */

/* Digits of an id at text; 0: there is none. */
static size_t id_digits(const char *text, size_t len) {
    size_t n = 0;
    while (n < len && n <= KK_GIT_ID && strchr("0123456789abcdef", text[n]) && text[n]) n++;
    return n == 40 || n == 64 ? n : 0;
}

/* Whether a name is printable and can stand in an argv as it is. */
static bool plain_name(const char *name, size_t n) {
    if (n == 0 || n > KK_GIT_NAME || name[0] == '-' || name[0] == '/') return false;
    for (size_t i = 0; i < n; i++) {
        if (name[i] <= ' ' || name[i] > '~' || strchr("\\\":?*[^~", name[i])) return false;
        if (name[i] == '.' && (i + 1 == n || name[i + 1] == '.')) return false;
    }
    return true;
}

static kk_status add_ref(kk_git_refs *out, const char *line, size_t len, kk_err *err) {
    const size_t n = id_digits(line, len);
    if (!n || n + 1 >= len || line[n] != '\t' || !plain_name(line + n + 1, len - n - 1))
        return KK_OK;
    if (!kk_grow((void **)&out->ref, &out->cap, out->n + 1, sizeof *out->ref))
        return kk_no_memory(err, "the references of a remote");
    kk_git_ref *r = &out->ref[out->n++];
    *r = (kk_git_ref){.id = ""};
    memcpy(r->id, line, n);
    memcpy(r->name, line + n + 1, len - n - 1);
    return KK_OK;
}

kk_status kk_git_parse_refs(kk_git_refs *out, const char *text, size_t len, kk_err *err) {
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end ? (size_t)(end - text) - at : len - at;
        KK_TRY(add_ref(out, text + at, n, err));
        at += n + 1;
    }
    return KK_OK;
}

kk_status kk_git_list(const kk_git *g, const char *remote, const char *const *patterns,
                      kk_git_refs *out, kk_err *err) {
    kk_words args = {0};
    kk_bytes text = {0};
    *out = (kk_git_refs){.n = 0};
    kk_words_add(&args, "ls-remote");
    kk_words_add(&args, "--");
    kk_words_add(&args, "%s", remote);
    kk_words_add_all(&args, patterns);
    kk_status st = args.failed ? kk_no_memory(err, "a command line")
                               : kk_git_run(g, kk_words_argv(&args), &text, err);
    if (st == KK_OK && text.n > MOST_LISTED)
        st = kk_fail(err, KK_EFORMAT, "the remote lists %zu bytes of references", text.n);
    if (st == KK_OK) st = kk_git_parse_refs(out, kk_bytes_text(&text), text.n, err);
    kk_bytes_free(&text);
    kk_words_free(&args);
    return st;
}

void kk_git_refs_free(kk_git_refs *refs) {
    kk_free(refs->ref);
    *refs = (kk_git_refs){.n = 0};
}

const kk_git_ref *kk_git_refs_find(const kk_git_refs *refs, const char *name) {
    for (size_t i = 0; i < refs->n; i++)
        if (strcmp(refs->ref[i].name, name) == 0) return &refs->ref[i];
    return NULL;
}

/* ---- trees -------------------------------------------------------------------------------- */

/* One entry of `git ls-tree -l -z`: MODE SP TYPE SP ID SP+ SIZE TAB PATH. */
static kk_status add_entry(kk_git_tree *out, const char *text, size_t len, kk_err *err) {
    const char *tab = memchr(text, '\t', len);
    char mode[8], type[8], id[KK_GIT_ID + 2], size[24];
    char head[160];
    const size_t n = tab ? (size_t)(tab - text) : sizeof head;
    const size_t path = tab ? len - n - 1 : 0;
    if (n >= sizeof head || !plain_name(tab + 1, path)) return KK_OK;
    memcpy(head, text, n);
    head[n] = 0;
    if (sscanf(head, "%7s %7s %65s %23s", mode, type, id, size) != 4 ||
        id_digits(id, strlen(id)) != strlen(id) || !*id)
        return KK_OK;
    if (!kk_grow((void **)&out->entry, &out->cap, out->n + 1, sizeof *out->entry))
        return kk_no_memory(err, "the files of a commit");
    kk_git_entry *e = &out->entry[out->n++];
    *e = (kk_git_entry){.size = strtoll(size, NULL, 10),
                        .regular = strcmp(mode, "100644") == 0 && strcmp(type, "blob") == 0};
    memcpy(e->id, id, strlen(id) + 1);
    memcpy(e->path, tab + 1, path);
    return KK_OK;
}

kk_status kk_git_parse_tree(kk_git_tree *out, const char *text, size_t len, kk_err *err) {
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, 0, len - at);
        const size_t n = end ? (size_t)(end - text) - at : len - at;
        if (out->n == MOST_ENTRIES)
            return kk_fail(err, KK_EFORMAT, "a commit of more than %d files", MOST_ENTRIES);
        KK_TRY(add_entry(out, text + at, n, err));
        at += n + 1;
    }
    return KK_OK;
}

kk_status kk_git_ls(const kk_git *g, const char *commit, kk_git_tree *out, kk_err *err) {
    kk_bytes text = {0};
    *out = (kk_git_tree){.n = 0};
    const char *const args[] = {"ls-tree", "-r", "-l", "-z", "--full-tree", commit, NULL};
    kk_status st = kk_git_run(g, args, &text, err);
    if (st == KK_OK) st = kk_git_parse_tree(out, kk_bytes_text(&text), text.n, err);
    kk_bytes_free(&text);
    return st;
}

kk_status kk_git_ls_some(const kk_git *g, const char *commit, const char *one, const char *other,
                         kk_git_tree *out, kk_err *err) {
    kk_bytes text = {0};
    *out = (kk_git_tree){.n = 0};
    const char *const args[] = {"ls-tree", "-l", "-z",  "--full-tree", commit,
                                "--",      one,  other, NULL};
    kk_status st = kk_git_run(g, args, &text, err);
    if (st == KK_OK) st = kk_git_parse_tree(out, kk_bytes_text(&text), text.n, err);
    kk_bytes_free(&text);
    return st;
}

void kk_git_tree_free(kk_git_tree *t) {
    kk_free(t->entry);
    *t = (kk_git_tree){.n = 0};
}

const kk_git_entry *kk_git_tree_find(const kk_git_tree *t, const char *path) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->entry[i].path, path) == 0) return &t->entry[i];
    return NULL;
}

kk_status kk_git_read(const kk_git *g, const kk_git_entry *e, int64_t most, kk_bytes *out,
                      kk_err *err) {
    if (!e->regular) return kk_fail(err, KK_EFORMAT, "%.100s is not a plain file", e->path);
    if (e->size < 0 || e->size > most)
        return kk_fail(err, KK_EFORMAT, "%.100s has %lld bytes, and the limit is %lld", e->path,
                       (long long)e->size, (long long)most);
    const char *const args[] = {"cat-file", "blob", e->id, NULL};
    KK_TRY(kk_git_run(g, args, out, err));
    if (!kk_lfs_pointer(kk_bytes_text(out), out->n)) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "%.100s is a pointer of git LFS, not the file: a bus does not carry LFS",
                   e->path);
}

/* ---- a remote ----------------------------------------------------------------------------- */

static kk_status resolve(const kk_git *g, const char *name, char id[KK_GIT_ID + 1], kk_err *err) {
    kk_bytes text = {0};
    const char *const args[] = {"rev-parse", "--verify", "-q", "--end-of-options", name, NULL};
    KK_TRY(kk_git_run(g, args, &text, err));
    const size_t n = id_digits(kk_bytes_text(&text), text.n);
    memcpy(id, kk_bytes_text(&text), n);
    id[n] = 0;
    kk_bytes_free(&text);
    return n ? KK_OK : kk_fail(err, KK_EFORMAT, "git gave no id for %.100s", name);
}

kk_status kk_git_fetch(const kk_git *g, const char *remote, const char *name,
                       char id[KK_GIT_ID + 1], kk_err *err) {
    kk_words args = {0};
    static const char *const first[] = {
        "fetch", "-q", "--no-tags", "--depth=1", "--no-write-fetch-head", "--no-recurse-submodules",
        "--",    NULL};
    kk_words_add_all(&args, first);
    kk_words_add(&args, "%s", remote);
    kk_words_add(&args, "+%s:refs/fetched", name);
    const kk_status st = args.failed ? kk_no_memory(err, "a command line")
                                     : kk_git_run(g, kk_words_argv(&args), NULL, err);
    kk_words_free(&args);
    return st == KK_OK ? resolve(g, "refs/fetched^{commit}", id, err) : st;
}

/* Whether the remote will not have it, whatever its references are: a hook, a limit, a permission.
 */
static bool declined(const char *said) {
    static const char mark[] = "[remote rejected] (";
    static const char *const moved[] = {"atomic", "lock", "failed to update ref", "exists",
                                        "fetch first"};
    for (const char *at = said; (at = strstr(at, mark)) != NULL;) {
        char why[80];
        bool race = false;
        at += sizeof mark - 1;
        snprintf(why, sizeof why, "%.*s", (int)strcspn(at, ")\n"), at);
        for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
            race |= strstr(why, moved[i]) != NULL;
        if (!race) return true;
    }
    return false;
}

kk_status kk_git_push(const kk_git *g, const char *remote, const kk_git_change *change, size_t n,
                      kk_err *err) {
    kk_words args = {0};
    static const char *const first[] = {"push",     "-q",          "--porcelain",
                                        "--atomic", "--no-verify", NULL};
    kk_words_add_all(&args, first);
    for (size_t i = 0; i < n; i++)
        kk_words_add(&args, "--force-with-lease=%s:%s", change[i].name, change[i].before);
    kk_words_add(&args, "--");
    kk_words_add(&args, "%s", remote);
    for (size_t i = 0; i < n; i++) kk_words_add(&args, "%s:%s", change[i].id, change[i].name);
    kk_process_result r = {.code = 0};
    kk_status st = args.failed ? kk_no_memory(err, "a command line")
                               : run_git(g, kk_words_argv(&args), NULL, &r, err);
    /* A line of the porcelain that begins with '!' is a reference that the remote did not set. */
    const char *said = kk_bytes_text(&r.out);
    if (st == KK_OK && r.code != 0)
        st = (said[0] == '!' || strstr(said, "\n!")) && !declined(said)
                 ? kk_fail(err, KK_EEXIST, "%.150s is not what it was", change[0].name)
                 : git_failed("push", &r, err);
    kk_process_release(&r);
    kk_words_free(&args);
    return st;
}

/* ---- commits ------------------------------------------------------------------------------ */

static void put_data(kk_bytes *to, const void *data, size_t len) {
    kk_bytes_print(to, "data %zu\n", len);
    kk_bytes_add(to, data, len);
    kk_bytes_print(to, "\n");
}

kk_status kk_git_commit(const kk_git *g, const char *parent, const char *message,
                        const kk_git_file *file, size_t n, char id[KK_GIT_ID + 1], kk_err *err) {
    kk_bytes in = {0}, out = {0};
    kk_bytes_print(&in,
                   "reset refs/made\n\ncommit refs/made\nmark :1\n"
                   "committer kakeya bridge <bridge@localhost> %lld +0000\n",
                   (long long)time(NULL));
    put_data(&in, message, strlen(message));
    if (*parent) kk_bytes_print(&in, "from %s\n", parent);
    for (size_t i = 0; i < n; i++) {
        kk_bytes_print(&in, "M 100644 inline %s\n", file[i].path);
        put_data(&in, kk_bytes_text(&file[i].data), file[i].data.n);
        in.failed |= file[i].data.failed;
    }
    kk_bytes_print(&in, "\nget-mark :1\ndone\n");
    const char *const args[] = {"fast-import",       "--quiet", "--force",
                                "--date-format=raw", "--done",  NULL};
    kk_status st = in.failed ? kk_no_memory(err, "a commit") : run_with(g, args, &in, &out, err);
    const size_t digits = st == KK_OK ? id_digits(kk_bytes_text(&out), out.n) : 0;
    if (st == KK_OK && !digits) st = kk_fail(err, KK_EFORMAT, "git gave no id for a commit");
    memcpy(id, kk_bytes_text(&out), digits);
    id[digits] = 0;
    kk_bytes_free(&in);
    kk_bytes_free(&out);
    return st;
}
