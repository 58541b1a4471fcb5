/* cmd_quantize.c - `kakeya quantize`: a GGUF file of a Hugging Face folder. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/destination.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "kakeya.h"

typedef struct {
    const char *type;
    bool force, quiet;
} quantize_args;

#define AT(field) offsetof(quantize_args, field)
static const option quantize_options[] = {
    OPTION_HEADING("Options"),
    OPTION_CHOICE("type", "TYPE", AT(type), "q8_0 q4_0 bf16 f16", "",
                  "how matrices are stored: q8_0, q4_0, bf16 or f16"),
    OPTION_FLAG(NULL, "force", AT(force), "replace OUT if it is there"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress and no summary"),
};

static void print_summary(const char *out, double seconds) {
    struct stat st;
    if (stat(out, &st) != 0 || !S_ISREG(st.st_mode)) return;
    fprintf(stderr, "%s: %s in %.1f s\n", out, term_bytes((double)st.st_size).text, seconds);
}

static int quantize(const quantize_args *a, const char *in, const char *out, kk_writer *to) {
    term_progress bar;
    kk_err err;
    const double start = term_now();
    /* What is half written is removed before this returns, so every signal waits for it; a pipe
     * that nobody reads would be waited for forever. */
    term_on_signal(kk_writer_temp(to) ? TERM_INSIST : TERM_QUIT);
    term_progress_begin(&bar, "quantizing", NULL, a->quiet);
    const kk_status st = kk_quantize_to(in, to, a->type, term_progress_step, &bar, &err);
    term_progress_end(&bar);
    if (st == KK_ESTOPPED && !a->quiet) fprintf(stderr, "stopped; nothing was written\n");
    if (st != KK_OK) return output_error(&err);
    if (!a->quiet) print_summary(out, term_now() - start);
    return EXIT_DONE;
}

static int run(int argc, char **argv) {
    quantize_args a = {0};
    option_words words;
    int code;
    if (!options_parse(&verb_quantize, argc, argv, &a, &words, &code)) return code;
    if (!a.type)
        return options_wrong(&verb_quantize, "give a type: --type q8_0, q4_0, bf16 or f16");
    const char *in = words.word[0], *out = words.word[1];
    if (strcmp(out, "-") == 0)
        return options_wrong(
            &verb_quantize,
            "OUT is a file: /dev/stdout is standard output, ./- a file of that name");
    const kk_writer_opts opts = {.replace = a.force, .inputs = &in, .n_inputs = 1};
    kk_writer *to;
    if (!destination_open(&to, out, &opts, &code)) return code;
    code = quantize(&a, in, out, to);
    destination_close(to);
    return code;
}

const verb verb_quantize = {
    .name = "quantize",
    .summary = "write a GGUF file of a Hugging Face folder",
    .usage = "IN OUT --type TYPE [--force]",
    .about =
        "Reads the Hugging Face folder IN, of a model or of a DFlash drafter, and writes the\n"
        "GGUF file OUT with its matrices in the given type.  OUT appears whole or not at all,\n"
        "also when it is interrupted.",
    .examples = "  kakeya quantize gemma-4-26B-A4B gemma-4-26b-a4b-q4_0.gguf --type q4_0\n"
                "  kakeya quantize gemma-4-E2B e2b-q8_0.gguf --type q8_0 --force\n"
                "  kakeya quantize gemma-4-26b-a4b-dflash dflash-q8_0.gguf --type q8_0\n",
    .options = quantize_options,
    .n_options = OPTION_COUNT(quantize_options),
    .min_words = 2,
    .max_words = 2,
    .run = run,
};
