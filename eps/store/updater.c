/* Both queues have `capacity` places, and no more tasks are pending than that (asserted), so a step allocates nothing
 * here. Tasks are copied in and out: neither thread reads the other's.
 *
 * Calls run before folds and updates: damage_look_before counts on it. New weights become current on the owner's
 * thread, when it takes the finished update (updater_take): as it is the one that answers pulls, `current` needs no
 * lock. */
#include "eps/store/updater.h"

#include "eps/store/checks.h"
#include "eps/store/norms.h"
#include "eps/store/team.h"
#include "proto/model/norms.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

struct updater {
    struct store *store;
    void (*on_done)(void *context);
    void *context;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* Under the mutex: */
    struct updater_task *ready, *done; /* (capacity) each, in order of arrival */
    size_t n_ready, n_done, capacity;
    unsigned n_threads;
    bool stopping, started;
    _Atomic uint64_t busy_ns;
    /* The owner's: */
    size_t pending;
    uint64_t n_taken;
};

void updater_run_task(struct updater_task *task, struct store *store)
{
    switch (task->kind) {
    case UPDATER_FOLD:
        task->result = store_fold(store, task->unit, task->slice, &task->contribution, task->how, &task->hyper);
        if (!task->result && task->squares) {
            store_join(store, task->unit);
            *task->squares = store_sum_squares(store, task->unit);
            task->result = isfinite(*task->squares) ? 0 : checks_verify_held(store, task->unit) ? -EIO : -EDOM;
        }
        break;
    case UPDATER_UPDATE:
        task->result = store_update(store, task->unit, task->how, &task->hyper);
        norms_update(&store->norms, store->model, task->unit, task->step);
        break;
    case UPDATER_CALL:
        task->result = task->call(task->context);
        break;
    case UPDATER_CHECK:
        task->result = store_check(store, &task->contribution, task->n);
        break;
    }
}

static void record_fold(const struct updater_task *task, const struct model *model, const char *unit, uint64_t since)
{
    const uint64_t n = model_slice_of(&model->units[task->unit], task->slice).n;
    const struct trace_arg args[] = {{"step", task->step + 1},
                                     {"visit", task->visit},
                                     {"part", task->contribution.part},
                                     {"slice", task->slice},
                                     {"bytes", n * number_bytes(task->contribution.type)},
                                     {NULL, 0}};
    char name[MODEL_NAME_BYTES + 16];

    snprintf(name, sizeof name, "%s part %u", unit, task->contribution.part);
    trace_end(task->trace, since, "fold", name, args);
}

/* On its track: "fold h.3 part 1", "update h.3", "load model". */
static void updater_record(const struct updater_task *task, const struct model *model, uint64_t since)
{
    char unit[MODEL_NAME_BYTES];

    if (task->kind == UPDATER_CALL)
        trace_end(task->trace, since, "load", "model", NULL);
    else if (task->kind == UPDATER_FOLD)
        record_fold(task, model, model_unit_name(unit, model, task->unit), since);
    else
        trace_end(task->trace, since, "update", model_unit_name(unit, model, task->unit),
                  (struct trace_arg[]){{"step", task->step + 1}, {NULL, 0}});
    if (task->kind == UPDATER_UPDATE &&
        task->unit == 0) /* the last task of a step: an observer of the run sees whole steps */
        trace_flush(task->trace);
}

/* Lowest unit first; among equals, the oldest; calls before all. The queue is short: a scan is cheaper than a heap. */
static size_t updater_find_next(const struct updater *up)
{
    size_t best = 0;

    for (size_t i = 0; i < up->n_ready; i++) {
        if (up->ready[i].kind == UPDATER_CALL)
            return i;
        if (up->ready[i].unit < up->ready[best].unit)
            best = i;
    }
    return best;
}

static void remove_at(struct updater_task *tasks, size_t *n, size_t i)
{
    memmove(tasks + i, tasks + i + 1, (*n - i - 1) * sizeof *tasks);
    --*n;
}

/* Sets the size of this thread's later teams. */
static void use_threads(unsigned n)
{
    (void)n; /* where there is no OpenMP */
#ifdef _OPENMP
    omp_set_num_threads((int)n);
#endif
}

/* Waits while the queue is empty. Memory that is checked is scrubbed meanwhile, a little at a time, so that a task that
 * comes waits for half a millisecond at most. The mutex is held, but for the scrub. */
static void updater_rest(struct updater *up)
{
    struct timespec until;

    if (!up->store->checks.memory) {
        pthread_cond_wait(&up->wake, &up->mutex);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += CHECKS_SCRUB_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&up->wake, &up->mutex, &until) != ETIMEDOUT)
        return;
    pthread_mutex_unlock(&up->mutex);
    if (checks_scrub(up->store))
        up->on_done(up->context);
    pthread_mutex_lock(&up->mutex);
}

