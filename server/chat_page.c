/* chat_page.c - see chat_page.h.
 *
 * The page is one file without outside requests, joined by the build from server/page.  Its policy
 * names its script and its style by their hashes, and forbids the browser to make markup of
 * strings: an answer of the model cannot run anything, whatever the script forgets. */
#include "server/chat_page.h"

#include "chat_html.h" /* written by the build: the page, and hashes of its parts */

static const char policy[] =
    "default-src 'none'; script-src '" CHAT_SCRIPT_HASH "'; style-src '" CHAT_STYLE_HASH
    "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

void chat_page(exchange *x, const char *rest) {
    textbuf page = {0};
    (void)rest;
    text_add(&page, (const char *)chat_html, sizeof chat_html - 1);
    x->type = "text/html; charset=utf-8";
    x->policy = policy;
    exchange_reply(x, page.failed ? 500 : 200, &page);
}
