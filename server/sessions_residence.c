/* sessions_residence.c - whether a session's K/V is in memory, in a file, or only to be evaluated
 * again; see sessions_table.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/server.h"
#include "server/sessions_json.h"
#include "server/sessions_table.h"
#include "server/text.h"

/* ---- evaluating -------------------------------------------------------------------------- */

bool sessions_try_again(sessions *t, kk_status st) {
    return st == KK_ENOMEM && t->opts.make_place && t->opts.make_place(t->opts.user);
}

typedef struct {
    sessions_entry *e;
    const sessions_watch *watch;
} progress;

static bool on_progress(void *user, int64_t done, int64_t total) {
    const progress *p = user;
    (void)done;
    (void)total;
    return sessions_goes_on(p->e, p->watch);
}

static bool stopped(fault *f) {
    fault_set(f, 499, NULL, "the call was cancelled");
    f->code = "cancelled";
    return false;
}

bool sessions_evaluate(sessions *t, sessions_entry *e, const int32_t *tokens, size_t n,
                       const sessions_watch *watch, fault *f) {
    progress p = {e, watch};
    kk_err err;
    kk_status st = KK_OK;
    if (n == 0) return true;
    do {
        if (!sessions_goes_on(e, watch)) return stopped(f);
        st = kk_session_append(e->session, tokens, n, on_progress, &p, &err);
    } while (sessions_try_again(t, st));
    if (st == KK_ESTOPPED) return stopped(f);
    return st == KK_OK || fault_from(f, &err);
}

bool sessions_make(sessions *t, sessions_entry *e, fault *f) {
    kk_err err;
    kk_status st;
    do {
        st = kk_session_new(&e->session, t->engine, &e->how.session, &err);
    } while (sessions_try_again(t, st));
    if (st != KK_OK) return fault_from(f, &err);
    sessions_bind(&e->binding, e->id, e->session);
    return true;
}

static void drop_session(sessions_entry *e) {
    kk_session_free(e->session);
    e->session = NULL;
}

/* ---- waking ------------------------------------------------------------------------------ */

static bool lost(fault *f, const char *why) {
    fault_set(f, 500, "session_id", "the stored session is damaged: %s", why);
    f->code = "data_loss";
    return false;
}

/* The turns of a history that was only known by its length.  A journal that lost its end is told of
 * once; the session goes on where it is whole. */
static bool adopt(sessions_entry *e, const journal *j, fault *f) {
    history h;
    char why[96];
    const bool same = (int64_t)j->len == e->history.len &&
                      history_chain(HISTORY_START, j->tokens, j->len) == e->history.chain;
    history_open(&h);
    for (int32_t i = 0; i < j->n_turns; i++) {
        h.len = j->turns[i];
        if (!history_turn(&h)) return fault_set(f, 503, NULL, "out of memory");
    }
    h.len = 0;
    history_add(&h, j->tokens, j->len);
    const int64_t had = e->history.len;
    history_close(&e->history);
    e->history = h;
    if (same) return true;
    snprintf(why, sizeof why, "of %lld tokens the first %zu are left", (long long)had, j->len);
    return lost(f, why);
}

static bool wake_stored(sessions *t, sessions_entry *e, const sessions_watch *watch,
                        int64_t *cached, int64_t *evaluated, fault *f) {
    store_loaded l;
    kk_err err;
    kk_status st;
    do {
        st = store_load(t->opts.store, e->id, &e->how.session, &l, &err);
    } while (sessions_try_again(t, st));
    /* KK_EINVAL: this server was started without what the session needs. */
    if (st == KK_ENOMEM || st == KK_EINVAL) return fault_from(f, &err);
    if (st != KK_OK) return lost(f, err.msg);
    const size_t there = (size_t)kk_session_len(l.session);
    *cached = (int64_t)there - l.evaluated;
    *evaluated = (int64_t)(l.journal.len - there) + l.evaluated;
    e->session = l.session;
    e->kv_stored = (int64_t)there;
    sessions_bind(&e->binding, e->id, e->session);
    const size_t rest = l.journal.len - there; /* newer than the K/V file */
    const bool good = adopt(e, &l.journal, f) &&
                      (!rest || sessions_evaluate(t, e, l.journal.tokens + there, rest, watch, f));
    journal_free(&l.journal);
    if (!good) drop_session(e);
    return good;
}

static bool wake_tokens(sessions *t, sessions_entry *e, const sessions_watch *watch,
                        int64_t *cached, int64_t *evaluated, fault *f) {
    *cached = 0;
    *evaluated = e->history.len;
    if (!sessions_make(t, e, f)) return false;
    if (!sessions_evaluate(t, e, e->tokens, (size_t)e->history.len, watch, f)) {
        drop_session(e);
        return false;
    }
    free(e->tokens);
    e->tokens = NULL;
    return true;
}

bool sessions_wake(sessions *t, sessions_entry *e, const sessions_watch *watch, int64_t *cached,
                   int64_t *evaluated, fault *f) {
    *cached = e->history.len;
    *evaluated = 0;
    if (!e->session) {
        const bool woken = t->opts.store ? wake_stored(t, e, watch, cached, evaluated, f)
                                         : wake_tokens(t, e, watch, cached, evaluated, f);
        if (!woken) return false;
        sessions_bind_position(&e->binding, e->session);
    }
    return sessions_holds(t, e, f);
}

/* ---- leaving memory ---------------------------------------------------------------------- */

/* Where the K/V cannot be saved the tokens are in the journal all the same; the store says so. */
static void save(sessions *t, sessions_entry *e) {
    kk_err err;
    if (e->history.len == 0 || e->kv_stored == e->history.len) return;
    if (store_save(t->opts.store, e->id, e->session, &err) == KK_OK) e->kv_stored = e->history.len;
}

