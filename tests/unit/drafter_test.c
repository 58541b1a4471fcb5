/* drafter_test.c - a drafter's configuration in every style it comes in, its files held to strict
 * names and shapes, random ones in released shapes, and which verifiers it fits. */
#define _GNU_SOURCE
#include "support/drafter_folder.h"
#include "support/ok.h"

/* ---- configuration -------------------------------------------------------------------------- */

static kk_drafter_config good(const char *json) {
    kk_drafter_config c;
    assert_ok(kk_drafter_config_from_json(&c, json, strlen(json), why));
    return c;
}

static void refused(const char *json, const char *says) {
    kk_drafter_config c;
    kk_err err = {0};
    assert_int_equal(kk_drafter_config_from_json(&c, json, strlen(json), &err), KK_EFORMAT);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

/* The fields of a drafter without those about layers, rotation, masks and taps. */
#define BARE                                                                                       \
    "\"vocab_size\": 96, \"hidden_size\": 64, \"intermediate_size\": 80, "                         \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"block_size\": 6"
#define THETA "\"rope_theta\": 1000000.0"
#define FULL2 "\"num_hidden_layers\": 2"

static void the_released_one(void **state) {
    (void)state;
    const kk_drafter_config c = good(
        "{\"architectures\": [\"DFlashDraftModel\"], \"model_type\": \"qwen3\", "
        "\"hidden_size\": 2816, \"num_hidden_layers\": 5, \"intermediate_size\": 5632, "
        "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, "
        "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000, "
        "\"rope_scaling\": null, \"layer_types\": [\"sliding_attention\", \"sliding_attention\", "
        "\"sliding_attention\", \"sliding_attention\", \"full_attention\"], "
        "\"sliding_window\": 2048, \"use_sliding_window\": true, \"max_window_layers\": 5, "
        "\"max_position_embeddings\": 262144, \"vocab_size\": 262144, \"block_size\": 16, "
        "\"num_target_layers\": 30, \"dflash_config\": {\"mask_token_id\": 4, "
        "\"target_layer_ids\": [1, 6, 11, 17, 22, 27]}, \"final_logit_softcapping\": 30.0, "
        "\"tie_word_embeddings\": false, \"attention_bias\": false}");
    assert_int_equal(c.hidden, 2816);
    assert_int_equal(c.n_layer, 5);
    assert_int_equal(c.n_head, 32);
    assert_int_equal(c.n_kv_head, 8);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.ffn, 5632);
    assert_int_equal(c.window, 2048);
    assert_int_equal(c.block, 16);
    assert_int_equal(c.mask_id, 4);
    assert_int_equal(c.n_taps, 6);
    assert_int_equal(c.taps[5], 27);
    assert_true(c.theta > 999999 && c.softcap > 29 && c.sliding_causal && !c.full_causal);
    assert_int_equal(c.embed_scaling, KK_EMBED_ONCE);
    for (int i = 0; i < 5; i++) assert_int_equal(c.kind[i], i < 4 ? KK_SLIDING : KK_FULL);
}

static void sliding_layers(void **state) {
    (void)state;
    const char *const rest = THETA ", " DRAFTER_OWN "}";
    char json[2048];
#define WITH(fields) (snprintf(json, sizeof json, "{" BARE ", %s, %s", fields, rest), json)
    kk_drafter_config c = good(WITH(FULL2));
    assert_int_equal(c.kind[0], KK_FULL); /* nobody said that anything slides */
    assert_int_equal(c.window, 0);
    c = good(WITH(FULL2 ", \"sliding_window\": 8, \"use_sliding_window\": false"));
    assert_int_equal(c.kind[0], KK_FULL);
    assert_int_equal(c.window, 0);
    c = good(WITH(FULL2 ", \"sliding_window\": null, \"use_sliding_window\": false, "
                        "\"layer_types\": [\"full_attention\", \"full_attention\"]"));
    assert_int_equal(c.kind[1], KK_FULL);
    c = good(WITH(FULL2 ", \"sliding_window\": 8, \"use_sliding_window\": true, "
                        "\"max_window_layers\": 1"));
    assert_int_equal(c.kind[0], KK_FULL);
    assert_int_equal(c.kind[1], KK_SLIDING);
    assert_int_equal(c.window, 8);
    c = good(WITH("\"layer_types\": [\"sliding_attention\"], \"sliding_window\": 8"));
    assert_int_equal(c.n_layer, 1);
    refused(WITH("\"layer_types\": [\"sliding_attention\"], \"sliding_window\": null"),
            "there is no sliding_window");
    refused(WITH("\"layer_types\": [\"sliding_attention\"], \"sliding_window\": 8, "
                 "\"use_sliding_window\": false"),
            "use_sliding_window is false");
    refused(WITH("\"layer_types\": [\"sliding_attention\"], \"sliding_window\": 0"), "sliding");
    refused(WITH("\"layer_types\": [\"linear_attention\"]"), "'linear_attention'");
    refused(WITH("\"layer_types\": [7]"), "not a string");
    refused(WITH("\"layer_types\": 7"), "layer_types is no list");
    refused(WITH(FULL2 ", \"layer_types\": [\"full_attention\"]"), "1 entries for 2 layers");
    refused(WITH("\"num_hidden_layers\": 65"), "num_hidden_layers is 65");
    refused(WITH("\"layer_types\": []"), "num_hidden_layers is 0");
#undef WITH
}

