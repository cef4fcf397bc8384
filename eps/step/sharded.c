/* The hosts of a job: what they tell each other, and fetch.
 *
 * Each host runs the same relay over its own units, and tells the others what they need to know. A message may have to
 * wait for room, a fetch for its turn; nothing here waits for either: sharded_go_on does one thing a call, so that
 * drain_events keeps its order between hosts and threads. */
#include "eps/step/sharded_state.h"

#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SPARE_MESSAGES = 8 }; /* room for what begins and ends a job, and ends the daemon, without memory */

/* ---- the process's life ----------------------------------------------------------------------------------------- */

static void on_notify(void *data)
{
    uv_async_send(data);
}

static void sharded_free_all(struct sharded *s)
{
    for (uint32_t h = 0; s->others && h < s->n; h++)
        free(s->others[h].messages);
    free(s->others);
    if (s->inbox)
        munmap(s->inbox, s->inbox_bytes);
    free(s->fetches);
    free(s->text);
    free(s);
}

/* Doubles. The list never shrinks: what one job needed, the next one may need. */
static bool grow_messages(struct sharded_host *other)
{
    const size_t cap = other->cap_messages ? 2 * other->cap_messages : 2 * SPARE_MESSAGES;
    struct host_message *messages = realloc(other->messages, cap * sizeof *messages);

    if (!messages)
        return false;
    other->messages = messages;
    other->cap_messages = cap;
    return true;
}

/* The pages of the inbox are taken as slices come, and given back after each job. */
static int sharded_take_memory(struct sharded *s)
{
    const size_t slot_bytes = MODEL_SLICE * sizeof(float);

    s->peers->host_slots = SHARDED_SLOTS;
    s->peers->host_bytes = sizeof *s->owns;
    s->peers->host_unit_bytes = sizeof *s->turns + sizeof *s->owner + sizeof *s->not_own + sizeof *s->n_left +
                                sizeof *s->norms_told + sizeof *s->norms_here + sizeof *s->arrived + sizeof *s->units;
    s->peers->host_slice_bytes = sizeof *s->queue + sizeof *s->folded;
    s->inbox_bytes = s->n * SHARDED_SLOTS * slot_bytes;
    /* A slot for each host, this one included, so that a slot's place is host times slots. Addresses alone cost
     * nothing. */
    s->inbox = mmap(NULL, s->inbox_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->inbox == MAP_FAILED)
        s->inbox = NULL;
    s->others = calloc(s->n, sizeof *s->others);
    bool grown = s->inbox && s->others;
    for (uint32_t h = 0; h < s->n && grown; h++)
        grown = grow_messages(&s->others[h]);
    return grown ? 0 : -ENOMEM;
}

/* The transport starts last: from then on its thread may wake the loop. */
int sharded_start(struct sharded **out, const struct sharded_options *options, struct steps *steps, struct error *err)
{
    struct sharded *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return error_memory(err);
    *s = (struct sharded){.steps = steps,
                          .job = steps->job,
                          .peers = steps->job->peers,
                          .ops = options->ops,
                          .hosts = options->hosts,
                          .host = options->host,
                          .n = options->n};
    int rc = sharded_take_memory(s);
    const struct hosts_options transport = {.n_slots = SHARDED_SLOTS,
                                            .slot_bytes = MODEL_SLICE * sizeof(float),
                                            .inbox = s->inbox,
                                            .silence_ms = SHARDED_SILENCE_MS,
                                            .notify = on_notify,
                                            .data = &s->peers->wake};
    rc = rc ? error_set(err, rc, "no memory for the slots of %u hosts", s->n - 1)
            : s->ops->start(s->hosts, &transport, err);
    if (rc) {
        sharded_free_all(s);
        return rc;
    }
    s->peers->host = s->host;
    s->peers->n_hosts = s->n;
    s->peers->lacks = s->host == 0 && s->n > 1; /* nobody has told of workers yet */
    steps->sharded = s;
    *out = s;
    return 0;
}

void sharded_close(struct sharded *s)
{
    if (!s)
        return;
    if (s->hosts)
        s->ops->close(s->hosts);
    s->steps->sharded = NULL;
    sharded_free_all(s);
}

bool sharded_is_over(const struct sharded *s, const char **lost)
{
    *lost = s->is_lost ? s->lost : NULL;
    return s->stops || s->is_lost;
}

