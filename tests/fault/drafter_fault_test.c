/* drafter_fault_test.c - opening a drafter, making a random one and setting up its model while the
 * n-th allocation or system call fails, for every n: a status with a sentence, nothing half made,
 * everything given back.
 * ctest: threads (random weights are made by several) */
#define _GNU_SOURCE
#include "model/dflash_model.h"
#include "support/drafter_folder.h"
#include "support/ok.h"

typedef struct {
    scratch s;
    char verifier[300], single[300], shards[300], gguf[300], out[300];
    const kk_backend *be;
    kk_dev *dev;
    kk_mem mem;
    kk_checkpoint *ckpt;
    kk_gemma4 *model;
    kk_drafter *files;
} bench;

static int setup(void **state) {
    scratch *s;
    if (scratch_setup((void **)&s) != 0) return -1;
    bench *b = calloc(1, sizeof *b);
    b->s = *s;
    free(s);
    *state = b;
    snprintf(b->verifier, sizeof b->verifier, "%s/verifier", b->s.dir);
    snprintf(b->single, sizeof b->single, "%s/single", b->s.dir);
    snprintf(b->shards, sizeof b->shards, "%s/shards", b->s.dir);
    snprintf(b->gguf, sizeof b->gguf, "%s/drafter.gguf", b->s.dir);
    snprintf(b->out, sizeof b->out, "%s/out.gguf", b->s.dir);
    mkdir(b->verifier, 0700);
    mkdir(b->single, 0700);
    mkdir(b->shards, 0700);
    const kk_config moe = small_moe();
    model_tensors *v = model_make(&moe, "model.", KK_BF16), *d = drafter_make(KK_BF16);
    model_write(b->verifier, v);
    drafter_write(b->single, d);
    drafter_write_config(b->shards, DRAFTER_JSON);
    tensors_write_shards(b->shards, d, 2);
    model_free(v);
    model_free(d);
    b->be = kk_backend_named("cpu");
    const kk_dev_opts dev = {.threads = 1, .mem = &b->mem, .max_rows = 8};
    assert_ok(b->be->open(&b->dev, &dev, why));
    assert_ok(kk_checkpoint_open(&b->ckpt, b->verifier, NULL, why));
    const kk_gemma4_opts opts = {b->be, b->dev, &b->mem, 8, 8};
    assert_ok(kk_gemma4_new(&b->model, b->ckpt, &opts, why));
    assert_ok(kk_drafter_open(&b->files, b->single, NULL, why));
    assert_ok(kk_quantize(b->single, b->gguf, "q8_0", NULL, NULL, why));
    return 0;
}

