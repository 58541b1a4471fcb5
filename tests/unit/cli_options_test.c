/* cli_options_test.c - the command line's own parts: lists of numbers, suggestions, values at
 * the edge of their range, text that is not UTF-8 inside JSON, and options of the library as
 * flags. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The command line is a program and no library: its files are compiled in here. */
#include "cli/flags.c"
#include "cli/options.c"
#include "cli/output.c"
#include "cli/term.c"

typedef struct {
    const char *text, *choice, *list;
    int32_t count;
    float share;
    uint64_t number, size;
    bool flag;
} args;

#define AT(field) offsetof(args, field)
static const option table[] = {
    OPTION_HEADING("Options"),
    OPTION_STRING("x", "text", "TEXT", AT(text), "text"),
    OPTION_CHOICE("choice", "WORD", AT(choice), "one two", "three", "a word"),
    OPTION_INT("n", "count", "N", AT(count), -1, 10, "a count"),
    OPTION_REAL("share", "X", AT(share), 0, 1, "a share"),
    OPTION_SEED(NULL, "number", "N", AT(number), "a number"),
    OPTION_SIZE("size", AT(size), "a size"),
    OPTION_FLAG("md", "flag", AT(flag), "a flag"),
    {.kind = OPT_STRING, .name = "list", .arg = "LIST", .alone = "all", .offset = AT(list)},
};
static const verb sample = {.name = "sample",
                            .usage = "WORD",
                            .about = "",
                            .examples = "",
                            .options = table,
                            .n_options = OPTION_COUNT(table),
                            .min_words = 0,
                            .max_words = 1};

/* Parses words up to NULL. */
static bool parse(args *a, option_words *words, const char *const *list) {
    char *argv[8], copy[8][64];
    int n = 0, code;
    for (; list[n]; n++) {
        snprintf(copy[n], sizeof copy[n], "%s", list[n]);
        argv[n] = copy[n];
    }
    static args kept; /* strings point into copy: look at them before the next call */
    static char text[64], choice[64], listed[64];
    kept = (args){.count = 7};
    const int own = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO); /* what is said about wrong values */
    const bool ok = options_parse(&sample, n, argv, &kept, words, &code);
    fflush(stderr);
    dup2(own, STDERR_FILENO);
    close(own);
    close(nowhere);
    assert_int_equal(code, ok ? EXIT_DONE : EXIT_USAGE);
    *a = kept;
    if (a->text) a->text = strcpy(text, a->text);
    if (a->choice) a->choice = strcpy(choice, a->choice);
    if (a->list) a->list = strcpy(listed, a->list);
    if (words)
        for (int i = 0; i < words->n; i++)
            for (int k = 0; list[k]; k++)
                if (strcmp(list[k], words->word[i]) == 0) words->word[i] = list[k];
    return ok;
}
#define PARSE(a, words, ...) parse(a, words, (const char *const[]){__VA_ARGS__, NULL})

static void values(void **unused) {
    (void)unused;
    args a;
    option_words w;
    assert_true(PARSE(&a, &w, "-x", "-n", "--count", "-1", "word", "-md"));
    assert_string_equal(a.text, "-n"); /* a value may look like a flag */
    assert_int_equal(a.count, -1);
    assert_true(a.flag);
    assert_int_equal(w.n, 1);
    assert_string_equal(w.word[0], "word");
    assert_true(PARSE(&a, &w, "--text=a=b", "--choice=two", "--", "-n"));
    assert_string_equal(a.text, "a=b");
    assert_string_equal(a.choice, "two");
    assert_int_equal(a.count, 7);
    assert_string_equal(w.word[0], "-n");
    assert_true(PARSE(&a, &w, "--number", "18446744073709551615", "--share", "1"));
    assert_true(a.number == UINT64_MAX);
    assert_true(PARSE(&a, &w, "--text="));
    assert_string_equal(a.text, "");
    /* A value that may be left out. */
    assert_true(PARSE(&a, &w, "--list", "a,b", "--count", "3"));
    assert_string_equal(a.list, "a,b");
    assert_true(PARSE(&a, &w, "--list", "--count", "3"));
    assert_string_equal(a.list, "all");
    assert_int_equal(a.count, 3);
    assert_true(PARSE(&a, &w, "--list"));
    assert_string_equal(a.list, "all");
    assert_true(PARSE(&a, &w, "--list=c", "word"));
    assert_string_equal(a.list, "c");
}

