/* eps/step/sharded.h - a job on several hosts: its units and the parts of each step are divided among their daemons.
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
 * Events of one relay are never fed while it hands out actions: what follows from them waits for sharded_go_on. */
#ifndef EPS_STEP_SHARDED_H
#define EPS_STEP_SHARDED_H

#include "eps/hosts/hosts.h"
#include "eps/job/forward.h"
#include "eps/step/steps.h"

struct sharded;

/* Of a process that was started with others. */
struct sharded_options {
    const struct hosts_ops *ops;
    struct hosts *hosts; /* open; sharded_close closes it */
    uint32_t host, n;
};

/* Meets the other hosts: may take seconds. The peers's loop wakes when something comes. -ENOMEM, -EINVAL with a sentence;
 * then the process must end. *out is owned: sharded_close. */
int sharded_start(struct sharded **out, const struct sharded_options *options, struct steps *steps, struct error *err);
/* After the loop has ended. Waits for the other hosts, unless one is lost. NULL is fine. */
void sharded_close(struct sharded *sharded);

/* Does one thing that is due. False: nothing is. */
bool sharded_go_on(struct sharded *sharded);
/* True if the daemon must stop, since another one does or is lost. lost: why, or NULL. */
bool sharded_is_over(const struct sharded *sharded, const char **lost);
/* This daemon stops: the others do, too. */
void sharded_stop(struct sharded *sharded);
/* The launcher has told this host to stop, and kills it after so many seconds. Host 0 has the client, which saves. */
unsigned sharded_grace_s(const struct sharded *sharded);
void sharded_announce_asked(struct sharded *sharded);
bool sharded_is_asked(const struct sharded *sharded); /* another host was told so */
/* What the hosts have said since then. A silent one is named in *out: "host 1 (node-7, pid 4711)". */
enum sharded_announced { SHARDED_ALL_ANNOUNCED, SHARDED_SOME_ANNOUNCED, SHARDED_ONE_SILENT };
enum sharded_announced sharded_judge(const struct sharded *sharded, struct error *out);

/* On host 0: the job was planned. Tells the others. The job may have ended when this returns. */
void sharded_forward(struct sharded *sharded);
/* On other hosts: a job of host 0 is to be begun now. True: *out is owned. */
bool sharded_take_request(struct sharded *sharded, struct forward *out);
/* job_begin has returned, and the job may have ended. */
void sharded_begun(struct sharded *sharded, const struct forward *forward);
/* Of a daemon that stops: the hosts still share a job, whose end is not known to all, or host 0 may still begin one, or a
 * word waits for room. */
bool sharded_is_busy(const struct sharded *sharded);

/* ---- for eps/step/steps.c and steps_worker.c ---- */

/* Of a job that was open, if any: its tables. */
void sharded_free_tables(struct sharded *sharded);
/* The step is to be opened: by the client on host 0, by host 0 on others. */
void sharded_open_step(struct sharded *sharded, const struct message *open);
/* Actions of local. */
void sharded_on_fold(struct sharded *sharded, const struct relay_action *a);
void sharded_on_update(struct sharded *sharded, uint32_t unit);
void sharded_on_covered(struct sharded *sharded);
void sharded_on_done(struct sharded *sharded, uint64_t step);
/* Local knows the loss of one of its parts. part: of all hosts' parts. */
void sharded_on_loss(struct sharded *sharded, uint32_t part, double sum);
/* A worker has no seat any more: LOST, for the client. */
void sharded_on_lost(struct sharded *sharded, const struct message *lost);
/* A worker pulls a unit of another host that is not kept here. Once local has answered, the worker is lent a slot of the
 * ring, until it has read it; before: with the weights before the unit's last update. */
void sharded_on_pull(struct sharded *sharded, const struct peer *worker, uint64_t version, uint32_t unit);
void sharded_on_answer(struct sharded *sharded, const struct peer *worker, uint64_t version, uint32_t unit,
                       bool before);
void sharded_on_read(struct sharded *sharded, const struct peer *worker, uint64_t version, uint32_t unit);
/* The worker has no seat any more: it reads nothing. */
void sharded_forget(struct sharded *sharded, const struct peer *worker);
/* The optimizer thread has done something for an open job. */
void sharded_on_optimizer(struct sharded *sharded, const struct updater_task *work);
/* Feeds `own`, as steps_feed feeds local. */
void sharded_feed(struct sharded *sharded, const struct relay_event *event);

#endif
