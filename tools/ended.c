/* The last line of metrics.jsonl counts, whatever was saved: a run that was killed has done those steps, and its
 * checkpoint says from where it can go on. */
#include "tools/ended.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

static void ended_on_step(void *user, const struct eps_step *step)
{
    struct ended *e = user;

    e->step = step->step;
    e->time = step->time;
    e->loss = step->loss;
    if (!isnan(step->eval_loss))
        e->eval_loss = step->eval_loss, e->eval_step = step->step;
}

uint64_t ended_linked(const char *run, const char *link)
{
    char path[4096 + 32], name[64] = "";
    uint64_t step;

    snprintf(path, sizeof path, "%s/%s", run, link);
    return readlink(path, name, sizeof name - 1) > 0 && sscanf(name, "step-%" SCNu64, &step) == 1 ? step : UINT64_MAX;
}

/* What the newest checkpoint tells: its step, and how many the run was to have. */
static void ended_read_latest(struct ended *e)
{
    char path[sizeof e->out + 32];

    e->saved = ended_linked(e->out, "latest");
    if (e->saved == UINT64_MAX)
        return;
    snprintf(path, sizeof path, "%s/latest/training.json", e->out);
    json_t *training = json_load_file(path, 0, NULL);
    const json_int_t steps = json_integer_value(json_object_get(json_object_get(training, "options"), "steps"));
    e->n_steps = steps > 0 ? (uint64_t)steps : 0;
    json_decref(training);
}

bool ended_read(struct ended *out, const char *address, int rc)
{
    *out = (struct ended){.saved = UINT64_MAX, .time = NAN, .loss = NAN, .eval_loss = NAN};
    if (!address || (rc != -ENOENT && rc != -ECONNREFUSED) ||
        (size_t)snprintf(out->out, sizeof out->out, "%s", address) >= sizeof out->out)
        return false;
    if (eps_metrics_read(address, ended_on_step, out, NULL, NULL) || out->step == 0)
        return false;
    ended_read_latest(out);
    return true;
}

void ended_print(FILE *out, const struct ended *e)
{
    char text[40];
    struct tm local;
    const time_t when = isnan(e->time) ? 0 : (time_t)e->time;

    fprintf(out, "state        ended: no daemon of yours has this run\n");
    fprintf(out, "step         %" PRIu64, e->step);
    if (e->n_steps)
        fprintf(out, " of %" PRIu64, e->n_steps);
    if (!isnan(e->loss))
        fprintf(out, ", loss %.4f", e->loss);
    if (!isnan(e->eval_loss))
        fprintf(out, ", held out %.4f after step %" PRIu64, e->eval_loss, e->eval_step);
    fputc('\n', out);
    if (when && localtime_r(&when, &local) && strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local) > 0)
        fprintf(out, "last step    %s\n", text);
    fprintf(out, "out          %s\n", e->out);
    if (e->saved == UINT64_MAX)
        fprintf(out, "saved        nothing\n");
    else
        fprintf(out, "saved        step %" PRIu64 "\n", e->saved);
}
