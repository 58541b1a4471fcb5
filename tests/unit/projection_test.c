/* projection_test.c - a projection's configuration both ways, the counts of parameters of the
 * prototype, its files held to strict names and shapes and written whole or not at all, and every
 * way in which it can be another model's.
 * ctest: threads (packing has several) */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>

#include "support/drafter_folder.h"
#include "support/ok.h"
#include "support/projection_folder.h"

/* ---- configuration -------------------------------------------------------------------------- */

#define HEAD "\"format\": \"kakeya-projection\", \"version\": 1"
#define SOURCE "\"source\": \"taps\", \"taps\": [1, 4], \"inputs\": 128"
#define SHAPE "\"rank\": 32, \"encoders\": \"joint\", \"hidden\": 64, \"verifier_layers\": 6"
#define LAYERS                                                                                     \
    "\"layers\": [{\"layer\": 0, \"kv_heads\": 2, \"head_dim\": 16}, "                             \
    "{\"layer\": 5, \"kv_heads\": 1, \"head_dim\": 32, \"k_eq_v\": true}]"
#define JSON "{" HEAD ", " SOURCE ", " SHAPE ", " LAYERS "}"
/* Of equal keys the last one counts. */
#define ALSO(fields) "{" HEAD ", " SOURCE ", " SHAPE ", " LAYERS ", " fields "}"
#define DRAFT(layers, heads, dim)                                                                  \
    "\"source\": \"drafter-kv\", \"taps\": [], \"encoders\": \"separate\", "                       \
    "\"drafter_layers\": " #layers ", \"drafter_kv_heads\": " #heads                               \
    ", \"drafter_head_dim\": " #dim

static kk_projection_config good(const char *json) {
    kk_projection_config c;
    assert_ok(kk_projection_config_from_json(&c, json, strlen(json), why));
    return c;
}

static void refused(const char *json, const char *says) {
    kk_projection_config c;
    kk_err err = {0};
    const int64_t blocks = kk_live_blocks();
    assert_int_equal(kk_projection_config_from_json(&c, json, strlen(json), &err), KK_EFORMAT);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
    assert_int_equal(kk_live_blocks(), blocks);
}

static void a_configuration_is_read(void **state) {
    (void)state;
    static const int32_t taps[] = {1, 4};
    kk_projection_config c = good(JSON);
    assert_int_equal(c.source, KK_SOURCE_TAPS);
    assert_int_equal(c.n_taps, 2);
    assert_memory_equal(c.taps, taps, sizeof taps);
    assert_true(c.n_in == 128 && c.rank == 32 && c.hidden == 64 && c.n_layer == 6 && c.joint);
    assert_true(c.layer[0].restored && !c.layer[0].k_eq_v);
    assert_true(c.layer[5].restored && c.layer[5].k_eq_v);
    assert_true(c.layer[5].n_kv_head == 1 && c.layer[5].head_dim == 32);
    for (int i = 1; i < 5; i++) assert_false(c.layer[i].restored);
    assert_true(c.verifier == 0 && c.drafter == 0);
    c = good(ALSO("\"verifier\": \"00ff00000000001a\", \"drafter\": \"ffffffffffffffff\", "
                  "\"comment\": [1, {}]"));
    assert_true(c.verifier == 0x00ff00000000001au && c.drafter == UINT64_MAX);
    c = good(ALSO("\"source\": \"embed\", \"taps\": null, \"inputs\": 64"));
    assert_true(c.source == KK_SOURCE_EMBED && c.n_taps == 0);
    c = good(ALSO("\"source\": \"context\", \"inputs\": 64, \"encoders\": \"separate\""));
    assert_true(c.source == KK_SOURCE_CONTEXT && c.n_taps == 2 && !c.joint);
    c = good(ALSO(DRAFT(2, 3, 16) ", \"inputs\": 96"));
    assert_true(c.source == KK_SOURCE_DRAFTER_KV && c.draft.n_kv_head == 3);
}

static void sources_have_names(void **state) {
    (void)state;
    kk_source s;
    for (int i = 0; i < KK_SOURCES; i++) {
        assert_true(kk_source_named(kk_source_name((kk_source)i), &s));
        assert_int_equal(s, i);
    }
    assert_string_equal(kk_source_name(KK_SOURCE_DRAFTER_KV), "drafter-kv");
    assert_false(kk_source_named("tap", &s));
    assert_false(kk_source_named("", &s));
}

