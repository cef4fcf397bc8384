/* An answer is several messages: the host's, then one for each worker; `last` marks its end. Until then the figures of
 * an earlier answer are overwritten one by one, so they are handed out only once it is whole. Of the workers only the
 * one that uses most is kept. */
#include "client/daemon/memory.h"

#include "client/daemon/observer.h"

#include <string.h>

enum { PERIOD_MS = 1000 };

void client_memory_ask(struct client_memory *memory, struct client_link *link, bool at_once)
{
    const uint64_t now = uv_hrtime(), period = PERIOD_MS * UINT64_C(1000000);

    if (memory->asked || (!at_once && memory->asked_ns != 0 && now - memory->asked_ns < period))
        return;
    memory->asked = true;
    memory->news = false;
    memory->asked_ns = now;
    memory->device.memory_reply.worker = 0;
    client_link_send(link, &(struct message){.kind = MESSAGE_MEMORY});
}

static uint64_t current(const struct message *m)
{
    return m->memory_reply.ledger.total.current;
}

void client_memory_hear(struct client_memory *memory, const struct message *m)
{
    if (!memory->asked)
        return;
    if (m->memory_reply.worker == 0)
        memory->host = *m;
    else if (memory->device.memory_reply.worker == 0 || current(m) > current(&memory->device))
        memory->device = *m;
    if (m->memory_reply.last) {
        memory->asked = false;
        memory->news = true;
    }
}

int client_memory_await(struct client_memory *memory, struct client_link *link, struct error *err)
{
    struct message m;
    int rc = 0;

    client_memory_ask(memory, link, true);
    while (!rc && memory->asked) {
        rc = client_link_expect(link, MESSAGE_MEMORY_REPLY, &m, NULL, err);
        if (!rc)
            client_memory_hear(memory, &m);
    }
    return rc;
}

size_t client_memory_take(struct client_memory *memory, const struct eps_memory **out)
{
    *out = memory->sides;
    if (!memory->news)
        return 0;
    memory->news = false;
    client_observer_side(&memory->sides[0], memory->rows[0], &memory->host);
    if (memory->device.memory_reply.worker == 0)
        return 1;
    client_observer_side(&memory->sides[1], memory->rows[1], &memory->device);
    memcpy(memory->name, memory->device.memory_reply.device, sizeof memory->name); /* the next answer overwrites it */
    memory->sides[1].device = memory->name;
    return 2;
}