static void wrong_values(void **unused) {
    (void)unused;
    static const char *const wrong[][2] = {
        {"-n", "11"},          {"-n", "-2"},
        {"-n", "1x"},          {"-n", ""},
        {"-n", "99999999999"}, {"--share", "nan"},
        {"--share", "1.01"},   {"--share", "x"},
        {"--choice", "three"}, {"--choice", ""},
        {"--choice", "on"},    {"--choice", "one two"},
        {"--number", "-1"},    {"--number", "18446744073709551616"},
        {"--size", "24XB"},    {"--size", "-1"},
        {"--size", "0"},       {"--size", "GB"},
        {"--size", ""},        {"--size", "1e30GB"},
        {"--size", "24GBs"},   {"--size", "nan"},
        {"--cou", "1"},        {"-N", "1"},
        {"--", "--"},
    };
    args a;
    option_words w;
    for (size_t i = 0; i + 1 < OPTION_COUNT(wrong); i++)
        assert_false(PARSE(&a, &w, wrong[i][0], wrong[i][1]));
    assert_false(PARSE(&a, &w, "--flag=1"));
    assert_false(PARSE(&a, &w, "-n"));
    assert_false(PARSE(&a, &w, "one", "two"));
    assert_true(PARSE(&a, &w, "--", "--"));
}

static void sizes(void **unused) {
    (void)unused;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"24GB", 24000000000}, {"24G", 24000000000},
        {"24gb", 24000000000}, {"7.5 GiB", 8053063680},
        {"512MiB", 536870912}, {"3kB", 3000},
        {"3K", 3000},          {"1000", 1000},
        {"8000 B", 8000},      {"1TB", 1000000000000},
        {"2KiB", 2048},        {"1", 1},
    };
    args a;
    option_words w;
    for (size_t i = 0; i < OPTION_COUNT(good); i++) {
        assert_true(PARSE(&a, &w, "--size", good[i].text));
        assert_true(a.size == good[i].bytes);
    }
}

static void lists(void **unused) {
    (void)unused;
    int32_t *x;
    size_t n;
    const char *bad;
    assert_true(options_int_list(" 2,17, 5\n", 0, 100, &x, &n, &bad));
    assert_int_equal(n, 3);
    assert_int_equal(x[0], 2);
    assert_int_equal(x[1], 17);
    assert_int_equal(x[2], 5);
    free(x);
    assert_true(options_int_list("", 0, 100, &x, &n, &bad));
    assert_int_equal(n, 0);
    free(x);
    assert_true(options_int_list("1,2,3,4,5,6,7,8,9", 0, 9, &x, &n, &bad)); /* the list is full */
    assert_int_equal(n, 9);
    free(x);
    assert_false(options_int_list("1,x", 0, 100, &x, &n, &bad));
    assert_string_equal(bad, "x");
    assert_false(options_int_list("101", 0, 100, &x, &n, &bad));
    assert_false(options_int_list("-1", 0, 100, &x, &n, &bad));
    assert_false(options_int_list("1.5", 0, 100, &x, &n, &bad));
    assert_null(x);
}

