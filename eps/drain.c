/* A stop with time to save is told from one without before anything ends. On one host the caller says which. On
 * several, SIGTERM comes alike from a launcher that was stopped and from one that ends those that a loss has left. So
 * the hosts compare who was told (daemon_judge), and save only if none of them is silent, as each has units that
 * nobody else has. */
#include "eps/drain.h"

#include "eps/aside.h"
#include "eps/job/damage.h"
#include "eps/step/audits.h"
#include "eps/step/membership.h"
#include "eps/takeover.h"
#include "proto/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- the parts' job ---------------------------------------------------------------------------------------------- */

void daemon_wake(void *context)
{
    struct daemon *d = context;

    uv_async_send(&d->peers.wake);
}

/* Parts keep pointers to the job of their own. All are set here, in one place, as eps/aside.c puts an empty job in the
 * place of one that hangs. */
void daemon_use_job(struct daemon *d, struct job *job)
{
    job->peers = &d->peers;
    job_init(job);
    d->job = d->saves.job = d->steps.job = d->watch.job = job;
    d->observer.job = job;
}

/* ---- stopping --------------------------------------------------------------------------------------------------- */

/* Stopping may close a handle twice: libuv forbids that. */
static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Only once, whoever asks again. The queue is refused before the job ends, since drain_go_on would begin the next one.
 * Memory is not freed here: drain_end does that, once job, threads and hosts have come to rest. */
void daemon_stop(struct daemon *d, const char *why)
{
    if (d->stopping)
        return;
    d->stopping = d->observer.stopping = true;
    log_line("stopping: %s", why);
    if (d->sharded)
        sharded_stop(d->sharded);
    queue_refuse(&d->queue, -ECANCELED, "the daemon was stopped");
    job_end(d->job, d->by_loss ? -EIO : -ECANCELED, "the daemon was stopped %s", why);
    if (d->port)
        port_unlisten(d->port);
    session_unlisten(d->listener, NULL); /* first: whoever is sent away finds no daemon a moment later */
    for (struct peer *p = d->peers.first; p; p = p->next)
        session_close(p->session);
    process_hold_signals(); /* a late one would end what other hosts, or the files' owner, still wait for */
    close_handle((uv_handle_t *)&d->sigterm);
    close_handle((uv_handle_t *)&d->sigint);
    close_handle((uv_handle_t *)&d->sighup);
    close_handle((uv_handle_t *)&d->sigusr1);
    close_handle((uv_handle_t *)&d->judge);
}

/* Ends nothing itself if there is something to save: it tells the client, which saves and closes the job, and
 * daemon_tick ends the wait for that. A second request from the same caller (`again`) does not wait. */
void daemon_ask_to_stop(struct daemon *d, const char *why, bool again)
{
    const struct job *job = d->job;

    if (d->stopping || (d->asked && !again))
        return;
    const bool can_save =
        (job->client && job_trains(job) && (job_is_open(job) || job->state == JOB_ENDING)) || takeover_can_save(d);
    if (d->asked || !can_save) {
        daemon_stop(d, why);
        return;
    }
    d->asked = why;
    d->observer.stopping = true;
    log_line("stop requested %s; the run has %u s to save", why, d->patience);
    queue_refuse(&d->queue, -ECANCELED, "the daemon was stopped");
    if (job->state != JOB_ENDING)
        job_announce(job, &(struct message){.kind = MESSAGE_STOP});
}

/* A private daemon's client is gone, and nobody can tell it what to do: it saves what it can. Time is given for what
 * has to be written, at RATE bytes a second, which a slow disk manages. */
void daemon_lose_client(struct daemon *d)
{
    static const char why[] = "as its client is gone";
    enum { RATE = 64 << 20 };

    if (!takeover_can_save(d)) {
        daemon_stop(d, why);
        return;
    }
    if (!d->asked)
        d->asked = why;
    d->observer.stopping = true;
    d->patience = d->n_ticks + PATIENCE_TICKS + (unsigned)(d->job->host.total / RATE);
    log_line("the client is gone: the run is saved after %" PRIu64 " steps or the one under way, within %u s",
             d->job->step, d->patience - d->n_ticks);
}

static void on_judge(uv_timer_t *timer)
{
    daemon_judge(timer->data);
    drain_events(timer->data);
}

/* Up to a third of the time that the launcher leaves. */
static void await_others(struct daemon *d, uint64_t most_ms)
{
    enum { LEAST_MS = 100 };
    const uint64_t ms = 1000 * (uint64_t)sharded_grace_s(d->sharded) / 3;

    uv_timer_start(&d->judge, on_judge, ms > most_ms ? most_ms : ms < LEAST_MS ? LEAST_MS : ms, 0);
}

