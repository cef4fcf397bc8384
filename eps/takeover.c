/* A job that can be saved goes on until its version rests: what workers do beyond a saved version would be lost. If
 * the save fails, it is tried again every RETRY_TICKS, however long: a disk may be emptied, while the model of an
 * ended job is gone. */
#include "eps/takeover.h"

#include "eps/base/rights.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum {
    RETRY_TICKS = 60, /* between two attempts to save without a client */
    BLOCK_TICKS = 60, /* that others wait for a job without a client which cannot be saved */
    ASKED_TICKS = 30, /* that a client which was asked to save may be away: half of PATIENCE_TICKS */
};

/* ---- the client has gone ----------------------------------------------------------------------------------------- */

/* It did not leave on purpose. A switch over all ends, so that a new one must be judged here. */
static bool has_died(enum message_end end)
{
    switch (end) {
    case END_CLOSED:
        return false;
    case END_FAULT:
    case END_SILENT:
    case END_UNREAD:
    case END_TURNED_AWAY:
    case END_LOST:
    case END_UNANSWERED:
    case END_BROKEN:
    case END_DISMISSED:
        break;
    }
    return true;
}

/* Nobody takes over the job of a private daemon. So it is kept only to be saved. */
static bool is_worth_saving(const struct job *job)
{
    const bool has_steps = job->state == JOB_STEPPING || job->step > job->request.job.step;

    return job->request.job.saves && job->output >= 0 && has_steps;
}

/* The side file has what a new client must know: the run's options. */
static bool is_kept(const struct daemon *d, const struct peer *client, enum message_end end)
{
    const struct job *job = d->job;

    if (d->stopping || client->refused || !has_died(end) || (d->peers.is_private && !is_worth_saving(job)))
        return false;
    if ((d->asked || job->asked) && job->output < 0)
        return false;
    return job_is_open(job) && job_trains(job) && file_is_open(&job->side_file);
}

/* The job stays open, and its workers go on with what was requested. Saves that need its files end; another client may
 * request them anew. */
void takeover_on_client_gone(struct daemon *d, const struct peer *client, enum message_end end)
{
    struct job *job = d->job;

    job->client = NULL;
    job->yields = false;
    if (!is_kept(d, client, end)) {
        job_end(job, -ECANCELED, "its client is gone");
        return;
    }
    job->detached = true;
    if (!d->peers.is_private)
        log_line("job %u is detached after %" PRIu64 " steps; eps train --attach takes it over", job->id, job->step);
    save_on_client_gone(&d->saves);
}

/* Any message is a sign of life. A job that was about to be ended for its absence goes on. */
void takeover_on_client_heard(struct daemon *d)
{
    struct job *job = d->job;

    if (job->yields)
        log_line("the client of job %u is back", job->id);
    job->away_ticks = 0;
    job->yields = false;
}

/* Without its client, a job can only be saved where the daemon itself has the output directory open. */
bool takeover_can_save(const struct daemon *d)
{
    return d->job->detached && job_is_open(d->job) && d->job->output >= 0 && !d->saves.output_gone;
}

/* ---- a new client ------------------------------------------------------------------------------------------------ */

/* Judged at describe and again at take: between the two, somebody else may have taken the job, or stopped it. */
static int takeover_check(const struct daemon *d, const struct peer *client, uint32_t id, struct error *err)
{
    const struct job *job = d->job;

    if (job->client == client || queue_find_client(&d->queue, client))
        return error_set(err, -EBUSY, "a client has one job at a time");
    if (job->state != JOB_NONE && job->client && (id == 0 || id == job->id))
        return error_set(err, -EBUSY, "job %u of the daemon has a client, pid %d: nothing is to be taken over", job->id,
                         (int)job->pid);
    if (!job->detached || !job_is_open(job) || (id != 0 && id != job->id))
        return error_set(err, -ENOENT,
                         "the daemon has no detached job: eps train --resume DIR continues a run from its checkpoint");
    if (d->asked || job->asked)
        return error_set(err, -ECANCELED, "the detached job is being stopped");
    return rights_take(client, job->uid, err);
}

