/* Checkpoints and snapshots, while the job goes on training.
 *
 * Each is a reader of the relay's, which fixes the version (the cut) and says of each unit when it is there: from then
 * on until it is released nothing is folded into it. One writer at a time, an item of libuv's pool, writes some
 * captured units, those first that the backward pass wants first; they are released, and the next item begins. So
 * neither the loop nor the optimizer thread waits for a disk, and a step waits for a unit's write at most.
 *
 * Before the first step is opened the relay knows no units: all of them stand still, and the reader is announced right
 * after the opening, before anything of that step can be folded. */
#include "eps/capture.h"
#include "eps/daemon.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_SAVES = 8,
    MOST_VIEWERS = 8,
    BATCH_UNITS = 64,
    BATCH_BYTES = 8 << 20, /* of weights: an item ends once it has as much */
};

enum unit_flag {
    UNIT_CAPTURED = 1,
    UNIT_QUEUED = 2, /* given to the writer, or not to be written at all */
    UNIT_WRITTEN = 4,
    UNIT_HELD = 8, /* the relay waits for its release */
};

enum save_task { SAVE_WRITE, SAVE_FINISH, SAVE_DISCARD };

struct save {
    struct save *next;
    struct daemon *daemon;
    uint64_t step;
    uint32_t reader;
    bool checkpoint; /* else a snapshot */
    bool announced;  /* to the relay */
    bool begun;      /* there may be something to discard */
    bool over;       /* whoever asked has been told */
    int rc;          /* why it is given up */
    struct error error;
    uint8_t *units; /* (n_units) enum unit_flag */
    uint32_t n_captured, n_written;
    uint32_t viewers[MOST_VIEWERS]; /* ids of those who asked */
    unsigned n_viewers;
    uint64_t ledgered;
    /* The writer's, while job.writing is this one: */
    struct eps_capture_options options;
    struct eps_capture capture;
    enum save_task task;
    uint32_t batch[BATCH_UNITS];
    unsigned n_batch;
    int result;
    struct error why;
    uv_work_t work;
};

/* ---- telling ---------------------------------------------------------------------------------------------------- */

static struct peer *find_viewer(struct daemon *d, uint32_t id)
{
    struct peer *peer = d->peers;

    while (peer && peer->id != id)
        peer = peer->next;
    return peer;
}

static void tell_viewer(struct peer *viewer, int rc, const struct error *err, uint64_t step)
{
    struct message m = {.kind = rc ? MESSAGE_REFUSED : MESSAGE_SAVED};

    if (rc) {
        m.refused.code = rc;
        m.refused.error = *err;
    } else {
        m.saved.step = step;
    }
    session_send(viewer->session, &m);
}

static void tell_client(struct job *job, int rc, const struct error *err, uint64_t step)
{
    struct message m = {.kind = rc ? MESSAGE_SAVE_FAILED : MESSAGE_SAVED};

    if (!job->client)
        return;
    if (rc) {
        m.save_failed.step = step;
        m.save_failed.code = rc;
        m.save_failed.error = *err;
    } else {
        m.saved.step = step;
    }
    session_send(job->client->session, &m);
}

static void note_failure(struct job *job, const struct error *err)
{
    snprintf(job->trouble, sizeof job->trouble, "%.*s", (int)sizeof job->trouble - 1, err->text);
}

static void conclude(struct save *s)
{
    struct daemon *d = s->daemon;
    struct job *job = &d->job;

    s->over = true;
    if (s->rc)
        log_line("step %" PRIu64 " not saved: %s", s->step, s->error.text);
    else if (s->checkpoint)
        log_line("step %" PRIu64 " saved", s->step);
    if (s->checkpoint && s->rc)
        note_failure(job, &s->error);
    else if (s->checkpoint) {
        job->trouble[0] = '\0';
        job->saved_step = s->step;
    }
    if (s->checkpoint)
        tell_client(job, s->rc, &s->error, s->step);
    for (unsigned i = 0; i < s->n_viewers; i++) {
        struct peer *viewer = find_viewer(d, s->viewers[i]);
        if (viewer)
            tell_viewer(viewer, s->rc, &s->error, s->step);
    }
}

/* ---- the list --------------------------------------------------------------------------------------------------- */

