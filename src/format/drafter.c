/* drafter.c - a drafter's files, or random weights in its shapes.
 *
 * Its tensors lie in a checkpoint of their own, with the inventory of a drafter, so that files,
 * strict shapes and random weights are those of every other model. */
#include "format/drafter.h"

#include "format/format.h"
#include "format/gguf_names.h"

struct kk_drafter {
    kk_drafter_config config;
    kk_checkpoint *tensors;
    kk_tensor head; /* a packed copy of the verifier's; no bytes: there is none */
    kk_mem *head_mem;
};

static kk_status drafter_new(kk_drafter **out, const char *path, kk_err *err) {
    kk_drafter *d = kk_zalloc(sizeof *d);
    if (d) d->tensors = kk_zalloc(sizeof *d->tensors);
    *out = d;
    if (d && d->tensors) {
        d->tensors->category = KK_MEM_WEIGHTS_DRAFTER;
        d->tensors->path = kk_strndup(path, strlen(path));
        if (d->tensors->path) return KK_OK;
    }
    return kk_fail(err, KK_ENOMEM, "no memory for the drafter '%.120s'", path);
}

void kk_drafter_close(kk_drafter *d) {
    if (!d) return;
    kk_mem_give(d->head_mem, KK_MEM_WEIGHTS_DRAFTER, (void *)(uintptr_t)d->head.data.base,
                d->head.data.size);
    kk_checkpoint_close(d->tensors);
    kk_free(d);
}

const kk_drafter_config *kk_drafter_config_of(const kk_drafter *d) { return &d->config; }
const kk_checkpoint *kk_drafter_tensors(const kk_drafter *d) { return d->tensors; }
size_t kk_drafter_count(const kk_drafter *d) { return d->tensors->n_tensors; }
const kk_tensor *kk_drafter_at(const kk_drafter *d, size_t i) { return &d->tensors->tensors[i]; }
const kk_tensor *kk_drafter_find(const kk_drafter *d, const char *name) {
    return kk_checkpoint_find(d->tensors, name);
}

/* ---- files ------------------------------------------------------------------------------ */

static kk_status read_config(kk_drafter *d, const char *dir, kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_hf_text(dir, "config.json", &text, &len, err));
    const kk_status st = kk_drafter_config_from_json(&d->config, text, len, err);
    kk_free(text);
    return st;
}

kk_status kk_drafter_is_folder(const char *dir, bool *is, kk_err *err) {
    char *text;
    size_t len;
    *is = false;
    KK_TRY(kk_hf_text(dir, "config.json", &text, &len, err));
    const kk_status st = kk_drafter_is_config(text, len, is, err);
    kk_free(text);
    return st;
}

/* Where the configuration does not name the tapped layers, fc.weight says how many there are. */
static kk_status find_taps(kk_drafter *d, kk_err *err) {
    const kk_tensor *fc = NULL;
    if (d->config.n_taps) return KK_OK;
    for (size_t i = 0; i < d->tensors->n_tensors; i++)
        if (strcmp(d->tensors->tensors[i].name, "fc.weight") == 0) fc = &d->tensors->tensors[i];
    const int64_t width = fc && fc->n_dims == 2 ? fc->dims[1] : 0;
    const int64_t n = width / d->config.hidden;
    if (n < 1 || n > KK_MAX_TAPS || width % d->config.hidden != 0)
        return kk_fail(err, KK_EFORMAT,
                       "tensor 'fc.weight' is missing or its rows are not 1 to %d times the hidden "
                       "size of %d",
                       KK_MAX_TAPS, d->config.hidden);
    kk_drafter_spread_taps(&d->config, (int32_t)n, d->config.n_target_layers);
    return KK_OK;
}

/* All that the configuration calls for is there, and nothing else. */
static kk_status settle(kk_drafter *d, const kk_checkpoint_opts *opts, kk_err *err) {
    kk_checkpoint *c = d->tensors;
    KK_TRY(kk_inventory_make_drafter(&c->inventory, &d->config, err));
    KK_TRY(kk_checkpoint_settle(c, err));
    KK_TRY(kk_checkpoint_only(c, "a drafter", err));
    return kk_checkpoint_apply(c, opts, err);
}

static kk_status open_folder(kk_drafter *d, const char *path, const kk_checkpoint_opts *opts,
                             kk_err *err) {
    kk_checkpoint *c = d->tensors;
    KK_TRY(read_config(d, path, err));
    KK_TRY(kk_hf_files(c, path, err));
    KK_TRY(kk_hf_list(c, "", err));
    KK_TRY(find_taps(d, err));
    return settle(d, opts, err);
}