bool sharded_is_busy(const struct sharded *s)
{
    bool is_busy = s->shared;

    /* Host 0 takes in the others' messages to the last: who waits for room does not end. They wait for host 0's. */
    for (uint32_t h = 0; h < s->n; h++)
        is_busy = is_busy || s->others[h].n_messages > 0 || ((s->host == 0) != (h == 0) && !s->others[h].stop_heard);
    return is_busy && !s->is_lost;
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

/* False: there is no room yet. */
static bool try_to_say(struct sharded *s, uint32_t to, const struct host_message *message)
{
    uint8_t buf[HOST_MESSAGE_MAX_BYTES];

    return s->ops->send(s->hosts, to, buf, host_message_encode(buf, message)) != -EAGAIN;
}

/* Few of these wait at a time: each but the first follows an answer to the one before. */
static bool frames_job(enum host_message_kind kind)
{
    return kind == HOST_JOB || kind == HOST_END || kind == HOST_QUIET || kind == HOST_STOP;
}

void sharded_say(struct sharded *s, uint32_t to, const struct host_message *message)
{
    struct sharded_host *other = &s->others[to];

    assert(to != s->host);
    /* Once one message waits, all later ones to that host wait behind it, though there may be room again: order is the
     * protocol's. */
    if (s->is_lost || (other->n_messages == 0 && try_to_say(s, to, message)))
        return;
    /* The spare places are for messages that end a job: they must get through when there is no memory. */
    if (other->n_messages + SPARE_MESSAGES >= other->cap_messages && !grow_messages(other)) {
        job_end_memory(s->job);
        if (!frames_job(message->kind))
            return; /* the job ends without it */
    }
    assert(other->n_messages < other->cap_messages);
    other->messages[other->n_messages++] = *message;
}

void sharded_say_all(struct sharded *s, const struct host_message *message)
{
    for (uint32_t h = 0; h < s->n; h++)
        if (h != s->host)
            sharded_say(s, h, message);
}

/* To whoever decides: host 0 tells all, all others tell host 0. */
void sharded_announce(struct sharded *s, const struct host_message *message)
{
    if (s->host == 0)
        sharded_say_all(s, message);
    else
        sharded_say(s, 0, message);
}

static void sharded_on_room(struct sharded *s, uint32_t to)
{
    struct sharded_host *other = &s->others[to];
    size_t n = 0;

    while (n < other->n_messages && try_to_say(s, to, &other->messages[n]))
        n++;
    other->n_messages -= n;
    memmove(other->messages, other->messages + n, other->n_messages * sizeof *other->messages);
}

void sharded_stop(struct sharded *s)
{
    s->stops = true;
}

unsigned sharded_grace_s(const struct sharded *s)
{
    return s->hosts ? s->ops->grace_s(s->hosts) : 0;
}

void sharded_announce_asked(struct sharded *s)
{
    if (!s->is_lost && !s->is_announced)
        sharded_say_all(s, &(struct host_message){.kind = HOST_ASKED, .code = 1});
    s->is_announced = true;
}

/* Who asks has answered thereby, and gets an answer, unless this host asks as well. */
static void hear_asked(struct sharded *s, uint32_t from, bool is_announced)
{
    s->others[from].has_answered = true;
    s->others[from].is_announced |= is_announced;
    s->is_asked |= is_announced;
    if (is_announced && !s->is_announced)
        sharded_say(s, from, &(struct host_message){.kind = HOST_ASKED});
}

static void sharded_name_host(const struct sharded *s, uint32_t host, struct error *out)
{
    const struct sharded_host *h = &s->others[host];

    error_set(out, 0, "host %u", host);
    if (*h->name)
        error_append(out, " (%s, pid %u)", h->name, h->pid);
}

enum sharded_announced sharded_judge(const struct sharded *s, struct error *out)
{
    bool all = s->is_announced;

    for (uint32_t h = 0; h < s->n; h++) {
        if (h != s->host && !s->others[h].has_answered) {
            sharded_name_host(s, h, out);
            return SHARDED_ONE_SILENT;
        }
        all = all && (h == s->host || s->others[h].is_announced);
    }
    return all ? SHARDED_ALL_ANNOUNCED : SHARDED_SOME_ANNOUNCED;
}

/* So that a sentence about a host can name its machine. */
static bool announce_here(struct sharded *s)
{
    struct host_message message = {.kind = HOST_HERE, .id = (uint32_t)getpid()};

    if (s->here_said || s->stops)
        return false;
    s->here_said = true;
    process_host_name(message.text, sizeof s->others->name);
    sharded_say_all(s, &message);
    return true;
}

static void hear_here(struct sharded_host *other, const struct host_message *message)
{
    other->pid = message->id;
    snprintf(other->name, sizeof other->name, "%.63s", message->text);
}

bool sharded_is_asked(const struct sharded *s)
{
    return s->is_asked;
}

/* After the end of a job, which says why. */
static bool announce_stop(struct sharded *s)
{
    if (!s->stops || s->stop_said || (s->shared && !s->end_said))
        return false;
    s->stop_said = true;
    sharded_announce(s, &(struct host_message){.kind = HOST_STOP});
    return true;
}

/* Host 0 answers for all. */
static bool announce_workers(struct sharded *s)
{
    const uint32_t n = peer_count_workers(s->peers->first);

    if (s->host == 0 || s->stops || n == s->others[s->host].n_workers)
        return false;
    s->others[s->host].n_workers = n;
    sharded_say(s, 0, &(struct host_message){.kind = HOST_WORKERS, .id = n});
    return true;
}

/* Sums are made anew, not adjusted, so a message that comes twice changes nothing. */
static void hear_workers(struct sharded *s, uint32_t from, uint32_t n)
{
    s->others[from].n_workers = n;
    s->peers->n_elsewhere = s->peers->lacks = 0;
    for (uint32_t h = 1; h < s->n; h++) {
        s->peers->n_elsewhere += s->others[h].n_workers;
        if (s->others[h].n_workers == 0 && !s->peers->lacks)
            s->peers->lacks = h;
    }
}

/* ---- fetches ---------------------------------------------------------------------------------------------------- */

/* Pieces, so that the weights that a worker waits for can pass between those of a large table. Returns their number,
 * which the caller counts down as they come (on_fetched); 0: no memory, and the job ends. */
uint32_t sharded_fetch(struct sharded *s, const struct sharded_fetch *whole)
{
    const size_t n = (whole->bytes + SHARDED_FETCH_BYTES - 1) / SHARDED_FETCH_BYTES;

    if (s->n_fetches + n > s->cap_fetches) {
        struct sharded_fetch *fetches = realloc(s->fetches, 2 * (s->n_fetches + n) * sizeof *fetches);
        if (!fetches) {
            job_end_memory(s->job);
            return 0;
        }
        s->fetches = fetches;
        s->cap_fetches = 2 * (s->n_fetches + n);
    }
    for (size_t i = 0; i < n; i++) {
        struct sharded_fetch *piece = &s->fetches[s->n_fetches++];
        const size_t done = i * SHARDED_FETCH_BYTES;
        *piece = *whole;
        piece->offset += done;
        piece->into += done;
        piece->bytes = whole->bytes - done < SHARDED_FETCH_BYTES ? whole->bytes - done : SHARDED_FETCH_BYTES;
    }
    return (uint32_t)n;
}

/* Oldest first. */
static bool begin_fetch(struct sharded *s)
{
    if (s->n_fetches == 0 || s->n_fetching == HOSTS_FETCHES)
        return false;
    const struct sharded_fetch f = s->fetches[0];
    memmove(s->fetches, s->fetches + 1, --s->n_fetches * sizeof *s->fetches);
    s->n_fetching++;
    s->ops->fetch(s->hosts, f.from, f.region, f.offset, f.into, f.bytes, f.token);
    return true;
}

/* The save takes the notes over, and frees them. */
static void on_notes_fetched(struct sharded *s, struct sharded_host *other)
{
    if (--other->n_left_notes > 0)
        return;
    if (job_is_open(s->job))
        save_on_notes(s->steps->saves, other->save, other->notes, other->n_notes_bytes);
    else
        free(other->notes);
    other->notes = NULL;
}

/* A piece of a table, or of norms: no unit has both. */
static void on_unit_fetched(struct sharded *s, uint32_t unit)
{
    const bool is_last = --s->n_left[unit] == 0;

    if (!store_keeps(&s->job->store, unit))
        sharded_on_norms_fetched(s, unit, is_last);
    else if (is_last)
        sharded_on_table_fetched(s, unit);
}

/* The ranges of tokens, ascending: units, slots of the ring, a minibatch, a request, then notes of each host. */
static void on_fetched(struct sharded *s, uint64_t token)
{
    s->n_fetching--;
    if (token == SHARDED_TOKEN_REQUEST)
        s->has_text = --s->n_left_text == 0;
    else if (token == SHARDED_TOKEN_DATA && --s->n_left_data == 0)
        sharded_on_data_fetched(s);
    else if (token >= SHARDED_TOKEN_NOTES)
        on_notes_fetched(s, &s->others[token - SHARDED_TOKEN_NOTES]);
    else if (token >= SHARDED_TOKEN_RING && token < SHARDED_TOKEN_DATA)
        sharded_on_ring_fetched(s, (uint32_t)(token - SHARDED_TOKEN_RING));
    else if (token < SHARDED_TOKEN_RING)
        on_unit_fetched(s, (uint32_t)token);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

/* Messages of a job that is not open here any more are ignored. Their sender hears of its end, or has said it
 * itself. */
static void sharded_on_message(struct sharded *s, uint32_t from, const struct host_message *message)
{
    switch (message->kind) {
    case HOST_JOB:
        sharded_on_job(s, message);
        break;
    case HOST_READY:
        sharded_on_ready(s, from);
        break;
    case HOST_END:
        sharded_on_end(s, from, message);
        break;
    case HOST_QUIET:
        s->others[from].n_quiet++;
        break;
    case HOST_STOP:
        s->stops = s->others[from].stop_heard = true;
        break;
    case HOST_HERE:
        hear_here(&s->others[from], message);
        break;
    case HOST_ASKED:
        hear_asked(s, from, message->code != 0);
        break;
    case HOST_WORKERS:
        hear_workers(s, from, message->id);
        break;
    case HOST_OPEN:
    case HOST_LOSS:
    case HOST_GRANT:
    case HOST_NORMS:
        if (job_is_open(s->job))
            sharded_on_message_of_step(s, from, message);
        break;
    case HOST_UPDATED:
    case HOST_SQUARES:
    case HOST_COVERED:
    case HOST_VERDICT:
    case HOST_DONE:
    case HOST_RUNS:
        if (job_is_open(s->job))
            sharded_on_message_of_end(s, from, message);
        break;
    case HOST_LOST: /* these two may come before the job is open here */
    case HOST_WAITS:
        if (s->shared && !s->end_said)
            sharded_on_message_of_end(s, from, message);
        break;
    case HOST_SAVE:
    case HOST_FILES:
    case HOST_SAVED:
    case HOST_FAILED:
        if (job_is_open(s->job))
            save_on_word(s->steps->saves, from, message);
        break;
    case HOST_SLICE:
    case HOST_KINDS:
        break;
    }
}

/* "host 1 is lost: ...", with the host's machine. */
static void say_lost(struct sharded *s, uint32_t host, const char *why)
{
    char plain[24];
    const int n = snprintf(plain, sizeof plain, "host %u", host);
    struct error name;

    sharded_name_host(s, host, &name);
    if (strncmp(why, plain, (size_t)n) == 0 && why[n] == ' ')
        snprintf(s->lost, sizeof s->lost, "%.100s%.400s", name.text, why + n);
    else
        snprintf(s->lost, sizeof s->lost, "%s", why);
}

/* Nobody else has its moments. */
static void on_lost(struct sharded *s, uint32_t host, const char *why)
{
    say_lost(s, host, why);
    log_error("%s; the daemon ends", s->lost);
    s->ops->close(s->hosts); /* nothing is read or written any more */
    s->hosts = NULL;
    s->is_lost = true;
    job_end(s->job, -EIO, "%s; its share of the optimizer's state is lost with it", s->lost);
    s->shared = false;
    s->job->lent = false;
}

/* A message that does not decode keeps a kind that nobody handles: all hosts run one build, so there is nothing to
 * answer. */
static void sharded_on_event(struct sharded *s, const struct hosts_event *e)
{
    struct host_message message = {.kind = HOST_KINDS};

    if (e->kind == HOSTS_MESSAGE || e->kind == HOSTS_SLICE)
        host_message_decode(&message, e->message, e->message_bytes);
    switch (e->kind) {
    case HOSTS_MESSAGE:
        sharded_on_message(s, e->host, &message);
        break;
    case HOSTS_ROOM:
        sharded_on_room(s, e->host);
        break;
    case HOSTS_SLICE:
        if (job_is_open(s->job) && !s->end_said)
            sharded_on_slice(s, e->host, e->slot, &message);
        else
            s->ops->free_slot(s->hosts, e->host, e->slot);
        break;
    case HOSTS_FREED:
        sharded_on_freed(s, e->host, e->slot);
        break;
    case HOSTS_FETCHED:
        on_fetched(s, e->token);
        break;
    case HOSTS_LOST:
        on_lost(s, e->host, e->why);
        break;
    }
}

bool sharded_go_on(struct sharded *s)
{
    struct hosts_event event;

    if (s->is_lost)
        return false;
    if (s->ops->next(s->hosts, &event)) {
        sharded_on_event(s, &event);
        return true;
    }
    if (announce_here(s) || sharded_begin_next(s) || announce_stop(s) || announce_workers(s) || sharded_job_go_on(s))
        return true;
    return (s->shared && job_is_open(s->job) &&
            (sharded_step_go_on(s) || sharded_norms_go_on(s) || sharded_end_go_on(s) || sharded_ring_go_on(s))) ||
           begin_fetch(s);
}
