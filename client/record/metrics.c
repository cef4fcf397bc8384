/* Lines are written at places that are kept here (`good`), never at the file's end: a line that the disk took half is
 * written again where it began, and the last one can be replaced. So there is one writer at a time, by the run
 * directory's lock. A line replaces another only if it is longer, so nothing of the old one is left behind it. */
#include "client/record/metrics.h"

#include "client/daemon/observer.h"
#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/ledger.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGITS = 12 }; /* of a real number */

static const char file_name[] = "metrics.jsonl";

int client_metrics_open(struct client_metrics *out, int directory_fd, struct error *err)
{
    const int fd = output_open(directory_fd, file_name, O_RDWR | O_CREAT | O_EXCL);

    *out = (struct client_metrics){.fd = fd < 0 ? -1 : fd};
    if (fd >= 0)
        return 0;
    if (fd == -EEXIST)
        return error_set(err, -EEXIST, "--out holds a run already (%s): choose another directory", file_name);
    return error_set(err, fd, "%s: %s", file_name, strerror(-fd));
}

static int metrics_set(json_t *line, const char *key, json_t *value)
{
    return json_object_set_new(line, key, value ? value : json_null());
}

/* null if nothing was measured: a real step takes time and memory. */
static json_t *bytes_json(uint64_t bytes)
{
    return bytes ? json_integer((json_int_t)bytes) : NULL;
}

/* {"host": {CATEGORY: bytes, ...}, "device": {...}, "device_budget": bytes} */
static json_t *memory_json(const struct eps_step *step)
{
    json_t *sides = json_object();

    for (size_t i = 0; i < step->n_memory; i++) {
        const struct eps_memory *side = &step->memory[i];
        json_t *categories = json_object();
        for (size_t k = 0; k < side->n_rows; k++) {
            if (side->rows[k].current > 0)
                json_put(&categories, side->rows[k].category, json_integer((json_int_t)side->rows[k].current));
        }
        json_put(&sides, side->worker ? "device" : "host", categories);
        if (side->worker && side->budget > 0)
            json_put(&sides, "device_budget", json_integer((json_int_t)side->budget));
    }
    return sides;
}

static int set_evaluation(json_t *line, double loss, const struct eps_score *scores, size_t n_scores)
{
    int rc = metrics_set(line, "eval_loss", json_real(loss));

    for (size_t i = 0; i < n_scores; i++) {
        char key[32];
        snprintf(key, sizeof key, "eval_%s", scores[i].name);
        rc |= metrics_set(line, key, json_real(scores[i].value));
    }
    return rc;
}

/* json_real returns NULL for a number that is not finite. */
static json_t *line_of(const struct eps_step *step)
{
    json_t *line = json_object();
    int rc = 0;

    rc |= metrics_set(line, "step", json_integer((json_int_t)step->step));
    rc |= metrics_set(line, "time", json_real(step->time));
    rc |= metrics_set(line, "loss", json_real(step->loss));
    rc |= metrics_set(line, "lr", json_real(step->lr));
    rc |= metrics_set(line, "tokens", json_integer((json_int_t)step->tokens));
    if (step->pixels > 0)
        rc |= metrics_set(line, "pixels", json_integer(step->pixels));
    rc |= metrics_set(line, "tokens_per_s", json_real(step->tokens_per_s));
    rc |= metrics_set(line, "step_ms", json_real(step->step_ms));
    rc |= metrics_set(line, "device_peak_bytes", bytes_json(step->device_peak_bytes));
    rc |= metrics_set(line, "host_bytes", bytes_json(step->host_bytes));
    if (!isnan(step->eval_loss))
        rc |= set_evaluation(line, step->eval_loss, step->scores, step->n_scores);
    for (size_t i = 0; i < step->n_rewards; i++)
        rc |= metrics_set(line, step->rewards[i].name, json_real(step->rewards[i].value));
    if (isfinite(step->eval_before))
        rc |= metrics_set(line, "eval_loss_before", json_real(step->eval_before));
    if (isfinite(step->grad_norm))
        rc |= metrics_set(line, "grad_norm", json_real(step->grad_norm));
    if (step->skipped)
        rc |= metrics_set(line, "skipped", json_true());
    if (step->loss_scale > 0)
        rc |= metrics_set(line, "loss_scale", json_real(step->loss_scale));
    if (step->changed)
        rc |= metrics_set(line, "changed", json_string(step->changed));
    if (step->n_memory > 0)
        rc |= json_object_set_new(line, "memory", memory_json(step)); /* never null */
    if (rc) {
        json_decref(line);
        return NULL;
    }
    return line;
}

