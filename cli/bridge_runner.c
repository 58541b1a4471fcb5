/* bridge_runner.c - `kakeya bridge run`, `doctor` and `setup`: the side that answers. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/checkup.h"
#include "bridge/runner.h"
#include "bridge/selftest.h"
#include "bridge/setup.h"
#include "cli/bridge_verbs.h"
#include "cli/output.h"
#include "cli/term.h"

typedef struct {
    const char *config, *state, *manifest, *out, *name, *remote, *model, *drafter, *projection;
    option_words signers, cases;
    int32_t interval, lost;
    bool watch, dry_run, json, quiet, no_selftest, selftest;
} runner_args;

#define AT(field) offsetof(runner_args, field)
#define PLACE_OPTIONS                                                                              \
    OPTION_STRING(NULL, "config", "FILE", AT(config),                                              \
                  "the runner's configuration (default: kakeya/bridge.json in the user's "         \
                  "configuration folder)"),                                                        \
        OPTION_STRING(NULL, "state", "DIR", AT(state),                                             \
                      "the runner's own folder (default: in the user's state folder)")

static void say(void *user, const char *line) {
    const runner_args *a = user;
    if (!a->quiet) fprintf(stderr, "%s\n", line);
}

static void print_line(void *user, const char *line) {
    (void)user;
    printf("%s\n", line);
    fflush(stdout);
}

/* ---- run: one manifest -------------------------------------------------------------------- */

static kk_status read_manifest(const char *path, kk_manifest *m, kk_err *err) {
    char text[KK_MANIFEST_BYTES + 2];
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    if (!f) {
        *err = (kk_err){.code = KK_EIO};
        snprintf(err->msg, sizeof err->msg, "cannot read %.200s", path);
        return KK_EIO;
    }
    return kk_manifest_parse(m, text, n, err);
}

static int run_manifest(const runner_args *a, const bridge_place *place,
                        const kk_runner_config *config) {
    kk_manifest m;
    kk_err err;
    json_t *plan = NULL;
    const kk_executor x = {.config = config,
                           .program = config->program[0] ? config->program : place->program,
                           .folder = a->out,
                           .env = place->env,
                           .stop = place->stop};
    if (read_manifest(a->manifest, &m, &err) != KK_OK) return bridge_failed(&err);
    if (a->dry_run) {
        if (kk_executor_plan(&x, &m, &plan, &err) != KK_OK) return bridge_failed(&err);
        return output_json(plan) ? EXIT_DONE : EXIT_FAILED;
    }
    kk_execution e;
    if (kk_runner_config_check_paths(config, &err) != KK_OK ||
        kk_executor_run(&x, &m, &e, &err) != KK_OK)
        return bridge_failed(&err);
    const int code = e.stopped ? term_exit_code() : e.exit_code;
    output_json(json_incref(e.summary));
    kk_execution_release(&e);
    return code;
}

/* ---- run: a bus --------------------------------------------------------------------------- */

static int end_of_run(const runner_args *a, kk_status st, const kk_runner_counts *n,
                      const kk_err *err) {
    if (a->json)
        output_json(json_pack("{s:i, s:i, s:i, s:i, s:i}", "done", n->done, "failed", n->failed,
                              "refused", n->refused, "interrupted", n->interrupted, "lost",
                              n->lost));
    if (st != KK_OK) return output_error(err);
    return n->failed || n->interrupted ? EXIT_FAILED : n->refused ? EXIT_USAGE : EXIT_DONE;
}

static int run_bus(runner_args *a, const bridge_place *place, const kk_runner_config *config,
                   const char *remote) {
    kk_runner *r;
    kk_err err = {.msg = ""};
    kk_runner_counts counts = {0};
    const kk_runner_opts opts = {.config = config,
                                 .remote = remote,
                                 .program = place->program,
                                 .state = place->state,
                                 .env = place->env,
                                 .lost_s = a->lost,
                                 .stop = place->stop,
                                 .say = say,
                                 .user = a};
    if (kk_runner_open(&r, &opts, &err) != KK_OK) return output_error(&err);
    if (a->watch) say(a, "watching the bus; Ctrl-C ends it");
    const kk_status st = a->watch ? kk_runner_watch(r, a->interval, &counts, &err)
                                  : kk_runner_pass(r, &counts, &err);
    kk_runner_close(r);
    return end_of_run(a, st, &counts, &err);
}

