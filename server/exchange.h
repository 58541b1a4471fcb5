/* exchange.h - one HTTP request and its response, between the connection and a worker.
 *
 * The connection's thread fills it; a worker answers it, either with one body or as a stream of
 * server-sent events.  While there is nothing to send the connection is suspended, so that it costs
 * no thread; libmicrohttpd does not watch the socket of a suspended connection, so a worker asks
 * exchange_left between tokens.
 *
 * Both sides hold a reference.  Invariants, under `lock`:
 *   (1) connection is NULL once it has ended, and nobody touches it or its socket from then on;
 *   (2) suspended is true only between MHD_suspend_connection and MHD_resume_connection;
 *   (3) once `gone` is set, what is written is dropped;
 *   (4) while `paced` is set the pace holds a reference, and tells the connection soon. */
#ifndef KK_SERVER_EXCHANGE_H
#define KK_SERVER_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "server/fault.h"
#include "server/outbox.h"
#include "server/text.h"

struct MHD_Connection;
struct server;

enum {
    EXCHANGE_ID = 129, /* bytes of a request's id, with its end */
    EXCHANGE_EAGER =
        2, /* parts of a stream that are sent at once: who speaks, and the first text */
};

/* Tokens of a request, for the log; known is false where none were counted. */
typedef struct {
    bool known;
    int64_t prompt, cached, completion, accepted;
} exchange_usage;

typedef enum { EXCHANGE_OPEN, EXCHANGE_BODY, EXCHANGE_STREAM } exchange_answer;

typedef struct exchange {
    struct server *server;
    atomic_int refs;
    double started;            /* text_now() of its first byte */
    const struct route *route; /* NULL: it is refused */
    char rest[256];            /* of the path, behind the route's own */
    char id[EXCHANGE_ID];      /* the client's X-Request-Id, or one that was drawn */
    const char *type;          /* of the body of the answer; NULL: JSON */
    const char *policy;        /* its Content-Security-Policy; NULL: that of data */
    textbuf body;              /* of the request */
    fault refused;             /* found before the body was read; status 0: nothing */
    bool dispatched;           /* handed to a worker, or answered */
    bool last;                 /* its connection ends with the answer */
    size_t dropped, held;      /* bytes of the body that were not kept, and that were */
    struct exchange *next;     /* in the queue of workers */
    struct workers *runs_in;   /* that count it among those they run, until it is answered */
    struct worker_slot *slot;  /* where what it is at is written down, as long; NULL: nowhere */

    pthread_mutex_t lock;
    struct MHD_Connection *connection;
    int fd;
    bool suspended, gone, ended, slow, paced;
    struct exchange *paced_next; /* of those that the pace will tell */
    int eager;                   /* parts that went out at once */
    exchange_answer answer;
    int status;
    int retry_s;
    textbuf reply;     /* of EXCHANGE_BODY */
    outbox out;        /* of EXCHANGE_STREAM */
    double last_write; /* text_now() of the last byte that went into the stream */
    exchange_usage usage;
    textbuf said; /* of the answer, where it is logged */
} exchange;

/* Held once, by the connection; NULL without memory. */
exchange *exchange_new(struct server *s, struct MHD_Connection *c, int fd);
void exchange_hold(exchange *x);
void exchange_release(exchange *x);

/* ---- the worker's side ------------------------------------------------------------------- */

/* Whether nobody is left to answer: the client closed its side, or reads too slowly. */
bool exchange_left(exchange *x);
/* Answers with one body, which is taken over. */
void exchange_reply(exchange *x, int status, textbuf *body);
void exchange_reply_json(exchange *x, int status, json_t *body); /* which is released */
void exchange_refuse(exchange *x, const fault *f);
/* Starts a stream, adds to it, ends it.  False from add: the client has left, or is too far
 * behind. */
void exchange_stream(exchange *x);
bool exchange_add(exchange *x, const char *bytes, size_t n);
void exchange_end(exchange *x);
/* From the pace: there is something to send. */
void exchange_tell(exchange *x);
void exchange_count(exchange *x, const exchange_usage *usage);
/* Sends a comment when nothing else went out for `after` seconds. */
bool exchange_ping(exchange *x, double after);

/* ---- the connection's side --------------------------------------------------------------- */

void exchange_forget_body(exchange *x);
/* Whether the other side of a socket has shut it down. */
bool exchange_hung_up(int fd);

/* Up to max bytes of the stream; 0: the connection was suspended; -1: it has ended; -2: its client
 * lagged too far behind. */
long exchange_read(exchange *x, char *to, size_t max);
/* The connection is over. */
void exchange_closed(exchange *x);

#endif
