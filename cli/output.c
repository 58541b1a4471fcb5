/* output.c - JSON on stdout, complaints on stderr. */
#include "cli/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/flags.h"
#include "cli/options.h"
#include "cli/term.h"

bool output_json(json_t *object) {
    /* Nine digits say all there is to say about a measured time or rate. */
    char *text = object ? json_dumps(object, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9)) : NULL;
    if (text) puts(text);
    free(text);
    json_decref(object);
    return text != NULL;
}

/* Bytes of the UTF-8 sequence at p, or 0 when there is none: overlong forms, surrogates and
 * values past U+10FFFF are not UTF-8. */
static size_t sequence(const unsigned char *p, size_t left) {
    static const unsigned least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = *p < 0x80 ? 1 : *p >= 0xc2 && *p < 0xe0 ? 2 : (*p & 0xf0) == 0xe0 ? 3 : 4;
    if (len == 1) return 1;
    if (*p < 0xc2 || *p > 0xf4 || len > left) return 0;
    unsigned code = *p & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[len] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    return len;
}

json_t *output_text(const char *text, size_t len) {
    json_t *s = json_stringn(text, len);
    if (s) return s;
    char *clean = malloc(3 * len + 1); /* each bad byte becomes the three of U+FFFD */
    if (!clean) return NULL;
    size_t at = 0;
    for (size_t i = 0; i < len;) {
        size_t n = sequence((const unsigned char *)text + i, len - i);
        memcpy(clean + at, n ? text + i : "\xef\xbf\xbd", n ? n : 3);
        at += n ? n : 3;
        i += n ? n : 1;
    }
    s = json_stringn(clean, at);
    free(clean);
    return s;
}

json_t *output_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *output_memory(const int64_t bytes[KK_MEM_CATEGORIES]) {
    json_t *o = json_object();
    for (int c = 0; o && c < KK_MEM_CATEGORIES; c++)
        json_object_set_new(o, kk_mem_category_name((kk_mem_category)c), json_integer(bytes[c]));
    return o;
}

char *output_command(const char *start, int argc, char **argv) {
    size_t n = strlen(start), cap = n + 1;
    for (int i = 0; i < argc; i++) cap += strlen(argv[i]) + 3;
    char *text = malloc(cap);
    if (!text) return NULL;
    memcpy(text, start, n + 1);
    for (int i = 0; i < argc; i++) {
        const char *quote = strpbrk(argv[i], " \t\n\"$&;|<>*?()") || !argv[i][0] ? "'" : "";
        n += (size_t)snprintf(text + n, cap - n, " %s%s%s", quote, argv[i], quote);
    }
    return text;
}

int output_failed(const char *what, const char *next) {
    fflush(stdout);
    fprintf(stderr, "kakeya: %s\n", flags_for(what).text);
    if (next) fprintf(stderr, "  %s\n", next);
    return EXIT_FAILED;
}

static const char *advice(kk_status code) {
    switch (code) {
    case KK_ECONTEXT: return "Give a larger context with -c N, or a shorter prompt.";
    case KK_ENOMEM:
        return "Close other programs, lower -c, or take a smaller type (kakeya quantize); "
               "'kakeya info' says what fits.";
    case KK_EIO: return "Check the path, the permissions and the space on the disk.";
    case KK_EFORMAT:
        return "Download or convert the file again; 'kakeya info -m MODEL' reads it without "
               "running it.";
    case KK_EDEVICE: return "'kakeya doctor' shows what this machine can run.";
    case KK_EINVAL: return "'kakeya help' says what each verb takes.";
    case KK_EEXIST: return "Give another name, or --force to replace it.";
    case KK_EBUSY: return "Wait until it is done, or give another name.";
    case KK_ENUMERIC:
        return "'kakeya info --check -m MODEL' names weights that are not finite; if all are, try "
               "--device cpu.";
    case KK_OK:
    case KK_ESTOPPED: break;
    }
    return NULL;
}

int output_error(const kk_err *err) {
    if (err->code == KK_ESTOPPED && term_signal()) return term_exit_code();
    return output_failed(err->msg, advice(err->code));
}
