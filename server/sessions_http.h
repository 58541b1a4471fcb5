/* sessions_http.h - sessions over HTTP: the service of service.h as JSON and events.  rest is the
 * path behind /v1/sessions/: an id, and perhaps /append, /generate, /fork or /tokens. */
#ifndef KK_SERVER_SESSIONS_HTTP_H
#define KK_SERVER_SESSIONS_HTTP_H

#include "server/exchange.h"

void sessions_post(exchange *x, const char *rest); /* creates one */
void sessions_get(exchange *x, const char *rest);  /* lists them */
void sessions_get_one(exchange *x, const char *rest);
void sessions_post_one(exchange *x, const char *rest);
void sessions_delete_one(exchange *x, const char *rest);

#endif
