/* cmd_report.c - `kakeya report`: holds reports to their rules, and shows them on a page.
 *
 * Kinds: check, rerun (report_rerun.c), html and rules.  Verdicts go to stdout, one line each and
 * one for every rule that does not hold; a folder means every report below it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/output.h"
#include "cli/report_rerun.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "eval/reports/gate.h"
#include "eval/reports/page.h"

typedef struct {
    const char *out;
    bool json, quiet, force;
} report_args;

#define AT(field) offsetof(report_args, field)

extern const verb report_check, report_html, report_rules;

/* ---- what both kinds look at -------------------------------------------------------------- */

/* Reports and what the gate says of them; others: JSON in folders that is no report. */
typedef struct {
    kk_report_files files;
    kk_verdict *verdict; /* [files.n] */
    bool *shown;         /* [files.n]: a report, or something that was asked for by name */
    size_t reports, others;
} gathered;

static void release(gathered *g) {
    for (size_t i = 0; g->verdict && i < g->files.n; i++) kk_verdict_release(&g->verdict[i]);
    free(g->verdict);
    free(g->shown);
    kk_report_files_free(&g->files);
}

static bool find(gathered *g, const option_words *words, int *code) {
    kk_err err;
    for (int i = 0; i < words->n; i++) {
        if (kk_report_files_add(&g->files, words->word[i], &err) == KK_OK) continue;
        *code = output_error(&err);
        return false;
    }
    return true;
}

static int no_report(const option_words *words) {
    char what[300];
    snprintf(what, sizeof what, "there is no report in %.200s%s", words->word[0],
             words->n > 1 ? " and the others" : "");
    return output_failed(what, "A report is a *.json file that says its kind.");
}

/* What was found in words; false when that is not one report. */
static bool judge(gathered *g, const option_words *words, int *code) {
    kk_err err;
    g->verdict = calloc(g->files.n + 1, sizeof *g->verdict);
    g->shown = calloc(g->files.n + 1, sizeof *g->shown);
    if (!g->verdict || !g->shown) {
        *code = output_failed("out of memory for the verdicts", NULL);
        return false;
    }
    for (size_t i = 0; i < g->files.n; i++) {
        if (kk_gate_file(g->files.path[i], &g->verdict[i], &err) != KK_OK) {
            *code = output_error(&err);
            return false;
        }
        g->shown[i] = !g->files.found[i] || !g->verdict[i].other;
        g->reports += g->shown[i];
        g->others += !g->shown[i];
    }
    if (!g->reports) *code = no_report(words);
    return g->reports > 0;
}

/* ---- check -------------------------------------------------------------------------------- */

static const option check_options[] = {
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object with all verdicts"),
    OPTION_FLAG("q", "quiet", AT(quiet), "only what does not hold"),
};

static json_t *verdict_object(const char *path, const kk_verdict *v) {
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) {
        const kk_finding *f = &v->finding[i];
        json_array_append_new(list, json_pack("{s:s, s:o}", "code", f->code, "text",
                                              output_text(f->text, strlen(f->text))));
    }
    return json_pack("{s:o, s:s, s:s, s:o}", "file", output_text(path, strlen(path)), "kind",
                     v->kind, "verdict", kk_verdict_word(v), "findings", list);
}

static void print_verdict(const char *path, const kk_verdict *v, const report_args *a) {
    /* An honest report of a run that failed holds, and is not to be mistaken. */
    const char *failure = kk_verdict_failure(v);
    if (v->violations == 0 && !a->quiet)
        printf("%s: ok %s%s%s%s\n", path, v->kind, failure ? " (" : "", failure ? failure : "",
               failure ? ")" : "");
    for (size_t i = 0; i < v->n; i++) {
        const kk_finding *f = &v->finding[i];
        printf("%s: %s: %s\n", path, f->code, f->text);
    }
}

static void sum_up(const gathered *g) {
    size_t refused = 0;
    for (size_t i = 0; i < g->files.n; i++)
        if (g->shown[i]) refused += g->verdict[i].violations > 0;
    printf("%zu report%s: %zu hold%s, %zu refused", g->reports, g->reports == 1 ? "" : "s",
           g->reports - refused, g->reports - refused == 1 ? "s" : "", refused);
    if (g->others) printf("; %zu other JSON file%s", g->others, g->others == 1 ? "" : "s");
    printf("\n");
}

static bool all_hold(const gathered *g) {
    for (size_t i = 0; i < g->files.n; i++)
        if (g->shown[i] && g->verdict[i].violations) return false;
    return true;
}

static bool print_json(const gathered *g) {
    json_t *list = json_array();
    for (size_t i = 0; i < g->files.n; i++)
        if (g->shown[i])
            json_array_append_new(list, verdict_object(g->files.path[i], &g->verdict[i]));
    return output_json(json_pack("{s:b, s:o}", "holds", all_hold(g), "reports", list));
}

