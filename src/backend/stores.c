/* stores.c - which K/V formats a device has; a part of the program and of every device's module. */
#include "backend/backend.h"

#include "core/error.h"

kk_status kk_no_kv_format(const char *device, kk_kv_format f, kk_err *err) {
    const char *name = kk_kv_format_name(f);
    if (!name) return kk_fail(err, KK_EINVAL, "no K/V format has the number %d", (int)f);
    return kk_fail(err, KK_EINVAL, "the device %s has no K/V format '%s'", device, name);
}

kk_status kk_backend_stores(const kk_backend *b, kk_kv_format f, kk_err *err) {
    const bool has = kk_kv_format_get(f) && (!b->stores || b->stores(f));
    return has ? KK_OK : kk_no_kv_format(b->name, f, err);
}
