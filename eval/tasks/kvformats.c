/* kvformats.c - rows stored and read again, and sessions that live with it. */
#include "eval/tasks/kvformats.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "eval/reports/report.h"
#include "eval/tasks/sweep_rows.h"

/* ---- one run ----------------------------------------------------------------------------- */

/* What one format gave. */
typedef struct {
    kk_kv_format format;
    kk_row_errors errors;
    int64_t values, stored_bytes;
    kk_ask_result asked;
} found;

typedef struct {
    const kk_kvformats_opts *opts;
    kk_engine *engine;
    kk_ask_set set;
    kk_quality_source source;
    kk_quality_texts texts;
    found *found;
    int32_t n, done;
    kk_kvformats_result *out;
} formats;

static bool go_on(void *user) {
    const formats *f = user;
    return !f->opts->tell || f->opts->tell(f->opts->user, f->done, f->n);
}

static bool on_text(void *user, const kk_quality_text *text, int32_t done) {
    (void)text, (void)done;
    return go_on(user);
}

static kk_session_opts session_of(kk_kv_format f) {
    return (kk_session_opts){.kv_format = f, .spec = KK_SPEC_NONE};
}

/* ---- rows stored and read again ---------------------------------------------------------- */

void kk_kvformats_round_trip(kk_kv_format f, const float *x, float *y, int32_t n, uint8_t *block) {
    const kk_kv_format_info *info = kk_kv_format_get(f);
    const kk_kv_place place = kk_kv_row_place(f, n, 1, 0);
    info->pack(x, n, block, place);
    info->unpack(y, n, block, place);
}

/* rows: 3 n floats, of which the first n are the row. */
static void compare_row(formats *f, int32_t layer, float *rows, size_t n) {
    const float *x = rows;
    float *y = rows + n;
    for (int32_t i = 0; i < f->n; i++) {
        kk_kvformats_round_trip(f->found[i].format, x, y, (int32_t)n, (uint8_t *)(y + n));
        kk_squares_add(&f->found[i].errors.layer[layer].sum, y, x, n);
        f->found[i].errors.layer[layer].counted = true;
        f->found[i].values += (int64_t)n;
    }
}

/* The rows of one page, of one layer. */
static void compare_page(formats *f, const kk_kv_layout *l, int32_t layer, const kk_cache_page *p,
                         float *rows) {
    const kk_kv_slot *slot = &l->slot[layer];
    const size_t dim = (size_t)slot->head_dim;
    for (int32_t part = slot->k_eq_v; part < 2; part++)
        for (int32_t h = 0; h < slot->n_kv_head; h++)
            for (int32_t row = 0; row < p->rows; row++) {
                kk_page_row_floats(slot, p->data, part ? slot->v_off : slot->k_off, h, row, rows);
                compare_row(f, layer, rows, dim);
            }
    for (int32_t i = 0; i < f->n; i++) f->found[i].errors.rows += p->rows;
}

static void compare_kind(formats *f, const kk_session *s, kk_kind kind, float *rows) {
    const kk_pages *pages = &f->engine->pages;
    for (int64_t i = 0; i < kk_cache_page_count(s->cache, kind); i++) {
        const kk_cache_page page = kk_cache_page_at(s->cache, kind, i);
        for (int32_t layer = 0; layer < s->layout->shape.n_layer; layer++)
            if (s->layout->shape.layer[layer].stores && s->layout->shape.layer[layer].kind == kind)
                compare_page(f, s->layout, layer, &page, rows);
        /* A page is KK_PAGE_ROWS rows of so many bytes, whatever the format. */
        for (int32_t c = 0; c < f->n; c++)
            f->found[c].stored_bytes +=
                (int64_t)pages->layout[f->found[c].format].page_bytes[kind] / KK_PAGE_ROWS *
                page.rows;
    }
}

static void begin(kk_row_errors *e, const kk_kv_shape *shape) {
    e->n_layer = shape->n_layer;
    for (int32_t i = 0; i < shape->n_layer; i++) e->layer[i].full = shape->layer[i].kind == KK_FULL;
}

