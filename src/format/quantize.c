/* quantize.c - writes a GGUF file of a Hugging Face folder, a model's or a drafter's.
 *
 * Tensors stream through a buffer of a few megabytes, so the size of the model does not matter.
 * Norms, scales and the router stay float32; a row that does not fill blocks of the wanted type
 * stays at 16 bits.  Pieces of the buffer are converted side by side; each value's bits depend on
 * its block alone, so the file does not depend on the number of threads. */
#include <stdio.h>

#include "core/threads.h"
#include "format/format.h"
#include "format/gguf_names.h"
#include "format/lineage.h"

/* Values per buffer and per piece; both are multiples of every block. */
enum { BUFFER = 1 << 21, PIECE = 1 << 13 };

typedef struct {
    const kk_checkpoint *in;
    const kk_drafter_config *drafter; /* NULL: it is a model */
    uint64_t source;                  /* fingerprint of what is read */
    kk_gguf_writer *out;
    kk_dtype type;
    kk_threads *threads;
    float *values;
    uint8_t *packed;
    kk_progress progress;
    void *user;
    int64_t done, total; /* bytes of tensor data */
} job;

/* What one thread needs to convert a piece. */
typedef struct {
    const job *j;
    kk_dtype from, to;
    const uint8_t *src;
    int64_t n;
} stretch;

static size_t bytes_of(kk_dtype t, int64_t n) {
    size_t bytes = 0;
    kk_dtype_bytes(t, (uint64_t)n, &bytes);
    return bytes;
}

static kk_dtype out_type(const job *j, const kk_inventory_item *item, const kk_tensor *t) {
    if (item->role == KK_ROLE_VECTOR || item->role == KK_ROLE_ROUTER) return KK_F32;
    if (item->dims[item->n_dims - 1] % kk_dtype_get(j->type)->values == 0) return j->type;
    return t->dtype == KK_BF16 ? KK_BF16 : KK_F16;
}

/* ---- data ------------------------------------------------------------------------------- */

static void convert_pieces(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const stretch *s = arg;
    (void)thread;
    const int64_t first = begin * PIECE, last = end * PIECE < s->n ? end * PIECE : s->n;
    float *values = s->j->values + first;
    kk_dequantize(s->from, s->src + bytes_of(s->from, first), values, (size_t)(last - first));
    kk_quantize_row(s->to, values, s->j->packed + bytes_of(s->to, first), (size_t)(last - first));
}

static kk_status advance(job *j, size_t bytes, kk_err *err) {
    j->done += (int64_t)bytes;
    if (j->progress && !j->progress(j->user, j->done, j->total))
        return kk_fail(err, KK_ESTOPPED, "stopped after %lld of %lld bytes", (long long)j->done,
                       (long long)j->total);
    return KK_OK;
}

static kk_status write_tensor(job *j, const kk_inventory_item *item, kk_err *err) {
    const kk_tensor *t = kk_checkpoint_find(j->in, item->name);
    const kk_dtype to = out_type(j, item, t);
    const int64_t values = kk_tensor_values(t);
    for (int64_t at = 0; at < values; at += BUFFER) {
        stretch s = {.j = j, .from = t->dtype, .to = to};
        s.src = t->data.base + bytes_of(t->dtype, at);
        s.n = values - at < BUFFER ? values - at : BUFFER;
        const size_t bytes = bytes_of(to, s.n);
        if (t->dtype != to)
            kk_threads_loop(j->threads, (s.n + PIECE - 1) / PIECE, 1, convert_pieces, &s);
        KK_TRY(kk_gguf_writer_data(j->out, t->dtype == to ? s.src : j->packed, bytes, err));
        KK_TRY(advance(j, bytes, err));
    }
    return KK_OK;
}

/* Divisors of the angles on full layers: the factor for pairs that are rotated, 1e30 for the
 * others. */
static kk_status write_divisors(job *j, int32_t pairs, kk_err *err) {
    const kk_rope_config *r = &j->in->config.rope[KK_FULL];
    for (int32_t i = 0; i < pairs; i++) {
        const float f = i < r->n_rot ? r->factor : 1e30f;
        KK_TRY(kk_gguf_writer_data(j->out, &f, sizeof f, err));
    }
    return KK_OK;
}

/* ---- header ----------------------------------------------------------------------------- */

static int32_t full_pairs(const kk_config *c) { return c->layer[c->n_layer - 1].head_dim / 2; }

static void put_source(job *j) {
    char text[17];
    kk_lineage_text(j->source, text);
    kk_gguf_put_str(j->out, KK_GGUF_SOURCE, text, strlen(text));
}

static kk_status put_keys(job *j, kk_err *err) {
    const kk_config *c = &j->in->config;
    if (j->drafter) {
        kk_gguf_put_drafter(j->out, j->drafter, j->type, j->in->path);
        put_source(j);
        return KK_OK;
    }
    const int64_t pairs = full_pairs(c); /* the last layer is a full one */
    KK_TRY(kk_gguf_put_model(j->out, c, j->type, j->in->path, err));
    KK_TRY(kk_gguf_put_tokenizer(j->out, c, j->in->path, err));
    put_source(j);
    kk_gguf_put_tensor(j->out, "rope_freqs.weight", KK_F32, 1, &pairs);
    return KK_OK;
}

