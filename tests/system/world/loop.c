/* libuv, as far as the product calls it. Which of several due events comes first is drawn. */
#include "tests/system/world/loop.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>

enum { MOST_LOOPS = 512, MOST_DUE = 64 };

struct loop {
    uv_loop_t *key;
    struct process *process;
    struct source *sources;
    uint64_t now_ms;
    bool stale; /* its process is dead */
    bool stopped;
};

static struct loop *loops[MOST_LOOPS];
static unsigned n_loops;

static struct loop *find_loop(const uv_loop_t *key)
{
    for (unsigned i = n_loops; i-- > 0;)
        if (loops[i]->key == key && !loops[i]->stale)
            return loops[i];
    abort();
}

static struct source *find(const struct loop *loop, const void *key)
{
    struct source *s = loop->sources;

    while (s && s->key != key)
        s = s->next;
    return s;
}

static struct source *of_handle(const void *handle)
{
    return find(find_loop(((const uv_handle_t *)handle)->loop), handle);
}

struct source *loop_add(uv_loop_t *key, void *owner, uint64_t (*due)(void *arg), void (*fire)(void *arg), void *arg)
{
    struct loop *loop = find_loop(key);
    struct source *s = world_alloc(sizeof *s);

    assert(s && !find(loop, owner));
    s->key = owner;
    s->due = due;
    s->fire = fire;
    s->arg = arg ? arg : s;
    s->at = NEVER;
    s->active = true;
    s->next = loop->sources;
    return loop->sources = s;
}

void loop_close(uv_loop_t *key, void *owner, void (*on_closed)(void *key))
{
    struct source *s = find(find_loop(key), owner);

    assert(s && !s->closing);
    s->closing = s->active = true;
    s->on_closed = on_closed;
}

static void drop(struct loop *loop, struct source *s)
{
    struct source **at = &loop->sources;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
}

void loop_process_died(struct process *p)
{
    for (unsigned i = 0; i < n_loops; i++)
        if (loops[i]->process == p)
            loops[i]->stale = true;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static uint64_t due_of(const struct source *s)
{
    return s->closing ? 0 : s->due(s->arg);
}

static uint64_t loop_due(void *arg)
{
    const struct loop *loop = arg;
    uint64_t next = NEVER;

    for (const struct source *s = loop->sources; s; s = s->next) {
        const uint64_t due = due_of(s);
        if (due < next)
            next = due;
    }
    return next;
}

static bool is_alive(const struct loop *loop)
{
    for (const struct source *s = loop->sources; s; s = s->next)
        if (s->active)
            return true;
    return false;
}

static void fire_one(struct loop *loop)
{
    struct source *due[MOST_DUE], *s;
    unsigned n = 0;

    for (s = loop->sources; s; s = s->next)
        if (due_of(s) <= world_now() && n < MOST_DUE)
            due[n++] = s;
    if (!n)
        return;
    s = due[n > 1 ? chance(n) : 0];
    if (!s->closing) {
        s->fire(s->arg);
        return;
    }
    void (*on_closed)(void *key) = s->on_closed;
    void *key = s->key;
    drop(loop, s);
    if (on_closed)
        on_closed(key);
}

int uv_run(uv_loop_t *key, uv_run_mode mode)
{
    struct loop *loop = find_loop(key);

    loop->stopped = false;
    while (is_alive(loop) && !loop->stopped) {
        if (mode != UV_RUN_NOWAIT)
            fiber_wait(loop_due, loop);
        loop->now_ms = world_now() / MS;
        fire_one(loop);
        if (mode != UV_RUN_DEFAULT)
            break;
    }
    return is_alive(loop);
}

void uv_stop(uv_loop_t *key)
{
    find_loop(key)->stopped = true;
}

int uv_loop_init(uv_loop_t *key)
{
    struct loop *loop = world_alloc(sizeof *loop);

    assert(loop && n_loops < MOST_LOOPS);
    loop->key = key;
    loop->process = process_running;
    loop->now_ms = world_now() / MS;
    loops[n_loops++] = loop;
    return 0;
}

int uv_loop_close(uv_loop_t *key)
{
    struct loop *loop = find_loop(key);

    if (loop->sources)
        return UV_EBUSY;
    loop->stale = true;
    return 0;
}

uint64_t uv_now(const uv_loop_t *key)
{
    return find_loop(key)->now_ms;
}

void uv_update_time(uv_loop_t *key)
{
    find_loop(key)->now_ms = world_now() / MS;
}

uint64_t uv_hrtime(void)
{
    return world_now();
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

int uv_is_closing(const uv_handle_t *handle)
{
    const struct source *s = of_handle(handle);

    return !s || s->closing;
}

void uv_close(uv_handle_t *handle, uv_close_cb on_closed)
{
    loop_close(handle->loop, handle, (void (*)(void *))(uintptr_t)on_closed);
}

void uv_walk(uv_loop_t *key, uv_walk_cb on_handle, void *arg)
{
    const struct loop *loop = find_loop(key);

    for (struct source *s = loop->sources; s; s = s->next)
        if (s->is_handle)
            on_handle(s->key, arg);
}

static uint64_t due_timer(void *arg)
{
    const struct source *s = arg;

    return s->started ? s->at_ms * MS : NEVER;
}

static void fire_timer(void *arg)
{
    struct source *s = arg;

    if (s->repeat_ms)
        s->at_ms = find_loop(((uv_timer_t *)s->key)->loop)->now_ms + s->repeat_ms;
    else
        s->started = s->active = false;
    s->on_timer(s->key);
}

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer)
{
    timer->loop = loop;
    struct source *s = loop_add(loop, timer, due_timer, fire_timer, NULL);
    s->active = false;
    s->is_handle = true;
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb on_timer, uint64_t timeout, uint64_t repeat)
{
    struct source *s = of_handle(timer);

    if (!s || s->closing)
        return UV_EINVAL;
    s->on_timer = on_timer;
    s->at_ms = find_loop(timer->loop)->now_ms + timeout;
    s->repeat_ms = repeat;
    s->started = s->active = true;
    return 0;
}

int uv_timer_stop(uv_timer_t *timer)
{
    struct source *s = of_handle(timer);

    if (s && !s->closing)
        s->started = s->active = false;
    return 0;
}

static uint64_t due_pending(void *arg)
{
    return ((struct source *)arg)->at;
}

static void fire_async(void *arg)
{
    struct source *s = arg;

    s->at = NEVER;
    s->on_async(s->key);
}

int uv_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb on_async)
{
    async->loop = loop;
    struct source *s = loop_add(loop, async, due_pending, fire_async, NULL);
    s->on_async = on_async;
    s->is_handle = true;
    return 0;
}

