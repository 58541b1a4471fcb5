/* skips.h - a test that cannot run where it is says so to ctest.
 *
 * A program that left out one of its tests ends with code 77, unless another of them failed;
 * cmake/tests.cmake tells ctest that this means skipped, and lets no test call cmocka's skip()
 * without this header. */
#ifndef KK_TESTS_SKIPS_H
#define KK_TESTS_SKIPS_H

#include <stdbool.h>

#include "support/ok.h"

static int skips;

/* Ends the test at hand; the words say what is missing. */
#define skip_test(...)                                                                             \
    do {                                                                                           \
        print_message("SKIP: " __VA_ARGS__);                                                       \
        print_message("\n");                                                                       \
        skips++;                                                                                   \
        skip();                                                                                    \
    } while (0)

/* The exit code, from the number of tests that failed: 77 of them are no skip. */
static inline int ended(int failures) { return failures ? 1 : skips ? 77 : 0; }

/* A device that was not built cannot run; one that was built must. */
static inline void need_mlx(bool opens) {
    if (opens) return;
#ifdef KK_WITH_MLX
    fail_msg("the module of MLX was built, and does not open");
#else
    skip_test("the module of MLX is not built here (scripts/setup mlx)");
#endif
}

#endif
