/* options.c - parses a verb's options by its table and writes its help text from it.
 *
 * Flags are matched whole, never bundled or abbreviated: -md is one flag, and a flag that is
 * added later must not change the meaning of a script.  --name=value and --name value are the
 * same, and so are -n5 and -n 5.  Words to choose from are read in any case. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int options_wrong(const verb *v, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "kakeya %s: ", v->name);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n'kakeya help %s' lists its options.\n", v->name);
    return EXIT_USAGE;
}

/* ---- names ------------------------------------------------------------------------------- */

/* What other programs call an option of ours; each is known wherever ours is. */
static const struct {
    const char *name, *ours;
} synonyms[] = {
    {"temperature", "temp"}, {"max-tokens", "predict"}, {"n-predict", "predict"},
    {"ctx", "ctx-size"},     {"ctx-size", "ctx"},
};

static bool is(const char *name, const char *text, size_t len) {
    return name && strlen(name) == len && strncmp(name, text, len) == 0;
}

/* Whether text is a long name of the option. */
static bool names_it(const option *o, const char *text, size_t len) {
    if (o->kind == OPT_HEADING) return false;
    if (is(o->name, text, len) || is(o->alias, text, len)) return true;
    for (size_t i = 0; i < OPTION_COUNT(synonyms); i++)
        if (is(synonyms[i].name, text, len) && strcmp(synonyms[i].ours, o->name) == 0) return true;
    return false;
}

const char *options_name(const option *o, size_t i) {
    if (o->kind == OPT_HEADING) return NULL;
    if (i == 0) return o->name;
    if (o->alias && --i == 0) return o->alias;
    for (size_t s = 0; s < OPTION_COUNT(synonyms); s++)
        if (strcmp(synonyms[s].ours, o->name) == 0 &&
            (!o->alias || strcmp(synonyms[s].name, o->alias) != 0) && --i == 0)
            return synonyms[s].name;
    return NULL;
}

const option *options_named(const verb *v, const char *text, size_t len) {
    for (size_t i = 0; i < v->n_options; i++)
        if (names_it(&v->options[i], text, len)) return &v->options[i];
    return NULL;
}

/* ---- suggestions ------------------------------------------------------------------------- */

enum { MAX_WORD = 40 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Edits between two words, a swap of neighbours counting as one. */
static size_t distance(const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b), d[MAX_WORD + 1][MAX_WORD + 1];
    if (la > MAX_WORD || lb > MAX_WORD) return MAX_WORD;
    for (size_t i = 0; i <= la; i++) d[i][0] = i;
    for (size_t j = 0; j <= lb; j++) d[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        for (size_t j = 1; j <= lb; j++) {
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = least(best, least(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = least(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[la][lb];
}

const char *options_nearest(const char *word, const char *const *words, size_t n) {
    const char *best = NULL;
    size_t best_distance = strlen(word) <= 5 ? 2 : 3; /* one slip in a short word, two in a long */
    for (size_t i = 0; i < n; i++) {
        bool begins = strlen(word) >= 3 && strncmp(words[i], word, strlen(word)) == 0;
        size_t d = begins ? 1 : distance(word, words[i]);
        if (d < best_distance) {
            best = words[i];
            best_distance = d;
        }
    }
    return best;
}

const char *options_near(const verb *v, const char *name) {
    const char *names[160];
    size_t n = 0;
    for (size_t i = 0; i < v->n_options && n + 2 < OPTION_COUNT(names); i++) {
        if (v->options[i].kind == OPT_HEADING) continue;
        names[n++] = v->options[i].name;
        if (v->options[i].alias) names[n++] = v->options[i].alias;
    }
    return options_nearest(name, names, n);
}

static int unknown_option(const verb *v, const char *given) {
    const char *near = NULL;
    if (given[1] == '-')
        near = options_near(v, given + 2);
    else if (options_named(v, given + 1, strlen(given + 1)))
        near = given + 1; /* -model */
    if (near) return options_wrong(v, "unknown option %s; did you mean --%s?", given, near);
    return options_wrong(v, "unknown option %s", given);
}

/* ---- values ------------------------------------------------------------------------------ */

static bool whole(const char *text, double min, double max, int32_t *out) {
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)x < min || (double)x > max) return false;
    *out = (int32_t)x;
    return true;
}

static bool real(const char *text, double min, double max, float *out) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x >= min && x <= max)) return false;
    *out = (float)x;
    return true;
}

