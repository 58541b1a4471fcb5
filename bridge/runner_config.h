/* runner_config.h - a runner's own file: who may ask, what for, and where things lie on the
 * machine.
 *
 * docs/bridge.md has the schema.  Paths are absolute, and come from nowhere else. */
#ifndef KK_BRIDGE_RUNNER_CONFIG_H
#define KK_BRIDGE_RUNNER_CONFIG_H

#include <jansson.h>

#include "bridge/presets.h"

#define KK_BRIDGE_PREFIX "kakeya-bridge/"

enum { KK_RUNNER_CASES = 24, KK_RUNNER_CONFIG_BYTES = 65536 };

typedef struct {
    json_t *root; /* what the pointers below point into */
    const char *name, *remote, *prefix, *program, *allowed_signers; /* "": not given */
    const json_t *unsigned_names, *presets, *environment; /* lists of strings; NULL: not given */
    kk_preset_paths paths;
    const char *cases[KK_RUNNER_CASES];
    double most_minutes;   /* a preset's own limit where that is less */
    double unsent_minutes; /* that a result which the remote does not take is sent again */
    int64_t output_bytes, disk_bytes, result_bytes;
} kk_runner_config;

/* KK_EINVAL with a sentence that names the member.  *c is released also after a failure. */
kk_status kk_runner_config_parse(kk_runner_config *c, const char *text, size_t len, kk_err *err);
kk_status kk_runner_config_read(kk_runner_config *c, const char *path, kk_err *err);
void kk_runner_config_release(kk_runner_config *c);
/* A configuration that names nothing: all presets, nobody who may ask. */
void kk_runner_config_empty(kk_runner_config *c);

bool kk_runner_config_unsigned(const kk_runner_config *c, const char *name); /* allowed unsigned */
bool kk_runner_config_preset(const kk_runner_config *c, const char *name);
/* KK_EINVAL when one of its paths is not there, or is a pointer of git LFS. */
kk_status kk_runner_config_check_paths(const kk_runner_config *c, kk_err *err);

#endif
