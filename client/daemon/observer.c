/* A link is read in sequence, so no question may be left with its answer to come: the next reader would take it for its
 * own. A wait that ends otherwise takes the answer in first (client_observer_await_saved), or cancels the question by
 * another one (client_await_workers). One of several daemons is asked over a link of its own, which is closed with
 * whatever it owes. */
#include "client/daemon/observer.h"

#include "client/member.h"
#include "proto/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int client_report(struct eps_error *error, const struct error *err, int rc)
{
    if (error)
        snprintf(error->text, sizeof error->text, "%s", rc ? err->text : "");
    if (error)
        client_name_members(error->text);
    return rc;
}

int client_report_memory(struct eps_error *error)
{
    struct error err;
    const int rc = error_memory(&err);

    return client_report(error, &err, rc);
}

int client_observer_status(struct client_link *link, struct message *reply, struct error *err)
{
    client_link_send(link, &(struct message){.kind = MESSAGE_STATUS});
    return client_link_expect(link, MESSAGE_STATUS_REPLY, reply, NULL, err);
}

enum { ASK_MS = 3000 };

struct limit {
    const uv_loop_t *loop;
    uint64_t until;
};

/* The watch of a link that nobody may interrupt: only time does. */
static int ask_limit(void *data, struct error *err)
{
    const struct limit *limit = data;

    return uv_now(limit->loop) < limit->until ? 0 : error_set(err, -ETIMEDOUT, "does not answer");
}

/* Asks one daemon for its status, with a short timeout: it is one of several. */
static int ask_once(const char *directory, struct message *reply)
{
    struct client_link link;
    struct limit limit = {.loop = &link.loop};
    int rc = client_link_init(&link, NULL);

    if (!rc) {
        limit.until = uv_now(&link.loop) + ASK_MS;
        link.watches[1] = (struct client_watch){.ask = ask_limit, .data = &limit};
        rc = client_link_open(&link, directory, ROLE_VIEWER, NULL);
    }
    if (!rc)
        rc = client_observer_status(&link, reply, NULL);
    client_link_free(&link);
    return rc;
}

/* Compares a path with the output directory that a daemon reports. A path too long for a message is reported as "..."
 * and its end. */
static bool observer_is_same(const char *out, const char *path)
{
    const size_t n = strlen(out), n_path = strlen(path);

    if (strcmp(out, path) == 0)
        return true;
    return strncmp(out, "...", 3) == 0 && n_path >= n && strcmp(path + n_path - (n - 3), out + 3) == 0;
}

struct search {
    char path[PATH_MAX]; /* to search for */
    char directory[PATH_MAX];
};

static void observer_on_daemon(void *user, const char *directory)
{
    struct search *search = user;
    struct message m;

    if (search->directory[0] || ask_once(directory, &m))
        return;
    if (m.status_reply.uid == geteuid() &&
        observer_is_same(m.status_reply.out, search->path)) /* other users' daemons may report anything */
        snprintf(search->directory, sizeof search->directory, "%s", directory);
}

int client_observer_find(char *out, size_t cap, const char *address, struct error *err)
{
    struct search search = {.directory = ""};
    char connection[PATH_MAX];
    struct stat info;
    int rc = session_directory(out, cap, address, err);

    if (rc || !address || !address[0] ||
        (size_t)snprintf(connection, sizeof connection, "%s/listener", out) >= sizeof connection)
        return rc;
    if (lstat(connection, &info) == 0 || errno != ENOENT || stat(address, &info) || !S_ISDIR(info.st_mode) ||
        !realpath(address, search.path))
        return 0; /* connecting reports the fault */
    rc = session_list(observer_on_daemon, &search, err);
    if (!rc && !search.directory[0])
        return error_set(err, -ENOENT, "%s: no daemon of yours listens there or writes its run there: see eps status",
                         address);
    snprintf(out, cap, "%s", search.directory);
    return rc;
}

/* A daemon that writes there, but does not stop, is somebody's run. */
bool client_observer_is_ending(const char *run)
{
    char path[PATH_MAX], directory[PATH_MAX];
    struct message m;

    return realpath(run, path) && client_observer_find(directory, sizeof directory, path, NULL) == 0 &&
           ask_once(directory, &m) == 0 && m.status_reply.state == STATE_STOPPING;
}

struct detached {
    char directory[PATH_MAX];
    struct error names;
    unsigned n;
};

