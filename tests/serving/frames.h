/* frames.h - HTTP/2 as far as a client of gRPC needs it to be wrong in every place: frames of any
 * type and length are written, header fields as literals without a table (RFC 7541 6.2.2), and of
 * what comes back only the frames' heads are read, which say which streams have ended. */
#ifndef KK_SERVING_FRAMES_H
#define KK_SERVING_FRAMES_H

#include <stdint.h>

#include "serving/client.h"

typedef enum {
    FRAME_DATA,
    FRAME_HEADERS,
    FRAME_PRIORITY,
    FRAME_RST_STREAM,
    FRAME_SETTINGS,
    FRAME_PUSH_PROMISE,
    FRAME_PING,
    FRAME_GOAWAY,
    FRAME_WINDOW_UPDATE,
    FRAME_CONTINUATION,
} frame_type;

enum { FRAME_ACK = 1, FRAME_END_STREAM = 1, FRAME_END_HEADERS = 4, FRAME_PADDED = 8 };
enum { FRAME_HEAD = 9, FRAME_MOST = 16384 /* bytes of a payload, unless settings say more */ };

/* The preface of a client, and settings that change nothing. */
void frames_open(growing *out);
/* The head alone, which may promise another length than follows. */
void frames_head(growing *out, uint32_t length, int type, int flags, uint32_t stream);
void frames_add(growing *out, int type, int flags, uint32_t stream, const void *payload, size_t n);
/* A field of a block of headers. */
void frames_field(growing *block, const char *name, const char *value, size_t len);
/* A block as HEADERS and as many CONTINUATIONs as it takes. */
void frames_headers(growing *out, uint32_t stream, const growing *block);

/* The head of a frame that came. */
typedef struct {
    uint32_t length, stream;
    int type, flags;
} frame;

/* The frame at `at`; false: not all of it is there yet. */
bool frames_read(const growing *in, size_t at, frame *out);

#endif
