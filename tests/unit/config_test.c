/* config_test.c - every way a configuration is written down means the same shapes, and one that
 * cannot be meant is refused by the field's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "format/format.h"

/* Fields that describe a small dense model; others are added after them. */
#define BASE                                                                                       \
    "\"model_type\": \"gemma4_text\", \"vocab_size\": 320, \"hidden_size\": 64, "                  \
    "\"intermediate_size\": 96, \"num_hidden_layers\": 12, \"num_attention_heads\": 4, "           \
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"sliding_window\": 8, "                        \
    "\"max_position_embeddings\": 512, \"hidden_size_per_layer_input\": 0"

static kk_status parse(const char *json, kk_config *c, kk_err *err) {
    return kk_config_from_json(c, json, strlen(json), err);
}

static kk_config good(const char *json) {
    kk_config c;
    kk_err err = {0};
    if (parse(json, &c, &err) != KK_OK) fail_msg("%s", err.msg);
    return c;
}

static void refused(const char *json, const char *says) {
    kk_config c;
    kk_err err = {0};
    assert_int_equal(parse(json, &c, &err), KK_EFORMAT);
    if (!strstr(err.msg, says)) fail_msg("expected '%s' in: %s", says, err.msg);
}

/* ---- layers ----------------------------------------------------------------------------- */

static void layer_kinds_default_to_five_and_one(void **state) {
    (void)state;
    const kk_config c = good("{" BASE "}");
    for (int32_t i = 0; i < 12; i++) {
        assert_int_equal(c.layer[i].kind, i % 6 == 5 ? KK_FULL : KK_SLIDING);
        assert_int_equal(c.layer[i].kv_source, i);
    }
    assert_int_equal(c.layer[0].head_dim, 16);
    assert_int_equal(c.layer[5].head_dim, 512); /* the default of global_head_dim */
    assert_int_equal(c.layer[5].n_kv_head, 2);
    assert_false(c.layer[5].k_eq_v);
}

static void the_last_layer_is_full(void **state) {
    (void)state;
    const kk_config c = good("{" BASE ", \"layer_types\": ["
                             "\"full_attention\", \"sliding_attention\", \"sliding_attention\","
                             "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\","
                             "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\","
                             "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\""
                             "]}");
    assert_int_equal(c.layer[0].kind, KK_FULL);
    assert_int_equal(c.layer[5].kind, KK_SLIDING);
    assert_int_equal(c.layer[11].kind, KK_FULL);
    assert_int_equal(c.layer[11].head_dim, 512);
}

static void layer_types_count_the_layers(void **state) {
    (void)state;
    const kk_config c =
        good("{\"model_type\": \"gemma4\", \"hidden_size\": 64, \"intermediate_size\": 8,"
             "\"hidden_size_per_layer_input\": null,"
             "\"layer_types\": [\"sliding_attention\", \"full_attention\"]}");
    assert_int_equal(c.n_layer, 2);
    /* The rest are the defaults of the public configuration class. */
    assert_int_equal(c.vocab, 262144);
    assert_int_equal(c.n_head, 8);
    assert_int_equal(c.window, 512);
    assert_int_equal(c.context, 131072);
    assert_int_equal(c.layer[0].n_kv_head, 4);
    assert_int_equal(c.ple_dim, 0);
    assert_true(c.softcap == 0);
    assert_int_equal(c.rope[KK_FULL].n_rot, 64);
    assert_int_equal(c.rope[KK_SLIDING].n_rot, 128);
}

static void old_and_new_style_agree(void **state) {
    (void)state;
    kk_config old = good("{" BASE ", \"global_head_dim\": 32, \"attention_k_eq_v\": true,"
                         "\"num_global_key_value_heads\": 1}");
    kk_config new = good("{" BASE ", \"attention_k_eq_v\": true, \"architectures\": null,"
                         "\"per_layer_config\": {\"05\": {\"head_dim\": 32, "
                         "\"num_key_value_heads\": 1}, \"11\": {\"head_dim\": 32, "
                         "\"num_key_value_heads\": 1}}}");
    assert_memory_equal(&old, &new, sizeof old);
    assert_int_equal(new.layer[5].head_dim, 32);
    assert_int_equal(new.layer[5].n_kv_head, 1);
    assert_true(new.layer[5].k_eq_v);
    assert_false(new.layer[4].k_eq_v);
}