bool sessions_sleep(sessions *t, sessions_entry *e, kk_err *err) {
    fault f;
    const size_t bytes = (size_t)e->history.len * sizeof *e->tokens;
    if (!e->session) return true;
    if (!sessions_holds(t, e, &f)) {
        drop_session(e); /* nothing of it is to be kept */
        return false;
    }
    if (t->opts.store) {
        save(t, e);
    } else {
        e->tokens = malloc(bytes + 1);
        if (!e->tokens) return server_fail(err, KK_ENOMEM, "no memory for a history") == KK_OK;
        if (bytes) memcpy(e->tokens, kk_session_tokens(e->session), bytes);
    }
    drop_session(e);
    return true;
}

/* The one in memory that was not used for longest, taken for the caller if it was not used since
 * `before`; NULL: there is none.  *used: when it was. */
static sessions_entry *oldest(sessions *t, double before, bool take, double *used) {
    sessions_entry *best = NULL;
    pthread_mutex_lock(&t->lock);
    for (sessions_entry *e = t->first; e; e = e->next)
        if (!e->busy && e->session && e->used < before && (!best || e->used < best->used)) best = e;
    if (best && take) best->busy = best->leaving = true;
    *used = best ? best->used : INFINITY;
    pthread_mutex_unlock(&t->lock);
    return best;
}

double sessions_oldest(sessions *t) {
    double used;
    oldest(t, INFINITY, false, &used);
    return used;
}

static bool evict(sessions *t, double before) {
    double used;
    sessions_entry *e = oldest(t, before, true, &used);
    if (!e) return false;
    const bool slept = sessions_sleep(t, e, NULL) || e->broken;
    sessions_release_at(t, e, used); /* it was not used: it went */
    return slept;
}

bool sessions_evict_oldest(sessions *t) { return evict(t, INFINITY); }

int sessions_evict_idle(sessions *t, double seconds) {
    const double start = text_now();
    int n = 0;
    while (evict(t, text_now() - seconds)) {
        n++;
        /* What sweeps has other work too; the rest goes with the next sweep. */
        if (seconds >= 0 && text_now() - start > SWEEP_S) break;
    }
    return n;
}

/* ---- the store --------------------------------------------------------------------------- */

static bool unstored(fault *f, const kk_err *err) {
    fault_set(f, 503, NULL, "it could not be stored: %s", err->msg);
    f->code = "storage_failed";
    f->retry_s = 5;
    return false;
}

bool sessions_store_turn(sessions *t, sessions_entry *e, const int32_t *all, size_t n, bool ends,
                         fault *f) {
    const int64_t at = kk_session_len(e->session) - (int64_t)n;
    const journal_turn turn = {
        .at = at, .tokens = all + at, .n = n, .flags = ends ? JOURNAL_ENDS_TURN : 0};
    kk_err err;
    if (!t->opts.store || n == 0) return true;
    return store_turn(t->opts.store, e->id, &turn, all, &err) == KK_OK || unstored(f, &err);
}

/* A record for each turn of the history, and one for what follows the last. */
static kk_status store_history(sessions *t, sessions_entry *e, kk_err *err) {
    const int32_t *all = e->session ? kk_session_tokens(e->session) : NULL;
    kk_status st = KK_OK;
    int64_t at = 0;
    for (int32_t i = 0; i <= e->history.n_turns && st == KK_OK; i++) {
        const bool ends = i < e->history.n_turns;
        const int64_t to = ends ? e->history.turns[i] : e->history.len;
        const journal_turn turn = {.at = at,
                                   .tokens = all + at,
                                   .n = (size_t)(to - at),
                                   .flags = ends ? JOURNAL_ENDS_TURN : 0};
        if (to > at) st = store_turn(t->opts.store, e->id, &turn, all, err);
        at = to;
    }
    return st;
}

bool sessions_store_entry(sessions *t, sessions_entry *e, fault *f) {
    kk_err err;
    if (!t->opts.store) return true;
    char *meta = sessions_how_text(&e->how);
    if (!meta) return fault_set(f, 503, NULL, "out of memory");
    kk_status st = store_add(t->opts.store, STORE_SESSION, e->id, meta, &err);
    free(meta);
    if (st != KK_OK) return unstored(f, &err);
    st = store_history(t, e, &err);
    if (st == KK_OK) return true;
    store_remove(t->opts.store, e->id);
    return unstored(f, &err);
}

static bool from_row(void *user, const catalog_row *row) {
    sessions *t = user;
    sessions_entry *e = calloc(1, sizeof *e);
    if (!e) return false;
    sessions_standard(t, &e->how);
    sessions_how_parse(row->meta, t->opts.info.vocab, &e->how);
    memcpy(e->id, row->id, sizeof e->id);
    history_open(&e->history);
    e->history.len = row->tokens;
    e->history.chain = row->chain;
    e->created = row->created;
    e->kv_stored = row->kv_tokens;
    e->used = text_now() - (double)(time(NULL) - row->used);
    e->shown = (sessions_info){.history = row->tokens,
                               .turns = row->turns,
                               .stored = row->kv_tokens > 0,
                               .created = row->created,
                               .session = e->how.session,
                               .sampling = e->how.sampling,
                               .context = e->how.session.ctx};
    memcpy(e->shown.id, e->id, sizeof e->id);
    memcpy(e->shown.label, e->how.label, sizeof e->how.label);
    e->next = t->first;
    t->first = e;
    t->count++;
    return true;
}

kk_status sessions_from_store(sessions *t, kk_err *err) {
    return store_each(t->opts.store, STORE_SESSION, from_row, t, err);
}
