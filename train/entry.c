/* entry.c - the one symbol that libkakeya_train shows. */
#include "train/entry.h"

#include <string.h>

static const kk_train_api api = {.run = kk_train_run};

const kk_train_api *kk_train_module(const kk_train_build *caller) {
    const kk_train_build own = KK_TRAIN_BUILD;
    const bool same = strcmp(caller->version, own.version) == 0 && caller->api == own.api &&
                      caller->opts == own.opts && caller->result == own.result &&
                      caller->event == own.event && caller->err == own.err;
    return same ? &api : NULL;
}
