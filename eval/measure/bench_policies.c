/* bench_policies.c - decoding speed by what layers keep of their rows.
 *
 * Every policy reads the same text up to the same length of context; then turns are taken: a piece
 * of text of the turn's own, tokens decoded behind it, and back.  Policies alternate within a turn
 * and go first in turn, because a machine's speed drifts by more than some of them differ.  With a
 * drafter, exact and the policies that rebuild rows also decode with drafts, right after their
 * plain turn and compared with it: what is rebuilt for a round is rebuilt once for all its rows.
 *
 * Memory is that of one session alone with the engine, read before the turns on the text that
 * warms up.  The engine learns what its rounds cost, and a round that rebuilds costs many times
 * one that does not: each policy has an account of its own here, as in an engine that serves no
 * other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "engine/session.h"
#include "eval/measure/bench_parts.h"
#include "eval/tasks/accept.h"

enum { PIECE = 128, WARM_TOKENS = 8, FILLS = 2, SLACK = KK_MAX_DRAFT + 1 };

static const struct {
    const char *name;
    kk_keep sliding, full;
} ways[KK_BENCH_WAYS] = {
    [KK_BENCH_EXACT] = {"exact", KK_KEEP_ALL, KK_KEEP_ALL},
    [KK_BENCH_WINDOW] = {"window", KK_KEEP_WINDOW, KK_KEEP_WINDOW},
    [KK_BENCH_RESTORED_SLIDING] = {"restored-sliding", KK_KEEP_RESTORED, KK_KEEP_ALL},
    [KK_BENCH_RESTORED_FULL] = {"restored-full", KK_KEEP_ALL, KK_KEEP_RESTORED},
    [KK_BENCH_RESTORED] = {"restored", KK_KEEP_RESTORED, KK_KEEP_RESTORED},
};

const char *kk_bench_way_name(kk_bench_way w) { return ways[w].name; }

static bool rebuilds(kk_bench_way w) {
    return ways[w].sliding == KK_KEEP_RESTORED || ways[w].full == KK_KEEP_RESTORED;
}

bool kk_bench_compares(const kk_bench_opts *o) {
    for (int w = 0; w < KK_BENCH_WAYS; w++)
        if (o->ways[w]) return true;
    return false;
}

/* One session, and what it said last. */
typedef struct {
    kk_session *session;
    kk_trace *trace; /* NULL: drafts are the proposer's */
    int32_t *got;    /* [predict + 1] */
    int32_t n_got;
    uint64_t hash;
} lane;

typedef struct {
    lane plain, dflash;
    kk_costs costs;
    double prefill[FILLS];
} pair;

typedef struct {
    const kk_bench_opts *opts;
    kk_engine *engine;
    kk_bench_result *out;
    kk_model_info model;
    kk_projection_info projection; /* rank 0: none */
    kk_session_opts keep;          /* sink, window and chunk, defaults filled in */
    bool drafts;
    pair pair[KK_BENCH_WAYS]; /* as out->policy */
    int32_t piece, shared;    /* tokens of a turn's own, and before it */
    int32_t *ids;             /* shared, then one piece for every turn, the first to warm up */
    kk_round_times times;     /* [predict]: of the turn at hand */
    double rate[KK_BENCH_MAX_REPEAT];
} policies;

static bool go_on(void *user, int64_t done, int64_t total) {
    const policies *p = user;
    (void)done, (void)total;
    return !p->opts->on_step || p->opts->on_step(p->opts->user, NULL);
}

/* ---- what is compared -------------------------------------------------------------------- */

static kk_session_opts session_of(const kk_bench_opts *o, kk_bench_way way, kk_spec spec) {
    kk_session_opts how = kk_bench_session(o, spec, o->ctx + o->predict + 1 + SLACK);
    how.kv_sliding = ways[way].sliding;
    how.kv_full = ways[way].full;
    how.sink = o->keep.sink;
    how.window = o->keep.window;
    how.chunk = o->keep.chunk;
    how.latents = o->keep.latents;
    return how;
}

/* Whether every row of sliding layers will miss some that it sees. */
static bool sliding_lose(const policies *p) {
    return p->model.window > p->keep.window + p->keep.chunk;
}