int uv_async_send(uv_async_t *async)
{
    struct source *s = of_handle(async);

    if (s && s->at == NEVER)
        s->at = world_now() + chance_time(0, 300 * US);
    return 0;
}

static void fire_signal(void *arg)
{
    struct source *s = arg;

    s->at = NEVER;
    s->on_signal(s->key, s->number);
}

int uv_signal_init(uv_loop_t *loop, uv_signal_t *handle)
{
    handle->loop = loop;
    struct source *s = loop_add(loop, handle, due_pending, fire_signal, NULL);
    s->active = false;
    s->is_handle = true;
    return 0;
}

int uv_signal_start(uv_signal_t *handle, uv_signal_cb on_signal, int number)
{
    struct source *s = of_handle(handle);

    s->on_signal = on_signal;
    s->number = number;
    s->active = true;
    return 0;
}

/* Before the process has a handler, the signal is held and lost here: the world sends it again. */
void loop_signal(struct process *p, int number)
{
    for (unsigned i = 0; i < n_loops; i++)
        for (struct source *s = loops[i]->process == p && !loops[i]->stale ? loops[i]->sources : NULL; s; s = s->next)
            if (s->on_signal && s->number == number && !s->closing && s->at == NEVER)
                s->at = world_now();
}

/* ---- work ------------------------------------------------------------------------------------------------------- */

struct work {
    uv_work_t *work;
    uv_work_cb do_work;
    struct source *source;
};

static void work_body(void *arg)
{
    struct work *w = arg;

    fiber_sleep(chance_time(1 * US, 5 * MS));
    w->do_work(w->work);
    w->source->at = world_now() + chance_time(0, 300 * US);
    free(w);
}

static void fire_work(void *arg)
{
    struct source *s = arg;
    uv_work_t *work = s->key;
    uv_after_work_cb on_worked = s->on_worked;

    drop(find_loop(work->loop), s);
    on_worked(work, 0);
}

int uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb do_work, uv_after_work_cb on_worked)
{
    struct work *w = world_alloc(sizeof *w);

    assert(w);
    work->loop = loop;
    *w = (struct work){work, do_work, loop_add(loop, work, due_pending, fire_work, NULL)};
    w->source->on_worked = on_worked;
    fiber_start(work_body, w, true);
    return 0;
}
