/* cmd_session.c - `kakeya session`: sessions that are put away and taken up again.
 *
 * Four kinds, each with options of its own.  save and load stream text as run does; a session is
 * written only when all before it went well, and a signal waits until the file is whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/destination.h"
#include "cli/flags.h"
#include "cli/loader.h"
#include "cli/notices.h"
#include "cli/sampling.h"
#include "cli/sessions.h"
#include "cli/stream.h"
#include "cli/term.h"
#include "cli/verbs.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    prompt_args prompt;
    kk_sampling sampling;
    option_words stops;
    int32_t predict;
    bool ignore_eos, json, quiet, verbose, force, keep;
} session_args;

extern const verb session_save, session_load, session_ls, session_rm;

#define AT(field) offsetof(session_args, field)

#define OUTPUT_OPTIONS                                                                             \
    OPTION_FLAG(NULL, "ignore-eos", AT(ignore_eos),                                                \
                "do not stop where the model ends its answer"),                                    \
        OPTION_FLAG(NULL, "json", AT(json),                                                        \
                    "print one JSON object with text, tokens and timings"),                        \
        OPTION_FLAG("q", "quiet", AT(quiet), "no progress and no timing line"),                    \
        OPTION_FLAG("v", "verbose", AT(verbose),                                                   \
                    "say what is loaded, where, the memory it takes, and what drafting gave")

/* ---- what save and load share ------------------------------------------------------------- */

typedef struct {
    const verb *verb;
    const session_args *args;
    const char *name;
    sessions_path path;
    kk_writer *file;     /* NULL: nothing will be saved */
    kk_saved_info saved; /* load */
    stream stream;
    prompt_tokens prompt;
    double session_load_s;
    bool exact;
} work;

static int refused(const kk_err *err) {
    const char *next = NULL;
    if (err->code == KK_EFORMAT || err->code == KK_EIO)
        next = "'kakeya session ls' shows what there is, and what each was saved with.";
    return next ? output_failed(err->msg, next) : output_error(err);
}

static bool open_engine(work *w, int *code) {
    stream *s = &w->stream;
    const double start = term_now();
    if (!(s->engine = loader_open(w->verb, &w->args->load, code))) return false;
    s->load_s = term_now() - start;
    stream_loaded(s);
    return stream_open(s, code);
}

static int generate(work *w) {
    const session_args *a = w->args;
    const kk_tokenizer *tok = kk_engine_tokenizer(w->stream.engine);
    int32_t turn_end = a->prompt.chat && tok ? kk_tokenizer_special(tok, "<turn|>") : -1;
    kk_generate_opts opts = {.sampling = a->sampling,
                             .stop_ids = &turn_end,
                             .n_stop_ids = turn_end >= 0,
                             .ignore_eos = a->ignore_eos};
    return stream_generate(&w->stream, &opts, a->predict);
}

/* Opens the session's file, which from then on nobody else can write, before the work. */
static bool open_file(work *w, bool replace, int *code) {
    const session_args *a = w->args;
    loader_path path;
    kk_engine_opts read;
    if (!loader_options(w->verb, &a->load, &path, &read, code)) return false;
    const char *inputs[] = {read.model, read.drafter, read.projection, a->prompt.file};
    const kk_writer_opts opts = {
        .replace = replace, .owner_only = true, .inputs = inputs, .n_inputs = OPTION_COUNT(inputs)};
    sessions_make_folder(&w->path);
    return destination_open(&w->file, w->path.text, &opts, code);
}

static int save(work *w) {
    kk_err err;
    /* What is half written is removed before the process ends; a pipe has nothing to remove. */
    term_on_signal(kk_writer_temp(w->file) ? TERM_INSIST : TERM_QUIT);
    if (kk_session_save_to(w->stream.session, w->file, &err) == KK_OK) return EXIT_DONE;
    return output_failed(err.msg, "Check the folder and the space on its disk; the session that "
                                  "was there before is as it was.");
}

static int report(work *w, bool saved) {
    const stream *s = &w->stream;
    if (!w->args->quiet && !w->args->json && saved)
        fprintf(stderr, "%s%s: %d tokens saved%s\n", term_dim(stderr), w->name,
                kk_session_len(s->session), term_reset(stderr));
    json_t *more =
        json_pack("{s:o, s:i, s:b, s:b, s:o}", "session", output_text(w->name, strlen(w->name)),
                  "session_tokens", kk_session_len(s->session), "saved", saved, "exact", w->exact,
                  "session_load_s", output_real(w->session_load_s));
    return stream_report(&w->stream, more);
}

