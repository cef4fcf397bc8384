/* proto/base/watch.h - interrupts long work, because of the user or a child process that exited. */
#ifndef PROTO_BASE_WATCH_H
#define PROTO_BASE_WATCH_H

#include "proto/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Asked between pieces of work; a nonzero code ends the work with that code and sentence. */
struct client_watch {
    int (*ask)(void *data, struct error *err); /* NULL: never interrupts */
    void *data;
};

/* watch may be NULL. */
static inline int client_watch_ask(const struct client_watch *watch, struct error *err)
{
    return watch && watch->ask ? watch->ask(watch->data, err) : 0;
}

/* A watch that is asked while a checkpoint's files are read, and where its sentence goes. */
struct client_watch_reading {
    const struct client_watch *watch; /* may be NULL */
    struct error *err;
};

/* The on_bytes of checkpoint_check; data is a client_watch_reading. */
static inline int client_watch_on_bytes(void *data, uint64_t bytes)
{
    const struct client_watch_reading *reading = data;

    (void)bytes;
    return client_watch_ask(reading->watch, reading->err);
}

#endif
