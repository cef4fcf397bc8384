/* A run that cannot save its first checkpoint should say so before hours of training, not after. Free bytes alone do
 * not tell: quotas, limits of the process and rights show only when files are made, so the two large ones are made
 * where the checkpoint will be, and removed. It is no promise: what other programs write meanwhile may take the
 * room. */
#include "client/record/disk.h"

#include "proto/base/file.h"
#include "proto/base/process.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/output.h"
#include "proto/plan/memory/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A tokenizer of bytes and the options in training.json; there, a run's offset, length and checksum. */
enum { TEXTS_BYTES = 12 << 10, RUN_BYTES = 64 };

int client_disk_of(struct client_disk *out, const struct model *model, const struct plan_goal *goal,
                   uint64_t files_bytes, struct error *err)
{
    struct safetensors_layout weights = {0}, moments = {0};
    struct plan_host_files runs;
    const unsigned n_moments = plan_moments(goal);
    int rc = checkpoint_lay_out_weights(&weights, model, err);

    if (!rc)
        rc = checkpoint_lay_out_moments(&moments, model, n_moments, goal->moments, err);
    plan_host_files(&runs, model, n_moments, goal->moments);
    *out = (struct client_disk){weights.file_bytes, moments.file_bytes, files_bytes + TEXTS_BYTES};
    out->others += RUN_BYTES * (runs.weights_runs + runs.moments_runs);
    safetensors_layout_free(&weights);
    safetensors_layout_free(&moments);
    return rc;
}

uint64_t client_disk_most(const struct eps_train_options *o)
{
    const bool keeps_best = o->eval_every > 0 && o->save_every > 0;
    const bool by_steps = o->save_every > 0 && o->save_every < o->steps;
    uint64_t n_saves = by_steps ? (o->steps + o->save_every - 1) / o->save_every : 1;

    n_saves += o->freeze_until > 0;
    if (keeps_best)
        n_saves += (o->steps - 1) / o->eval_every; /* the last step is saved in any case */
    const uint64_t read = o->mirror != NULL;       /* one that is copied stays until it is */
    const uint64_t most = (uint64_t)o->keep + 1 + keeps_best + read, interim = o->save_every > 0 && o->save_minutes > 0;
    return interim + (o->keep > 0 && most < n_saves ? most : n_saves);
}

uint64_t client_disk_bytes(const struct client_disk *disk)
{
    return disk->weights + disk->moments + disk->others;
}

uint64_t client_disk_free(int directory_fd)
{
    struct statfs fs;

    if (fstatfs(directory_fd, &fs) || fs.f_blocks == 0) /* one like /proc has no blocks */
        return UINT64_MAX;
    return (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
}

static bool is_memory(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/* The file system promises the bytes if it can; quotas are known then. One in memory would take its pages at once. */
static int disk_reserve(int directory_fd, const char *name, uint64_t bytes)
{
    struct rlimit limit;
    const int fd = output_open(directory_fd, name, O_WRONLY | O_CREAT | O_EXCL);
    int rc = fd < 0 ? fd : 0;

    if (!rc && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        rc = -EFBIG;
    if (!rc && !is_memory(fd)) {
        const struct file file = file_own(fd);
        rc = file_reserve(&file, bytes, NULL);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int client_disk_try(const struct client_disk *disk, const char *directory, int directory_fd, uint64_t step,
                    struct error *err)
{
    const uint64_t bytes = client_disk_bytes(disk);
    char text[PROCESS_BYTES_TEXT];
    int fd, rc = output_begin(&fd, directory_fd, step, err);

    if (rc)
        return rc;
    if (client_disk_free(fd) < bytes)
        rc = -ENOSPC;
    if (!rc)
        rc = disk_reserve(fd, CHECKPOINT_WEIGHTS, disk->weights);
    if (!rc)
        rc = disk_reserve(fd, CHECKPOINT_MOMENTS, disk->moments);
    close(fd);
    output_remove_partial(directory_fd, step);
    if (!rc)
        return 0;
    error_set(err, rc, "%s: its first checkpoint, of %s, could not be saved: %s", directory,
              process_format_bytes(text, bytes), strerror(-rc));
    return output_explain(err, rc, -1);
}