static void close_work(work *w) {
    stream_close(&w->stream);
    kk_session_free(w->stream.session);
    kk_engine_close(w->stream.engine);
    prompt_free(&w->prompt);
    destination_close(w->file);
}

static work open_work(const verb *v, const session_args *a, const char *name) {
    return (work){.verb = v,
                  .args = a,
                  .name = name,
                  .exact = true,
                  .stream = {.json = a->json,
                             .quiet = a->quiet,
                             .verbose = a->verbose,
                             .chat = a->prompt.chat,
                             .stops = &a->stops}};
}

/* ---- save --------------------------------------------------------------------------------- */

static const option save_options[] = {
    LOADER_MODEL_OPTIONS(session_args, load),
    OPTION_HEADING("Prompt (one of these, or text on standard input)"),
    PROMPT_OPTIONS(session_args, prompt),
    PROMPT_CHAT_OPTIONS(session_args, prompt),
    OPTION_HEADING("Output"),
    SAMPLING_PREDICT_OPTION(session_args, predict,
                            "generate up to N tokens before saving; -1: until the model ends or "
                            "the context is full (default: 0, none)"),
    SAMPLING_STOP_OPTION(session_args, stops),
    OUTPUT_OPTIONS,
    OPTION_FLAG(NULL, "force", AT(force), "replace a session of that name"),
    SAMPLING_OPTIONS(session_args, sampling, "0", "0", "1", "-1"),
    LOADER_CACHE_OPTIONS(session_args, cache),
    LOADER_DEVICE_OPTIONS(session_args, load),
};

static bool name_is_free(work *w, int *code) {
    char what[400];
    struct stat st;
    if (w->args->force || stat(w->path.text, &st) != 0 || !S_ISREG(st.st_mode)) return true;
    snprintf(what, sizeof what, "there is a session '%.200s' already", w->name);
    *code = output_failed(what, "Give another name, --force to replace it, or go on with it: "
                                "kakeya session load.");
    return false;
}

static int save_all(work *w) {
    const session_args *a = w->args;
    stream *s = &w->stream;
    int code;
    if (!sessions_find(w->verb, w->name, &w->path, &code) || !name_is_free(w, &code)) return code;
    if (!open_file(w, a->force, &code) || !open_engine(w, &code)) return code;
    if (!(s->session = loader_session(s->engine, &a->cache, &code))) return code;
    if (!prompt_read(w->verb, &a->prompt, kk_engine_tokenizer(s->engine), s->session, &w->prompt,
                     &code))
        return code;
    term_on_signal(TERM_ASK);
    if (!stream_prompt(s, &a->prompt, &w->prompt, &code)) return code;
    code = generate(w);
    if (code == EXIT_DONE) code = save(w);
    return code == EXIT_DONE ? report(w, true) : code;
}

static int run_save(int argc, char **argv) {
    session_args args = {.sampling.seed = SAMPLING_DRAW, .cache = LOADER_CACHE_DEFAULTS};
    option_words words;
    int code;
    if (!options_parse(&session_save, argc - 1, argv + 1, &args, &words, &code)) return code;
    if (!prompt_check(&session_save, &args.prompt, &code)) return code;
    sampling_draw_seed(&args.sampling.seed);
    loader_expect(&args.load, &args.cache);
    work w = open_work(&session_save, &args, words.word[0]);
    code = save_all(&w);
    close_work(&w);
    return code;
}

const verb session_save = {
    .name = "session save",
    .summary = "read a prompt and put the session away",
    .usage = "NAME [-m MODEL] [-p TEXT | -f FILE | --tokens IDS] [-n N] [options]",
    .about = "Reads a prompt, generates if -n asks for it, and saves the session under NAME, so\n"
             "that 'session load' goes on from there at once.  A NAME with a '/' is the path of a\n"
             "file; another is kept in ~/.local/state/kakeya/sessions.  Ctrl-C while text is\n"
             "generated stops it and saves what there is.",
    .examples = "  kakeya session save book -m gemma-4-26b.gguf -f book.txt\n"
                "  kakeya session save talk --chat -p 'Hello, who are you?' -n 100\n"
                "  kakeya session save ./draft.kks --synthetic tiny:f32 --tokens 2,17,5\n",
    .options = save_options,
    .n_options = OPTION_COUNT(save_options),
    .min_words = 1,
    .max_words = 1,
    .run = run_save,
};

/* ---- load --------------------------------------------------------------------------------- */

