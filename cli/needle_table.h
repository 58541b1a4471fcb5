/* needle_table.h - what `kakeya eval needle` prints at its end. */
#ifndef KAKEYA_CLI_NEEDLE_TABLE_H
#define KAKEYA_CLI_NEEDLE_TABLE_H

#include "eval/tasks/needle.h"

/* Rungs of every arm; with several arms also what they cost and what they save; and, where some
 * needle was missed or depths is true, how many were found how deep. */
void needle_print(const kk_needle_result *r, bool depths);

#endif