static void per_layer_fields_inherit(void **state) {
    (void)state;
    const kk_config c = good("{" BASE ", \"per_layer_config\": {\"005\": {\"head_dim\": 32},"
                             "\"011\": {\"head_dim\": 32}}}"); /* decimal */
    assert_int_equal(c.layer[5].n_kv_head, 2);
    assert_int_equal(c.layer[11].head_dim, 32);
    /* Full layers that the map leaves out have the common shape. */
    const kk_config d = good("{" BASE ", \"per_layer_config\": {}}");
    assert_int_equal(d.layer[5].head_dim, 16);
    /* And a field that an entry leaves out is the common one. */
    const kk_config e = good("{" BASE ", \"global_head_dim\": 32, \"per_layer_config\": {"
                             "\"5\": {\"num_key_value_heads\": 1},"
                             "\"11\": {\"num_key_value_heads\": 1}}}");
    assert_int_equal(e.layer[5].head_dim, 16);
    assert_int_equal(e.layer[5].n_kv_head, 1);
}

/* Global key heads need attention_k_eq_v; the global head size does not. */
static void global_kv_heads_need_k_eq_v(void **state) {
    (void)state;
    const kk_config c = good("{" BASE ", \"global_head_dim\": 32, "
                             "\"num_global_key_value_heads\": 1}");
    assert_int_equal(c.layer[5].head_dim, 32);
    assert_int_equal(c.layer[5].n_kv_head, 2);
    const kk_config d = good("{" BASE ", \"global_head_dim\": 32, \"attention_k_eq_v\": true, "
                             "\"num_global_key_value_heads\": null}");
    assert_int_equal(d.layer[5].n_kv_head, 2);
}

static void shared_layers_read_the_last_of_their_kind(void **state) {
    (void)state;
    const kk_config c = good("{" BASE ", \"num_kv_shared_layers\": 5, "
                             "\"use_double_wide_mlp\": true, \"global_head_dim\": 32}");
    assert_int_equal(c.layer[6].kv_source, 6);
    assert_int_equal(c.layer[7].kv_source, 6); /* sliding */
    assert_int_equal(c.layer[10].kv_source, 6);
    assert_int_equal(c.layer[11].kv_source, 5); /* full */
    assert_int_equal(c.layer[6].ffn, 96);
    assert_int_equal(c.layer[7].ffn, 192);
    refused("{" BASE ", \"num_kv_shared_layers\": 12}", "num_kv_shared_layers is 12");
    refused("{" BASE ", \"num_kv_shared_layers\": 8}", "layer 5 shares the K/V of an earlier full");
}

/* ---- the rest --------------------------------------------------------------------------- */

static void text_config_is_found_inside(void **state) {
    (void)state;
    const kk_config c = good("{\"model_type\": \"gemma4\", \"eos_token_id\": [1, 106, 50],"
                             "\"vision_config\": {\"hidden_size\": 7},"
                             "\"architectures\": [\"Gemma4ForConditionalGeneration\"],"
                             "\"text_config\": {" BASE ", \"eos_token_id\": 1}}");
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.n_stop_ids, 3);
    assert_int_equal(c.stop_ids[0], 1);
    assert_int_equal(c.stop_ids[1], 106);
    assert_int_equal(c.stop_ids[2], 50);
}

static void stop_ids_are_merged(void **state) {
    (void)state;
    kk_config c = good("{" BASE ", \"eos_token_id\": 1}");
    static const char more[] = "{\"eos_token_id\": [1, 106, 50, 262143], \"temperature\": 1.0}";
    static const char none[] = "{\"eos_token_id\": null}";
    kk_err err;
    assert_int_equal(kk_config_add_generation(&c, more, strlen(more), &err), KK_OK);
    assert_int_equal(kk_config_add_generation(&c, none, strlen(none), &err), KK_OK);
    assert_int_equal(c.n_stop_ids, 3); /* 1 once, 262143 is no token of this model */
    assert_int_equal(c.stop_ids[2], 50);
    assert_int_equal(kk_config_add_generation(&c, "[]", 2, &err), KK_EFORMAT);
    assert_int_equal(kk_config_add_generation(&c, "{\"eos_token_id\": -3}", 20, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "-3"));
    assert_int_equal(kk_config_add_generation(&c, "{\"eos_token_id\": {}}", 20, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "generation_config.json"));
    refused("{" BASE ", \"eos_token_id\": \"</s>\"}", "eos_token_id");
    refused("{" BASE ", \"eos_token_id\": [1.5]}", "eos_token_id 0");
    refused("{" BASE ", \"eos_token_id\": [3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]}",
            "more than 16");
}