static const option load_options[] = {
    LOADER_MODEL_OPTIONS(session_args, load),
    OPTION_HEADING("Prompt (optional)"),
    PROMPT_OPTIONS(session_args, prompt),
    OPTION_HEADING("Output"),
    SAMPLING_PREDICT_OPTION(session_args, predict,
                            "most tokens to generate; -1: until the model ends or the context is "
                            "full, 0: none (default: 256)"),
    SAMPLING_STOP_OPTION(session_args, stops),
    OUTPUT_OPTIONS,
    OPTION_FLAG(NULL, "keep", AT(keep), "leave the saved session as it is"),
    SAMPLING_OPTIONS(session_args, sampling, "as saved", "as saved", "as saved", "as saved"),
    OPTION_HEADING("Context"),
    OPTION_INT("c", "ctx-size", "N", AT(cache.ctx), 0, 1 << 30,
               "most tokens held (default: as saved)"),
    OPTION_HEADING("Drafting (changes the speed, never the tokens)"),
    OPTION_CHOICE("spec", "PROPOSER", AT(cache.spec), "auto dflash ngram none", NULL,
                  "who drafts tokens: dflash, if it was saved with the same drafter, ngram or none "
                  "(default: as saved)"),
    LOADER_DRAFT_MAX_OPTION(AT(cache.draft_max)),
    OPTION_FLAG(NULL, "draft-fixed", AT(cache.draft_fixed),
                "always draft --draft-max tokens, whether it pays or not"),
    LOADER_DEVICE_OPTIONS(session_args, load),
};

/* Before a model is opened for it. */
static bool find_saved(work *w, int *code) {
    kk_err err;
    if (kk_saved_inspect(w->path.text, &w->saved, &err) == KK_OK) return true;
    *code = refused(&err);
    return false;
}

static void say_what_changed(const work *w) {
    const kk_spec spec = kk_session_spec(w->stream.session);
    if (w->args->quiet) return;
    notices_saved(w->name, &w->saved, w->stream.session, w->exact);
    const bool drafted = w->saved.spec == KK_SPEC_DFLASH || w->saved.spec == KK_SPEC_AUTO;
    if (drafted && spec == KK_SPEC_NONE && !w->args->cache.spec)
        fprintf(stderr, "%s: saved with a drafter that is not loaded; going on without drafts\n",
                w->name);
}

static bool load_session(work *w, int *code) {
    const kk_session_opts opts = loader_session_opts(&w->args->cache);
    stream *s = &w->stream;
    kk_err err;
    const double start = term_now();
    if (kk_session_load(&s->session, s->engine, w->path.text, &opts, &w->exact, &err) != KK_OK) {
        *code = refused(&err);
        if (err.code == KK_EINVAL) *code = EXIT_USAGE;
        return false;
    }
    w->session_load_s = term_now() - start;
    say_what_changed(w);
    return true;
}

static bool has_prompt(const prompt_args *p) { return p->text || p->file || p->tokens; }

/* Puts ids before the prompt; false without memory. */
static bool put_before(prompt_tokens *p, const int32_t *ids, size_t n) {
    int32_t *grown = realloc(p->ids, (p->n + n + 1) * sizeof *grown);
    if (!grown) return false;
    memmove(grown + n, grown, p->n * sizeof *grown);
    memcpy(grown, ids, n * sizeof *grown);
    p->ids = grown;
    p->n += n;
    return true;
}

/* A user's turn follows the end of the one before, and a line break. */
static bool begin_turn(work *w, int *code) {
    const kk_tokenizer *tok = kk_engine_tokenizer(w->stream.engine);
    const kk_session *s = w->stream.session;
    const int32_t len = kk_session_len(s), end = tok ? kk_tokenizer_special(tok, "<turn|>") : -1;
    int32_t *line = NULL;
    size_t n = 0;
    kk_err err;
    if (!w->args->prompt.chat || len == 0) return true;
    if (kk_encode(tok, "\n", 1, 0, &line, &n, &err) != KK_OK) {
        *code = output_error(&err);
        return false;
    }
    bool put = put_before(&w->prompt, line, n);
    kk_free(line);
    if (put && end >= 0 && kk_session_tokens(s)[len - 1] != end)
        put = put_before(&w->prompt, &end, 1);
    if (!put) *code = output_failed("out of memory for the prompt", NULL);
    return put;
}

