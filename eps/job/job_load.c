/* The files and memory of a job: read and touched before the first step. */
#include "eps/job/job_internal.h"

#include "eps/store/memory.h"
#include "eps/store/rewire.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/output.h"
#include "proto/model/file/safetensors.h"
#include "proto/plan/memory/files.h"
#include "proto/wire/training_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void job_close_fds(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

static int create_config(struct job *job, struct error *err)
{
    if (job->config_bytes > MESSAGE_MAX_CONFIG_BYTES)
        return error_set(err, -EINVAL, "config.json has %zu bytes; 1 MiB is the most", job->config_bytes);
    return segment_create(&job->config, "eps-config", job->config_bytes + 1, SEGMENT_READ, err);
}

static int job_load_read_config(struct job *job, int fd, struct error *err)
{
    int rc = segment_sealed_bytes(&job->config_bytes, fd, "config.json", err);

    if (!rc)
        rc = create_config(job, err);
    if (rc)
        return rc;
    if (pread(fd, job->config.base, job->config_bytes, 0) != (ssize_t)job->config_bytes)
        return error_set(err, -EIO, "config.json could not be read");
    return 0;
}

static int check_side(const struct job *job, struct error *err)
{
    if (job->side_bytes <= CHECKPOINT_MAX_TEXT)
        return 0;
    return error_set(err, -EINVAL, "the job's side file has %zu bytes; %d MiB are the most", job->side_bytes,
                     CHECKPOINT_MAX_TEXT >> 20);
}

static int size_side(struct job *job, struct error *err)
{
    const int rc = segment_sealed_bytes(&job->side_bytes, job->side_file.fd, "the job's side file", err);

    return rc ? rc : check_side(job, err);
}

/* Files that the client serves: [side file], weight files..., [moments]. Its config is in their memory. */
static int take_served(struct job *job, struct error *err)
{
    const struct message *m = &job->request;
    uint32_t next = 0;

    if (!job->client || !job->client->files || m->job.n_files < m->job.resume)
        return error_set(err, -EINVAL, "the job came without its files");
    job->files = job->client->files;
    job->client->files = NULL;
    if (m->job.side)
        job->side_file = file_served(files_server(job->files), next++);
    job->n_weight_files = m->job.n_files - m->job.resume;
    for (unsigned i = 0; i < job->n_weight_files; i++)
        job->weight_files[i] = file_served(files_server(job->files), next++);
    if (m->job.resume)
        job->moments_file = file_served(files_server(job->files), next);
    if (m->job.trace && (job->trace_file = files_take_trace(job->files)) < 0)
        return error_set(err, -EINVAL, "the job came without a socket for its trace");
    job->config_bytes = m->job.config_bytes;
    job->side_bytes = m->job.side_bytes;
    int rc = check_side(job, err);
    if (!rc)
        rc = create_config(job, err);
    if (!rc)
        memcpy(job->config.base, files_memory(job->files), job->config_bytes);
    return rc;
}

/* config, [output directory], [side file], [trace], weight files..., [moments] The descriptors are the job's from
 * here on, also after a failure. */
int job_take_files(struct job *job, const int *fds, unsigned n_fds, struct error *err)
{
    const struct message *m = &job->request;
    unsigned next = 1, end = n_fds;

    if (m->job.config_bytes > 0) {
        job_close_fds(fds, n_fds);
        return take_served(job, err);
    }
    if (n_fds < 1u + m->job.output + m->job.side + m->job.trace + m->job.resume) {
        job_close_fds(fds, n_fds);
        return error_set(err, -EINVAL, "the job came without its files");
    }
    if (m->job.output)
        job->output = fds[next++];
    if (m->job.side)
        job->side_file = file_own(fds[next++]);
    if (m->job.trace)
        job->trace_file = fds[next++];
    if (m->job.resume)
        job->moments_file = file_own(fds[--end]);
    job->n_weight_files = end - next;
    for (unsigned i = 0; i < job->n_weight_files; i++)
        job->weight_files[i] = file_own(fds[next + i]);
    int rc = job_load_read_config(job, fds[0], err);
    close(fds[0]);
    if (!rc && m->job.side)
        rc = size_side(job, err);
    if (!rc && m->job.trace && !trace_is_file(job->trace_file)) /* anything else could make a thread wait */
        rc = error_set(err, -EINVAL, "the job's trace is not a regular file that is open for appending");
    return rc;
}

static int create_segment(struct segment *out, const char *name, size_t bytes, enum ledger_category category,
                          struct memory *memory, struct job *job)
{
    int rc = segment_create(out, name, bytes, SEGMENT_READ_WRITE, &job->load_error);

    if (rc)
        return rc;
    memory_prepare(memory, out->base, out->bytes, true);
    ledger_add(&job->load_ledger, category, out->bytes);
    return 0;
}

