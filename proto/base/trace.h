/* proto/base/trace.h - a timeline of every thread in a run, for chrome://tracing and ui.perfetto.dev ("Trace Event
 * Format", JSON array).
 *
 * Client, daemon and workers write to one file, whose descriptor the client passes on. It is open for appending;
 * each write holds whole events, one per line, so writers do not mix. The format allows an unfinished array, so the
 * file can be opened at any time and after a kill. The client writes the end when all others have closed the file.
 * Times are from CLOCK_MONOTONIC, which all processes of a host share.
 *
 * A client of another user than the daemon's gives no file away: its descriptor is a socket, from which the client
 * appends to the file. What the client does not take at once is dropped, so that nobody waits for it, and counted.
 *
 * An event costs two clock readings and its text, about 300 ns; every 30 events cost one write of 4 KiB. Nothing is
 * allocated. A caller holds a pointer to its track, which is NULL without tracing; that check is then the whole
 * cost. */
#ifndef PROTO_BASE_TRACE_H
#define PROTO_BASE_TRACE_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACE_BYTES = 4096 };

/* A track: one thread's, or that of several that take turns; calls must not overlap. All zero: not open. */
struct trace {
    int fd; /* borrowed */
    bool is_socket;
    uint32_t n_dropped; /* writes that a socket did not take */
    int pid, tid;
    int rc; /* -errno that ended the trace, such as a full disk; the run goes on */
    size_t n;
    char text[TRACE_BYTES]; /* (n) whole events that are not written yet */
};

struct trace_arg {
    const char *key;
    uint64_t value;
};

/* Names the track by process and thread. Neither may contain quotes; that applies to all names here. */
void trace_open(struct trace *t, int fd, const char *process, const char *thread);

/* Writes pending events and zeroes *t; the descriptor stays the caller's. Returns 0, or why the track is incomplete:
 * -ENOBUFS if writes were dropped. Safe on a zeroed struct. */
int trace_close(struct trace *t);

/* Writes pending events, so that they survive the process. */
void trace_flush(struct trace *t);

/* The time at which something begins. t may be NULL: 0. */
uint64_t trace_clock(void);
static inline uint64_t trace_begin(const struct trace *t)
{
    return t ? trace_clock() : 0;
}

/* Records an event that ends now, such as "forward" "h.3", with figures; args end with one without a key. where and
 * args may be NULL. t must not be NULL: the caller checks before it composes names. */
void trace_end(struct trace *t, uint64_t since, const char *what, const char *where, const struct trace_arg *args);

/* For the client: creates a file, opened for appending. -EEXIST if it exists. Undo: close. */
int trace_create(int *fd, const char *path, struct error *err);

/* True if a received descriptor is such a file. */
bool trace_is_file(int fd);

/* For the client, after the last writer: ends the array after the last event before the first incomplete one, which a
 * full disk or a killed process may leave. 0; -ENODATA if there was an incomplete event; -errno. */
int trace_finish(int fd);

#endif
