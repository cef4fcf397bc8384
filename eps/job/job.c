/* The loop waits for no memory. Making a job's, making a seat's anew and giving all back are calls on the optimizer
 * thread, which end in job_on_called. By then the job may be ending, or the seat's worker gone, so each end looks
 * again.
 *
 * A ledger belongs to one thread. So the optimizer thread counts in load_ledger, and the end of each call carries
 * what has changed since the last one (counted) to the daemon's. */
#include "eps/job/job_internal.h"

#include "eps/base/rights.h"
#include "proto/base/process.h"
#include "proto/plan/memory/units.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- states ----------------------------------------------------------------------------------------------------- */

void job_init(struct job *job)
{
    const struct file none = file_own(-1);

    *job = (struct job){.peers = job->peers, .output = -1, .side_file = none, .trace_file = -1, .moments_file = none};
}

void job_enter(struct job *job, enum job_state state)
{
    static const unsigned before[JOB_STATES] = {
        /* a bit for each state that it may be entered from */
        [JOB_NONE] = 1u << JOB_ENDING,
        [JOB_LOADING] = 1u << JOB_NONE,
        [JOB_ASSIGNING] = 1u << JOB_LOADING,
        [JOB_RESTING] = 1u << JOB_ASSIGNING | 1u << JOB_STEPPING | 1u << JOB_EVALUATING | 1u << JOB_GENERATING,
        [JOB_STEPPING] = 1u << JOB_RESTING | 1u << JOB_STEPPING, /* one step more, while the last is not done */
        [JOB_EVALUATING] = 1u << JOB_RESTING,
        [JOB_GENERATING] = 1u << JOB_RESTING,
        [JOB_ENDING] = ~(1u << JOB_NONE | 1u << JOB_ENDING),
    };

    assert(before[state] >> job->state & 1);
    job->state = state;
}

struct trace *job_trace(const struct job *job, struct trace *track)
{
    return job->trace_file >= 0 ? track : NULL;
}

void job_announce(const struct job *job, const struct message *m)
{
    if (job->client)
        session_send(job->client->session, m);
}

/* ---- begin ------------------------------------------------------------------------------------------------------ */

static void job_note(struct job *job, uint64_t bytes)
{
    ledger_add(&job->peers->ledger, LEDGER_OTHER, ledger_table(bytes));
    job->table_bytes += ledger_table(bytes);
}

void *job_take_table(struct job *job, size_t n, size_t size)
{
    void *table = calloc(n, size);

    if (table)
        job_note(job, n * size);
    return table;
}

static int size_up(struct job *job, struct error *err)
{
    const int rc = job_plan(job, err);
    size_t n_jobs = 0;

    if (rc)
        return rc;
    for (uint32_t u = 0; u < job->model.n_units; u++)
        n_jobs += job->model.units[u].n_slices + 1;
    /* Room for every fold and update of a step, and for some calls, so that no step waits for a place in the queue. */
    return updater_reserve(job->peers->updater, n_jobs + 2 * PEERS_MAX_WORKERS + 8) ? error_memory(err) : 0;
}

/* All workers of a training job use the algorithms of the first worker's profile, so that they compute the same bits. A
 * resumed run keeps those that it began with. Other jobs leave the choice to the libraries. */
static void job_choose_products(struct job *job)
{
    if (!job_trains(job) || job->request.job.resume)
        return;
    for (uint32_t i = 0; !job->products.version && i < job->n_workers; i++)
        job->products = job->workers[i]->profile.products;
}

bool job_begin(struct job *job, struct peer *client, const struct message *m, const struct products *products,
               const int *fds, unsigned n_fds)
{
    struct error err = {""};

    job_init(job);
    job->client = client;
    job->uid = client ? session_peer_uid(client->session) : getuid();
    job->pid = client ? session_peer_pid(client->session) : getpid();
    job->request = *m;
    job->step = m->job.step;
    job->said = job->peers->said;
    for (struct peer *p = job->peers->first; p; p = p->next) {
        p->unfit = p->announced_unfit = false;
        p->retry_ticks = p->retry_pause = 0;
        p->n_parts = 0;
        p->suspect = false, p->accused = 0;
        p->throughput = (struct throughput){0};
        p->deadline = (struct deadline){.open = false};
    }
    job_enter(job, JOB_LOADING);
    ledger_forget_peaks(&job->peers->ledger);
    /* The descriptors are the job's from here on. */
    int rc = job_take_files(job, fds, n_fds, &err);
    if (!rc) {
        job_note(job, job->config_bytes);
        job_note(job, job->files ? FILES_BYTES : 0);
        rc = size_up(job, &err);
    }
    if (!rc && client)
        job_choose_products(job);
    else if (!rc)
        job->products = *products;
    if (rc)
        job_end(job, rc, "%s", err.text);
    return rc == 0;
}

