/* evicted_test.c - attention over rows that are gone from their pages: rebuilt from latents, or not
 * seen, with the first rows kept apart.
 *
 * Every shape is held to four things: the plain formula in double arithmetic, the same bits on
 * every device and number of threads, the same bits for a row that comes alone, and the same bits
 * where keys stay rebuilt from one forward to the next.
 *
 * ctest: threads */
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "backend/cpu/device.h"
#include "support/draws.h"
#include "support/op_evicted.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const rig_device reference = {.backend = "cpu", .isa = "reference", .threads = 1};

static const rig_device devices[] = {
    {.backend = "cpu", .isa = "reference", .threads = 2},
    {.backend = "cpu", .isa = "avx2", .threads = 1},
    {.backend = "cpu", .isa = "avx2", .threads = 2},
    {.backend = "cpu", .isa = "avx2", .threads = 4},
    {.backend = "cpu", .isa = "avx512", .threads = 1},
    {.backend = "cpu", .isa = "avx512", .threads = 2},
    {.backend = "cpu", .isa = "avx512", .threads = 4},
    {.backend = "cpu", .isa = "neon", .threads = 1},
    {.backend = "cpu", .isa = "neon", .threads = 4},
};

enum { MOST_ROWS = 3 * 90 };

/* ---- a shape ------------------------------------------------------------------------------ */

/* What sums in floats may be off by, and their mean. */
static const double float_most = 3e-5, float_mean = 3e-6;

/* Rows that true ones are mixed into are rounded to the cache's format, and a value on the border
 * between two codes may become either.  That happens to few: of the values of a shape, no more than
 * this share is off by more than sums are, and none by more than two steps of its format (one of V,
 * one that K's weight may bring) times the weight of the row. */
static const double on_borders = 0.05;

/* The distance of two codes of the format, for normed rows whose values lie within +-range. */
static double step_of(kk_kv_format format, double range) {
    switch (format) {
    case KK_KV_BF16: return range * 0x1p-7; /* 8 bits, the leading one included */
    case KK_KV_Q8: return 2 * range / 255;
    case KK_KV_Q4: return 2 * range / 15;
    case KK_KV_S8: return range / 127;
    default: return 0;
    }
}

/* The largest value of a rebuilt row. */
static double range_of(const evicted_world *w, int32_t session, int64_t pos) {
    double most = 0;
    for (int64_t j = 0; j <= pos; j++)
        for (int32_t h = 0; h < w->s.n_kv; h++)
            for (int32_t i = 0; i < w->s.head_dim; i++)
                most = fmax(most, fabs(evicted_at(w, w->rebuilt[session].v, j, h)[i]));
    return most;
}

/* One (row, head) of a session: how many values are off by more than sums are, and by how much all
 * of them are. */
static size_t check_head(evicted_world *w, const float *got, int32_t i, int32_t n, double range,
                         const char *label, double *sum) {
    const evicted_shape *s = &w->s;
    const int32_t head = n % s->n_head, row = w->rows->group[i].row;
    const size_t at = (size_t)(row * s->n_head + n) * (size_t)s->head_dim;
    const int64_t pos = s->pos[i] + n / s->n_head;
    double want[512];
    size_t apart = 0;
    const double weight = evicted_attend(w, i, pos, head / (s->n_head / s->n_kv), w->q + at, want);
    const double most = float_most + (s->mixes ? 2 * weight * step_of(s->format, range) : 0);
    for (int32_t k = 0; k < s->head_dim; k++) {
        const double off = fabs((double)got[at + (size_t)k] - want[k]);
        if (!(off <= most))
            fail_msg("%s: session %d at %d, head %d, value %d is %.9g, want %.9g +- %.3g", label, i,
                     (int)pos, head, k, (double)got[at + (size_t)k], want[k], most);
        *sum += off;
        apart += off > float_most;
    }
    return apart;
}

