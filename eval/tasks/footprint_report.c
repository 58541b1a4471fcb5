/* footprint_report.c - a table of footprints as a JSON report. */
#include "engine/saved.h"
#include "eval/reports/report.h"
#include "eval/tasks/footprint_parts.h"

static int32_t length_of(const kk_footprint *f, int32_t tokens) {
    int32_t i = 0;
    while (f->opts->tokens[i] != tokens) i++;
    return i;
}

static json_t *row_json(const kk_footprint *f, const kk_footprint_row *r) {
    const kk_footprint_policy *p = &f->policy[r->policy];
    const kk_session_opts *s = &p->session;
    const int32_t length = length_of(f, r->tokens);
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:i, s:b, s:o}", "policy", p->name, "kv_sliding",
        kk_saved_policy(KK_SLIDING, s->kv_sliding), "kv_full", kk_saved_policy(KK_FULL, s->kv_full),
        "kv_format", kk_kv_format_name(s->kv_format), "rank",
        p->rank ? json_integer(p->rank) : json_null(), "latents",
        p->rank ? json_string(kk_kv_format_name(s->latents)) : json_null(), "draft_ctx",
        s->draft_ctx ? json_integer(s->draft_ctx) : json_null(), "tokens", r->tokens, "filled",
        f->fill, "bytes", kk_report_bytes(r->bytes));
    if (!o) return NULL;
    kk_ask_into(o, &f->set[length], kk_footprint_asked(f, length, r->policy));
    /* Of the session whose bytes these are. */
    json_object_set_new(o, "restored_rows", json_integer(r->restored_rows));
    return o;
}

static json_t *growth_json(const kk_footprint *f, const kk_footprint_growth *g) {
    const kk_footprint_opts *o = f->opts;
    json_t *categories = json_pack("[s, s]", kk_mem_category_name(KK_MEM_KV_FULL),
                                   kk_mem_category_name(KK_MEM_KV_LATENTS));
    if (g->drafter)
        json_array_append_new(categories, json_string(kk_mem_category_name(KK_MEM_KV_DRAFTER)));
    json_t *j = json_pack("{s:s, s:i, s:i, s:o, s:o}", "policy", f->policy[g->policy].name, "from",
                          o->tokens[0], "to", o->tokens[o->n_lengths - 1], "categories", categories,
                          "bytes_per_token", kk_report_real(g->bytes_per_token));
    if (!j || g->against < 0) return j;
    json_object_set_new(j, "against", json_string(f->policy[g->against].name));
    json_object_set_new(j, "ratio", kk_report_real(g->ratio));
    return j;
}

/* The session's own defaults, where nothing else was said. */
static int32_t chosen(int32_t value, int32_t standard) {
    return value == 0 ? standard : value < 0 ? 0 : value;
}

static json_t *settings_json(const kk_footprint *f) {
    const kk_footprint_opts *o = f->opts;
    json_t *tokens = json_array();
    for (int32_t i = 0; i < o->n_lengths; i++)
        json_array_append_new(tokens, json_integer(o->tokens[i]));
    json_t *s = json_pack("{s:o, s:i, s:i, s:i, s:o, s:b, s:b, s:O}", "tokens", tokens, "sink",
                          chosen(o->session.sink, 4), "window", chosen(o->session.window, 64),
                          "chunk", chosen(o->session.chunk, 64), "draft_ctx",
                          o->draft_ctx ? json_integer(o->draft_ctx) : json_null(), "filled",
                          f->fill, "quality", o->quality, "left_out", f->left_out);
    if (!s || !o->quality) return s;
    json_object_set_new(s, "samples", json_integer(o->samples));
    json_object_set_new(s, "seed", json_integer((json_int_t)o->seed));
    json_object_set_new(s, "predict", json_integer(o->predict));
    json_object_set_new(s, "text", json_string(f->text.name));
    /* Lines of the rung that documents of each length were drawn from. */
    json_t *ladder = json_array();
    for (int32_t i = 0; i < o->n_lengths; i++)
        json_array_append_new(ladder, json_integer(f->ladder[i]));
    json_object_set_new(s, "ladder", ladder);
    return s;
}

json_t *kk_footprint_report(kk_footprint *f) {
    const kk_footprint_result *r = f->out;
    json_t *rows = json_array(), *growth = json_array();
    for (int32_t i = 0; i < r->n_rows; i++) json_array_append_new(rows, row_json(f, &r->row[i]));
    for (int32_t i = 0; i < r->n_growths; i++)
        json_array_append_new(growth, growth_json(f, &r->growth[i]));
    json_t *body = json_pack("{s:o, s:O, s:o, s:o}", "settings", settings_json(f), "projections",
                             f->projections, "growth", growth, "rows", rows);
    if (body && !f->fill)
        json_object_set_new(body, "files", kk_quality_files_json(&f->opts->source));
    json_t *run = f->run;
    f->run = NULL;
    return kk_report_new("memory", kk_report_join(run, body));
}