/* Allocating and reading take minutes for a large model, so this is a call on the optimizer thread; on_loaded goes
 * on. */
void job_load(struct job *job)
{
    const struct message *m = &job->request;
    const struct updater_task work = {.kind = UPDATER_CALL,
                                      .call = job_do_load,
                                      .context = job,
                                      .trace = job_trace(job, &job->optimizer_trace)};
    char title[MODEL_TITLE_BYTES];

    log_line("job of client %u: %s, %" PRIu64 " parameters, %u rows of %u tokens, %u part%s",
             job->client ? job->client->id : 0, model_title(title, &job->model.config), job->model.n_parameters,
             m->job.goal.batch, m->job.goal.seq, m->job.goal.n_parts, m->job.goal.n_parts > 1 ? "s" : "");
    job->loading = true;
    updater_submit(job->peers->updater, &work);
}

/* Descriptors come in the order in which the worker expects them: weights, inbox, minibatches and config always, stash
 * and trace if the message says so. */
static void job_assign(struct job_seat *seat)
{
    const struct job *job = seat->job;
    struct peer *worker = seat->peer;
    struct message m = {.kind = MESSAGE_ASSIGN};
    const struct plan *plan = &worker->plan;
    int fds[6] = {job->store.weights.fd, seat->inbox.fd, job->data.fd, job->config.fd};
    unsigned n_fds = 4;

    seat->worker = worker->id;
    worker->n_pulls = 0;
    worker->awaits = false;
    m.assign.config_bytes = (uint32_t)job->config_bytes;
    m.assign.seed = job->request.job.seed;
    m.assign.goal = *job_goal(job);
    m.assign.max_parts = plan->share_parts;
    m.assign.n_slots = job->host.n_slots;
    m.assign.n_threads = plan->setting.n_threads;
    m.assign.takes_turns = worker->backend->takes_turns;
    m.assign.groups = job_groups(job);
    m.assign.trace = job->trace_file >= 0 && rights_trace(worker, job->uid);
    m.assign.weights_bytes = job->store.weights.bytes;
    m.assign.choice = plan->choice;
    m.assign.products = job->products;
    m.assign.attention = plan->setting.attention;
    m.assign.convolution = plan->setting.convolution;
    m.assign.host_stash_bytes = plan->host_stash_bytes;
    if (job->request.job.thaw != MODEL_THAWED)
        memcpy(m.assign.freeze, job->request.job.freeze, sizeof m.assign.freeze);
    if (m.assign.choice.host_stash)
        fds[n_fds++] = seat->stash.fd;
    if (m.assign.trace)
        fds[n_fds++] = job->trace_file;
    worker->state = PEER_ASSIGNING;
    deadline_begin(&worker->deadline, 0, 0, 0);
    session_send_fds(worker->session, &m, fds, n_fds);
}

static int begin_assigning(struct job *job, struct error *err)
{
    const struct message *m = &job->request;
    const struct relay_config config = {
        .first_step = m->job.step,
        .n_parts = job->n_parts,
        .n_slots = job->host.n_slots,
        .n_accumulators = job->store.n_accumulators,
        .adamw = job->facts.adamw,
        .fenced = job->facts.fenced,
        .folded = job->facts.folded,
        .groups = job_groups(job),
        .deterministic = job->facts.deterministic,
        .replay = job->facts.replay,
    };

    if (relay_open(&job->relay, &config))
        return error_memory(err);
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (job->seats[i].peer)
            job_assign(&job->seats[i]);
    return 0;
}

/* The optimizer thread counted the job's memory in a ledger of its own. Brings the daemon's up to date. */
static void count_memory(struct job *job)
{
    for (unsigned c = 0; c < LEDGER_CATEGORIES; c++) {
        ledger_sub(&job->peers->ledger, c, job->counted[c]);
        job->counted[c] = job->load_ledger.rows[c].current;
        ledger_add(&job->peers->ledger, c, job->counted[c]);
    }
}

