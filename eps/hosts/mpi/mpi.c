/* The caller's side: every call leaves a command or takes an event, and returns. */
#include "eps/hosts/mpi/mpi_state.h"

#include "proto/base/thread.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void mpi_free_all(struct hosts *hosts)
{
    for (uint32_t h = 0; hosts->peers && h < hosts->n; h++)
        free(hosts->peers[h].slots);
    free(hosts->peers);
    free(hosts->commands.items);
    free(hosts->events.items);
    pthread_cond_destroy(&hosts->work);
    pthread_cond_destroy(&hosts->done);
    pthread_mutex_destroy(&hosts->lock);
    free(hosts);
}

/* Open MPI's own launcher and Slurm's, by the variables that they set. A process without them would be a job of its
 * own, which MPI_Init starts a daemon for. */
static bool is_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return true;
    return false;
}

/* mpirun hands its options on as variables; 1 is its default, and 30 that of Slurm's KillWait, which is not told. To be
 * read before MPI_Init, which sets variables of mpirun's without it. */
static unsigned read_grace_s(void)
{
    const char *text = getenv("OMPI_MCA_odls_base_sigkill_timeout");
    const long s = text ? strtol(text, NULL, 10) : getenv("OMPI_COMM_WORLD_RANK") ? 1 : 30;

    return s < 0 ? 0 : s > 86400 ? 86400 : (unsigned)s;
}

static unsigned grace_s_mpi(const struct hosts *hosts)
{
    return hosts->grace_s;
}

/* Waits for the thread to leave a phase. */
static enum phase mpi_await(struct hosts *hosts, enum phase phase)
{
    while (hosts->phase == phase)
        pthread_cond_wait(&hosts->done, &hosts->lock);
    return hosts->phase;
}

static void close_mpi(struct hosts *hosts)
{
    if (!hosts)
        return;
    pthread_mutex_lock(&hosts->lock);
    if (hosts->phase != PHASE_FAILED)
        hosts->phase = PHASE_CLOSING;
    pthread_cond_signal(&hosts->work);
    pthread_mutex_unlock(&hosts->lock);
    pthread_join(hosts->thread, NULL);
    mpi_free_all(hosts);
}

