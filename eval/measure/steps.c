/* steps.c - runs the documents, then the turns, and judges both steps; see steps.h. */
#include "eval/measure/steps.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "eval/measure/bench_parts.h"
#include "eval/reports/gate_rules.h"
#include "eval/reports/report.h"

const char *kk_steps_arm(int32_t step) { return step ? "drafted" : "restored"; }

static const kk_needle_limits no_limits = {-1, -1, -1};

static kk_needle_limits limits_of(const kk_steps_opts *o) {
    kk_needle_limits l = no_limits;
    l.max_kl = o->max_kl;
    return l;
}

/* ---- documents ---------------------------------------------------------------------------- */

static bool on_needle(void *user, const kk_needle_event *e) {
    const kk_steps_opts *o = user;
    char what[120];
    if (!o->on_step) return true;
    if (e->moment == KK_NEEDLE_COMPARED)
        snprintf(what, sizeof what, "comparing ordinary text, %.0f %%",
                 100.0 * (double)e->done / (double)e->total);
    else
        snprintf(what, sizeof what, "%s, document %d of %d", kk_needle_way_name(e->arm->way),
                 e->sample->number + 1, o->samples);
    const bool next = e->moment == KK_NEEDLE_COMPARED || e->moment == KK_NEEDLE_READING;
    return o->on_step(o->user, next ? what : NULL);
}

static kk_needle_opts needle_opts(const kk_steps_opts *o) {
    kk_needle_opts n = {.engine = o->engine,
                        .session = o->keep,
                        .arms = {KK_NEEDLE_EXACT, KK_NEEDLE_RESTORED, KK_NEEDLE_DRAFTED},
                        .n_arms = 3,
                        .seed = o->seed,
                        .samples = o->samples,
                        .ladder = {o->lines},
                        .n_rungs = 1,
                        .predict = o->predict,
                        .prompts = o->prompts,
                        .texts = o->texts,
                        .n_texts = o->n_texts,
                        .text_tokens = o->text_tokens,
                        .command = o->command,
                        .on_event = on_needle,
                        .user = (void *)(uintptr_t)o};
    n.session.kv_format = o->kv_format;
    n.session.spec = KK_SPEC_NONE;
    n.session.draft_max = o->draft_max;
    n.session.draft_fixed = o->draft_fixed;
    n.session.draft_ctx = o->draft_ctx;
    n.session.kv_sliding = o->way == KK_BENCH_RESTORED_FULL ? KK_KEEP_ALL : KK_KEEP_RESTORED;
    n.session.kv_full = o->way == KK_BENCH_RESTORED_SLIDING ? KK_KEEP_ALL : KK_KEEP_RESTORED;
    return n;
}

/* ---- turns -------------------------------------------------------------------------------- */

static kk_bench_opts bench_opts(const kk_steps_opts *o, int32_t ctx) {
    kk_bench_opts b = {.engine = o->engine,
                       .kv_format = o->kv_format,
                       .ctx = ctx,
                       .predict = o->predict,
                       .repeat = o->turns,
                       .sets = o->sets,
                       .folder = o->prompts,
                       .draft_max = o->draft_max,
                       .draft_ctx = o->draft_ctx,
                       .draft_fixed = o->draft_fixed,
                       .keep = o->keep,
                       .on_step = o->on_step,
                       .user = o->user};
    b.ways[KK_BENCH_EXACT] = b.ways[o->way] = true;
    return b;
}

static kk_status time_with(const kk_bench_opts *b, kk_engine *e, kk_bench_result *out,
                           kk_err *err) {
    kk_engine_info(e, &out->model);
    kk_engine_device(e, &out->device);
    if (!kk_engine_drafter(e, &out->drafter))
        return kk_fail(err, KK_EINVAL, "step 2 drafts, and there is no drafter");
    if (!kk_engine_projection(e, &out->restores))
        return kk_fail(err, KK_EINVAL, "both steps rebuild rows, and there is no projection");
    KK_TRY(kk_bench_policies_check(b, e, err));
    return kk_bench_policies(b, e, out, err);
}

