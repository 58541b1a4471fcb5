/* stream.c - see stream.h. */
#include "cli/stream.h"

#include <stdlib.h>
#include <string.h>

#include "cli/exactness.h"
#include "cli/loader.h"
#include "cli/notices.h"
#include "cli/term.h"

bool stream_open(stream *s, int *code) {
    const kk_answer_opts opts = {.tok = kk_engine_tokenizer(s->engine),
                                 .raw = !s->chat,
                                 .stops = s->stops ? s->stops->word : NULL,
                                 .n_stops = s->stops ? (size_t)s->stops->n : 0};
    kk_err err;
    s->reply.quiet = s->json;
    if (!opts.tok && !opts.n_stops) return true;
    if (opts.tok && reply_open(&s->reply, &opts, &err)) return true;
    if (opts.tok)
        *code = output_error(&err);
    else
        *code = output_failed("this model has no tokenizer, so that --stop finds no text",
                              "Leave out --stop, or put tokenizer.json beside the model.");
    return false;
}

void stream_close(stream *s) {
    reply_close(&s->reply);
    free(s->ids);
    json_decref(s->logprobs);
}

/* ---- tokens and text --------------------------------------------------------------------- */

static bool grow(void *array, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) return true;
    size_t more = *cap ? *cap : 256;
    while (more < need) more *= 2;
    void *p = realloc(*(void **)array, more * size);
    if (!p) return false;
    *(void **)array = p;
    *cap = more;
    return true;
}

static bool put_id(stream *s, int32_t id) {
    if (s->json) return true;
    printf(s->n_ids > 1 ? ",%d" : "%d", id);
    return fflush(stdout) == 0;
}

static bool on_token(void *user, int32_t id) {
    stream *s = user;
    if (!grow(&s->ids, &s->cap, s->n_ids + 1, sizeof *s->ids)) return !(s->out_of_memory = true);
    s->ids[s->n_ids++] = id;
    if (s->reply.answer) return reply_token(&s->reply, id);
    return put_id(s, id) && term_signal() == 0;
}

static json_t *logprob_object(const kk_logprob *l) {
    return json_pack("{s:i, s:o}", "id", (int)l->id, "logprob", output_real((double)l->logprob));
}

/* Log-probabilities of a token that comes next. */
static void on_logprobs(void *user, const kk_logprobs *of) {
    stream *s = user;
    json_t *one = logprob_object(&of->chosen), *best = json_array();
    for (int32_t i = 0; i < of->n_best; i++)
        json_array_append_new(best, logprob_object(&of->best[i]));
    json_object_set_new(one, "top_logprobs", best);
    if (json_array_append_new(s->logprobs, one) != 0) s->out_of_memory = true;
}

static void finish_text(stream *s) {
    if (s->reply.answer) {
        reply_finish(&s->reply);
    } else if (!s->json) {
        putchar('\n');
        fflush(stdout);
    }
}

/* ---- reports ----------------------------------------------------------------------------- */

static double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

/* The first token comes from the prompt's own logits and takes no round. */
static double decode_rate(const kk_result *r) {
    return r->n_tokens > 1 ? rate(r->n_tokens - 1, r->decode_s) : 0;
}

static const char *stop_name(kk_stop_reason stop) {
    switch (stop) {
    case KK_STOP_EOS: return "eos";
    case KK_STOP_LENGTH: return "length";
    case KK_STOP_CONTEXT: return "context";
    case KK_STOP_CALLBACK: break;
    }
    return "stop";
}

static json_t *id_list(const stream *s) {
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_ids; i++) json_array_append_new(list, json_integer(s->ids[i]));
    return list;
}

static json_t *kv_object(const stream *s) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(s->engine, bytes);
    kk_session_opts o;
    kk_session_options(s->session, &o);
    json_t *kv =
        json_pack("{s:s, s:s, s:s}", "sliding", loader_keep_name(o.kv_sliding, true), "full",
                  loader_keep_name(o.kv_full, false), "format", loader_format_name(o.kv_format));
    const bool all = o.kv_sliding == KK_KEEP_ALL && o.kv_full == KK_KEEP_ALL;
    if (kv && !all)
        json_object_update_new(kv,
                               json_pack("{s:i, s:i, s:i}", "sink", o.sink > 0 ? o.sink : 0,
                                         "window", o.window > 0 ? o.window : 0, "chunk", o.chunk));
    if (kv && (o.kv_sliding == KK_KEEP_RESTORED || o.kv_full == KK_KEEP_RESTORED))
        json_object_set_new(kv, "latents", json_string(loader_format_name(o.latents)));
    if (kv) json_object_set_new(kv, "bytes", output_memory(bytes));
    return kv;
}

