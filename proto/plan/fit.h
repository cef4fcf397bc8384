/* proto/plan/fit.h - does a job fit both memories, those of its devices and the host's?
 *
 * eps plan and the daemon both ask here, so what the one predicts, the other does, to the byte. Each device gets the
 * fastest plan that fits it; then all get the smallest microbatch among them, since a run's bits depend on it and parts
 * may move between workers. The host must hold the daemon's bytes for the job and the arenas of devices in its memory
 * (the CPU). If it cannot, those devices are planned again within the remaining memory: first without a stash on the
 * host, then with the stash that small devices require. As a last resort, all devices get their smallest plans. Replay
 * and more slots of inboxes take room that is left then: they change nothing of these choices.
 *
 * Pure arithmetic: milliseconds for each kind of device. */
#ifndef PROTO_PLAN_FIT_H
#define PROTO_PLAN_FIT_H

#include "proto/plan/time/cost.h"
#include "proto/plan/memory/room.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/ties.h"
#include "proto/plan/time/profile.h"

enum { PLAN_FIT_WORKERS = 64 };

/* One worker's device. */
struct plan_fit_device {
    const struct plan_backend *backend;
    const struct profile *profile; /* checked; borrowed */
    uint64_t budget;               /* bytes of device memory that may be used */
    uint64_t library_bytes;        /* plan_setting.library_bytes */
    bool measured;                 /* the profile is of this device, not assumed */
    enum plan_attention attention; /* the best way that it supports: device_facts */
    uint32_t convolution;          /* its library of convolutions; all workers use the same one, or none */
};

struct plan_fit_asked {
    const struct model *model; /* borrowed, as the devices */
    struct plan_goal goal;
    uint32_t microbatch;                            /* rows, at most a part's; 0: free */
    uint64_t config_bytes, side_bytes, files_bytes; /* as in plan_host_setting */
    uint32_t n_files;                               /* as in plan_host_setting */
    uint64_t header_bytes;                          /* as in plan_host_setting */
    bool from_checkpoint;                           /* it reads a checkpoint of the run that began with these files */
    const struct plan_fit_device *devices;          /* (n_workers) */
    uint32_t n_workers;                             /* workers with a share: 1 .. n_parts, at most PLAN_FIT_WORKERS */
    uint32_t n_parts;                               /* parts of a step that these workers share; 0: all */
    long n_cores;
    uint64_t available;                 /* free host memory, for the daemon and arenas there; UINT64_MAX: unknown */
    uint64_t cap;                       /* bytes that the daemon may take for the job; UINT64_MAX: no cap */
    uint32_t own_first, n_own;          /* as in plan_host_setting; n_own > 0: with replay, unless fenced */
    uint64_t hosts_bytes, hosts_tables; /* as in plan_host_setting */
    plan_player *play;                  /* as in struct plan_wish; what fits without it fits with it */
};

/* If the job does not fit, all members describe the smallest plans. */
struct plan_fit {
    uint32_t n_workers;
    struct plan plans[PLAN_FIT_WORKERS]; /* (n_workers) */
    struct plan_host_setting setting;
    struct plan_host host; /* with replay and as many inbox slots as fit, if the job fits */
    struct plan_room room;
    struct plan_cost cost; /* predicted for the first worker */
};

/* 0 if the job fits; -ENOSPC with plan_search's sentence if a device is too small, -ENOMEM without a sentence if the
 * host is. -EINVAL with a sentence, and *out undefined: as plan_search and plan_attention_check. */
int plan_fit(struct plan_fit *out, const struct plan_fit_asked *asked, struct error *err);

/* After -ENOMEM: what the host lacks. */
enum { PLAN_FIT_TERMS_TEXT = 160 };
struct plan_fit_shortage {
    bool capped;         /* the limit is `cap`, on the daemon's bytes; else `available`, on the arenas' too */
    uint64_t need, have; /* bytes */
    char terms[PLAN_FIT_TERMS_TEXT]; /* "first_moment 4.0 GiB, second_moment 4.0 GiB": the largest */
};
void plan_fit_shortage(struct plan_fit_shortage *out, const struct plan_fit *fit);

/* The smallest sufficient budget of the first device; without a stash on the host if only that lets the rest fit there.
 * plan_fit must not have returned -EINVAL for the same question. */
uint64_t plan_fit_minimum(const struct plan_fit_asked *asked);

/* The setting of the given worker, for plan_search. */
struct plan_setting plan_fit_setting(const struct plan_fit_asked *asked, uint32_t worker);

#endif
