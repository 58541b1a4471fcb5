/* mlx_folder_test.c - folders of MLX's converters: what codes mean, against MLX itself; names; and
 * every way in which the three tensors of a matrix may not belong together.
 *
 * tests/data/mlx/golden.safetensors was written by MLX 0.32.4 (tools/reference/dump_mlx.py). */
#define _GNU_SOURCE
#include "support/ok.h"

#include <math.h>

#include "format/lineage.h"
#include "support/mlx_folder.h"

#define PREFIX "language_model.model."

static const mlx_how usual = {4, 64, KK_BF16, PREFIX};

/* A model of 26B-A4B's kind whose experts' rows fill groups of 64, and with bits to spare. */
static model_tensors *source(void) {
    kk_config c = small_moe();
    c.expert_ffn = 64;
    return model_make(&c, "", KK_F32);
}

/* ---- MLX's own file ---------------------------------------------------------------------- */

static const kk_tensor *golden(const kk_safetensors *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static const kk_tensor *golden_part(const kk_safetensors *s, int32_t bits, int32_t group,
                                    kk_dtype plane, const char *part) {
    char name[64];
    snprintf(name, sizeof name, "%d_%d_%s.%s", bits, group, kk_dtype_get(plane)->name, part);
    return golden(s, name);
}

static void assert_products(const kk_safetensors *s, const kk_tensor *y, const float *w,
                            size_t rows, size_t width) {
    const uint8_t *x = golden(s, "x")->data.base;
    for (size_t r = 0; r < 2; r++)
        for (size_t o = 0; o < rows; o++) {
            double sum = 0, size = 0;
            float have;
            memcpy(&have, y->data.base + (r * rows + o) * sizeof have, sizeof have);
            for (size_t i = 0; i < width; i++) {
                float v;
                memcpy(&v, x + (r * width + i) * sizeof v, sizeof v);
                sum += (double)v * (double)w[o * width + i];
                size += fabs((double)v * (double)w[o * width + i]);
            }
            assert_true(fabs(sum - (double)have) <= 1e-6 * size);
        }
}

static void codes_mean_what_mlx_says(void **state) {
    (void)state;
    static const kk_dtype planes[] = {KK_BF16, KK_F16, KK_F32};
    kk_map map;
    kk_safetensors s;
    assert_ok(kk_map_open(&map, KK_TEST_DATA "/mlx/golden.safetensors", why));
    assert_ok(kk_safetensors_parse(&s, map.span, "golden", why));
    int negative = 0;
    for (int t = KK_MLX4_32; t <= KK_MLX8_64; t++)
        for (size_t p = 0; p < 3; p++) {
            const int32_t bits = kk_affine_bits((kk_dtype)t),
                          group = kk_dtype_get((kk_dtype)t)->values;
            const kk_tensor *want = golden_part(&s, bits, group, planes[p], "floats");
            const kk_tensor *scales = golden_part(&s, bits, group, planes[p], "scales");
            const kk_tensor *biases = golden_part(&s, bits, group, planes[p], "biases");
            const size_t n = (size_t)kk_tensor_values(want);
            float *got = malloc(n * sizeof *got), first;
            assert_int_equal(scales->dtype, planes[p]);
            kk_dequantize_affine(
                (kk_dtype)t, golden_part(&s, bits, group, planes[p], "weight")->data.base,
                (kk_planes){scales->data.base, biases->data.base, planes[p]}, got, n);
            assert_memory_equal(got, want->data.base, n * sizeof *got);
            assert_products(&s, golden_part(&s, bits, group, planes[p], "y"), got,
                            (size_t)want->dims[0], (size_t)want->dims[1]);
            kk_dequantize(planes[p], scales->data.base, &first, 1);
            for (int64_t i = 0; i < kk_tensor_values(scales); i++) {
                kk_dequantize(planes[p], scales->data.base + i * kk_dtype_get(planes[p])->bytes,
                              &first, 1);
                negative += first < 0;
            }
            free(got);
        }
    assert_true(negative > 0); /* MLX has scales of either sign */
    kk_safetensors_free(&s);
    kk_map_close(&map);
}

/* ---- folders ----------------------------------------------------------------------------- */

static kk_checkpoint *open_folder(const char *dir) {
    kk_checkpoint *c = NULL;
    assert_ok(kk_checkpoint_open(&c, dir, NULL, why));
    return c;
}

/* Every tensor of the checkpoint has the values of the model that it was made from. */
static void assert_same_values(const kk_checkpoint *c, model_tensors *from) {
    for (size_t i = 0; i < from->n; i++) {
        const kk_tensor *want = &from->tensors[i];
        if (strstr(want->name, "gate_up_proj")) continue;
        const kk_tensor *have = kk_checkpoint_find(c, want->name);
        if (!have) fail_msg("no %s", want->name);
        const size_t n = (size_t)kk_tensor_values(want);
        assert_int_equal(kk_tensor_values(have), n);
        float *y = malloc(n * sizeof *y);
        kk_tensor_floats(have, 0, y, n);
        if (memcmp(y, want->data.base, n * sizeof *y) != 0) fail_msg("%s differs", want->name);
        free(y);
    }
}

static void every_kind_is_read(void **state) {
    scratch *s = *state;
    static const char *const prefixes[] = {PREFIX, "model.", ""};
    static const kk_dtype planes[] = {KK_BF16, KK_F16, KK_F32};
    for (int t = KK_MLX4_32; t <= KK_MLX8_64; t++) {
        const size_t k = (size_t)(t - KK_MLX4_32) % 3;
        const mlx_how how = {kk_affine_bits((kk_dtype)t), kk_dtype_get((kk_dtype)t)->values,
                             planes[k], prefixes[k]};
        model_tensors *from = source();
        mlx_model *m = mlx_make(from, how);
        mlx_write(s->dir, m);
        kk_checkpoint *c = open_folder(s->dir);
        assert_string_equal(kk_checkpoint_format(c), "mlx");
        assert_same_values(c, from);
        const kk_tensor *up = kk_checkpoint_find(c, "layers.3.experts.up_proj");
        assert_true(up && up->dtype == (kk_dtype)t && up->n_dims == 3 && up->dims[2] == 64);
        assert_int_equal(kk_checkpoint_find(c, "embed_tokens.weight")->dtype, t);
        assert_int_equal(kk_checkpoint_find(c, "layers.0.router.proj.weight")->dtype, KK_MLX8_64);
        assert_int_equal(kk_checkpoint_find(c, "norm.weight")->dtype, KK_BF16);
        assert_null(kk_checkpoint_find(c, "embed_tokens.scales"));
        kk_checkpoint_close(c);
        mlx_free(m);
        model_free(from);
    }
}

/* Names of MLX without quantisation, and rows that do not fill groups. */
static void what_is_not_quantised_is_read_too(void **state) {
    scratch *s = *state;
    const kk_config narrow = small_moe(); /* experts' rows of 40 */
    const mlx_how hows[] = {{0, 0, KK_BF16, PREFIX}, {4, 32, KK_BF16, PREFIX}};
    for (size_t i = 0; i < 2; i++) {
        model_tensors *from = model_make(&narrow, "", KK_F32);
        mlx_model *m = mlx_make(from, hows[i]);
        mlx_write(s->dir, m);
        kk_checkpoint *c = open_folder(s->dir);
        assert_same_values(c, from);
        assert_int_equal(kk_checkpoint_find(c, "layers.3.experts.down_proj")->dtype, KK_BF16);
        kk_checkpoint_close(c);
        mlx_free(m);
        model_free(from);
    }
}

static void all_three_tensors_are_counted(void **state) {
    scratch *s = *state;
    model_tensors *from = source();
    mlx_model *m = mlx_make(from, usual);
    kk_model_info info;
    int64_t bytes = 0, bad;
    for (size_t i = 0; i < m->n; i++) bytes += (int64_t)m->t[i].data.size;
    mlx_write(s->dir, m);
    assert_ok(kk_model_inspect(s->dir, &info, why));
    assert_int_equal(info.weight_bytes, bytes);
    assert_string_equal(info.weight_type, "mlx4_64");
    assert_string_equal(info.format, "mlx");
    assert_ok(kk_model_check(s->dir, NULL, NULL, &bad, why));
    assert_int_equal(bad, 0);
    const float nan = NAN;
    kk_quantize_row(KK_BF16, &nan, mlx_bytes(mlx_find(m, "layers.2.mlp.up_proj.biases")), 1);
    mlx_write(s->dir, m);
    assert_ok(kk_model_check(s->dir, NULL, NULL, &bad, why));
    assert_int_equal(bad, 1);
    mlx_free(m);
    model_free(from);
}

/* ---- what does not fit ------------------------------------------------------------------- */

static void assert_says(scratch *s, const mlx_model *m, const char *says) {
    kk_checkpoint *c = NULL;
    kk_err err = {0};
    mlx_write(s->dir, m);
    assert_int_equal(kk_checkpoint_open(&c, s->dir, NULL, &err), KK_EFORMAT);
    assert_null(c);
    if (!strstr(err.msg, says)) fail_msg("want '%s', have '%s'", says, err.msg);
}

/* `quantization` is replaced by this text, or with module a part of it. */
static void assert_config_says(scratch *s, const char *module, const char *text, const char *says) {
    model_tensors *from = source();
    mlx_model *m = mlx_make(from, usual);
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    json_object_set_new(module ? mlx_quantization(m) : m->config, module ? module : "quantization",
                        value);
    assert_says(s, m, says);
    mlx_free(m);
    model_free(from);
}

static void configurations_are_refused_by_name(void **state) {
    scratch *s = *state;
    assert_config_says(s, NULL, "{\"group_size\": 64, \"bits\": 3}", "3 bits in groups of 64");
    assert_config_says(s, NULL, "{\"group_size\": 128, \"bits\": 4}", "4 bits in groups of 128");
    assert_config_says(s, NULL, "{\"group_size\": 64}", "bits is missing");
    assert_config_says(s, NULL, "{\"bits\": 4}", "group_size is missing");
    assert_config_says(s, NULL, "{\"group_size\": \"64\", \"bits\": 4}", "group_size");
    assert_config_says(s, NULL, "{\"group_size\": 32, \"bits\": 4, \"mode\": \"mxfp4\"}",
                       "mode 'mxfp4'");
    assert_config_says(s, NULL, "{\"group_size\": 32, \"bits\": 4, \"mode\": 7}", "not a string");
    assert_config_says(s, NULL, "4", "quantization");
    assert_config_says(s, NULL, "null", "config.json has no quantization");
    /* Modules of their own: the message names them. */
    const char *const router = PREFIX "layers.2.router.proj";
    assert_config_says(s, router, "{\"group_size\": 64, \"bits\": 6}", router);
    assert_config_says(s, router, "false", "is not quantised");
    assert_config_says(s, router, "7", router);
    /* True: as all the others, which its 8 bits are not; so is one with no entry of its own. */
    assert_config_says(s, router, "true", "layers.2.router.proj.scales");
    /* What is left out is MLX's default of 4 bits, not the others' value. */
    assert_config_says(s, router, "{\"group_size\": 64}", "layers.2.router.proj.scales");
    assert_config_says(s, PREFIX "embed_tokens", "{\"group_size\": 32, \"bits\": 4}",
                       "'embed_tokens.scales' has 1 values in a row");
}

typedef void (*change)(mlx_model *m);

static void no_scales(mlx_model *m) { mlx_find(m, "layers.1.self_attn.o_proj.scales")->name = ""; }
static void no_biases(mlx_model *m) {
    mlx_find(m, "layers.1.experts.switch_glu.up_proj.biases")->name = "";
}
static void no_weight(mlx_model *m) { mlx_find(m, "layers.1.mlp.up_proj.weight")->name = ""; }
static void other_type(mlx_model *m) {
    kk_tensor *t = mlx_find(m, "layers.0.self_attn.o_proj.biases");
    t->dtype = KK_F16;
}
static void integer_scales(mlx_model *m) {
    kk_tensor *t = mlx_find(m, "embed_tokens.scales");
    t->dtype = KK_U32;
    t->dims[0] /= 2;
}
static void fewer_rows(mlx_model *m) {
    kk_tensor *t = mlx_find(m, "layers.0.mlp.up_proj.scales");
    t->dims[0] -= 1;
    t->data.size -= 2;
}
static void flat(mlx_model *m) {
    kk_tensor *t = mlx_find(m, "layers.0.experts.switch_glu.down_proj.biases");
    t->n_dims = 2;
    t->dims[0] *= t->dims[1];
    t->dims[1] = t->dims[2];
}
static void half_a_row(mlx_model *m) {
    kk_tensor *t = mlx_find(m, "layers.0.mlp.up_proj.weight");
    t->dims[1] /= 2;
    t->data.size /= 2;
}
static void packed_norm(mlx_model *m) {
    kk_tensor *t = mlx_find(m, "model.norm.weight");
    t->dtype = KK_U32;
    t->dims[0] /= 2;
}

static void tensors_are_refused_by_name(void **state) {
    static const struct {
        change make;
        const char *says;
    } cases[] = {
        {no_scales, "'layers.1.self_attn.o_proj.scales' is missing"},
        {no_biases, "'layers.1.experts.switch_glu.up_proj.biases' is missing"},
        {no_weight, "'layers.1.mlp.up_proj.weight' is missing"},
        {other_type, "'layers.0.self_attn.o_proj.biases' (f16) differ in type"},
        {integer_scales, "'embed_tokens.scales' holds no floats (u32)"},
        {fewer_rows, "'layers.0.mlp.up_proj.scales'"},
        {flat, "'layers.0.experts.switch_glu.down_proj.biases'"},
        {half_a_row, "'layers.0.mlp.up_proj.weight' have 32 codes, which make no groups of 64"},
        {packed_norm, "'norm.weight' is packed and no matrix"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_tensors *from = source();
        mlx_model *m = mlx_make(from, usual);
        cases[i].make(m);
        assert_says(*state, m, cases[i].says);
        mlx_free(m);
        model_free(from);
    }
}

static void quantize_does_not_read_them(void **state) {
    scratch *s = *state;
    model_tensors *from = source();
    mlx_model *m = mlx_make(from, usual);
    kk_err err = {0};
    char out[600];
    mlx_write(s->dir, m);
    snprintf(out, sizeof out, "%s/out.gguf", s->dir);
    assert_int_equal(kk_quantize(s->dir, out, "q8_0", NULL, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "MLX's converter"));
    assert_int_not_equal(access(out, F_OK), 0);
    mlx_free(m);
    model_free(from);
}

/* The bytes of the scales are part of what a checkpoint is. */
static void fingerprints_see_the_planes(void **state) {
    scratch *s = *state;
    model_tensors *from = source();
    mlx_model *m = mlx_make(from, usual);
    uint64_t seen[3];
    static const char *const parts[] = {"layers.4.mlp.up_proj.scales",
                                        "layers.4.mlp.up_proj.biases"};
    for (size_t i = 0; i < 3; i++) {
        mlx_write(s->dir, m);
        kk_checkpoint *c = open_folder(s->dir);
        seen[i] = kk_lineage_weights(c);
        kk_checkpoint_close(c);
        if (i < 2) mlx_bytes(mlx_find(m, parts[i]))[0] ^= 1;
    }
    assert_true(seen[0] != seen[1] && seen[1] != seen[2]);
    mlx_free(m);
    model_free(from);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_mean_what_mlx_says),    IN_FOLDER(every_kind_is_read),
        IN_FOLDER(what_is_not_quantised_is_read_too),  IN_FOLDER(all_three_tensors_are_counted),
        IN_FOLDER(configurations_are_refused_by_name), IN_FOLDER(tensors_are_refused_by_name),
        IN_FOLDER(quantize_does_not_read_them),        IN_FOLDER(fingerprints_see_the_planes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
