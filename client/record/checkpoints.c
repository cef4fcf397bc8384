/* What goes is decided on the caller's thread, by its list and by the links as they are now, since the daemon moves
 * `latest`. The cleanup's thread gets steps alone, so the list needs no lock. A step may be gone by then, or be no
 * checkpoint any more: removing looks again, and leaves what it does not know (open_ours). */
#include "client/record/checkpoints.h"

#include "client/eps.h"
#include "proto/base/thread.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 48 };

static void checkpoints_name_of(char out[NAME_BYTES], uint64_t step)
{
    snprintf(out, NAME_BYTES, "step-%" PRIu64, step);
}

/* Printed again it must be the same: no sign, no leading zero, no number that is too large. */
bool client_checkpoints_parse(uint64_t *step, const char *name)
{
    char again[NAME_BYTES];

    if (strncmp(name, "step-", 5) != 0)
        return false;
    *step = strtoull(name + 5, NULL, 10);
    checkpoints_name_of(again, *step);
    return strcmp(again, name) == 0;
}

/* Opens a stream over the directory's entries. The caller's descriptor and its position stay unchanged. */
static DIR *open_entries(int directory_fd)
{
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;

    if (!entries && fd >= 0)
        close(fd);
    return entries;
}

/* True also if that cannot be told: whoever reads the checkpoint then hears why. */
static bool holds_training(int directory_fd, const char *name)
{
    char path[NAME_MAX + 32];

    snprintf(path, sizeof path, "%s/%s", name, CHECKPOINT_TRAINING);
    return faccessat(directory_fd, path, F_OK, 0) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Each array is kept as soon as it has grown, so that a failure of the second leaves nothing dangling. */
static int checkpoints_grow(struct client_checkpoints *c)
{
    const size_t cap = c->cap ? 2 * c->cap : 16;
    uint64_t *steps = realloc(c->steps, cap * sizeof *steps);

    c->steps = steps ? steps : c->steps;
    bool *interim = realloc(c->interim, cap * sizeof *interim);
    c->interim = interim ? interim : c->interim;
    if (!steps || !interim)
        return -ENOMEM;
    c->cap = cap;
    return 0;
}

int client_checkpoints_add(struct client_checkpoints *c, uint64_t step, bool interim)
{
    size_t at = c->n;

    while (at > 0 && c->steps[at - 1] >= step)
        at--;
    if (at < c->n && c->steps[at] == step) {
        c->interim[at] = c->interim[at] && interim;
        return 0;
    }
    if (c->n == c->cap && checkpoints_grow(c))
        return -ENOMEM;
    memmove(c->steps + at + 1, c->steps + at, (c->n - at) * sizeof *c->steps);
    memmove(c->interim + at + 1, c->interim + at, (c->n - at) * sizeof *c->interim);
    c->steps[at] = step, c->interim[at] = interim;
    c->n++;
    return 0;
}

/* Opens the directory's entries if all of them are a checkpoint's; otherwise returns NULL. */
static DIR *open_ours(int directory_fd, const char *name)
{
    int fd = openat(directory_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (!entries && fd >= 0)
        close(fd);
    while (entries && (entry = readdir(entries))) {
        if (!output_is_name(entry->d_name) && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            closedir(entries);
            return NULL;
        }
    }
    if (entries)
        rewinddir(entries);
    return entries;
}

/* It has files of a checkpoint, and lacks training.json, which is written last. */
static bool checkpoints_is_torn(int directory_fd, const char *name)
{
    DIR *entries = open_ours(directory_fd, name);
    unsigned n = 0;

    while (entries && readdir(entries))
        n++;
    if (entries)
        closedir(entries);
    return n > 2; /* . and .. */
}

static int list_checkpoints(struct client_checkpoints *out, int directory_fd, bool torn_too, struct error *err)
{
    const struct dirent *entry;
    uint64_t step;
    int rc = 0;

    *out = (struct client_checkpoints){.directory_fd = directory_fd};
    DIR *entries = open_entries(directory_fd);
    if (!entries)
        return error_set(err, -errno, "it could not be listed: %s", strerror(errno));
    while (!rc && (entry = readdir(entries))) {
        if (client_checkpoints_parse(&step, entry->d_name) &&
            (holds_training(directory_fd, entry->d_name) ||
             (torn_too && checkpoints_is_torn(directory_fd, entry->d_name))))
            rc = client_checkpoints_add(out, step, false);
    }
    closedir(entries);
    if (!rc)
        return 0;
    client_checkpoints_free(out);
    return error_memory(err);
}

int client_checkpoints_list(struct client_checkpoints *out, int directory_fd, struct error *err)
{
    return list_checkpoints(out, directory_fd, false, err);
}

int client_checkpoints_list_torn_too(struct client_checkpoints *out, int directory_fd, struct error *err)
{
    return list_checkpoints(out, directory_fd, true, err);
}

bool client_checkpoints_empty(int directory_fd, const char *name)
{
    DIR *entries = open_ours(directory_fd, name);
    const struct dirent *entry;

    if (!entries)
        return false;
    while ((entry = readdir(entries)))
        unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    return true;
}

static void remove_ours(int directory_fd, const char *name)
{
    if (client_checkpoints_empty(directory_fd, name))
        unlinkat(directory_fd, name, AT_REMOVEDIR);
}

/* Renamed first: a removal that is cut short leaves a .partial, which the next run sweeps, and no torn step-N. */
void client_checkpoints_remove(int directory_fd, uint64_t step)
{
    char name[NAME_BYTES], partial[NAME_BYTES + 16];

    checkpoints_name_of(name, step);
    snprintf(partial, sizeof partial, "%s.partial", name);
    DIR *entries = open_ours(directory_fd, name);
    if (!entries)
        return;
    closedir(entries);
    remove_ours(directory_fd, partial);
    if (renameat(directory_fd, name, directory_fd, partial) == 0)
        remove_ours(directory_fd, partial);
}

bool client_checkpoints_link(uint64_t *step, int directory_fd, const char *name)
{
    char target[NAME_BYTES];
    const ssize_t n = readlinkat(directory_fd, name, target, sizeof target - 1);

    target[n > 0 ? n : 0] = 0;
    return n > 0 && client_checkpoints_parse(step, target);
}

uint64_t client_checkpoints_latest(int directory_fd)
{
    uint64_t step;
    return client_checkpoints_link(&step, directory_fd, "latest") ? step : UINT64_MAX;
}

static uint64_t checkpoints_take(struct client_checkpoints *c, size_t at)
{
    const uint64_t step = c->steps[at];

    c->n--;
    memmove(c->steps + at, c->steps + at + 1, (c->n - at) * sizeof *c->steps);
    memmove(c->interim + at, c->interim + at + 1, (c->n - at) * sizeof *c->interim);
    return step;
}

static bool is_spared(const struct client_checkpoints *c, size_t at)
{
    return c->spares && c->steps[at] == c->spared;
}

size_t client_checkpoints_take_old(uint64_t *out, size_t cap, struct client_checkpoints *c, uint32_t keep)
{
    const uint64_t latest = client_checkpoints_latest(c->directory_fd);
    uint64_t best;
    const bool has_best = client_checkpoints_link(&best, c->directory_fd, "best");
    size_t n = 0;

    for (size_t at = 0; at + 1 < c->n && n < cap;) {
        if (c->interim[at] && c->steps[at] != latest && !is_spared(c, at) && !(has_best && c->steps[at] == best))
            out[n++] = checkpoints_take(c, at);
        else
            at++;
    }
    if (keep > 0 && c->n > 0 && c->interim[c->n - 1])
        keep++;
    for (size_t at = 0; keep > 0 && c->n > keep && at + 1 < c->n && n < cap;) {
        const bool stays = (has_best && c->steps[at] == best) || is_spared(c, at);
        if (stays) /* kept in addition */
            keep++;
        if (stays || c->steps[at] == latest)
            at++;
        else
            out[n++] = checkpoints_take(c, at);
    }
    return n;
}

void client_checkpoints_sweep(int directory_fd)
{
    DIR *entries = open_entries(directory_fd);
    const struct dirent *entry;
    char name[NAME_BYTES];
    uint64_t step;

    while (entries && (entry = readdir(entries))) {
        const size_t n = strlen(entry->d_name), suffix = strlen(".partial");
        if (n <= suffix || n >= sizeof name || strcmp(entry->d_name + n - suffix, ".partial") != 0)
            continue;
        memcpy(name, entry->d_name, n - suffix);
        name[n - suffix] = 0;
        if (client_checkpoints_parse(&step, name))
            remove_ours(directory_fd, entry->d_name);
    }
    if (entries)
        closedir(entries);
    unlinkat(directory_fd, "latest.partial", 0);
    unlinkat(directory_fd, "best.partial", 0);
}

void client_checkpoints_free(struct client_checkpoints *checkpoints)
{
    free(checkpoints->steps);
    free(checkpoints->interim);
    *checkpoints = (struct client_checkpoints){0};
}

/* ---- The best evaluation ---- */

void client_best_init(struct client_best *best)
{
    *best = (struct client_best){.loss = INFINITY};
}

bool client_best_add(struct client_best *best, uint64_t step, double loss)
{
    if (!(loss < best->loss)) { /* also true for NaN */
        best->n_since++;
        return false;
    }
    *best = (struct client_best){.loss = loss, .step = step};
    return true;
}

int client_best_mark(int directory_fd, uint64_t step)
{
    return output_point(directory_fd, "best", step);
}

/* ---- A run's past ---- */

struct reading {
    struct client_past *past;
    uint64_t most, kept; /* kept: 0: there is no `best` */
};

/* Called line by line: after the last one it holds that of the newest step. */
static void checkpoints_on_line(void *user, const struct eps_step *step)
{
    const struct reading *reading = user;
    struct client_past *past = reading->past;

    if (step->step > reading->most)
        return;
    if (!isnan(step->eval_before)) {
        client_best_add(&past->best, 0, step->eval_before);
        client_best_add(&past->kept, 0, step->eval_before);
    }
    if (!isnan(step->eval_loss))
        client_best_add(&past->best, step->step, step->eval_loss);
    if (!isnan(step->eval_loss) && step->step == reading->kept)
        client_best_add(&past->kept, step->step, step->eval_loss);
    past->last = step->step;
    past->eval_loss = step->eval_loss;
    past->step_ms = step->step_ms;
    past->tokens_per_s = step->tokens_per_s;
    past->n_skipped = step->skipped ? past->n_skipped + 1 : 0;
}

void client_past_init(struct client_past *past)
{
    *past = (struct client_past){.eval_loss = NAN, .step_ms = NAN, .tokens_per_s = NAN};
    client_best_init(&past->best);
    client_best_init(&past->kept);
}

void client_past_read(struct client_past *out, const char *directory, uint64_t step)
{
    struct reading reading = {out, step, 0};
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    client_past_init(out);
    if (fd >= 0) {
        if (!client_checkpoints_link(&reading.kept, fd, "best"))
            reading.kept = 0;
        close(fd);
    }
    (void)eps_metrics_read(directory, checkpoints_on_line, &reading, NULL, NULL);
}

bool client_past_lacks_evaluation(const struct client_past *past, const struct eps_train_options *options,
                                  uint64_t step)
{
    const bool is_due = step == options->steps || (options->eval_every > 0 && step % options->eval_every == 0);

    const bool is_passed_over = options->eval_chosen && past->n_skipped > 0 && step < options->steps;

    return is_due && !is_passed_over && step > 0 && (past->last < step || isnan(past->eval_loss));
}

/* ---- Background cleanup ---- */

static void *checkpoints_work(void *data)
{
    struct client_tidy *t = data;

    fdatasync(t->metrics_fd); /* metrics are not part of the checkpoint: a failing disk must not end the run */
    for (size_t i = 0; i < t->n_steps; i++)
        client_checkpoints_remove(t->directory_fd, t->steps[i]);
    atomic_store(&t->done, true);
    return NULL;
}

void client_tidy_begin(struct client_tidy *t, struct client_checkpoints *checkpoints, uint32_t keep, int metrics_fd)
{
    if (t->begun && !atomic_load(&t->done))
        return;
    client_tidy_end(t);
    t->done = false;
    t->directory_fd = checkpoints->directory_fd;
    t->metrics_fd = metrics_fd;
    t->n_steps = client_checkpoints_take_old(t->steps, CLIENT_TIDY_MOST, checkpoints, keep);
    t->begun = thread_begin(&t->thread, checkpoints_work, t) == 0;
    if (!t->begun)
        checkpoints_work(t);
}

void client_tidy_end(struct client_tidy *t)
{
    if (t->begun)
        pthread_join(t->thread, NULL);
    t->begun = false;
}