static void hear_of_launcher(struct daemon *d)
{
    enum { ANSWER_MS = 10000 };

    d->told = true;
    await_others(d, ANSWER_MS);
}

/* A launcher that was stopped tells its hosts within milliseconds of each other. True: something has changed. */
static bool judge_early(struct daemon *d)
{
    enum { TOLD_MS = 1000 };
    struct error silent;

    if (!d->told || d->stopping || d->launcher.text[0])
        return false;
    const enum sharded_announced told = sharded_judge(d->sharded, &silent);
    if (told == SHARDED_ALL_ANNOUNCED) {
        daemon_judge(d);
        return true;
    }
    if (told == SHARDED_ONE_SILENT || d->answered)
        return false;
    d->answered = true;
    await_others(d, TOLD_MS);
    return true;
}

void daemon_on_launcher(struct daemon *d)
{
    if (d->stopping)
        return;
    sharded_announce_asked(d->sharded);
    if (!d->told)
        hear_of_launcher(d);
}

void daemon_judge(struct daemon *d)
{
    enum { LAST_S = 2 }; /* the grace's last seconds are for an orderly end; a tick may be a second late */
    const unsigned grace_s = sharded_grace_s(d->sharded);
    struct error silent;
    bool can_save = grace_s >= LAST_S;

    if (d->stopping || d->launcher.text[0])
        return;
    switch (sharded_judge(d->sharded, &silent)) {
    case SHARDED_ALL_ANNOUNCED:
        error_set(&d->launcher, 0, "by SIGTERM to all hosts: the launcher was stopped itself");
        break;
    case SHARDED_SOME_ANNOUNCED:
        error_set(&d->launcher, 0, "by SIGTERM to some of its hosts");
        d->by_loss = true;
        break;
    case SHARDED_ONE_SILENT:
        error_set(&d->launcher, 0, "by SIGTERM from the launcher; %s did not answer in time: it is lost, or slow",
                  silent.text);
        d->by_loss = true;
        can_save = false; /* nobody else has its units */
        break;
    }
    uv_timer_stop(&d->judge);
    if (!can_save) {
        daemon_stop(d, d->launcher.text);
        return;
    }
    if (d->patience > d->n_ticks + grace_s - LAST_S)
        d->patience = d->n_ticks + grace_s - LAST_S;
    if (d->asked)
        return;
    if (d->peers.host == 0) {
        daemon_ask_to_stop(d, d->launcher.text, false);
    } else {
        d->asked = d->launcher.text;
        log_line("stop requested %s; the run of host 0 has %u s to save", d->asked, d->patience);
    }
}

/* Its socket tells of the client's end, unless a child of the client's holds that; or no client has come yet. */
static void follow_parent(struct daemon *d)
{
    struct peer *client = peer_find(d->peers.first, d->first_client);

    if (!d->peers.is_private || process_is_child_of(d->parent))
        return;
    if (d->stopping && ++d->end_ticks > PATIENCE_TICKS) {
        log_error("stopping has taken %u s, as a disk or a thread does not answer: the daemon ends", d->end_ticks);
        _exit(1);
    }
    if (client && d->job->client == client)
        session_turn_away(client->session, "its process has ended");
    else if (!d->asked)
        daemon_stop(d, "as the process that started it has ended");
}

void daemon_tick(struct daemon *d)
{
    follow_parent(d);
    if (d->asked && !d->stopping && ++d->n_ticks > d->patience)
        daemon_stop(d, d->asked);
    takeover_tick(d);
    job_tick(d->job);
}

/* ---- jobs, one after another ------------------------------------------------------------------------------------ */

/* The client stays attached, and may ask for another job. */
static void refuse_job(struct peer *client, int code, const struct error *err)
{
    log_warning("client %u: job refused: %s", client->id, err->text);
    peer_decline(client, code, err);
}

static void load_job(struct daemon *d)
{
    struct error err = {""};

    steps_begin(&d->steps);
    if (d->job->state == JOB_ENDING)
        return;
    int rc = steps_init(&d->steps, &err);
    if (!rc)
        rc = save_init(&d->saves, &err);
    if (rc)
        job_end(d->job, rc, "%s", err.text);
    else
        job_load(d->job);
}

static void begin_job(struct daemon *d, struct peer *client, uint32_t id, const struct message *m, const int *fds,
                      unsigned n_fds)
{
    const uint64_t since = uv_hrtime();
    const bool begun = job_begin(d->job, client, m, NULL, fds, n_fds);

    session_charge_time(client->session, uv_hrtime() - since); /* the plan of a huge model takes long */
    d->job->id = id;
    if (!begun)
        return;
    load_job(d);
}

