/* lines.h - messages typed at a prompt, with editing and history, or read from a pipe. */
#ifndef KAKEYA_CLI_LINES_H
#define KAKEYA_CLI_LINES_H

#include <stdbool.h>

typedef struct lines lines;

typedef enum {
    LINES_TEXT,        /* *text is a message, released with free */
    LINES_INTERRUPTED, /* a signal arrived; what was typed is dropped */
    LINES_END,
} lines_event;

/* At a terminal: an editor, with the history of earlier chats.  Otherwise: plain lines.  NULL
 * without memory. */
lines *lines_open(void);
void lines_close(lines *l); /* saves the history; NULL is fine */
bool lines_interactive(const lines *l);

/* One message.  A line that ends in a backslash goes on in the next; three quotes begin a block
 * of lines that ends with three quotes. */
lines_event lines_read(lines *l, char **text);

#endif