static kk_status put_header(job *j, kk_err *err) {
    const kk_inventory *list = &j->in->inventory;
    KK_TRY(put_keys(j, err));
    for (size_t i = 0; i < list->n; i++) {
        const kk_inventory_item *item = &list->items[i];
        const kk_tensor *t = kk_checkpoint_find(j->in, item->name);
        char name[KK_MAX_NAME];
        if (j->drafter ? !kk_gguf_drafter_name_from_hf(item->name, name)
                       : !kk_gguf_name_from_hf(item->name, name))
            return kk_fail(err, KK_EINVAL, "tensor '%.100s' has no name in GGUF", item->name);
        const kk_dtype type = out_type(j, item, t);
        kk_gguf_put_tensor(j->out, name, type, item->n_dims, item->dims);
        j->total += (int64_t)bytes_of(type, kk_inventory_values(item));
    }
    return kk_gguf_writer_begin(j->out, err);
}

static kk_status write_all(job *j, kk_err *err) {
    KK_TRY(put_header(j, err));
    if (!j->drafter) KK_TRY(write_divisors(j, full_pairs(&j->in->config), err));
    for (size_t i = 0; i < j->in->inventory.n; i++)
        KK_TRY(write_tensor(j, &j->in->inventory.items[i], err));
    kk_gguf_writer *out = j->out;
    j->out = NULL;
    return kk_gguf_writer_commit(out, err);
}

static kk_status run(job *j, kk_writer *to, kk_err *err) {
    j->values = kk_malloc(BUFFER * sizeof *j->values);
    j->packed = kk_malloc((size_t)BUFFER * 4); /* no type takes more bytes per value */
    if (!j->values || !j->packed) return kk_fail(err, KK_ENOMEM, "no memory to quantize");
    KK_TRY(kk_threads_new(&j->threads, 0, false, err));
    KK_TRY(kk_gguf_writer_new(&j->out, to, err));
    return write_all(j, err);
}

static kk_status target_type(const char *word, kk_dtype *out, kk_err *err) {
    if (kk_dtype_named(word, out) &&
        (*out == KK_Q8_0 || *out == KK_Q4_0 || *out == KK_BF16 || *out == KK_F16))
        return KK_OK;
    return kk_fail(err, KK_EINVAL, "cannot write type '%.40s'; there are q8_0, q4_0, bf16 and f16",
                   word);
}

/* What is to be written: a drafter's tensors or a model's. */
typedef struct {
    kk_checkpoint *model;
    kk_drafter *drafter;
} source;

/* What is rounded already would be rounded twice, and experts kept apart have no place in a file
 * that this writes. */
static kk_status refuse_mlx(const kk_checkpoint *c, kk_err *err) {
    if (!c || strcmp(c->format, "mlx") != 0) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   "'%.120s' was written by MLX's converter: quantize reads the folder that it was "
                   "made from",
                   c->path);
}

static kk_status open_source(source *s, const char *dir, kk_err *err) {
    bool drafter;
    if (!kk_dir_exists(dir))
        return kk_fail(err, KK_EINVAL,
                       "'%.120s' is no folder: quantize reads a Hugging Face folder", dir);
    KK_TRY(kk_drafter_is_folder(dir, &drafter, err));
    return drafter ? kk_drafter_open(&s->drafter, dir, NULL, err)
                   : kk_checkpoint_open(&s->model, dir, NULL, err);
}

kk_status kk_quantize_to(const char *in, kk_writer *to, const char *type, kk_progress progress,
                         void *user, kk_err *err) {
    source s = {0};
    job j = {.progress = progress, .user = user};
    KK_TRY(target_type(type, &j.type, err));
    KK_TRY(open_source(&s, in, err));
    kk_status st = refuse_mlx(s.model, err);
    if (st != KK_OK) {
        kk_checkpoint_close(s.model);
        return st;
    }
    j.in = s.drafter ? kk_drafter_tensors(s.drafter) : s.model;
    j.drafter = s.drafter ? kk_drafter_config_of(s.drafter) : NULL;
    j.source = s.drafter ? kk_lineage_drafter(s.drafter) : kk_lineage_weights(s.model);
    st = run(&j, to, err);
    kk_gguf_writer_abort(j.out);
    kk_threads_free(j.threads);
    kk_free(j.values);
    kk_free(j.packed);
    kk_checkpoint_close(s.model);
    kk_drafter_close(s.drafter);
    return st;
}

kk_status kk_quantize(const char *in, const char *out, const char *type, kk_progress progress,
                      void *user, kk_err *err) {
    const kk_writer_opts opts = {.replace = true, .inputs = &in, .n_inputs = 1};
    kk_dtype known;
    kk_writer *to;
    KK_TRY(target_type(type, &known, err));
    KK_TRY(kk_writer_open(&to, out, &opts, err));
    const kk_status st = kk_quantize_to(in, to, type, progress, user, err);
    kk_writer_close(to);
    return st;
}
