/* Queries to a live daemon: single ones, and over a session that stays open. */
#include "client/daemon/observer.h"
#include "client/member.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICE_MS = 100, ASK_MS = 500 };

struct eps_observer {
    struct client_link link;
    char directory[PATH_MAX];
    struct message reply; /* the caller's struct points into it */
    struct client_saved_wait wait;
    struct eps_unit *units;
    size_t n_units; /* capacity */
    int (*should_stop)(void *user);
    void *user;
};

static int live_ask_stop(void *data, struct error *err)
{
    const struct eps_observer *observer = data;

    return observer->should_stop(observer->user) ? error_set(err, -EINTR, "interrupted") : 0;
}

void eps_observer_close(struct eps_observer *observer)
{
    if (!observer)
        return;
    client_link_free(&observer->link);
    free(observer->units);
    free(observer);
}

int eps_observer_open(struct eps_observer **out, const char *address, int (*should_stop)(void *user), void *user,
                      struct eps_error *error)
{
    struct eps_observer *observer = calloc(1, sizeof *observer);
    struct error err = {""};

    *out = NULL;
    if (!observer)
        return client_report_memory(error);
    observer->should_stop = should_stop;
    observer->user = user;
    int rc = client_link_init(&observer->link, &err);
    if (!rc && should_stop)
        observer->link.watches[1] = (struct client_watch){.ask = live_ask_stop, .data = observer};
    if (!rc)
        rc = client_observer_find(observer->directory, sizeof observer->directory, address, &err);
    if (!rc)
        rc = client_link_open(&observer->link, observer->directory, ROLE_VIEWER, &err);
    if (rc)
        eps_observer_close(observer);
    else
        *out = observer;
    return client_report(error, &err, rc);
}

void eps_observer_notes(struct eps_observer *observer, void (*on_note)(void *user, const char *sentence), void *user)
{
    observer->wait = (struct client_saved_wait){.directory = observer->directory, .on_note = on_note, .user = user};
}

const char *eps_observer_address(const struct eps_observer *observer)
{
    return observer->directory;
}

int eps_observer_status(struct eps_observer *observer, struct eps_status *out, struct eps_error *error)
{
    static const char *const states[] = {
        [STATE_IDLE] = "idle",
        [STATE_LOADING] = "loading",
        [STATE_TRAINING] = "training",
        [STATE_EVALUATING] = "evaluating",
        [STATE_GENERATING] = "generating",
        [STATE_STOPPING] = "stopping",
        [STATE_WAITING] = "waiting for a worker",
        [STATE_DETACHED] = "detached",
        [STATE_ENDING] = "ending",
    };
    const struct message *m = &observer->reply;
    struct error err = {""};
    int rc = client_observer_status(&observer->link, &observer->reply, &err);

    if (!rc)
        *out = (struct eps_status){
            .address = observer->directory,
            .state = states[m->status_reply.state],
            .step = m->status_reply.step,
            .n_steps = m->status_reply.n_steps,
            .n_parameters = m->status_reply.n_parameters,
            .job = m->status_reply.job,
            .n_queued = m->status_reply.n_queued,
            .n_workers = m->status_reply.n_workers,
            .n_elsewhere = m->status_reply.n_elsewhere,
            .n_idle = m->status_reply.n_idle,
            .n_threads = m->status_reply.n_threads,
            .pid = m->status_reply.pid,
            .uid = m->status_reply.uid,
            .loss = m->status_reply.loss,
            .model = m->status_reply.model,
            .precision = number_name(m->status_reply.precision),
            .commit = eps_commit_name(m->status_reply.fenced   ? EPS_FENCED
                                      : m->status_reply.folded ? EPS_FOLDED
                                                               : EPS_EAGER),
            .out = m->status_reply.out,
            .waits = m->status_reply.waits,
            .n_audits = m->status_reply.n_audits,
            .n_redone = m->status_reply.n_redone,
            .saving = m->status_reply.saving,
            .saved_step = m->status_reply.saved_step,
            .trouble = m->status_reply.trouble,
        };
    return client_report(error, &err, rc);
}

int eps_observer_mem(struct eps_observer *observer, bool pages,
                     void (*on_memory)(void *user, const struct eps_memory *side), void *user, struct eps_error *error)
{
    struct error err = {""};
    int rc = client_observer_memory(&observer->link, pages, on_memory, user, &err);

    return client_report(error, &err, rc);
}

