/* layout_test.c - a page is as large as its rows, and what no page can hold is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"

/* Three layers: sliding, one that stores nothing, and full with K = V. */
static kk_kv_shape three_layers(int32_t sliding_dim, int32_t full_dim) {
    kk_kv_shape s = {.n_layer = 3, .window = 100};
    s.layer[0].kind = KK_SLIDING;
    s.layer[0].stores = true;
    s.layer[0].n_kv_head = 8;
    s.layer[0].head_dim = sliding_dim;
    s.layer[1] = s.layer[0];
    s.layer[1].stores = false;
    s.layer[2] = s.layer[0];
    s.layer[2].kind = KK_FULL;
    s.layer[2].k_eq_v = true;
    s.layer[2].n_kv_head = 2;
    s.layer[2].head_dim = full_dim;
    return s;
}

static void pages_hold_their_rows(void **state) {
    (void)state;
    static const struct {
        kk_kv_format format;
        size_t per_64; /* bytes of 64 values */
    } formats[] = {
        {KK_KV_F32, 256}, {KK_KV_BF16, 128}, {KK_KV_Q8, 68}, {KK_KV_Q4, 36}, {KK_KV_S8, 66}};
    const kk_kv_shape s = three_layers(256, 512);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        kk_kv_layout l;
        const size_t per = formats[i].per_64, part = 8 * 64 * (256 / 64) * per;
        assert_int_equal(kk_kv_layout_init(&l, &s, formats[i].format, NULL, NULL), KK_OK);
        assert_int_equal(l.page_bytes[KK_SLIDING], 2 * part);
        assert_int_equal(l.page_bytes[KK_FULL], 2 * 64 * (512 / 64) * per);
        assert_int_equal(l.slot[0].k_off, 0);
        assert_int_equal(l.slot[0].v_off, part);
        assert_int_equal(l.slot[2].v_off, 0);
        assert_int_equal(part % 64, 0);
        assert_int_equal(8 * kk_kv_head_bytes(formats[i].format, 256), part);
        assert_int_equal(l.slot[0].format, formats[i].format);
    }
}

static void packed_heads_are_whole_groups(void **state) {
    (void)state;
    static const int32_t dims[] = {1, 32, 63, 65, 96, 200};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const kk_kv_shape s = three_layers(64, dims[i]);
        char words[32];
        kk_kv_layout l;
        kk_err err = {0};
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV_BF16, NULL, &err), KK_OK);
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV_Q4, NULL, &err), KK_EINVAL);
        snprintf(words, sizeof words, "heads of %d values", dims[i]);
        assert_non_null(strstr(err.msg, "layer 2"));
        assert_non_null(strstr(err.msg, words));
        assert_non_null(strstr(err.msg, "q4"));
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV_Q8, NULL, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "q8"));
    }
    const kk_kv_shape fits = three_layers(64, 128);
    kk_kv_layout l;
    assert_int_equal(kk_kv_layout_init(&l, &fits, KK_KV_Q4, NULL, NULL), KK_OK);
    assert_int_equal(kk_kv_layout_init(&l, &fits, KK_KV_Q8, NULL, NULL), KK_OK);
}

static void other_formats_are_refused(void **state) {
    (void)state;
    const kk_kv_shape s = three_layers(256, 512);
    for (int f = -2; f < KK_KV_FORMATS + 3; f++) {
        kk_kv_layout l;
        const bool exists = f >= 0 && f < KK_KV_FORMATS;
        assert_int_equal(kk_kv_layout_init(&l, &s, (kk_kv_format)f, NULL, NULL),
                         exists ? KK_OK : KK_EINVAL);
    }
}