static void rope_rotates_part_of_the_pairs(void **state) {
    (void)state;
    const kk_config c =
        good("{" BASE ", \"global_head_dim\": 32, \"rope_parameters\": {"
             "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 5000.0},"
             "\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 2000000,"
             "\"partial_rotary_factor\": 0.3, \"factor\": 8.0}}}");
    assert_int_equal(c.rope[KK_SLIDING].n_rot, 8);
    assert_true(c.rope[KK_SLIDING].theta == 5000 && c.rope[KK_SLIDING].factor == 1);
    assert_int_equal(c.rope[KK_FULL].n_rot, 4); /* int(0.3 * 32 // 2) */
    assert_true(c.rope[KK_FULL].theta == 2e6f && c.rope[KK_FULL].factor == 8);
    refused("{" BASE ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\"}}}",
            "rope_type 'yarn'");
    refused("{" BASE ", \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"default\", "
            "\"partial_rotary_factor\": 0.5}}}",
            "partial_rotary_factor");
    refused("{" BASE ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": "
            "\"proportional\", \"rope_theta\": -1}}}",
            "rope_theta is -1");
    refused("{" BASE ", \"rope_parameters\": 5}", "rope_parameters is no object");
    refused("{" BASE ", \"rope_parameters\": []}", "rope_parameters is no object");
    refused("{" BASE ", \"rope_parameters\": {\"full_attention\": \"proportional\"}}",
            "full_attention of rope_parameters is no object");
    refused("{" BASE ", \"rope_parameters\": {\"sliding_attention\": [1]}}",
            "sliding_attention of rope_parameters is no object");
    refused("{" BASE ", \"rope_parameters\": {\"rope_theta\": 5000.0}}",
            "rope_theta of rope_parameters is no object");
    refused("{" BASE ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": 1}}}",
            "rope_type 'not a string'");
    refused("{" BASE ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": \"1e6\"}}}",
            "rope_theta is no number");
    (void)good("{" BASE ", \"rope_parameters\": {\"full_attention\": null}}");
}

static void experts_need_all_their_fields(void **state) {
    (void)state;
    const kk_config c = good("{" BASE ", \"enable_moe_block\": true, \"num_experts\": 8, "
                             "\"top_k_experts\": 2, \"moe_intermediate_size\": 40}");
    assert_int_equal(c.n_expert, 8);
    assert_int_equal(c.n_expert_used, 2);
    assert_int_equal(c.expert_ffn, 40);
    refused("{" BASE ", \"enable_moe_block\": true, \"num_experts\": 8}",
            "top_k_experts is missing");
    refused("{" BASE ", \"enable_moe_block\": true, \"num_experts\": 8, \"top_k_experts\": 9, "
            "\"moe_intermediate_size\": 40}",
            "top_k_experts is 9, outside 1..8");
    refused("{" BASE ", \"enable_moe_block\": true, \"num_experts\": 0, \"top_k_experts\": 9, "
            "\"moe_intermediate_size\": 40}",
            "num_experts is 0");
    /* Without the block, null or leftover counts mean nothing. */
    assert_int_equal(good("{" BASE ", \"num_experts\": null, \"top_k_experts\": 3}").n_expert, 0);
}

