/* Checkpoints and snapshots, while the job goes on training.
 *
 * Each save is a reader of the relay. The relay fixes the version to save (the cut), and captures each unit when it
 * reaches that version: nothing is folded into a captured unit until it is released. One writer at a time, a work item
 * of libuv's pool, writes some captured units, in the order in which the backward pass needs them. They are released,
 * and the next item begins. So neither the loop nor the optimizer thread waits for a disk, and a step waits at most for
 * units that were captured before it.
 *
 * Before the first step is opened, the relay knows no units, and none of them changes. So the save reads all of them,
 * and its reader is announced right after the opening, before anything of that step can be folded. */
#include "eps/save/save_state.h"

#include "proto/plan/memory/coded.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BATCH_BYTES = 8 << 20, /* of weights, in one work item; the last unit may exceed it */
    SLOW_DISK = 16 << 20,  /* bytes a second */
};

int save_init(struct saves *saves, struct error *err)
{
    struct job *job = saves->job;

    *saves = (struct saves){.job = job, .saved_step = MESSAGE_NO_STEP};
    if (job_trains(job))
        saves->units = job_take_table(job, (size_t)PLAN_HOST_SAVES * job->model.n_units, sizeof *saves->units);
    return saves->units || !job_trains(job) ? 0 : error_memory(err);
}

void save_free(struct saves *saves)
{
    free(saves->units);
    *saves = (struct saves){.job = saves->job, .saved_step = MESSAGE_NO_STEP};
}

/* ---- telling ---------------------------------------------------------------------------------------------------- */

void save_announce_viewer(struct peer *viewer, int rc, const struct error *err, uint64_t step)
{
    const struct message m = {.kind = MESSAGE_SAVED, .saved.step = step};

    if (rc)
        peer_decline(viewer, rc, err);
    else
        session_send(viewer->session, &m);
}

void save_announce_client(const struct job *job, int rc, const struct error *err, uint64_t step)
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

void save_note_failure(struct saves *saves, const struct error *err)
{
    snprintf(saves->trouble, sizeof saves->trouble, "%.*s", (int)sizeof saves->trouble - 1, err->text);
}

void save_conclude(struct save *s)
{
    struct saves *saves = s->saves;

    s->over = true;
    if (s->rc)
        log_warning("step %" PRIu64 " not saved: %s", s->step, s->error.text);
    else if (s->checkpoint)
        log_line("step %" PRIu64 " saved%s%s", s->step, s->why.text[0] ? ", but " : "", s->why.text);
    if (s->checkpoint && s->rc)
        save_note_failure(saves, &s->error);
    else if (s->checkpoint) {
        save_note_failure(saves, &s->why); /* empty, or about `latest` alone */
        saves->saved_step = s->step;
    }
    if (s->checkpoint)
        save_announce_client(saves->job, s->rc, &s->error, s->step);
    for (unsigned i = 0; i < s->n_viewers; i++) {
        struct peer *viewer = peer_find(saves->job->peers->first, s->viewers[i]);
        if (viewer)
            save_announce_viewer(viewer, s->rc, &s->error, s->step);
    }
}

/* ---- the list --------------------------------------------------------------------------------------------------- */

static void free_save(struct save *s)
{
    for (unsigned i = 0; i < s->options.n_files; i++)
        if (s->options.files[i].fd >= 0)
            close(s->options.files[i].fd);
    files_release(s->files);
    save_free_notes(s);
    free(s);
}

void save_use_files(struct save *s, struct files *files, uint32_t first, uint32_t n)
{
    s->files = files_hold(files);
    s->options.n_files = n;
    for (uint32_t i = 0; i < n; i++)
        s->options.files[i] = file_served(files_server(files), first + i);
}

/* Units that are captured later are released at once. */
void save_give_up(struct save *s, int rc, const struct error *err)
{
    if (s->rc)
        return;
    s->rc = rc;
    s->error = *err;
    for (uint32_t u = 0; u < s->saves->job->model.n_units; u++)
        if (s->units[u] & UNIT_CAPTURED)
            s->units[u] |= UNIT_QUEUED | UNIT_WRITTEN;
}

/* Frees saves that are over, once the relay will not mention them again. The relay of an ended job still does, until
 * the optimizer thread has finished. */
static void sweep(struct saves *saves)
{
    const struct job *job = saves->job;
    const bool is_silent = !job_is_open(job) && !updater_pending(job->peers->updater);

    for (struct save **at = &saves->first; *at;) {
        struct save *s = *at;
        const bool forgotten = !s->announced || is_silent || s->n_captured == save_n_own(s);
        if (s->over && !s->begun && forgotten && (!s->is_sharded || s->told & SAVE_TOLD_END || !job->lent)) {
            *at = s->next;
            free_save(s);
        } else {
            at = &s->next;
        }
    }
}

