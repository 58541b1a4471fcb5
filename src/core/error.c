/* error.c - writes failures; see error.h. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>

kk_status kk_fail(kk_err *err, kk_status code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
    }
    return code;
}

const char *kk_status_name(kk_status st) {
    switch (st) {
    case KK_OK: return "ok";
    case KK_EINVAL: return "invalid argument";
    case KK_EIO: return "input/output error";
    case KK_EFORMAT: return "bad file format";
    case KK_ENOMEM: return "out of memory";
    case KK_ECONTEXT: return "context full";
    case KK_EDEVICE: return "device error";
    case KK_ESTOPPED: return "stopped";
    case KK_EEXIST: return "file exists";
    case KK_EBUSY: return "file is being written";
    case KK_ENUMERIC: return "values that are not finite";
    }
    return "unknown status";
}