/* Asks for one page; *n_all is the total number. */
static int look_page(struct eps_observer *observer, uint32_t first, uint32_t *n_all, struct error *err)
{
    struct message m;

    client_link_send(&observer->link, &(struct message){.kind = MESSAGE_UNITS, .units = {.first = first}});
    int rc = client_link_expect(&observer->link, MESSAGE_UNITS_REPLY, &m, NULL, err);
    if (rc)
        return rc;
    *n_all = m.units_reply.n_units;
    if (m.units_reply.first != first || m.units_reply.n > *n_all || first > *n_all - m.units_reply.n)
        return error_set(err, -EPROTO, "the daemon sent its units out of order");
    const size_t end = (size_t)first + m.units_reply.n;
    if (end > observer->n_units) { /* room for what has come, not for what is promised */
        struct eps_unit *units = realloc(observer->units, 2 * end * sizeof *units);
        if (!units)
            return error_memory(err);
        observer->units = units;
        observer->n_units = 2 * end;
    }
    for (uint32_t i = 0; i < m.units_reply.n; i++)
        observer->units[first + i] =
            (struct eps_unit){(enum eps_unit_state)(m.units_reply.units[i] & ~UNIT_AHEAD),
                              m.units_reply.version + ((m.units_reply.units[i] & UNIT_AHEAD) != 0)};
    return (int)m.units_reply.n;
}

/* Pages may be of different moments, as training goes on. Each has its own version. */
int eps_observer_units(struct eps_observer *observer, const struct eps_unit **units, size_t *n, struct eps_error *error)
{
    struct error err = {""};
    uint32_t n_all = 0, first = 0;
    int rc;

    do {
        rc = look_page(observer, first, &n_all, &err);
        first += rc > 0 ? (uint32_t)rc : 0;
    } while (rc > 0 && first < n_all);
    *units = observer->units;
    *n = rc < 0 ? 0 : first;
    return client_report(error, &err, rc < 0 ? rc : 0);
}

int eps_observer_workers(struct eps_observer *observer, void (*on_worker)(void *user, const struct eps_worker *worker),
                         void *user, struct eps_error *error)
{
    static const char *const phases[] = {
        [PHASE_RESTING] = "idle",          [PHASE_FORWARD] = "forward",       [PHASE_BACKWARD] = "backward",
        [PHASE_EVALUATING] = "evaluating", [PHASE_GENERATING] = "generating",
    };
    struct error err = {""};
    struct message m = {.kind = MESSAGE_WORKERS};
    int rc;

    client_link_send(&observer->link, &m);
    do {
        rc = client_link_expect(&observer->link, MESSAGE_WORKERS_REPLY, &m, NULL, &err);
        if (rc || m.workers_reply.worker == 0)
            break;
        const struct eps_worker worker = {
            .id = m.workers_reply.worker,
            .pid = m.workers_reply.pid,
            .host = m.workers_reply.host,
            .device = m.workers_reply.device,
            .model = m.workers_reply.model,
            .budget = m.workers_reply.budget,
            .current = m.workers_reply.current,
            .peak = m.workers_reply.peak,
            .phase = phases[m.workers_reply.phase],
            .unit = m.workers_reply.unit,
            .visit = m.workers_reply.visit,
            .n_visits = m.workers_reply.n_visits,
            .part = m.workers_reply.part,
            .n_parts = m.workers_reply.n_parts,
            .microbatch = m.workers_reply.microbatch,
            .down_bytes = m.workers_reply.down_bytes,
            .up_bytes = m.workers_reply.up_bytes,
            .left_out = m.workers_reply.unfit.text,
        };
        on_worker(user, &worker);
    } while (!m.workers_reply.last);
    return client_report(error, &err, rc);
}

int eps_observer_recent(struct eps_observer *observer, struct eps_recent *out, struct eps_error *error)
{
    const struct message *m = &observer->reply;
    struct error err = {""};

    client_link_send(&observer->link, &(struct message){.kind = MESSAGE_RECENT});
    int rc = client_link_expect(&observer->link, MESSAGE_RECENT_REPLY, &observer->reply, NULL, &err);
    if (!rc)
        *out = (struct eps_recent){
            .step = m->recent_reply.step,
            .tokens = m->recent_reply.tokens,
            .tokens_per_s = m->recent_reply.tokens_per_s,
            .step_ms = m->recent_reply.step_ms,
            .lr = m->recent_reply.lr,
            .losses = m->recent_reply.losses,
            .n_losses = m->recent_reply.n,
        };
    return client_report(error, &err, rc);
}

