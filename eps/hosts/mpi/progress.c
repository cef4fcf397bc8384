/* The thread that calls MPI: it joins the job, moves frames, slices and fetches, watches for silence, and leaves.
 *
 * Frames are received in the order in which their receives were posted, and MPI does not let two messages of one host
 * overtake each other, so frames of a host stay in order. Each host watches the one before it, the first the last: a
 * host from which nothing came for silence_ms is lost, and whoever finds that tells the others. MPI-3.1 cannot go on
 * without a host, so the thread then ends without MPI_Finalize, which would wait for it. */
#include "eps/hosts/mpi/mpi_state.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

_Static_assert(HOSTS_FETCHES == 64, "a bit each in fetch_free");

enum {
    N_RECEIVES = 32,
    TICK_MS = 100, /* the most silence that one poll counts: a suspended host loses nobody */
    FAREWELL_MS = 500
};

enum transfer_kind { TRANSFER_FRAME, TRANSFER_OUT, TRANSFER_SLICE, TRANSFER_FETCH };

struct transfer {
    enum transfer_kind kind;
    uint32_t host, slot; /* slot: number of a slice's slot, or of a fetch; a frame's kind */
    uint64_t token;
    uint8_t *frame; /* goes back to the pool when it was sent */
};

struct progress {
    struct hosts *hosts;
    MPI_Comm comm;
    MPI_Request receives[N_RECEIVES];
    uint8_t received[N_RECEIVES][FRAME_BYTES];
    unsigned head; /* index of the receive that was posted first */

    MPI_Request *requests;      /* (room) MPI's, one for each transfer */
    struct transfer *transfers; /* (room) */
    int *indices;               /* (room) for MPI_Testsome */
    MPI_Status *statuses;       /* (room) for MPI_Testsome */
    int n, room;
    uint8_t *frames, **pool; /* (room) */
    int n_pool;
    unsigned n_large;    /* slices and fetches under way */
    uint64_t fetch_free; /* bit i: number i of HOSTS_FETCHES is free */

    double last_ms, silent_ms, beat_ms;
    bool is_beating; /* the last beat is still being sent */
    bool ended;      /* nothing more can be done */
};

static double progress_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void notify(struct hosts *hosts)
{
    hosts->options.notify(hosts->options.data);
}

static struct hosts_event *progress_push(struct hosts *hosts, enum hosts_event_kind kind, uint32_t host, uint32_t slot)
{
    struct hosts_event *const event = ring_push(&hosts->events);

    event->kind = kind;
    event->host = host;
    event->slot = slot;
    return event;
}

static void add_transfer(struct progress *p, const struct transfer *transfer, MPI_Request request)
{
    assert(p->n < p->room);
    p->requests[p->n] = request;
    p->transfers[p->n++] = *transfer;
    p->n_large += transfer->kind != TRANSFER_FRAME;
}

static void lose(struct progress *p, uint32_t host, const char *format, ...) __attribute__((format(printf, 3, 4)));

static bool works(struct progress *p, int rc, uint32_t host)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;

    if (rc == MPI_SUCCESS)
        return true;
    MPI_Error_string(rc, text, &n);
    lose(p, host, "host %u is lost: MPI: %.*s", host, n, text);
    return false;
}

static void send_frame(struct progress *p, uint32_t host, enum frame_kind kind, uint32_t number, uint64_t bytes,
                       const uint8_t *message, size_t message_bytes)
{
    MPI_Request request;

    assert(p->n_pool > 0);
    uint8_t *const frame = p->pool[--p->n_pool];
    wire_put(frame, kind, 2);
    wire_put(frame + 2, message_bytes, 2);
    wire_put(frame + 4, number, 4);
    wire_put(frame + 8, bytes, 8);
    if (message_bytes)
        memcpy(frame + FRAME_HEADER_BYTES, message, message_bytes);
    if (works(p, MPI_Isend(frame, (int)(FRAME_HEADER_BYTES + message_bytes), MPI_BYTE, (int)host, 0, p->comm, &request),
              host))
        add_transfer(p, &(struct transfer){.kind = TRANSFER_FRAME, .host = host, .slot = kind, .frame = frame},
                     request);
}