static void what_is_no_projection(void **state) {
    (void)state;
    refused("", "projection.json");
    refused("{", "projection.json");
    refused("[]", "projection.json is no JSON object");
    refused("{}", "format is missing");
    refused(ALSO("\"format\": 1"), "format is not a string");
    refused(ALSO("\"format\": \"kakeya-report\""), "format is 'kakeya-report'");
    refused(ALSO("\"version\": null"), "version is missing");
    refused(ALSO("\"version\": 2"), "is of version 2, this program reads version 1");
    refused(ALSO("\"version\": 0"), "is of version 0");
    refused(ALSO("\"version\": \"1\""), "version is no integer");
}

static void wrong_sources(void **state) {
    (void)state;
    refused(ALSO("\"source\": \"hidden\""), "source is 'hidden'");
    refused(ALSO("\"source\": null"), "source is missing");
    refused(ALSO("\"encoders\": \"both\""), "encoders is 'both'");
    refused(ALSO("\"taps\": null"), "source taps needs taps");
    refused(ALSO("\"taps\": []"), "source taps needs taps");
    refused(ALSO("\"source\": \"context\", \"taps\": []"), "source context needs taps");
    refused(ALSO("\"source\": \"embed\", \"inputs\": 64"), "source embed has no taps, 2 are named");
    refused(ALSO("\"taps\": 4"), "taps is no list");
    refused(ALSO("\"taps\": [1, 6]"), "taps[1] is 6, the verifier has 6 layers");
    refused(ALSO("\"taps\": [-1, 2]"), "taps[0] is no layer");
    refused(ALSO("\"taps\": [1.5, 2]"), "taps[0] is no layer");
    refused(ALSO("\"taps\": [4294967297, 2]"), "taps[0] is no layer");
    refused(ALSO("\"taps\": [2, 2]"), "taps names layer 2 twice");
    refused(ALSO("\"taps\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"), "up to 16 layers");
    refused(ALSO("\"inputs\": 64"), "inputs is 64, source taps has 128");
    refused(ALSO("\"inputs\": 0"), "inputs is 0");
    refused(ALSO("\"inputs\": 9999999999"), "inputs is 9999999999");
    refused(ALSO("\"source\": \"embed\", \"taps\": []"), "inputs is 128, source embed has 64");
    refused(ALSO("\"source\": \"context\""), "inputs is 128, source context has 64");
    refused(ALSO(DRAFT(2, 2, 16)), "inputs is 128, source drafter-kv has 64");
    refused(ALSO(DRAFT(64, 1024, 512)), "inputs is 128, source drafter-kv has 33554432");
    refused(ALSO(DRAFT(64, 1024, 512) ", \"inputs\": 33554432"), "inputs is 33554432, outside");
    refused(ALSO(DRAFT(0, 2, 16)), "drafter_layers is 0");
    refused(ALSO(DRAFT(2, 0, 16)), "drafter_kv_heads is 0");
    refused(ALSO(DRAFT(2, 2, 1024)), "drafter_head_dim is 1024");
    refused(ALSO(DRAFT(2, 2, 32) ", \"encoders\": \"joint\""), "has separate encoders");
    refused(ALSO("\"drafter_layers\": 5"), "source taps reads no K/V of a drafter");
}

static void wrong_shapes(void **state) {
    (void)state;
    refused(ALSO("\"rank\": 0"), "rank is 0");
    refused(ALSO("\"rank\": -1"), "rank is -1");
    refused(ALSO("\"rank\": 8193"), "rank is 8193, outside 1..8192");
    refused(ALSO("\"rank\": 32.0"), "rank is no integer");
    refused(ALSO("\"hidden\": 0"), "hidden is 0");
    refused(ALSO("\"hidden\": 65537"), "hidden is 65537");
    refused(ALSO("\"verifier_layers\": 0"), "verifier_layers is 0");
    refused(ALSO("\"verifier_layers\": 257"), "verifier_layers is 257");
    refused(ALSO("\"verifier_layers\": 5"), "layers names layer 5, the verifier has 5 layers");
    refused(ALSO("\"layers\": {}"), "layers is no list");
    refused(ALSO("\"layers\": []"), "layers names none of 6 layers");
    refused(ALSO("\"layers\": [3]"), "layers[0] is no object");
#define LAYER(fields) ALSO("\"layers\": [{" fields "}]")
    refused(LAYER("\"kv_heads\": 2, \"head_dim\": 16"), "layer is missing");
    refused(LAYER("\"layer\": -1, \"kv_heads\": 2, \"head_dim\": 16"), "names layer -1");
    refused(LAYER("\"layer\": 1, \"head_dim\": 16"), "kv_heads is missing");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 2"), "head_dim is missing");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 0, \"head_dim\": 16"), "kv_heads of a layer is 0");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 2000000000, \"head_dim\": 16"), "is 2000000000");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 2, \"head_dim\": 514"),
            "head_dim of a layer is 514");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 2, \"head_dim\": 15"), "head_dim 15 of layer 1");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 2, \"head_dim\": 16, \"k_eq_v\": 1"), "k_eq_v");
    refused(LAYER("\"layer\": 1, \"kv_heads\": 2, \"head_dim\": 16}, "
                  "{\"layer\": 1, \"kv_heads\": 2, \"head_dim\": 16"),
            "layers names layer 1 twice");
