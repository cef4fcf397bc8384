/* Who may do what. Everyone whom the listener lets in may bring a job, work or look; or look alone, if it says so. Only
 * the daemon's owner may end what others depend on.
 *
 * The daemon reads and writes for its own user by descriptors that the client opened, at offsets. It never opens them
 * anew (by /proc/self/fd, say): the kernel checks a file's access when it is opened, against the process that opens it.
 * Any other client opens its files and acts on them itself, with its own rights, as the daemon asks it to
 * (proto/wire/files.h): no descriptor of theirs comes here, since even closing it could wait for ever.
 *
 * A directory's descriptor carries no such access: the kernel checks creating, removing and renaming against the
 * process that does it. No file that a client shows in the directory proves enough. The owner may have put it there,
 * or it may date from when the directory was open to more users. A sticky directory lets users make files but not
 * remove those of others. And below a directory of their own, users can mount a foreign one in their own namespace
 * as step-N.partial, and the daemon would remove its files. So the daemon takes a directory from its own user alone.
 * Any other client is asked (OUTPUT) to open a checkpoint's files itself, and puts them in place itself:
 * eps/save/save.c, client/record/output.h. */
#include "eps/base/rights.h"

#include "eps/base/peer.h"
#include "eps/base/peers.h"
#include "proto/wire/session.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

bool rights_is_owner(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

int rights_stop(const struct peer *peer, struct error *err)
{
    return rights_is_owner(session_peer_uid(peer->session))
               ? 0
               : error_set(err, -EPERM, "the daemon belongs to user %u: only they and root may stop it",
                           (unsigned)geteuid());
}

int rights_output(const struct peer *client, struct error *err)
{
    const uid_t uid = session_peer_uid(client->session);

    if (uid == geteuid())
        return 0;
    return error_set(
        err, -EACCES,
        "the job came with a directory, where the daemon would write as user %u: a client of user %u opens "
        "the files of its checkpoints itself, as eps train does",
        (unsigned)geteuid(), (unsigned)uid);
}

int rights_files(const int *fds, unsigned n, struct error *err)
{
    struct stat st;

    for (unsigned i = 0; i < n; i++) {
        const int flags = fcntl(fds[i], F_GETFL), access = flags & O_ACCMODE;
        if (flags < 0 || (access != O_WRONLY && access != O_RDWR) || flags & O_APPEND || fstat(fds[i], &st) ||
            !S_ISREG(st.st_mode))
            return error_set(err, -EINVAL, "what is to be written to are regular files that came open for writing");
    }
    return 0;
}

bool rights_trace(const struct peer *worker, uid_t uid)
{
    const uid_t theirs = session_peer_uid(worker->session);

    return rights_is_owner(theirs) || theirs == uid;
}

int rights_compute(const struct peers *peers, const struct peer *worker, uid_t uid, struct error *err)
{
    const uid_t theirs = peers->shares_workers ? uid : session_peer_uid(worker->session);

    if (rights_is_owner(theirs) || theirs == uid || theirs == SESSION_REMOTE_USER)
        return 0;
    return error_set(
        err, -EPERM,
        "it belongs to user %u and the job to user %u: whoever computes a job could read and falsify it, so "
        "only epsd --share-workers lets it",
        (unsigned)theirs, (unsigned)uid);
}

int rights_job(const struct peer *peer, uid_t uid, struct error *err)
{
    const uid_t theirs = session_peer_uid(peer->session);

    if (rights_is_owner(theirs) || theirs == uid)
        return 0;
    return error_set(err, -EPERM,
                     "the job belongs to user %u: only they, the daemon's user %u and root may have its weights or "
                     "stop it",
                     (unsigned)uid, (unsigned)geteuid());
}

/* It takes the run's directory over, too, so it must be able to write there: the daemon's user is not enough. */
int rights_take(const struct peer *client, uid_t uid, struct error *err)
{
    const uid_t theirs = session_peer_uid(client->session);

    if (theirs == uid || theirs == 0)
        return 0;
    return error_set(err, -EPERM, "the detached job belongs to user %u: only they and root may take it over",
                     (unsigned)uid);
}
