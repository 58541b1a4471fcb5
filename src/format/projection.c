/* projection.c - a projection's files read and written, or random values in its shapes.
 *
 * Its tensors lie in a checkpoint of their own, with the inventory of a projection, so that files,
 * strict shapes, packing and random weights are those of every other model. */
#include "format/projection.h"

#include <math.h>

#include "core/hash.h"
#include "format/format.h"

static const char config_file[] = "projection.json";
static const char tensor_file[] = "projection.safetensors";

struct kk_projection {
    kk_projection_config config;
    kk_checkpoint *tensors;
};

static kk_status projection_new(kk_projection **out, const char *path, kk_err *err) {
    kk_projection *p = kk_zalloc(sizeof *p);
    if (p) p->tensors = kk_zalloc(sizeof *p->tensors);
    *out = p;
    if (p && p->tensors) {
        p->tensors->category = KK_MEM_WEIGHTS_PROJECTION;
        p->tensors->path = kk_strndup(path, strlen(path));
        if (p->tensors->path) return KK_OK;
    }
    return kk_fail(err, KK_ENOMEM, "no memory for the projection '%.120s'", path);
}

/* Hands p over, or closes it: nothing half made leaves this file. */
static kk_status settle(kk_projection **out, kk_projection *p, kk_status st) {
    if (st == KK_OK)
        *out = p;
    else
        kk_projection_close(p);
    return st;
}

void kk_projection_close(kk_projection *p) {
    if (!p) return;
    kk_checkpoint_close(p->tensors);
    kk_free(p);
}

const kk_projection_config *kk_projection_config_of(const kk_projection *p) { return &p->config; }
const kk_checkpoint *kk_projection_tensors(const kk_projection *p) { return p->tensors; }

/* ---- files ------------------------------------------------------------------------------ */

static kk_status read_config(kk_projection *p, const char *dir, kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_hf_text(dir, config_file, &text, &len, err));
    const kk_status st = kk_projection_config_from_json(&p->config, text, len, err);
    kk_free(text);
    return st;
}

/* Hash of every byte of the tensors, in the order of the inventory. */
static uint64_t checksum(const kk_inventory *list, const kk_tensor *(*find)(const void *, size_t),
                         const void *from) {
    uint64_t h = KK_HASH_START;
    for (size_t i = 0; i < list->n; i++) {
        const kk_tensor *t = find(from, i);
        const int64_t shape[] = {t->dtype, t->dims[0], t->dims[1]}; /* matrices, all of them */
        h = kk_hash_bytes(h, t->name, strlen(t->name));
        h = kk_hash_bytes(h, shape, sizeof shape);
        h = kk_hash_bytes(h, t->data.base, t->data.size);
    }
    return h ? h : 1;
}

static const kk_tensor *read_tensor(const void *from, size_t i) {
    const kk_checkpoint *c = from;
    return kk_checkpoint_find(c, c->inventory.items[i].name);
}

static kk_status check_data(const kk_projection *p, const char *path, kk_err *err) {
    if (!p->config.data) return KK_OK; /* a file of an earlier build has none */
    const uint64_t is = checksum(&p->tensors->inventory, read_tensor, p->tensors);
    if (is == p->config.data) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "%s in '%.80s' is not the one that %s was written with: its checksum is %016llx "
                   "and not %016llx",
                   tensor_file, path, config_file, (unsigned long long)is,
                   (unsigned long long)p->config.data);
}

static kk_status open_folder(kk_projection *p, const char *path, const kk_checkpoint_opts *opts,
                             kk_err *err) {
    kk_checkpoint *c = p->tensors;
    KK_TRY(read_config(p, path, err));
    KK_TRY(kk_hf_file(c, path, tensor_file, err));
    KK_TRY(kk_hf_list(c, "", err));
    KK_TRY(kk_inventory_make_projection(&c->inventory, &p->config, err));
    KK_TRY(kk_checkpoint_settle(c, err));
    KK_TRY(kk_checkpoint_only(c, "this projection", err));
    KK_TRY(check_data(p, path, err));
    return kk_checkpoint_apply(c, opts, err);
}

kk_status kk_projection_open(kk_projection **out, const char *path, const kk_checkpoint_opts *opts,
                             kk_err *err) {
    kk_projection *p;
    *out = NULL;
    kk_status st = projection_new(&p, path, err);
    if (st == KK_OK) st = open_folder(p, path, opts, err);
    return settle(out, p, st);
}

kk_status kk_projection_pack(kk_projection *p, const kk_drafter_packing *how, kk_mem *mem,
                             kk_err *err) {
    return kk_checkpoint_pack(p->tensors, "layers.", how, mem, err);
}

int64_t kk_projection_packed_bytes(const kk_projection *p) {
    return (int64_t)p->tensors->packed.size;
}