/* Latents first, then their scales, then the true rows of every layer that stores. */
static void a_page_of_latents(void **state) {
    (void)state;
    static const struct {
        kk_kv_format format;
        size_t per_64;
    } formats[] = {
        {KK_KV_F32, 256}, {KK_KV_BF16, 128}, {KK_KV_Q8, 68}, {KK_KV_Q4, 36}, {KK_KV_S8, 66}};
    const kk_kv_shape s = three_layers(256, 512);
    kk_kv_layout plain, l;
    static kk_diagnosis d;
    assert_int_equal(kk_kv_layout_init(&plain, &s, KK_KV_BF16, NULL, NULL), KK_OK);
    assert_int_equal(plain.page_bytes[KK_LATENT], 0);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        kk_kv_latents how = {.rank = 192, .format = formats[i].format};
        const size_t rows = 64 * 3 * formats[i].per_64;
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV_BF16, &how, NULL), KK_OK);
        assert_int_equal(l.page_bytes[KK_LATENT], rows);
        assert_int_equal(l.latent.v_off, 0);
        assert_int_equal(l.latent.n_kv_head, 1);
        assert_int_equal(l.latent.head_dim, 192);
        assert_int_equal(l.latent.format, formats[i].format);
        how.n_scales = 3;
        how.diagnosis = &d;
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV_BF16, &how, NULL), KK_OK);
        assert_int_equal(l.latent.v_off, 0);
        assert_int_equal(l.scales.v_off, rows);
        assert_int_equal(l.scales.format, KK_KV_BF16);
        assert_int_equal(d.truth[0].format, KK_KV_F32);
        assert_int_equal(d.truth[0].k_off, rows + 64 * 3 * 2);
        assert_int_equal(d.truth[0].v_off, d.truth[0].k_off + 8 * 256 * 64 * 4);
        assert_int_equal(d.truth[2].v_off, d.truth[0].v_off + 8 * 256 * 64 * 4);
        assert_int_equal(l.page_bytes[KK_LATENT], d.truth[2].v_off + 2 * 512 * 64 * 4);
        assert_int_equal(l.latents.rank, 192);
        for (int k = 0; k < KK_LATENT; k++) /* the layers' own pages know nothing of it */
            assert_int_equal(l.page_bytes[k], plain.page_bytes[k]);
        assert_memory_equal(l.slot, plain.slot, sizeof l.slot);
    }
}

/* One for each head of a layer that stores rows of its own, of the kinds asked for. */
static void scales_follow_layers(void **state) {
    (void)state;
    const kk_kv_shape s = three_layers(256, 512);
    const bool sliding[KK_KINDS] = {[KK_SLIDING] = true};
    const bool full[KK_KINDS] = {[KK_FULL] = true};
    const bool both[KK_KINDS] = {true, true, false}, none[KK_KINDS] = {0};
    assert_int_equal(kk_kv_scale_at(&s, both, 0), 0);
    assert_int_equal(kk_kv_scale_at(&s, both, 2), 8);
    assert_int_equal(kk_kv_scale_at(&s, both, 3), 10);
    assert_int_equal(kk_kv_scale_at(&s, sliding, 3), 8);
    assert_int_equal(kk_kv_scale_at(&s, full, 2), 0);
    assert_int_equal(kk_kv_scale_at(&s, full, 3), 2);
    assert_int_equal(kk_kv_scale_at(&s, none, 3), 0);
}

static void latents_that_fit_no_page_are_refused(void **state) {
    (void)state;
    static kk_diagnosis unused;
    static const struct {
        kk_kv_latents latents;
        const char *says; /* NULL: fine */
    } cases[] = {
        {{.rank = 100, .format = KK_KV_BF16}, NULL},
        {{.rank = 0, .format = KK_KV_Q4, .diagnosis = &unused}, NULL},
        {{.rank = 100, .format = KK_KV_Q8}, "latents of 100 values cannot be stored as q8"},
        {{.rank = 32, .format = KK_KV_Q4}, "latents of 32 values cannot be stored as q4"},
        {{.rank = 64, .format = KK_KV_FORMATS}, "which does not exist"},
        {{.rank = -64, .format = KK_KV_BF16}, "latents of -64 values"},
        {{.rank = 64, .format = KK_KV_BF16, .n_scales = -1}, "-1 scales"},
    };
    const kk_kv_shape s = three_layers(256, 512);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_kv_layout l;
        kk_err err = {0};
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV_BF16, &cases[i].latents, &err),
                         cases[i].says ? KK_EINVAL : KK_OK);
        if (cases[i].says) assert_non_null(strstr(err.msg, cases[i].says));
        if (!cases[i].says && !cases[i].latents.rank) assert_int_equal(l.page_bytes[2], 0);
    }
    kk_kv_shape wrong = s; /* no layer is a latent */
    wrong.layer[0].kind = KK_LATENT;
    kk_kv_layout l;
    assert_int_equal(kk_kv_layout_init(&l, &wrong, KK_KV_BF16, NULL, NULL), KK_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_hold_their_rows),
        cmocka_unit_test(packed_heads_are_whole_groups),
        cmocka_unit_test(other_formats_are_refused),
        cmocka_unit_test(a_page_of_latents),
        cmocka_unit_test(scales_follow_layers),
        cmocka_unit_test(latents_that_fit_no_page_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
