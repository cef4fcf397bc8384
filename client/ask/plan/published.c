/* eps_plan_published: a plan takes some 30 ms and depends on no other, so all cores make plans, and the caller's thread
 * alone hands them out. That is done in the order of the rows, whichever is ready first: what a user sees is the same
 * each time.
 *
 * Most refusals are of options, as a --device that does not exist: then every row has the same one. So rows that are
 * refused wait until another row has a plan; if none has, the first refusal is the call's. */
#include "client/ask/plan/form.h"
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "proto/base/error.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_THREADS = 8 };

struct published_slot {
    struct eps_plan_row row; /* points to the others */
    struct eps_train_options options;
    struct eps_plan plan;
    struct eps_error error;
    int rc;
    bool done;
};

struct published {
    struct published_slot *slots; /* (n) in the order of the rows */
    size_t n, next;               /* the next that no thread has taken */
    pthread_mutex_t mutex;        /* over next, and each slot's done */
    pthread_cond_t is_done;
};

/* Takes the next slot and makes its plan. False: there are no more. */
static bool published_make(struct published *p)
{
    pthread_mutex_lock(&p->mutex);
    struct published_slot *slot = p->next < p->n ? &p->slots[p->next++] : NULL;
    pthread_mutex_unlock(&p->mutex);
    if (!slot)
        return false;
    slot->rc = client_plan_form_brief(&slot->plan, &slot->options, &slot->error);
    slot->row.plan = slot->rc ? NULL : &slot->plan;
    slot->row.refusal = slot->rc ? slot->error.text : NULL;
    pthread_mutex_lock(&p->mutex);
    slot->done = true;
    pthread_cond_signal(&p->is_done);
    pthread_mutex_unlock(&p->mutex);
    return true;
}

static void *published_work(void *published)
{
    while (published_make(published))
        ;
    return NULL;
}

/* A thread that cannot be had is not missed: the caller's makes plans, too, while it waits. */
static void published_await(struct published *p, const struct published_slot *slot)
{
    bool done, idle;

    do {
        pthread_mutex_lock(&p->mutex);
        idle = p->next == p->n;
        while (idle && !slot->done)
            pthread_cond_wait(&p->is_done, &p->mutex);
        done = slot->done;
        pthread_mutex_unlock(&p->mutex);
        if (!done)
            published_make(p);
    } while (!done);
}

static int published_check(const struct eps_train_options *o, struct error *err)
{
    const char *option = o->model          ? "--model"
                         : o->base_model   ? "--base-model"
                         : o->lora         ? "--lora"
                         : o->base         ? "--base"
                         : o->freeze       ? "--freeze"
                         : o->freeze_until ? "--freeze-until"
                                           : NULL;

    if (!option)
        return 0;
    return error_set(
        err, -EDOM,
        "%s is for one model: name it with --model; without it each model is planned whole, with adapters, "
        "and with adapters on a base in nf4",
        option);
}

static void published_ask(struct published_slot *slot, const struct eps_train_options *options, size_t index)
{
    static const char adapters[] = "rank=16";

    slot->row = (struct eps_plan_row){.published = eps_published(index / EPS_WAYS),
                                      .way = (enum eps_way)(index % EPS_WAYS),
                                      .options = &slot->options};
    slot->options = *options;
    slot->options.model = slot->row.published->name;
    if (!options->task)
        slot->options.task = slot->row.published->task;
    if (slot->row.way != EPS_WAY_WHOLE)
        slot->options.lora = adapters;
    if (slot->row.way == EPS_WAY_ADAPTERS_ON_NF4)
        slot->options.base = EPS_BASE_NF4;
}

static int published_init(struct published *p, const struct eps_train_options *options, struct error *err)
{
    *p = (struct published){.mutex = PTHREAD_MUTEX_INITIALIZER, .is_done = PTHREAD_COND_INITIALIZER};
    while (eps_published(p->n / EPS_WAYS))
        p->n += EPS_WAYS;
    p->slots = calloc(p->n, sizeof *p->slots);
    if (!p->slots)
        return error_memory(err);
    for (size_t i = 0; i < p->n; i++)
        published_ask(&p->slots[i], options, i);
    return 0;
}

/* Hands out all rows; from the first that has a plan on, and then those before it, too. */
static int published_hand_out(struct published *p, void (*on_row)(void *user, const struct eps_plan_row *row),
                              void *user, struct error *err)
{
    size_t first = 0;
    bool any = false;

    for (size_t i = 0; i < p->n; i++) {
        published_await(p, &p->slots[i]);
        any |= p->slots[i].rc == 0;
        while (any && first <= i)
            on_row(user, &p->slots[first++].row);
    }
    return any ? 0 : error_set(err, p->slots[0].rc, "%s", p->slots[0].error.text);
}

int eps_plan_published(const struct eps_train_options *options,
                       void (*on_row)(void *user, const struct eps_plan_row *row), void *user, struct eps_error *error)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int n_most = n_cores < MOST_THREADS ? (int)n_cores - 1 : MOST_THREADS - 1; /* this one is another */
    pthread_t threads[MOST_THREADS];
    int n_threads = 0;
    struct published p = {.slots = NULL};
    struct error err = {""};
    int rc = published_check(options, &err);

    if (!rc)
        rc = published_init(&p, options, &err);
    json_object_seed(0); /* jansson does it at the first object, and then no two threads may make one */
    while (!rc && n_threads < n_most && pthread_create(&threads[n_threads], NULL, published_work, &p) == 0)
        n_threads++;
    if (!rc)
        rc = published_hand_out(&p, on_row, user, &err);
    while (n_threads > 0)
        pthread_join(threads[--n_threads], NULL);
    free(p.slots);
    return client_report(error, &err, rc);
}
