#include "tests/system/world/fiber.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { STACK_BYTES = 1 << 20, MOST_READY = 256 };

struct fiber {
    struct fiber *next;
    struct process *process;
    ucontext_t context;
    char *stack;
    void (*body)(void *arg);
    void *arg;
    uint64_t (*due)(void *arg); /* NULL: it is done */
    void *due_arg;
    bool is_main, of_pool;
    uint64_t born_at;
    const void *condition; /* that it waits for */
    uint64_t woken_at;
};

struct process *process_all, *process_running;
bool world_traces;

static struct fiber *fibers, *running;
static ucontext_t scheduler;
static uint64_t now = SECOND, random_state;
static int last_pid = 100;

/* ---- chance ----------------------------------------------------------------------------------------------------- */

void chance_seed(uint64_t seed)
{
    random_state = seed;
}

/* SplitMix64. */
uint64_t chance(uint64_t n)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (z ^ z >> 31) % n;
}

/* ---- clock ------------------------------------------------------------------------------------------------------ */

uint64_t world_now(void)
{
    return now;
}

void world_jump(uint64_t ns)
{
    now += ns;
}

void world_say(const char *format, ...)
{
    va_list args;

    if (!world_traces)
        return;
    printf("%12.6f %-10s ", (double)now / 1e9, process_running ? process_running->name : "-");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

/* ---- fibers ----------------------------------------------------------------------------------------------------- */

static uint64_t due_now(void *arg)
{
    (void)arg;
    return 0;
}

static uint64_t due_at(void *arg)
{
    return *(uint64_t *)arg;
}

static void leave_fiber(void)
{
#if SANITIZED
    void *fake;
    __sanitizer_start_switch_fiber(running->due ? &fake : NULL, scheduler.uc_stack.ss_sp, scheduler.uc_stack.ss_size);
    swapcontext(&running->context, &scheduler);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
    swapcontext(&running->context, &scheduler);
#endif
}

static void enter(void)
{
#if SANITIZED
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &size);
    scheduler.uc_stack.ss_sp = (void *)(uintptr_t)bottom;
    scheduler.uc_stack.ss_size = size;
#endif
    running->body(running->arg);
    running->due = NULL;
    leave_fiber();
    abort();
}

static struct fiber *fiber_new(struct process *p, void (*body)(void *arg), void *arg)
{
    struct fiber *f = world_alloc(sizeof *f);

    assert(f);
    f->process = p;
    f->body = body;
    f->arg = arg;
    f->due = due_now;
    f->born_at = now;
    f->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(f->stack != MAP_FAILED);
    mprotect(f->stack, 4096, PROT_NONE);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, enter, 0);
    f->next = fibers;
    return fibers = f;
}

void fiber_start(void (*body)(void *arg), void *arg, bool of_pool)
{
    fiber_new(process_running, body, arg)->of_pool = of_pool;
}

bool fiber_is_main(void)
{
    return running && running->is_main;
}

void fiber_wait(uint64_t (*due)(void *arg), void *arg)
{
    running->due = due;
    running->due_arg = arg;
    leave_fiber();
}

void fiber_sleep(uint64_t ns)
{
    uint64_t until = now + ns;

    fiber_wait(due_at, &until);
}

void fiber_pause(void)
{
    if (running && !running->is_main && chance(4) == 0)
        fiber_sleep(chance(3)
                        ? chance_time(1 * US, 300 * US)
                        : chance_time(300 * US, running->process->pause_ns ? running->process->pause_ns : 20 * MS));
}

/* Threads that write files go on in a process whose others hang for good, and so do those that it starts then. */
static bool hangs(const struct fiber *f)
{
    const struct process *p = f->process;

    return !f->is_main && !(p->hung_until == NEVER && (f->of_pool || (p->hung_at && f->born_at > p->hung_at)));
}

static uint64_t due_of(const struct fiber *f)
{
    const struct process *p = f->process;
    uint64_t due;

    if (!f->due || !p->alive)
        return NEVER;
    due = f->due(f->due_arg);
    if (due == NEVER)
        return NEVER;
    if (due < p->stopped_until)
        due = p->stopped_until;
    if (hangs(f) && due < p->hung_until)
        due = p->hung_until;
    return due;
}

