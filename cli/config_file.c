/* config_file.c - see config_file.h. */
#include "cli/config_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char blanks[] = " \t\r";

static bool wrong(config_fault *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(config_fault *f, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->why.text, sizeof f->why.text, fmt, ap);
    va_end(ap);
    return false;
}

/* Without the blanks around it; the end is written into the text. */
static char *trimmed(char *text) {
    text += strspn(text, blanks);
    size_t n = strlen(text);
    while (n > 0 && strchr(blanks, text[n - 1])) text[--n] = '\0';
    return text;
}

/* "a b" loses its quotes; one quote alone is a slip. */
static bool unquote(char **value, config_fault *f) {
    const size_t n = strlen(*value);
    if ((*value)[0] != '"') return true;
    if (n < 2 || (*value)[n - 1] != '"')
        return wrong(f, "a value that begins with \" ends with it");
    (*value)[n - 1] = '\0';
    ++*value;
    return true;
}

static bool is_one_of(const char *word, const char *const list[3]) {
    for (int i = 0; i < 3; i++)
        if (strcasecmp(word, list[i]) == 0) return true;
    return false;
}

static bool set_flag(const option *o, const char *value, void *args, config_fault *f) {
    static const char *const yes[] = {"yes", "true", "on"}, *const no[] = {"no", "false", "off"};
    if (!is_one_of(value, yes) && !is_one_of(value, no))
        return wrong(f, "%s takes yes or no, not '%.100s'", o->name, value);
    *(bool *)((char *)args + o->offset) = is_one_of(value, yes);
    return true;
}

static bool set_option(const verb *v, const char *name, char *value, void *args, uint8_t *seen,
                       config_fault *f) {
    const option *o = options_named(v, name, strlen(name));
    if (!o) {
        const char *near = options_near(v, name);
        return wrong(f, "there is no option '%.60s'%s%s%s", name, near ? "; did you mean '" : "",
                     near ? near : "", near ? "'?" : "");
    }
    if (strcmp(o->name, "config") == 0) return wrong(f, "a config file names no other");
    if (seen[o - v->options]++ && o->kind != OPT_WORDS)
        return wrong(f, "%s stands here a second time", o->name);
    if (o->kind == OPT_FLAG) return set_flag(o, value, args, f);
    return options_store(o, value, args, &f->why);
}

static bool take_line(const verb *v, char *line, void *args, uint8_t *seen, config_fault *f) {
    char *name = trimmed(line);
    if (!*name || *name == '#') return true;
    if (*name == '[') return wrong(f, "there are no sections: each line is name = value");
    char *equals = strchr(name, '=');
    if (!equals) return wrong(f, "'%.60s' has no value: each line is name = value", name);
    *equals = '\0';
    name = trimmed(name);
    char *value = trimmed(equals + 1);
    if (!*name) return wrong(f, "no name before =");
    if (!*value) return wrong(f, "%.60s has no value; \"\" is an empty one", name);
    return unquote(&value, f) && set_option(v, name, value, args, seen, f);
}

bool config_file_apply(const verb *v, char *text, size_t n, void *args, config_fault *fault) {
    *fault = (config_fault){.line = 0};
    if (memchr(text, '\0', n)) return wrong(fault, "it has a NUL byte: it is no text");
    uint8_t *seen = calloc(v->n_options + 1, sizeof *seen);
    if (!seen) return wrong(fault, "no memory");
    bool good = true;
    for (char *line = text; good && line;) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        fault->line++;
        good = take_line(v, line, args, seen, fault);
        line = end ? end + 1 : NULL;
    }
    free(seen);
    return good;
}

/* All of a file and a NUL; NULL: errno says why, EFBIG where it is longer than a config file is. */
static char *contents(const char *path, size_t *n) {
    FILE *f = fopen(path, "re");
    char *text = f ? malloc(CONFIG_FILE_LONGEST + 1) : NULL;
    int why = errno;
    if (text) {
        *n = fread(text, 1, CONFIG_FILE_LONGEST + 1, f);
        why = ferror(f) ? errno : *n > CONFIG_FILE_LONGEST ? EFBIG : 0;
        if (!why) text[*n] = '\0';
    }
    if (f) fclose(f);
    if (text && !why) return text;
    free(text);
    errno = why;
    return NULL;
}

bool config_file_read(const verb *v, const char *path, void *args, char **text, int *code) {
    size_t n = 0;
    config_fault f;
    *text = contents(path, &n);
    if (!*text) {
        fprintf(stderr, "kakeya %s: cannot read the config file '%s': %s\n", v->name, path,
                strerror(errno));
        *code = EXIT_FAILED;
        return false;
    }
    if (config_file_apply(v, *text, n, args, &f)) return true;
    if (f.line > 0)
        *code = options_wrong(v, "%s:%d: %s", path, f.line, f.why.text);
    else
        *code = options_wrong(v, "%s: %s", path, f.why.text);
    return false;
}

const char *config_file_asked(int argc, char **argv) {
    static const char name[] = "--config";
    const char *asked = NULL;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], name, sizeof name - 1) != 0) continue;
        const char *rest = argv[i] + sizeof name - 1;
        if (*rest == '=') asked = rest + 1;
        if (!*rest && i + 1 < argc) asked = argv[i + 1];
    }
    return asked;
}
