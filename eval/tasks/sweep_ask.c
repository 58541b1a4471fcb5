/* sweep_ask.c - draws documents, asks about them one after the other, and says in a report what was
 * answered. */
#include "eval/tasks/sweep_ask.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/error.h"
#include "engine/session.h"
#include "eval/reports/report.h"

/* ---- documents --------------------------------------------------------------------------- */

static char *conversation(const char *text, size_t len) {
    json_t *o = json_pack("{s:[{s:s, s:s%}], s:b, s:b}", "messages", "role", "user", "content",
                          text, len, "enable_thinking", 0, "add_generation_prompt", 1);
    char *json = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return json;
}

static kk_status encode(kk_engine *e, kk_ask_document *d, kk_err *err) {
    char *text;
    size_t len, n = 0;
    KK_TRY(kk_haystack_text(&d->doc, &text, &len, err));
    char *json = conversation(text, len);
    const kk_status st =
        json ? kk_chat_encode(kk_engine_tokenizer(e), json, strlen(json), &d->ids, &n, err)
             : kk_fail(err, KK_ENOMEM, "no memory for a document of %d lines", d->doc.lines);
    d->n = (int32_t)n;
    free(json);
    kk_free(text);
    return st;
}

static kk_status check(kk_engine *e, const kk_ask_draw *d, kk_err *err) {
    if (!kk_engine_tokenizer(e))
        return kk_fail(err, KK_EINVAL,
                       "this model has no tokenizer, so it cannot be asked about a text");
    if (d->n_rungs < 1 || d->n_rungs > KK_ASK_RUNGS)
        return kk_fail(err, KK_EINVAL, "%d rungs; 1 to %d are possible", d->n_rungs, KK_ASK_RUNGS);
    if (d->samples < 1 || d->samples > KK_ASK_SAMPLES)
        return kk_fail(err, KK_EINVAL, "%d samples; 1 to %d are possible", d->samples,
                       KK_ASK_SAMPLES);
    for (int32_t r = 0; r < d->n_rungs; r++)
        if (d->ladder[r] < 1 || d->ladder[r] > KK_HAYSTACK_MOST_LINES)
            return kk_fail(err, KK_EINVAL, "a rung of %d lines; 1 to %d are possible", d->ladder[r],
                           KK_HAYSTACK_MOST_LINES);
    return KK_OK;
}

static kk_status draw_rung(kk_ask_set *out, kk_engine *e, const kk_ask_draw *d, int32_t rung,
                           const bool *taken, kk_err *err) {
    kk_twister t;
    int32_t low, high;
    kk_twister_seed(&t, d->seed);
    kk_haystack_rung(d->ladder[rung], &low, &high);
    for (int32_t i = 0; i < d->samples; i++) {
        const kk_haystack doc = kk_haystack_draw(&t, low, high);
        const int32_t number = rung * d->samples + i;
        if (!taken[number]) continue;
        kk_ask_document *one = &out->document[out->n++];
        *one = (kk_ask_document){.doc = doc, .number = number};
        KK_TRY(encode(e, one, err));
    }
    return KK_OK;
}

static kk_status draw_all(kk_ask_set *out, kk_engine *e, const kk_ask_draw *draw, kk_err *err) {
    const size_t n = (size_t)draw->n_rungs * (size_t)draw->samples;
    bool *taken = kk_calloc(n, sizeof *taken);
    kk_status st = taken ? kk_subset_draw(taken, n, &draw->subset, err)
                         : kk_fail(err, KK_ENOMEM, "no memory for %zu documents", n);
    for (int32_t r = 0; r < draw->n_rungs && st == KK_OK; r++)
        st = draw_rung(out, e, draw, r, taken, err);
    kk_free(taken);
    return st;
}

kk_status kk_ask_documents(kk_ask_set *out, kk_engine *e, const kk_ask_draw *draw, kk_err *err) {
    *out = (kk_ask_set){.seed = draw->seed};
    KK_TRY(check(e, draw, err));
    const size_t n = (size_t)draw->n_rungs * (size_t)draw->samples;
    out->document = kk_calloc(n, sizeof *out->document);
    if (!out->document) return kk_fail(err, KK_ENOMEM, "no memory for %zu documents", n);
    const kk_status st = draw_all(out, e, draw, err);
    if (st != KK_OK) kk_ask_free(out);
    return st;
}

void kk_ask_free(kk_ask_set *set) {
    for (int32_t i = 0; set->document && i < set->n; i++) kk_free(set->document[i].ids);
    kk_free(set->document);
    *set = (kk_ask_set){.n = 0};
}

int32_t kk_ask_longest(const kk_ask_set *set) {
    int32_t most = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (set->document[i].n > most) most = set->document[i].n;
    return most;
}

