/* http.h - the connections of a server, in libmicrohttpd's thread: reads requests within their
 * limits, hands them to workers, and sends what these answer. */
#ifndef KK_SERVER_HTTP_H
#define KK_SERVER_HTTP_H

#include "kakeya.h"

struct server;
typedef struct http http;

/* Listens and answers from now on, with 503 until the model is loaded.  *port: the one it has. */
kk_status http_start(http **out, struct server *s, int *port, kk_err *err);
/* Closes connections that take too long to send the head of a request; to be called about once a
 * second. */
void http_sweep(http *h);
/* Reads the certificate and its key again, for connections that come from now on; after a failure
 * those that were there stay. */
kk_status http_renew(http *h, kk_err *err);
void http_stop_listening(http *h);
/* Waits until every answer was sent, or so many seconds. */
void http_flush(http *h, double seconds);
void http_stop(http *h); /* NULL is fine */

#endif