static void absurd_fields_are_named(void **state) {
    (void)state;
    refused("", "config.json");
    refused("{", "config.json");
    refused("[]", "no JSON object");
    refused("{}", "model_type is missing");
    refused("{\"model_type\": \"llama\"}", "model_type is 'llama'");
    refused("{\"model_type\": \"gemma4_text\"}", "hidden_size is missing");
    refused("{\"model_type\": \"gemma4_text\", \"hidden_size\": 64}",
            "num_hidden_layers is missing");
    refused("{\"model_type\": \"gemma4_text\", \"hidden_size\": 64, \"num_hidden_layers\": 6}",
            "intermediate_size is missing");
    refused("{\"model_type\": \"gemma4\", \"text_config\": 3}", "text_config");
    refused("{\"hidden_size\": 64, \"hidden_size\": 65, \"model_type\": \"gemma4\"}", "duplicate");
    static const struct {
        const char *field, *says;
    } cases[] = {
        {"\"hidden_size\": 0", "hidden_size is 0"},
        {"\"hidden_size\": -64", "hidden_size is -64"},
        {"\"hidden_size\": 64.5", "hidden_size is no integer"},
        {"\"hidden_size\": \"64\"", "hidden_size is no integer"},
        {"\"hidden_size\": 99999999999", "hidden_size is 99999999999"},
        {"\"vocab_size\": 0", "vocab_size is 0"},
        {"\"num_hidden_layers\": 0", "num_hidden_layers is 0"},
        {"\"num_hidden_layers\": 257", "num_hidden_layers is 257, outside 1..256"},
        {"\"num_attention_heads\": 3", "3 attention heads do not divide into 2"},
        {"\"num_key_value_heads\": 5", "num_key_value_heads is 5, outside 1..4"},
        {"\"num_key_value_heads\": 0", "num_key_value_heads is 0"},
        {"\"head_dim\": 15", "head_dim 15 of layer 0 is odd"},
        {"\"head_dim\": 1048576", "head_dim is 1048576"},
        {"\"global_head_dim\": 0", "head_dim is 0"},
        {"\"intermediate_size\": 2147483647", "intermediate_size is 2147483647"},
        {"\"sliding_window\": 0", "sliding_window is 0"},
        {"\"max_position_embeddings\": -1", "max_position_embeddings is -1"},
        {"\"rms_norm_eps\": 0", "rms_norm_eps is 0"},
        {"\"rms_norm_eps\": \"small\"", "rms_norm_eps is no number"},
        {"\"rms_norm_eps\": 1e300", "rms_norm_eps is 1e+300"},
        {"\"final_logit_softcapping\": -30", "final_logit_softcapping is -30"},
        {"\"hidden_size_per_layer_input\": -1", "hidden_size_per_layer_input is -1"},
        {"\"hidden_size_per_layer_input\": 8, \"vocab_size_per_layer_input\": 5",
         "vocab_size_per_layer_input is 5"},
        {"\"bos_token_id\": 320", "bos_token_id is 320"},
        {"\"attention_k_eq_v\": 1", "attention_k_eq_v is neither true nor false"},
        {"\"hidden_activation\": \"silu\"", "hidden_activation is 'silu'"},
        {"\"attention_bias\": true", "attention_bias is true"},
        {"\"tie_word_embeddings\": false", "tie_word_embeddings is false"},
        {"\"layer_types\": \"all\"", "layer_types is no list"},
        {"\"layer_types\": [\"full_attention\"]", "layer_types has 1 entries for 12"},
        {"\"per_layer_config\": []", "per_layer_config is no object"},
        {"\"per_layer_config\": {\"twelve\": {}}", "per_layer_config has a bad entry 'twelve'"},
        {"\"per_layer_config\": {\"12\": {}}", "per_layer_config has a bad entry '12'"},
        {"\"per_layer_config\": {\"5\": {\"head_dim\": 32}}", "layer 11 has 2 key heads of 16"},
        {"\"per_layer_config\": {\"5\": {\"head_dim\": 1e9}}", "head_dim is no integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* The field replaces the one in BASE: a name may stand only once. */
        char json[2048], base[1024] = BASE, name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(cases[i].field, ":"), cases[i].field);
        char *at = strstr(base, name);
        if (at) at[1] = '_';
        snprintf(json, sizeof json, "{%s, %s}", base, cases[i].field);
        refused(json, cases[i].says);
    }
}

static void bad_layer_types_are_named(void **state) {
    (void)state;
    refused("{\"model_type\": \"gemma4\", \"hidden_size\": 64, \"intermediate_size\": 8,"
            "\"layer_types\": [\"sliding_attention\", \"chunked_attention\"]}",
            "layer_types[1] is 'chunked_attention'");
    refused("{\"model_type\": \"gemma4\", \"hidden_size\": 64, \"intermediate_size\": 8,"
            "\"layer_types\": [3]}",
            "layer_types[0] is 'not a string'");
}

/* ---- presets ---------------------------------------------------------------------------- */

