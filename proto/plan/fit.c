/* A device in the host's memory competes with the daemon for the same bytes. Its budget follows from the daemon's,
 * which include the stashes that the plans put there; these depend on the budget. So the first attempt ignores the
 * host, and its result tells what is left for the next one.
 *
 * A device's plan is copied from the one before if both are alike. That holds only because both are asked with the same
 * limit and the same microbatch, in order: plan_device is the one place that plans a device, and decides it anew each
 * time. */
#include "proto/plan/fit.h"

#include "proto/model/family.h"
#include "proto/plan/attention_choice.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/files.h"
#include "proto/plan/search.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* The host's limits for devices in its memory. */
struct limit {
    bool no_host_stash, least_host_stash;
    uint64_t budget; /* bytes, of each such device */
};

static const struct limit no_limit = {.budget = UINT64_MAX},
                          with_least = {.least_host_stash = true, .budget = UINT64_MAX},
                          without = {.no_host_stash = true, .budget = UINT64_MAX};

/* One library for all workers, as another worker must redo work with the same bits; only nets of images in bf16 have
 * any use for it. */
static uint32_t common_convolution(const struct plan_fit_asked *asked)
{
    const bool has_use = asked->model->config.family->sees_images && asked->goal.precision == NUMBER_BF16;
    const uint32_t first = has_use ? asked->devices[0].convolution : 0;

    for (uint32_t i = 1; i < asked->n_workers; i++)
        if (has_use && asked->devices[i].convolution != first)
            return 0;
    return first;
}

struct plan_setting plan_fit_setting(const struct plan_fit_asked *asked, uint32_t worker)
{
    struct plan_setting setting = {
        .backend = asked->devices[worker].backend,
        .library_bytes = asked->devices[worker].library_bytes,
        .attention = plan_attention_of(asked),
        .convolution = common_convolution(asked),
        .goal = asked->goal,
    };

    plan_share(&setting, asked->n_workers, asked->n_cores);
    if (asked->n_parts)
        setting.share_rows = (asked->n_parts + asked->n_workers - 1) / asked->n_workers * setting.part_rows;
    return setting;
}

static bool has_worker_beside(const struct plan_fit_asked *asked)
{
    for (uint32_t i = 0; i < asked->n_workers; i++)
        if (!asked->devices[i].backend->takes_turns)
            return true;
    return false;
}

static uint32_t count_arenas(const struct plan_fit_asked *asked)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < asked->n_workers; i++)
        n += asked->devices[i].backend->takes_turns;
    return n;
}

/* Without the stash, which depends on the plans. */
static struct plan_host_setting host_setting(const struct plan_fit_asked *asked)
{
    uint32_t n_files = asked->n_files;
    uint64_t header_bytes = asked->header_bytes;

    if (asked->from_checkpoint)
        plan_count_checkpoint(&n_files, &header_bytes, asked->model, plan_moments(&asked->goal), asked->goal.moments);
    return (struct plan_host_setting){.goal = asked->goal,
                                      .n_workers = asked->n_workers,
                                      .beside = has_worker_beside(asked),
                                      .replay = asked->n_own > 0 && !asked->goal.fenced,
                                      .config_bytes = asked->config_bytes,
                                      .side_bytes = asked->side_bytes,
                                      .files_bytes = asked->files_bytes,
                                      .n_files = n_files,
                                      .header_bytes = header_bytes,
                                      .own_first = asked->own_first,
                                      .n_own = asked->n_own,
                                      .own_parts = asked->n_parts,
                                      .hosts_bytes = asked->hosts_bytes,
                                      .hosts_tables = asked->hosts_tables};
}

/* What the devices' plans take of the host's memory. */
struct taken {
    uint64_t stash_bytes, arenas;
};

static void taken_add(struct taken *taken, const struct plan *plan, const struct plan_fit_device *device)
{
    taken->stash_bytes += plan->host_stash_bytes;
    taken->arenas += device->backend->takes_turns ? plan_total(plan) : 0;
}

static void account_host(struct plan_host *host, struct plan_host_setting *setting, struct plan_room *room,
                         const struct plan_fit_asked *asked, const struct taken *taken)
{
    *setting = host_setting(asked);
    setting->host_stash_bytes = taken->stash_bytes;
    *room = (struct plan_room){.available = asked->available, .cap = asked->cap, .arenas = taken->arenas};
    plan_host(host, asked->model, setting);
}

/* Computes the host's bytes once the devices are planned. */
static void account(struct plan_fit *fit, const struct plan_fit_asked *asked)
{
    struct taken taken = {0};

    for (uint32_t i = 0; i < asked->n_workers; i++)
        taken_add(&taken, &fit->plans[i], &asked->devices[i]);
    fit->n_workers = asked->n_workers;
    account_host(&fit->host, &fit->setting, &fit->room, asked, &taken);
}

