/* footprint.h - bytes of a session against its context, for every way to keep rows.
 *
 * Ways (policies): exact in bf16, q8 and q4; window, which drops rows; and for each projection
 * restored, its latents in bf16 and in q8.  For each length a session of that many tokens is made,
 * and the allocator says what it holds.  How fast bytes grow is what lies between the first and the
 * last length.  With a drafter its context is counted too, and with a bound on that (draft_ctx)
 * once more within it.
 *
 * A session may be filled instead of evaluated: its caches take the pages that so many rows need,
 * and only the last token is really computed.  Its bytes are the same, and a model whose shapes are
 * all there is of it can be measured at lengths nobody would wait for.
 *
 * With quality, needles are looked for in documents of at most so many tokens, and at the end of a
 * text of that length next-token distributions are compared with those of exact bf16. */
#ifndef KK_EVAL_FOOTPRINT_H
#define KK_EVAL_FOOTPRINT_H

#include "eval/tasks/sweep_ask.h"

enum {
    KK_FOOTPRINT_LENGTHS = 16,
    KK_FOOTPRINT_PROJECTIONS = 8,
    KK_FOOTPRINT_POLICIES = 64,
    KK_FOOTPRINT_GROWTHS = 4 * KK_FOOTPRINT_POLICIES
};

typedef struct {
    kk_engine_opts engine; /* without a projection */
    const char *projection[KK_FOOTPRINT_PROJECTIONS];
    int32_t n_projections;
    kk_session_opts session; /* sink, window, chunk; and which kinds are restored (none: both) */
    int32_t tokens[KK_FOOTPRINT_LENGTHS], n_lengths; /* rising */
    int32_t draft_ctx;                               /* 0: no bound is tried */
    bool fill, quality;
    int32_t samples; /* documents of each length */
    uint64_t seed;
    int32_t predict;
    kk_quality_source source; /* of texts; tok, from and most are set here */
    const char *command;
    bool (*tell)(void *user, int32_t done, int32_t total);
    void *user;
} kk_footprint_opts;

typedef struct {
    int32_t policy, tokens;
    int64_t bytes[KK_MEM_CATEGORIES];
    int64_t restored_rows;  /* pairs of layer and position */
    double recall, mean_kl; /* negative: not measured */
} kk_footprint_row;

typedef struct {
    int32_t policy, against;       /* against -1: nothing */
    bool drafter;                  /* kv.full + kv.latents, and kv.drafter too */
    double bytes_per_token, ratio; /* ratio 0: none */
} kk_footprint_growth;

typedef struct {
    char policy[KK_FOOTPRINT_POLICIES][64]; /* names */
    int32_t n_policies;
    kk_footprint_row *row; /* by projection, length and policy */
    int32_t n_rows;
    kk_footprint_growth growth[KK_FOOTPRINT_GROWTHS];
    int32_t n_growths;
    json_t *report;
} kk_footprint_result;

/* On failure *out holds nothing; otherwise release it. */
kk_status kk_footprint_run(const kk_footprint_opts *opts, kk_footprint_result *out, kk_err *err);
void kk_footprint_release(kk_footprint_result *r);
kk_status kk_footprint_write(kk_writer *to, const kk_footprint_result *r, kk_err *err);

/* Makes an empty session one of n tokens without evaluating any but the last. */
kk_status kk_session_fill(kk_session *s, int32_t n, kk_err *err);

#endif
