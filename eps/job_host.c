/* Whether the host has room for a job, before any of it is taken: the system would take it back by killing. */
#include "eps/job_state.h"

#include "proto/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

enum {
    NAMED_TERMS = 3,          /* in a refusal: the largest say what to change */
    FEWEST_PARAMETERS = 1000, /* of a model that somebody would train */
};

static void plan(struct plan_host *out, const struct job *job, const struct message *m)
{
    const struct plan_host_setting setting = job_host_setting(job, m);

    plan_host(out, &job->model, &setting);
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
        .batch = m->job.batch,
        .seq = m->job.seq,
        .host_stash_bytes = stash_bytes,
        .config_bytes = job->config_bytes,
        .side_bytes = job->side_bytes,
    };
}

uint64_t job_host_left(const struct job *job)
{
    const uint64_t available = process_available_bytes();
    struct plan_host host;

    plan(&host, job, &job->request);
    const uint64_t rest = host.total - host.bytes[LEDGER_STASH];
    const uint64_t taken = rest + plan_host_slack(available, job->n_workers);
    return available > taken ? available - taken : 0;
}

/* What there is to be had, and who says so. */
struct room {
    uint64_t available, cap; /* cap: of the job's own bytes */
    const char *capped_by;   /* NULL: nobody */
    uint64_t arenas;
};

static bool fits(const struct job *job, const struct room *room, const struct plan_host *host)
{
    const uint64_t all = host->total + room->arenas;

    return host->total <= room->cap && all + plan_host_slack(all, job->n_workers) <= room->available;
}

/* "first_moment 4.0 GiB, second_moment 4.0 GiB, weights 4.0 GiB": the largest terms. */
static void name_terms(char *text, size_t n, const struct plan_host *host, uint64_t arenas)
{
    bool named[LEDGER_CATEGORIES + 1] = {false};
    size_t used = 0;

    for (int i = 0; i < NAMED_TERMS; i++) {
        char bytes_text[PROCESS_BYTES_TEXT];
        uint64_t largest = 0;
        int at = -1;
        for (int c = 0; c <= LEDGER_CATEGORIES; c++) {
            const uint64_t bytes = c < LEDGER_CATEGORIES ? host->bytes[c] : arenas;
            if (!named[c] && bytes > largest) {
                largest = bytes;
                at = c;
            }
        }
        if (at < 0)
            return;
        named[at] = true;
        const int wanted = snprintf(text + used, n - used, "%s%s %s", i ? ", " : "",
                                    at < LEDGER_CATEGORIES ? ledger_name((enum ledger_category)at) : "CPU workers",
                                    process_format_bytes(bytes_text, largest));
        if (wanted < 0 || (size_t)wanted >= n - used)
            return;
        used += (size_t)wanted;
    }
}

/* What of the request could be changed so that it fits: the first that suffices. */
static void name_remedy(char *text, size_t n, const struct job *job, const struct room *room, bool capped)
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
        if (fits(job, room, &host)) {
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

int job_check_host(struct job *job, uint64_t daemon_cap, uint64_t arenas, struct error *err)
{
    struct room room = {.available = process_available_bytes(), .cap = UINT64_MAX, .arenas = arenas};
    char need_text[PROCESS_BYTES_TEXT], have_text[PROCESS_BYTES_TEXT], terms[160] = "", remedy[160];

    if (daemon_cap) {
        room.cap = daemon_cap;
        room.capped_by = "are what the daemon's --host-mem allows";
    }
    if (job->request.job.host_mem && job->request.job.host_mem < room.cap) {
        room.cap = job->request.job.host_mem;
        room.capped_by = "are what --host-mem allows";
    }
    plan(&job->host, job, &job->request);
    if (fits(job, &room, &job->host))
        return 0;
    const bool capped = job->host.total > room.cap;
    const uint64_t all = job->host.total + arenas;
    const uint64_t need = capped ? job->host.total : all + plan_host_slack(all, job->n_workers);
    name_terms(terms, sizeof terms, &job->host, capped ? 0 : arenas);
    name_remedy(remedy, sizeof remedy, job, &room, capped);
    return error_set(err, -ENOMEM, "this job needs %s of host memory (%s), %s %s; %s",
                     process_format_bytes(need_text, need), terms,
                     process_format_bytes(have_text, capped ? room.cap : room.available),
                     capped ? room.capped_by : "are free", remedy);
}
