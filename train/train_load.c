/* train_load.c - the program's side of entry.h; the only file of this folder that is linked into
 * the program. */
#include "core/alloc.h"
#include "core/module.h"
#include "core/threads.h"
#include "train/entry.h"
#include "train/linalg.h"

typedef const kk_train_api *(*module_fn)(const kk_train_build *caller);

/* OpenBLAS starts a thread per core when it is loaded; when one of them gets no buffer the process
 * never ends.  Their stacks, the library and what it is linked with come to that, and the
 * caller's own buffer must still fit. */
static kk_status check_address_space(kk_err *err) {
    const size_t stack = (size_t)8 << 20, libraries = (size_t)64 << 20;
    const size_t threads = (size_t)kk_cores_available();
    const size_t bytes = threads * (KK_LINALG_BUFFER + stack) + libraries + KK_LINALG_BUFFER;
    void *space = kk_mem_reserve(bytes);
    if (!space)
        return kk_fail(err, KK_ENOMEM,
                       "training needs %zu MB of address space for its matrix products, and the "
                       "system gives less",
                       bytes >> 20);
    kk_mem_unreserve(space, bytes);
    return KK_OK;
}

kk_status kk_train_load(const kk_train_api **out, kk_err *err) {
    const kk_train_build build = KK_TRAIN_BUILD;
    kk_module module;
    *out = NULL;
    KK_TRY(check_address_space(err));
    KK_TRY(kk_module_load(&module, "train", "training", err));
    module_fn table;
    *(void **)&table = module.entry;
    *out = table(&build);
    return *out ? KK_OK : kk_module_mismatch(&module, err);
}
