/* proto/base/notify.h - tells the service manager that this process is ready, and that it is alive.
 *
 * The protocol of sd_notify(3), spoken directly: datagrams of "NAME=value" lines to the Unix socket in $NOTIFY_SOCKET.
 * A process that no service manager started sends nothing. */
#ifndef PROTO_BASE_NOTIFY_H
#define PROTO_BASE_NOTIFY_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

struct notify {
    int fd; /* -1: nobody is told. Kept open: a process without a free descriptor still shows that it is alive */
    struct sockaddr_un address;
    socklen_t n_address;
    bool watchdog; /* the manager wants signs of life ($WATCHDOG_USEC) */
    bool failed;   /* a failure has been logged */
};

/* Reads the environment. A socket that cannot be used is logged and then ignored, as every later failure is. */
void notify_open(struct notify *out);
void notify_close(struct notify *notify);

/* Sends "READY=1", with what the process does now, for systemctl status. notify may be NULL in all calls. */
void notify_ready(struct notify *notify, const char *status);

/* Sends "WATCHDOG=1" if the manager wants it, within each of its $WATCHDOG_USEC. Call it only while the work goes
 * on. */
void notify_alive(struct notify *notify);

#endif
