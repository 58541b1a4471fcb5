/* draft_vocab.c - see draft_vocab.h. */
#include "engine/draft_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "format/counts.h"

enum { WHOLE = 64 }; /* the head has a multiple of so many rows: whole strips of every device */

static const char beside[] = "token-counts.json";

/* A number alone, or after the last colon. */
static bool read_number(const char *text, int32_t *out) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    const long n = strtol(text, &end, 10);
    if (*end || n > INT32_MAX) return false;
    *out = (int32_t)n;
    return true;
}

/* What is asked for: a file and how many of its ids. */
typedef struct {
    char *path;   /* NULL: none */
    int32_t most; /* 0: not said */
    bool named;   /* the file was; else it may lie beside the drafter, or not */
} wanted;

static kk_status read_wanted(wanted *w, const char *asked, const char *folder, kk_err *err) {
    const char *colon = asked ? strrchr(asked, ':') : NULL;
    *w = (wanted){0};
    if (asked && !read_number(asked, &w->most)) {
        const bool both = colon && read_number(colon + 1, &w->most);
        w->named = true;
        w->path = kk_strndup(asked, both ? (size_t)(colon - asked) : strlen(asked));
    } else if (folder) {
        w->path = kk_path_join(folder, beside);
    } else {
        return KK_OK;
    }
    return w->path ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for the path of counts");
}

/* The first `most` of n ids, without the one that is never drafted; id NULL: 0, 1, 2, ... */
static kk_status keep(kk_draft_vocab *out, const int32_t *id, int32_t n, int32_t most,
                      int32_t never, kk_err *err) {
    out->id = kk_calloc((size_t)(n > 0 ? n : 1), sizeof *out->id);
    if (!out->id) return kk_fail(err, KK_ENOMEM, "no memory for %d ids", n);
    for (int32_t i = 0; i < n && out->n < most; i++) {
        const int32_t one = id ? id[i] : i;
        if (one != never) out->id[out->n++] = one;
    }
    out->n -= out->n % WHOLE;
    if (out->n >= KK_DRAFT_VOCAB_LEAST) return KK_OK;
    kk_free(out->id);
    *out = (kk_draft_vocab){0};
    return kk_fail(err, KK_EINVAL,
                   "a short head of fewer than %d ids: `draft_vocab` asks for %d, "
                   "and %d were counted",
                   KK_DRAFT_VOCAB_LEAST, most, n);
}

static kk_status from_file(kk_draft_vocab *out, const wanted *w, int32_t vocab, int32_t never,
                           kk_err *err) {
    kk_counts c;
    KK_TRY(kk_counts_read(&c, w->path, err));
    kk_status st = KK_OK;
    if (c.vocab != vocab)
        st = kk_fail(err, KK_EFORMAT,
                     "the counts '%.120s' are of a vocabulary of %d ids: the drafter's has %d",
                     w->path, c.vocab, vocab);
    if (st == KK_OK) st = keep(out, c.id, c.n, w->most ? w->most : KK_DRAFT_VOCAB, never, err);
    kk_counts_free(&c);
    return st;
}

kk_status kk_draft_vocab_find(kk_draft_vocab *out, const char *asked, const char *folder,
                              bool random, int32_t vocab, int32_t never, kk_err *err) {
    wanted w;
    *out = (kk_draft_vocab){0};
    if (asked && strcmp(asked, "full") == 0) return KK_OK;
    KK_TRY(read_wanted(&w, asked, random ? NULL : folder, err));
    kk_status st = KK_OK;
    if (w.path && (w.named || kk_file_exists(w.path)))
        st = from_file(out, &w, vocab, never, err);
    else if (w.most && random)
        st = keep(out, NULL, vocab, w.most, never, err);
    else if (w.most)
        st = kk_fail(err, KK_EINVAL,
                     "`draft_vocab` asks for %d ids, and there are no counts beside the drafter to "
                     "choose them by: name a file of counts",
                     w.most);
    kk_free(w.path);
    return st;
}
