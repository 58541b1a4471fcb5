/* ok.h - cmocka, and a call that must succeed or fail the test with the library's own sentence. */
#ifndef KK_TESTS_OK_H
#define KK_TESTS_OK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"

/* call passes `why` as its kk_err. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        kk_err err_ = {0};                                                                         \
        kk_err *why = &err_;                                                                       \
        if ((call) != KK_OK) fail_msg("%s: %s", #call, err_.msg);                                  \
    } while (0)

#endif
