/* sessions_table.c - see sessions_table.h. */
#define _GNU_SOURCE
#include "server/sessions_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/text.h"

/* ---- entries ----------------------------------------------------------------------------- */

/* The caller holds the lock. */
static sessions_entry *find(sessions *t, const char *id) {
    for (sessions_entry *e = t->first; e; e = e->next)
        if (strcmp(e->id, id) == 0) return e;
    return NULL;
}

static void no_session(fault *f, const char *id) {
    fault_set(f, 404, "session_id", "there is no session '%.60s'", id);
    f->code = "session_not_found";
}

/* What others may read while it is in use.  The caller has the entry, and holds the lock. */
static void show(sessions_entry *e) {
    kk_cache_use use = {0};
    if (e->session) kk_session_cache(e->session, &use);
    sessions_info *i = &e->shown;
    i->history = e->history.len;
    if (e->session) i->turns = e->history.n_turns; /* else they are in the journal alone */
    i->kv_bytes = use.kv_bytes;
    i->kv_tokens = use.rows;
    i->resident = e->session != NULL;
    i->stored = e->kv_stored > 0;
    i->busy = e->busy;
}

sessions_entry *sessions_add(sessions *t, const sessions_how *how, fault *f) {
    sessions_entry *e = calloc(1, sizeof *e);
    /* Without a source of random bytes there is no id: one that can be guessed is an open door. */
    if (!e || !store_draw_id(e->id, "sess-")) {
        fault_set(f, 503, NULL, e ? "no random bytes for an id" : "out of memory");
        free(e);
        return NULL;
    }
    e->how = *how;
    e->created = (int64_t)time(NULL);
    e->used = text_now();
    e->busy = true;
    history_open(&e->history);
    e->shown = (sessions_info){.created = e->created,
                               .session = how->session,
                               .sampling = how->sampling,
                               .context = how->session.ctx};
    memcpy(e->shown.id, e->id, sizeof e->id);
    memcpy(e->shown.label, how->label, sizeof how->label);
    pthread_mutex_lock(&t->lock);
    const bool full = t->count >= t->opts.most;
    if (!full) {
        e->next = t->first;
        t->first = e;
        t->count++;
    }
    pthread_mutex_unlock(&t->lock);
    if (!full) return e;
    free(e);
    fault_set(f, 429, NULL, "there are %d sessions already: delete one", (int)t->opts.most);
    f->code = "too_many_sessions";
    f->retry_s = 5;
    return NULL;
}

void sessions_show_made(sessions *t, sessions_entry *e) {
    pthread_mutex_lock(&t->lock);
    e->shown.session = e->how.session;
    e->shown.context = kk_session_ctx(e->session);
    pthread_mutex_unlock(&t->lock);
}

static void entry_free(sessions_entry *e) {
    kk_session_free(e->session);
    free(e->tokens);
    history_close(&e->history);
    free(e);
}

void sessions_remove(sessions *t, sessions_entry *e) {
    pthread_mutex_lock(&t->lock);
    for (sessions_entry **at = &t->first; *at; at = &(*at)->next)
        if (*at == e) {
            *at = e->next;
            t->count--;
            break;
        }
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    entry_free(e);
}

sessions_entry *sessions_acquire(sessions *t, const char *id, fault *f) {
    pthread_mutex_lock(&t->lock);
    sessions_entry *e;
    while ((e = find(t, id)) != NULL && e->leaving) pthread_cond_wait(&t->changed, &t->lock);
    const bool busy = e && e->busy;
    const int broken = e ? e->broken : 0;
    if (e && !busy && !broken) e->busy = e->shown.busy = true;
    pthread_mutex_unlock(&t->lock);
    if (!e) no_session(f, id);
    if (busy) {
        fault_set(f, 409, "session_id", "the session is in use by another call");
        f->code = "session_busy";
    } else if (broken) {
        fault_set(f, 500, "session_id", "the session broke INV-%d and is only to be deleted",
                  broken);
        f->code = "invariant_violation";
    }
    return e && !busy && !broken ? e : NULL;
}

/* What a fork begins with was counted where it was made.  The caller holds the lock. */
static void count_rows(sessions *t, sessions_entry *e) {
    const kv_rows now =
        e->session ? rows_of(e->session) : rows_evicted(&e->how.session, e->history.len);
    if (e->counted && e->session) rows_add(&t->rows, e->rows, now);
    e->rows = now;
    e->counted = true;
}