static bool read_on(work *w, int *code) {
    const session_args *a = w->args;
    stream *s = &w->stream;
    if (!has_prompt(&a->prompt)) return true;
    return prompt_read(w->verb, &a->prompt, kk_engine_tokenizer(s->engine), s->session, &w->prompt,
                       code) &&
           begin_turn(w, code) && stream_prompt(s, &a->prompt, &w->prompt, code);
}

/* The settings last used are the defaults, so that the command line is read again over them. */
static bool sample_as_saved(work *w, session_args *args, int argc, char **argv, int *code) {
    option_words words;
    if (!kk_session_sampling(w->stream.session, &args->sampling)) return true;
    args->stops.n = 0; /* they are read again too */
    return options_parse(&session_load, argc - 1, argv + 1, args, &words, code);
}

static int load_all(work *w, session_args *args, int argc, char **argv) {
    int code;
    if (!sessions_find(w->verb, w->name, &w->path, &code)) return code;
    if (!find_saved(w, &code)) return code;
    args->load.restores = w->saved.projection != 0;
    /* Looked at again when it is ours to write: somebody may have gone on with it in between. */
    if (!args->keep && (!open_file(w, true, &code) || !find_saved(w, &code))) return code;
    if (!open_engine(w, &code)) return code;
    if (!load_session(w, &code)) return code;
    if (!sample_as_saved(w, args, argc, argv, &code)) return code;
    sampling_draw_seed(&args->sampling.seed);
    args->prompt.goes_on = kk_session_len(w->stream.session) > 0;
    term_on_signal(TERM_ASK);
    if (!read_on(w, &code)) return code;
    code = generate(w);
    if (code == EXIT_DONE && !args->keep) code = save(w);
    return code == EXIT_DONE ? report(w, !args->keep) : code;
}

static int run_load(int argc, char **argv) {
    session_args args = {
        .predict = 256, .sampling.seed = SAMPLING_DRAW, .cache = LOADER_CACHE_DEFAULTS};
    option_words words;
    int code;
    if (!options_parse(&session_load, argc - 1, argv + 1, &args, &words, &code)) return code;
    if (has_prompt(&args.prompt) && !prompt_check(&session_load, &args.prompt, &code)) return code;
    if (args.prompt.chat && !has_prompt(&args.prompt))
        return options_wrong(&session_load, "--chat needs the user's turn: -p TEXT or -f FILE");
    work w = open_work(&session_load, &args, words.word[0]);
    code = load_all(&w, &args, argc, argv);
    close_work(&w);
    return code;
}

const verb session_load = {
    .name = "session load",
    .summary = "go on with a saved session",
    .usage = "NAME [-m MODEL] [-p TEXT | -f FILE | --tokens IDS] [-n N] [--keep] [options]",
    .about =
        "Takes up the session saved under NAME, appends a prompt if one is given, streams what\n"
        "the model adds to it, and saves the longer session under the same name; with --keep\n"
        "the saved one stays as it is.  The model must be the one it was saved with, in that\n"
        "precision or another.  With the same weights, kind of device and build, text, tokens and\n"
        "the hash of the logits are those of a session that never stopped; otherwise a line says\n"
        "that they may differ.",
    .examples = "  kakeya session load book -m gemma-4-26b.gguf -p 'In short:' -n 200 --keep\n"
                "  kakeya session load talk --chat -p 'And then?'\n"
                "  kakeya session load ./draft.kks --synthetic tiny:f32 -n 16 --json\n",
    .options = load_options,
    .n_options = OPTION_COUNT(load_options),
    .min_words = 1,
    .max_words = 1,
    .run = run_load,
};

/* ---- ls and rm ---------------------------------------------------------------------------- */

static const option ls_options[] = {
    OPTION_HEADING("Options"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object"),
};

typedef struct {
    char text[32];
} age_text;

static age_text age_of(time_t saved) {
    static const struct {
        double seconds;
        const char *unit;
    } steps[] = {{86400, "days"}, {3600, "h"}, {60, "min"}};
    age_text a;
    double age = difftime(time(NULL), saved);
    if (age < 0) age = 0;
    snprintf(a.text, sizeof a.text, "%.0f s", age);
    for (size_t i = OPTION_COUNT(steps); i-- > 0;)
        if (age >= 2 * steps[i].seconds)
            snprintf(a.text, sizeof a.text, "%.0f %s", age / steps[i].seconds, steps[i].unit);
    return a;
}

static json_t *entry_object(const sessions_entry *e) {
    const kk_saved_info *i = &e->info;
    char print[20];
    if (e->err.code != KK_OK) {
        const flags_message why = flags_for(e->err.msg);
        return json_pack("{s:o, s:o}", "name", output_text(e->name, strlen(e->name)), "error",
                         output_text(why.text, strlen(why.text)));
    }
    snprintf(print, sizeof print, "%016llx", (unsigned long long)i->fingerprint);
    return json_pack("{s:o, s:i, s:i, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I}", "name",
                     output_text(e->name, strlen(e->name)), "tokens", i->tokens, "ctx", i->ctx,
                     "bytes", (json_int_t)i->bytes, "model", i->model, "fingerprint", print,
                     "format", loader_format_name(i->kv_format), "sliding", i->kv_sliding, "full",
                     i->kv_full, "spec", kk_spec_name(i->spec), "device", i->device, "build",
                     i->build, "saved", (json_int_t)e->saved);
}

static bool list_as_json(const sessions_entry *entries, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, entry_object(&entries[i]));
    return output_json(json_pack("{s:o}", "sessions", list));
}

