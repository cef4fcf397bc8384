#include "client/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <string.h>

int client_metrics_open(struct client_metrics *out, const char *directory, struct error *err)
{
    char path[PATH_MAX];

    *out = (struct client_metrics){0};
    if ((size_t)snprintf(path, sizeof path, "%s/metrics.jsonl", directory) >= sizeof path)
        return error_set(err, -ENAMETOOLONG, "--out %s: name too long", directory);
    out->file = fopen(path, "wxe");
    if (out->file)
        return 0;
    if (errno == EEXIST)
        return error_set(err, -EEXIST, "--out %s holds a run already (metrics.jsonl): choose another directory",
                         directory);
    return error_set(err, -errno, "%s: %s", path, strerror(errno));
}

static int set(json_t *line, const char *key, json_t *value)
{
    return json_object_set_new(line, key, value ? value : json_null());
}

/* json_real gives NULL for what is not finite. */
static json_t *line_of(const struct eps_step *step)
{
    json_t *line = json_object();
    int rc = 0;

    rc |= set(line, "step", json_integer((json_int_t)step->step));
    rc |= set(line, "loss", json_real(step->loss));
    rc |= set(line, "lr", json_real(step->lr));
    rc |= set(line, "tokens", json_integer((json_int_t)step->tokens));
    rc |= set(line, "tokens_per_s", json_real(step->tokens_per_s));
    rc |= set(line, "step_ms", json_real(step->step_ms));
    rc |= set(line, "device_peak_bytes", json_integer((json_int_t)step->device_peak_bytes));
    rc |= set(line, "host_bytes", json_integer((json_int_t)step->host_bytes));
    if (!isnan(step->eval_loss))
        rc |= set(line, "eval_loss", json_real(step->eval_loss));
    if (rc) {
        json_decref(line);
        return NULL;
    }
    return line;
}

int client_metrics_write(struct client_metrics *metrics, const struct eps_step *step, struct error *err)
{
    json_t *line = line_of(step);

    if (!line)
        return error_set(err, -ENOMEM, "out of memory");
    errno = 0;
    int rc = json_dumpf(line, metrics->file, JSON_REAL_PRECISION(12));
    json_decref(line);
    if (rc || fputc('\n', metrics->file) == EOF || fflush(metrics->file))
        return error_set(err, errno ? -errno : -EIO, "metrics.jsonl: %s", strerror(errno ? errno : EIO));
    return 0;
}

void client_metrics_close(struct client_metrics *metrics)
{
    if (metrics->file)
        fclose(metrics->file);
    metrics->file = NULL;
}