static kk_status time_turns(const kk_steps_opts *o, int32_t ctx, kk_bench_result *out,
                            kk_err *err) {
    const kk_bench_opts b = bench_opts(o, ctx);
    kk_engine *e;
    KK_TRY(kk_engine_open(&e, &o->engine, err));
    const kk_status st = time_with(&b, e, out, err);
    kk_engine_close(e);
    return st;
}

/* ---- the steps ---------------------------------------------------------------------------- */

/* Six digits of a limit, which is all that a report keeps of it. */
static void add_check(kk_steps_result *r, const char *figure, int32_t step, double value,
                      double limit, bool at_least) {
    const double slack = 1e-6 * fabs(limit) + 1e-9;
    r->check[r->n_checks++] = (kk_needle_check){
        .figure = figure,
        .arm = kk_steps_arm(step),
        .limit = limit,
        .value = value,
        .holds = at_least ? value >= limit - slack : value <= limit + slack,
    };
}

static void judge(const kk_steps_opts *o, kk_steps_result *r) {
    const kk_needle_limits l = limits_of(o);
    const kk_bench_turns *exact = &r->bench->policy[0].plain;
    const kk_bench_turns *step[KK_STEPS] = {&r->bench->policy[1].plain,
                                            &r->bench->policy[1].dflash};
    r->n_checks = kk_needle_judge(&r->needle, &l, r->check);
    r->tok_s[0] = exact->tok_s;
    for (int32_t i = 0; i < KK_STEPS; i++) {
        r->tok_s[i + 1] = step[i]->tok_s;
        r->speed[i] = exact->tok_s > 0 ? step[i]->tok_s / exact->tok_s : 0;
        add_check(r, "speed_ratio", i, r->speed[i], o->least_speed[i], true);
    }
    add_check(r, "different", 1, step[1]->different, 0, false);
    for (int32_t i = 0; i < KK_STEPS; i++) {
        r->holds[i] = true;
        for (int32_t k = 0; k < r->n_checks; k++)
            if (strcmp(r->check[k].arm, kk_steps_arm(i)) == 0) r->holds[i] &= r->check[k].holds;
    }
}

static kk_status check(const kk_steps_opts *o, kk_err *err) {
    if (o->way != KK_BENCH_RESTORED && o->way != KK_BENCH_RESTORED_SLIDING &&
        o->way != KK_BENCH_RESTORED_FULL)
        return kk_fail(err, KK_EINVAL, "steps are of a policy that rebuilds rows, not of %s",
                       kk_bench_way_name(o->way));
    if (o->turns < KK_GATE_SAMPLES || o->turns > KK_BENCH_MAX_REPEAT)
        return kk_fail(err, KK_EINVAL, "%d turns; %d to %d are possible", o->turns, KK_GATE_SAMPLES,
                       KK_BENCH_MAX_REPEAT);
    if (o->predict < KK_GATE_TOKENS)
        return kk_fail(err, KK_EINVAL, "turns of %d tokens; at least %d say something about speed",
                       o->predict, KK_GATE_TOKENS);
    if (!o->engine.projection || !o->engine.drafter)
        return kk_fail(err, KK_EINVAL,
                       "steps need a projection, which rebuilds rows, and a "
                       "drafter");
    return KK_OK;
}

kk_status kk_steps_run(const kk_steps_opts *opts, kk_steps_result *out, kk_err *err) {
    *out = (kk_steps_result){0};
    KK_TRY(check(opts, err));
    const kk_needle_opts documents = needle_opts(opts);
    KK_TRY(kk_needle_run(&documents, &out->needle, err));
    out->bench = kk_calloc(1, sizeof *out->bench);
    kk_status st = out->bench ? time_turns(opts, out->needle.ctx, out->bench, err)
                              : kk_fail(err, KK_ENOMEM, "no memory for measurements");
    if (st == KK_OK)
        judge(opts, out);
    else
        kk_steps_release(out);
    return st;
}

