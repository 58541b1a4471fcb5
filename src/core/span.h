/* span.h - bytes someone else owns.  A file is hostile until checked: every offset in one comes
 * through kk_span_sub, once. */
#ifndef KK_CORE_SPAN_H
#define KK_CORE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *base;
    size_t size;
} kk_span;

static inline bool kk_span_sub(kk_span all, uint64_t off, uint64_t len, kk_span *out) {
    if (off > all.size || len > all.size - off) return false;
    out->base = all.base + off;
    out->size = (size_t)len;
    return true;
}

/* Little-endian numbers at unaligned places; every machine we build for is little-endian. */
static inline uint16_t kk_le16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t kk_le32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t kk_le64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void kk_put_le16(void *p, uint16_t v) { memcpy(p, &v, sizeof v); }

#endif
