/* No pool: threads that end with the call leave nothing to share, to fork with or to shut down, and beginning them
 * costs little beside an image. Items begin in their order, so when one fails, all before it have begun, and they are
 * finished: the first of those that fail is the same whatever the threads do. The caller's function is asked on its own
 * thread alone; when that has no item left, it waits for the others in turns, so that a stop is heard. */
#include "client/images/team.h"

#include "proto/base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { ASK_ITEMS = 16, ASK_NS = 100000000 };

struct team {
    client_team_work *work;
    void *user;
    size_t n;
    atomic_size_t next, end; /* items from `end` on are not begun: one before them failed */
    pthread_mutex_t mutex;   /* guards those below */
    int rc;                  /* of the first item that failed, `failed`, with the sentence */
    size_t failed;
    struct error err;
};

struct thread {
    struct team *team;
    unsigned number;
    pthread_t id;
};

static void team_fail(struct team *team, size_t item, int rc, const struct error *err)
{
    pthread_mutex_lock(&team->mutex);
    if (!team->rc || item < team->failed)
        team->rc = rc, team->failed = item, team->err = *err, team->end = item;
    pthread_mutex_unlock(&team->mutex);
}

/* Does one item; false if there is none left. */
static bool do_next(struct team *team, unsigned thread)
{
    const size_t item = atomic_fetch_add(&team->next, 1);
    struct error err = {""};

    if (item >= team->end)
        return false;
    const int rc = team->work(team->user, thread, item, &err);
    if (rc)
        team_fail(team, item, rc, &err);
    return true;
}

static void *run(void *argument)
{
    const struct thread *thread = argument;

    while (do_next(thread->team, thread->number))
        ;
    return NULL;
}

/* Begins threads 1 .. n_threads-1; returns how many there are with the caller's. */
static unsigned team_begin(struct thread *threads, struct team *team, unsigned n_threads)
{
    unsigned n = 1;

    for (; n < n_threads && n < team->n; n++) {
        threads[n] = (struct thread){.team = team, .number = n};
        if (thread_begin(&threads[n].id, run, &threads[n]))
            break; /* the others do its items */
    }
    return n;
}

/* An interruption ends the work as a failure before all items would. */
static void team_ask(struct team *team, const struct client_watch *watch)
{
    struct error err = {""};
    const int rc = client_watch_ask(watch, &err);

    if (rc)
        team_fail(team, 0, rc, &err);
}

/* Joins a thread, and asks the watch ten times a second. */
static void team_await(struct team *team, pthread_t id, const struct client_watch *watch)
{
    struct timespec until;

    do {
        team_ask(team, watch);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += ASK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    } while (pthread_timedjoin_np(id, NULL, &until));
}

int client_team_run(unsigned n_threads, size_t n, client_team_work *work, void *user, const struct client_watch *watch,
                    struct error *err)
{
    struct team team = {.work = work, .user = user, .n = n, .next = 0, .end = n, .mutex = PTHREAD_MUTEX_INITIALIZER};
    struct thread threads[CLIENT_TEAM_MOST];
    size_t n_done = 0;

    assert(n_threads > 0 && n_threads <= CLIENT_TEAM_MOST);
    unsigned n_begun = team_begin(threads, &team, n_threads);
    do {
        if (n_done++ % ASK_ITEMS == 0)
            team_ask(&team, watch);
    } while (do_next(&team, 0));
    while (--n_begun > 0)
        team_await(&team, threads[n_begun].id, watch);
    pthread_mutex_destroy(&team.mutex);
    return team.rc ? error_set(err, team.rc, "%s", team.err.text) : 0;
}
