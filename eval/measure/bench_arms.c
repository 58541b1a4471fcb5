/* bench_arms.c - ways to decode, in turns on the same prompts, and compared with plain decoding
 * token by token; see bench.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "engine/session.h"
#include "eval/measure/bench_parts.h"
#include "eval/tasks/accept.h"

enum { WARM_TOKENS = 48 };

/* One arm on the prompt at hand. */
typedef struct {
    kk_session *session;
    kk_trace *trace; /* NULL: drafts are the proposer's */
    kk_result run[KK_BENCH_MAX_REPEAT];
    kk_bench_rounds rounds[KK_BENCH_MAX_REPEAT]; /* of the same generations */
    uint64_t tokens[KK_BENCH_MAX_REPEAT];        /* hashes of what each generated */
    int32_t different;
    double prefill_s;
    kk_drafting begun; /* what the session knew of its drafts before any of its own: `seen` of it */
} lane;

typedef struct {
    const kk_bench_opts *opts;
    kk_bench_result *out;
    kk_engine *engine;
    lane *lane; /* [n_arms] */
    int32_t ctx;
    int32_t *record, *got; /* [ctx]: of plain decoding, and of the generation at hand */
    int32_t n_record, n_got;
    kk_round_times times;  /* [ctx]: of the generation at hand */
    uint64_t hash;         /* of the record's logits */
    bool *taken;           /* by prompt of all sets, one set after the other: timed */
    size_t n_taken, begin; /* prompts of all sets; the first of the set at hand */
} arms;

kk_session_opts kk_bench_session(const kk_bench_opts *o, kk_spec arm, int32_t ctx) {
    kk_session_opts how = {.ctx = ctx, .kv_format = o->kv_format, .spec = arm};
    if (arm == KK_SPEC_NONE) return how;
    how.draft_max = o->draft_max;
    how.draft_fixed = o->draft_fixed;
    if (arm != KK_SPEC_NGRAM) how.draft_ctx = o->draft_ctx;
    return how;
}

/* ---- one prompt -------------------------------------------------------------------------- */

static kk_status open_lane(arms *a, int32_t arm, const kk_prompt *p, kk_err *err) {
    const kk_bench_opts *o = a->opts;
    const kk_session_opts how = kk_bench_session(o, o->arms[arm], a->ctx);
    lane *l = &a->lane[arm];
    KK_TRY(kk_session_new(&l->session, a->engine, &how, err));
    l->begun = l->session->drafting;
    const bool drafter = o->arms[arm] == KK_SPEC_DFLASH || o->arms[arm] == KK_SPEC_AUTO;
    if (drafter && o->trace.p > 0) KK_TRY(kk_trace_new(&l->trace, l->session, &o->trace, err));
    const double begin = kk_now();
    KK_TRY(kk_session_append(l->session, p->ids, p->n, NULL, NULL, err));
    l->prefill_s = kk_now() - begin;
    return kk_session_checkpoint(l->session, err);
}

static void close_lanes(arms *a) {
    for (int32_t i = 0; i < a->opts->n_arms; i++) {
        kk_session_free(a->lane[i].session);
        kk_trace_free(a->lane[i].trace);
        a->lane[i].session = NULL;
        a->lane[i].trace = NULL;
        a->lane[i].different = 0;
    }
}

static bool gather(void *user, int32_t id) {
    arms *a = user;
    a->got[a->n_got++] = id;
    return !a->opts->on_step || a->opts->on_step(a->opts->user, NULL);
}

static void keep_record(arms *a, uint64_t hash) {
    memcpy(a->record, a->got, (size_t)a->n_got * sizeof *a->got);
    a->n_record = a->n_got;
    a->hash = hash;
}

static void compare(const arms *a, lane *l, uint64_t hash) {
    const bool tokens = a->n_got == a->n_record &&
                        memcmp(a->got, a->record, (size_t)a->n_got * sizeof *a->got) == 0;
    l->different += !tokens || hash != a->hash;
}

static kk_status own_page(kk_cache *c, kk_err *err) {
    KK_TRY(kk_cache_reserve(c, 1, err));
    kk_cache_commit(c, kk_cache_len(c));
    return KK_OK;
}

/* The checkpoint that generations go back to shares the pages of the prompt, and the first row
 * written to the last of them would copy it.  A session that was given its prompt once owns it. */
