/* The hosts of a job: what they tell each other, and fetch. */
#include "eps/step/spread_state.h"

#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SPARE_WORDS = 8 }; /* room for what begins and ends a job, and ends the daemon, without memory */

/* ---- the process's life ----------------------------------------------------------------------------------------- */

static void on_notify(void *data)
{
    uv_async_send(data);
}

static void free_all(struct spread *s)
{
    for (uint32_t h = 0; s->others && h < s->n; h++)
        free(s->others[h].words);
    free(s->others);
    if (s->inbox)
        munmap(s->inbox, s->inbox_bytes);
    free(s->fetches);
    free(s->text);
    free(s);
}

static bool grow_words(struct spread_host *other)
{
    const size_t cap = other->cap_words ? 2 * other->cap_words : 2 * SPARE_WORDS;
    struct word *words = realloc(other->words, cap * sizeof *words);

    if (!words)
        return false;
    other->words = words;
    other->cap_words = cap;
    return true;
}

/* The pages of the inbox are taken as slices come, and given back after each job. */
static int take_memory(struct spread *s)
{
    const size_t slot_bytes = MODEL_SLICE * sizeof(float);

    s->hub->host_slots = SPREAD_SLOTS;
    s->hub->host_bytes = sizeof *s->owns;
    s->hub->host_unit_bytes = sizeof *s->turns + sizeof *s->owner + sizeof *s->not_own + sizeof *s->n_left +
                              sizeof *s->arrived + sizeof *s->units;
    s->hub->host_slice_bytes = sizeof *s->queue + sizeof *s->folded;
    s->inbox_bytes = s->n * SPREAD_SLOTS * slot_bytes;
    s->inbox = mmap(NULL, s->inbox_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->inbox == MAP_FAILED)
        s->inbox = NULL;
    s->others = calloc(s->n, sizeof *s->others);
    bool grown = s->inbox && s->others;
    for (uint32_t h = 0; h < s->n && grown; h++)
        grown = grow_words(&s->others[h]);
    return grown ? 0 : -ENOMEM;
}

int spread_start(struct spread **out, const struct spread_options *options, struct steps *steps, struct error *err)
{
    struct spread *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    *s = (struct spread){.steps = steps,
                         .job = steps->job,
                         .hub = steps->job->hub,
                         .ops = options->ops,
                         .hosts = options->hosts,
                         .host = options->host,
                         .n = options->n};
    int rc = take_memory(s);
    const struct hosts_options transport = {.n_slots = SPREAD_SLOTS,
                                            .slot_bytes = MODEL_SLICE * sizeof(float),
                                            .inbox = s->inbox,
                                            .silence_ms = SPREAD_SILENCE_MS,
                                            .notify = on_notify,
                                            .data = &s->hub->wake};
    rc = rc ? error_set(err, rc, "no memory for the slots of %u hosts", s->n - 1)
            : s->ops->start(s->hosts, &transport, err);
    if (rc) {
        free_all(s);
        return rc;
    }
    s->hub->host = s->host;
    s->hub->n_hosts = s->n;
    s->hub->lacks = s->host == 0 && s->n > 1; /* nobody has told of workers yet */
    steps->spread = s;
    *out = s;
    return 0;
}

void spread_close(struct spread *s)
{
    if (!s)
        return;
    if (s->hosts)
        s->ops->close(s->hosts);
    s->steps->spread = NULL;
    free_all(s);
}

bool spread_is_over(const struct spread *s, const char **lost)
{
    *lost = s->is_lost ? s->lost : NULL;
    return s->stops || s->is_lost;
}