/* Workers with equal devices get equal plans. */
static bool is_like_the_one_before(const struct plan_fit_asked *asked, uint32_t i)
{
    const struct plan_fit_device *a = &asked->devices[i], *b = a - 1;

    return i > 0 && a->backend == b->backend && a->budget == b->budget && a->library_bytes == b->library_bytes &&
           (a->profile == b->profile || memcmp(a->profile, b->profile, sizeof *a->profile) == 0);
}

/* Slots that an inbox will have beside plans without a stash on the host, and any arena there. */
static uint32_t fit_slots(const struct plan_fit_asked *asked, const struct plan_host_setting *setting)
{
    const struct plan_room room = {.available = asked->available, .cap = asked->cap};
    struct plan_host_setting with = *setting;
    struct plan_host host;

    plan_host(&host, asked->model, &with);
    if (plan_host_fits(&host, &room)) {
        plan_host_add_replay(&host, &with, asked->model, &room);
        plan_host_add_slots(&host, asked->model, &with, &room);
    }
    return host.n_slots;
}

static int plan_device(struct plan_fit *fit, uint32_t i, const struct plan_fit_asked *asked, uint32_t microbatch,
                       const struct limit *limit, struct error *err)
{
    const struct plan_fit_device *device = &asked->devices[i];
    const struct plan_setting setting = plan_fit_setting(asked, i);
    const struct plan_host_setting host = host_setting(asked);
    const struct plan_wish wish = {.microbatch = microbatch,
                                   .no_host_stash = limit->no_host_stash,
                                   .least_host_stash = limit->least_host_stash,
                                   .host = &host,
                                   .play = asked->play,
                                   .n_slots = fit_slots(asked, &host)};
    const bool is_limited = device->backend->takes_turns && limit->budget < device->budget;
    const uint64_t budget = is_limited ? limit->budget : device->budget;

    if (is_like_the_one_before(asked, i)) {
        fit->plans[i] = fit->plans[i - 1];
        return 0;
    }
    return plan_search(&fit->plans[i], asked->model, &setting, &wish, device->profile, budget, err);
}

/* All workers have one microbatch, the smallest that any chose; whoever chose another is planned again with it. */
static int plan_devices(struct plan_fit *fit, const struct plan_fit_asked *asked, const struct limit *limit,
                        struct error *err)
{
    uint32_t microbatch = asked->microbatch;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < asked->n_workers; i++)
        rc = plan_device(fit, i, asked, microbatch, limit, err);
    if (rc || microbatch)
        return rc;
    microbatch = fit->plans[0].choice.microbatch;
    for (uint32_t i = 1; i < asked->n_workers; i++)
        if (microbatch > fit->plans[i].choice.microbatch)
            microbatch = fit->plans[i].choice.microbatch;
    for (uint32_t i = 0; !rc && i < asked->n_workers; i++)
        if (fit->plans[i].choice.microbatch != microbatch)
            rc = plan_device(fit, i, asked, microbatch, limit, err);
    return rc;
}

static int fits_within(struct plan_fit *fit, const struct plan_fit_asked *asked, const struct limit *limit,
                       struct error *err)
{
    const int rc = plan_devices(fit, asked, limit, err);

    if (rc)
        return rc;
    account(fit, asked);
    return plan_host_fits(&fit->host, &fit->room) ? 0 : -ENOMEM;
}

static void plan_smallest_device(struct plan *out, uint32_t i, const struct plan_fit_asked *asked,
                                 const struct limit *limit)
{
    const struct plan_setting setting = plan_fit_setting(asked, i);
    const struct plan_host_setting host = host_setting(asked);
    const struct plan_wish wish = {.microbatch = asked->microbatch,
                                   .no_host_stash = limit->no_host_stash,
                                   .least_host_stash = limit->least_host_stash,
                                   .host = &host};

    plan_smallest(out, asked->model, &setting, &wish);
}

/* Plans without a stash on the host, except for devices that are too small for that: these within the limit. False:
 * they do not fit. */
static bool plan_smallest_devices(struct plan_fit *fit, const struct plan_fit_asked *asked, const struct limit *limit)
{
    for (uint32_t i = 0; i < asked->n_workers; i++) {
        plan_smallest_device(&fit->plans[i], i, asked, &without);
        if (plan_total(&fit->plans[i]) > asked->devices[i].budget)
            plan_smallest_device(&fit->plans[i], i, asked, limit);
    }
    account(fit, asked);
    return plan_host_fits(&fit->host, &fit->room);
}

