/* needle.c - draws the documents, checks that they all fit before anything is computed, and asks
 * the model one after the other, arm by arm; then reads ordinary text with all arms. */
#include "eval/tasks/needle.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/error.h"
#include "engine/session.h"
#include "eval/reports/report.h"
#include "format/tokenizer.h"

enum { WARM_PROMPT = 64, WARM_TOKENS = 4, GO_ON = 64 /* tokens after a text */ };

typedef struct {
    int32_t *ids;
    size_t n;
} prompt;

typedef struct {
    const kk_needle_opts *opts;
    kk_needle_result *out;
    kk_engine *engine;
    const kk_tokenizer *tok;
    prompt *prompts; /* [n_rungs, samples] */
    bool *taken;     /* [n_rungs, samples]: asked about */
} needle;

const char *kk_needle_way_name(kk_needle_way w) {
    static const char *const names[] = {"exact", "window", "restored", "drafted"};
    return names[w];
}

static prompt *prompt_of(const needle *n, int32_t rung, int32_t sample) {
    return &n->prompts[(size_t)rung * (size_t)n->opts->samples + (size_t)sample];
}

/* ---- documents --------------------------------------------------------------------------- */

static char *conversation(const char *text, size_t len) {
    json_t *o = json_pack("{s:[{s:s, s:s%}], s:b, s:b}", "messages", "role", "user", "content",
                          text, len, "enable_thinking", 0, "add_generation_prompt", 1);
    char *json = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return json;
}

static kk_status encode(const needle *n, const kk_haystack *doc, prompt *out, kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(kk_haystack_text(doc, &text, &len, err));
    kk_status st;
    if (n->opts->raw) {
        st = kk_encode(n->tok, text, len, KK_ENCODE_BOS, &out->ids, &out->n, err);
    } else {
        char *json = conversation(text, len);
        st = json ? kk_chat_encode(n->tok, json, strlen(json), &out->ids, &out->n, err)
                  : kk_fail(err, KK_ENOMEM, "no memory for a document of %d lines", doc->lines);
        free(json);
    }
    kk_free(text);
    return st;
}

static kk_status draw_rung(needle *n, kk_needle_rung *rung, int32_t r, kk_err *err) {
    const kk_needle_opts *o = n->opts;
    kk_twister t;
    kk_twister_seed(&t, o->seed);
    rung->lines = o->ladder[r];
    kk_haystack_rung(rung->lines, &rung->low, &rung->high);
    rung->samples = kk_calloc((size_t)o->samples, sizeof *rung->samples);
    if (!rung->samples) return kk_fail(err, KK_ENOMEM, "no memory for %d samples", o->samples);
    for (int32_t i = 0; i < o->samples; i++) {
        const kk_haystack doc = kk_haystack_draw(&t, rung->low, rung->high);
        if (!n->taken[(size_t)r * (size_t)o->samples + (size_t)i]) continue;
        kk_needle_sample *s = &rung->samples[rung->n_drawn++];
        prompt *p = prompt_of(n, r, i);
        s->doc = doc;
        s->number = i;
        if (!p->ids) KK_TRY(encode(n, &s->doc, p, err));
        s->tokens = (int32_t)p->n;
    }
    return KK_OK;
}

/* Every arm draws the same. */
static kk_status draw(needle *n, kk_err *err) {
    for (int32_t a = 0; a < n->out->n_arms; a++)
        for (int32_t r = 0; r < n->opts->n_rungs; r++) {
            kk_needle_arm *arm = &n->out->arm[a];
            arm->n_rungs = r + 1;
            KK_TRY(draw_rung(n, &arm->rung[r], r, err));
        }
    return KK_OK;
}

