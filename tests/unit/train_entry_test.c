/* train_entry_test.c - the module of training serves the program it was built with and refuses
 * others; BLAS is asked for nothing that the system has no address space for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "train/entry.h"
#include "train/linalg.h"

static void test_own_build(void **state) {
    (void)state;
    const kk_train_build own = KK_TRAIN_BUILD;
    const kk_train_api *api = kk_train_module(&own);
    assert_non_null(api);
    assert_ptr_equal(api->run, kk_train_run);
}

static void test_other_builds(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        kk_train_build other = KK_TRAIN_BUILD;
        size_t *const bytes[] = {&other.api, &other.opts, &other.result, &other.event, &other.err};
        if (i < 5)
            *bytes[i] += 8;
        else
            other.version = "0.0.0";
        assert_null(kk_train_module(&other));
    }
}

static void test_no_memory(void **state) {
    kk_err err;
    (void)state;
    for (int64_t n = 1; n <= 2; n++) { /* the address space, a matrix */
        kk_fault_after(n, false);
        assert_int_equal(kk_linalg_threads(1, &err), KK_ENOMEM);
        kk_fault_after(0, false);
        assert_int_equal(err.code, KK_ENOMEM);
    }
    assert_int_equal(kk_linalg_threads(1, &err), KK_OK);
    assert_int_equal(kk_live_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_build),
        cmocka_unit_test(test_other_builds),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
