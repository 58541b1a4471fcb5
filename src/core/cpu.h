/* cpu.h - what this processor can do, asked once per engine. */
#ifndef KK_CORE_CPU_H
#define KK_CORE_CPU_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    bool avx2;   /* with FMA and F16C */
    bool avx512; /* F, BW, VL, DQ */
    bool avx512vnni;
    bool neon_dot; /* ARMv8.2 dot product */
} kk_cpu;

kk_cpu kk_cpu_detect(void);
/* The features as words, for people. */
void kk_cpu_describe(char *out, size_t cap);
void kk_cpu_name(char *out, size_t cap);

#endif
