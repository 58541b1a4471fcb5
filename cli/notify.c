/* notify.c - see notify.h.  A failure to tell is no failure of the server: it is passed over. */
#define _GNU_SOURCE
#include "cli/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/term.h"

/* A path, or with @ before it a name of Linux' abstract sockets. */
static int connect_to(const char *name) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof to.sun_path) return -1;
    memcpy(to.sun_path, name, n);
    if (name[0] == '@') to.sun_path[0] = '\0';
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, size) == 0) return fd;
    close(fd);
    return -1;
}

/* Half of what the watchdog waits, in seconds; 0: there is none, or it is for another process. */
static double watchdog(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtol(pid, NULL, 10) != (long)getpid())) return 0;
    const double wait = strtod(usec, NULL);
    return wait > 0 ? wait * 0.5e-6 : 0;
}

void notify_open(notify_link *n) {
    const char *name = getenv("NOTIFY_SOCKET");
    *n = (notify_link){.fd = name ? connect_to(name) : -1};
    if (n->fd >= 0) n->every_s = watchdog();
}

void notify_close(notify_link *n) {
    if (n->fd >= 0) close(n->fd);
    *n = (notify_link){.fd = -1};
}

static void tell(const notify_link *n, const char *lines) {
    if (n->fd >= 0) (void)!send(n->fd, lines, strlen(lines), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void notify_ready(const notify_link *n) { tell(n, "READY=1\nSTATUS=serving"); }

void notify_stopping(const notify_link *n) { tell(n, "STOPPING=1\nSTATUS=finishing what runs"); }

/* The time tells the manager which READY=1 belongs to this. */
void notify_reloading(const notify_link *n) {
    char lines[80];
    snprintf(lines, sizeof lines, "RELOADING=1\nMONOTONIC_USEC=%lld",
             (long long)(term_now() * 1e6));
    tell(n, lines);
}

void notify_alive(notify_link *n) {
    const double now = term_now();
    if (n->every_s <= 0 || now - n->last_s < n->every_s) return;
    n->last_s = now;
    tell(n, "WATCHDOG=1");
}
