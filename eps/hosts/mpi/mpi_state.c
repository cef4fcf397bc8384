/* The thread polls without sleep for a moment after something has happened, since an answer often follows at once, and
 * then sleeps twice as long each time. A command ends the sleep, a message does not: so the longest sleep is what a
 * message may wait. */
#include "eps/hosts/mpi/mpi_state.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SPINS = 32,     /* polls without sleep after something happened */
    POLL_US = 50,   /* longest sleep while a slice or a fetch is under way */
    IDLE_US = 1000, /* longest sleep otherwise, and so what a message to an idle host may wait */
};

int ring_init(struct ring *ring, size_t item_bytes, size_t room)
{
    *ring = (struct ring){.items = calloc(room, item_bytes), .item_bytes = item_bytes, .room = room};
    return ring->items ? 0 : -ENOMEM;
}

void *ring_push(struct ring *ring)
{
    assert(ring->n < ring->room);
    void *const item = ring->items + (ring->first + ring->n++) % ring->room * ring->item_bytes;
    return memset(item, 0, ring->item_bytes);
}

bool ring_pop(struct ring *ring, void *item)
{
    if (ring->n == 0)
        return false;
    memcpy(item, ring->items + ring->first * ring->item_bytes, ring->item_bytes);
    ring->first = (ring->first + 1) % ring->room;
    ring->n--;
    return true;
}

void hosts_mpi_enter(struct hosts *hosts, enum phase phase)
{
    pthread_mutex_lock(&hosts->lock);
    hosts->phase = phase;
    pthread_cond_signal(&hosts->done);
    pthread_mutex_unlock(&hosts->lock);
}

void hosts_mpi_rest(struct hosts *hosts, bool moves, unsigned idle)
{
    const long limit = moves ? POLL_US : IDLE_US;
    struct timespec until;

    if (idle < SPINS) {
        sched_yield();
        return;
    }
    const unsigned doubled = idle - SPINS < 6 ? idle - SPINS : 6;
    const long us = 20L << doubled < limit ? 20L << doubled : limit;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&hosts->lock);
    if (hosts->lost || hosts->commands.n == 0) /* after a loss commands are not obeyed any more */
        pthread_cond_timedwait(&hosts->work, &hosts->lock, &until);
    pthread_mutex_unlock(&hosts->lock);
}