/* A daemon that does not answer, or has another state, is passed over. */
static void on_each(void *user, const char *directory)
{
    struct detached *found = user;
    const char *name = strrchr(directory, '/');
    struct message m;

    if (ask_once(directory, &m) || m.status_reply.state != STATE_DETACHED)
        return;
    error_append(&found->names, "%s%s", found->n++ ? ", " : "", name ? name + 1 : directory);
    snprintf(found->directory, sizeof found->directory, "%s", directory);
}

int client_observer_find_detached(char *out, size_t cap, struct error *err)
{
    struct detached found = {.names = {""}};
    const int rc = session_list(on_each, &found, err);

    if (rc)
        return rc;
    if (found.n == 0)
        return error_set(err, -ENOENT,
                         "no daemon of yours has a detached job: name another user's with --attach ADDRESS; eps train "
                         "--resume DIR continues a run from its checkpoint");
    if (found.n > 1)
        return error_set(err, -ENOTUNIQ, "%u daemons have a detached job: name one of %.200s", found.n,
                         found.names.text);
    snprintf(out, cap, "%s", found.directory);
    return 0;
}

/* The short name is told only if it leads back to this directory. */
const char *client_observer_name(const char *directory)
{
    const char *slash = strrchr(directory, '/');
    char named[PATH_MAX];

    if (!slash || !slash[1] || session_directory(named, sizeof named, slash + 1, NULL) || strcmp(named, directory) != 0)
        return directory;
    return slash + 1;
}

int client_observer_open(struct client_link *link, const char *address, enum message_role role, struct error *err)
{
    char directory[PATH_MAX];
    int rc = client_observer_find(directory, sizeof directory, address, err);

    return rc ? rc : client_link_open(link, directory, role, err);
}

void client_observer_side(struct eps_memory *out, struct eps_memory_row rows[LEDGER_CATEGORIES],
                          const struct message *m)
{
    const struct ledger *ledger = &m->memory_reply.ledger;
    const struct pages *pages = &m->memory_reply.pages;

    *out = (struct eps_memory){
        .worker = m->memory_reply.worker,
        .pid = m->memory_reply.pid,
        .host = m->memory_reply.host,
        .device = m->memory_reply.device,
        .budget = m->memory_reply.budget,
        .current = ledger->total.current,
        .peak = ledger->total.peak,
        .rows = rows,
        .pages = {pages->known, pages->resident, pages->locked, pages->huge, pages->n_nodes, {0}},
    };
    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++) {
        const uint64_t planned = m->memory_reply.planned[i];
        out->planned += planned;
        if (ledger->rows[i].peak > 0 || planned > 0)
            rows[out->n_rows++] = (struct eps_memory_row){ledger_name((enum ledger_category)i), ledger->rows[i].current,
                                                          ledger->rows[i].peak, planned};
    }
    for (size_t i = 0; i < out->pages.n_nodes; i++)
        out->pages.nodes[i] = pages->nodes[i];
}

static void tell_side(const struct message *m, void (*on_memory)(void *user, const struct eps_memory *side), void *user)
{
    struct eps_memory_row rows[LEDGER_CATEGORIES];
    struct eps_memory side;

    client_observer_side(&side, rows, m);
    if (on_memory)
        on_memory(user, &side);
}

int client_observer_memory(struct client_link *link, bool pages,
                           void (*on_memory)(void *user, const struct eps_memory *side), void *user, struct error *err)
{
    struct message m;

    client_link_send(link, &(struct message){.kind = MESSAGE_MEMORY, .memory = {.pages = pages}});
    do {
        int rc = client_link_expect(link, MESSAGE_MEMORY_REPLY, &m, NULL, err);
        if (rc)
            return rc;
        tell_side(&m, on_memory, user);
    } while (!m.memory_reply.last);
    return 0;
}

int eps_parse_bytes(uint64_t *out, const char *option, const char *text, struct eps_error *error)
{
    struct error err = {""};
    int rc = process_parse_bytes(out, option, text, &err);
    if (error) /* the option's name is the caller's own */
        snprintf(error->text, sizeof error->text, "%s", rc ? err.text : "");
    return rc ? -EDOM : 0;
}

const char *eps_bytes_help(void)
{
    return PROCESS_BYTES_HELP;
}

const char *eps_format_bytes(char out[24], uint64_t bytes)
{
    return process_format_bytes(out, bytes);
}

/* 11, 12 and 13 have "th" as well. */
static const char *ordinal(uint32_t n)
{
    static const char *const endings[] = {"th", "st", "nd", "rd"};

    return n / 10 % 10 == 1 || n % 10 > 3 ? "th" : endings[n % 10];
}

void client_observer_say_queued(struct error *sentence, const struct message *m)
{
    const uint32_t place = m->queued.place;

    error_set(sentence, 0, "job %u waits for its turn at the daemon: %u%s in the queue", m->queued.job, place,
              ordinal(place));
}

