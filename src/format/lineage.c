/* lineage.c - see lineage.h.
 *
 * Hashing 14 GB would take longer than the prefill that a saved session spares, so that of a large
 * tensor only pieces are read, spread evenly from its first byte to its last.  Two models that
 * differ anywhere in earnest (another training, another quantisation) differ in nearly every
 * piece; a file with single bytes changed by hand may pass.  Numbers enter one by one: structs
 * have padding. */
#include "format/lineage.h"

#include <stdio.h>

#include "core/hash.h"
#include "format/format.h"
#include "format/tokenizer.h"

enum { PIECES = 64, PIECE = 64 };

static void add_int(uint64_t *h, int64_t v) { *h = kk_hash_bytes(*h, &v, sizeof v); }
static void add_real(uint64_t *h, float v) { *h = kk_hash_bytes(*h, &v, sizeof v); }

/* Zero stands for "not known". */
static uint64_t not_zero(uint64_t h) { return h ? h : 1; }

kk_kin kk_lineage_compare(const kk_lineage *made_with, const kk_lineage *here) {
    if (made_with->weights == here->weights) return KK_KIN_SAME;
    const uint64_t source = made_with->source ? made_with->source : made_with->weights;
    const bool same =
        source == here->source || (made_with->identity && made_with->identity == here->identity);
    return same ? KK_KIN_PRECISION : KK_KIN_NONE;
}

/* ---- weights ---------------------------------------------------------------------------- */

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

static void add_tensors(uint64_t *h, const kk_checkpoint *c) {
    for (size_t i = 0; i < kk_checkpoint_count(c); i++) {
        const kk_tensor *t = kk_checkpoint_at(c, i);
        *h = kk_hash_bytes(*h, t->name, strlen(t->name));
        add_int(h, t->dtype);
        for (int32_t d = 0; d < t->n_dims; d++) add_int(h, t->dims[d]);
        add_data(h, t->data);
        if (!kk_dtype_is_affine(t->dtype)) continue;
        add_int(h, t->plane);
        add_data(h, t->scales);
        add_data(h, t->biases);
    }
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

uint64_t kk_lineage_weights(const kk_checkpoint *c) {
    uint64_t h = KK_HASH_START;
    add_config(&h, kk_checkpoint_config(c));
    add_tensors(&h, c);
    return not_zero(h);
}

uint64_t kk_lineage_source(const kk_checkpoint *c, uint64_t weights) {
    kk_span text;
    uint64_t source;
    if (!kk_gguf_str(&c->gguf, KK_GGUF_SOURCE, &text) ||
        !kk_lineage_parse((const char *)text.base, text.size, &source) || !source)
        return weights;
    return source;
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

uint64_t kk_lineage_drafter(const kk_drafter *d) {
    uint64_t h = KK_HASH_START;
    add_drafter_config(&h, kk_drafter_config_of(d));
    add_tensors(&h, kk_drafter_tensors(d));
    return not_zero(h);
}

uint64_t kk_lineage_drafter_identity(const kk_drafter_config *c) {
    uint64_t h = KK_HASH_START;
    add_drafter_config(&h, c);
    return not_zero(h);
}

uint64_t kk_lineage_projection(const kk_projection *p) {
    const kk_projection_config *c = kk_projection_config_of(p);
    const int32_t sizes[] = {(int32_t)c->source, c->n_in,   c->rank,
                             c->n_layer,         c->hidden, c->n_taps};
    uint64_t h = kk_hash_bytes(KK_HASH_START, sizes, sizeof sizes);
    h = kk_hash_bytes(h, c->taps, (size_t)c->n_taps * sizeof *c->taps);
    add_tensors(&h, kk_projection_tensors(p));
    return not_zero(h);
}

/* ---- identity --------------------------------------------------------------------------- */

/* What a configuration says of a part that the model does not have means nothing, and files of
 * different formats say different things. */
static kk_config without_idle_parts(const kk_config *c) {
    bool kinds[KK_LAYER_KINDS] = {false, false};
    kk_config out = *c;
    for (int32_t i = 0; i < c->n_layer; i++) kinds[c->layer[i].kind] = true;
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        if (!kinds[k]) out.rope[k] = (kk_rope_config){0};
    if (!c->ple_dim) out.ple_vocab = 0;
    if (!c->n_expert) out.n_expert_used = out.expert_ffn = 0;
    return out;
}

/* A file may name ids that no token has. */
static bool is_filler(const char *text, size_t len, int32_t id) {
    char name[24];
    return len == 0 || (len == (size_t)snprintf(name, sizeof name, "[PAD%d]", id) &&
                        memcmp(text, name, len) == 0);
}

static void add_tokens(uint64_t *h, const kk_tokenizer *tok) {
    for (int32_t id = 0; id < kk_tokenizer_size(tok); id++) {
        size_t len;
        bool special;
        const char *text = kk_tokenizer_piece(tok, id, &len, &special);
        if (is_filler(text, len, id)) continue;
        add_int(h, id);
        *h = kk_hash_bytes(*h, text, len);
    }
}

uint64_t kk_lineage_identity(const kk_config *c, const kk_tokenizer *tok) {
    const kk_config config = without_idle_parts(c);
    uint64_t h = KK_HASH_START;
    add_config(&h, &config);
    if (tok) add_tokens(&h, tok);
    return not_zero(h);
}

/* ---- text ------------------------------------------------------------------------------- */

void kk_lineage_text(uint64_t h, char out[17]) {
    snprintf(out, 17, "%016llx", (unsigned long long)h);
}

bool kk_lineage_parse(const char *text, size_t len, uint64_t *out) {
    *out = 0;
    if (len != 16) return false;
    for (int i = 0; i < 16; i++) {
        const bool digit = text[i] >= '0' && text[i] <= '9';
        if (!digit && !(text[i] >= 'a' && text[i] <= 'f')) return false;
        *out = *out << 4 | (uint64_t)(digit ? text[i] - '0' : text[i] - 'a' + 10);
    }
    return true;
}
