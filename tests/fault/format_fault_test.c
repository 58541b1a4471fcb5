/* format_fault_test.c - for n = 1, 2, ...: the n-th allocation or system call of an operation
 * fails.  Expect a status and a message, no leak, no half-made object, no file left behind.
 * ctest: threads (random weights and quantisation use several) */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/model_folder.h"

typedef struct {
    scratch s;
    char in[300], shards[300], gguf[300], out[300];
    int64_t blocks; /* live before the operation */
} bench;

static int setup(void **state) {
    scratch *s;
    if (scratch_setup((void **)&s) != 0) return -1;
    bench *b = calloc(1, sizeof *b);
    b->s = *s;
    free(s);
    *state = b;
    const kk_config moe = small_moe(), ple = small_ple();
    snprintf(b->in, sizeof b->in, "%s/in", b->s.dir);
    snprintf(b->shards, sizeof b->shards, "%s/shards", b->s.dir);
    snprintf(b->gguf, sizeof b->gguf, "%s/whole.gguf", b->s.dir);
    snprintf(b->out, sizeof b->out, "%s/out.gguf", b->s.dir);
    mkdir(b->in, 0700);
    mkdir(b->shards, 0700);
    model_tensors *m = model_make(&moe, "model.", KK_BF16);
    model_write(b->in, m);
    model_free(m);
    m = model_make(&ple, "model.language_model.", KK_BF16);
    model_write_shards(b->shards, m, 3);
    model_free(m);
    return kk_quantize(b->in, b->gguf, "q8_0", NULL, NULL, NULL) == KK_OK ? 0 : -1;
}

static int teardown(void **state) {
    bench *b = *state;
    nftw(b->s.dir, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    free(b);
    return 0;
}

/* Runs op with every point failing in turn until it succeeds; returns how many there were. */
static int64_t walk(bench *b, kk_status (*op)(bench *b, kk_err *err)) {
    b->blocks = kk_live_blocks();
    for (int64_t n = 1; n < 100000; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = op(b, &err);
        kk_fault_after(0, false);
        assert_int_equal(kk_live_blocks(), b->blocks);
        assert_int_equal(scratch_entries(b->s.dir), 3);
        if (st == KK_OK) return n - 1;
        assert_true(st == KK_ENOMEM || st == KK_EIO);
        assert_int_equal(err.code, st);
        assert_true(err.msg[0] != '\0');
    }
    fail_msg("never succeeded");
    return 0;
}

static kk_status open_and_close(const char *path, kk_err *err) {
    kk_checkpoint *c = (kk_checkpoint *)1;
    const kk_checkpoint_opts opts = {.huge_pages = true};
    const kk_status st = kk_checkpoint_open(&c, path, &opts, err);
    if (st == KK_OK)
        kk_checkpoint_close(c);
    else
        assert_null(c);
    return st;
}

static kk_status open_folder(bench *b, kk_err *err) { return open_and_close(b->in, err); }
static kk_status open_shards(bench *b, kk_err *err) { return open_and_close(b->shards, err); }
static kk_status open_gguf(bench *b, kk_err *err) { return open_and_close(b->gguf, err); }

static kk_status make_random(bench *b, kk_err *err) {
    (void)b;
    kk_mem mem = {0};
    kk_checkpoint *c = (kk_checkpoint *)1;
    const kk_status st = kk_checkpoint_synthetic(&c, "tiny:q4_0:1", &mem, err);
    if (st == KK_OK)
        kk_checkpoint_close(c);
    else
        assert_null(c);
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_VERIFIER], 0);
    return st;
}

/* A file written over an older one: the older one stays until the end. */
static kk_status quantize(bench *b, kk_err *err) {
    const kk_status st = kk_quantize(b->in, b->gguf, "q4_0", NULL, NULL, err);
    kk_fault_after(0, false);
    kk_model_info info;
    assert_int_equal(kk_model_inspect(b->gguf, &info, NULL), KK_OK);
    assert_string_equal(info.weight_type, st == KK_OK ? "q4_0" : "q8_0");
    return st;
}

static kk_status write_tensors(bench *b, kk_err *err) {
    const float v[2] = {1, 2};
    const kk_tensor t = {.name = "t",
                         .dtype = KK_F32,
                         .n_dims = 1,
                         .dims = {2},
                         .data = {(const uint8_t *)v, sizeof v}};
    const kk_status st = kk_safetensors_write(b->out, &t, 1, err);
    if (st == KK_OK) unlink(b->out);
    return st;
}

static kk_status inspect_and_check(bench *b, kk_err *err) {
    kk_model_info info;
    int64_t bad;
    const kk_status st = kk_model_inspect(b->gguf, &info, err);
    return st != KK_OK ? st : kk_model_check(b->gguf, NULL, NULL, &bad, err);
}

static void folders(void **state) { assert_true(walk(*state, open_folder) > 10); }
static void shards(void **state) { assert_true(walk(*state, open_shards) > 20); }
static void gguf_files(void **state) { assert_true(walk(*state, open_gguf) > 8); }
static void random_weights(void **state) { assert_true(walk(*state, make_random) > 20); }
static void quantising(void **state) { assert_true(walk(*state, quantize) > 20); }
static void safetensors_files(void **state) { assert_true(walk(*state, write_tensors) > 5); }
static void looking_into_one(void **state) { assert_true(walk(*state, inspect_and_check) > 16); }

/* No memory at all, for the whole call. */
static void nothing_works_without_memory(void **state) {
    bench *b = *state;
    kk_status (*const ops[])(bench *, kk_err *) = {open_folder, open_shards, open_gguf, make_random,
                                                   write_tensors};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        kk_err err = {0};
        kk_fault_after(1, true);
        const kk_status st = ops[i](b, &err);
        kk_fault_after(0, false);
        assert_true(st == KK_ENOMEM || st == KK_EIO);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folders, setup, teardown),
        cmocka_unit_test_setup_teardown(shards, setup, teardown),
        cmocka_unit_test_setup_teardown(gguf_files, setup, teardown),
        cmocka_unit_test_setup_teardown(random_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(quantising, setup, teardown),
        cmocka_unit_test_setup_teardown(safetensors_files, setup, teardown),
        cmocka_unit_test_setup_teardown(looking_into_one, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_works_without_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
