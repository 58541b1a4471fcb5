/* draws.h - how many of its draws a test takes.
 *
 * `make test` takes a part of them, so that it ends in minutes; every kind of case is among them.
 * With KK_ALL_DRAWS in the environment all are taken: `make check` runs these tests so once more
 * (ctest's label `draws`, which a test has by including this file), and `ctest` alone may.  Where a
 * row costs many times as much (slow.h) there are the fewest. */
#ifndef KK_TESTS_DRAWS_H
#define KK_TESTS_DRAWS_H

#include "support/slow.h"

/* Not all of them. */
static inline bool few_draws(void) { return slow() || !getenv("KK_ALL_DRAWS"); }

/* One draw in so many is taken: all, one in `few`, or one in `fewest`. */
static inline int one_in(int few, int fewest) {
    if (slow()) return fewest;
    return few_draws() ? few : 1;
}

#endif
