/* head.c - see head.h. */
#define _GNU_SOURCE
#include "server/head.h"

#include <microhttpd.h>
#include <string.h>
#include <strings.h>

/* What is counted in a head. */
typedef struct {
    int lines, hosts, lengths, encodings;
    bool named; /* all have a name that is one */
} lines_of_head;

head_uri head_uri_of(const char *uri) {
    return (head_uri){.bytes = strlen(uri), .spaced = strchr(uri, ' ') != NULL};
}

static enum MHD_Result count_line(void *user, enum MHD_ValueKind kind, const char *name,
                                  const char *value) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "!#$%&'*+-.^_`|~";
    lines_of_head *n = user;
    (void)kind;
    (void)value;
    n->lines++;
    n->hosts += strcasecmp(name, "Host") == 0;
    n->lengths += strcasecmp(name, "Content-Length") == 0;
    n->encodings += strcasecmp(name, "Transfer-Encoding") == 0;
    if (name[strspn(name, letters)]) n->named = false;
    return MHD_YES;
}

static size_t bytes_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return info ? info->header_size : 0;
}

static bool is_small(struct MHD_Connection *c, const head_uri *uri, int lines, fault *f) {
    if (uri && uri->bytes > HEAD_URI_BYTES)
        return fault_set(f, 414, NULL, "the path has %zu bytes: %d at most", uri->bytes,
                         (int)HEAD_URI_BYTES);
    if (bytes_of(c) > HEAD_BYTES)
        return fault_set(f, 431, NULL, "the head of the request has %zu bytes: %d at most",
                         bytes_of(c), (int)HEAD_BYTES);
    if (lines > HEAD_LINES)
        return fault_set(f, 431, NULL, "the head of the request has %d lines: %d at most", lines,
                         (int)HEAD_LINES);
    return true;
}

bool head_has_end(struct MHD_Connection *c) {
    const char *encoding = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Transfer-Encoding");
    return !encoding || strcasecmp(encoding, "chunked") == 0;
}

/* Of two lengths, or of one that is named in a way of its own, a proxy may believe another one, and
 * take a part of this body for a request of somebody else. */
bool head_is_good(struct MHD_Connection *c, const char *version, const head_uri *uri, fault *f) {
    lines_of_head n = {.named = true};
    MHD_get_connection_values(c, MHD_HEADER_KIND, count_line, &n);
    if (!is_small(c, uri, n.lines, f)) return false;
    if (uri && uri->spaced) return fault_set(f, 400, NULL, "there is a space in the path");
    if (!n.named) return fault_set(f, 400, NULL, "a line of the head has no name of a header");
    if (n.hosts > 1)
        return fault_set(f, 400, NULL, "a request has one Host, and this one has %d", n.hosts);
    if (n.hosts == 0 && strcmp(version, "HTTP/1.0") != 0)
        return fault_set(f, 400, NULL, "a request of %.10s needs a Host", version);
    if (n.lengths + n.encodings > 1)
        return fault_set(f, 400, NULL,
                         "a request has one Content-Length or one Transfer-Encoding, not both, "
                         "and not two");
    if (!head_has_end(c))
        return fault_set(f, 501, NULL, "the only Transfer-Encoding that is read is 'chunked'");
    return true;
}
