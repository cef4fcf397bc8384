/* Who may do what. Everyone whom the listener lets in may bring a job, work or look; what others lean on is its owner's
 * to end.
 *
 * What is read and written for a client is read and written with the client's rights. A file's access is judged when it
 * is opened, and by whose process it is opened: so the daemon reads and writes descriptors that came open for just that,
 * at offsets, and opens none of them anew (by /proc/self/fd, say), where its own rights would be asked. A descriptor's
 * access cannot be widened by whoever has it, and what O_PATH opened can neither be read nor written.
 *
 * A directory has no such access: whatever is made, removed or renamed by its descriptor is judged by who does it. No
 * file that a client shows in it proves enough. It may have been put there by the owner, or when the directory was open
 * to more; a sticky directory lets them make files and not remove others'; and below a directory that is theirs can be
 * mounted, in a namespace of their own, one that is not: step-N.partial, whose files would go. So a directory is taken
 * from the daemon's own user alone. Another client opens a checkpoint's files itself when it is asked to (OUTPUT), and
 * puts them in place itself: eps/save/save.c, client/run/output.h. */
#include "eps/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
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

bool rights_trace(const struct peer *worker, const struct peer *client)
{
    const uid_t uid = session_peer_uid(worker->session);

    return is_owner(uid) || uid == session_peer_uid(client->session);
}

int rights_save(const struct peer *peer, const struct peer *client, struct error *err)
{
    const uid_t uid = session_peer_uid(peer->session), theirs = client ? session_peer_uid(client->session) : uid;

    if (is_owner(uid) || uid == theirs)
        return 0;
    return error_set(err, -EPERM,
                     "the job belongs to user %u: only they, the daemon's user %u and root may have its weights",
                     (unsigned)theirs, (unsigned)geteuid());
}