static kk_status own_pages(kk_session *s, kk_err *err) {
    kk_engine_lock(s->engine);
    kk_status st = own_page(s->cache, err);
    for (int32_t i = 0; i < s->drafting.n && st == KK_OK; i++) {
        const kk_drafting_member *m = &s->drafting.member[i];
        if (m->proposer->cache) st = own_page(m->proposer->cache(m->self), err);
    }
    kk_engine_unlock(s->engine);
    return st;
}

/* Decodes behind the prompt and goes back to it.  What the session learned of its drafts since it
 * began is forgotten first: it would know the text by now. */
static kk_status run_once(arms *a, int32_t arm, const kk_prompt *p, int32_t n, kk_result *result,
                          kk_err *err) {
    lane *l = &a->lane[arm];
    const bool random = !a->opts->sets && !a->opts->prompts;
    const kk_generate_opts how = {.max_tokens = n, .ignore_eos = random};
    kk_drafting_inherit(&l->session->drafting, &l->begun);
    a->n_got = 0;
    KK_TRY(own_pages(l->session, err));
    a->times.n = 0;
    l->session->times = &a->times;
    KK_TRY(kk_generate(l->session, &how, gather, a, result, err));
    if (result->stop == KK_STOP_CALLBACK)
        return kk_fail(err, KK_ESTOPPED, "stopped while decoding");
    return kk_session_rewind(l->session, (int32_t)p->n, NULL, err);
}

/* Plain decoding goes first once, to be the record; then the arms take turns at going first.
 * costs NULL: none are measured. */
static kk_status repeat(arms *a, const kk_prompt *p, int32_t n, int32_t repeats, uint64_t stream,
                        kk_bench_costs *costs, kk_err *err) {
    const int32_t n_arms = a->opts->n_arms;
    for (int32_t r = 0; r < repeats; r++) {
        if (costs) KK_TRY(kk_bench_costs_pass(costs, err));
        for (int32_t k = 0; k < n_arms; k++) {
            const int32_t arm = (k + r) % n_arms;
            lane *l = &a->lane[arm];
            if (l->trace)
                KK_TRY(
                    kk_trace_follow(l->trace, (int32_t)p->n, a->record, a->n_record, stream, err));
            KK_TRY(run_once(a, arm, p, n, &l->run[r], err));
            l->rounds[r] = kk_bench_rounds_of(a->times.seconds, a->times.n);
            l->tokens[r] = kk_hash_bytes(KK_HASH_START, a->got, (size_t)a->n_got * sizeof *a->got);
            if (r == 0 && k == 0) keep_record(a, l->run[r].logits_hash);
            compare(a, l, l->run[r].logits_hash);
        }
    }
    return costs ? kk_bench_costs_pass(costs, err) : KK_OK;
}

static const kk_result *median_run(const lane *l, int32_t n) {
    const kk_result *sorted[KK_BENCH_MAX_REPEAT] = {&l->run[0]};
    for (int32_t i = 1; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && sorted[at - 1]->decode_s > l->run[i].decode_s; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = &l->run[i];
    }
    return sorted[(n - 1) / 2];
}

static double seconds_of(const kk_result *r) { return r->decode_s + r->spec.commit_s; }

static void keep_row(kk_bench_row *row, const kk_prompt *p, const lane *l, int32_t repeats) {
    const kk_result *r = median_run(l, repeats);
    *row = (kk_bench_row){.prompt = kk_prompt_hash(p),
                          .text = p->text,
                          .prompt_tokens = (int32_t)p->n,
                          .tokens = r->n_tokens - 1,
                          .seconds = seconds_of(r),
                          .seconds_min = seconds_of(r),
                          .seconds_max = seconds_of(r),
                          .prefill_s = l->prefill_s,
                          .spec = r->spec,
                          .runs = repeats,
                          .rounds = l->rounds[r - l->run]};
    for (int32_t i = 0; i < repeats; i++) {
        const double s = seconds_of(&l->run[i]);
        row->run[i] = (kk_bench_run_of){s, l->tokens[i], l->run[i].logits_hash};
        if (s < row->seconds_min) row->seconds_min = s;
        if (s > row->seconds_max) row->seconds_max = s;
    }
}

