/* bridge_client.c - `kakeya bridge request`, `fetch` and `status`: the side that asks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/client.h"
#include "bridge/runner_config.h"
#include "cli/bridge_verbs.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/term.h"

typedef struct {
    const char *remote, *prefix, *suffix, *state, *ref, *by, *key, *runner, *out;
    option_words params;
    int32_t wait, interval;
    bool no_push, list, json, quiet;
} client_args;

#define AT(field) offsetof(client_args, field)
#define REMOTE_OPTIONS                                                                             \
    OPTION_STRING(NULL, "remote", "REMOTE", AT(remote),                                            \
                  "a URL, a path, or a remote of the repository here (default: origin)"),          \
        OPTION_STRING(NULL, "prefix", "NAME/", AT(prefix),                                         \
                      "what its branches begin with (default: " KK_BRIDGE_PREFIX ")"),             \
        OPTION_STRING(NULL, "state", "DIR", AT(state),                                             \
                      "a folder of this program's own (default: in the user's state folder)")
#define WAIT_OPTIONS(h)                                                                            \
    OPTION_INT(NULL, "wait", "SECONDS", AT(wait), 0, 1 << 20, h),                                  \
        OPTION_INT(NULL, "poll-interval", "SECONDS", AT(interval), 1, 3600,                        \
                   "between looks (default: 30)"),                                                 \
        OPTION_STRING("o", "output", "DIR", AT(out),                                               \
                      "where results go (default: bridge-results/ and the end of the branch's "    \
                      "name)")

static client_args defaults(void) {
    return (client_args){.remote = "origin", .prefix = KK_BRIDGE_PREFIX, .interval = 30};
}

static kk_client *open_client(const client_args *a, bridge_place *place, int *code) {
    kk_client *c;
    kk_err err;
    if (!bridge_find(place, a->state, NULL, code)) return NULL;
    const kk_client_opts opts = {.state = place->state,
                                 .env = place->env,
                                 .remote = a->remote,
                                 .prefix = a->prefix,
                                 .stop = place->stop};
    if (kk_client_open(&c, &opts, &err) == KK_OK) return c;
    *code = bridge_failed(&err);
    return NULL;
}

/* ---- fetch -------------------------------------------------------------------------------- */

static void results_folder(const client_args *a, const char *branch, char *out, size_t cap) {
    const char *name = strrchr(branch, '/');
    if (a->out)
        snprintf(out, cap, "%s", a->out);
    else
        snprintf(out, cap, "bridge-results/%s", name ? name + 1 : branch);
}

static void tell(const char *branch, kk_fetch_outcome outcome, const json_t *summary,
                 const char *folder) {
    const char *state = json_string_value(json_object_get(summary, "state"));
    const char *reason = json_string_value(json_object_get(summary, "reason"));
    const char *by = json_string_value(json_object_get(json_object_get(summary, "runner"), "name"));
    if (outcome == KK_FETCH_NONE) {
        printf("%s: there is no such branch\n", branch);
    } else if (outcome == KK_FETCH_RUNNING) {
        printf("%s: not finished yet\n", branch);
    } else {
        char line[400];
        snprintf(line, sizeof line, "%s: %s%s%s%s%s", branch, state ? state : "without a summary",
                 by ? " on " : "", by ? by : "", reason && *reason ? ": " : "",
                 reason ? reason : "");
        kk_plain(line, line, sizeof line); /* written by others */
        printf("%s\n", line);
        printf("results in %s\n", folder);
    }
}

static int fetch(kk_client *c, const client_args *a, const char *branch) {
    char folder[4096];
    kk_fetch_outcome outcome;
    json_t *summary;
    kk_err err;
    results_folder(a, branch, folder, sizeof folder);
    const kk_status st =
        kk_client_fetch(c, branch, a->wait, a->interval, folder, &outcome, &summary, &err);
    if (st == KK_OK && a->json)
        output_json(json_pack("{s:s, s:i, s:O}", "branch", branch, "exit_code", (int)outcome,
                              "summary", summary ? summary : json_null()));
    else if (st == KK_OK)
        tell(branch, outcome, summary, folder);
    json_decref(summary);
    return st == KK_OK ? (int)outcome : output_error(&err);
}