/* Whether the engine has what the policy needs, and the policy something to do. */
static bool possible(const policies *p, kk_bench_way way) {
    const bool sliding = ways[way].sliding == KK_KEEP_RESTORED;
    const bool full = ways[way].full == KK_KEEP_RESTORED;
    return (!sliding || (p->projection.sliding_layers > 0 && sliding_lose(p))) &&
           (!full || p->projection.full_layers > 0);
}

static bool chosen(const policies *p, kk_bench_way way) {
    const kk_bench_opts *o = p->opts;
    if (way == KK_BENCH_EXACT) return true; /* the others are held against it */
    return o->ways[way] && (!o->ways_possible || possible(p, way));
}

static bool drafts_in(const policies *p, kk_bench_way way) {
    return p->drafts && (way == KK_BENCH_EXACT || rebuilds(way));
}

/* The defaults are the library's: what a session makes of the options. */
static kk_status settle(policies *p, const kk_bench_opts *o, kk_engine *e, kk_err *err) {
    kk_drafter_info drafter;
    kk_session_opts how = session_of(o, KK_BENCH_EXACT, KK_SPEC_NONE);
    kk_session *s;
    *p = (policies){.opts = o, .engine = e, .drafts = kk_engine_drafter(e, &drafter)};
    kk_engine_info(e, &p->model);
    (void)kk_engine_projection(e, &p->projection);
    how.kv_full = KK_KEEP_WINDOW;
    KK_TRY(kk_session_new(&s, e, &how, err));
    kk_session_options(s, &p->keep);
    kk_session_free(s);
    if (p->keep.sink < 0) p->keep.sink = 0;
    if (p->keep.window < 0) p->keep.window = 0;
    return KK_OK;
}

static kk_status check_way(const policies *p, kk_bench_way way, kk_spec spec, kk_err *err) {
    const kk_session_opts how = session_of(p->opts, way, spec), *k = &p->keep;
    kk_session *s;
    KK_TRY(kk_session_new(&s, p->engine, &how, err));
    kk_session_free(s);
    if (way == KK_BENCH_EXACT) return KK_OK;
    if (p->opts->ctx <= k->sink + k->window + k->chunk)
        return kk_fail(err, KK_EINVAL,
                       "a context of %d tokens: with a sink of %d, a window of %d and chunks of %d "
                       "nothing of it would be gone",
                       p->opts->ctx, k->sink, k->window, k->chunk);
    if (how.kv_sliding == KK_KEEP_RESTORED && !sliding_lose(p))
        return kk_fail(err, KK_EINVAL,
                       "sliding layers of this model see %d rows: with a window of %d and chunks "
                       "of %d little or nothing of them would be gone",
                       p->model.window, k->window, k->chunk);
    return KK_OK;
}

kk_status kk_bench_policies_check(const kk_bench_opts *o, kk_engine *e, kk_err *err) {
    policies *p = kk_malloc(sizeof *p);
    if (!p) return kk_fail(err, KK_ENOMEM, "no memory for measurements");
    kk_status st = o->ctx < 2
                       ? kk_fail(err, KK_EINVAL, "policies take a context of 2 tokens or more")
                       : settle(p, o, e, err);
    for (kk_bench_way w = 0; st == KK_OK && w < KK_BENCH_WAYS; w++) {
        if (!chosen(p, w)) continue;
        st = check_way(p, w, KK_SPEC_NONE, err);
        if (st == KK_OK && drafts_in(p, w)) st = check_way(p, w, KK_SPEC_DFLASH, err);
    }
    kk_free(p);
    return st;
}

/* ---- the text ---------------------------------------------------------------------------- */

/* Tokens of prompts one after the other. */
typedef struct {
    int32_t *ids;
    size_t n, cap;
    int32_t bos; /* -1: there is none */
} text;

static kk_status add_prompts(text *t, const kk_promptset *s, kk_err *err) {
    for (size_t i = 0; i < s->n; i++) {
        const kk_prompt *p = &s->prompts[i];
        const size_t skip = t->n > 0 && p->n > 0 && p->ids[0] == t->bos;
        if (!kk_grow((void **)&t->ids, &t->cap, t->n + p->n, sizeof *t->ids))
            return kk_fail(err, KK_ENOMEM, "no memory for %zu tokens of text", t->n + p->n);
        memcpy(t->ids + t->n, p->ids + skip, (p->n - skip) * sizeof *p->ids);
        t->n += p->n - skip;
    }
    return KK_OK;
}

