/* bench_device.c - what the bench asks of the device itself: bandwidth, memory, the time of one
 * forward, and which experts its rows chose. */
#include <string.h>

#include "core/clock.h"
#include "engine/machine.h"
#include "engine/session.h"
#include "eval/measure/bench_parts.h"

static const int64_t large = (int64_t)4 << 30;    /* no cache holds this */
static const int64_t shared = (int64_t)512 << 20; /* of memory that it shares with the CPU */
static const int64_t even = (int64_t)32 << 20;

bool kk_bench_is_remote(const kk_engine *e) { return e->backend->own_memory; }
double kk_bench_copy_s(const kk_engine *e) { return e->copy_s; }

double kk_bench_read_s(const kk_bench_opts *o) { return o->read_s > 0 ? o->read_s : 1; }

kk_status kk_bench_read_rate(kk_engine *e, int64_t bytes, double seconds, double *out,
                             kk_err *err) {
    const kk_instruments *with = e->backend->instruments;
    kk_dev_facts facts;
    e->backend->describe(e->dev, &facts);
    if (!with->read_rate) return kk_measure_read(facts.threads, bytes, seconds, out, err);
    if (bytes == 0) bytes = large;
    const int64_t most = facts.memory.free > 0 ? facts.memory.free / 2 : shared;
    if (bytes > most) bytes = most;
    bytes = (bytes + even - 1) / even * even;
    kk_engine_lock(e);
    const kk_status st = with->read_rate(e->dev, (size_t)bytes, out, err);
    kk_engine_unlock(e);
    return st;
}

void kk_bench_device_memory(kk_engine *e, kk_bench_result *out) {
    kk_dev_facts facts;
    if (!e->backend->own_memory) return;
    kk_engine_lock(e);
    e->backend->describe(e->dev, &facts);
    kk_engine_unlock(e);
    const int64_t over = facts.memory.taken - facts.memory.weights;
    out->device_total = facts.memory.total;
    if (over > out->device_over_weights) out->device_over_weights = over;
}

/* ---- one forward -------------------------------------------------------------------------- */

/* With the logits of all rows where the head costs what it reads, as on a GPU, and of the last one
 * elsewhere.  Nothing is committed. */
static kk_status forward(kk_session *s, const int32_t *ids, int32_t rows,
                         const kk_gemma4_watch *watch, kk_err *err) {
    kk_engine *e = s->engine;
    const bool all = e->backend->queues;
    const kk_gemma4_group g = {.cache = s->cache,
                               .layout = s->layout,
                               .tokens = ids,
                               .n_rows = rows,
                               .n_logits = all && rows <= e->rounds.max_logits ? rows : 1};
    const kk_gemma4_forward_args args = {
        .groups = &g, .n_groups = 1, .watch = watch, .restorer = e->restorer};
    KK_TRY(kk_cache_reserve(s->cache, rows, err));
    KK_TRY(kk_gemma4_forward(e->model, &args, err));
    return e->backend->instruments->sync(e->dev, err);
}

kk_status kk_bench_forward(kk_session *s, const int32_t *ids, int32_t rows, double *seconds,
                           kk_err *err) {
    kk_engine_lock(s->engine);
    const double from = kk_now();
    const kk_status st = forward(s, ids, rows, NULL, err);
    *seconds = kk_now() - from;
    kk_cache_commit(s->cache, kk_cache_len(s->cache));
    kk_engine_unlock(s->engine);
    return st;
}

/* ---- experts ------------------------------------------------------------------------------ */

typedef struct {
    kk_gemma4 *model;
    int32_t rows, n_used;
    int32_t *chosen; /* [rows][n_used] */
    bool *used;      /* [n_expert] */
    int32_t n_expert;
    int64_t distinct; /* over all layers so far */
} census;

static kk_status count(census *c, kk_err *err) {
    KK_TRY(kk_gemma4_experts(c->model, c->chosen, err));
    memset(c->used, 0, (size_t)c->n_expert * sizeof *c->used);
    for (int32_t i = 0; i < c->rows * c->n_used; i++) {
        const int32_t e = c->chosen[i];
        if (e < 0 || e >= c->n_expert)
            return kk_fail(err, KK_EDEVICE, "a row chose expert %d of %d", e, c->n_expert);
        c->distinct += !c->used[e];
        c->used[e] = true;
    }
    return KK_OK;
}

/* When a layer's queries are made, the choice of the layer before it is still there. */
static kk_status on_part(void *user, int32_t layer, kk_layer_part part, const kk_buf *rows,
                         int32_t n_rows, int32_t width, kk_err *err) {
    (void)rows, (void)n_rows, (void)width;
    return part == KK_PART_Q && layer > 0 ? count(user, err) : KK_OK;
}

static kk_status take_census(census *c, kk_session *s, const int32_t *ids, kk_err *err) {
    const kk_gemma4_watch watch = {on_part, c};
    c->chosen = kk_calloc((size_t)(c->rows * c->n_used), sizeof *c->chosen);
    c->used = kk_calloc((size_t)c->n_expert, sizeof *c->used);
    if (!c->chosen || !c->used) return kk_fail(err, KK_ENOMEM, "no memory to count experts");
    kk_engine_lock(s->engine);
    kk_status st = forward(s, ids, c->rows, &watch, err);
    if (st == KK_OK) st = count(c, err); /* of the last layer */
    kk_cache_commit(s->cache, kk_cache_len(s->cache));
    kk_engine_unlock(s->engine);
    return st;
}

/* Bytes of one expert's matrices in one layer. */
static int64_t expert_bytes(const kk_engine *e) {
    static const char *const names[] = {"layers.0.experts.gate_up_proj",
                                        "layers.0.experts.gate_proj", "layers.0.experts.up_proj",
                                        "layers.0.experts.down_proj"};
    int64_t (*stored)(kk_dtype, int64_t) = e->backend->instruments->stored;
    int64_t all = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const kk_tensor *t = kk_checkpoint_find(e->checkpoint, names[i]);
        if (t) all += stored ? stored(t->dtype, kk_tensor_values(t)) : (int64_t)kk_tensor_bytes(t);
    }
    return all / kk_engine_config(e)->n_expert;
}

kk_status kk_bench_experts(kk_session *s, const int32_t *ids, int32_t rows, kk_bench_pass *out,
                           kk_err *err) {
    const kk_config *c = kk_engine_config(s->engine);
    int64_t (*stored)(kk_dtype, int64_t) = s->engine->backend->instruments->stored;
    if (c->n_expert == 0) return KK_OK;
    census all = {.model = s->engine->model,
                  .rows = rows,
                  .n_used = c->n_expert_used,
                  .n_expert = c->n_expert};
    const kk_status st = take_census(&all, s, ids, err);
    kk_free(all.chosen);
    kk_free(all.used);
    if (st != KK_OK) return st;
    const int64_t more = all.distinct - (int64_t)c->n_layer * c->n_expert_used;
    out->experts = (double)all.distinct / c->n_layer;
    out->bytes =
        kk_checkpoint_token_bytes(s->engine->checkpoint, stored) + more * expert_bytes(s->engine);
    return KK_OK;
}