/* A second style, with the window in dflash_config. */
static void windows_of_its_own(void **state) {
    (void)state;
    char json[2048];
#define OWN(fields, own)                                                                           \
    (snprintf(json, sizeof json,                                                                   \
              "{" BARE ", " THETA ", %s, \"dflash_config\": {\"mask_token_id\": 4, "               \
              "\"target_layer_ids\": [1], %s}}",                                                   \
              fields, own),                                                                        \
     json)
    kk_drafter_config c = good(OWN(FULL2, "\"use_swa\": true, \"swa_window_size\": 512"));
    assert_int_equal(c.kind[0], KK_SLIDING);
    assert_int_equal(c.kind[1], KK_SLIDING);
    assert_int_equal(c.window, 512);
    c = good(OWN(FULL2 ", \"sliding_window\": 512", "\"use_swa\": false"));
    assert_int_equal(c.kind[0], KK_FULL);
    refused(OWN(FULL2 ", \"sliding_window\": 64", "\"use_swa\": true, \"swa_window_size\": 512"),
            "sliding_window is 64 and swa_window_size is 512");
    refused(OWN("\"layer_types\": [\"sliding_attention\"], \"sliding_window\": 8",
                "\"use_swa\": false"),
            "use_swa is false");
    refused(
        OWN("\"layer_types\": [\"full_attention\"], \"sliding_window\": 8", "\"use_swa\": true"),
        "names no sliding layer");
    refused(OWN(FULL2, "\"use_swa\": 1"), "use_swa is neither true nor false");
    /* In the block: one word is for all layers. */
    c = good(OWN(FULL2, "\"causal\": true"));
    assert_true(c.sliding_causal && c.full_causal);
    c = good(OWN(FULL2 ", \"is_causal\": false", "\"causal\": null"));
    assert_true(!c.sliding_causal && !c.full_causal);
    refused(OWN(FULL2 ", \"is_causal\": false", "\"causal\": true"), "disagree");
    /* Embedding rows. */
    c = good(OWN(FULL2, "\"embed_scale\": \"twice\""));
    assert_int_equal(c.embed_scaling, KK_EMBED_TWICE);
    assert_true(c.embed_said);
    c = good(OWN(FULL2 ", \"embed_scale\": 1", "\"causal\": null"));
    assert_int_equal(c.embed_scaling, KK_EMBED_UNSCALED);
    c = good(OWN(FULL2 ", \"embed_scale\": \"1\"", "\"embed_scale\": \"1\""));
    assert_int_equal(c.embed_scaling, KK_EMBED_UNSCALED);
    c = good(OWN(FULL2, "\"embed_scale\": \"once\""));
    assert_int_equal(c.embed_scaling, KK_EMBED_ONCE);
    refused(OWN(FULL2, "\"embed_scale\": \"thrice\""), "embed_scale is 'thrice'");
    refused(OWN(FULL2, "\"embed_scale\": 53.0"), "embed_scale");
    refused(OWN(FULL2 ", \"embed_scale\": \"once\"", "\"embed_scale\": \"twice\""), "two values");
#undef OWN
}

