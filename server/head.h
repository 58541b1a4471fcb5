/* head.h - whether the head of a request is well formed: its size, its lines, how its body ends.
 *
 * libmicrohttpd parses heads, and answers what it cannot parse with a page of its own.  What it
 * takes, and what is within its memory, is judged here, so that clients get an error that they can
 * read; and what two programs could read differently is refused. */
#ifndef KK_SERVER_HEAD_H
#define KK_SERVER_HEAD_H

#include "server/fault.h"

struct MHD_Connection;

enum {
    HEAD_BYTES = 32 << 10,    /* of all of it, at most */
    HEAD_URI_BYTES = 8 << 10, /* of the path with what is asked behind it */
    HEAD_LINES = 100,         /* behind the first */
};

/* Of a path as it came: later its escapes are gone, and what is asked is cut off. */
typedef struct {
    size_t bytes;
    bool spaced; /* there was a space in it */
} head_uri;

head_uri head_uri_of(const char *uri);
/* version: of HTTP.  uri: NULL where it was not noted.  False: f says what is wrong. */
bool head_is_good(struct MHD_Connection *c, const char *version, const head_uri *uri, fault *f);
/* Whether libmicrohttpd sees where the body ends. */
bool head_has_end(struct MHD_Connection *c);

#endif