/* Reports the first loss, and tells the other hosts; later ones do nothing. Call without the lock. */
static void lose(struct progress *p, uint32_t host, const char *format, ...)
{
    struct hosts *const hosts = p->hosts;
    va_list arguments;
    char text[ERROR_TEXT_BYTES];

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&hosts->lock);
    const bool first = !hosts->lost;
    if (first) {
        hosts->lost = true;
        error_set(&hosts->err, -EIO, "%s", text);
        progress_push(hosts, HOSTS_LOST, host, 0)->why = hosts->err.text;
    }
    pthread_mutex_unlock(&hosts->lock);
    if (!first)
        return;
    for (uint32_t h = 0; h < hosts->n; h++)
        if (h != hosts->host && h != host)
            send_frame(p, h, FRAME_LOST, host, 0, NULL, 0);
    notify(hosts);
}

/* ---- what the caller wants --------------------------------------------------------------------------------------- */

/* Bytes to another host, or from it; both return at once. */
static void send_bytes(struct progress *p, uint32_t host, int tag, const void *data, uint64_t bytes)
{
    const struct transfer transfer = {.kind = TRANSFER_OUT, .host = host};
    MPI_Request request;

    if (works(p, MPI_Isend(data, (int)bytes, MPI_BYTE, (int)host, tag, p->comm, &request), host))
        add_transfer(p, &transfer, request);
}

static void receive_bytes(struct progress *p, const struct transfer *transfer, int tag, void *to, uint64_t bytes)
{
    MPI_Request request;

    if (works(p, MPI_Irecv(to, (int)bytes, MPI_BYTE, (int)transfer->host, tag, p->comm, &request), transfer->host))
        add_transfer(p, transfer, request);
}

static int fetch_tag(const struct progress *p, uint32_t slot)
{
    return 1 + (int)(p->hosts->options.n_slots + slot);
}

static void obey(struct progress *p, const struct command *c)
{
    if (c->kind == FRAME_FETCH) {
        const uint32_t slot = (uint32_t)__builtin_ctzll(p->fetch_free);
        const struct transfer transfer = {.kind = TRANSFER_FETCH, .host = c->host, .slot = slot, .token = c->token};
        p->fetch_free &= ~(1ull << slot);
        receive_bytes(p, &transfer, fetch_tag(p, slot), c->into, c->bytes);
        send_frame(p, c->host, c->kind, slot, c->bytes, c->message, c->message_bytes);
        return;
    }
    send_frame(p, c->host, c->kind, c->number, c->bytes, c->message, c->message_bytes);
    if (c->kind == FRAME_SLICE && c->bytes > 0)
        send_bytes(p, c->host, 1 + (int)c->number, c->data, c->bytes);
}

static bool obey_all(struct progress *p)
{
    struct hosts *const hosts = p->hosts;
    struct command c;
    bool some = false;

    for (;;) {
        pthread_mutex_lock(&hosts->lock);
        const bool found = !hosts->lost && ring_pop(&hosts->commands, &c);
        pthread_mutex_unlock(&hosts->lock);
        if (!found)
            return some;
        obey(p, &c);
        some = true;
    }
}

/* ---- what has happened ------------------------------------------------------------------------------------------- */

