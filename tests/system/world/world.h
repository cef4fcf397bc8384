/* tests/system/world/world.h - one run of the world: a model trained by simulated processes, while faults come.
 *
 * An operator starts the daemon, its workers and a client, and starts again whoever has ended, until the client has
 * saved the last step. Then weights, moments and the loss of each step must have the bits of a run without faults. */
#ifndef TESTS_SYSTEM_WORLD_WORLD_H
#define TESTS_SYSTEM_WORLD_WORLD_H

#include "proto/model/order.h"
#include "tests/system/world/fiber.h"

/* Of host 0; each other has the number after it: world_address. */
#define WORLD_ADDRESS "/world/eps"

enum { WORLD_MOST_STEPS = 16, WORLD_MOST_FAULTS = 16, WORLD_MOST_WORKERS = 8, WORLD_MOST_HOSTS = 4 };

/* A model and how it is trained: drawn from a number below WORLD_SETTINGS. */
enum { WORLD_SETTINGS = 48 };
struct world_setting {
    unsigned n_layers, vocabulary, batch, seq, n_parts, n_workers, n_steps, save_every;
    unsigned n_hosts; /* daemons; each has n_workers */
    bool adamw, fenced, folded, bf16, evaluates;
    double drop_layers;   /* probability that a step drops a block */
    uint32_t n_entries;   /* not 0: gradients are sampled, by norms of so many tokens of the data */
    bool sparse;          /* weights are, and change places after every second step */
    bool orders;          /* each step computes its blocks in another order: world_order */
    const char *family;   /* one of tests/families; NULL: GPT-2 */
    bool beside;          /* workers do not take turns with the optimizer: they go on while it folds, as on a GPU */
    bool small_devices;   /* with memory for no more than an equal share of the parts */
    bool slow_optimizer;  /* it takes as long as workers do */
    unsigned groups;      /* not eager: workers take this many parts through the model before the next; 0: all */
    unsigned audit_every; /* steps from one audit to the next; 0: none. */
    bool few_slots;       /* the host has no memory for more of them than the fewest */
    bool checks_memory;
    bool no_replay; /* nor for this: a worker's loss may end the run */
};
enum { WORLD_SEED = 5 }; /* of a job: fresh weights, and dropped blocks */
/* The order of a step's blocks. */
void world_order(struct model_order *out, uint64_t step);
/* for_hosts: 1, or the model is one that this many hosts divide. The daemons are still one. */
void world_setting(struct world_setting *out, unsigned number, unsigned for_hosts);

/* What must come out: the same for each run of a setting. */
struct world_result {
    double losses[WORLD_MOST_STEPS], evaluations[WORLD_MOST_STEPS]; /* of each step; before it, 0: none */
    uint64_t weights[WORLD_MOST_STEPS + 1],
        moments[WORLD_MOST_STEPS + 1]; /* hashes of the checkpoint after that many */
    uint64_t n_events;
};

enum fault_kind {
    FAULT_KILL_WORKER,
    FAULT_STOP_WORKER,   /* for a time */
    FAULT_HANG_WORKER,   /* its compute thread, for a time */
    FAULT_DETACH_WORKER, /* SIGTERM */
    FAULT_ATTACH_WORKER, /* one more */
    FAULT_SLOW,          /* what a process sends and receives is late, for a time */
    FAULT_CUT_WORKER,    /* from the daemon, without either hearing of it */
    FAULT_BAD_NUMBERS,   /* a worker's next contribution is not finite */
    FAULT_DAMAGE,        /* its next contribution changes in host memory */
    FAULT_MISREAD,       /* the next weights that it is given do */
    FAULT_KILL_CLIENT,
    FAULT_STOP_CLIENT,
    FAULT_CUT_CLIENT,   /* its connection ends, and both hear of it */
    FAULT_PAUSE_CLIENT, /* it does not come back to its loop, for a time */
    FAULT_KILL_DAEMON,
    FAULT_STOP_DAEMON,
    FAULT_STALL_DAEMON, /* its threads but the one of messages, for less than they may be silent */
    FAULT_HANG_DAEMON,  /* its optimizer thread, for good */
    FAULT_END_DAEMON,   /* SIGTERM */
    FAULT_FULL_DISK,
    FAULT_NO_MEMORY, /* an allocation fails */
    FAULT_SUSPEND,   /* the machine: clocks jump */
    FAULT_RIVAL,     /* another client asks for a job */
    FAULT_VIEWER,    /* observes, and asks for a checkpoint and a snapshot */
    FAULT_CUT_HOST,  /* one of several, from all others */
    FAULT_KINDS
};

struct fault {
    enum fault_kind kind;
    unsigned number; /* in the seed's list */
    uint64_t at;     /* number of the event before which it comes */
    uint64_t lasts;  /* ns */
    uint64_t which;  /* draws the victim */
};

struct world_options {
    unsigned setting;
    unsigned for_hosts; /* world_setting's */
    unsigned n_hosts;   /* that run it: as many, or 1 */
    uint64_t seed;
    uint64_t n_events;                   /* of a run without faults */
    const struct world_result *expected; /* NULL: this is that run */
    const char *directory;               /* for checkpoints; exists and is empty */
    uint64_t kept;                       /* of the seed's faults, a bit for each that comes */
};

/* The seed's faults, in the order of their coming. */
unsigned world_faults(struct fault out[WORLD_MOST_FAULTS], const struct world_options *options);
const char *world_fault_name(enum fault_kind kind);
bool world_fault_is_harmless(enum fault_kind kind); /* to the client's run: only time is lost */

/* Runs it in this process, which is good for one run. Returns when all is well; world_fail ends the process
 * otherwise. */
void world_run(struct world_result *out, const struct world_options *options);

/* Something must never be: says so, with the number of the event, and ends the process with status 3. */
_Noreturn void world_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A rare place has been reached: once in `odds` times the next fault comes now. */
void world_rare(const char *place, unsigned odds);

const char *world_address(unsigned host);

extern const struct world_setting *world_is;    /* of this run */
extern const struct world_options *world_wants; /* likewise */

/* ---- script.c ---- */
int script_client(void *arg); /* main functions of processes */
int script_rival(void *arg);
int script_viewer(void *arg);
/* The last checkpoint in the run's directory; -1: none. */
long script_last_step(void);
/* Compares a checkpoint with that of a run without faults. */
void script_check_saved(uint64_t step);
extern struct world_result script_result; /* what the clients have seen */
extern bool script_in_job;                /* the client's job has been opened */
extern char script_error[512];            /* why the last client ended */
extern uint64_t script_pause_ns;          /* how long the client is to pause before its next message */

/* ---- hosts.c ---- */
/* A launcher has started these, host by host. */
void hosts_launch(struct process *const *processes, unsigned n);
/* Neither it nor the others hear of each other any more. */
void hosts_cut(struct process *p);
/* It has been told that a host is lost. */
bool hosts_has_lost(const struct process *p);

/* ---- check.c ---- */
void check_event(void); /* after each event */

#endif