/* A longer line follows, which covers the old one in the file. */
static void take_back_last(struct client_metrics *m)
{
    if (m->n_pending)
        m->n_pending -= m->last;
    else
        m->good -= (off_t)m->last;
}

/* Takes the reference to line; NULL: no memory. It replaces the last one, or follows it. A line that is lost stands for
 * none that could be replaced; the one that it was to replace stays. */
static int append_line(struct client_metrics *m, json_t *line, bool replaces)
{
    char *text = line ? json_dumps(line, JSON_REAL_PRECISION(DIGITS)) : NULL;
    const size_t n = text ? strlen(text) : 0;
    int rc = text ? 0 : -ENOMEM;

    json_decref(line);
    if (!rc && m->cap < m->n_pending + n + 1) {
        const size_t cap = 2 * (m->n_pending + n + 1);
        char *pending = realloc(m->pending, cap);
        if (pending)
            m->pending = pending, m->cap = cap;
        else
            rc = -ENOMEM;
    }
    if (!rc && replaces)
        take_back_last(m);
    if (rc && !replaces)
        m->last = 0;
    if (!rc) {
        memcpy(m->pending + m->n_pending, text, n);
        m->pending[m->n_pending + n] = '\n';
        m->n_pending += n + 1;
        m->last = n + 1;
    }
    free(text);
    return rc;
}

double client_metrics_round(double value)
{
    char text[40];

    snprintf(text, sizeof text, "%.*g", DIGITS, value);
    return strtod(text, NULL);
}

/* `good` moves once all is written; until then the same bytes are written to the same place again. */
int client_metrics_flush(struct client_metrics *m, struct error *err)
{
    struct stat st;
    size_t done = 0;

    while (done < m->n_pending) {
        const ssize_t n = pwrite(m->fd, m->pending + done, m->n_pending - done, m->good + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(err, n ? -errno : -EIO, "%s: %s", file_name, strerror(n ? errno : EIO));
        done += (size_t)n;
    }
    if (fstat(m->fd, &st) == 0 && st.st_nlink == 0) /* the file was removed: writes succeed, but nobody can read them */
        return error_set(err, -ENOENT, "%s: it was removed while the run was writing it", file_name);
    m->good += (off_t)done;
    m->n_pending = 0;
    return 0;
}

static int metrics_write_line(struct client_metrics *m, json_t *line, bool replaces, struct error *err)
{
    const int rc = append_line(m, line, replaces);

    return rc ? error_set(err, rc, "%s: out of memory", file_name) : client_metrics_flush(m, err);
}

int client_metrics_write(struct client_metrics *m, const struct eps_step *step, struct error *err)
{
    return metrics_write_line(m, line_of(step), false, err);
}

int client_metrics_rewrite(struct client_metrics *m, const struct eps_step *step, struct error *err)
{
    return metrics_write_line(m, line_of(step), true, err);
}

/* The last line in the file; owned. NULL: it cannot be read. */
static json_t *read_last(const struct client_metrics *m)
{
    char *text = malloc(m->last + 1);
    const ssize_t n = text ? pread(m->fd, text, m->last, m->good - (off_t)m->last) : -1;
    json_t *line = n == (ssize_t)m->last ? json_loadb(text, m->last, JSON_REJECT_DUPLICATES, NULL) : NULL;

    free(text);
    return line;
}

int client_metrics_add_evaluation(struct client_metrics *m, double loss, const struct eps_score *scores,
                                  size_t n_scores, struct error *err)
{
    json_t *old = read_last(m), *line = json_object(), *value;
    const char *key;
    int rc = line ? 0 : -ENOMEM;

    if (!old)
        rc = -EIO;
    json_object_foreach(old, key, value)
    {
        rc = rc ? rc : json_object_set(line, key, value);
        if (!rc && strcmp(key, "host_bytes") == 0) /* as line_of has it */
            rc = set_evaluation(line, loss, scores, n_scores);
    }
    json_decref(old);
    if (!rc && !json_object_get(line, "eval_loss"))
        rc = set_evaluation(line, loss, scores, n_scores);
    if (rc) {
        json_decref(line);
        return error_set(err, rc, "%s: its last line could not be read again", file_name);
    }
    return metrics_write_line(m, line, true, err);
}

/* The step of a complete line; 0 if it has none. */
static uint64_t metrics_step_of(const char *line, size_t n)
{
    json_t *object = n > 0 && line[n - 1] == '\n' ? json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const json_int_t step = json_integer_value(json_object_get(object, "step"));

    json_decref(object);
    return step > 0 ? (uint64_t)step : 0;
}

/* Finds the end of the lines up to step `most`: of the last line before the first one that is beyond it. *last is the
 * last of these steps. Damaged lines between them stay, and so do lines whose step does not rise: readers pass over
 * both. */
static int metrics_find_end(struct client_metrics *m, uint64_t most, uint64_t *last)
{
    int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0), rc = 0;
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    char *line = NULL;
    size_t cap = 0;
    off_t at = 0;
    ssize_t n;

    if (!file) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *last = 0;
    while ((n = getline(&line, &cap, file)) > 0) {
        const uint64_t step = metrics_step_of(line, (size_t)n);
        if (step > most)
            break;
        at += n;
        if (step <= *last)
            continue;
        *last = step;
        m->last = (size_t)n;
        m->good = at;
    }
    rc = ferror(file) ? -EIO : 0;
    free(line);
    fclose(file);
    return rc;
}