static void taps_and_masks(void **state) {
    (void)state;
    char json[2048];
#define REST(fields) (snprintf(json, sizeof json, "{" BARE ", " FULL2 ", %s}", fields), json)
    kk_drafter_config c =
        good(REST(THETA ", \"num_target_layers\": 30, \"dflash_config\": {\"mask_token_id\": 4}"));
    assert_int_equal(c.n_taps, 0); /* until the files are seen */
    c = good(REST("\"rope_parameters\": {\"rope_theta\": 5000.0, \"rope_type\": \"default\"}, "
                  "\"mask_token_id\": 3, \"dflash_config\": {\"target_layer_ids\": [2, 1, 2]}"));
    assert_int_equal(c.mask_id, 3);
    assert_int_equal(c.n_taps, 3);
    assert_int_equal(c.taps[1], 1);
    assert_true(c.theta > 4999 && c.theta < 5001);
    refused(REST(THETA ", \"dflash_config\": {\"mask_token_id\": 4}"), "both missing");
    refused(REST(THETA ", \"dflash_config\": {\"target_layer_ids\": [1]}"),
            "mask_token_id is missing");
    refused(REST(THETA ", \"mask_token_id\": 96, \"dflash_config\": {\"target_layer_ids\": [1]}"),
            "mask_token_id is 96");
    refused(REST(THETA ", \"num_target_layers\": 2, " DRAFTER_OWN), "target_layer_ids[1] is 2");
    refused(REST(THETA ", \"dflash_config\": {\"target_layer_ids\": [-1]}"), "target_layer_ids[0]");
    refused(REST(THETA ", \"dflash_config\": {\"target_layer_ids\": []}"), "1 to 16 layers");
    refused(REST(THETA ", \"dflash_config\": {\"target_layer_ids\": [\"x\"]}"),
            "target_layer_ids[0]");
    refused(REST(THETA ", \"dflash_config\": 5"), "dflash_config is no object");
    refused(REST(DRAFTER_OWN), "rope_theta");
    refused(REST(THETA ", \"rope_parameters\": {\"rope_theta\": 5.0}, " DRAFTER_OWN),
            "rope_theta is 1e+06 and 5");
    refused(REST(THETA ", \"rope_scaling\": {\"type\": \"yarn\"}, " DRAFTER_OWN), "rope_scaling");
    refused(REST(THETA ", \"rope_parameters\": {\"rope_type\": \"yarn\"}, " DRAFTER_OWN), "'yarn'");
#undef REST
}

static void what_no_drafter_has(void **state) {
    (void)state;
#define ALSO(field) "{" DRAFTER_FIELDS ", " DRAFTER_OWN ", " field "}"
    good(ALSO("\"hidden_act\": \"silu\""));
    refused(ALSO("\"hidden_act\": \"gelu\""), "hidden_act is 'gelu'");
    refused(ALSO("\"attention_bias\": true"), "attention_bias");
    refused(ALSO("\"is_neox_style\": false"), "is_neox_style");
    refused(ALSO("\"architectures\": [\"Gemma4ForCausalLM\"]"), "'Gemma4ForCausalLM'");
    refused(ALSO("\"model_type\": \"llama\""), "model_type is 'llama'");
    refused(ALSO("\"block_size\": 1"), "block_size is 1");
    refused(ALSO("\"block_size\": 33"), "block_size is 33");
    refused(ALSO("\"head_dim\": 15"), "head_dim 15 is odd");
    refused(ALSO("\"head_dim\": 1024"), "head_dim is 1024");
    refused(ALSO("\"num_key_value_heads\": 3"), "3 key heads");
    refused(ALSO("\"num_key_value_heads\": 0"), "num_key_value_heads is 0");
    refused(ALSO("\"hidden_size\": 65537"), "hidden_size is 65537");
    refused(ALSO("\"hidden_size\": 99999999999"), "hidden_size is 99999999999");
    refused(ALSO("\"vocab_size\": \"many\""), "vocab_size is no integer");
    refused(ALSO("\"vocab_size\": 1"), "vocab_size is 1");
    refused(ALSO("\"intermediate_size\": -4"), "intermediate_size is -4");
    refused(ALSO("\"rms_norm_eps\": 0"), "rms_norm_eps is 0");
    refused(ALSO("\"rope_theta\": 0.5"), "rope_theta is 0.5");
    refused("[]", "no JSON object");
    refused("{", "the drafter's config.json");
    refused("", "the drafter's config.json");
#undef ALSO
}

/* ---- files ---------------------------------------------------------------------------------- */

