/* fingerprint.c - see fingerprint.h.
 *
 * Hashing 14 GB would take longer than the prefill that a saved session spares, so that of a large
 * tensor only pieces are read, spread evenly from its first byte to its last.  Two models that
 * differ anywhere in earnest (another training, another quantisation) differ in nearly every
 * piece; a file with single bytes changed by hand may pass.  Numbers enter one by one: structs
 * have padding. */
#include "engine/fingerprint.h"

#include <string.h>

#include "core/hash.h"

enum { PIECES = 64, PIECE = 64 };

static void add_int(uint64_t *h, int64_t v) { *h = kk_hash_bytes(*h, &v, sizeof v); }
static void add_real(uint64_t *h, float v) { *h = kk_hash_bytes(*h, &v, sizeof v); }

static void add_data(uint64_t *h, kk_span data) {
    if (data.size <= PIECES * PIECE) {
        *h = kk_hash_bytes(*h, data.base, data.size);
        return;
    }
    for (size_t i = 0; i < PIECES; i++) {
        const size_t step = (data.size - PIECE) / (PIECES - 1);
        const size_t at = i + 1 < PIECES ? i * step : data.size - PIECE;
        *h = kk_hash_bytes(*h, data.base + at, PIECE);
    }
}

static void add_tensor(uint64_t *h, const kk_tensor *t) {
    *h = kk_hash_bytes(*h, t->name, strlen(t->name));
    add_int(h, t->dtype);
    for (int32_t i = 0; i < t->n_dims; i++) add_int(h, t->dims[i]);
    add_data(h, t->data);
}

static void add_config(uint64_t *h, const kk_config *c) {
    const int32_t sizes[] = {c->vocab,      c->hidden,  c->n_layer,  c->n_head,
                             c->window,     c->context, c->n_expert, c->n_expert_used,
                             c->expert_ffn, c->ple_dim, c->ple_vocab};
    *h = kk_hash_bytes(*h, sizes, sizeof sizes);
    add_real(h, c->eps);
    add_real(h, c->softcap);
    for (int k = 0; k < KK_LAYER_KINDS; k++) {
        add_real(h, c->rope[k].theta);
        add_int(h, c->rope[k].n_rot);
        add_real(h, c->rope[k].factor);
    }
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        const int32_t layer[] = {(int32_t)l->kind, l->head_dim,  l->n_kv_head,
                                 l->ffn,           l->kv_source, l->k_eq_v};
        *h = kk_hash_bytes(*h, layer, sizeof layer);
    }
}

/* Zero stands for "not yet" and for "none". */
static uint64_t not_zero(uint64_t h) { return h ? h : 1; }

uint64_t kk_engine_fingerprint(kk_engine *e) {
    uint64_t h = atomic_load(&e->fingerprint);
    if (h) return h;
    h = KK_HASH_START;
    add_config(&h, kk_engine_config(e));
    for (size_t i = 0; i < kk_checkpoint_count(e->checkpoint); i++)
        add_tensor(&h, kk_checkpoint_at(e->checkpoint, i));
    atomic_store(&e->fingerprint, not_zero(h)); /* two threads store the same */
    return not_zero(h);
}

/* What the context's rows depend on, which is not how blocks are drafted from them. */
static void add_drafter_config(uint64_t *h, const kk_drafter_config *c) {
    const int32_t sizes[] = {c->vocab,     c->hidden,   c->n_layer, c->n_head,
                             c->n_kv_head, c->head_dim, c->window,  c->n_taps};
    *h = kk_hash_bytes(*h, sizes, sizeof sizes);
    *h = kk_hash_bytes(*h, c->taps, (size_t)c->n_taps * sizeof *c->taps);
    add_real(h, c->eps);
    add_real(h, c->theta);
    for (int32_t i = 0; i < c->n_layer; i++) add_int(h, c->kind[i]);
}

uint64_t kk_engine_drafter_fingerprint(kk_engine *e) {
    uint64_t h = atomic_load(&e->drafter_fingerprint);
    if (h || !e->drafter) return h;
    h = KK_HASH_START;
    add_drafter_config(&h, kk_drafter_config_of(e->drafter));
    for (size_t i = 0; i < kk_drafter_count(e->drafter); i++)
        add_tensor(&h, kk_drafter_at(e->drafter, i));
    atomic_store(&e->drafter_fingerprint, not_zero(h));
    return not_zero(h);
}

static void add_projection_config(uint64_t *h, const kk_projection_config *c) {
    const int32_t sizes[] = {(int32_t)c->source, c->n_in,   c->rank,
                             c->n_layer,         c->hidden, c->n_taps};
    *h = kk_hash_bytes(*h, sizes, sizeof sizes);
    *h = kk_hash_bytes(*h, c->taps, (size_t)c->n_taps * sizeof *c->taps);
}

uint64_t kk_engine_projection_fingerprint(kk_engine *e) {
    uint64_t h = atomic_load(&e->projection_fingerprint);
    if (h || !e->projection) return h;
    const kk_checkpoint *tensors = kk_projection_tensors(e->projection);
    h = KK_HASH_START;
    add_projection_config(&h, kk_projection_config_of(e->projection));
    for (size_t i = 0; i < kk_checkpoint_count(tensors); i++)
        add_tensor(&h, kk_checkpoint_at(tensors, i));
    atomic_store(&e->projection_fingerprint, not_zero(h));
    return not_zero(h);
}

void kk_engine_fingerprints(kk_engine *e, kk_fingerprints *out) {
    *out = (kk_fingerprints){.model = kk_engine_fingerprint(e),
                             .drafter = kk_engine_drafter_fingerprint(e),
                             .projection = kk_engine_projection_fingerprint(e)};
}