static int64_t params_of(const char *name) {
    kk_config c;
    kk_inventory list;
    int64_t sum = 0;
    assert_int_equal(kk_config_preset(&c, name, 0, NULL), KK_OK);
    assert_int_equal(kk_inventory_make(&list, &c, NULL), KK_OK);
    for (size_t i = 0; i < list.n; i++) sum += kk_inventory_values(&list.items[i]);
    kk_inventory_free(&list);
    return sum;
}

static void presets_have_the_published_sizes(void **state) {
    (void)state;
    assert_int_equal(params_of("26b-a4b"), 25233141790);
    assert_int_equal(params_of("31b"), 30697345340);
    assert_int_equal(params_of("e2b"), 4628569379);
    assert_int_equal(params_of("e4b"), 7463013418);
}

static void presets_share_as_released(void **state) {
    (void)state;
    kk_config c;
    assert_int_equal(kk_config_preset(&c, "e2b", 0, NULL), KK_OK);
    assert_int_equal(c.layer[33].kv_source, 13);
    assert_int_equal(c.layer[34].kv_source, 14);
    assert_int_equal(c.layer[14].ffn, 6144);
    assert_int_equal(c.layer[15].ffn, 12288);
    assert_int_equal(kk_config_preset(&c, "e4b", 0, NULL), KK_OK);
    assert_int_equal(c.layer[40].kv_source, 22);
    assert_int_equal(c.layer[41].kv_source, 23);
    assert_int_equal(kk_config_preset(&c, "26b-a4b", 0, NULL), KK_OK);
    assert_int_equal(c.rope[KK_FULL].n_rot, 64);
    assert_int_equal(c.rope[KK_SLIDING].n_rot, 128);
}

static void presets_can_be_cut_short(void **state) {
    (void)state;
    static const char *const names[] = {"26b-a4b", "31b", "e2b", "e4b", "tiny", "tiny-ple"};
    for (size_t p = 0; p < sizeof names / sizeof *names; p++) {
        kk_config whole, c;
        assert_int_equal(kk_config_preset(&whole, names[p], 0, NULL), KK_OK);
        for (int32_t n = 1; n <= whole.n_layer; n++) {
            assert_int_equal(kk_config_preset(&c, names[p], n, NULL), KK_OK);
            assert_int_equal(c.n_layer, n);
            assert_int_equal(c.layer[n - 1].kind, KK_FULL);
        }
        kk_err err;
        assert_int_equal(kk_config_preset(&c, names[p], whole.n_layer + 1, &err), KK_EINVAL);
        assert_int_equal(kk_config_preset(&c, names[p], -1, &err), KK_EINVAL);
    }
    kk_config c;
    kk_err err;
    assert_int_equal(kk_config_preset(&c, "27b", 0, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "27b"));
}

static void shapes_have_names(void **state) {
    (void)state;
    kk_config c;
    assert_int_equal(kk_config_preset(&c, "31b", 0, NULL), KK_OK);
    assert_string_equal(kk_config_name(&c), "31B");
    assert_int_equal(kk_config_preset(&c, "26b-a4b", 0, NULL), KK_OK);
    assert_string_equal(kk_config_name(&c), "26B-A4B");
    assert_int_equal(kk_config_preset(&c, "26b-a4b", 12, NULL), KK_OK);
    assert_string_equal(kk_config_name(&c), "custom");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_kinds_default_to_five_and_one),
        cmocka_unit_test(the_last_layer_is_full),
        cmocka_unit_test(layer_types_count_the_layers),
        cmocka_unit_test(old_and_new_style_agree),
        cmocka_unit_test(per_layer_fields_inherit),
        cmocka_unit_test(global_kv_heads_need_k_eq_v),
        cmocka_unit_test(shared_layers_read_the_last_of_their_kind),
        cmocka_unit_test(text_config_is_found_inside),
        cmocka_unit_test(stop_ids_are_merged),
        cmocka_unit_test(rope_rotates_part_of_the_pairs),
        cmocka_unit_test(experts_need_all_their_fields),
        cmocka_unit_test(absurd_fields_are_named),
        cmocka_unit_test(bad_layer_types_are_named),
        cmocka_unit_test(presets_have_the_published_sizes),
        cmocka_unit_test(presets_share_as_released),
        cmocka_unit_test(presets_can_be_cut_short),
        cmocka_unit_test(shapes_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
