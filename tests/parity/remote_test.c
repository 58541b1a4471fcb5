/* remote_test.c - K/V pages that lie on a device: taken as a session grows, given back, copied on
 * write, written down and read again, and refused when the device has no memory left.
 *
 * The device is the CPU under another name whose pages come from calls of its own, so that all of
 * it runs without a GPU.  Everything is held against an engine whose pages lie in ordinary
 * memory. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "backend/cpu/device.h"
#include "engine/saved.h"
#include "kv/pool.h"
#include "support/draws.h"
#include "support/restored.h"
#include "support/saved_session.h"

/* What the device has, and has had to do. */
enum { SLABS = 64, DEVICE_SLAB = 64 << 20 };
static struct {
    int64_t left;  /* takings that succeed; -1: all */
    int64_t limit; /* of bytes; 0: none */
    int64_t slabs, bytes, copies, moves;
    struct {
        uint8_t *base;
        size_t bytes;
    } slab[SLABS];
    int32_t inside; /* calls of the device under way */
} far;

/* Pages are there while the device works, and nowhere else: whoever else looks at them, or writes,
 * ends the test. */
static void protect(int how) {
    for (int i = 0; i < SLABS; i++)
        if (far.slab[i].base)
            assert_int_equal(mprotect(far.slab[i].base, far.slab[i].bytes, how), 0);
}
static void enter(void) {
    if (far.inside++ == 0) protect(PROT_READ | PROT_WRITE);
}
static void leave(void) {
    if (--far.inside == 0) protect(PROT_NONE);
}

static kk_status far_take(kk_dev *dev, size_t bytes, uint8_t **out, kk_err *err) {
    (void)dev;
    *out = NULL;
    if (far.left == 0 || (far.limit && far.bytes + (int64_t)bytes > far.limit))
        return kk_fail(err, KK_ENOMEM, "the device cannot hold %zu bytes more", bytes);
    if (far.left > 0) far.left--;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(base != MAP_FAILED);
    if (bytes < DEVICE_SLAB) memset(base, 0xa5, bytes); /* large ones are not touched here */
    assert_int_equal(mprotect(base, bytes, PROT_NONE), 0);
    int i = 0;
    while (i < SLABS && far.slab[i].base) i++;
    assert_true(i < SLABS);
    far.slab[i].base = *out = base;
    far.slab[i].bytes = bytes;
    far.slabs++;
    far.bytes += (int64_t)bytes;
    return KK_OK;
}

static void far_give(kk_dev *dev, uint8_t *base, size_t bytes) {
    (void)dev;
    int i = 0;
    while (i < SLABS && far.slab[i].base != base) i++;
    assert_true(i < SLABS && far.slab[i].bytes == bytes);
    far.slab[i].base = NULL;
    munmap(base, bytes);
    far.slabs--;
    far.bytes -= (int64_t)bytes;
}

static void far_copy(kk_dev *dev, uint8_t *to, const uint8_t *from, size_t n) {
    (void)dev;
    enter();
    memcpy(to, from, n);
    leave();
    far.copies++;
}

static kk_status far_move(kk_dev *dev, void *to, const void *from, size_t n, kk_err *err) {
    (void)dev;
    (void)err;
    enter();
    memcpy(to, from, n);
    leave();
    far.moves++;
    return KK_OK;
}

#define FAR_OP(name, args, call)                                                                   \
    static kk_status name(kk_dev *dev, const args *a, kk_err *err) {                               \
        enter();                                                                                   \
        const kk_status st = call(dev, a, err);                                                    \
        leave();                                                                                   \
        return st;                                                                                 \
    }
FAR_OP(far_store, kk_store_args, kk_cpu_store)
FAR_OP(far_attend, kk_attend_args, kk_cpu_attend)
FAR_OP(far_keep, kk_keep_args, kk_cpu_keep)
FAR_OP(far_keep_scales, kk_scales_args, kk_cpu_keep_scales)

