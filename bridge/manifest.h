/* manifest.h - what a request says, read and checked.
 *
 * A manifest is a JSON object of at most KK_MANIFEST_BYTES.  Version 1 is that of the original;
 * version 2 adds `runner` and `created`.  Everything in it is checked before anything of it is
 * used, and what is not known is refused. */
#ifndef KK_BRIDGE_MANIFEST_H
#define KK_BRIDGE_MANIFEST_H

#include <jansson.h>

#include "bridge/presets.h"

enum {
    KK_MANIFEST_VERSION = 2,
    KK_MANIFEST_BYTES = 16384,
    KK_MANIFEST_NAME = 64, /* most characters of a name or a nonce */
    KK_MANIFEST_REF = 200,
};

typedef struct {
    int version;
    const kk_preset *preset;
    int64_t value[KK_PRESET_PARAMS];
    char ref[KK_MANIFEST_REF + 1];           /* the commit the request is about */
    char requested_by[KK_MANIFEST_NAME + 1]; /* who signs */
    char nonce[KK_MANIFEST_NAME + 1];
    char runner[KK_MANIFEST_NAME + 1]; /* "": any */
    int64_t created; /* seconds since 1970 by the clock of who asks; nothing depends on it */
} kk_manifest;

/* KK_EINVAL with a sentence that names what is wrong. */
kk_status kk_manifest_parse(kk_manifest *m, const char *text, size_t len, kk_err *err);
/* As JSON with a newline behind it, of version 2. */
kk_status kk_manifest_write(const kk_manifest *m, kk_bytes *to, kk_err *err);
/* {name: value} of every parameter. */
json_t *kk_manifest_params(const kk_manifest *m);

/* "name=value" as a user types it. */
kk_status kk_manifest_set(kk_manifest *m, const char *pair, kk_err *err);
/* The defaults of the preset. */
void kk_manifest_defaults(kk_manifest *m, const kk_preset *p);
/* The preset of that name, or why there is none. */
kk_status kk_manifest_preset(const char *name, const kk_preset **out, kk_err *err);

/* Names of people and of runners: letters, digits and ._@+- inside. */
bool kk_manifest_name_ok(const char *name);
bool kk_manifest_nonce_ok(const char *nonce);
bool kk_manifest_ref_ok(const char *ref);
/* Letters, digits, '.', '_' and '-', up to 40; "" is fine, ".." is not. */
bool kk_manifest_suffix_ok(const char *suffix);

/* prefix + preset + "-" + nonce + suffix; false when it does not fit. */
bool kk_manifest_branch(const kk_manifest *m, const char *prefix, const char *suffix, char *out,
                        size_t cap);
/* Whether a branch is the one that the manifest belongs on, with any suffix. */
bool kk_manifest_on_branch(const kk_manifest *m, const char *prefix, const char *branch);

#endif
