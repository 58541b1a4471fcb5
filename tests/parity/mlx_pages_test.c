/* mlx_pages_test.c - attention by the kernels over K/V pages, whose Metal text is compiled as C++ and
 * run lane by lane (support/mlx_interpreter.cc), against the plain reference: inputs, grids and
 * names are those that MLX is given on a Mac.  What MLX and Metal make of the text is not tested
 * here. */
#define main cpu_main
#include "parity/backend_test.c"
#undef main

#include "support/mlx_interpreter.h"
#include "support/mlx_judge.h"

static const rig_device by_pages = {.backend = "mlx-pages"};

static void attends_as_the_reference(void **state) {
    const op_case *c = *state;
    static rig r;
    rig_records want = {0}, got = {0};
    const int64_t before = mlx_interpreter_calls();
    assert_true(rig_open(&r, &by_pages, c->max_rows, &got, seed_of(c)));
    c->fn(&r);
    rig_close(&r);
    print_message("%d calls of kernels\n", (int)(mlx_interpreter_calls() - before));
    assert_true(mlx_interpreter_calls() - before > 5);
    assert_true(rig_open(&r, &reference, c->max_rows, &want, seed_of(c)));
    c->fn(&r);
    rig_close(&r);
    assert_int_equal(want.n, got.n);
    for (size_t k = 0; k < want.n; k++) judge(&want.items[k], &got.items[k]);
    rig_records_free(&want);
    rig_records_free(&got);
}

/* The self-test finds what it is made to find: kernels whose rows are alike, kernels that are wrong
 * where rows have others beside them, and kernels that are wrong. */
static void the_self_test_judges(void **state) {
    (void)state;
    int32_t rows = -1;
    kk_err err = {0};
    assert_int_equal(mlx_interpreter_alike(INT32_MAX, &rows, &err), KK_OK);
    assert_int_equal(rows, 32);
    assert_int_equal(mlx_interpreter_alike(12, &rows, &err), KK_OK);
    print_message("%d rows while calls for more than 12 parts are wrong\n", rows);
    assert_true(rows >= 1 && rows <= 12);
    assert_int_equal(mlx_interpreter_alike(1, &rows, &err), KK_OK);
    assert_int_equal(rows, 0);
}

int main(void) {
    (void)cpu_main;
    (void)refusing;
    struct CMUnitTest tests[COUNT(cases) + 1];
    size_t n = 0;
    mlx_interpreter_add();
    for (size_t i = 0; i < COUNT(cases); i++)
        if (strncmp(cases[i].name, "attend", 6) == 0)
            tests[n++] = (struct CMUnitTest){cases[i].name, attends_as_the_reference, NULL, NULL,
                                             (void *)(uintptr_t)&cases[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(the_self_test_judges);
    return _cmocka_run_group_tests("kernels over pages", tests, n, NULL, NULL);
}
