/* module.h - parts that are loaded when they are asked for: shared objects named libkakeya_NAME, so
 * that the program and the library do not depend on what only these parts need (a GPU's driver,
 * BLAS). */
#ifndef KK_CORE_MODULE_H
#define KK_CORE_MODULE_H

#include <stdbool.h>

#include "core/error.h"

typedef struct {
    void *entry; /* the function kk_NAME_module; its type is the caller's to know */
    char path[4352];
} kk_module;

/* Loads libkakeya_NAME and looks up kk_NAME_module in it.  A module stays loaded: what its entry
 * hands out is used without an end.  `user` begins the message of a failure, as in "training". */
kk_status kk_module_load(kk_module *out, const char *name, const char *user, kk_err *err);
/* Whether a file of that name lies where modules do. */
bool kk_module_is_there(const char *name);
/* The failure when an entry says that its structures are not the caller's. */
kk_status kk_module_mismatch(const kk_module *m, kk_err *err);

#endif
