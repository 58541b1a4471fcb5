/* projection_fault_test.c - reading, writing, making and packing a projection while the n-th
 * allocation or system call fails, for every n: a status with a sentence, nothing half made, what
 * was there before still there, everything given back.
 * ctest: threads (random weights and packing have several) */
#define _GNU_SOURCE
#include "support/ok.h"
#include "support/projection_folder.h"

typedef struct {
    scratch s;
    char dir[300], fresh[300];
    kk_config verifier;
    kk_projection_config config;
    projection_values values;
    kk_mem mem;
} bench;

static int setup(void **state) {
    scratch *s;
    if (scratch_setup((void **)&s) != 0) return -1;
    bench *b = calloc(1, sizeof *b);
    b->s = *s;
    free(s);
    *state = b;
    snprintf(b->dir, sizeof b->dir, "%s/a", b->s.dir);
    snprintf(b->fresh, sizeof b->fresh, "%s/b", b->s.dir);
    b->verifier = small_moe();
    b->config = projection_for(&b->verifier, true);
    b->values = projection_values_of(&b->config);
    assert_ok(kk_projection_write(b->dir, &b->config, &b->values.values, KK_BF16, why));
    return 0;
}

static int teardown(void **state) {
    bench *b = *state;
    nftw(b->s.dir, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    free(b->values.all);
    free(b);
    return 0;
}

/* Whether the armed fault has struck; disarms it. */
static bool struck(int64_t n) {
    bool waiting = false;
    for (int64_t i = 0; i < n && !waiting; i++) waiting = kk_fault_point();
    kk_fault_after(0, false);
    return !waiting;
}

/* Runs op with every point failing in turn, and looks at what it left, until there are no more;
 * returns how many there were.  After the last rename a fault is no failure any more: the folder
 * is synced where that can be done. */
static int64_t walk(bench *b, kk_status (*op)(bench *b, kk_err *err),
                    void (*look)(bench *b, kk_status st)) {
    const int64_t blocks = kk_live_blocks(), counted = b->mem.bytes[KK_MEM_WEIGHTS_PROJECTION];
    for (int64_t n = 1; n < 100000; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = op(b, &err);
        const bool more = struck(n);
        assert_int_equal(kk_live_blocks(), blocks);
        assert_int_equal(b->mem.bytes[KK_MEM_WEIGHTS_PROJECTION], counted);
        assert_int_equal(err.code, st);
        if (look) look(b, st);
        if (!more) {
            assert_int_equal(st, KK_OK);
            return n - 1;
        }
        assert_true(look || st != KK_OK);
        assert_true(st == KK_OK || st == KK_ENOMEM || st == KK_EIO);
        assert_true(st == KK_OK || strlen(err.msg) > 10);
    }
    fail_msg("never succeeded");
    return 0;
}

static kk_status settle(kk_status st, kk_projection *const *p) {
    if (st == KK_OK)
        kk_projection_close(*p);
    else
        assert_null(*p);
    return st;
}

static kk_status open_folder(bench *b, kk_err *err) {
    kk_projection *p = (kk_projection *)1;
    return settle(kk_projection_open(&p, b->dir, NULL, err), &p);
}

static kk_status make_random(bench *b, kk_err *err) {
    static const int32_t taps[] = {0, 4};
    kk_projection *p = (kk_projection *)1;
    return settle(kk_projection_synthetic(&p, &b->verifier, 32, taps, 2, &b->mem, err), &p);
}

/* Without memory for it there is no text, and no other sentence than NULL. */
static kk_status to_json(bench *b, kk_err *err) {
    char *text = kk_projection_config_to_json(&b->config);
    kk_free(text);
    return text ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for the text");
}

/* A packing that fails leaves every tensor as it was, and can be tried again. */
static void packing(void **state) {
    bench *b = *state;
    const kk_drafter_packing how = {.type = KK_Q8_0, .threads = 2};
    kk_status st = KK_ENOMEM;
    kk_projection *p;
    int64_t n = 0;
    assert_ok(kk_projection_open(&p, b->dir, NULL, why));
    const int64_t blocks = kk_live_blocks();
    const kk_tensor *t = kk_checkpoint_find(kk_projection_tensors(p), "layers.5.v.weight");
    while (st != KK_OK) {
        kk_err err = {0};
        kk_fault_after(++n, false);
        st = kk_projection_pack(p, &how, &b->mem, &err);
        kk_fault_after(0, false);
        assert_int_equal(t->dtype, st == KK_OK ? KK_Q8_0 : KK_BF16);
        assert_int_equal(kk_live_blocks(), blocks + (st == KK_OK));
        assert_int_equal(b->mem.bytes[KK_MEM_WEIGHTS_PROJECTION], kk_projection_packed_bytes(p));
        assert_true((st == KK_OK) == (kk_projection_packed_bytes(p) > 0));
        assert_int_equal(err.code, st);
        assert_true(n < 1000);
    }
    assert_true(n > 3);
    kk_projection_close(p);
    assert_int_equal(b->mem.bytes[KK_MEM_WEIGHTS_PROJECTION], 0);
}

static kk_status write_fresh(bench *b, kk_err *err) {
    return kk_projection_write(b->fresh, &b->config, &b->values.values, KK_BF16, err);
}

/* The new folder holds a projection or none: never a file half written. */
static void look_at_fresh(bench *b, kk_status st) {
    char tensors[400], config[400];
    kk_projection *p;
    snprintf(tensors, sizeof tensors, "%s/projection.safetensors", b->fresh);
    snprintf(config, sizeof config, "%s/projection.json", b->fresh);
    if (st == KK_OK) {
        assert_ok(kk_projection_open(&p, b->fresh, NULL, why));
        kk_projection_close(p);
        assert_int_equal(scratch_entries(b->fresh), 2);
    } else {
        assert_false(kk_file_exists(config));
        const int whole = kk_file_exists(tensors);
        assert_int_equal(scratch_entries(b->fresh), kk_dir_exists(b->fresh) ? whole : -1);
    }
    unlink(config);
    unlink(tensors);
    rmdir(b->fresh);
}

static kk_status write_again(bench *b, kk_err *err) {
    return kk_projection_write(b->dir, &b->config, &b->values.values, KK_BF16, err);
}

static void look_at_old(bench *b, kk_status st) {
    kk_projection *p;
    (void)st;
    assert_int_equal(scratch_entries(b->dir), 2);
    assert_ok(kk_projection_open(&p, b->dir, NULL, why));
    kk_projection_close(p);
}

static void a_folder(void **state) { assert_true(walk(*state, open_folder, NULL) > 10); }
static void random_values(void **state) { assert_true(walk(*state, make_random, NULL) > 20); }
static void a_text(void **state) { assert_int_equal(walk(*state, to_json, NULL), 1); }
static void a_new_folder(void **state) {
    assert_true(walk(*state, write_fresh, look_at_fresh) > 20);
}
static void an_old_folder(void **state) {
    assert_true(walk(*state, write_again, look_at_old) > 20);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_folder), IN_FOLDER(random_values), IN_FOLDER(a_text),
        IN_FOLDER(packing),  IN_FOLDER(a_new_folder),  IN_FOLDER(an_old_folder),
    };
    return cmocka_run_group_tests_name("projection_fault", tests, NULL, NULL);
}
