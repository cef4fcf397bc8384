/* eps/step/spread.h - a job on several hosts: its units and the parts of each step are divided among their daemons.
 *
 * Each host has two relays (eps/hosts/README.md). `local` is the job's own (eps/step/steps.h), with the host's parts: its
 * folds and updates come here. `own` folds and updates the units that this host owns; its workers are the hosts, this one
 * included.
 *   fold     of local: the slice is checked, then sent into a slot of the unit's owner; done when the owner frees the slot
 *   update   of local: done when the unit's next version stands: updated here, or at its owner. Tables of the embedding
 *            are copied first. Other units are fetched when workers pull them, through a few slots: the ring
 * Host 0 has the client. It forwards the job, opens steps on the others, and tells the client what all hosts have done. A
 * job that ends on one host ends on all; its memory is given back when no host uses another's any more. A host that is
 * lost ends the job and the daemons: nobody else has its moments.
 *
 * Events of one relay are never fed while it hands out actions: what follows from them waits for spread_go_on. */
#ifndef EPS_STEP_SPREAD_H
#define EPS_STEP_SPREAD_H

#include "eps/hosts/hosts.h"
#include "eps/job/forward.h"
#include "eps/step/steps.h"

struct spread;

/* Of a process that was started with others. */
struct spread_options {
    const struct hosts_ops *ops;
    struct hosts *hosts; /* open; spread_close closes it */
    uint32_t host, n;
};

/* Meets the other hosts: may take seconds. The hub's loop wakes when something comes. -ENOMEM, -EINVAL with a sentence;
 * then the process must end. *out is owned: spread_close. */
int spread_start(struct spread **out, const struct spread_options *options, struct steps *steps, struct error *err);
/* After the loop has ended. Waits for the other hosts, unless one is lost. NULL is fine. */
void spread_close(struct spread *spread);

/* Does one thing that is due. False: nothing is. */
bool spread_go_on(struct spread *spread);
/* True if the daemon must stop, since another one does or is lost. lost: why, or NULL. */
bool spread_is_over(const struct spread *spread, const char **lost);
/* This daemon stops: the others do, too. */
void spread_stop(struct spread *spread);
/* The launcher has told this host to stop, and kills it after so many seconds. Host 0 has the client, which saves. */
unsigned spread_grace_s(const struct spread *spread);
void spread_tell_asked(struct spread *spread);
bool spread_is_asked(const struct spread *spread); /* another host was told so */
/* What the hosts have said since then. A silent one is named in *out: "host 1 (node-7, pid 4711)". */
enum spread_told { SPREAD_ALL_TOLD, SPREAD_SOME_TOLD, SPREAD_ONE_SILENT };
enum spread_told spread_judge(const struct spread *spread, struct error *out);

/* On host 0: the job was planned. Tells the others. The job may have ended when this returns. */
void spread_forward(struct spread *spread);
/* On other hosts: a job of host 0 is to be begun now. True: *out is owned. */
bool spread_take_request(struct spread *spread, struct forward *out);
/* job_begin has returned, and the job may have ended. */
void spread_begun(struct spread *spread, const struct forward *forward);
/* Of a daemon that stops: the hosts still share a job, whose end is not known to all, or host 0 may still begin one, or a
 * word waits for room. */
bool spread_is_busy(const struct spread *spread);

/* ---- for eps/step/steps.c and steps_worker.c ---- */

/* Of a job that was open, if any: its tables. */
void spread_free_tables(struct spread *spread);
/* The step is to be opened: by the client on host 0, by host 0 on others. */
void spread_open_step(struct spread *spread, const struct message *open);
/* Actions of local. */
void spread_on_fold(struct spread *spread, const struct relay_action *a);
void spread_on_update(struct spread *spread, uint32_t unit);
void spread_on_covered(struct spread *spread);
void spread_on_done(struct spread *spread, uint64_t step);
/* Local knows the loss of one of its parts. part: of all hosts' parts. */
void spread_on_loss(struct spread *spread, uint32_t part, double sum);
/* A worker has no seat any more: LOST, for the client. */
void spread_on_lost(struct spread *spread, const struct message *lost);
/* A worker pulls a unit of another host that is not kept here. Once local has answered, the worker is lent a slot of the
 * ring, until it has read it; before: with the weights before the unit's last update. */
void spread_on_pull(struct spread *spread, const struct peer *worker, uint64_t version, uint32_t unit);
void spread_on_answer(struct spread *spread, const struct peer *worker, uint64_t version, uint32_t unit, bool before);
void spread_on_read(struct spread *spread, const struct peer *worker, uint64_t version, uint32_t unit);
/* The worker has no seat any more: it reads nothing. */
void spread_forget(struct spread *spread, const struct peer *worker);
/* The optimizer thread has done something for an open job. */
void spread_on_optimizer(struct spread *spread, const struct updater_task *work);
/* Feeds `own`, as steps_feed feeds local. */
void spread_feed(struct spread *spread, const struct relay_event *event);

#endif
