/* serve_load.c - the program's side of serve_entry.h; the only file of this folder that is linked
 * into the program, and the only one that sees more of the library than kakeya.h: how modules
 * load. */
#include "core/module.h"
#include "server/serve_entry.h"

typedef const kk_serve_api *(*module_fn)(const kk_serve_build *caller);

kk_status kk_serve_load(const kk_serve_api **out, kk_err *err) {
    const kk_serve_build build = KK_SERVE_BUILD;
    kk_module module;
    *out = NULL;
    KK_TRY(kk_module_load(&module, "serve", "serving", err));
    module_fn table;
    *(void **)&table = module.entry;
    *out = table(&build);
    return *out ? KK_OK : kk_module_mismatch(&module, err);
}
