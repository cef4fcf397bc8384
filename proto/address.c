#include "proto/session_internal.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the caller's daemons live: a directory that nobody else can have made. */
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
    if (lstat(out, &info) < 0)
        return errno == ENOENT ? 0 : error_set(err, -errno, "%s: %s", out, strerror(errno));
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid())
        return error_set(err, -EACCES, "%s is not a directory of yours: remove it, or set XDG_RUNTIME_DIR", out);
    return 0;
}

static int only_live(char *out, size_t cap, const char *base, struct error *err)
{
    struct dirent **entries = NULL;
    char path[PATH_MAX], names[300] = "";
    int n = scandir(base, &entries, NULL, alphasort), n_live = 0;

    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", base, name);
        if (name[0] != '.' && session_is_live(path)) {
            size_t used = strlen(names);
            if (used + strlen(name) + 3 <= sizeof names)
                snprintf(names + used, sizeof names - used, "%s%.255s", n_live ? ", " : "", name);
            if (n_live++ == 0)
                snprintf(out, cap, "%s", path);
        }
        free(entries[i]);
    }
    free(entries);
    if (n_live == 0)
        return error_set(err, -ENOENT, "no daemon of yours is running (looked in %s): start one, or name its address",
                         base);
    if (n_live > 1)
        return error_set(err, -ENOTUNIQ, "%d daemons are running: name one of %s", n_live, names);
    return 0;
}

int session_directory(char *out, size_t cap, const char *address, struct error *err)
{
    char base[PATH_MAX / 2];
    int n, rc;

    if (address && strncmp(address, "tcp://", 6) == 0)
        return error_set(err, -EPROTONOSUPPORT, "%s: daemons serve their own host only, at a name or a path", address);
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
        n = snprintf(out, cap, "%s/%s", base, address);
    }
    if (n < 0 || (size_t)n >= cap)
        return error_set(err, -ENAMETOOLONG, "%s: too long an address", address);
    return 0;
}
