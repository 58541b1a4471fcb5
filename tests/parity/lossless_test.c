/* lossless_test.c - the shipped pair drafts, and nothing but the speed changes.
 *
 * Settings are drawn by a fixed seed so that every value of every axis comes up at least 50 times
 * and every pair of values at least 5 times; `make lossless-all` runs all of them.  Of few draws
 * (support/draws.h) a few prompts of each kind and length must do.
 * support/lossless.h says what is compared. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/draws.h"
#include "support/lossless_axes.h"
#include "support/projection_folder.h"
#include "support/scratch.h"

#define TINY KK_MODELS "/tiny"

enum {
    CASES_OF_A_PROMPT = 4,
    CASES_OF_A_LONG_ONE = 10,
    LEAST_OF_A_VALUE = 50,
    LEAST_OF_FEW = 15,
    LEAST_OF_A_PAIR = 5,
    TOKENS = 24,
    SHARE_IF_FEW = 3,
};

static lossless_counts counts, others;

static void assert_covered(void) {
    int64_t rarest_value = INT64_MAX, rarest_pair = INT64_MAX;
    for (int a = 0; a < AXES; a++)
        for (int v = 0; v < lossless_axes[a].values; v++) {
            if (counts.single[a][v] < rarest_value) rarest_value = counts.single[a][v];
            for (int b = 0; b < a; b++)
                for (int w = 0; w < lossless_axes[b].values; w++)
                    if (counts.pair[a][v][b][w] < rarest_pair)
                        rarest_pair = counts.pair[a][v][b][w];
        }
    print_message("the rarest value came up %d times, the rarest pair %d times\n",
                  (int)rarest_value, (int)rarest_pair);
    assert_true(rarest_value >= (few_draws() ? LEAST_OF_FEW : LEAST_OF_A_VALUE));
    assert_true(few_draws() || rarest_pair >= LEAST_OF_A_PAIR);
}

/* Nothing is shown of two proposers where one of them was never chosen. */
static void assert_both_drafted(const lossless_world *w) {
    const int64_t dflash = w->auto_rounds[KK_SPEC_DFLASH], ngram = w->auto_rounds[KK_SPEC_NGRAM];
    print_message("of auto, dflash drafted in %d rounds and n-gram in %d\n", (int)dflash,
                  (int)ngram);
    assert_true(dflash > 0 && ngram > 0);
}

/* Nor of the short head, if it never drafted, or always. */
static void assert_heads_drafted(const lossless_world *w) {
    print_message("%d drafts by the short head, %d by the full one beside it, %d tokens outside\n",
                  (int)w->by_short, (int)w->by_full, (int)w->missed);
    assert_true(w->by_short > 0 && w->by_full > 0 && w->missed > 0);
}

/* The format and policy that this kind and length of prompt has had least, also together. */
static void next_stage(const lossless_prompt *p, uint32_t index, kk_kv_format *format,
                       lossless_policy *policy) {
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < KK_KV_FORMATS * POLICIES; i++) {
        const uint32_t f = (index + i) % KK_KV_FORMATS, k = (index + i) % POLICIES;
        const int64_t had = counts.pair[AXIS_FORMAT][f][AXIS_KIND][p->kind] +
                            counts.pair[AXIS_FORMAT][f][AXIS_LENGTH][p->length] +
                            counts.pair[AXIS_POLICY][k][AXIS_KIND][p->kind] +
                            counts.pair[AXIS_POLICY][k][AXIS_LENGTH][p->length] +
                            counts.pair[AXIS_POLICY][k][AXIS_FORMAT][f];
        if (had >= least) continue;
        least = had;
        *format = (kk_kv_format)f;
        *policy = (lossless_policy)k;
    }
}

static void try_prompt(lossless_world *w, const lossless_prompt *p, uint32_t index,
                       uint64_t *random) {
    char why[SAY], name[SAY];
    lossless_stage stage;
    kk_kv_format format = KK_KV_BF16;
    lossless_policy policy = KEEPS_ALL;
    next_stage(p, index, &format, &policy);
    if (!lossless_stage_open(&stage, w, p, index, format, policy, TOKENS, why))
        fail_msg("prompt %u: %s", index, why);
    const int32_t threads = 1 + (int32_t)(next_random(random) % 2); /* evaluated once */
    const int cases = p->length == WRAPPED_OFTEN ? CASES_OF_A_LONG_ONE : CASES_OF_A_PROMPT;
    for (int i = 0; i < cases; i++) {
        const lossless_point point = lossless_draw(&counts, &stage, threads, random);
        const lossless_setting how = lossless_setting_of(&point);
        lossless_name(&point, index, name, sizeof name);
        if (!lossless_case(&stage, &how, why)) fail_msg("%s: %s", name, why);
        lossless_count(&counts, &point);
    }
    lossless_stage_close(&stage);
    if (!lossless_world_empty(w, why)) fail_msg("prompt %u: %s", index, why);
}

