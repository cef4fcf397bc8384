/* eps/base/rights.h - who may do what when a daemon serves a group. Unless a function says otherwise, it returns 0, or
 * -EPERM (-EACCES) with a sentence that names the owner. */
#ifndef EPS_BASE_RIGHTS_H
#define EPS_BASE_RIGHTS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct peer;
struct peers;

/* True of the daemon's own user and of root. */
bool rights_is_owner(uid_t uid);
int rights_stop(const struct peer *peer, struct error *err);
/* A directory may come only from a client that is the daemon's own user. */
int rights_output(const struct peer *client, struct error *err);
/* Checks the descriptors that a viewer sent: -EINVAL unless all are regular files open for writing at offsets. */
int rights_files(const int *fds, unsigned n, struct error *err);
/* True if the worker may append to the trace of this user's client: its user is that user or the daemon's. */
bool rights_trace(const struct peer *worker, uid_t uid);
/* Checks that a worker may compute a job of this user: it gets the job's weights and data, and the job takes its
 * numbers for true. It may if it is that user's, the daemon's user's or root's, or of another host, where it has the
 * daemon's key; or if the daemon shares all workers (peers.shares_workers). */
int rights_compute(const struct peers *peers, const struct peer *worker, uid_t uid, struct error *err);
/* Checks that a viewer may have the weights of this user's job, or end it. */
int rights_job(const struct peer *peer, uid_t uid, struct error *err);
/* Checks that a client may take over the detached job of this user. */
int rights_take(const struct peer *client, uid_t uid, struct error *err);

#endif
