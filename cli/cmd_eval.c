/* cmd_eval.c - `kakeya eval`: what a model can do, measured by asking it.  Each kind has its
 * options in a file of its own. */
#include <stdio.h>
#include <string.h>

#include "cli/eval_accept.h"
#include "cli/eval_needle.h"
#include "cli/eval_sweep.h"
#include "cli/output.h"
#include "cli/verbs.h"

char *eval_command(int argc, char **argv) { return output_command("kakeya eval", argc, argv); }

static const verb *const kinds[] = {&eval_needle, &eval_accept, &eval_sweep, &eval_kv,
                                    &eval_memory};

static const char *kind_name(const verb *kind) { return kind->name + strlen("eval "); }

static int list_kinds(void) {
    fprintf(stderr, "usage: kakeya eval KIND [options]\n\nKinds:\n");
    for (size_t i = 0; i < OPTION_COUNT(kinds); i++)
        fprintf(stderr, "  %-10s %s\n", kind_name(kinds[i]), kinds[i]->summary);
    fprintf(stderr, "\n'kakeya help eval KIND' says more.\n");
    return EXIT_USAGE;
}

static int run(int argc, char **argv) {
    if (argc == 0) return list_kinds();
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        options_help(&verb_eval);
        return EXIT_DONE;
    }
    for (size_t i = 0; i < OPTION_COUNT(kinds); i++)
        if (strcmp(argv[0], kind_name(kinds[i])) == 0) return kinds[i]->run(argc, argv);
    if (argv[0][0] == '-')
        return options_wrong(&verb_eval, "the kind comes first, as in 'kakeya eval needle %s'",
                             argv[0]);
    return options_wrong(&verb_eval,
                         "there is no kind '%s'; the kinds are: needle, accept, sweep, kv, memory",
                         argv[0]);
}

const verb verb_eval = {
    .name = "eval",
    .summary = "measure what a model can do: needles found, drafts accepted",
    .usage = "KIND [options]",
    .about = "needle      recall of a code hidden in a long document, and what a cache costs\n"
             "accept      how much of what is drafted is right, and whether it changed anything\n"
             "sweep       how good rebuilt K/V rows must be\n"
             "kv          what storing K/V rows in fewer bits costs\n"
             "memory      bytes of a session against its context\n\n"
             "'kakeya help eval KIND' lists the options of a kind.",
    .examples = "  kakeya eval needle --ladder 60,150,300 --samples 50 --report needle.json\n"
                "  kakeya eval accept --set code,needle,edit --report accept.json\n",
    .kinds = true,
    .run = run,
};