static bool seed(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return end != text && !*end && !errno && text[0] != '-';
}

/* "24GB", "7.5 GiB", "1000": bytes.  Without the B, as in 24G, decimal units; no size is 0. */
static bool size(const char *text, uint64_t *out) {
    static const char units[] = "kMGT";
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    double x = strtod(text, &end);
    while (*end == ' ') end++;
    const int letter = *end == 'K' || *end == 'm' || *end == 'g' || *end == 't' ? *end ^ 32 : *end;
    const char *unit = *end ? strchr(units, letter) : NULL;
    const bool binary = unit && end[1] == 'i';
    for (long i = 0; unit && i <= unit - units; i++) x *= binary ? 1024 : 1000;
    end += (unit != NULL) + binary;
    if (*end == 'B' || *end == 'b') end++;
    if (*end || !(x >= 1 && x < 0x1p63)) return false;
    *out = (uint64_t)x;
    return true;
}

/* -1, where the option takes it: any. */
static bool any_seed(const option *o, const char *text, uint64_t *out) {
    if (o->min >= 0 || strcmp(text, "-1") != 0) return false;
    *out = UINT64_MAX;
    return true;
}

/* Whether list, words with a space between, has the word. */
static bool has_word(const char *list, const char *word) {
    size_t len = strlen(word);
    for (const char *at = list; at && *at && len; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == len && strncasecmp(at, word, len) == 0) return true;
    return false;
}

/* The word as our lists have it: they know no capitals. */
static void lower(char *word) {
    for (; *word; word++)
        if (isupper((unsigned char)*word)) *word = (char)tolower((unsigned char)*word);
}

static void append(option_text *list, const char *before, const char *word) {
    const size_t at = strlen(list->text);
    snprintf(list->text + at, sizeof list->text - at, "%s%s", before, word);
}

option_text options_choices(const option *o) {
    option_text list = {""};
    if (o->choices) append(&list, "", o->choices);
    for (int i = 0; o->choice && o->choice(i); i++) append(&list, i ? " " : "", o->choice(i));
    return list;
}

/* Says in *why what a value is not; false. */
static bool refuse(option_text *why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(option_text *why, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why->text, sizeof why->text, fmt, ap);
    va_end(ap);
    return false;
}

static bool wrong_choice(const option *o, const char *value, option_text *why) {
    if (has_word(o->later, value))
        return refuse(why, "--%s %s is not part of this build yet; it takes: %s", o->name, value,
                      options_choices(o).text);
    return refuse(why, "--%s takes %s, not '%s'", o->name, options_choices(o).text, value);
}

static bool wrong_number(const option *o, const char *value, const char *kind, option_text *why) {
    return refuse(why, "--%s takes %s from %.10g to %.10g, not '%s'%s%s", o->name, kind, o->min,
                  o->max, value, o->hint ? "; " : "", o->hint ? o->hint : "");
}

static bool add_word(const option *o, const char *value, option_words *to, option_text *why) {
    if (to->n == (int)OPTION_COUNT(to->word))
        return refuse(why, "--%s can be given %zu times, no more", o->name, OPTION_COUNT(to->word));
    to->word[to->n++] = value;
    return true;
}

bool options_store(const option *o, char *value, void *args, option_text *why) {
    void *to = (char *)args + o->offset;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)to = true; return true;
    case OPT_STRING: *(const char **)to = value; return true;
    case OPT_INT:
        return whole(value, o->min, o->max, to) || wrong_number(o, value, "a whole number", why);
    case OPT_REAL:
        return real(value, o->min, o->max, to) || wrong_number(o, value, "a number", why);
    case OPT_SIZE:
        return size(value, to) ||
               refuse(why, "--%s takes bytes, as in 24GB or 7.5GiB, not '%s'", o->name, value);
    case OPT_SEED:
        return seed(value, to) || any_seed(o, value, to) ||
               refuse(why, "--%s takes a whole number of at most 64 bits, not '%s'", o->name,
                      value);
    case OPT_CHOICE:
        if (!has_word(options_choices(o).text, value)) return wrong_choice(o, value, why);
        lower(value);
        *(const char **)to = value;
        return true;
    case OPT_WORDS: return add_word(o, value, to, why);
    case OPT_HEADING: break;
    }
    return false;
}