static kk_status open_gguf(kk_drafter *d, const char *path, const kk_checkpoint_opts *opts,
                           kk_err *err) {
    kk_checkpoint *c = d->tensors;
    KK_TRY(kk_gguf_file(c, path, err));
    KK_TRY(kk_drafter_config_from_gguf(&d->config, &c->gguf, err));
    KK_TRY(kk_gguf_list(c, kk_gguf_drafter_name_to_hf, true, err));
    return settle(d, opts, err);
}

kk_status kk_drafter_open(kk_drafter **out, const char *path, const kk_checkpoint_opts *opts,
                          kk_err *err) {
    kk_drafter *d;
    *out = NULL;
    kk_status st = drafter_new(&d, path, err);
    if (st == KK_OK)
        st = kk_dir_exists(path) ? open_folder(d, path, opts, err) : open_gguf(d, path, opts, err);
    if (st != KK_OK) {
        kk_drafter_close(d);
        return st;
    }
    *out = d;
    return KK_OK;
}

kk_status kk_drafter_pack(kk_drafter *d, const kk_drafter_packing *how, kk_mem *mem, kk_err *err) {
    return kk_checkpoint_pack(d->tensors, "", how, mem, err);
}

kk_status kk_drafter_pack_head(kk_drafter *d, const kk_tensor *table, const kk_drafter_packing *how,
                               kk_mem *mem, kk_err *err) {
    if (d->head.data.size) return KK_OK;
    d->head_mem = mem;
    return kk_tensor_pack(&d->head, table, how, KK_MEM_WEIGHTS_DRAFTER, mem, err);
}

const kk_tensor *kk_drafter_head(const kk_drafter *d) {
    return d->head.data.size ? &d->head : NULL;
}

int64_t kk_drafter_packed_bytes(const kk_drafter *d) { return (int64_t)d->tensors->packed.size; }

/* ---- random weights --------------------------------------------------------------------- */

/* The published drafters have heads of 128 that are together 16/11 of the hidden size, rounded up
 * to eight heads, eight K/V heads, an MLP twice as wide as the hidden size, four sliding layers
 * with twice the verifier's window and a full one.  Small verifiers get small heads and two
 * layers less. */
static void released_shape(kk_drafter_config *c, const kk_config *v) {
    const bool large = v->hidden >= 1024;
    *c = (kk_drafter_config){.vocab = v->vocab,
                             .hidden = v->hidden,
                             .n_layer = large ? 5 : 3,
                             .head_dim = large ? 128 : 64,
                             .ffn = 2 * v->hidden,
                             .window = 2 * v->window,
                             .context = v->context,
                             .block = 16,
                             .mask_id = v->vocab > 4 ? 4 : 0,
                             .n_target_layers = v->n_layer,
                             .eps = 1e-6f,
                             .theta = 1e6f,
                             .softcap = v->softcap,
                             .sliding_causal = true};
    const int32_t eight = 11 * 8 * c->head_dim; /* of these is 1/16 the width of eight heads */
    c->n_head = (16 * v->hidden + eight - 1) / eight * 8;
    c->n_kv_head = c->n_head >= 32 ? 8 : c->n_head / 4;
    c->kind[c->n_layer - 1] = KK_FULL;
    kk_drafter_spread_taps(c, 6, v->n_layer);
}

static kk_status make_random(kk_drafter *d, const kk_config *verifier, const char *type,
                             kk_mem *mem, kk_err *err) {
    kk_checkpoint *c = d->tensors;
    kk_dtype dtype;
    KK_TRY(kk_weight_type(type, &dtype, err));
    released_shape(&d->config, verifier);
    c->mem = mem;
    KK_TRY(kk_inventory_make_drafter(&c->inventory, &d->config, err));
    return kk_checkpoint_random(c, dtype, false, err);
}

kk_status kk_drafter_synthetic(kk_drafter **out, const kk_config *verifier, const char *type,
                               kk_mem *mem, kk_err *err) {
    kk_drafter *d;
    *out = NULL;
    kk_status st = drafter_new(&d, "synthetic", err);
    if (st == KK_OK) st = make_random(d, verifier, type, mem, err);
    if (st != KK_OK) {
        kk_drafter_close(d);
        return st;
    }
    *out = d;
    return KK_OK;
}