static void count(kk_bench_arm *to, const lane *l, int32_t repeats) {
    const kk_result *r = median_run(l, repeats);
    to->tokens += r->n_tokens - 1; /* the first comes from the prompt's own logits */
    to->seconds += seconds_of(r);
    to->runs += repeats;
    to->different += l->different;
    kk_spec_stats_add(&to->spec, &r->spec);
    kk_bench_rounds_add(&to->rounds, &l->rounds[r - l->run]);
}

static kk_status time_prompt(arms *a, const kk_prompt *p, kk_bench_set *set, uint64_t stream,
                             kk_bench_costs *costs, kk_err *err) {
    const kk_bench_opts *o = a->opts;
    const int32_t n = kk_prompt_predict(p, o->arm_predict), first = kk_bench_costs_passes(costs);
    kk_status st = kk_bench_costs_behind(costs, p, n, err);
    for (int32_t i = 0; i < o->n_arms && st == KK_OK; i++) st = open_lane(a, i, p, err);
    if (st == KK_OK) st = repeat(a, p, n, o->repeat, stream, costs, err);
    for (int32_t i = 0; i < o->n_arms && st == KK_OK; i++) {
        kk_bench_row *row = &set->row[set->prompts * o->n_arms + i];
        count(&set->arm[i], &a->lane[i], o->repeat);
        keep_row(row, p, &a->lane[i], o->repeat);
        row->predicted_s = kk_bench_costs_predict(costs, first, &row->spec);
        set->arm[i].predicted_s += row->predicted_s;
    }
    close_lanes(a);
    return st;
}

static kk_status warm_up(arms *a, const kk_prompt *p, kk_err *err) {
    kk_status st = KK_OK;
    for (int32_t i = 0; i < a->opts->n_arms && st == KK_OK; i++) st = open_lane(a, i, p, err);
    if (st == KK_OK) st = repeat(a, p, WARM_TOKENS, 1, 0, NULL, err);
    close_lanes(a);
    return st;
}

/* ---- one set ----------------------------------------------------------------------------- */

/* The draft length that costs and acceptance say is best.  Only a trace's acceptance is known
 * whatever was drafted. */
static void find_best(const kk_bench_opts *o, const kk_bench_set *s, kk_bench_arm *arm) {
    const int32_t most = s->n_draft ? s->draft[s->n_draft - 1].rows : 0;
    for (int32_t n = 0; o->trace.p > 0 && n <= most; n++) {
        double seconds = kk_bench_cost(s->verify, s->n_verify, n + 1);
        if (n > 0) seconds += kk_bench_cost(s->draft, s->n_draft, n);
        const double rate = (1 + kk_trace_expected(&o->trace, n)) / seconds;
        if (rate <= arm->best_tok_s) continue;
        arm->best_tok_s = rate;
        arm->best_draft = n;
    }
}

static double over(double a, double b) { return b > 0 ? a / b : 0; }

static void conclude(const arms *a, kk_bench_set *set) {
    const kk_bench_arm *plain = &set->arm[0];
    for (int32_t i = 0; i < a->opts->n_arms; i++) {
        kk_bench_arm *m = &set->arm[i];
        const kk_spec_stats *t = &m->spec;
        const kk_spec arm = a->opts->arms[i];
        const bool drafter = arm == KK_SPEC_DFLASH || arm == KK_SPEC_AUTO;
        const double forwards = t->verify_s + (drafter ? t->draft_s : 0);
        m->tok_s = over((double)m->tokens, m->seconds);
        m->speedup = over(m->tok_s, over((double)plain->tokens, plain->seconds));
        m->accept_len = over((double)(t->accepted + t->rounds), (double)t->rounds);
        m->rows = over((double)t->rows, (double)t->rounds);
        m->overhead = over(m->seconds - forwards, m->seconds);
        m->of_predicted = over(m->predicted_s, m->seconds);
        if (i == 0)
            m->floor_share = over(m->tok_s * (double)a->out->token_bytes, a->out->floor_bytes_s);
    }
}

