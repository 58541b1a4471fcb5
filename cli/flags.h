/* flags.h - the library names options as its header does, in backquotes: "raise `ctx`".  Who types
 * commands reads "raise -c". */
#ifndef KAKEYA_CLI_FLAGS_H
#define KAKEYA_CLI_FLAGS_H

typedef struct {
    char text[512];
} flags_message;

/* The message with every option that a flag sets written as that flag; other text is left as it
 * is. */
flags_message flags_for(const char *message);

#endif
