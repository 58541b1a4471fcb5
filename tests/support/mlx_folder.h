/* mlx_folder.h - writes a small model as MLX's converters do, and makes of the model it was made
 * from what the codes mean, so that the two can be compared.
 *
 * The file is laid out as MLX's writer does it: nothing is aligned, and the header has an odd
 * length.  Quantisation is the plain one between a group's least and largest value. */
#ifndef KK_TESTS_MLX_FOLDER_H
#define KK_TESTS_MLX_FOLDER_H

#include <jansson.h>

#include "support/model_folder.h"

typedef struct {
    int32_t bits, group;
    kk_dtype plane;
    const char *prefix;
} mlx_how;

enum { MLX_MOST = 700 };
typedef struct {
    kk_tensor t[MLX_MOST];
    char names[MLX_MOST][KK_MAX_NAME];
    size_t n;
    json_t *config; /* config.json */
} mlx_model;

/* A tensor of the file, whose bytes it owns. */
static inline kk_tensor *mlx_add(mlx_model *m, const char *name, kk_dtype type, int32_t n_dims,
                                 const int64_t *dims) {
    if (m->n == MLX_MOST) abort();
    kk_tensor *t = &m->t[m->n];
    snprintf(m->names[m->n], KK_MAX_NAME, "%.150s", name);
    *t = (kk_tensor){.name = m->names[m->n++], .dtype = type, .n_dims = n_dims};
    memcpy(t->dims, dims, (size_t)n_dims * sizeof *dims);
    if (!kk_dtype_bytes(type, (uint64_t)kk_tensor_values(t), &t->data.size)) abort();
    t->data.base = calloc(1, t->data.size);
    return t;
}

static inline uint8_t *mlx_bytes(const kk_tensor *t) { return (uint8_t *)(uintptr_t)t->data.base; }

/* A scale or bias rounded to the plane's type, put there, and what it has become. */
static inline float mlx_put(const kk_tensor *plane, size_t i, float v) {
    uint8_t *at = mlx_bytes(plane) + i * (size_t)kk_dtype_get(plane->dtype)->bytes;
    kk_quantize_row(plane->dtype, &v, at, 1);
    kk_dequantize(plane->dtype, at, &v, 1);
    return v;
}

/* One group of values x as codes; x becomes what they mean. */
static inline void mlx_group(float *x, int32_t n, int32_t bits, uint8_t *codes, float scale,
                             float bias) {
    for (int32_t i = 0; i < n; i++) {
        float q = scale > 0 ? roundf((x[i] - bias) / scale) : 0; /* all alike */
        q = q < 0 ? 0 : q > (float)((1 << bits) - 1) ? (float)((1 << bits) - 1) : q;
        if (bits == 4)
            codes[i / 2] = (uint8_t)(codes[i / 2] | (int)q << (i % 2 * 4));
        else
            codes[i] = (uint8_t)q;
        const float scaled = scale * q;
        x[i] = scaled + bias;
    }
}

/* Adds a module's three tensors for the matrix x, which becomes what they mean. */
static inline void mlx_quantize(mlx_model *m, const char *module, float *x, int32_t n_dims,
                                const int64_t *dims, mlx_how how) {
    char name[2 * KK_MAX_NAME];
    int64_t words[3], groups[3], rows = 1;
    const int64_t width = dims[n_dims - 1];
    for (int32_t i = 0; i + 1 < n_dims; i++) rows *= words[i] = groups[i] = dims[i];
    words[n_dims - 1] = width * how.bits / 32;
    groups[n_dims - 1] = width / how.group;
    snprintf(name, sizeof name, "%.150s.weight", module);
    const kk_tensor *w = mlx_add(m, name, KK_U32, n_dims, words);
    snprintf(name, sizeof name, "%.150s.scales", module);
    const kk_tensor *s = mlx_add(m, name, how.plane, n_dims, groups);
    snprintf(name, sizeof name, "%.150s.biases", module);
    const kk_tensor *b = mlx_add(m, name, how.plane, n_dims, groups);
    for (size_t g = 0; g < (size_t)(rows * width / how.group); g++) {
        float *v = x + g * (size_t)how.group, least = v[0], most = v[0];
        for (int32_t i = 1; i < how.group; i++) {
            least = v[i] < least ? v[i] : least;
            most = v[i] > most ? v[i] : most;
        }
        const float scale = mlx_put(s, g, (most - least) / (float)((1 << how.bits) - 1));
        const float bias = mlx_put(b, g, least);
        mlx_group(v, how.group, how.bits, mlx_bytes(w) + g * (size_t)(how.group * how.bits / 8),
                  scale, bias);
    }
}

/* As bf16; x becomes what that means. */
static inline void mlx_plain(mlx_model *m, const char *name, float *x, int32_t n_dims,
                             const int64_t *dims) {
    const kk_tensor *t = mlx_add(m, name, KK_BF16, n_dims, dims);
    const size_t n = (size_t)kk_tensor_values(t);
    kk_quantize_row(KK_BF16, x, mlx_bytes(t), n);
    kk_dequantize(KK_BF16, mlx_bytes(t), x, n);
}

static inline json_t *mlx_quantization(const mlx_model *m) {
    return json_object_get(m->config, "quantization");
}

