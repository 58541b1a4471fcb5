/* accept_report.c - acceptance by kinds of text as one JSON object in a file. */
#include "eval/reports/report.h"
#include "eval/tasks/accept.h"

static json_t *figures_json(const kk_accept_result *r, const char *set, int32_t arm,
                            const kk_accept_figures *f) {
    const kk_spec_stats *t = &f->spec;
    const kk_drafter_info *d = &r->drafter[arm];
    json_t *of = json_pack("{s:s, s:s, s:s?}", "set", set, "arm", kk_spec_name(r->spec),
                           "embed_scale", r->spec == KK_SPEC_DFLASH ? d->embed_scale : NULL);
    json_t *counts = json_pack(
        "{s:i, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:b, s:i}", "prompts", f->prompts, "tokens",
        (json_int_t)f->tokens, "rounds", (json_int_t)t->rounds, "drafted", (json_int_t)t->drafted,
        "accepted", (json_int_t)t->accepted, "rate", kk_report_real(f->rate), "length",
        kk_report_real(f->length), "histogram", kk_report_counts(t->histogram), "lossless",
        f->different == 0, "different", f->different);
    if (of && counts) json_object_update(of, counts);
    json_decref(counts);
    return of;
}

static json_t *settings_json(const kk_accept_opts *o, const kk_accept_result *r) {
    const kk_sampling *s = &o->sampling;
    return json_pack(
        "{s:s, s:i, s:b, s:i, s:i, s:i, s:s, s:s?, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:I}",
        "spec", kk_spec_name(r->spec), "draft_max", o->session.draft_max, "draft_fixed", 1,
        "draft_ctx", o->session.draft_ctx, "samples", o->samples, "predict", o->predict,
        "kv_format", kk_kv_format_name(o->session.kv_format), "other_scale", o->other_scale, "temp",
        kk_report_real((double)s->temp), "top_k", s->top_k, "top_p",
        kk_report_real((double)s->top_p), "min_p", kk_report_real((double)s->min_p),
        "repeat_penalty", kk_report_real((double)s->repeat_penalty), "presence_penalty",
        kk_report_real((double)s->presence_penalty), "frequency_penalty",
        kk_report_real((double)s->frequency_penalty), "penalty_last_n", s->penalty_last_n, "seed",
        (json_int_t)s->seed);
}

static json_t *rows_json(const kk_accept_result *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_rows; i++) {
        const kk_accept_row *w = &r->row[i];
        const char *scale = r->spec == KK_SPEC_DFLASH ? r->drafter[w->arm].embed_scale : NULL;
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:s?, s:o, s:o, s:i, s:I, s:I, s:I, s:o, s:o, s:{s:o, s:o}}",
                      "set", r->set[w->set].name, "arm", kk_spec_name(r->spec), "embed_scale",
                      scale, "prompt", kk_report_hash(w->prompt), "text", kk_report_hash(w->text),
                      "tokens", w->tokens, "rounds", (json_int_t)w->spec.rounds, "drafted",
                      (json_int_t)w->spec.drafted, "accepted", (json_int_t)w->spec.accepted,
                      "tokens_hash", kk_report_hash(w->tokens_hash), "logits_hash",
                      kk_report_hash(w->logits_hash), "plain", "tokens_hash",
                      kk_report_hash(w->plain_tokens), "logits_hash",
                      kk_report_hash(w->plain_logits)));
    }
    return list;
}

json_t *kk_accept_report(const kk_accept_opts *opts, const kk_accept_result *r,
                         const char *command) {
    json_t *sets = json_array(), *all = json_array();
    for (int32_t arm = 0; arm < r->n_arms; arm++) {
        for (int32_t i = 0; i < r->n_sets; i++)
            json_array_append_new(sets, figures_json(r, r->set[i].name, arm, &r->set[i].arm[arm]));
        json_array_append_new(all, figures_json(r, "all", arm, &r->all.arm[arm]));
    }
    json_t *body = json_pack(
        "{s:s?, s:o, s:o, s:o, s:n, s:o, s:b, s:o, s:o, s:o}", "command", command, "machine",
        kk_report_machine(&r->machine, &r->device), "model",
        kk_report_printed(kk_report_model(&opts->engine, &r->model), r->prints.model), "drafter",
        kk_report_printed(kk_report_drafter(&r->drafter[0]), r->prints.drafter), "projection",
        "settings", settings_json(opts, r), "lossless", r->lossless, "sets", sets, "all", all,
        "rows", rows_json(r));
    if (body)
        json_object_set_new(body, "files",
                            kk_report_set_files(opts->folder, opts->names, opts->file));
    return kk_report_new("accept", body);
}

kk_status kk_accept_write(kk_writer *to, const kk_accept_opts *opts, const kk_accept_result *r,
                          const char *command, kk_err *err) {
    return kk_report_write(to, kk_accept_report(opts, r, command), err);
}
