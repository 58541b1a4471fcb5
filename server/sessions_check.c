/* sessions_check.c - see sessions_check.h. */
#include "server/sessions_check.h"

#include <stdio.h>
#include <string.h>

enum { PAGE = 64 }; /* rows of a page of K/V */

void sessions_bind(sessions_binding *b, const char *id, const kk_session *s) {
    *b = (sessions_binding){.session = s, .position = kk_session_len(s)};
    snprintf(b->id, sizeof b->id, "%s", id);
}

void sessions_bind_position(sessions_binding *b, const kk_session *s) {
    if (kk_session_len(s) > b->position) b->position = kk_session_len(s);
}

/* ---- INV-1 ------------------------------------------------------------------------------- */

static bool same_history(const sessions_state *s, char *why, size_t cap) {
    const int64_t len = kk_session_len(s->session);
    kk_cache_use use;
    kk_session_cache(s->session, &use);
    if (len != s->history->len) {
        snprintf(why, cap, "the cache stands for %lld tokens, the history has %lld", (long long)len,
                 (long long)s->history->len);
        return false;
    }
    if (use.rows != len && use.rows != len - 1) {
        snprintf(why, cap, "the cache holds %lld rows of %lld tokens", (long long)use.rows,
                 (long long)len);
        return false;
    }
    if (history_chain(HISTORY_START, kk_session_tokens(s->session), (size_t)len) ==
        s->history->chain)
        return true;
    snprintf(why, cap, "the cache was made of other tokens than the history's");
    return false;
}

/* ---- INV-2 ------------------------------------------------------------------------------- */

static bool bound_here(const sessions_state *s, char *why, size_t cap) {
    if (strcmp(s->binding->id, s->id) != 0 || s->binding->session != s->session) {
        snprintf(why, cap, "the cache belongs to session %s", s->binding->id);
        return false;
    }
    if (kk_session_len(s->session) >= s->binding->position) return true;
    snprintf(why, cap, "the cache went back from %lld tokens to %d",
             (long long)s->binding->position, kk_session_len(s->session));
    return false;
}

/* ---- INV-3 ------------------------------------------------------------------------------- */

/* Bits of a stored value against bf16's 16, in 1/64ths, rounded up. */
static int64_t sixty_fourths(kk_kv_format f) {
    switch (f) {
    case KK_KV_F32: return 128;
    case KK_KV_Q8: return 34;
    case KK_KV_Q4: return 18;
    case KK_KV_S8: return 33;
    default: return 64;
    }
}

/* Rows that layers of a kind may hold of so many tokens: whole pages, one more on either side of
 * what is visible, and a sink beside them. */
static int64_t rows_held(kk_keep keep, int64_t visible, const kk_session_opts *o, int64_t tokens) {
    const int64_t window = o->window < 0 ? 0 : o->window ? o->window : 64;
    const int64_t chunk = o->chunk ? o->chunk : 64;
    if (keep != KK_KEEP_ALL) visible = window + chunk;
    const int64_t rows = visible < tokens ? visible : tokens;
    return (rows / PAGE + 2) * PAGE + (keep != KK_KEEP_ALL ? PAGE : 0);
}

int64_t sessions_kv_bound(const kk_model_info *info, const kk_session_opts *o, int64_t tokens) {
    const int64_t per_sliding = info->window > 0 ? info->kv_sliding_max / info->window : 0;
    const int64_t sliding = rows_held(o->kv_sliding, info->window, o, tokens);
    const int64_t full = rows_held(o->kv_full, tokens, o, tokens);
    return (per_sliding * sliding + info->kv_full_per_token * full) / 64 *
           sixty_fourths(o->kv_format);
}

static bool within_bound(const sessions_state *s, char *why, size_t cap) {
    kk_cache_use use;
    kk_session_cache(s->session, &use);
    const int64_t bound = sessions_kv_bound(s->info, s->session_opts, kk_session_len(s->session));
    if (use.kv_bytes <= bound) return true;
    snprintf(why, cap, "the cache has %lld bytes of K/V, and %d tokens need %lld at most",
             (long long)use.kv_bytes, kk_session_len(s->session), (long long)bound);
    return false;
}

int sessions_check(const sessions_state *s, char *why, size_t cap) {
    return !same_history(s, why, cap)   ? 1
           : !bound_here(s, why, cap)   ? 2
           : !within_bound(s, why, cap) ? 3
                                        : 0;
}