/* The context that the longest document needs with its answer. */
static kk_status fit(needle *n, kk_err *err) {
    const kk_needle_opts *o = n->opts;
    int32_t need = 0, lines = 0;
    for (int32_t r = 0; r < o->n_rungs; r++)
        for (int32_t i = 0; i < o->samples; i++) {
            const int32_t one = (int32_t)prompt_of(n, r, i)->n + o->predict;
            if (one <= need) continue;
            need = one;
            lines = o->ladder[r];
        }
    if (need > n->out->model.context)
        return kk_fail(err, KK_ECONTEXT,
                       "the rung of %d lines needs a context of %d tokens, and this model takes "
                       "at most %d: leave that rung out",
                       lines, need, n->out->model.context);
    const int32_t given = o->session.ctx;
    if (given && need > given)
        return kk_fail(err, KK_ECONTEXT,
                       "the rung of %d lines needs a context of %d tokens, and -c gives %d: "
                       "take -c %d, or leave -c out",
                       lines, need, given, need);
    n->out->ctx = given ? given : need;
    return KK_OK;
}

/* ---- arms -------------------------------------------------------------------------------- */

/* Layers that keep all stay so, unless all do: then the arm is about all of them. */
static kk_keep keeps(const kk_session_opts *asked, kk_keep given, kk_needle_way way) {
    const bool chosen = asked->kv_sliding != KK_KEEP_ALL || asked->kv_full != KK_KEEP_ALL;
    const bool some = asked->kv_sliding == KK_KEEP_RESTORED || asked->kv_full == KK_KEEP_RESTORED;
    if (way == KK_NEEDLE_EXACT || (chosen && given == KK_KEEP_ALL)) return KK_KEEP_ALL;
    if (way == KK_NEEDLE_WINDOW) return KK_KEEP_WINDOW;
    return some ? given : KK_KEEP_RESTORED;
}

/* The options of an arm's sessions as they come to be, without a session: it would leave its
 * workspace behind. */
static kk_status choose(const needle *n, kk_needle_arm *arm, kk_err *err) {
    const kk_session_opts *asked = &n->opts->session;
    kk_session_opts *how = &arm->how;
    kk_session_keeps kept;
    *how = *asked;
    how->kv_sliding = keeps(asked, asked->kv_sliding, arm->way);
    how->kv_full = keeps(asked, asked->kv_full, arm->way);
    if (arm->way == KK_NEEDLE_DRAFTED) how->spec = KK_SPEC_DFLASH;
    KK_TRY(kk_session_keeping(&kept, n->engine, how, NULL, err));
    if (arm->way == KK_NEEDLE_EXACT) return KK_OK;
    how->sink = kept.sink ? kept.sink : -1;
    how->window = kept.window ? kept.window : -1;
    how->chunk = kept.chunk;
    return KK_OK;
}

static kk_status choose_arms(needle *n, kk_err *err) {
    const kk_needle_opts *o = n->opts;
    kk_needle_result *out = n->out;
    out->n_arms = o->n_arms ? o->n_arms : 1;
    for (int32_t a = 0; a < out->n_arms; a++) {
        out->arm[a].way = o->n_arms ? o->arms[a] : KK_NEEDLE_EXACT;
        KK_TRY(choose(n, &out->arm[a], err));
    }
    return KK_OK;
}

/* ---- one question ------------------------------------------------------------------------ */

/* Reading and answering of one sample, as the callbacks see it. */
typedef struct {
    const needle *run;
    const kk_needle_arm *arm;
    kk_needle_rung *rung;
    kk_needle_sample *sample;
    prompt prompt;
    kk_decoder *decoder;
    int32_t *ids;
    kk_status failed; /* in the decoder */
    kk_err *err;
} question;

static bool tell(const question *q, kk_needle_event event) {
    const kk_needle_opts *o = q->run->opts;
    event.arm = q->arm;
    event.rung = q->rung;
    event.sample = q->sample;
    return !o->on_event || o->on_event(o->user, &event);
}

static void note_bytes(const question *q) {
    int64_t now[KK_MEM_CATEGORIES];
    kk_engine_memory(q->run->engine, now);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (now[c] > q->rung->bytes[c]) q->rung->bytes[c] = now[c];
}

