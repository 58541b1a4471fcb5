/* config_file.h - options of a verb in a file: `name = value` on each line, the names those of the
 * option table.
 *
 * Empty lines and lines that begin with # are passed over.  A value reaches to the end of its line,
 * without the blanks around it; in double quotes it keeps them.  A flag takes yes or no, true or
 * false, on or off.  What is on the command line comes later and wins. */
#ifndef KAKEYA_CLI_CONFIG_FILE_H
#define KAKEYA_CLI_CONFIG_FILE_H

#include "cli/options.h"

enum { CONFIG_FILE_LONGEST = 1 << 20 }; /* bytes of a file */

typedef struct {
    int line; /* counted from 1; 0: it is not about a line */
    option_text why;
} config_fault;

/* Sets the options of v that the text names, in args, which borrows from the text from then on:
 * n bytes and a NUL behind them, which are written to.  An option may stand in it once.  False:
 * *fault says what is wrong, and some options may be set. */
bool config_file_apply(const verb *v, char *text, size_t n, void *args, config_fault *fault);

/* The same with a file.  *text is what args borrows, to be released with free when args is no
 * longer used.  False: it was said on stderr, with the file and the line, and *code is set. */
bool config_file_read(const verb *v, const char *path, void *args, char **text, int *code);

/* The value of --config in a command line, which is read before the options that win over it; NULL:
 * there is none. */
const char *config_file_asked(int argc, char **argv);

#endif
