/* module.h - finds and opens the module of a device. */
#ifndef KK_BACKEND_MODULE_H
#define KK_BACKEND_MODULE_H

#include <stddef.h>

/* Opens libkakeya_NAME; path says where it was, or would have been.  NULL: it does not open, and
 * dlerror says why. */
void *kk_module_open(const char *name, char *path, size_t cap);

#endif
