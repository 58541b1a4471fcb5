/* truncated.h - a model file that is shortened while it is in use ends the program with a sentence.
 *
 * Weights are read from mapped files, and a page behind a file's new end raises SIGBUS in whatever
 * thread reads it.  The library leaves signals alone; the program says what happened. */
#ifndef KAKEYA_CLI_TRUNCATED_H
#define KAKEYA_CLI_TRUNCATED_H

/* From now on, for the whole process. */
void truncated_watch(void);

#endif
