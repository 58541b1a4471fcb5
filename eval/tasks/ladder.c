/* ladder.c - see ladder.h. */
#include "eval/tasks/ladder.h"

#include "core/error.h"

static void sum_up(const kk_ladder_opts *o, const kk_needle_result *r, kk_ladder_rung *out) {
    const kk_needle_rung *exact = &r->arm[0].rung[0], *own = &r->arm[1].rung[0];
    const double bytes = (double)kk_needle_kv_bytes(own);
    out->run = out->holds = true;
    out->tokens = own->tokens;
    out->recall_exact = exact->recall;
    out->recall = own->recall;
    out->mean_kl = r->arm[1].sum.mean_kl;
    out->kv_ratio = bytes > 0 ? (double)kk_needle_kv_bytes(exact) / bytes : 0;
    out->n_checks = kk_needle_judge(r, &o->limits, out->check);
    for (int32_t i = 0; i < out->n_checks; i++) out->holds &= out->check[i].holds;
}

static kk_status climb_one(const kk_ladder_opts *o, kk_ladder_rung *rung, kk_err *err) {
    kk_needle_opts one = o->needle;
    kk_needle_result result;
    one.n_rungs = 1;
    one.ladder[0] = rung->lines;
    one.n_arms = 2;
    one.arms[0] = KK_NEEDLE_EXACT;
    one.arms[1] = KK_NEEDLE_RESTORED;
    KK_TRY(kk_needle_run(&one, &result, err));
    sum_up(o, &result, rung);
    const kk_status st = o->on_rung ? o->on_rung(o->user, rung, &one, &result, err) : KK_OK;
    kk_needle_release(&result);
    return st;
}

kk_status kk_ladder_climb(const kk_ladder_opts *opts, kk_ladder_rung *rungs, bool *holds,
                          kk_err *err) {
    const int32_t n = opts->needle.n_rungs;
    *holds = false;
    if (n < 1 || n > KK_NEEDLE_RUNGS)
        return kk_fail(err, KK_EINVAL, "%d rungs; 1 to %d are possible", n, KK_NEEDLE_RUNGS);
    for (int32_t i = 0; i < n; i++) rungs[i] = (kk_ladder_rung){.lines = opts->needle.ladder[i]};
    for (int32_t i = 0; i < n; i++) {
        KK_TRY(climb_one(opts, &rungs[i], err));
        if (!rungs[i].holds) return KK_OK;
    }
    *holds = true;
    return KK_OK;
}