static void finish(struct progress *p, const struct transfer *t)
{
    struct hosts *const hosts = p->hosts;

    p->n_large -= t->kind != TRANSFER_FRAME;
    if (t->kind == TRANSFER_FRAME) {
        p->pool[p->n_pool++] = t->frame;
        p->is_beating &= t->slot != FRAME_BEAT;
    } else if (t->kind != TRANSFER_OUT) {
        if (t->kind == TRANSFER_FETCH)
            p->fetch_free |= 1ull << t->slot;
        pthread_mutex_lock(&hosts->lock);
        if (!hosts->lost && t->kind == TRANSFER_SLICE) {
            struct peer_slot *const slot = &hosts->peers[t->host].slots[t->slot];
            slot->in = SLOT_ARRIVED;
            *progress_push(hosts, HOSTS_SLICE, t->host, t->slot) = slot->event;
        } else if (!hosts->lost) {
            progress_push(hosts, HOSTS_FETCHED, t->host, 0)->token = t->token;
        }
        pthread_mutex_unlock(&hosts->lock);
        notify(hosts);
    }
}

/* After a failed MPI_Testsome: the host of the first transfer that failed is lost. */
static bool blame(struct progress *p, int rc, int n_done)
{
    for (int i = 0; rc == MPI_ERR_IN_STATUS && i < n_done; i++)
        if (p->statuses[i].MPI_ERROR != MPI_SUCCESS)
            return works(p, p->statuses[i].MPI_ERROR, p->transfers[p->indices[i]].host);
    return works(p, rc, p->hosts->host); /* the call itself failed */
}

static bool test_transfers(struct progress *p)
{
    int n_done = 0;

    if (p->n == 0)
        return false;
    const int rc = MPI_Testsome(p->n, p->requests, &n_done, p->indices, p->statuses);
    if (rc != MPI_SUCCESS)
        return blame(p, rc, n_done);
    if (n_done == MPI_UNDEFINED || n_done == 0)
        return false;
    for (int i = 0; i < n_done; i++)
        finish(p, &p->transfers[p->indices[i]]);
    int kept = 0;
    for (int i = 0; i < p->n; i++)
        if (p->requests[i] != MPI_REQUEST_NULL) {
            p->requests[kept] = p->requests[i];
            p->transfers[kept++] = p->transfers[i];
        }
    p->n = kept;
    return true;
}

/* A slice is announced: its receive is posted, into the slot. Returns why the announcement is refused. */
static const char *progress_announce(struct progress *p, uint32_t from, uint32_t slot, uint64_t bytes,
                                     const uint8_t *message, size_t message_bytes)
{
    struct hosts *const hosts = p->hosts;
    const struct hosts_options *const o = &hosts->options;

    if (slot >= o->n_slots || bytes > o->slot_bytes)
        return "a slice that fits no slot";
    struct peer_slot *const s = &hosts->peers[from].slots[slot];
    pthread_mutex_lock(&hosts->lock);
    const bool free = s->in == SLOT_FREE;
    if (free) {
        s->in = SLOT_COMING;
        s->event = (struct hosts_event){
            .kind = HOSTS_SLICE, .host = from, .slot = slot, .bytes = bytes, .message_bytes = message_bytes};
        memcpy(s->event.message, message, message_bytes);
    }
    pthread_mutex_unlock(&hosts->lock);
    if (!free)
        return "a slice into a slot in use";
    const struct transfer transfer = {.kind = TRANSFER_SLICE, .host = from, .slot = slot};
    if (bytes == 0) {
        p->n_large++; /* finish() takes it off */
        finish(p, &transfer);
        return NULL;
    }
    uint8_t *const to = (uint8_t *)o->inbox + ((size_t)from * o->n_slots + slot) * o->slot_bytes;
    receive_bytes(p, &transfer, 1 + (int)slot, to, bytes);
    return NULL;
}

