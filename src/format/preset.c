/* preset.c - the shapes of the released models, and two small ones of their kinds.
 *
 * "tiny" is 26B-A4B's kind (experts, K = V on full layers) and "tiny-ple" E2B's (per-layer
 * embeddings, shared K/V, double-wide MLP), for tests and demonstrations.  Their rows fit every
 * quantised block, except for the experts' down matrix, whose rows fill no super-block, as in
 * 26B-A4B. */
#include <inttypes.h>
#include <strings.h>

#include "core/alloc.h"
#include "format/format.h"

typedef struct {
    const char *name, *title;
    int32_t vocab, hidden, layers, n_head, window, context, ffn;
    int32_t period; /* every period-th layer is full */
    int32_t head_dim, n_kv_head, full_head_dim, full_n_kv_head;
    bool k_eq_v;
    int32_t own_layers; /* layers with K/V of their own; 0: all */
    bool double_wide;
    int32_t n_expert, n_expert_used, expert_ffn, ple_dim;
} preset;

static const preset presets[] = {
    {.name = "26b-a4b",
     .title = "26B-A4B",
     .vocab = 262144,
     .hidden = 2816,
     .layers = 30,
     .n_head = 16,
     .window = 1024,
     .context = 262144,
     .ffn = 2112,
     .period = 6,
     .head_dim = 256,
     .n_kv_head = 8,
     .full_head_dim = 512,
     .full_n_kv_head = 2,
     .k_eq_v = true,
     .n_expert = 128,
     .n_expert_used = 8,
     .expert_ffn = 704},
    {.name = "31b",
     .title = "31B",
     .vocab = 262144,
     .hidden = 5376,
     .layers = 60,
     .n_head = 32,
     .window = 1024,
     .context = 262144,
     .ffn = 21504,
     .period = 6,
     .head_dim = 256,
     .n_kv_head = 16,
     .full_head_dim = 512,
     .full_n_kv_head = 4,
     .k_eq_v = true},
    {.name = "e2b",
     .title = "E2B",
     .vocab = 262144,
     .hidden = 1536,
     .layers = 35,
     .n_head = 8,
     .window = 512,
     .context = 131072,
     .ffn = 6144,
     .period = 5,
     .head_dim = 256,
     .n_kv_head = 1,
     .full_head_dim = 512,
     .full_n_kv_head = 1,
     .own_layers = 15,
     .double_wide = true,
     .ple_dim = 256},
    {.name = "e4b",
     .title = "E4B",
     .vocab = 262144,
     .hidden = 2560,
     .layers = 42,
     .n_head = 8,
     .window = 512,
     .context = 131072,
     .ffn = 10240,
     .period = 6,
     .head_dim = 256,
     .n_kv_head = 2,
     .full_head_dim = 512,
     .full_n_kv_head = 2,
     .own_layers = 24,
     .ple_dim = 256},
    {.name = "tiny",
     .title = "tiny",
     .vocab = 1024,
     .hidden = 256,
     .layers = 12,
     .n_head = 4,
     .window = 64,
     .context = 8192,
     .ffn = 512,
     .period = 6,
     .head_dim = 64,
     .n_kv_head = 2,
     .full_head_dim = 128,
     .full_n_kv_head = 1,
     .k_eq_v = true,
     .n_expert = 8,
     .n_expert_used = 2,
     .expert_ffn = 192},
    {.name = "tiny-ple",
     .title = "tiny-ple",
     .vocab = 1024,
     .hidden = 256,
     .layers = 10,
     .n_head = 4,
     .window = 64,
     .context = 8192,
     .ffn = 512,
     .period = 5,
     .head_dim = 64,
     .n_kv_head = 1,
     .full_head_dim = 128,
     .full_n_kv_head = 1,
     .own_layers = 5,
     .double_wide = true,
     .ple_dim = 256},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

static void fill_layers(kk_config *c, const preset *p) {
    for (int32_t i = 0; i < c->n_layer; i++) {
        const bool full = (i + 1) % p->period == 0 || i == c->n_layer - 1;
        c->layer[i] = (kk_layer_config){
            .kind = full ? KK_FULL : KK_SLIDING,
            .head_dim = full ? p->full_head_dim : p->head_dim,
            .n_kv_head = full ? p->full_n_kv_head : p->n_kv_head,
            .ffn = p->ffn,
            .k_eq_v = full && p->k_eq_v,
        };
    }
}

static kk_status fill(kk_config *c, const preset *p, int32_t layers, kk_err *err) {
    *c = (kk_config){
        .vocab = p->vocab,
        .hidden = p->hidden,
        .n_layer = layers,
        .n_head = p->n_head,
        .window = p->window,
        .context = p->context,
        .eps = 1e-6f,
        .softcap = 30.0f,
        .n_expert = p->n_expert,
        .n_expert_used = p->n_expert_used,
        .expert_ffn = p->expert_ffn,
        .ple_dim = p->ple_dim,
        .ple_vocab = p->vocab,
        .bos = 2,
        .rope = {[KK_SLIDING] = {1e4f, p->head_dim / 2, 1.0f},
                 [KK_FULL] = {1e6f, p->full_head_dim / 8, 1.0f}},
        .stop_ids = {1, 106},
        .n_stop_ids = 2,
    };
    fill_layers(c, p);
    const int32_t shared = p->own_layers && layers > p->own_layers ? layers - p->own_layers : 0;
    return kk_config_finish(c, shared, p->double_wide, err);
}

kk_status kk_config_preset(kk_config *out, const char *name, int32_t layers, kk_err *err) {
    *out = (kk_config){0};
    for (int i = 0; i < N_PRESETS; i++) {
        const preset *p = &presets[i];
        if (strcasecmp(p->name, name) != 0) continue;
        if (layers < 0 || layers > p->layers)
            return kk_fail(err, KK_EINVAL, "%s has %d layers, %d were asked for", name, p->layers,
                           layers);
        return fill(out, p, layers ? layers : p->layers, err);
    }
    return kk_fail(err, KK_EINVAL,
                   "no model shapes named '%.40s'; there are 26b-a4b, 31b, e2b, e4b, tiny and "
                   "tiny-ple",
                   name);
}

const char *kk_config_name(const kk_config *c) {
    for (int i = 0; i < N_PRESETS; i++) {
        const preset *p = &presets[i];
        if (c->hidden == p->hidden && c->n_layer == p->layers && c->n_head == p->n_head &&
            c->vocab == p->vocab && c->n_expert == p->n_expert && c->ple_dim == p->ple_dim &&
            c->layer[0].ffn == p->ffn && c->layer[0].n_kv_head == p->n_kv_head)
            return p->title;
    }
    return "custom";
}