static bool on_read(void *user, int64_t done, int64_t total) {
    const question *q = user;
    note_bytes(q);
    return tell(q, (kk_needle_event){.moment = KK_NEEDLE_READING, .done = done, .total = total});
}

static bool on_token(void *user, int32_t id) {
    question *q = user;
    kk_needle_event event = {.moment = KK_NEEDLE_TEXT};
    q->ids[q->sample->generated++] = id;
    q->failed = kk_decoder_push(q->decoder, id, &event.text, &event.len, q->err);
    return q->failed == KK_OK && tell(q, event);
}

static kk_status answer(question *q, kk_session *session, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = q->run->opts->predict};
    kk_needle_sample *s = q->sample;
    kk_result result;
    KK_TRY(kk_generate(session, &how, on_token, q, &result, err));
    KK_TRY(q->failed);
    if (result.stop == KK_STOP_CALLBACK)
        return kk_fail(err, KK_ESTOPPED, "stopped while answering");
    s->decode_s = result.decode_s;
    s->logits_hash = result.logits_hash;
    kk_session_key_counts(session, &s->counts);
    note_bytes(q);
    KK_TRY(kk_decode(q->run->tok, q->ids, (size_t)s->generated, false, &s->answer, &s->answer_len,
                     err));
    s->hit = kk_haystack_found(&s->doc, s->answer);
    return KK_OK;
}

static kk_status read_and_answer(question *q, kk_session *session, kk_err *err) {
    const prompt *p = &q->prompt;
    KK_TRY(kk_decoder_new(&q->decoder, q->run->tok, false, err));
    q->ids = kk_calloc((size_t)q->run->opts->predict, sizeof *q->ids);
    if (!q->ids) return kk_fail(err, KK_ENOMEM, "no memory for an answer");
    if (!on_read(q, 0, (int64_t)p->n)) return kk_fail(err, KK_ESTOPPED, "stopped before reading");
    const double begin = kk_now();
    KK_TRY(kk_session_append(session, p->ids, p->n, on_read, q, err));
    q->sample->prefill_s = kk_now() - begin;
    KK_TRY(answer(q, session, err));
    q->rung->n_samples++;
    q->rung->hits += q->sample->hit;
    if (!tell(q, (kk_needle_event){.moment = KK_NEEDLE_JUDGED}))
        return kk_fail(err, KK_ESTOPPED, "stopped after an answer");
    return KK_OK;
}

static kk_status new_session(const needle *n, const kk_needle_arm *arm, kk_session **out,
                             kk_err *err) {
    kk_session_opts how = arm->how;
    how.ctx = n->out->ctx;
    return kk_session_new(out, n->engine, &how, err);
}

static kk_status ask(needle *n, kk_needle_arm *arm, int32_t r, int32_t i, kk_err *err) {
    kk_needle_rung *rung = &arm->rung[r];
    kk_session *session;
    KK_TRY(new_session(n, arm, &session, err));
    question q = {.run = n,
                  .arm = arm,
                  .rung = rung,
                  .sample = &rung->samples[i],
                  .prompt = *prompt_of(n, r, rung->samples[i].number),
                  .err = err};
    const kk_status st = read_and_answer(&q, session, err);
    kk_decoder_free(q.decoder);
    kk_free(q.ids);
    kk_session_free(session);
    return st;
}

/* ---- all of them ------------------------------------------------------------------------- */

static double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

/* The first token of an answer comes from the document's own logits and takes no round. */
static void sum_up(kk_needle_rung *r) {
    double tokens = 0, decoded = 0, prefill_s = 0, decode_s = 0;
    for (int32_t i = 0; i < r->n_samples; i++) {
        const kk_needle_sample *s = &r->samples[i];
        tokens += s->tokens;
        decoded += s->generated > 1 ? s->generated - 1 : 0;
        prefill_s += s->prefill_s;
        decode_s += s->decode_s;
        r->counts.queries += s->counts.queries;
        r->counts.keys_stored += s->counts.keys_stored;
        r->counts.keys_rebuilt += s->counts.keys_rebuilt;
        r->counts.rows_rebuilt += s->counts.rows_rebuilt;
    }
    r->recall = (double)r->hits / r->n_samples;
    r->tokens = tokens / r->n_samples;
    r->prefill_tok_s = rate(tokens, prefill_s);
    r->decode_tok_s = rate(decoded, decode_s);
}