/* Another host wants some of what this one exposes. Returns why not. */
static const char *progress_serve(struct progress *p, uint32_t from, uint32_t slot, uint64_t bytes,
                                  const uint8_t *message, size_t message_bytes)
{
    struct hosts *const hosts = p->hosts;

    if (message_bytes != FETCH_BYTES || slot >= HOSTS_FETCHES || bytes == 0 || bytes > INT_MAX ||
        wire_get(message + 8, 4) >= HOSTS_REGIONS)
        return "a fetch of no known form";
    const uint64_t offset = wire_get(message, 8);
    pthread_mutex_lock(&hosts->lock);
    const struct region region = hosts->regions[wire_get(message + 8, 4)];
    pthread_mutex_unlock(&hosts->lock);
    if (bytes > region.bytes || offset > region.bytes - bytes)
        return "a fetch beyond what is exposed";
    send_bytes(p, from, fetch_tag(p, slot), region.base + offset, bytes);
    return NULL;
}

/* Under the lock: events of a frame without a slice. Returns why the frame is refused. */
static const char *progress_take_frame(struct hosts *hosts, uint32_t from, enum frame_kind kind, uint32_t number,
                                       const uint8_t *message, size_t message_bytes)
{
    struct peer *const peer = &hosts->peers[from];

    if (kind == FRAME_MESSAGE) {
        struct hosts_event *const event = progress_push(hosts, HOSTS_MESSAGE, from, 0);
        event->message_bytes = message_bytes;
        memcpy(event->message, message, message_bytes);
    } else if (kind == FRAME_CREDIT) {
        if (number > HOSTS_WINDOW - peer->window)
            return "credit for more than was sent";
        peer->window += number;
        if (peer->is_short) {
            peer->is_short = false;
            progress_push(hosts, HOSTS_ROOM, from, 0);
        }
    } else if (kind == FRAME_FREED) {
        if (number >= hosts->options.n_slots || !peer->slots[number].out)
            return "that a slot is free which was not in use";
        peer->slots[number].out = false;
        progress_push(hosts, HOSTS_FREED, from, number);
    } else if (kind == FRAME_BYE) {
        peer->bye = true;
    }
    return NULL;
}

static void handle(struct progress *p, uint32_t from, const uint8_t *frame, size_t bytes)
{
    struct hosts *const hosts = p->hosts;
    const char *why = "a frame of no known form";

    if (from == (hosts->host + hosts->n - 1) % hosts->n)
        p->silent_ms = 0;
    const uint64_t kind = bytes >= FRAME_HEADER_BYTES ? wire_get(frame, 2) : N_FRAME_KINDS;
    const size_t message_bytes = bytes >= FRAME_HEADER_BYTES ? wire_get(frame + 2, 2) : 0;
    const uint32_t number = bytes >= FRAME_HEADER_BYTES ? (uint32_t)wire_get(frame + 4, 4) : 0;
    if (kind < N_FRAME_KINDS && message_bytes == bytes - FRAME_HEADER_BYTES) {
        if (kind == FRAME_LOST) {
            lose(p, number, "host %u is lost, as host %u says", number, from);
            return;
        }
        const uint8_t *const message = frame + FRAME_HEADER_BYTES;
        const uint64_t n = wire_get(frame + 8, 8);
        if (kind == FRAME_SLICE) {
            why = progress_announce(p, from, number, n, message, message_bytes);
        } else if (kind == FRAME_FETCH) {
            why = progress_serve(p, from, number, n, message, message_bytes);
        } else {
            pthread_mutex_lock(&hosts->lock);
            why = hosts->lost ? NULL
                              : progress_take_frame(hosts, from, (enum frame_kind)kind, number, message, message_bytes);
            pthread_mutex_unlock(&hosts->lock);
            notify(hosts);
        }
    }
    if (why)
        lose(p, from, "host %u is lost: it sent %s", from, why);
}

static bool post(struct progress *p, unsigned i)
{
    return works(p, MPI_Irecv(p->received[i], FRAME_BYTES, MPI_BYTE, MPI_ANY_SOURCE, 0, p->comm, &p->receives[i]),
                 p->hosts->host);
}

