/* hf_folder.c - opens a Hugging Face folder: config.json, generation_config.json, and one
 * model.safetensors or the shards that model.safetensors.index.json names.
 *
 * A multimodal checkpoint keeps its text model under "model.language_model.", one that MLX's
 * converters wrote under "language_model.model." (mlx_folder.c), a text-only one under "model.";
 * the prefix that leads to the embedding is taken, and what does not carry it (vision and audio
 * towers) is left out of the list.  The index is used for the names of the
 * shards only: what a shard holds is read from the shard. */
#include <jansson.h>

#include "format/format.h"

enum { MAX_JSON = 64 << 20, MAX_SHARDS = 4096 };

kk_status kk_hf_text(const char *dir, const char *name, char **text, size_t *len, kk_err *err) {
    char *path = kk_path_join(dir, name);
    *text = NULL;
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", dir);
    const kk_status st = kk_file_read(path, MAX_JSON, text, len, err);
    kk_free(path);
    return st;
}

static kk_status read_config(kk_checkpoint *c, const char *dir, kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_hf_text(dir, "config.json", &text, &len, err));
    const kk_status st = kk_config_from_json(&c->config, text, len, err);
    kk_free(text);
    return st;
}

/* Optional: a base model has none. */
static kk_status read_generation_config(kk_checkpoint *c, const char *dir, kk_err *err) {
    char *path = kk_path_join(dir, "generation_config.json"), *text = NULL;
    size_t len;
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", dir);
    kk_status st = KK_OK;
    if (kk_file_exists(path)) {
        st = kk_file_read(path, MAX_JSON, &text, &len, err);
        if (st == KK_OK) st = kk_config_add_generation(&c->config, text, len, err);
    }
    kk_free(text);
    kk_free(path);
    return st;
}

static kk_status add_file(kk_checkpoint *c, const char *dir, const char *name, kk_err *err) {
    kk_checkpoint_file *f = &c->files[c->n_files++];
    f->path = kk_path_join(dir, name);
    if (!f->path) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", name);
    KK_TRY(kk_map_open(&f->map, f->path, err));
    return kk_safetensors_parse(&f->list, f->map.span, name, err);
}

static kk_status allocate_files(kk_checkpoint *c, size_t n, kk_err *err) {
    c->files = kk_calloc(n, sizeof *c->files);
    return c->files ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for %zu files", n);
}

/* The distinct values of weight_map, as the keys of a JSON object.  A shard's name stays inside
 * the folder. */
static kk_status shard_names(const json_t *index, json_t **names, kk_err *err) {
    json_t *map = json_object_get(index, "weight_map"), *value;
    const char *key;
    *names = NULL;
    if (!json_is_object(map))
        return kk_fail(err, KK_EFORMAT, "model.safetensors.index.json has no weight_map");
    *names = json_object();
    json_object_foreach(map, key, value) {
        const char *shard = json_string_value(value);
        if (!shard || !*shard || strchr(shard, '/'))
            return kk_fail(err, KK_EFORMAT,
                           "model.safetensors.index.json: tensor '%.100s' has a bad file name",
                           key);
        if (json_object_set_new(*names, shard, json_true()) != 0)
            return kk_fail(err, KK_ENOMEM, "no memory for the shards");
    }
    if (json_object_size(*names) > MAX_SHARDS)
        return kk_fail(err, KK_EFORMAT, "model.safetensors.index.json names %zu files",
                       json_object_size(*names));
    return KK_OK;
}

static kk_status open_shards(kk_checkpoint *c, const char *dir, const json_t *index, kk_err *err) {
    json_t *names, *value;
    const char *shard;
    kk_status st = shard_names(index, &names, err);
    if (st == KK_OK) st = allocate_files(c, json_object_size(names), err);
    if (st == KK_OK) {
        json_object_foreach(names, shard, value) {
            st = add_file(c, dir, shard, err);
            if (st != KK_OK) break;
        }
    }
    json_decref(names);
    return st;
}

