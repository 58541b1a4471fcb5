/* residence.c - see residence.h. */
#include "server/residence.h"

#include "server/server.h"

bool residence_make_place(server *s) {
    const bool sessions_first = sessions_oldest(s->sessions) < prefixes_oldest(s->prefixes);
    return (sessions_first && sessions_evict_oldest(s->sessions)) ||
           prefixes_evict_oldest(s->prefixes) ||
           (!sessions_first && sessions_evict_oldest(s->sessions));
}

static int64_t kv_bytes(const server *s) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(s->engine, bytes);
    return bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_DRAFTER] +
           bytes[KK_MEM_KV_LATENTS];
}

void residence_sweep(server *s) {
    const int64_t limit = s->opts->kv_bytes;
    if (s->store) {
        sessions_evict_idle(s->sessions, s->opts->idle_session_s);
        prefixes_evict_idle(s->prefixes, s->opts->idle_session_s);
    }
    const double until = text_now() + SWEEP_S;
    while (limit > 0 && text_now() < until && kv_bytes(s) > limit && residence_make_place(s)) {
    }
}

void residence_end(server *s) {
    if (!s->store || !s->sessions) return;
    const int n = sessions_evict_idle(s->sessions, -1) + prefixes_evict_idle(s->prefixes, -1);
    if (n > 0) server_say(s, "state: %d sessions in memory went to %s", n, s->opts->state);
}