/* ---- files that the client opens -------------------------------------------------------------------------------- */

/* For another user's job, the client opens the files of a checkpoint and puts them in place, since the daemon would do
 * both with its own user's rights (eps/base/rights.c). The daemon writes the units, as for any job. */

/* The store has tables for one open save at a time. The open one never waits for a later one: its version lacks only
 * updates of a step, and all contributions to that step are folded before any that a later version holds back. */
static bool is_other_open(const struct save *s)
{
    for (const struct save *other = s->saves->first; other; other = other->next)
        if (other != s && other->begun)
            return true;
    return false;
}

static bool needs_files(const struct save *s)
{
    return s->by_client && !s->waits && !s->begun && !s->over && !s->rc && !is_other_open(s);
}

static void ask_client(struct save *s, enum message_output what)
{
    const struct job *job = s->saves->job;
    const struct message m = {.kind = MESSAGE_OUTPUT, .output = {.id = s->reader, .step = s->step, .what = what}};

    if (what != OUTPUT_DROP) {
        s->begun = true;
        s->awaits = what == OUTPUT_OPEN ? SAVE_FOR_FILES : SAVE_FOR_PLACE;
    }
    if (job->client) /* else the job is ending, and this save too */
        session_send(job->client->session, &m);
}

static struct save *find_save(const struct saves *saves, uint32_t id)
{
    struct save *s = saves->first;

    while (s && (!s->by_client || s->reader != id))
        s = s->next;
    return s;
}

static int take_files(struct save *s, const struct message *m, struct error *err)
{
    const uint32_t n = m->output_done.n_files;
    struct files *files = s->saves->job->files;

    if (n <= CAPTURE_SMALL || n > CAPTURE_MOST)
        return error_set(err, -EINVAL, "a checkpoint has %d to %d files, and %u came", CAPTURE_SMALL + 1, CAPTURE_MOST,
                         n);
    if (!files)
        return error_set(err, -EINVAL, "the job's client does not serve the files of its checkpoints");
    save_use_files(s, files, m->output_done.first_file, n);
    return 0;
}

void save_on_output_done(struct saves *saves, const struct message *m)
{
    struct save *s = find_save(saves, m->output_done.id);
    struct error err = m->output_done.error;
    int rc = m->output_done.code;

    if (!s || s->rc) /* it was given up meanwhile */
        return;
    if (s->awaits == SAVE_FOR_NOTHING) {
        peer_refuse(saves->job->client, "files for a checkpoint that were not requested");
        return;
    }
    const bool placed = s->awaits == SAVE_FOR_PLACE;
    s->awaits = SAVE_FOR_NOTHING;
    s->begun = !placed && !rc; /* after a failure, the client has removed its files */
    if (!rc && !placed)
        rc = take_files(s, m, &err);
    if (rc)
        save_give_up(s, rc, &err);
    if (!s->begun)
        save_conclude(s);
}

/* ---- the writer ------------------------------------------------------------------------------------------------- */

/* One track for the writer, although each item may run on another thread of the pool. */
static struct trace *find_track(struct job *job)
{
    struct trace *track = job_trace(job, &job->writer_trace);

    if (track && track->pid == 0)
        trace_open(track, job->trace_file, "epsd", "checkpoint writer");
    return track;
}

static void write_unit(struct save *s, struct trace *track, uint32_t unit)
{
    const struct model *model = &s->saves->job->model;
    const uint64_t since = trace_begin(track), bytes = model_unit_dense(model, &model->units[unit]) * sizeof(float);
    const uint64_t norms = (uint64_t)model->units[unit].n_norm_maps * model->n_norm_entries * sizeof(uint16_t),
                   both = 2 * plan_unit_moment_bytes(model, &model->units[unit], s->saves->job->store.options.moments),
                   moments = s->checkpoint ? both + norms : 0;
    char name[MODEL_NAME_BYTES];

    s->result = capture_write(&s->capture, unit, &s->why);
    if (track)
        trace_end(track, since, "write", model_unit_name(name, model, unit),
                  (struct trace_arg[]){{"step", s->step}, {"bytes", bytes + moments}, {NULL, 0}});
}

static void save_finish(struct save *s, struct trace *track)
{
    const uint64_t since = trace_begin(track);

    s->result = capture_finish(&s->capture, &s->loss_scale, &s->why);
    if (track)
        trace_end(track, since, "flush", NULL, (struct trace_arg[]){{"step", s->step}, {NULL, 0}});
}

/* A directory that was removed keeps its descriptors alive, but takes no file. */
static bool is_removed(int directory)
{
    struct stat info;

    return directory >= 0 && fstat(directory, &info) == 0 && info.st_nlink == 0;
}

