/* drafter_folder.h - writes a small drafter's folder, to be bent by a test before it is opened. */
#ifndef KK_TESTS_DRAFTER_FOLDER_H
#define KK_TESTS_DRAFTER_FOLDER_H

#include "support/model_folder.h"

/* One sliding layer and a full one, for small_moe(). */
#define DRAFTER_FIELDS                                                                             \
    "\"architectures\": [\"DFlashDraftModel\"], \"model_type\": \"qwen3\", \"vocab_size\": 96, "   \
    "\"hidden_size\": 64, \"intermediate_size\": 80, \"num_hidden_layers\": 2, "                   \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "                   \
    "\"layer_types\": [\"sliding_attention\", \"full_attention\"], \"sliding_window\": 32, "       \
    "\"rope_theta\": 1000000.0, \"block_size\": 6, \"num_target_layers\": 6, "                     \
    "\"final_logit_softcapping\": 30.0"
#define DRAFTER_OWN "\"dflash_config\": {\"mask_token_id\": 4, \"target_layer_ids\": [0, 2, 4]}"
#define DRAFTER_JSON "{" DRAFTER_FIELDS ", " DRAFTER_OWN "}"

/* Its tensors; model_find and model_free serve them too. */
static inline model_tensors *drafter_make(kk_dtype type) {
    model_tensors *m = calloc(1, sizeof *m);
    kk_inventory list;
    kk_drafter_config c;
    if (kk_drafter_config_from_json(&c, DRAFTER_JSON, strlen(DRAFTER_JSON), NULL) != KK_OK ||
        kk_inventory_make_drafter(&list, &c, NULL) != KK_OK)
        abort();
    model_add(m, &list, "", type);
    kk_inventory_free(&list);
    return m;
}

static inline void drafter_write_config(const char *dir, const char *json) {
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    scratch_write(path, json, strlen(json));
}

static inline void drafter_write(const char *dir, const model_tensors *m) {
    char path[512];
    drafter_write_config(dir, DRAFTER_JSON);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (kk_safetensors_write(path, m->tensors, m->n, NULL) != KK_OK) abort();
}

#endif
