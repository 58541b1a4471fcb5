/* checkpoint_test.c - models open whatever style their folder has, damage is named by tensor,
 * and what is told of a model agrees with its published figures.
 * ctest: threads (random weights are laid out by several) */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/clock.h"
#include "support/model_folder.h"
#include "support/skips.h"

static kk_checkpoint *opened(const char *path) {
    kk_checkpoint *c;
    kk_err err = {0};
    if (kk_checkpoint_open(&c, path, NULL, &err) != KK_OK) fail_msg("%s", err.msg);
    return c;
}

static void refused(const char *path, kk_status status, const char *says) {
    kk_checkpoint *c = (kk_checkpoint *)1;
    kk_err err = {0};
    assert_int_equal(kk_checkpoint_open(&c, path, NULL, &err), status);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
    assert_null(c);
    assert_int_equal(kk_live_blocks(), 0);
}

/* Every tensor of the model is there under its bare name, with its own bytes. */
static void holds(const kk_checkpoint *c, const model_tensors *m, size_t prefix) {
    for (size_t i = 0; i < m->n; i++) {
        const kk_tensor *want = &m->tensors[i];
        const kk_tensor *have = kk_checkpoint_find(c, want->name + prefix);
        assert_non_null(have);
        assert_int_equal(have->dtype, want->dtype);
        assert_int_equal(have->data.size, want->data.size);
        assert_memory_equal(have->data.base, want->data.base, want->data.size);
    }
}

/* ---- folders ---------------------------------------------------------------------------- */

static void opens_every_style_of_folder(void **state) {
    scratch *s = *state;
    static const char *const prefixes[] = {"model.", "model.language_model.", ""};
    static const kk_dtype types[] = {KK_BF16, KK_F16, KK_F32};
    const kk_config configs[] = {small_moe(), small_ple()};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) {
            model_tensors *m = model_make(&configs[k], prefixes[i], types[i]);
            model_write(s->dir, m);
            kk_checkpoint *c = opened(s->dir);
            assert_string_equal(kk_checkpoint_format(c), "safetensors");
            assert_string_equal(kk_checkpoint_path(c), s->dir);
            assert_int_equal(kk_checkpoint_count(c), m->n);
            holds(c, m, strlen(prefixes[i]));
            const kk_config *have = kk_checkpoint_config(c);
            assert_int_equal(have->n_stop_ids, 1);
            assert_memory_equal(have->layer, configs[k].layer, sizeof have->layer);
            kk_checkpoint_close(c);
            model_free(m);
        }
    }
    assert_int_equal(kk_live_blocks(), 0);
}

/* Vision and audio towers, and K/V that shared layers do not use, may be there. */
static void leaves_out_what_is_not_text(void **state) {
    scratch *s = *state;
    const kk_config config = small_ple();
    model_tensors *m = model_make(&config, "model.language_model.", KK_BF16);
    const size_t text = m->n;
    static const char *const others[] = {"model.vision_tower.patch.weight",
                                         "model.audio_tower.layers.0.norm.weight",
                                         "model.embed_vision.weight", "lm_head.weight",
                                         "model.language_model.layers.5.self_attn.k_proj.weight"};
    for (int i = 0; i < 5; i++) {
        kk_tensor *t = &m->tensors[m->n++];
        *t = (kk_tensor){.name = others[i], .dtype = KK_BF16, .n_dims = 1, .dims = {3}};
        model_fill(t, false, 99);
    }
    model_write(s->dir, m);
    kk_checkpoint *c = opened(s->dir);
    assert_int_equal(kk_checkpoint_count(c), text + 1); /* the unused k_proj is listed */
    assert_null(kk_checkpoint_find(c, "patch.weight"));
    assert_null(kk_checkpoint_find(c, "lm_head.weight"));
    kk_model_info info;
    kk_checkpoint_info(c, &info);
    int64_t params = 0;
    for (size_t i = 0; i < text; i++) params += kk_tensor_values(&m->tensors[i]);
    assert_int_equal(info.params, params); /* but not counted */
    kk_checkpoint_close(c);
    model_free(m);
}

