/* synthetic.c - a checkpoint of real shapes and random weights, made in memory, so that speed
 * can be measured without anyone's files.
 *
 * Values have the spread of trained ones (0.02 for matrices, near 1 for most norms), which keeps
 * hidden states and logits finite through every layer.  Making billions of random numbers would
 * take minutes; a megabyte of them per type is made once and laid out over each tensor in
 * stretches that start at random blocks, at the speed of a copy.  Pages are asked for as huge
 * ones where the system has them. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/mman.h>

#include "core/threads.h"
#include "format/format.h"

enum { TILE = 1 << 20 };

/* A generator of 64 random bits per step (splitmix64): any state is a good one. */
static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Nearly normal, variance 1: the sum of four uniform numbers. */
static float draw_normal(uint64_t *state) {
    const uint64_t bits = draw(state);
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)((bits >> (16 * i)) & 0xffff) / 65536.0f;
    return (sum - 2.0f) * 1.7320508f;
}

/* ---- tiles ------------------------------------------------------------------------------ */

/* A megabyte, in whole blocks, of values with the given mean and spread. */
typedef struct {
    uint8_t *bytes;
    size_t blocks, block_bytes;
} tile;

static void put_scale(uint8_t *at, float v) {
    const uint16_t h = kk_f32_f16(v);
    memcpy(at, &h, sizeof h);
}

/* Random integers already fill the block; the scales make their values spread by 0.02 around 0.
 * Integers uniform over 2^b steps spread by 2^b / sqrt(12) steps.  Those from -2^(b-1) on lean half
 * a step to the negative, which all rows of a model would share, and after some layers little
 * else: scales of either sign undo it. */
static void put_scales(kk_dtype t, uint8_t *b) {
    const float sign = b[kk_dtype_get(t)->bytes - 1] & 1 ? 1.0f : -1.0f;
    const float spread = 0.02f, per_step = 3.4641016f;
    const float step4 = spread * per_step / 16, step5 = step4 / 2, step6 = step4 / 4;
    switch (t) {
    case KK_Q8_0: put_scale(b, sign * spread * per_step / 256); break;
    case KK_Q4_0: put_scale(b, sign * step4); break;
    case KK_Q5_0: put_scale(b, sign * step5); break;
    case KK_Q5_1:
        put_scale(b, step5);
        put_scale(b + 2, -15.5f * step5);
        break;
    case KK_Q4_K:
    case KK_Q5_K:
        /* Scales and minima all 32: their 6 bits are 100000, so the low nibbles of the packed
         * words are 0 and the top bits of the first eight bytes are 10. */
        memset(b + 4, 0xa0, 8);
        memset(b + 12, 0, 4);
        put_scale(b, (t == KK_Q4_K ? step4 : step5) / 32);
        put_scale(b + 2, (t == KK_Q4_K ? 7.5f * step4 : 15.5f * step5) / 32);
        break;
    case KK_Q6_K:
        memset(b + 192, 16, 16);
        put_scale(b + 208, sign * step6 / 16);
        break;
    default: break;
    }
}

static bool make_tile(tile *out, kk_dtype t, float mean, float spread) {
    const kk_dtype_info *info = kk_dtype_get(t);
    uint64_t state = (uint64_t)t + 1;
    out->block_bytes = (size_t)info->bytes;
    out->blocks = TILE / out->block_bytes;
    out->bytes = kk_malloc(TILE);
    if (!out->bytes) return false;
    if (!kk_dtype_is_quant(t)) {
        for (size_t i = 0; i < out->blocks; i++) {
            const float v = mean + spread * draw_normal(&state);
            kk_quantize_row(t, &v, out->bytes + i * out->block_bytes, 1);
        }
        return true;
    }
    for (size_t i = 0; i + 8 <= TILE; i += 8) {
        const uint64_t bits = draw(&state);
        memcpy(out->bytes + i, &bits, sizeof bits);
    }
    for (size_t i = 0; i < out->blocks; i++) put_scales(t, out->bytes + i * out->block_bytes);
    return true;
}

static void round_to_bf16(tile *t) {
    for (size_t i = 0; i < t->blocks; i++) {
        float v;
        memcpy(&v, t->bytes + i * sizeof v, sizeof v);
        v = kk_bf16_f32(kk_f32_bf16(v));
        memcpy(t->bytes + i * sizeof v, &v, sizeof v);
    }
}

/* Lays stretches of the tile over size bytes, each from a random block to the tile's end. */
static void lay(const tile *t, uint64_t seed, uint8_t *to, size_t size) {
    while (size > 0) {
        const size_t from = draw(&seed) % t->blocks * t->block_bytes;
        const size_t run = t->blocks * t->block_bytes - from;
        const size_t n = run < size ? run : size;
        memcpy(to, t->bytes + from, n);
        to += n;
        size -= n;
    }
}