/* Of a worker that had begun nothing: no part of it is done again. */
void client_observer_say_missing(struct error *sentence, const struct message *m)
{
    error_set(sentence, 0, "worker %u (%s%s%s) %s: %s%s", m->lost.worker, m->lost.device, *m->lost.host ? " on " : "",
              m->lost.host, m->lost.how == LOSS_UNFIT ? "is left out" : "was lost before the job began",
              m->lost.error.text, m->lost.waits ? "; the step waits for another worker to attach" : "");
}

/* ---- Waits for a version of the model ---- */

enum { ASK_STATUS_MS = 500 };

/* Told once for each step: the status is asked for twice a second. */
void client_observer_note_wait(struct client_saved_wait *wait, const struct message *m)
{
    const uint64_t step = m->status_reply.step + 1;
    struct error sentence;

    if (!m->status_reply.waits || wait->noted == step)
        return;
    wait->noted = step;
    error_set(&sentence, 0, "step %" PRIu64 " waits for a worker: attach one with eps-worker --connect %.200s", step,
              client_observer_name(wait->directory));
    client_tell(wait->on_note, wait->user, sentence.text);
}

int client_observer_await_saved(struct message *m, struct client_link *link, struct client_saved_wait *wait,
                                struct error *err)
{
    bool asked = false;
    int rc;

    do {
        link->deadline = link->awake_ms + ASK_STATUS_MS;
        rc = client_link_next(link, m, NULL, err);
        link->deadline = 0;
        if (!rc && m->kind == MESSAGE_STATUS_REPLY && asked) {
            asked = false;
            client_observer_note_wait(wait, m);
        } else if (!rc && m->kind != MESSAGE_SAVED) {
            rc = error_set(err, -EPROTO, "the daemon sent %s where SAVED was due", message_name(m->kind));
        } else if (rc == -ETIMEDOUT && !asked) {
            asked = true;
            client_link_send(link, &(struct message){.kind = MESSAGE_STATUS});
        }
    } while (rc == -ETIMEDOUT || (!rc && m->kind != MESSAGE_SAVED));
    if (asked && (!rc || (m->kind == MESSAGE_REFUSED && link->session))) { /* the reply is on its way */
        struct message late;
        struct error why;
        const int answered = client_link_expect(link, MESSAGE_STATUS_REPLY, &late, NULL, rc ? &why : err);
        rc = rc ? rc : answered;
    }
    return rc;
}

/* ---- Bounded waits ---- */

enum { RETRY_MS = 20, ASK_WORKER_MS = 50 };

static void observer_note(const struct client_await *await, const char *sentence)
{
    client_tell(await->on_note, await->user, sentence);
}

static bool observer_is_absent(int rc)
{
    return rc == -ENOENT || rc == -ECONNREFUSED;
}

/* The limit counts in the link's awake_ms, which begins at 0: a process that is stopped does not wait. */
int client_await_init(struct client_await *await, double wait, const char *connect, struct error *err)
{
    enum { WAIT_S = 60, MOST_S = 1000000 };
    const double seconds = isnan(wait) ? WAIT_S : wait;

    if (!isnan(wait) && wait != 0 && !connect)
        return error_set(err, -EDOM, "--wait goes with --connect: without it there is nobody to wait for");
    if (!(seconds >= 0 && seconds <= MOST_S))
        return error_set(err, -EDOM, "--wait %g is not within 0 and %d seconds", seconds, MOST_S);
    await->ms = (uint64_t)(seconds * 1000);
    return 0;
}

/* " after 60 s" */
static const char *say_waited(char out[40], const struct client_await *await)
{
    out[0] = 0;
    if (await->ms > 0)
        snprintf(out, 40, " after %g s", (double)await->ms / 1000);
    return out;
}

int client_await_daemon(struct client_link *link, const char *address, enum message_role role,
                        const struct client_await *await, struct error *err)
{
    struct error sentence;
    char waited[40];
    int rc = client_observer_open(link, address, role, err);

    if (!observer_is_absent(rc) || !await || !address || !*address)
        return rc;
    error_set(&sentence, 0, "waiting for the daemon %.200s", address);
    if (await->ms > 0)
        observer_note(await, sentence.text);
    while (observer_is_absent(rc) && link->awake_ms < await->ms) {
        rc = client_link_pause(link, RETRY_MS, err);
        if (!rc)
            rc = client_observer_open(link, address, role, err);
    }
    if (observer_is_absent(rc))
        error_set(err, rc, "no daemon %.200s%s: start one with epsd --listen %.200s, or check the address", address,
                  say_waited(waited, await), address);
    return rc;
}

