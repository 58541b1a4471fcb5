/* cmd_eval.c - `kakeya eval`: what a model can do, measured by asking it.  Each kind has its
 * options in a file of its own. */
#include <stdio.h>
#include <string.h>

#include "cli/eval_accept.h"
#include "cli/eval_needle.h"
#include "cli/eval_steps.h"
#include "cli/eval_sweep.h"
#include "cli/output.h"
#include "cli/verbs.h"

char *eval_command(int argc, char **argv) { return output_command("kakeya eval", argc, argv); }

static const verb *const kinds[] = {&eval_needle, &eval_accept, &eval_sweep,
                                    &eval_kv,     &eval_memory, &eval_steps};

static int run(int argc, char **argv) { return options_run_kind(&verb_eval, argc, argv); }

const verb verb_eval = {
    .name = "eval",
    .summary = "measure what a model can do: needles found, drafts accepted",
    .usage = "KIND [options]",
    .about = "Has a model answer questions or continue texts, and measures what comes of it.",
    .examples = "  kakeya eval needle --ladder 60,150,300 --samples 50 --report needle.json\n"
                "  kakeya eval accept --set code,needle,edit --report accept.json\n",
    .kinds = kinds,
    .n_kinds = OPTION_COUNT(kinds),
    .run = run,
};
