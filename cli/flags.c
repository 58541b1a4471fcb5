/* flags.c - see flags.h.  scripts/check-messages looks up here every option that a message of the
 * library names. */
#include "cli/flags.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *option, *flag;
} flags[] = {
    {"ctx", "-c"},
    {"device", "--device"},
    {"draft_vocab", "--draft-vocab"},
    {"drafter", "-md"},
    {"file", "--file"},
    {"gpu_memory", "--gpu-memory"},
    {"isa", "--isa"},
    {"mlock", "--mlock"},
    {"model", "-m"},
    {"projection", "-mp"},
    {"spec", "--spec"},
    {"threads", "-t"},
    {"RLIMIT_MEMLOCK", "ulimit -l"}, /* a limit of the system, by the shell's name for it */
};

/* The flag of an option of n characters; NULL: there is none. */
static const char *flag_of(const char *option, size_t n) {
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (strlen(flags[i].option) == n && memcmp(flags[i].option, option, n) == 0)
            return flags[i].flag;
    return NULL;
}

flags_message flags_for(const char *message) {
    flags_message out = {.text = ""};
    size_t at = 0;
    while (*message && at + 1 < sizeof out.text) {
        const char *end = *message == '`' ? strchr(message + 1, '`') : NULL;
        const char *flag = end ? flag_of(message + 1, (size_t)(end - message - 1)) : NULL;
        if (flag) {
            const int n = snprintf(out.text + at, sizeof out.text - at, "%s", flag);
            at += (size_t)n < sizeof out.text - at ? (size_t)n : sizeof out.text - at - 1;
            message = end + 1;
        } else {
            out.text[at++] = *message++;
        }
    }
    return out;
}
