/* bus.h - the branches of a git remote that carry requests and results.
 *
 * A request is a branch, PREFIX PRESET-NONCE, that begins with a commit without a parent:
 *
 *   request    .kakeya-bridge/request.json       the manifest
 *              .kakeya-bridge/request.json.sig   its signature, where there is one
 *   claim      .kakeya-bridge/claim.json         who carries it out
 *   result     .kakeya-bridge/summary.json       what came of it
 *              .kakeya-bridge/logs/NAME
 *              results/NAME.json                 reports that the gate let pass
 *
 * Invariants:
 *   (1) a branch moves from request to claim to result, or from request to result, a commit each;
 *   (2) every push names what the branch is before it, so of two that push one fails;
 *   (3) with the claim the reference refs/kakeya-bridge/nonces/NONCE is made, in the same push,
 *       which fails when it is there: a nonce is used once;
 *   (4) a branch that was deleted is not made again.
 * Nothing here depends on a clock: times in files are for people. */
#ifndef KK_BRIDGE_BUS_H
#define KK_BRIDGE_BUS_H

#include <jansson.h>

#include "bridge/git.h"
#include "bridge/manifest.h"

#define KK_BUS_REQUEST ".kakeya-bridge/request.json"
#define KK_BUS_SIGNATURE ".kakeya-bridge/request.json.sig"
#define KK_BUS_CLAIM ".kakeya-bridge/claim.json"
#define KK_BUS_SUMMARY ".kakeya-bridge/summary.json"
#define KK_BUS_LOGS ".kakeya-bridge/logs/"
#define KK_BUS_RESULTS "results/"
#define KK_BUS_NONCES "refs/kakeya-bridge/nonces/"

typedef struct {
    kk_git git;
    const char *remote, *prefix;
} kk_bus;

typedef enum { KK_BUS_PENDING, KK_BUS_CLAIMED, KK_BUS_FINISHED } kk_bus_stage;

/* A branch as it was when it was read. */
typedef struct {
    char branch[KK_GIT_NAME + 1]; /* without refs/heads/ */
    char tip[KK_GIT_ID + 1];
    kk_bus_stage stage;
    kk_git_tree tree;
    kk_bytes manifest, signature; /* empty: it has none */
    json_t *claim, *summary;      /* NULL: it has none, or none that can be read */
    char fault[240];              /* why the request cannot be read; "": it can */
} kk_bus_entry;

/* The branches of the bus and its nonces, in order of names. */
kk_status kk_bus_list(const kk_bus *b, kk_git_refs *out, kk_err *err);
/* One branch.  *e: to be released. */
kk_status kk_bus_find(const kk_bus *b, const char *branch, kk_git_refs *out, kk_err *err);
/* The branch that a reference is, "" for others. */
const char *kk_bus_branch(const kk_bus *b, const char *ref);
/* Fetches and reads a branch; *e is to be released also after a failure. */
kk_status kk_bus_read(const kk_bus *b, const char *branch, kk_bus_entry *e, kk_err *err);
void kk_bus_entry_release(kk_bus_entry *e);
const char *kk_bus_stage_name(kk_bus_stage s);

/* Pushes a new request. */
kk_status kk_bus_request(const kk_bus *b, const char *branch, const kk_bytes *manifest,
                         const kk_bytes *signature, char id[KK_GIT_ID + 1], kk_err *err);
/* Claims a request: KK_EEXIST when another was first, the branch is gone or the nonce was used. */
kk_status kk_bus_claim(const kk_bus *b, const kk_bus_entry *e, const char *nonce,
                       const json_t *claim, char id[KK_GIT_ID + 1], kk_err *err);
/* A commit with the summary and files, on top of a commit of the branch; not pushed yet. */
kk_status kk_bus_result(const kk_bus *b, const char *parent, const json_t *summary,
                        kk_git_file *more, size_t n, char id[KK_GIT_ID + 1], kk_err *err);
/* KK_EEXIST when the branch is not at parent any more. */
kk_status kk_bus_publish(const kk_bus *b, const char *branch, const char *parent, const char *id,
                         kk_err *err);

#endif
