/* gguf_test.c - what is written can be read, what is damaged is refused, and every tensor has
 * two names that lead to each other. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/file.h"
#include "format/format.h"
#include "format/gguf_names.h"
#include "support/model_folder.h"

/* ---- writing and reading ---------------------------------------------------------------- */

static const int64_t matrix_dims[] = {2, 64}, vector_dims[] = {5};

/* A small file with a key of each kind the writer has, and two tensors. */
static char *small_file(scratch *s, size_t *size) {
    kk_gguf_writer *w;
    uint8_t blocks[2 * 2 * 34];
    const float vector[5] = {1, 2, 3, 4, 5};
    const int32_t ids[3] = {-1, 0, 9};
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)i;
    assert_int_equal(kk_gguf_writer_open(&w, scratch_path(s, "small.gguf"), NULL), KK_OK);
    kk_gguf_put_u32(w, "n", 3000000000u);
    kk_gguf_put_f32(w, "f", 0.5f);
    kk_gguf_put_bool(w, "yes", true);
    kk_gguf_put_str(w, "name", "tiny", 4);
    kk_gguf_put_array(w, "ids", KK_GGUF_I32, 3);
    kk_gguf_put_bytes(w, ids, sizeof ids);
    kk_gguf_put_array(w, "words", KK_GGUF_STRING, 3);
    kk_gguf_put_element(w, "one", 3);
    kk_gguf_put_element(w, "", 0);
    kk_gguf_put_element(w, "three", 5);
    kk_gguf_put_tensor(w, "vector", KK_F32, 1, vector_dims);
    kk_gguf_put_tensor(w, "matrix", KK_Q8_0, 2, matrix_dims);
    assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
    assert_int_equal(kk_gguf_writer_data(w, vector, sizeof vector, NULL), KK_OK);
    assert_int_equal(kk_gguf_writer_data(w, blocks, 100, NULL), KK_OK); /* in two pieces */
    assert_int_equal(kk_gguf_writer_data(w, blocks + 100, sizeof blocks - 100, NULL), KK_OK);
    assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
    return scratch_read(s->path, size);
}

static void reads_back_what_it_wrote(void **state) {
    size_t size;
    char *file = small_file(*state, &size);
    kk_gguf g;
    kk_err err;
    assert_int_equal(kk_gguf_parse(&g, (kk_span){(uint8_t *)file, size}, "f", &err), KK_OK);
    int64_t n;
    double f;
    bool yes = false;
    kk_span s;
    assert_true(kk_gguf_int(&g, "n", &n) && n == 3000000000);
    assert_true(kk_gguf_float(&g, "f", &f) && f == 0.5);
    assert_true(kk_gguf_float(&g, "n", &f) && f == 3e9);
    assert_true(kk_gguf_bool(&g, "yes", &yes) && yes);
    assert_true(kk_gguf_str(&g, "name", &s) && s.size == 4 && memcmp(s.base, "tiny", 4) == 0);
    /* Other kinds and absent keys. */
    assert_false(kk_gguf_int(&g, "f", &n) || kk_gguf_int(&g, "yes", &n));
    assert_false(kk_gguf_str(&g, "n", &s) || kk_gguf_bool(&g, "n", &yes));
    assert_false(kk_gguf_int(&g, "na", &n) || kk_gguf_int(&g, "", &n));
    assert_null(kk_gguf_find(&g, "names"));
    const kk_gguf_kv *ids = kk_gguf_find(&g, "ids"), *words = kk_gguf_find(&g, "words");
    assert_true(kk_gguf_array_int(ids, 0, &n) && n == -1);
    assert_true(kk_gguf_array_float(ids, 2, &f) && f == 9);
    assert_false(kk_gguf_array_int(ids, 3, &n));
    assert_false(kk_gguf_array_int(words, 0, &n));
    size_t at = 0, lengths[3] = {9, 9, 9};
    for (int i = 0; i < 3; i++) {
        assert_true(kk_gguf_array_next_str(words, &at, &s));
        lengths[i] = s.size;
    }
    assert_true(lengths[0] == 3 && lengths[1] == 0 && lengths[2] == 5);
    assert_false(kk_gguf_array_next_str(words, &at, &s));
    at = 0;
    assert_false(kk_gguf_array_next_str(ids, &at, &s));
    kk_gguf_free(&g);
    free(file);
}