static int open_again(struct client_metrics *out, int directory_fd, struct error *err)
{
    const int fd = output_open(directory_fd, file_name, O_RDWR | O_CREAT);
    struct stat st;

    *out = (struct client_metrics){.fd = fd < 0 ? -1 : fd};
    if (fd < 0 && fd != -ELOOP)
        return error_set(err, fd, "%s: %s", file_name, strerror(-fd));
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) { /* a pipe or /dev/full has no end to find */
        client_metrics_close(out);
        return error_set(err, -EINVAL, "%s: not a regular file: move it away", file_name);
    }
    return 0;
}

int client_metrics_check(int directory_fd, struct error *err)
{
    struct client_metrics metrics;
    int rc = open_again(&metrics, directory_fd, err);

    client_metrics_close(&metrics);
    return rc;
}

int client_metrics_reopen(struct client_metrics *out, int directory_fd, uint64_t step,
                          bool (*fill)(void *data, struct eps_step *lost), void *data, struct error *err)
{
    uint64_t last = 0;
    int rc = open_again(out, directory_fd, err);

    if (rc)
        return rc;
    rc = metrics_find_end(out, step, &last);
    if (!rc && ftruncate(out->fd, out->good))
        rc = -errno;
    if (rc) {
        client_metrics_close(out);
        return error_set(err, rc, "%s could not be cut back: %s", file_name, strerror(-rc));
    }
    while (fill && !rc && last < step) {
        struct eps_step lost = {.time = NAN,
                                .loss = NAN,
                                .lr = NAN,
                                .tokens_per_s = NAN,
                                .step_ms = NAN,
                                .eval_loss = NAN,
                                .eval_before = NAN,
                                .grad_norm = NAN};
        lost.step = last + 1;
        last++;
        if (fill(data, &lost))
            rc = append_line(out, line_of(&lost), false);
    }
    if (!rc)
        return client_metrics_flush(out, err);
    client_metrics_close(out);
    return error_set(err, rc, "%s: out of memory", file_name);
}

void client_metrics_close(struct client_metrics *metrics)
{
    if (metrics->fd >= 0)
        close(metrics->fd);
    free(metrics->pending);
    *metrics = (struct client_metrics){.fd = -1};
}

/* ---- Reading: metrics.jsonl of any run, even while it is being written, cut off or damaged ---- */

enum { MAX_LINE = 64 << 10, MAX_ROWS = 2 * LEDGER_CATEGORIES, MAX_SCORES = 16 };