/* On failure what there is stays with the seat. */
static int create_seat(struct job_seat *seat, uint64_t stash_bytes, struct memory *memory)
{
    struct job *job = seat->job;
    const char *const bus = seat->bus;
    char what[64];

    snprintf(what, sizeof what, "the inbox of the worker at %s lies", bus);
    memory_near(memory, what, &bus, 1);
    int rc = create_segment(&seat->inbox, "eps-inbox", job->host.inbox_bytes, LEDGER_INBOX, memory, job);

    if (!rc && job_goal(job)->checks_memory) {
        const size_t n_slots = 1 + job->host.n_slots;
        seat->sums = calloc(n_slots, sizeof *seat->sums);
        if (!seat->sums)
            return error_set(&job->load_error, -ENOMEM, "no memory for the sums of %zu slots", n_slots);
        ledger_add(&job->load_ledger, LEDGER_CHECKSUMS, n_slots * sizeof *seat->sums);
    }
    if (!rc && stash_bytes)
        rc = create_segment(&seat->stash, "eps-stash", stash_bytes, LEDGER_STASH, memory, job);
    memory_near(memory, what, NULL, 0);
    return rc;
}

/* All workers read the weights; of the store's memory they alone are shared. */
static void place_weights(const struct job *job, struct memory *memory)
{
    const char *buses[PEERS_MAX_WORKERS];

    for (uint32_t i = 0; i < job->n_seats; i++)
        buses[i] = job->seats[i].bus;
    memory_near(memory, "the weights lie", buses, job->n_seats);
}

static int create_segments(struct job *job, struct memory *memory)
{
    int rc =
        create_segment(&job->data, "eps-data", plan_data_bytes(job_goal(job), &job->model), LEDGER_DATA, memory, job);

    for (uint32_t i = 0; !rc && i < job->n_seats; i++)
        rc = create_seat(&job->seats[i], job->seats[i].stash_bytes, memory);
    return rc;
}

static void job_load_touch(struct job *job, const struct segment *segment)
{
    if (segment->base)
        pieces_zero(&job->load_pieces, segment->base, segment->bytes);
}

/* All pages of the segments are allocated before the first step. So the ledger agrees with the system, and no step
 * waits for a page. */
static void touch_segments(struct job *job)
{
    job_load_touch(job, &job->data);
    for (uint32_t i = 0; i < job->n_seats; i++) {
        job_load_touch(job, &job->seats[i].inbox);
        job_load_touch(job, &job->seats[i].stash);
    }
}

/* Maps all large memory, and checks that it may be locked, before it touches any of it. */
static int job_load_take_memory(struct job *job)
{
    const struct message *m = &job->request;
    struct memory memory;
    int rc = memory_init(&memory);

    if (rc)
        return error_set(&job->load_error, rc, "no memory for a description of this machine");
    const struct store_options options = {.train = job_trains(job),
                                          .precision = m->job.goal.precision,
                                          .base = m->job.goal.base,
                                          .moments = m->job.goal.moments,
                                          .sgd = m->job.goal.sgd,
                                          .nesterov = m->job.goal.nesterov,
                                          .momentum = m->job.goal.momentum,
                                          .no_master = m->job.goal.no_master,
                                          .checks_memory = m->job.goal.checks_memory,
                                          .fenced = job_is_fenced(job),
                                          .folded = job_is_folded(job),
                                          .sums = m->job.goal.sums,
                                          .replay = job_replays(job),
                                          .require_pinned = m->job.require_pinned,
                                          .memory = &memory,
                                          .said = job->said,
                                          .n_accumulators = job->host.n_accumulators,
                                          .seed = m->job.seed,
                                          .thawed = m->job.thaw == MODEL_THAWED ? m->job.freeze : NULL,
                                          .draws_head = job_trains(job) && !m->job.resume,
                                          .pieces = &job->load_pieces,
                                          .own_first = job->own_first,
                                          .n_own = job->n_own,
                                          .n_ring = job->host.n_ring,
                                          .clip_update = m->job.clip_update,
                                          .n_entries = m->job.goal.entries,
                                          .batch = m->job.goal.batch,
                                          .seq = m->job.goal.seq,
                                          .n_parts = m->job.goal.n_parts};
    ledger_add(&job->load_ledger, LEDGER_INBOX, job->hosts_bytes); /* eps/step/sharded.c has it */
    rc = create_segments(job, &memory);
    place_weights(job, &memory);
    if (!rc)
        rc = store_init(&job->store, &job->model, &options, &job->load_ledger, &job->load_error);
    if (!rc)
        touch_segments(job);
    job->store.options.memory = NULL;
    memory_free(&memory);
    return rc;
}