static kk_status after_read(void *user, kk_session *s, kk_err *err) {
    formats *f = user;
    size_t widest = 0;
    for (int32_t i = 0; i < s->layout->shape.n_layer; i++)
        if ((size_t)s->layout->shape.layer[i].head_dim > widest)
            widest = (size_t)s->layout->shape.layer[i].head_dim;
    float *rows = kk_calloc(3 * widest, sizeof *rows);
    if (!rows) return kk_fail(err, KK_ENOMEM, "no memory for a row of %zu values", widest);
    for (int32_t i = 0; i < f->n; i++) begin(&f->found[i].errors, &s->layout->shape);
    compare_kind(f, s, KK_SLIDING, rows);
    compare_kind(f, s, KK_FULL, rows);
    kk_free(rows);
    return KK_OK;
}

/* ---- sessions of the format -------------------------------------------------------------- */

static kk_status ask(formats *f, int32_t i, kk_err *err) {
    const kk_ask_how how = {.engine = f->engine,
                            .session = session_of(f->found[i].format),
                            .predict = f->opts->predict,
                            .after_read = i == 0 ? after_read : NULL,
                            .go_on = go_on,
                            .user = f};
    KK_TRY(kk_ask_all(&f->found[i].asked, &f->set, &how, err));
    f->done++;
    return KK_OK;
}

static kk_status compare(formats *f, kk_err *err) {
    const kk_session_opts exact = session_of(f->found[0].format);
    kk_session_opts arm[KK_KV_FORMATS + 1];
    kk_ask_result *out[KK_KV_FORMATS + 1];
    for (int32_t i = 0; i < f->n; i++) {
        arm[i] = session_of(f->found[i].format);
        out[i] = &f->found[i].asked;
    }
    const kk_quality_opts how = {.engine = f->engine,
                                 .exact = &exact,
                                 .arms = arm,
                                 .n_arms = f->n,
                                 .predict = f->opts->predict,
                                 .on_rows = on_text,
                                 .user = f};
    return kk_ask_quality(&how, &f->texts, out, err);
}

/* ---- the report -------------------------------------------------------------------------- */

static json_t *row_json(const formats *f, int32_t i) {
    const found *one = &f->found[i];
    const kk_kvformats_row *row = &f->out->row[i];
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:o}", "format", kk_kv_format_name(one->format), "values",
        (json_int_t)one->values, "stored_bytes", (json_int_t)one->stored_bytes, "bits",
        kk_report_real(row->bits), "rel_mse", kk_row_errors_ratios(&one->errors, 1), "layers",
        kk_row_errors_layers(&one->errors));
    if (!o) return NULL;
    kk_ask_into(o, &f->set, &one->asked);
    json_object_set_new(o, "bytes", kk_report_bytes(one->asked.bytes));
    return o;
}

static json_t *settings_json(const formats *f) {
    json_t *names = json_array(), *ladder = json_array();
    for (int32_t i = 0; i < f->n; i++)
        json_array_append_new(names, json_string(kk_kv_format_name(f->found[i].format)));
    for (int32_t i = 0; i < f->opts->draw.n_rungs; i++)
        json_array_append_new(ladder, json_integer(f->opts->draw.ladder[i]));
    return json_pack("{s:o, s:o, s:i, s:I, s:i, s:s, s:s, s:o}", "formats", names, "ladder", ladder,
                     "samples", f->opts->draw.samples, "seed", (json_int_t)f->opts->draw.seed,
                     "predict", f->opts->predict, "kv_sliding", "native", "kv_full", "exact",
                     "texts", kk_quality_texts_json(&f->texts, &f->source));
}

static json_t *report_json(const formats *f) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < f->n; i++) json_array_append_new(rows, row_json(f, i));
    json_t *body = json_pack("{s:o, s:o, s:o}", "settings", settings_json(f), "files",
                             kk_quality_files_json(&f->source), "rows", rows);
    return kk_report_new(
        "kv", kk_report_join(kk_report_run(f->engine, &f->opts->engine, f->opts->command), body));
}

