/* weigh.c - weights of logits for any processor, and the choice among the loops there are.
 *
 * kk_exp is made of fused multiply-adds.  ARM always has them; on x86 they came with AVX2, and
 * without it the C library computes each: right, and slow. */
#define KK_WEIGHER kk_weigher_plain
#define KK_WEIGHER_NAME "plain"
#include "backend/weigh_body.h"

#include "core/cpu.h"

#if defined(__x86_64__)
extern const kk_weigher kk_weigher_avx2, kk_weigher_avx512;
#endif

const kk_weigher *kk_weigher_named(const char *name) {
    const kk_cpu cpu = kk_cpu_detect();
    const struct {
        const kk_weigher *w;
        bool usable;
    } all[] = {
    /* best first */
#if defined(__x86_64__)
        {&kk_weigher_avx512, cpu.avx512 && cpu.avx512vnni},
        {&kk_weigher_avx2, cpu.avx2},
#endif
        {&kk_weigher_plain, true},
    };
    (void)cpu; /* elsewhere nothing is asked of it */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].usable && (!name || strcmp(name, all[i].w->name) == 0)) return all[i].w;
    return NULL;
}