static kk_status open_index(kk_checkpoint *c, const char *dir, const char *path, kk_err *err) {
    char *text;
    size_t len;
    json_error_t why;
    KK_TRY(kk_file_read(path, MAX_JSON, &text, &len, err));
    json_t *index = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    kk_free(text);
    if (!index)
        return kk_fail(err, KK_EFORMAT, "model.safetensors.index.json, line %d: %.120s", why.line,
                       why.text);
    kk_status st = open_shards(c, dir, index, err);
    json_decref(index);
    return st;
}

kk_status kk_hf_file(kk_checkpoint *c, const char *dir, const char *name, kk_err *err) {
    c->format = "safetensors";
    KK_TRY(allocate_files(c, 1, err));
    return add_file(c, dir, name, err);
}

kk_status kk_hf_files(kk_checkpoint *c, const char *dir, kk_err *err) {
    char *single = kk_path_join(dir, "model.safetensors");
    char *index = kk_path_join(dir, "model.safetensors.index.json");
    kk_status st;
    c->format = "safetensors";
    if (!single || !index) {
        st = kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", dir);
    } else if (kk_file_exists(index)) {
        st = open_index(c, dir, index, err);
    } else if (kk_file_exists(single)) {
        st = kk_hf_file(c, dir, "model.safetensors", err);
    } else {
        st =
            kk_fail(err, KK_EIO,
                    "'%.120s' has neither model.safetensors nor model.safetensors.index.json", dir);
    }
    kk_free(single);
    kk_free(index);
    return st;
}

/* Length of the prefix before "embed_tokens.weight" in some file's list. */
static kk_status find_prefix(const kk_checkpoint *c, const char **prefix, kk_err *err) {
    static const char *const known[] = {"model.language_model.", "language_model.model.", "model.",
                                        ""};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const size_t len = strlen(known[k]);
        for (size_t f = 0; f < c->n_files; f++) {
            for (size_t i = 0; i < c->files[f].list.n; i++) {
                const char *name = c->files[f].list.tensors[i].name;
                if (strncmp(name, known[k], len) != 0) continue;
                if (strcmp(name + len, "embed_tokens.weight") != 0) continue;
                *prefix = known[k];
                return KK_OK;
            }
        }
    }
    return kk_fail(err, KK_EFORMAT, "tensor 'model.embed_tokens.weight' is missing from '%.80s'",
                   c->path);
}

kk_status kk_hf_list(kk_checkpoint *c, const char *prefix, kk_err *err) {
    size_t n = 0;
    for (size_t f = 0; f < c->n_files; f++) n += c->files[f].list.n;
    c->tensors = kk_calloc(n, sizeof *c->tensors);
    if (!c->tensors) return kk_fail(err, KK_ENOMEM, "no memory for %zu tensors", n);
    const size_t skip = strlen(prefix);
    for (size_t f = 0; f < c->n_files; f++) {
        for (size_t i = 0; i < c->files[f].list.n; i++) {
            const kk_tensor *t = &c->files[f].list.tensors[i];
            if (strncmp(t->name, prefix, skip) != 0) continue;
            c->tensors[c->n_tensors] = *t;
            c->tensors[c->n_tensors++].name = t->name + skip;
        }
    }
    return KK_OK;
}

static kk_status arrange(kk_checkpoint *c, const char *dir, const char *prefix, kk_err *err) {
    char *text;
    size_t len;
    if (!kk_mlx_written(c)) return KK_OK;
    KK_TRY(kk_hf_text(dir, "config.json", &text, &len, err));
    const kk_status st = kk_mlx_arrange(c, prefix, text, len, err);
    kk_free(text);
    return st;
}

kk_status kk_hf_open(kk_checkpoint *c, const char *dir, kk_err *err) {
    KK_TRY(read_config(c, dir, err));
    KK_TRY(read_generation_config(c, dir, err));
    const char *prefix = "";
    KK_TRY(kk_hf_files(c, dir, err));
    KK_TRY(find_prefix(c, &prefix, err));
    KK_TRY(kk_hf_list(c, prefix, err));
    return arrange(c, dir, prefix, err);
}
