/* machine.c - what this library and this machine are, and how fast memory can be read.
 *
 * Decoding is bound by reading weights, so the bandwidth measured here is the wall every speed
 * is held against.  It is measured the ways weights are read: by the engine's own threads, in
 * order, from memory far larger than any cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "backend/backend.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/threads.h"
#include "engine/machine.h"

#if defined(__has_include)
#if __has_include("kakeya_build.h")
#include "kakeya_build.h"
#endif
#endif
#ifndef KK_BUILD_COMMIT
#define KK_BUILD_COMMIT "unknown"
#endif

const char *kk_version(void) {
    const bool known = strcmp(KK_BUILD_COMMIT, "unknown") != 0;
    return known ? KK_VERSION " (" KK_BUILD_COMMIT ")" : KK_VERSION;
}

/* ---- memory ----------------------------------------------------------------------------- */

#ifdef __APPLE__
static int64_t sysctl_number(const char *name) {
    int64_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 ? value : 0;
}

static void read_memory(int64_t *total, int64_t *available) {
    *total = sysctl_number("hw.memsize");
    *available = sysctl_number("vm.page_free_count") * (int64_t)sysconf(_SC_PAGESIZE);
}
#else
/* A line of /proc/meminfo, such as "MemTotal:  8000000 kB", in bytes; 0: not there. */
static int64_t meminfo_line(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? (int64_t)strtoll(at + strlen(key), NULL, 10) * 1024 : 0;
}

static void read_memory(int64_t *total, int64_t *available) {
    char text[2048];
    ssize_t n = 0;
    const int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    *total = meminfo_line(text, "MemTotal:");
    *available = meminfo_line(text, "MemAvailable:");
}
#endif

/* Asked of the backend itself, so that the answer is what an engine would get. */
static void best_isa(char *out, size_t cap) {
    kk_mem mem = {.limit = 0};
    kk_dev *dev;
    const kk_backend *cpu = kk_backend_named("cpu");
    const kk_dev_opts opts = {.threads = 1, .mem = &mem, .max_rows = 1};
    snprintf(out, cap, "unknown");
    if (!cpu || cpu->open(&dev, &opts, NULL) != KK_OK) return;
    kk_dev_facts facts;
    cpu->describe(dev, &facts);
    snprintf(out, cap, "%.15s", facts.isa);
    cpu->close(dev);
}

void kk_machine_info(kk_machine *out) {
    *out = (kk_machine){.cores = kk_cores_available()};
    kk_cpu_name(out->name, sizeof out->name);
    kk_cpu_describe(out->features, sizeof out->features);
    best_isa(out->best_isa, sizeof out->best_isa);
    read_memory(&out->memory, &out->memory_free);
}

/* ---- bandwidth -------------------------------------------------------------------------- */

static const int64_t per_thread = (int64_t)256 << 20;
static const int64_t least_bytes = (int64_t)64 << 20, most_bytes = (int64_t)4 << 30;
/* What a thread reads before it asks for more: large, unless there is little to share. */
static const int64_t large_piece = (int64_t)4 << 20, small_piece = (int64_t)64 << 10;

enum { ahead = 64 << 10 };

typedef uint64_t lanes __attribute__((vector_size(16)));

typedef struct {
    uint8_t *data;
    int64_t piece;
    bool fetch;           /* lines are asked for before they are read */
    _Atomic uint64_t sum; /* keeps the reads from being left out */
} span_to_read;

static void touch(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const span_to_read *s = arg;
    memset(s->data + begin * s->piece, 1, (size_t)((end - begin) * s->piece));
}

/* Eight sums at a time, so that no addition waits for another. */
static inline void add_lines(lanes sum[8], const uint8_t *at) {
    lanes next[8];
    memcpy(next, at, sizeof next);
    for (int i = 0; i < 8; i++) sum[i] += next[i];
}

static void read_pieces(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    span_to_read *s = arg;
    lanes sum[8] = {{0}};
    const uint8_t *at = s->data + begin * s->piece, *to = s->data + end * s->piece;
    for (; !s->fetch && at < to; at += sizeof sum) add_lines(sum, at);
    for (; s->fetch && at < to; at += sizeof sum) {
        __builtin_prefetch(at + ahead, 0, 2);
        __builtin_prefetch(at + ahead + 64, 0, 2);
        add_lines(sum, at);
    }
    for (int i = 1; i < 8; i++) sum[0] += sum[i];
    atomic_fetch_add_explicit(&s->sum, sum[0][0] + sum[0][1], memory_order_relaxed);
}

static double median3(const double x[3]) {
    const double low = x[0] < x[1] ? x[0] : x[1], high = x[0] < x[1] ? x[1] : x[0];
    return x[2] < low ? low : x[2] > high ? high : x[2];
}

/* The best median of three passes in a row: no single lucky pass, and no disturbed stretch.  Passes
 * that fetch ahead, as the kernels do, take turns with passes that leave it to the hardware: which
 * of them reads more depends on the machine, and a wall that can be passed is none. */
static double best_rate(kk_threads *threads, span_to_read *s, int64_t bytes, double seconds) {
    double rate[2][3] = {{0}}, best = 0;
    const double until = kk_now() + seconds;
    for (int pass = 0; pass < 3 || kk_now() < until; pass++) {
        for (int way = 0; way < 2; way++) {
            s->fetch = way == 1;
            const double from = kk_now();
            kk_threads_loop(threads, bytes / s->piece, 1, read_pieces, s);
            rate[way][pass % 3] = (double)bytes / (kk_now() - from);
            const double middle = median3(rate[way]);
            if (pass >= 2 && middle > best) best = middle;
        }
    }
    return best;
}

/* A quarter of a gigabyte per thread, or what a machine can spare. */
static int64_t bytes_to_read(int32_t threads) {
    int64_t total, available;
    read_memory(&total, &available);
    int64_t bytes = per_thread * threads;
    if (bytes > most_bytes) bytes = most_bytes;
    if (available && bytes > available / 4) bytes = available / 4;
    if (bytes < least_bytes) bytes = least_bytes;
    return bytes;
}

static kk_status measure(kk_threads *pool, int64_t bytes, double seconds, double *bytes_per_s,
                         kk_err *err) {
    span_to_read s = {.piece = bytes / large_piece >= 8 * kk_threads_count(pool) ? large_piece
                                                                                 : small_piece};
    bytes = (bytes + s.piece - 1) / s.piece * s.piece;
    s.data = kk_mem_reserve((size_t)bytes);
    if (!s.data) return kk_fail(err, KK_ENOMEM, "no memory to read: %lld bytes", (long long)bytes);
#ifdef MADV_HUGEPAGE
    madvise(s.data, (size_t)bytes, MADV_HUGEPAGE);
#endif
    kk_threads_loop(pool, bytes / s.piece, 1, touch, &s);
    *bytes_per_s = best_rate(pool, &s, bytes, seconds);
    kk_mem_unreserve(s.data, (size_t)bytes);
    return KK_OK;
}

kk_status kk_measure_read(int32_t threads, int64_t bytes, double seconds, double *bytes_per_s,
                          kk_err *err) {
    *bytes_per_s = 0;
    kk_threads *pool;
    KK_TRY(kk_threads_new(&pool, threads, true, err));
    if (bytes == 0) bytes = bytes_to_read(kk_threads_count(pool));
    const kk_status st = measure(pool, bytes, seconds, bytes_per_s, err);
    kk_threads_free(pool);
    return st;
}

kk_status kk_measure_bandwidth(int32_t threads, double seconds, double *bytes_per_s, kk_err *err) {
    return kk_measure_read(threads, 0, seconds, bytes_per_s, err);
}
