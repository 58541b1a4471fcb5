/* fuzz_config_file.c - any bytes as a config file: refused with a line and a reason, or values that
 * are within the limits of their options. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

/* The command line is a program and no library: its files are compiled in here. */
#include "cli/config_file.c"
#include "cli/options.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const char *text, *choice, *config;
    option_words words;
    int32_t count;
    float share;
    uint64_t number;
    bool flag;
} fuzz_args;

#define AT(field) offsetof(fuzz_args, field)
static const option table[] = {
    OPTION_HEADING("Options"),
    OPTION_STRING("x", "text", "TEXT", AT(text), "text"),
    OPTION_STRING(NULL, "config", "FILE", AT(config), "a file"),
    OPTION_CHOICE("choice", "WORD", AT(choice), "one two", "three", "a word"),
    OPTION_WORDS(NULL, "stop", "TEXT", AT(words), "words"),
    OPTION_INT("n", "count", "N", AT(count), -1, 10, "a count"),
    OPTION_REAL("share", "X", AT(share), 0, 1, "a share"),
    OPTION_SEED(NULL, "number", "N", AT(number), "a number"),
    OPTION_FLAG("md", "flag", AT(flag), "a flag"),
};
static const verb sample = {
    .name = "sample", .usage = "", .options = table, .n_options = OPTION_COUNT(table)};

static void need(bool holds) {
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    config_fault f;
    fuzz_args a = {.count = 7};
    if (!text) return 0;
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    if (config_file_apply(&sample, text, size, &a, &f)) {
        need(a.count >= -1 && a.count <= 10 && a.share >= 0 && a.share <= 1 && !a.config);
        need(!a.choice || strcmp(a.choice, "one") == 0 || strcmp(a.choice, "two") == 0);
        need(!a.text || (a.text >= text && a.text <= text + size));
        for (int i = 0; i < a.words.n; i++)
            need(a.words.word[i] > text && a.words.word[i] <= text + size);
    } else {
        need(f.line >= 0 && f.line <= (int)size + 1 && f.why.text[0]);
    }
    free(text);
    return 0;
}