/* Documents with a code are made, as many as are needed; other sets are what they are. */
static kk_status add_set(const policies *p, text *t, const char *name, size_t need, kk_err *err) {
    const kk_tokenizer *tok = kk_engine_tokenizer(p->engine);
    const size_t most = strcmp(name, "needle") == 0 ? need / 512 + 2 : KK_PROMPTSET_MOST;
    kk_promptset set = {.n = 0};
    KK_TRY(kk_promptset_named(&set, p->opts->folder, name, tok, most, err));
    const kk_status st = add_prompts(t, &set, err);
    kk_promptset_free(&set);
    return st;
}

static kk_status add_sets(const policies *p, text *t, size_t need, kk_err *err) {
    for (const char *at = p->opts->sets; *at;) {
        char name[64];
        const size_t len = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)(len < 63 ? len : 63), at);
        KK_TRY(add_set(p, t, name, need, err));
        at += len + (at[len] == ',');
    }
    return KK_OK;
}

static kk_status add_file_or_random(const policies *p, text *t, size_t need, kk_err *err) {
    const kk_tokenizer *tok = kk_engine_tokenizer(p->engine);
    kk_promptset set = {.n = 0};
    kk_status st = p->opts->prompts
                       ? kk_promptset_read(&set, p->opts->prompts, tok, KK_PROMPTSET_MOST, err)
                       : kk_promptset_random(&set, p->out->model.vocab, 1, (int32_t)need, 11, err);
    if (st == KK_OK) st = add_prompts(t, &set, err);
    kk_promptset_free(&set);
    return st;
}

/* No piece is like another; what comes before them may repeat. */
static kk_status lay_out(policies *p, const text *t, kk_err *err) {
    const size_t pieces = (size_t)p->piece * ((size_t)p->opts->repeat + 1);
    const size_t shared = (size_t)p->shared;
    if (t->n == 0 || t->n < pieces)
        return kk_fail(err, KK_EINVAL,
                       "the prompts have %zu tokens, and %d turns and a warm-up take %zu", t->n,
                       p->opts->repeat, pieces);
    p->ids = kk_calloc(shared + pieces, sizeof *p->ids);
    if (!p->ids) return kk_fail(err, KK_ENOMEM, "no memory for %zu tokens", shared + pieces);
    for (size_t i = 0; i < shared; i++) p->ids[i] = t->ids[i % t->n];
    for (size_t i = 0; i < pieces; i++) p->ids[shared + i] = t->ids[(shared + i) % t->n];
    return KK_OK;
}

static const int32_t *piece_of(const policies *p, int32_t turn) {
    return p->ids + p->shared + (ptrdiff_t)p->piece * turn;
}

static uint64_t hash_of(const policies *p, int32_t turn) {
    int32_t ids[PIECE];
    memcpy(ids, piece_of(p, turn), (size_t)p->piece * sizeof *ids);
    return kk_prompt_hash(&(kk_prompt){.ids = ids, .n = (size_t)p->piece});
}

static kk_status read_text(policies *p, kk_err *err) {
    const kk_bench_opts *o = p->opts;
    const kk_tokenizer *tok = kk_engine_tokenizer(p->engine);
    p->piece = o->ctx / 2 < PIECE ? o->ctx / 2 : PIECE;
    p->shared = o->ctx - p->piece;
    const size_t need = (size_t)p->shared + (size_t)p->piece * ((size_t)o->repeat + 1);
    text t = {.bos = tok ? kk_tokenizer_special(tok, "<bos>") : -1};
    const bool named = o->sets && tok;
    snprintf(p->out->policy_text, sizeof p->out->policy_text, "%s",
             named        ? o->sets
             : o->prompts ? "file"
                          : "random ids");
    p->out->policy_piece = p->piece;
    kk_status st = named ? add_sets(p, &t, need, err) : add_file_or_random(p, &t, need, err);
    if (st == KK_OK) st = lay_out(p, &t, err);
    if (st == KK_OK) p->out->policy_warm_up = hash_of(p, 0);
    kk_free(t.ids);
    return st;
}