static int open_mpi(struct hosts **out, uint32_t *host, uint32_t *n, struct error *err)
{
    struct hosts *const hosts = calloc(1, sizeof *hosts);
    pthread_condattr_t monotonic;

    *out = NULL;
    if (!hosts)
        return error_set(err, -ENOMEM, "no memory to join the job");
    if (!is_launched()) {
        free(hosts);
        return error_set(err, -EINVAL, "no launcher started this process: start it by mpirun or srun");
    }
    hosts->grace_s = read_grace_s();
    pthread_mutex_init(&hosts->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&hosts->work, &monotonic);
    pthread_cond_init(&hosts->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const int rc = thread_begin(&hosts->thread, hosts_mpi_run, hosts);
    if (rc) {
        mpi_free_all(hosts);
        return error_set(err, rc, "no thread for MPI: %s", strerror(-rc));
    }
    pthread_mutex_lock(&hosts->lock);
    const enum phase phase = mpi_await(hosts, PHASE_OPENING);
    pthread_mutex_unlock(&hosts->lock);
    if (phase == PHASE_FAILED) {
        if (err)
            *err = hosts->err;
        close_mpi(hosts);
        return -EINVAL;
    }
    *host = hosts->host;
    *n = hosts->n;
    *out = hosts;
    return 0;
}

/* Each bound is that of the protocol: what may be under way at once. */
static int mpi_allocate(struct hosts *hosts)
{
    const size_t others = hosts->n - 1, n_slots = hosts->options.n_slots;

    if (ring_init(&hosts->commands, sizeof(struct command),
                  others * (HOSTS_WINDOW + 2 * n_slots + 2) + HOSTS_FETCHES) ||
        ring_init(&hosts->events, sizeof(struct hosts_event),
                  others * (HOSTS_WINDOW + 1 + 2 * n_slots) + HOSTS_FETCHES + 1))
        return -ENOMEM;
    hosts->peers = calloc(hosts->n, sizeof *hosts->peers);
    for (uint32_t h = 0; hosts->peers && h < hosts->n; h++) {
        hosts->peers[h].window = HOSTS_WINDOW;
        hosts->peers[h].slots = calloc(n_slots + 1, sizeof *hosts->peers[h].slots);
        if (!hosts->peers[h].slots)
            return -ENOMEM;
    }
    return hosts->peers ? 0 : -ENOMEM;
}

/* The thread has joined the others, and waits for what it needs to go on. */
static int start_mpi(struct hosts *hosts, const struct hosts_options *options, struct error *err)
{
    int rc = 0;

    hosts->options = *options;
    if (options->slot_bytes > INT_MAX)
        rc = error_set(&hosts->err, -EINVAL, "a slot of %zu bytes is larger than an MPI message", options->slot_bytes);
    else if (mpi_allocate(hosts))
        rc = error_set(&hosts->err, -ENOMEM, "no memory for messages to %u hosts", hosts->n - 1);
    hosts->is_ready = !rc; /* the others, who wait, are told */
    pthread_mutex_lock(&hosts->lock);
    assert(hosts->phase == PHASE_OPEN);
    hosts->phase = PHASE_STARTING;
    pthread_cond_signal(&hosts->work);
    const enum phase phase = mpi_await(hosts, PHASE_STARTING);
    pthread_mutex_unlock(&hosts->lock);
    if (phase == PHASE_FAILED && err)
        *err = hosts->err;
    return phase != PHASE_FAILED ? 0 : rc ? rc : -EINVAL;
}

static struct command *mpi_add(struct hosts *hosts, enum frame_kind kind, uint32_t host, uint32_t number)
{
    struct command *const c = ring_push(&hosts->commands);

    c->kind = kind;
    c->host = host;
    c->number = number;
    pthread_cond_signal(&hosts->work);
    return c;
}

static void mpi_attach(struct command *c, const void *message, size_t bytes)
{
    assert(bytes <= HOSTS_MESSAGE_BYTES);
    if (bytes)
        memcpy(c->message, message, bytes);
    c->message_bytes = bytes;
}

/* The other host `host`, with the lock taken; NULL once a host is lost. */
static struct peer *lock_peer(struct hosts *hosts, uint32_t host)
{
    assert(host < hosts->n && host != hosts->host);
    pthread_mutex_lock(&hosts->lock);
    return hosts->lost ? NULL : &hosts->peers[host];
}

/* Without room in the window the caller waits for HOSTS_ROOM, which `is_short` asks for. */
static int send_mpi(struct hosts *hosts, uint32_t to, const void *message, size_t bytes)
{
    struct peer *const peer = lock_peer(hosts, to);
    int rc = peer ? 0 : -EIO;

    if (peer && peer->window == 0) {
        peer->is_short = true;
        rc = -EAGAIN;
    } else if (peer) {
        peer->window--;
        mpi_attach(mpi_add(hosts, FRAME_MESSAGE, to, 0), message, bytes);
    }
    pthread_mutex_unlock(&hosts->lock);
    return rc;
}

static int send_slice_mpi(struct hosts *hosts, uint32_t to, uint32_t slot, const void *message, size_t message_bytes,
                          const void *data, size_t bytes)
{
    struct peer *const peer = lock_peer(hosts, to);

    if (peer) {
        assert(slot < hosts->options.n_slots && bytes <= hosts->options.slot_bytes && !peer->slots[slot].out);
        peer->slots[slot].out = true;
        struct command *const c = mpi_add(hosts, FRAME_SLICE, to, slot);
        mpi_attach(c, message, message_bytes);
        c->data = data;
        c->bytes = bytes;
    }
    pthread_mutex_unlock(&hosts->lock);
    return peer ? 0 : -EIO;
}

static int free_slot_mpi(struct hosts *hosts, uint32_t from, uint32_t slot)
{
    struct peer *const peer = lock_peer(hosts, from);

    if (peer) {
        assert(slot < hosts->options.n_slots && peer->slots[slot].in == SLOT_TAKEN);
        peer->slots[slot].in = SLOT_FREE;
        mpi_add(hosts, FRAME_FREED, from, slot);
    }
    pthread_mutex_unlock(&hosts->lock);
    return peer ? 0 : -EIO;
}

static void expose_mpi(struct hosts *hosts, uint32_t region, const void *base, size_t bytes)
{
    assert(region < HOSTS_REGIONS);
    pthread_mutex_lock(&hosts->lock);
    hosts->regions[region] = (struct region){base, bytes};
    pthread_mutex_unlock(&hosts->lock);
}

/* What another asks for goes by offset and region: it knows no addresses here. */
static int fetch_mpi(struct hosts *hosts, uint32_t from, uint32_t region, uint64_t offset, void *into, size_t bytes,
                     uint64_t token)
{
    struct peer *const peer = lock_peer(hosts, from);

    if (peer) {
        assert(bytes > 0 && bytes <= INT_MAX && region < HOSTS_REGIONS);
        assert(hosts->n_fetches < HOSTS_FETCHES);
        hosts->n_fetches++;
        struct command *const c = mpi_add(hosts, FRAME_FETCH, from, 0);
        wire_put(c->message, offset, 8);
        wire_put(c->message + 8, region, 4);
        c->message_bytes = FETCH_BYTES;
        c->into = into;
        c->bytes = bytes;
        c->token = token;
    }
    pthread_mutex_unlock(&hosts->lock);
    return peer ? 0 : -EIO;
}

/* Messages are credited by halves of the window, so that a busy host need not wait. */
static bool next_mpi(struct hosts *hosts, struct hosts_event *event)
{
    pthread_mutex_lock(&hosts->lock);
    const bool found = ring_pop(&hosts->events, event);
    if (found && event->kind == HOSTS_MESSAGE && ++hosts->peers[event->host].taken == HOSTS_WINDOW / 2) {
        hosts->peers[event->host].taken = 0;
        if (!hosts->lost)
            mpi_add(hosts, FRAME_CREDIT, event->host, HOSTS_WINDOW / 2);
    }
    if (found && event->kind == HOSTS_SLICE)
        hosts->peers[event->host].slots[event->slot].in = SLOT_TAKEN;
    if (found && event->kind == HOSTS_FETCHED)
        hosts->n_fetches--;
    pthread_mutex_unlock(&hosts->lock);
    return found;
}

static const struct hosts_ops ops = {
    .name = "mpi",
    .open = open_mpi,
    .grace_s = grace_s_mpi,
    .start = start_mpi,
    .send = send_mpi,
    .send_slice = send_slice_mpi,
    .free_slot = free_slot_mpi,
    .expose = expose_mpi,
    .fetch = fetch_mpi,
    .next = next_mpi,
    .close = close_mpi,
};

extern const struct module hosts_module;
__attribute__((visibility("default")))
const struct module hosts_module = {.version = EPS_VERSION, .ops_bytes = sizeof(struct hosts_ops), .ops = &ops};
