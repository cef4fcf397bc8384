/* eps/daemon.h - epsd: who is attached, what is trained. */
#ifndef EPS_DAEMON_H
#define EPS_DAEMON_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct daemon_options {
    const char *directory;
    bool is_private;
    bool shared; /* with the members of group, who may do all but stop it */
    gid_t group;
    uint64_t host_mem;   /* bytes that a job may take; 0: what is free */
    unsigned most_quiet; /* seconds, at least, that whoever owes something may do nothing; 0: 60. For tests */
};

/* Serves until it is stopped. 0, or -errno with a sentence. The caller has blocked SIGTERM, SIGINT and SIGHUP: they are
 * taken from the moment in which their end is an orderly one. */
int daemon_run(const struct daemon_options *options, struct error *err);

#endif