static void tensors_lie_where_they_should(void **state) {
    size_t size;
    char *file = small_file(*state, &size);
    kk_gguf g;
    assert_int_equal(kk_gguf_parse(&g, (kk_span){(uint8_t *)file, size}, "f", NULL), KK_OK);
    assert_int_equal(g.n_tensors, 2);
    assert_string_equal(g.tensors[0].name, "vector");
    const kk_tensor *m = &g.tensors[1];
    assert_string_equal(m->name, "matrix");
    assert_int_equal(m->dtype, KK_Q8_0);
    assert_int_equal(m->n_dims, 2);
    assert_int_equal(m->dims[0], 2); /* outermost first again */
    assert_int_equal(m->dims[1], 64);
    assert_int_equal(m->data.size, 136);
    assert_int_equal((size_t)(m->data.base - (uint8_t *)file) % 32, 0);
    for (size_t i = 0; i < 136; i++) assert_int_equal(m->data.base[i], i);
    kk_gguf_free(&g);
    kk_gguf_free(&g);
    free(file);
}

/* ---- damage ----------------------------------------------------------------------------- */

/* Parses a copy of exactly n bytes, so that a reader that goes past them is caught. */
static kk_status parse_copy(const char *file, size_t n, kk_err *err) {
    kk_gguf g;
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, file, n);
    kk_status st = kk_gguf_parse(&g, (kk_span){copy, n}, "f.gguf", err);
    if (st != KK_OK) assert_null(g.kv);
    kk_gguf_free(&g);
    free(copy);
    return st;
}

static void refuses_every_truncation(void **state) {
    size_t size;
    char *file = small_file(*state, &size);
    const size_t needed = size - 24; /* the padding after the last tensor */
    for (size_t n = 0; n <= size; n++)
        assert_int_equal(parse_copy(file, n, NULL), n >= needed ? KK_OK : KK_EFORMAT);
    assert_int_equal(kk_live_blocks(), 0);
    free(file);
}

/* Finds bytes in the file. */
static char *find(char *file, size_t size, const char *bytes) {
    char *at = memmem(file, size, bytes, strlen(bytes));
    assert_non_null(at);
    return at;
}

static void put(char *at, uint64_t v, size_t bytes) { memcpy(at, &v, bytes); }

/* Changes `bytes` bytes at an offset from some text in the file and expects a sentence. */
static void expect(scratch *s, const char *text, ptrdiff_t offset, uint64_t v, size_t bytes,
                   const char *says) {
    size_t size;
    char *file = small_file(s, &size);
    kk_err err = {0};
    put(find(file, size, text) + offset, v, bytes);
    assert_int_equal(parse_copy(file, size, &err), KK_EFORMAT);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
    free(file);
}

static void refuses_each_bad_header(void **state) {
    scratch *s = *state;
    /* "matrix" is followed by n_dims, two dims, a type and an offset. */
    const ptrdiff_t dims = 6 + 4, type = dims + 16, offset = type + 4;
    expect(s, "GGUF", 0, 'X', 1, "no GGUF file");
    expect(s, "GGUF", 4, 2, 4, "version 2");
    expect(s, "GGUF", 8, UINT64_MAX, 8, "tensors do not fit");
    expect(s, "GGUF", 16, UINT64_MAX / 4, 8, "keys do not fit");
    expect(s, "matrix", -8, UINT64_MAX, 8, "inside a tensor's name");
    expect(s, "matrix", 0, 0, 1, "a name of 6 bytes");
    expect(s, "matrix", 6, 5, 4, "'matrix' has 5 dimensions");
    expect(s, "matrix", dims, 0, 8, "'matrix' is empty");
    expect(s, "matrix", dims, 33, 8, "rows of 33 in tensor 'matrix'");
    expect(s, "matrix", dims, 48, 8, "rows of 48 in tensor 'matrix'"); /* 96 values would fit */
    expect(s, "matrix", dims, (uint64_t)1 << 62, 8, "product overflows");
    expect(s, "matrix", dims + 8, (uint64_t)1 << 40, 8, "'matrix' reaches past the end");
    expect(s, "matrix", type, 3, 4, "'matrix' has type 3 (q4_1)");
    expect(s, "matrix", type, 11, 4, "q3_k");
    expect(s, "matrix", type, 4, 4, "type 4 (unknown)");
    expect(s, "matrix", type, UINT32_MAX, 4, "unknown");
    expect(s, "matrix", offset, 33, 8, "starts at 33, not a multiple of 32");
    expect(s, "matrix", offset, 0, 8, "overlaps");
    expect(s, "matrix", offset, (uint64_t)-32, 8, "truncated");
    expect(s, "words", 5, 77, 4, "'words' has unknown type 77");
    expect(s, "words", 9, KK_GGUF_ARRAY, 4, "'words' has unknown type"); /* arrays of arrays */
    expect(s, "words", 13, UINT64_MAX, 8, "inside the value of 'words'");
    expect(s, "ids", 7 + 4, UINT64_MAX / 2, 8, "inside the value of 'ids'");
    expect(s, "ids", 7 + 4, (uint64_t)1 << 62, 8, "inside the value of 'ids'"); /* times 4 is 0 */
}

