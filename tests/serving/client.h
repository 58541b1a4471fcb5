/* client.h - a small HTTP/1.1 client for measuring `kakeya serve`: many requests at once in one
 * thread, each over a connection of its own.
 *
 * It is to take little of the cores that the server needs.  So it looks at the sockets at most once
 * a millisecond (times are that exact), searches events for the few members it wants, and parses no
 * JSON. */
#ifndef KK_SERVING_CLIENT_H
#define KK_SERVING_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that grow; `text` ends with a 0 behind its `len` bytes. */
typedef struct {
    char *text;
    size_t len, cap;
} growing;

void growing_add(growing *g, const void *bytes, size_t n);
void growing_printf(growing *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void growing_free(growing *g);

typedef enum { CLIENT_IDLE, CLIENT_BUSY, CLIENT_DONE } client_state;

/* A request and what came of it.  Times are those of kk_now(), 0: it did not happen. */
typedef struct {
    client_state state;
    bool stalled;  /* set by the caller: nothing is read, as by a client that is too slow */
    bool logprobs; /* set by the caller: events are parsed for log-probabilities */
    int fd;
    int receive; /* set by the caller: bytes of the socket's receive buffer; 0: the system's */

    int status; /* of the response; 0: none came */
    bool whole; /* the response came to its own end, and a stream to its [DONE] */
    double sent, first, last, ended;    /* first and last: of events with text */
    int32_t events;                     /* with text */
    int64_t prompt, completion, cached; /* tokens, by its usage; -1: it had none */
    growing said;                       /* the text of a stream, still escaped as in JSON */
    growing body;                       /* the body of a response that is no stream */
    uint64_t logprob_hash;              /* of the float bits of chosen tokens' log-probabilities */

    /* How far the response was read. */
    growing raw;
    size_t parsed; /* bytes of raw that were understood */
    int64_t left;  /* of the body, or of a chunk */
    bool headed, stream, chunked, done_event;
} client;

/* Sends a request: a POST with a body, or a GET when there is none.  False: no connection. */
bool client_send(client *c, int port, const char *path, const char *body, size_t len);
/* The same with bytes that may be no HTTP at all. */
bool client_send_raw(client *c, int port, const void *bytes, size_t len);
/* Looks at all of them for at most `seconds`, until one is done.  How many are done then. */
size_t clients_wait(client *c, size_t n, double seconds);
/* Until all are done; false: the time was up. */
bool clients_finish(client *c, size_t n, double seconds);
/* Lets go of the connection and of what came; the caller's own members stay. */
void client_close(client *c);

/* GET or POST, and the answer as a whole; false: no answer with status 200. */
bool client_ask(int port, const char *path, const char *body, growing *out, double seconds);

#endif
