/* output.h - results on stdout as JSON, and complaints on stderr that say what to do next. */
#ifndef KAKEYA_CLI_OUTPUT_H
#define KAKEYA_CLI_OUTPUT_H

#include <jansson.h>

#include "kakeya.h"

/* Prints one object on one line and releases it; false without memory. */
bool output_json(json_t *object);
/* A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. */
json_t *output_text(const char *text, size_t len);
/* A number, or null when it is not finite. */
json_t *output_real(double x);
json_t *output_memory(const int64_t bytes[KK_MEM_CATEGORIES]); /* {category: bytes} */

/* What was typed, for a report: start and the arguments, quoted where a shell would split them.
 * Released with free; NULL without memory. */
char *output_command(const char *start, int argc, char **argv);

/* "kakeya: WHAT", options of the library in it as flags (flags.h), and, on a line of its own, what
 * to do about it; returns EXIT_FAILED.  next may be NULL. */
int output_failed(const char *what, const char *next);
/* The same, the advice chosen by the kind of failure; after a signal it says nothing and
 * returns its exit code. */
int output_error(const kk_err *err);

#endif
