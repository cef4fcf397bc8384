/* eps/base/rights.h - who may do what when a daemon serves a group. Unless a function says otherwise, it returns 0, or
 * -EPERM (-EACCES) with a sentence that names the owner. */
#ifndef EPS_BASE_RIGHTS_H
#define EPS_BASE_RIGHTS_H

#include "eps/base/hub.h"

int rights_stop(const struct peer *peer, struct error *err);
/* A directory may come only from a client that is the daemon's own user. */
int rights_output(const struct peer *client, struct error *err);
/* -EINVAL unless all are regular files open for writing at offsets. Regular files never block. */
int rights_files(const int *fds, unsigned n, struct error *err);
/* True if the worker may append to the client's trace: its user is the client's or the daemon's. */
bool rights_trace(const struct peer *worker, const struct peer *client);
/* Checks that a viewer may have the weights of the client's job. 0 without a client (NULL): callers report that there
 * is no job. */
int rights_save(const struct peer *peer, const struct peer *client, struct error *err);

#endif