static json_t *counts_object(const kk_key_counts *r) {
    return json_pack("{s:I, s:I, s:I}", "queries", (json_int_t)r->queries, "keys_stored",
                     (json_int_t)r->keys_stored, "keys_rebuilt", (json_int_t)r->keys_rebuilt);
}

/* Rounds by how many tokens, up to the last number that occurred; at least the rounds of 0. */
static json_t *counts(const int64_t *n) {
    int last = KK_MAX_DRAFT;
    while (last > 0 && n[last] == 0) last--;
    json_t *list = json_array();
    for (int i = 0; i <= last; i++) json_array_append_new(list, json_integer(n[i]));
    return list;
}

/* A round gives the tokens it accepted and one more. */
static double accept_len(const kk_spec_stats *t) {
    return t->rounds ? (double)(t->accepted + t->rounds) / (double)t->rounds : 0;
}

/* What each proposer that drafted did. */
static json_t *by_proposer(const kk_spec_stats *t) {
    json_t *by = json_object();
    for (kk_spec p = KK_SPEC_DFLASH; p <= KK_SPEC_NGRAM; p++)
        if (t->by[p].rounds > 0)
            json_object_set_new(by, kk_spec_name(p),
                                json_pack("{s:I, s:I, s:I}", "rounds", (json_int_t)t->by[p].rounds,
                                          "drafted", (json_int_t)t->by[p].drafted, "accepted",
                                          (json_int_t)t->by[p].accepted));
    return by;
}

static json_t *spec_object(const stream *s) {
    const kk_spec_stats *t = &s->result.spec;
    json_t *parts = json_pack("{s:o, s:o, s:o, s:o}", "draft_s", output_real(t->draft_s),
                              "verify_s", output_real(t->verify_s), "choose_s",
                              output_real(t->choose_s), "commit_s", output_real(t->commit_s));
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "proposer",
        kk_spec_name(kk_session_spec(s->session)), "rounds", (json_int_t)t->rounds, "rows",
        (json_int_t)t->rows, "drafted", (json_int_t)t->drafted, "accepted", (json_int_t)t->accepted,
        "accept_len", output_real(accept_len(t)), "histogram", counts(t->histogram), "chosen",
        counts(t->chosen), "looking", (json_int_t)t->looking, "ahead", (json_int_t)t->ahead,
        "short_rounds", (json_int_t)t->short_rounds, "short_missed", (json_int_t)t->short_missed,
        "syncs", (json_int_t)s->result.syncs, "timings", parts, "by", by_proposer(t));
}

static json_t *kept_text(const reply_text *t) {
    return output_text(t->bytes ? t->bytes : "", t->len);
}

static bool print_json(const stream *s, json_t *more) {
    const kk_result *res = &s->result;
    double n_prompt = (double)s->n_prompt;
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)res->logits_hash);
    json_t *timings = json_pack(
        "{s:o, s:o, s:o, s:o, s:o}", "load_s", output_real(s->load_s), "prefill_s",
        output_real(s->prefill_s), "decode_s", output_real(res->decode_s), "prefill_tok_s",
        output_real(rate(n_prompt, s->prefill_s)), "decode_tok_s", output_real(decode_rate(res)));
    kk_key_counts counts;
    kk_session_key_counts(s->session, &counts);
    json_t *all = json_pack("{s:o, s:o, s:s, s:I, s:o, s:o, s:o, s:I, s:o, s:s}", "text",
                            kept_text(&s->reply.text), "tokens", id_list(s), "stop",
                            stop_name(res->stop), "prompt_tokens", (json_int_t)s->n_prompt,
                            "timings", timings, "spec", spec_object(s), "kv", kv_object(s),
                            "restored_rows", (json_int_t)counts.rows_rebuilt, "reach",
                            counts_object(&counts), "logits_hash", hash);
    if (all)
        json_object_set_new(all, "other_weights",
                            json_boolean(notices_other_weights(s->engine, s->session)));
    kk_device_info device;
    kk_engine_device(s->engine, &device);
    if (all) json_object_set_new(all, "device", json_string(device.device));
    if (all) json_object_set_new(all, "exact", json_string(exactness_say(&device).text));
    if (all) json_object_set_new(all, "exact_by", json_string(device.exact_by));
    if (all && device.exact_rows != 0)
        json_object_set_new(all, "near_ties", json_integer(res->near_ties));
    if (all) json_object_set_new(all, "seed", json_integer((json_int_t)s->seed));
    if (all && s->chat) {
        json_object_set_new(all, "thought", kept_text(&s->reply.thought));
        json_object_set(all, "tool_calls", s->reply.calls);
    }
    if (all && s->logprobs) json_object_set(all, "logprobs", s->logprobs);
    if (all && more) json_object_update(all, more);
    return output_json(all);
}

