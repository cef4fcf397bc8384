/* Whether the host has room for a job, before any of it is taken: the system would take it back by killing. */
#include "eps/job/job_state.h"

#include "proto/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

enum {
    FEWEST_PARAMETERS = 1000, /* of a model that somebody would train */
};

static void plan(struct plan_host *out, const struct job *job, const struct message *m)
{
    const struct plan_host_setting setting = job_host_setting(job, m);

    plan_host(out, &job->model, &setting);
}

static bool has_worker_beside(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (!job->workers[i]->backend->takes_turns)
            return true;
    return false;
}

struct plan_host_setting job_host_setting(const struct job *job, const struct message *m)
{
    uint64_t stash_bytes = 0;

    for (uint32_t i = 0; i < job->n_planned; i++)
        stash_bytes += job->stash_bytes[i];
    return (struct plan_host_setting){
        .purpose = m->job.generate ? PLAN_GENERATE
                   : m->job.train  ? PLAN_TRAIN
                                   : PLAN_EVALUATE,
        .precision = m->job.precision,
        .moments = m->job.moments,
        .grad = m->job.grad,
        .fenced = job_is_fenced(m),
        .adamw = m->job.optimizer == OPTIMIZER_ADAMW,
        .n_parts = m->job.n_parts,
        .n_workers = job->n_planned,
        .beside = has_worker_beside(job),
        .batch = m->job.batch,
        .seq = m->job.seq,
        .host_stash_bytes = stash_bytes,
        .config_bytes = job->config_bytes,
        .side_bytes = job->side_bytes,
    };
}

uint64_t job_host_left(const struct job *job)
{
    struct plan_host host;

    plan(&host, job, &job->request);
    return plan_host_left(&host, process_available_bytes());
}

/* What of the request could be changed so that it fits: the first that suffices. */
static void name_remedy(char *text, size_t n, const struct job *job, const struct plan_room *room, bool capped)
{
    const bool train = job->request.job.train;
    struct plan_host host;

    for (unsigned change = 1; train && change < 4; change++) {
        const bool narrow = change & 1, eager = change & 2;
        struct message m = job->request;
        if ((narrow && m.job.moments == NUMBER_BF16) || (eager && !job_is_fenced(&m)))
            continue;
        if (narrow)
            m.job.moments = NUMBER_BF16;
        if (eager) {
            m.job.fenced = false;
            m.job.clip_norm = 0;
        }
        plan(&host, job, &m);
        char bytes_text[PROCESS_BYTES_TEXT];
        if (plan_host_fits(&host, room)) {
            snprintf(text, n, "%s%s%s would take %s", narrow ? "--moments bf16" : "", narrow && eager ? " and " : "",
                     eager ? "--commit eager without --clip-norm" : "",
                     process_format_bytes(bytes_text, host.total + (capped ? 0 : room->arenas)));
            return;
        }
    }
    plan(&host, job, &job->request);
    if (host.bytes[LEDGER_STASH] + host.bytes[LEDGER_DATA] > host.total / 2) {
        snprintf(text, n, "choose a smaller --batch or --seq");
        return;
    }
    const uint64_t a_parameter = host.total / job->model.n_parameters + 1;
    const uint64_t all = room->available > room->arenas ? room->available - room->arenas : 0;
    const uint64_t bytes = all < room->cap ? all : room->cap;
    if (bytes / a_parameter < FEWEST_PARAMETERS)
        snprintf(text, n, "choose a smaller model, or allow more");
    else
        snprintf(text, n, "choose a smaller model, of about %.3g million parameters",
                 (double)(bytes / a_parameter) / 1e6);
}

static struct plan_room room_of(const struct job *job, uint64_t daemon_cap, uint64_t arenas, const char **capped_by)
{
    struct plan_room room = {.available = process_available_bytes(), .cap = UINT64_MAX, .arenas = arenas};

    if (daemon_cap) {
        room.cap = daemon_cap;
        *capped_by = "are what the daemon's --host-mem allows";
    }
    if (job->request.job.host_mem && job->request.job.host_mem < room.cap) {
        room.cap = job->request.job.host_mem;
        *capped_by = "are what --host-mem allows";
    }
    return room;
}

int job_check_host(struct job *job, uint64_t daemon_cap, uint64_t arenas, struct error *err)
{
    const char *capped_by = NULL;
    const struct plan_room room = room_of(job, daemon_cap, arenas, &capped_by);
    char need_text[PROCESS_BYTES_TEXT], have_text[PROCESS_BYTES_TEXT], terms[160] = "";

    const struct plan_host_setting setting = job_host_setting(job, &job->request);

    plan_host(&job->host, &job->model, &setting);
    if (plan_host_fits(&job->host, &room)) {
        plan_host_add_slots(&job->host, &job->model, &setting, &room);
        return 0;
    }
    const bool capped = job->host.total > room.cap;
    const uint64_t all = job->host.total + arenas;
    const uint64_t need = capped ? job->host.total : all + plan_host_slack(all, job->host.n_workers);
    plan_host_name_terms(terms, sizeof terms, &job->host, capped ? 0 : arenas);
    return error_set(err, -ENOMEM, "this job needs %s of host memory (%s), %s %s",
                     process_format_bytes(need_text, need), terms,
                     process_format_bytes(have_text, capped ? room.cap : room.available),
                     capped ? capped_by : "are free");
}

void job_add_remedy(const struct job *job, uint64_t daemon_cap, uint64_t arenas, struct error *err)
{
    const char *capped_by;
    const struct plan_room room = room_of(job, daemon_cap, arenas, &capped_by);
    char remedy[160] = "";

    name_remedy(remedy, sizeof remedy, job, &room, job->host.total > room.cap);
    error_append(err, "; %s", remedy);
}
