/* projection_test.c - a projection's files held to strict names and shapes and written whole or not
 * at all; random ones; packing.
 * ctest: threads (packing has several) */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>

#include "support/ok.h"
#include "support/projection_folder.h"

/* ---- files ---------------------------------------------------------------------------------- */

static void same_values(const kk_projection *p, const char *name, const float *values,
                        kk_dtype type) {
    const kk_tensor *t = kk_checkpoint_find(kk_projection_tensors(p), name);
    assert_non_null(t);
    assert_int_equal(t->dtype, type);
    const size_t n = (size_t)kk_tensor_values(t);
    for (size_t i = 0; i < n; i++) {
        float have;
        const float want = type == KK_BF16 ? kk_bf16_f32(kk_f32_bf16(values[i])) : values[i];
        kk_dequantize(type, t->data.base + i * (size_t)kk_dtype_get(type)->bytes, &have, 1);
        if (have != want) fail_msg("%s[%zu] is %g, not %g", name, i, (double)have, (double)want);
    }
}

static void round_trip(const char *dir, const kk_projection_config *c, kk_dtype type) {
    projection_values v = projection_values_of(c);
    kk_projection *p;
    size_t n = 0;
    assert_ok(kk_projection_write(dir, c, &v.values, type, why));
    assert_int_equal(scratch_entries(dir), 2);
    assert_ok(kk_projection_open(&p, dir, &(kk_checkpoint_opts){.huge_pages = true}, why));
    same_config(kk_projection_config_of(p), c);
    same_values(p, c->joint ? "encoder.weight" : "encoder_k.weight", v.values.encoder[0], type);
    if (!c->joint) same_values(p, "encoder_v.weight", v.values.encoder[1], type);
    n += c->joint ? 1 : 2;
    for (int32_t i = 0; i < c->n_layer; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.k.weight", i);
        if (v.values.k[i]) same_values(p, name, v.values.k[i], type);
        snprintf(name, sizeof name, "layers.%d.v.weight", i);
        if (v.values.v[i]) same_values(p, name, v.values.v[i], type);
        n += (v.values.k[i] != NULL) + (size_t)(v.values.v[i] != NULL);
    }
    assert_int_equal(kk_checkpoint_count(kk_projection_tensors(p)), n);
    assert_int_equal(kk_projection_packed_bytes(p), 0);
    kk_projection_close(p);
    free(v.all);
}

static void a_projection_returns_from_files(void **state) {
    scratch *s = *state;
    const kk_config v = small_moe(), shared = small_ple();
    const kk_projection_config joint = projection_for(&v, true), two = projection_for(&v, false);
    round_trip(scratch_path(s, "a"), &joint, KK_F32); /* a folder that is not there */
    round_trip(scratch_path(s, "a"), &joint, KK_BF16);
    round_trip(scratch_path(s, "a"), &two, KK_F32); /* replaces what is */
    round_trip(scratch_path(s, "b/"), &two, KK_BF16);
    kk_projection_config some = joint;
    memset(&some.layer[5], 0, sizeof some.layer[5]);
    memset(&some.layer[0], 0, sizeof some.layer[0]);
    round_trip(scratch_path(s, "c"), &some, KK_F32);
    kk_projection_config large = projection_for(&shared, true);
    for (int32_t i = 3; i < 6; i++) memset(&large.layer[i], 0, sizeof large.layer[i]);
    round_trip(scratch_path(s, "d"), &large, KK_F32);
    kk_projection_close(NULL);
}

/* Value i of the n-th tensor that tests/tools/convert_projection_test.py makes. */
static float converted_value(int32_t n, int32_t i) {
    return (float)((i * 7 + n * 13) % 251 - 125) / 64;
}

