/* mlx_ops_test.c - the cases of backend_test.c on the MLX device, against the plain reference, as
 * support/mlx_judge.h holds them.  Says so and is skipped where the module was not built. */
#define main cpu_main
#include "parity/backend_test.c"
#undef main

#include "support/mlx_judge.h"
#include "support/skips.h"

static const rig_device mlx = {.backend = "mlx"};

static void run_on_mlx(void **state) {
    const op_case *c = *state;
    static rig r;
    rig_records want = {0}, got = {0};
    need_mlx(rig_open(&r, &mlx, c->max_rows, &got, seed_of(c)));
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
    need_mlx(rig_open(&r, &mlx, 4, &none, 7));
    int64_t before = 0;
    for (size_t i = 0; i < COUNT(types); i++) {
        rig_weight(&r, types[i].type, 24, 768);
        r.be->describe(r.dev, &facts);
        assert_int_equal(facts.memory.weights - before, (int64_t)(24 * 768 * types[i].bytes));
        before = facts.memory.weights;
    }
    rig_close(&r);
}

/* Greedy rows are looked at for near ties; those that are drawn are not. */
static void near_ties_are_told(void **state) {
    (void)state;
    enum { ROWS = 4, N = 100 };
    static const float gap[ROWS] = {0, 0.001f, 0.1f, 0};
    static const bool near[ROWS] = {true, true, false, false};
    static rig r;
    rig_records none = {0};
    need_mlx(rig_open(&r, &mlx, ROWS, &none, 7));
    float x[ROWS * N];
    kk_choose_row row[ROWS] = {[3] = {.how = {.temp = 1, .seed = 5}}};
    kk_pick pick[ROWS];
    int64_t ticket;
    double seconds;
    for (int32_t i = 0; i < ROWS * N; i++) x[i] = i % 2 ? 1.0f : -1.0f;
    for (int32_t i = 0; i < ROWS; i++) {
        x[i * N + 7] = 3;
        x[i * N + 50] = 3 - gap[i];
    }
    const kk_choose_args a = {.token = rig_buf(&r, x, ROWS),
                              .x = rig_buf(&r, x, ROWS * N),
                              .n_rows = ROWS,
                              .dim = N,
                              .row = row};
    RIG_RUN(&r, choose, &a, &ticket);
    RIG_RUN(&r, picked, ticket, pick, ROWS, &seconds);
    for (int32_t i = 0; i < ROWS; i++) assert_true(pick[i].near_tie == near[i]);
    rig_close(&r);
}

int main(void) {
    (void)cpu_main;
    (void)refusing;
    struct CMUnitTest tests[COUNT(cases) + 2];
    for (size_t i = 0; i < COUNT(cases); i++)
        tests[i] = (struct CMUnitTest){cases[i].name, run_on_mlx, NULL, NULL,
                                       (void *)(uintptr_t)&cases[i]};
    tests[COUNT(cases)] = (struct CMUnitTest)cmocka_unit_test(weights_stay_packed);
    tests[COUNT(cases) + 1] = (struct CMUnitTest)cmocka_unit_test(near_ties_are_told);
    return ended(cmocka_run_group_tests_name("mlx", tests, NULL, NULL));
}
