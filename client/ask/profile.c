/* eps_profile: starts a worker that measures its device. */
#include "proto/plan/time/profile.h"

#include "client/daemon/observer.h"
#include "client/daemon/spawn.h"
#include "client/eps.h"
#include "client/options/options.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reads everything from fd. The last line tells why the worker failed. */
static void read_words(char *out, size_t cap, int fd)
{
    size_t n = 0;
    ssize_t got;

    while ((got = read(fd, out + n, cap - 1 - n)) > 0 || (got < 0 && errno == EINTR)) {
        n += got > 0 ? (size_t)got : 0;
        if (n == cap - 1) /* keep the end */
            memmove(out, out + cap / 2, n -= cap / 2);
    }
    out[n] = 0;
    while (n > 0 && out[n - 1] == '\n')
        out[--n] = 0;
}

static int profile_start(pid_t *pid, const char *program, char **args, int words_fd)
{
    posix_spawn_file_actions_t actions;
    int rc = posix_spawn_file_actions_init(&actions);

    if (rc)
        return -rc;
    rc = posix_spawn_file_actions_adddup2(&actions, words_fd, 2);
    if (!rc)
        rc = posix_spawnp(pid, program, &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    return -rc;
}

/* Runs eps-worker --profile PATH. */
static int ask_profile_measure(const char *path, const struct eps_profile_options *o, const struct device_name *name,
                               struct error *err)
{
    char program[PATH_MAX], file[PATH_MAX], words[1024];
    char device[DEVICE_NAME_BYTES], follow[32];
    char *args[] = {"eps-worker", follow, "--device", device, "--profile", file, NULL};
    int ends[2], status = 0;
    pid_t pid;
    int rc = client_spawn_find(program, o->programs, "eps-worker", err);

    if (rc)
        return rc;
    device_name_print(device, name);
    snprintf(follow, sizeof follow, "--private=%d", (int)getpid()); /* ends with this process */
    if ((size_t)snprintf(file, sizeof file, "%s", path) >= sizeof file)
        return error_set(err, -ENAMETOOLONG, "%.200s: name too long", path);
    if (pipe2(ends, O_CLOEXEC))
        return error_set(err, -errno, "no pipe: %s", strerror(errno));
    rc = profile_start(&pid, program, args, ends[1]);
    close(ends[1]);
    if (!rc)
        read_words(words, sizeof words, ends[0]);
    close(ends[0]);
    if (rc)
        return error_set(err, rc, "eps-worker did not start: %s", strerror(-rc));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    const char *line = strrchr(words, '\n');
    line = line ? line + 1 : words;
    return error_set(err, -EIO, "no profile was made: %s",
                     strncmp(line, "eps-worker: ", 12) == 0 ? line + 12
                     : *line                                ? line
                                                            : "it was killed");
}

static void profile_fill(struct eps_profile *out, const struct profile *profile)
{
    memcpy(out->rows, profile_rows, sizeof out->rows);
    memcpy(out->matmul_flops, profile->matmul_flops, sizeof out->matmul_flops);
    memcpy(out->narrow, profile_narrow, sizeof out->narrow);
    memcpy(out->narrow_flops, profile->narrow_flops, sizeof out->narrow_flops);
    memcpy(out->conv2d_flops, profile->conv2d_flops, sizeof out->conv2d_flops);
    memcpy(out->norm_bytes_per_s, profile->norm_bytes_per_s, sizeof out->norm_bytes_per_s);
    memcpy(out->attention_flops, profile->attention_flops, sizeof out->attention_flops);
    memcpy(out->lengths, profile_lengths, sizeof out->lengths);
    memcpy(out->heads, profile_heads, sizeof out->heads);
    memcpy(out->attention_by_shape, profile->attention_by_shape, sizeof out->attention_by_shape);
    out->link_bytes_per_s = profile->link_bytes_per_s;
    out->memory_bytes_per_s = profile->memory_bytes_per_s;
    out->update_parameters_per_s = profile->update_parameters_per_s;
    out->call_s = profile->call_s;
    out->message_s = profile->message_s;
}

struct eps_profile_options eps_profile_defaults(void)
{
    return (struct eps_profile_options){.device = NULL};
}

int eps_profile(struct eps_profile *out, const struct eps_profile_options *options, struct eps_error *error)
{
    const char *path = options->path, *kind;
    struct device_name device;
    struct error err = {""};
    struct profile profile;

    *out = (struct eps_profile){0};
    int rc = client_options_device(&device, options->device, 1, NULL, &err);
    if (device.kind == DEVICE_AUTO)
        device = (struct device_name){.kind = DEVICE_CPU};
    kind = device.kind == DEVICE_CUDA ? "cuda" : "cpu";
    if (rc)
        return client_report(error, &err, rc);
    if (!path)
        rc = profile_path(out->path, sizeof out->path, kind, &err);
    else if ((size_t)snprintf(out->path, sizeof out->path, "%s", path) >= sizeof out->path)
        rc = error_set(&err, -ENAMETOOLONG, "%.200s: name too long", path);
    if (!rc)
        rc = ask_profile_measure(out->path, options, &device, &err);
    if (!rc)
        rc = profile_read(&profile, out->path, kind, &err);
    if (!rc)
        profile_fill(out, &profile);
    return client_report(error, &err, rc);
}
