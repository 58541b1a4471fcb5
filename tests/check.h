/* check.h - the few lines a test needs where cmocka is not to be had, as in a cross build.
 *
 * CHECK counts and goes on, so that one run shows every fault; main ends with
 * `return check_summary("what")`. */
#ifndef KK_TESTS_CHECK_H
#define KK_TESTS_CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct {
    long done, failed;
} check_counts;

static inline check_counts *check_count(void) {
    static check_counts counts;
    return &counts;
}

__attribute__((format(printf, 4, 5))) static inline bool
check_that(bool holds, const char *file, int line, const char *fmt, ...) {
    check_counts *counts = check_count();
    counts->done++;
    if (holds) return true;
    counts->failed++;
    if (counts->failed > 50) return false; /* the first ones tell the story */
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return false;
}

#define CHECK(condition) check_that((condition), __FILE__, __LINE__, "%s", #condition)
/* With a message of its own, as for printf. */
#define CHECK_SAY(condition, ...) check_that((condition), __FILE__, __LINE__, __VA_ARGS__)

/* What main returns: 0 when something was checked and all of it held. */
static inline int check_summary(const char *what) {
    const check_counts *counts = check_count();
    printf("%s: %ld checks, %ld failed\n", what, counts->done, counts->failed);
    return counts->done > 0 && counts->failed == 0 ? 0 : 1;
}

#endif
