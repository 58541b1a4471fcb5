/* prefixes.c - see prefixes.h.
 *
 * Sessions are compared one after the other: there are tens of them, and a comparison ends at the
 * first token that differs. */
#include "server/prefixes.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "server/checkpoints.h"
#include "server/server.h"
#include "server/text.h"

/* Tokens in common below which a session of its own is cheaper than sharing pages. */
enum { WORTH_SHARING = 16 };

typedef struct {
    kk_session *session;
    int32_t prompt; /* tokens that make it this conversation */
    uint64_t used;  /* the clock when it was kept */
    double since;   /* text_now() of that */
    uint64_t number;
    char id[JOURNAL_ID]; /* in the store; "": it is not there */
    int64_t journaled;
} kept;

struct prefixes {
    kk_engine *engine;
    prefixes_opts opts;
    pthread_mutex_t lock;
    kept *kept;   /* [opts.most] */
    atomic_int n; /* read without the lock, too: under it a fork may wait for a prompt's chunk */
    uint64_t clock;
};

kk_status prefixes_open(prefixes **out, kk_engine *e, const prefixes_opts *opts, kk_err *err) {
    prefixes *p = *out = calloc(1, sizeof *p);
    if (p) p->kept = calloc((size_t)opts->most, sizeof *p->kept);
    if (!p || !p->kept) {
        free(p);
        *out = NULL;
        return server_fail(err, KK_ENOMEM, "no memory for %d sessions", opts->most);
    }
    p->engine = e;
    p->opts = *opts;
    pthread_mutex_init(&p->lock, NULL);
    return KK_OK;
}

void prefixes_close(prefixes *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->n; i++) kk_session_free(p->kept[i].session);
    pthread_mutex_destroy(&p->lock);
    free(p->kept);
    free(p);
}

/* ---- dropping ---------------------------------------------------------------------------- */

/* Takes entry i out; the caller holds the lock. */
static kept remove_at(prefixes *p, int32_t i) {
    const kept k = p->kept[i];
    p->kept[i] = p->kept[--p->n];
    return k;
}

/* The one that was not used for longest, of those that were not used since; -1: none. */
static int32_t oldest(const prefixes *p, double since, bool stored) {
    int32_t at = -1;
    for (int32_t i = 0; i < p->n; i++)
        if (p->kept[i].since < since && (!stored || p->kept[i].id[0]) &&
            (at < 0 || p->kept[i].used < p->kept[at].used))
            at = i;
    return at;
}

/* Outside of the lock: it writes a file, and gives back pages under the engine's lock. */
static void leave(prefixes *p, kept *k) {
    kk_err err;
    if (k->id[0])
        store_save(p->opts.store, k->id, k->session, &err); /* which says what failed */
    else if (p->opts.on_drop)
        p->opts.on_drop(p->opts.user, 1);
    kk_session_free(k->session);
    if (k->id[0]) store_hold(p->opts.store, k->id, false);
}

static bool evict(prefixes *p, double since, bool stored) {
    kept k = {.session = NULL};
    pthread_mutex_lock(&p->lock);
    const int32_t i = oldest(p, since, stored);
    if (i >= 0) k = remove_at(p, i);
    pthread_mutex_unlock(&p->lock);
    if (i < 0) return false;
    leave(p, &k);
    return true;
}

bool prefixes_evict_oldest(prefixes *p) { return evict(p, INFINITY, false); }

int prefixes_evict_idle(prefixes *p, double seconds) {
    const double start = text_now();
    int n = 0;
    while (evict(p, text_now() - seconds, true)) {
        n++;
        if (seconds >= 0 && text_now() - start > SWEEP_S) break;
    }
    return n;
}

double prefixes_oldest(prefixes *p) {
    pthread_mutex_lock(&p->lock);
    const int32_t i = oldest(p, INFINITY, false);
    const double since = i >= 0 ? p->kept[i].since : INFINITY;
    pthread_mutex_unlock(&p->lock);
    return since;
}

static int64_t kv_bytes(const prefixes *p) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(p->engine, bytes);
    return bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_DRAFTER] +
           bytes[KK_MEM_KV_LATENTS];
}

static void keep_within_limits(prefixes *p) {
    while (p->opts.kv_bytes > 0 && kv_bytes(p) > p->opts.kv_bytes && prefixes_evict_oldest(p)) {
    }
}

int32_t prefixes_count(prefixes *p) { return atomic_load(&p->n); }