/* Scales and biases of an affine type: alike in all groups, codes being random. */
static void lay_planes(const kk_tensor *t) {
    const float steps = kk_affine_bits(t->dtype) == 4 ? 16 : 256;
    const float scale = 0.02f * 3.4641016f / steps, bias = scale * (1 - steps) / 2;
    uint16_t *scales = (uint16_t *)(uintptr_t)t->scales.base;
    uint16_t *biases = (uint16_t *)(uintptr_t)t->biases.base;
    for (size_t i = 0; i < t->scales.size / sizeof *scales; i++) {
        scales[i] = kk_f32_bf16(scale);
        biases[i] = kk_f32_bf16(bias);
    }
}

/* ---- tensors ---------------------------------------------------------------------------- */

/* Bytes of the scales, and of the biases, of n values: bf16, as in released files. */
static size_t plane_bytes(kk_dtype t, int64_t n) {
    return kk_dtype_is_affine(t) ? (size_t)(n / kk_dtype_get(t)->values) * sizeof(uint16_t) : 0;
}

typedef struct {
    kk_checkpoint *c;
    kk_dtype type;
    bool mix; /* some matrices are q6_k */
    tile matrix, fallback, vector, router;
    tile finer, finer_fallback; /* of a mix */
    const tile **from;          /* per tensor */
} maker;

/* Rows that do not fill super-blocks take the type of nearest size with blocks of 32. */
static kk_dtype fallback_of(kk_dtype t) {
    switch (t) {
    case KK_Q4_K: return KK_Q5_0;
    case KK_Q5_K: return KK_Q5_1;
    case KK_Q6_K: return KK_Q8_0;
    case KK_MLX4_64: return KK_MLX4_32;
    case KK_MLX8_64: return KK_MLX8_32;
    default: return t;
    }
}

/* Routers are bf16 in checkpoints of that type, and float32 in others.  Beside packed weights their
 * values are those of a bf16 checkpoint, from which such files are converted. */
static kk_dtype router_type(kk_dtype t) { return t == KK_BF16 ? KK_BF16 : KK_F32; }

/* Whether a mix stores a matrix in its finer type, as the converters that made these files do: the
 * embedding, and V and the down projections of the first and last eighths of the layers and of
 * every third between. */
