/* stats.c - see stats.h. */
#include "server/stats.h"

static json_t *memory_json(const metrics_now *now) {
    json_t *o = json_object();
    for (int c = 0; now->ready && c < KK_MEM_CATEGORIES; c++)
        json_object_set_new(o, kk_mem_category_name((kk_mem_category)c),
                            json_integer(now->memory[c]));
    return o;
}

static json_t *sessions_json(const metrics_now *now) {
    return json_pack("{s:I, s:I, s:I, s:i}", "held", (json_int_t)now->sessions.count, "resident",
                     (json_int_t)now->sessions.resident, "kv_bytes",
                     (json_int_t)now->sessions.kv_bytes, "kept", now->kept);
}

json_t *stats_json(metrics *m, const metrics_now *now) {
    pthread_mutex_lock(&m->lock);
    json_t *tokens =
        json_pack("{s:I, s:I, s:I}", "prompt", (json_int_t)m->prompt_tokens, "cached",
                  (json_int_t)m->cached_tokens, "generated", (json_int_t)m->generated_tokens);
    json_t *spec = json_pack("{s:I, s:I, s:I}", "rounds", (json_int_t)m->rounds, "drafted",
                             (json_int_t)m->drafted, "accepted", (json_int_t)m->accepted);
    pthread_mutex_unlock(&m->lock);
    return json_pack("{s:b, s:i, s:i, s:o, s:o, s:o, s:o}", "ready", now->ready, "running",
                     now->running, "waiting", now->waiting, "tokens", tokens, "spec", spec,
                     "sessions", sessions_json(now), "memory", memory_json(now));
}