/* *opening: the job is not open yet, and a moment has passed. *told: the caller has heard of it. */
static int await_opening(struct eps_observer *observer, bool *opening, bool *told, struct error *err)
{
    enum { PAUSE_MS = 200 };
    struct message m;
    int rc = client_observer_status(&observer->link, &m, err);

    *opening = !rc && m.status_reply.state == STATE_LOADING;
    if (*opening && !*told) {
        client_tell(observer->wait.on_note, observer->wait.user, "the job is being opened, and can be saved then");
        *told = true;
    }
    return *opening ? client_link_pause(&observer->link, PAUSE_MS, err) : rc;
}

/* A job that is being opened refuses; so does one that is over. The question is asked once more after the state was no
 * longer "loading", which may have changed between the two. */
int eps_observer_save(struct eps_observer *observer, uint64_t *step, struct eps_error *error)
{
    struct error err = {""}, why;
    struct message m;
    bool opening, told = false;
    int rc;

    observer->wait.noted = 0;
    for (bool last = false;; last = !opening) {
        m = (struct message){.kind = MESSAGE_SAVE, .save = {.step = MESSAGE_NO_STEP}};
        client_link_send(&observer->link, &m);
        rc = client_observer_await_saved(&m, &observer->link, &observer->wait, &err);
        why = err;
        if (rc != -EAGAIN || last)
            break;
        const int waited = await_opening(observer, &opening, &told, &err);
        if (waited)
            return client_report(error, &err, waited);
    }
    if (!rc)
        *step = m.saved.step;
    return client_report(error, &why, rc);
}

/* A refusal may precede the answer to a later question. A daemon without a job closes the session at once. */
static int ask_to_stop(struct eps_observer *observer, uint32_t job, struct eps_error *error)
{
    struct error err = {""};
    struct message m;

    client_link_send(&observer->link, &(struct message){.kind = MESSAGE_STOP, .stop.job = job});
    int rc = client_observer_status(&observer->link, &m, &err);
    if (rc == -EIO && !observer->link.session)
        rc = 0;
    return client_report(error, &err, rc);
}

int eps_observer_stop(struct eps_observer *observer, struct eps_error *error)
{
    return ask_to_stop(observer, 0, error);
}

int eps_observer_stop_job(struct eps_observer *observer, uint32_t job, struct eps_error *error)
{
    return ask_to_stop(observer, job, error);
}

int eps_observer_drain(struct eps_observer *observer, uint32_t worker, struct eps_error *error)
{
    struct error err = {""};
    struct message m = {.kind = MESSAGE_DRAIN, .drain = {.worker = worker}};

    client_link_send(&observer->link, &m);
    const int rc = client_link_expect(&observer->link, MESSAGE_DRAIN, &m, NULL, &err);
    return client_report(error, &err, rc);
}

static int look_queue(struct eps_observer *observer, void (*on_queued)(void *user, const struct eps_queued *queued),
                      void *user, struct error *err)
{
    static const char *const does[] = {
        [PLAN_TRAIN] = "training", [PLAN_EVALUATE] = "evaluating", [PLAN_GENERATE] = "generating"};
    struct message m = {.kind = MESSAGE_QUEUE};
    uint32_t place = 1;
    int rc;

    client_link_send(&observer->link, &m);
    do {
        rc = client_link_expect(&observer->link, MESSAGE_QUEUE_REPLY, &m, NULL, err);
        if (rc || m.queue_reply.job == 0)
            return rc;
        const struct eps_queued queued = {
            .job = m.queue_reply.job,
            .place = place++,
            .pid = m.queue_reply.pid,
            .uid = m.queue_reply.uid,
            .does = does[m.queue_reply.purpose],
            .step = m.queue_reply.step,
            .n_steps = m.queue_reply.n_steps,
            .out = m.queue_reply.out,
        };
        on_queued(user, &queued);
    } while (!m.queue_reply.last);
    return 0;
}

int eps_observer_queue(struct eps_observer *observer, void (*on_queued)(void *user, const struct eps_queued *queued),
                       void *user, struct eps_error *error)
{
    struct error err = {""};
    const int rc = look_queue(observer, on_queued, user, &err);

    return client_report(error, &err, rc);
}