static double real(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static uint64_t metrics_whole(const json_t *line, const char *key)
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

struct scores {
    struct eps_score scores[MAX_SCORES], rewards[MAX_SCORES]; /* names are borrowed from the line */
    size_t n_scores, n_rewards;
};

/* What a task adds to a line, as set_evaluation and line_of write it. */
static void find_scores(struct scores *out, json_t *line)
{
    const char *key;
    json_t *value;

    *out = (struct scores){.n_scores = 0};
    json_object_foreach(line, key, value)
    {
        const bool held_out = strncmp(key, "eval_", 5) == 0 && strncmp(key, "eval_loss", 9) != 0;
        const bool reward = strncmp(key, "rewards/", 8) == 0 || strncmp(key, "logps/", 6) == 0;
        const struct eps_score score = {held_out ? key + 5 : key,
                                        json_is_number(value) ? json_number_value(value) : NAN};
        if (held_out && out->n_scores < MAX_SCORES)
            out->scores[out->n_scores++] = score;
        else if (reward && out->n_rewards < MAX_SCORES)
            out->rewards[out->n_rewards++] = score;
    }
}

struct reading {
    void (*on_step)(void *user, const struct eps_step *step);
    void *user;
    uint64_t last, n_bad;
};

/* What a step borrows belongs to the line, which ends with on_step. */
static void metrics_read_line(struct reading *r, const char *text, size_t n)
{
    struct eps_memory_row rows[2][MAX_ROWS];
    struct eps_memory sides[2];
    struct scores scores;
    json_t *line = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL), *memory = json_object_get(line, "memory");
    struct eps_step step = {
        .step = metrics_whole(line, "step"),
        .time = real(line, "time"),
        .loss = real(line, "loss"),
        .lr = real(line, "lr"),
        .tokens = metrics_whole(line, "tokens"),
        .tokens_per_s = real(line, "tokens_per_s"),
        .pixels = metrics_whole(line, "pixels") <= UINT32_MAX ? (uint32_t)metrics_whole(line, "pixels") : 0,
        .step_ms = real(line, "step_ms"),
        .device_peak_bytes = metrics_whole(line, "device_peak_bytes"),
        .host_bytes = metrics_whole(line, "host_bytes"),
        .eval_loss = real(line, "eval_loss"),
        .eval_before = real(line, "eval_loss_before"),
        .grad_norm = real(line, "grad_norm"),
        .skipped = json_is_true(json_object_get(line, "skipped")),
        .loss_scale = json_number_value(json_object_get(line, "loss_scale")),
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
            sides[step.n_memory++].budget = metrics_whole(memory, "device_budget");
        }
    }
    find_scores(&scores, line);
    step.scores = scores.scores, step.n_scores = scores.n_scores;
    step.rewards = scores.rewards, step.n_rewards = scores.n_rewards;
    r->on_step(r->user, &step);
    json_decref(line);
}

/* An overlong line counts as one damaged line. */
static int read_lines(struct reading *r, FILE *file, struct error *err)
{
    char *line = malloc(MAX_LINE);
    bool too_long = false;

    if (!line)
        return error_memory(err);
    while (fgets(line, MAX_LINE, file)) {
        const size_t n = strlen(line); /* in a damaged file a zero byte may cut the line short */
        const bool ends = n > 0 && line[n - 1] == '\n', goes_on = n == MAX_LINE - 1 && !ends;
        if (too_long || goes_on)
            r->n_bad += too_long ? 0 : 1;
        else if (ends)
            metrics_read_line(r, line, n);
        else
            r->n_bad++;
        too_long = goes_on;
    }
    const int rc = ferror(file) ? -errno : 0;
    free(line);
    return rc ? error_set(err, rc, "metrics.jsonl: %s", strerror(-rc)) : 0;
}

static int metrics_open_metrics(FILE **out, const char *run, struct error *err)
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
    int rc = metrics_open_metrics(&file, run, &err);

    if (!rc) {
        rc = read_lines(&reading, file, &err);
        fclose(file);
    }
    if (n_bad)
        *n_bad = reading.n_bad;
    return client_report(error, &err, rc);
}
