/* eps_metrics_read: reads metrics.jsonl of any run, even while it is being written, cut off or damaged. */
#include "client/daemon/look.h"
#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/base/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINE = 64 << 10, MAX_ROWS = 2 * LEDGER_CATEGORIES };

static double real(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static uint64_t whole(const json_t *line, const char *key)
{
    const json_int_t value = json_integer_value(json_object_get(line, key));
    return value > 0 ? (uint64_t)value : 0;
}

/* Names are borrowed from categories. */
static struct eps_memory side_of(json_t *categories, uint32_t worker, struct eps_memory_row rows[MAX_ROWS])
{
    struct eps_memory side = {.worker = worker, .device = "", .rows = rows};
    const char *name;
    json_t *bytes;

    json_object_foreach(categories, name, bytes)
    {
        const json_int_t n = json_integer_value(bytes);
        if (n <= 0 || n > INT64_MAX / MAX_ROWS || side.n_rows == MAX_ROWS)
            continue;
        rows[side.n_rows++] = (struct eps_memory_row){.category = name, .current = (uint64_t)n, .peak = (uint64_t)n};
        side.current += (uint64_t)n;
    }
    side.peak = side.current;
    return side;
}

struct reading {
    void (*on_step)(void *user, const struct eps_step *step);
    void *user;
    uint64_t last, n_bad;
};

static void read_line(struct reading *r, const char *text, size_t n)
{
    struct eps_memory_row rows[2][MAX_ROWS];
    struct eps_memory sides[2];
    json_t *line = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL), *memory = json_object_get(line, "memory");
    struct eps_step step = {
        .step = whole(line, "step"),
        .loss = real(line, "loss"),
        .lr = real(line, "lr"),
        .tokens = whole(line, "tokens"),
        .tokens_per_s = real(line, "tokens_per_s"),
        .step_ms = real(line, "step_ms"),
        .device_peak_bytes = whole(line, "device_peak_bytes"),
        .host_bytes = whole(line, "host_bytes"),
        .eval_loss = real(line, "eval_loss"),
        .eval_before = real(line, "eval_loss_before"),
        .grad_norm = real(line, "grad_norm"),
        .skipped = json_is_true(json_object_get(line, "skipped")),
        .changed = json_string_value(json_object_get(line, "changed")),
        .memory = sides,
    };

    if (step.step <= r->last) { /* no step, or a repeated one */
        r->n_bad++;
        json_decref(line);
        return;
    }
    r->last = step.step;
    if (json_is_object(json_object_get(memory, "host"))) {
        sides[step.n_memory++] = side_of(json_object_get(memory, "host"), 0, rows[0]);
        if (json_is_object(json_object_get(memory, "device"))) {
            sides[step.n_memory] = side_of(json_object_get(memory, "device"), 1, rows[1]);
            sides[step.n_memory++].budget = whole(memory, "device_budget");
        }
    }
    r->on_step(r->user, &step);
    json_decref(line);
}

/* An overlong line counts as one damaged line. */
static int read_lines(struct reading *r, FILE *file, struct error *err)
{
    char *line = malloc(MAX_LINE);
    bool too_long = false;

    if (!line)
        return error_set(err, -ENOMEM, "out of memory");
    while (fgets(line, MAX_LINE, file)) {
        const size_t n = strlen(line); /* in a damaged file a zero byte may cut the line short */
        const bool ends = n > 0 && line[n - 1] == '\n', goes_on = n == MAX_LINE - 1 && !ends;
        if (too_long || goes_on)
            r->n_bad += too_long ? 0 : 1;
        else if (ends)
            read_line(r, line, n);
        else
            r->n_bad++;
        too_long = goes_on;
    }
    const int rc = ferror(file) ? -errno : 0;
    free(line);
    return rc ? error_set(err, rc, "metrics.jsonl: %s", strerror(-rc)) : 0;
}

static int open_metrics(FILE **out, const char *run, struct error *err)
{
    char path[PATH_MAX];
    struct stat st;

    if (snprintf(path, sizeof path, "%s/metrics.jsonl", run) >= (int)sizeof path)
        return error_set(err, -ENAMETOOLONG, "%.200s: name too long", run);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK in case the name is a pipe */
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR) && stat(run, &st) == 0)
        return error_set(err, -ENOENT, "%s holds no metrics.jsonl: name the directory of a run", run);
    if (fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || !(*out = fdopen(fd, "r"))) {
        close(fd);
        return error_set(err, -EINVAL, "%s: not a regular file", path);
    }
    return 0;
}

int eps_metrics_read(const char *run, void (*on_step)(void *user, const struct eps_step *step), void *user,
                     uint64_t *n_bad, struct eps_error *error)
{
    struct reading reading = {.on_step = on_step, .user = user};
    struct error err = {""};
    FILE *file;
    int rc = open_metrics(&file, run, &err);

    if (!rc) {
        rc = read_lines(&reading, file, &err);
        fclose(file);
    }
    if (n_bad)
        *n_bad = reading.n_bad;
    return client_report(error, &err, rc);
}