static void run(struct fiber *f)
{
    running = f;
    process_running = f->process;
#if SANITIZED
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
    swapcontext(&scheduler, &f->context);
#if SANITIZED
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
    running = NULL;
    process_running = NULL;
}

bool fiber_turn(uint64_t until)
{
    struct fiber *ready[MOST_READY];
    unsigned n = 0;
    uint64_t next = NEVER;

    for (struct fiber *f = fibers; f; f = f->next) {
        uint64_t due = due_of(f);
        if (due == NEVER)
            continue;
        if (due < now)
            due = now;
        if (due < next)
            next = due, n = 0;
        if (due == next && n < MOST_READY)
            ready[n++] = f;
    }
    if (next > until) {
        now = until;
        return false;
    }
    now = next;
    run(ready[n > 1 ? chance(n) : 0]);
    return true;
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

struct start {
    int (*body)(void *arg);
    void *arg;
};

static void main_thread(void *arg)
{
    struct start *start = arg;

    process_kill(process_running, start->body(start->arg));
    fiber_wait(due_now, NULL); /* for good */
}

struct process *process_start(enum process_kind kind, const char *name, int (*body)(void *arg), void *arg)
{
    struct process *p = world_alloc(sizeof *p);
    struct start *start = world_alloc(sizeof *start);

    assert(p && start);
    *start = (struct start){body, arg};
    p->kind = kind;
    p->pid = ++last_pid;
    snprintf(p->name, sizeof p->name, "%s/%d", name, p->pid);
    p->alive = true;
    p->started_at = world_now();
    p->next = process_all;
    process_all = p;
    fiber_new(p, main_thread, start)->is_main = true;
    world_say("%s starts", p->name);
    return p;
}

void process_kill(struct process *p, int status)
{
    if (!p->alive)
        return;
    world_say("%s ends: %d", p->name, status);
    p->alive = false;
    p->status = status;
    wire_process_died(p);
    hosts_process_died(p);
    loop_process_died(p);
    for (struct fiber **at = &fibers, *f; (f = *at);) {
        if (f->process == p && f != running) {
            *at = f->next;
            munmap(f->stack, STACK_BYTES);
            free(f);
        } else {
            at = &f->next;
        }
    }
}

struct process *process_by_pid(long pid)
{
    struct process *p = process_all;

    while (p && p->pid != pid)
        p = p->next;
    return p;
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

/* Locks need no state: a fiber is interrupted at none but these calls, and no code of the product waits with a lock in
 * its hands except for a condition. */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_signal(pthread_cond_t *condition);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);

struct thread {
    void *(*body)(void *);
    void *arg;
    bool done;
};

static void thread_body(void *arg)
{
    struct thread *t = arg;

    t->body(t->arg);
    t->done = true;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg)
{
    struct thread *t = running ? world_alloc(sizeof *t) : NULL;

    if (!running)
        return __real_pthread_create(thread, attr, body, arg);
    assert(t);
    *t = (struct thread){body, arg, false};
    *thread = (pthread_t)(uintptr_t)t;
    fiber_start(thread_body, t, false);
    return 0;
}

static uint64_t due_joined(void *arg)
{
    return ((struct thread *)arg)->done ? 0 : NEVER;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    struct thread *t = (struct thread *)(uintptr_t)thread;

    (void)result;
    if (!t->done)
        fiber_wait(due_joined, t);
    return 0;
}

int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    (void)thread, (void)name;
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    (void)mutex;
    fiber_pause();
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    (void)mutex;
    fiber_pause();
    return 0;
}

static uint64_t due_woken(void *arg)
{
    return ((struct fiber *)arg)->woken_at;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    (void)mutex;
    running->condition = condition;
    running->woken_at = NEVER;
    fiber_wait(due_woken, running);
    return 0;
}

/* Whoever waits for a time does what nobody waits for: the scrub of memory, whose every turn would be an event. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    (void)until;
    return __wrap_pthread_cond_wait(condition, mutex);
}

/* Wakes all: a condition may be woken for nothing. */
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    for (struct fiber *f = fibers; f; f = f->next)
        if (f->condition == condition && f->process == process_running) {
            f->condition = NULL;
            f->woken_at = now + chance_time(1 * US, 200 * US);
        }
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition)
{
    return __wrap_pthread_cond_broadcast(condition);
}
