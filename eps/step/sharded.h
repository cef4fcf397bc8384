/* eps/step/sharded.h - a job on several hosts: its units and the parts of each step are divided among their daemons.
 *
 * Each host has two relays (eps/hosts/README.md). `local` is the job's own (eps/step/steps.h), with the host's parts:
 * its folds and updates come here. `own` folds and updates the units that this host owns; its workers are the hosts,
 * this one included.
 *   fold     of local: the slice is checked, then sent into a slot of the unit's owner; done when the owner frees the
 *            slot
 *   update   of local: done when the unit's next version stands: updated here, or at its owner. Tables of the embedding
 *            are copied first. Other units are fetched when workers pull them, through a few slots: the ring
 * Host 0 has the client. It forwards the job, opens steps on the others, and tells the client what all hosts have done.
 * A job that ends on one host ends on all; its memory is given back when no host uses another's any more. A host that
 * is lost ends the job and the daemons: nobody else has its moments.
 *
 * Events of one relay are never fed while it hands out actions: what follows from them waits for sharded_go_on.
 *
 * What the daemon does with its other hosts is here; what a job's steps do is commit_sharded (eps/step/commit.h). */
#ifndef EPS_STEP_SHARDED_H
#define EPS_STEP_SHARDED_H

#include "eps/hosts/hosts.h"
#include "eps/job/forward.h"
#include "eps/step/steps.h"

/* Options of a process that was started with others. */
struct sharded_options {
    const struct hosts_ops *ops;
    struct hosts *hosts; /* open; sharded_close closes it */
    uint32_t host, n;
};

/* Meets the other hosts: may take seconds. The loop wakes when something comes. -ENOMEM, -EINVAL with a sentence;
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

/* On other hosts: a job of host 0 is to be begun now. True: *out is owned. */
bool sharded_take_request(struct sharded *sharded, struct forward *out);
/* job_begin has returned, and the job may have ended. */
void sharded_begun(struct sharded *sharded, const struct forward *forward);
/* True while a daemon that stops cannot end: hosts share a job, whose end is not known to all; host 0 may begin one; a
 * message waits for room; or host 0 has not heard that all others stop. False once a host is lost. */
bool sharded_is_busy(const struct sharded *sharded);

#endif