static void add_to_all(const arms *a, const kk_bench_set *set) {
    kk_bench_set *all = &a->out->all;
    all->prompt_tokens = over(all->prompt_tokens * all->prompts + set->prompt_tokens * set->prompts,
                              all->prompts + set->prompts);
    all->prompts += set->prompts;
    for (int32_t i = 0; i < a->opts->n_arms; i++) {
        kk_bench_arm *to = &all->arm[i];
        const kk_bench_arm *from = &set->arm[i];
        to->tokens += from->tokens;
        to->seconds += from->seconds;
        to->predicted_s += from->predicted_s;
        to->best_draft = from->best_draft; /* a trace has one set */
        to->best_tok_s = from->best_tok_s;
        to->runs += from->runs;
        to->different += from->different;
        kk_spec_stats_add(&to->spec, &from->spec);
        kk_bench_rounds_add(&to->rounds, &from->rounds);
    }
}

static kk_status time_prompts(arms *a, const kk_promptset *prompts, size_t n, kk_bench_set *set,
                              kk_bench_costs *costs, kk_err *err) {
    const kk_bench_opts *o = a->opts;
    char what[160];
    for (size_t i = 0; i < n; i++) {
        if (!a->taken[a->begin + i]) continue;
        snprintf(what, sizeof what, "decoding %.60s, prompt %zu of %zu", set->name, i + 1, n);
        KK_TRY(kk_bench_step(o, what, err));
        KK_TRY(time_prompt(a, &prompts->prompts[i], set, i + 1, costs, err));
        set->prompt_tokens += (double)prompts->prompts[i].n;
        set->prompts++;
    }
    set->prompt_tokens /= set->prompts;
    return KK_OK;
}

/* The last prompt warms up. */
static kk_status time_set(arms *a, const kk_promptset *prompts, kk_err *err) {
    const kk_bench_opts *o = a->opts;
    kk_bench_set *set = &a->out->set[a->out->n_sets++];
    const size_t timed = prompts->n - 1;
    kk_bench_costs *costs = NULL;
    char what[100];
    snprintf(set->name, sizeof set->name, "%s", prompts->name);
    snprintf(what, sizeof what, "warming up on %.60s", set->name);
    KK_TRY(kk_bench_step(o, what, err));
    set->warm_up = kk_prompt_hash(&prompts->prompts[timed]);
    set->row = kk_calloc(timed * (size_t)o->n_arms, sizeof *set->row);
    if (!set->row) return kk_fail(err, KK_ENOMEM, "no memory for %zu rows", timed);
    KK_TRY(warm_up(a, &prompts->prompts[timed], err));
    kk_status st = kk_bench_costs_new(&costs, o, a->engine, err);
    if (st == KK_OK) st = time_prompts(a, prompts, timed, set, costs, err);
    if (st == KK_OK) kk_bench_costs_fill(costs, set);
    kk_bench_costs_free(costs);
    for (int32_t i = 0; i < o->n_arms; i++)
        if (o->arms[i] == KK_SPEC_DFLASH) find_best(o, set, &set->arm[i]);
    conclude(a, set);
    add_to_all(a, set);
    return st;
}

/* ---- all sets ---------------------------------------------------------------------------- */

/* What a session must hold for the longest prompt, and a little more while costs are measured. */
static int32_t context_for(const kk_promptset *prompts, int32_t predict) {
    int32_t most = kk_promptset_longest(prompts, predict);
    for (size_t i = 0; i < prompts->n; i++)
        if ((int32_t)prompts->prompts[i].n + WARM_TOKENS > most)
            most = (int32_t)prompts->prompts[i].n + WARM_TOKENS;
    return most + 1;
}

/* The last prompt of a set is not among those that are timed. */
static kk_status count_set(arms *a, kk_promptset *prompts, kk_err *err) {
    (void)err;
    a->n_taken += prompts->n - 1;
    return KK_OK;
}

static bool any_taken(const arms *a, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (a->taken[a->begin + i]) return true;
    return false;
}

static kk_status run_set(arms *a, kk_promptset *prompts, kk_err *err) {
    a->ctx = context_for(prompts, a->opts->arm_predict);
    a->record = kk_calloc((size_t)a->ctx, sizeof *a->record);
    a->got = kk_calloc((size_t)a->ctx, sizeof *a->got);
    a->times = (kk_round_times){.seconds = kk_calloc((size_t)a->ctx, sizeof *a->times.seconds),
                                .cap = a->ctx};
    kk_status st = KK_OK;
    if (!a->record || !a->got || !a->times.seconds)
        st = kk_fail(err, KK_ENOMEM, "no memory for %d tokens", a->ctx);
    else if (any_taken(a, prompts->n - 1))
        st = time_set(a, prompts, err);
    kk_free(a->record);
    kk_free(a->got);
    kk_free(a->times.seconds);
    a->record = a->got = NULL;
    a->times.seconds = NULL;
    a->begin += prompts->n - 1;
    return st;
}

