/* bus.c - see bus.h. */
#include "bridge/bus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/sshsig.h"
#include "core/alloc.h"
#include "core/error.h"

enum { MOST_CLAIM = 4096, MOST_SUMMARY = 1 << 20 };
#define HEADS "refs/heads/"

const char *kk_bus_stage_name(kk_bus_stage s) {
    static const char *const names[] = {"pending", "claimed", "finished"};
    return names[s];
}

/* ---- listing ------------------------------------------------------------------------------- */

const char *kk_bus_branch(const kk_bus *b, const char *ref) {
    const size_t heads = strlen(HEADS), n = strlen(b->prefix);
    if (strncmp(ref, HEADS, heads) != 0 || strncmp(ref + heads, b->prefix, n) != 0) return "";
    const char *rest = ref + heads + n;
    for (const char *c = rest; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *c))
            return "";
    return *rest ? ref + heads : "";
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kk_git_ref *)a)->name, ((const kk_git_ref *)b)->name);
}

kk_status kk_bus_list(const kk_bus *b, kk_git_refs *out, kk_err *err) {
    char pattern[KK_GIT_NAME];
    snprintf(pattern, sizeof pattern, HEADS "%.100s*", b->prefix);
    const char *const patterns[] = {pattern, KK_BUS_NONCES "*", NULL};
    KK_TRY(kk_git_list(&b->git, b->remote, patterns, out, err));
    if (out->n) qsort(out->ref, out->n, sizeof *out->ref, by_name);
    return KK_OK;
}

kk_status kk_bus_find(const kk_bus *b, const char *branch, kk_git_refs *out, kk_err *err) {
    char name[KK_GIT_NAME + 32];
    snprintf(name, sizeof name, HEADS "%s", branch);
    const char *const patterns[] = {name, NULL};
    return kk_git_list(&b->git, b->remote, patterns, out, err);
}

/* ---- reading ------------------------------------------------------------------------------- */

static json_t *read_object(const kk_bus *b, const kk_bus_entry *e, const char *path, int64_t most) {
    const kk_git_entry *file = kk_git_tree_find(&e->tree, path);
    kk_bytes text = {0};
    json_t *o = NULL;
    if (file && kk_git_read(&b->git, file, most, &text, NULL) == KK_OK)
        o = json_loadb(kk_bytes_text(&text), text.n, JSON_REJECT_DUPLICATES, NULL);
    kk_bytes_free(&text);
    if (json_is_object(o)) return o;
    json_decref(o);
    return NULL;
}

/* A request that cannot be read is no failure of ours: the fault is told to who sent it. */
static void read_request(const kk_bus *b, kk_bus_entry *e) {
    const kk_git_entry *request = kk_git_tree_find(&e->tree, KK_BUS_REQUEST);
    const kk_git_entry *signature = kk_git_tree_find(&e->tree, KK_BUS_SIGNATURE);
    kk_err err = {.msg = "there is no " KK_BUS_REQUEST};
    if (!request || kk_git_read(&b->git, request, KK_MANIFEST_BYTES, &e->manifest, &err) != KK_OK ||
        (signature &&
         kk_git_read(&b->git, signature, KK_SSHSIG_BYTES, &e->signature, &err) != KK_OK))
        snprintf(e->fault, sizeof e->fault, "%s", err.msg);
}

kk_status kk_bus_read(const kk_bus *b, const char *branch, kk_bus_entry *e, kk_err *err) {
    char ref[KK_GIT_NAME + 32];
    *e = (kk_bus_entry){.stage = KK_BUS_PENDING};
    if (strlen(branch) > KK_GIT_NAME)
        return kk_fail(err, KK_EINVAL, "the name of a branch is %zu bytes long", strlen(branch));
    memcpy(e->branch, branch, strlen(branch) + 1);
    snprintf(ref, sizeof ref, HEADS "%s", branch);
    KK_TRY(kk_git_fetch(&b->git, b->remote, ref, e->tip, err));
    kk_err why;
    const kk_status st = kk_git_ls(&b->git, e->tip, &e->tree, &why);
    if (st != KK_OK && st != KK_EFORMAT) return kk_fail(err, st, "%s", why.msg);
    if (st == KK_EFORMAT) {
        snprintf(e->fault, sizeof e->fault, "%s", why.msg);
        kk_git_tree_free(&e->tree); /* of too many files, those alone that say how far it is */
        KK_TRY(kk_git_ls_some(&b->git, e->tip, KK_BUS_SUMMARY, KK_BUS_CLAIM, &e->tree, err));
    }
    if (kk_git_tree_find(&e->tree, KK_BUS_SUMMARY))
        e->stage = KK_BUS_FINISHED;
    else if (kk_git_tree_find(&e->tree, KK_BUS_CLAIM))
        e->stage = KK_BUS_CLAIMED;
    e->summary = read_object(b, e, KK_BUS_SUMMARY, MOST_SUMMARY);
    e->claim = read_object(b, e, KK_BUS_CLAIM, MOST_CLAIM);
    if (e->stage == KK_BUS_PENDING && !e->fault[0]) read_request(b, e);
    return KK_OK;
}