static void take_over_ledger(struct job *job)
{
    count_memory(job);
    job->store.ledger = &job->peers->ledger;
    job->peers->said |= job->store.denied;
}

static void on_loaded(struct job *job, int result)
{
    struct error err = job->load_error;

    job->loading = false;
    take_over_ledger(job);
    if (job->state != JOB_LOADING) /* it has ended meanwhile */
        return;
    job_enter(job, JOB_ASSIGNING);
    if (!result)
        result = begin_assigning(job, &err);
    if (result)
        job_end(job, result, "%s", err.text);
}

static void on_renewed(struct job_seat *seat, int result)
{
    struct job *job = seat->job;

    seat->renewing = false;
    count_memory(job);
    if (job->state == JOB_ENDING || !seat->peer) /* the worker has gone meanwhile */
        return;
    if (!result)
        job_assign(seat);
    else
        job_turn_away(seat, result, job->load_error.text);
}

void job_on_called(struct job *job, const struct updater_task *work)
{
    if (work->call == job_do_load) {
        on_loaded(job, work->result);
    } else if (work->call == job_do_renew) {
        on_renewed(work->context, work->result);
    } else {
        for (unsigned c = 0; c < LEDGER_CATEGORIES; c++)
            ledger_sub(&job->peers->ledger, c, job->counted[c]);
        job->unloaded = true;
    }
}

/* ---- seats ------------------------------------------------------------------------------------------------------ */

/* By the worker that sits there; of an empty seat by the one that left it, as long as contributions of it may lie in
 * the inbox. */
struct job_seat *job_find_seat(struct job *job, uint32_t worker)
{
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (job->seats[i].peer ? job->seats[i].peer->id == worker : job->seats[i].worker == worker)
            return &job->seats[i];
    return NULL;
}

/* A worker with another plan may need more stash: memory is taken by the optimizer thread, and the worker assigned when
 * that is there. */
void job_renew_seat(struct job_seat *seat)
{
    const struct updater_task work = {.kind = UPDATER_CALL, .call = job_do_renew, .context = seat};

    seat->renewing = true;
    seat->new_stash_bytes = seat->peer->plan.host_stash_bytes;
    updater_submit(seat->job->peers->updater, &work);
}

struct job_seat *job_new_seat(struct job *job)
{
    if (!job_trains(job) || job->n_seats >= job->facts.most_seats)
        return NULL;
    job->seats[job->n_seats] = (struct job_seat){.job = job};
    return &job->seats[job->n_seats];
}

static void plan_bytes(struct job *job, enum ledger_category category, uint64_t more)
{
    job->host.bytes[category] += more;
    job->host.total += more;
}

/* A seat only grows: a smaller worker leaves what a larger one needed, so memory is not given back and taken again. */
void job_take_seat(struct job_seat *seat, struct peer *worker)
{
    struct job *job = seat->job;
    const struct plan *plan = &worker->plan;

    if (seat == &job->seats[job->n_seats]) {
        job->n_seats++;
        plan_bytes(job, LEDGER_INBOX, job->host.inbox_bytes);
        plan_bytes(job, LEDGER_CHECKSUMS, job->host.inbox_sums);
    }
    if (plan->host_stash_bytes > seat->stash_bytes) {
        plan_bytes(job, LEDGER_STASH, plan->host_stash_bytes - seat->stash_bytes);
        seat->stash_bytes = plan->host_stash_bytes;
    }
    if (seat->arena_bytes < job_host_arena(worker, plan))
        seat->arena_bytes = job_host_arena(worker, plan);
    seat->too_many = 0;
    seat->room = plan->share_parts;
    seat->peer = worker;
    memcpy(seat->bus, worker->bus, sizeof seat->bus);
    worker->state = PEER_JOINING;
    worker->n_parts = 0;
}

void job_release_seat(struct job_seat *seat)
{
    const struct message m = {.kind = MESSAGE_RELEASE};

    seat->peer->state = PEER_RELEASING;
    deadline_begin(&seat->peer->deadline, 0, 0, 0);
    session_send(seat->peer->session, &m);
    seat->peer = NULL;
    seat->worker = 0; /* it may join again, elsewhere */
}

/* Contributions of the worker that left stay, and count, until the relay is told of its loss. Before the job is open,
 * the relay knows of no worker. */
