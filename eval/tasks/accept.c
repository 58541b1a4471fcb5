/* accept.c - continues every prompt plainly and drafted, and compares; see accept.h. */
#include "eval/tasks/accept.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/hash.h"

/* What plain decoding gave. */
typedef struct {
    int32_t *ids;
    int32_t n;
    uint64_t hash;
} record;

typedef struct {
    const kk_accept_opts *opts;
    kk_accept_result *out;
    kk_engine *engine;
    kk_promptset set[KK_ACCEPT_SETS];
    record *plain[KK_ACCEPT_SETS]; /* by prompt */
    bool *taken;                   /* by prompt of all sets, one set after the other */
} accept;

void kk_spec_stats_add(kk_spec_stats *to, const kk_spec_stats *more) {
    to->rounds += more->rounds;
    to->rows += more->rows;
    to->drafted += more->drafted;
    to->accepted += more->accepted;
    to->looking += more->looking;
    to->short_rounds += more->short_rounds;
    to->short_missed += more->short_missed;
    for (int i = 0; i <= KK_SPEC_NGRAM; i++) {
        to->by[i].rounds += more->by[i].rounds;
        to->by[i].drafted += more->by[i].drafted;
        to->by[i].accepted += more->by[i].accepted;
        for (int k = 0; k <= KK_MAX_DRAFT; k++) to->by[i].drafts[k] += more->by[i].drafts[k];
    }
    for (int i = 0; i <= KK_MAX_DRAFT; i++) {
        to->histogram[i] += more->histogram[i];
        to->chosen[i] += more->chosen[i];
        to->drafts[i] += more->drafts[i];
    }
    to->draft_s += more->draft_s;
    to->verify_s += more->verify_s;
    to->choose_s += more->choose_s;
    to->commit_s += more->commit_s;
}

/* ---- prompts ----------------------------------------------------------------------------- */

static kk_status read_named(accept *a, const kk_tokenizer *tok, kk_err *err) {
    const size_t most = (size_t)a->opts->samples;
    for (const char *at = a->opts->names; *at;) {
        char name[64];
        const size_t len = strcspn(at, ",");
        if (a->out->n_sets == KK_ACCEPT_SETS)
            return kk_fail(err, KK_EINVAL, "more than %d prompt sets", KK_ACCEPT_SETS);
        snprintf(name, sizeof name, "%.*s", (int)(len < 63 ? len : 63), at);
        KK_TRY(kk_promptset_named(&a->set[a->out->n_sets], a->opts->folder, name, tok, most, err));
        a->out->n_sets++;
        at += len + (at[len] == ',');
    }
    return KK_OK;
}

static kk_status read_sets(accept *a, const kk_tokenizer *tok, kk_err *err) {
    const kk_accept_opts *o = a->opts;
    if (o->names)
        KK_TRY(read_named(a, tok, err));
    else
        KK_TRY(kk_promptset_read(&a->set[a->out->n_sets++], o->file, tok, (size_t)o->samples, err));
    for (int32_t i = 0; i < a->out->n_sets; i++) {
        const kk_promptset *s = &a->set[i];
        snprintf(a->out->set[i].name, sizeof a->out->set[i].name, "%s", s->name);
        const int32_t need = kk_promptset_longest(s, o->predict) + 1;
        if (need > a->out->ctx) a->out->ctx = need;
        a->plain[i] = kk_calloc(s->n, sizeof *a->plain[i]);
        if (!a->plain[i]) return kk_fail(err, KK_ENOMEM, "no memory for %zu records", s->n);
    }
    snprintf(a->out->all.name, sizeof a->out->all.name, "all");
    if (a->out->ctx > a->out->model.context) a->out->ctx = a->out->model.context;
    size_t total = 0;
    for (int32_t i = 0; i < a->out->n_sets; i++) total += a->set[i].n;
    a->taken = kk_calloc(total, sizeof *a->taken);
    if (!a->taken) return kk_fail(err, KK_ENOMEM, "no memory for %zu prompts", total);
    return kk_subset_draw(a->taken, total, &o->subset, err);
}

/* ---- one prompt -------------------------------------------------------------------------- */

typedef struct {
    int32_t *ids;
    int32_t n, cap;
} gathered;