/* ---- random values ---------------------------------------------------------------------- */

static kk_status shape_for(kk_projection_config *c, const kk_config *v, int32_t rank,
                           const int32_t *taps, int32_t n_taps, kk_err *err) {
    *c = (kk_projection_config){.source = KK_SOURCE_TAPS,
                                .n_taps = n_taps,
                                .rank = rank,
                                .joint = true,
                                .n_layer = v->n_layer,
                                .hidden = v->hidden};
    if (n_taps > 0 && n_taps <= KK_MAX_TAPS) { /* any other number is refused below */
        memcpy(c->taps, taps, (size_t)n_taps * sizeof *taps);
        c->n_in = n_taps * v->hidden;
    }
    for (int32_t i = 0; i < v->n_layer; i++) {
        const kk_layer_config *l = &v->layer[i];
        c->layer[i].restored = l->kv_source == i;
        c->layer[i].k_eq_v = l->k_eq_v;
        c->layer[i].n_kv_head = l->n_kv_head;
        c->layer[i].head_dim = l->head_dim;
    }
    return kk_projection_config_valid(c, KK_EINVAL, err);
}

/* Rows of unit length: what comes out spreads as what went in, whose values spread by 1. */
static void spread_rows(kk_tensor *t) {
    uint16_t *values = (uint16_t *)(uintptr_t)t->data.base;
    const size_t n = (size_t)kk_tensor_values(t);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double v = (double)kk_bf16_f32(values[i]);
        sum += v * v;
    }
    const float scale = (float)sqrt((double)n / (sum * (double)t->dims[1]));
    for (size_t i = 0; i < n; i++) values[i] = kk_f32_bf16(kk_bf16_f32(values[i]) * scale);
}

static kk_status make_random(kk_projection *p, kk_mem *mem, kk_err *err) {
    kk_checkpoint *c = p->tensors;
    c->mem = mem;
    KK_TRY(kk_inventory_make_projection(&c->inventory, &p->config, err));
    KK_TRY(kk_checkpoint_random(c, KK_BF16, false, err));
    for (size_t i = 0; mem && i < c->n_tensors; i++) spread_rows(&c->tensors[i]);
    return KK_OK;
}

int32_t kk_projection_spread_taps(const kk_config *verifier, int32_t taps[KK_MAX_TAPS]) {
    const int32_t last = verifier->n_layer - 1, wanted[] = {last / 6, last / 2, last - last / 6};
    int32_t n = 0;
    for (int i = 0; i < 3; i++)
        if (n == 0 || wanted[i] > taps[n - 1]) taps[n++] = wanted[i];
    return n;
}

kk_status kk_projection_synthetic(kk_projection **out, const kk_config *verifier, int32_t rank,
                                  const int32_t *taps, int32_t n_taps, kk_mem *mem, kk_err *err) {
    kk_projection *p;
    *out = NULL;
    kk_status st = projection_new(&p, "synthetic", err);
    if (st == KK_OK) st = shape_for(&p->config, verifier, rank, taps, n_taps, err);
    if (st == KK_OK) st = make_random(p, mem, err);
    return settle(out, p, st);
}

/* ---- writing ---------------------------------------------------------------------------- */

typedef struct {
    kk_inventory list;
    kk_tensor *tensors;
    uint8_t *rounded; /* all values in a type that is not float; NULL: they lie as they are */
} writing;

/* The values of a tensor by its name in the inventory; NULL: they were not given. */
static const float *values_of(const kk_projection_values *v, const char *name) {
    if (strcmp(name, "encoder_v.weight") == 0) return v->encoder[1];
    if (strncmp(name, "layers.", 7) != 0) return v->encoder[0];
    int32_t layer = 0;
    const char *at = name + 7;
    while (*at >= '0' && *at <= '9') layer = 10 * layer + (*at++ - '0');
    return at[1] == 'k' ? v->k[layer] : v->v[layer];
}

static kk_status allocate_rounded(writing *w, kk_dtype type, kk_err *err) {
    size_t total = 0;
    w->tensors = kk_calloc(w->list.n, sizeof *w->tensors);
    if (!w->tensors) return kk_fail(err, KK_ENOMEM, "no memory to write a projection");
    if (type == KK_F32) return KK_OK;
    for (size_t i = 0; i < w->list.n; i++) {
        size_t bytes = 0;
        kk_dtype_bytes(type, (uint64_t)kk_inventory_values(&w->list.items[i]), &bytes);
        total += bytes; /* bounded by a valid configuration */
    }
    w->rounded = kk_malloc(total);
    if (w->rounded) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory for %zu bytes of a projection", total);
}