static bool test_frames(struct progress *p)
{
    bool some = false;

    for (;;) {
        MPI_Status status;
        int done = 0, bytes = 0;
        const unsigned i = p->head;
        if (!works(p, MPI_Test(&p->receives[i], &done, &status), p->hosts->host) || !done)
            return some;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        handle(p, (uint32_t)status.MPI_SOURCE, p->received[i], (size_t)bytes);
        p->head = (i + 1) % N_RECEIVES;
        some = true;
        if (!post(p, i))
            return some;
    }
}

/* ---- silence ----------------------------------------------------------------------------------------------------- */

static void progress_watch(struct progress *p)
{
    struct hosts *const hosts = p->hosts;
    const double now = progress_now_ms(), passed = now - p->last_ms, limit = hosts->options.silence_ms;
    const uint32_t before = (hosts->host + hosts->n - 1) % hosts->n, after = (hosts->host + 1) % hosts->n;

    p->last_ms = now;
    if (hosts->n == 1)
        return;
    p->beat_ms += passed;
    if (p->beat_ms >= (limit < 4000 ? limit / 4 : 1000) && !p->is_beating) {
        p->beat_ms = 0;
        p->is_beating = true;
        send_frame(p, after, FRAME_BEAT, 0, 0, NULL, 0);
    }
    p->silent_ms += passed < TICK_MS ? passed : TICK_MS;
    if (p->silent_ms > limit && !hosts->peers[before].bye)
        lose(p, before, "host %u is lost: nothing came from it for %u ms", before, hosts->options.silence_ms);
}

/* ---- the thread's life ------------------------------------------------------------------------------------------- */

static bool progress_join(struct progress *p)
{
    struct hosts *const hosts = p->hosts;
    int level, rank = 0, n = 0;

    /* A failure of MPI_Init ends the process with MPI's own message. */
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    hosts->host = (uint32_t)rank;
    hosts->n = (uint32_t)n;
    if (level < MPI_THREAD_FUNNELED) {
        error_set(&hosts->err, -EINVAL, "this MPI library was built without threads: install one with them");
        return false;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &p->comm);
    MPI_Comm_set_errhandler(p->comm, MPI_ERRORS_RETURN);
    return true;
}

static int progress_allocate(struct progress *p)
{
    const int others = (int)p->hosts->n - 1, n_slots = (int)p->hosts->options.n_slots;

    p->room = others * (HOSTS_WINDOW + 4 * n_slots + 6 + HOSTS_FETCHES) + 2 * HOSTS_FETCHES + 2;
    p->fetch_free = UINT64_MAX;
    p->requests = calloc((size_t)p->room, sizeof *p->requests);
    p->transfers = calloc((size_t)p->room, sizeof *p->transfers);
    p->indices = calloc((size_t)p->room, sizeof *p->indices);
    p->statuses = calloc((size_t)p->room, sizeof *p->statuses);
    p->frames = malloc((size_t)p->room * FRAME_BYTES);
    p->pool = calloc((size_t)p->room, sizeof *p->pool);
    if (!p->requests || !p->transfers || !p->indices || !p->statuses || !p->frames || !p->pool)
        return -ENOMEM;
    for (p->n_pool = 0; p->n_pool < p->room; p->n_pool++)
        p->pool[p->n_pool] = p->frames + (size_t)p->n_pool * FRAME_BYTES;
    return 0;
}

/* All hosts agree whether they can start: so none waits for one that cannot. */
static bool progress_meet(struct progress *p)
{
    struct hosts *const hosts = p->hosts;
    const struct hosts_options *const o = &hosts->options;
    const bool ready = hosts->is_ready && progress_allocate(p) == 0;
    uint64_t mine[3] = {ready, o->n_slots, o->slot_bytes};
    uint64_t *const all = calloc(hosts->n, sizeof mine);
    bool can_all = all != NULL, same = true;

    if (!all || MPI_Allgather(mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, p->comm) != MPI_SUCCESS) {
        error_set(&hosts->err, -EINVAL, "the hosts of this job do not reach each other");
        free(all);
        return false;
    }
    for (uint32_t h = 0; h < hosts->n; h++) {
        can_all &= all[3 * h] != 0;
        same &= all[3 * h + 1] == o->n_slots && all[3 * h + 2] == o->slot_bytes;
    }
    free(all);
    if (!can_all || !same) {
        if (hosts->is_ready) /* else it is said */
            error_set(
                &hosts->err, -EINVAL,
                same ? "a host of this job has no memory for messages"
                     : "the hosts of this job have slots of different numbers or sizes: give all the same options");
        return false;
    }
    for (unsigned i = 0; i < N_RECEIVES; i++)
        post(p, i);
    return true;
}

