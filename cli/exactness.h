/* exactness.h - what `kakeya doctor --device` measured of a device, kept for later runs: how many
 * rows of a round have the bits they have alone.
 *
 * It holds for one chip and one version of the library behind it: both are in the device's own name
 * for itself, and a measurement of another is not used. */
#ifndef KAKEYA_CLI_EXACTNESS_H
#define KAKEYA_CLI_EXACTNESS_H

#include "eval/measure/devices.h"

/* Where it is kept: $XDG_STATE_HOME/kakeya/exact-NAME.json; false when there is no such place. */
bool exactness_path(const char *device, char *out, size_t cap);
/* Keeps it at `path`; false after saying why not. */
bool exactness_keep(const char *path, const char *device, const kk_device_exactness *e);
/* What was measured of this device as it is now; false: nothing. */
bool exactness_known(const char *device, kk_device_exactness *out);
/* What results may be said to be: "any number of rows", "up to N rows of a round (measured)" or
 * "not proven bit-exact on this device". */
typedef struct {
    char text[64];
} exactness_words;
exactness_words exactness_say(const kk_device_info *d);

#endif