static void check_truth(evicted_world *w, const float *got, const char *label) {
    const evicted_shape *s = &w->s;
    size_t apart = 0;
    double sum = 0;
    for (int32_t i = 0; i < s->sessions; i++) {
        const double range = s->mixes ? range_of(w, i, s->pos[i] + s->n_rows[i] - 1) : 0;
        for (int32_t n = 0; n < s->n_rows[i] * s->n_head; n++)
            apart += check_head(w, got, i, n, range, label, &sum);
    }
    if ((double)apart > on_borders * (double)w->n_out)
        fail_msg("%s: %zu of %zu values are off", label, apart, w->n_out);
    if (apart == 0 && sum / (double)w->n_out > float_mean)
        fail_msg("%s: values are off by %.3g", label, sum / (double)w->n_out);
}

/* Some rows again, each in a forward of its own. */
static void check_alone(evicted_world *w, const float *together, const char *label) {
    const size_t row = (size_t)(w->s.n_head * w->s.head_dim);
    float *got = rig_memory(w->r, row * sizeof *got);
    for (int32_t i = 0; i < w->s.sessions; i++) {
        for (int32_t n = 0; n < w->s.n_rows[i]; n += 1 + n / 3) {
            kk_group g = w->rows->group[i];
            const size_t at = (size_t)(g.row + n) * row;
            g.row = 0;
            g.n_rows = 1;
            g.pos += n;
            if (g.sink && g.pages[0]) g.sink = evicted_sink(w, i, g.pos);
            const kk_rows rows = {&g, 1, 1};
            kk_attend_args a = w->args;
            a.out = rig_random_buf(w->r, row, 1);
            a.q = rig_buf(w->r, w->q + at, row);
            a.rows = &rows;
            RIG_RUN(w->r, attend, &a);
            rig_read(w->r, a.out, got, row);
            if (memcmp(got, together + at, row * sizeof *got) != 0)
                fail_msg("%s: session %d, row %d differs alone", label, i, n);
        }
    }
}

/* Pages whose keys were rebuilt into the device's key cache, and that were found there. */
static int64_t keys_made, keys_found;

/* The same rows in two later forwards, the first of which keeps keys and the second finds them,
 * and alone in further ones.  Numbers of pages: what tells a page from what it was before. */
static void check_kept(evicted_world *w, const float *want, const char *label) {
    enum { FORWARDS = 2, PAGES = EVICTED_KEYS / KK_PAGE_ROWS + 1 };
    int64_t ids[PAGES];
    float *got = rig_memory(w->r, w->n_out * sizeof *got);
    for (int64_t i = 0; i < PAGES; i++) ids[i] = 100 + i;
    for (int32_t i = 0; i < w->s.sessions; i++) w->rows->group[i].latent_ids = ids;
    for (w->evicted.forward = 1; w->evicted.forward <= FORWARDS; w->evicted.forward++) {
        RIG_RUN(w->r, attend, &w->args);
        rig_read(w->r, w->out, got, w->n_out);
        if (memcmp(got, want, w->n_out * sizeof *got) != 0)
            fail_msg("%s: differs in forward %d, which keeps keys", label, (int)w->evicted.forward);
    }
    check_alone(w, want, label);
    keys_made += w->r->dev->keys.made;
    keys_found += w->r->dev->keys.found;
}

static void run_shape(rig *r, const evicted_shape *s, bool first) {
    char label[112];
    evicted_label(s, label, sizeof label);
    evicted_world *w = evicted_open(r, s, first);
    RIG_RUN(r, attend, &w->args);
    float *got = rig_memory(r, w->n_out * sizeof *got);
    rig_read(r, w->out, got, w->n_out);
    rig_record_values(r, RIG_FLOATS, got, w->n_out, "%s", label);
    if (first) check_truth(w, got, label);
    if (first) check_alone(w, got, label);
    if (r->be == &kk_cpu_backend && !s->hides && !s->mixes) check_kept(w, got, label);
}

/* Passes over latents that were read as floats, and where they lie, on all devices but the
 * reference. */
static int64_t passes[2];