static bool gather(void *user, int32_t id) {
    gathered *g = user;
    if (g->n == g->cap) return false;
    g->ids[g->n++] = id;
    return true;
}

/* Continues a prompt in a session of its own. */
static kk_status go_on(accept *a, const kk_prompt *p, const kk_session_opts *how, gathered *got,
                       kk_result *result, kk_err *err) {
    const kk_generate_opts opts = {.max_tokens = kk_prompt_predict(p, a->opts->predict),
                                   .sampling = a->opts->sampling};
    kk_session *s;
    KK_TRY(kk_session_new(&s, a->engine, how, err));
    if (how->spec != KK_SPEC_NONE) a->out->spec = kk_session_spec(s);
    kk_status st = kk_session_append(s, p->ids, p->n, NULL, NULL, err);
    if (st == KK_OK) st = kk_generate(s, &opts, gather, got, result, err);
    kk_session_free(s);
    return st;
}

static kk_status continue_plainly(accept *a, const kk_prompt *p, record *out, kk_err *err) {
    const kk_session_opts how = {
        .ctx = a->out->ctx, .kv_format = a->opts->session.kv_format, .spec = KK_SPEC_NONE};
    gathered got = {.cap = kk_prompt_predict(p, a->opts->predict)};
    kk_result result;
    out->ids = got.ids = kk_calloc((size_t)got.cap, sizeof *got.ids);
    if (!got.ids) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", got.cap);
    KK_TRY(go_on(a, p, &how, &got, &result, err));
    out->n = got.n;
    out->hash = result.logits_hash;
    return KK_OK;
}

static void count(kk_accept_figures *f, const kk_result *r, bool same) {
    f->prompts++;
    f->different += !same;
    f->tokens += r->n_tokens;
    kk_spec_stats_add(&f->spec, &r->spec);
}

static kk_status keep_row(accept *a, const kk_accept_row *row, kk_err *err) {
    kk_accept_result *r = a->out;
    if (!kk_grow((void **)&r->row, &r->cap_rows, r->n_rows + 1, sizeof *r->row))
        return kk_fail(err, KK_ENOMEM, "no memory for a row");
    r->row[r->n_rows++] = *row;
    return KK_OK;
}

static uint64_t hash_of(const int32_t *ids, int32_t n) {
    return kk_hash_bytes(KK_HASH_START, ids, (size_t)n * sizeof *ids);
}

static kk_status continue_drafted(accept *a, int32_t set, const kk_prompt *p, const record *plain,
                                  int32_t arm, kk_err *err) {
    kk_session_opts how = a->opts->session;
    how.ctx = a->out->ctx;
    how.draft_fixed = true;
    gathered got = {.cap = kk_prompt_predict(p, a->opts->predict)};
    kk_result result;
    got.ids = kk_calloc((size_t)got.cap, sizeof *got.ids);
    if (!got.ids) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", got.cap);
    kk_status st = go_on(a, p, &how, &got, &result, err);
    if (st == KK_OK) {
        const kk_accept_row row = {.set = set,
                                   .arm = arm,
                                   .prompt = kk_prompt_hash(p),
                                   .text = p->text,
                                   .tokens = result.n_tokens,
                                   .spec = result.spec,
                                   .tokens_hash = hash_of(got.ids, got.n),
                                   .logits_hash = result.logits_hash,
                                   .plain_tokens = hash_of(plain->ids, plain->n),
                                   .plain_logits = plain->hash};
        const bool same = got.n == plain->n && result.logits_hash == plain->hash &&
                          memcmp(got.ids, plain->ids, (size_t)got.n * sizeof *got.ids) == 0;
        count(&a->out->set[set].arm[arm], &result, same);
        count(&a->out->all.arm[arm], &result, same);
        st = keep_row(a, &row, err);
    }
    kk_free(got.ids);
    return st;
}

/* ---- all of them ------------------------------------------------------------------------- */

