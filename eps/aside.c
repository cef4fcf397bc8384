/* The new thread and the empty job are made before anything of the old job is given up. So if they cannot be made,
 * the daemon is as it was, and stuck until the old thread comes back. */
#include "eps/aside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static unsigned aside_count(const struct daemon *d)
{
    unsigned n = 0;

    for (const struct aside *a = d->asides; a; a = a->next)
        n++;
    return n;
}

/* A job and a thread for the daemon to go on with. */
static int take_new(struct job **job, struct updater **updater, struct daemon *d)
{
    int rc = aside_count(d) < ASIDE_MOST ? 0 : -EAGAIN;

    *job = rc ? NULL : calloc(1, sizeof **job);
    if (!rc && !*job)
        rc = -ENOMEM;
    if (!rc)
        rc = updater_start(updater, &(*job)->store, d->observer.n_threads, daemon_wake, d);
    if (rc)
        free(*job);
    return rc;
}

static void say_stuck(struct daemon *d, int rc)
{
    if (d->stuck)
        return;
    d->stuck = true;
    log_error("job %u hangs while it is loaded, and cannot be set aside: %s; no job begins until its disk answers",
              d->job->id, rc == -EAGAIN ? "too many are" : strerror(-rc));
    queue_refuse(&d->queue, -EIO, "the daemon waits for the disk of another job, which does not answer");
}

bool aside_put(struct daemon *d)
{
    struct aside *aside;
    struct updater *updater;
    struct job *job, *old = d->job;

    if (old->state != JOB_ENDING || !old->loading || !old->hangs)
        return false;
    aside = calloc(1, sizeof *aside);
    const int rc = aside ? take_new(&job, &updater, d) : -ENOMEM;
    if (rc) {
        free(aside);
        say_stuck(d, rc);
        return false;
    }
    *aside = (struct aside){.next = d->asides,
                            .job = old,
                            .updater = d->peers.updater,
                            .bytes = old->host.total > old->table_bytes ? old->host.total - old->table_bytes : 0};
    d->asides = aside;
    d->peers.aside_bytes += aside->bytes;
    ledger_add(&d->peers.ledger, LEDGER_OTHER, aside->bytes);
    if (old->closing && old->client)
        session_send(old->client->session, &(struct message){.kind = MESSAGE_CLOSE});
    old->closing = false;
    old->client = NULL;
    steps_free(&d->steps);
    save_free(&d->saves);
    peer_forget_plans(d->peers.first);
    d->peers.updater = updater;
    d->stuck = false;
    daemon_use_job(d, job);
    log_warning(
        "job %u is set aside: the thread that loads it hangs, and keeps its memory; the next job gets another thread",
        old->id);
    return true;
}

static void aside_drop(struct daemon *d, struct aside **at)
{
    struct aside *aside = *at;

    updater_stop(aside->updater);
    *at = aside->next;
    ledger_sub(&d->peers.ledger, LEDGER_OTHER, aside->bytes);
    d->peers.aside_bytes -= aside->bytes;
    log_line("job %u, set aside, has given its memory back", aside->job->id);
    job_free(aside->job);
    free(aside->job);
    free(aside);
}

bool aside_go_on(struct daemon *d)
{
    struct updater_task work;

    for (struct aside **at = &d->asides; *at; at = &(*at)->next) {
        struct aside *aside = *at;
        if (!updater_take(aside->updater, &work))
            continue;
        if (aside->unloading) {
            aside_drop(d, at);
            return true;
        }
        aside->unloading = true;
        job_unload(aside->job, aside->updater);
        return true;
    }
    return false;
}
