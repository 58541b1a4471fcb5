/* cmd_run.c - `kakeya run`: continues a prompt and streams what comes.
 *
 * The text goes to stdout as it is chosen; the timing line and the prefill progress go to
 * stderr.  With --json one object is printed at the end instead of the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/loader.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/term.h"
#include "cli/verbs.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    prompt_args prompt;
    kk_sampling sampling;
    int32_t predict;
    bool ignore_eos, json, quiet, verbose;
} run_args;

#define AT(field) offsetof(run_args, field)
static const option run_options[] = {
    LOADER_MODEL_OPTIONS(run_args, load),
    OPTION_HEADING("Prompt (one of these, or text on standard input)"),
    OPTION_STRING("p", "prompt", "TEXT", AT(prompt.text), "the text to continue"),
    OPTION_STRING("f", "file", "FILE", AT(prompt.file), "read it from a file; - is standard input"),
    OPTION_STRING(NULL, "tokens", "IDS", AT(prompt.tokens),
                  "token ids as they are, as in 2,17,5; for models without a tokenizer"),
    OPTION_FLAG(NULL, "chat", AT(prompt.chat), "the prompt is a user's turn, to be answered"),
    OPTION_STRING(NULL, "system", "TEXT", AT(prompt.system),
                  "with --chat: the system's instructions"),
    OPTION_HEADING("Output"),
    OPTION_INT("n", "predict", "N", AT(predict), 0, 1 << 30,
               "most tokens to generate; 0: until the model ends or the context is full "
               "(default: 256)"),
    OPTION_FLAG(NULL, "ignore-eos", AT(ignore_eos), "do not stop where the model ends its answer"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object with text, tokens and timings"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress and no timing line"),
    OPTION_FLAG("v", "verbose", AT(verbose),
                "say what is loaded, where, the memory it takes, and what drafting gave"),
    SAMPLING_OPTIONS(run_args, sampling, "0", "0", "1", "0"),
    LOADER_CACHE_OPTIONS(run_args, cache),
    LOADER_DEVICE_OPTIONS(run_args, load),
};

/* What one run gathers. */
typedef struct {
    const run_args *args;
    kk_engine *engine;
    kk_session *session;
    kk_decoder *decoder; /* NULL: the model has no tokenizer, ids are printed */
    prompt_tokens prompt;
    int32_t *ids; /* generated */
    size_t n_ids, cap;
    char *text; /* with --json: kept, not printed */
    size_t text_len, text_cap;
    bool out_of_memory;
    kk_err fault; /* of the decoder; its code is KK_OK while there is none */
    double load_s, prefill_s;
    kk_result result;
} run_state;

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

static bool put_text(run_state *r, const char *text, size_t len) {
    if (!r->args->json) {
        fwrite(text, 1, len, stdout);
        return len == 0 || fflush(stdout) == 0;
    }
    if (!grow(&r->text, &r->text_cap, r->text_len + len, 1)) return !(r->out_of_memory = true);
    if (len) memcpy(r->text + r->text_len, text, len);
    r->text_len += len;
    return true;
}

static bool put_id(run_state *r, int32_t id) {
    if (r->args->json) return true;
    printf(r->n_ids > 1 ? ",%d" : "%d", id);
    return fflush(stdout) == 0;
}

static bool on_token(void *user, int32_t id) {
    run_state *r = user;
    const char *text;
    size_t len;
    if (!grow(&r->ids, &r->cap, r->n_ids + 1, sizeof *r->ids)) return !(r->out_of_memory = true);
    r->ids[r->n_ids++] = id;
    if (!r->decoder) {
        if (!put_id(r, id)) return false;
    } else if (kk_decoder_push(r->decoder, id, &text, &len, &r->fault) != KK_OK ||
               !put_text(r, text, len)) {
        return false;
    }
    return term_signal() == 0;
}

static void finish_text(run_state *r) {
    const char *text;
    size_t len;
    if (r->decoder && kk_decoder_finish(r->decoder, &text, &len, NULL) == KK_OK)
        put_text(r, text, len);
    if (!r->args->json) {
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
    return stop == KK_STOP_EOS ? "eos" : stop == KK_STOP_LENGTH ? "length" : "stop";
}

static json_t *id_list(const run_state *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_ids; i++) json_array_append_new(list, json_integer(r->ids[i]));
    return list;
}