static kk_status check_set(arms *a, kk_promptset *prompts, kk_err *err) {
    const int32_t need = context_for(prompts, a->opts->arm_predict);
    kk_model_info info;
    kk_engine_info(a->engine, &info);
    if (prompts->n < 2)
        return kk_fail(err, KK_EINVAL, "'%s' has one prompt: a second is needed to warm up on",
                       prompts->name);
    if (need > info.context)
        return kk_fail(err, KK_ECONTEXT,
                       "the prompts of '%s' need a context of %d tokens, and this model takes %d",
                       prompts->name, need, info.context);
    for (int32_t i = 0; i < a->opts->n_arms; i++) {
        const kk_session_opts how = kk_bench_session(a->opts, a->opts->arms[i], need);
        kk_session *s;
        KK_TRY(kk_session_new(&s, a->engine, &how, err)); /* drafts that cannot be */
        kk_session_free(s);
    }
    return KK_OK;
}

typedef kk_status (*set_fn)(arms *a, kk_promptset *prompts, kk_err *err);

/* name NULL: the file, or random ids. */
static kk_status with_set(arms *a, const char *name, set_fn fn, kk_err *err) {
    const kk_bench_opts *o = a->opts;
    const kk_tokenizer *tok = kk_engine_tokenizer(a->engine);
    const size_t n = (size_t)o->samples + 1;
    kk_model_info info;
    kk_promptset prompts = {.n = 0};
    kk_status st;
    kk_engine_info(a->engine, &info);
    if (name)
        st = kk_promptset_named(&prompts, o->folder, name, tok, n, err);
    else if (o->prompts)
        st = kk_promptset_read(&prompts, o->prompts, tok, n, err);
    else
        st = kk_promptset_random(&prompts, info.vocab, n, o->ctx, KK_PROMPTSET_RANDOM_SEED, err);
    if (st == KK_OK) st = fn(a, &prompts, err);
    kk_promptset_free(&prompts);
    return st;
}

static kk_status with_every_set(arms *a, set_fn fn, kk_err *err) {
    const char *at = a->opts->sets;
    if (!at) return with_set(a, NULL, fn, err);
    for (int32_t n = 0; *at; n++) {
        char name[64];
        const size_t len = strcspn(at, ",");
        if (n == KK_BENCH_SETS)
            return kk_fail(err, KK_EINVAL, "more than %d prompt sets", KK_BENCH_SETS);
        snprintf(name, sizeof name, "%.*s", (int)(len < 63 ? len : 63), at);
        KK_TRY(with_set(a, name, fn, err));
        at += len + (at[len] == ',');
    }
    return KK_OK;
}

kk_status kk_bench_arms_check(const kk_bench_opts *o, kk_engine *e, kk_err *err) {
    arms a = {.opts = o, .engine = e};
    return with_every_set(&a, check_set, err);
}

kk_status kk_bench_arms(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out, kk_err *err) {
    arms a = {.opts = o, .out = out, .engine = e};
    a.lane = kk_calloc(KK_BENCH_ARMS, sizeof *a.lane);
    if (!a.lane) return kk_fail(err, KK_ENOMEM, "no memory for measurements");
    kk_status st = with_every_set(&a, count_set, err);
    a.taken = st == KK_OK ? kk_calloc(a.n_taken, sizeof *a.taken) : NULL;
    if (st == KK_OK && !a.taken)
        st = kk_fail(err, KK_ENOMEM, "no memory for %zu prompts", a.n_taken);
    if (st == KK_OK) st = kk_subset_draw(a.taken, a.n_taken, &o->subset, err);
    if (st == KK_OK) st = with_every_set(&a, run_set, err);
    kk_free(a.lane);
    kk_free(a.taken);
    snprintf(out->all.name, sizeof out->all.name, "all");
    conclude(&a, &out->all);
    return st;
}