static void refused_folder(const char *dir, const char *says) {
    kk_drafter *d = (kk_drafter *)1;
    kk_err err = {0};
    const int64_t blocks = kk_live_blocks();
    const kk_status st = kk_drafter_open(&d, dir, NULL, &err);
    assert_true(st == KK_EFORMAT || st == KK_EIO);
    assert_null(d);
    assert_int_equal(kk_live_blocks(), blocks);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void a_folder_opens(void **state) {
    scratch *s = *state;
    model_tensors *m = drafter_make(KK_BF16);
    kk_drafter *d;
    drafter_write(s->dir, m);
    assert_ok(kk_drafter_open(&d, s->dir, &(kk_checkpoint_opts){.huge_pages = true}, why));
    assert_int_equal(kk_drafter_count(d), 3 + 2 * 11);
    assert_int_equal(kk_drafter_find(d, "fc.weight")->dims[1], 3 * 64);
    assert_null(kk_drafter_find(d, "embed_tokens.weight"));
    size_t values = 0;
    for (size_t i = 0; i < kk_drafter_count(d); i++)
        values += (size_t)kk_tensor_values(kk_drafter_at(d, i));
    assert_int_equal(values, 64 * 192 + 128 +
                                 2 * (2 * 64 + 2 * 16 + 64 * (64 + 32 + 32 + 64) + 3 * 64 * 80));
    kk_drafter_close(d);
    /* The same tensors in shards. */
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", s->dir);
    unlink(path);
    tensors_write_shards(s->dir, m, 3);
    assert_ok(kk_drafter_open(&d, s->dir, NULL, why));
    assert_int_equal(kk_drafter_count(d), 25);
    kk_drafter_close(d);
    kk_drafter_close(NULL);
    model_free(m);
}

/* Each tensor missing, of another shape, or of integers; one too many; a file cut short. */
static void wrong_tensors_are_refused_by_name(void **state) {
    scratch *s = *state;
    model_tensors *m = drafter_make(KK_BF16);
    const size_t n = m->n;
    for (size_t i = 0; i < n; i++) {
        const kk_tensor whole = m->tensors[i];
        m->tensors[i] = m->tensors[n - 1];
        m->n = n - 1;
        drafter_write(s->dir, m);
        refused_folder(s->dir, whole.name);
        refused_folder(s->dir, "missing");
        m->n = n;
        m->tensors[i] = whole;
        m->tensors[i].dims[0] /= 2;
        m->tensors[i].data.size /= 2;
        drafter_write(s->dir, m);
        refused_folder(s->dir, whole.name);
        m->tensors[i] = whole;
    }
    const kk_tensor last = m->tensors[n - 1];
    m->tensors[n] = last;
    m->tensors[n].name = "layers.2.mlp.up_proj.weight";
    m->n = n + 1;
    drafter_write(s->dir, m);
    refused_folder(s->dir, "a drafter has no tensor 'layers.2.mlp.up_proj.weight'");
    m->tensors[n].name = "lm_head.weight";
    drafter_write(s->dir, m);
    refused_folder(s->dir, "'lm_head.weight'");
    m->n = n;
    drafter_write(s->dir, m);
    size_t len;
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", s->dir);
    char *all = scratch_read(path, &len);
    for (size_t cut = 1; cut < len; cut += len / 7) {
        scratch_write(path, all, len - cut);
        refused_folder(s->dir, "model.safetensors");
    }
    unlink(path);
    refused_folder(s->dir, "neither model.safetensors nor");
    refused_folder("/nonexistent/drafter", "/nonexistent/drafter");
    free(all);
    model_free(m);
}

static void fc_says_how_many_taps(void **state) {
    scratch *s = *state;
    model_tensors *m = drafter_make(KK_BF16);
    kk_drafter *d;
    drafter_write(s->dir, m);
    drafter_write_config(s->dir, "{" DRAFTER_FIELDS ", \"dflash_config\": {\"mask_token_id\": 4}}");
    assert_ok(kk_drafter_open(&d, s->dir, NULL, why));
    const kk_drafter_config *c = kk_drafter_config_of(d);
    assert_int_equal(c->n_taps, 3);
    assert_int_equal(c->taps[0], 1);
    assert_int_equal(c->taps[1], 2);
    assert_int_equal(c->taps[2], 3);
    kk_drafter_close(d);
    model_find(m, "fc.weight")->dims[1] = 96;
    model_find(m, "fc.weight")->dims[0] = 128;
    drafter_write(s->dir, m);
    drafter_write_config(s->dir, "{" DRAFTER_FIELDS ", \"dflash_config\": {\"mask_token_id\": 4}}");
    refused_folder(s->dir, "fc.weight");
    model_free(m);
}

static void taps_spread_as_published(void **state) {
    (void)state;
    static const int32_t moe[] = {1, 6, 11, 17, 22, 27}, dense[] = {1, 12, 23, 35, 46, 57};
    kk_drafter_config c = {0};
    kk_drafter_spread_taps(&c, 6, 30);
    assert_memory_equal(c.taps, moe, sizeof moe);
    kk_drafter_spread_taps(&c, 6, 60);
    assert_memory_equal(c.taps, dense, sizeof dense);
    kk_drafter_spread_taps(&c, 1, 30);
    assert_int_equal(c.taps[0], 15);
    for (int32_t layers = 1; layers < 40; layers++) {
        for (int32_t n = 1; n <= KK_MAX_TAPS; n++) {
            kk_drafter_spread_taps(&c, n, layers);
            assert_int_equal(c.n_taps, n);
            for (int32_t i = 0; i < n; i++) assert_in_range(c.taps[i], 0, layers - 1);
        }
    }
}

/* ---- random weights -------------------------------------------------------------------------- */

/* Without memory to count in, shapes alone. */
static kk_drafter_config released(const char *name, int32_t layers, int64_t *values) {
    kk_config v;
    kk_drafter *d;
    assert_ok(kk_config_preset(&v, name, layers, why));
    assert_ok(kk_drafter_synthetic(&d, &v, "bf16", NULL, why));
    const kk_drafter_config c = *kk_drafter_config_of(d);
    assert_ok(kk_drafter_check(&c, &v, why));
    *values = 0;
    for (size_t i = 0; i < kk_drafter_count(d); i++)
        *values += kk_tensor_values(kk_drafter_at(d, i));
    kk_drafter_close(d);
    return c;
}

static void random_ones_have_released_shapes(void **state) {
    (void)state;
    static const int32_t moe[] = {1, 6, 11, 17, 22, 27};
    int64_t values;
    kk_drafter_config c = released("26b-a4b", 0, &values);
    assert_int_equal(values, 429689088); /* as published */
    assert_int_equal(c.n_layer, 5);
    assert_int_equal(c.kind[3], KK_SLIDING);
    assert_int_equal(c.kind[4], KK_FULL);
    assert_int_equal(c.window, 2048);
    assert_int_equal(c.block, 16);
    assert_memory_equal(c.taps, moe, sizeof moe);
    c = released("26b-a4b", 12, &values); /* the same weights over fewer layers */
    assert_int_equal(values, 429689088);
    assert_int_equal(c.taps[5], 9);
    c = released("26b-a4b", 1, &values);
    assert_int_equal(c.taps[5], 0);
    released("31b", 0, &values);
    assert_int_equal(values, 1535967488); /* as published */
    c = released("tiny", 0, &values);
    assert_int_equal(c.head_dim % 64, 0);
    assert_int_equal(c.n_head % c.n_kv_head, 0);
    assert_true(values < 5000000);
}

static void random_ones_are_counted(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"};
    kk_config v;
    kk_mem mem = {0};
    kk_drafter *d;
    kk_err err;
    assert_ok(kk_config_preset(&v, "tiny", 0, why));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int64_t bytes = 0;
        assert_ok(kk_drafter_synthetic(&d, &v, types[i], &mem, why));
        for (size_t k = 0; k < kk_drafter_count(d); k++)
            bytes += (int64_t)kk_drafter_at(d, k)->data.size;
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_DRAFTER], bytes);
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_VERIFIER], 0);
        kk_drafter_close(d);
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_DRAFTER], 0);
    }
    assert_int_equal(kk_drafter_synthetic(&d, &v, "q3", &mem, &err), KK_EINVAL);
    assert_null(d);
    assert_string_equal(err.msg, "no weight type named 'q3'");
}