static json_t *kv_object(const run_state *r) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(r->engine, bytes);
    const char *format = r->args->cache.kv_format;
    return json_pack("{s:s, s:s, s:s, s:o}", "sliding", "native", "full", "exact", "format",
                     format ? format : "bf16", "bytes", output_memory(bytes));
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

static json_t *spec_object(const run_state *r) {
    const kk_spec_stats *t = &r->result.spec;
    json_t *parts = json_pack("{s:o, s:o, s:o, s:o}", "draft_s", output_real(t->draft_s),
                              "verify_s", output_real(t->verify_s), "choose_s",
                              output_real(t->choose_s), "commit_s", output_real(t->commit_s));
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:o}", "proposer",
                     kk_spec_name(kk_session_spec(r->session)), "rounds", (json_int_t)t->rounds,
                     "rows", (json_int_t)t->rows, "drafted", (json_int_t)t->drafted, "accepted",
                     (json_int_t)t->accepted, "accept_len", output_real(accept_len(t)), "histogram",
                     counts(t->histogram), "chosen", counts(t->chosen), "looking",
                     (json_int_t)t->looking, "timings", parts);
}

static bool print_json(const run_state *r) {
    const kk_result *res = &r->result;
    double n_prompt = (double)r->prompt.n;
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)res->logits_hash);
    json_t *timings = json_pack(
        "{s:o, s:o, s:o, s:o, s:o}", "load_s", output_real(r->load_s), "prefill_s",
        output_real(r->prefill_s), "decode_s", output_real(res->decode_s), "prefill_tok_s",
        output_real(rate(n_prompt, r->prefill_s)), "decode_tok_s", output_real(decode_rate(res)));
    return output_json(json_pack(
        "{s:o, s:o, s:s, s:I, s:o, s:o, s:o, s:i, s:s}", "text",
        output_text(r->text ? r->text : "", r->text_len), "tokens", id_list(r), "stop",
        stop_name(res->stop), "prompt_tokens", (json_int_t)r->prompt.n, "timings", timings, "spec",
        spec_object(r), "kv", kv_object(r), "restored_rows", 0, "logits_hash", hash));
}

static void print_loaded(const run_state *r) {
    kk_model_info info;
    kk_device_info dev;
    kk_engine_info(r->engine, &info);
    kk_engine_device(r->engine, &dev);
    fprintf(stderr, "%s%s %s, %d layers, on %s (%s, %d threads), loaded in %.2f s%s\n",
            term_dim(stderr), info.name, info.weight_type, info.layers, dev.device, dev.isa,
            dev.threads, r->load_s, term_reset(stderr));
    kk_drafter_info drafter;
    if (kk_engine_drafter(r->engine, &drafter))
        fprintf(stderr, "%sdrafter of %d layers, %s, blocks of %d%s\n", term_dim(stderr),
                drafter.layers, term_bytes((double)drafter.weight_bytes).text, drafter.block,
                term_reset(stderr));
}

static void print_memory(const run_state *r) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(r->engine, bytes);
    fputs(term_dim(stderr), stderr);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (bytes[c])
            fprintf(stderr, "%s %s  ", kk_mem_category_name((kk_mem_category)c),
                    term_bytes((double)bytes[c]).text);
    fprintf(stderr, "%s\n", term_reset(stderr));
}

static void print_timings(const run_state *r) {
    const kk_result *res = &r->result;
    fprintf(stderr,
            "%s%zu prompt tokens in %.2f s (%.1f tok/s), %d generated in %.2f s (%.1f tok/s)%s\n",
            term_dim(stderr), r->prompt.n, r->prefill_s, rate((double)r->prompt.n, r->prefill_s),
            res->n_tokens, res->decode_s, decode_rate(res), term_reset(stderr));
}

static void print_drafting(const run_state *r) {
    const kk_result *res = &r->result;
    const kk_spec_stats *t = &res->spec;
    fprintf(stderr,
            "%s%s: %.2f tokens per round, %.1f tok/s; %lld of %lld drafted tokens accepted in %lld "
            "rounds%s\n",
            term_dim(stderr), kk_spec_name(kk_session_spec(r->session)), accept_len(t),
            decode_rate(res), (long long)t->accepted, (long long)t->drafted, (long long)t->rounds,
            term_reset(stderr));
}

/* ---- the run ----------------------------------------------------------------------------- */

