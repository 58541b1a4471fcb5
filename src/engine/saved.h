/* saved.h - the file of a saved session: its head, and what follows it.
 *
 * Format 1, all little-endian:
 *   head      magic (8), format (4), bytes of the head (4), bytes of the file (8), the fields of
 *             kk_saved_head, checksum of all before it (8)
 *   tokens    [len] i32
 *   logits    [vocab] f32, when the last token is settled
 *   pages     of the verifier's cache, sliding and then full; of the drafter's context, where
 *             there is one, the same
 * Each part after the head that is not empty is followed by a checksum of its own (8).  Which rows
 * a page holds follows from the number of rows and how far the cache reaches.  Rows beyond the
 * last are zero, so that the same state gives the same file. */
#ifndef KK_ENGINE_SAVED_H
#define KK_ENGINE_SAVED_H

#include "core/file.h"
#include "kv/kv.h"

enum { KK_SAVED_FORMAT = 1, KK_SAVED_HEAD_MAX = 1024 };

typedef struct {
    int64_t rows;
    struct {
        char policy[16];
        kk_kv_reach reach;
        int64_t pages, page_bytes;
    } kind[KK_KINDS];
} kk_saved_cache;

typedef struct {
    char build[64], device[16], model[64];
    uint64_t fingerprint, drafter; /* drafter 0: saved without its context */
    int32_t kv_format, spec, ctx, len, vocab;
    bool settled;
    int32_t draft_max, draft_ctx;
    bool draft_fixed;
    bool sampled;
    kk_sampling sampling;
    kk_saved_cache verifier, context;
} kk_saved_head;

/* Writes the head's bytes, sealed, and returns how many. */
size_t kk_saved_encode(const kk_saved_head *h, uint8_t out[KK_SAVED_HEAD_MAX]);
/* The fields of a head of kk_saved_bytes() bytes; false when they contradict each other.  Seal and
 * sizes are the reader's to check. */
bool kk_saved_decode(kk_saved_head *out, const uint8_t *bytes);
size_t kk_saved_bytes(void);
/* Reads and checks a head: that it is whole, of this format, and as long as it says.  Afterwards
 * the parts that follow are within the file, and all numbers in their ranges. */
kk_status kk_saved_read(kk_saved_head *out, kk_reader *r, kk_err *err);
/* What a cache of these rows is in a head. */
void kk_saved_describe(kk_saved_cache *out, const kk_cache *c);

#endif