static void do_task(uv_work_t *work)
{
    struct save *s = work->data;
    struct trace *track = find_track(s->saves->job);

    s->result = 0;
    if (s->task == SAVE_DISCARD) {
        capture_discard(&s->capture);
        return;
    }
    if (s->task == SAVE_CLOSE) {
        capture_close(&s->capture);
        return;
    }
    if (!s->capture.open)
        s->result = capture_open(&s->capture, &s->options, &s->why);
    for (unsigned i = 0; !s->result && i < s->n_batch; i++)
        write_unit(s, track, s->batch[i]);
    if (!s->result && s->is_sharded && s->task == SAVE_FINISH)
        s->result = save_do_notes(s, &s->why);
    else if (!s->result && s->task == SAVE_FINISH)
        save_finish(s, track);
    s->output_gone = s->result == -ENOENT && is_removed(s->saves->job->output);
}

static void on_task_done(uv_work_t *work, int status)
{
    const struct save *s = work->data;

    (void)status; /* it is never cancelled */
    event_post(s->saves->job->peers, &(struct event){.kind = EVENT_WRITTEN});
}

/* What save_tick has said of this save is true no more. */
static void note_answer(struct saves *saves, const struct save *s)
{
    saves->n_tasks++;
    if (!saves->told)
        return;
    saves->told = false;
    if (!s->result)
        log_line("step %" PRIu64 " is being saved, and the disk answers again", s->step);
    if (s->checkpoint)
        saves->trouble[0] = '\0';
}

void save_on_written(struct saves *saves)
{
    struct save *s = saves->writing;

    saves->writing = NULL;
    note_answer(saves, s);
    for (unsigned i = 0; i < s->n_batch; i++)
        s->units[s->batch[i]] |= UNIT_WRITTEN;
    s->n_written += s->n_batch;
    saves->output_gone = saves->output_gone || s->output_gone;
    if (s->result)
        save_give_up(s, s->result, &s->why);
    else if (s->task == SAVE_FINISH && s->by_client)
        ask_client(s, OUTPUT_PLACE);
    else if (s->task == SAVE_FINISH && s->is_sharded && saves->job->peers->host > 0)
        s->awaits = SAVE_FOR_PLACE; /* host 0's */
    else if (s->task == SAVE_FINISH || s->task == SAVE_CLOSE)
        s->begun = false;
    s->has_files = s->has_files || !s->result;
    if (s->task == SAVE_DISCARD) {
        s->begun = false;
        if (s->by_client)
            ask_client(s, OUTPUT_DROP);
    }
    if (!s->begun && !s->over)
        save_conclude(s);
}

/* Its longest task flushes a whole checkpoint and reads it back; nothing flushes a snapshot. */
void save_tick(struct saves *saves, unsigned most_quiet)
{
    const struct save *s = saves->writing;
    const double bytes = (double)saves->job->host.total + (double)saves->job->model.n_parameters * sizeof(float);
    const double allowance = s && s->checkpoint ? 2 * bytes / SLOW_DISK : 0;
    struct error err;

    if (!silence_tick(&saves->writer, s != NULL, saves->n_tasks, most_quiet, allowance))
        return;
    if (!s->checkpoint || saves->job->state == JOB_ENDING) /* others do not wait for whoever serves its files */
        files_abandon(s->files);
    if (saves->told)
        return;
    saves->told = true;
    error_set(&err, -EIO,
              "step %" PRIu64 " is being saved, but the disk has taken nothing for %u s: see that it answers", s->step,
              saves->writer.ticks);
    log_warning("%s", err.text);
    if (s->checkpoint)
        save_note_failure(saves, &err);
}

/* From the top visit down: the order in which contributions come. */
static bool fill_batch(struct save *s)
{
    const struct model *model = &s->saves->job->model;
    uint64_t bytes = 0;

    s->n_batch = 0;
    for (uint32_t v = model->n_visits; v-- > 0 && s->n_batch < SAVE_UNITS && bytes < BATCH_BYTES;) {
        const uint32_t u = model->visits[v];
        if ((s->units[u] & (UNIT_CAPTURED | UNIT_QUEUED)) != UNIT_CAPTURED)
            continue;
        s->units[u] |= UNIT_QUEUED;
        s->batch[s->n_batch++] = u;
        bytes += model_unit_dense(model, &model->units[u]) * sizeof(float);
    }
    return s->n_batch > 0;
}

