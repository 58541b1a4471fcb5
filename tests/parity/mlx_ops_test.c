/* mlx_ops_test.c - the cases of backend_test.c on the MLX device, against the plain reference, as
 * support/mlx_judge.h holds them.  Says so and is skipped where the module was not built. */
#define main cpu_main
#include "parity/backend_test.c"
#undef main

#include "support/mlx_judge.h"

static const rig_device mlx = {.backend = "mlx"};

static void run_on_mlx(void **state) {
    const op_case *c = *state;
    static rig r;
    rig_records want = {0}, got = {0};
    if (!rig_open(&r, &mlx, c->max_rows, &got, seed_of(c))) {
        print_message("skipped: the module of MLX is not built here (scripts/setup mlx)\n");
        skip();
    }
    c->fn(&r);
    rig_close(&r);
    assert_true(rig_open(&r, &reference, c->max_rows, &want, seed_of(c)));
    r.with_sums = true;
    c->fn(&r);
    rig_close(&r);
    assert_int_equal(want.n, got.n);
    for (size_t k = 0; k < want.n; k++) judge(&want.items[k], &got.items[k]);
    rig_records_free(&want);
    rig_records_free(&got);
}

/* Quantised weights stay packed, whatever the file calls them: codes, and a float32 scale and bias
 * for each of their groups. */
static void weights_stay_packed(void **state) {
    (void)state;
    static const struct {
        kk_dtype type;
        double bytes; /* of a value */
    } types[] = {{KK_F32, 4},        {KK_BF16, 4},       {KK_Q8_0, 1.25},     {KK_Q4_0, 0.75},
                 {KK_Q5_0, 0.875},   {KK_Q5_1, 0.875},   {KK_Q4_K, 0.75},     {KK_Q5_K, 0.875},
                 {KK_Q6_K, 1.25},    {KK_MLX4_32, 0.75}, {KK_MLX4_64, 0.625}, {KK_MLX8_32, 1.25},
                 {KK_MLX8_64, 1.125}};
    static rig r;
    rig_records none = {0};
    kk_dev_facts facts;
    if (!rig_open(&r, &mlx, 4, &none, 7)) skip();
    int64_t before = 0;
    for (size_t i = 0; i < COUNT(types); i++) {
        rig_weight(&r, types[i].type, 24, 768);
        r.be->describe(r.dev, &facts);
        assert_int_equal(facts.memory.weights - before, (int64_t)(24 * 768 * types[i].bytes));
        before = facts.memory.weights;
    }
    rig_close(&r);
}

int main(void) {
    (void)cpu_main;
    (void)refusing;
    struct CMUnitTest tests[COUNT(cases) + 1];
    for (size_t i = 0; i < COUNT(cases); i++)
        tests[i] = (struct CMUnitTest){cases[i].name, run_on_mlx, NULL, NULL,
                                       (void *)(uintptr_t)&cases[i]};
    tests[COUNT(cases)] = (struct CMUnitTest)cmocka_unit_test(weights_stay_packed);
    return cmocka_run_group_tests_name("mlx", tests, NULL, NULL);
}