/* Host 0 has a job, which this host shares. */
static bool begin_forwarded(struct daemon *d)
{
    struct forward forward;

    if (!d->sharded || d->job->state != JOB_NONE || !sharded_take_request(d->sharded, &forward))
        return false;
    job_begin(d->job, NULL, &forward.request, &forward.products, forward.fds, forward.n_fds);
    sharded_begun(d->sharded, &forward);
    if (d->job->state == JOB_LOADING)
        load_job(d);
    return true;
}

/* Another daemon stops, or is lost: then this one fails, though it may be stopping already. */
static bool follow_others(struct daemon *d)
{
    struct error silent;
    const char *lost;

    if (d->sharded && d->peers.host == 0 && sharded_is_asked(d->sharded) && !d->told && !d->stopping) {
        hear_of_launcher(d);
        return true;
    }
    if (judge_early(d))
        return true;
    if (!d->sharded || !sharded_is_over(d->sharded, &lost) || (d->stopping && (!lost || d->exit_code)))
        return false;
    if (lost) {
        d->exit_code = -EIO;
        error_set(&d->why, -EIO, "%s", lost);
    }
    d->by_loss = lost || d->by_loss || (d->told && sharded_judge(d->sharded, &silent) != SHARDED_ALL_ANNOUNCED);
    daemon_stop(d, lost ? "another host of this daemon is lost" : "with the other hosts of this daemon");
    return true;
}

/* Descriptors belong to the job or to the queue's entry from here on; only a refusal closes them. A number is used up
 * by an accepted job alone, so numbers follow each other in eps status. */
void daemon_open_job(struct daemon *d, struct peer *client, const struct message *m, const int *fds, unsigned n_fds)
{
    const struct job *job = d->job;
    struct error err;
    int rc;

    if (d->stopping || d->asked) {
        rc = error_set(&err, -ECANCELED, "the daemon is stopping");
    } else if (d->stuck) {
        rc = error_set(&err, -EIO,
                       "job %u hangs, as the disk of its files does not answer: no other job begins until it does",
                       job->id);
    } else if (d->peers.host > 0) {
        rc = error_set(&err, -EBUSY, "this is host %u of a daemon on %u hosts: host 0 takes jobs", d->peers.host,
                       d->peers.n_hosts);
    } else if (d->peers.is_private && client->id != d->first_client) {
        rc = error_set(&err, -EBUSY, "the daemon is busy with the run that started it; start a daemon of your own");
    } else if (queue_find_client(&d->queue, client) || (job->client == client && job->state != JOB_ENDING)) {
        rc = error_set(&err, -EBUSY, "a client has one job at a time");
    } else if (job->state == JOB_NONE) {
        begin_job(d, client, ++d->n_jobs, m, fds, n_fds);
        return;
    } else {
        rc = queue_add(&d->queue, client, d->n_jobs + 1, m, fds, n_fds, &err);
        d->n_jobs += rc == 0;
    }
    if (!rc)
        return;
    job_close_fds(fds, n_fds);
    refuse_job(client, rc, &err);
}

/* ---- the order of an iteration ---------------------------------------------------------------------------------- */

static void drain_on_event(struct daemon *d, const struct event *event)
{
    switch (event->kind) {
    case EVENT_ANNOUNCED:
        steps_feed_reader(&d->steps, &(struct relay_event){.kind = RELAY_SAVE, .reader = event->reader});
        break;
    case EVENT_WRITTEN:
        save_on_written(&d->saves);
        break;
    }
}

/* The optimizer thread runs more than folds. Whoever gave it a call is known by the function. */
static void on_work(struct daemon *d, const struct updater_task *work)
{
    switch (work->kind) {
    case UPDATER_CALL:
        if (work->call == steps_do_rewire) {
            steps_on_rewired(&d->steps);
        } else if (work->call == damage_do_look) {
            damage_on_looked(d->job);
            audits_on_looked(&d->steps);
        } else if (work->call == damage_do_look_at_weights) {
            damage_on_weights(d->job);
        } else {
            job_on_called(d->job, work);
        }
        break;
    case UPDATER_FOLD:
    case UPDATER_UPDATE:
    case UPDATER_CHECK:
        steps_on_optimizer(&d->steps, work);
        break;
    }
}

/* Moves an ending job as far towards its end as possible. True: the job has ended. Once nobody uses its memory, the
 * optimizer thread gives the memory back; then the rest is freed. */
