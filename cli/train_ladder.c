/* train_ladder.c - see train_ladder.h.  Tables go to stdout, the progress to stderr. */
#define _GNU_SOURCE
#include "cli/train_ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/eval_sweep.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/measure/devices.h"
#include "eval/reports/report.h"

enum { SEED = 42 }; /* of an evaluation: those of trainings begin at 1000 */

/* ---- before ------------------------------------------------------------------------------ */

static void note(ladder_run *l, const char *what, bool holds, const char *text) {
    printf("check     %-8s %s  %s\n", what, holds ? "PASS" : "FAIL", text);
    fflush(stdout);
    json_array_append_new(l->checks, json_pack("{s:s, s:b, s:o}", "check", what, "holds", holds,
                                               "text", output_text(text, strlen(text))));
}

static void ignore(void *user, const char *tensor, int64_t count) {
    (void)count;
    char *first = user;
    if (!*first) snprintf(first, 200, "%s", tensor);
}

static int check_weights(ladder_run *l) {
    char text[600], first[200] = "";
    int64_t bad = 0;
    kk_err err;
    if (kk_model_check(l->needle.engine.model, ignore, first, &bad, &err) != KK_OK) {
        note(l, "weights", false, err.msg);
        return output_error(&err);
    }
    if (bad)
        snprintf(text, sizeof text, "%s values of '%.300s' are not finite, the first in %s",
                 term_count(bad).text, l->needle.engine.model, first);
    else
        snprintf(text, sizeof text, "every value of '%.400s' is finite", l->needle.engine.model);
    note(l, "weights", bad == 0, text);
    return bad ? output_failed("weights are not finite", "Download or convert the model again.")
               : EXIT_DONE;
}

/* The device that is named, or the one that rebuilding takes. */
static int check_device(ladder_run *l) {
    const char *name = l->needle.engine.device ? l->needle.engine.device : "cpu";
    kk_device_state d = {.name = name};
    char text[400];
    for (size_t i = 0; i < KK_DEVICE_KINDS; i++)
        if (strcmp(kk_device_kind_name(i), name) == 0) kk_device_probe(i, &d);
    if (d.usable)
        snprintf(text, sizeof text, "%s, %s, %d threads", name, d.isa, d.threads);
    else
        snprintf(text, sizeof text, "%s is %s%s%.240s", name,
                 d.built ? "not usable here" : "not in this build", d.why[0] ? ": " : "",
                 flags_for(d.why).text);
    note(l, "device", d.usable, text);
    return d.usable ? EXIT_DONE
                    : output_failed("the device cannot be used", "'kakeya doctor' shows devices.");
}

static int check_documents(ladder_run *l) {
    char text[400];
    int32_t ctx;
    kk_err err;
    const kk_status st = kk_needle_fits(&l->needle, &ctx, &err);
    if (st == KK_OK)
        snprintf(text, sizeof text, "the longest document needs a context of %s tokens",
                 term_count(ctx).text);
    else
        snprintf(text, sizeof text, "%.300s", flags_for(err.msg).text);
    note(l, "ladder", st == KK_OK, text);
    if (st == KK_OK) return EXIT_DONE;
    return err.code == KK_ECONTEXT ? output_failed(err.msg, NULL) : loader_failed(l->load, &err);
}

int ladder_check(ladder_run *l) {
    l->checks = json_array();
    int code = check_weights(l);
    if (code == EXIT_DONE) code = check_device(l);
    if (code == EXIT_DONE) code = check_documents(l);
    return code;
}

/* ---- the climb --------------------------------------------------------------------------- */

static bool on_event(void *user, const kk_needle_event *e) {
    const ladder_run *l = user;
    const bool shows = e->moment == KK_NEEDLE_READING || e->moment == KK_NEEDLE_COMPARED;
    if (!l->quiet && shows && term_controls(stderr)) {
        const double share = 100.0 * (double)e->done / (double)e->total;
        if (e->moment == KK_NEEDLE_COMPARED)
            fprintf(stderr, "\r\033[Kordinary text: %.0f %% compared", share);
        else
            fprintf(stderr, "\r\033[K%s, %d lines: document %d of %d, %.0f %% read",
                    kk_needle_way_name(e->arm->way), e->rung->lines, e->sample->number + 1,
                    l->args->samples, share);
        fflush(stderr);
    }
    return term_signal() == 0;
}

static void report_path(const ladder_run *l, int32_t lines, char *to, size_t cap) {
    snprintf(to, cap, "%s/needle-%d.json", l->out, lines);
}

static void print_rung(const ladder_run *l, const kk_ladder_rung *r) {
    char path[4200];
    if (!r->run) {
        printf("rung  %6d  not run\n", r->lines);
        return;
    }
    report_path(l, r->lines, path, sizeof path);
    printf("rung  %6d %8.0f %7.2f %9.2f %9.5f %7.2fx  %s  %s\n", r->lines, r->tokens,
           r->recall_exact, r->recall, r->mean_kl, r->kv_ratio, r->holds ? "PASS" : "FAIL", path);
    for (int32_t i = 0; i < r->n_checks; i++)
        if (!r->check[i].holds)
            printf("              %s: %s is %.4g, and the limit is %.4g\n", r->check[i].arm,
                   r->check[i].figure, r->check[i].value, r->check[i].limit);
    fflush(stdout);
}

