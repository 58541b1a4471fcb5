/* kakeya.c - the command line: finds the verb, gives it its arguments, and makes sure that what
 * it printed arrived. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cli/manual.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/truncated.h"
#include "cli/verbs.h"

/* Verbs of the documented command line that this build does not have. */
static const char *const later_verbs[] = {"pull"};

static void print_help(FILE *to) {
    fprintf(to, "usage: kakeya VERB [options]\n\n"
                "Runs Gemma-4-class models on this machine.\n\n");
    for (size_t i = 0; verbs_at(i); i++)
        fprintf(to, "  %-10s %s\n", verbs_at(i)->name, verbs_at(i)->summary);
    fprintf(to, "  %-10s %s\n", "help",
            "say more about a verb: kakeya help run; --man: print the manual page");
    fprintf(to, "\nExamples:\n"
                "  kakeya run --synthetic tiny:f32 --tokens 2,17,5 -n 16\n"
                "  kakeya chat -m gemma-4-26b-a4b-q4_0.gguf\n"
                "  kakeya info -m gemma-4-26b-a4b-q4_0.gguf\n");
}

static int unknown_verb(const char *name) {
    for (size_t i = 0; i < OPTION_COUNT(later_verbs); i++) {
        if (strcmp(name, later_verbs[i]) != 0) continue;
        fprintf(stderr,
                "kakeya: '%s' is not part of this build yet.\n'kakeya help' lists what is.\n",
                name);
        return EXIT_USAGE;
    }
    const char *names[32] = {"help"};
    size_t n = 1;
    for (; verbs_at(n - 1) && n < OPTION_COUNT(names); n++) names[n] = verbs_at(n - 1)->name;
    const char *near = options_nearest(name, names, n);
    if (near)
        fprintf(stderr, "kakeya: there is no verb '%s'; did you mean '%s'?\n", name, near);
    else
        fprintf(stderr, "kakeya: there is no verb '%s'.\n", name);
    fprintf(stderr, "'kakeya help' lists them.\n");
    return EXIT_USAGE;
}

static int help(int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], "--man") == 0) return manual_print();
    if (argc == 0 || strcmp(argv[0], "help") == 0 || argv[0][0] == '-') {
        print_help(stdout);
        return EXIT_DONE;
    }
    const verb *v = verbs_find(argv[0]);
    if (!v) return unknown_verb(argv[0]);
    char ask[] = "--help", *kind[] = {argc > 1 ? argv[1] : NULL, ask};
    if (argc > 1 && v->n_kinds) return v->run(2, kind);
    options_help(v);
    return EXIT_DONE;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(name, "--version") == 0) name = "version";
    const verb *v = verbs_find(name);
    return v ? v->run(argc - 2, argv + 2) : unknown_verb(name);
}

/* A program may be started without its standard streams, and the next file that it opens would get
 * their numbers: what is said would go into a model, or a socket.  What is said to stderr is
 * dropped then; input and output that are not there fail as they did. */
static void hold_standard_streams(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", modes[fd]); /* the lowest is free */
}

int main(int argc, char **argv) {
    hold_standard_streams();
    term_open();
    truncated_watch();
    int code = dispatch(argc, argv);
    /* A full disk or a closed pipe shows only when the last bytes are written. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_DONE)
        code = output_failed("cannot write to standard output",
                             "Check the disk or the program that reads it.");
    return code;
}