static const kk_page_ops far_pages = {far_take, far_give, far_copy, far_move};
static const kk_latent_ops far_latents = {far_keep, far_keep_scales};
static kk_backend far_backend;

/* An engine whose pages are far. */
static kk_engine *far_engine_of(kk_engine_opts opts) {
    kk_engine *e = NULL;
    far_backend = kk_cpu_backend;
    far_backend.name = "far";
    far_backend.pages = &far_pages;
    far_backend.latents = &far_latents;
    far_backend.store = far_store;
    far_backend.attend = far_attend;
    memset(&far, 0, sizeof far);
    far.left = -1;
    kk_backend_add(&far_backend);
    opts.device = "far";
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_engine *far_engine(const char *spec, int32_t ahead) {
    const kk_engine_opts opts = {.synthetic = spec, .threads = 1, .no_pin = true, .ahead = ahead};
    return far_engine_of(opts);
}

static uint64_t say(kk_session *s, int32_t n) {
    const kk_generate_opts how = {.max_tokens = n, .ignore_eos = true};
    kk_result r;
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    return r.logits_hash;
}

static const char spec[] = "tiny:f32:2";

static void pages_come_as_a_session_grows(void **state) {
    (void)state;
    kk_engine *e = far_engine(spec, 1);
    kk_session *s = tiny_session(e, 0, KK_KV_BF16);
    assert_int_equal(far.slabs, 0); /* a long context is promised, not taken */
    tiny_append(s, prompt, 10);
    const int64_t first = far.slabs;
    assert_true(first >= 1 && first <= 2); /* one of each kind */
    tiny_append(s, prompt, LONGEST);
    say(s, 40);
    assert_int_equal(far.slabs, first); /* small pages: the slabs hold many */
    kk_session_free(s);
    assert_int_equal(far.slabs, 0); /* nobody holds a promise */
    s = tiny_session(e, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 10);
    say(s, 4);
    kk_session_free(s);
    kk_engine_close(e);
    assert_int_equal(far.bytes, 0);
}

/* Pages of which four make a slab: many are taken and dropped in any order; what is kept follows
 * what is used, and no page is in two places. */
static void slabs_go_back(void **state) {
    (void)state;
    enum { PAGES = 40, BYTES = DEVICE_SLAB / 4 };
    kk_engine *e = far_engine(spec, 1); /* for the device */
    kk_pool *pool = NULL;
    kk_page *held[PAGES] = {0};
    uint64_t random = 9;
    int32_t n = 0;
    assert_ok(kk_pool_new(&pool, &e->mem, KK_MEM_KV_FULL, BYTES, why));
    kk_pool_place(pool, &far_backend, e->dev);
    assert_ok(kk_pool_promise(pool, PAGES, why));
    for (int32_t step = 0; step < 2000; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        kk_page **at = &held[(random >> 33) % PAGES];
        const int32_t wanted = step % 400 < 200 ? PAGES - 4 : 3;
        if (!*at && n < wanted) {
            assert_ok(kk_pool_book(pool, 1, why));
            *at = kk_pool_take(pool);
            for (int32_t i = 0; i < PAGES; i++)
                assert_true(&held[i] == at || !held[i] || held[i]->data != (*at)->data);
            n++;
        } else if (*at && n > wanted) {
            kk_pool_drop(pool, *at);
            *at = NULL;
            n--;
        }
        assert_true(far.bytes >= (int64_t)n * BYTES);
        assert_true(far.slabs <= n + 3); /* at worst each page alone in its slab */
    }
    assert_true(n <= 3 && far.slabs <= n + 2);
    for (int32_t i = 0; i < PAGES; i++)
        if (held[i]) kk_pool_drop(pool, held[i]);
    kk_pool_unpromise(pool, PAGES);
    assert_int_equal(far.slabs, 0);
    kk_pool_free(pool);
    kk_engine_close(e);
}

/* Forks, rewinds, checkpoints and the turn after, in every format. */
static void sharing_is_the_same(void **state) {
    (void)state;
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        uint64_t hash[2][4];
        for (int i = 0; i < 2; i++) {
            kk_engine *e = i ? far_engine(spec, 1) : tiny_engine(spec, 1, 0);
            kk_session *s = tiny_session(e, CTX, (kk_kv_format)f), *fork;
            tiny_append(s, prompt, 100);
            assert_ok(kk_session_checkpoint(s, why));
            assert_ok(kk_session_fork(&fork, s, why));
            hash[i][0] = say(s, 20);
            hash[i][1] = say(fork, 30);
            assert_ok(kk_session_rewind(s, 100, NULL, why));
            tiny_append(s, prompt + 100, 50);
            hash[i][2] = say(s, 20);
            hash[i][3] = say(fork, 5);
            if (i) assert_true(far.copies > 0);
            kk_session_free(s);
            kk_session_free(fork);
            kk_engine_close(e);
        }
        assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    }
}