/* ---- sessions ---------------------------------------------------------------------------- */

/* Reads the shared text into a new session. */
static kk_status open_lane(policies *p, lane *l, kk_bench_way way, kk_spec spec, double *prefill,
                           kk_err *err) {
    const kk_session_opts how = session_of(p->opts, way, spec);
    KK_TRY(kk_session_new(&l->session, p->engine, &how, err));
    const double begin = kk_now();
    KK_TRY(kk_session_append(l->session, p->ids, (size_t)p->shared, go_on, p, err));
    if (prefill) *prefill = p->shared / (kk_now() - begin);
    l->got = kk_calloc((size_t)p->opts->predict + 1, sizeof *l->got);
    return l->got ? KK_OK
                  : kk_fail(err, KK_ENOMEM, "no memory for %d tokens", p->opts->predict + 1);
}

static void close_lane(lane *l) {
    kk_session_free(l->session);
    kk_trace_free(l->trace);
    kk_free(l->got);
    *l = (lane){0};
}

typedef struct {
    policies *p;
    lane *l;
} taking;

static bool take(void *user, int32_t id) {
    const taking *t = user;
    t->l->got[t->l->n_got++] = id;
    return go_on(t->p, 0, 0);
}

/* Decodes n tokens that take a round, behind what the session holds. */
static kk_status decode(policies *p, lane *l, int32_t n, kk_result *result, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = n + 1, .ignore_eos = true};
    taking t = {p, l};
    l->n_got = 0;
    p->times.n = 0;
    l->session->times = &p->times;
    KK_TRY(kk_generate(l->session, &how, take, &t, result, err));
    l->hash = result->logits_hash;
    return l->n_got > n ? KK_OK : kk_fail(err, KK_ESTOPPED, "stopped while decoding");
}

/* ---- one policy alone -------------------------------------------------------------------- */

static kk_status note_alone(policies *p, int32_t at, lane *l, kk_err *err) {
    kk_bench_policy *policy = &p->out->policy[at];
    const int32_t n = WARM_TOKENS < p->opts->predict ? WARM_TOKENS : p->opts->predict;
    kk_result ignored;
    KK_TRY(open_lane(p, l, policy->way, KK_SPEC_NONE, &p->pair[at].prefill[0], err));
    kk_session_options(l->session, &policy->how);
    KK_TRY(kk_session_append(l->session, piece_of(p, 0), (size_t)p->piece, go_on, p, err));
    KK_TRY(decode(p, l, n, &ignored, err));
    kk_engine_memory(p->engine, policy->bytes);
    return KK_OK;
}

static kk_status fill_alone(policies *p, int32_t at, kk_err *err) {
    lane l = {0};
    char what[80];
    snprintf(what, sizeof what, "filling the context: %s, alone",
             ways[p->out->policy[at].way].name);
    KK_TRY(kk_bench_step(p->opts, what, err));
    const kk_status st = note_alone(p, at, &l, err);
    close_lane(&l);
    return st;
}

static kk_status open_pair(policies *p, int32_t at, kk_err *err) {
    const kk_bench_way way = p->out->policy[at].way;
    pair *both = &p->pair[at];
    char what[80];
    snprintf(what, sizeof what, "filling the context: %s", ways[way].name);
    KK_TRY(kk_bench_step(p->opts, what, err));
    KK_TRY(open_lane(p, &both->plain, way, KK_SPEC_NONE, &both->prefill[1], err));
    KK_TRY(kk_session_checkpoint(both->plain.session, err));
    if (!drafts_in(p, way)) return KK_OK;
    KK_TRY(open_lane(p, &both->dflash, way, KK_SPEC_DFLASH, NULL, err));
    if (p->opts->trace.p > 0)
        KK_TRY(kk_trace_new(&both->dflash.trace, both->dflash.session, &p->opts->trace, err));
    return kk_session_checkpoint(both->dflash.session, err);
}

/* ---- turns ------------------------------------------------------------------------------- */