/* A matrix under its module's name; routers have 8 bits, and rows that do not fill groups none. */
static inline void mlx_matrix(mlx_model *m, const char *module, float *x, int32_t n_dims,
                              const int64_t *dims, mlx_how how) {
    char name[2 * KK_MAX_NAME];
    if (how.bits && strstr(module, "router.proj") && dims[n_dims - 1] % 64 == 0) {
        how.bits = 8, how.group = 64;
        json_object_set_new(mlx_quantization(m), module,
                            json_pack("{s:i, s:i}", "group_size", 64, "bits", 8));
    }
    if (how.bits && dims[n_dims - 1] % how.group == 0) {
        mlx_quantize(m, module, x, n_dims, dims, how);
        return;
    }
    snprintf(name, sizeof name, "%.150s.weight", module);
    mlx_plain(m, name, x, n_dims, dims);
}

/* The experts' gate and up, which MLX keeps apart: halves of every expert's rows. */
static inline void mlx_gate_up(mlx_model *m, const char *layer, kk_tensor *t, mlx_how how) {
    static const char *const parts[] = {"gate_proj", "up_proj"};
    const int64_t dims[3] = {t->dims[0], t->dims[1] / 2, t->dims[2]};
    const size_t half = (size_t)(dims[1] * dims[2]), n = (size_t)dims[0] * half;
    float *all = (float *)(void *)mlx_bytes(t), *x = malloc(n * sizeof *x);
    for (size_t p = 0; p < 2; p++) {
        char module[2 * KK_MAX_NAME];
        snprintf(module, sizeof module, "%.120s.switch_glu.%s", layer, parts[p]);
        for (size_t e = 0; e < (size_t)dims[0]; e++)
            memcpy(x + e * half, all + (2 * e + p) * half, half * sizeof *x);
        mlx_matrix(m, module, x, 3, dims, how);
        for (size_t e = 0; e < (size_t)dims[0]; e++)
            memcpy(all + (2 * e + p) * half, x + e * half, half * sizeof *x);
    }
    free(x);
}

static inline void mlx_tensor(mlx_model *m, kk_tensor *t, mlx_how how) {
    char name[2 * KK_MAX_NAME];
    float *x = (float *)(void *)mlx_bytes(t);
    const int len = snprintf(name, sizeof name, "%s%s", how.prefix, t->name);
    char *experts = strstr(name, ".experts.");
    if (experts) {
        experts[strlen(".experts")] = '\0';
        char module[2 * KK_MAX_NAME + 32];
        snprintf(module, sizeof module, "%.120s.switch_glu.down_proj", name);
        if (strstr(t->name, "gate_up"))
            mlx_gate_up(m, name, t, how);
        else
            mlx_matrix(m, module, x, 3, t->dims, how);
    } else if (t->n_dims < 2) {
        mlx_plain(m, name, x, t->n_dims, t->dims);
    } else {
        name[len - (int)strlen(".weight")] = '\0';
        mlx_matrix(m, name, x, t->n_dims, t->dims, how);
    }
}

/* A model of float32 tensors without a prefix as MLX writes it; bits 0: nothing is quantised.  The
 * model itself becomes what that means. */
static inline mlx_model *mlx_make(model_tensors *from, mlx_how how) {
    mlx_model *m = calloc(1, sizeof *m);
    char text[16384];
    int n = snprintf(text, sizeof text, "{\"model_type\": \"gemma4\", \"text_config\": {");
    n += config_fields(text + n, sizeof text - (size_t)n, &from->config);
    n += snprintf(text + n, sizeof text - (size_t)n, "}");
    if (how.bits)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      ", \"quantization\": {\"group_size\": %d, \"bits\": %d, \"mode\": "
                      "\"affine\"}",
                      how.group, how.bits);
    snprintf(text + n, sizeof text - (size_t)n, "}");
    m->config = json_loads(text, 0, NULL);
    if (!m->config) abort();
    for (size_t i = 0; i < from->n; i++) mlx_tensor(m, &from->tensors[i], how);
    return m;
}

static inline kk_tensor *mlx_find(mlx_model *m, const char *end) {
    for (size_t i = 0; i < m->n; i++) {
        const size_t len = strlen(m->t[i].name), tail = strlen(end);
        if (len >= tail && strcmp(m->t[i].name + len - tail, end) == 0) return &m->t[i];
    }
    abort();
}

static inline void mlx_free(mlx_model *m) {
    for (size_t i = 0; i < m->n; i++) free(mlx_bytes(&m->t[i]));
    json_decref(m->config);
    free(m);
}

static inline const char *mlx_word(kk_dtype t) {
    return t == KK_U32 ? "U32" : t == KK_F32 ? "F32" : t == KK_F16 ? "F16" : "BF16";
}

/* model.safetensors, each tensor where the one before it ends. */
static inline void mlx_write_tensors(const char *path, const mlx_model *m) {
    json_t *header = json_object();
    size_t at = 0;
    for (size_t i = 0; i < m->n; i++) {
        const kk_tensor *t = &m->t[i];
        if (!t->name[0]) continue; /* a test left it out */
        json_t *shape = json_array();
        for (int32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer(t->dims[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", mlx_word(t->dtype), "shape",
                                      shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)(at + t->data.size)));
        at += t->data.size;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t len = strlen(text) | 1;
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    fwrite(&len, sizeof len, 1, f);
    fprintf(f, "%-*s", (int)len, text);
    for (size_t i = 0; i < m->n; i++)
        if (m->t[i].name[0]) fwrite(m->t[i].data.base, 1, m->t[i].data.size, f);
    if (fclose(f) != 0) abort();
    free(text);
    json_decref(header);
}

static inline void mlx_write(const char *dir, const mlx_model *m) {
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (json_dump_file(m->config, path, 0) != 0) abort();
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    mlx_write_tensors(path, m);
}

#endif
