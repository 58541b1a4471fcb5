/* state.h - where a user's own files of this program are kept between runs. */
#ifndef KAKEYA_CLI_STATE_H
#define KAKEYA_CLI_STATE_H

#include <stdbool.h>
#include <stddef.h>

/* $XDG_STATE_HOME/kakeya/NAME, by default below ~/.local/state; "" and false when there is no
 * such place. */
bool state_path(const char *name, char *out, size_t cap);
/* Makes every folder above path, for this user alone. */
void state_make_parents(char *path);

#endif
