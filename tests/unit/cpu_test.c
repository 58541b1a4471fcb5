/* cpu_test.c - what is claimed of the processor agrees with what the system says of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu.h"
#include "support/skips.h"

/* The first line of /proc/cpuinfo that starts with key; "" where there is none. */
static const char *cpuinfo(const char *key) {
    static char line[16384];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            fclose(f);
            return line;
        }
    }
    if (f) fclose(f);
    return "";
}

/* A whole word of a line. */
static bool has_word(const char *line, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = line; (at = strstr(at, word)); at += n) {
        const bool starts = at == line || at[-1] == ' ';
        if (starts && strchr(" \n", at[n])) return true;
    }
    return false;
}

#if defined(__x86_64__) && defined(__linux__)
static void features_are_those_the_system_lists(void **state) {
    (void)state;
    const char *flags = cpuinfo("flags");
    const kk_cpu c = kk_cpu_detect();
    char words[160];
    if (!*flags) skip_test("/proc/cpuinfo lists no flags");
    kk_cpu_describe(words, sizeof words);
    static const char *const same[] = {"avx2",     "fma",      "avx512f",
                                       "avx512bw", "avx512vl", "avx512dq"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_int_equal(has_word(words, same[i]), has_word(flags, same[i]));
    assert_int_equal(has_word(words, "avx512vnni"), has_word(flags, "avx512_vnni"));
    assert_int_equal(c.avx2,
                     has_word(flags, "avx2") && has_word(flags, "fma") && has_word(flags, "f16c"));
    assert_int_equal(c.avx512, c.avx2 && has_word(flags, "avx512f") &&
                                   has_word(flags, "avx512bw") && has_word(flags, "avx512vl") &&
                                   has_word(flags, "avx512dq"));
    assert_int_equal(c.avx512vnni, c.avx512 && has_word(flags, "avx512_vnni"));
    assert_false(c.neon_dot);
}
#endif

static void each_set_includes_the_smaller_one(void **state) {
    (void)state;
    const kk_cpu c = kk_cpu_detect();
    assert_true(!c.avx512 || c.avx2);
    assert_true(!c.avx512vnni || c.avx512);
    assert_false(c.avx2 && c.neon_dot);
}

/* Texts are cut at whole words and always end. */
static void texts_fit_where_they_are_put(void **state) {
    (void)state;
    char whole[160], part[160];
    kk_cpu_describe(whole, sizeof whole);
    for (size_t cap = 0; cap < sizeof part; cap++) {
        memset(part, 'x', sizeof part);
        kk_cpu_describe(part, cap);
        assert_int_equal(part[cap], 'x');
        if (cap == 0) continue;
        assert_true(strlen(part) < cap);
        assert_memory_equal(part, whole, strlen(part));
        if (part[0]) assert_non_null(strchr(" ", whole[strlen(part)])); /* a blank, or the end */
        kk_cpu_name(part, cap);
        assert_true(strlen(part) < cap);
        assert_int_equal(part[cap], 'x');
    }
    kk_cpu_name(part, 0);
    kk_cpu_name(part, sizeof part);
    assert_true(strlen(part) > 0);
    const char *model = cpuinfo("model name");
    if (*model) assert_non_null(strstr(model, part));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__) && defined(__linux__)
        cmocka_unit_test(features_are_those_the_system_lists),
#endif
        cmocka_unit_test(each_set_includes_the_smaller_one),
        cmocka_unit_test(texts_fit_where_they_are_put),
    };
    return ended(cmocka_run_group_tests(tests, NULL, NULL));
}