void job_vacate(struct job_seat *seat)
{
    if (job_is_open(seat->job)) {
        relay_expect_loss(seat->job->relay, seat->peer->id);
        seat->left = seat->peer->id;
    } else {
        seat->worker = 0;
    }
    seat->peer = NULL;
}

void job_turn_away(struct job_seat *seat, int code, const char *why)
{
    struct peer *worker = seat->peer;

    worker->state = PEER_IDLE;
    memset(&worker->plan, 0, sizeof worker->plan);
    job_unlist(seat->job, worker);
    job_vacate(seat);
    seat->worker = 0; /* as in job_release_seat: nothing of it lies in the inbox */
    job_pass_over(seat->job, worker, code, why);
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

void job_unlist(struct job *job, const struct peer *worker)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i] != worker)
            job->workers[n++] = job->workers[i];
    job->n_workers = n;
}

void job_list(struct job *job, struct peer *worker)
{
    uint32_t i = job->n_workers++;

    for (; i > 0 && job->workers[i - 1]->id > worker->id; i--)
        job->workers[i] = job->workers[i - 1];
    job->workers[i] = worker;
}

/* ---- assigned --------------------------------------------------------------------------------------------------- */

void job_open(struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct relay_action *actions;
        const struct relay_event event = {.kind = RELAY_ATTACHED,
                                          .worker = job->workers[i]->id,
                                          .room = job_find_seat(job, job->workers[i]->id)->room};
        if (relay_feed(job->relay, &event, &actions) < 0) {
            job_end_memory(job);
            return;
        }
    }
    job->resident_bytes = job->workers[0]->plan.resident_bytes;
    job_enter(job, JOB_RESTING);
}

void job_announce_opened(struct job *job)
{
    struct message m = {.kind = MESSAGE_JOB_OPENED};

    job->announced_opened = true;
    if (!job->client)
        return;
    m.job_opened.n_parameters = job->model.n_parameters;
    m.job_opened.n_workers = job->n_seats; /* vacant ones too: a client refuses a daemon without workers */
    m.job_opened.data_bytes = job->data.bytes;
    m.job_opened.resident_bytes = job->resident_bytes;
    m.job_opened.choice = job->choice;
    m.job_opened.predicted_ms = job->predicted_ms;
    m.job_opened.predicted_compute_ms = job->predicted_compute_ms;
    m.job_opened.predicted_optimizer_ms = job->predicted_optimizer_ms;
    m.job_opened.replay = job->host.replay;
    m.job_opened.entries = job_goal(job)->entries;
    session_send_fds(job->client->session, &m, &job->data.fd, 1);
}

/* ASSIGN goes over the connection and RELEASE over the channel, so ASSIGN must be answered before RELEASE is sent. */
static void release(struct peer *worker)
{
    const struct message m = {.kind = MESSAGE_RELEASE};

    if (worker->state == PEER_JOINING)
        worker->state = PEER_IDLE;
    if (worker->state != PEER_ASSIGNED)
        return;
    worker->state = PEER_RELEASING;
    deadline_begin(&worker->deadline, 0, 0, 0);
    session_send(worker->session, &m);
}

void job_on_assigned(struct job *job, struct peer *worker, const struct message *m)
{
    char arena[PROCESS_BYTES_TEXT];

    worker->state = m->kind == MESSAGE_REFUSED ? PEER_IDLE : PEER_ASSIGNED;
    if (job->state == JOB_ENDING) { /* RELEASE can be sent only now */
        release(worker);
        return;
    }
    assert(job->state == JOB_ASSIGNING && m->kind == MESSAGE_ASSIGNED);
    log_line("worker %u: arena of %s, microbatches of %u row%s", worker->id,
             process_format_bytes(arena, m->assigned.arena_bytes), job->microbatch, job->microbatch > 1 ? "s" : "");
}

void job_on_released(struct peer *worker)
{
    worker->state = PEER_IDLE;
    memset(&worker->plan, 0, sizeof worker->plan);
}

