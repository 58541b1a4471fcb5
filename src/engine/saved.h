/* saved.h - the file of a saved session: its head, and what follows it.
 *
 * Format 4, all little-endian:
 *   head      magic (8), format (4), bytes of the head (4), bytes of the file (8), the fields of
 *             kk_saved_head, checksum of all before it (8)
 *   tokens    [len] i32
 *   states    those of the checkpoints, in order of their length, then that of the session; each:
 *     length    tokens (4), whether the last of them is settled (4)
 *     logits    [vocab] f32, where it is
 *     rows      of the verifier's cache (kv/cache_section.c), as what they add to the state before
 *     proposer  where one keeps a state that is saved: its bytes (8), then what it writes itself
 * Each part after the head that is not empty is followed by a checksum of its own (8).  Which rows
 * a page holds follows from the number of rows and from what the cache keeps.  Rows beyond the last
 * are zero, so that the same state gives the same file; which pages a state shares with the one
 * before it follows from how the session came there.
 *
 * Format 3, which is still read, knew a model by its weights alone.  Format 2, which is read too,
 * had no checkpoints: after the tokens the logits, the rows whole, and the state of a proposer.
 * Format 1 had neither latents nor sinks, nor chunks; it is not read any more. */
#ifndef KK_ENGINE_SAVED_H
#define KK_ENGINE_SAVED_H

#include "core/file.h"
#include "format/config.h"
#include "kv/kv.h"

enum { KK_SAVED_FORMAT = 4, KK_SAVED_OLDEST = 2, KK_SAVED_HEAD_MAX = 1024 };

typedef struct {
    int64_t rows;
    struct {
        char policy[16];
        kk_kv_bounds bounds;
        int64_t pages, page_bytes;
        int64_t sink_bytes; /* 0 when there are no rows */
    } kind[KK_KINDS];
} kk_saved_cache;

/* How the session keeps its rows; all zero where every kind of layers keeps all. */
typedef struct {
    int32_t sink, window, chunk;
    uint64_t projection; /* its fingerprint; 0: nothing is rebuilt, the rest is zero */
    int32_t latents;     /* their format */
    int32_t rank, n_scales;
    bool mixes; /* format 2 had sessions under diagnosis */
    float mix;
} kk_saved_keeps;

typedef struct {
    int32_t format;     /* version of the file it was read from */
    int64_t body_bytes; /* bytes of everything after the head */
    char build[64], device[16], model[64];
    uint64_t fingerprint, drafter; /* drafter 0: saved without a proposer's state */
    /* Since format 4: what other precisions of these have too (format/lineage.h); the checksum of
     * the projection's data, 0: none is said; and whether rows were made with other weights. */
    uint64_t source, identity, drafter_identity, projection_data;
    bool other_weights;
    int32_t kv_format, spec, ctx, len, vocab;
    bool settled;
    int32_t draft_max, draft_ctx;
    bool draft_fixed;
    bool sampled;
    kk_sampling sampling;
    char policy[KK_LAYER_KINDS][16];
    kk_saved_keeps keeps;
    kk_saved_cache verifier; /* cache of the verifier, the session's own */
    int64_t checkpoint_bytes;
    int32_t n_points;       /* checkpoints */
    char proposer[16];      /* name of the proposer whose state is saved; "": none */
    kk_saved_cache context; /* format 2: the proposer's state, as if it were a cache */
} kk_saved_head;

/* Writes the head's bytes, of the newest format and sealed, and returns how many. */
size_t kk_saved_encode(const kk_saved_head *h, uint8_t out[KK_SAVED_HEAD_MAX]);
/* The fields of a head of kk_saved_bytes(format) bytes; false when they contradict each other.
 * Seal and sizes are the reader's to check. */
bool kk_saved_decode(kk_saved_head *out, int32_t format, const uint8_t *bytes);
size_t kk_saved_bytes(int32_t format);
/* Reads and checks a head: that it is whole, of a format that is read, and that the file is as long
 * as it says.  Afterwards all numbers are in their ranges. */
kk_status kk_saved_read(kk_saved_head *out, kk_reader *r, kk_err *err);
/* What a cache of so many rows is in a head. */
void kk_saved_describe(kk_saved_cache *out, const kk_cache *c, int64_t rows);
/* The names of ways to keep rows: those of the policies. */
const char *kk_saved_policy(kk_kind kind, kk_keep keep);
bool kk_saved_policy_named(kk_kind kind, const char *name, kk_keep *out);

#endif