int eps_observer_wait_job(struct eps_observer *observer, uint32_t job, struct eps_error *error)
{
    struct error err = {""};
    struct message m;
    int rc;

    observer->wait.noted = 0;
    while (!(rc = client_observer_status(&observer->link, &m, &err)) && m.status_reply.job == job) {
        client_observer_note_wait(&observer->wait, &m);
        rc = client_link_pause(&observer->link, SLICE_MS, &err);
        if (rc)
            break;
    }
    /* No such job: it had ended when a request to stop it came, whose answer may come here. */
    if (rc == -ENOENT || (rc == -EIO && !observer->link.session))
        rc = 0;
    return client_report(error, &err, rc);
}

struct presence {
    uint32_t worker;
    bool there;
};

static void live_on_present(void *user, const struct eps_worker *worker)
{
    struct presence *presence = user;

    presence->there |= worker->id == presence->worker;
}

/* A worker's number is never given twice, so another one that comes meanwhile is not taken for it. A daemon that stops
 * takes its workers along; those of one that was killed wait for the next. */
int eps_observer_wait_worker(struct eps_observer *observer, uint32_t worker, struct eps_error *error)
{
    struct presence presence = {.worker = worker, .there = true};
    struct eps_error why = {""};
    int rc = 0;

    while (!rc && presence.there) {
        presence.there = false;
        rc = eps_observer_workers(observer, live_on_present, &presence, &why);
        if (!rc && presence.there)
            rc = eps_observer_wait(observer, SLICE_MS, &why);
    }
    if (rc == -EIO && !observer->link.session && observer->link.stopped)
        return 0;
    if (rc && error)
        *error = why;
    return rc;
}

/* Polled in slices, so that should_stop is asked; a status only where somebody is told of it. */
int eps_observer_wait(struct eps_observer *observer, uint64_t ms, struct eps_error *error)
{
    struct error err = {""};
    struct message m;
    uint64_t waited = 0, due = ASK_MS;
    int rc = 0;

    uv_update_time(&observer->link.loop);
    const uint64_t begin = uv_now(&observer->link.loop);
    while (!rc && observer->link.session && waited < ms) {
        rc = client_link_pause(&observer->link, ms - waited < SLICE_MS ? ms - waited : SLICE_MS, &err);
        waited = uv_now(&observer->link.loop) - begin;
        if (rc || !observer->wait.on_note || waited < due)
            continue;
        due = waited + ASK_MS;
        rc = client_observer_status(&observer->link, &m, &err);
        if (!rc)
            client_observer_note_wait(&observer->wait, &m);
    }
    if ((!rc || rc == -EIO) && !observer->link.session)
        rc = error_set(&err, -EIO, "the daemon is gone: %s", observer->link.end[0] ? observer->link.end : "closed");
    return client_report(error, &err, rc);
}

int eps_status(const char *address, void (*on_status)(void *user, const struct eps_status *status), void *user,
               struct eps_error *error)
{
    struct eps_observer *observer;
    struct eps_status status;
    int rc = eps_observer_open(&observer, address, NULL, NULL, error);

    if (!rc)
        rc = eps_observer_status(observer, &status, error);
    if (!rc && on_status)
        on_status(user, &status);
    eps_observer_close(observer);
    return rc;
}

int eps_mem(const char *address, void (*on_memory)(void *user, const struct eps_memory *side), void *user,
            struct eps_error *error)
{
    struct eps_observer *observer;
    int rc = eps_observer_open(&observer, address, NULL, NULL, error);

    if (!rc)
        rc = eps_observer_mem(observer, true, on_memory, user, error);
    eps_observer_close(observer);
    return rc;
}

int eps_daemons(void (*on_daemon)(void *user, const char *address), void *user, struct eps_error *error)
{
    struct error err = {""};
    int rc = session_list(on_daemon, user, &err);

    return client_report(error, &err, rc);
}

int eps_save(const char *address, uint64_t *step, struct eps_error *error)
{
    struct eps_observer *observer;
    int rc = eps_observer_open(&observer, address, NULL, NULL, error);

    if (!rc)
        rc = eps_observer_save(observer, step, error);
    eps_observer_close(observer);
    return rc;
}

/* Returns once the daemon is gone, so that its address and its files are free. */
int eps_stop(const char *address, struct eps_error *error)
{
    struct eps_observer *observer;
    int rc = eps_observer_open(&observer, address, NULL, NULL, error);

    if (!rc)
        rc = eps_observer_stop(observer, error);
    if (!rc && eps_observer_wait(observer, UINT64_MAX, error) == -EIO && error)
        error->text[0] = 0; /* the session ended as requested */
    eps_observer_close(observer);
    return rc;
}