/* Sinks and latents lie where pages do: sessions that keep few rows, or rebuild them, by forks and
 * through files. */
static void few_rows_are_the_same(void **state) {
    scratch *w = *state;
    char file[600];
    snprintf(file, sizeof file, "%s/few", w->dir);
    for (int i = 0; i < 16; i += one_in(5, 5)) {
        uint64_t hash[2][4];
        for (int far_away = 0; far_away < 2; far_away++) {
            const kk_engine_opts opts = {.synthetic = "tiny:f32:2",
                                         .projection = "synthetic:64",
                                         .threads = 1,
                                         .no_pin = true};
            kk_engine *e = NULL;
            bool exact;
            if (far_away)
                e = far_engine_of(opts);
            else
                assert_ok(kk_engine_open(&e, &opts, why));
            kk_session *s = session_of(e, keeping_at(3 * i)), *fork, *loaded;
            uint64_t *to = hash[far_away];
            tiny_append(s, prompt, 3); /* a sink that is not full yet */
            assert_ok(kk_session_fork(&fork, s, why));
            tiny_append(s, prompt + 3, 100);
            to[0] = say(s, 20);
            assert_ok(kk_session_save(s, file, why));
            assert_ok(kk_session_load(&loaded, e, file, NULL, &exact, why));
            to[1] = say(loaded, 10);
            to[2] = say(s, 10);
            tiny_append(fork, prompt + 50, 80);
            to[3] = say(fork, 10);
            assert_true(to[1] == to[2]);
            if (far_away) assert_true(far.slabs > 0 && far.copies > 0 && far.moves > 0);
            kk_session_free(s);
            kk_session_free(fork);
            kk_session_free(loaded);
            kk_engine_close(e);
        }
        assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    }
    assert_int_equal(far.bytes, 0);
}

/* Saved in either place and loaded in the other: it goes on, without the promise of equal bits,
 * which on these devices hold anyway. */
static void sessions_move_both_ways(void **state) {
    scratch *w = *state;
    char there[600], back[600];
    snprintf(there, sizeof there, "%s/there", w->dir);
    snprintf(back, sizeof back, "%s/back", w->dir);
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        bool exact = true;
        size_t n, m;
        kk_engine *near = tiny_engine(spec, 1, 0);
        kk_session *a = tiny_session(near, CTX, (kk_kv_format)f), *b, *c;
        tiny_append(a, prompt, 130);
        say(a, 9);
        assert_ok(kk_session_save(a, there, why));
        kk_engine *e = far_engine(spec, 1);
        assert_ok(kk_session_load(&b, e, there, NULL, &exact, why));
        assert_false(exact);
        assert_true(far.moves > 0);
        const uint64_t hash = say(a, 12);
        assert_true(say(b, 12) == hash);
        assert_ok(kk_session_save(b, back, why));
        assert_ok(kk_session_load(&c, e, back, NULL, &exact, why));
        assert_true(exact);
        kk_session_free(c);
        assert_ok(kk_session_load(&c, near, back, NULL, &exact, why));
        assert_false(exact);
        const uint64_t then = say(a, 5);
        assert_true(say(b, 5) == then && say(c, 5) == then);
        /* The same file but for the names of devices. */
        assert_ok(kk_session_save(b, back, why));
        assert_ok(kk_session_save(c, there, why));
        char *x = scratch_read(back, &n), *y = scratch_read(there, &m);
        assert_int_equal(n, m);
        const size_t head = kk_saved_bytes(KK_SAVED_FORMAT);
        assert_memory_equal(x + head, y + head, n - head);
        free(x);
        free(y);
        kk_session_free(a);
        kk_session_free(b);
        kk_session_free(c);
        kk_engine_close(e);
        kk_engine_close(near);
    }
}

