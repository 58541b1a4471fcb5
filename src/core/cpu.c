/* cpu.c - asks the processor and the system what instructions may be used.
 *
 * A feature counts only when the operating system also saves its registers; the compiler's
 * run-time library checks that on x86, and the kernel's hardware capability word says it on ARM.
 * The name people know a processor by is in /proc/cpuinfo; where there is none, the
 * architecture's name has to do. */
#define _GNU_SOURCE
#include "core/cpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

typedef struct {
    const char *word;
    bool present;
} feature;

enum { MAX_FEATURES = 12 };

/* Every feature worth telling, whether kernels use it or not. */
static int list_features(feature *f) {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    f[n++] = (feature){"avx2", __builtin_cpu_supports("avx2")};
    f[n++] = (feature){"fma", __builtin_cpu_supports("fma")};
    f[n++] = (feature){"avx512f", __builtin_cpu_supports("avx512f")};
    f[n++] = (feature){"avx512bw", __builtin_cpu_supports("avx512bw")};
    f[n++] = (feature){"avx512vl", __builtin_cpu_supports("avx512vl")};
    f[n++] = (feature){"avx512dq", __builtin_cpu_supports("avx512dq")};
    f[n++] = (feature){"avx512vnni", __builtin_cpu_supports("avx512vnni")};
    f[n++] = (feature){"avx512bf16", __builtin_cpu_supports("avx512bf16")};
#elif defined(__aarch64__) && defined(__linux__)
    const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    f[n++] = (feature){"neon", (caps & HWCAP_ASIMD) != 0};
    f[n++] = (feature){"fp16", (caps & HWCAP_ASIMDHP) != 0};
    f[n++] = (feature){"dotprod", (caps & HWCAP_ASIMDDP) != 0};
    f[n++] = (feature){"sve", (caps & HWCAP_SVE) != 0};
    f[n++] = (feature){"i8mm", (caps2 & HWCAP2_I8MM) != 0};
    f[n++] = (feature){"bf16", (caps2 & HWCAP2_BF16) != 0};
#elif defined(__aarch64__) /* Apple: every one of them has these */
    f[n++] = (feature){"neon", true};
    f[n++] = (feature){"dotprod", true};
#else
    (void)f;
#endif
    return n;
}

#if defined(__x86_64__)
/* gcc's __builtin_cpu_supports does not know F16C in every version: leaf 1, ECX bit 29.  Its
 * registers are AVX's, so the system's consent is the one AVX2 has. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u);
}
#endif

static bool has(const feature *f, int n, const char *word) {
    for (int i = 0; i < n; i++)
        if (strcmp(f[i].word, word) == 0) return f[i].present;
    return false;
}

kk_cpu kk_cpu_detect(void) {
    feature f[MAX_FEATURES];
    const int n = list_features(f);
    kk_cpu c = {.avx2 = has(f, n, "avx2") && has(f, n, "fma"),
                .neon_dot = has(f, n, "neon") && has(f, n, "dotprod")};
#if defined(__x86_64__)
    c.avx2 = c.avx2 && has_f16c();
#endif
    c.avx512 = c.avx2 && has(f, n, "avx512f") && has(f, n, "avx512bw") && has(f, n, "avx512vl") &&
               has(f, n, "avx512dq");
    c.avx512vnni = c.avx512 && has(f, n, "avx512vnni");
    return c;
}

void kk_cpu_describe(char *out, size_t cap) {
    feature f[MAX_FEATURES];
    const int n = list_features(f);
    size_t used = 0;
    if (cap == 0) return;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (!f[i].present) continue;
        const size_t len = strlen(f[i].word) + (used ? 1 : 0);
        if (used + len + 1 > cap) return;
        snprintf(out + used, cap - used, "%s%s", used ? " " : "", f[i].word);
        used += len;
    }
}

/* The rest of the first line of text that starts with key, after the colon. */
static bool line_value(const char *text, const char *key, char *out, size_t cap) {
    const char *at = strstr(text, key);
    if (!at || !(at = strchr(at, ':'))) return false;
    at += strspn(at, ": \t");
    snprintf(out, cap, "%.*s", (int)strcspn(at, "\n"), at);
    return out[0] != '\0';
}

void kk_cpu_name(char *out, size_t cap) {
    if (cap == 0) return;
    char text[4096];
    ssize_t got = -1;
    int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        got = read(fd, text, sizeof text - 1);
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
    if (line_value(text, "model name", out, cap) || line_value(text, "CPU part", out, cap)) return;
#if defined(__x86_64__)
    snprintf(out, cap, "x86-64");
#elif defined(__aarch64__)
    snprintf(out, cap, "arm64");
#else
    snprintf(out, cap, "unknown");
#endif
}
