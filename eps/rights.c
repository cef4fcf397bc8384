/* Who may do what. Everyone whom the listener lets in may bring a job, work or look; what others lean on is its owner's
 * to end, and a checkpoint goes to a directory of the job's client. */
#include "eps/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static bool is_owner(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

int rights_stop(const struct peer *peer, struct error *err)
{
    return is_owner(session_peer_uid(peer->session))
               ? 0
               : error_set(err, -EPERM, "the daemon belongs to user %u: only they and root may stop it",
                           (unsigned)geteuid());
}

int rights_output(const struct daemon *d, struct error *err)
{
    const uid_t client = session_peer_uid(d->job.client->session);

    if (d->job.output < 0 || client == geteuid() || faccessat(d->job.output, ".", W_OK | X_OK, AT_EACCESS) == 0)
        return 0;
    return error_set(err, -EACCES,
                     "--out: user %u, who runs the daemon, may not write there, and it is the daemon that writes "
                     "checkpoints: give the directory to the daemon's group, with chgrp and chmod g+ws",
                     (unsigned)geteuid());
}

int rights_save(const struct daemon *d, const struct peer *peer, struct error *err)
{
    const uid_t uid = session_peer_uid(peer->session);
    const uid_t client = d->job.client ? session_peer_uid(d->job.client->session) : uid;

    if (is_owner(uid) || uid == client)
        return 0;
    return error_set(err, -EPERM,
                     "the job belongs to user %u: only they, the daemon's user %u and root may have its weights",
                     (unsigned)client, (unsigned)geteuid());
}