static int run_check(int argc, char **argv) {
    report_args a = {.json = false};
    option_words words;
    gathered g = {.reports = 0};
    int code;
    if (!options_parse(&report_check, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (find(&g, &words, &code) && judge(&g, &words, &code)) {
        code = all_hold(&g) ? EXIT_DONE : EXIT_FAILED;
        for (size_t i = 0; !a.json && i < g.files.n; i++)
            if (g.shown[i]) print_verdict(g.files.path[i], &g.verdict[i], &a);
        if (!a.json && !a.quiet) sum_up(&g);
        if (a.json && !print_json(&g)) code = output_failed("out of memory", NULL);
    }
    release(&g);
    return code;
}

const verb report_check = {
    .name = "report check",
    .summary = "say whether reports may say what they say",
    .usage = "PATH... [--json]",
    .about = "Holds JSON reports, or all below a folder, to the rules of 'kakeya report rules':\n"
             "figures are computed again from the rows they stand on, and a claim without what it\n"
             "rests on is refused.  Exit status 1 when a rule is violated; each is printed as\n"
             "FILE: CODE: sentence.",
    .examples = "  kakeya report check bench/results\n"
                "  kakeya report check needle.json --json\n",
    .options = check_options,
    .n_options = OPTION_COUNT(check_options),
    .min_words = 1,
    .max_words = 64,
    .run = run_check,
};

/* ---- html --------------------------------------------------------------------------------- */

static const option html_options[] = {
    OPTION_STRING("o", "output", "FILE", AT(out), "the page to write; -: to standard output"),
    OPTION_FLAG(NULL, "force", AT(force), "replace a page that is there"),
};

static kk_status write_page(const gathered *g, kk_writer *to, kk_err *err) {
    kk_page_report *list = calloc(g->reports + 1, sizeof *list);
    size_t n = 0;
    if (!list) {
        *err = (kk_err){.code = KK_ENOMEM, .msg = "no memory for the page"};
        return KK_ENOMEM;
    }
    for (size_t i = 0; i < g->files.n; i++)
        if (g->shown[i])
            list[n++] = (kk_page_report){.path = g->files.path[i], .verdict = &g->verdict[i]};
    const kk_status st = kk_page_write(to, list, n, err);
    free(list);
    return st;
}

/* Opens the page before the reports are read. */
static int make_page(const report_args *a, const option_words *words, gathered *g) {
    const kk_writer_opts opts = {
        .replace = a->force, .inputs = (const char *const *)g->files.path, .n_inputs = g->files.n};
    kk_writer *to;
    kk_err err;
    int code;
    if (!destination_open(&to, strcmp(a->out, "-") == 0 ? "/dev/stdout" : a->out, &opts, &code))
        return code;
    if (judge(g, words, &code))
        code = write_page(g, to, &err) == KK_OK ? EXIT_DONE : output_error(&err);
    destination_close(to);
    return code;
}

static int run_html(int argc, char **argv) {
    report_args a = {.json = false};
    option_words words;
    gathered g = {.reports = 0};
    int code;
    if (!options_parse(&report_html, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (!a.out) return options_wrong(&report_html, "name the page to write with -o FILE");
    if (find(&g, &words, &code)) code = make_page(&a, &words, &g);
    release(&g);
    return code;
}

const verb report_html = {
    .name = "report html",
    .summary = "write reports as one page with tables and plots",
    .usage = "PATH... -o FILE [--force]",
    .about = "Writes one HTML page that needs nothing else: tables, and plots of recall by depth,\n"
             "KL, bytes against context, time per round and rates with their spread.  The verdict\n"
             "of 'kakeya report check' stands over every report.",
    .examples = "  kakeya report html bench/results models/tiny -o page.html\n",
    .options = html_options,
    .n_options = OPTION_COUNT(html_options),
    .min_words = 1,
    .max_words = 64,
    .run = run_html,
};

/* ---- rules -------------------------------------------------------------------------------- */

static int run_rules(int argc, char **argv) {
    int code;
    if (!options_parse(&report_rules, argc - 1, argv + 1, NULL, NULL, &code)) return code;
    for (size_t i = 0; i < kk_gate_count(); i++) {
        const kk_gate_rule r = kk_gate_rule_at(i);
        printf("%-22s %s%s%s%s\n", r.code, r.text, *r.kinds ? " (" : "", r.kinds,
               *r.kinds ? ")" : "");
    }
    return EXIT_DONE;
}

const verb report_rules = {
    .name = "report rules",
    .summary = "list the rules",
    .usage = "",
    .about =
        "Lists the rules of 'kakeya report check' with their codes, and in brackets the kinds\n"
        "of reports that they are for.",
    .examples = "  kakeya report rules\n",
    .run = run_rules,
};

/* ---- the verb ----------------------------------------------------------------------------- */

static const verb *const kinds[] = {&report_check, &report_rerun, &report_html, &report_rules};

static int run(int argc, char **argv) { return options_run_kind(&verb_report, argc, argv); }

const verb verb_report = {
    .name = "report",
    .summary = "hold reports to their rules, execute them again, or show them on a page",
    .usage = "KIND [options]",
    .about = "Looks at the JSON reports that bench, eval and train write with --report.",
    .examples = "  kakeya report check bench/results\n"
                "  kakeya report html bench/results -o page.html\n",
    .kinds = kinds,
    .n_kinds = OPTION_COUNT(kinds),
    .run = run,
};