static int teardown(void **state) {
    bench *b = *state;
    kk_drafter_close(b->files);
    kk_gemma4_free(b->model);
    kk_checkpoint_close(b->ckpt);
    b->be->close(b->dev);
    nftw(b->s.dir, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    free(b);
    return 0;
}

/* Runs op with every point failing in turn until it succeeds; returns how many there were. */
static int64_t walk(bench *b, kk_status (*op)(bench *b, kk_err *err)) {
    const int64_t blocks = kk_live_blocks(), drafter = b->mem.bytes[KK_MEM_WEIGHTS_DRAFTER];
    for (int64_t n = 1; n < 100000; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = op(b, &err);
        kk_fault_after(0, false);
        assert_int_equal(kk_live_blocks(), blocks);
        assert_int_equal(b->mem.bytes[KK_MEM_WEIGHTS_DRAFTER], drafter);
        if (st == KK_OK) return n - 1;
        assert_true(st == KK_ENOMEM || st == KK_EIO);
        assert_int_equal(err.code, st);
        assert_true(strlen(err.msg) > 10);
    }
    fail_msg("never succeeded");
    return 0;
}

static kk_status settle(kk_status st, kk_drafter *const *d) {
    if (st == KK_OK)
        kk_drafter_close(*d);
    else
        assert_null(*d);
    return st;
}

static kk_status open_single(bench *b, kk_err *err) {
    kk_drafter *d = (kk_drafter *)1;
    return settle(kk_drafter_open(&d, b->single, NULL, err), &d);
}

static kk_status open_shards(bench *b, kk_err *err) {
    kk_drafter *d = (kk_drafter *)1;
    return settle(kk_drafter_open(&d, b->shards, NULL, err), &d);
}

static kk_status open_gguf(bench *b, kk_err *err) {
    kk_drafter *d = (kk_drafter *)1;
    return settle(kk_drafter_open(&d, b->gguf, NULL, err), &d);
}

/* A folder whose config.json cannot be read for lack of memory is not taken for a model's: that
 * would end with a reason that is none. */
static kk_status write_gguf(bench *b, kk_err *err) {
    return kk_quantize(b->single, b->out, "bf16", NULL, NULL, err);
}

static kk_status make_random(bench *b, kk_err *err) {
    kk_drafter *d = (kk_drafter *)1;
    const kk_config *v = kk_checkpoint_config(b->ckpt);
    return settle(kk_drafter_synthetic(&d, v, "bf16", &b->mem, err), &d);
}

static kk_dflash_opts sizes(bench *b, int32_t rows, int32_t block_rows) {
    return (kk_dflash_opts){.backend = b->be,
                            .dev = b->dev,
                            .verifier = b->model,
                            .max_rows = rows,
                            .max_block_rows = block_rows};
}

static kk_status make(bench *b, const kk_dflash_opts *opts, kk_err *err) {
    kk_dflash *m = (kk_dflash *)1;
    const int64_t workspace = b->mem.bytes[KK_MEM_WORKSPACE];
    const kk_status st = kk_dflash_new(&m, b->files, kk_drafter_config_of(b->files), opts, err);
    if (st == KK_OK) {
        assert_true(b->mem.bytes[KK_MEM_WEIGHTS_DRAFTER] > 0);
        kk_dflash_free(m);
    } else {
        assert_null(m);
    }
    /* The device keeps scratch it was asked to prepare; nothing of the model stays. */
    assert_true(b->mem.bytes[KK_MEM_WORKSPACE] >= workspace);
    return st;
}

static kk_status make_model(bench *b, kk_err *err) {
    const kk_dflash_opts opts = sizes(b, 8, 6);
    return make(b, &opts, err);
}

/* With rows of the short head counted, and one of them sent. */
static kk_status make_short(bench *b, kk_err *err) {
    int32_t id[64];
    for (int32_t i = 0; i < 64; i++) id[i] = 95 - i;
    kk_dflash_opts opts = sizes(b, 8, 6);
    opts.short_head = (kk_short_rows){.id = id,
                                      .n = 64,
                                      .table = kk_checkpoint_find(b->ckpt, "embed_tokens.weight"),
                                      .type = KK_Q8_0,
                                      .mem = &b->mem};
    return make(b, &opts, err);
}

static void a_file(void **state) { assert_true(walk(*state, open_single) > 10); }
static void a_gguf_file(void **state) { assert_true(walk(*state, open_gguf) > 5); }
static void writing_one(void **state) { assert_true(walk(*state, write_gguf) > 10); }
static void several_files(void **state) { assert_true(walk(*state, open_shards) > 20); }
static void random_weights(void **state) { assert_true(walk(*state, make_random) > 20); }
static void a_model(void **state) { assert_true(walk(*state, make_model) > 60); }
static void a_short_head(void **state) {
    assert_ok(make_short(*state, why)); /* the device's scratch for rows in q8_0 stays */
    const int64_t without = walk(*state, make_model);
    assert_true(walk(*state, make_short) >= without + 9);
}

/* Rows no workspace could hold are refused, not multiplied. */
static void too_many_rows(void **state) {
    bench *b = *state;
    kk_dflash *m = (kk_dflash *)1;
    kk_err err = {0};
    const kk_dflash_opts none = sizes(b, 0, 6), short_block = sizes(b, 8, 1);
    const kk_drafter_config *c = kk_drafter_config_of(b->files);
    assert_int_equal(kk_dflash_new(&m, b->files, c, &none, &err), KK_EINVAL);
    assert_null(m);
    assert_int_equal(kk_dflash_new(&m, b->files, c, &short_block, &err), KK_EINVAL);
    kk_drafter_config other = *c;
    other.vocab = 95;
    const kk_dflash_opts opts = sizes(b, 8, 6);
    assert_int_equal(kk_dflash_new(&m, b->files, &other, &opts, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "95"));
    assert_null(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(several_files, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gguf_file, setup, teardown),
        cmocka_unit_test_setup_teardown(writing_one, setup, teardown),
        cmocka_unit_test_setup_teardown(random_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(a_model, setup, teardown),
        cmocka_unit_test_setup_teardown(a_short_head, setup, teardown),
        cmocka_unit_test_setup_teardown(too_many_rows, setup, teardown),
    };
    return cmocka_run_group_tests_name("drafter_fault", tests, NULL, NULL);
}
