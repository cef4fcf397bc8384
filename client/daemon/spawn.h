/* client/daemon/spawn.h - starts a private daemon and its workers for one run.
 *
 * They are ordinary processes in a directory named after the run, $XDG_RUNTIME_DIR/eps/run-PID-..., so eps status finds
 * them. The daemon ends with the client's session, or with this process, but saves first what was promised
 * (eps/takeover.h); the workers end with the daemon. Each runs in a process session of its own, so Ctrl-C reaches only
 * the client, which stops them in order. */
#ifndef CLIENT_DAEMON_SPAWN_H
#define CLIENT_DAEMON_SPAWN_H

#include "client/daemon/link.h"
#include "proto/base/error.h"
#include "proto/operation/device_name.h"
#include "proto/wire/message.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum { CLIENT_SPAWN_AGAIN = 3 }; /* most workers that are replaced between two steps */

struct client_spawn_options {
    /* Directory of epsd and eps-worker; NULL: beside this program, then as installed with libeps, then PATH. */
    const char *programs;
    uint32_t n_workers;
    struct device_name device; /* with several workers on GPUs, worker i takes device i */
    uint64_t device_mem;       /* bytes each; 0: they choose */
    int log_fd;                /* receives their stderr; open for reading and appending; borrowed */
};

struct client_child {
    uv_process_t process;
    const char *name; /* "epsd", "eps-worker" */
    bool running;
    bool lost;        /* the daemon has reported its loss */
    struct error why; /* it was killed after that report: the daemon's sentence; else empty */
    bool ended;       /* it has exited, with status and signal */
    int64_t status;
    int signal;
    uint64_t ended_ms; /* the loop's time of its end */
};

struct client_spawn {
    struct client_link *link; /* borrowed */
    struct client_spawn_options options;
    char directory[PATH_MAX];
    struct client_child children[1 + MESSAGE_MAX_PARTS]; /* daemon first; then worker i */
    unsigned n_children;
    bool replaces;       /* a worker that is lost is replaced by a new one: set it once steps are taken */
    unsigned n_replaced; /* workers replaced since lost_step */
    uint64_t lost_step;
    bool lost_worker; /* a wait ended because a worker was killed or told to end */
    off_t log_start;  /* size of the log before this run */
    bool ending;      /* their exit is expected */
};

/* Starts epsd, attaches the link as a client, starts the workers, and returns when all are attached. From then on the
 * link watches them: if a child exits, and is not replaced, waits end with its last words. *spawn must not move until
 * client_spawn_stop. A failure has already called that. */
int client_spawn_start(struct client_spawn *spawn, struct client_link *link, const struct client_spawn_options *options,
                       struct error *err);

/* Finds one of our programs: in `programs` (-ENOENT if it is not there); else beside this program, where libeps was
 * installed, or by its bare name for execvp. */
int client_spawn_find(char out[PATH_MAX], const char *programs, const char *name, struct error *err);

/* The environment of a program of ours: the caller's without what a service manager told the caller alone; with a bound
 * on OpenMP's spinning, since daemon and worker share cores and would restart themselves to set it; and `notify`, a
 * "NOTIFY_SOCKET=..." (NULL: none). NULL-ended borrowed pointers; owned: free. NULL: out of memory. */
char **client_spawn_environment(char *notify);

/* A worker's command line. argv points into the struct, which must not move, and at directory and follow. */
struct client_worker_arguments {
    char *argv[12]; /* ends with NULL */
    char device[DEVICE_NAME_BYTES], share[16], device_mem[32];
};

/* Worker i (from 1) of n: with several, each takes a device of its own, or the CPU in equal shares. device_mem 0: it
 * chooses, as it knows its device. follow: "--private=PID", or NULL. */
void client_worker_arguments(struct client_worker_arguments *out, char *directory, char *follow,
                             struct device_name device, uint32_t i, uint32_t n, uint64_t device_mem);

/* After something was lost: waits up to a second for the end of a child. True if it is a worker that was killed or told
 * to end: then another one may do better. Also after a failed start. */
bool client_spawn_lost_worker(struct client_spawn *spawn);

/* Closes the session, waits for the children and ends the remaining ones: SIGTERM after 5 s (at once if there was no
 * session), SIGKILL after 10 s. Removes the directory that a killed daemon left. Safe on a zeroed struct. */
void client_spawn_stop(struct client_spawn *spawn);

#endif