static const option fetch_options[] = {
    REMOTE_OPTIONS,
    WAIT_OPTIONS("how long to wait for the result (default: 0)"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object with the summary"),
};

static int run_fetch(int argc, char **argv) {
    client_args a = defaults();
    option_words words;
    bridge_place place;
    int code;
    if (!options_parse(&bridge_fetch, argc - 1, argv + 1, &a, &words, &code)) return code;
    kk_client *c = open_client(&a, &place, &code);
    if (!c) return code;
    code = fetch(c, &a, words.word[0]);
    kk_client_close(c);
    return code;
}

const verb bridge_fetch = {
    .name = "bridge fetch",
    .summary = "bring the results of a request here",
    .usage = "BRANCH [options]",
    .about =
        "Writes summary, logs and reports of a request into a folder.  Exit status 0: the run\n"
        "went well; 1: it failed, was refused or interrupted; 2: it is not finished; 3: there\n"
        "is no such branch.",
    .examples = "  kakeya bridge fetch kakeya-bridge/mlx-env-probe-1700000000-ab12cd --wait 600\n",
    .options = fetch_options,
    .n_options = OPTION_COUNT(fetch_options),
    .min_words = 1,
    .max_words = 1,
    .run = run_fetch,
};

/* ---- request ------------------------------------------------------------------------------ */

static const option request_options[] = {
    OPTION_WORDS(NULL, "param", "NAME=VALUE", AT(params),
                 "a parameter of the preset; may be given several times"),
    OPTION_FLAG(NULL, "list", AT(list), "print the presets and their parameters, and ask nothing"),
    OPTION_STRING(NULL, "ref", "COMMIT", AT(ref),
                  "what the request is about (default: HEAD here, all of it committed)"),
    OPTION_STRING(NULL, "requested-by", "NAME", AT(by),
                  "the name that the runner knows the key by (default: $USER)"),
    OPTION_STRING(NULL, "key", "FILE", AT(key),
                  "SSH key to sign with; a public one where an agent has it (default: unsigned)"),
    OPTION_STRING(NULL, "runner", "NAME", AT(runner), "who should carry it out (default: any)"),
    OPTION_STRING(NULL, "branch-suffix", "TEXT", AT(suffix), "what the branch should end in"),
    OPTION_FLAG(NULL, "no-push", AT(no_push), "print the manifest, and push nothing"),
    REMOTE_OPTIONS,
    WAIT_OPTIONS("wait so long for the result, and fetch it (default: 0, do not)"),
    OPTION_FLAG(NULL, "json", AT(json), "print JSON"),
};

static void print_presets(void) {
    for (size_t i = 0; kk_presets_at(i); i++) {
        const kk_preset *p = kk_presets_at(i);
        printf("%-26s %s (%d minutes at most)\n", p->name, p->summary, p->minutes);
        for (size_t k = 0; k < kk_preset_params(p); k++) {
            const kk_param *q = &p->params[k];
            if (q->words)
                printf("    %s=%s\n", q->name, q->words);
            else
                printf("    %s=%lld..%lld (%lld)\n", q->name, (long long)q->min, (long long)q->max,
                       (long long)q->otherwise);
        }
    }
}

static void print_sent(const client_args *a, const kk_client_sent *sent) {
    if (a->no_push)
        printf("%s", kk_bytes_text(&sent->manifest));
    else if (a->json && !a->wait)
        output_json(json_pack("{s:s, s:s}", "branch", sent->branch, "commit", sent->id));
    else if (!a->json)
        printf("%s\n", sent->branch);
    fflush(stdout);
}

static int ask(kk_client *c, const client_args *a, const char *preset) {
    const char *user = getenv("USER");
    const kk_client_request q = {.preset = preset,
                                 .params = a->params.word,
                                 .n_params = (size_t)a->params.n,
                                 .ref = a->ref,
                                 .requested_by = a->by           ? a->by
                                                 : user && *user ? user
                                                                 : "nobody",
                                 .key = a->key,
                                 .runner = a->runner,
                                 .suffix = a->suffix,
                                 .dry_run = a->no_push};
    kk_client_sent sent;
    kk_err err;
    const kk_status st = kk_client_send(c, &q, &sent, &err);
    int code = EXIT_DONE;
    if (st == KK_OK) {
        print_sent(a, &sent);
        if (a->wait && !a->no_push) code = fetch(c, a, sent.branch);
    } else {
        code = bridge_failed(&err);
    }
    kk_client_sent_release(&sent);
    return code;
}

static int run_request(int argc, char **argv) {
    client_args a = defaults();
    option_words words;
    bridge_place place;
    int code;
    if (!options_parse(&bridge_request, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (a.list) {
        print_presets();
        return EXIT_DONE;
    }
    if (!words.n) return options_wrong(&bridge_request, "which preset? --list names them");
    if (a.no_push) a.remote = NULL;
    kk_client *c = open_client(&a, &place, &code);
    if (!c) return code;
    code = ask(c, &a, words.word[0]);
    kk_client_close(c);
    return code;
}

const verb bridge_request = {
    .name = "bridge request",
    .summary = "ask a runner for a preset",
    .usage = "PRESET [options]",
    .about =
        "Pushes a branch with a manifest, signed where --key is given, and prints its name.\n"
        "Exit status 2 when the request is wrong or files here are not committed; with --wait\n"
        "that of 'kakeya bridge fetch'.",
    .examples = "  kakeya bridge request --list\n"
                "  kakeya bridge request eval-needle --param n_samples=5 --param device=mlx \\\n"
                "      --requested-by ann --key ~/.ssh/id_ed25519 --wait 3600\n",
    .options = request_options,
    .n_options = OPTION_COUNT(request_options),
    .max_words = 1,
    .run = run_request,
};

/* ---- status ------------------------------------------------------------------------------- */

static const option status_options[] = {
    REMOTE_OPTIONS,
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object"),
};

static void print_entry(const json_t *e) {
    const json_t *summary = json_object_get(e, "summary"), *claim = json_object_get(e, "claim");
    const char *state = json_string_value(json_object_get(summary, "state"));
    const char *runner = json_string_value(json_object_get(claim, "runner"));
    const char *reason = json_string_value(json_object_get(summary, "reason"));
    char line[600];
    snprintf(line, sizeof line, "%-12s %s%s%s%s%s%s",
             state ? state : json_string_value(json_object_get(e, "stage")),
             json_string_value(json_object_get(e, "branch")), runner ? " (" : "",
             runner ? runner : "", runner ? ")" : "", reason && *reason ? ": " : "",
             reason ? reason : "");
    kk_plain(line, line, sizeof line); /* written by others */
    printf("%s\n", line);
}

static int run_status(int argc, char **argv) {
    client_args a = defaults();
    bridge_place place;
    json_t *list = NULL;
    kk_err err;
    int code;
    if (!options_parse(&bridge_status, argc - 1, argv + 1, &a, NULL, &code)) return code;
    kk_client *c = open_client(&a, &place, &code);
    if (!c) return code;
    const kk_status st = kk_client_status(c, &list, &err);
    code = st == KK_OK ? EXIT_DONE : output_error(&err);
    if (st == KK_OK && a.json)
        output_json(json_pack("{s:O}", "requests", list));
    else if (st == KK_OK)
        for (size_t i = 0; i < json_array_size(list); i++) print_entry(json_array_get(list, i));
    json_decref(list);
    kk_client_close(c);
    return code;
}

const verb bridge_status = {
    .name = "bridge status",
    .summary = "list the requests of a remote",
    .usage = "[options]",
    .about = "One line for each branch: pending, claimed, done, failed, refused or interrupted.",
    .examples = "  kakeya bridge status --remote origin\n",
    .options = status_options,
    .n_options = OPTION_COUNT(status_options),
    .run = run_status,
};
