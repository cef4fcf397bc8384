/* eps/takeover.h - a training job whose client died or is away, and jobs that end by request. For eps/dispatch.c and
 * eps/drain.c.
 *
 * If the client of a shared daemon's training job dies, the daemon finishes the steps that are open and keeps the
 * model: the job is detached. A new client of the same user, or root, takes it over (DESCRIBE, TAKE) and goes on with
 * the next step. A client that leaves on purpose ends its job.
 *
 * A detached job stays until it is stopped, or until another job waits: then it is saved first, so no step is lost. If
 * only its client could open the files (eps/base/rights.c), it ends, unsaved, once other users have waited for a
 * minute. If its output directory was removed, or it has none (--no-save), it ends as soon as a job waits. While the
 * disk is full, it stays until somebody takes it over or stops it.
 *
 * A client that lives may be away from its loop for as long as it likes, in a callback or in front of a full pipe,
 * while nobody waits. Once others have waited for 5 minutes in which it asked for nothing, its job is treated like a
 * detached one: a training job is saved and ends, one that only the client could save ends a minute later, and one that
 * does not train ends with -EAGAIN, as nothing of it is lost: eps chat asks for another one then. A client that was
 * asked to save and end, and asks for nothing for 30 s, is saved likewise. Whatever it asks for before the end calls
 * that off.
 *
 * The job of a private daemon is kept only for its last checkpoint, and only if its client promised one (--save-every):
 * daemon_lose_client. */
#ifndef EPS_TAKEOVER_H
#define EPS_TAKEOVER_H

#include "eps/drain.h"

/* The job's client is gone: detaches the job, or ends it. */
void takeover_on_client_gone(struct daemon *d, const struct peer *client, enum message_end end);
/* These answer the client: the job's number, 0: whichever is detached. */
void takeover_describe(struct daemon *d, struct peer *client, uint32_t id);
void takeover_take(struct daemon *d, struct peer *client, uint32_t id);
/* The job's client has asked for something: it is not away. */
void takeover_on_client_heard(struct daemon *d);
/* True if the job is detached and the daemon can save it. */
bool takeover_can_save(const struct daemon *d);
/* Refuses to end a detached job that cannot be saved, unless this user was the last to hear so. */
int takeover_warn(struct daemon *d, const struct peer *viewer, struct error *err);
/* A viewer asked for the end of a job, running or waiting. It saves first; asked again by this viewer, it ends at
 * once. */
void takeover_stop(struct daemon *d, struct peer *viewer, uint32_t id);
/* Saves and ends a job that must end and whose client is gone or away. False: nothing is due. */
bool takeover_go_on(struct daemon *d);
/* One second has passed. */
void takeover_tick(struct daemon *d);

#endif
