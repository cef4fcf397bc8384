/* proto/base/trace.h - what every thread of a run was doing when, for people who look: a file for chrome://tracing and
 * ui.perfetto.dev ("Trace Event Format", JSON array).
 *
 * Client, daemon and workers write to one file, whose descriptor the client hands on. It is open for appending, and what
 * a thread has to say goes out in single writes of whole events, one event a line, so nobody tears another's. The
 * format lets the array lack its end, so the file can be opened at any time, and after a kill; the client puts the end
 * there when all others have let go. Times are of CLOCK_MONOTONIC, which all processes of a host share.
 *
 * An event costs two looks at the clock and its text, some 300 ns, and of every 30 one a write of 4 KiB. Nothing is
 * allocated. Whoever may trace holds a pointer to its track, which is NULL if it does not: all that costs then. */
#ifndef PROTO_BASE_TRACE_H
#define PROTO_BASE_TRACE_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACE_BYTES = 4096 };

/* A thread's, or that of several that take turns: one at a time calls. All zero: not open. */
struct trace {
    int fd; /* borrowed */
    int pid, tid;
    int rc; /* why nothing is written any more, -errno: a full disk costs the trace, never the run */
    size_t n;
    char text[TRACE_BYTES]; /* (n) whole events, not written yet */
};

struct trace_arg {
    const char *key;
    uint64_t value;
};

/* Names the track: the caller's process and thread. Both without quotes, as all names here. */
void trace_open(struct trace *t, int fd, const char *process, const char *thread);

/* Writes what is left and zeroes *t; the descriptor stays the caller's. 0, or why the track is incomplete. Safe on a
 * zeroed one. */
int trace_close(struct trace *t);

/* Writes what is there, so that it survives the process. */
void trace_flush(struct trace *t);

/* When something begins. t may be NULL: 0. */
uint64_t trace_clock(void);
static inline uint64_t trace_begin(const struct trace *t)
{
    return t ? trace_clock() : 0;
}

/* It is over: "forward" "h.3" with its figures, of which one without a key is the last. where, args may be NULL; t may
 * not, because whoever composes a name wants to know before. */
void trace_end(struct trace *t, uint64_t since, const char *what, const char *where, const struct trace_arg *args);

/* The client's: a new file, opened for appending. -EEXIST: never over another file. Undo: close. */
int trace_create(int *fd, const char *path, struct error *err);

/* A descriptor that came from elsewhere is such a file. */
bool trace_is_file(int fd);

/* The client's, when nobody writes any more: ends the array, after the last event before the first that is not whole (of
 * a disk that was full, or of a process that was killed while it wrote). 0; -ENODATA if there was such a one; -errno. */
int trace_finish(int fd);

#endif
