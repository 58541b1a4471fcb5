/* evicted_gpu_test.c - the shapes of tests/parity/evicted_test.c on the GPU: rows that are gone
 * from their pages, rebuilt from latents or not seen, and sinks that lie apart.
 *
 * Every shape is held to the plain formula in double arithmetic, with a tolerance for what the GPU
 * rounds to bf16, and to equal bits for a row that comes alone.  What no row may read is NaN or not
 * there.  Besides the drawn shapes there are those of 26B-A4B's layers, over twenty pages.
 *
 * Prints a line per group of shapes.  An argument runs only the groups that contain it. */
#define KK_RIG_PAGES 20
#define KK_EVICTED_SCALES 0.007 /* latents and decoders are rounded to bf16 */

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    char *base;
    size_t used, size;
} arena;

static void *arena_take(size_t n) {
    const size_t at = (arena.used + 255) / 256 * 256;
    if (at + n > arena.size) {
        fprintf(stderr, "the arena is too small\n");
        exit(2);
    }
    arena.used = at + n;
    return arena.base + at;
}
static void arena_give(void *p) {
    const char *c = p;
    if (c < arena.base || c >= arena.base + arena.size) free(p);
}

/* Memory of the rig is pinned, which the GPU reaches at the same address. */
#define malloc arena_take
#define free arena_give
#define main cpu_main
#include "../parity/evicted_test.c"
#undef main
#undef free
#undef malloc

static rig_device gpu = {.backend = "cuda"};

/* Relative size of the whole error: bf16 has 8 bits, and heads of odd sizes stay in float32 where
 * nothing is rebuilt. */
static double limit_of(const evicted_shape *s) {
    const int32_t d = s->head_dim;
    return s->hides && d != 64 && d != 128 && d != 256 && d != 512 ? 1e-4 : 2e-2;
}

/* K of stored rows is rebuilt with the angles of their positions. */
static void give_angles(evicted_world *w) {
    const int64_t n = EVICTED_KEYS + KK_PAGE_ROWS;
    kk_buf *table = rig_random_buf(w->r, (size_t)(n * 2 * w->s.n_rot), 1);
    const kk_rope_args rope = {.table = table, .n = n, .rope = w->evicted.rope};
    RIG_RUN(w->r, rope, &rope);
    w->args.rope_pos = table;
}

static double error_of(evicted_world *w, const float *got) {
    const evicted_shape *s = &w->s;
    const int32_t group = s->n_head / s->n_kv;
    double want[512], off = 0, all = 0;
    for (int32_t i = 0; i < s->sessions; i++)
        for (int32_t n = 0; n < s->n_rows[i] * s->n_head; n++) {
            const size_t at = (size_t)(w->rows->group[i].row * s->n_head + n) * (size_t)s->head_dim;
            evicted_attend(w, i, s->pos[i] + n / s->n_head, n % s->n_head / group, w->q + at, want);
            for (int32_t k = 0; k < s->head_dim; k++) {
                const double d = (double)got[at + (size_t)k] - want[k];
                off += d * d;
                all += want[k] * want[k];
            }
        }
    return sqrt(off / all);
}

/* The error of a shape, whose rows have the same bits alone. */
static double run_on_gpu(const evicted_shape *s, uint64_t seed) {
    static rig r;
    rig_records none = {0};
    char label[112];
    arena.used = 0;
    assert_true(rig_open(&r, &gpu, MOST_ROWS, &none, seed));
    evicted_label(s, label, sizeof label);
    evicted_world *w = evicted_open(&r, s, true);
    if (s->k_eq_v) give_angles(w);
    RIG_RUN(&r, attend, &w->args);
    float *got = rig_memory(&r, w->n_out * sizeof *got);
    rig_read(&r, w->out, got, w->n_out);
    const double error = error_of(w, got);
    if (!(error <= limit_of(s))) fail_msg("%s: off by %.3g", label, error);
    check_alone(w, got, label);
    rig_close(&r);
    return error;
}