static const option run_options[] = {
    OPTION_FLAG(NULL, "watch", AT(watch), "go on until a signal; else one look, and the end"),
    OPTION_INT(NULL, "interval", "SECONDS", AT(interval), 1, 3600, "between looks (default: 15)"),
    OPTION_INT(NULL, "lost", "SECONDS", AT(lost), 0, 1 << 20,
               "a request that another runner claimed is given up so long after it must have "
               "ended (default: 600)"),
    PLACE_OPTIONS,
    OPTION_HEADING("One manifest, without a bus"),
    OPTION_STRING(NULL, "manifest", "FILE", AT(manifest), "carry out this, unsigned"),
    OPTION_FLAG(NULL, "dry-run", AT(dry_run), "print the command lines and run nothing"),
    OPTION_STRING("o", "output", "DIR", AT(out), "an empty folder for logs and results"),
    OPTION_HEADING("Output"),
    OPTION_FLAG(NULL, "json", AT(json), "print what came of the requests as JSON at the end"),
    OPTION_FLAG("q", "quiet", AT(quiet), "say nothing of each request"),
};

static int run_run(int argc, char **argv) {
    runner_args a = {.interval = 15, .lost = 600};
    option_words words;
    bridge_place place;
    kk_runner_config config;
    kk_err err;
    int code;
    if (!options_parse(&bridge_run, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (a.manifest && !a.dry_run && !a.out)
        return options_wrong(&bridge_run, "--manifest needs --output DIR, or --dry-run");
    if (!bridge_find(&place, a.state, a.config, &code)) return code;
    kk_runner_config_empty(&config);
    /* A manifest by itself may be tried without a configuration; a bus never. */
    if ((!a.manifest || a.config) && kk_runner_config_read(&config, place.config, &err) != KK_OK)
        return output_failed(err.msg, "'kakeya bridge setup' writes a configuration.");
    const char *remote = words.n ? words.word[0] : config.remote;
    if (a.manifest)
        code = run_manifest(&a, &place, &config);
    else if (!*remote)
        code = options_wrong(&bridge_run, "which remote? Neither an argument nor the configuration "
                                          "says");
    else
        code = run_bus(&a, &place, &config, remote);
    kk_runner_config_release(&config);
    return code;
}

const verb bridge_run = {
    .name = "bridge run",
    .summary = "carry out requests on this machine",
    .usage = "[REMOTE] [--watch] [options]",
    .about =
        "Takes the requests of a remote one after the other: checks who signed them, what they\n"
        "ask and whether it was asked before, runs the preset within limits, holds its reports\n"
        "to the gate and pushes the result.  Exit status of one look: 0, 1 when a run failed,\n"
        "2 when a request was refused.",
    .examples = "  kakeya bridge run --watch\n"
                "  kakeya bridge run /srv/bus.git --config runner.json\n"
                "  kakeya bridge run --manifest request.json --dry-run\n",
    .options = run_options,
    .n_options = OPTION_COUNT(run_options),
    .max_words = 1,
    .run = run_run,
};

/* ---- doctor ------------------------------------------------------------------------------- */

static const char *word_of(kk_check_verdict v) {
    return v == KK_CHECK_OK ? "ok" : v == KK_CHECK_NOTE ? "note" : "missing";
}

static bool print_checkup(const kk_checkup *c, bool as_json) {
    json_t *list = json_array();
    for (size_t i = 0; i < c->n; i++) {
        const kk_check *k = &c->check[i];
        if (!as_json) printf("%-8s %-11s %s\n", word_of(k->verdict), k->what, k->text);
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "what", k->what, "verdict",
                                              word_of(k->verdict), "text",
                                              output_text(k->text, strlen(k->text))));
    }
    if (as_json)
        return output_json(json_pack("{s:i, s:o}", "missing", (int)c->missing, "checks", list));
    json_decref(list);
    return true;
}

static int self_test(const bridge_place *place) {
    kk_selftest t;
    kk_err err;
    if (kk_selftest_run(&t, place->program, "/tmp", "mlx-env-probe", place->env, place->stop,
                        &err) != KK_OK)
        return output_error(&err);
    printf("%-8s %-11s a request came back in %.2f s: %.2f s in the command, %.4f s in "
           "the executor, %.2f s in git and ssh-keygen\n",
           "ok", "self-test", t.seconds, t.running_s, t.overhead_s,
           t.seconds - t.running_s - t.overhead_s);
    return EXIT_DONE;
}