/* What tools/convert_projection.py writes; its own test compares it with the same files. */
static void a_converted_prototype_opens(void **state) {
    (void)state;
    static const char *const order[] = {
        "encoder_k.weight",  "encoder_v.weight",  "layers.0.k.weight", "layers.1.k.weight",
        "layers.2.k.weight", "layers.0.v.weight", "layers.1.v.weight", "layers.2.v.weight"};
    kk_projection *p;
    float values[512];
    assert_ok(kk_projection_open(&p, KK_TEST_DATA "/projection/converted", NULL, why));
    const kk_projection_config *c = kk_projection_config_of(p);
    assert_int_equal(kk_projection_params(c), 3584);
    assert_true(c->source == KK_SOURCE_DRAFTER_KV && !c->joint && c->rank == 16);
    assert_true(c->draft.n_layer == 2 && c->draft.n_kv_head == 2 && c->draft.head_dim == 4);
    assert_true(c->layer[2].k_eq_v && !c->layer[1].k_eq_v && c->hidden == 64);
    for (int32_t n = 0; n < 8; n++) {
        for (int32_t i = 0; i < 512; i++) values[i] = converted_value(n, i);
        same_values(p, order[n], values, KK_F32);
    }
    kk_projection_close(p);
}

static void refused_folder(const char *dir, const char *says) {
    kk_projection *p = (kk_projection *)1;
    kk_err err = {0};
    const int64_t blocks = kk_live_blocks();
    const kk_status st = kk_projection_open(&p, dir, NULL, &err);
    assert_true(st == KK_EFORMAT || st == KK_EIO);
    assert_null(p);
    assert_int_equal(kk_live_blocks(), blocks);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void wrong_files_are_refused_by_name(void **state) {
    scratch *s = *state;
    const kk_config v = small_moe();
    const kk_projection_config c = projection_for(&v, true);
    projection_values values = projection_values_of(&c);
    kk_inventory list;
    model_tensors *m = calloc(1, sizeof *m);
    char path[512];
    assert_ok(kk_projection_write(s->dir, &c, &values.values, KK_F32, why));
    snprintf(path, sizeof path, "%s/projection.safetensors", s->dir);
    assert_ok(kk_inventory_make_projection(&list, &c, why));
    model_add(m, &list, "", KK_F32);
    kk_inventory_free(&list);
    const size_t n = m->n;
    for (size_t i = 0; i < n; i++) {
        const kk_tensor whole = m->tensors[i];
        m->tensors[i] = m->tensors[n - 1];
        assert_ok(kk_safetensors_write(path, m->tensors, n - 1, why));
        refused_folder(s->dir, whole.name);
        refused_folder(s->dir, "missing");
        m->tensors[i] = whole;
        m->tensors[i].dims[1] /= 2;
        m->tensors[i].data.size /= 2;
        assert_ok(kk_safetensors_write(path, m->tensors, n, why));
        refused_folder(s->dir, whole.name);
        refused_folder(s->dir, "has shape");
        m->tensors[i] = whole;
        m->tensors[i].dtype = KK_I32;
        assert_ok(kk_safetensors_write(path, m->tensors, n, why));
        refused_folder(s->dir, "holds integers");
        m->tensors[i] = whole;
    }
    m->tensors[n] = m->tensors[n - 1];
    m->tensors[n].name = "layers.5.k.weight"; /* K = V: it has the other alone */
    assert_ok(kk_safetensors_write(path, m->tensors, n + 1, why));
    refused_folder(s->dir, "this projection has no tensor 'layers.5.k.weight'");
    assert_ok(kk_safetensors_write(path, m->tensors, n, why));
    size_t len;
    char *all = scratch_read(path, &len);
    for (size_t cut = 1; cut < len; cut += len / 7) {
        scratch_write(path, all, len - cut);
        refused_folder(s->dir, "projection.safetensors");
    }
    unlink(path);
    refused_folder(s->dir, "projection.safetensors");
    unlink(scratch_path(s, "projection.json"));
    refused_folder(s->dir, "projection.json");
    refused_folder("/nonexistent/projection", "projection.json");
    free(all);
    model_free(m);
    free(values.all);
}

static kk_status try_write(const char *dir, const kk_projection_config *c,
                           const kk_projection_values *v, kk_dtype type, const char *says) {
    kk_err err = {0};
    const int64_t blocks = kk_live_blocks();
    const kk_status st = kk_projection_write(dir, c, v, type, &err);
    if (st == KK_OK || !strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
    assert_int_equal(err.code, st);
    assert_int_equal(kk_live_blocks(), blocks);
    return st;
}

static void what_cannot_be_written(void **state) {
    scratch *s = *state;
    const kk_config v = small_moe();
    kk_projection_config c = projection_for(&v, true);
    projection_values all = projection_values_of(&c);
    const char *dir = scratch_path(s, "to");
    kk_projection_values some = all.values;
    some.k[3] = NULL;
    assert_int_equal(try_write(dir, &c, &some, KK_F32, "'layers.3.k.weight'"), KK_EINVAL);
    some = all.values;
    some.v[5] = NULL;
    assert_int_equal(try_write(dir, &c, &some, KK_BF16, "'layers.5.v.weight'"), KK_EINVAL);
    some = all.values;
    some.encoder[0] = NULL;
    assert_int_equal(try_write(dir, &c, &some, KK_F32, "'encoder.weight'"), KK_EINVAL);
    assert_int_equal(try_write(dir, &c, &all.values, KK_Q8_0, "not q8_0"), KK_EINVAL);
    c.rank = 0;
    assert_int_equal(try_write(dir, &c, &all.values, KK_F32, "rank is 0"), KK_EINVAL);
    c = projection_for(&v, true);
    c.joint = false;
    assert_int_equal(try_write(dir, &c, &all.values, KK_F32, "'encoder_v.weight'"), KK_EINVAL);
    assert_int_equal(scratch_entries(s->dir), 0); /* the folder was not even made */
    free(all.all);
}

/* Bytes of a projection that was there before, kept by every failure. */
typedef struct {
    char *config, *tensors;
    size_t config_len, tensors_len;
} before;

static char *read_in(const char *dir, const char *name, size_t *len) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return scratch_read(path, len);
}

static before remember(const char *dir) {
    before b;
    b.config = read_in(dir, "projection.json", &b.config_len);
    b.tensors = read_in(dir, "projection.safetensors", &b.tensors_len);
    assert_non_null(b.config);
    assert_non_null(b.tensors);
    return b;
}

static void is_as_before(const char *dir, before b) {
    const before now = remember(dir);
    assert_int_equal(scratch_entries(dir), 2);
    assert_int_equal(now.config_len, b.config_len);
    assert_int_equal(now.tensors_len, b.tensors_len);
    assert_memory_equal(now.config, b.config, b.config_len);
    assert_memory_equal(now.tensors, b.tensors, b.tensors_len);
    free(now.config);
    free(now.tensors);
}

/* A file size limit stands for a full disk. */
static void a_full_disk_changes_nothing(void **state) {
    scratch *s = *state;
    const kk_config v = small_moe();
    kk_projection_config c = projection_for(&v, true);
    projection_values values = projection_values_of(&c);
    struct rlimit old, small;
    char dir[512];
    snprintf(dir, sizeof dir, "%s", scratch_path(s, "to"));
    assert_ok(kk_projection_write(dir, &c, &values.values, KK_BF16, why));
    before b = remember(dir);
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){20000, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    values.all[0] += 1;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(try_write(dir, &c, &values.values, KK_F32, "File too large"), KK_EIO);
    assert_int_equal(try_write(scratch_path(s, "new"), &c, &values.values, KK_F32, "File too"),
                     KK_EIO);
    setrlimit(RLIMIT_FSIZE, &old);
    is_as_before(dir, b);
    assert_int_equal(scratch_entries(scratch_path(s, "new")), 0);
    free(b.config);
    free(b.tensors);
    free(values.all);
}

static void places_that_take_no_files(void **state) {
    scratch *s = *state;
    const kk_config v = small_moe();
    kk_projection_config c = projection_for(&v, true);
    projection_values values = projection_values_of(&c);
    const kk_projection_values *all = &values.values;
    /* A folder stands where a file should go: found before anything is written. */
    mkdir(scratch_path(s, "a"), 0700);
    mkdir(scratch_path(s, "a/projection.safetensors"), 0700);
    assert_int_equal(try_write(scratch_path(s, "a"), &c, all, KK_F32, "is a folder"), KK_EIO);
    assert_int_equal(scratch_entries(s->path), 1);
    mkdir(scratch_path(s, "b"), 0700);
    mkdir(scratch_path(s, "b/projection.json"), 0700);
    assert_int_equal(try_write(scratch_path(s, "b"), &c, all, KK_F32, "is a folder"), KK_EIO);
    assert_int_equal(scratch_entries(s->path), 1);
    refused_folder(s->path, "projection.json");
    scratch_write(scratch_path(s, "file"), "x", 1);
    assert_int_equal(try_write(s->path, &c, all, KK_F32, "File exists"), KK_EIO);
    assert_int_equal(try_write(scratch_path(s, "no/where"), &c, all, KK_F32, "No such file"),
                     KK_EIO);
    free(values.all);
}

/* ---- random and packed ----------------------------------------------------------------------- */

static double mean_square(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum / (double)n;
}

/* y = W x with the tensor of that name. */
static float *apply(const kk_projection *p, const char *name, const float *x) {
    const kk_tensor *t = kk_checkpoint_find(kk_projection_tensors(p), name);
    assert_non_null(t);
    const size_t rows = (size_t)t->dims[0], n = (size_t)t->dims[1], size = t->data.size / rows;
    float *y = calloc(rows, sizeof *y), *row = malloc(n * sizeof *row);
    for (size_t r = 0; r < rows; r++) {
        kk_dequantize(t->dtype, t->data.base + r * size, row, n);
        for (size_t i = 0; i < n; i++) y[r] += row[i] * x[i];
    }
    free(row);
    return y;
}

/* What comes out of a random map spreads as K and V before their norms: neither dies nor grows. */
static void random_ones_keep_their_spread(void **state) {
    (void)state;
    static const int32_t taps[] = {1, 4, 10};
    kk_config v;
    kk_mem mem = {0};
    kk_projection *p, *again;
    float x[768];
    uint64_t seed = 3;
    assert_ok(kk_config_preset(&v, "tiny", 0, why));
    assert_ok(kk_projection_synthetic(&p, &v, 128, taps, 3, &mem, why));
    assert_ok(kk_projection_synthetic(&again, &v, 128, taps, 3, &mem, why));
    const kk_projection_config *c = kk_projection_config_of(p);
    assert_true(c->joint && c->n_in == 768 && c->rank == 128 && c->taps[2] == 10);
    assert_ok(kk_projection_check(c, &v, NULL, true, why));
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_PROJECTION], 2 * 2 * kk_projection_params(c));
    for (int i = 0; i < 768; i++) x[i] = random_float(&seed) * 1.7320508f;
    float *z = apply(p, "encoder.weight", x), *k = apply(p, "layers.0.k.weight", z);
    float *both = apply(p, "layers.11.v.weight", z);
    assert_true(fabs(mean_square(z, 128) - 1) < 0.5);
    assert_true(fabs(mean_square(k, 128) - 1) < 0.7);
    assert_true(fabs(mean_square(both, 128) - 1) < 0.7);
    assert_null(kk_checkpoint_find(kk_projection_tensors(p), "layers.11.k.weight"));
    for (size_t i = 0; i < kk_checkpoint_count(kk_projection_tensors(p)); i++) {
        const kk_tensor *a = kk_checkpoint_at(kk_projection_tensors(p), i);
        const kk_tensor *b = kk_checkpoint_at(kk_projection_tensors(again), i);
        assert_int_equal(a->dtype, KK_BF16);
        assert_memory_equal(a->data.base, b->data.base, a->data.size);
    }
    free(z);
    free(k);
    free(both);
    kk_projection_close(p);
    kk_projection_close(again);
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_PROJECTION], 0);
}