static void opens_shards_and_generation_config(void **state) {
    scratch *s = *state;
    const kk_config config = small_moe();
    static const char generation[] = "{\"eos_token_id\": [1, 50, 106]}";
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write_shards(s->dir, m, 3);
    scratch_write(scratch_path(s, "generation_config.json"), generation, strlen(generation));
    kk_checkpoint *c = opened(s->dir);
    assert_int_equal(kk_checkpoint_count(c), m->n);
    holds(c, m, strlen("model."));
    assert_int_equal(kk_checkpoint_config(c)->n_stop_ids, 2); /* 106 is past this vocabulary */
    kk_checkpoint_close(c);
    /* A shard gone, then the same tensor in two of them. */
    unlink(scratch_path(s, "model-00002-of-00003.safetensors"));
    refused(s->dir, KK_EIO, "model-00002-of-00003.safetensors");
    char first[600];
    snprintf(first, sizeof first, "%s/model-00001-of-00003.safetensors", s->dir);
    assert_int_equal(link(first, s->path), 0);
    refused(s->dir, KK_EFORMAT, "appears twice");
    model_free(m);
}

static void refuses_bad_indexes(void **state) {
    scratch *s = *state;
    const kk_config config = small_moe();
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{", "model.safetensors.index.json, line 1"},
        {"[]", "no weight_map"},
        {"{\"weight_map\": {\"a\": 3}}", "'a' has a bad file name"},
        {"{\"weight_map\": {\"a\": \"../secret.safetensors\"}}", "'a' has a bad file name"},
        {"{\"weight_map\": {\"a\": \"\"}}", "'a' has a bad file name"},
        {"{\"weight_map\": {}}", "embed_tokens.weight' is missing"},
    };
    model_write_config(s->dir, &config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_write(scratch_path(s, "model.safetensors.index.json"), cases[i].text,
                      strlen(cases[i].text));
        refused(s->dir, KK_EFORMAT, cases[i].says);
    }
}

static void names_the_tensor_that_is_wrong(void **state) {
    scratch *s = *state;
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    kk_tensor *t = model_find(m, "layers.3.self_attn.q_proj.weight"), good = *t;
    t->name = "model.layers.3.self_attn.Q_PROJ.weight";
    model_write(s->dir, m);
    refused(s->dir, KK_EFORMAT, "tensor 'layers.3.self_attn.q_proj.weight' is missing");
    *t = good;
    t->dims[0] = 32;
    t->dims[1] = 128;
    model_write(s->dir, m);
    refused(s->dir, KK_EFORMAT,
            "tensor 'layers.3.self_attn.q_proj.weight' has shape [32, 128], the configuration "
            "needs [64, 64]");
    *t = good;
    t->n_dims = 3;
    t->dims[2] = 1;
    model_write(s->dir, m);
    refused(s->dir, KK_EFORMAT, "has shape [64, 64, 1], the configuration needs [64, 64]");
    *t = good;
    t->dtype = KK_I32;
    t->dims[1] = good.dims[1] / 2;
    model_write(s->dir, m);
    refused(s->dir, KK_EFORMAT, "holds integers");
    *t = good;
    kk_tensor *scalar = model_find(m, "layers.0.layer_scalar");
    scalar->n_dims = 0; /* as good as [1] */
    model_write(s->dir, m);
    kk_checkpoint_close(opened(s->dir));
    const size_t n = m->n;
    m->n = 0;
    model_write(s->dir, m);
    refused(s->dir, KK_EFORMAT, "'model.embed_tokens.weight' is missing");
    m->n = n;
    model_free(m);
}

static void refuses_broken_folders(void **state) {
    scratch *s = *state;
    const kk_config config = small_moe();
    refused(s->dir, KK_EIO, "config.json");
    model_write_config(s->dir, &config);
    refused(s->dir, KK_EIO, "neither model.safetensors nor model.safetensors.index.json");
    scratch_write(scratch_path(s, "model.safetensors"), "", 0);
    refused(s->dir, KK_EFORMAT, "model.safetensors has 0 bytes");
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(s->dir, m);
    size_t size;
    char *file = scratch_read(scratch_path(s, "model.safetensors"), &size);
    scratch_write(s->path, file, size - 1);
    refused(s->dir, KK_EFORMAT, "the file is truncated");
    free(file);
    model_free(m);
    scratch_write(scratch_path(s, "config.json"), "{}", 2);
    refused(s->dir, KK_EFORMAT, "model_type is missing");
    refused(scratch_path(s, "nothing"), KK_EIO, "nothing");
    scratch_write(scratch_path(s, "x.gguf"), "GGUF", 4);
    refused(s->path, KK_EFORMAT, "x.gguf");
    scratch_write(scratch_path(s, "x.gguf"), "", 0);
    refused(s->path, KK_EFORMAT, "no GGUF file");
}