/* ---- a head of its own ----------------------------------------------------------------------- */

enum { HEAD_ROWS = 70, HEAD_WIDTH = 64 }; /* more rows than a thread packs at a time */

static kk_tensor some_table(kk_dtype type, const void *data, int64_t width) {
    size_t bytes = 0;
    assert_true(kk_dtype_bytes(type, (uint64_t)(HEAD_ROWS * width), &bytes));
    return (kk_tensor){.name = "embed_tokens.weight",
                       .dtype = type,
                       .n_dims = 2,
                       .dims = {HEAD_ROWS, width},
                       .data = {data, bytes}};
}

/* The copy is the table within the rounding of its type, and counted until the drafter closes. */
static void heads_are_packed(void **state) {
    (void)state;
    const kk_drafter_packing how = {.type = KK_Q8_0, .threads = 2};
    static float values[HEAD_ROWS * HEAD_WIDTH], back[HEAD_ROWS * HEAD_WIDTH];
    for (int i = 0; i < HEAD_ROWS * HEAD_WIDTH; i++) values[i] = (float)(i * 37 % 255 - 127) / 127;
    const kk_tensor table = some_table(KK_F32, values, HEAD_WIDTH);
    kk_config v;
    kk_mem own = {0}, mem = {0};
    kk_drafter *d;
    assert_ok(kk_config_preset(&v, "tiny", 0, why));
    assert_ok(kk_drafter_synthetic(&d, &v, "q8_0", &own, why));
    assert_null(kk_drafter_head(d));
    for (int twice = 0; twice < 2; twice++) {
        assert_ok(kk_drafter_pack_head(d, &table, &how, &mem, why));
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_DRAFTER], HEAD_ROWS * HEAD_WIDTH / 32 * 34);
    }
    const kk_tensor *head = kk_drafter_head(d);
    assert_int_equal(head->dtype, KK_Q8_0);
    assert_int_equal(head->dims[0], HEAD_ROWS);
    kk_dequantize(KK_Q8_0, head->data.base, back, HEAD_ROWS * HEAD_WIDTH);
    for (int i = 0; i < HEAD_ROWS * HEAD_WIDTH; i++)
        assert_true(fabsf(back[i] - values[i]) < 0.006f);
    kk_drafter_close(d);
    assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_DRAFTER], 0);
}