uint64_t updater_busy_ns(const struct updater *up)
{
    return up ? atomic_load_explicit(&up->busy_ns, memory_order_relaxed) : 0;
}

static void *updater_run(void *arg)
{
    struct updater *up = arg;

    use_threads(up->n_threads);
    team_start();
    pthread_mutex_lock(&up->mutex);
    up->started = true;
    pthread_cond_signal(&up->wake);
    for (;;) {
        while (!up->n_ready && !up->stopping)
            updater_rest(up);
        if (!up->n_ready)
            break;
        size_t i = updater_find_next(up);
        struct updater_task task = up->ready[i];
        remove_at(up->ready, &up->n_ready, i);
        use_threads(up->n_threads);
        pthread_mutex_unlock(&up->mutex);
        const uint64_t since = trace_clock();
        updater_run_task(&task, up->store);
        if (task.kind != UPDATER_CALL)
            atomic_fetch_add_explicit(&up->busy_ns, trace_clock() - since, memory_order_relaxed);
        if (task.trace)
            updater_record(&task, up->store->model, since);
        pthread_mutex_lock(&up->mutex);
        up->done[up->n_done++] = task;
        up->on_done(up->context);
    }
    pthread_mutex_unlock(&up->mutex);
    return NULL;
}

/* Its thread has ended, or never begun. */
static void updater_free(struct updater *up)
{
    pthread_mutex_destroy(&up->mutex);
    pthread_cond_destroy(&up->wake);
    free(up->ready);
    free(up->done);
    free(up);
}

int updater_start(struct updater **out, struct store *store, unsigned n_threads, void (*on_done)(void *context),
                  void *context)
{
    struct updater *up = calloc(1, sizeof *up);
    int rc;

    *out = NULL;
    if (!up)
        return -ENOMEM;
    up->store = store;
    up->n_threads = n_threads;
    up->on_done = on_done;
    up->context = context;
    pthread_mutex_init(&up->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&up->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    rc = updater_reserve(up, 4);
    if (!rc)
        rc = -pthread_create(&up->thread, NULL, updater_run, up);
    if (rc) {
        updater_free(up);
        return rc;
    }
    pthread_mutex_lock(&up->mutex);
    while (!up->started)
        pthread_cond_wait(&up->wake, &up->mutex);
    pthread_mutex_unlock(&up->mutex);
    pthread_setname_np(up->thread, "optimizer"); /* for top -H and debuggers */
    *out = up;
    return 0;
}

void updater_set_threads(struct updater *up, unsigned n_threads)
{
    assert(n_threads > 0);
    pthread_mutex_lock(&up->mutex);
    up->n_threads = n_threads;
    pthread_mutex_unlock(&up->mutex);
}

int updater_reserve(struct updater *up, size_t n)
{
    int rc = 0;

    pthread_mutex_lock(&up->mutex);
    if (n > up->capacity) {
        struct updater_task *ready = realloc(up->ready, n * sizeof *ready);
        if (ready)
            up->ready = ready;
        struct updater_task *done = realloc(up->done, n * sizeof *done);
        if (done)
            up->done = done;
        if (ready && done)
            up->capacity = n;
        else
            rc = -ENOMEM;
    }
    pthread_mutex_unlock(&up->mutex);
    return rc;
}

void updater_submit(struct updater *up, const struct updater_task *task)
{
    pthread_mutex_lock(&up->mutex);
    assert(up->pending < up->capacity);
    up->ready[up->n_ready++] = *task;
    up->pending++;
    pthread_cond_signal(&up->wake);
    pthread_mutex_unlock(&up->mutex);
}

bool updater_take(struct updater *up, struct updater_task *task)
{
    bool any;

    pthread_mutex_lock(&up->mutex);
    any = up->n_done > 0;
    if (any) {
        *task = up->done[0];
        remove_at(up->done, &up->n_done, 0);
        up->pending--;
        up->n_taken++;
    }
    pthread_mutex_unlock(&up->mutex);
    if (any && task->kind == UPDATER_UPDATE)
        store_swap(up->store, task->unit);
    return any;
}

size_t updater_pending(const struct updater *up)
{
    return up->pending;
}

uint64_t updater_taken(const struct updater *up)
{
    return up->n_taken;
}

/* Tasks that are ready are still done. */
void updater_stop(struct updater *up)
{
    if (!up)
        return;
    pthread_mutex_lock(&up->mutex);
    up->stopping = true;
    pthread_cond_signal(&up->wake);
    pthread_mutex_unlock(&up->mutex);
    pthread_join(up->thread, NULL);
    updater_free(up);
}