static void options_lock_and_advise(void **state) {
    scratch *s = *state;
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    model_write(s->dir, m);
    model_free(m);
    kk_checkpoint *c;
    kk_err err;
    const kk_checkpoint_opts both = {.mlock = true, .huge_pages = true};
    struct rlimit none = {0, 0}, old;
    assert_int_equal(kk_checkpoint_open(&c, s->dir, &both, &err), KK_OK);
    kk_checkpoint_close(c);
    if (geteuid() == 0) return; /* may lock what it likes */
    getrlimit(RLIMIT_MEMLOCK, &old);
    setrlimit(RLIMIT_MEMLOCK, &none);
    assert_int_equal(kk_checkpoint_open(&c, s->dir, &both, &err), KK_ENOMEM);
    assert_non_null(strstr(err.msg, "lock"));
    setrlimit(RLIMIT_MEMLOCK, &old);
}

/* Writes config.json and a model.safetensors of a released model's shapes: a header, and a hole
 * of the full size for the data. */
static bool write_sparse(scratch *s, const char *preset) {
    kk_config c;
    kk_inventory list;
    enum { CAP = 1 << 20 };
    char *text = calloc(1, CAP);
    int64_t at = 0;
    size_t n = 8;
    assert_int_equal(kk_config_preset(&c, preset, 0, NULL), KK_OK);
    assert_int_equal(kk_inventory_make(&list, &c, NULL), KK_OK);
    for (size_t i = 0; i < list.n; i++) {
        const kk_inventory_item *t = &list.items[i];
        const int64_t end = at + 2 * kk_inventory_values(t);
        n += (size_t)snprintf(text + n, CAP - n,
                              "%s\"model.%s\": {\"dtype\": \"BF16\", \"shape\": [%" PRId64,
                              i ? ", " : "{", t->name, t->dims[0]);
        for (int32_t d = 1; d < t->n_dims; d++)
            n += (size_t)snprintf(text + n, CAP - n, ", %" PRId64, t->dims[d]);
        n += (size_t)snprintf(text + n, CAP - n, "], \"data_offsets\": [%" PRId64 ", %" PRId64 "]}",
                              at, end);
        at = end;
    }
    text[n++] = '}';
    while (n % 8) text[n++] = ' ';
    const uint64_t header = n - 8;
    memcpy(text, &header, 8);
    kk_inventory_free(&list);
    model_write_config(s->dir, &c);
    scratch_write(scratch_path(s, "model.safetensors"), text, n);
    free(text);
    return truncate(s->path, (off_t)n + at) == 0;
}

/* 50 GB: the headers are read and nothing else is touched. */
static void a_large_file_opens_at_once(void **state) {
    scratch *s = *state;
    struct rusage before, after;
    if (!write_sparse(s, "26b-a4b")) skip_test("no files of 50 GB with holes in them here");
    getrusage(RUSAGE_SELF, &before);
    const double start = kk_now();
    kk_checkpoint *c = opened(s->dir);
    const double took = kk_now() - start;
    getrusage(RUSAGE_SELF, &after);
    assert_true(took < 1.0);
    assert_true(after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt < 5000);
    kk_model_info info;
    kk_checkpoint_info(c, &info);
    assert_string_equal(info.name, "26B-A4B");
    assert_int_equal(info.token_bytes, 7645061180);
    assert_int_equal(info.weight_bytes, 2 * 25233141790);
    kk_checkpoint_close(c);
}

/* ---- what is told ----------------------------------------------------------------------- */