/* ---- finding ----------------------------------------------------------------------------- */

static int32_t common(const kk_session *s, const int32_t *tokens, size_t n) {
    const int32_t *held = kk_session_tokens(s);
    const size_t len = (size_t)kk_session_len(s), most = len < n ? len : n;
    size_t i = 0;
    while (i < most && held[i] == tokens[i]) i++;
    return (int32_t)i;
}

/* The one with the longest common prefix, -1: none has any; of equal ones the shortest, from which
 * least is taken away. */
static int32_t longest(const prefixes *p, const int32_t *tokens, size_t n, int32_t *len) {
    int32_t best = -1;
    *len = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const int32_t same = common(p->kept[i].session, tokens, n);
        const bool shorter =
            best >= 0 && same == *len &&
            kk_session_len(p->kept[i].session) < kk_session_len(p->kept[best].session);
        if (same > *len || (same > 0 && shorter)) {
            best = i;
            *len = same;
        }
    }
    return best;
}

/* ---- taking ------------------------------------------------------------------------------ */

/* Under the lock: a kept session is touched by nobody else.  out->session stays NULL when none
 * serves. */
static kk_status find(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                      kk_err *err) {
    const int32_t i = longest(p, tokens, n, &out->parts);
    if (i < 0) return KK_OK;
    kk_session *s = p->kept[i].session;
    out->len = checkpoints_before(s, out->parts, p->opts.window);
    if (out->len == 0 || out->parts < WORTH_SHARING) return KK_OK;
    if (out->parts < p->kept[i].prompt) {
        p->kept[i].used = ++p->clock;
        p->kept[i].since = text_now();
        return kk_session_fork_at(&out->session, s, out->len, &out->evaluated, err);
    }
    const kept k = remove_at(p, i);
    const kk_status st = kk_session_rewind(s, out->len, &out->evaluated, err);
    if (st == KK_OK) {
        out->session = s;
        memcpy(out->id, k.id, sizeof k.id);
        out->journaled = k.journaled < out->parts ? k.journaled : out->parts;
    } else {
        kk_session_free(s);
        if (k.id[0]) store_hold(p->opts.store, k.id, false);
    }
    return st;
}

static int32_t longest_kept(prefixes *p, const int32_t *tokens, size_t n) {
    int32_t len;
    pthread_mutex_lock(&p->lock);
    longest(p, tokens, n, &len);
    pthread_mutex_unlock(&p->lock);
    return len;
}

static size_t same_tokens(const journal *j, const int32_t *tokens, size_t n) {
    size_t i = 0;
    while (i < n && i < j->len && j->tokens[i] == tokens[i]) i++;
    return i;
}

/* A stored conversation that was read: continued, or, where it is another, only its rows are used
 * and it stays as it is. */
static kk_status use_stored(prefixes *p, store_loaded *l, const int32_t *tokens, size_t n,
                            prefixes_found *out, kk_err *err) {
    int32_t evaluated = 0;
    const size_t same = same_tokens(&l->journal, tokens, n);
    const bool continued = (int64_t)same >= l->journal.prompt;
    out->parts = (int32_t)same;
    const int32_t held = common(l->session, tokens, n);
    out->len = checkpoints_before(l->session, held, p->opts.window);
    const kk_status st = kk_session_rewind(l->session, out->len, &evaluated, err);
    if (st != KK_OK) {
        kk_session_free(l->session);
        return st;
    }
    out->session = l->session;
    out->evaluated = l->evaluated + evaluated;
    if (out->evaluated > out->len) out->evaluated = out->len;
    out->journaled = (int64_t)same;
    if (!continued) out->id[0] = '\0';
    return KK_OK;
}

/* The stored conversation whose K/V serves these tokens better than what is in memory. */
static kk_status find_stored(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                             kk_err *err) {
    store_loaded l;
    int64_t kv;
    char id[JOURNAL_ID];
    const int32_t near = longest_kept(p, tokens, n);
    const int64_t same = store_longest(p->opts.store, tokens, n, id, &kv);
    if (same == 0) return KK_OK;
    if (kv <= near && near >= WORTH_SHARING) {
        store_hold(p->opts.store, id, false);
        return KK_OK;
    }
    memcpy(out->id, id, sizeof id);
    kk_status st;
    do {
        st = store_load(p->opts.store, id, &p->opts.session, &l, err);
    } while (st == KK_ENOMEM && prefixes_evict_oldest(p));
    if (st == KK_OK) {
        st = use_stored(p, &l, tokens, n, out, err);
        journal_free(&l.journal);
    }
    if (st != KK_OK) *out = (prefixes_found){.session = NULL};
    if (!out->id[0]) store_hold(p->opts.store, id, false);
    return st;
}

