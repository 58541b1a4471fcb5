/* safetensors_test.c - a good file gives its tensors, a bad one a sentence that names the one. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/file.h"
#include "format/safetensors.h"
#include "support/scratch.h"

/* A file of this header, padded as writers do, and data_bytes bytes of data 0, 1, 2, ... */
typedef struct {
    uint8_t *bytes;
    size_t size;
} image;

static image make(const char *header, size_t data_bytes) {
    const size_t len = strlen(header), padded = (len + 7) / 8 * 8;
    const uint64_t n = padded;
    image im = {calloc(1, 8 + padded + data_bytes), 8 + padded + data_bytes};
    memcpy(im.bytes, &n, 8);
    memset(im.bytes + 8, ' ', padded);
    memcpy(im.bytes + 8, header, len);
    for (size_t i = 0; i < data_bytes; i++) im.bytes[8 + padded + i] = (uint8_t)i;
    return im;
}

static kk_status parse(const char *header, size_t data_bytes, kk_safetensors *out, kk_err *err) {
    image im = make(header, data_bytes);
    kk_status st = kk_safetensors_parse(out, (kk_span){im.bytes, im.size}, "m.safetensors", err);
    free(im.bytes);
    return st;
}

static void lists_tensors_in_the_order_of_the_file(void **state) {
    (void)state;
    kk_safetensors s;
    kk_err err;
    image im = make("{\"__metadata__\": {\"format\": \"pt\"},"
                    "\"b\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [8, 20]},"
                    "\"odd\": {\"dtype\": \"F8_E4M3\", \"shape\": [4], \"data_offsets\": [20, 24]},"
                    "\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
                    "\"s\": {\"dtype\": \"F16\", \"shape\": [], \"data_offsets\": [24, 26]}}",
                    26);
    assert_int_equal(kk_safetensors_parse(&s, (kk_span){im.bytes, im.size}, "m", &err), KK_OK);
    assert_int_equal(s.n, 3); /* the 8-bit floats are of no use */
    assert_string_equal(s.tensors[0].name, "a");
    assert_string_equal(s.tensors[1].name, "b");
    assert_int_equal(s.tensors[1].dtype, KK_BF16);
    assert_int_equal(s.tensors[1].n_dims, 2);
    assert_int_equal(s.tensors[1].dims[1], 3);
    assert_int_equal(s.tensors[1].data.size, 12);
    assert_int_equal(s.tensors[1].data.base[0], 8);
    assert_int_equal(s.tensors[2].n_dims, 0);
    assert_int_equal(kk_tensor_values(&s.tensors[2]), 1);
    kk_safetensors_free(&s);
    kk_safetensors_free(&s); /* a zero value is fine */
    free(im.bytes);
    assert_int_equal(kk_live_blocks(), 0);
}

static void refuses_each_bad_header(void **state) {
    (void)state;
    static const struct {
        const char *header, *says;
    } cases[] = {
        {"[1, 2]", "not a JSON object"},
        {"{\"a\": ", "no valid JSON"},
        {"{\"a\": 5}", "'a' has no dtype"},
        {"{\"a\": {\"dtype\": 7, \"shape\": [1], \"data_offsets\": [0, 4]}}", "'a' has no dtype"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", "'a' has no shape"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", "'a' has no pair of data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", "'a' has no pair"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", "[4, 0]"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", "[-4, 0]"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}",
         "'a' has a bad dimension 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}",
         "'a' has a bad dimension 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [0, 3], \"data_offsets\": [0, 0]}}",
         "'a' is empty"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1, 1, 1, 1, 1], \"data_offsets\": [0, 4]}}",
         "'a' has 5 dimensions"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], "
         "\"data_offsets\": [0, 4]}}",
         "'a' has a shape whose product overflows"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904, 2], "
         "\"data_offsets\": [0, 4]}}",
         "'a' has a shape whose product overflows"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904], "
         "\"data_offsets\": [0, 4]}}",
         "'a' has 4 bytes, not those of its shape"}, /* times four overflows */
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 8]}}",
         "'a' has 8 bytes"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 8]}}",
         "'a' has 8 bytes"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [16], \"data_offsets\": [0, 64]}}",
         "'a' ends at byte 64 of 32: the file is truncated"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], "
         "\"data_offsets\": [9223372036854775804, 9223372036854775807]}}",
         "truncated"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
         "\"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [4, 12]}}",
         "'b' overlaps 'a'"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
         "\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [8, 16]}}",
         "duplicate object key near '\"a\"'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_safetensors s;
        kk_err err = {0};
        assert_int_equal(parse(cases[i].header, 32, &s, &err), KK_EFORMAT);
        if (!strstr(err.msg, cases[i].says)) fail_msg("case %zu says: %s", i, err.msg);
        assert_null(s.tensors);
        assert_int_equal(kk_live_blocks(), 0);
    }
}

