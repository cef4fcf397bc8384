/* The system calls of simulated processes, by the linker's --wrap. */
#include "tests/system/world/fiber.h"

#include "proto/base/error.h"
#include "proto/base/process.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct host host;

/* ---- the process itself ----------------------------------------------------------------------------------------- */

void __real__exit(int status);
void __wrap__exit(int status);
pid_t __real_getpid(void);
pid_t __wrap_getpid(void);
long __real_sysconf(int name);
long __wrap_sysconf(int name);
int __real_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout);
int __wrap_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout);

static uint64_t never(void *arg)
{
    (void)arg;
    return NEVER;
}

void __wrap__exit(int status)
{
    if (!process_running)
        __real__exit(status);
    process_kill(process_running, status);
    fiber_wait(never, NULL);
    abort();
}

pid_t __wrap_getpid(void)
{
    return process_running ? process_running->pid : __real_getpid();
}

/* One core, so that no OpenMP team is made. */
long __wrap_sysconf(int name)
{
    return name == _SC_NPROCESSORS_ONLN ? 1 : __real_sysconf(name);
}

int __wrap_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout)
{
    if (!process_running)
        return __real_sigtimedwait(set, info, timeout);
    fiber_sleep((uint64_t)timeout->tv_sec * SECOND + (uint64_t)timeout->tv_nsec);
    errno = EAGAIN;
    return -1;
}

/* ---- proto/base/process.h, where it asks the system about the process -------------------------------------------- */

void __wrap_process_hold_signals(void);
void __wrap_process_take_signals(void);
void __wrap_process_bound_spinning(char **argv);
int __wrap_process_restart(char **argv);
int __wrap_process_check_threads(unsigned n, struct error *err);
bool __wrap_process_check_stack(const char *program);
uint64_t __wrap_process_birth(long pid);
uint64_t __wrap_process_available_bytes(void);

void __wrap_process_hold_signals(void)
{
}

void __wrap_process_take_signals(void)
{
}

/* A worker whose daemon has died: the operator starts the next image. */
int __wrap_process_restart(char **argv)
{
    (void)argv;
    unsetenv("EPS_WORKER_SUCCESSOR_OF");
    __wrap__exit(1);
    return 0;
}

void __wrap_process_bound_spinning(char **argv)
{
    (void)argv;
}

int __wrap_process_check_threads(unsigned n, struct error *err)
{
    (void)n, (void)err;
    return 0;
}

bool __wrap_process_check_stack(const char *program)
{
    (void)program;
    return true;
}

/* No process forks: the end of a socket tells. */
uint64_t __wrap_process_birth(long pid)
{
    (void)pid;
    return 0;
}

uint64_t __wrap_process_available_bytes(void)
{
    return UINT64_C(4) << 30;
}

/* ---- the log ---------------------------------------------------------------------------------------------------- */

#define LOG(name)                                                                                                      \
    void __wrap_##name(const char *format, ...) __attribute__((format(printf, 1, 2)));                                 \
    void __wrap_##name(const char *format, ...)                                                                        \
    {                                                                                                                  \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        say_log(format, args);                                                                                         \
        va_end(args);                                                                                                  \
    }
void __wrap_log_name(const char *name);

void __wrap_log_name(const char *name)
{
    (void)name;
}

/* The directory's name ends in six letters of the system's choice; the trace of a seed is the same each time. */
static void hide_letters(char *text)
{
    static const char before[] = "/eps-world-";

    for (char *at = text; (at = strstr(at, before));)
        for (int i = 0; i < 6 && at[sizeof before - 1]; i++, at++)
            at[sizeof before - 1] = 'X';
}

static void say_log(const char *format, va_list args)
{
    char text[1024];

    if (!world_traces)
        return;
    vsnprintf(text, sizeof text, format, args);
    hide_letters(text);
    world_say("log: %s", text);
}

LOG(log_line)
LOG(log_warning)
LOG(log_error)

/* ---- time and chance -------------------------------------------------------------------------------------------- */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (!process_running)
        return __real_clock_gettime(clock, out);
    *out = (struct timespec){(time_t)(world_now() / SECOND), (long)(world_now() % SECOND)};
    return 0;
}

ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags)
{
    uint8_t *bytes = out;

    (void)flags;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)chance(256);
    return (ssize_t)n;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

ssize_t __real_pwrite(int fd, const void *bytes, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t at);
ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
int __wrap_fsync(int fd);

static bool is_full(void)
{
    return process_running && process_running->kind == PROCESS_DAEMON && world_now() < host.full_until &&
           (!host.full_for || host.full_for == process_running);
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    fiber_pause();
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwrite(fd, bytes, n, at);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    fiber_pause();
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    return __real_write(fd, bytes, n);
}

int __wrap_fsync(int fd)
{
    (void)fd;
    fiber_pause();
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

int __wrap_madvise(void *base, size_t n, int advice);
int __wrap_mlock2(const void *base, size_t n, unsigned flags);
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t n);
void *__wrap_realloc(void *old, size_t n);

/* Huge pages take longer to clear than a run takes. */
int __wrap_madvise(void *base, size_t n, int advice)
{
    (void)base, (void)n, (void)advice;
    return 0;
}

int __wrap_mlock2(const void *base, size_t n, unsigned flags)
{
    (void)base, (void)n, (void)flags;
    return 0;
}

static bool fails(void)
{
    if (!host.fails_after || !process_running || process_running != host.fails_in || --host.fails_after)
        return false;
    world_say("an allocation fails");
    process_running->starved_at = world_now();
    return true;
}

void *world_alloc(size_t n)
{
    void *block = __real_calloc(1, n);

    if (!block)
        abort();
    return block;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t n)
{
    return fails() ? NULL : __real_realloc(old, n);
}