static bool find_task(struct save *s)
{
    if (s->waits || (s->over && !s->begun) || (!s->begun && is_other_open(s)))
        return false;
    s->n_batch = 0;
    if (s->rc)
        s->task = SAVE_DISCARD;
    else if (s->is_saved)
        s->task = SAVE_CLOSE;
    else if (s->awaits || (s->by_client && !s->begun))
        return false;
    else if (fill_batch(s))
        s->task = SAVE_WRITE;
    else if (s->n_written == save_n_own(s) && save_has_notes(s))
        s->task = SAVE_FINISH;
    else
        return false;
    return true;
}

/* Oldest save first, so that saves end in order. */
void save_pump(struct saves *saves)
{
    sweep(saves);
    for (struct save *s = saves->first; s && !saves->writing; s = s->next) {
        if (needs_files(s))
            ask_client(s, OUTPUT_OPEN);
        if (!find_task(s))
            continue;
        saves->writing = s;
        s->begun = true;
        int rc = uv_queue_work(saves->job->peers->loop, &s->work, do_task, on_task_done);
        assert(rc == 0); /* fails only if do_task is NULL */
    }
}

/* ---- the relay -------------------------------------------------------------------------------------------------- */

void save_capture_unit(struct save *s, uint32_t unit)
{
    if (s->units[unit] & UNIT_CAPTURED)
        return;
    s->units[unit] |= UNIT_CAPTURED;
    s->n_captured++;
    if (s->rc)
        s->units[unit] |= UNIT_QUEUED | UNIT_WRITTEN;
}

void save_on_capture(struct saves *saves, const struct relay_action *a)
{
    struct save *s = saves->first;

    while (s && s->reader != a->reader)
        s = s->next;
    assert(s && s->step == a->step);
    if (store_owns(&saves->job->store, a->unit))
        save_capture_unit(s, a->unit);
    else /* another host writes it */
        s->units[a->unit] |= UNIT_QUEUED | UNIT_WRITTEN;
    s->units[a->unit] |= UNIT_HELD;
}

void save_note_scale(struct saves *saves, uint64_t version)
{
    for (struct save *s = saves->first; s; s = s->next)
        if (s->step == version)
            s->loss_scale = saves->job->loss_scale;
}

bool save_take_released(struct saves *saves, struct relay_event *event)
{
    for (struct save *s = saves->first; s && job_is_open(saves->job); s = s->next)
        for (uint32_t u = 0; u < saves->job->model.n_units; u++)
            if ((s->units[u] & (UNIT_HELD | UNIT_WRITTEN)) == (UNIT_HELD | UNIT_WRITTEN)) {
                s->units[u] &= (uint8_t)~UNIT_HELD;
                *event = (struct relay_event){.kind = RELAY_RELEASED, .reader = s->reader, .unit = u};
                return true;
            }
    return false;
}

static void post_reader(const struct saves *saves, uint32_t reader)
{
    event_post(saves->job->peers, &(struct event){.kind = EVENT_ANNOUNCED, .reader = reader});
}

void save_announce(struct save *s)
{
    s->announced = true;
    post_reader(s->saves, s->reader);
}

bool save_take_reader(struct saves *saves, uint32_t *reader)
{
    for (struct save *s = saves->first; s; s = s->next)
        if (!s->announced) {
            s->announced = true;
            *reader = s->reader;
            return true;
        }
    return false;
}

void save_on_first_step(struct saves *saves)
{
    uint32_t reader;

    while (save_take_reader(saves, &reader))
        post_reader(saves, reader);
}

/* The writer does not wait for whoever serves its files any more. */
static void cancel(struct save *s, const struct error *why)
{
    files_abandon(s->files);
    save_give_up(s, -ECANCELED, why);
    if (!s->begun)
        save_conclude(s);
}

void save_on_client_gone(struct saves *saves)
{
    struct error err;

    for (struct save *s = saves->first; s; s = s->next) {
        if (!s->by_client || s->over)
            continue;
        error_set(&err, -ECANCELED, "its client went before it had put step %" PRIu64 " in place", s->step);
        s->awaits = SAVE_FOR_NOTHING;
        cancel(s, &err);
    }
}

void save_on_job_over(struct saves *saves)
{
    const struct job *job = saves->job;
    struct error err;

    for (struct save *s = saves->first; s; s = s->next) {
        const bool lost = s->by_client && !job->client;
        const bool placing = s == saves->writing && s->task == SAVE_FINISH;
        if (s->over || s->rc || (s->n_captured == save_n_own(s) && !lost && (!s->is_sharded || placing)))
            continue;
        error_set(&err, -ECANCELED,
                  lost            ? "the job ended before its client put step %" PRIu64 " in place"
                  : s->is_sharded ? "the job ended before all hosts had written step %" PRIu64
                                  : "the job ended before all units had reached step %" PRIu64,
                  s->step);
        cancel(s, &err);
    }
}