static kk_status run_set(accept *a, int32_t set, int32_t arm, kk_err *err) {
    const kk_accept_opts *o = a->opts;
    const kk_promptset *s = &a->set[set];
    size_t before = 0;
    for (int32_t i = 0; i < set; i++) before += a->set[i].n;
    for (size_t i = 0; i < s->n; i++) {
        if (!a->taken[before + i]) continue;
        if (o->on_prompt && !o->on_prompt(o->user, s->name, (int32_t)i, (int32_t)s->n))
            return kk_fail(err, KK_ESTOPPED, "stopped in the set %s", s->name);
        record *plain = &a->plain[set][i];
        if (arm == 0) KK_TRY(continue_plainly(a, &s->prompts[i], plain, err));
        KK_TRY(continue_drafted(a, set, &s->prompts[i], plain, arm, err));
    }
    return KK_OK;
}

static kk_status open_arm(accept *a, int32_t arm, kk_err *err) {
    const kk_accept_opts *o = a->opts;
    kk_engine_opts how = o->engine;
    if (o->other_scale) how.draft_embed_scale = arm ? o->other_scale : "once";
    KK_TRY(kk_engine_open(&a->engine, &how, err));
    kk_engine_info(a->engine, &a->out->model);
    (void)kk_engine_drafter(a->engine, &a->out->drafter[arm]);
    kk_engine_fingerprints(a->engine, &a->out->prints);
    return arm == 0 ? read_sets(a, kk_engine_tokenizer(a->engine), err) : KK_OK;
}

/* What the engines of all arms counted. */
static void add_ties(accept *a) {
    const int64_t choices = a->out->device.choices, near = a->out->device.near_ties;
    kk_engine_device(a->engine, &a->out->device);
    a->out->device.choices += choices;
    a->out->device.near_ties += near;
}

static void sum_up(kk_accept_figures *f) {
    const kk_spec_stats *t = &f->spec;
    f->rate = t->drafted ? (double)t->accepted / (double)t->drafted : 0;
    f->length = t->rounds ? (double)(t->accepted + t->rounds) / (double)t->rounds : 0;
}

static kk_status run(accept *a, kk_err *err) {
    kk_accept_result *r = a->out;
    for (int32_t arm = 0; arm < r->n_arms; arm++) {
        KK_TRY(open_arm(a, arm, err));
        for (int32_t i = 0; i < r->n_sets; i++) KK_TRY(run_set(a, i, arm, err));
        for (int32_t i = 0; i < r->n_sets; i++) sum_up(&r->set[i].arm[arm]);
        sum_up(&r->all.arm[arm]);
        r->lossless = r->lossless && r->all.arm[arm].different == 0;
        add_ties(a);
        kk_engine_close(a->engine);
        a->engine = NULL;
    }
    return KK_OK;
}

static kk_status check(const kk_accept_opts *o, kk_err *err) {
    if (!o->names == !o->file)
        return kk_fail(err, KK_EINVAL, "either named sets or a file of prompts");
    if (o->samples < 1 || o->samples > KK_PROMPTSET_MOST)
        return kk_fail(err, KK_EINVAL, "%d prompts of a set; 1 to %d are possible", o->samples,
                       KK_PROMPTSET_MOST);
    if (o->session.spec == KK_SPEC_NONE)
        return kk_fail(err, KK_EINVAL, "nothing is drafted without a proposer");
    if (!o->engine.drafter && (o->session.spec != KK_SPEC_NGRAM || o->other_scale))
        return kk_fail(err, KK_EINVAL, "drafting with dflash needs a drafter, and none is loaded");
    return KK_OK;
}

kk_status kk_accept_run(const kk_accept_opts *opts, kk_accept_result *out, kk_err *err) {
    *out = (kk_accept_result){.n_arms = opts->other_scale ? 2 : 1, .lossless = true};
    KK_TRY(check(opts, err));
    kk_machine_info(&out->machine);
    accept a = {.opts = opts, .out = out};
    const kk_status st = run(&a, err);
    for (int32_t i = 0; i < KK_ACCEPT_SETS; i++) {
        for (size_t j = 0; a.plain[i] && j < a.set[i].n; j++) kk_free(a.plain[i][j].ids);
        kk_free(a.plain[i]);
        kk_promptset_free(&a.set[i]);
    }
    kk_free(a.taken);
    kk_engine_close(a.engine);
    if (st != KK_OK) kk_accept_release(out);
    return st;
}

void kk_accept_release(kk_accept_result *r) {
    kk_free(r->row);
    *r = (kk_accept_result){0};
}