static bool is_finer(const maker *m, const char *name) {
    const char *at = strstr(name, "layers.");
    const int n = m->c->config.n_layer;
    if (!m->mix) return false;
    if (strstr(name, "embed_tokens")) return true;
    if (!at || (!strstr(name, "v_proj") && !strstr(name, "down_proj"))) return false;
    const int layer = atoi(at + strlen("layers."));
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static const tile *tile_for(const maker *m, const kk_inventory_item *item, kk_dtype *type) {
    *type = KK_F32;
    if (item->role == KK_ROLE_VECTOR) return &m->vector;
    if (item->role == KK_ROLE_ROUTER) {
        *type = router_type(m->type);
        return &m->router;
    }
    const int64_t row = item->dims[item->n_dims - 1];
    const bool finer = is_finer(m, item->name);
    const kk_dtype wanted = finer ? KK_Q6_K : m->type;
    const bool fits = row % kk_dtype_get(wanted)->values == 0;
    *type = fits ? wanted : fallback_of(wanted);
    if (finer) return fits ? &m->finer : &m->finer_fallback;
    return fits ? &m->matrix : &m->fallback;
}

static kk_status plan(maker *m, size_t *total, kk_err *err) {
    *total = 0;
    for (size_t i = 0; i < m->c->inventory.n; i++) {
        const kk_inventory_item *item = &m->c->inventory.items[i];
        kk_dtype type;
        size_t bytes;
        tile_for(m, item, &type);
        if (item->dims[item->n_dims - 1] % kk_dtype_get(type)->values != 0)
            return kk_fail(err, KK_EINVAL, "rows of '%.100s' do not fill blocks of %s", item->name,
                           kk_dtype_get(type)->name);
        const int64_t values = kk_inventory_values(item);
        if (!kk_dtype_bytes(type, (uint64_t)values, &bytes) || !kk_add(*total, bytes, total) ||
            !kk_add(*total, 2 * plane_bytes(type, values), total))
            return kk_fail(err, KK_EINVAL, "'%.100s' is too large", item->name);
    }
    return KK_OK;
}

static kk_status make_tensor(maker *m, const kk_inventory_item *item, char *name, kk_err *err) {
    kk_checkpoint *c = m->c;
    kk_tensor t = {.name = name, .n_dims = item->n_dims};
    const tile *from = tile_for(m, item, &t.dtype);
    memcpy(t.dims, item->dims, sizeof item->dims);
    kk_dtype_bytes(t.dtype, (uint64_t)kk_inventory_values(item), &t.data.size);
    t.scales.size = t.biases.size = plane_bytes(t.dtype, kk_inventory_values(item));
    const size_t all = kk_tensor_bytes(&t);
    uint8_t *bytes = c->mem ? kk_mem_take(c->mem, c->category, all) : NULL;
    if (!bytes && c->mem)
        return kk_fail(err, KK_ENOMEM, "no memory for the %zu bytes of '%.100s'", all, item->name);
#ifdef MADV_HUGEPAGE
    if (bytes && all >= (size_t)2 << 20) madvise(bytes, all, MADV_HUGEPAGE);
#endif
    m->from[c->n_tensors] = from;
    t.data.base = bytes;
    t.plane = KK_BF16;
    if (bytes && t.scales.size) {
        t.scales.base = bytes + t.data.size;
        t.biases.base = t.scales.base + t.scales.size;
    }
    c->tensors[c->n_tensors++] = t;
    return KK_OK;
}

static kk_status make_tensors(maker *m, kk_err *err) {
    kk_checkpoint *c = m->c;
    const size_t n = m->c->inventory.n;
    c->names = kk_calloc(n, KK_MAX_NAME);
    c->tensors = kk_calloc(n, sizeof *c->tensors);
    m->from = kk_calloc(n, sizeof *m->from);
    if (!c->names || !c->tensors || !m->from)
        return kk_fail(err, KK_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        char *name = c->names + i * KK_MAX_NAME;
        memcpy(name, m->c->inventory.items[i].name, KK_MAX_NAME);
        KK_TRY(make_tensor(m, &m->c->inventory.items[i], name, err));
    }
    return KK_OK;
}

/* First touch of fresh pages is most of the work, and cores do it side by side. */
static void lay_tensors(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const maker *m = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const kk_span d = m->c->tensors[i].data;
        lay(m->from[i], (uint64_t)i + 1, (uint8_t *)(uintptr_t)d.base, d.size);
        if (kk_dtype_is_affine(m->c->tensors[i].dtype)) lay_planes(&m->c->tensors[i]);
    }
}

static kk_status lay_all(maker *m, kk_err *err) {
    kk_threads *threads;
    KK_TRY(kk_threads_new(&threads, 0, false, err));
    kk_threads_loop(threads, (int64_t)m->c->n_tensors, 1, lay_tensors, m);
    kk_threads_free(threads);
    return KK_OK;
}

/* Bytes the system could give without swapping; 0: it does not say. */
static uint64_t memory_available(void) {
    char *text = NULL;
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return 0;
    size_t cap = 0;
    while (getline(&text, &cap, f) > 0)
        if (sscanf(text, "MemAvailable: %" SCNu64, &kib) == 1) break;
    free(text);
    fclose(f);
    return kib * 1024;
}

static kk_status fill(maker *m, kk_err *err) {
    size_t total;
    KK_TRY(plan(m, &total, err));
    if (!m->c->mem) {
        KK_TRY(make_tensors(m, err));
        return kk_checkpoint_settle(m->c, err);
    }
    const uint64_t available = memory_available();
    if (available && total > available)
        return kk_fail(err, KK_ENOMEM,
                       "random weights of %.1f GB do not fit the %.1f GB of memory available",
                       (double)total / 1e9, (double)available / 1e9);
    if (!make_tile(&m->matrix, m->type, 0, 0.02f) ||
        !make_tile(&m->fallback, fallback_of(m->type), 0, 0.02f) ||
        !make_tile(&m->vector, KK_F32, 1, 0.05f) ||
        !make_tile(&m->router, router_type(m->type), 0, 0.5f))
        return kk_fail(err, KK_ENOMEM, "no memory for random weights");
    if (m->mix && (!make_tile(&m->finer, KK_Q6_K, 0, 0.02f) ||
                   !make_tile(&m->finer_fallback, fallback_of(KK_Q6_K), 0, 0.02f)))
        return kk_fail(err, KK_ENOMEM, "no memory for random weights");
    if (kk_dtype_is_quant(m->type)) round_to_bf16(&m->router);
    KK_TRY(make_tensors(m, err));
    KK_TRY(lay_all(m, err));
    return kk_checkpoint_settle(m->c, err);
}

