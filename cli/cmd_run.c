/* cmd_run.c - `kakeya run`: continues a prompt and streams what comes. */
#include "cli/loader.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/stream.h"
#include "cli/term.h"
#include "cli/verbs.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    prompt_args prompt;
    kk_sampling sampling;
    option_words biases, stops;
    int32_t predict, logprobs;
    bool ignore_eos, json, quiet, verbose;
} run_args;

#define AT(field) offsetof(run_args, field)
static const option run_options[] = {
    LOADER_MODEL_OPTIONS(run_args, load),
    OPTION_HEADING("Prompt (one of these, or text on standard input)"),
    PROMPT_OPTIONS(run_args, prompt),
    PROMPT_CHAT_OPTIONS(run_args, prompt),
    OPTION_HEADING("Output"),
    SAMPLING_PREDICT_OPTION(run_args, predict,
                            "most tokens to generate; -1: until the model ends or the context is "
                            "full, 0: none (default: 256)"),
    SAMPLING_STOP_OPTION(run_args, stops),
    OPTION_FLAG(NULL, "ignore-eos", AT(ignore_eos), "do not stop where the model ends its answer"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object with text, tokens and timings"),
    OPTION_INT(NULL, "logprobs", "N", AT(logprobs), 0, KK_MAX_LOGPROBS,
               "with --json: the log-probability of each token, and of the N likeliest there"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress and no timing line"),
    OPTION_FLAG("v", "verbose", AT(verbose),
                "say what is loaded, where, the seed, the memory it takes, and what drafting gave"),
    SAMPLING_OPTIONS(run_args, sampling, "0", "0", "1", "-1"),
    SAMPLING_BIAS_OPTION(run_args, biases),
    LOADER_CACHE_OPTIONS(run_args, cache),
    LOADER_DEVICE_OPTIONS(run_args, load),
};

static int generate(stream *s, const run_args *a, const kk_logit_bias *bias) {
    const kk_tokenizer *tok = kk_engine_tokenizer(s->engine);
    /* An answer ends with its turn, also where the model's files forget to say so. */
    int32_t turn_end = a->prompt.chat && tok ? kk_tokenizer_special(tok, "<turn|>") : -1;
    kk_generate_opts opts = {.sampling = a->sampling,
                             .stop_ids = &turn_end,
                             .n_stop_ids = turn_end >= 0,
                             .ignore_eos = a->ignore_eos,
                             .bias = bias,
                             .n_bias = (size_t)a->biases.n,
                             .n_logprobs = a->logprobs > 0 ? a->logprobs : 0};
    int code = stream_generate(s, &opts, a->predict);
    return code == EXIT_DONE ? stream_report(s, NULL) : code;
}

static int run_all(stream *s, const run_args *a, const kk_logit_bias *bias, prompt_tokens *prompt) {
    int code = EXIT_FAILED;
    double start = term_now();
    if (!(s->engine = loader_open(&verb_run, &a->load, &code))) return code;
    s->load_s = term_now() - start;
    stream_loaded(s);
    if (!stream_open(s, &code)) return code;
    if (!(s->session = loader_session(s->engine, &a->cache, &code))) return code;
    if (!prompt_read(&verb_run, &a->prompt, kk_engine_tokenizer(s->engine), s->session, prompt,
                     &code))
        return code;
    term_on_signal(TERM_ASK);
    if (!stream_prompt(s, &a->prompt, prompt, &code)) return code;
    return generate(s, a, bias);
}

static int run(int argc, char **argv) {
    run_args args = {.predict = 256,
                     .logprobs = -1,
                     .sampling.seed = SAMPLING_DRAW,
                     .cache = LOADER_CACHE_DEFAULTS};
    prompt_tokens prompt = {NULL, 0};
    kk_logit_bias bias[OPTION_COUNT(args.biases.word)];
    int code;
    if (!options_parse(&verb_run, argc, argv, &args, NULL, &code)) return code;
    if (!prompt_check(&verb_run, &args.prompt, &code)) return code;
    if (!sampling_biases(&verb_run, &args.biases, bias, &code)) return code;
    if (args.logprobs >= 0 && !args.json)
        return options_wrong(&verb_run, "--logprobs goes with --json");
    sampling_draw_seed(&args.sampling.seed);
    loader_expect(&args.load, &args.cache);
    stream s = {.json = args.json,
                .quiet = args.quiet,
                .verbose = args.verbose,
                .chat = args.prompt.chat,
                .stops = &args.stops};
    if (args.logprobs >= 0) s.logprobs = json_array();
    code = run_all(&s, &args, bias, &prompt);
    stream_close(&s);
    kk_session_free(s.session);
    kk_engine_close(s.engine);
    prompt_free(&prompt);
    return code;
}

const verb verb_run = {
    .name = "run",
    .summary = "continue a text, or answer a question with --chat",
    .usage = "[-m MODEL] [-p TEXT | -f FILE | --tokens IDS] [options]",
    .about = "Continues a prompt and streams the text to standard output.  The prompt is taken as\n"
             "it is (with the model's <bos>); --chat renders it as a user's turn first, and shows\n"
             "thoughts (at a terminal) and tool calls apart from the answer.  Ctrl-C stops and\n"
             "keeps what there is.  Models without a tokenizer print token ids.",
    .examples = "  kakeya run -m gemma-4-26b.gguf -p 'The sea is' -n 64\n"
                "  kakeya run -m gemma-4-26b.gguf --chat -p 'Why is the sky blue?'\n"
                "  kakeya run -m gemma-4-26b.gguf --chat -f question.txt --temp 1 -s 7\n"
                "  kakeya run --chat -p 'Weather in Oslo?' --tools tools.json --json -n -1\n"
                "  kakeya run --chat -f long.txt --kv-sliding restored --kv-full restored -v\n"
                "  kakeya run --synthetic tiny:f32 --tokens 2,17,5 -n 16 --json\n",
    .options = run_options,
    .n_options = OPTION_COUNT(run_options),
    .run = run,
};
