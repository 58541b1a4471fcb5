/* process.h - another program, run with an argv and never through a shell.
 *
 * The program is the leader of a process group of its own.  However it ends, the whole group has
 * ended when kk_process_run returns: descendants that it left behind are killed.  What it prints is
 * captured up to a limit; time, output and disk are limits that end it. */
#ifndef KK_BRIDGE_PROCESS_H
#define KK_BRIDGE_PROCESS_H

#include "bridge/words.h"

typedef enum {
    KK_ENDED_EXIT,    /* by itself: code is its exit code */
    KK_ENDED_SIGNAL,  /* by a signal that we did not send: code is the signal */
    KK_ENDED_TIMEOUT, /* these four: killed */
    KK_ENDED_OUTPUT,
    KK_ENDED_DISK,
    KK_ENDED_STOPPED,
} kk_process_end;

/* Whether to stop: asked several times a second. */
typedef struct {
    bool (*asked)(void *user); /* NULL: never */
    void *user;
} kk_stop;

typedef struct {
    const char *const *argv; /* ends with NULL; argv[0] is looked up in PATH */
    const char *const *env;  /* NAME=VALUE, ends with NULL; NULL: that of this process */
    const char *folder;      /* where it runs; NULL: here */
    const void *input;       /* its standard input, input_len bytes; NULL: none */
    size_t input_len;
    bool joined;        /* standard error goes where standard output goes */
    bool guarded;       /* it ends too when this process is killed */
    double timeout_s;   /* 0: none */
    size_t most_output; /* bytes of both; 0: none */
    const char *disk;   /* a folder that may hold most_disk bytes; NULL: not looked at */
    int64_t most_disk;  /* 0: none.  No single file can be larger either */
    kk_stop stop;
} kk_process;

typedef struct {
    kk_process_end end;
    int code;
    double seconds;
    kk_bytes out, err; /* err is empty where they are joined */
} kk_process_result;

/* Fails when the program cannot be started (KK_EIO, naming it) or for want of memory.  *r is to be
 * released also then. */
kk_status kk_process_run(const kk_process *p, kk_process_result *r, kk_err *err);
void kk_process_release(kk_process_result *r);
/* "exit 1", "timeout", "signal 9": what is said of an end. */
typedef struct {
    char text[32];
} kk_process_text;
kk_process_text kk_process_describe(const kk_process_result *r);
/* The last line of a text that is not empty, without what a terminal would obey, cut to fit. */
void kk_process_last_line(const kk_bytes *b, char *out, size_t cap);
/* The last line that begins with this word, or the last. */
void kk_process_complaint(const kk_bytes *b, const char *word, char *out, size_t cap);

#endif