/* Kernels that the compiler says this processor runs: the device must open with these. */
static bool must_run(const rig_device *d) {
    if (strcmp(d->isa, "reference") == 0) return true;
#if defined(__x86_64__)
    if (strcmp(d->isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(d->isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__) && defined(__linux__)
    if (strcmp(d->isa, "neon") == 0) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return false;
}

/* The shape on the reference, and on every other device against it. */
static void compare_shape(const evicted_shape *s, uint64_t seed) {
    static rig r;
    rig_records want = {0};
    assert_true(rig_open(&r, &reference, MOST_ROWS, &want, seed));
    run_shape(&r, s, true);
    rig_close(&r);
    for (size_t i = 0; i < COUNT(devices); i++) {
        rig_records got = {0};
        char name[64];
        snprintf(name, sizeof name, "%s, %d threads", devices[i].isa, devices[i].threads);
        if (!rig_open(&r, &devices[i], MOST_ROWS, &got, seed)) {
            if (must_run(&devices[i])) fail_msg("%s: the device does not open", name);
            continue;
        }
        run_shape(&r, s, false);
        if (r.be == &kk_cpu_backend)
            for (int k = 0; k < 2; k++) passes[k] += r.dev->latents[k];
        rig_close(&r);
        rig_compare(name, &want, &got, devices[i].rule);
        rig_records_free(&got);
    }
    rig_records_free(&want);
}

/* ---- drawn shapes ------------------------------------------------------------------------- */

/* splitmix64 */
static uint64_t bits_at(uint64_t *random) {
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static size_t below(uint64_t *random, size_t n) { return (size_t)(bits_at(random) % n); }
#define PICK(random, list) (list)[below(random, COUNT(list))]

/* Rows of a session that may come in one forward: none of them may need the latent of another. */
static void draw_rows(evicted_shape *s, int32_t session, uint64_t *random) {
    static const int32_t counts[] = {1, 1, 2, 3, 7, 8, 9, 17, 33, 40, 90};
    static const int64_t places[] = {0,   1,   3,   5,   31,  32,  60,  63,  64,  65,  100,
                                     127, 128, 129, 160, 191, 192, 250, 256, 300, 319, 343};
    int64_t pos = PICK(random, places);
    int32_t n = PICK(random, counts);
    if (pos + n > EVICTED_KEYS) n = (int32_t)(EVICTED_KEYS - pos);
    while (!s->hides && evicted_stored(s, pos + n - 1) > pos) n--;
    s->pos[session] = pos;
    s->n_rows[session] = n;
}

static evicted_shape draw_shape(uint64_t *random, int32_t sink, int32_t window, int32_t chunk) {
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8, KK_KV_Q4, KK_KV_S8};
    static const kk_dtype decoders[] = {KK_F32, KK_BF16, KK_Q8_0};
    static const int32_t ranks[] = {32, 64, 96, 128}, dims[] = {64, 64, 128};
    static const int32_t heads[][2] = {{1, 1}, {2, 2}, {2, 1}, {4, 2}, {6, 2}, {3, 3}, {4, 4}};
    static const int32_t odd_ranks[] = {1, 20, 33, 100};
    static const int32_t sights[] = {0, 0, 0, 1, 20, 64, 90, 130, 200};
    evicted_shape s = {.format = PICK(random, formats),
                       .latents = PICK(random, formats),
                       .decoders = PICK(random, decoders),
                       .k_eq_v = below(random, 2) == 1,
                       .scale = below(random, 2) ? 0.25f : 0.05f,
                       .sink = sink,
                       .window = window,
                       .chunk = chunk,
                       .sessions = 1 + (int32_t)below(random, 3)};
    const int32_t *h = PICK(random, heads);
    s.n_head = h[0];
    s.n_kv = h[1];
    s.head_dim = kk_kv_format_get(s.format)->group > 1 ? PICK(random, dims)
                                                       : 40 + 24 * (int32_t)below(random, 2);
    s.n_rot = below(random, 2) ? s.head_dim / 2 : s.head_dim / 8;
    s.rank = kk_kv_format_get(s.latents)->group > 1 ? 64 * (1 + (int32_t)below(random, 2))
                                                    : PICK(random, ranks);
    if (kk_kv_format_get(s.latents)->group == 1 && s.decoders != KK_Q8_0 && below(random, 3) == 0)
        s.rank = PICK(random, odd_ranks);
    s.sight = PICK(random, sights);
    return s;
}

static const int32_t sinks[] = {0, 1, 4, 64}, windows[] = {0, 1, 5, 31, 32, 64, 100},
                     chunks[] = {1, 7, 32, 64};

/* Every sink with every window and every chunk, or of few draws one in three of these; the rest by
 * lot. */
static void each_bounds(bool hides, int mixing, uint64_t seed) {
    uint64_t random = seed;
    for (size_t i = 0; i < COUNT(sinks) * COUNT(windows) * COUNT(chunks); i++) {
        const int32_t sink = sinks[i % COUNT(sinks)],
                      chunk = chunks[i / COUNT(sinks) % COUNT(chunks)];
        const int32_t window = windows[i / COUNT(sinks) / COUNT(chunks)];
        if (sink + window == 0) continue;
        if (i % (mixing ? 3 : (size_t)one_in(3, 3))) continue;
        evicted_shape s = draw_shape(&random, sink, window, chunk);
        static const float mixes[] = {0, 1, 0.25f, 0.7f};
        s.hides = hides;
        s.mixes = mixing;
        s.mix = mixing ? PICK(&random, mixes) : 0;
        for (int32_t k = 0; k < s.sessions; k++) draw_rows(&s, k, &random);
        compare_shape(&s, bits_at(&random));
    }
}

static void gone_rows_are_rebuilt(void **state) {
    (void)state;
    keys_made = keys_found = 0;
    each_bounds(false, 0, 1);
    assert_true(keys_made > (few_draws() ? 30 : 100) && keys_found > keys_made);
}

static void hidden_rows_are_not_seen(void **state) {
    (void)state;
    each_bounds(true, 0, 2);
}

static void true_rows_are_mixed_in(void **state) {
    (void)state;
    each_bounds(false, 1, 3);
}

/* Heads so wide that a page or a few fill the scratch in which rows are put together, more rows
 * than a tile holds, many heads on one, and latents wider than any head. */
static void pages_come_in_batches(void **state) {
    (void)state;
    static const struct {
        kk_kv_format format, latents;
        kk_dtype decoders;
        bool k_eq_v;
        int32_t n_kv, n_head, head_dim, rank, n_rows;
    } wide[] = {
        {KK_KV_F32, KK_KV_F32, KK_F32, false, 8, 8, 512, 32, 2},
        {KK_KV_F32, KK_KV_BF16, KK_Q8_0, true, 4, 8, 512, 64, 3},
        {KK_KV_F32, KK_KV_Q8, KK_BF16, false, 3, 3, 512, 64, 9},
        {KK_KV_BF16, KK_KV_Q4, KK_Q8_0, true, 2, 4, 512, 64, 40},
        {KK_KV_Q4, KK_KV_F32, KK_Q8_0, false, 1, 16, 64, 768, 33},
        {KK_KV_F32, KK_KV_F32, KK_F32, false, 1, 2, 64, 4128, 2},
        {KK_KV_BF16, KK_KV_Q8, KK_F32, true, 1, 1, 64, 4160, 1},
        /* Latents are read where they lie. */
        {KK_KV_BF16, KK_KV_BF16, KK_Q8_0, true, 4, 4, 128, 128, 1},
        {KK_KV_BF16, KK_KV_BF16, KK_Q8_0, false, 4, 4, 64, 192, 1},
        {KK_KV_BF16, KK_KV_BF16, KK_Q8_0, true, 4, 8, 256, 64, 2},
    };
    memset(passes, 0, sizeof passes);
    for (size_t i = 0; i < COUNT(wide); i++) {
        evicted_shape s = {.format = wide[i].format,
                           .latents = wide[i].latents,
                           .decoders = wide[i].decoders,
                           .k_eq_v = wide[i].k_eq_v,
                           .scale = 0.1f,
                           .n_kv = wide[i].n_kv,
                           .n_head = wide[i].n_head,
                           .head_dim = wide[i].head_dim,
                           .n_rot = wide[i].head_dim / (i > 6 && wide[i].k_eq_v ? 8 : 2),
                           .rank = wide[i].rank,
                           .sink = i % 2 ? 4 : 0,
                           .window = 70,
                           .chunk = 32,
                           .sight = i == 3 ? 230 : 0,
                           .sessions = 1,
                           .n_rows = {wide[i].n_rows},
                           .pos = {330}};
        compare_shape(&s, 40 + i);
    }
    assert_true(passes[0] > 0 && passes[1] > 0);
}

/* Without evicted rows, a sink that lies apart changes nothing, also when its page has gone. */
static void apart_one(rig *r, kk_kv_format format, int32_t sink, int32_t window, bool block) {
    enum { D = 64, KV = 2, HEADS = 4 };
    static const int32_t n_rows[] = {9, 1, 3};
    static const int64_t pos[] = {300, 64, 30};
    evicted_world w = {.r = r, .s = {.n_kv = KV, .head_dim = D, .sink = sink}};
    rig_cache *c = w.rows = rig_cache_new(r, format, false, KV, D, 3, n_rows, pos);
    rig_cache_hide(c, window, sink);
    const size_t all = (size_t)(c->rows.n_rows * HEADS * D);
    kk_attend_args a = {.out = rig_random_buf(r, all, 1),
                        .q = rig_random_buf(r, all, 1),
                        .n_head = HEADS,
                        .window = window,
                        .sink = sink,
                        .block = block,
                        .slot = c->slot,
                        .rows = &c->rows,
                        .scale = 0.3f};
    RIG_PREPARE(r, .evicted = {.slot = &c->slot, .n_head = HEADS});
    float *want = rig_memory(r, 2 * all * sizeof *want), *got = want + all;
    RIG_RUN(r, attend, &a);
    rig_read(r, a.out, want, all);
    for (int32_t i = 0; i < 3; i++) {
        const int64_t from = pos[i] - window + 1;
        c->group[i].sink = evicted_sink(&w, i, pos[i]);
        if (from >= KK_PAGE_ROWS) c->page[i][0] = NULL;
    }
    a.out = rig_random_buf(r, all, 1);
    RIG_RUN(r, attend, &a);
    rig_read(r, a.out, got, all);
    if (memcmp(want, got, all * sizeof *got) != 0)
        fail_msg("%s, sink %d, window %d%s: a sink apart is read otherwise",
                 kk_kv_format_name(format), sink, window, block ? ", block" : "");
}

static void sinks_lie_apart(void **state) {
    (void)state;
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8, KK_KV_Q4, KK_KV_S8};
    static const int32_t positions[] = {1, 5, 31, 64, 100, 236, 237, 250, 300};
    static rig r;
    rig_records none = {0};
    for (size_t d = 0; d < COUNT(devices); d++) {
        if (!rig_open(&r, &devices[d], MOST_ROWS, &none, d)) continue;
        for (size_t i = 0; i < COUNT(positions) * COUNT(sinks); i++)
            if (sinks[i % COUNT(sinks)])
                apart_one(&r, formats[(i / 2 + d) % COUNT(formats)], sinks[i % COUNT(sinks)],
                          positions[i / COUNT(sinks)], i % 3 == 0);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gone_rows_are_rebuilt),  cmocka_unit_test(hidden_rows_are_not_seen),
        cmocka_unit_test(true_rows_are_mixed_in), cmocka_unit_test(pages_come_in_batches),
        cmocka_unit_test(sinks_lie_apart),
    };
    return cmocka_run_group_tests_name("evicted", tests, NULL, NULL);
}
