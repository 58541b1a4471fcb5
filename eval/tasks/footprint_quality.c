/* footprint_quality.c - what sessions of every length are made of, and what they are good for. */
#include <stdio.h>
#include <string.h>

#include "eval/tasks/footprint_parts.h"

enum { COMPARED = 512 }; /* positions at the end of a text */

kk_ask_result *kk_footprint_asked(const kk_footprint *f, int32_t length, int32_t policy) {
    return &f->asked[(size_t)length * KK_FOOTPRINT_POLICIES + (size_t)policy];
}

void kk_footprint_forget(kk_footprint *f) {
    const size_t n = (size_t)KK_FOOTPRINT_POLICIES * (size_t)f->opts->n_lengths;
    for (size_t i = 0; f->asked && i < n; i++) kk_ask_release(&f->asked[i]);
    for (int32_t i = 0; i < KK_FOOTPRINT_LENGTHS; i++) kk_ask_free(&f->set[i]);
    kk_free(f->asked);
    kk_free(f->text.ids);
    json_decref(f->run);
    json_decref(f->projections);
    json_decref(f->left_out);
    f->asked = NULL;
    f->text.ids = NULL;
    f->run = f->projections = f->left_out = NULL;
}

/* One text after the other, and all of them again, until there are enough tokens. */
static kk_status join(kk_footprint *f, const kk_quality_texts *t, int32_t n, kk_err *err) {
    f->text.ids = kk_calloc((size_t)n, sizeof *f->text.ids);
    if (!f->text.ids) return kk_fail(err, KK_ENOMEM, "no memory for a text of %d tokens", n);
    int64_t once = 0;
    for (size_t i = 0; i < t->n; i++) once += t->texts[i].n;
    for (size_t i = 0; f->text.n < n; i = i + 1 < t->n ? i + 1 : 0) {
        const kk_quality_text *one = &t->texts[i];
        const int32_t left = n - f->text.n, take = one->n < left ? one->n : left;
        memcpy(f->text.ids + f->text.n, one->ids, (size_t)take * sizeof *one->ids);
        f->text.n += take;
    }
    snprintf(f->text.name, sizeof f->text.name, "%zu texts of %lld tokens", t->n, (long long)once);
    return KK_OK;
}

static kk_status read_text(kk_footprint *f, int32_t n, kk_err *err) {
    kk_quality_source source = f->opts->source;
    kk_quality_texts texts;
    source.tok = kk_engine_tokenizer(f->engine);
    source.from = 0;
    source.most = n;
    if (!source.tok)
        return kk_fail(err, KK_EINVAL,
                       "this model has no tokenizer, so it can read no text: --fill");
    KK_TRY(kk_quality_read(&texts, &source, err));
    const kk_status st = join(f, &texts, n, err);
    kk_quality_free(&texts);
    return st;
}

/* Rungs spread by 15 %, and the longest document is to fit. */
static kk_status draw(kk_footprint *f, int32_t length, kk_err *err) {
    kk_ask_draw how = {.n_rungs = 1, .samples = f->opts->samples, .seed = f->opts->seed};
    int32_t lines;
    KK_TRY(kk_ask_lines(f->engine, f->opts->tokens[length], &lines, err));
    how.ladder[0] = f->ladder[length] = (int32_t)((double)lines / 1.15);
    if (how.ladder[0] < KK_HAYSTACK_LEAST_LINES)
        return kk_fail(err, KK_EINVAL, "%d tokens are too few for a document with a needle",
                       f->opts->tokens[length]);
    return kk_ask_documents(&f->set[length], f->engine, &how, err);
}

kk_status kk_footprint_read(kk_footprint *f, kk_err *err) {
    if (f->fill) return KK_OK;
    KK_TRY(read_text(f, f->opts->tokens[f->opts->n_lengths - 1], err));
    for (int32_t i = 0; f->opts->quality && i < f->opts->n_lengths; i++) KK_TRY(draw(f, i, err));
    return KK_OK;
}

/* ---- recall and KL ----------------------------------------------------------------------- */

static bool go_on(void *user) { return kk_footprint_go_on(user); }

static bool on_text(void *user, const kk_quality_text *text, int32_t done) {
    (void)text, (void)done;
    return kk_footprint_go_on(user);
}

/* A bound on the drafter's context changes no token. */
static bool is_asked(const kk_footprint *f, int32_t engine, int32_t policy) {
    return f->policy[policy].engine == engine && !f->policy[policy].session.draft_ctx;
}

static kk_status compare(kk_footprint *f, int32_t engine, int32_t length, kk_err *err) {
    const kk_session_opts exact = {.kv_format = KK_KV_BF16};
    kk_session_opts arm[KK_FOOTPRINT_POLICIES];
    kk_ask_result *out[KK_FOOTPRINT_POLICIES];
    kk_quality_text text = f->text;
    text.n = f->opts->tokens[length];
    const int32_t from = text.n - 1 - COMPARED;
    kk_quality_texts texts = {.texts = &text, .n = 1};
    kk_quality_opts how = {.engine = f->engine,
                           .exact = &exact,
                           .arms = arm,
                           .from = from > 0 ? from : 0,
                           .predict = f->opts->predict,
                           .on_rows = on_text,
                           .user = f};
    for (int32_t p = 0; p < f->n_policies; p++) {
        if (!is_asked(f, engine, p)) continue;
        arm[how.n_arms] = f->policy[p].session;
        out[how.n_arms++] = kk_footprint_asked(f, length, p);
    }
    return kk_ask_quality(&how, &texts, out, err);
}

kk_status kk_footprint_quality(kk_footprint *f, int32_t engine, int32_t length, kk_err *err) {
    for (int32_t p = 0; p < f->n_policies; p++) {
        if (!is_asked(f, engine, p)) continue;
        kk_ask_how how = {.engine = f->engine,
                          .session = f->policy[p].session,
                          .predict = f->opts->predict,
                          .go_on = go_on,
                          .user = f};
        how.session.spec = KK_SPEC_NONE;
        KK_TRY(kk_ask_all(kk_footprint_asked(f, length, p), &f->set[length], &how, err));
    }
    return compare(f, engine, length, err);
}