static kk_status use(kk_session *session, const prompt *p, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = WARM_TOKENS, .ignore_eos = true};
    const size_t n = p->n < WARM_PROMPT ? p->n : WARM_PROMPT;
    kk_result ignored;
    KK_TRY(kk_session_append(session, p->ids, n, NULL, NULL, err));
    return kk_generate(session, &how, NULL, NULL, &ignored, err);
}

static kk_status warm_up(needle *n, const kk_needle_arm *arm, kk_err *err) {
    kk_twister t;
    kk_twister_seed(&t, ~n->opts->seed); /* no other run has it */
    const kk_haystack doc = kk_haystack_draw(&t, KK_HAYSTACK_LEAST_LINES, KK_HAYSTACK_LEAST_LINES);
    prompt p = {0};
    kk_session *session = NULL;
    kk_status st = encode(n, &doc, &p, err);
    if (st == KK_OK) st = new_session(n, arm, &session, err);
    if (st == KK_OK) st = use(session, &p, err);
    kk_session_free(session);
    kk_free(p.ids);
    return st;
}

/* ---- ordinary text ----------------------------------------------------------------------- */

/* The first position to which some row is gone: before it, arms are exact, and would only make
 * means smaller. */
static int32_t first_gone(const needle *n) {
    const kk_session_opts *how = &n->out->arm[n->out->n_arms - 1].how;
    const kk_kv_bounds bounds = {.window = how->window > 0 ? how->window : 0,
                                 .sink = how->sink > 0 ? how->sink : 0,
                                 .chunk = how->chunk};
    return (int32_t)kk_gone_at(&bounds, bounds.sink);
}

static kk_status read_texts(needle *n, kk_err *err) {
    const kk_needle_opts *o = n->opts;
    if (n->out->n_arms < 2) return KK_OK;
    const int32_t most = n->out->model.context - GO_ON;
    n->out->source = (kk_quality_source){.tok = n->tok,
                                         .paths = o->texts,
                                         .n_paths = o->n_texts,
                                         .prompts = o->prompts,
                                         .from = first_gone(n),
                                         .subset = o->subset,
                                         .most = o->text_tokens < most ? o->text_tokens : most};
    return kk_quality_read(&n->out->texts, &n->out->source, err);
}

typedef struct {
    const needle *run;
    int64_t before, total; /* tokens */
} comparing;

static bool on_rows(void *user, const kk_quality_text *text, int32_t done) {
    const comparing *c = user;
    const kk_needle_opts *o = c->run->opts;
    const kk_needle_event e = {.moment = KK_NEEDLE_COMPARED,
                               .text = text->name,
                               .len = strlen(text->name),
                               .done = c->before + done,
                               .total = c->total};
    return !o->on_event || o->on_event(o->user, &e);
}

static kk_status compare_text(needle *n, comparing *c, size_t t, kk_err *err) {
    kk_needle_result *out = n->out;
    kk_session_opts arms[KK_NEEDLE_ARMS];
    kk_quality_row rows[KK_NEEDLE_ARMS];
    for (int32_t a = 1; a < out->n_arms; a++) arms[a - 1] = out->arm[a].how;
    const kk_quality_opts how = {.engine = n->engine,
                                 .exact = &out->arm[0].how,
                                 .arms = arms,
                                 .n_arms = out->n_arms - 1,
                                 .from = out->source.from,
                                 .predict = GO_ON,
                                 .on_rows = on_rows,
                                 .user = c};
    KK_TRY(kk_quality_measure(&how, &out->texts.texts[t], rows, err));
    for (int32_t a = 1; a < out->n_arms; a++) out->arm[a].quality[t] = rows[a - 1];
    c->before += out->texts.texts[t].n;
    return KK_OK;
}

