/* chat_page.h - the page at `/`: a chat in the browser, over the sessions API. */
#ifndef KK_SERVER_CHAT_PAGE_H
#define KK_SERVER_CHAT_PAGE_H

#include "server/exchange.h"

void chat_page(exchange *x, const char *rest);

#endif
