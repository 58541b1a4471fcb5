/* short_head_test.c - a drafter's short head drafts the best of the ids that it has, and its spare
 * rows take the ids that sessions have.
 *
 * A second drafter of the same files has no short head.  Its logits over all the vocabulary say
 * which of any ids is the best: a row of a product does not depend on the other rows. */
#define _GNU_SOURCE
#include "support/draft_pair.h"

#define TINY KK_MODELS "/tiny"

enum { VOCAB = 4096, ROWS = 512, SPARE = ROWS / 8, LEN = 60, N = 7 };

typedef struct {
    draft_pair p;
    kk_dflash *brief; /* p.drafter with a short head */
    int32_t id[ROWS], tokens[LEN];
    bool has[VOCAB];
    kk_buf *taps;
    kk_cache *context;
} bench;

static void open_bench(bench *b, kk_dtype type) {
    const pair_how how = {.format = KK_KV_BF16, .threads = 2};
    *b = (bench){0};
    assert_ok(kk_checkpoint_open(&b->p.ckpt, TINY "/verifier", NULL, why));
    assert_ok(kk_drafter_open(&b->p.files, TINY "/drafter", NULL, why));
    pair_start(&b->p, NULL, &how);
    for (int32_t i = 0; i < ROWS; i++) { /* in no order: 7 has no factor in common with VOCAB */
        b->id[i] = (int32_t)((i * 7 + 400) % VOCAB);
        b->has[b->id[i]] = true;
    }
    const kk_dflash_opts how_short = {
        .backend = b->p.be,
        .dev = b->p.dev,
        .verifier = b->p.verifier,
        .max_rows = PAIR_CHUNK,
        .max_block_rows = 16,
        .short_head = {.id = b->id,
                       .n = ROWS,
                       .table = kk_checkpoint_find(b->p.ckpt, "embed_tokens.weight"),
                       .type = type,
                       .mem = &b->p.mem}};
    const kk_drafter_config *c = kk_drafter_config_of(b->p.files);
    assert_ok(kk_dflash_new(&b->brief, b->p.files, c, &how_short, why));
    for (int32_t i = 0; i < LEN; i++) b->tokens[i] = (i * 37 + 411) % VOCAB;
    b->taps = pair_taps(&b->p, LEN);
    kk_cache *cache = pair_cache(&b->p.main, LEN);
    pair_prefill(&b->p, cache, b->tokens, LEN, b->taps);
    kk_cache_free(cache);
    b->context = pair_cache(&b->p.draft, LEN + 16);
    pair_extend(&b->p, b->context, b->taps, 0, LEN - 1);
}

static void close_bench(bench *b) {
    kk_cache_free(b->context);
    b->p.be->buf_free(b->p.dev, b->taps);
    kk_dflash_free(b->brief);
    pair_close(&b->p);
}

/* Drafts after one token of the text instead of the anchor: another draft for each. */
static void draft_short(bench *b, int32_t anchor, bool short_head, int32_t out[N]) {
    const kk_dflash_block block = {.context = pair_context(&b->p, b->context),
                                   .anchor = anchor,
                                   .n = N,
                                   .out = out,
                                   .short_head = short_head};
    assert_ok(kk_cache_reserve(b->context, N + 1, why));
    assert_ok(kk_dflash_draft(b->brief, &block, 1, why));
}

/* The best of the ids that b->has, by the logits of a full head. */
static void best_of_those(bench *b, int32_t anchor, int32_t out[N]) {
    static float logits[VOCAB];
    int32_t drafts[N];
    pair_draft(&b->p, b->context, anchor, N, drafts);
    for (int32_t k = 0; k < N; k++) {
        assert_ok(kk_dflash_logits(b->p.drafter, k + 1, logits, why));
        out[k] = -1;
        for (int32_t i = 0; i < VOCAB; i++)
            if (b->has[i] && (out[k] < 0 || logits[i] > logits[out[k]])) out[k] = i;
    }
}

/* How many of them the full head would have drafted, over many anchors. */
static int32_t assert_best(bench *b, int32_t *of) {
    int32_t same = 0;
    *of = 0;
    for (int32_t a = 0; a < LEN; a++) {
        int32_t got[N], want[N], full[N], again[N];
        best_of_those(b, b->tokens[a], want);
        draft_short(b, b->tokens[a], true, got);
        assert_memory_equal(got, want, sizeof got);
        draft_short(b, b->tokens[a], false, full);
        pair_draft(&b->p, b->context, b->tokens[a], N, again);
        assert_memory_equal(full, again, sizeof full);
        for (int32_t k = 0; k < N; k++) same += got[k] == full[k], ++*of;
    }
    return same;
}