static kk_status compare(needle *n, kk_err *err) {
    kk_needle_result *out = n->out;
    comparing c = {.run = n};
    for (size_t t = 0; t < out->texts.n; t++) c.total += out->texts.texts[t].n;
    for (int32_t a = 1; a < out->n_arms; a++) {
        out->arm[a].quality = kk_calloc(out->texts.n, sizeof *out->arm[a].quality);
        if (!out->arm[a].quality) return kk_fail(err, KK_ENOMEM, "no memory for rows of quality");
    }
    for (size_t t = 0; t < out->texts.n; t++) KK_TRY(compare_text(n, &c, t, err));
    for (int32_t a = 1; a < out->n_arms; a++)
        out->arm[a].sum = kk_quality_sum_up(out->arm[a].quality, out->texts.n);
    return KK_OK;
}

/* ---- the run ----------------------------------------------------------------------------- */

static kk_status check_arms(const kk_needle_opts *o, kk_err *err) {
    if (o->n_arms < 0 || o->n_arms > KK_NEEDLE_ARMS)
        return kk_fail(err, KK_EINVAL, "%d arms; 1 to %d are possible", o->n_arms, KK_NEEDLE_ARMS);
    for (int32_t a = 0; a < o->n_arms; a++) {
        if ((int)o->arms[a] < 0 || o->arms[a] >= KK_NEEDLE_ARMS)
            return kk_fail(err, KK_EINVAL, "no arm has the number %d", (int)o->arms[a]);
        if ((a == 0) != (o->arms[a] == KK_NEEDLE_EXACT))
            return kk_fail(err, KK_EINVAL,
                           "exact comes first, and once: all arms are held "
                           "against it");
        for (int32_t b = 0; b < a; b++)
            if (o->arms[a] == o->arms[b])
                return kk_fail(err, KK_EINVAL, "the arm %s is given twice",
                               kk_needle_way_name(o->arms[a]));
    }
    if (o->n_arms > 1 && o->text_tokens < 1)
        return kk_fail(err, KK_EINVAL, "texts of %d tokens; at least 1", o->text_tokens);
    return KK_OK;
}

static kk_status check(const kk_needle_opts *o, kk_err *err) {
    KK_TRY(check_arms(o, err));
    if (o->n_rungs < 1 || o->n_rungs > KK_NEEDLE_RUNGS)
        return kk_fail(err, KK_EINVAL, "%d rungs; 1 to %d are possible", o->n_rungs,
                       KK_NEEDLE_RUNGS);
    for (int32_t r = 0; r < o->n_rungs; r++)
        if (o->ladder[r] < 1 || o->ladder[r] > KK_HAYSTACK_MOST_LINES)
            return kk_fail(err, KK_EINVAL, "a rung of %d lines; 1 to %d are possible", o->ladder[r],
                           KK_HAYSTACK_MOST_LINES);
    if (o->samples < 1 || o->samples > KK_NEEDLE_SAMPLES)
        return kk_fail(err, KK_EINVAL, "%d samples; 1 to %d are possible", o->samples,
                       KK_NEEDLE_SAMPLES);
    if (o->seed > INT64_MAX)
        return kk_fail(err, KK_EINVAL, "seed %llu; at most %lld is possible",
                       (unsigned long long)o->seed, (long long)INT64_MAX);
    if (o->predict < 1 || o->predict > 1 << 20)
        return kk_fail(err, KK_EINVAL, "answers of %d tokens; at least 1", o->predict);
    return KK_OK;
}