static void refuses_doubles(void **state) {
    scratch *s = *state;
    kk_gguf_writer *w;
    const int64_t one = 1;
    const float zero[8] = {0};
    kk_err err;
    size_t size;
    for (int keys = 0; keys < 2; keys++) {
        assert_int_equal(kk_gguf_writer_open(&w, scratch_path(s, "double"), NULL), KK_OK);
        kk_gguf_put_u32(w, "key", 1);
        kk_gguf_put_u32(w, keys ? "key" : "other", 2);
        kk_gguf_put_tensor(w, "t", KK_F32, 1, &one);
        kk_gguf_put_tensor(w, keys ? "u" : "t", KK_F32, 1, &one);
        assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_data(w, zero, 4, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_data(w, zero, 4, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
        char *file = scratch_read(s->path, &size);
        assert_int_equal(parse_copy(file, size, &err), KK_EFORMAT);
        assert_non_null(strstr(err.msg, keys ? "key 'key' appears twice" : "'t' appears twice"));
        free(file);
    }
}

static void refuses_odd_alignments(void **state) {
    scratch *s = *state;
    const uint32_t bad[] = {0, 1, 4, 48, 1u << 30};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kk_gguf_writer *w;
        size_t size;
        kk_err err;
        assert_int_equal(kk_gguf_writer_open(&w, scratch_path(s, "align"), NULL), KK_OK);
        kk_gguf_put_u32(w, "general.alignment", bad[i]);
        assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
        assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
        char *file = scratch_read(s->path, &size);
        assert_int_equal(parse_copy(file, size, &err), KK_EFORMAT);
        assert_non_null(strstr(err.msg, "general.alignment"));
        free(file);
    }
}

/* Every width of integer, by hand: the writer has only some. */
static void converts_integers_of_any_width(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        size_t bytes;
        uint64_t raw;
        bool number;
        int64_t value;
    } cases[] = {
        {KK_GGUF_U8, 1, 0xff, true, 255},       {KK_GGUF_I8, 1, 0xff, true, -1},
        {KK_GGUF_U16, 2, 0xffff, true, 65535},  {KK_GGUF_I16, 2, 0xffff, true, -1},
        {KK_GGUF_I32, 4, 0xffffffff, true, -1}, {KK_GGUF_U64, 8, 5, true, 5},
        {KK_GGUF_U64, 8, UINT64_MAX, false, 0}, {KK_GGUF_I64, 8, UINT64_MAX, true, -1},
        {KK_GGUF_BOOL, 1, 1, false, 0},         {KK_GGUF_F64, 8, 0, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t file[64] = "GGUF";
        size_t n = 24;
        file[4] = 3;
        file[16] = 1;
        memcpy(file + n, "\1\0\0\0\0\0\0\0k", 9);
        memcpy(file + n + 9, &cases[i].type, 4);
        memcpy(file + n + 13, &cases[i].raw, cases[i].bytes);
        kk_gguf g;
        int64_t v = 0;
        double f = 1;
        assert_int_equal(kk_gguf_parse(&g, (kk_span){file, n + 13 + cases[i].bytes}, "f", NULL),
                         KK_OK);
        assert_int_equal(kk_gguf_int(&g, "k", &v), cases[i].number);
        assert_int_equal(v, cases[i].value);
        if (cases[i].type == KK_GGUF_F64) assert_true(kk_gguf_float(&g, "k", &f) && f == 0);
        kk_gguf_free(&g);
    }
}

/* ---- configuration ---------------------------------------------------------------------- */

/* The configuration of a file with the keys of a small model and these divisors. */
static kk_status config_with(scratch *s, const float *divisors, int64_t n, kk_config *out,
                             kk_err *err) {
    const kk_config small = small_moe();
    const int64_t table[2] = {small.vocab, 1};
    const float rows[96] = {0};
    kk_gguf_writer *w;
    kk_gguf g;
    size_t size;
    assert_int_equal(kk_gguf_writer_open(&w, scratch_path(s, "config"), NULL), KK_OK);
    assert_int_equal(kk_gguf_put_model(w, &small, KK_F32, "x", NULL), KK_OK);
    kk_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 1);
    kk_gguf_put_u32(w, "tokenizer.ggml.eot_token_id", 1000); /* past the vocabulary */
    kk_gguf_put_tensor(w, "token_embd.weight", KK_F32, 2, table);
    if (n) kk_gguf_put_tensor(w, "rope_freqs.weight", KK_F32, 1, &n);
    assert_int_equal(kk_gguf_writer_begin(w, NULL), KK_OK);
    assert_int_equal(kk_gguf_writer_data(w, rows, sizeof rows, NULL), KK_OK);
    if (n) assert_int_equal(kk_gguf_writer_data(w, divisors, (size_t)n * 4, NULL), KK_OK);
    assert_int_equal(kk_gguf_writer_commit(w, NULL), KK_OK);
    char *file = scratch_read(s->path, &size);
    assert_int_equal(kk_gguf_parse(&g, (kk_span){(uint8_t *)file, size}, "f", NULL), KK_OK);
    const kk_status st = kk_config_from_gguf(out, &g, err);
    kk_gguf_free(&g);
    free(file);
    return st;
}