kk_status kk_checkpoint_random(kk_checkpoint *c, kk_dtype type, bool mix, kk_err *err) {
    maker m = {.c = c, .type = type, .mix = mix};
    c->format = "synthetic";
    const kk_status st = fill(&m, err);
    kk_free(m.matrix.bytes);
    kk_free(m.fallback.bytes);
    kk_free(m.vector.bytes);
    kk_free(m.router.bytes);
    kk_free(m.finer.bytes);
    kk_free(m.finer_fallback.bytes);
    kk_free(m.from);
    return st;
}

/* Norms of 1 everywhere make a model that no training would leave so.  Scores, which are divided by
 * nothing, spread by the root of the head size, so that softmaxes hang on one key; and a layer
 * changes the residual stream as much as all layers before it.  Such a model multiplies rounding
 * errors: K/V in bf16 instead of float32 alone changed the logits of six layers by two thirds.
 * Here scores spread by 4, and each of a layer's two branches adds a quarter. */
static float calming(const char *name, int64_t n) {
    static const char *const branches[] = {"post_attention_layernorm.weight",
                                           "post_feedforward_layernorm.weight"};
    const char *part = strstr(name, "layers.") ? strrchr(name, '.') : NULL;
    while (part && part > name && part[-1] != '.') part--;
    if (!part) return 1.0f;
    if (strcmp(part, "q_norm.weight") == 0) return 4.0f / sqrtf((float)n);
    for (size_t i = 0; i < sizeof branches / sizeof *branches; i++)
        if (strcmp(part, branches[i]) == 0) return 0.25f;
    return 1.0f;
}

static void calm_norms(kk_checkpoint *c) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        const kk_tensor *t = &c->tensors[i];
        const float by = t->n_dims == 1 ? calming(t->name, t->dims[0]) : 1.0f;
        float *w = (float *)(uintptr_t)t->data.base;
        for (int64_t k = 0; w && by < 1.0f && k < t->dims[0]; k++) w[k] *= by;
    }
}

/* A mix that files of quantised models are made in: most matrices in q4_k, some in q6_k. */
static bool is_mix(const char *name) { return strcasecmp(name, "q4_k_m") == 0; }

kk_status kk_weight_type(const char *name, kk_dtype *out, kk_err *err) {
    if (is_mix(name)) {
        *out = KK_Q4_K;
        return KK_OK;
    }
    if (kk_dtype_named(name, out) && !kk_dtype_is_integer(*out)) return KK_OK;
    return kk_fail(err, KK_EINVAL, "no weight type named '%.20s'", name);
}

/* Copies the part of *at before the next colon and steps over it; false when it is empty or too
 * long. */
static bool next_part(const char **at, char *out, size_t cap) {
    const size_t n = strcspn(*at, ":");
    if (n == 0 || n >= cap) return false;
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    if (**at == ':') ++*at;
    return true;
}

/* "NAME[:TYPE[:LAYERS]]" */
static kk_status parse_spec(const char *spec, kk_config *config, kk_dtype *type, bool *mix,
                            kk_err *err) {
    char name[32], word[16] = "bf16", count[8] = "0", *end = count;
    const char *at = spec;
    bool ok = next_part(&at, name, sizeof name);
    if (ok && *at) ok = next_part(&at, word, sizeof word);
    if (ok && *at) ok = next_part(&at, count, sizeof count) && count[0] > '0' && count[0] <= '9';
    const long layers = strtol(count, &end, 10);
    if (!ok || *at || *end || spec[strlen(spec) - 1] == ':')
        return kk_fail(err, KK_EINVAL, "'%.60s' is not NAME:TYPE or NAME:TYPE:LAYERS", spec);
    KK_TRY(kk_weight_type(word, type, err));
    *mix = is_mix(word);
    return kk_config_preset(config, name, (int32_t)layers, err);
}

kk_status kk_checkpoint_synthetic(kk_checkpoint **out, const char *spec, kk_mem *mem, kk_err *err) {
    *out = NULL;
    kk_checkpoint *c = kk_zalloc(sizeof *c);
    if (c) c->path = kk_strndup(spec, strlen(spec));
    if (!c || !c->path) {
        kk_checkpoint_close(c);
        return kk_fail(err, KK_ENOMEM, "no memory for random weights");
    }
    c->mem = mem;
    c->category = KK_MEM_WEIGHTS_VERIFIER;
    kk_dtype type = KK_BF16;
    bool mix = false;
    kk_status st = parse_spec(spec, &c->config, &type, &mix, err);
    if (st == KK_OK) st = kk_inventory_make(&c->inventory, &c->config, err);
    if (st == KK_OK) st = kk_checkpoint_random(c, type, mix, err);
    if (st != KK_OK) {
        kk_checkpoint_close(c);
        return st;
    }
    calm_norms(c);
    *out = c;
    return KK_OK;
}
