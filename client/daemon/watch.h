/* client/daemon/watch.h - what else may end something that takes long: the user, a child that died. */
#ifndef CLIENT_DAEMON_WATCH_H
#define CLIENT_DAEMON_WATCH_H

#include "proto/base/error.h"

#include <stddef.h>

/* Asked between two pieces of work: anything but 0 ends it with that code and its sentence. */
struct client_watch {
    int (*ask)(void *data, struct error *err); /* NULL: nobody */
    void *data;
};

/* watch may be NULL. */
static inline int client_watch_ask(const struct client_watch *watch, struct error *err)
{
    return watch && watch->ask ? watch->ask(watch->data, err) : 0;
}

#endif
