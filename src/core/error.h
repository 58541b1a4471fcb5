/* error.h - how a failure travels.  The message is written once, where the fault is found, with
 * the value that was wrong; callers pass it up unchanged.  It names options as kakeya.h does, in
 * backquotes ("raise `ctx`"), never the flags of a program. */
#ifndef KK_CORE_ERROR_H
#define KK_CORE_ERROR_H

#include "kakeya.h"

/* Fills *err (may be NULL) and returns code. */
kk_status kk_fail(kk_err *err, kk_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Return early with whatever failed below.  Only where nothing is left to free. */
#define KK_TRY(call)                                                                               \
    do {                                                                                           \
        kk_status st_ = (call);                                                                    \
        if (st_ != KK_OK) return st_;                                                              \
    } while (0)

#endif