static kk_status fill(writing *w, const kk_projection_values *v, kk_dtype type, kk_err *err) {
    KK_TRY(allocate_rounded(w, type, err));
    uint8_t *to = w->rounded;
    for (size_t i = 0; i < w->list.n; i++) {
        const kk_inventory_item *item = &w->list.items[i];
        const float *from = values_of(v, item->name);
        const size_t n = (size_t)kk_inventory_values(item);
        kk_tensor *t = &w->tensors[i];
        if (!from)
            return kk_fail(err, KK_EINVAL, "no values for '%.100s' of the projection", item->name);
        *t = (kk_tensor){.name = item->name, .dtype = type, .n_dims = item->n_dims};
        memcpy(t->dims, item->dims, sizeof item->dims);
        kk_dtype_bytes(type, n, &t->data.size);
        t->data.base = to ? to : (const uint8_t *)from;
        if (!to) continue;
        kk_quantize_row(type, from, to, n);
        to += t->data.size;
    }
    return KK_OK;
}

kk_status kk_projection_files_open(kk_projection_files *out, const char *path,
                                   const kk_writer_opts *opts, kk_err *err) {
    char *tensors = kk_path_join(path, tensor_file), *config = kk_path_join(path, config_file);
    *out = (kk_projection_files){0};
    kk_status st = tensors && config ? kk_writer_open(&out->tensors, tensors, opts, err)
                                     : kk_fail(err, KK_ENOMEM, "no memory to write '%.120s'", path);
    if (st == KK_OK) st = kk_writer_open(&out->config, config, opts, err);
    if (st != KK_OK) kk_projection_files_close(out);
    kk_free(tensors);
    kk_free(config);
    return st;
}

void kk_projection_files_close(kk_projection_files *f) {
    kk_writer_close(f->tensors);
    kk_writer_close(f->config);
    *f = (kk_projection_files){0};
}

static kk_status put_config(kk_writer *to, const kk_projection_config *c, kk_err *err) {
    char *text = kk_projection_config_to_json(c);
    if (!text) return kk_fail(err, KK_ENOMEM, "no memory for the configuration of a projection");
    const kk_status st = kk_writer_put(to, text, strlen(text), err);
    kk_free(text);
    return st;
}

static void free_writing(writing *w) {
    kk_free(w->rounded);
    kk_free(w->tensors);
    kk_inventory_free(&w->list);
}

static kk_status make_writing(writing *w, const kk_projection_config *c,
                              const kk_projection_values *v, kk_dtype type, kk_err *err) {
    if (type != KK_F32 && type != KK_BF16)
        return kk_fail(err, KK_EINVAL, "a projection is written as f32 or bf16, not %s",
                       kk_dtype_get(type)->name);
    KK_TRY(kk_projection_config_valid(c, KK_EINVAL, err));
    KK_TRY(kk_inventory_make_projection(&w->list, c, err));
    return fill(w, v, type, err);
}

static const kk_tensor *written_tensor(const void *from, size_t i) {
    return &((const writing *)from)->tensors[i];
}

static kk_status put_writing(const kk_projection_files *to, const writing *w,
                             const kk_projection_config *c, kk_err *err) {
    kk_projection_config sealed = *c;
    sealed.data = checksum(&w->list, written_tensor, w);
    KK_TRY(kk_safetensors_put(to->tensors, w->tensors, w->list.n, err));
    KK_TRY(put_config(to->config, &sealed, err));
    KK_TRY(kk_writer_sync(to->tensors, err));
    return kk_writer_sync(to->config, err);
}

kk_status kk_projection_put(const kk_projection_files *to, const kk_projection_config *c,
                            const kk_projection_values *v, kk_dtype type, kk_err *err) {
    writing w = {0};
    kk_status st = make_writing(&w, c, v, type, err);
    if (st == KK_OK) st = put_writing(to, &w, c, err);
    free_writing(&w);
    return st;
}

kk_status kk_projection_commit(const kk_projection_files *to, kk_err *err) {
    KK_TRY(kk_writer_commit(to->tensors, err));
    return kk_writer_commit(to->config, err);
}

kk_status kk_projection_write(const char *path, const kk_projection_config *c,
                              const kk_projection_values *v, kk_dtype type, kk_err *err) {
    const kk_writer_opts opts = {.replace = true};
    kk_projection_files files = {0};
    writing w = {0};
    kk_status st = make_writing(&w, c, v, type, err);
    if (st == KK_OK) st = kk_dir_make(path, err);
    if (st == KK_OK) st = kk_projection_files_open(&files, path, &opts, err);
    if (st == KK_OK) st = put_writing(&files, &w, c, err);
    if (st == KK_OK) st = kk_projection_commit(&files, err);
    kk_projection_files_close(&files);
    free_writing(&w);
    return st;
}