/* Until all hosts have said goodbye, or one is lost. */
static void progress_run(struct progress *p)
{
    struct hosts *const hosts = p->hosts;
    bool said = false;
    unsigned idle = 0;
    double farewell_ms = 0;

    p->last_ms = progress_now_ms();
    for (;;) {
        bool busy = obey_all(p);
        busy |= test_transfers(p);
        busy |= test_frames(p);
        progress_watch(p);
        pthread_mutex_lock(&hosts->lock);
        const bool closing = hosts->phase == PHASE_CLOSING, lost = hosts->lost, waiting = hosts->commands.n > 0;
        pthread_mutex_unlock(&hosts->lock);
        if (lost) { /* the others are told; then nothing more */
            farewell_ms = farewell_ms > 0 ? farewell_ms : progress_now_ms();
            if (p->n_pool == p->room || progress_now_ms() - farewell_ms > FAREWELL_MS)
                return;
        } else if (closing && !waiting && !said) {
            said = true;
            for (uint32_t h = 0; h < hosts->n; h++)
                if (h != hosts->host)
                    send_frame(p, h, FRAME_BYE, 0, 0, NULL, 0);
        } else if (said && p->n == 0) {
            bool all = true;
            for (uint32_t h = 0; h < hosts->n; h++)
                all &= h == hosts->host || hosts->peers[h].bye;
            if (all)
                return;
        }
        idle = busy ? 0 : idle + 1;
        hosts_mpi_rest(hosts, p->n_large > 0, idle);
    }
}

static void progress_leave(struct progress *p)
{
    for (unsigned i = 0; i < N_RECEIVES; i++) {
        MPI_Cancel(&p->receives[i]);
        MPI_Wait(&p->receives[i], MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&p->comm);
    MPI_Finalize();
}

void *hosts_mpi_run(void *arg)
{
    struct hosts *const hosts = arg;
    struct progress *const p = calloc(1, sizeof *p);

    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* sleeps of microseconds */
    if (!p || (p->hosts = hosts, !progress_join(p))) {
        free(p);
        hosts_mpi_enter(hosts, PHASE_FAILED);
        return NULL;
    }
    pthread_mutex_lock(&hosts->lock);
    hosts->phase = PHASE_OPEN;
    pthread_cond_signal(&hosts->done);
    while (hosts->phase == PHASE_OPEN)
        pthread_cond_wait(&hosts->work, &hosts->lock);
    const bool starts = hosts->phase == PHASE_STARTING;
    pthread_mutex_unlock(&hosts->lock);
    if (starts && !progress_meet(p)) {
        MPI_Comm_free(&p->comm);
        MPI_Finalize(); /* all fail alike */
        hosts_mpi_enter(hosts, PHASE_FAILED);
    } else if (starts) {
        hosts_mpi_enter(hosts, PHASE_RUNNING);
        progress_run(p);
        if (!hosts->lost) /* set by this thread alone */
            progress_leave(p);
    }
    const bool in_use = starts && hosts->lost; /* by MPI, which was not told to stop */
    if (!in_use) {
        free(p->requests);
        free(p->transfers);
        free(p->indices);
        free(p->statuses);
        free(p->frames);
        free(p->pool);
        free(p);
    }
    return NULL;
}
