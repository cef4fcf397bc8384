/* client/daemon/spawn.h - a daemon and workers of one's own, for one run.
 *
 * They are processes like any others, in a directory named after the run, $XDG_RUNTIME_DIR/eps/run-PID-..., so that eps
 * status finds them. They end when the client's session does; they ask the kernel to end them if the client is killed;
 * they run in sessions of their own, so that Ctrl-C reaches the client alone, which takes them down in order. */
#ifndef CLIENT_DAEMON_SPAWN_H
#define CLIENT_DAEMON_SPAWN_H

#include "client/daemon/link.h"
#include "proto/base/error.h"
#include "proto/plan/device_name.h"
#include "proto/wire/message.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct client_spawn_options {
    const char
        *programs; /* directory of epsd and eps-worker; NULL: beside this program, as installed with libeps, PATH */
    uint32_t n_workers;
    struct device_name device; /* of several, the first one's: none is named by its number */
    uint64_t device_mem;       /* bytes, each; 0: what they choose */
    int log_fd;                /* read and write, appending: what they say on stderr; borrowed */
};

struct client_child {
    uv_process_t process;
    const char *name; /* "epsd", "eps-worker" */
    bool running;
    bool ended; /* the loop has its exit: */
    int64_t status;
    int signal;
};

struct client_spawn {
    struct client_link *link; /* borrowed */
    struct client_spawn_options options;
    char directory[PATH_MAX];
    struct client_child children[1 + MESSAGE_MAX_PARTS]; /* the daemon first */
    unsigned n_children;
    off_t log_start; /* bytes of the log that were there before: another run's */
    bool ending;     /* their end is expected */
};

/* Starts epsd, attaches the link to it (as a client), starts the workers and returns when all are attached. From then
 * on the link watches them: a child's end ends its waits with the child's last words. *spawn must stay where it is
 * until client_spawn_stop, which a failure has called already. */
int client_spawn_start(struct client_spawn *spawn, struct client_link *link, const struct client_spawn_options *options,
                       struct error *err);

/* Where a program of ours is: in the directory `programs` (-ENOENT: it is not), else beside this one, else where libeps
 * was installed, else its bare name, for execvp to find. */
int client_spawn_find(char out[PATH_MAX], const char *programs, const char *name, struct error *err);

/* Closes the link's session, waits for the children, ends those who stay (SIGTERM after 5 s, at once if there was
 * no session; SIGKILL after 10), and removes the directory if a killed daemon left it. Safe on a zeroed one. */
void client_spawn_stop(struct client_spawn *spawn);

#endif
