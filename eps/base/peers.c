/* Events are posted and taken on the loop's thread, so the ring needs no lock. It is woken all the same: libuv's
 * completion of a work item posts an event, but no drain_events follows it (eps/drain.c). */
#include "eps/base/peers.h"

#include <assert.h>

void event_post(struct peers *peers, const struct event *event)
{
    assert(peers->n_events < EVENT_MAX);
    peers->events[(peers->first_event + peers->n_events++) % EVENT_MAX] = *event;
    uv_async_send(&peers->wake);
}

bool event_take(struct peers *peers, struct event *event)
{
    if (!peers->n_events)
        return false;
    *event = peers->events[peers->first_event];
    peers->first_event = (peers->first_event + 1) % EVENT_MAX;
    peers->n_events--;
    return true;
}