#undef LAYER
    refused(ALSO("\"verifier\": 5"), "verifier is no fingerprint");
    refused(ALSO("\"verifier\": \"00ff\""), "verifier is no fingerprint");
    refused(ALSO("\"drafter\": \"00ff00000000001g\""), "drafter is no fingerprint");
    refused(ALSO("\"drafter\": \"00ff00000000001aa\""), "drafter is no fingerprint");
}

static void same_config(const kk_projection_config *a, const kk_projection_config *b) {
    assert_int_equal(a->source, b->source);
    assert_int_equal(a->n_taps, b->n_taps);
    assert_memory_equal(a->taps, b->taps, sizeof a->taps);
    assert_true(a->n_in == b->n_in && a->rank == b->rank && a->joint == b->joint);
    assert_true(a->n_layer == b->n_layer && a->hidden == b->hidden);
    assert_memory_equal(&a->draft, &b->draft, sizeof a->draft);
    for (int32_t i = 0; i < KK_MAX_LAYERS; i++) {
        assert_int_equal(a->layer[i].restored, b->layer[i].restored);
        assert_int_equal(a->layer[i].k_eq_v, b->layer[i].k_eq_v);
        assert_int_equal(a->layer[i].n_kv_head, b->layer[i].n_kv_head);
        assert_int_equal(a->layer[i].head_dim, b->layer[i].head_dim);
    }
    assert_true(a->verifier == b->verifier && a->drafter == b->drafter);
}

static void returns_from_json(const kk_projection_config *c) {
    char *json = kk_projection_config_to_json(c);
    const kk_projection_config again = good(json);
    same_config(&again, c);
    kk_free(json);
}

static void a_configuration_returns_from_json(void **state) {
    (void)state;
    kk_config v = small_moe();
    kk_projection_config c = projection_for(&v, true);
    returns_from_json(&c);
    c.layer[2].restored = false; /* what is not restored has no shape */
    c.layer[2].n_kv_head = c.layer[2].head_dim = 0;
    returns_from_json(&c);
    c = projection_for(&v, false);
    returns_from_json(&c);
    /* The longest there is. */
    c = (kk_projection_config){.n_taps = KK_MAX_TAPS,
                               .n_in = KK_MAX_TAPS << 16,
                               .rank = KK_MAX_RANK,
                               .n_layer = KK_MAX_LAYERS,
                               .hidden = 1 << 16,
                               .verifier = UINT64_MAX,
                               .drafter = UINT64_MAX};
    for (int32_t i = 0; i < KK_MAX_TAPS; i++) c.taps[i] = KK_MAX_LAYERS - 1 - i;
    for (int32_t i = 0; i < KK_MAX_LAYERS; i++) {
        c.layer[i].restored = true;
        c.layer[i].n_kv_head = 1024;
        c.layer[i].head_dim = 512;
    }
    returns_from_json(&c);
    assert_true(kk_projection_params(&c) == 8192LL * (2LL * (16 << 16) + 512LL * (1 << 19)));
}

/* ---- the prototype's counts ------------------------------------------------------------------ */

/* The prototype's form for a verifier, from a drafter of 5 layers with 8 heads of 128. */
static kk_projection_config prototype(const kk_config *v, int32_t rank) {
    kk_projection_config c = projection_for(v, false);
    c.rank = rank;
    c.draft.n_layer = 5;
    c.draft.n_kv_head = 8;
    c.draft.head_dim = 128;
    c.n_in = 5120;
    assert_ok(kk_projection_config_valid(&c, KK_EINVAL, why));
    return c;
}