/* A table that is packed already is read where it lies, and so is one of odd width. */
static void some_heads_are_not_copied(void **state) {
    (void)state;
    const kk_drafter_packing how = {.type = KK_Q8_0, .threads = 1};
    static const float values[HEAD_ROWS * HEAD_WIDTH];
    const kk_tensor tables[] = {some_table(KK_Q4_0, values, HEAD_WIDTH),
                                some_table(KK_Q8_0, values, HEAD_WIDTH),
                                some_table(KK_F32, values, HEAD_WIDTH - 2)};
    kk_config v;
    kk_mem own = {0}, mem = {0};
    kk_drafter *d;
    assert_ok(kk_config_preset(&v, "tiny", 0, why));
    assert_ok(kk_drafter_synthetic(&d, &v, "q8_0", &own, why));
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        assert_ok(kk_drafter_pack_head(d, &tables[i], &how, &mem, why));
        assert_null(kk_drafter_head(d));
        assert_int_equal(mem.bytes[KK_MEM_WEIGHTS_DRAFTER], 0);
    }
    kk_drafter_close(d);
}

/* ---- beside a verifier ----------------------------------------------------------------------- */

static void not_for(const kk_drafter_config *c, const kk_config *v, const char *says) {
    kk_err err = {0};
    assert_int_equal(kk_drafter_check(c, v, &err), KK_EINVAL);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void a_drafter_of_another_verifier_is_refused(void **state) {
    (void)state;
    const kk_config v = small_moe();
    kk_drafter_config c = good(DRAFTER_JSON);
    assert_ok(kk_drafter_check(&c, &v, why));
    c.hidden = 128;
    not_for(&c, &v, "its hidden size is 128, the verifier's 64");
    c = good(DRAFTER_JSON);
    c.vocab = 100;
    not_for(&c, &v, "its vocabulary is 100, the verifier's 96");
    c = good(DRAFTER_JSON);
    c.taps[1] = 6;
    not_for(&c, &v, "reads layer 6, the verifier has 6 layers");
    c = good(DRAFTER_JSON);
    c.n_target_layers = 7;
    not_for(&c, &v, "a verifier with 7 layers, this one has 6");
    c.n_target_layers = 0; /* not said */
    assert_ok(kk_drafter_check(&c, &v, why));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_released_one),
        cmocka_unit_test(sliding_layers),
        cmocka_unit_test(windows_of_its_own),
        cmocka_unit_test(taps_and_masks),
        cmocka_unit_test(what_no_drafter_has),
        cmocka_unit_test_setup_teardown(a_folder_opens, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(wrong_tensors_are_refused_by_name, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(fc_says_how_many_taps, scratch_setup, scratch_teardown),
        cmocka_unit_test(taps_spread_as_published),
        cmocka_unit_test(random_ones_have_released_shapes),
        cmocka_unit_test(random_ones_are_counted),
        cmocka_unit_test(heads_are_packed),
        cmocka_unit_test(some_heads_are_not_copied),
        cmocka_unit_test(a_drafter_of_another_verifier_is_refused),
    };
    return cmocka_run_group_tests_name("drafter", tests, NULL, NULL);
}
