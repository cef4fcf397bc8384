/* eps/daemon.h - starts epsd's parts and runs its loop. */
#ifndef EPS_DAEMON_H
#define EPS_DAEMON_H

#include "proto/base/error.h"
#include "proto/base/notify.h"
#include "eps/step/sharded.h"
#include "proto/net/port.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct daemon_options {
    const char *directory;
    bool is_private;
    long parent;                           /* of a private one: the process with which it ends */
    bool shared;                           /* with members of the groups: */
    gid_t group;                           /* who may observe */
    gid_t users;                           /* those of them who may do all but stop it; (gid_t)-1: nobody */
    bool share_workers;                    /* rights_compute */
    const struct port_options *network;    /* a tcp port for workers elsewhere; NULL: none */
    uint64_t host_mem;                     /* bytes that a job may take; 0: all that is free */
    struct notify *notify;                 /* told that the daemon serves and is alive; NULL: nobody is */
    unsigned queue;                        /* jobs that may wait */
    const struct sharded_options *sharded; /* the daemons that a launcher started with this one; NULL: it is alone */
    unsigned most_late;  /* seconds that a worker may owe something, at least, whatever it counts; 0: 600. For tests */
    unsigned most_away;  /* seconds that others wait for a client which asks for nothing; 0: 300. For tests */
    unsigned most_quiet; /* seconds without progress before a worker or thread counts as hung; 0: 60. For tests */
};

/* Serves until it is stopped. 0, or -errno with a sentence. The caller has blocked SIGTERM, SIGINT and SIGHUP;
 * daemon_run unblocks them once it can stop in an orderly way. SIGHUP stops a private daemon, as it belongs to a
 * terminal; any other opens its log anew. */
int daemon_run(const struct daemon_options *options, struct error *err);

#endif