int32_t kk_ask_shortest(const kk_ask_set *set) {
    int32_t least = set->n ? set->document[0].n : 0;
    for (int32_t i = 0; i < set->n; i++)
        if (set->document[i].n < least) least = set->document[i].n;
    return least;
}

static kk_status tokens_of(kk_engine *e, int32_t lines, int32_t *tokens, kk_err *err) {
    kk_ask_document one = {.doc = {.lines = lines, .code = "ORCHID-4821"}};
    const kk_status st = encode(e, &one, err);
    *tokens = one.n;
    kk_free(one.ids);
    return st;
}

kk_status kk_ask_lines(kk_engine *e, int32_t tokens, int32_t *lines, kk_err *err) {
    int32_t low = 0, high = tokens; /* a line has more than one token */
    *lines = 0;
    if (!kk_engine_tokenizer(e))
        return kk_fail(err, KK_EINVAL,
                       "this model has no tokenizer, so it cannot be asked about a text");
    while (low < high) {
        const int32_t mid = low + (high - low + 1) / 2;
        int32_t n;
        KK_TRY(tokens_of(e, mid, &n, err));
        if (n <= tokens)
            low = mid;
        else
            high = mid - 1;
    }
    *lines = low;
    return KK_OK;
}

/* ---- one answer -------------------------------------------------------------------------- */

typedef struct {
    const kk_ask_how *how;
    int32_t *ids;
    kk_asked *out;
} speaker;

static bool on_token(void *user, int32_t id) {
    speaker *s = user;
    s->ids[s->out->generated++] = id;
    return !s->how->go_on || s->how->go_on(s->how->user);
}

static bool on_read(void *user, int64_t done, int64_t total) {
    const speaker *s = user;
    (void)done, (void)total;
    return !s->how->go_on || s->how->go_on(s->how->user);
}

static void note_bytes(kk_ask_result *r, const kk_engine *e) {
    int64_t now[KK_MEM_CATEGORIES];
    kk_engine_memory(e, now);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (now[c] > r->bytes[c]) r->bytes[c] = now[c];
}

static kk_status answer(speaker *s, kk_session *session, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = s->how->predict};
    kk_asked *a = s->out;
    kk_result result;
    KK_TRY(kk_generate(session, &how, on_token, s, &result, err));
    if (result.stop == KK_STOP_CALLBACK)
        return kk_fail(err, KK_ESTOPPED, "stopped while answering");
    a->decode_s = result.decode_s;
    a->logits_hash = result.logits_hash;
    kk_session_key_counts(session, &a->counts);
    return kk_decode(kk_engine_tokenizer(s->how->engine), s->ids, (size_t)a->generated, false,
                     &a->answer, &a->answer_len, err);
}

static kk_status read_and_answer(speaker *s, kk_session *session, const kk_ask_document *d,
                                 kk_ask_result *r, kk_err *err) {
    const double begin = kk_now();
    KK_TRY(kk_session_append(session, d->ids, (size_t)d->n, on_read, s, err));
    s->out->prefill_s = kk_now() - begin;
    note_bytes(r, s->how->engine);
    if (s->how->after_read) KK_TRY(s->how->after_read(s->how->user, session, err));
    KK_TRY(answer(s, session, err));
    note_bytes(r, s->how->engine);
    s->out->hit = kk_haystack_found(&d->doc, s->out->answer);
    return KK_OK;
}

static kk_status ask(kk_ask_result *r, const kk_ask_how *how, const kk_ask_document *d,
                     kk_err *err) {
    kk_session_opts opts = how->session;
    kk_session *session;
    if (!opts.ctx) opts.ctx = d->n + how->predict;
    KK_TRY(how->mix ? kk_session_new_diagnosed(&session, how->engine, &opts, *how->mix, err)
                    : kk_session_new(&session, how->engine, &opts, err));
    speaker s = {.how = how,
                 .ids = kk_calloc((size_t)how->predict, sizeof *s.ids),
                 .out = &r->answer[r->n++]};
    const kk_status st = s.ids ? read_and_answer(&s, session, d, r, err)
                               : kk_fail(err, KK_ENOMEM, "no memory for an answer");
    kk_free(s.ids);
    kk_session_free(session);
    return st;
}

kk_status kk_ask_all(kk_ask_result *out, const kk_ask_set *set, const kk_ask_how *how,
                     kk_err *err) {
    *out = (kk_ask_result){.answer = kk_calloc((size_t)set->n, sizeof *out->answer)};
    kk_status st =
        out->answer ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for %d answers", set->n);
    for (int32_t i = 0; i < set->n && st == KK_OK; i++) {
        st = ask(out, how, &set->document[i], err);
        const kk_asked *a = &out->answer[i];
        out->hits += a->hit;
        out->counts.queries += a->counts.queries;
        out->counts.keys_stored += a->counts.keys_stored;
        out->counts.keys_rebuilt += a->counts.keys_rebuilt;
        out->counts.rows_rebuilt += a->counts.rows_rebuilt;
    }
    if (st != KK_OK) kk_ask_release(out);
    return st;
}

