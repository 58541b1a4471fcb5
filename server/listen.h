/* listen.h - sockets that listen for clients. */
#ifndef KK_SERVER_LISTEN_H
#define KK_SERVER_LISTEN_H

#include "kakeya.h"

/* On the first address of the host that takes it; port 0: one that is free.  *fd does not block. */
kk_status listen_on(const char *host, int port, int *fd, kk_err *err);
int listen_port(int fd); /* 0: it has none */
/* Warns of a socket that others than this machine reach, where the server has no keys. */
struct server;
void listen_warn(const struct server *s, int fd);

#endif