void sessions_release(sessions *t, sessions_entry *e) { sessions_release_at(t, e, text_now()); }

void sessions_release_at(sessions *t, sessions_entry *e, double used) {
    pthread_mutex_lock(&t->lock);
    e->used = used;
    e->busy = e->leaving = false;
    count_rows(t, e);
    show(e);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

bool sessions_goes_on(sessions_entry *e, const sessions_watch *watch) {
    return !atomic_load(&e->cancelled) &&
           (!watch || !watch->goes_on || watch->goes_on(watch->user));
}

/* ---- invariants -------------------------------------------------------------------------- */

bool sessions_holds(sessions *t, sessions_entry *e, fault *f) {
    char why[256];
    const sessions_state state = {.id = e->id,
                                  .session = e->session,
                                  .history = &e->history,
                                  .binding = &e->binding,
                                  .session_opts = &e->how.session,
                                  .info = &t->opts.info};
    const int inv = sessions_check(&state, why, sizeof why);
    if (inv == 0) return true;
    pthread_mutex_lock(&t->lock);
    e->broken = inv;
    e->shown.violations[inv - 1]++;
    t->violations[inv - 1]++;
    pthread_mutex_unlock(&t->lock);
    if (t->opts.violated) t->opts.violated(t->opts.user, e->id, inv, why);
    fault_set(f, 500, "session_id", "INV-%d does not hold: %s", inv, why);
    f->code = "invariant_violation";
    return false;
}

/* ---- reading ----------------------------------------------------------------------------- */

static int64_t dropped_tokens(const kk_session_opts *o, int64_t len) {
    if (o->kv_full != KK_KEEP_WINDOW || o->chunk < 1) return 0;
    const int64_t sink = o->sink > 0 ? o->sink : 0, window = o->window > 0 ? o->window : 0;
    const int64_t dropped = len / o->chunk * o->chunk - window - sink;
    return dropped > 0 ? dropped : 0;
}

static sessions_info info_of(const sessions_entry *e) {
    sessions_info i = e->shown;
    i.dropped = dropped_tokens(&i.session, i.history);
    i.busy = e->busy;
    i.idle_s = e->busy ? 0 : text_now() - e->used;
    return i;
}

bool sessions_describe(sessions *t, const char *id, sessions_info *out, fault *f) {
    pthread_mutex_lock(&t->lock);
    const sessions_entry *e = find(t, id);
    if (e) *out = info_of(e);
    pthread_mutex_unlock(&t->lock);
    if (!e) no_session(f, id);
    return e != NULL;
}

bool sessions_list(sessions *t, sessions_info **out, size_t *n, fault *f) {
    *n = 0;
    pthread_mutex_lock(&t->lock);
    *out = calloc((size_t)t->count + 1, sizeof **out);
    for (const sessions_entry *e = t->first; e && *out; e = e->next) (*out)[(*n)++] = info_of(e);
    pthread_mutex_unlock(&t->lock);
    return *out || fault_set(f, 503, NULL, "out of memory");
}

void sessions_count(sessions *t, sessions_totals *out) {
    *out = (sessions_totals){0};
    pthread_mutex_lock(&t->lock);
    out->count = t->count;
    for (const sessions_entry *e = t->first; e; e = e->next) {
        out->resident += e->shown.resident;
        out->kv_bytes += e->shown.kv_bytes;
    }
    out->rows = t->rows;
    memcpy(out->violations, t->violations, sizeof out->violations);
    pthread_mutex_unlock(&t->lock);
}

bool sessions_delete(sessions *t, const char *id, int64_t *len, fault *f) {
    pthread_mutex_lock(&t->lock);
    sessions_entry *e = find(t, id);
    if (e) atomic_store(&e->cancelled, true);
    while (e && e->busy) {
        pthread_cond_wait(&t->changed, &t->lock);
        e = find(t, id); /* another call may have deleted it meanwhile */
    }
    if (e) e->busy = true;
    pthread_mutex_unlock(&t->lock);
    if (!e) {
        no_session(f, id);
        return false;
    }
    if (len) *len = e->history.len;
    if (t->opts.store) store_remove(t->opts.store, e->id);
    sessions_remove(t, e);
    return true;
}

void sessions_close(sessions *t) {
    if (!t) return;
    while (t->first) {
        sessions_entry *e = t->first;
        t->first = e->next;
        entry_free(e);
    }
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