/* Everything that the first client had passed goes to the new one as descriptors: minibatches, config, options, and
 * where the output goes. The side file is sealed, as its text is the daemon's. */
void takeover_describe(struct daemon *d, struct peer *client, uint32_t id)
{
    const struct job *job = d->job;
    struct message m = {.kind = MESSAGE_DESCRIPTION};
    struct error err;
    int rc = takeover_check(d, client, id, &err);
    const int side = rc ? -1 : segment_seal("side file", job->side_text, job->side_bytes, &err);
    const int fds[] = {job->data.fd, job->config.fd, side, job->output};

    if (!rc && side < 0)
        rc = side;
    if (rc) {
        peer_decline(client, rc, &err);
        return;
    }
    m.description.job = job->id;
    m.description.step = job->step;
    m.description.thawed = job->request.job.thaw == MODEL_THAWED;
    m.description.config_bytes = (uint32_t)job->config_bytes;
    m.description.output = job->output >= 0;
    m.description.files = job->request.job.files;
    memcpy(m.description.out, job->request.job.out, sizeof m.description.out);
    m.description.n_parameters = job->model.n_parameters;
    m.description.n_workers = job->n_seats; /* vacant ones too: a client refuses a daemon without workers */
    m.description.data_bytes = job->data.bytes;
    m.description.choice = job->choice;
    m.description.replay = job->host.replay;
    m.description.entries = job_goal(job)->entries;
    m.description.weighted = job_goal(job)->weighted;
    session_send_fds(client->session, &m, fds, job->output >= 0 ? 4 : 3);
    close(side);
}

