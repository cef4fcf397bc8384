/* Nothing here may stop or delay a daemon. The socket does not block, and a message that cannot be sent is dropped: a
 * manager that misses signs of life acts by itself. The first failure is logged, the others would only repeat it once a
 * tick. */
#include "proto/base/notify.h"

#include "proto/base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void notify_fail(struct notify *notify, const char *doing, int code)
{
    if (!notify->failed)
        log_warning("the service manager is not told of this process: %s: %s", doing, strerror(code));
    notify->failed = true;
}

/* The manager may want signs of life of another process, such as a shell that started this one. */
static bool is_watched(void)
{
    const char *period = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

    return period && atoll(period) > 0 && (!pid || atoll(pid) == getpid());
}

void notify_open(struct notify *out)
{
    const char *path = getenv("NOTIFY_SOCKET");
    const size_t n = path ? strlen(path) : 0;

    *out = (struct notify){.fd = -1, .address.sun_family = AF_UNIX};
    if (n == 0)
        return;
    if ((*path != '/' && *path != '@') || n >= sizeof out->address.sun_path) {
        notify_fail(out, "NOTIFY_SOCKET", EINVAL);
        return;
    }
    memcpy(out->address.sun_path, path, n + 1);
    if (*path == '@') /* of the abstract name space: a zero byte, and no terminator */
        out->address.sun_path[0] = 0;
    out->n_address = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (*path == '/'));
    out->watchdog = is_watched();
    out->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        notify_fail(out, "socket", errno);
}

void notify_close(struct notify *notify)
{
    if (notify->fd >= 0)
        close(notify->fd);
    notify->fd = -1;
}

static void send_lines(struct notify *notify, const char *lines)
{
    if (notify && notify->fd >= 0 &&
        sendto(notify->fd, lines, strlen(lines), MSG_NOSIGNAL, (const struct sockaddr *)&notify->address,
               notify->n_address) < 0)
        notify_fail(notify, "NOTIFY_SOCKET", errno);
}

void notify_ready(struct notify *notify, const char *status)
{
    char lines[600];

    snprintf(lines, sizeof lines, "READY=1\nSTATUS=%.500s\n", status);
    send_lines(notify, lines);
}

void notify_alive(struct notify *notify)
{
    if (notify && notify->watchdog)
        send_lines(notify, "WATCHDOG=1\n");
}
