/* libuv, nanomsg and libgomp end the process where they get no thread, and none of them can be asked first. The trial
 * of process_check_threads makes that rare and its sentence useful. It cannot exclude it: others may take the threads
 * in between. So the calls concerned run under a handler of SIGABRT, which acts on their own thread alone: an abort of
 * any other thread, as by an assertion, ends the process as ever.
 *
 * PR_SET_PDEATHSIG is sent when the parent's thread ends, not its process. So its signal is one whose handler asks who
 * the parent is now, and not SIGTERM itself. */
#include "proto/base/process.h"

#include "proto/base/cgroup.h"
#include "proto/base/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

/* By the program's own path, because ps would show /proc/self/exe. If its file was replaced, as by an upgrade, the link
 * says so after the path; the new file begins. */
int process_restart(char **argv)
{
    static const char replaced[] = " (deleted)";
    const size_t n_replaced = sizeof replaced - 1;
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n < 0)
        return -errno;
    path[n] = '\0';
    execv(path, argv);
    if (errno == ENOENT && (size_t)n > n_replaced && strcmp(path + n - n_replaced, replaced) == 0) {
        path[(size_t)n - n_replaced] = '\0';
        execv(path, argv);
    }
    return -errno;
}

/* libgomp reads its environment as it is loaded, so the process begins once more. */
void process_bound_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "2000", 1) == 0)
        process_restart(argv);
}

/* Without stdio, which takes 8 KiB of stack for a line to standard error. */
bool process_check_stack(const char *program)
{
    enum {
        LEAST_KIB = 1024
    }; /* a thread's least stack: jansson takes 640 KiB for the 2,048 levels of JSON that it allows */
    struct rlimit limit;
    char line[128];

    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= LEAST_KIB << 10)
        return true;
    const int n = snprintf(line, sizeof line, "%s: a stack may take only %ju KiB: allow at least %d (ulimit -s)\n",
                           program, (uintmax_t)limit.rlim_cur >> 10, LEAST_KIB);
    (void)!write(STDERR_FILENO, line, (size_t)n);
    return false;
}

/* A descriptor that was closed is opened the wrong way round: using it stays an error, and no file of ours gets its
 * number. */
int process_check_descriptors(struct error *err)
{
    enum { FEWEST = 64 }; /* a daemon with a client and a worker has at most 40, including libraries being loaded */
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FEWEST)
        return error_set(err, -EMFILE, "only %ju files may be open at once: allow at least %d (ulimit -n)",
                         (uintmax_t)limit.rlim_cur, FEWEST);
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return error_set(err, -EMFILE, "descriptor %d is closed, and /dev/null cannot be opened for it", fd);
    }
    return 0;
}

/* Threads that wait for each other. */
struct trial {
    pthread_mutex_t mutex;
    pthread_cond_t over;
    bool is_over;
};

static void *await_end(void *arg)
{
    struct trial *trial = arg;

    pthread_mutex_lock(&trial->mutex);
    while (!trial->is_over)
        pthread_cond_wait(&trial->over, &trial->mutex);
    pthread_mutex_unlock(&trial->mutex);
    return NULL;
}

/* True if, with all threads running, RESERVE more bytes of address space can be mapped. */
static bool process_has_room(void)
{
    enum { RESERVE = 32 << 20 };
    void *room = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room != MAP_FAILED)
        munmap(room, RESERVE);
    return room != MAP_FAILED;
}