static void sum_up(formats *f) {
    f->out->n_rows = f->n;
    for (int32_t i = 0; i < f->n; i++) {
        const found *one = &f->found[i];
        kk_kvformats_row *r = &f->out->row[i];
        *r = (kk_kvformats_row){.format = kk_kv_format_name(one->format),
                                .values = one->values,
                                .stored_bytes = one->stored_bytes,
                                .bits = 8.0 * (double)one->stored_bytes / (double)one->values,
                                .recall = (double)one->asked.hits / one->asked.n,
                                .mean_kl = one->asked.sum.mean_kl,
                                .worst_kl = one->asked.sum.worst_kl};
        for (int k = 0; k < KK_ERRORS_OF; k++)
            r->rel_mse[k] = kk_row_errors_ratio(&one->errors, (kk_errors_of)k);
        memcpy(r->bytes, one->asked.bytes, sizeof r->bytes);
    }
}

/* ---- all of it --------------------------------------------------------------------------- */

static kk_status choose(formats *f, kk_err *err) {
    const kk_kvformats_opts *o = f->opts;
    if (o->n_formats < 1 || o->n_formats > KK_KV_FORMATS)
        return kk_fail(err, KK_EINVAL, "%d formats; 1 to %d are possible", o->n_formats,
                       KK_KV_FORMATS);
    if (o->predict < 1) return kk_fail(err, KK_EINVAL, "answers of %d tokens", o->predict);
    f->found = kk_calloc((size_t)o->n_formats + 1, sizeof *f->found);
    if (!f->found) return kk_fail(err, KK_ENOMEM, "no memory for %d formats", o->n_formats);
    f->found[f->n++].format = KK_KV_F32;
    for (int32_t i = 0; i < o->n_formats; i++)
        if (o->format[i] != KK_KV_F32) f->found[f->n++].format = o->format[i];
    return KK_OK;
}

static kk_status prepare(formats *f, kk_err *err) {
    kk_model_info model;
    KK_TRY(kk_engine_open(&f->engine, &f->opts->engine, err));
    /* Formats that this model's heads do not fit are refused before anything is computed. */
    for (int32_t i = 0; i < f->n; i++) {
        const kk_session_opts how = session_of(f->found[i].format);
        kk_session *tried;
        KK_TRY(kk_session_new(&tried, f->engine, &how, err));
        kk_session_free(tried);
    }
    KK_TRY(kk_ask_documents(&f->set, f->engine, &f->opts->draw, err));
    kk_engine_info(f->engine, &model);
    if (kk_ask_longest(&f->set) + f->opts->predict > model.context)
        return kk_fail(err, KK_ECONTEXT,
                       "the longest document needs a context of %d tokens, and this model takes at "
                       "most %d: leave that rung out",
                       kk_ask_longest(&f->set) + f->opts->predict, model.context);
    f->source = f->opts->source;
    f->source.tok = kk_engine_tokenizer(f->engine);
    f->source.from = 0;
    return kk_quality_read(&f->texts, &f->source, err);
}

static kk_status run(formats *f, kk_err *err) {
    KK_TRY(choose(f, err));
    KK_TRY(prepare(f, err));
    for (int32_t i = 0; i < f->n; i++) KK_TRY(ask(f, i, err));
    KK_TRY(compare(f, err));
    sum_up(f);
    f->out->report = report_json(f);
    return f->out->report ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for the report");
}

kk_status kk_kvformats_run(const kk_kvformats_opts *opts, kk_kvformats_result *out, kk_err *err) {
    *out = (kk_kvformats_result){.n_rows = 0};
    formats f = {.opts = opts, .out = out};
    const kk_status st = run(&f, err);
    for (int32_t i = 0; i < f.n; i++) kk_ask_release(&f.found[i].asked);
    kk_free(f.found);
    kk_quality_free(&f.texts);
    kk_ask_free(&f.set);
    kk_engine_close(f.engine);
    if (st != KK_OK) kk_kvformats_release(out);
    return st;
}

void kk_kvformats_release(kk_kvformats_result *r) {
    json_decref(r->report);
    *r = (kk_kvformats_result){.n_rows = 0};
}

kk_status kk_kvformats_write(kk_writer *to, const kk_kvformats_result *r, kk_err *err) {
    return kk_report_write(to, json_incref(r->report), err);
}
