/* parity_mutation_test.c - the comparison itself must be able to fail.
 *
 * In every case and for every tensor of its model, one element is set to 2x + 1 and the case
 * must no longer agree; so must it when one expected number moves.  Elements are drawn by a
 * fixed seed, among those that matter: the row of a per-layer table is that of a token that
 * occurs, since no other row is ever read.  One tensor cannot matter: the last layer's scalar
 * multiplies a whole row just before the final norm divides by that row's length. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "core/file.h"
#include "eval/tasks/parity.h"
#include "format/safetensors.h"

static const char *const cases[] = {"moe", "dense", "perlayer", "scale"};

static uint64_t state = 20240611;
static size_t below(size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % n;
}

/* A copy of a case whose files may be changed. */
typedef struct {
    char root[64];        /* the case */
    char folder[80];      /* what is changed of it: itself, or its drafter */
    char *model, *expect; /* contents */
    size_t model_size, expect_size;
    kk_safetensors tensors, expected; /* of those contents */
} copy;

static char *path_in(const char *folder, const char *name) {
    char *path = kk_path_join(folder, name);
    assert_non_null(path);
    return path;
}

static void put_file(const char *folder, const char *name, const char *data, size_t size) {
    char *path = path_in(folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    kk_free(path);
}

static char *get_file(const char *folder, const char *name, size_t *size) {
    char *path = path_in(folder, name), *text;
    assert_int_equal(kk_file_read(path, 1 << 24, &text, size, NULL), KK_OK);
    kk_free(path);
    return text;
}

static const char *const file_names[] = {"config.json", "model.safetensors", "expect.safetensors"};

static void copy_files(const char *from, const char *to) {
    for (size_t i = 0; i < 3; i++) {
        size_t size;
        char *data = get_file(from, file_names[i], &size);
        put_file(to, file_names[i], data, size);
        kk_free(data);
    }
}

static void remove_files(const char *folder) {
    for (size_t i = 0; i < 3; i++) {
        char *path = path_in(folder, file_names[i]);
        unlink(path);
        kk_free(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void read_copy(copy *c) {
    c->model = get_file(c->folder, "model.safetensors", &c->model_size);
    c->expect = get_file(c->folder, "expect.safetensors", &c->expect_size);
    kk_span model = {(uint8_t *)c->model, c->model_size};
    kk_span expect = {(uint8_t *)c->expect, c->expect_size};
    assert_int_equal(kk_safetensors_parse(&c->tensors, model, "model", NULL), KK_OK);
    assert_int_equal(kk_safetensors_parse(&c->expected, expect, "expect", NULL), KK_OK);
}

static void open_copy(copy *c, const char *name) {
    *c = (copy){.root = "/tmp/kakeya-parity-XXXXXX"};
    assert_non_null(mkdtemp(c->root));
    snprintf(c->folder, sizeof c->folder, "%s", c->root);
    char *from = path_in(KK_TEST_DATA "/parity", name);
    copy_files(from, c->root);
    kk_free(from);
    read_copy(c);
}

/* The case that has a drafter, whose files are the ones to change. */
static void open_drafter_copy(copy *c) {
    *c = (copy){.root = "/tmp/kakeya-parity-XXXXXX"};
    assert_non_null(mkdtemp(c->root));
    snprintf(c->folder, sizeof c->folder, "%s/dflash", c->root);
    assert_int_equal(mkdir(c->folder, 0700), 0);
    copy_files(KK_TEST_DATA "/parity/moe", c->root);
    copy_files(KK_TEST_DATA "/parity/moe/dflash", c->folder);
    read_copy(c);
}

static void close_copy(copy *c) {
    remove_files(c->folder);
    if (strcmp(c->folder, c->root) != 0) remove_files(c->root);
    kk_safetensors_free(&c->tensors);
    kk_safetensors_free(&c->expected);
    kk_free(c->model);
    kk_free(c->expect);
}

static kk_parity_report run(const copy *c) {
    kk_parity_report r;
    kk_err err = {.msg = ""};
    kk_parity_opts opts = {.threads = 1}; /* the models are too small to share */
    kk_status st = kk_parity_run(c->root, &opts, &r, &err);
    if (st != KK_OK) fail_msg("%s", err.msg);
    return r;
}

/* Writes size bytes into a file of the copy at an offset. */
static void poke(const copy *c, const char *name, size_t at, const void *bytes, size_t size) {
    char *path = path_in(c->folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, size, (off_t)at), (ssize_t)size);
    close(fd);
    kk_free(path);
}

static const kk_tensor *expected(const copy *c, const char *name) {
    for (size_t i = 0; i < c->expected.n; i++)
        if (strcmp(c->expected.tensors[i].name, name) == 0) return &c->expected.tensors[i];
    fail_msg("no %s", name);
    return NULL;
}

/* An element of the tensor that some row reads. */
static size_t choose(const copy *c, const kk_tensor *t) {
    size_t i = below((size_t)kk_tensor_values(t));
    if (strstr(t->name, "embed_tokens_per_layer")) {
        const kk_tensor *tokens = expected(c, "tokens");
        int32_t token;
        memcpy(&token, tokens->data.base + sizeof token * below((size_t)tokens->dims[0]),
               sizeof token);
        i = (size_t)token * (size_t)t->dims[1] + i % (size_t)t->dims[1];
    }
    return i;
}

/* Whether the case still agrees with element i of t at 2x + 1. */
static bool agrees_with(const copy *c, const kk_tensor *t, size_t i) {
    const size_t at = (size_t)(t->data.base - (const uint8_t *)c->model) + 2 * i;
    uint16_t old, bent;
    memcpy(&old, c->model + at, sizeof old);
    bent = kk_f32_bf16(2 * kk_bf16_f32(old) + 1);
    assert_int_not_equal(old, bent);
    poke(c, "model.safetensors", at, &bent, sizeof bent);
    const kk_parity_report r = run(c);
    poke(c, "model.safetensors", at, &old, sizeof old);
    return r.ok;
}

static bool is_last_scalar(const kk_tensor *t, int32_t n_layer) {
    char name[64];
    snprintf(name, sizeof name, "model.layers.%d.layer_scalar", n_layer - 1);
    return strcmp(t->name, name) == 0;
}

static void any_weight(void **unused) {
    (void)unused;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        copy c;
        open_copy(&c, cases[k]);
        const int32_t n_layer = run(&c).n_layer;
        for (size_t i = 0; i < c.tensors.n; i++) {
            const kk_tensor *t = &c.tensors.tensors[i];
            assert_int_equal(t->dtype, KK_BF16);
            const size_t element = choose(&c, t);
            if (agrees_with(&c, t, element) != is_last_scalar(t, n_layer))
                fail_msg("%s: element %zu of '%s' is not seen as it should be", cases[k], element,
                         t->name);
        }
        assert_true(run(&c).ok); /* every change was taken back */
        close_copy(&c);
    }
}

/* Moves one expected float by `by` and says whether the case still agrees. */
static bool agrees_moved(const copy *c, const char *name, float by) {
    const kk_tensor *t = expected(c, name);
    /* Row 0 of a block is the anchor's and drafts nothing. */
    const size_t skip = strncmp(name, "block.", 6) == 0 ? (size_t)t->dims[1] : 0;
    const size_t i = skip + below((size_t)kk_tensor_values(t) - skip);
    const size_t at = (size_t)(t->data.base - (const uint8_t *)c->expect) + sizeof(float) * i;
    float old, moved;
    memcpy(&old, c->expect + at, sizeof old);
    moved = old + by;
    poke(c, "expect.safetensors", at, &moved, sizeof moved);
    const bool ok = run(c).ok;
    poke(c, "expect.safetensors", at, &old, sizeof old);
    return ok;
}

static void any_expected_number(void **unused) {
    (void)unused;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        copy c;
        open_copy(&c, cases[k]);
        for (size_t i = 0; i < c.expected.n; i++) {
            const kk_tensor *t = &c.expected.tensors[i];
            if (strcmp(t->name, "logits") != 0 && strncmp(t->name, "hidden.", 7) != 0) continue;
            assert_false(agrees_moved(&c, t->name, 0.01f));
            assert_false(agrees_moved(&c, t->name, -0.01f));
            assert_false(agrees_moved(&c, t->name, NAN));
            assert_true(agrees_moved(&c, t->name, 0)); /* the poking itself changes nothing */
        }
        close_copy(&c);
    }
}

static void any_greedy_token(void **unused) {
    (void)unused;
    copy c;
    open_copy(&c, "moe");
    const kk_tensor *t = expected(&c, "greedy");
    for (int64_t i = 0; i < t->dims[0]; i++) {
        const size_t at = (size_t)(t->data.base - (const uint8_t *)c.expect) + 4 * (size_t)i;
        int32_t old, other;
        memcpy(&old, c.expect + at, sizeof old);
        other = old == 0 ? 1 : old - 1;
        poke(&c, "expect.safetensors", at, &other, sizeof other);
        const kk_parity_report r = run(&c);
        assert_false(r.ok);
        assert_int_equal(r.greedy_equal, i);
        poke(&c, "expect.safetensors", at, &old, sizeof old);
    }
    close_copy(&c);
}

/* A case that promises nothing must not pass, and one that cannot be read must say why. */
static void broken_cases(void **unused) {
    (void)unused;
    copy c;
    kk_parity_report r;
    kk_err err;
    open_copy(&c, "dense");
    put_file(c.folder, "expect.safetensors", c.expect, c.expect_size / 2);
    assert_int_equal(kk_parity_run(c.folder, NULL, &r, &err), KK_EFORMAT);
    put_file(c.folder, "expect.safetensors", c.model, c.model_size);
    assert_int_equal(kk_parity_run(c.folder, NULL, &r, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "'tokens'"));

    /* Expected logits and tokens, but no hidden states. */
    kk_tensor some[3] = {*expected(&c, "tokens"), *expected(&c, "logits"), *expected(&c, "greedy")};
    char *path = path_in(c.folder, "expect.safetensors");
    assert_int_equal(kk_safetensors_write(path, some, 3, &err), KK_OK);
    assert_int_equal(kk_parity_run(c.folder, NULL, &r, &err), KK_OK);
    assert_false(r.ok);

    /* A token past the vocabulary. */
    int32_t tokens[40];
    memcpy(tokens, some[0].data.base, sizeof tokens);
    tokens[7] = 320;
    some[0].data.base = (const uint8_t *)tokens;
    assert_int_equal(kk_safetensors_write(path, some, 3, &err), KK_OK);
    assert_int_equal(kk_parity_run(c.folder, NULL, &r, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "320"));
    kk_free(path);
    close_copy(&c);
}

static void any_weight_of_a_drafter(void **unused) {
    (void)unused;
    copy c;
    open_drafter_copy(&c);
    for (size_t i = 0; i < c.tensors.n; i++) {
        const kk_tensor *t = &c.tensors.tensors[i];
        const size_t element = choose(&c, t);
        if (agrees_with(&c, t, element))
            fail_msg("element %zu of the drafter's '%s' is not seen", element, t->name);
    }
    const kk_parity_report r = run(&c);
    assert_true(r.ok && r.drafter.present && r.drafter.same_bits);
    assert_int_equal(r.drafter.n_blocks, 3);
    assert_int_equal(r.drafter.drafts_equal, 15);
    close_copy(&c);
}

static void any_number_expected_of_a_drafter(void **unused) {
    (void)unused;
    copy c;
    int seen = 0;
    open_drafter_copy(&c);
    for (size_t i = 0; i < c.expected.n; i++) {
        const kk_tensor *t = &c.expected.tensors[i];
        if (t->dtype != KK_F32) continue;
        assert_false(agrees_moved(&c, t->name, 0.01f));
        assert_false(agrees_moved(&c, t->name, -0.01f));
        assert_false(agrees_moved(&c, t->name, NAN));
        assert_true(agrees_moved(&c, t->name, 0));
        seen++;
    }
    assert_int_equal(seen, 7); /* aux, and three blocks' hidden states and logits */
    close_copy(&c);
}

/* A drafter with nothing to compare must not pass. */
static void a_drafter_without_blocks(void **unused) {
    (void)unused;
    copy c;
    kk_err err;
    open_drafter_copy(&c);
    const kk_tensor some[2] = {*expected(&c, "tokens"), *expected(&c, "aux")};
    char *path = path_in(c.folder, "expect.safetensors");
    assert_int_equal(kk_safetensors_write(path, some, 2, &err), KK_OK);
    const kk_parity_report r = run(&c);
    assert_false(r.ok);
    kk_free(path);
    close_copy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_weight),
        cmocka_unit_test(any_expected_number),
        cmocka_unit_test(any_greedy_token),
        cmocka_unit_test(broken_cases),
        cmocka_unit_test(any_weight_of_a_drafter),
        cmocka_unit_test(any_number_expected_of_a_drafter),
        cmocka_unit_test(a_drafter_without_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
