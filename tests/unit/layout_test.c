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
    s.layer[0].kind = KK_KIND_SLIDING;
    s.layer[0].stores = true;
    s.layer[0].n_kv_head = 8;
    s.layer[0].head_dim = sliding_dim;
    s.layer[1] = s.layer[0];
    s.layer[1].stores = false;
    s.layer[2] = s.layer[0];
    s.layer[2].kind = KK_KIND_FULL;
    s.layer[2].k_eq_v = true;
    s.layer[2].n_kv_head = 2;
    s.layer[2].head_dim = full_dim;
    return s;
}

static void pages_hold_their_rows(void **state) {
    (void)state;
    static const struct {
        kk_dtype format;
        size_t per_64; /* bytes of 64 values */
    } formats[] = {{KK_F32, 256}, {KK_BF16, 128}, {KK_KV8, 68}, {KK_KV4, 36}};
    const kk_kv_shape s = three_layers(256, 512);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        kk_kv_layout l;
        const size_t per = formats[i].per_64, part = 8 * 64 * (256 / 64) * per;
        assert_int_equal(kk_kv_layout_init(&l, &s, formats[i].format, NULL), KK_OK);
        assert_int_equal(l.page_bytes[KK_KIND_SLIDING], 2 * part);
        assert_int_equal(l.page_bytes[KK_KIND_FULL], 2 * 64 * (512 / 64) * per);
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
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_BF16, &err), KK_OK);
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV4, &err), KK_EINVAL);
        snprintf(words, sizeof words, "heads of %d values", dims[i]);
        assert_non_null(strstr(err.msg, "layer 2"));
        assert_non_null(strstr(err.msg, words));
        assert_non_null(strstr(err.msg, "q4"));
        assert_int_equal(kk_kv_layout_init(&l, &s, KK_KV8, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "q8"));
    }
    const kk_kv_shape fits = three_layers(64, 128);
    kk_kv_layout l;
    assert_int_equal(kk_kv_layout_init(&l, &fits, KK_KV4, NULL), KK_OK);
    assert_int_equal(kk_kv_layout_init(&l, &fits, KK_KV8, NULL), KK_OK);
}

static void other_formats_are_refused(void **state) {
    (void)state;
    const kk_kv_shape s = three_layers(256, 512);
    for (int t = 0; t < KK_DTYPES; t++) {
        kk_kv_layout l;
        const bool stored = t == KK_F32 || t == KK_BF16 || t == KK_KV8 || t == KK_KV4;
        assert_int_equal(kk_kv_layout_init(&l, &s, (kk_dtype)t, NULL), stored ? KK_OK : KK_EINVAL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_hold_their_rows),
        cmocka_unit_test(packed_heads_are_whole_groups),
        cmocka_unit_test(other_formats_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