bool spread_is_busy(const struct spread *s)
{
    bool is_busy = s->shared;

    /* Host 0 takes in the others' words to the last: who waits for room does not end. They wait for host 0's. */
    for (uint32_t h = 0; h < s->n; h++)
        is_busy = is_busy || s->others[h].n_words > 0 || ((s->host == 0) != (h == 0) && !s->others[h].stop_heard);
    return is_busy && !s->is_lost;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

/* False: there is no room yet. */
static bool try_to_say(struct spread *s, uint32_t to, const struct word *word)
{
    uint8_t buf[WORD_MOST_BYTES];

    return s->ops->send(s->hosts, to, buf, word_encode(buf, word)) != -EAGAIN;
}

/* Few of these wait at a time: each but the first follows an answer to the one before. */
static bool frames_job(enum word_kind kind)
{
    return kind == WORD_JOB || kind == WORD_END || kind == WORD_QUIET || kind == WORD_STOP;
}

void spread_say(struct spread *s, uint32_t to, const struct word *word)
{
    struct spread_host *other = &s->others[to];

    assert(to != s->host);
    if (s->is_lost || (other->n_words == 0 && try_to_say(s, to, word)))
        return;
    if (other->n_words + SPARE_WORDS >= other->cap_words && !grow_words(other)) {
        job_end(s->job, -ENOMEM, "out of memory");
        if (!frames_job(word->kind))
            return; /* the job ends without it */
    }
    assert(other->n_words < other->cap_words);
    other->words[other->n_words++] = *word;
}

void spread_say_all(struct spread *s, const struct word *word)
{
    for (uint32_t h = 0; h < s->n; h++)
        if (h != s->host)
            spread_say(s, h, word);
}

void spread_tell(struct spread *s, const struct word *word)
{
    if (s->host == 0)
        spread_say_all(s, word);
    else
        spread_say(s, 0, word);
}

static void on_room(struct spread *s, uint32_t to)
{
    struct spread_host *other = &s->others[to];
    size_t n = 0;

    while (n < other->n_words && try_to_say(s, to, &other->words[n]))
        n++;
    other->n_words -= n;
    memmove(other->words, other->words + n, other->n_words * sizeof *other->words);
}

void spread_stop(struct spread *s)
{
    s->stops = true;
}

unsigned spread_grace_s(const struct spread *s)
{
    return s->hosts ? s->ops->grace_s(s->hosts) : 0;
}

void spread_tell_asked(struct spread *s)
{
    if (!s->is_lost && !s->is_told)
        spread_say_all(s, &(struct word){.kind = WORD_ASKED, .code = 1});
    s->is_told = true;
}

static void hear_asked(struct spread *s, uint32_t from, bool is_told)
{
    s->others[from].has_answered = true;
    s->others[from].is_told |= is_told;
    s->is_asked |= is_told;
    if (is_told && !s->is_told)
        spread_say(s, from, &(struct word){.kind = WORD_ASKED});
}

static void name_host(const struct spread *s, uint32_t host, struct error *out)
{
    const struct spread_host *h = &s->others[host];

    error_set(out, 0, "host %u", host);
    if (*h->name)
        error_append(out, " (%s, pid %u)", h->name, h->pid);
}

enum spread_told spread_judge(const struct spread *s, struct error *out)
{
    bool all = s->is_told;

    for (uint32_t h = 0; h < s->n; h++) {
        if (h != s->host && !s->others[h].has_answered) {
            name_host(s, h, out);
            return SPREAD_ONE_SILENT;
        }
        all = all && (h == s->host || s->others[h].is_told);
    }
    return all ? SPREAD_ALL_TOLD : SPREAD_SOME_TOLD;
}

/* So that a sentence about a host can name its machine. */
static bool tell_here(struct spread *s)
{
    struct word word = {.kind = WORD_HERE, .id = (uint32_t)getpid()};

    if (s->here_said || s->stops)
        return false;
    s->here_said = true;
    process_host_name(word.text, sizeof s->others->name);
    spread_say_all(s, &word);
    return true;
}

static void hear_here(struct spread_host *other, const struct word *word)
{
    other->pid = word->id;
    snprintf(other->name, sizeof other->name, "%.63s", word->text);
}

bool spread_is_asked(const struct spread *s)
{
    return s->is_asked;
}

/* After the end of a job, which says why. */
static bool tell_stop(struct spread *s)
{
    if (!s->stops || s->stop_said || (s->shared && !s->end_said))
        return false;
    s->stop_said = true;
    spread_tell(s, &(struct word){.kind = WORD_STOP});
    return true;
}

/* Host 0 answers for all. */
static bool tell_workers(struct spread *s)
{
    const uint32_t n = peer_count_workers(s->hub->peers);

    if (s->host == 0 || s->stops || n == s->others[s->host].n_workers)
        return false;
    s->others[s->host].n_workers = n;
    spread_say(s, 0, &(struct word){.kind = WORD_WORKERS, .id = n});
    return true;
}

static void hear_workers(struct spread *s, uint32_t from, uint32_t n)
{
    s->others[from].n_workers = n;
    s->hub->n_elsewhere = s->hub->lacks = 0;
    for (uint32_t h = 1; h < s->n; h++) {
        s->hub->n_elsewhere += s->others[h].n_workers;
        if (s->others[h].n_workers == 0 && !s->hub->lacks)
            s->hub->lacks = h;
    }
}

/* ---- fetches ---------------------------------------------------------------------------------------------------- */

uint32_t spread_fetch(struct spread *s, const struct spread_fetch *whole)
{
    const size_t n = (whole->bytes + SPREAD_FETCH_BYTES - 1) / SPREAD_FETCH_BYTES;

    if (s->n_fetches + n > s->cap_fetches) {
        struct spread_fetch *fetches = realloc(s->fetches, 2 * (s->n_fetches + n) * sizeof *fetches);
        if (!fetches) {
            job_end(s->job, -ENOMEM, "out of memory");
            return 0;
        }
        s->fetches = fetches;
        s->cap_fetches = 2 * (s->n_fetches + n);
    }
    for (size_t i = 0; i < n; i++) {
        struct spread_fetch *piece = &s->fetches[s->n_fetches++];
        const size_t done = i * SPREAD_FETCH_BYTES;
        *piece = *whole;
        piece->offset += done;
        piece->into += done;
        piece->bytes = whole->bytes - done < SPREAD_FETCH_BYTES ? whole->bytes - done : SPREAD_FETCH_BYTES;
    }
    return (uint32_t)n;
}

/* Oldest first. */
static bool begin_fetch(struct spread *s)
{
    if (s->n_fetches == 0 || s->n_fetching == HOSTS_FETCHES)
        return false;
    const struct spread_fetch f = s->fetches[0];
    memmove(s->fetches, s->fetches + 1, --s->n_fetches * sizeof *s->fetches);
    s->n_fetching++;
    s->ops->fetch(s->hosts, f.from, f.region, f.offset, f.into, f.bytes, f.token);
    return true;
}

static void on_notes_fetched(struct spread *s, struct spread_host *other)
{
    if (--other->n_left_notes > 0)
        return;
    if (job_is_open(s->job))
        save_on_notes(s->steps->saves, other->save, other->notes, other->n_notes_bytes);
    else
        free(other->notes);
    other->notes = NULL;
}

static void on_fetched(struct spread *s, uint64_t token)
{
    s->n_fetching--;
    if (token == SPREAD_TOKEN_REQUEST)
        s->has_text = --s->n_left_text == 0;
    else if (token == SPREAD_TOKEN_DATA && --s->n_left_data == 0)
        spread_on_data_fetched(s);
    else if (token >= SPREAD_TOKEN_NOTES)
        on_notes_fetched(s, &s->others[token - SPREAD_TOKEN_NOTES]);
    else if (token >= SPREAD_TOKEN_RING && token < SPREAD_TOKEN_DATA)
        spread_on_ring_fetched(s, (uint32_t)(token - SPREAD_TOKEN_RING));
    else if (token < SPREAD_TOKEN_RING && --s->n_left[token] == 0)
        spread_on_unit_fetched(s, (uint32_t)token);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void on_word(struct spread *s, uint32_t from, const struct word *word)
{
    switch (word->kind) {
    case WORD_JOB:
        spread_on_job(s, word);
        break;
    case WORD_READY:
        spread_on_ready(s, from);
        break;
    case WORD_END:
        spread_on_end(s, from, word);
        break;
    case WORD_QUIET:
        s->others[from].n_quiet++;
        break;
    case WORD_STOP:
        s->stops = s->others[from].stop_heard = true;
        break;
    case WORD_HERE:
        hear_here(&s->others[from], word);
        break;
    case WORD_ASKED:
        hear_asked(s, from, word->code != 0);
        break;
    case WORD_WORKERS:
        hear_workers(s, from, word->id);
        break;
    case WORD_OPEN:
    case WORD_LOSS:
    case WORD_GRANT:
        if (job_is_open(s->job))
            spread_on_word_of_step(s, from, word);
        break;
    case WORD_UPDATED:
    case WORD_SQUARES:
    case WORD_COVERED:
    case WORD_VERDICT:
    case WORD_DONE:
    case WORD_RUNS:
        if (job_is_open(s->job))
            spread_on_word_of_end(s, from, word);
        break;
    case WORD_LOST: /* these two may come before the job is open here */
    case WORD_WAITS:
        if (s->shared && !s->end_said)
            spread_on_word_of_end(s, from, word);
        break;
    case WORD_SAVE:
    case WORD_FILES:
    case WORD_SAVED:
    case WORD_FAILED:
        if (job_is_open(s->job))
            save_on_word(s->steps->saves, from, word);
        break;
    case WORD_SLICE:
    case WORD_KINDS:
        break;
    }
}

/* "host 1 is lost: ...", with the host's machine. */
static void say_lost(struct spread *s, uint32_t host, const char *why)
{
    char plain[24];
    const int n = snprintf(plain, sizeof plain, "host %u", host);
    struct error name;

    name_host(s, host, &name);
    if (strncmp(why, plain, (size_t)n) == 0 && why[n] == ' ')
        snprintf(s->lost, sizeof s->lost, "%.100s%.400s", name.text, why + n);
    else
        snprintf(s->lost, sizeof s->lost, "%s", why);
}

/* Nobody else has its moments. */
static void on_lost(struct spread *s, uint32_t host, const char *why)
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

static void on_event(struct spread *s, const struct hosts_event *e)
{
    struct word word = {.kind = WORD_KINDS};

    if (e->kind == HOSTS_MESSAGE || e->kind == HOSTS_SLICE)
        word_decode(&word, e->message, e->message_bytes);
    switch (e->kind) {
    case HOSTS_MESSAGE:
        on_word(s, e->host, &word);
        break;
    case HOSTS_ROOM:
        on_room(s, e->host);
        break;
    case HOSTS_SLICE:
        if (job_is_open(s->job) && !s->end_said)
            spread_on_slice(s, e->host, e->slot, &word);
        else
            s->ops->free_slot(s->hosts, e->host, e->slot);
        break;
    case HOSTS_FREED:
        spread_on_freed(s, e->host, e->slot);
        break;
    case HOSTS_FETCHED:
        on_fetched(s, e->token);
        break;
    case HOSTS_LOST:
        on_lost(s, e->host, e->why);
        break;
    }
}

bool spread_go_on(struct spread *s)
{
    struct hosts_event event;

    if (s->is_lost)
        return false;
    if (s->ops->next(s->hosts, &event)) {
        on_event(s, &event);
        return true;
    }
    if (tell_here(s) || spread_begin_next(s) || tell_stop(s) || tell_workers(s) || spread_job_go_on(s))
        return true;
    return (s->shared && job_is_open(s->job) &&
            (spread_step_go_on(s) || spread_end_go_on(s) || spread_ring_go_on(s))) ||
           begin_fetch(s);
}
