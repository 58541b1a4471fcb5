/* lines.h - messages typed at a prompt, with editing, completion and history, or read from a
 * pipe. */
#ifndef KAKEYA_CLI_LINES_H
#define KAKEYA_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct lines lines;

typedef enum {
    LINES_TEXT,        /* *text is a message, released with free */
    LINES_INTERRUPTED, /* a signal arrived; what was typed is dropped */
    LINES_END,
} lines_event;

/* What Tab offers: the i-th text that could stand instead of the line's first n bytes, up to the
 * cursor; NULL after the last.  Released with free. */
typedef char *(*lines_complete)(void *user, const char *line, size_t n, int i);

/* At a terminal: an editor, with the history of earlier chats.  Otherwise: plain lines.  NULL
 * without memory. */
lines *lines_open(lines_complete complete, void *user);
void lines_close(lines *l); /* saves the history; NULL is fine */
bool lines_interactive(const lines *l);

/* One message, asked for with the prompt and a space.  A line that ends in a backslash goes on in
 * the next; three quotes begin a block of lines that ends with three quotes; what is pasted at a
 * terminal is taken as it is, line breaks included.  The history has a message as one entry. */
lines_event lines_read(lines *l, const char *prompt, char **text);

#endif
