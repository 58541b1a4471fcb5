/* eval_kv.c - `kakeya eval kv`: what storing K/V rows in fewer bits costs. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/destination.h"
#include "cli/eval_accept.h"
#include "cli/eval_sweep.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/tasks/kvformats.h"

typedef struct {
    loader_args load;
    eval_texts_args texts;
    const char *formats;
    destination_report report;
    bool quiet;
} kv_args;

#define AT(field) offsetof(kv_args, field)
static const option kv_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    OPTION_HEADING("Formats"),
    OPTION_STRING(NULL, "formats", "LIST", AT(formats),
                  "names of K/V formats with commas between, as --kv-format of 'run' takes them "
                  "(default: all; "
                  "f32, the identity, is always among them)"),
    EVAL_TEXTS_OPTIONS(kv_args, texts),
    OPTION_HEADING("Output"),
    DESTINATION_REPORT_OPTIONS(kv_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(kv_args, load),
};

static bool add_format(const char *name, kk_kvformats_opts *o, int *code) {
    kk_kv_format f;
    if (!kk_kv_format_named(name, &f)) {
        *code = options_wrong(&eval_kv, "--formats: there is no format '%.20s'", name);
        return false;
    }
    for (int32_t i = 0; i < o->n_formats; i++)
        if (o->format[i] == f) {
            *code = options_wrong(&eval_kv, "--formats names %s twice", name);
            return false;
        }
    o->format[o->n_formats++] = f;
    return true;
}

static bool read_formats(const char *text, kk_kvformats_opts *o, int *code) {
    eval_names list;
    for (int f = 0; !text && f < KK_KV_FORMATS; f++) o->format[o->n_formats++] = (kk_kv_format)f;
    if (!text) return true;
    bool good = eval_split(text, &list);
    if (!good) *code = options_wrong(&eval_kv, "--formats takes names with commas between");
    for (size_t i = 0; i < list.n && good; i++) good = add_format(list.name[i], o, code);
    eval_names_free(&list);
    return good;
}

static void print_table(const kk_kvformats_result *r) {
    printf("%-7s %6s %10s %10s %10s %7s %10s %10s %11s %11s\n", "format", "bits", "rel. mse",
           "sliding", "full", "recall", "mean KL", "worst KL", "kv.sliding", "kv.full");
    for (int32_t i = 0; i < r->n_rows; i++) {
        const kk_kvformats_row *w = &r->row[i];
        printf("%-7s %6.4g %10.3g %10.3g %10.3g %7.2f %10.3g %10.3g %11s %11s\n", w->format,
               w->bits, w->rel_mse[0], w->rel_mse[1], w->rel_mse[2], w->recall, w->mean_kl,
               w->worst_kl, term_bytes((double)w->bytes[KK_MEM_KV_SLIDING]).text,
               term_bytes((double)w->bytes[KK_MEM_KV_FULL]).text);
    }
}

static bool tell(void *user, int32_t done, int32_t total) {
    const kv_args *a = user;
    eval_progress(a->quiet, "formats", done, total);
    return term_signal() == 0;
}

static int measure(const kv_args *a, const kk_kvformats_opts *o) {
    kk_kvformats_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_kvformats_run(o, &r, &err);
    eval_progress(a->quiet, "", 0, 0);
    if (st != KK_OK)
        return err.code == KK_ECONTEXT || err.code == KK_EINVAL ? output_failed(err.msg, NULL)
                                                                : loader_failed(&a->load, &err);
    print_table(&r);
    fflush(stdout);
    const int code = !a->report.file || kk_kvformats_write(a->report.file, &r, &err) == KK_OK
                         ? EXIT_DONE
                         : output_error(&err);
    kk_kvformats_release(&r);
    return code;
}

static int run(int argc, char **argv) {
    kv_args a = {.load = {.drafter = "none"}, .texts = EVAL_TEXTS_DEFAULTS};
    kk_kvformats_opts o = {.tell = tell, .user = &a};
    loader_path path;
    eval_files files;
    int code;
    if (!options_parse(&eval_kv, argc - 1, argv + 1, &a, NULL, &code)) return code;
    if (!read_formats(a.formats, &o, &code)) return code;
    if (!eval_read_texts(&eval_kv, &a.texts, argc, argv, &o.draw, &o.source, &files, &code))
        return code;
    o.predict = a.texts.predict;
    char *command = eval_command(argc, argv);
    o.command = command;
    if (loader_options(&eval_kv, &a.load, &path, &o.engine, &code) &&
        destination_open_report(&a.report, &o.engine, o.source.paths, o.source.n_paths, &code))
        code = measure(&a, &o);
    destination_close_report(&a.report);
    free(command);
    return code;
}

const verb eval_kv = {
    .name = "eval kv",
    .summary = "what storing K/V rows in fewer bits costs",
    .usage = "[-m MODEL] [options]",
    .about = "Stores the K/V rows of documents in every format and shows the bits of a value, the\n"
             "mean square error, and what it does to the model: needles found, and the KL of\n"
             "next-token distributions against float32; and the bytes the context took.",
    .examples = "  kakeya eval kv --report kv.json\n"
                "  kakeya eval kv --formats q8,q4 --ladder 70,280 --samples 10\n",
    .options = kv_options,
    .n_options = OPTION_COUNT(kv_options),
    .run = run,
};
