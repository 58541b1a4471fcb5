/* grpc_load.c - the server's side of grpc_entry.h: finds the module.  With serve_load.c it is the
 * only file of this folder that sees more of the library than kakeya.h: how modules load. */
#include "core/error.h"
#include "core/module.h"
#include "server/grpc/grpc_entry.h"

typedef const kk_grpc_api *(*module_fn)(const kk_grpc_build *caller);

kk_status kk_grpc_load(const kk_grpc_api **out, kk_err *err) {
    const kk_grpc_build build = KK_GRPC_BUILD;
    kk_module module;
    *out = NULL;
    if (!kk_module_is_there("grpc"))
        return kk_fail(err, KK_EDEVICE,
                       "there is no module libkakeya_grpc beside the program: it is built where "
                       "libgrpc++ is (Debian: libgrpc++-dev and protobuf-compiler-grpc)");
    KK_TRY(kk_module_load(&module, "grpc", "gRPC", err));
    module_fn table;
    *(void **)&table = module.entry;
    *out = table(&build);
    return *out ? KK_OK : kk_module_mismatch(&module, err);
}