void kk_bus_entry_release(kk_bus_entry *e) {
    kk_git_tree_free(&e->tree);
    kk_bytes_free(&e->manifest);
    kk_bytes_free(&e->signature);
    json_decref(e->claim);
    json_decref(e->summary);
    *e = (kk_bus_entry){.stage = KK_BUS_PENDING};
}

/* ---- writing ------------------------------------------------------------------------------- */

static void name_file(kk_git_file *f, const char *path) {
    snprintf(f->path, sizeof f->path, "%s", path);
}

static void put_json(kk_git_file *f, const char *path, const json_t *o) {
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    name_file(f, path);
    f->data.failed = !text;
    if (text) kk_bytes_print(&f->data, "%s\n", text);
    free(text);
}

static kk_status push_branch(const kk_bus *b, const char *branch, const char *before,
                             const char *id, kk_err *err) {
    char ref[KK_GIT_NAME + 32];
    snprintf(ref, sizeof ref, HEADS "%s", branch);
    const kk_git_change change = {.id = id, .name = ref, .before = before};
    return kk_git_push(&b->git, b->remote, &change, 1, err);
}

kk_status kk_bus_request(const kk_bus *b, const char *branch, const kk_bytes *manifest,
                         const kk_bytes *signature, char id[KK_GIT_ID + 1], kk_err *err) {
    kk_git_file file[2] = {{.data = *manifest}, {.data = *signature}};
    name_file(&file[0], KK_BUS_REQUEST);
    name_file(&file[1], KK_BUS_SIGNATURE);
    KK_TRY(kk_git_commit(&b->git, "", "Request", file, signature->n ? 2 : 1, id, err));
    return b->remote ? push_branch(b, branch, "", id, err) : KK_OK;
}

kk_status kk_bus_claim(const kk_bus *b, const kk_bus_entry *e, const char *nonce,
                       const json_t *claim, char id[KK_GIT_ID + 1], kk_err *err) {
    kk_git_file file = {.path = ""};
    char branch[KK_GIT_NAME + 32], used[KK_GIT_NAME];
    put_json(&file, KK_BUS_CLAIM, claim);
    const kk_status st = kk_git_commit(&b->git, e->tip, "Claim", &file, 1, id, err);
    kk_bytes_free(&file.data);
    if (st != KK_OK) return st;
    snprintf(branch, sizeof branch, HEADS "%s", e->branch);
    snprintf(used, sizeof used, KK_BUS_NONCES "%.64s", nonce);
    const kk_git_change change[2] = {{.id = id, .name = branch, .before = e->tip},
                                     {.id = id, .name = used, .before = ""}};
    return kk_git_push(&b->git, b->remote, change, 2, err);
}

kk_status kk_bus_result(const kk_bus *b, const char *parent, const json_t *summary,
                        kk_git_file *more, size_t n, char id[KK_GIT_ID + 1], kk_err *err) {
    kk_git_file *file = kk_calloc(n + 1, sizeof *file);
    if (!file) return kk_no_memory(err, "the files of a result");
    if (n) memcpy(file + 1, more, n * sizeof *file);
    put_json(&file[0], KK_BUS_SUMMARY, summary);
    const kk_status st = kk_git_commit(&b->git, parent, "Result", file, n + 1, id, err);
    kk_bytes_free(&file[0].data);
    kk_free(file);
    return st;
}

kk_status kk_bus_publish(const kk_bus *b, const char *branch, const char *parent, const char *id,
                         kk_err *err) {
    return push_branch(b, branch, parent, id, err);
}
