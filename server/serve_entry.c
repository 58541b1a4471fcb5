/* serve_entry.c - the one symbol that libkakeya_serve shows. */
#include <string.h>

#include "server/serve_entry.h"
#include "server/server.h"

static const kk_serve_api api = {.run = server_run};

const kk_serve_api *kk_serve_module(const kk_serve_build *caller) {
    const kk_serve_build own = KK_SERVE_BUILD;
    const bool same = strcmp(caller->version, own.version) == 0 && caller->api == own.api &&
                      caller->opts == own.opts && caller->err == own.err;
    return same ? &api : NULL;
}
