/* proto/base/watch.h - interrupts long work, because of the user or a child process that exited. */
#ifndef PROTO_BASE_WATCH_H
#define PROTO_BASE_WATCH_H

#include "proto/base/error.h"

#include <stddef.h>

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

#endif
