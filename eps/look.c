/* What those who look are told: the job's state, and the memory of both sides. */
#include "eps/daemon.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The directory's path, or the end of one that is too long. */
static void name_output(char *out, size_t cap, int fd)
{
    char link[40], path[4096];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return;
    path[n] = '\0';
    if ((size_t)n < cap)
        memcpy(out, path, (size_t)n + 1);
    else
        snprintf(out, cap, "...%s", path + (size_t)n - (cap - 4));
}

void look_status(struct peer *peer)
{
    static const enum message_state states[] = {
        [JOB_NONE] = STATE_IDLE,        [JOB_LOADING] = STATE_LOADING,       [JOB_ASSIGNING] = STATE_LOADING,
        [JOB_RESTING] = STATE_TRAINING, [JOB_STEPPING] = STATE_TRAINING,     [JOB_EVALUATING] = STATE_EVALUATING,
        [JOB_ENDING] = STATE_STOPPING,  [JOB_GENERATING] = STATE_GENERATING,
    };
    const struct daemon *d = peer->daemon;
    const struct job *job = &d->job;
    struct message m = {.kind = MESSAGE_STATUS_REPLY};

    m.status_reply.state = d->stopping || d->asked ? STATE_STOPPING : states[job->state];
    if (job->state == JOB_RESTING && job->request.job.generate) /* between two tokens */
        m.status_reply.state = STATE_GENERATING;
    m.status_reply.step = job->step;
    m.status_reply.n_steps = job->request.job.n_steps;
    m.status_reply.n_parameters = job->model.n_parameters;
    m.status_reply.n_workers = daemon_count_workers(d);
    m.status_reply.pid = (uint32_t)getpid();
    m.status_reply.uid = job->client ? session_peer_uid(job->client->session) : geteuid();
    m.status_reply.loss = job->state == JOB_NONE ? NAN : job->loss;
    if (job->model.n_units)
        snprintf(m.status_reply.model, sizeof m.status_reply.model, "gpt2 %ux%u, vocabulary %u",
                 job->model.config.n_layers, job->model.config.width, job->model.config.vocabulary);
    m.status_reply.saved_step = job->state == JOB_NONE ? MESSAGE_NO_STEP : job->saved_step;
    m.status_reply.saving = job->saves != NULL;
    memcpy(m.status_reply.trouble, job->trouble, sizeof job->trouble);
    if (job->output >= 0)
        name_output(m.status_reply.out, sizeof m.status_reply.out, job->output);
    session_send(peer->session, &m);
}

/* What the system said of a side; worker 0 is the host. */
static struct pages find_pages(const struct daemon *d, uint32_t worker)
{
    for (unsigned i = 0; i < d->pages.n; i++)
        if (d->pages.sides[i].worker == worker)
            return d->pages.sides[i].pages;
    return (struct pages){0};
}

static void send_memory(struct peer *peer, bool pages)
{
    const struct daemon *d = peer->daemon;
    struct message m = {.kind = MESSAGE_MEMORY_REPLY};
    unsigned left = daemon_count_workers(d);

    snprintf(m.memory_reply.device, sizeof m.memory_reply.device, "host");
    m.memory_reply.last = left == 0;
    m.memory_reply.ledger = d->ledger;
    if (pages)
        m.memory_reply.pages = find_pages(d, 0);
    session_send(peer->session, &m);
    for (const struct peer *p = d->peers; p; p = p->next) {
        if (p->role != ROLE_WORKER)
            continue;
        m.memory_reply.last = --left == 0;
        m.memory_reply.worker = p->id;
        m.memory_reply.budget = p->budget;
        m.memory_reply.ledger = p->ledger;
        memcpy(m.memory_reply.device, p->device, sizeof p->device);
        if (pages)
            m.memory_reply.pages = find_pages(d, p->id);
        session_send(peer->session, &m);
    }
}

/* On a thread of its own: it can take as long as the page tables are large. */
static void read_pages(uv_work_t *work)
{
    struct look_pages *pages = work->data;

    for (unsigned i = 0; i < pages->n; i++)
        pages_read(&pages->sides[i].pages, pages->sides[i].pid, pages->sides[i].worker == 0);
}

static void on_pages(uv_work_t *work, int status)
{
    struct look_pages *pages = work->data;
    struct daemon *d = (struct daemon *)((char *)pages - offsetof(struct daemon, pages));

    (void)status; /* it is never cancelled */
    pages->busy = false;
    pages->read_ms = uv_now(d->loop);
    for (struct peer *p = d->peers; p; p = p->next)
        for (; p->n_asked > 0; p->n_asked--)
            send_memory(p, true);
}

/* Who looks often is told the same again: reading must not become work. */
static bool are_fresh(const struct daemon *d)
{
    enum { FRESH_MS = 1000 };

    return d->pages.n > 0 && uv_now(d->loop) - d->pages.read_ms < FRESH_MS;
}

void look_memory(struct peer *peer, bool pages)
{
    struct daemon *d = peer->daemon;

    if (pages && (d->pages.busy || !are_fresh(d))) {
        peer->n_asked++;
        if (d->pages.busy)
            return;
        d->pages.sides[0] = (struct look_side){.worker = 0, .pid = getpid()};
        d->pages.n = 1;
        for (const struct peer *p = d->peers; p; p = p->next)
            if (p->role == ROLE_WORKER && d->pages.n < LOOK_MAX_SIDES)
                d->pages.sides[d->pages.n++] = (struct look_side){.worker = p->id, .pid = session_peer_pid(p->session)};
        d->pages.work.data = &d->pages;
        d->pages.busy = uv_queue_work(d->loop, &d->pages.work, read_pages, on_pages) == 0;
        if (d->pages.busy)
            return;
        d->pages.n = 0; /* no thread to be had: it is said without */
        peer->n_asked = 0;
    }
    send_memory(peer, pages);
}
