/* A hello comes from another process, so nothing in it is believed that could be wrong: an unknown way of attention is
 * our own, and a profile with impossible figures is replaced by its device's default. A peer is never freed while its
 * session may still call back: peer_remove is for closed ones. Others keep a peer's id, not its pointer, and look it up
 * again. */
#include "eps/base/peer.h"

#include "proto/base/process.h"
#include "proto/plan/time/card.h"
#include "proto/wire/files.h"
#include "proto/wire/session.h"

#include <stdlib.h>
#include <string.h>

static const char *role_name(enum message_role role)
{
    return role == ROLE_CLIENT ? "client" : role == ROLE_WORKER ? "worker" : "viewer";
}

struct peer *peer_add(struct peer **peers, struct session *s, const struct message *hello, uint32_t id)
{
    struct peer *peer = calloc(1, sizeof *peer), **end = peers;

    if (!peer)
        return NULL;
    peer->session = s;
    peer->role = hello->hello.role;
    peer->id = id;
    peer->budget = hello->hello.budget;
    memcpy(peer->device, hello->hello.device, sizeof peer->device);
    memcpy(peer->model, hello->hello.model, sizeof peer->model);
    memcpy(peer->host, hello->hello.host, sizeof peer->host);
    memcpy(peer->bus, hello->hello.bus, sizeof peer->bus);
    peer->backend = plan_backend_find(peer->device);
    peer->library_bytes = hello->hello.library_bytes;
    peer->attention =
        hello->hello.attention < PLAN_ATTENTIONS ? (enum plan_attention)hello->hello.attention : PLAN_ATTENTION_OWN;
    peer->convolution = hello->hello.convolution;
    peer->profile = hello->hello.profile;
    peer->measured = profile_check(&peer->profile, NULL) == 0;
    if (!peer->measured && profile_default(peer->device))
        peer->profile = card_profile_of(peer->device, peer->model);
    while (*end)
        end = &(*end)->next;
    return *end = peer;
}

void peer_remove(struct peer **peers, struct peer *peer)
{
    while (*peers != peer)
        peers = &(*peers)->next;
    *peers = peer->next;
    files_release(peer->files);
    free(peer);
}

static struct peer *peer_find_among(struct peer *peers, bool workers, uint32_t id)
{
    while (peers && (peers->id != id || (peers->role == ROLE_WORKER) != workers))
        peers = peers->next;
    return peers;
}

struct peer *peer_find(struct peer *peers, uint32_t id)
{
    return peer_find_among(peers, false, id);
}

struct peer *peer_find_worker(struct peer *peers, uint32_t id)
{
    return peer_find_among(peers, true, id);
}

const struct peer *peer_first_worker(const struct peer *peers)
{
    while (peers && (peers->role != ROLE_WORKER || peers->refused))
        peers = peers->next;
    return peers;
}

unsigned peer_count_workers(const struct peer *peers)
{
    unsigned n = 0;

    for (const struct peer *p = peer_first_worker(peers); p; p = peer_first_worker(p->next))
        n++;
    return n;
}

void peer_forget_plans(struct peer *peers)
{
    for (struct peer *p = peers; p; p = p->next)
        memset(&p->plan, 0, sizeof p->plan);
}

void peer_refuse(struct peer *peer, const char *reason)
{
    log_warning("%s %u refused: %s", role_name(peer->role), peer->id, reason);
    peer->refused = true;
    session_refuse(peer->session, reason);
}

void peer_decline(struct peer *peer, int code, const struct error *err)
{
    const struct message m = {.kind = MESSAGE_REFUSED, .refused = {.code = code, .error = *err}};

    session_send(peer->session, &m);
}
