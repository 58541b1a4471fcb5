/* options.h - the command line of one verb, as a table.
 *
 * Parsing, the help text and the suggestions for a mistyped flag all come from the same table,
 * so that they cannot disagree.  Values are stored at byte offsets of the verb's own struct,
 * which holds the defaults before parsing. */
#ifndef KAKEYA_CLI_OPTIONS_H
#define KAKEYA_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

typedef enum {
    OPT_HEADING, /* a title in the help text */
    OPT_FLAG,    /* bool: set when given */
    OPT_STRING,  /* const char * */
    OPT_INT,     /* int32_t in [min, max] */
    OPT_SEED,    /* uint64_t */
    OPT_REAL,    /* float in [min, max] */
    OPT_SIZE,    /* uint64_t of bytes: a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB */
    OPT_CHOICE,  /* const char *, one of choices */
    OPT_WORDS,   /* option_words: one more each time it is given */
} option_kind;

typedef struct {
    option_kind kind;
    const char *brief; /* "m" for -m; NULL: none */
    const char *name;  /* "model" for --model; of a heading: its text */
    const char *alias; /* a second long name; NULL: none */
    const char *arg;   /* what to call the value in the help text */
    const char *help;
    size_t offset;
    double min, max;
    const char *choices;          /* words with a space between, the default first */
    const char *(*choice)(int i); /* instead of choices: the i-th; NULL after the last */
    const char *later;            /* values that this build does not have, so that it can say so */
    const char *hint;  /* added to the complaint about a number out of range; NULL: nothing */
    const char *alone; /* the value where none follows, but an option or nothing; NULL: it must */
} option;

typedef struct verb verb;
struct verb {
    const char *name;
    const char *summary;  /* one line of `kakeya help` */
    const char *usage;    /* what follows "kakeya VERB" */
    const char *about;    /* a paragraph or two */
    const char *examples; /* lines to copy */
    const option *options;
    size_t n_options;
    int min_words, max_words; /* arguments that are not options */
    const verb *const *kinds; /* its first argument is one of these; each is called "VERB KIND" */
    size_t n_kinds;
    int (*run)(int argc, char **argv);
};

/* Words that are not options, or the values of one that may be given several times, in order. */
typedef struct {
    const char *word[64];
    int n;
} option_words;

/* Words that an option is told by. */
typedef struct {
    char text[400];
} option_text;

/* Fills args from argv (without the verb).  False: the program should end with *code, because
 * help was asked for and printed or because the usage was wrong and was explained. */
bool options_parse(const verb *v, int argc, char **argv, void *args, option_words *words,
                   int *code);
void options_help(const verb *v);

/* The option of a long name, or NULL; and the nearest long name to one that is none, or NULL. */
const option *options_named(const verb *v, const char *name, size_t len);
const char *options_near(const verb *v, const char *name);
/* Sets it in args, where the value's text is borrowed and, of a choice, written to in lower case.
 * False: why says what is wrong with the value. */
bool options_store(const option *o, char *value, void *args, option_text *why);
/* Runs the kind that argv (without the verb) begins with, and explains what the kinds are when it
 * begins with none. */
int options_run_kind(const verb *v, int argc, char **argv);
const char *options_kind_name(const verb *v, size_t i); /* "needle" of "eval needle" */

/* Long names of an option, other programs' among them: the i-th, NULL after the last. */
const char *options_name(const option *o, size_t i);
/* All that it takes, with a space between; empty when it takes more than can be listed. */
option_text options_choices(const option *o);
/* Its help text, with what it takes where somebody else knows that. */
option_text options_describe(const option *o);

/* Says on stderr what is wrong with the usage of a verb, then where its help is; returns
 * EXIT_USAGE. */
int options_wrong(const verb *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The nearest of n words, when near enough to be a slip of the finger; else NULL. */
const char *options_nearest(const char *word, const char *const *words, size_t n);

/* Numbers with a comma or space between; false at the first that is not one in [min, max], with
 * *bad at its text.  *out is the caller's, to be released with free. */
bool options_int_list(const char *text, int32_t min, int32_t max, int32_t **out, size_t *n,
                      const char **bad);

/* Rows of a table.  to: offsetof(verb's struct, field). */
#define OPTION_HEADING(text)                                                                       \
    { .kind = OPT_HEADING, .name = (text) }
#define OPTION_FLAG(b, n, to, h)                                                                   \
    { .kind = OPT_FLAG, .brief = (b), .name = (n), .offset = (to), .help = (h) }
#define OPTION_STRING(b, n, a, to, h)                                                              \
    { .kind = OPT_STRING, .brief = (b), .name = (n), .arg = (a), .offset = (to), .help = (h) }
#define OPTION_SEED(b, n, a, to, h)                                                                \
    { .kind = OPT_SEED, .brief = (b), .name = (n), .arg = (a), .offset = (to), .help = (h) }
#define OPTION_SIZE(n, to, h)                                                                      \
    { .kind = OPT_SIZE, .name = (n), .arg = "SIZE", .offset = (to), .help = (h) }
#define OPTION_INT(b, n, a, to, lo, hi, h)                                                         \
    {                                                                                              \
        .kind = OPT_INT, .brief = (b), .name = (n), .arg = (a), .offset = (to), .min = (lo),       \
        .max = (hi), .help = (h)                                                                   \
    }
#define OPTION_REAL(n, a, to, lo, hi, h)                                                           \
    {                                                                                              \
        .kind = OPT_REAL, .name = (n), .arg = (a), .offset = (to), .min = (lo), .max = (hi),       \
        .help = (h)                                                                                \
    }
#define OPTION_WORDS(b, n, a, to, h)                                                               \
    { .kind = OPT_WORDS, .brief = (b), .name = (n), .arg = (a), .offset = (to), .help = (h) }
#define OPTION_CHOICE(n, a, to, now, not_yet, h)                                                   \
    {                                                                                              \
        .kind = OPT_CHOICE, .name = (n), .arg = (a), .offset = (to), .choices = (now),             \
        .later = (not_yet), .help = (h)                                                            \
    }

/* A choice whose words somebody else knows: at(0) is the default, at(i) NULL after the last. */
#define OPTION_NAMED(n, a, to, at, not_yet, h)                                                     \
    {                                                                                              \
        .kind = OPT_CHOICE, .name = (n), .arg = (a), .offset = (to), .choice = (at),               \
        .later = (not_yet), .help = (h)                                                            \
    }

#define OPTION_COUNT(table) (sizeof(table) / sizeof((table)[0]))

#endif