kk_status prefixes_take(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                        kk_err *err) {
    *out = (prefixes_found){.session = NULL};
    /* The last token is evaluated anyway; a prefix that cannot be had is not missed. */
    if (p->opts.store) find_stored(p, tokens, n - 1, out, err);
    if (out->session) return KK_OK;
    pthread_mutex_lock(&p->lock);
    find(p, tokens, n - 1, out, err);
    pthread_mutex_unlock(&p->lock);
    if (out->session) return KK_OK;
    out->len = out->evaluated = 0;
    kk_status st;
    do {
        st = kk_session_new(&out->session, p->engine, &p->opts.session, err);
    } while (st == KK_ENOMEM && prefixes_evict_oldest(p));
    return st;
}

/* ---- keeping ----------------------------------------------------------------------------- */

/* The index finds prefixes of whole blocks: what has none is not worth a file. */
static bool name_conversation(prefixes *p, prefixes_found *f) {
    kk_err err;
    if (f->id[0]) return true;
    if (kk_session_len(f->session) < CATALOG_BLOCK || !store_draw_id(f->id, "conv-")) return false;
    f->journaled = 0;
    store_hold(p->opts.store, f->id, true);
    if (store_add(p->opts.store, STORE_CONVERSATION, f->id, "{}", &err) == KK_OK) return true;
    store_hold(p->opts.store, f->id, false);
    f->id[0] = '\0';
    return false;
}

void prefixes_journal(prefixes *p, prefixes_found *f, int32_t prompt) {
    kk_err err;
    if (!p->opts.store || !f->session || !name_conversation(p, f)) return;
    const int64_t len = kk_session_len(f->session);
    const int32_t *all = kk_session_tokens(f->session);
    if (f->journaled > len) f->journaled = len;
    if (f->journaled == len) return;
    const journal_turn turn = {.at = f->journaled,
                               .tokens = all + f->journaled,
                               .n = (size_t)(len - f->journaled),
                               .flags = JOURNAL_ENDS_TURN,
                               .prompt = prompt};
    if (store_turn(p->opts.store, f->id, &turn, all, &err) == KK_OK) f->journaled = len;
}

static uint64_t add(prefixes *p, const prefixes_found *f, int32_t prompt) {
    while (prefixes_count(p) >= p->opts.most && prefixes_evict_oldest(p)) {
    }
    pthread_mutex_lock(&p->lock);
    uint64_t number = 0;
    if (p->n < p->opts.most) {
        number = ++p->clock;
        kept *k = &p->kept[p->n++];
        *k = (kept){.session = f->session,
                    .prompt = prompt,
                    .used = number,
                    .since = text_now(),
                    .number = number,
                    .journaled = f->journaled};
        memcpy(k->id, f->id, sizeof k->id);
    }
    pthread_mutex_unlock(&p->lock);
    return number;
}

uint64_t prefixes_stand_in(prefixes *p, kk_session *s) {
    prefixes_found fork = {.session = NULL};
    if (kk_session_fork(&fork.session, s, NULL) != KK_OK) return 0;
    /* Whoever needs it forks it again: it is to stay until its session comes back. */
    const uint64_t number = add(p, &fork, INT32_MAX);
    if (!number) kk_session_free(fork.session);
    return number;
}

static void drop_numbered(prefixes *p, uint64_t number) {
    kk_session *s = NULL;
    pthread_mutex_lock(&p->lock);
    for (int32_t i = 0; i < p->n && !s; i++)
        if (p->kept[i].number == number) s = remove_at(p, i).session;
    pthread_mutex_unlock(&p->lock);
    kk_session_free(s);
}

void prefixes_keep(prefixes *p, prefixes_found *f, int32_t prompt, uint64_t stand_in) {
    prefixes_journal(p, f, prompt);
    if (f->session && !add(p, f, prompt)) {
        kk_session_free(f->session);
        if (f->id[0]) store_hold(p->opts.store, f->id, false);
    }
    if (stand_in) drop_numbered(p, stand_in);
    keep_within_limits(p);
}