/* A checkpoint of a released model's shapes that has sizes and no bytes. */
static kk_checkpoint *hollow(const char *name, kk_dtype type) {
    kk_checkpoint *c = kk_zalloc(sizeof *c);
    c->path = kk_strndup("hollow", 6);
    c->format = "synthetic";
    assert_int_equal(kk_config_preset(&c->config, name, 0, NULL), KK_OK);
    assert_int_equal(kk_inventory_make(&c->inventory, &c->config, NULL), KK_OK);
    c->tensors = kk_calloc(c->inventory.n, sizeof *c->tensors);
    for (size_t i = 0; i < c->inventory.n; i++) {
        const kk_inventory_item *item = &c->inventory.items[i];
        kk_tensor *t = &c->tensors[c->n_tensors++];
        *t = (kk_tensor){.name = item->name, .dtype = type, .n_dims = item->n_dims};
        memcpy(t->dims, item->dims, sizeof item->dims);
        kk_dtype_bytes(type, (uint64_t)kk_inventory_values(item), &t->data.size);
    }
    assert_int_equal(kk_checkpoint_settle(c, NULL), KK_OK);
    return c;
}

static void figures_are_the_published_ones(void **state) {
    (void)state;
    kk_model_info i;
    kk_checkpoint *c = hollow("26b-a4b", KK_BF16);
    kk_checkpoint_info(c, &i);
    assert_string_equal(i.name, "26B-A4B");
    assert_string_equal(i.weight_type, "bf16");
    assert_int_equal(i.params, 25233141790);
    assert_int_equal(i.params_active, 3822530590);
    assert_int_equal(i.weight_bytes, 2 * 25233141790);
    assert_int_equal(i.token_bytes, 7645061180);
    assert_int_equal(i.kv_full_per_token, 5 * 1024 * 2); /* one tensor for K = V */
    assert_int_equal(i.kv_sliding_max, 209715200);
    assert_int_equal(i.full_layers, 5);
    assert_int_equal(i.sliding_layers, 25);
    assert_int_equal(i.experts, 128);
    assert_true(i.k_eq_v);
    kk_checkpoint_close(c);
    /* Of the per-layer table a token reads one row. */
    c = hollow("e2b", KK_BF16);
    kk_checkpoint_info(c, &i);
    assert_int_equal(i.params - i.params_active, (int64_t)(262144 - 1) * 8960);
    kk_checkpoint_close(c);
    static const struct {
        const char *name;
        int64_t growing, fixed;
    } kv[] = {{"31b", 81920 / 2, 838860800}, {"e2b", 6144, 6291456}, {"e4b", 16384, 20971520}};
    for (int k = 0; k < 3; k++) {
        c = hollow(kv[k].name, KK_BF16);
        kk_checkpoint_info(c, &i);
        assert_int_equal(i.kv_full_per_token, kv[k].growing);
        assert_int_equal(i.kv_sliding_max, kv[k].fixed);
        kk_checkpoint_close(c);
    }
}

static void inspects_a_folder(void **state) {
    scratch *s = *state;
    const kk_config config = small_moe();
    model_tensors *m = model_make(&config, "model.", KK_BF16);
    kk_model_info i;
    kk_err err;
    int64_t bytes = 0;
    for (size_t k = 0; k < m->n; k++) bytes += (int64_t)m->tensors[k].data.size;
    model_write(s->dir, m);
    assert_int_equal(kk_model_inspect(s->dir, &i, &err), KK_OK);
    assert_int_equal(i.weight_bytes, bytes);
    assert_string_equal(i.name, "custom");
    assert_string_equal(i.format, "safetensors");
    /* Half of the experts are read. */
    const int64_t experts = 6 * 4 * (80 * 64 + 64 * 40);
    assert_int_equal(i.params - i.params_active, experts / 2);
    assert_int_equal(kk_model_inspect(scratch_path(s, "no"), &i, &err), KK_EIO);
    model_free(m);
}

typedef struct {
    char name[KK_MAX_NAME];
    int64_t count;
    int calls;
} bad_tensor;

static void note_bad(void *user, const char *tensor, int64_t count) {
    bad_tensor *b = user;
    snprintf(b->name, sizeof b->name, "%s", tensor);
    b->count = count;
    b->calls++;
}