static void divisors_tell_which_pairs_rotate(void **state) {
    kk_config c;
    kk_err err = {0};
    const float released[4] = {1, 1, 1e30f, 1e30f}, scaled[4] = {8, 8, 8, 1e30f};
    const float noise[4] = {0.9f, 1.1f, 1.05f, 1}, gap[4] = {1, 1e30f, 1, 1e30f};
    const float negative[4] = {-1, 1, 1, 1}, zero[4] = {0, 1, 1, 1};
    assert_int_equal(config_with(*state, released, 4, &c, &err), KK_OK);
    assert_int_equal(c.rope[KK_FULL].n_rot, 2);
    assert_true(c.rope[KK_FULL].factor == 1);
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(config_with(*state, scaled, 4, &c, &err), KK_OK);
    assert_int_equal(c.rope[KK_FULL].n_rot, 3);
    assert_true(c.rope[KK_FULL].factor == 8);
    assert_int_equal(config_with(*state, noise, 4, &c, &err), KK_OK); /* random weights */
    assert_int_equal(c.rope[KK_FULL].n_rot, 4);
    assert_true(c.rope[KK_FULL].factor == 1);
    assert_int_equal(config_with(*state, NULL, 0, &c, &err), KK_OK); /* every pair turns */
    assert_int_equal(c.rope[KK_FULL].n_rot, 16);
    assert_int_equal(config_with(*state, gap, 4, &c, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "unexpected divisor 1 at 2"));
    assert_int_equal(config_with(*state, negative, 4, &c, &err), KK_EFORMAT);
    assert_int_equal(config_with(*state, zero, 4, &c, &err), KK_EFORMAT);
}

/* ---- names ------------------------------------------------------------------------------ */

static void every_tensor_has_two_names(void **state) {
    (void)state;
    static const char *const presets[] = {"26b-a4b", "31b", "e2b", "e4b"};
    for (size_t p = 0; p < 4; p++) {
        kk_config c;
        kk_inventory list;
        char there[KK_MAX_NAME], back[KK_MAX_NAME];
        assert_int_equal(kk_config_preset(&c, presets[p], 0, NULL), KK_OK);
        assert_int_equal(kk_inventory_make(&list, &c, NULL), KK_OK);
        for (size_t i = 0; i < list.n; i++) {
            assert_true(kk_gguf_name_from_hf(list.items[i].name, there));
            assert_true(kk_gguf_name_to_hf(there, back));
            assert_string_equal(back, list.items[i].name);
        }
        kk_inventory_free(&list);
    }
    char out[KK_MAX_NAME];
    assert_true(kk_gguf_name_from_hf("layers.29.router.per_expert_scale", out));
    assert_string_equal(out, "blk.29.ffn_down_exps.scale");
    assert_true(kk_gguf_name_to_hf("blk.3.ffn_up_exps.weight", out));
    assert_string_equal(out, "layers.3.experts.up_proj");
    static const char *const strangers[] = {
        "rope_freqs.weight", "blk..attn_q.weight",        "blk.1",
        "blk.1.attn_q.bias", "blk.9999999.attn_q.weight", ""};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        assert_false(kk_gguf_name_to_hf(strangers[i], out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_back_what_it_wrote, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(tensors_lie_where_they_should, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(refuses_every_truncation, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(refuses_each_bad_header, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(refuses_doubles, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(refuses_odd_alignments, scratch_setup, scratch_teardown),
        cmocka_unit_test(converts_integers_of_any_width),
        cmocka_unit_test_setup_teardown(divisors_tell_which_pairs_rotate, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test(every_tensor_has_two_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