static void refuses_files_that_are_none(void **state) {
    (void)state;
    kk_safetensors s;
    kk_err err;
    uint8_t file[24] = {255, 255, 255, 255, 255, 255, 255, 127};
    assert_int_equal(kk_safetensors_parse(&s, (kk_span){NULL, 0}, "empty", &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "empty has 0 bytes"));
    assert_int_equal(kk_safetensors_parse(&s, (kk_span){file, 7}, "m", &err), KK_EFORMAT);
    assert_int_equal(kk_safetensors_parse(&s, (kk_span){file, 24}, "m", &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "does not fit"));
    memset(file, 0, sizeof file);
    file[0] = 17; /* one byte more than there is */
    assert_int_equal(kk_safetensors_parse(&s, (kk_span){file, 24}, "m", &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "17"));
}

/* Every proper prefix of a good file is refused. */
static void refuses_every_truncation(void **state) {
    (void)state;
    image im = make("{\"a\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [0, 16]}}", 16);
    for (size_t n = 0; n <= im.size; n++) {
        kk_safetensors s;
        uint8_t *copy = malloc(n ? n : 1); /* of this size, so that a reader past it is caught */
        memcpy(copy, im.bytes, n);
        const kk_status st = kk_safetensors_parse(&s, (kk_span){copy, n}, "m", NULL);
        assert_int_equal(st, n == im.size ? KK_OK : KK_EFORMAT);
        kk_safetensors_free(&s);
        free(copy);
    }
    free(im.bytes);
}

static void reads_back_what_it_wrote(void **state) {
    scratch *sc = *state;
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const int32_t b[3] = {-1, 0, 7};
    const uint16_t c[1] = {0x3f80};
    const int64_t d[1] = {1};
    const kk_tensor tensors[] = {
        {.name = "scalar", .dtype = KK_BF16, .data = {(const uint8_t *)c, sizeof c}},
        {.name = "one/\"two\"",
         .dtype = KK_F32,
         .n_dims = 2,
         .dims = {2, 3},
         .data = {(const uint8_t *)a, sizeof a}},
        {.name = "ids",
         .dtype = KK_I32,
         .n_dims = 1,
         .dims = {3},
         .data = {(const uint8_t *)b, sizeof b}},
        {.name = "wide",
         .dtype = KK_I64,
         .n_dims = 1,
         .dims = {1},
         .data = {(const uint8_t *)d, sizeof d}},
    };
    kk_err err;
    kk_map m;
    kk_safetensors s;
    const char *path = scratch_path(sc, "out.safetensors");
    assert_int_equal(kk_safetensors_write(path, tensors, 4, &err), KK_OK);
    assert_int_equal(kk_map_open(&m, path, &err), KK_OK);
    assert_int_equal(kk_safetensors_parse(&s, m.span, "out", &err), KK_OK);
    assert_int_equal(s.n, 4);
    static const size_t order[] = {3, 1, 2, 0}; /* wide types first, so that all are aligned */
    for (size_t k = 0; k < 4; k++) {
        const size_t i = order[k];
        assert_string_equal(s.tensors[k].name, tensors[i].name);
        assert_int_equal(s.tensors[k].dtype, tensors[i].dtype);
        assert_int_equal(s.tensors[k].n_dims, tensors[i].n_dims);
        assert_memory_equal(s.tensors[k].data.base, tensors[i].data.base, tensors[i].data.size);
    }
    kk_safetensors_free(&s);
    kk_map_close(&m);
}

static void writes_only_what_the_format_has(void **state) {
    scratch *sc = *state;
    const uint8_t block[34] = {0};
    const kk_tensor q = {
        .name = "q", .dtype = KK_Q8_0, .n_dims = 1, .dims = {32}, .data = {block, 34}};
    const kk_tensor twice[2] = {
        {.name = "x", .dtype = KK_BF16, .data = {block, 2}},
        {.name = "x", .dtype = KK_BF16, .data = {block, 2}},
    };
    kk_err err;
    assert_int_equal(kk_safetensors_write(scratch_path(sc, "q"), &q, 1, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "q8_0"));
    assert_int_equal(kk_safetensors_write(scratch_path(sc, "x"), twice, 2, &err), KK_EINVAL);
    assert_int_equal(kk_safetensors_write(scratch_path(sc, "no/x"), twice, 1, &err), KK_EIO);
    assert_int_equal(scratch_entries(sc->dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_tensors_in_the_order_of_the_file),
        cmocka_unit_test(refuses_each_bad_header),
        cmocka_unit_test(refuses_files_that_are_none),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test_setup_teardown(reads_back_what_it_wrote, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(writes_only_what_the_format_has, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