static void random_ones_in_any_shape(void **state) {
    (void)state;
    static const int32_t taps[] = {1, 6, 11, 17, 22, 27}, far[] = {30};
    kk_config v;
    kk_projection *p;
    kk_err err = {0};
    assert_ok(kk_config_preset(&v, "26b-a4b", 0, why));
    assert_ok(kk_projection_synthetic(&p, &v, 256, taps, 6, NULL, why)); /* shapes alone */
    assert_int_equal(kk_projection_params(kk_projection_config_of(p)),
                     256 * (6 * 2816 + 25 * 2 * 2048 + 5 * 1024));
    kk_projection_close(p);
    assert_int_equal(kk_projection_synthetic(&p, &v, 256, far, 1, NULL, &err), KK_EINVAL);
    assert_null(p);
    assert_non_null(strstr(err.msg, "taps[0] is 30, the verifier has 30 layers"));
    assert_int_equal(kk_projection_synthetic(&p, &v, 0, taps, 6, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_projection_synthetic(&p, &v, 8, taps, 0, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_projection_synthetic(&p, &v, 8, taps, 1 << 20, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "1048576"));
    const kk_config shared = small_ple(); /* layers that read another's rows */
    assert_ok(kk_projection_synthetic(&p, &shared, 8, taps, 1, NULL, why));
    assert_true(kk_projection_config_of(p)->layer[2].restored);
    assert_false(kk_projection_config_of(p)->layer[3].restored);
    assert_ok(kk_projection_check(kk_projection_config_of(p), &shared, NULL, true, why));
    kk_projection_close(p);
}

/* Decoders are rounded, the encoder is not; what it takes is counted and given back. */
static void pack_and_close(kk_projection *p, const kk_projection *whole, kk_mem *mem) {
    const kk_drafter_packing how = {.type = KK_Q8_0, .threads = 2};
    const kk_checkpoint *a = kk_projection_tensors(p), *b = kk_projection_tensors(whole);
    int64_t packed = 0;
    assert_ok(kk_projection_pack(p, &how, mem, why));
    assert_ok(kk_projection_pack(p, &how, mem, why)); /* once is enough */
    for (size_t i = 0; i < kk_checkpoint_count(a); i++) {
        const kk_tensor *t = kk_checkpoint_at(a, i), *from = kk_checkpoint_at(b, i);
        const bool decoder = strncmp(t->name, "layers.", 7) == 0;
        const size_t n = (size_t)kk_tensor_values(t);
        assert_int_equal(t->dtype, decoder ? KK_Q8_0 : from->dtype);
        if (decoder) packed += (int64_t)t->data.size;
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
        kk_dequantize(t->dtype, t->data.base, x, n);
        kk_dequantize(from->dtype, from->data.base, y, n);
        for (size_t k = 0; k < n; k++) y[k] -= x[k];
        assert_true(mean_square(y, n) < 1e-4 * mean_square(x, n));
        free(x);
        free(y);
    }
    assert_int_equal(kk_projection_packed_bytes(p), packed);
    assert_true(packed > 0);
    kk_projection_close(p);
}

static void packing_rounds_the_decoders(void **state) {
    scratch *s = *state;
    static const int32_t taps[] = {0, 3};
    const kk_config v = small_moe();
    const kk_projection_config c = projection_for(&v, true);
    projection_values values = projection_values_of(&c);
    kk_mem mem = {0};
    kk_projection *p, *whole;
    assert_ok(kk_projection_write(s->dir, &c, &values.values, KK_F32, why));
    assert_ok(kk_projection_open(&p, s->dir, NULL, why));
    assert_ok(kk_projection_open(&whole, s->dir, NULL, why));
    pack_and_close(p, whole, &mem);
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_PROJECTION], 0);
    kk_projection_close(whole);
    /* Random ones give the pages of what was rounded back. */
    assert_ok(kk_projection_synthetic(&p, &v, 32, taps, 2, &mem, why));
    const int64_t bytes = mem.bytes[KK_MEM_WEIGHTS_PROJECTION];
    assert_ok(kk_projection_synthetic(&whole, &v, 32, taps, 2, &mem, why));
    pack_and_close(p, whole, &mem);
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_PROJECTION], bytes);
    kk_projection_close(whole);
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_PROJECTION], 0);
    free(values.all);
}

/* A rank that fills no blocks stays as it is. */
static void packing_leaves_odd_ranks(void **state) {
    (void)state;
    static const int32_t taps[] = {0};
    const kk_config v = small_moe();
    const kk_drafter_packing how = {.type = KK_Q8_0, .threads = 1};
    kk_mem mem = {0};
    kk_projection *p;
    assert_ok(kk_projection_synthetic(&p, &v, 24, taps, 1, &mem, why));
    assert_ok(kk_projection_pack(p, &how, &mem, why));
    assert_int_equal(kk_projection_packed_bytes(p), 0);
    kk_projection_close(p);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_projection_returns_from_files),
        cmocka_unit_test(a_converted_prototype_opens),
        IN_FOLDER(wrong_files_are_refused_by_name),
        IN_FOLDER(what_cannot_be_written),
        IN_FOLDER(a_full_disk_changes_nothing),
        IN_FOLDER(places_that_take_no_files),
        cmocka_unit_test(random_ones_keep_their_spread),
        cmocka_unit_test(random_ones_in_any_shape),
        IN_FOLDER(packing_rounds_the_decoders),
        cmocka_unit_test(packing_leaves_odd_ranks),
    };
    return cmocka_run_group_tests_name("projection", tests, NULL, NULL);
}