/* Whether some row sees rows that are gone. */
static bool rebuilds(const evicted_shape *s) {
    for (int32_t i = 0; i < s->sessions; i++)
        for (int64_t p = s->pos[i]; p < s->pos[i] + s->n_rows[i]; p++)
            for (int64_t j = 0; j <= p; j++)
                if (evicted_reads(s, p, j) == EVICTED_REBUILT) return true;
    return false;
}

static void drawn(bool hides, uint64_t seed) {
    uint64_t random = seed;
    size_t shapes = 0, rebuilding = 0;
    double most = 0;
    for (size_t i = 0; i < COUNT(sinks) * COUNT(windows) * COUNT(chunks); i++) {
        const int32_t sink = sinks[i % COUNT(sinks)],
                      chunk = chunks[i / COUNT(sinks) % COUNT(chunks)];
        const int32_t window = windows[i / COUNT(sinks) / COUNT(chunks)];
        evicted_shape s = draw_shape(&random, sink, window, chunk);
        s.hides = hides;
        if (s.decoders == KK_Q8_0) s.decoders = KK_BF16; /* the CPU rounds latents beside these */
        for (int32_t k = 0; k < s.sessions; k++) draw_rows(&s, k, &random);
        const uint64_t own = bits_at(&random);
        if (sink + window == 0 || s.format == KK_KV_S8 || s.latents == KK_KV_S8) continue;
        const double e = run_on_gpu(&s, own);
        most = e > most ? e : most;
        rebuilding += !hides && rebuilds(&s);
        shapes++;
    }
    printf("%zu drawn shapes, %zu of them rebuild rows: off by %.2e at most\n", shapes, rebuilding,
           most);
    assert_true(shapes > 40 && (hides || rebuilding > shapes / 3));
}

static void gone_rows_are_rebuilt_here(void **state) {
    (void)state;
    drawn(false, 21);
}
static void hidden_rows_are_not_seen_here(void **state) {
    (void)state;
    drawn(true, 22);
}

static const struct {
    kk_kv_format format, latents;
    kk_dtype decoders;
    bool k_eq_v;
    int32_t n_kv, n_head, head_dim, n_rot, rank, sight, sink, window, chunk;
    int32_t sessions, n_rows[3];
    int64_t pos[3];
} layers[] = {
    /* sliding layers of 26B-A4B, with two K/V heads of eight */
    {KK_KV_BF16, KK_KV_BF16, KK_BF16, 0, 2, 4, 256, 128, 512, 1024, 4, 64, 64, 1, {1}, {1150}},
    {KK_KV_BF16, KK_KV_Q8, KK_BF16, 0, 2, 4, 256, 128, 512, 1024, 4, 64, 64, 1, {40}, {1026}},
    {KK_KV_Q8, KK_KV_BF16, KK_BF16, 0, 2, 4, 256, 128, 256, 1024, 0, 128, 1, 1, {70}, {1100}},
    /* full ones */
    {KK_KV_BF16, KK_KV_BF16, KK_BF16, 1, 1, 8, 512, 64, 512, 0, 4, 64, 64, 1, {1}, {1200}},
    {KK_KV_BF16, KK_KV_Q8, KK_BF16, 1, 2, 16, 512, 64, 512, 0, 4, 64, 64, 1, {33}, {1200}},
    {KK_KV_BF16,
     KK_KV_BF16,
     KK_BF16,
     1,
     1,
     8,
     512,
     64,
     512,
     0,
     64,
     64,
     64,
     3,
     {1, 4, 70},
     {1200, 333, 70}},
    {KK_KV_Q4, KK_KV_Q4, KK_F32, 1, 1, 8, 512, 64, 512, 0, 4, 64, 32, 2, {16, 5}, {515, 1000}},
    /* heads that are rotated whole, and latents wider than a block of 32 queries takes */
    {KK_KV_F32, KK_KV_F32, KK_F32, 0, 1, 2, 512, 256, 768, 0, 4, 64, 64, 1, {9}, {700}},
    {KK_KV_BF16,
     KK_KV_BF16,
     KK_BF16,
     1,
     1,
     16,
     128,
     16,
     1024,
     0,
     0,
     100,
     7,
     2,
     {17, 1},
     {600, 1111}},
    {KK_KV_BF16, KK_KV_Q4, KK_F16, 0, 1, 16, 64, 32, 64, 0, 30, 20, 9, 3, {3, 1, 12}, {900, 5, 64}},
};