int client_await_workers(uint32_t *attached, struct client_link *link, uint32_t n_workers, uint64_t ms,
                         struct error *err)
{
    struct message m = {.kind = MESSAGE_STATUS, .status = {.n_workers = n_workers}};

    link->deadline = link->awake_ms + ms;
    client_link_send(link, &m);
    int rc = client_link_expect(link, MESSAGE_STATUS_REPLY, &m, NULL, err);
    link->deadline = 0;
    if (rc == -ETIMEDOUT) /* ask for the current number, which also cancels the earlier question */
        rc = client_observer_status(link, &m, err) ? rc : -ETIMEDOUT;
    *attached = rc && rc != -ETIMEDOUT ? 0 : m.status_reply.n_workers + m.status_reply.n_elsewhere;
    return rc;
}

/* The address of the daemon on one of several hosts. That on host 0 has the address that was given. */
static void observer_name_host(struct error *out, const char *address, uint32_t host)
{
    char directory[PATH_MAX];

    if (host > 0 && client_observer_find(directory, sizeof directory, address, NULL) == 0)
        error_set(out, 0, "%.200s-%u", client_observer_name(directory), host);
    else
        error_set(out, 0, "%.200s", address);
}

/* Of a job that is asked for next. */
static void note_workers(struct client_await *await, const struct client_link *link, uint32_t n_workers)
{
    await->n_workers = n_workers;
    await->n_lost = link->n_lost;
}

int client_await_worker(uint32_t *n_workers, struct client_link *link, const char *address, struct client_await *await,
                        struct error *err)
{
    struct error sentence, name;
    uint32_t told = 0, foreign = 0;
    struct message m;
    char waited[40];
    int rc;

    while (!(rc = client_observer_status(link, &m, err)) && m.status_reply.lacks > 0) {
        if (told != m.status_reply.lacks || foreign != m.status_reply.n_foreign) {
            told = m.status_reply.lacks;
            foreign = m.status_reply.n_foreign;
            observer_name_host(&name, address, told - 1);
            error_set(&sentence, 0, "waiting for a worker to attach to the daemon %s%s", name.text,
                      foreign ? ": those that are there are other users'" : "");
            if (await->ms > 0)
                observer_note(await, sentence.text);
        }
        if (link->awake_ms >= await->ms && foreign)
            return error_set(
                err, -ETIMEDOUT,
                "the daemon %s has no worker of yours or of its owner%s, only %u of other users, which may "
                "not compute your jobs: attach one with eps-worker --connect %s (or epsd --share-workers)",
                name.text, say_waited(waited, await), foreign, name.text);
        if (link->awake_ms >= await->ms)
            return error_set(err, -ETIMEDOUT,
                             "the daemon %s has no worker%s: attach one with eps-worker --connect %s%s", name.text,
                             say_waited(waited, await), name.text, told > 1 ? " on its host" : "");
        rc = client_link_pause(link, ASK_WORKER_MS, err);
        if (rc)
            break;
    }
    *n_workers = rc ? 0 : m.status_reply.n_workers + m.status_reply.n_elsewhere;
    note_workers(await, link, *n_workers);
    return rc;
}

/* Workers that came and could not do it count as lost, so only a number that rises tells of a new one. */
int client_await_another(int rc, struct client_link *link, const char *address, struct client_await *await,
                         struct error *err)
{
    enum { PAUSE_MS = 200 };
    const uint32_t n_lost = link->n_lost - await->n_lost;
    struct error sentence, why = *err;
    uint32_t before = await->n_workers > n_lost ? await->n_workers - n_lost : 0; /* those that could not do it */
    struct message m;

    if (rc != -EAGAIN || !address || !*address || await->ms == 0)
        return rc;
    error_set(&sentence, 0, "%.400s; waiting for another worker to attach", why.text);
    observer_note(await, sentence.text);
    const uint64_t until = link->awake_ms + await->ms;
    while (link->awake_ms < until) {
        int asked = client_observer_status(link, &m, err);
        const uint32_t n = asked ? 0 : m.status_reply.n_workers + m.status_reply.n_elsewhere;
        if (!asked && n > before) {
            note_workers(await, link, n);
            return 0;
        }
        before = n;
        if (!asked)
            asked = client_link_pause(link, PAUSE_MS, err);
        if (asked)
            return asked;
    }
    return error_set(err, rc, "%.400s; no other one came within %g s", why.text, (double)await->ms / 1000);
}