static void counts_what_is_not_finite(void **state) {
    scratch *s = *state;
    static const kk_dtype types[] = {KK_BF16, KK_F16, KK_F32};
    const kk_config config = small_moe();
    for (int k = 0; k < 3; k++) {
        model_tensors *m = model_make(&config, "model.", types[k]);
        kk_tensor *t = model_find(m, "layers.4.mlp.down_proj.weight");
        uint8_t *bytes = (uint8_t *)(uintptr_t)t->data.base;
        const size_t size = (size_t)kk_dtype_get(types[k])->bytes;
        const float bad[3] = {NAN, -INFINITY, INFINITY};
        int64_t n;
        kk_err err;
        model_write(s->dir, m);
        assert_int_equal(kk_model_check(s->dir, NULL, NULL, &n, &err), KK_OK);
        assert_int_equal(n, 0);
        for (size_t i = 0; i < 3; i++)
            kk_quantize_row(types[k], &bad[i], bytes + i * 100 * size, 1);
        model_write(s->dir, m);
        bad_tensor b = {0};
        assert_int_equal(kk_model_check(s->dir, note_bad, &b, &n, &err), KK_OK); /* it loads */
        assert_int_equal(n, 3);
        assert_int_equal(b.calls, 1);
        assert_int_equal(b.count, 3);
        assert_string_equal(b.name, "layers.4.mlp.down_proj.weight");
        model_free(m);
    }
    int64_t n;
    assert_int_equal(kk_model_check(scratch_path(s, "no"), NULL, NULL, &n, NULL), KK_EIO);
}

/* ---- random weights --------------------------------------------------------------------- */

static kk_checkpoint *synthetic(const char *spec, kk_mem *mem) {
    kk_checkpoint *c;
    kk_err err = {0};
    if (kk_checkpoint_synthetic(&c, spec, mem, &err) != KK_OK) fail_msg("%s", err.msg);
    return c;
}

/* Every matrix spreads like a trained one and every vector lies near one. */
static void random_weights_are_sane(void **state) {
    (void)state;
    static const char *const specs[] = {
        "tiny:q4_0",     "tiny:q4_k:7",     "tiny:q5_k:1",    "tiny:q6_k:2",    "tiny:q5_0:2",
        "tiny:q5_1:2",   "tiny:q8_0:2",     "tiny:f16:2",     "tiny:f32:2",     "tiny",
        "tiny-ple:q4_0", "tiny-ple:bf16:3", "tiny:mlx4_64:2", "tiny:mlx8_32:2", "tiny:q4_k_m:7"};
    float *y = malloc(sizeof *y << 22);
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        kk_mem mem = {0};
        kk_checkpoint *c = synthetic(specs[k], &mem);
        assert_string_equal(kk_checkpoint_format(c), "synthetic");
        int64_t bytes = 0;
        for (size_t i = 0; i < kk_checkpoint_count(c); i++) {
            const kk_tensor *t = kk_checkpoint_at(c, i);
            const size_t n = (size_t)kk_tensor_values(t) & ~(size_t)255;
            const bool near_one = t->n_dims == 1;
            double sum = 0, squares = 0;
            bytes += (int64_t)kk_tensor_bytes(t);
            assert_true(n <= (size_t)1 << 22);
            kk_tensor_floats(t, 0, y, n);
            for (size_t v = 0; v < n; v++) {
                assert_true(isfinite(y[v]));
                sum += (double)y[v];
                squares += (double)y[v] * (double)y[v];
            }
            if (n < 65536) continue;
            const double mean = sum / (double)n, spread = sqrt(squares / (double)n - mean * mean);
            assert_true(fabs(mean - (near_one ? 1 : 0)) < (near_one ? 0.004 : 0.0008));
            assert_true(spread > 0.018 && spread < 0.022);
        }
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_VERIFIER], bytes);
        kk_checkpoint_close(c);
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_VERIFIER], 0);
    }
    free(y);
    assert_int_equal(kk_live_blocks(), 0);
}

/* Whether a matrix is in q6_k, or q8_0 where its rows do not fill super-blocks; else it is in q4_k
 * or q5_0. */
