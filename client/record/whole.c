/* Whether a checkpoint is whole, and what becomes of one that is not: it keeps its files under another name, which
 * neither --resume nor --keep knows. */
#include "client/record/whole.h"

#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ASIDE = 1000 }; /* damaged checkpoints of one step */

int client_whole_read(struct checkpoint *out, struct error *edited, int fd, const char *name,
                      const struct client_watch *watch, struct error *err)
{
    struct client_watch_reading data = {watch, err};
    const struct checkpoint_reading reading = {.on_bytes = client_watch_on_bytes, .data = &data};
    uint64_t named;
    int rc = checkpoint_read(out, fd, err);

    edited->text[0] = 0;
    if (rc == -ENOENT)
        return error_set(err, -EINVAL, "training.json is missing: this is not a complete checkpoint");
    if (rc)
        return rc;
    if (client_checkpoints_parse(&named, name) && named != out->step)
        rc = error_set(err, -EINVAL, "holds step %" PRIu64 ": was the directory renamed?", out->step);
    else
        rc = checkpoint_check_files(edited, out, fd, &reading, err);
    if (rc) {
        const uint64_t step = out->step;
        checkpoint_free(out);
        out->step = step;
    }
    return rc;
}

/* A file system without RENAME_NOREPLACE is asked first. */
static int rename_new(int directory_fd, const char *from, const char *to)
{
    if (renameat2(directory_fd, from, directory_fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    if (faccessat(directory_fd, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    return renameat(directory_fd, from, directory_fd, to) ? -errno : 0;
}

static void unlink_to(int directory_fd, const char *link, uint64_t step)
{
    uint64_t named;

    if (client_checkpoints_link(&named, directory_fd, link) && named == step)
        unlinkat(directory_fd, link, 0);
}

int client_whole_put_aside(char name[NAME_MAX + 1], int directory_fd, uint64_t step, const char *why, struct error *err)
{
    char from[40];
    int rc = -EEXIST;

    snprintf(from, sizeof from, "step-%" PRIu64, step);
    for (int i = 1; rc == -EEXIST && i < MOST_ASIDE; i++) {
        snprintf(name, NAME_MAX + 1, i == 1 ? "%s.%s" : "%s.%s-%d", from, why, i);
        rc = rename_new(directory_fd, from, name);
    }
    if (!rc) {
        unlink_to(directory_fd, "latest", step);
        unlink_to(directory_fd, "best", step);
        rc = fsync(directory_fd) ? -errno : 0;
    }
    return rc ? output_fail(err, rc, directory_fd, from, "moved aside") : 0;
}
