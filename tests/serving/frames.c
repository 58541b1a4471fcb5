/* frames.c - see frames.h. */
#include "serving/frames.h"

#include <string.h>

void frames_head(growing *out, uint32_t length, int type, int flags, uint32_t stream) {
    const unsigned char head[FRAME_HEAD] = {
        (unsigned char)(length >> 16), (unsigned char)(length >> 8), (unsigned char)length,
        (unsigned char)type,           (unsigned char)flags,         (unsigned char)(stream >> 24),
        (unsigned char)(stream >> 16), (unsigned char)(stream >> 8), (unsigned char)stream};
    growing_add(out, head, sizeof head);
}

void frames_add(growing *out, int type, int flags, uint32_t stream, const void *payload, size_t n) {
    frames_head(out, (uint32_t)n, type, flags, stream);
    growing_add(out, payload, n);
}

void frames_open(growing *out) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    growing_add(out, preface, sizeof preface - 1);
    frames_head(out, 0, FRAME_SETTINGS, 0, 0);
}

/* A length with a prefix of seven bits (RFC 7541 5.1). */
static void add_string(growing *block, const char *text, size_t len) {
    unsigned char byte = (unsigned char)(len < 127 ? len : 127);
    growing_add(block, &byte, 1);
    if (len >= 127) {
        size_t rest = len - 127;
        for (; rest >= 128; rest >>= 7) {
            byte = (unsigned char)(rest | 128);
            growing_add(block, &byte, 1);
        }
        byte = (unsigned char)rest;
        growing_add(block, &byte, 1);
    }
    growing_add(block, text, len);
}

void frames_field(growing *block, const char *name, const char *value, size_t len) {
    growing_add(block, "", 1); /* a literal that no table keeps, with a name of its own */
    add_string(block, name, strlen(name));
    add_string(block, value, len);
}

void frames_headers(growing *out, uint32_t stream, const growing *block) {
    size_t at = 0;
    int type = FRAME_HEADERS;
    do {
        const size_t n = block->len - at < FRAME_MOST ? block->len - at : FRAME_MOST;
        const int flags = at + n == block->len ? FRAME_END_HEADERS : 0;
        frames_add(out, type, flags, stream, block->text + at, n);
        type = FRAME_CONTINUATION;
        at += n;
    } while (at < block->len);
}

bool frames_read(const growing *in, size_t at, frame *out) {
    if (in->len < at + FRAME_HEAD) return false;
    const unsigned char *h = (const unsigned char *)in->text + at;
    *out = (frame){.length = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2],
                   .type = h[3],
                   .flags = h[4],
                   .stream = (uint32_t)(h[5] & 127) << 24 | (uint32_t)h[6] << 16 |
                             (uint32_t)h[7] << 8 | h[8]};
    return in->len - at - FRAME_HEAD >= out->length;
}