/* From here on the client is the job's. What it must know of steps under way is in its answer. */
void takeover_take(struct daemon *d, struct peer *client, uint32_t id)
{
    struct job *job = d->job;
    struct message m = {.kind = MESSAGE_TAKEN};
    struct error err;
    int rc = takeover_check(d, client, id, &err);

    if (!rc && job->state == JOB_EVALUATING) /* its end would be reported to a client that did not ask for it */
        rc = error_set(&err, -EAGAIN, "the daemon finishes an evaluation");
    if (!rc && job->request.job.files && !client->files)
        rc = error_set(&err, -EINVAL, "the job's client serves the files of its checkpoints");
    if (rc) {
        peer_decline(client, rc, &err);
        return;
    }
    job->detached = job->warned = false;
    job->block_ticks = job->away_ticks = 0;
    job->client = client;
    if (job->request.job.files) {
        files_release(job->files);
        job->files = client->files;
        client->files = NULL;
    }
    job->pid = session_peer_pid(client->session);
    log_line("client %u takes job %u over after %" PRIu64 " steps", client->id, job->id, job->step);
    steps_announce_taken(&d->steps, &m);
    session_send(client->session, &m);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Once for each user: whoever insists, after having read it, loses the steps. */
int takeover_warn(struct daemon *d, const struct peer *viewer, struct error *err)
{
    struct job *job = d->job;
    const uid_t user = session_peer_uid(viewer->session);

    if (!job->detached || !job_is_open(job) || job->output >= 0 || !job_has_output(job) ||
        (job->warned && job->warned_user == user))
        return 0;
    job->warned = true;
    job->warned_user = user;
    return error_set(
        err, -EBUSY,
        "job %u of user %u is detached after %" PRIu64
        " steps, and only a client of that user can save it: eps train --attach takes it over; stop it again "
        "to end it without a checkpoint",
        job->id, (unsigned)job->uid, job->step);
}

/* As daemon_ask_to_stop, for one job: the first request gives it time to save, a second of the same viewer does not. */
static int stop_running(struct daemon *d, struct peer *viewer, struct error *err)
{
    struct job *job = d->job;
    const struct message m = {.kind = MESSAGE_STOP, .stop.job = job->id};
    const bool again = viewer->stops_job == job->id;
    const int rc = job->asked ? 0 : takeover_warn(d, viewer, err);

    if (rc || job->state == JOB_ENDING)
        return rc;
    viewer->stops_job = job->id;
    if (job->asked && !again)
        return 0;
    if (job->asked || (job->detached && !takeover_can_save(d)) || !job_is_open(job) || !job_trains(job)) {
        job_end(job, -ECANCELED, "the job was stopped by request");
        return 0;
    }
    job->asked = true;
    log_line("the end of job %u is requested; it has %d s to save", job->id, PATIENCE_TICKS);
    job_announce(job, &m);
    return 0;
}

/* The client hears of it as of a refused job, and is still attached. */
static void take_out(struct daemon *d, struct queue_entry *entry)
{
    struct error err;

    error_set(&err, -ECANCELED, "job %u was taken out of the queue by request", entry->job);
    log_line("client %u: %s", entry->client->id, err.text);
    peer_decline(entry->client, -ECANCELED, &err);
    queue_drop(&d->queue, entry);
}

void takeover_stop(struct daemon *d, struct peer *viewer, uint32_t id)
{
    struct queue_entry *entry = queue_find(&d->queue, id);
    const bool runs = d->job->state != JOB_NONE && d->job->id == id;
    struct error err;
    int rc = 0;

    if (!entry && !runs)
        rc = error_set(&err, -ENOENT, "the daemon has no job %u: eps status lists its jobs", id);
    if (!rc)
        rc = rights_job(viewer, entry ? session_peer_uid(entry->client->session) : d->job->uid, &err);
    if (!rc && !entry)
        rc = stop_running(d, viewer, &err);
    if (rc)
        peer_decline(viewer, rc, &err);
    else if (entry)
        take_out(d, entry);
}

/* True if the model's version is that of the last step done, and stays so: no step is open that workers go on with. */
static bool takeover_rests(const struct daemon *d)
{
    const struct job *job = d->job;

    if (job_waits(job))
        return job->state != JOB_STEPPING || relay_cut(job_reader_relay(job)) == job->step;
    return job->state == JOB_RESTING && !d->steps.has_ahead;
}

/* Somebody waits for the end of a job without a client, or whose client is away. */
static bool must_end(const struct daemon *d)
{
    const bool is_awaited = d->asked || d->job->asked || d->queue.first;

    return job_is_open(d->job) && (d->job->detached || d->job->yields) && is_awaited;
}

static void say_away(struct error *out, const struct daemon *d)
{
    if (d->asked || d->job->asked)
        error_set(out, 0, "it was stopped by request, and its client asked for nothing for %d s", ASKED_TICKS);
    else
        error_set(out, 0, "its client asked for nothing for %u s while others waited", d->most_away);
}

/* The end of a job whose client is away. It has made room, and may come again, unless somebody stops it. */
static int code_of_away(const struct daemon *d)
{
    return d->asked || d->job->asked ? -ECANCELED : -EAGAIN;
}

static void end_saved(struct daemon *d)
{
    struct job *job = d->job;
    struct error why;

    say_away(&why, d);
    if (job->yields)
        job_end(job, code_of_away(d), "saved and ended after %" PRIu64 " steps: %s", job->step, why.text);
    else
        job_end(job, -ECANCELED, "detached and saved after %" PRIu64 " steps, %s", job->step,
                d->asked || job->asked ? "it was stopped by request" : "it makes room for the next job");
}

/* Runs whenever something has changed. It ends the job at the first moment at which nothing is lost by it: its version
 * rests, and a save of that version stands. */
bool takeover_go_on(struct daemon *d)
{
    struct job *job = d->job;
    struct error err;

    if (!must_end(d))
        return false;
    if (!job_has_output(job)) { /* nothing was promised, and nothing can be kept */
        job_end(job, -ECANCELED, "%s after %" PRIu64 " steps, and its run saves nothing",
                job->detached ? "detached" : "left by its client", job->step);
        return true;
    }
    if (d->saves.output_gone && d->queue.first) {
        job_end(job, -ECANCELED, "%s after %" PRIu64 " steps, and its output directory was removed",
                job->detached ? "detached" : "left by its client", job->step);
        return true;
    }
    if (job->output < 0 || d->saves.output_gone || !takeover_rests(d))
        return false;
    if (save_stands(&d->saves)) {
        end_saved(d);
        return true;
    }
    if (job->rest_ticks > 0)
        return false;
    job->rest_ticks = RETRY_TICKS;
    if (save_without_client(&d->saves, &err))
        log_warning("job %u, which has no client or waits for it, cannot be saved: %s", job->id, err.text);
    return false;
}

/* Others' jobs alone count: a user's own next job may wait for the user's own client. */
static bool others_wait(const struct daemon *d)
{
    for (const struct queue_entry *entry = d->queue.first; entry; entry = entry->next)
        if (session_peer_uid(entry->client->session) != d->job->uid)
            return true;
    return false;
}

/* Nobody can save it but a client of its user, who may be gone for good: others do not wait for that for ever. */
static void tick_blocking(struct daemon *d)
{
    struct job *job = d->job;

    if (!job->detached || !job_is_open(job) || job->output >= 0 || !others_wait(d))
        return;
    if (job->block_ticks == 0)
        log_warning(
            "job %u of user %u is detached, and others wait: it ends in %d s, unsaved, unless eps train --attach "
            "takes it over",
            job->id, (unsigned)job->uid, BLOCK_TICKS);
    if (++job->block_ticks > BLOCK_TICKS)
        job_end(job, -ECANCELED,
                "detached after %" PRIu64 " steps, and nobody took it over while others waited for %d s", job->step,
                BLOCK_TICKS);
}

/* Nothing goes on until the client asks for something. While a checkpoint is written, it may wait for that. */
static bool awaits_client(const struct daemon *d)
{
    return d->job->client && d->job->state == JOB_RESTING && !save_goes_on(&d->saves);
}

/* By what can be kept: nothing, if it does not train or saves nothing; a checkpoint, if the daemon can write it
 * (takeover_go_on then ends it); else it has another BLOCK_TICKS for its client to come back. */
static void give_way(struct daemon *d, unsigned most)
{
    struct job *job = d->job;
    struct error why;

    say_away(&why, d);
    if (!job_trains(job)) {
        job_end(job, -EAGAIN, "the job has ended: %s", why.text);
    } else if (!job_has_output(job)) {
        job_end(job, -ECANCELED, "ended after %" PRIu64 " steps, as its run saves nothing: %s", job->step, why.text);
    } else if (job->output >= 0) {
        log_warning("job %u, pid %d: %s; it is saved, and ends", job->id, (int)job->pid, why.text);
        job->yields = true;
    } else if (job->away_ticks > most + BLOCK_TICKS) {
        job_end(job, code_of_away(d), "ended after %" PRIu64 " steps, unsaved: %s, and only it could save", job->step,
                why.text);
    }
}

/* Ticks count only while somebody waits, and begin anew when nobody does. */
static void tick_away(struct daemon *d)
{
    struct job *job = d->job;
    const bool is_asked = d->asked || job->asked;
    const unsigned most = is_asked && d->most_away > ASKED_TICKS ? ASKED_TICKS : d->most_away;

    if (job->yields)
        job->yields = is_asked || d->queue.first;
    else if (!awaits_client(d) || !(is_asked || d->queue.first))
        job->away_ticks = 0;
    else if (++job->away_ticks > most)
        give_way(d, most);
}

void takeover_tick(struct daemon *d)
{
    struct job *job = d->job;

    tick_blocking(d);
    tick_away(d);
    if (job->rest_ticks > 0)
        job->rest_ticks--;
    if (job->asked && (job->client || takeover_can_save(d)) && ++job->n_ticks > PATIENCE_TICKS)
        job_end(job, -ECANCELED, "the job was stopped by request, and did not save within %d s", PATIENCE_TICKS);
}