static kk_key_counts less(const kk_key_counts *a, const kk_key_counts *b) {
    return (kk_key_counts){.queries = a->queries - b->queries,
                           .keys_stored = a->keys_stored - b->keys_stored,
                           .keys_rebuilt = a->keys_rebuilt - b->keys_rebuilt,
                           .rows_rebuilt = a->rows_rebuilt - b->rows_rebuilt};
}

static kk_status take_turn(policies *p, lane *l, int32_t turn, kk_bench_turn *out,
                           kk_spec_stats *sum, kk_err *err) {
    kk_key_counts before, after;
    kk_result r;
    const double begin = kk_now();
    KK_TRY(kk_session_append(l->session, piece_of(p, turn), (size_t)p->piece, go_on, p, err));
    const double prefill_s = kk_now() - begin;
    kk_session_key_counts(l->session, &before);
    KK_TRY(decode(p, l, p->opts->predict, &r, err));
    kk_session_key_counts(l->session, &after);
    *out = (kk_bench_turn){
        .prompt = hash_of(p, turn),
        .tokens = r.n_tokens - 1,
        .seconds = r.decode_s + r.spec.commit_s,
        .prefill_s = prefill_s,
        .rounds = r.spec.rounds,
        .drafted = r.spec.drafted,
        .accepted = r.spec.accepted,
        .counts = less(&after, &before),
        .tokens_hash = kk_hash_bytes(KK_HASH_START, l->got, (size_t)l->n_got * sizeof *l->got),
        .logits_hash = r.logits_hash,
        .times = kk_bench_rounds_of(p->times.seconds, p->times.n)};
    kk_spec_stats_add(sum, &r.spec);
    return kk_session_rewind(l->session, p->shared, NULL, err);
}

static void compare(const lane *plain, const lane *drafted, kk_bench_turn *out) {
    out->same = plain->n_got == drafted->n_got && plain->hash == drafted->hash &&
                memcmp(plain->got, drafted->got, (size_t)plain->n_got * sizeof *plain->got) == 0;
}

/* Plain, then with drafts. */
static kk_status take_turns(policies *p, int32_t at, int32_t turn, kk_bench_turns *plain,
                            kk_bench_turns *dflash, kk_err *err) {
    pair *both = &p->pair[at];
    lane *drafted = &both->dflash;
    kk_status st = take_turn(p, &both->plain, turn, &plain->turn[plain->n], &plain->spec, err);
    if (st == KK_OK) plain->n++;
    if (st != KK_OK || !drafted->session) return st;
    if (drafted->trace)
        KK_TRY(kk_trace_follow(drafted->trace, p->shared + p->piece, both->plain.got,
                               both->plain.n_got, (uint64_t)turn, err));
    kk_bench_turn *to = &dflash->turn[dflash->n];
    KK_TRY(take_turn(p, drafted, turn, to, &dflash->spec, err));
    compare(&both->plain, drafted, to);
    dflash->n++;
    return KK_OK;
}

/* With the policy's own account of what rounds cost. */
static kk_status turn_of(policies *p, int32_t at, int32_t turn, kk_bench_turns *plain,
                         kk_bench_turns *dflash, kk_err *err) {
    kk_rounds *rounds = &p->engine->rounds;
    const bool rebuilds = p->pair[at].plain.session->layout->latents.rank > 0;
    kk_costs *costs = rebuilds ? &rounds->costs_rebuilding : &rounds->costs;
    const kk_costs before = *costs;
    *costs = p->pair[at].costs;
    const kk_status st = take_turns(p, at, turn, plain, dflash, err);
    p->pair[at].costs = *costs;
    *costs = before;
    return st;
}

static kk_status warm_up(policies *p, kk_err *err) {
    kk_bench_turns *ignored = kk_calloc(2, sizeof *ignored);
    if (!ignored) return kk_fail(err, KK_ENOMEM, "no memory for measurements");
    kk_status st = kk_bench_step(p->opts, "warming up", err);
    for (int32_t at = 0; st == KK_OK && at < p->out->n_policies; at++) {
        ignored[0].n = ignored[1].n = 0;
        st = turn_of(p, at, 0, &ignored[0], &ignored[1], err);
    }
    kk_free(ignored);
    return st;
}

