/* fingerprint.c - see fingerprint.h.  Numbers are taken once; two threads that take one at the same
 * time store the same. */
#include "engine/fingerprint.h"

uint64_t kk_engine_fingerprint(kk_engine *e) {
    uint64_t h = atomic_load(&e->fingerprint);
    if (h) return h;
    h = kk_lineage_weights(e->checkpoint);
    atomic_store(&e->fingerprint, h);
    return h;
}

static uint64_t identity_of(kk_engine *e) {
    uint64_t h = atomic_load(&e->identity);
    if (h) return h;
    h = kk_lineage_identity(kk_engine_config(e), e->tokenizer);
    atomic_store(&e->identity, h);
    return h;
}

kk_lineage kk_engine_lineage(kk_engine *e) {
    const uint64_t weights = kk_engine_fingerprint(e);
    return (kk_lineage){.weights = weights,
                        .source = kk_lineage_source(e->checkpoint, weights),
                        .identity = identity_of(e)};
}

uint64_t kk_engine_drafter_fingerprint(kk_engine *e) {
    uint64_t h = atomic_load(&e->drafter_fingerprint);
    if (h || !e->drafter) return h;
    h = kk_lineage_drafter(e->drafter);
    atomic_store(&e->drafter_fingerprint, h);
    return h;
}

uint64_t kk_engine_drafter_identity(kk_engine *e) {
    return e->drafter ? kk_lineage_drafter_identity(kk_drafter_config_of(e->drafter)) : 0;
}

kk_lineage kk_engine_drafter_lineage(kk_engine *e) {
    const uint64_t weights = kk_engine_drafter_fingerprint(e);
    if (!weights) return (kk_lineage){0};
    return (kk_lineage){.weights = weights,
                        .source = kk_lineage_source(kk_drafter_tensors(e->drafter), weights),
                        .identity = kk_engine_drafter_identity(e)};
}

uint64_t kk_engine_projection_fingerprint(kk_engine *e) {
    uint64_t h = atomic_load(&e->projection_fingerprint);
    if (h || !e->projection) return h;
    h = kk_lineage_projection(e->projection);
    atomic_store(&e->projection_fingerprint, h);
    return h;
}

void kk_engine_fingerprints(kk_engine *e, kk_fingerprints *out) {
    const kk_lineage model = kk_engine_lineage(e);
    *out = (kk_fingerprints){.model = model.weights,
                             .drafter = kk_engine_drafter_fingerprint(e),
                             .projection = kk_engine_projection_fingerprint(e),
                             .source = model.source,
                             .identity = model.identity};
}
