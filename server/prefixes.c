/* prefixes.c - see prefixes.h.
 *
 * Sessions are compared one after the other: there are tens of them, and a comparison ends at the
 * first token that differs. */
#include "server/prefixes.h"

#include <pthread.h>
#include <stdlib.h>

#include "server/server.h"

/* Tokens in common below which a session of its own is cheaper than sharing pages. */
enum { WORTH_SHARING = 16 };

typedef struct {
    kk_session *session;
    int32_t prompt; /* tokens that make it this conversation */
    uint64_t used;  /* the clock when it was kept */
    uint64_t number;
} kept;

struct prefixes {
    kk_engine *engine;
    prefixes_opts opts;
    pthread_mutex_t lock;
    kept *kept; /* [opts.most] */
    int32_t n;
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
static kk_session *remove_at(prefixes *p, int32_t i) {
    kk_session *s = p->kept[i].session;
    p->kept[i] = p->kept[--p->n];
    return s;
}

static int32_t oldest(const prefixes *p) {
    int32_t at = 0;
    for (int32_t i = 1; i < p->n; i++)
        if (p->kept[i].used < p->kept[at].used) at = i;
    return at;
}

bool prefixes_drop_oldest(prefixes *p) {
    pthread_mutex_lock(&p->lock);
    kk_session *s = p->n > 0 ? remove_at(p, oldest(p)) : NULL;
    pthread_mutex_unlock(&p->lock);
    if (!s) return false;
    kk_session_free(s); /* outside of the lock: it gives back pages under the engine's */
    if (p->opts.on_drop) p->opts.on_drop(p->opts.user, 1);
    return true;
}

static int64_t kv_bytes(const prefixes *p) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(p->engine, bytes);
    return bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_DRAFTER] +
           bytes[KK_MEM_KV_LATENTS];
}

static void keep_within_limits(prefixes *p) {
    while (p->opts.kv_bytes > 0 && kv_bytes(p) > p->opts.kv_bytes && prefixes_drop_oldest(p)) {
    }
}

int32_t prefixes_count(prefixes *p) {
    pthread_mutex_lock(&p->lock);
    const int32_t n = p->n;
    pthread_mutex_unlock(&p->lock);
    return n;
}

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

/* The last checkpoint at or before len; 0: the start. */
static int32_t checkpoint_before(const kk_session *s, int32_t len) {
    const int32_t n = kk_session_checkpoints(s, NULL, 0);
    int32_t *at = n > 0 ? calloc((size_t)n, sizeof *at) : NULL;
    int32_t best = 0;
    if (!at) return 0;
    kk_session_checkpoints(s, at, n);
    for (int32_t i = 0; i < n; i++)
        if (at[i] <= len && at[i] > best) best = at[i];
    free(at);
    return best;
}

/* Where to go back to so that little is evaluated inside the call that goes back, for that can
 * neither be stopped nor watched: beyond the window the last checkpoint, from which the caller
 * appends as any prompt. */
static int32_t point_before(const prefixes *p, const kk_session *s, int32_t len) {
    if (kk_session_len(s) - len < p->opts.window / 2) return len;
    const int32_t at = checkpoint_before(s, len);
    return len - at <= 64 ? len : at;
}

/* ---- taking and keeping ------------------------------------------------------------------ */

/* Under the lock: a kept session is touched by nobody else.  out->session stays NULL when none
 * serves. */
static kk_status find(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                      kk_err *err) {
    const int32_t i = longest(p, tokens, n - 1, &out->parts); /* the last is evaluated anyway */
    if (i < 0) return KK_OK;
    kk_session *s = p->kept[i].session;
    out->len = point_before(p, s, out->parts);
    if (out->len == 0 || out->parts < WORTH_SHARING) return KK_OK;
    if (out->parts < p->kept[i].prompt) {
        p->kept[i].used = ++p->clock;
        return kk_session_fork_at(&out->session, s, out->len, &out->evaluated, err);
    }
    remove_at(p, i);
    const kk_status st = kk_session_rewind(s, out->len, &out->evaluated, err);
    if (st == KK_OK)
        out->session = s;
    else
        kk_session_free(s);
    return st;
}

kk_status prefixes_take(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                        kk_err *err) {
    *out = (prefixes_found){.session = NULL};
    pthread_mutex_lock(&p->lock);
    kk_status st = find(p, tokens, n, out, err);
    pthread_mutex_unlock(&p->lock);
    if (out->session) return KK_OK;
    out->len = out->evaluated = 0;
    do {
        st = kk_session_new(&out->session, p->engine, &p->opts.session, err);
    } while (st == KK_ENOMEM && prefixes_drop_oldest(p));
    return st;
}

static uint64_t add(prefixes *p, kk_session *s, int32_t prompt) {
    while (prefixes_count(p) >= p->opts.most && prefixes_drop_oldest(p)) {
    }
    pthread_mutex_lock(&p->lock);
    uint64_t number = 0;
    if (p->n < p->opts.most) {
        number = ++p->clock;
        p->kept[p->n++] = (kept){.session = s, .prompt = prompt, .used = number, .number = number};
    }
    pthread_mutex_unlock(&p->lock);
    return number;
}

uint64_t prefixes_stand_in(prefixes *p, kk_session *s) {
    kk_session *fork;
    if (kk_session_fork(&fork, s, NULL) != KK_OK) return 0;
    /* Whoever needs it forks it again: it is to stay until its session comes back. */
    const uint64_t number = add(p, fork, INT32_MAX);
    if (!number) kk_session_free(fork);
    return number;
}

static void drop_numbered(prefixes *p, uint64_t number) {
    kk_session *s = NULL;
    pthread_mutex_lock(&p->lock);
    for (int32_t i = 0; i < p->n && !s; i++)
        if (p->kept[i].number == number) s = remove_at(p, i);
    pthread_mutex_unlock(&p->lock);
    kk_session_free(s);
}

void prefixes_keep(prefixes *p, kk_session *s, int32_t prompt, uint64_t stand_in) {
    if (s && !add(p, s, prompt)) kk_session_free(s);
    if (stand_in) drop_numbered(p, stand_in);
    keep_within_limits(p);
}
