/* log.h - lines for whoever runs the server: words, or with `log_json` one JSON object each.
 *
 * Nothing of what clients say, or the model answers, is in them, unless `log_content` asks for it;
 * nor are ids of sessions, which whoever knows them may use. */
#ifndef KK_SERVER_LOG_H
#define KK_SERVER_LOG_H

#include "server/exchange.h"

struct server;

enum { LOG_CONTENT = 1 << 20 }; /* bytes of one body that are logged, at most */

/* One line: what happened, and what somebody should look at. */
void server_say(const struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void server_warn(const struct server *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A request is over, where `verbose` asks for these.  client: its address, "" where it is not
 * known. */
void log_request(exchange *x, const char *client);

#endif
