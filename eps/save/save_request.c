/* Requests for checkpoints and snapshots: checks them and begins the saves. */
#include "eps/save/save_state.h"

#include "eps/base/rights.h"
#include "eps/store/rewire.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The version that would be saved now. */
static uint64_t find_cut(const struct job *job)
{
    const uint64_t cut = relay_cut(job_reader_relay(job));

    return cut == MESSAGE_NO_STEP ? job->step : cut;
}

static struct save *save_request_find_checkpoint(const struct saves *saves, uint64_t step)
{
    struct save *s = saves->first;

    while (s && (!s->checkpoint || s->over || s->rc || s->step != step))
        s = s->next;
    return s;
}

static_assert(2 * SAVE_MOST == PLAN_HOST_SAVES, "the job has flags for every save");

/* Finds flags that no save uses, and zeroes them. */
static uint8_t *find_units(const struct saves *saves)
{
    const uint32_t n_units = saves->job->model.n_units;
    uint8_t *units = saves->units;

    for (const struct save *s = saves->first; s;) {
        const bool taken = s->units == units;
        s = taken ? saves->first : s->next;
        units += taken ? n_units : 0;
    }
    assert(units < saves->units + (size_t)PLAN_HOST_SAVES * n_units);
    memset(units, 0, n_units);
    return units;
}

/* Checkpoints and snapshots are counted apart, so that viewers cannot keep the run from saving. */
int save_add(struct save **out, struct saves *saves, bool checkpoint, struct error *err)
{
    const struct job *job = saves->job;
    struct save **end = &saves->first, *s;
    unsigned n = 0;

    for (; *end; end = &(*end)->next)
        n += (*end)->checkpoint == checkpoint;
    if (n == SAVE_MOST)
        return error_set(err, -EBUSY, "%u %s are under way: the disk is too slow for more", n,
                         checkpoint ? "checkpoints" : "snapshots");
    s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(err);
    s->units = find_units(saves);
    s->saves = saves;
    s->step = find_cut(job);
    s->loss_scale = job->loss_scale;
    s->reader = ++saves->n_readers;
    s->checkpoint = checkpoint;
    s->is_sharded = checkpoint && !job->facts.has_masters;
    s->by_client = checkpoint && job->request.job.files;
    s->work.data = s;
    s->options =
        (struct capture_options){.store = &job->store,
                                 .step = s->step,
                                 .config = job->config.base,
                                 .config_bytes = job->config_bytes,
                                 .side = job->side_text,
                                 .side_bytes = job->side_bytes,
                                 .microbatch = job->microbatch,
                                 .products = job->products,
                                 .attention = job->backend->takes_turns ? NULL : plan_attention_name(job->attention),
                                 .checkpoint = checkpoint,
                                 .output = checkpoint ? job->output : -1};
    *out = *end = s;
    return 0;
}

/* Before the first step is opened, the relay knows no units and none of them changes: all are captured at once. What is
 * still to change its places begins later. */
void save_begin(struct save *s)
{
    const struct job *job = s->saves->job;

    s->waits = s->saves->held || rewire_is_due(&job->store, s->step);
    if (s->waits)
        return;
    if (relay_cut(job_reader_relay(job)) != MESSAGE_NO_STEP) {
        save_announce(s);
        return;
    }
    for (uint32_t u = job->store.own.first; u < job->store.own.end; u++)
        save_capture_unit(s, u);
}

/* A checkpoint that is there, or under way, answers the request: none is written twice. */
void save_on_client(struct saves *saves, const struct message *m)
{
    const struct job *job = saves->job;
    const uint64_t cut = find_cut(job);
    struct error err;
    struct save *s;

    if (!job->aligned) {
        error_set(&err, -EAGAIN, "step %" PRIu64 " is begun, and its hosts save between two steps", job->step + 1);
        save_announce_client(job, -EAGAIN, &err, cut);
        return;
    }
    if (m->save.step != MESSAGE_NO_STEP && m->save.step != cut) {
        peer_refuse(job->client, "a save of another step than the next one");
        return;
    }
    if (m->save.step == MESSAGE_NO_STEP && cut > job->step && job_waits(job)) {
        error_set(&err, -EAGAIN, "step %" PRIu64 " is begun, and waits for a worker", cut);
        save_announce_client(job, -EAGAIN, &err, cut);
        return;
    }
    if (saves->saved_step == cut) {
        save_announce_client(job, 0, NULL, cut);
        return;
    }
    if (save_request_find_checkpoint(saves, cut)) /* the client hears of its end */
        return;
    int rc = save_add(&s, saves, true, &err);
    if (rc) {
        save_note_failure(saves, &err);
        save_announce_client(job, rc, &err, cut);
    } else {
        save_begin(s);
    }
}

/* Checks that the job can be saved now, as a checkpoint or a snapshot: 0, or why not. */
static int check_job(const struct job *job, bool checkpoint, struct error *err)
{
    if (job->state == JOB_NONE || !job_trains(job))
        return error_set(err, -ENOENT, "the daemon trains nothing%s",
                         checkpoint ? ": there is nothing to save" : "; name a --model");
    if (!job_is_open(job))
        return error_set(err, -EAGAIN, "the job is %s; try again",
                         job->state == JOB_ENDING ? "ending" : "being opened");
    if (checkpoint && job->peers->host > 0)
        return error_set(err, -EINVAL, "this is host %u of %u: host 0 saves for all", job->peers->host,
                         job->peers->n_hosts);
    if (checkpoint && !job_has_output(job))
        return error_set(err, -EINVAL, "the job saves no checkpoints: its run was begun with --no-save");
    if (checkpoint && job->request.job.files && !job->client)
        return error_set(err, -EAGAIN,
                         "the job is detached, and only a client of user %u can open its checkpoint's files: eps train "
                         "--attach takes it over",
                         (unsigned)job->uid);
    return 0;
}

