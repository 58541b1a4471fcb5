/* entry.h - training as the program sees it: a module, libkakeya_train, that is loaded when a user
 * trains.
 *
 * The module carries the trainer, a copy of the library and the evaluation helpers it uses, and is
 * linked with OpenBLAS; the program has neither.  What crosses between them are the structures of
 * trainer.h and kk_err, so both must come from one version of these headers. */
#ifndef KK_TRAIN_ENTRY_H
#define KK_TRAIN_ENTRY_H

#include "train/trainer.h"

typedef struct {
    kk_status (*run)(const kk_train_opts *opts, kk_train_result *out, kk_err *err);
} kk_train_api;

/* What the caller was compiled with. */
typedef struct {
    const char *version;                  /* KK_VERSION */
    size_t api, opts, result, event, err; /* bytes of the structures */
} kk_train_build;

#define KK_TRAIN_BUILD                                                                             \
    ((kk_train_build){.version = KK_VERSION,                                                       \
                      .api = sizeof(kk_train_api),                                                 \
                      .opts = sizeof(kk_train_opts),                                               \
                      .result = sizeof(kk_train_result),                                           \
                      .event = sizeof(kk_train_event),                                             \
                      .err = sizeof(kk_err)})

/* In the program: loads the module, which stays loaded. */
kk_status kk_train_load(const kk_train_api **out, kk_err *err);

/* In the module: NULL when it was compiled otherwise than the caller. */
KK_API const kk_train_api *kk_train_module(const kk_train_build *caller);

#endif