void kk_ask_release(kk_ask_result *r) {
    for (int32_t i = 0; i < r->n; i++) kk_free(r->answer[i].answer);
    kk_free(r->answer);
    kk_free(r->quality);
    *r = (kk_ask_result){.n = 0};
}

/* ---- texts ------------------------------------------------------------------------------- */

static kk_status compare_some(const kk_quality_opts *o, const kk_quality_texts *t,
                              kk_ask_result *const *out, kk_err *err) {
    kk_quality_row rows[KK_QUALITY_ARMS];
    for (int32_t i = 0; i < o->n_arms; i++) {
        kk_free(out[i]->quality);
        out[i]->n_quality = 0;
        out[i]->quality = kk_calloc(t->n, sizeof *out[i]->quality);
        if (!out[i]->quality) return kk_fail(err, KK_ENOMEM, "no memory for %zu texts", t->n);
    }
    for (size_t j = 0; j < t->n; j++) {
        KK_TRY(kk_quality_measure(o, &t->texts[j], rows, err));
        for (int32_t i = 0; i < o->n_arms; i++) out[i]->quality[out[i]->n_quality++] = rows[i];
    }
    for (int32_t i = 0; i < o->n_arms; i++) out[i]->sum = kk_quality_sum_up(out[i]->quality, t->n);
    return KK_OK;
}

kk_status kk_ask_quality(const kk_quality_opts *opts, const kk_quality_texts *texts,
                         kk_ask_result *const *out, kk_err *err) {
    kk_quality_opts some = *opts;
    for (int32_t at = 0; at < opts->n_arms; at += some.n_arms) {
        const int32_t left = opts->n_arms - at;
        some.arms = opts->arms + at;
        some.mix = opts->mix ? opts->mix + at : NULL;
        some.n_arms = left < KK_QUALITY_ARMS ? left : KK_QUALITY_ARMS;
        KK_TRY(compare_some(&some, texts, out + at, err));
    }
    return KK_OK;
}

/* ---- in reports -------------------------------------------------------------------------- */

static json_t *answer_json(const kk_ask_set *set, const kk_ask_result *r, int32_t i) {
    const kk_ask_document *d = &set->document[i];
    const kk_asked *a = &r->answer[i];
    return json_pack(
        "{s:i, s:I, s:i, s:i, s:o, s:i, s:s, s:o, s:b, s:i, s:o, s:o, s:I, s:{s:I, s:I, s:I}, s:o}",
        "sample", d->number, "seed", (json_int_t)set->seed, "lines", d->doc.lines, "index",
        d->doc.index, "depth", kk_report_real(kk_haystack_depth(&d->doc)), "tokens", d->n,
        "expected", d->doc.code, "answer", kk_report_text(a->answer, a->answer_len), "hit", a->hit,
        "generated", a->generated, "prefill_s", kk_report_real(a->prefill_s), "decode_s",
        kk_report_real(a->decode_s), "restored_rows", (json_int_t)a->counts.rows_rebuilt, "reach",
        "queries", (json_int_t)a->counts.queries, "keys_stored", (json_int_t)a->counts.keys_stored,
        "keys_rebuilt", (json_int_t)a->counts.keys_rebuilt, "logits_hash",
        kk_report_hash(a->logits_hash));
}

static void quality_into(json_t *o, const kk_ask_result *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_quality; i++)
        json_array_append_new(list, kk_quality_json(NULL, &r->quality[i]));
    json_object_set_new(o, "quality", list);
    json_object_set_new(o, "mean_kl", kk_report_real(r->sum.mean_kl));
    json_object_set_new(o, "worst_kl", kk_report_real(r->sum.worst_kl));
    json_object_set_new(o, "loss_change", kk_report_real(r->sum.loss_change));
}

void kk_ask_into(json_t *o, const kk_ask_set *set, const kk_ask_result *r) {
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n; i++) json_array_append_new(list, answer_json(set, r, i));
    if (r->n) {
        json_object_set_new(o, "samples", json_integer(r->n));
        json_object_set_new(o, "hits", json_integer(r->hits));
        json_object_set_new(o, "recall", kk_report_real((double)r->hits / r->n));
        json_object_set_new(o, "restored_rows", json_integer(r->counts.rows_rebuilt));
        json_object_set_new(o, "answers", list);
    } else {
        json_decref(list);
    }
    if (r->n_quality) quality_into(o, r);
}