static const option doctor_options[] = {
    OPTION_STRING(NULL, "remote", "REMOTE", AT(remote),
                  "the remote to look at (default: that of the configuration)"),
    OPTION_FLAG(NULL, "self-test", AT(selftest),
                "send a request through a temporary repository, and time it"),
    PLACE_OPTIONS,
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object"),
};

static int run_doctor(int argc, char **argv) {
    runner_args a = {.json = false};
    bridge_place place;
    kk_checkup c;
    int code;
    if (!options_parse(&bridge_doctor, argc - 1, argv + 1, &a, NULL, &code)) return code;
    if (!bridge_find(&place, a.state, a.config, &code)) return code;
    const kk_checkup_opts opts = {.config = place.config,
                                  .remote = a.remote,
                                  .state = place.state,
                                  .program = place.program,
                                  .env = place.env};
    kk_checkup_run(&c, &opts);
    print_checkup(&c, a.json);
    if (a.selftest && !a.json && (code = self_test(&place)) != EXIT_DONE) return code;
    return c.missing ? EXIT_FAILED : EXIT_DONE;
}

const verb bridge_doctor = {
    .name = "bridge doctor",
    .summary = "say what is missing to ask or to answer requests",
    .usage = "[options]",
    .about =
        "Looks at git and ssh-keygen, the configuration, who may ask, models and whether they\n"
        "are files or pointers of git LFS, the disk, and whether the remote would take a push.\n"
        "Exit status 1 when something is missing.",
    .examples = "  kakeya bridge doctor\n"
                "  kakeya bridge doctor --self-test\n",
    .options = doctor_options,
    .n_options = OPTION_COUNT(doctor_options),
    .run = run_doctor,
};

/* ---- setup -------------------------------------------------------------------------------- */

static const option setup_options[] = {
    OPTION_STRING(NULL, "name", "NAME", AT(name), "what this runner is called"),
    OPTION_STRING(NULL, "remote", "REMOTE", AT(remote), "a URL or a path: the bus"),
    OPTION_WORDS(NULL, "signer", "NAME=FILE", AT(signers),
                 "who may ask, with the public key; may be given several times"),
    OPTION_STRING("m", "model", "MODEL", AT(model), "the model that requests use"),
    OPTION_STRING("md", "model-draft", "DRAFTER", AT(drafter), "its drafter"),
    OPTION_STRING("mp", "model-projection", "DIR", AT(projection), "its projection"),
    OPTION_WORDS(NULL, "case", "DIR", AT(cases),
                 "a reference case of 'kakeya parity'; may be given several times"),
    OPTION_FLAG(NULL, "no-self-test", AT(no_selftest), "leave the last step out"),
    PLACE_OPTIONS,
};

static int run_setup(int argc, char **argv) {
    runner_args a = {.json = false};
    bridge_place place;
    kk_err err;
    int code;
    if (!options_parse(&bridge_setup, argc - 1, argv + 1, &a, NULL, &code)) return code;
    if (!bridge_find(&place, a.state, a.config, &code)) return code;
    const kk_setup_opts opts = {.config = place.config,
                                .state = place.state,
                                .program = place.program,
                                .env = place.env,
                                .name = a.name,
                                .remote = a.remote,
                                .model = a.model,
                                .drafter = a.drafter,
                                .projection = a.projection,
                                .signers = a.signers.word,
                                .n_signers = (size_t)a.signers.n,
                                .cases = a.cases.word,
                                .n_cases = (size_t)a.cases.n,
                                .no_selftest = a.no_selftest,
                                .stop = place.stop,
                                .say = print_line};
    if (kk_setup_run(&opts, &err) != KK_OK) return output_error(&err);
    printf("This machine can answer: kakeya bridge run --watch\n");
    return EXIT_DONE;
}

const verb bridge_setup = {
    .name = "bridge setup",
    .summary = "make this machine a runner",
    .usage = "[options]",
    .about =
        "Writes the configuration and the list of signers, checks what they name, and sends a\n"
        "request through a temporary repository.  May be run again: what is there is kept, and\n"
        "what is given is changed.",
    .examples =
        "  kakeya bridge setup --name m4 --remote git@host:bus.git --signer ann=ann.pub \\\n"
        "      -m ~/models/gemma-4-26b-a4b -md ~/models/dflash\n",
    .options = setup_options,
    .n_options = OPTION_COUNT(setup_options),
    .run = run_setup,
};
