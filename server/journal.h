/* journal.h - a session's tokens on disk, as they came: written and synced before a client sees the
 * end of a turn.  The file says all that is needed to make the session again.
 *
 *   head     magic (8), bytes of the meta text (4), kind (4), identity of the model (8),
 *            created (8), id (40, padded with zeros), meta text, checksum (8)
 *   records  magic (4), tokens (4), where they begin (8), flags (4), prompt (4), tokens (4 each),
 *            checksum (8)
 * All little-endian.  A record's tokens replace whatever the timeline had from where they begin.
 * Each checksum starts from the one before it, so that records are whole, in order, and of this
 * file; what follows the last good one is a damaged tail. */
#ifndef KK_SERVER_JOURNAL_H
#define KK_SERVER_JOURNAL_H

#include "kakeya.h"

enum { JOURNAL_ID = 40, JOURNAL_META = 1 << 16 };
enum { JOURNAL_ENDS_TURN = 1 }; /* a generation ended with this record */

typedef struct {
    uint32_t kind; /* store_kind */
    uint64_t identity;
    int64_t created; /* seconds since 1970 */
    char id[JOURNAL_ID];
    const char *meta; /* JSON */
    size_t meta_len;
} journal_head;

typedef struct {
    int64_t at; /* tokens before these */
    const int32_t *tokens;
    size_t n;
    uint32_t flags;
    int32_t prompt; /* of a conversation: tokens that make a request the same one */
} journal_turn;

/* What a file says. */
typedef struct {
    journal_head head;
    char *meta;      /* what head.meta points to, NUL-terminated */
    int32_t *tokens; /* [len] */
    size_t len, cap;
    int32_t *turns; /* [n_turns] lengths at which generations ended */
    int32_t n_turns, cap_turns, prompt;
    size_t good; /* bytes of the head and the good records; less than the file: a damaged tail */
} journal;

/* KK_EFORMAT: the head is not one.  Records are read as far as they are good. */
kk_status journal_parse(journal *out, const uint8_t *bytes, size_t n, kk_err *err);
kk_status journal_read(journal *out, const char *path, size_t *size, kk_err *err);
void journal_free(journal *j);

/* Makes a file of its head alone, synced; *size: its bytes. */
kk_status journal_create(const char *path, const journal_head *head, int64_t *size, kk_err *err);
/* Appends a record to a file of *size bytes, synced.  On failure the file is as it was. */
kk_status journal_append(const char *path, const journal_turn *turn, int64_t *size, kk_err *err);
/* Cuts a damaged tail off, after copying it to a file beside it. */
kk_status journal_cut(const char *path, size_t good, const char *tail_path, kk_err *err);

#endif