bool save_stands(const struct saves *saves)
{
    return saves->saved_step == find_cut(saves->job);
}

bool save_goes_on(const struct saves *saves)
{
    for (const struct save *s = saves->first; s; s = s->next)
        if (s->checkpoint && !s->over && s->awaits == SAVE_FOR_NOTHING)
            return true;
    return false;
}

int save_without_client(struct saves *saves, struct error *err)
{
    struct save *s;

    if (save_request_find_checkpoint(saves, find_cut(saves->job)))
        return 0;
    if (!saves->job->aligned)
        return error_set(err, -EAGAIN, "a step is begun, and its hosts save between two steps");
    const int rc = save_add(&s, saves, true, err);
    if (!rc)
        save_begin(s);
    return rc;
}

static void add_viewer(struct save *s, struct peer *viewer)
{
    struct error err;

    if (s->n_viewers < SAVE_VIEWERS) {
        s->viewers[s->n_viewers++] = viewer->id;
        return;
    }
    error_set(&err, -EBUSY, "%d others wait for this checkpoint; try again", SAVE_VIEWERS);
    save_announce_viewer(viewer, -EBUSY, &err, s->step);
}

static void wait_for_step(struct saves *saves, struct peer *viewer)
{
    struct error err;

    if (saves->n_waiting < SAVE_WAITING) {
        saves->waiting[saves->n_waiting++] = viewer->id;
        return;
    }
    error_set(&err, -EBUSY, "%d others wait for this checkpoint; try again", SAVE_WAITING);
    save_announce_viewer(viewer, -EBUSY, &err, 0);
}

/* Each is asked again as if it had come now; one that is gone is passed over. */
void save_aligned(struct saves *saves)
{
    const struct message m = {.kind = MESSAGE_SAVE, .save.step = MESSAGE_NO_STEP};
    const unsigned n = saves->n_waiting;

    saves->n_waiting = 0;
    for (unsigned i = 0; i < n; i++) {
        struct peer *viewer = peer_find(saves->job->peers->first, saves->waiting[i]);
        if (viewer)
            save_on_viewer(saves, viewer, &m);
    }
}

bool save_is_busy(const struct saves *saves)
{
    for (const struct save *s = saves->first; s; s = s->next)
        if (!s->waits && (!s->over || s->begun))
            return true;
    return false;
}

void save_hold(struct saves *saves)
{
    assert(!save_is_busy(saves));
    saves->held = true;
}

void save_resume(struct saves *saves)
{
    saves->held = false;
    for (struct save *s = saves->first; s; s = s->next)
        if (s->waits && !s->rc)
            save_begin(s);
        else
            s->waits = false;
}

void save_on_viewer(struct saves *saves, struct peer *viewer, const struct message *m)
{
    const struct job *job = saves->job;
    struct error err;
    struct save *s;
    int rc;

    if (m->save.step != MESSAGE_NO_STEP) {
        peer_refuse(viewer, "only the client may choose the step to save");
        return;
    }
    rc = check_job(job, true, &err);
    if (!rc && !job->aligned) {
        wait_for_step(saves, viewer);
        return;
    }
    if (!rc && saves->saved_step == find_cut(job)) {
        save_announce_viewer(viewer, 0, NULL, saves->saved_step);
        return;
    }
    s = rc ? NULL : save_request_find_checkpoint(saves, find_cut(job));
    if (s) {
        add_viewer(s, viewer);
        return;
    }
    if (!rc)
        rc = save_add(&s, saves, true, &err);
    if (rc) {
        save_announce_viewer(viewer, rc, &err, 0);
    } else {
        add_viewer(s, viewer);
        save_begin(s);
    }
}

/* The descriptors are the save's once it has been added; until then they are closed here. */
void save_on_snapshot(struct saves *saves, struct peer *viewer, const int *fds, unsigned n_fds)
{
    struct error err;
    struct save *s;
    const bool is_served = n_fds == 0 && viewer->files;
    int rc = is_served ? 0
             : n_fds == CAPTURE_FILES
                 ? rights_files(fds, n_fds, &err)
                 : error_set(&err, -EINVAL, "a snapshot needs three files: weights, config and side file");

    if (!rc)
        rc = check_job(saves->job, false, &err);
    if (!rc && !saves->job->facts.has_masters)
        rc = error_set(&err, -EINVAL,
                       "no host has all of this job's master weights: save a checkpoint (eps save), and export that");
    if (!rc)
        rc = save_add(&s, saves, false, &err);
    if (rc) {
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
        save_announce_viewer(viewer, rc, &err, 0);
        return;
    }
    if (is_served)
        save_use_files(s, viewer->files, 0, CAPTURE_FILES);
    for (unsigned i = 0; i < n_fds; i++)
        s->options.files[s->options.n_files++] = file_own(fds[i]);
    add_viewer(s, viewer);
    save_begin(s);
}
