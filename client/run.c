#include "client/run.h"

#include "client/choose.h"
#include "client/options.h"
#include "proto/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int check_names(const struct eps_train_options *in, struct error *err)
{
    if (in->n_data == 0)
        return error_set(err, -EDOM, "--data is needed: files of text, .bin or .npy");
    return 0;
}

static void cut_windows(struct client_run *run)
{
    const struct eps_train_options *o = &run->options;
    const uint64_t n_train = client_options_n_train(o, run->data.n);

    run->train = client_windows_of(&run->data, 0, n_train, o->seq);
    run->held_out = o->eval_data ? client_windows_of(&run->eval_data, 0, run->eval_data.n, o->seq)
                                 : client_windows_of(&run->data, n_train, run->data.n - n_train, o->seq);
}

int client_run_open(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                    struct error *err)
{
    *run = (struct client_run){.directory_fd = -1, .model.config_fd = -1};
    int rc = check_names(in, err);
    return rc ? rc : client_choose(run, in, watch, err);
}

int client_run_resolve(struct client_run *run, const struct eps_train_options *in, uint32_t n_workers,
                       struct error *err)
{
    const struct client_facts facts = {
        .n_positions = run->model.config.n_positions,
        .fresh = run->model.n_weights == 0,
        .n_tokens = run->data.n,
        .n_eval_tokens = run->eval_data.n,
        .n_workers = n_workers,
        .free_bytes = process_available_bytes(),
    };
    int rc = client_options_resolve(&run->options, in, &facts, err);

    if (rc)
        return rc;
    run->options.model = run->model_name;
    snprintf(run->options.model_note, sizeof run->options.model_note, "%s", run->model_note);
    cut_windows(run);
    return 0;
}

void client_run_close(struct client_run *run)
{
    client_model_close(&run->model);
    client_data_free(&run->data);
    client_data_free(&run->eval_data);
    if (run->directory_fd >= 0)
        close(run->directory_fd);
    run->directory_fd = -1;
}

/* The directory and its parents. *made: the last one was not there. */
static int make_directories(const char *path, bool *made, struct error *err)
{
    char part[PATH_MAX];

    for (size_t i = 1; path[i]; i++) {
        if (path[i] != '/')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) && errno != EEXIST)
            return error_set(err, -errno, "--out %s: %s: %s", path, part, strerror(errno));
    }
    *made = mkdir(path, 0777) == 0;
    if (!*made && errno != EEXIST)
        return error_set(err, -errno, "--out %s: %s", path, strerror(errno));
    return 0;
}

/* Weights of this very run's end would stand in the way only hours later: say so now. */
static int check_unused(const struct client_run *run, struct error *err)
{
    char step[40];

    snprintf(step, sizeof step, "step-%llu", (unsigned long long)run->options.steps);
    const char *names[] = {"metrics.jsonl", step};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (faccessat(run->directory_fd, names[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return error_set(err, -EEXIST, "--out %s holds a run already (%s): choose another directory",
                             run->directory, names[i]);
    }
    return 0;
}

/* runs/MODEL-TIME, or, if two begin in one second, runs/MODEL-TIME-2 and so on. */
static int make_named(struct client_run *run, struct error *err)
{
    const time_t now = time(NULL);
    struct tm local;
    char stamp[32];

    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    for (int i = 1; i <= 100; i++) {
        int used = snprintf(run->directory, sizeof run->directory, "runs/%s-%s", run->model.name, stamp);
        if (i > 1)
            snprintf(run->directory + used, sizeof run->directory - (size_t)used, "-%d", i);
        int rc = make_directories(run->directory, &run->made, err);
        if (rc || run->made)
            return rc;
    }
    return error_set(err, -EEXIST, "%s and its like are there already: name a directory with --out", run->directory);
}

int client_run_make_directory(struct client_run *run, struct error *err)
{
    const char *out = run->options.out;
    int rc;

    if (!out)
        rc = make_named(run, err);
    else if (!*out || strlen(out) >= sizeof run->directory - 32) /* room for a file's name */
        rc = error_set(err, -EDOM, "--out '%.40s': a name of 1 to %zu characters", out, sizeof run->directory - 33);
    else {
        snprintf(run->directory, sizeof run->directory, "%s", out);
        rc = make_directories(run->directory, &run->made, err);
    }
    if (rc)
        return rc;
    run->options.out = run->directory;
    run->directory_fd = open(run->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->directory_fd < 0)
        return error_set(err, -errno, "--out %s: %s", run->directory, strerror(errno));
    return check_unused(run, err);
}

void client_run_forget_directory(struct client_run *run)
{
    if (run->made)
        rmdir(run->directory);
}