static bool prefill(run_state *r, int *code) {
    term_progress bar;
    kk_err err;
    double start = term_now();
    term_progress_begin(&bar, "reading the prompt", "tok", r->args->quiet);
    kk_status st =
        kk_session_append(r->session, r->prompt.ids, r->prompt.n, term_progress_step, &bar, &err);
    term_progress_end(&bar);
    r->prefill_s = term_now() - start;
    if (st == KK_EINVAL && r->args->prompt.tokens)
        *code = output_failed(err.msg, "'kakeya info' shows the size of the vocabulary; ids count "
                                       "from 0.");
    else if (st != KK_OK)
        *code = output_error(&err);
    return st == KK_OK;
}

static int generate(run_state *r) {
    const run_args *a = r->args;
    const kk_tokenizer *tok = kk_engine_tokenizer(r->engine);
    /* An answer ends with its turn, also where the model's files forget to say so. */
    int32_t turn_end = a->prompt.chat && tok ? kk_tokenizer_special(tok, "<turn|>") : -1;
    kk_generate_opts opts = {.max_tokens = a->predict,
                             .sampling = a->sampling,
                             .stop_ids = &turn_end,
                             .n_stop_ids = turn_end >= 0,
                             .ignore_eos = a->ignore_eos};
    kk_err err;
    kk_status st = kk_generate(r->session, &opts, on_token, r, &r->result, &err);
    finish_text(r);
    if (st != KK_OK) return output_error(&err);
    if (r->fault.code != KK_OK)
        return output_failed(r->fault.msg, "The model and its tokenizer do not belong together; "
                                           "without one, ids are printed.");
    if (r->out_of_memory) return output_failed("out of memory for the output", NULL);
    if (a->json && !print_json(r)) return output_failed("out of memory for the output", NULL);
    if (!a->quiet && !a->json) print_timings(r);
    if (a->verbose) {
        print_memory(r);
        print_drafting(r);
    }
    return term_signal() ? term_exit_code() : EXIT_DONE;
}

static int run_all(run_state *r) {
    const run_args *a = r->args;
    int code = EXIT_FAILED;
    kk_err err;
    double start = term_now();
    if (!(r->engine = loader_open(&verb_run, &a->load, &code))) return code;
    r->load_s = term_now() - start;
    if (a->verbose) print_loaded(r);
    const kk_tokenizer *tok = kk_engine_tokenizer(r->engine);
    if (tok && kk_decoder_new(&r->decoder, tok, false, &err) != KK_OK) return output_error(&err);
    if (!prompt_read(&verb_run, &a->prompt, tok, &r->prompt, &code)) return code;
    if (!(r->session = loader_session(r->engine, &a->cache, &code))) return code;
    term_on_signal(TERM_ASK);
    if (!prefill(r, &code)) return code;
    return generate(r);
}

static int run(int argc, char **argv) {
    run_args args = {.predict = 256};
    int code;
    if (!options_parse(&verb_run, argc, argv, &args, NULL, &code)) return code;
    if (!prompt_check(&verb_run, &args.prompt, &code)) return code;
    run_state r = {.args = &args};
    code = run_all(&r);
    kk_session_free(r.session);
    kk_decoder_free(r.decoder);
    kk_engine_close(r.engine);
    prompt_free(&r.prompt);
    free(r.ids);
    free(r.text);
    return code;
}

const verb verb_run = {
    .name = "run",
    .summary = "continue a text, or answer a question with --chat",
    .usage = "[-m MODEL] [-p TEXT | -f FILE | --tokens IDS] [options]",
    .about = "Continues a prompt and streams the text to standard output.  The prompt is taken as\n"
             "it is (with the model's <bos>); --chat renders it as a user's turn first.  Ctrl-C\n"
             "stops and keeps what there is.  Models without a tokenizer print token ids.",
    .examples = "  kakeya run -m gemma-4-26b.gguf -p 'The sea is' -n 64\n"
                "  kakeya run -m gemma-4-26b.gguf --chat -p 'Why is the sky blue?'\n"
                "  kakeya run -m gemma-4-26b.gguf --chat -f question.txt --temp 1 -s 7\n"
                "  kakeya run --synthetic tiny:f32 --tokens 2,17,5 -n 16 --json\n",
    .options = run_options,
    .n_options = OPTION_COUNT(run_options),
    .run = run,
};