static bool is_finer(const kk_checkpoint *c, const char *name) {
    const kk_tensor *t = kk_checkpoint_find(c, name);
    assert_non_null(t);
    const bool whole = t->dims[t->n_dims - 1] % 256 == 0;
    const bool finer = t->dtype == (whole ? KK_Q6_K : KK_Q8_0);
    assert_true(finer || t->dtype == (whole ? KK_Q4_K : KK_Q5_0));
    return finer;
}

/* q4_k_m is q4_k with the embedding, and V and the down projections of some layers, in q6_k. */
static void a_mix_has_two_types(void **state) {
    (void)state;
    kk_mem mem = {0};
    kk_checkpoint *c = synthetic("tiny:q4_k_m", &mem);
    assert_true(is_finer(c, "embed_tokens.weight"));
    assert_false(is_finer(c, "layers.1.self_attn.v_proj.weight"));
    assert_true(is_finer(c, "layers.3.self_attn.v_proj.weight"));
    assert_false(is_finer(c, "layers.1.mlp.down_proj.weight"));
    assert_true(is_finer(c, "layers.3.mlp.down_proj.weight"));
    assert_false(is_finer(c, "layers.3.self_attn.q_proj.weight"));
    kk_checkpoint_close(c);
}

/* Beside packed weights routers are float32 with the values of a bf16 checkpoint. */
static void routers_are_those_of_bf16(void **state) {
    (void)state;
    kk_mem mem = {0};
    kk_checkpoint *c = synthetic("tiny:q4_0:1", &mem);
    const kk_tensor *t = kk_checkpoint_find(c, "layers.0.router.proj.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, KK_F32);
    for (size_t i = 0; i < (size_t)kk_tensor_values(t); i++) {
        uint32_t bits;
        memcpy(&bits, (const uint8_t *)t->data.base + 4 * i, sizeof bits);
        assert_int_equal(bits & 0xffff, 0);
    }
    kk_checkpoint_close(c);
}

static double mean_of(const kk_checkpoint *c, const char *name) {
    const kk_tensor *t = kk_checkpoint_find(c, name);
    double sum = 0;
    float y[4096];
    const size_t n = (size_t)kk_tensor_values(t);
    assert_true(n <= sizeof y / sizeof *y);
    kk_dequantize(t->dtype, t->data.base, y, n);
    for (size_t i = 0; i < n; i++) sum += (double)y[i];
    return sum / (double)n;
}

/* Scores spread by 4 whatever the head size, and branches add a quarter: rounding errors must not
 * grow from layer to layer. */
static void random_norms_are_calm(void **state) {
    (void)state;
    kk_mem mem = {0};
    kk_checkpoint *c = synthetic("tiny:bf16", &mem);
    const kk_config *config = kk_checkpoint_config(c);
    for (int32_t i = 0; i < config->n_layer; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.self_attn.q_norm.weight", i);
        assert_true(fabs(mean_of(c, name) * sqrt((double)config->layer[i].head_dim) - 4) < 0.2);
        snprintf(name, sizeof name, "layers.%d.self_attn.k_norm.weight", i);
        assert_true(fabs(mean_of(c, name) - 1) < 0.05);
        snprintf(name, sizeof name, "layers.%d.post_attention_layernorm.weight", i);
        assert_true(fabs(mean_of(c, name) - 0.25) < 0.01);
        snprintf(name, sizeof name, "layers.%d.post_feedforward_layernorm.weight", i);
        assert_true(fabs(mean_of(c, name) - 0.25) < 0.01);
        snprintf(name, sizeof name, "layers.%d.input_layernorm.weight", i);
        assert_true(fabs(mean_of(c, name) - 1) < 0.05);
    }
    assert_true(fabs(mean_of(c, "norm.weight") - 1) < 0.05);
    kk_checkpoint_close(c);
}

static void random_weights_are_the_same_each_time(void **state) {
    (void)state;
    kk_mem mem = {0};
    kk_checkpoint *a = synthetic("tiny:q4_0:3", &mem), *b = synthetic("tiny:q4_0:3", &mem);
    for (size_t i = 0; i < kk_checkpoint_count(a); i++) {
        const kk_tensor *x = kk_checkpoint_at(a, i), *y = kk_checkpoint_at(b, i);
        assert_memory_equal(x->data.base, y->data.base, x->data.size);
    }
    const kk_tensor *first = kk_checkpoint_find(a, "layers.0.mlp.gate_proj.weight");
    const kk_tensor *second = kk_checkpoint_find(a, "layers.1.mlp.gate_proj.weight");
    assert_memory_not_equal(first->data.base, second->data.base, first->data.size);
    /* Rows of the table differ, or logits would come in ties. */
    const kk_tensor *e = kk_checkpoint_find(a, "embed_tokens.weight");
    const size_t row = e->data.size / 1024;
    for (size_t r = 1; r < 1024; r++)
        assert_memory_not_equal(e->data.base, e->data.base + r * row, row);
    kk_checkpoint_close(a);
    kk_checkpoint_close(b);
}

/* Rows that no super-block fits, as in 26B-A4B's experts, fall back to blocks of 32. */
static void odd_rows_fall_back(void **state) {
    (void)state;
    kk_mem mem = {0};
    kk_checkpoint *c = synthetic("tiny:q4_k:1", &mem);
    assert_int_equal(kk_checkpoint_find(c, "layers.0.experts.down_proj")->dtype, KK_Q5_0);
    assert_int_equal(kk_checkpoint_find(c, "layers.0.experts.gate_up_proj")->dtype, KK_Q4_K);
    assert_int_equal(kk_checkpoint_find(c, "layers.0.router.proj.weight")->dtype, KK_F32);
    assert_int_equal(kk_checkpoint_find(c, "embed_tokens.weight")->dtype, KK_Q4_K);
    kk_checkpoint_close(c);
}

static void refuses_bad_specs(void **state) {
    (void)state;
    static const struct {
        const char *spec, *says;
    } cases[] = {
        {"", "NAME:TYPE"},
        {":q4_0", "NAME:TYPE"},
        {"tiny:", "NAME:TYPE"},
        {"tiny:q4_0:", "NAME:TYPE"},
        {"tiny:q4_0:0", "NAME:TYPE"},
        {"tiny:q4_0:1:2", "NAME:TYPE"},
        {"tiny:q4_0:x", "NAME:TYPE"},
        {"tiny:q4_0:-1", "NAME:TYPE"},
        {"tiny:q4_0:5x", "NAME:TYPE"},
        {"tiny:q3_k", "q3_k"},
        {"tiny:i32", "i32"},
        {"huge:q4_0", "huge"},
        {"tiny:q4_0:13", "12 layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_mem mem = {0};
        kk_checkpoint *c;
        kk_err err = {0};
        assert_int_equal(kk_checkpoint_synthetic(&c, cases[i].spec, &mem, &err), KK_EINVAL);
        if (!strstr(err.msg, cases[i].says)) fail_msg("'%s': %s", cases[i].spec, err.msg);
        assert_null(c);
        assert_int_equal(kk_live_blocks(), 0);
    }
    kk_checkpoint_close(NULL);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(opens_every_style_of_folder),
        IN_SCRATCH(leaves_out_what_is_not_text),
        IN_SCRATCH(opens_shards_and_generation_config),
        IN_SCRATCH(refuses_bad_indexes),
        IN_SCRATCH(names_the_tensor_that_is_wrong),
        IN_SCRATCH(refuses_broken_folders),
        IN_SCRATCH(options_lock_and_advise),
        IN_SCRATCH(a_large_file_opens_at_once),
        cmocka_unit_test(figures_are_the_published_ones),
        IN_SCRATCH(inspects_a_folder),
        IN_SCRATCH(counts_what_is_not_finite),
        cmocka_unit_test(random_weights_are_sane),
        cmocka_unit_test(a_mix_has_two_types),
        cmocka_unit_test(routers_are_those_of_bf16),
        cmocka_unit_test(random_norms_are_calm),
        cmocka_unit_test(random_weights_are_the_same_each_time),
        cmocka_unit_test(odd_rows_fall_back),
        cmocka_unit_test(refuses_bad_specs),
    };
    return ended(cmocka_run_group_tests(tests, NULL, NULL));
}