static int64_t values_in(const kk_projection_config *c) {
    kk_inventory list;
    int64_t n = 0;
    assert_ok(kk_inventory_make_projection(&list, c, why));
    for (size_t i = 0; i < list.n; i++) n += kk_inventory_values(&list.items[i]);
    kk_inventory_free(&list);
    return n;
}

static void parameters_are_those_of_the_prototype(void **state) {
    (void)state;
    kk_config v;
    assert_ok(kk_config_preset(&v, "26b-a4b", 0, why));
    kk_projection_config c = prototype(&v, 768);
    assert_int_equal(kk_projection_params(&c), 94371840);
    assert_int_equal(values_in(&c), 94371840);
    assert_true(c.layer[0].n_kv_head * c.layer[0].head_dim == 2048);
    assert_true(c.layer[5].n_kv_head == 2 && c.layer[5].head_dim == 512);
    c.rank = 256;
    assert_int_equal(kk_projection_params(&c), 31457280);
    c = (kk_projection_config){.source = KK_SOURCE_DRAFTER_KV,
                               .rank = 16,
                               .n_in = 16,
                               .n_layer = 3,
                               .hidden = 64,
                               .draft = {2, 2, 4}};
    for (int i = 0; i < 3; i++) {
        c.layer[i].restored = true;
        c.layer[i].n_kv_head = 4;
        c.layer[i].head_dim = 8;
    }
    assert_int_equal(kk_projection_params(&c), 3584);
    assert_int_equal(values_in(&c), 3584);
    /* One latent for both: a layer with K = V has one decoder. */
    const kk_config small = small_moe();
    c = projection_for(&small, true);
    assert_int_equal(kk_projection_params(&c), 32 * (128 + 5 * 2 * 32 + 32));
    assert_int_equal(values_in(&c), kk_projection_params(&c));
    c.layer[5].restored = false;
    assert_int_equal(kk_projection_params(&c), 32 * (128 + 5 * 2 * 32));
}

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
    /* A folder stands where a file should go: found at the rename. */
    mkdir(scratch_path(s, "a"), 0700);
    mkdir(scratch_path(s, "a/projection.safetensors"), 0700);
    assert_int_equal(try_write(scratch_path(s, "a"), &c, all, KK_F32, "cannot replace"), KK_EIO);
    assert_int_equal(scratch_entries(s->path), 1);
    /* The configuration comes last: without it there is no projection. */
    mkdir(scratch_path(s, "b"), 0700);
    mkdir(scratch_path(s, "b/projection.json"), 0700);
    assert_int_equal(try_write(scratch_path(s, "b"), &c, all, KK_F32, "cannot replace"), KK_EIO);
    assert_int_equal(scratch_entries(s->path), 2);
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

/* ---- beside a verifier and a drafter --------------------------------------------------------- */

