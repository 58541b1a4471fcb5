/* drafter.h - a DFlash drafter on disk: its configuration, checked, and its tensors by name.
 *
 * A drafter has no token table and no head: it borrows the verifier's, of which it may keep a
 * packed copy as its head.  Files stay mapped. */
#ifndef KK_FORMAT_DRAFTER_H
#define KK_FORMAT_DRAFTER_H

#include "format/checkpoint.h"
#include "format/gguf.h"

enum { KK_MAX_TAPS = 16, KK_MAX_DRAFT_LAYERS = 64, KK_MAX_DRAFT_BLOCK = 32 };

/* How often the verifier's embedding scale is applied to the rows a drafter reads. */
typedef enum { KK_EMBED_ONCE, KK_EMBED_UNSCALED, KK_EMBED_TWICE } kk_embed_scaling;

typedef struct {
    int32_t vocab, hidden, n_layer, n_head, n_kv_head, head_dim, ffn, window, context;
    int32_t block;           /* rows of a block: the anchor and block - 1 drafts */
    int32_t mask_id;         /* stands for a token to be drafted; never drafted itself */
    int32_t n_target_layers; /* layers of the verifier it was trained for; 0: not recorded */
    int32_t n_taps, taps[KK_MAX_TAPS]; /* verifier layers whose outputs it reads, from 0 */
    float eps, theta, softcap;         /* softcap 0: none */
    kk_kind kind[KK_MAX_DRAFT_LAYERS];
    bool sliding_causal; /* in the block, sliding layers see no later row (default) */
    bool full_causal;    /* the same of full layers (default: they see the whole block) */
    kk_embed_scaling embed_scaling;
    bool embed_said; /* by the file; the default otherwise */
} kk_drafter_config;

/* json: the text of config.json.  n_taps is 0 when the text does not name the layers: their
 * number then follows from fc.weight, and kk_drafter_open spreads them over n_target_layers. */
kk_status kk_drafter_config_from_json(kk_drafter_config *out, const char *json, size_t len,
                                      kk_err *err);

/* The same of a GGUF file's keys, which must name the tapped layers; see docs/drafters.md. */
kk_status kk_drafter_config_from_gguf(kk_drafter_config *out, const kk_gguf *g, kk_err *err);

typedef struct kk_drafter kk_drafter;

/* path: a folder with config.json and safetensors in z-lab's layout, or a GGUF file in
 * llama.cpp's.  Strict: a tensor that is missing, of another shape, or unknown is refused by
 * name. */
kk_status kk_drafter_open(kk_drafter **out, const char *path, const kk_checkpoint_opts *opts,
                          kk_err *err);
/* Random weights of a type such as "q4_0", in the shapes of the drafter released for that
 * verifier (or, for other verifiers, in proportion), counted in mem under weights.drafter. */
kk_status kk_drafter_synthetic(kk_drafter **out, const kk_config *verifier, const char *type,
                               kk_mem *mem, kk_err *err);
/* Rounds its matrices to a smaller type in memory, counted in mem: drafts need not be exact, and
 * cost what is read.  Those already packed stay as they are. */
typedef struct {
    kk_dtype type;   /* KK_Q8_0 or KK_Q4_0 */
    bool mlock;      /* lock them in memory */
    int32_t threads; /* 0: all cores */
} kk_drafter_packing;
kk_status kk_drafter_pack(kk_drafter *d, const kk_drafter_packing *how, kk_mem *mem, kk_err *err);
/* The verifier's token table packed likewise, to be this drafter's head; a table that is packed
 * already is not copied.  Once: a second call does nothing. */
kk_status kk_drafter_pack_head(kk_drafter *d, const kk_tensor *table, const kk_drafter_packing *how,
                               kk_mem *mem, kk_err *err);
const kk_tensor *kk_drafter_head(const kk_drafter *d); /* NULL: the verifier's own */
int64_t kk_drafter_packed_bytes(const kk_drafter *d);  /* without the head's */
void kk_drafter_close(kk_drafter *d);                  /* NULL is fine */
const kk_drafter_config *kk_drafter_config_of(const kk_drafter *d);
/* Its tensors as a checkpoint, whose configuration is empty. */
const kk_checkpoint *kk_drafter_tensors(const kk_drafter *d);
size_t kk_drafter_count(const kk_drafter *d);
const kk_tensor *kk_drafter_at(const kk_drafter *d, size_t i);
/* "fc.weight", "layers.0.self_attn.q_proj.weight"; NULL: there is none. */
const kk_tensor *kk_drafter_find(const kk_drafter *d, const char *name);
/* Whether it can draft for this verifier; if not, the first reason. */
kk_status kk_drafter_check(const kk_drafter_config *d, const kk_config *verifier, kk_err *err);

#endif