static void list_as_table(const sessions_entry *entries, size_t n) {
    if (n == 0) fprintf(stderr, "no saved sessions; 'kakeya session save NAME' makes one\n");
    if (n)
        printf("%-20s %8s %10s  %-20s %-6s %10s\n", "name", "tokens", "size", "model", "K/V",
               "saved ago");
    for (size_t i = 0; i < n; i++) {
        const sessions_entry *e = &entries[i];
        if (e->err.code != KK_OK)
            printf("%-20s %s\n", e->name, flags_for(e->err.msg).text);
        else
            printf("%-20s %8s %10s  %-20s %-6s %10s\n", e->name, term_count(e->info.tokens).text,
                   term_bytes((double)e->info.bytes).text, e->info.model,
                   loader_format_name(e->info.kv_format), age_of(e->saved).text);
    }
}

static int run_ls(int argc, char **argv) {
    session_args args = {.json = false};
    sessions_entry *entries;
    size_t n;
    int code;
    if (!options_parse(&session_ls, argc - 1, argv + 1, &args, NULL, &code)) return code;
    bool told = sessions_list(&entries, &n);
    if (told && args.json)
        told = list_as_json(entries, n);
    else if (told)
        list_as_table(entries, n);
    free(entries);
    return told ? EXIT_DONE : output_failed("out of memory for the list", NULL);
}

const verb session_ls = {
    .name = "session ls",
    .summary = "list saved sessions",
    .usage = "[--json]",
    .about = "Lists the sessions kept by name: tokens, size of the file, the model it was saved\n"
             "with, how K/V rows are stored, and how long ago it was saved.  One that cannot be\n"
             "read is listed with the reason.",
    .examples = "  kakeya session ls\n"
                "  kakeya session ls --json\n",
    .options = ls_options,
    .n_options = OPTION_COUNT(ls_options),
    .run = run_ls,
};

static int run_rm(int argc, char **argv) {
    session_args unused;
    option_words words;
    int code, worst = EXIT_DONE;
    if (!options_parse(&session_rm, argc - 1, argv + 1, &unused, &words, &code)) return code;
    for (int i = 0; i < words.n; i++)
        if (!sessions_remove(&session_rm, words.word[i], &code)) worst = code;
    return worst;
}

const verb session_rm = {
    .name = "session rm",
    .summary = "remove saved sessions",
    .usage = "NAME...",
    .about = "Removes the sessions saved under these names, and what saves that were killed have\n"
             "left of them.",
    .examples = "  kakeya session rm talk\n"
                "  kakeya session rm ./draft.kks book\n",
    .min_words = 1,
    .max_words = 64,
    .run = run_rm,
};

/* ---- the verb ----------------------------------------------------------------------------- */

static const verb *const kinds[] = {&session_save, &session_load, &session_ls, &session_rm};

static int run(int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], "list") == 0) return session_ls.run(argc, argv);
    return options_run_kind(&verb_session, argc, argv);
}

const verb verb_session = {
    .name = "session",
    .summary = "save a session, go on with it later, list and remove saved ones",
    .usage = "KIND [options]",
    .about =
        "A saved session is a file with tokens and caches, from which a model goes on at once.\n"
        "list is another word for ls.",
    .examples = "  kakeya session save book -m gemma-4-26b.gguf -f book.txt\n"
                "  kakeya session load book -m gemma-4-26b.gguf -p 'In short:' -n 200 --keep\n"
                "  kakeya session ls\n",
    .kinds = kinds,
    .n_kinds = OPTION_COUNT(kinds),
    .run = run,
};
