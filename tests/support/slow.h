/* slow.h - whether a row costs many times as much as usual, so that a test may look at fewer. */
#ifndef KK_TESTS_SLOW_H
#define KK_TESTS_SLOW_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
#define SLOW_BUILD 1
#endif

static inline bool slow(void) {
#ifdef SLOW_BUILD
    return true;
#else
    const char *preload = getenv("LD_PRELOAD"); /* valgrind puts its own parts there */
    return preload && strstr(preload, "vgpreload");
#endif
}

#endif