/* Every pull is answered once, with weights or with none, so n_pulls counts what is open. */
void job_send_weights(struct job *job, struct peer *worker, uint64_t version, uint32_t unit, struct job_weights weights)
{
    const struct message m = {.kind = MESSAGE_WEIGHTS,
                              .weights = {.version = version,
                                          .unit = unit,
                                          .at = weights.at,
                                          .frozen_at = weights.frozen_at,
                                          .lent = weights.lent}};

    worker->n_pulls--;
    progress_pull(&worker->progress, &job->model, job_homes(job), unit,
                  plan_pulled_bytes(&worker->plan, &job->model, unit));
    session_send(worker->session, &m);
}

void job_send_void(struct peer *worker, uint64_t version, uint32_t unit)
{
    const struct message m = {.kind = MESSAGE_VOID, .voided = {.version = version, .unit = unit}};

    worker->n_pulls--;
    session_send(worker->session, &m);
}

/* ---- end -------------------------------------------------------------------------------------------------------- */

/* Before it was opened, a job is refused; later it has failed. Either way the client is told once, and the job no
 * longer has one. */
static void tell_client(struct job *job, int code, const struct error *err)
{
    struct message m = {.kind = job->announced_opened ? MESSAGE_FAILED : MESSAGE_REFUSED};

    if (m.kind == MESSAGE_REFUSED) {
        m.refused.code = code;
        m.refused.error = *err;
    } else {
        m.failed.code = code;
        m.failed.error = *err;
    }
    session_send(job->client->session, &m);
    job->client = NULL;
}

/* The first reason counts; later ones follow from it. Memory stays: workers and threads may still be using it, and each
 * of them is told or awaited (drain_end_job). What may hang on a server of files is abandoned here, for it would never
 * answer. */
void job_end(struct job *job, int code, const char *format, ...)
{
    struct error err;
    va_list args;

    if (job->state == JOB_NONE || job->state == JOB_ENDING)
        return;
    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    (code ? log_warning : log_line)("job ended after %" PRIu64 " steps: %s", job->step, err.text);
    job->closing = code == 0;
    job->end_code = code;
    job->end = err;
    if (job->client && code)
        tell_client(job, code, &err);
    job_enter(job, JOB_ENDING);
    pieces_abandon(&job->load_pieces);
    if (job->loading)
        files_abandon(job->files);
    for (struct peer *p = job->peers->first; p; p = p->next)
        release(p);
}

/* Both threads have finished. The client ends the trace file once it hears that the job is closed. */
static void job_close_trace(struct job *job)
{
    const uint32_t n_dropped = job->optimizer_trace.n_dropped + job->writer_trace.n_dropped;
    const int rc = trace_close(&job->optimizer_trace), rc2 = trace_close(&job->writer_trace);

    if (n_dropped)
        log_warning("the trace lacks %u writes, which its client did not take at once", n_dropped);
    else if (rc || rc2)
        log_warning("the trace ends early: %s", strerror(rc ? -rc : -rc2));
}

/* A worker that is being assigned or released has the memory mapped, whatever it has said before. */
bool job_is_in_use(const struct job *job)
{
    bool in_use = updater_pending(job->peers->updater) > 0 || job->lent;

    for (const struct peer *p = job->peers->first; p; p = p->next)
        in_use = in_use || p->state == PEER_ASSIGNING || p->state == PEER_RELEASING;
    return in_use;
}

/* 4 GiB take as long as a step. The optimizer thread gives them back, and the loop goes on meanwhile. */
void job_unload(struct job *job, struct updater *updater)
{
    const struct updater_task work = {.kind = UPDATER_CALL, .call = job_do_unload, .context = job};

    updater_submit(updater, &work);
}

static void job_close_files(struct job *job)
{
    const int fds[] = {job->output, job->trace_file, job->side_file.fd, job->moments_file.fd};

    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    for (unsigned i = 0; i < job->n_weight_files; i++)
        if (job->weight_files[i].fd >= 0)
            close(job->weight_files[i].fd);
    files_release(job->files);
}

/* Returns the client that closed the job, which is told last: then nothing of it is left, and the next may begin. */
struct peer *job_free(struct job *job)
{
    struct peer *client = job->closing ? job->client : NULL;

    relay_close(job->relay);
    relay_close(job->own);
    model_free(&job->model);
    job_close_trace(job);
    job_close_files(job);
    ledger_sub(&job->peers->ledger, LEDGER_OTHER, job->table_bytes);
    free(job->side_text);
    free(job->headers);
    segment_close(&job->config);
    job_enter(job, JOB_NONE);
    job_init(job);
    return client;
}
