/* notify.h - tells a service manager how a server is: systemd's protocol of Type=notify, which is
 * lines of text in one datagram to the socket that NOTIFY_SOCKET names.  Where there is none, every
 * call does nothing. */
#ifndef KAKEYA_CLI_NOTIFY_H
#define KAKEYA_CLI_NOTIFY_H

#include <stdbool.h>

typedef struct {
    int fd;         /* -1: nobody is told */
    double every_s; /* between signs of life; 0: none are wanted */
    double last_s;  /* term_now() of the last one */
} notify_link;

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. */
void notify_open(notify_link *n);
void notify_close(notify_link *n);
void notify_ready(const notify_link *n);
void notify_reloading(const notify_link *n);
void notify_stopping(const notify_link *n);
void notify_alive(
    notify_link *n); /* to be called often: it is told as often as the watchdog wants */

#endif
