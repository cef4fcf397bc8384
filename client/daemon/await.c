#include "client/daemon/await.h"

#include "client/daemon/look.h"

#include <errno.h>
#include <stdio.h>

enum { RETRY_MS = 20 };

static void note(const struct client_await *await, const char *sentence)
{
    if (await->on_note)
        await->on_note(await->user, sentence);
}

static bool is_absent(int rc)
{
    return rc == -ENOENT || rc == -ECONNREFUSED;
}

int client_await_daemon(struct client_link *link, const char *address, enum message_role role,
                        const struct client_await *await, struct error *err)
{
    struct error sentence;
    int rc = client_look_open(link, address, role, err);

    if (!is_absent(rc) || !await || !address || !*address)
        return rc;
    error_set(&sentence, 0, "waiting for the daemon %.200s", address);
    note(await, sentence.text);
    uv_update_time(&link->loop);
    const uint64_t until = uv_now(&link->loop) + CLIENT_AWAIT_MS;
    while (is_absent(rc) && uv_now(&link->loop) < until) {
        rc = client_link_pause(link, RETRY_MS, err);
        if (!rc)
            rc = client_look_open(link, address, role, err);
    }
    if (is_absent(rc))
        error_set(err, rc, "no daemon %.200s after %d s: start one with epsd --listen %.200s, or check the address",
                  address, CLIENT_AWAIT_MS / 1000, address);
    return rc;
}

int client_await_workers(uint32_t *attached, struct client_link *link, uint32_t n_workers, uint64_t ms,
                         struct error *err)
{
    struct message m = {.kind = MESSAGE_STATUS, .status = {.n_workers = n_workers}};

    uv_update_time(&link->loop);
    link->deadline = uv_now(&link->loop) + ms;
    client_link_send(link, &m);
    int rc = client_link_expect(link, MESSAGE_STATUS_REPLY, &m, NULL, err);
    link->deadline = 0;
    if (rc == -ETIMEDOUT) /* ask for the current number, which also cancels the earlier question */
        rc = client_look_status(link, &m, err) ? rc : -ETIMEDOUT;
    *attached = rc && rc != -ETIMEDOUT ? 0 : m.status_reply.n_workers;
    return rc;
}

int client_await_worker(uint32_t *n_workers, struct client_link *link, const char *address,
                        const struct client_await *await, struct error *err)
{
    struct message m;
    struct error sentence;
    int rc = client_look_status(link, &m, err);

    *n_workers = rc ? 0 : m.status_reply.n_workers;
    if (rc || *n_workers)
        return rc;
    error_set(&sentence, 0, "waiting for a worker to attach to the daemon %.200s", address);
    note(await, sentence.text);
    rc = client_await_workers(n_workers, link, 1, CLIENT_AWAIT_MS, err);
    if (rc == -ETIMEDOUT)
        error_set(err, rc, "the daemon %.200s has no worker after %d s: attach one with eps-worker --connect %.200s",
                  address, CLIENT_AWAIT_MS / 1000, address);
    return rc;
}