static bool store(const verb *v, const option *o, char *value, void *args) {
    option_text why = {""};
    if (options_store(o, value, args, &why)) return true;
    options_wrong(v, "%s", why.text);
    return false;
}

/* ---- parsing ----------------------------------------------------------------------------- */

/* text: an argument that starts with '-'; len: without its "=value". */
static const option *find(const verb *v, const char *text, size_t len) {
    if (text[1] == '-') return options_named(v, text + 2, len - 2);
    for (size_t i = 0; i < v->n_options; i++)
        if (v->options[i].kind != OPT_HEADING && is(v->options[i].brief, text + 1, len - 1))
            return &v->options[i];
    return NULL;
}

/* -n5: a short option with its value, which *value is set to.  -model is none, but a slip. */
static const option *find_attached(const verb *v, char *text, char **value) {
    const option *best = NULL;
    size_t longest = 0;
    if (text[1] == '-' || options_named(v, text + 1, strcspn(text + 1, "="))) return NULL;
    for (size_t i = 0; i < v->n_options; i++) {
        const option *o = &v->options[i];
        const size_t n = o->kind != OPT_HEADING && o->brief ? strlen(o->brief) : 0;
        if (n <= longest || o->kind == OPT_FLAG || strncmp(text + 1, o->brief, n) != 0) continue;
        best = o;
        longest = n;
    }
    char *rest = text + 1 + longest + (best && text[1 + longest] == '=');
    const bool number = best && best->kind != OPT_STRING && best->kind != OPT_WORDS;
    if (!best || (number && !strchr("+-.0123456789", *rest))) return NULL;
    *value = rest;
    return best;
}

/* Takes the option at argv[*i] and its value; moves *i to the last argument used. */
static bool take_option(const verb *v, int argc, char **argv, int *i, void *args) {
    char *text = argv[*i], *value = text[1] == '-' ? strchr(text, '=') : NULL;
    size_t len = value ? (size_t)(value - text) : strlen(text);
    const option *o = find(v, text, len);
    if (!o && (o = find_attached(v, text, &value))) return store(v, o, value, args);
    if (!o) {
        if (value) *value = 0;
        unknown_option(v, text);
        return false;
    }
    if (o->kind == OPT_FLAG) {
        if (!value) return store(v, o, NULL, args);
        options_wrong(v, "--%s takes no value", o->name);
        return false;
    }
    if (value) return store(v, o, value + 1, args);
    if (o->alone && (*i + 1 >= argc || argv[*i + 1][0] == '-'))
        return store(v, o, (char *)(uintptr_t)o->alone, args); /* in lower case: not written to */
    if (*i + 1 >= argc) {
        options_wrong(v, "%s needs a value: %s", text, o->arg);
        return false;
    }
    return store(v, o, argv[++*i], args);
}

static bool take_word(const verb *v, const char *word, option_words *words) {
    if (words->n < v->max_words) {
        words->word[words->n++] = word;
        return true;
    }
    bool prompt = find(v, "--prompt", strlen("--prompt")) != NULL;
    options_wrong(v, "unexpected argument '%s'%s", word, prompt ? "; text goes after -p" : "");
    return false;
}

bool options_parse(const verb *v, int argc, char **argv, void *args, option_words *words,
                   int *code) {
    option_words none = {.n = 0};
    if (!words) words = &none;
    words->n = 0;
    bool only_words = false;
    *code = EXIT_USAGE;
    for (int i = 0; i < argc; i++) {
        const char *text = argv[i];
        if (only_words || text[0] != '-' || !text[1]) {
            if (!take_word(v, text, words)) return false;
        } else if (strcmp(text, "--") == 0) {
            only_words = true;
        } else if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            options_help(v);
            *code = EXIT_DONE;
            return false;
        } else if (!take_option(v, argc, argv, &i, args)) {
            return false;
        }
    }
    if (words->n < v->min_words) {
        options_wrong(v, "usage: kakeya %s %s", v->name, v->usage);
        return false;
    }
    *code = EXIT_DONE;
    return true;
}

