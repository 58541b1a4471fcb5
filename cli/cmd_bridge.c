/* cmd_bridge.c - `kakeya bridge`: requests to machines that share nothing with this one but a git
 * remote.  The kinds of who asks are in bridge_client.c, those of who answers in bridge_runner.c.
 * */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bridge_verbs.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/state.h"
#include "cli/term.h"
#include "cli/verbs.h"

#ifdef __APPLE__ /* glibc declares it */
extern char **environ;
#endif

static bool signalled(void *user) {
    (void)user;
    return term_signal() != 0;
}

/* $XDG_CONFIG_HOME/kakeya/bridge.json, by default below ~/.config. */
static bool usual_config(char *out, size_t cap) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = -1;
    if (config && *config == '/')
        n = snprintf(out, cap, "%s/kakeya/bridge.json", config);
    else if (home && *home == '/')
        n = snprintf(out, cap, "%s/.config/kakeya/bridge.json", home);
    return n > 0 && (size_t)n < cap;
}

/* The path as it is from anywhere: runners work in folders of their own. */
static bool whole_path(const char *path, char *out, size_t cap) {
    char here[2048];
    int n = -1;
    if (path[0] == '/')
        n = snprintf(out, cap, "%s", path);
    else if (getcwd(here, sizeof here))
        n = snprintf(out, cap, "%s/%s", here, path);
    return n > 0 && (size_t)n < cap;
}

bool bridge_find(bridge_place *p, const char *state, const char *config, int *code) {
    *p = (bridge_place){.env = (const char *const *)environ, .stop = {.asked = signalled}};
    const bool found = (state ? whole_path(state, p->state, sizeof p->state)
                              : state_path("bridge", p->state, sizeof p->state)) &&
                       (config ? whole_path(config, p->config, sizeof p->config)
                               : usual_config(p->config, sizeof p->config));
    if (!found) {
        *code = output_failed("there is no place for the files of the bridge",
                              "Set HOME, or give --state and --config.");
        return false;
    }
    if (!loader_program(p->program, sizeof p->program)) {
        *code = output_failed("the system does not say where this program is", NULL);
        return false;
    }
    term_on_signal(TERM_ASK);
    signal(SIGCHLD, SIG_DFL); /* who started us may ignore it: then no exit code is ever seen */
    return true;
}

int bridge_failed(const kk_err *err) {
    const int code = output_error(err);
    return err->code == KK_EINVAL ? EXIT_USAGE : code;
}

static const verb *const kinds[] = {&bridge_request, &bridge_fetch,  &bridge_status,
                                    &bridge_run,     &bridge_doctor, &bridge_setup};

static int run(int argc, char **argv) { return options_run_kind(&verb_bridge, argc, argv); }

const verb verb_bridge = {
    .name = "bridge",
    .summary = "ask a machine that shares only a git remote with this one",
    .usage = "KIND [options]",
    .about = "A request is a branch of a git remote with a signed manifest.  A runner on another\n"
             "machine checks it, carries out a preset as commands of its own 'kakeya', and pushes\n"
             "logs and reports to the same branch.",
    .examples = "  kakeya bridge request mlx-env-probe --remote origin --key ~/.ssh/id_ed25519 "
                "--wait 600\n"
                "  kakeya bridge setup --name m4 --remote git@host:bus.git --signer ann=ann.pub\n"
                "  kakeya bridge run --watch\n",
    .kinds = kinds,
    .n_kinds = OPTION_COUNT(kinds),
    .run = run,
};
