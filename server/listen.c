/* listen.c - see listen.h. */
#define _GNU_SOURCE
#include "server/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"

static kk_status try_listen(const struct addrinfo *a, int *out, kk_err *err) {
    const int on = 1;
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return server_fail(err, KK_EIO, "no socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 256) == 0) {
        *out = fd;
        return KK_OK;
    }
    const int why = errno;
    close(fd);
    return server_fail(err, KK_EIO, "%s", strerror(why));
}

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

/* False: it has none. */
static bool address_of(int fd, address *a) {
    socklen_t n = sizeof *a;
    return getsockname(fd, &a->any, &n) == 0;
}

int listen_port(int fd) {
    address a;
    if (!address_of(fd, &a)) return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

static bool is_loopback(const address *a) {
    if (a->any.sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
    return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
}

void listen_warn(const server *s, int fd) {
    address a;
    if (s->opts->key_file || !address_of(fd, &a) || is_loopback(&a)) return;
    server_warn(s,
                "there are no keys (--api-key-file): whoever reaches port %d may use this server",
                listen_port(fd));
}

kk_status listen_on(const char *host, int port, int *out, kk_err *err) {
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char service[16];
    kk_err why = {.msg = "it has no address"};
    snprintf(service, sizeof service, "%d", port);
    const int code = getaddrinfo(host, service, &want, &found);
    if (code != 0)
        return server_fail(err, KK_EIO, "'%s' is no address to listen on: %s", host,
                           gai_strerror(code));
    kk_status st = KK_EIO;
    for (const struct addrinfo *a = found; a && st != KK_OK; a = a->ai_next)
        st = try_listen(a, out, &why);
    freeaddrinfo(found);
    if (st == KK_OK) return KK_OK;
    return server_fail(err, KK_EIO, "cannot listen on %s, port %d: %s", host, port, why.msg);
}
