/* Whoever can put a directory where a daemon's is looked for receives the caller's files. In /tmp that is everyone. So
 * the base is examined itself (lstat, no link is followed), and belongs to the caller, or nothing in it is tried.
 *
 * A killed daemon cannot remove its directory. So every look at the base removes those of daemons that have died and
 * are named run-...; one that a user has named stays, to be taken over. */
#include "proto/wire/session_internal.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Directory of the caller's daemons, which only the caller can have created. */
static int base_directory(char *out, size_t cap, struct error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat info;
    int n;

    if (runtime && runtime[0] == '/')
        n = snprintf(out, cap, "%s/eps", runtime);
    else
        n = snprintf(out, cap, "/tmp/eps-%u", (unsigned)geteuid());
    if (n < 0 || (size_t)n >= cap)
        return error_set(err, -ENAMETOOLONG, "XDG_RUNTIME_DIR is too long a path for sockets: unset it");
    if (runtime && runtime[0] == '/' && stat(runtime, &info) < 0 && errno == ENOENT)
        return error_set(err, -ENOTDIR,
                         "XDG_RUNTIME_DIR is %s, which does not exist: make it (mkdir -m 700), or unset the variable",
                         runtime);
    if (lstat(out, &info) < 0)
        return errno == ENOENT ? 0
                               : error_set(err, -errno, "%s: %s: set XDG_RUNTIME_DIR to a directory of your own", out,
                                           strerror(errno));
    if (info.st_uid != geteuid()) /* nobody else can remove it in /tmp */
        return error_set(err, -EACCES,
                         "%s, where your daemons would live, belongs to user %u: set XDG_RUNTIME_DIR to a directory of "
                         "your own, as in mkdir -m 700 ~/eps-run; export XDG_RUNTIME_DIR=~/eps-run",
                         out, (unsigned)info.st_uid);
    if (!S_ISDIR(info.st_mode))
        return error_set(err, -EACCES, "%s is not a directory: remove it, or set XDG_RUNTIME_DIR", out);
    return 0;
}

/* Visits the directory of each live daemon in base, in order; on_daemon may be NULL. */
static void walk(const char *base, void (*on_daemon)(void *user, const char *directory), void *user)
{
    struct dirent **entries = NULL;
    char path[PATH_MAX + NAME_MAX];
    int n = scandir(base, &entries, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", base, name);
        if (name[0] != '.' && session_is_live(path)) {
            if (on_daemon)
                on_daemon(user, path);
        } else if (strncmp(name, "run-", 4) == 0) {
            session_remove_stale(path);
        }
        free(entries[i]);
    }
    free(entries);
}

int session_list(void (*on_daemon)(void *user, const char *directory), void *user, struct error *err)
{
    char base[PATH_MAX / 2];
    int rc = base_directory(base, sizeof base, err);

    if (rc == 0)
        walk(base, on_daemon, user);
    return rc;
}

struct found {
    int n;
    char directory[PATH_MAX], names[300];
};

static void on_found(void *user, const char *directory)
{
    struct found *found = user;
    const char *name = strrchr(directory, '/') + 1;
    const size_t used = strlen(found->names);

    if (used + strlen(name) + 3 <= sizeof found->names)
        snprintf(found->names + used, sizeof found->names - used, "%s%.255s", found->n ? ", " : "", name);
    if (found->n++ == 0)
        snprintf(found->directory, sizeof found->directory, "%s", directory);
}

static int only_live(char *out, size_t cap, const char *base, struct error *err)
{
    struct found found = {0};

    walk(base, on_found, &found);
    if (found.n == 0)
        return error_set(err, -ENOENT, "no daemon of yours is running (looked in %s): start one, or name its address",
                         base);
    if (found.n > 1)
        return error_set(err, -ENOTUNIQ, "%d daemons are running: name one of %s", found.n, found.names);
    return (size_t)snprintf(out, cap, "%s", found.directory) < cap
               ? 0
               : error_set(err, -ENAMETOOLONG, "%s: too long an address", found.directory);
}

bool session_has_port(const char *address)
{
    const char *colon = address && !strchr(address, '/') ? strrchr(address, ':') : NULL;
    const size_t n = colon ? strspn(colon + 1, "0123456789") : 0;

    return n > 0 && n <= 5 && !colon[1 + n];
}

int session_directory(char *out, size_t cap, const char *address, struct error *err)
{
    char base[PATH_MAX / 2];
    int n, rc;

    if (address && strncmp(address, "tcp://", 6) == 0)
        return error_set(err, -EPROTONOSUPPORT,
                         "%s: only workers attach by tcp; on the daemon's own host, give its name or path", address);
    if (session_has_port(address))
        return error_set(err, -EINVAL,
                         "%s has a port, and an address here is a name or a directory's path: only workers attach by "
                         "tcp (tcp://%s); on the daemon's own host, give its name or path",
                         address, address);
    if (address && strstr(address, "://"))
        return error_set(err, -EINVAL, "%s: an address is a name, or a directory's path with a / in it", address);
    if (address && strchr(address, '/')) {
        n = snprintf(out, cap, "%s", address);
    } else {
        rc = base_directory(base, sizeof base, err);
        if (rc < 0)
            return rc;
        if (!address || !address[0])
            return only_live(out, cap, base, err);
        if (address[0] == '.')
            return error_set(err, -EINVAL, "%s: a daemon's name does not begin with a dot", address);
        walk(base, NULL, NULL);
        n = snprintf(out, cap, "%s/%s", base, address);
    }
    if (n < 0 || (size_t)n >= cap)
        return error_set(err, -ENAMETOOLONG, "%s: too long an address", address);
    return 0;
}
