/* kernels.c - chooses the kernels for this processor. */
#include "backend/cpu/kernels.h"

#include "core/cpu.h"

const kk_kernels *kk_kernels_named(const char *name) {
    const kk_cpu cpu = kk_cpu_detect();
    const struct {
        const kk_kernels *k;
        bool usable;
    } all[] = {
    /* best first */
#if defined(__x86_64__)
        {&kk_kernels_avx512, cpu.avx512 && cpu.avx512vnni},
        {&kk_kernels_avx2, cpu.avx2},
#elif defined(__aarch64__)
        {&kk_kernels_neon, cpu.neon_dot},
#endif
        {&kk_kernels_reference, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].usable && (!name || strcmp(name, all[i].k->name) == 0)) return all[i].k;
    return NULL;
}