static bool drain_end_job(struct daemon *d)
{
    struct job *job = d->job;
    struct peer *client;

    if (aside_put(d))
        return true;
    if (job->state != JOB_ENDING || d->saves.first || job_is_in_use(job))
        return false;
    if (!job->unloaded) {
        job_unload(job, d->peers.updater);
        return false;
    }
    d->stuck = false;
    peer_forget_plans(d->peers.first);
    steps_free(&d->steps);
    save_free(&d->saves);
    client = job_free(job);
    if (client)
        session_send(client->session, &(struct message){.kind = MESSAGE_CLOSE});
    return true;
}

/* After a job: stops if that was requested while it ran, else begins the job that has waited longest. */
static void drain_go_on(struct daemon *d)
{
    struct queue_entry *entry;

    if (d->asked && d->peers.host == 0) { /* which tells the others, once its client knows of the end */
        daemon_stop(d, d->asked);
    } else if ((entry = queue_take(&d->queue))) {
        begin_job(d, entry->client, entry->job, &entry->request, entry->fds, entry->n_fds);
        free(entry);
    }
}

/* Closes the last handles, so that the loop ends, once nobody needs them. */
static void drain_end(struct daemon *d)
{
    const bool busy = d->job->state != JOB_NONE || updater_pending(d->peers.updater);

    if (!d->stopping || d->peers.first || (busy && !d->stuck) || (d->sharded && sharded_is_busy(d->sharded)))
        return;
    close_handle((uv_handle_t *)&d->peers.wake);
    close_handle((uv_handle_t *)&d->tick);
}

/* Does the first of these that is due; false: none is.
 *   0. The end of a job whose memory is damaged. It comes first: nothing else is to be blamed, saved or told meanwhile.
 *   1. A posted event. A save's version was fixed when the save was requested, by the relay's state then. So its reader
 *      is announced before anything else reaches the relay.
 *   2. The release of a written unit. It comes before anything more is opened or folded: the unit's next fold may free
 *      the slot that a worker, and so the step, waits for.
 *   3. Places of sparse weights, which change once a step is updated and no save reads what was before. Then the step
 *      ahead. Workers have begun it already. The relay hears of it once the step before is covered, and before
 *      an update of that step ends. So the job does not rest between two steps that were both requested.
 *   4. What is due of the workers (membership_go_on): one that leaves is dismissed, the relay hears of a loss, a seat's
 *      memory is made anew, a worker gives its seat back, an idle worker takes one, or one is planned anew for more
 *      parts.
 *   5. The end of a detached job that has to make room. Nothing that is ready may be left in its last step.
 *   6. What other hosts sent, and what their relay leaves to be done: local hears of a fold before it hears of the
 *      update that follows. Then this daemon stops if they do, or begins the job that host 0 has.
 *   7. A finished task of a thread whose job was set aside.
 *   8. A finished task of the optimizer thread. It comes last because it may end the job. */
static bool drain_take_next(struct daemon *d)
{
    struct relay_event released;
    struct event event;
    struct updater_task work;

    if (damage_end(d->job))
        return true;
    else if (event_take(&d->peers, &event))
        drain_on_event(d, &event);
    else if (save_take_released(&d->saves, &released))
        steps_feed_reader(&d->steps, &released);
    else if (steps_rewire(&d->steps) || steps_begin_ahead(&d->steps))
        return true;
    else if (membership_go_on(&d->steps))
        return true;
    else if (takeover_go_on(d))
        return true;
    else if (d->sharded && sharded_go_on(d->sharded))
        return true;
    else if (follow_others(d) || begin_forwarded(d))
        return true;
    else if (aside_go_on(d))
        return true;
    else if (updater_take(d->peers.updater, &work))
        on_work(d, &work);
    else
        return false;
    return true;
}

/* Runs once none of those is due. In this order:
 *   9. Saves of an ending job. All its folds are done, so no save gets another unit. Saves that lack one are given up.
 *  10. The writer's next task. It comes this late to include every unit that is ready. It comes after 9, so that saves
 *      that were given up are discarded instead of written on.
 *  11. The job's end, once no save, worker, optimizer thread or other host uses its memory. It comes after 10, which
 *      decides whether a save still uses it. The next job may end at once: then all of this runs again. */
static bool come_to_rest(struct daemon *d)
{
    if (d->job->state == JOB_ENDING && !updater_pending(d->peers.updater))
        save_on_job_over(&d->saves);
    save_pump(&d->saves);
    if (!drain_end_job(d))
        return false;
    drain_go_on(d);
    return true;
}

/* Each of the loop's callbacks ends here. So all its changes come to rest before the loop calls
 * the next callback or sleeps. No part calls this function or a part above its own: it posts an event, or leaves
 * state to be found. */
void drain_events(struct daemon *d)
{
    do {
        while (drain_take_next(d))
            ;
    } while (come_to_rest(d));
    queue_announce(&d->queue, d->job->state == JOB_ENDING);
    drain_end(d);
}