/* Where weights of experts lie, if they did not all fit the GPU. */
static void print_offload(const stream *s) {
    kk_offload f;
    kk_engine_offload(s->engine, &f);
    if (!f.on_host) return;
    const double bytes = (double)(f.gpu_bytes + f.host_bytes);
    fprintf(stderr, "%sexperts: %s in the GPU's memory, %s in host memory", term_dim(stderr),
            term_bytes((double)f.on_gpu).text, term_bytes((double)f.on_host).text);
    if (bytes > 0)
        fprintf(stderr,
                "; %.1f %% of what was read of them was on the GPU, %s came from the host; %lld "
                "pieces swapped, %lld evicted",
                100 * (double)f.gpu_bytes / bytes, term_bytes((double)f.host_bytes).text,
                (long long)f.swaps, (long long)f.evicted);
    fprintf(stderr, "%s\n", term_reset(stderr));
}

void stream_loaded(const stream *s) {
    kk_model_info info;
    kk_device_info dev;
    if (!s->quiet) notices_projection(s->engine, s->verbose);
    if (!s->verbose) return;
    kk_engine_info(s->engine, &info);
    kk_engine_device(s->engine, &dev);
    fprintf(stderr, "%s%s %s, %d layers, on %s (%s, %d threads), loaded in %.2f s%s\n",
            term_dim(stderr), info.name, info.weight_type, info.layers, dev.device, dev.isa,
            dev.threads, s->load_s, term_reset(stderr));
    fprintf(stderr, "%son %s: %s%s\n", term_dim(stderr), dev.device, dev.why, term_reset(stderr));
    kk_drafter_info drafter;
    if (kk_engine_drafter(s->engine, &drafter)) {
        fprintf(stderr, "%sdrafter of %d layers, %s, blocks of %d", term_dim(stderr),
                drafter.layers, term_bytes((double)drafter.weight_bytes).text, drafter.block);
        if (drafter.short_rows) fprintf(stderr, ", short head of %d ids", drafter.short_rows);
        fprintf(stderr, "%s\n", term_reset(stderr));
    }
    kk_projection_info projection;
    if (kk_engine_projection(s->engine, &projection))
        fprintf(stderr, "%sprojection of rank %d from %s, %s%s\n", term_dim(stderr),
                projection.rank, projection.source,
                term_bytes((double)projection.weight_bytes).text, term_reset(stderr));
    print_offload(s);
}

static void print_memory(const stream *s) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(s->engine, bytes);
    fputs(term_dim(stderr), stderr);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (bytes[c])
            fprintf(stderr, "%s %s  ", kk_mem_category_name((kk_mem_category)c),
                    term_bytes((double)bytes[c]).text);
    fprintf(stderr, "%s\n", term_reset(stderr));
}

static void print_fused(const stream *s) {
    kk_fused f;
    kk_engine_fused(s->engine, &f);
    fprintf(
        stderr, "%sthe device ran %lld of %lld layers and %lld of %lld heads as one operation%s\n",
        term_dim(stderr), (long long)f.layers_fused, (long long)(f.layers_fused + f.layers_by_ops),
        (long long)f.heads_fused, (long long)(f.heads_fused + f.heads_by_ops), term_reset(stderr));
}

