/* mlx_evicted_test.c - the shapes of evicted_test.c on the MLX device: rows that are gone from
 * their pages, rebuilt or not seen, against the plain formula in double arithmetic; and the same
 * bits for a row of a round that comes alone.
 *
 * Says so and is skipped where the module was not built. */
#define main cpu_main
#include "parity/evicted_test.c"
#undef main
#include "support/skips.h"

static const rig_device mlx = {.backend = "mlx"};

enum { SHAPES = 60, ROUND = 32 };

/* Decoders that the CPU multiplies with rounded latents are float32 here. */
static evicted_shape draw_for_mlx(uint64_t *random, size_t i) {
    const int32_t window = windows[i % COUNT(windows)];
    const int32_t sink = window ? sinks[i / 2 % COUNT(sinks)] : 4;
    evicted_shape s = draw_shape(random, sink, window, chunks[i / 3 % COUNT(chunks)]);
    s.hides = i % 3 == 0;
    s.mixes = i % 5 == 1 && !s.hides;
    s.mix = s.mixes ? 0.25f * (float)(i % 4 + 1) : 0;
    if (s.decoders == KK_Q8_0) s.decoders = KK_BF16;
    int32_t rows = 0;
    for (int32_t k = 0; k < s.sessions; k++) {
        draw_rows(&s, k, random);
        rows += s.n_rows[k];
    }
    if (rows > ROUND && i % 4) s.sessions = 1;
    return s;
}

/* A prompt's rows share products, whose bits need not be those of a row alone. */
static bool is_round(const evicted_shape *s) {
    int32_t rows = 0;
    for (int32_t k = 0; k < s->sessions; k++) rows += s->n_rows[k];
    return rows <= ROUND;
}

static void shapes_hold_on_mlx(void **state) {
    (void)state;
    static rig r;
    uint64_t random = 11;
    size_t rounds = 0;
    for (size_t i = 0; i < SHAPES; i++) {
        const evicted_shape s = draw_for_mlx(&random, i);
        rig_records none = {0};
        char label[112];
        need_mlx(rig_open(&r, &mlx, MOST_ROWS, &none, bits_at(&random)));
        evicted_label(&s, label, sizeof label);
        evicted_world *w = evicted_open(&r, &s, true);
        RIG_RUN(&r, attend, &w->args);
        float *got = rig_memory(&r, w->n_out * sizeof *got);
        rig_read(&r, w->out, got, w->n_out);
        check_truth(w, got, label);
        if (is_round(&s)) check_alone(w, got, label);
        rounds += is_round(&s);
        rig_close(&r);
    }
    print_message("%d shapes, %d of them rounds\n", SHAPES, (int)rounds);
    assert_true(rounds > SHAPES / 4);
}

int main(void) {
    (void)cpu_main;
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes_hold_on_mlx)};
    return ended(cmocka_run_group_tests_name("mlx_evicted", tests, NULL, NULL));
}
