/* The optimizer thread: what it takes first, what it answers, and how it ends. A call that blocks keeps it busy while
 * jobs queue. */
#include "eps/store/updater.h"

#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 200 };

static const struct hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};

struct world {
    struct store_fixture f;
    struct updater *updater;
    float *slice; /* of any unit */
    sem_t done;   /* posted once for each job done */
    sem_t entered, go;
    atomic_uint n_calls;
};

static void on_done(void *context)
{
    sem_post(&((struct world *)context)->done);
}

static void open_world(struct world *w)
{
    memset(w, 0, sizeof *w);
    store_fixture_open(&w->f, store_fixture_small, false, 1);
    ck_assert_uint_ge(w->f.model.n_units, 4);
    store_draw(&w->f.store, 3);
    w->slice = plain_zeros(MODEL_SLICE, sizeof *w->slice);
    for (size_t i = 0; i < MODEL_SLICE; i++)
        w->slice[i] = 0.01f * (float)(i % 7) - 0.02f;
    sem_init(&w->done, 0, 0);
    sem_init(&w->entered, 0, 0);
    sem_init(&w->go, 0, 0);
    ck_assert_int_eq(updater_start(&w->updater, &w->f.store, 1, on_done, w), 0);
    ck_assert_int_eq(updater_reserve(w->updater, MANY), 0);
}

static void close_world(struct world *w)
{
    updater_stop(w->updater);
    free(w->slice);
    store_fixture_close(&w->f);
}

static int block(void *context)
{
    struct world *w = context;

    sem_post(&w->entered);
    sem_wait(&w->go);
    return 0;
}

static int count(void *context)
{
    struct world *w = context;

    sched_yield();
    atomic_fetch_add(&w->n_calls, 1);
    return -EIO;
}

static void submit_call(struct world *w, int (*call)(void *context))
{
    const struct updater_task job = {.kind = UPDATER_CALL, .call = call, .context = w};

    updater_submit(w->updater, &job);
}

/* Returns when the thread is inside of block(). */
static void make_busy(struct world *w)
{
    submit_call(w, block);
    sem_wait(&w->entered);
}

TEST(a_call_goes_first_then_the_lowest_unit_and_of_one_unit_the_oldest)
{
    /* Two folds of one unit are told apart by `first`. */
    static const struct {
        uint32_t unit;
        bool first;
    } submitted[] = {{3, true}, {1, true}, {2, true}, {1, false}, {0, true}, {3, false}},
      taken[] = {{0, true}, {1, true}, {1, false}, {2, true}, {3, true}, {3, false}};
    enum { N = COUNT(taken) };
    struct world w;
    struct updater_task job;

    open_world(&w);
    make_busy(&w);
    for (int i = 0; i < N; i++) {
        job = (struct updater_task){.kind = UPDATER_FOLD,
                                    .unit = submitted[i].unit,
                                    .contribution = {w.slice, NUMBER_FP32, submitted[i].first, 0},
                                    .how = STORE_FOLD_MOMENTS,
                                    .hyper = hyper};
        updater_submit(w.updater, &job);
    }
    submit_call(&w, count);
    ck_assert_uint_eq(updater_pending(w.updater), N + 2);
    ck_assert(!updater_take(w.updater, &job)); /* the thread is busy: nothing is done yet */
    sem_post(&w.go);
    for (int i = 0; i < N + 2; i++)
        sem_wait(&w.done);

    ck_assert(updater_take(w.updater, &job));
    ck_assert(job.kind == UPDATER_CALL && job.call == block && job.result == 0);
    ck_assert(updater_take(w.updater, &job));
    ck_assert(job.kind == UPDATER_CALL && job.call == count && job.result == -EIO);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert(updater_take(w.updater, &job));
        ck_assert_int_eq(job.kind, UPDATER_FOLD);
        ck_assert_uint_eq(job.unit, taken[i].unit);
        ck_assert_int_eq(job.contribution.first, taken[i].first);
        ck_assert_int_eq(job.result, 0);
        ck_assert_uint_eq(updater_pending(w.updater), N - 1 - i);
    }
    ck_assert(!updater_take(w.updater, &job));
    close_world(&w);
}

/* What a step's time is compared with: loading and the like are no part of it. */
TEST(folds_are_the_optimizers_work_and_calls_are_not)
{
    struct world w;

    open_world(&w);
    submit_call(&w, count);
    sem_wait(&w.done);
    ck_assert_uint_eq(updater_busy_ns(w.updater), 0);
    updater_submit(w.updater, &(struct updater_task){.kind = UPDATER_FOLD,
                                                     .contribution = {w.slice, NUMBER_FP32, true, 0},
                                                     .how = STORE_FOLD_MOMENTS,
                                                     .hyper = hyper});
    sem_wait(&w.done);
    ck_assert_uint_gt(updater_busy_ns(w.updater), 0);
    ck_assert_uint_eq(updater_busy_ns(NULL), 0);
    close_world(&w);
}

