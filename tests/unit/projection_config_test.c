/* projection_config_test.c - a projection's configuration both ways, the prototype's counts of
 * parameters, and every way in which a projection can be another model's. */
#define _GNU_SOURCE
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_configuration_is_read),
        cmocka_unit_test(sources_have_names),
        cmocka_unit_test(what_is_no_projection),
        cmocka_unit_test(wrong_sources),
        cmocka_unit_test(wrong_shapes),
        cmocka_unit_test(a_configuration_returns_from_json),
        cmocka_unit_test(parameters_are_those_of_the_prototype),
        cmocka_unit_test(a_projection_of_another_verifier_is_refused),
        cmocka_unit_test(a_projection_of_another_drafter_is_refused),
        cmocka_unit_test(a_context_is_that_of_its_drafter),
    };
    return cmocka_run_group_tests_name("projection_config", tests, NULL, NULL);
}
