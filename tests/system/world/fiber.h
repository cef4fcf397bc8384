/* tests/system/world/fiber.h - simulated processes and threads, on one thread of ours and one clock of ours.
 *
 * A thread of a simulated process is a fiber. A fiber runs until it waits; the scheduler then lets the clock jump to
 * the next moment at which a fiber can go on, and chooses among those by the seed. So a run is a function of its seed.
 *
 * The product's objects are linked as they are. What they call of pthreads, of the clock and of the system goes to
 * functions of this folder by the linker's --wrap (CMakeLists.txt); libuv, connection and channel are replaced whole
 * (loop.c, wire.c). */
#ifndef TESTS_SYSTEM_WORLD_FIBER_H
#define TESTS_SYSTEM_WORLD_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEVER UINT64_MAX

enum { US = 1000, MS = 1000 * US };
#define SECOND (UINT64_C(1000) * MS)

enum process_kind { PROCESS_DAEMON, PROCESS_WORKER, PROCESS_CLIENT, PROCESS_VIEWER, PROCESS_KINDS };

struct process {
    struct process *next;
    enum process_kind kind;
    int pid;
    unsigned host; /* of several: the daemon's, or that of the daemon which it is attached to */
    char name[24];
    bool alive;
    uint64_t started_at;
    int status;             /* of the exit; -SIGKILL if it was killed */
    uint64_t stopped_until; /* SIGSTOP */
    uint64_t hung_until;    /* its threads but the main one; NEVER: nor those that write files, nor later ones: */
    uint64_t hung_at;       /* 0: there are none */
    uint64_t slow_until;    /* whatever it sends or receives takes up to slow_ns longer */
    uint64_t slow_ns;
    uint64_t pause_ns;   /* the longest that its threads but the main one are interrupted for; 0: 20 ms */
    uint64_t starved_at; /* an allocation of it failed; 0: none has */
    bool cut;
    bool ailing;       /* it was slow or silent for a time: others may think it dead, and it may think so of them */
    bool spoils;       /* its next contribution is not finite: */
    bool has_spoilt;   /* it was not */
    bool changes;      /* its next contribution changes in its slot */
    bool misreads;     /* the next weights that it is given change before it reads them */
    unsigned n_unread; /* packets that it had sent when it died, and that the daemon did not read */
    unsigned n_lent;   /* units that it was lent, and has not said READ of */
};

/* ---- chance ---- */
/* Everything that is drawn comes from here: once the seed is set, the rest follows. */
void chance_seed(uint64_t seed);
uint64_t chance(uint64_t n); /* 0 .. n-1 */
static inline uint64_t chance_time(uint64_t least, uint64_t most)
{
    return least + chance(most - least + 1);
}

/* ---- clock ---- */
uint64_t world_now(void); /* ns */
void world_jump(uint64_t ns);

/* ---- processes and fibers ---- */
/* body runs as the process's main thread; its return value is the exit status. */
struct process *process_start(enum process_kind kind, const char *name, int (*body)(void *arg), void *arg);
void process_kill(struct process *p, int status);
extern struct process *process_all;     /* newest first; the dead stay */
extern struct process *process_running; /* whose fiber runs; NULL: the scheduler */
struct process *process_by_pid(long pid);

/* Suspends the running fiber until due(arg) is a time that has come. */
void fiber_wait(uint64_t (*due)(void *arg), void *arg);
void fiber_sleep(uint64_t ns);
/* A thread that is not the main one may be interrupted here, for a time. */
void fiber_pause(void);
/* Starts a thread of the running process. of_pool: it is libuv's, and writes files. */
void fiber_start(void (*body)(void *arg), void *arg, bool of_pool);
bool fiber_is_main(void);
/* Runs one fiber for one turn. False: nothing can run before `until`, and the clock is there now. */
bool fiber_turn(uint64_t until);

/* Zeroed; never fails, nor counts as an allocation of the product's. */
void *world_alloc(size_t n);

/* ---- told to the trace ---- */
extern bool world_traces;
void world_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- the host ---- */
/* In host.c. */
struct host {
    uint64_t full_until;            /* the disk is, */
    const struct process *full_for; /* for this one; NULL: for all daemons */
    unsigned fails_after;           /* so many allocations more of the process succeed, then one fails; 0: none fails */
    struct process *fails_in;
};
extern struct host host;

/* What the world does when a process has died: its links end. In wire.c. */
void wire_process_died(struct process *p);
/* In hosts.c. */
void hosts_process_died(struct process *p);
/* In loop.c. */
void loop_process_died(struct process *p);
/* A signal for its loop. */
void loop_signal(struct process *p, int number);

#endif