/* The thread updates aside; whoever answers pulls sees new weights when it has taken the task back, not before. */
TEST(with_replay_an_update_is_current_once_it_is_taken)
{
    struct updater_task job = {.kind = UPDATER_UPDATE, .unit = 2, .how = STORE_FOLD_MOMENTS, .hyper = hyper};
    const struct store_options options = {.train = true, .replay = true};
    struct world w = {0};

    store_fixture_open_as(&w.f, store_fixture_small, false, &options);
    sem_init(&w.done, 0, 0);
    ck_assert_int_eq(updater_start(&w.updater, &w.f.store, 1, on_done, &w), 0);
    for (uint32_t buffer = 0; buffer < 2; buffer++) {
        updater_submit(w.updater, &job);
        sem_wait(&w.done);
        ck_assert_uint_eq(store_buffer(&w.f.store, 2, false), buffer);
        ck_assert(updater_take(w.updater, &job));
        ck_assert_uint_eq(store_buffer(&w.f.store, 2, false), !buffer);
        ck_assert_uint_eq(store_buffer(&w.f.store, 2, true), buffer);
        ck_assert_uint_eq(store_buffer(&w.f.store, 1, false), 0);
    }
    close_world(&w);
}

/* Ones of two parts, from both visits: each element's gradient is 4. */
TEST(the_last_fold_of_a_tied_unit_joins_its_visits_sums)
{
    const struct store_options options = {.train = true, .fenced = true, .n_parts = 2};
    struct store_fixture f;
    double squares = 0;

    store_fixture_open_as(&f, store_fixture_small, true, &options);
    const uint64_t n = f.model.units[0].n;
    float *g = plain_zeros(n, sizeof *g);
    for (uint64_t i = 0; i < n; i++)
        g[i] = 1;
    ck_assert_uint_eq(f.model.units[0].n_visits * f.model.units[0].n_slices, 2);
    for (uint32_t i = 0; i < 4; i++) {
        const struct store_given given = store_fixture_given(&f, 0, i, 2);
        struct updater_task job = {.kind = UPDATER_FOLD,
                                   .contribution = {g, NUMBER_FP32, given.first, given.part, given.visit},
                                   .squares = i == 3 ? &squares : NULL,
                                   .how = STORE_FOLD_HOLD,
                                   .hyper = hyper};
        updater_run_task(&job, &f.store);
        ck_assert_int_eq(job.result, 0);
    }
    ck_assert_double_eq(squares, 16.0 * (double)n);
    free(g);
    store_fixture_close(&f);
}

/* Each contribution is finite, their sum is not: the step can still be skipped. */
TEST(a_held_sum_that_overflows_gives_edom)
{
    const struct store_options options = {.train = true, .fenced = true};
    struct store_fixture f;
    double squares = 0;

    store_fixture_open_as(&f, store_fixture_small, false, &options);
    const uint64_t n = f.model.units[1].n;
    float *g = plain_zeros(n, sizeof *g);
    g[n / 2] = 3e38f;
    struct updater_task job = {.kind = UPDATER_FOLD,
                               .unit = 1,
                               .contribution = {g, NUMBER_FP32, true, 0},
                               .how = STORE_FOLD_HOLD,
                               .hyper = hyper};
    updater_run_task(&job, &f.store);
    ck_assert_int_eq(job.result, 0);
    job.contribution.first = false;
    job.squares = &squares;
    updater_run_task(&job, &f.store);
    ck_assert_int_eq(job.result, -EDOM);
    job.contribution.first = true; /* the next step's */
    updater_run_task(&job, &f.store);
    ck_assert_int_eq(job.result, 0);
    ck_assert_double_eq(squares, (double)3e38f * (double)3e38f);
    free(g);
    store_fixture_close(&f);
}

TEST(stop_finishes_what_is_queued)
{
    struct world w;
    int n_done = 0;

    open_world(&w);
    make_busy(&w);
    for (int i = 1; i < MANY; i++)
        submit_call(&w, count);
    sem_post(&w.go);
    updater_stop(w.updater);
    w.updater = NULL; /* which is fine to stop as well */
    ck_assert_uint_eq(atomic_load(&w.n_calls), MANY - 1);
    while (sem_trywait(&w.done) == 0)
        n_done++;
    ck_assert_int_eq(n_done, MANY);
    close_world(&w);
}

#ifdef _OPENMP
static int count_team(void *context)
{
    int n = 0;

    (void)context;
#pragma omp parallel reduction(+ : n)
    n++;
    return n;
}

/* Between jobs, and as often as it likes. */
TEST(the_team_is_as_large_as_was_said_last)
{
    static const int sizes[] = {1, 3, 1, 2};
    struct updater_task job;
    struct world w;

    open_world(&w);
    for (int i = 0; i < COUNT(sizes); i++) {
        if (i > 0)
            updater_set_threads(w.updater, (unsigned)sizes[i]);
        submit_call(&w, count_team);
        sem_wait(&w.done);
        ck_assert(updater_take(w.updater, &job));
        ck_assert_int_eq(job.result, sizes[i]);
    }
    close_world(&w);
}
#endif

/* Done jobs stand in the same room until they are taken. */
TEST_SIGNAL(more_jobs_than_room_was_made_for_is_a_mistake, SIGABRT)
{
    struct world w;

    open_world(&w);
    for (int i = 0; i < MANY; i++) {
        submit_call(&w, count);
        sem_wait(&w.done);
    }
    submit_call(&w, count);
}
