/* destination.c - see destination.h. */
#include "cli/destination.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"
#include "cli/term.h"

static const char *advice(kk_status code) {
    switch (code) {
    case KK_EEXIST: return "Give another name, or --force to replace it.";
    case KK_EBUSY: return "Wait until it is done, or give another name.";
    case KK_EINVAL: return "Give another name.";
    case KK_EIO: return "Check the folder, the permissions and the space on its disk.";
    default: return NULL;
    }
}

/* Signals wait from before the temporary file is made until it is known to those that remove it; a
 * FIFO that nobody reads is still left at the first one, because it interrupts open(2). */
bool destination_open(kk_writer **out, const char *path, const kk_writer_opts *opts, int *code) {
    kk_err err;
    const term_signal_mode mode = term_on_signal(TERM_ASK);
    const kk_status st = kk_writer_open(out, path, opts, &err);
    if (st == KK_OK) term_remove(kk_writer_temp(*out));
    term_on_signal(mode);
    if (st == KK_OK && !term_signal()) return true;
    destination_close(*out);
    *out = NULL;
    *code = term_signal() ? term_exit_code() : output_failed(err.msg, advice(err.code));
    return false;
}

void destination_close(kk_writer *w) {
    kk_writer_close(w);
    term_remove(NULL);
}

bool destination_keep_stdout(destination_stdout *out) {
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    if (kept < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return false;
    snprintf(out->path, sizeof out->path, "/dev/fd/%d", kept);
    return true;
}

/* ---- reports ------------------------------------------------------------------------------ */

bool destination_open_report(destination_report *r, const kk_engine_opts *e,
                             const char *const *more, size_t n, int *code) {
    const char *inputs[80] = {e->model, e->drafter, e->projection};
    kk_writer_opts opts = {.replace = r->force, .inputs = inputs, .n_inputs = 3};
    destination_stdout standard;
    if (r->json && r->path && strcmp(r->path, "-") != 0) {
        output_failed("--json is --report -: give one of the two", NULL);
        *code = EXIT_USAGE;
        return false;
    }
    if (r->json) r->path = "-";
    const char *path = r->path;
    if (!path) return true;
    for (size_t i = 0; i < n && opts.n_inputs < OPTION_COUNT(inputs); i++)
        inputs[opts.n_inputs++] = more[i];
    if (strcmp(path, "-") == 0) {
        if (!destination_keep_stdout(&standard)) {
            *code = output_failed("cannot keep standard output for the report", NULL);
            return false;
        }
        path = standard.path;
    }
    return destination_open(&r->file, path, &opts, code);
}

void destination_close_report(destination_report *r) {
    destination_close(r->file);
    r->file = NULL;
}
