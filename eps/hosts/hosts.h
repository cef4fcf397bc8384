/* eps/hosts/hosts.h - the other daemons of a job that is larger than one host, and the table that reaches them.
 *
 * A job on n hosts is n daemons, numbered from 0, started together by a launcher. A backend carries three things
 * between them (README.md of this folder says what for):
 *   messages  up to HOSTS_MESSAGE_BYTES, in order from one host to another. A host may have HOSTS_WINDOW of them under
 *             way to another; then it waits for HOSTS_ROOM.
 *   slices    up to slot_bytes, from memory of the sender into a slot of the receiver, with a message beside it. Each
 *             host has n_slots for every other one, in memory that it gave. The sender names the slot; the slot is the
 *             credit: it is in use until the receiver frees it.
 *   fetches   reads from memory that another host exposes, without its caller's help; at most HOSTS_FETCHES at a time.
 *             What is exposed may change from job to job; the rest stays for the process's life.
 * A host's memory for all of it is bounded: n - 1 times (n_slots * slot_bytes + 2 * HOSTS_WINDOW messages).
 *
 * The caller has one thread, which never waits: what happens comes from next(), and `notify` says that there is
 * something. A backend may have threads of its own. */
#ifndef EPS_HOSTS_HOSTS_H
#define EPS_HOSTS_HOSTS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOSTS_MESSAGE_BYTES = 648, HOSTS_WINDOW = 32, HOSTS_FETCHES = 64, HOSTS_REGIONS = 3 };

enum hosts_event_kind {
    HOSTS_MESSAGE, /* host, message */
    HOSTS_ROOM,    /* host: after -EAGAIN, messages may be sent to it again */
    HOSTS_SLICE,   /* host, slot, message, bytes: the slice is in the slot. Later messages of the host may have come
                    * before it, earlier ones have */
    HOSTS_FREED,   /* host, slot: it may be sent to again, and the memory of what was sent is the caller's again */
    HOSTS_FETCHED, /* host, token */
    HOSTS_LOST,    /* host, why: the last event. Nothing works any more except close */
};

struct hosts_event {
    enum hosts_event_kind kind;
    uint32_t host, slot;
    uint64_t bytes, token;
    size_t message_bytes;
    uint8_t message[HOSTS_MESSAGE_BYTES];
    const char *why; /* HOSTS_LOST: one sentence that names the host; valid until close */
};

/* Borrowed until close. Sizes must be the same on all hosts. */
struct hosts_options {
    uint32_t n_slots; /* slots for each other host */
    size_t slot_bytes;
    void *inbox; /* (n hosts, n_slots, slot_bytes): slot k of host h is at (h * n_slots + k) * slot_bytes; the own row
                  * may be left out of memory, as nothing is written there */
    unsigned silence_ms; /* a host from which nothing came for so long is lost; counted while this host runs, so a
                          * suspended machine loses nobody */
    void (*notify)(void *data); /* there are events; from any thread, so let it do no more than uv_async_send */
    void *data;
};

struct hosts;

struct hosts_ops {
    const char *name; /* "mpi" */
    /* Joins the job that the launcher started, and says which host this is, of how many. May take seconds. Once in a
     * process. -EINVAL with a sentence: no launcher started this process. *out is owned: close. */
    int (*open)(struct hosts **out, uint32_t *host, uint32_t *n, struct error *err);
    /* Seconds from the launcher's SIGTERM to its SIGKILL, as far as is known. From open on. */
    unsigned (*grace_s)(const struct hosts *hosts);
    /* Once, on all hosts: waits for the others. -ENOMEM, -EINVAL with a sentence if a host has other sizes; then only
     * close is allowed. */
    int (*start)(struct hosts *hosts, const struct hosts_options *options, struct error *err);
    /* Copies a message of at most HOSTS_MESSAGE_BYTES to another host (asserted). Never waits. -EAGAIN: the window is
     * used up; HOSTS_ROOM follows. -EIO: a host is lost. */
    int (*send)(struct hosts *hosts, uint32_t to, const void *message, size_t bytes);
    /* Sends bytes <= slot_bytes, also 0, into that slot of another host, which must be free (asserted). data is
     * borrowed until HOSTS_FREED. Never waits, takes nothing from the window. -EIO: a host is lost. */
    int (*send_slice)(struct hosts *hosts, uint32_t to, uint32_t slot, const void *message, size_t message_bytes,
                      const void *data, size_t bytes);
    /* Lets host `from` overwrite the slot, whose HOSTS_SLICE was taken (asserted). -EIO: a host is lost. */
    int (*free_slot)(struct hosts *hosts, uint32_t from, uint32_t slot);
    /* From open on. Lets other hosts fetch these bytes as region number `region`; 0 bytes: nothing. The memory is
     * borrowed until the next call for the region, which must come after all fetches from it have ended. */
    void (*expose)(struct hosts *hosts, uint32_t region, const void *base, size_t bytes);
    /* Reads bytes > 0 at an offset of a region that another host exposes into memory that is borrowed until
     * HOSTS_FETCHED with the same token. Reads what is there at some moment in between. Asserted: no more than
     * HOSTS_FETCHES at a time. What lies beyond the region makes this host lost to the other. -EIO: a host is lost. */
    int (*fetch)(struct hosts *hosts, uint32_t from, uint32_t region, uint64_t offset, void *into, size_t bytes,
                 uint64_t token);
    /* The next event; false if there is none. Events of one host are in order, as far as the kinds above say so. */
    bool (*next)(struct hosts *hosts, struct hosts_event *event);
    /* Leaves the job. It waits until every host has called close, and what was sent has arrived. After a loss, or
     * before start, it waits for nobody: then the process must end with an error, and the launcher ends the others.
     * Safe on NULL. */
    void (*close)(struct hosts *hosts);
};

/* The backend of this name: "mpi", from eps-mpi.so (proto/base/module.h, hosts_module) beside the running program, else
 * in the installed library directory. NULL with a sentence: there is no such backend or module, it does not load, or it
 * is of another build. A loaded module stays. */
const struct hosts_ops *hosts_find(const char *name, struct error *err);

#endif