/* Every taking fails once: what was asked for is refused, the session is as it was, and goes on
 * when there is memory. */
static void out_of_memory_loses_nothing(void **state) {
    (void)state;
    uint64_t want[2];
    kk_engine *near = tiny_engine(spec, 1, 0);
    kk_session *s = tiny_session(near, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 70);
    want[0] = say(s, 20);
    tiny_append(s, prompt, 90);
    want[1] = say(s, 20);
    kk_session_free(s);
    kk_engine_close(near);
    for (int64_t n = 0; n < 3; n++) {
        kk_engine *e = far_engine(spec, 1);
        kk_err err = {0};
        s = tiny_session(e, CTX, KK_KV_BF16);
        far.left = n;
        const kk_status st = kk_session_append(s, prompt, 70, NULL, NULL, &err);
        if (n < 2) {
            assert_int_equal(st, KK_ENOMEM);
            assert_non_null(strstr(err.msg, "cannot hold"));
            assert_int_equal(s->len, 0);
            assert_int_equal(kk_cache_bytes(s->cache, KK_SLIDING), 0);
            far.left = -1;
            tiny_append(s, prompt, 70);
        } else {
            assert_int_equal(st, KK_OK);
        }
        far.left = -1;
        assert_true(say(s, 20) == want[0]);
        tiny_append(s, prompt, 90);
        assert_true(say(s, 20) == want[1]);
        kk_session_free(s);
        kk_engine_close(e);
    }
}

/* A device that fills up while a session speaks: the tokens handed out until then stay, also where
 * it is the round ahead that finds no memory, and the rest follows when there is some. */
static void a_full_device_stops_a_session_between_tokens(void **state) {
    (void)state;
    enum { ALL = 200 };
    static int32_t want[ALL];
    const kk_generate_opts how = {.max_tokens = ALL, .ignore_eos = true};
    kk_engine *near = tiny_engine(spec, 1, 0);
    kk_session *s = tiny_session(near, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 50);
    assert_ok(kk_generate(s, &how, NULL, NULL, NULL, why));
    memcpy(want, s->tokens + 50, sizeof want);
    kk_session_free(s);
    kk_engine_close(near);
    for (int32_t ahead = -1; ahead <= 1; ahead += 2) {
        kk_engine *e = far_engine(spec, ahead);
        kk_err err = {0};
        int32_t refused = 0;
        s = tiny_session(e, CTX, KK_KV_BF16);
        far.limit = 1;
        while (kk_session_append(s, prompt, 50, NULL, NULL, &err) != KK_OK) far.limit += 4096;
        while (s->len < 50 + ALL) {
            const kk_generate_opts rest = {.max_tokens = 50 + ALL - s->len, .ignore_eos = true};
            const kk_status st = kk_generate(s, &rest, NULL, NULL, NULL, &err);
            if (st == KK_OK) continue;
            assert_int_equal(st, KK_ENOMEM);
            assert_int_equal(kk_cache_len(s->cache), s->len - 1);
            assert_null(e->rounds.in_flight);
            far.limit += 4096;
            refused++;
        }
        assert_true(refused > 4);
        assert_memory_equal(s->tokens + 50, want, sizeof want);
        kk_session_free(s);
        kk_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pages_come_as_a_session_grows, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(slabs_go_back, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(sharing_is_the_same, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(few_rows_are_the_same, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(sessions_move_both_ways, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(out_of_memory_loses_nothing, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_full_device_stops_a_session_between_tokens, setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