static void count_memory(struct save *s, uint64_t bytes)
{
    struct ledger *ledger = &s->daemon->ledger;

    ledger_sub(ledger, LEDGER_OTHER, s->ledgered);
    ledger_add(ledger, LEDGER_OTHER, bytes);
    s->ledgered = bytes;
}

static void free_save(struct save *s)
{
    count_memory(s, 0);
    for (unsigned i = 0; !s->checkpoint && i < 3; i++)
        close(s->options.files[i]);
    free(s->units);
    free(s);
}

/* Nothing more will come of it. Units that come later are let go at once. */
static void give_up(struct save *s, int rc, const struct error *err)
{
    if (s->rc)
        return;
    s->rc = rc;
    s->error = *err;
    for (uint32_t u = 0; u < s->daemon->job.model.n_units; u++)
        if (s->units[u] & UNIT_CAPTURED)
            s->units[u] |= UNIT_QUEUED | UNIT_WRITTEN;
}

/* Those that are over, once the relay has forgotten them too. */
static void sweep(struct job *job)
{
    for (struct save **at = &job->saves; *at;) {
        struct save *s = *at;
        const bool forgotten = !s->announced || !steps_are_on(job) || s->n_captured == job->model.n_units;
        if (s->over && !s->begun && forgotten) {
            *at = s->next;
            free_save(s);
        } else {
            at = &s->next;
        }
    }
}

/* ---- the writer ------------------------------------------------------------------------------------------------- */

static void do_task(uv_work_t *work)
{
    struct save *s = work->data;

    s->result = 0;
    if (s->task == SAVE_DISCARD) {
        eps_capture_discard(&s->capture);
        return;
    }
    if (!s->capture.open)
        s->result = eps_capture_open(&s->capture, &s->options, &s->why);
    for (unsigned i = 0; !s->result && i < s->n_batch; i++)
        s->result = eps_capture_write(&s->capture, s->batch[i], &s->why);
    if (!s->result && s->task == SAVE_FINISH)
        s->result = eps_capture_finish(&s->capture, &s->why);
}

static void pump(struct daemon *d);

static void on_task_done(uv_work_t *work, int status)
{
    struct save *s = work->data;
    struct daemon *d = s->daemon;

    (void)status; /* it is never cancelled */
    d->job.writing = NULL;
    count_memory(s, d->job.model.n_units + s->capture.table_bytes);
    for (unsigned i = 0; i < s->n_batch; i++)
        s->units[s->batch[i]] |= UNIT_WRITTEN;
    s->n_written += s->n_batch;
    if (s->task == SAVE_DISCARD || (s->task == SAVE_FINISH && !s->result))
        s->begun = false;
    if (s->result)
        give_up(s, s->result, &s->why);
    if (!s->begun && !s->over)
        conclude(s);
    save_release(d);
    sweep(&d->job);
    pump(d);
    job_finish(d);
}

/* From the top visit down, as contributions come. */
static bool fill_batch(struct save *s)
{
    const struct model *model = &s->daemon->job.model;
    uint64_t bytes = 0;

    s->n_batch = 0;
    for (uint32_t v = model->n_visits; v-- > 0 && s->n_batch < BATCH_UNITS && bytes < BATCH_BYTES;) {
        const uint32_t u = model->visits[v];
        if ((s->units[u] & (UNIT_CAPTURED | UNIT_QUEUED)) != UNIT_CAPTURED)
            continue;
        s->units[u] |= UNIT_QUEUED;
        s->batch[s->n_batch++] = u;
        bytes += model->units[u].n * sizeof(float);
    }
    return s->n_batch > 0;
}

static bool find_task(struct save *s)
{
    if (s->over && !s->begun)
        return false;
    s->n_batch = 0;
    if (s->rc)
        s->task = SAVE_DISCARD;
    else if (fill_batch(s))
        s->task = SAVE_WRITE;
    else if (s->n_written == s->daemon->job.model.n_units)
        s->task = SAVE_FINISH;
    else
        return false;
    return true;
}

/* The oldest first, so that they end in order. */
static void pump(struct daemon *d)
{
    struct job *job = &d->job;

    for (struct save *s = job->saves; s && !job->writing; s = s->next) {
        if (!find_task(s))
            continue;
        job->writing = s;
        s->begun = true;
        int rc = uv_queue_work(d->loop, &s->work, do_task, on_task_done);
        assert(rc == 0); /* fails without a function alone */
    }
}

