/* projection_folder.h - a small projection for small_moe(), its values, and its folder, to be bent
 * by a test before it is opened. */
#ifndef KK_TESTS_PROJECTION_FOLDER_H
#define KK_TESTS_PROJECTION_FOLDER_H

#include "support/model_folder.h"
#include "support/ok.h"

/* All layers of a verifier, from two of its taps, with rank 32; joint or the two encoders of
 * drafter-kv, which reads the drafter of drafter_folder.h. */
static inline kk_projection_config projection_for(const kk_config *v, bool joint) {
    kk_projection_config c = {.rank = 32,
                              .joint = joint,
                              .n_layer = v->n_layer,
                              .hidden = v->hidden,
                              .verifier = 0x0123456789abcdefu,
                              .drafter = joint ? 0 : 0xfedcba9876543210u};
    if (joint) {
        c.n_taps = 2;
        c.taps[0] = 4;
        c.taps[1] = 1;
        c.n_in = 2 * v->hidden;
    } else {
        c.source = KK_SOURCE_DRAFTER_KV;
        c.draft.n_layer = 2;
        c.draft.n_kv_head = 2;
        c.draft.head_dim = 16;
        c.n_in = 64;
    }
    for (int32_t i = 0; i < v->n_layer; i++) {
        c.layer[i].restored = v->layer[i].kv_source == i;
        c.layer[i].k_eq_v = v->layer[i].k_eq_v;
        c.layer[i].n_kv_head = v->layer[i].n_kv_head;
        c.layer[i].head_dim = v->layer[i].head_dim;
    }
    return c;
}

typedef struct {
    kk_projection_values values;
    float *all; /* one block of them */
} projection_values;

/* Values that no two tensors share. */
static inline projection_values projection_values_of(const kk_projection_config *c) {
    const size_t n = (size_t)kk_projection_params(c), encoder = (size_t)c->rank * (size_t)c->n_in;
    projection_values p = {.all = malloc(n * sizeof *p.all)};
    uint64_t seed = 7;
    for (size_t i = 0; i < n; i++) p.all[i] = random_float(&seed);
    float *at = p.all;
    for (int e = 0; e < (c->joint ? 1 : 2); e++, at += encoder) p.values.encoder[e] = at;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const size_t size =
            (size_t)c->layer[i].n_kv_head * (size_t)c->layer[i].head_dim * (size_t)c->rank;
        if (!c->layer[i].restored) continue;
        if (!c->joint || !c->layer[i].k_eq_v) {
            p.values.k[i] = at;
            at += size;
        }
        p.values.v[i] = at;
        at += size;
    }
    if (at != p.all + n) abort();
    return p;
}

/* Writes a projection of a model in a folder that has learned nothing; a status, not a failure. */
static inline kk_status projection_unlearned(const char *path, const char *model, kk_err *err) {
    kk_checkpoint *ckpt = NULL;
    KK_TRY(kk_checkpoint_open(&ckpt, model, NULL, err));
    kk_projection_config c = projection_for(kk_checkpoint_config(ckpt), true);
    kk_checkpoint_close(ckpt);
    c.verifier = 0; /* not said */
    projection_values p = projection_values_of(&c);
    const kk_status st = kk_projection_write(path, &c, &p.values, KK_BF16, err);
    free(p.all);
    return st;
}

static inline void same_config(const kk_projection_config *a, const kk_projection_config *b) {
    assert_int_equal(a->source, b->source);
    assert_int_equal(a->n_taps, b->n_taps);
    assert_memory_equal(a->taps, b->taps, sizeof a->taps);
    assert_true(a->n_in == b->n_in && a->rank == b->rank && a->joint == b->joint);
    assert_true(a->n_layer == b->n_layer && a->hidden == b->hidden);
    assert_memory_equal(&a->draft, &b->draft, sizeof a->draft);
    for (int32_t i = 0; i < KK_MAX_LAYERS; i++) {
        assert_int_equal(a->layer[i].restored, b->layer[i].restored);
        assert_int_equal(a->layer[i].k_eq_v, b->layer[i].k_eq_v);
        assert_int_equal(a->layer[i].n_kv_head, b->layer[i].n_kv_head);
        assert_int_equal(a->layer[i].head_dim, b->layer[i].head_dim);
    }
    assert_true(a->verifier == b->verifier && a->drafter == b->drafter);
}

#endif
