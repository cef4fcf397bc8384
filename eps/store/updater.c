#include "eps/store/updater.h"

#include "eps/store/team.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

struct eps_updater {
    struct eps_store *store;
    void (*on_done)(void *context);
    void *context;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* Under the mutex: */
    struct eps_job *ready, *done; /* (capacity) each, in order of arrival */
    size_t n_ready, n_done, capacity;
    unsigned n_threads;
    bool stopping, started;
    /* The owner's: */
    size_t pending;
    uint64_t n_taken;
};

void eps_job_run(struct eps_job *job, struct eps_store *store)
{
    switch (job->kind) {
    case EPS_JOB_FOLD:
        job->result = eps_store_fold(store, job->unit, job->slice, &job->contribution, job->how, &job->hyper);
        if (!job->result && job->squares) {
            *job->squares = eps_store_sum_squares(store, job->unit);
            job->result = isfinite(*job->squares) ? 0 : -EDOM;
        }
        break;
    case EPS_JOB_UPDATE:
        job->result = eps_store_update(store, job->unit, job->how, &job->hyper);
        break;
    case EPS_JOB_CALL:
        job->result = job->call(job->context);
        break;
    }
}

static void record_fold(const struct eps_job *job, const struct model *model, const char *unit, uint64_t since)
{
    const uint64_t left = model->units[job->unit].n - (uint64_t)job->slice * MODEL_SLICE;
    const struct trace_arg args[] = {{"step", job->step + 1},
                                     {"visit", job->visit},
                                     {"part", job->contribution.part},
                                     {"slice", job->slice},
                                     {"bytes",
                                      (left < MODEL_SLICE ? left : MODEL_SLICE) * number_bytes(job->contribution.type)},
                                     {NULL, 0}};
    char name[MODEL_NAME_BYTES + 16];

    snprintf(name, sizeof name, "%s part %u", unit, job->contribution.part);
    trace_end(job->trace, since, "fold", name, args);
}

/* On its track: "fold h.3 part 1", "update h.3", "load model". */
static void record(const struct eps_job *job, const struct model *model, uint64_t since)
{
    char unit[MODEL_NAME_BYTES];

    if (job->kind == EPS_JOB_CALL)
        trace_end(job->trace, since, "load", "model", NULL);
    else if (job->kind == EPS_JOB_FOLD)
        record_fold(job, model, model_unit_name(unit, model, job->unit), since);
    else
        trace_end(job->trace, since, "update", model_unit_name(unit, model, job->unit),
                  (struct trace_arg[]){{"step", job->step + 1}, {NULL, 0}});
    if (job->kind == EPS_JOB_UPDATE && job->unit == 0) /* the last of a step: who looks at a run sees whole steps */
        trace_flush(job->trace);
}

/* Lowest unit first, among equals the oldest; a call before all. The queue is short: a scan is cheaper than a heap. */
static size_t find_next(const struct eps_updater *up)
{
    size_t best = 0;

    for (size_t i = 0; i < up->n_ready; i++) {
        if (up->ready[i].kind == EPS_JOB_CALL)
            return i;
        if (up->ready[i].unit < up->ready[best].unit)
            best = i;
    }
    return best;
}

static void remove_at(struct eps_job *jobs, size_t *n, size_t i)
{
    memmove(jobs + i, jobs + i + 1, (*n - i - 1) * sizeof *jobs);
    --*n;
}

/* This thread's, to come. */
static void use_threads(unsigned n)
{
    (void)n; /* where there is no OpenMP */
#ifdef _OPENMP
    omp_set_num_threads((int)n);
#endif
}

static void *run(void *arg)
{
    struct eps_updater *up = arg;

    use_threads(up->n_threads);
    eps_team_start();
    pthread_mutex_lock(&up->mutex);
    up->started = true;
    pthread_cond_signal(&up->wake);
    for (;;) {
        while (!up->n_ready && !up->stopping)
            pthread_cond_wait(&up->wake, &up->mutex);
        if (!up->n_ready)
            break;
        size_t i = find_next(up);
        struct eps_job job = up->ready[i];
        remove_at(up->ready, &up->n_ready, i);
        use_threads(up->n_threads);
        pthread_mutex_unlock(&up->mutex);
        const uint64_t since = trace_begin(job.trace);
        eps_job_run(&job, up->store);
        if (job.trace)
            record(&job, up->store->model, since);
        pthread_mutex_lock(&up->mutex);
        up->done[up->n_done++] = job;
        up->on_done(up->context);
    }
    pthread_mutex_unlock(&up->mutex);
    return NULL;
}

int eps_updater_start(struct eps_updater **out, struct eps_store *store, unsigned n_threads,
                      void (*on_done)(void *context), void *context)
{
    struct eps_updater *up = calloc(1, sizeof *up);
    int rc;

    *out = NULL;
    if (!up)
        return -ENOMEM;
    up->store = store;
    up->n_threads = n_threads;
    up->on_done = on_done;
    up->context = context;
    pthread_mutex_init(&up->mutex, NULL);
    pthread_cond_init(&up->wake, NULL);
    rc = eps_updater_reserve(up, 4);
    if (!rc)
        rc = -pthread_create(&up->thread, NULL, run, up);
    if (rc) {
        free(up->ready);
        free(up->done);
        free(up);
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

void eps_updater_set_threads(struct eps_updater *up, unsigned n_threads)
{
    assert(n_threads > 0);
    pthread_mutex_lock(&up->mutex);
    up->n_threads = n_threads;
    pthread_mutex_unlock(&up->mutex);
}

int eps_updater_reserve(struct eps_updater *up, size_t n)
{
    int rc = 0;

    pthread_mutex_lock(&up->mutex);
    if (n > up->capacity) {
        struct eps_job *ready = realloc(up->ready, n * sizeof *ready);
        if (ready)
            up->ready = ready;
        struct eps_job *done = realloc(up->done, n * sizeof *done);
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

void eps_updater_submit(struct eps_updater *up, const struct eps_job *job)
{
    pthread_mutex_lock(&up->mutex);
    assert(up->pending < up->capacity);
    up->ready[up->n_ready++] = *job;
    up->pending++;
    pthread_cond_signal(&up->wake);
    pthread_mutex_unlock(&up->mutex);
}

bool eps_updater_take(struct eps_updater *up, struct eps_job *job)
{
    bool any;

    pthread_mutex_lock(&up->mutex);
    any = up->n_done > 0;
    if (any) {
        *job = up->done[0];
        remove_at(up->done, &up->n_done, 0);
        up->pending--;
        up->n_taken++;
    }
    pthread_mutex_unlock(&up->mutex);
    return any;
}

size_t eps_updater_pending(const struct eps_updater *up)
{
    return up->pending;
}

uint64_t eps_updater_taken(const struct eps_updater *up)
{
    return up->n_taken;
}

void eps_updater_stop(struct eps_updater *up)
{
    if (!up)
        return;
    pthread_mutex_lock(&up->mutex);
    up->stopping = true;
    pthread_cond_signal(&up->wake);
    pthread_mutex_unlock(&up->mutex);
    pthread_join(up->thread, NULL);
    pthread_mutex_destroy(&up->mutex);
    pthread_cond_destroy(&up->wake);
    free(up->ready);
    free(up->done);
    free(up);
}