/* ---- the relay -------------------------------------------------------------------------------------------------- */

static void capture(struct save *s, uint32_t unit)
{
    if (s->units[unit] & UNIT_CAPTURED)
        return;
    s->units[unit] |= UNIT_CAPTURED;
    s->n_captured++;
    if (s->rc)
        s->units[unit] |= UNIT_QUEUED | UNIT_WRITTEN;
}

void save_on_capture(struct daemon *d, const struct relay_action *a)
{
    struct save *s = d->job.saves;

    while (s && s->reader != a->reader)
        s = s->next;
    assert(s && s->step == a->step);
    capture(s, a->unit);
    s->units[a->unit] |= UNIT_HELD;
    pump(d);
}

static bool find_released(const struct job *job, struct relay_event *event)
{
    for (struct save *s = job->saves; s; s = s->next)
        for (uint32_t u = 0; u < job->model.n_units; u++)
            if ((s->units[u] & (UNIT_HELD | UNIT_WRITTEN)) == (UNIT_HELD | UNIT_WRITTEN)) {
                s->units[u] &= (uint8_t)~UNIT_HELD;
                *event = (struct relay_event){.kind = RELAY_RELEASED, .reader = s->reader, .unit = u};
                return true;
            }
    return false;
}

void save_release(struct daemon *d)
{
    struct relay_event event;

    if (d->job.releasing)
        return;
    d->job.releasing = true;
    while (steps_are_on(&d->job) && find_released(&d->job, &event))
        steps_feed(d, &event);
    d->job.releasing = false;
    sweep(&d->job);
}

static void announce(struct daemon *d, struct save *s)
{
    const struct relay_event event = {.kind = RELAY_SAVE, .reader = s->reader};

    assert(relay_cut(d->job.relay) == s->step);
    s->announced = true;
    steps_feed(d, &event);
}

void save_on_first_step(struct daemon *d)
{
    struct save *s = d->job.saves;

    while (s && steps_are_on(&d->job)) {
        if (s->announced) {
            s = s->next;
            continue;
        }
        announce(d, s);
        s = d->job.saves; /* what was over may be gone */
    }
}

void save_on_job_over(struct daemon *d)
{
    struct job *job = &d->job;
    struct error err;

    for (struct save *s = job->saves; s; s = s->next) {
        if (s->over || s->rc || s->n_captured == job->model.n_units)
            continue;
        error_set(&err, -ECANCELED, "the job ended before all of step %" PRIu64 " was there to be saved", s->step);
        give_up(s, -ECANCELED, &err);
        if (!s->begun)
            conclude(s);
    }
    sweep(job);
    pump(d);
}

/* ---- who asks --------------------------------------------------------------------------------------------------- */

/* The version that would be saved now. */
static uint64_t find_cut(const struct job *job)
{
    const uint64_t cut = relay_cut(job->relay);

    return cut == MESSAGE_NO_STEP ? job->step : cut;
}

static struct save *find_checkpoint(struct job *job, uint64_t step)
{
    struct save *s = job->saves;

    while (s && (!s->checkpoint || s->over || s->rc || s->step != step))
        s = s->next;
    return s;
}

static struct save *add(struct daemon *d, bool checkpoint, struct error *err)
{
    struct job *job = &d->job;
    struct save **end = &job->saves, *s;
    unsigned n = 0;

    for (; *end; end = &(*end)->next)
        n++;
    if (n == MOST_SAVES) {
        error_set(err, -EBUSY, "%u saves are under way: the disk is too slow for more", n);
        return NULL;
    }
    s = calloc(1, sizeof *s);
    if (s)
        s->units = calloc(job->model.n_units, sizeof *s->units);
    if (!s || !s->units) {
        free(s);
        error_set(err, -ENOMEM, "out of memory");
        return NULL;
    }
    s->daemon = d;
    s->step = find_cut(job);
    s->reader = ++job->n_readers;
    s->checkpoint = checkpoint;
    s->work.data = s;
    s->options = (struct eps_capture_options){.store = &job->store,
                                              .step = s->step,
                                              .config = job->config_text,
                                              .config_bytes = job->config_bytes,
                                              .side = job->side_text,
                                              .side_bytes = job->side_bytes,
                                              .microbatch = job->microbatch,
                                              .checkpoint = checkpoint,
                                              .output = job->output};
    count_memory(s, job->model.n_units);
    *end = s;
    return s;
}