static int job_load_read_side(struct job *job)
{
    struct error *err = &job->load_error;

    if (!file_is_open(&job->side_file))
        return 0;
    job->side_text = malloc(job->side_bytes + 1);
    if (!job->side_text)
        return error_memory(err);
    ledger_add(&job->load_ledger, LEDGER_OTHER, ledger_table(job->side_bytes));
    int rc = file_read(&job->side_file, job->side_text, job->side_bytes, 0, err);
    if (rc) {
        error_prefix(err, "the job's side file");
        return rc;
    }
    json_t *side = NULL;
    rc = training_text_parse(&side, job->side_text, job->side_bytes, err);
    if (!rc && job->request.job.resume && training_text_products(&job->products, side, err))
        log_warning("%s: the run goes on with the library's first choices", err->text);
    if (!rc && job->request.job.resume && job->loss_scale.value > 0)
        rc = training_text_loss_scale(&job->loss_scale, side, err);
    if (side)
        json_decref(side);
    return rc;
}

/* A unit may have had fewer updates than the run has steps: a fenced run skips steps, and added blocks are younger.
 * Each has a bias correction of its own. */
static int check_updates(struct job *job)
{
    const uint64_t *updates = job->store.updates;

    for (uint32_t u = 0; u < job->model.n_units; u++)
        if (job->model.units[u].n_trained > 0 && updates[u] > job->step)
            return error_set(&job->load_error, -EINVAL,
                             "the moments have had %" PRIu64 " updates, and the checkpoint is of step %" PRIu64
                             ": do they belong to another step?",
                             updates[u], job->step);
    return 0;
}

static int load_model(struct job *job)
{
    struct reserve headers = {0};
    int rc;

    if (job->request.job.fresh)
        return store_draw(&job->store, job->request.job.seed);
    headers.bytes = plan_load_bytes(&job->model, job->n_weight_files, job->request.job.header_bytes);
    headers.memory = job->headers = malloc(headers.bytes);
    if (!job->headers)
        return error_set(&job->load_error, -ENOMEM, "no memory for the headers of its files");
    ledger_add(&job->load_ledger, LEDGER_OTHER, ledger_table(headers.bytes));
    rc = file_is_open(&job->moments_file)
             ? store_load_places(&job->store, &job->moments_file, &headers, &job->load_error)
             : 0;
    if (!rc)
        rc = store_load(&job->store, job->weight_files, job->n_weight_files, &headers, &job->load_error);
    if (!rc && file_is_open(&job->moments_file))
        rc = store_load_moments(&job->store, &job->moments_file, &headers, &job->load_error);
    if (!rc && file_is_open(&job->moments_file))
        rc = check_updates(job);
    if (!rc && rewire_is_due(&job->store, job->step)) /* only by an `until` that the run before did not have */
        rewire_leave(&job->store, job->step);
    return rc;
}

/* A segment that was never made was never counted. */
static void close_counted(struct job *job, struct segment *segment, enum ledger_category category)
{
    if (segment->base)
        ledger_sub(&job->load_ledger, category, segment->bytes);
    segment_close(segment);
}

/* The old memory goes before the new is made: both together might exceed what the plan has. */
int job_do_renew(void *context)
{
    struct job_seat *seat = context;
    struct job *job = seat->job;
    struct memory memory;
    int rc = memory_init(&memory);

    if (rc)
        return error_set(&job->load_error, rc, "no memory for a description of this machine");
    close_counted(job, &seat->inbox, LEDGER_INBOX);
    close_counted(job, &seat->stash, LEDGER_STASH);
    if (seat->sums)
        ledger_sub(&job->load_ledger, LEDGER_CHECKSUMS, (1 + job->host.n_slots) * sizeof *seat->sums);
    free(seat->sums);
    seat->sums = NULL;
    rc = create_seat(seat, seat->new_stash_bytes, &memory);
    if (!rc && job->request.job.require_pinned)
        rc = memory_check_locked(&memory, &job->load_error);
    memory_free(&memory);
    if (rc)
        return rc;
    job_load_touch(job, &seat->inbox);
    job_load_touch(job, &seat->stash);
    return 0;
}

int job_do_unload(void *context)
{
    struct job *job = context;
    struct ledger taken = job->load_ledger; /* a copy: the loop thread owns the daemon's ledger, and follows */

    for (uint32_t i = 0; i < job->n_seats; i++) {
        segment_close(&job->seats[i].inbox);
        segment_close(&job->seats[i].stash);
        free(job->seats[i].sums);
        job->seats[i].sums = NULL;
    }
    segment_close(&job->data);
    job->store.ledger = &taken;
    store_free(&job->store);
    return 0;
}

/* On a thread of the pool. The side file comes first, as it may change the scale of the loss and the library's choices
 * that the rest is made by. */
int job_do_load(void *context)
{
    struct job *job = context;
    int rc = job_load_read_side(job);

    if (job->trace_file >= 0)
        trace_open(&job->optimizer_trace, job->trace_file, "epsd", "optimizer");
    if (!rc)
        rc = job_load_take_memory(job);
    if (!rc)
        rc = load_model(job);
    if (!rc && job_trains(job) && job->output >= 0 && job->own_first == 0) /* of several hosts, host 0 */
        output_clean(job->output);
    return rc;
}