static kk_status all_turns(policies *p, kk_err *err) {
    const int32_t n = p->out->n_policies;
    for (int32_t turn = 1; turn <= p->opts->repeat; turn++) {
        char what[80];
        snprintf(what, sizeof what, "decoding by policy, turn %d of %d", turn, p->opts->repeat);
        KK_TRY(kk_bench_step(p->opts, what, err));
        for (int32_t k = 0; k < n; k++) {
            const int32_t at = (k + turn) % n;
            kk_bench_policy *policy = &p->out->policy[at];
            KK_TRY(turn_of(p, at, turn, &policy->plain, &policy->dflash, err));
        }
    }
    return KK_OK;
}

/* ---- figures ----------------------------------------------------------------------------- */

static double over(double a, double b) { return b > 0 ? a / b : 0; }

static void sum_up(policies *p, kk_bench_turns *t, const kk_bench_turns *plain) {
    for (int32_t i = 0; i < t->n; i++) {
        const kk_bench_turn *one = &t->turn[i];
        t->tokens += one->tokens;
        t->seconds += one->seconds;
        t->counts.queries += one->counts.queries;
        t->counts.keys_stored += one->counts.keys_stored;
        t->counts.keys_rebuilt += one->counts.keys_rebuilt;
        t->counts.rows_rebuilt += one->counts.rows_rebuilt;
        t->different += t != plain && !one->same;
        kk_bench_rounds_add(&t->times, &one->times);
        p->rate[i] = 1e3 * one->seconds / one->tokens;
    }
    t->ms = kk_bench_spread_of(p->rate, t->n);
    t->tok_s = over((double)t->tokens, t->seconds);
    t->speedup = over(t->tok_s, plain->tok_s);
    t->accept_len = over((double)(t->spec.accepted + t->spec.rounds), (double)t->spec.rounds);
    t->rows_per_token = over((double)t->counts.rows_rebuilt, (double)t->tokens);
    t->stored_keys = over((double)t->counts.keys_stored, (double)t->counts.queries);
    t->rebuilt_keys = over((double)t->counts.keys_rebuilt, (double)t->counts.queries);
}

static void conclude(policies *p) {
    for (int32_t i = 0; i < p->out->n_policies; i++) {
        kk_bench_policy *one = &p->out->policy[i];
        sum_up(p, &one->plain, &one->plain);
        sum_up(p, &one->dflash, &one->plain);
        one->ratio = over(one->plain.ms.median, p->out->policy[0].plain.ms.median);
        for (int32_t k = 0; k < FILLS; k++) one->prefill_rate[k] = p->pair[i].prefill[k];
        one->prefill_tok_s = kk_bench_spread_of(p->pair[i].prefill, FILLS);
    }
}

static kk_status measure(policies *p, kk_err *err) {
    kk_bench_result *out = p->out;
    for (kk_bench_way w = 0; w < KK_BENCH_WAYS; w++)
        if (chosen(p, w)) out->policy[out->n_policies++].way = w;
    KK_TRY(read_text(p, err));
    p->times.seconds = kk_calloc((size_t)p->opts->predict, sizeof *p->times.seconds);
    if (!p->times.seconds)
        return kk_fail(err, KK_ENOMEM, "no memory for the times of %d rounds", p->opts->predict);
    p->times.cap = p->opts->predict;
    for (int32_t i = 0; i < out->n_policies; i++) KK_TRY(fill_alone(p, i, err));
    for (int32_t i = 0; i < out->n_policies; i++) KK_TRY(open_pair(p, i, err));
    KK_TRY(warm_up(p, err));
    KK_TRY(all_turns(p, err));
    conclude(p);
    return KK_OK;
}

kk_status kk_bench_policies(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out,
                            kk_err *err) {
    policies *p = kk_calloc(1, sizeof *p);
    if (!p) return kk_fail(err, KK_ENOMEM, "no memory for measurements");
    kk_status st = settle(p, o, e, err);
    p->out = out;
    if (st == KK_OK) st = measure(p, err);
    for (int w = 0; w < KK_BENCH_WAYS; w++) {
        close_lane(&p->pair[w].plain);
        close_lane(&p->pair[w].dflash);
    }
    kk_free(p->ids);
    kk_free(p->times.seconds);
    kk_free(p);
    return st;
}