static void print_timings(const stream *s) {
    const kk_result *res = &s->result;
    fprintf(stderr,
            "%s%zu prompt tokens in %.2f s (%.1f tok/s), %d generated in %.2f s (%.1f tok/s)%s\n",
            term_dim(stderr), s->n_prompt, s->prefill_s, rate((double)s->n_prompt, s->prefill_s),
            res->n_tokens, res->decode_s, decode_rate(res), term_reset(stderr));
}

static void print_drafting(const stream *s) {
    const kk_result *res = &s->result;
    const kk_spec_stats *t = &res->spec;
    fprintf(stderr,
            "%s%s: %.2f tokens per round, %.1f tok/s; %lld of %lld drafted tokens accepted in %lld "
            "rounds%s\n",
            term_dim(stderr), kk_spec_name(kk_session_spec(s->session)), accept_len(t),
            decode_rate(res), (long long)t->accepted, (long long)t->drafted, (long long)t->rounds,
            term_reset(stderr));
    const int64_t drafts = t->by[KK_SPEC_DFLASH].rounds;
    kk_drafter_info drafter;
    if (drafts == 0 || !kk_engine_drafter(s->engine, &drafter) || !drafter.short_rows) return;
    fprintf(stderr,
            "%s%lld drafts by the short head, %lld by the full one; %lld tokens outside%s\n",
            term_dim(stderr), (long long)t->short_rounds, (long long)(drafts - t->short_rounds),
            (long long)t->short_missed, term_reset(stderr));
}

static void print_counts(const stream *s) {
    kk_key_counts r;
    kk_session_key_counts(s->session, &r);
    if (!r.queries || !r.rows_rebuilt) return;
    fprintf(stderr, "%s%.0f keys per query: %.0f stored, %.0f rebuilt; %lld rows rebuilt%s\n",
            term_dim(stderr), (double)(r.keys_stored + r.keys_rebuilt) / (double)r.queries,
            (double)r.keys_stored / (double)r.queries, (double)r.keys_rebuilt / (double)r.queries,
            (long long)r.rows_rebuilt, term_reset(stderr));
}

int stream_report(stream *s, json_t *more) {
    const bool told = !s->json || print_json(s, more);
    json_decref(more);
    if (!told) return output_failed("out of memory for the output", NULL);
    if (!s->quiet) notices_full(s->session, s->result.stop);
    if (!s->quiet && !s->json) print_timings(s);
    if (s->verbose) {
        print_memory(s);
        print_fused(s);
        print_offload(s);
        print_drafting(s);
        print_counts(s);
    }
    return term_signal() ? term_exit_code() : EXIT_DONE;
}

/* ---- the run ----------------------------------------------------------------------------- */

bool stream_prompt(stream *s, const prompt_args *a, const prompt_tokens *p, int *code) {
    term_progress bar;
    kk_err err;
    double start = term_now();
    term_progress_begin(&bar, "reading the prompt", "tok", s->quiet);
    kk_status st = kk_session_append(s->session, p->ids, p->n, term_progress_step, &bar, &err);
    term_progress_end(&bar);
    s->prefill_s = term_now() - start;
    s->n_prompt = p->n;
    if (st == KK_EINVAL && a->tokens)
        *code = output_failed(err.msg, "'kakeya info' shows the size of the vocabulary; ids count "
                                       "from 0.");
    else if (st != KK_OK)
        *code = output_error(&err);
    return st == KK_OK;
}

int stream_generate(stream *s, const kk_generate_opts *opts, int32_t predict) {
    kk_err err;
    kk_generate_opts mine = *opts;
    mine.max_tokens = predict < 0 ? 0 : predict;
    if (s->logprobs) mine.on_logprobs = on_logprobs;
    s->seed = mine.sampling.seed;
    if (predict == 0) return EXIT_DONE;
    if (s->verbose)
        fprintf(stderr, "%sseed %llu%s\n", term_dim(stderr), (unsigned long long)s->seed,
                term_reset(stderr));
    kk_status st = kk_generate(s->session, &mine, on_token, s, &s->result, &err);
    finish_text(s);
    if (st != KK_OK) return output_error(&err);
    if (s->reply.fault.code == KK_ENOMEM) return output_error(&s->reply.fault);
    if (s->reply.fault.code != KK_OK)
        return output_failed(s->reply.fault.msg,
                             "The model and its tokenizer do not belong together; "
                             "without one, ids are printed.");
    if (s->out_of_memory) return output_failed("out of memory for the output", NULL);
    return EXIT_DONE;
}
