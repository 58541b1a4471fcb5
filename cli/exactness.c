/* exactness.c - see exactness.h. */
#include "cli/exactness.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/state.h"

bool exactness_path(const char *device, char *out, size_t cap) {
    char name[64];
    snprintf(name, sizeof name, "exact-%.15s.json", device);
    return state_path(name, out, cap);
}

/* Written beside its name and renamed, so that a reader finds all of it or none. */
static bool write_whole(const char *path, const json_t *what) {
    char beside[4200];
    const int n = snprintf(beside, sizeof beside, "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof beside || json_dump_file(what, beside, JSON_INDENT(1)) != 0)
        return false;
    return rename(beside, path) == 0;
}

bool exactness_keep(const char *path, const char *device, const kk_device_exactness *e) {
    char parents[4200];
    snprintf(parents, sizeof parents, "%s", path);
    state_make_parents(parents);
    kk_machine machine;
    kk_machine_info(&machine);
    json_t *all = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i}", "device", device, "isa", e->isa,
                            "cpu", machine.name, "exact_rows", e->exact_rows, "exact_packed_rows",
                            e->exact_packed_rows, "exact_page_rows", e->exact_page_rows);
    const bool kept = all && write_whole(path, all);
    json_decref(all);
    if (!kept) output_failed("the measurement could not be written", path);
    return kept;
}

/* The device's name for itself, with the chip and the version. */
static bool name_of(const char *device, kk_device_state *out) {
    for (size_t i = 0; i < KK_DEVICE_KINDS; i++) {
        if (strcmp(kk_device_kind_name(i), device) != 0) continue;
        kk_device_probe(i, out);
        return out->usable;
    }
    return false;
}

static bool rows_in(const json_t *all, const char *name, int32_t *out) {
    const json_int_t rows = json_integer_value(json_object_get(all, name));
    *out = rows >= 1 && rows <= 32 ? (int32_t)rows : 0;
    return *out > 0;
}

bool exactness_known(const char *device, kk_device_exactness *out) {
    char path[4096];
    kk_device_state now;
    kk_machine machine;
    kk_machine_info(&machine);
    *out = (kk_device_exactness){0};
    if (!exactness_path(device, path, sizeof path)) return false;
    json_t *all = json_load_file(path, 0, NULL);
    const char *isa = json_string_value(json_object_get(all, "isa"));
    const char *cpu = json_string_value(json_object_get(all, "cpu"));
    out->measured = isa && cpu && rows_in(all, "exact_rows", &out->exact_rows) &&
                    rows_in(all, "exact_packed_rows", &out->exact_packed_rows) &&
                    name_of(device, &now) && strcmp(isa, now.isa) == 0 &&
                    strcmp(cpu, machine.name) == 0;
    /* Earlier builds did not write it. */
    (void)rows_in(all, "exact_page_rows", &out->exact_page_rows);
    json_decref(all);
    return out->measured;
}

exactness_words exactness_say(const kk_device_info *d) {
    exactness_words w;
    if (d->exact_rows == 0)
        snprintf(w.text, sizeof w.text, "any number of rows");
    else if (d->exact_rows < 0)
        snprintf(w.text, sizeof w.text, "not proven bit-exact on this device");
    else
        snprintf(w.text, sizeof w.text, "up to %d rows of a round%s", d->exact_rows,
                 strcmp(d->exact_by, "measured") == 0 ? " (measured)"
                 : strcmp(d->exact_by, "asked") == 0  ? " (asked for, not measured)"
                                                      : "");
    return w;
}