static void suggestions(void **unused) {
    (void)unused;
    static const char *const words[] = {"run", "chat", "quantize", "help"};
    assert_string_equal(options_nearest("rnu", words, 4), "run");
    assert_string_equal(options_nearest("quantise", words, 4), "quantize");
    assert_string_equal(options_nearest("quant", words, 4), "quantize");
    static const char *const options[] = {"sink", "chunk", "threads"};
    assert_null(options_nearest("think", options, 3));
    assert_string_equal(options_nearest("snk", options, 3), "sink");
    assert_null(options_nearest("zzz", words, 4));
    assert_null(options_nearest("", words, 4));
    char longer[200];
    memset(longer, 'q', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_null(options_nearest(longer, words, 4));
}

/* Any bytes become a JSON string; valid ones stay as they are. */
static void text_in_json(void **unused) {
    (void)unused;
    static const struct {
        const char *in, *out;
    } pairs[] = {
        {"a\xc3\xb6z", "a\xc3\xb6z"},
        {"a\xffz", "a\xef\xbf\xbdz"},
        {"\xc3", "\xef\xbf\xbd"},                                 /* cut short */
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xf0\x9f\x98\x80\xfe", "\xf0\x9f\x98\x80\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < OPTION_COUNT(pairs); i++) {
        json_t *s = output_text(pairs[i].in, strlen(pairs[i].in));
        assert_non_null(s);
        assert_string_equal(json_string_value(s), pairs[i].out);
        json_decref(s);
    }
    for (unsigned a = 0; a < 65536; a++) { /* every pair of bytes makes a string */
        const char bytes[2] = {(char)(a >> 8), (char)a};
        json_t *s = output_text(bytes, 2);
        assert_non_null(s);
        json_decref(s);
    }
    json_t *nothing = output_real(NAN);
    assert_true(json_is_null(nothing));
    json_decref(nothing);
}

static void numbers_for_people(void **unused) {
    (void)unused;
    assert_string_equal(term_count(0).text, "0");
    assert_string_equal(term_count(-1234567).text, "-1,234,567");
    assert_string_equal(term_count(100000).text, "100,000");
    assert_string_equal(term_bytes(0).text, "0 B");
    assert_string_equal(term_bytes(999).text, "999 B");
    assert_string_equal(term_bytes(999.6).text, "1.00 kB");
    assert_string_equal(term_bytes(2.15e9).text, "2.15 GB");
    assert_string_equal(term_bytes(14.23e9).text, "14.2 GB");
    assert_string_equal(term_bytes(235e6).text, "235 MB");
    assert_string_equal(term_bytes(1e16).text, "10000 TB");
}

static void options_as_flags(void **state) {
    (void)state;
    assert_string_equal(flags_for("100 tokens: raise `ctx`").text, "100 tokens: raise -c");
    assert_string_equal(flags_for("`isa` or `device` cpu").text, "--isa or --device cpu");
    assert_string_equal(flags_for("`ctx``ctx`").text, "-c-c");
    static const char *const same[] = {"",          "nothing", "`",    "``",    "'a`ctx",
                                       "`nothing`", "`ctx `",  "`ct`", "`ctx2`"};
    for (size_t i = 0; i < OPTION_COUNT(same); i++)
        assert_string_equal(flags_for(same[i]).text, same[i]);
    assert_string_equal(flags_for("`a`ctx`").text, "`a-c"); /* a name is looked for from each one */

    /* Too long: cut where it ends, in the middle of a flag too. */
    enum { CAPACITY = sizeof((flags_message){""}).text };
    char full[CAPACITY + 64];
    for (int before = CAPACITY - 12; before < CAPACITY + 2; before++) {
        memset(full, 'x', (size_t)before);
        snprintf(full + before, sizeof full - (size_t)before, "`device` cpu");
        const flags_message m = flags_for(full);
        assert_true(strlen(m.text) < CAPACITY);
        assert_memory_equal(m.text, full, before < CAPACITY ? (size_t)before : CAPACITY - 1);
    }
    /* Any message of the library fits. */
    memset(full, 'x', sizeof((kk_err){0}).msg);
    snprintf(full + sizeof((kk_err){0}).msg - 18, 18, "`RLIMIT_MEMLOCK`.");
    assert_non_null(strstr(flags_for(full).text, "ulimit -l."));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(sizes),
        cmocka_unit_test(lists),
        cmocka_unit_test(suggestions),
        cmocka_unit_test(text_in_json),
        cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(options_as_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