/* The host has no room for what all plans need of it: the job's bytes without a stash, and the least arena that any
 * choice makes. A model that is far too large is refused by this, without the searches that would all fail. Devices
 * that are too small, and options that plan_search refuses, are not judged here. */
static bool is_hopeless(struct plan_fit *fit, const struct plan_fit_asked *asked)
{
    const struct plan_setting setting = plan_fit_setting(asked, 0);
    bool roomy = true;

    if (plan_check(asked->model, &setting, NULL) || asked->microbatch > setting.part_rows ||
        plan_check_rows(asked->model, &setting, asked->microbatch, NULL))
        return false;

    for (uint32_t i = 0; i < asked->n_workers; i++) {
        plan_smallest_device(&fit->plans[i], i, asked, &no_limit);
        roomy &= plan_total(&fit->plans[i]) <= asked->devices[i].budget;
        fit->plans[i].host_stash_bytes = 0;
    }
    account(fit, asked);
    return roomy && !plan_host_fits(&fit->host, &fit->room);
}

/* The limits in the order in which a step gets slower. -ENOSPC: a device is too small, whatever the host has. */
static int search(struct plan_fit *fit, const struct plan_fit_asked *asked, struct error *err)
{
    const uint32_t n_arenas = count_arenas(asked), n = n_arenas ? n_arenas : 1;

    if (is_hopeless(fit, asked)) {
        plan_smallest_devices(fit, asked, &with_least);
        return -ENOMEM;
    }
    const int rc = fits_within(fit, asked, &no_limit, err);

    if (rc != -ENOMEM) {
        if (rc == -ENOSPC)
            plan_smallest_devices(fit, asked, &no_limit);
        return rc;
    }
    const uint64_t left = plan_host_left(&fit->host, asked->available), stash = fit->host.bytes[LEDGER_STASH];
    const struct limit instead = {.no_host_stash = true, .budget = left / n};
    const struct limit beside = {.budget = (left > stash ? left - stash : 0) / n};
    if (fits_within(fit, asked, &instead, NULL) == 0 || fits_within(fit, asked, &beside, NULL) == 0 ||
        plan_smallest_devices(fit, asked, &no_limit) || fits_within(fit, asked, &with_least, NULL) == 0 ||
        plan_smallest_devices(fit, asked, &with_least))
        return 0;
    return -ENOMEM;
}

int plan_fit(struct plan_fit *out, const struct plan_fit_asked *asked, struct error *err)
{
    assert(asked->n_workers >= 1 && asked->n_workers <= PLAN_FIT_WORKERS);
    int rc = plan_attention_check(asked, err);

    if (!rc)
        rc = search(out, asked, err);

    if (rc && rc != -ENOSPC && rc != -ENOMEM)
        return rc;
    plan_host_add_replay(&out->host, &out->setting, asked->model, &out->room);
    if (!rc)
        plan_host_add_slots(&out->host, asked->model, &out->setting, &out->room);
    plan_cost(&out->cost, &out->plans[0], asked->model, &out->setting, asked->devices[0].profile, NULL);
    return rc;
}

void plan_fit_shortage(struct plan_fit_shortage *out, const struct plan_fit *fit)
{
    const bool capped = fit->host.total > fit->room.cap;
    const uint64_t arenas = capped ? 0 : fit->room.arenas, all = fit->host.total + arenas;

    *out = (struct plan_fit_shortage){.capped = capped,
                                      .need = capped ? all : all + plan_host_slack(all, fit->host.n_workers),
                                      .have = capped ? fit->room.cap : fit->room.available};
    plan_host_name_terms(out->terms, sizeof out->terms, &fit->host, arenas);
}

/* True if the host can hold the smallest plans within a limit. *bytes: the first device's. */
static bool plan_fits_smallest(uint64_t *bytes, const struct plan_fit_asked *asked, const struct limit *limit)
{
    struct plan_host_setting setting;
    struct taken taken = {0};
    struct plan_host host;
    struct plan_room room;
    struct plan plan;

    for (uint32_t i = 0; i < asked->n_workers; i++) {
        plan_smallest_device(&plan, i, asked, limit);
        taken_add(&taken, &plan, &asked->devices[i]);
        *bytes = i == 0 ? plan_total(&plan) : *bytes;
    }
    account_host(&host, &setting, &room, asked, &taken);
    return plan_host_fits(&host, &room);
}

uint64_t plan_fit_minimum(const struct plan_fit_asked *asked)
{
    static const struct limit *const limits[] = {&no_limit, &with_least, &without};
    uint64_t bytes[3];

    for (int k = 0; k < 3; k++)
        if (plan_fits_smallest(&bytes[k], asked, limits[k]))
            return bytes[k];
    return bytes[0];
}
