/* fields.h - fields of a JSON object, each with its type, its default and its range.
 *
 * Absent and null mean the same everywhere.  What is wrong is said with the label of the file and
 * the name of the field. */
#ifndef KK_FORMAT_FIELDS_H
#define KK_FORMAT_FIELDS_H

#include <jansson.h>

#include "core/error.h"

typedef struct {
    const char *label;    /* what to call the file in messages */
    const json_t *object; /* NULL or no object: every field is absent */
} kk_fields;

enum { KK_FIELD_REQUIRED = INT32_MIN }; /* as a default: refused when absent */

const json_t *kk_field(kk_fields f, const char *key); /* NULL: absent */
/* The fields of an object inside; absent: none. */
kk_status kk_field_object(kk_fields f, const char *key, kk_fields *out, kk_err *err);
kk_status kk_field_int(kk_fields f, const char *key, int32_t fallback, int32_t *out, kk_err *err);
kk_status kk_field_float(kk_fields f, const char *key, double fallback, float *out, kk_err *err);
kk_status kk_field_bool(kk_fields f, const char *key, bool fallback, bool *out, kk_err *err);
/* Fields that must have one value where they are given at all. */
kk_status kk_field_only_word(kk_fields f, const char *key, const char *word, kk_err *err);
kk_status kk_field_only_bool(kk_fields f, const char *key, bool wanted, kk_err *err);

/* Whether a value read from wherever lies in low..high. */
kk_status kk_in_range(const char *label, const char *field, int64_t v, int64_t low, int64_t high,
                      kk_err *err);
kk_status kk_in_range_f(const char *label, const char *field, double v, double low, double high,
                        kk_err *err);

#endif
