/* slots.c - see slots.h. */
#include "server/slots.h"

#include "server/server.h"

void slot_begin(worker_slot *s, long long task) {
    if (!s) return;
    slot_prompt(s, 0, 0, 0);
    atomic_store(&s->written, 0);
    atomic_store(&s->task, task);
    atomic_store(&s->runs, true);
}

void slot_end(worker_slot *s) {
    if (s) atomic_store(&s->runs, false);
}

void slot_prompt(worker_slot *s, long long prompt, long long cached, long long most) {
    if (!s) return;
    atomic_store(&s->prompt, prompt);
    atomic_store(&s->cached, cached);
    atomic_store(&s->most, most);
    atomic_store(&s->read, 0);
}

void slot_read(worker_slot *s, long long tokens) {
    if (s) atomic_store(&s->read, tokens);
}

void slot_wrote(worker_slot *s) {
    if (s) atomic_fetch_add_explicit(&s->written, 1, memory_order_relaxed);
}

static json_t *next_token(worker_slot *s, bool runs) {
    const long long most = atomic_load(&s->most), written = atomic_load(&s->written);
    const long long left = most > written ? most - written : 0;
    return json_pack("{s:b, s:I, s:I}", "has_next_token", runs && (most == 0 || left > 0),
                     "n_remain", (json_int_t)(most > 0 ? left : -1), "n_decoded",
                     (json_int_t)written);
}

static json_t *one(const server *s, worker_slot *of, int id) {
    const bool runs = atomic_load(&of->runs);
    json_t *o = json_pack("{s:i, s:i, s:b, s:b}", "id", id, "n_ctx", (int)s->session.ctx,
                          "speculative", s->session.spec != KK_SPEC_NONE, "is_processing", runs);
    if (atomic_load(&of->task) == 0) return o;
    json_t *more =
        json_pack("{s:I, s:I, s:I, s:I, s:[o]}", "id_task", (json_int_t)atomic_load(&of->task),
                  "n_prompt_tokens", (json_int_t)atomic_load(&of->prompt), "n_prompt_tokens_cache",
                  (json_int_t)atomic_load(&of->cached), "n_prompt_tokens_processed",
                  (json_int_t)atomic_load(&of->read), "next_token", next_token(of, runs));
    json_object_update_missing(o, more);
    json_decref(more);
    return o;
}

json_t *slots_json(server *s, int *idle) {
    json_t *list = json_array();
    *idle = 0;
    for (int i = 0; i < s->opts->parallel; i++) {
        *idle += !atomic_load(&s->workers.slots[i].runs);
        json_array_append_new(list, one(s, &s->workers.slots[i], i));
    }
    return list;
}
