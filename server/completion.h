/* completion.h - runs a request of /v1/chat/completions or /v1/completions from its body to the end
 * of its answer. */
#ifndef KK_SERVER_COMPLETION_H
#define KK_SERVER_COMPLETION_H

#include "server/exchange.h"

void completion_run(exchange *x); /* in a worker */

#endif