bool options_int_list(const char *text, int32_t min, int32_t max, int32_t **out, size_t *n,
                      const char **bad) {
    *out = calloc(strlen(text) / 2 + 1, sizeof **out); /* a number and a comma are two bytes */
    *n = 0;
    *bad = text;
    if (!*out) return false;
    for (const char *at = text; *(at += strspn(at, ", \t\r\n"));) {
        char *end;
        errno = 0;
        long long x = strtoll(at, &end, 10);
        if (end == at || errno || x < min || x > max || !strchr(", \t\r\n", *end)) {
            *bad = at;
            free(*out);
            *out = NULL;
            return false;
        }
        (*out)[(*n)++] = (int32_t)x;
        at = end;
    }
    return true;
}

/* ---- kinds ------------------------------------------------------------------------------- */

const char *options_kind_name(const verb *v, size_t i) {
    return v->kinds[i]->name + strlen(v->name) + 1;
}

static void list_kinds(const verb *v, FILE *to) {
    for (size_t i = 0; i < v->n_kinds; i++)
        fprintf(to, "  %-11s %s\n", options_kind_name(v, i), v->kinds[i]->summary);
    fprintf(to, "\n'kakeya help %s KIND' lists the options of a kind.\n", v->name);
}

static int unknown_kind(const verb *v, const char *given) {
    option_text all = {""};
    if (given[0] == '-')
        return options_wrong(v, "the kind comes first, as in 'kakeya %s %s %s'", v->name,
                             options_kind_name(v, 0), given);
    for (size_t i = 0; i < v->n_kinds; i++) append(&all, i ? ", " : "", options_kind_name(v, i));
    return options_wrong(v, "there is no kind '%s'; the kinds are: %s", given, all.text);
}

int options_run_kind(const verb *v, int argc, char **argv) {
    if (argc == 0) {
        fprintf(stderr, "usage: kakeya %s %s\n\nKinds:\n", v->name, v->usage);
        list_kinds(v, stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        options_help(v);
        return EXIT_DONE;
    }
    for (size_t i = 0; i < v->n_kinds; i++)
        if (strcmp(argv[0], options_kind_name(v, i)) == 0) return v->kinds[i]->run(argc, argv);
    return unknown_kind(v, argv[0]);
}

/* ---- help -------------------------------------------------------------------------------- */

enum { HELP_COLUMN = 30, HELP_WIDTH = 92 };

/* Prints text in the help column, the cursor standing at column `at`. */
static void print_wrapped(const char *text, int at) {
    if (at >= HELP_COLUMN) printf("\n"), at = 0;
    printf("%*s", HELP_COLUMN - at, "");
    int col = HELP_COLUMN;
    while (*text) {
        int len = (int)strcspn(text, " ");
        if (col > HELP_COLUMN && col + 1 + len > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            col = HELP_COLUMN;
        } else if (col > HELP_COLUMN) {
            printf(" ");
            col++;
        }
        printf("%.*s", len, text);
        col += len;
        text += len;
        text += *text == ' ';
    }
    printf("\n");
}

option_text options_describe(const option *o) {
    option_text all = {""};
    append(&all, "", o->help);
    for (int i = 0; o->choice && o->choice(i); i++) {
        append(&all, i == 0 ? ": " : o->choice(i + 1) ? ", " : " or ", o->choice(i));
        if (i == 0) append(&all, "", " (default)");
    }
    return all;
}

static void print_option(const option *o) {
    int at = o->brief ? printf("  -%s, ", o->brief) : printf("  ");
    for (size_t i = 0; options_name(o, i); i++)
        at += printf("%s--%s", i ? ", " : "", options_name(o, i));
    if (o->kind != OPT_FLAG) at += printf(o->alone ? " [%s]" : " %s", o->arg);
    print_wrapped(options_describe(o).text, at);
}

void options_help(const verb *v) {
    printf("usage: kakeya %s%s%s\n\n%s\n", v->name, *v->usage ? " " : "", v->usage, v->about);
    for (size_t i = 0; i < v->n_options; i++) {
        if (v->options[i].kind == OPT_HEADING)
            printf("\n%s:\n", v->options[i].name);
        else
            print_option(&v->options[i]);
    }
    if (v->n_kinds) {
        printf("\n");
        list_kinds(v, stdout);
    }
    printf("\nExamples:\n%s", v->examples);
}