static void drafts_are_the_best_of_its_ids(void **state) {
    (void)state;
    bench b;
    int32_t of;
    open_bench(&b, KK_BF16);
    assert_int_equal(kk_dflash_short_rows(b.brief), ROWS);
    assert_int_equal(kk_dflash_short_rows(b.p.drafter), 0);
    for (int32_t i = 0; i < VOCAB; i++) assert_int_equal(kk_dflash_has_short(b.brief, i), b.has[i]);
    const int32_t same = assert_best(&b, &of);
    print_message("%d of %d drafted tokens are the full head's\n", same, of);
    assert_true(same < of / 2); /* else nothing was shown: the ids are an eighth of all */
    close_bench(&b);
}

/* Tokens of a session take the rows of the least likely ids, those seen longest ago first. */
static void spare_rows_take_what_sessions_have(void **state) {
    (void)state;
    bench b;
    int32_t of, ids[SPARE + 2], n = 0;
    open_bench(&b, KK_BF16);
    for (int32_t i = 0; n < SPARE + 2; i++)
        if (!b.has[i] && i != kk_dflash_config(b.brief)->mask_id) ids[n++] = i;
    assert_ok(kk_dflash_note(b.brief, ids, SPARE, why));
    for (int32_t i = 0; i < SPARE; i++) {
        b.has[b.id[ROWS - 1 - i]] = false;
        b.has[ids[i]] = true;
    }
    for (int32_t i = 0; i < VOCAB; i++) assert_int_equal(kk_dflash_has_short(b.brief, i), b.has[i]);
    assert_best(&b, &of);
    /* The first is seen again, so that the second and third go; ids that are always there and the
     * mask change nothing. */
    const int32_t more[] = {ids[0], b.id[0], kk_dflash_config(b.brief)->mask_id, ids[SPARE],
                            ids[SPARE + 1]};
    assert_ok(kk_dflash_note(b.brief, more, 5, why));
    b.has[ids[1]] = b.has[ids[2]] = false;
    b.has[ids[SPARE]] = b.has[ids[SPARE + 1]] = true;
    for (int32_t i = 0; i < VOCAB; i++) assert_int_equal(kk_dflash_has_short(b.brief, i), b.has[i]);
    assert_best(&b, &of);
    close_bench(&b);
}

/* Rows that are rounded draft nearly the same. */
static void packed_rows_draft_nearly_the_same(void **state) {
    (void)state;
    bench b;
    int32_t same = 0;
    open_bench(&b, KK_Q8_0);
    assert_ok(kk_dflash_note(b.brief, b.tokens, LEN, why));
    for (int32_t i = 0; i < VOCAB; i++) b.has[i] = kk_dflash_has_short(b.brief, i);
    for (int32_t a = 0; a < LEN; a++) {
        int32_t got[N], want[N];
        best_of_those(&b, b.tokens[a], want);
        draft_short(&b, b.tokens[a], true, got);
        for (int32_t k = 0; k < N; k++) {
            assert_true(b.has[got[k]]);
            same += got[k] == want[k];
        }
    }
    print_message("%d of %d drafted tokens are those of rows in bf16\n", same, LEN * N);
    assert_true(same > LEN * N * 9 / 10);
    close_bench(&b);
}

static void what_is_no_short_head_is_refused(void **state) {
    (void)state;
    bench b;
    kk_err err;
    kk_dflash *m = (kk_dflash *)1;
    open_bench(&b, KK_BF16);
    float row[VOCAB];
    int32_t out[N];
    draft_short(&b, 5, true, out);
    assert_int_equal(kk_dflash_logits(b.brief, 1, row, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "512"));
    kk_dflash_opts how = {
        .backend = b.p.be,
        .dev = b.p.dev,
        .verifier = b.p.verifier,
        .max_rows = PAIR_CHUNK,
        .max_block_rows = 16,
        .short_head = {.id = b.id,
                       .n = ROWS,
                       .table = kk_checkpoint_find(b.p.ckpt, "embed_tokens.weight"),
                       .type = KK_BF16,
                       .mem = &b.p.mem}};
    b.id[3] = VOCAB;
    assert_int_equal(kk_dflash_new(&m, b.p.files, kk_drafter_config_of(b.p.files), &how, &err),
                     KK_EINVAL);
    assert_non_null(strstr(err.msg, "4096"));
    assert_null(m);
    how.short_head.n = VOCAB + 1;
    assert_int_equal(kk_dflash_new(&m, b.p.files, kk_drafter_config_of(b.p.files), &how, &err),
                     KK_EINVAL);
    assert_null(m);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_the_best_of_its_ids),
        cmocka_unit_test(spare_rows_take_what_sessions_have),
        cmocka_unit_test(packed_rows_draft_nearly_the_same),
        cmocka_unit_test(what_is_no_short_head_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