static kk_status open_engine(needle *n, kk_err *err) {
    const double begin = kk_now();
    KK_TRY(kk_engine_open(&n->engine, &n->opts->engine, err));
    n->out->load_s = kk_now() - begin;
    kk_engine_info(n->engine, &n->out->model);
    kk_engine_device(n->engine, &n->out->device);
    (void)kk_engine_projection(n->engine, &n->out->projection);
    n->out->run = kk_report_run(n->engine, &n->opts->engine, n->opts->command);
    n->tok = kk_engine_tokenizer(n->engine);
    if (!n->tok)
        return kk_fail(err, KK_EINVAL,
                       "this model has no tokenizer, so it cannot be asked about a text");
    return KK_OK;
}

static kk_status run_arm(needle *n, kk_needle_arm *arm, kk_err *err) {
    const kk_needle_opts *o = n->opts;
    KK_TRY(warm_up(n, arm, err));
    for (int32_t r = 0; r < o->n_rungs; r++) {
        for (int32_t i = 0; i < arm->rung[r].n_drawn; i++) KK_TRY(ask(n, arm, r, i, err));
        sum_up(&arm->rung[r]);
    }
    return KK_OK;
}

/* Draws the documents and finds the context they need. */
static kk_status prepare(needle *n, kk_err *err) {
    KK_TRY(open_engine(n, err));
    KK_TRY(choose_arms(n, err));
    KK_TRY(draw(n, err));
    return fit(n, err);
}

static kk_status run(needle *n, kk_err *err) {
    KK_TRY(prepare(n, err));
    KK_TRY(read_texts(n, err));
    for (int32_t a = 0; a < n->out->n_arms; a++) KK_TRY(run_arm(n, &n->out->arm[a], err));
    return compare(n, err);
}

static kk_status with_needle(const kk_needle_opts *opts, kk_needle_result *out,
                             kk_status (*fn)(needle *n, kk_err *err), kk_err *err) {
    *out = (kk_needle_result){0};
    KK_TRY(check(opts, err));
    kk_machine_info(&out->machine);
    const size_t count = (size_t)opts->n_rungs * (size_t)opts->samples;
    needle n = {.opts = opts,
                .out = out,
                .prompts = kk_calloc(count, sizeof *n.prompts),
                .taken = kk_calloc(count, sizeof *n.taken)};
    kk_status st = n.prompts && n.taken
                       ? kk_subset_draw(n.taken, count, &opts->subset, err)
                       : kk_fail(err, KK_ENOMEM, "no memory for %zu prompts", count);
    if (st == KK_OK) st = fn(&n, err);
    for (size_t i = 0; n.prompts && i < count; i++) kk_free(n.prompts[i].ids);
    kk_free(n.prompts);
    kk_free(n.taken);
    if (n.engine && out->run) kk_report_count_ties(out->run, n.engine);
    kk_engine_close(n.engine);
    if (st != KK_OK) kk_needle_release(out);
    return st;
}

kk_status kk_needle_fits(const kk_needle_opts *opts, int32_t *ctx, kk_err *err) {
    kk_needle_opts exact = *opts;
    kk_needle_result r;
    exact.n_arms = 0;
    exact.session.kv_sliding = exact.session.kv_full = KK_KEEP_ALL;
    KK_TRY(with_needle(&exact, &r, prepare, err));
    *ctx = r.ctx;
    kk_needle_release(&r);
    return KK_OK;
}

kk_status kk_needle_run(const kk_needle_opts *opts, kk_needle_result *out, kk_err *err) {
    return with_needle(opts, out, run, err);
}

/* Only samples that were counted have an answer. */
static void release_rung(kk_needle_rung *r) {
    for (int32_t i = 0; i < r->n_samples; i++) kk_free(r->samples[i].answer);
    kk_free(r->samples);
}

void kk_needle_release(kk_needle_result *r) {
    for (int32_t a = 0; a < r->n_arms; a++) {
        for (int32_t i = 0; i < r->arm[a].n_rungs; i++) release_rung(&r->arm[a].rung[i]);
        kk_free(r->arm[a].quality);
    }
    kk_quality_free(&r->texts);
    json_decref(r->run);
    *r = (kk_needle_result){0};
}