static void layers_hold(void **state) {
    (void)state;
    double most = 0;
    for (size_t i = 0; i < COUNT(layers); i++) {
        evicted_shape s = {.format = layers[i].format,
                           .latents = layers[i].latents,
                           .decoders = layers[i].decoders,
                           .k_eq_v = layers[i].k_eq_v,
                           .scale = 1.5f / sqrtf((float)layers[i].head_dim),
                           .n_kv = layers[i].n_kv,
                           .n_head = layers[i].n_head,
                           .head_dim = layers[i].head_dim,
                           .n_rot = layers[i].n_rot,
                           .rank = layers[i].rank,
                           .sink = layers[i].sink,
                           .window = layers[i].window,
                           .chunk = layers[i].chunk,
                           .sight = layers[i].sight,
                           .sessions = layers[i].sessions};
        memcpy(s.n_rows, layers[i].n_rows, sizeof layers[i].n_rows);
        memcpy(s.pos, layers[i].pos, sizeof layers[i].pos);
        assert_true(rebuilds(&s));
        const double e = run_on_gpu(&s, 60 + i);
        printf("  layer %zu: off by %.2e\n", i, e);
        fflush(stdout);
        most = e > most ? e : most;
    }
    printf("%zu layers: off by %.2e at most\n", COUNT(layers), most);
}

/* Without evicted rows a sink that lies apart changes no bit. */
static void sinks_lie_apart_here(void **state) {
    (void)state;
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8, KK_KV_Q4};
    static const int32_t positions[] = {1, 5, 31, 64, 100, 236, 237, 250, 300};
    static rig r;
    rig_records none = {0};
    for (size_t i = 0; i < COUNT(positions) * COUNT(sinks); i++) {
        if (!sinks[i % COUNT(sinks)]) continue;
        arena.used = 0;
        assert_true(rig_open(&r, &gpu, MOST_ROWS, &none, i));
        apart_one(&r, formats[i / 2 % COUNT(formats)], sinks[i % COUNT(sinks)],
                  positions[i / COUNT(sinks)], i % 3 == 0);
        rig_close(&r);
    }
}

/* What does not fit is refused with a sentence, before anything runs. */
static void the_rest_is_refused(void **state) {
    (void)state;
    static rig r;
    rig_records none = {0};
    kk_err err = {0};
    const kk_kv_slot slot = {KK_KV_BF16, false, 1, 64, 0, 0};
    const kk_prepare_args wide = {.evicted = {.slot = &slot, .n_head = 2, .rank = 4128}};
    arena.used = 0;
    assert_true(rig_open(&r, &gpu, MOST_ROWS, &none, 1));
    assert_int_equal(r.be->prepare(r.dev, &wide, &err), KK_EDEVICE);
    assert_non_null(strstr(err.msg, "latents of 4128 values"));
    rig_close(&r);
}

int main(int argc, char **argv) {
    void *base;
    gpu.isa = getenv("KK_TEST_ISA"); /* a chip whose limits the GPU keeps */
    arena.size = (size_t)2 << 30;
    if (cudaMallocHost(&base, arena.size) != cudaSuccess) {
        printf("no GPU here\n");
        return 77;
    }
    arena.base = base;
    const struct CMUnitTest all[] = {
        cmocka_unit_test(hidden_rows_are_not_seen_here), cmocka_unit_test(sinks_lie_apart_here),
        cmocka_unit_test(gone_rows_are_rebuilt_here), cmocka_unit_test(layers_hold),
        cmocka_unit_test(the_rest_is_refused)};
    struct CMUnitTest tests[COUNT(all)];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(all); i++)
        if (argc < 2 || strstr(all[i].name, argv[1])) tests[n++] = all[i];
    (void)cpu_main;
    return _cmocka_run_group_tests("evicted on the GPU", tests, n, NULL, NULL);
}