static kk_status on_rung(void *user, const kk_ladder_rung *rung, const kk_needle_opts *opts,
                         const kk_needle_result *result, kk_err *err) {
    const ladder_run *l = user;
    const kk_writer_opts how = {.replace = l->force};
    char path[4200];
    kk_writer *to;
    if (!l->quiet && term_controls(stderr)) fputs("\r\033[K", stderr);
    report_path(l, rung->lines, path, sizeof path);
    kk_status st = kk_writer_open(&to, path, &how, err);
    if (st != KK_OK) return st;
    st = kk_needle_write(to, opts, result, &l->args->limits, err);
    kk_writer_close(to);
    if (st == KK_OK) print_rung(l, rung);
    return st;
}

/* ---- --json ------------------------------------------------------------------------------ */

static json_t *rung_json(const ladder_run *l, const kk_ladder_rung *r) {
    char path[4200];
    report_path(l, r->lines, path, sizeof path);
    if (!r->run) return json_pack("{s:i, s:b}", "lines", r->lines, "run", 0);
    json_t *failed = json_array();
    for (int32_t i = 0; i < r->n_checks; i++)
        if (!r->check[i].holds) json_array_append_new(failed, json_string(r->check[i].figure));
    return json_pack("{s:i, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "lines", r->lines, "run",
                     1, "holds", r->holds, "failed", failed, "tokens", output_real(r->tokens),
                     "recall_exact", output_real(r->recall_exact), "recall", output_real(r->recall),
                     "mean_kl", output_real(r->mean_kl), "kv_ratio", output_real(r->kv_ratio),
                     "report", path);
}

/* One object with what was looked at, what was trained and every rung. */
static int write_json(const ladder_run *l, const kk_ladder_rung *rungs, bool holds, json_t *trained,
                      const char *path) {
    json_t *list = json_array();
    for (int32_t i = 0; i < l->needle.n_rungs; i++)
        json_array_append_new(list, rung_json(l, &rungs[i]));
    json_t *all = json_pack("{s:b, s:O, s:O?, s:o}", "holds", holds, "checks", l->checks,
                            "training", trained, "rungs", list);
    kk_writer *to;
    kk_err err;
    kk_status st = kk_writer_open(&to, path, NULL, &err);
    if (st != KK_OK) {
        json_decref(all);
        return output_error(&err);
    }
    st = kk_report_write(to, all, &err);
    kk_writer_close(to);
    return st == KK_OK ? EXIT_DONE : output_error(&err);
}

static int climb(ladder_run *l, json_t *trained, const char *json) {
    kk_ladder_rung rungs[KK_NEEDLE_RUNGS];
    const kk_ladder_opts o = {
        .needle = l->needle, .limits = l->args->limits, .on_rung = on_rung, .user = l};
    bool holds;
    kk_err err;
    printf("\n%12s %8s %7s %9s %9s %8s\n", "lines", "tokens", "exact", "restored", "mean KL",
           "K/V less");
    const kk_status st = kk_ladder_climb(&o, rungs, &holds, &err);
    if (!l->quiet && term_controls(stderr)) fputs("\r\033[K", stderr);
    if (st != KK_OK)
        return err.code == KK_ECONTEXT ? output_failed(err.msg, NULL)
                                       : loader_failed(l->load, &err);
    for (int32_t i = 0; i < l->needle.n_rungs; i++)
        if (!rungs[i].run) print_rung(l, &rungs[i]);
    fflush(stdout);
    const int code = json ? write_json(l, rungs, holds, trained, json) : EXIT_DONE;
    if (code != EXIT_DONE || holds) return code;
    return output_failed("a rung of the ladder failed", "The report of the rung has every answer.");
}

int ladder_climb(ladder_run *l, json_t *trained, const char *json) {
    l->needle.engine.projection = l->out;
    l->needle.on_event = on_event;
    l->needle.user = l;
    const int code = climb(l, trained, json);
    json_decref(trained);
    return code;
}

/* ---- what is asked ----------------------------------------------------------------------- */

bool ladder_read(const verb *v, ladder_run *l, int *code) {
    const ladder_args *a = l->args;
    kk_needle_opts *n = &l->needle;
    if (!eval_read_ladder(v, a->rungs, n->ladder, &n->n_rungs, code)) return false;
    for (int32_t i = 1; i < n->n_rungs; i++)
        if (n->ladder[i] <= n->ladder[i - 1]) {
            *code = options_wrong(v, "--ladder takes rungs in ascending order; %d comes after %d",
                                  n->ladder[i], n->ladder[i - 1]);
            return false;
        }
    n->seed = SEED;
    n->samples = a->samples;
    n->predict = a->predict;
    n->text_tokens = a->text_tokens;
    return true;
}

void ladder_release(ladder_run *l) {
    json_decref(l->checks);
    l->checks = NULL;
}
