/* eps/hosts/mpi/mpi_state.h - what the caller's thread and the thread that calls MPI share.
 *
 * One thread makes all MPI calls, MPI_Init_thread included, so MPI_THREAD_FUNNELED suffices: it is the level that every
 * MPI has. The caller's thread leaves commands and takes events, both in rings of fixed size under one lock. MPI has no
 * descriptor that a loop could wait for. So the thread polls, and sleeps between polls: at most POLL_US while something
 * is under way, IDLE_US else; a command wakes it.
 *
 * On the wire, all frames have tag 0 and at most FRAME_BYTES. A slice has tag 1 + slot, after a frame that announces
 * it; what was fetched has a tag of its own, which the request names. Fetches are answered by the other host's thread,
 * not read by MPI_Rget: Open MPI 4.1 has no windows over tcp in Debian's build, and in shared memory MPI_Rget was
 * slower (1.2 GB/s against 2.1 of MPI_Isend, two ranks on two cores). */
#ifndef EPS_HOSTS_MPI_MPI_STATE_H
#define EPS_HOSTS_MPI_MPI_STATE_H

#include "eps/hosts/hosts.h"
#include "proto/base/module.h"
#include "proto/wire/wire.h"

#include <pthread.h>

enum { FRAME_HEADER_BYTES = 16, FRAME_BYTES = FRAME_HEADER_BYTES + HOSTS_MESSAGE_BYTES, FETCH_BYTES = 12 };

/* kind u16 | message bytes u16 | slot or number u32 | bytes u64, little-endian; then the message. */
enum frame_kind {
    FRAME_MESSAGE,
    FRAME_CREDIT, /* number: messages that were taken */
    FRAME_SLICE,  /* slot, bytes: it follows */
    FRAME_FREED,  /* slot */
    FRAME_FETCH,  /* number of the fetch, bytes; the message is the offset, u64, and the region, u32 */
    FRAME_BEAT,   /* so that silence means loss */
    FRAME_LOST,   /* number: a host */
    FRAME_BYE,    /* close was called */
    N_FRAME_KINDS
};

/* The caller's command to the thread: send a frame, with the slice that follows, or fetch. */
struct command {
    enum frame_kind kind;
    uint32_t host, number;
    size_t message_bytes;
    const void *data;
    void *into;
    uint64_t bytes, token;
    uint8_t message[HOSTS_MESSAGE_BYTES];
};

/* First in, first out, of a size that the protocol bounds; pushing more is a mistake of ours (asserted). */
struct ring {
    uint8_t *items;
    size_t item_bytes, room, first, n;
};

int ring_init(struct ring *ring, size_t item_bytes, size_t room); /* -ENOMEM; undo: free(ring->items) */
void *ring_push(struct ring *ring);                               /* the new last item, to be filled */
bool ring_pop(struct ring *ring, void *item);

enum slot_state { SLOT_FREE, SLOT_COMING, SLOT_ARRIVED, SLOT_TAKEN };

struct peer_slot {
    enum slot_state in; /* state of our slot for the peer */
    bool out;           /* the peer's slot for us is in use */
    struct hosts_event event;
};

struct peer {
    unsigned window; /* messages that may be sent */
    bool is_short;   /* HOSTS_ROOM is due */
    unsigned taken;  /* messages taken, and not yet credited */
    bool bye;
    struct peer_slot *slots; /* (n_slots) */
};

/* Memory that others may fetch. */
struct region {
    const uint8_t *base;
    uint64_t bytes;
};

enum phase { PHASE_OPENING, PHASE_OPEN, PHASE_STARTING, PHASE_RUNNING, PHASE_CLOSING, PHASE_FAILED };

struct hosts {
    uint32_t host, n;
    struct hosts_options options;
    unsigned grace_s;
    bool is_ready; /* there is memory for start; else err says why not */
    pthread_t thread;

    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t work;  /* the thread waits here for a command, or another phase */
    pthread_cond_t done;  /* the caller waits here for another phase */
    enum phase phase;
    struct error err; /* PHASE_FAILED, or why a host is lost, or not ready */
    bool lost;
    struct ring commands, events;
    unsigned n_fetches;
    struct region regions[HOSTS_REGIONS];
    struct peer *peers; /* (n) */
};

/* The thread's: enters a phase, and wakes the caller if it waits for that. */
void hosts_mpi_enter(struct hosts *hosts, enum phase phase);
/* The thread's: sleeps until there is a command, or for a time that grows with `idle`, the polls in a row that found
 * nothing. moves: a slice or a fetch is under way, so the sleep is short. */
void hosts_mpi_rest(struct hosts *hosts, bool moves, unsigned idle);

/* The thread's function; arg is the struct hosts. */
void *hosts_mpi_run(void *arg);

#endif