static void begin(struct daemon *d, struct save *s)
{
    if (relay_cut(d->job.relay) != MESSAGE_NO_STEP) {
        announce(d, s);
        return;
    }
    for (uint32_t u = 0; u < d->job.model.n_units; u++)
        capture(s, u);
    pump(d);
}

void save_on_client(struct daemon *d, const struct message *m)
{
    struct job *job = &d->job;
    const uint64_t cut = find_cut(job);
    struct error err;

    if (m->save.step != MESSAGE_NO_STEP && m->save.step != cut) {
        peer_refuse(job->client, "a save of another step than comes next");
        return;
    }
    if (job->saved_step == cut) {
        tell_client(job, 0, NULL, cut);
        return;
    }
    if (find_checkpoint(job, cut)) /* its end will be told */
        return;
    struct save *s = add(d, true, &err);
    if (s) {
        begin(d, s);
        return;
    }
    note_failure(job, &err);
    tell_client(job, -EBUSY, &err, cut);
}

/* Why nothing can be saved now, or 0. */
static int check_job(const struct job *job, bool needs_output, struct error *err)
{
    if (job->state == JOB_NONE || !job->request.job.train)
        return error_set(err, -ENOENT, "the daemon trains nothing; name a --model");
    if (!steps_are_on(job))
        return error_set(err, -EAGAIN, "the job is %s; try again",
                         job->state == JOB_ENDING ? "ending" : "being opened");
    if (needs_output && job->output < 0)
        return error_set(err, -EINVAL, "the job has no output directory to save into");
    return 0;
}

static void add_viewer(struct save *s, struct peer *viewer)
{
    struct error err;

    if (s->n_viewers < MOST_VIEWERS) {
        s->viewers[s->n_viewers++] = viewer->id;
        return;
    }
    error_set(&err, -EBUSY, "%d others wait for this checkpoint; try again", MOST_VIEWERS);
    tell_viewer(viewer, -EBUSY, &err, s->step);
}

void save_on_viewer(struct daemon *d, struct peer *viewer, const struct message *m)
{
    struct job *job = &d->job;
    struct error err;
    struct save *s;
    int rc;

    if (m->save.step != MESSAGE_NO_STEP) {
        peer_refuse(viewer, "only the client says which step is saved");
        return;
    }
    rc = check_job(job, true, &err);
    if (!rc && job->saved_step == find_cut(job)) {
        tell_viewer(viewer, 0, NULL, job->saved_step);
        return;
    }
    s = rc ? NULL : find_checkpoint(job, find_cut(job));
    if (s) {
        add_viewer(s, viewer);
        return;
    }
    s = rc ? NULL : add(d, true, &err);
    if (s) {
        add_viewer(s, viewer);
        begin(d, s);
        return;
    }
    tell_viewer(viewer, rc ? rc : -EBUSY, &err, 0);
}

/* Written to at offsets, so not for appending; of a kind that never blocks. */
static int check_files(const int *fds, unsigned n_fds, struct error *err)
{
    struct stat st;

    if (n_fds != 3)
        return error_set(err, -EINVAL, "a snapshot comes with three files: weights, config and side file");
    for (unsigned i = 0; i < n_fds; i++) {
        const int flags = fcntl(fds[i], F_GETFL);
        if (fstat(fds[i], &st) || !S_ISREG(st.st_mode) || flags < 0 || (flags & O_ACCMODE) == O_RDONLY ||
            flags & O_APPEND)
            return error_set(err, -EINVAL, "a snapshot goes into regular files that are open for writing");
    }
    return 0;
}

void save_on_snapshot(struct daemon *d, struct peer *viewer, const int *fds, unsigned n_fds)
{
    struct error err;
    struct save *s = NULL;
    int rc = check_files(fds, n_fds, &err);

    if (!rc)
        rc = check_job(&d->job, false, &err);
    if (!rc)
        s = add(d, false, &err);
    if (!s) {
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
        tell_viewer(viewer, rc ? rc : -EBUSY, &err, 0);
        return;
    }
    memcpy(s->options.files, fds, sizeof s->options.files);
    add_viewer(s, viewer);
    begin(d, s);
}
