/* eps/job/forward.h - a training job, told by host 0 to the other hosts.
 *
 * All hosts see the same files: those that the client opened are told by their paths, and config.json by its text. */
#ifndef EPS_JOB_FORWARD_H
#define EPS_JOB_FORWARD_H

#include "eps/job/job.h"

/* A job of host 0, planned. *out is owned: free. -ENOMEM, or -EINVAL for a file without a path, with a sentence. */
int forward_print(char **out, size_t *n_bytes, const struct job *job, struct error *err);

/* What host 0 chose, and what job_begin takes. */
struct forward {
    struct message request;
    struct products products;
    enum plan_attention attention;
    uint32_t convolution; /* as of struct job */
    char device[32];      /* the kind of host 0's devices */
    int fds[SESSION_MAX_FDS];
    unsigned n_fds;
};

/* Opens the files: fds are then owned. -EINVAL, -ENOMEM, -errno with a sentence. */
int forward_open(struct forward *out, const char *bytes, size_t n_bytes, struct error *err);
/* After job_begin: 0 if this host's devices compute the same bits as host 0's; else -errno with a sentence. */
int forward_check(const struct forward *forward, const struct job *job, struct error *err);

#endif