void kk_steps_release(kk_steps_result *r) {
    kk_needle_release(&r->needle);
    if (r->bench) kk_bench_release(r->bench);
    kk_free(r->bench);
    *r = (kk_steps_result){0};
}

/* ---- the report --------------------------------------------------------------------------- */

static json_t *gate_json(const kk_steps_result *r) {
    json_t *list = json_array();
    bool all = true;
    for (int32_t i = 0; i < r->n_checks; i++) {
        const kk_needle_check *c = &r->check[i];
        all &= c->holds;
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:o, s:b}", "figure", c->figure, "arm",
                                        c->arm, "limit", kk_report_real(c->limit), "value",
                                        kk_report_real(c->value), "holds", c->holds));
    }
    return json_pack("{s:b, s:o}", "holds", all, "checks", list);
}

static json_t *steps_json(const kk_steps_result *r) {
    json_t *list = json_array();
    for (int32_t i = 0; i < KK_STEPS; i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:o, s:b}", "step", i + 1, "arm",
                                              kk_steps_arm(i), "speed_ratio",
                                              kk_report_real(r->speed[i]), "holds", r->holds[i]));
    return list;
}

/* Settings of the documents, then of the turns; ctx and predict are of both. */
static json_t *settings_json(const kk_steps_opts *o, const kk_steps_result *r, const json_t *from) {
    const kk_bench_opts b = bench_opts(o, r->needle.ctx);
    json_t *s = json_deep_copy(json_object_get(from, "settings"));
    s = kk_report_join(s, kk_bench_policies_settings(&b, r->bench));
    return kk_report_join(s, json_pack("{s:i, s:o, s:o}", "repeat", o->turns, "min_restored_speed",
                                       kk_report_real(o->least_speed[0]), "min_drafted_speed",
                                       kk_report_real(o->least_speed[1])));
}

/* What the documents' texts and the turns were read from, each file once. */
static json_t *files_json(const kk_steps_opts *o, const json_t *needle) {
    json_t *all = json_deep_copy(json_object_get(needle, "files")), *file;
    json_t *more = kk_report_set_files(o->prompts, o->sets, NULL);
    size_t i;
    if (!all) all = json_array();
    json_array_foreach(more, i, file) {
        bool known = false;
        for (size_t k = 0; k < json_array_size(all); k++)
            known |= json_equal(json_array_get(all, k), file);
        if (!known) json_array_append(all, file);
    }
    json_decref(more);
    return all;
}

json_t *kk_steps_report(const kk_steps_opts *opts, const kk_steps_result *r) {
    static const char *const shared[] = {"arms", "load_s", "rungs", "quality", "sums"};
    const kk_needle_opts documents = needle_opts(opts);
    const kk_needle_limits l = limits_of(opts);
    const kk_bench_opts b = bench_opts(opts, r->needle.ctx);
    json_t *needle = kk_needle_report(&documents, &r->needle, &l);
    json_t *body = json_pack("{s:o, s:o, s:o}", "settings", settings_json(opts, r, needle), "steps",
                             steps_json(r), "gate", gate_json(r));
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        json_object_set(body, shared[i], json_object_get(needle, shared[i]));
    if (body) json_object_set_new(body, "files", files_json(opts, needle));
    json_decref(needle);
    if (body) json_object_set_new(body, "policies", kk_bench_policies_json(&b, r->bench));
    return kk_report_new("steps", kk_report_join(json_incref(r->needle.run), body));
}

kk_status kk_steps_write(kk_writer *to, const kk_steps_opts *opts, const kk_steps_result *r,
                         kk_err *err) {
    return kk_report_write(to, kk_steps_report(opts, r), err);
}