static bool is_bounded(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

int process_check_threads(unsigned n, struct error *err)
{
    struct trial trial = {.mutex = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
    pthread_t *threads = calloc(n, sizeof *threads);
    unsigned n_made = 0;
    int rc = 0;

    if (!threads)
        return error_memory(err);
    if (is_bounded())
        mallopt(M_ARENA_MAX, 1); /* otherwise each thread's heap takes 64 MiB of addresses */
    while (!rc && n_made < n) {
        rc = -pthread_create(&threads[n_made], NULL, await_end, &trial);
        n_made += rc == 0;
    }
    const bool fits = process_has_room();
    pthread_mutex_lock(&trial.mutex);
    trial.is_over = true;
    pthread_cond_broadcast(&trial.over);
    pthread_mutex_unlock(&trial.mutex);
    for (unsigned i = 0; i < n_made; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    if (rc)
        return error_set(
            err, -EAGAIN,
            "%u thread%s needed, and %u can be made: allow more processes (ulimit -u, pids.max of the control "
            "group) or more memory (ulimit -v)",
            n, n > 1 ? "s are" : " is", n_made);
    return fits ? 0
                : error_set(err, -ENOMEM, "there is no memory left beside %u thread%s: allow more (ulimit -v)", n,
                            n > 1 ? "s" : "");
}

#define NO_THREAD "no thread can be made any more: allow more processes (ulimit -u, pids.max of the control group)"

/* A call of a library that may abort. */
struct daring {
    int printed, nowhere; /* descriptors of stderr, and of /dev/null in its place; or -1 */
    struct sigaction before;
    sigjmp_buf here;
    bool ends; /* the process, if it aborts */
};
static _Thread_local struct daring *daring; /* NULL: this thread is in none */

/* Nothing is printed meanwhile: a library that aborts would print its stack. */
static void hush(struct daring *d)
{
    d->printed = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    d->nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (d->printed >= 0 && d->nowhere >= 0)
        dup2(d->nowhere, STDERR_FILENO);
}

static void print_again(const struct daring *d)
{
    if (d->printed >= 0 && d->nowhere >= 0)
        dup2(d->printed, STDERR_FILENO);
    if (d->printed >= 0)
        close(d->printed);
    if (d->nowhere >= 0)
        close(d->nowhere);
}

/* If this returns, abort ends the process. */
static void on_abort(int number)
{
    (void)number;
    if (!daring)
        return;
    if (!daring->ends)
        siglongjmp(daring->here, 1);
    print_again(daring);
    log_error(NO_THREAD);
    _exit(1);
}

/* Signals' actions are the process's, so no two threads may be in here at once. */
static bool dare(struct daring *d, void (*call)(void *arg), void *arg)
{
    const struct sigaction survive = {.sa_handler = on_abort};

    hush(d);
    sigaction(SIGABRT, &survive, &d->before);
    daring = d;
    const bool aborted = sigsetjmp(d->here, 1) != 0; /* with the mask: the handler, left by a jump, blocks SIGABRT */
    if (!aborted)
        call(arg);
    daring = NULL;
    sigaction(SIGABRT, &d->before, NULL);
    print_again(d);
    return !aborted;
}

int process_survive_abort(void (*call)(void *arg), void *arg, struct error *err)
{
    struct daring d = {.ends = false};

    return dare(&d, call, arg) ? 0 : error_set(err, -EAGAIN, NO_THREAD);
}

void process_end_if_aborted(void (*call)(void *arg), void *arg)
{
    struct daring d = {.ends = true};

    dare(&d, call, arg);
}

bool process_is_child_of(long parent)
{
    return getppid() == parent;
}

/* Of process_follow_parent, which is called once. */
static volatile pid_t followed;

/* The kernel says that the thread that made this process, or was its parent since, has ended. Only if that was the
 * process's last one has this process another parent. */
static void on_parent_thread_end(int number)
{
    (void)number;
    if (!process_is_child_of(followed))
        kill(getpid(), SIGTERM);
}

bool process_follow_parent(long parent)
{
    const struct sigaction act = {.sa_handler = on_parent_thread_end, .sa_flags = SA_RESTART};

    followed = parent ? (pid_t)parent : getppid();
    sigaction(SIGRTMIN, &act, NULL);
    prctl(PR_SET_PDEATHSIG, SIGRTMIN);
    return process_is_child_of(followed);
}

static void mask_signals(int how)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(how, &set, NULL);
}

/* Threads that begin while signals are held inherit that: only the main thread takes them. */
void process_hold_signals(void)
{
    mask_signals(SIG_BLOCK);
}

void process_take_signals(void)
{
    mask_signals(SIG_UNBLOCK);
}

bool process_ignores(int number)
{
    struct sigaction action;

    return sigaction(number, NULL, &action) || action.sa_handler == SIG_IGN;
}

/* A line of /proc/PID/stat. False: there is none. "12345 (name) S ..."; a name has at most 15 bytes, and may look like
 * anything. */
static bool process_look(long pid, char *state, long *n_threads, uint64_t *birth)
{
    char path[48], text[512];

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end &&
           sscanf(name_end, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %" SCNu64,
                  state, n_threads, birth) == 3;
}

/* Process numbers are used again; number and birth together are not. */
uint64_t process_birth(long pid)
{
    char state;
    long n_threads;
    uint64_t birth;

    return process_look(pid, &state, &n_threads, &birth) ? birth : 0;
}

/* Where /proc hides others' processes, a living one may be hidden once it has another user. */
bool process_has_ended(long pid, uint64_t birth)
{
    char state;
    long n_threads;
    uint64_t now;

    if (birth == 0)
        return false;
    if (!process_look(pid, &state, &n_threads, &now))
        return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
    return now != birth || ((state == 'Z' || state == 'X') && n_threads <= 1);
}

/* Address space left under RLIMIT_AS, minus a reserve: libraries abort when they get none. */
static uint64_t address_space_left(void)
{
    enum { RESERVE = 64 << 20 };
    unsigned long pages = 0;
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    FILE *file = fopen("/proc/self/statm", "re");
    const bool is_known = file && fscanf(file, "%lu", &pages) == 1;
    if (file)
        fclose(file);
    const uint64_t taken = pages * (uint64_t)sysconf(_SC_PAGESIZE) + RESERVE;
    return !is_known ? UINT64_MAX : limit.rlim_cur > taken ? limit.rlim_cur - taken : 0;
}

/* Asked with room for the longest name: gethostname fails where a name does not fit. */
void process_host_name(char *out, size_t n)
{
    char name[HOST_NAME_MAX + 1] = "";

    if (gethostname(name, sizeof name) != 0)
        name[0] = 0;
    name[HOST_NAME_MAX] = 0;
    snprintf(out, n, "%s", name);
}

uint64_t process_available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = UINT64_MAX / 1024;

    if (!file)
        return UINT64_MAX;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    fclose(file);
    const uint64_t host = kib * 1024, group = cgroup_available_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    const uint64_t least = host < group ? host : group, space = address_space_left();
    return least < space ? least : space;
}

/* Bytes of a unit; 0 for an unknown one. */
static double unit_bytes(const char *name)
{
    static const char letters[] = "KMGT";

    if (!*name || strcasecmp(name, "B") == 0)
        return 1;
    const char *letter = strchr(letters, toupper((unsigned char)*name));
    const int power = letter ? (int)(letter - letters + 1) : 0;
    if (letter && (!name[1] || strcasecmp(name + 1, "iB") == 0))
        return pow(1024, power);
    return letter && strcasecmp(name + 1, "B") == 0 ? pow(1000, power) : 0;
}

enum { LEAST_EITHER = 100, LEAST_MIB = 1024, LEAST_BARE = 65536 };

/* Fewer bytes than anything takes: the unit was left out, as in --device-mem 8. */
static int refuse_bare(const char *option, const char *text, double bytes, struct error *err)
{
    error_set(err, -EINVAL, "%s: '%.40s' is %g byte%s: did you mean ", option, text, bytes, bytes == 1 ? "" : "s");
    if (bytes < LEAST_MIB)
        error_append(err, "%.40sGiB%s", text, bytes < LEAST_EITHER ? "?" : " or ");
    if (bytes >= LEAST_EITHER)
        error_append(err, "%.40sMiB?", text);
    return -EINVAL;
}

int process_parse_bytes(uint64_t *out, const char *option, const char *text, struct error *err)
{
    static const char remedy[] =
        "write bytes, or a number with K, M or G (powers of 1024), as in 2GiB, or with kB, MB or "
        "GB (powers of 1000)";
    char *end;

    errno = 0;
    const double value = strtod(text, &end);
    const double unit = end != text && !errno && !isnan(value) ? unit_bytes(end) : 0;
    if (unit == 0)
        return error_set(err, -EINVAL, "%s: '%.40s' is not a size; %s", option, text, remedy);
    const double bytes = value * unit;
    if (!(bytes >= 1 && bytes < 0x1p62))
        return error_set(err, -EINVAL, "%s: '%.40s' is %s; %s", option, text,
                         bytes < 1 ? "less than a byte" : "more than any machine has", remedy);
    if (!*end && bytes < LEAST_BARE)
        return refuse_bare(option, text, bytes, err);
    if (unit == 1 && bytes != floor(bytes)) /* 1.5 without a unit is a mistake for GiB */
        return error_set(err, -EINVAL, "%s: '%.40s' has no unit, and a part of a byte is none; %s", option, text,
                         remedy);
    *out = (uint64_t)bytes;
    return 0;
}

const char *process_format_bytes(char out[PROCESS_BYTES_TEXT], uint64_t bytes)
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    size_t i = 0;

    if (bytes < 1024) {
        snprintf(out, PROCESS_BYTES_TEXT, "%" PRIu64 " B", bytes);
        return out;
    }
    for (; value >= 1023.95 && i + 1 < sizeof names / sizeof *names; i++) /* not "1024.0 KiB" */
        value /= 1024;
    snprintf(out, PROCESS_BYTES_TEXT, "%.1f %s", value, names[i]);
    return out;
}