static void drafting_changes_nothing(void **state) {
    static lossless_prompt prompts[PROMPTS];
    uint64_t random = 4;
    int tried = 0;
    lossless_world w;
    const kk_engine_opts pair = {.model = TINY "/verifier",
                                 .drafter = TINY "/drafter",
                                 .draft_vocab = KK_TEST_DATA "/counts/tiny.json:1000",
                                 .projection = scratch_path(*state, "projection")};
    assert_ok(projection_unlearned(pair.projection, pair.model, why));
    char why[SAY];
    if (!lossless_world_open(&w, &pair, why)) fail_msg("%s", why);
    lossless_prompts_make(prompts, TINY "/verifier", w.plain->rounds.vocab);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        if (i % (uint32_t)one_in(SHARE_IF_FEW, SHARE_IF_FEW)) continue;
        try_prompt(&w, &prompts[i], i, &random);
        tried++;
    }
    int64_t cases = 0;
    for (int f = 0; f < KK_KV_FORMATS; f++) cases += counts.single[AXIS_FORMAT][f];
    print_message("%d cases over %d prompts\n", (int)cases, tried);
    assert_true(few_draws() || tried >= 200);
    assert_covered();
    assert_both_drafted(&w);
    assert_heads_drafted(&w);
    lossless_prompts_free(prompts);
    lossless_world_close(&w);
}

/* ---- other models ------------------------------------------------------------------------- */

/* Random settings for random prompts that end before, at and after a page, and past the window. */
static void try_model(const kk_engine_opts *how, uint64_t *random) {
    static const int32_t sizes[] = {1, 20, 63, 64, 65, 120, 190, 250};
    char why[SAY], name[SAY];
    lossless_world w;
    lossless_stage stage;
    int32_t ids[250];
    if (!lossless_world_open(&w, how, why)) fail_msg("%s", why);
    const uint32_t vocab = (uint32_t)w.plain->rounds.vocab;
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const lossless_prompt p = {.ids = ids, .n = sizes[i], .kind = OF_RANDOM};
        for (int32_t k = 0; k < p.n; k++) ids[k] = (int32_t)random_below(random, vocab);
        for (uint32_t f = 0; f < KK_KV_FORMATS; f++) {
            if (!w.plain->pages.fits[f] || !w.drafted[0]->draft_pages.fits[f]) continue;
            if ((i + f) % (uint32_t)one_in(SHARE_IF_FEW, SHARE_IF_FEW)) continue;
            const lossless_policy policy = (lossless_policy)((i + f) % POLICIES);
            if (!lossless_stage_open(&stage, &w, &p, i + f, (kk_kv_format)f, policy, TOKENS, why))
                fail_msg("%s", why);
            for (int n = 0; n < CASES_OF_A_PROMPT; n++) {
                const int32_t threads = 1 + (int32_t)random_below(random, 2);
                const lossless_point point = lossless_draw(&others, &stage, threads, random);
                const lossless_setting setting = lossless_setting_of(&point);
                lossless_name(&point, i, name, sizeof name);
                if (!lossless_case(&stage, &setting, why)) fail_msg("%s: %s", name, why);
                lossless_count(&others, &point);
            }
            lossless_stage_close(&stage);
            if (!lossless_world_empty(&w, why)) fail_msg("%s", why);
        }
    }
    lossless_world_close(&w);
}

static void other_models_draft_as_well(void **state) {
    uint64_t random = 9;
    const char *moe = scratch_path(*state, "moe");
    assert_ok(projection_unlearned(moe, KK_TEST_DATA "/parity/moe", why));
    const kk_engine_opts models[] = {
        {.synthetic = "tiny:q4_0:7",
         .drafter = "synthetic",
         .draft_vocab = "512",
         .projection = "synthetic:32"},
        {.synthetic = "tiny-ple:q8_0:6",
         .drafter = "synthetic",
         .projection = "synthetic:64",
         .max_rows = 24},
        {.model = KK_TEST_DATA "/parity/moe",
         .drafter = KK_TEST_DATA "/parity/moe/dflash",
         .projection = moe},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) try_model(&models[i], &random);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(drafting_changes_nothing, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(other_models_draft_as_well, scratch_setup,
                                        scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
