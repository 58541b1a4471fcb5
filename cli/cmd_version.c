/* cmd_version.c - `kakeya version`: what was built, from what, by what. */
#include <stdio.h>

#include "cli/verbs.h"
#include "eval/measure/devices.h"
#include "kakeya.h"

static int run(int argc, char **argv) {
    int code;
    if (!options_parse(&verb_version, argc, argv, NULL, NULL, &code)) return code;
    printf("kakeya %s\n", kk_version());
#if defined(__clang__)
    printf("compiler  clang %d.%d.%d\n", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
    printf("compiler  gcc %d.%d.%d\n", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
    printf("backends ");
    for (size_t i = 0; i < KK_DEVICE_KINDS; i++)
        if (kk_device_built(kk_device_kind_name(i))) printf(" %s", kk_device_kind_name(i));
    printf("\n");
    return EXIT_DONE;
}

const verb verb_version = {
    .name = "version",
    .summary = "print the version, the commit and what was built",
    .usage = "",
    .about = "Prints the version and the commit, the compiler, and the backends of this build.",
    .examples = "  kakeya version\n",
    .run = run,
};
