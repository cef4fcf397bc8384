/* eps/rights.h - who may do what, where a daemon serves a group. All return 0, or -EPERM (-EACCES) with a sentence that
 * names whose it is, unless said otherwise. */
#ifndef EPS_RIGHTS_H
#define EPS_RIGHTS_H

#include "eps/hub.h"

int rights_stop(const struct peer *peer, struct error *err);
/* A directory came with the client's job: it is the daemon's own user. */
int rights_output(const struct peer *client, struct error *err);
/* -EINVAL unless all of them are regular files, which never block, open for writing at offsets. */
int rights_files(const int *fds, unsigned n, struct error *err);
/* The worker may append to the client's trace: it is its client's, or the daemon's user's, and no third user's. */
bool rights_trace(const struct peer *worker, const struct peer *client);
/* The weights of the client's job. Without a client (NULL) there is nothing to be had, which others say. */
int rights_save(const struct peer *peer, const struct peer *client, struct error *err);

#endif
