/* train_counts.c - `kakeya train counts`: how often each token comes up, for a drafter's short
 * head. */
#define _GNU_SOURCE
#include "cli/train_counts.h"

#include <stdio.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/tasks/counting.h"

typedef struct {
    loader_args load;
    const char *out, *data;
    int32_t predict;
    bool json, force, quiet;
} counts_args;

#define AT(field) offsetof(counts_args, field)
static const option counts_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file with a tokenizer (default: the small one "
                  "shipped with the program)"),
    OPTION_HEADING("Texts"),
    OPTION_STRING(
        NULL, "data", "FILE", AT(data),
        "text to count, or .jsonl with \"text\" or \"messages\" per line; more may follow "
        "behind the options (default: the shipped prompts)"),
    OPTION_INT(NULL, "predict", "N", AT(predict), 0, 1 << 20,
               "count as well up to N tokens that the model says to each prompt of a .jsonl file "
               "(default: 0, which needs no weights)"),
    OPTION_HEADING("Output"),
    OPTION_STRING("o", "out", "FILE", AT(out),
                  "file to write; as token-counts.json in a drafter's folder it is found there"),
    OPTION_FLAG(NULL, "json", AT(json), "one JSON object instead of the table"),
    OPTION_FLAG(NULL, "force", AT(force), "replace a file that is there"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(counts_args, load),
};

static void print_table(const counts_args *a, const kk_counting_result *r) {
    printf("counts  %s tokens of %s texts, %s of them the model's; %s ids, in %s\n",
           term_count(r->tokens).text, term_count(r->texts).text, term_count(r->said).text,
           term_count(r->ids).text, a->out);
    for (int i = 0; i < KK_COUNTING_SIZES; i++) {
        printf("  the %6s most frequent ids are %6.2f %% of the tokens\n",
               term_count(r->size[i].ids).text, 100 * r->size[i].share);
        if (r->size[i].ids >= r->ids) break;
    }
}

static json_t *result_json(const counts_args *a, const kk_counting_result *r) {
    json_t *sizes = json_array();
    for (int i = 0; i < KK_COUNTING_SIZES; i++)
        json_array_append_new(sizes, json_pack("{s:i, s:o}", "ids", r->size[i].ids, "share",
                                               output_real(r->size[i].share)));
    return json_pack("{s:s, s:I, s:I, s:I, s:i, s:o}", "counts", a->out, "texts",
                     (json_int_t)r->texts, "tokens", (json_int_t)r->tokens, "said",
                     (json_int_t)r->said, "ids", r->ids, "sizes", sizes);
}

static int count(const counts_args *a, const kk_counting_opts *what, kk_writer *to) {
    kk_counting_opts o = *what;
    kk_counting_result r;
    term_progress bar;
    kk_err err;
    term_on_signal(TERM_ASK);
    term_progress_begin(&bar, "counting", "tok", a->quiet);
    o.progress = term_progress_step;
    o.user = &bar;
    const kk_status st = kk_counting_run(&o, to, &r, &err);
    term_progress_end(&bar);
    if (st != KK_OK) return output_error(&err);
    if (a->json)
        return output_json(result_json(a, &r)) ? EXIT_DONE : output_failed("no memory", NULL);
    print_table(a, &r);
    return EXIT_DONE;
}

/* The model's tokenizer and, where it is to speak, an engine; then the file, which is opened before
 * anything is counted. */
static int with_model(const counts_args *a, const loader_path *model, kk_counting_opts *o) {
    const char *inputs[] = {model->path, a->data};
    const kk_writer_opts how = {.replace = a->force, .inputs = inputs, .n_inputs = 2};
    kk_tokenizer *tok;
    kk_model_info info;
    kk_writer *to;
    kk_err err;
    int code = EXIT_DONE;
    if (kk_model_inspect(model->path, &info, &err) != KK_OK ||
        kk_tokenizer_open(&tok, model->path, &err) != KK_OK)
        return output_error(&err);
    o->vocab = info.vocab;
    o->tok = tok;
    if (o->predict && !(o->engine = loader_open(&train_counts, &a->load, &code))) {
        kk_tokenizer_close(tok);
        return code;
    }
    if (destination_open(&to, a->out, &how, &code)) {
        code = count(a, o, to);
        destination_close(to);
    }
    kk_engine_close(o->engine);
    kk_tokenizer_close(tok);
    return code;
}

static int run(int argc, char **argv) {
    counts_args a = {.load = {.drafter = "none"}};
    const char *paths[1 + sizeof((option_words){0}).word / sizeof(char *)];
    char prompts[4096];
    option_words words = {.n = 0};
    loader_path model;
    int code;
    if (!options_parse(&train_counts, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (!a.out) return options_wrong(&train_counts, "--out names the file to write");
    if (words.n && !a.data)
        return options_wrong(&train_counts, "texts are named with --data, as in --data %s",
                             words.word[0]);
    if (!loader_find(&train_counts, &a.load, &model, &code)) return code;
    kk_counting_opts o = {.paths = paths, .predict = a.predict};
    if (a.data) paths[o.n_paths++] = a.data;
    for (int i = 0; i < words.n; i++) paths[o.n_paths++] = words.word[i];
    if (loader_shipped("prompts", prompts, sizeof prompts)) o.prompts = prompts;
    return with_model(&a, &model, &o);
}

const verb train_counts = {
    .name = "train counts",
    .summary = "how often each token comes up, for a drafter's short head",
    .usage = "--out FILE [-m MODEL] [options] [--data FILE...]",
    .about =
        "Counts the tokens of texts, as the model's tokenizer has them, and of what the model\n"
        "says to them.  A drafter with such a file drafts by a short head: by the rows of the\n"
        "ids that came up most (--draft-vocab FILE).  Which tokens are decoded does not depend\n"
        "on it.",
    .examples = "  kakeya train counts --out counts.json\n"
                "  kakeya train counts -m gemma-4-26b-a4b --out dflash/token-counts.json "
                "--data a.txt b.txt\n"
                "  kakeya run -p \"def main():\" --draft-vocab counts.json:1024 -v\n",
    .options = counts_options,
    .n_options = OPTION_COUNT(counts_options),
    .max_words = 64,
    .run = run,
};
