/* proto/plan/memory/room.h - does a job fit the host, and what else fits there: replay, more slots.
 *
 * Memory that the ledger does not count is estimated (plan_host_slack). Replay and slots change no other choice. */
#ifndef PROTO_PLAN_MEMORY_ROOM_H
#define PROTO_PLAN_MEMORY_ROOM_H

#include "proto/plan/memory/host.h"

/* Bytes that daemon and n_workers on its host take beyond the counted `bytes`: page tables, code, stacks. */
uint64_t plan_host_slack(uint64_t bytes, uint32_t n_workers);

/* Room on the host, in bytes. */
struct plan_room {
    uint64_t available; /* free memory; UINT64_MAX: unknown */
    uint64_t cap;       /* what the daemon may take for a job; UINT64_MAX: no limit */
    uint64_t arenas;    /* arenas of devices that use the host's memory */
};
bool plan_host_fits(const struct plan_host *host, const struct plan_room *room);

/* Turns replay on, in host and setting, if the job trains with an eager commit and the room suffices; else host->replay
 * says why not. `host` must fit already. */
void plan_host_add_replay(struct plan_host *host, struct plan_host_setting *setting, const struct model *model,
                          const struct plan_room *room);
/* "replay on", "replay off: no room in free memory", for a job that trains. A constant string. */
const char *plan_replay_text(enum plan_replay replay);

/* Adds slots if the setting's workers compute while the optimizer works. Contributions that arrive faster than they are
 * folded wait there, and are folded during the next step's forward pass; a step then takes as long as its computation
 * or the optimizer, whichever is longer. Forward is at most a third of the computation, so slots for a third of a
 * worker's contributions suffice, plus one unit's that arrive meanwhile. They take at most half of the remaining room.
 * `host` must fit already. */
void plan_host_add_slots(struct plan_host *host, const struct model *model, const struct plan_host_setting *setting,
                         const struct plan_room *room);
/* Bytes of `available` that are left for arenas beside `host` without its stash. */
uint64_t plan_host_left(const struct plan_host *host, uint64_t available);
/* "first_moment 4.0 GiB, second_moment 4.0 GiB, CPU workers 3.1 GiB": the three largest terms, arenas being one. */
void plan_host_name_terms(char *text, size_t n, const struct plan_host *host, uint64_t arenas);

#endif
