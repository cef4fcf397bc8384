/* tests/system/world/loop.h - the loops of simulated processes, which are what libuv is to the product, and the links
 * between them: proto/wire/connection.h and channel.h over packets that are under way for a time (wire.c).
 *
 * A source is all that a loop may wait for. Connections and channels are sources of their own. */
#ifndef TESTS_SYSTEM_WORLD_LOOP_H
#define TESTS_SYSTEM_WORLD_LOOP_H

#include "tests/system/world/fiber.h"

#include <uv.h>

struct source {
    struct source *next;
    void *key;                  /* libuv's handle, or who else owns it */
    uint64_t (*due)(void *arg); /* when it fires; NEVER: not by itself */
    void (*fire)(void *arg);
    void *arg;
    bool active; /* keeps the loop running */
    bool closing;
    void (*on_closed)(void *key);  /* for closing: called from the loop, after which the source is gone */
    bool is_handle;                /* libuv's own: */
    uint64_t at_ms, repeat_ms, at; /* timer; async, work and signals: NEVER while nothing is pending */
    uv_timer_cb on_timer;
    uv_async_cb on_async;
    uv_signal_cb on_signal;
    uv_after_work_cb on_worked;
    int number;
    bool started;
};

struct source *loop_add(uv_loop_t *loop, void *key, uint64_t (*due)(void *arg), void (*fire)(void *arg), void *arg);
/* on_closed follows from the loop. */
void loop_close(uv_loop_t *loop, void *key, void (*on_closed)(void *key));

/* A listener's connections: take is called on its loop with the number of a connected connection. */
struct wire_entrance;
struct wire_entrance *wire_listen(uv_loop_t *loop, const char *path, void (*take)(void *data, int fd), void *data);
/* Whoever has come, and was not taken, is turned away; on_closed follows from the loop. */
void wire_unlisten(struct wire_entrance *at, void (*on_closed)(void *data));
bool wire_is_live(const char *path);

/* Every connection and channel of the process breaks, as if its host had gone: neither side hears more of the other. */
void wire_cut(struct process *p);
/* Its connections end, and it lives on. */
void wire_break(struct process *p);
/* Packets under way, for the trace. */
unsigned wire_n_packets(void);

#endif