static void not_for(const kk_projection_config *c, const kk_config *v, const kk_drafter_config *d,
                    const char *says) {
    kk_err err = {0};
    assert_int_equal(kk_projection_check(c, v, d, false, &err), KK_EINVAL);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

static void a_projection_of_another_verifier_is_refused(void **state) {
    (void)state;
    const kk_config v = small_moe(), shared = small_ple();
    const kk_projection_config good_one = projection_for(&v, true);
    kk_projection_config c = good_one;
    assert_ok(kk_projection_check(&c, &v, NULL, true, why));
    kk_config other = v;
    other.n_layer = 5;
    not_for(&c, &other, NULL, "made for 6 layers, the verifier has 5");
    other = v;
    other.hidden = 128;
    not_for(&c, &other, NULL, "a hidden size of 64, the verifier's is 128");
    for (int32_t i = 0; i < v.n_layer; i++) {
        char says[80];
        other = v;
        other.layer[i].n_kv_head = 4;
        snprintf(says, sizeof says, "layer %d has %d K/V heads, the verifier's 4", i,
                 v.layer[i].n_kv_head);
        not_for(&c, &other, NULL, says);
        other = v;
        other.layer[i].head_dim = 64;
        snprintf(says, sizeof says, "layer %d has heads of %d, the verifier's 64", i,
                 v.layer[i].head_dim);
        not_for(&c, &other, NULL, says);
        other = v;
        other.layer[i].k_eq_v = !v.layer[i].k_eq_v;
        snprintf(says, sizeof says, "layer %d has K = V in %s and not in %s", i,
                 v.layer[i].k_eq_v ? "it" : "the verifier",
                 v.layer[i].k_eq_v ? "the verifier" : "it");
        not_for(&c, &other, NULL, says);
        /* Where it rebuilds nothing it does not matter. */
        c.layer[i].restored = false;
        assert_ok(kk_projection_check(&c, &other, NULL, true, why));
        c = good_one;
    }
    c.taps[1] = 6;
    not_for(&c, &v, NULL, "taps[1] is 6, the verifier has 6 layers");
    c = good_one;
    c.n_in = 64;
    not_for(&c, &v, NULL, "inputs is 64, source taps has 128");
    c = projection_for(&shared, true);
    c.layer[4].restored = true;
    not_for(&c, &shared, NULL, "rebuilds layer 4, which reads the K/V of layer 1");
}

static void a_projection_of_another_drafter_is_refused(void **state) {
    (void)state;
    const kk_config v = small_moe();
    kk_drafter_config d;
    assert_ok(kk_drafter_config_from_json(&d, DRAFTER_JSON, strlen(DRAFTER_JSON), why));
    kk_projection_config c = projection_for(&v, false);
    kk_err err = {0};
    assert_ok(kk_projection_check(&c, &v, &d, false, why));
    not_for(&c, &v, NULL, "from drafter-kv reads a drafter, and there is none");
    kk_drafter_config other = d;
    other.n_layer = 1;
    not_for(&c, &v, &other, "it reads 2 layers, the drafter has 1");
    other = d;
    other.n_kv_head = 4; /* as many values, in other heads */
    other.head_dim = 8;
    not_for(&c, &v, &other, "it reads 2 K/V heads, the drafter has 4");
    other = d;
    other.head_dim = 32;
    not_for(&c, &v, &other, "it reads 16 values per head, the drafter has 32");
    assert_int_equal(kk_projection_check(&c, &v, &d, true, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "drafter-kv reads later tokens"));
    c = projection_for(&v, true);
    c.joint = false;
    assert_ok(kk_projection_check(&c, &v, NULL, false, why));
    assert_int_equal(kk_projection_check(&c, &v, NULL, true, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "two encoders"));
}

static void a_context_is_that_of_its_drafter(void **state) {
    (void)state;
    const kk_config v = small_moe();
    kk_drafter_config d;
    assert_ok(kk_drafter_config_from_json(&d, DRAFTER_JSON, strlen(DRAFTER_JSON), why));
    kk_projection_config c = projection_for(&v, true);
    c.source = KK_SOURCE_CONTEXT;
    c.n_in = 64;
    not_for(&c, &v, NULL, "from context reads a drafter, and there is none");
    not_for(&c, &v, &d, "made with 2 taps, the drafter has 3");
    c.n_taps = d.n_taps;
    memcpy(c.taps, d.taps, sizeof d.taps);
    assert_ok(kk_projection_check(&c, &v, &d, true, why));
    kk_drafter_config other = d;
    other.taps[1] = 3;
    not_for(&c, &v, &other, "its tap 1 is layer 2, the drafter's 3");
    other = d;
    other.hidden = 96;
    not_for(&c, &v, &other, "reads 64 values, the drafter's hidden size is 96");
    c.n_in = 128;
    not_for(&c, &v, &d, "inputs is 128, source context has 64");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_configuration_is_read),
        cmocka_unit_test(sources_have_names),
        cmocka_unit_test(what_is_no_projection),
        cmocka_unit_test(wrong_sources),
        cmocka_unit_test(wrong_shapes),
        cmocka_unit_test(a_configuration_returns_from_json),
        cmocka_unit_test(parameters_are_those_of_the_prototype),
        IN_FOLDER(a_projection_returns_from_files),
        IN_FOLDER(wrong_files_are_refused_by_name),
        IN_FOLDER(what_cannot_be_written),
        IN_FOLDER(a_full_disk_changes_nothing),
        IN_FOLDER(places_that_take_no_files),
        cmocka_unit_test(random_ones_keep_their_spread),
        cmocka_unit_test(random_ones_in_any_shape),
        IN_FOLDER(packing_rounds_the_decoders),
        cmocka_unit_test(packing_leaves_odd_ranks),
        cmocka_unit_test(a_projection_of_another_verifier_is_refused),
        cmocka_unit_test(a_projection_of_another_drafter_is_refused),
        cmocka_unit_test(a_context_is_that_of_its_drafter),
    };
    return cmocka_run_group_tests_name("projection", tests, NULL, NULL);
}
