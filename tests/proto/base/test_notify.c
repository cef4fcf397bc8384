/* What the service manager hears: a socket in its place. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/base/notify.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_FIXTURE(processes_setup, processes_remove)

static const struct {
    bool abstract;
    const char *period, *pid; /* NULL: unset; "": ours */
    bool wants_life;
} managers[] = {
    {false, NULL, NULL, false},     {true, "2000000", NULL, true}, {false, "2000000", "", true},
    {false, "2000000", "1", false}, {true, "0", NULL, false},
};

/* Listens where NOTIFY_SOCKET then points to. */
static int listen_as_manager(bool abstract)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", abstract ? "@" : "");
    const size_t n = strlen(address.sun_path);
    snprintf(address.sun_path + n, sizeof address.sun_path - n, "%s", processes_path("manager"));
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    const size_t length = strlen(address.sun_path);
    if (abstract)
        address.sun_path[0] = 0;
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
                     0);
    return fd;
}

TEST_EACH(the_manager_hears_that_it_is_ready_and_if_it_wants_that_it_lives, COUNT(managers))
{
    const int fd = listen_as_manager(managers[_i].abstract);
    struct notify notify;
    char said[100] = "", pid[20];

    snprintf(pid, sizeof pid, "%d", (int)getpid());
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    if (managers[_i].period)
        setenv("WATCHDOG_USEC", managers[_i].period, 1);
    if (managers[_i].pid)
        setenv("WATCHDOG_PID", *managers[_i].pid ? managers[_i].pid : pid, 1);
    notify_open(&notify);
    notify_ready(&notify, "/run/eps");
    ck_assert_int_eq(recv(fd, said, sizeof said, 0), 24);
    ck_assert_str_eq(said, "READY=1\nSTATUS=/run/eps\n");
    notify_alive(&notify);
    memset(said, 0, sizeof said);
    ck_assert_int_eq(recv(fd, said, sizeof said, 0), managers[_i].wants_life ? 11 : -1);
    ck_assert_str_eq(said, managers[_i].wants_life ? "WATCHDOG=1\n" : "");
    notify_close(&notify);
    close(fd);
}

/* No manager, none that listens, an address that none can have: work goes on, and the log has one line of it. */
TEST_EACH(a_manager_that_is_not_there_is_mentioned_once, 4)
{
    char longest[121];
    const char *const sockets[] = {NULL, "/nowhere/manager", "manager", longest};
    const int saved = dup(STDERR_FILENO);
    struct notify notify;
    char said[1000] = "";
    int fds[2];

    memset(longest, '/', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    unsetenv("NOTIFY_SOCKET");
    if (sockets[_i])
        setenv("NOTIFY_SOCKET", sockets[_i], 1);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    dup2(fds[1], STDERR_FILENO);
    notify_open(&notify);
    notify_ready(&notify, "");
    notify_ready(&notify, "");
    notify_close(&notify);
    notify_alive(NULL);
    dup2(saved, STDERR_FILENO);
    const ssize_t n = read(fds[0], said, sizeof said - 1);
    if (_i == 0)
        ck_assert_int_eq(n, -1);
    else
        ck_assert_holds(said, "the service manager is not told of this process: NOTIFY_SOCKET: ");
    ck_assert(!strchr(said, '\n') || strchr(said, '\n')[1] == 0);
}
