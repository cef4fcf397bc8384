/* eps/job/job.h - one job, from the client's request until its memory is given back.
 *
 * The daemon serves one job after another. job_plan.c computes what a job needs, before anything is allocated.
 * job_load.c reads and touches all of it, on the optimizer thread. Steps, evaluations and saves are in
 * eps/step/steps.h, evaluate.h and eps/save/save.h.
 *
 * The client hears of errors by REFUSED (the job did not begin) or FAILED (it ended). */
#ifndef EPS_JOB_JOB_H
#define EPS_JOB_JOB_H

#include "eps/base/peer.h"
#include "eps/base/peers.h"
#include "eps/relay/relay.h"
#include "eps/store/updater.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/files.h"
#include "proto/wire/session.h"
#include "proto/wire/training_text.h"

/* A client's request that does not fit the state ends its session. */
enum job_state {
    JOB_NONE,
    JOB_LOADING,    /* until the optimizer thread has drawn or read the weights */
    JOB_ASSIGNING,  /* until every worker has answered */
    JOB_RESTING,    /* until a step or an evaluation is requested */
    JOB_STEPPING,   /* until the last step opened is done */
    JOB_EVALUATING, /* until every worker has reported its sum */
    JOB_GENERATING, /* until the worker has run the tokens that the client named */
    JOB_ENDING,     /* until the optimizer thread and the writer have finished and workers have released its memory */
    JOB_STATES
};

/* A worker's place in the job. Its part of the daemon's memory outlives it: contributions in the inbox count, whoever
 * wrote them. A worker that joins later gets new memory, as the one before may still be able to write. */
struct job_seat {
    struct job *job;
    struct peer *peer;          /* NULL: vacant */
    uint32_t left;              /* id of the worker that left it, until the relay is told of its loss; 0: nobody */
    uint32_t worker;            /* id of the worker whose contributions are in the inbox */
    uint32_t room;              /* parts that its worker has memory for */
    uint32_t n_parts;           /* parts that its worker gets in a step, once they are divided */
    uint32_t too_many;          /* number of parts that no plan fits; 0: not tried */
    uint32_t tried;             /* steps.n_changes when too_many was found */
    char bus[DEVICE_BUS_BYTES]; /* its worker's device: where the memory is made */
    struct segment inbox;
    struct segment stash;     /* empty if the worker's stash is on its device */
    uint64_t stash_bytes;     /* largest stash planned for a worker here; counted in the host's plan */
    uint64_t arena_bytes;     /* largest arena in host memory planned for one; not counted there */
    uint64_t new_stash_bytes; /* stash for the worker that joins */
    struct block_sum *sums;   /* of the inbox's slots, as their senders have them; NULL: the job checks no memory */
    uint32_t n_folds;         /* folds from its inbox that the optimizer thread has */
    bool renewing;            /* the optimizer thread makes its memory anew */
};

/* Rows of an evaluation, for one worker. */
struct job_range {
    uint32_t first, n;
    struct peer *worker; /* NULL: nobody computes it */
    bool done;
    double sum;
};

/* A text that is generated. */
enum { JOB_MAX_PIECES = 64 };
struct job_text {
    uint32_t n_source;    /* tokens of its source; 0: none has come */
    uint32_t n_generated; /* tokens that were run, or are running */
    uint32_t n_run;       /* tokens that the present generator has run */
    uint32_t n_pieces;
    struct job_piece {
        uint32_t first, n;
    } pieces[JOB_MAX_PIECES]; /* (n_pieces) ranges of tokens that were run at once, in order; others ran one by one */
};

/* What holds for a job from its plan to its end, chosen once (job_plan.c), so that nobody else asks on how many hosts
 * it trains. eps/step/commit.h is chosen by it too. */
struct job_facts {
    bool sharded; /* several hosts: its units and the parts of a step are divided among their daemons */
    /* Of `relay`, which has this host's parts. Several hosts: the owners' relays are as the job asks. */
    bool adamw, fenced, folded, deterministic, replay;
    bool announces_arrival; /* workers may go on to the next step while the optimizer finishes this one */
    bool keeps_inboxes;     /* a seat is taken again only when no fold of its inbox is under way */
    bool may_be_set_aside;  /* if loading it hangs: nobody but its client waits for it */
    bool has_masters;       /* all of them are here, so that one host can write a whole copy */
    uint32_t most_seats;
};

struct job {
    struct peers *peers;
    enum job_state state;   /* assigned by job_enter alone */
    struct peer *client;    /* NULL once it has left, or has been told that the job ended */
    uint32_t id;            /* numbered from 1 by the daemon */
    uid_t uid;              /* the client's user */
    pid_t pid;              /* the client's process */
    bool detached;          /* its client died, and another may take it over: eps/takeover.h */
    bool asked;             /* its end was requested, and the client may take PATIENCE_TICKS: eps/takeover.c */
    unsigned n_ticks;       /* ticks since its end was requested */
    bool warned;            /* detached, cannot be saved: warned_user asked for its end, and was refused */
    uid_t warned_user;      /* the user refused last */
    unsigned rest_ticks;    /* detached: ticks until it is saved again, after a failure */
    unsigned block_ticks;   /* detached, cannot be saved: ticks in which others have waited for its end */
    unsigned away_ticks;    /* ticks in which others have waited, and the client has asked for nothing */
    bool yields;            /* these were too many: it is saved and ends, unless its client asks for something first */
    bool closing;           /* the client requested the end; CLOSE answers it once memory is given back */
    struct message request; /* the JOB */
    struct segment config;  /* text of config.json, ended by a 0; shared with the workers */
    size_t config_bytes;
    int output;          /* output directory, or -1 */
    struct files *files; /* served by the client of another user, who sends no descriptors; or NULL */
    struct file weight_files[SESSION_MAX_FDS];
    unsigned n_weight_files;
    struct file moments_file, side_file;        /* not open if the job has none */
    int trace_file;                             /* descriptor, or -1 */
    struct trace optimizer_trace, writer_trace; /* tracks of the two threads, closed without a trace_file */
    char *side_text;                            /* NULL: no side file */
    void *headers;                              /* (plan_load_bytes) for reading its files, or NULL */
    size_t side_bytes;
    unsigned said;        /* MEMORY_... (eps/store/memory.h) that the log has reported already */
    uint64_t table_bytes; /* bytes in the ledger for the config, the client's files and job_take_table */
    struct model model;
    /* A job on several hosts; set before job_plan: */
    uint32_t own_first, n_own; /* units of this host; n_own 0: all, on one host */
    uint64_t hosts_bytes;      /* bytes of slots for contributions of other hosts */
    uint64_t hosts_tables;     /* bytes of eps/step/sharded.h's tables */
    struct job_facts facts;
    struct store store;
    struct segment data;
    struct relay *relay;
    const uint32_t *homes;        /* of the open step (proto/model/order.h); NULL: it is in the model's order */
    uint32_t first_part, n_parts; /* the parts of a step that this host's workers compute; on one host all */
    struct relay *own;            /* several hosts: who folds what of the own units (eps/step/sharded.h); or NULL */
    bool aligned;                 /* a save that begins now has one version everywhere: always, on one host; on several,
                                   * all are ready or have covered the last step, and the next is not open */
    bool others_wait;             /* several hosts: on another one, a part waits for a worker */
    bool announced_opened;        /* JOB_OPENED was sent */
    struct {
        unsigned n_looks;                    /* the optimizer thread's through the memory, asked for and not over */
        void (*looked)(struct job *job);     /* it does through weights that were read: what follows; or NULL */
        uint32_t reader;                     /* the client that reads them then */
        int code;                            /* the job ends with it, unless memory is damaged; 0: it goes on */
        struct error why;                    /* of that */
    } verdict;                               /* eps/job/damage.h */
    struct error missed;                     /* the worker left out of the job last, and why */
    bool lent;                               /* other hosts may still use this job's memory, or this host theirs */
    int end_code;                            /* JOB_ENDING: 0 or -errno */
    struct error end;                        /* JOB_ENDING: the sentence of end_code */
    uint32_t microbatch;                     /* rows; the same for all workers */
    struct plan_choice choice;               /* for the first worker */
    double predicted_ms;                     /* of a training step, from measured profiles; 0: it is not predicted */
    double predicted_compute_ms;             /* the first worker's device, likewise */
    double predicted_optimizer_ms;           /* the optimizer, likewise */
    struct products products;                /* algorithms for all workers; version 0: their libraries choose */
    struct loss_scale loss_scale;            /* of the next step (eps/step/fence.h); value 0: none */
    struct plan_host host;                   /* memory that it takes in this process */
    struct plan_host_setting host_setting;   /* what `host` was computed from */
    struct peer *workers[PEERS_MAX_WORKERS]; /* (n_workers) workers that have or may get parts, in order of id */
    uint32_t n_workers;
    bool divided;                             /* the parts of a step are divided among the workers */
    struct job_seat seats[PEERS_MAX_WORKERS]; /* (n_seats) one for each worker when the job began; job_new_seat */
    uint32_t n_seats;
    uint64_t resident_bytes;            /* first worker's, when the job began: it may be gone when the client is told */
    const struct plan_backend *backend; /* the first worker's */
    enum plan_attention attention;      /* the way of all its workers */
    uint32_t convolution;               /* their library of convolutions; 0: none, or not the same */
    struct message evaluation;          /* the EVALUATE under way */
    struct job_range ranges[PEERS_MAX_WORKERS]; /* (n_ranges) its rows: one range for each worker at the start */
    uint32_t n_ranges;
    uint64_t step;                             /* updates done */
    struct peer *generator;                    /* the worker that runs the texts of a generating job; NULL: none */
    struct job_text texts[PLAN_GENERATE_ROWS]; /* (microbatch) texts of a generating job */
    bool loading;                              /* the optimizer thread runs job_do_load */
    bool hangs;                                /* job_do_load makes no progress: no thread waits for it (eps/aside.h) */
    struct pieces load_pieces;                 /* counts job_do_load, and making a seat's memory anew */
    struct ledger load_ledger;           /* memory that the optimizer thread took for the job's segments and store */
    uint64_t counted[LEDGER_CATEGORIES]; /* bytes of load_ledger that are in the daemon's ledger */
    bool unloaded;                       /* the memory in load_ledger was given back */
    struct error load_error;
};

static inline const struct plan_goal *job_goal(const struct job *job)
{
    return &job->request.job.goal;
}

static inline bool job_trains(const struct job *job)
{
    return job_goal(job)->purpose == PLAN_TRAIN;
}

/* True if the job holds its updates until the whole step is known to be good. */
static inline bool job_is_fenced(const struct job *job)
{
    return job_trains(job) && job_goal(job)->fenced;
}

/* True if it updates units once the whole step is folded, into the moments. */
static inline bool job_is_folded(const struct job *job)
{
    return job_trains(job) && job_goal(job)->folded;
}

/* True if its relay lets a worker take parts in row groups. */
static inline bool job_groups(const struct job *job)
{
    return job->facts.fenced || job->facts.folded;
}

/* True if the job trains on several hosts. For the choice of eps/step/commit.h's table, and tests: all else that
 * depends on it is a fact of its own. */
static inline bool job_is_sharded(const struct job *job)
{
    return job->facts.sharded;
}

/* The relay that says which version of the units a save reads. */
static inline struct relay *job_reader_relay(const struct job *job)
{
    return job->own ? job->own : job->relay;
}

/* True if version t of every unit stands until step t is covered. */
static inline bool job_replays(const struct job *job)
{
    return job->host.replay == PLAN_REPLAY_ON;
}

/* True if the job can save checkpoints: not with --no-save. */
static inline bool job_has_output(const struct job *job)
{
    return job->output >= 0 || job->request.job.files;
}

/* True if the seat's worker may get parts of the next step: it is not about to leave, or to be planned anew. */
static inline bool job_is_taken(const struct job_seat *seat)
{
    return seat->peer && seat->peer->state == PEER_ASSIGNED && !seat->peer->leaves && !seat->peer->n_parts;
}

/* Bytes of the host's memory that a worker's arena takes: none if its device has memory of its own. */
static inline uint64_t job_host_arena(const struct peer *worker, const struct plan *plan)
{
    return worker->backend->takes_turns ? plan_total(plan) : 0;
}

/* Parts of a step that the workers have memory for. */
static inline uint32_t job_room(const struct job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_seats; i++)
        n += job_is_taken(&job->seats[i]) ? job->seats[i].room : 0;
    return n;
}

/* True if the workers have room for all of this host's parts of a step. */
static inline bool job_has_room(const struct job *job)
{
    return job_room(job) >= job->n_parts;
}

/* True if a step waits for a worker, on this host or another. */
static inline bool job_waits(const struct job *job)
{
    return !job_has_room(job) || job->others_wait;
}

/* True if steps may be opened and the relay may be fed. */
static inline bool job_is_open(const struct job *job)
{
    return job->state == JOB_RESTING || job->state == JOB_STEPPING || job->state == JOB_EVALUATING ||
           job->state == JOB_GENERATING;
}

/* The order in which workers visit units now, as job.homes: evaluations are in the model's. */
static inline const uint32_t *job_homes(const struct job *job)
{
    return job->state == JOB_STEPPING ? job->homes : NULL;
}

void job_init(struct job *job); /* no job; keeps its peers */
void job_enter(struct job *job, enum job_state state);
/* Sends a message to the client, if there is one. */
void job_announce(const struct job *job, const struct message *m);
/* A zeroed table, in the ledger until job_free. NULL: out of memory. Owned: free. */
void *job_take_table(struct job *job, size_t n, size_t size);
/* Returns the track, or NULL if the job is not traced. */
struct trace *job_trace(const struct job *job, struct trace *track);
void job_close_fds(const int *fds, unsigned n);

/* Checks a request and computes all sizes. Takes fds. False: the request was refused. If true, the caller allocates the
 * tables of the other parts and then calls job_load, or job_end with the reason. client NULL: host 0 has it, and has
 * chosen these products. */
bool job_begin(struct job *job, struct peer *client, const struct message *m, const struct products *products,
               const int *fds, unsigned n_fds);
void job_load(struct job *job);
/* Sends JOB_OPENED. On several hosts, once all have their workers' memory. */
void job_announce_opened(struct job *job);
/* The optimizer thread has loaded the job, or given its memory back. */
void job_on_called(struct job *job, const struct updater_task *work);
/* All of its workers, one at least, are assigned: it is open, but the client is not told yet. */
void job_open(struct job *job);
/* A worker of a job that is not open has answered ASSIGN: it is assigned, or the job has ended meanwhile. */
void job_on_assigned(struct job *job, struct peer *worker, const struct message *m);
void job_on_released(struct peer *worker);
/* Adds a worker to those that have or may get parts; removes it, if it is one of them. */
void job_list(struct job *job, struct peer *worker);
void job_unlist(struct job *job, const struct peer *worker);
/* The worker, which has no seat, takes no part in this job, and keeps its session. */
void job_leave_out(struct job *job, struct peer *worker, const char *why);
/* The same, for this code. If it tells that the host's memory is short, an open job, which may wait for a worker, asks
 * again in 10 s, then after pauses that grow to 320 s. Only the first time is told. */
void job_pass_over(struct job *job, struct peer *worker, int code, const char *why);
/* Once a second. */
void job_tick(struct job *job);
/* Bytes that the job, or the next one, may take of the host: the smaller of the daemon's --host-mem and the job's.
 * UINT64_MAX: all that is free. */
uint64_t job_host_cap(const struct job *job);
/* The seat of a worker, or of one that has left; NULL: it has none. */
struct job_seat *job_find_seat(struct job *job, uint32_t worker);
/* A seat that the job has not had yet, or NULL: it has facts.most_seats. It counts once job_take_seat is called. */
struct job_seat *job_new_seat(struct job *job);
/* Plans a worker for a share of n_parts parts, in a vacant or new seat of an open job or in its own. -ENODEV, -EINVAL,
 * -ENOSPC, -ENOMEM with a sentence: it does not fit. */
int job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                  struct error *err);
/* Gives the worker the seat, as job_plan_seat planned it. The seat's bytes are in the host's plan from now on. */
void job_take_seat(struct job_seat *seat, struct peer *worker);
/* The worker keeps its session, but gives its seat and its memory in the job back. */
void job_release_seat(struct job_seat *seat);
/* Has the optimizer thread make the seat's memory anew, and sends ASSIGN then. No fold of its inbox is under way, and
 * no other seat's memory is being made. */
void job_renew_seat(struct job_seat *seat);
/* The seat's worker has gone: removes it from the job's workers. */
void job_vacate(struct job_seat *seat);
/* The seat's worker was to get its memory, and cannot: it is passed over. */
void job_turn_away(struct job_seat *seat, int code, const char *why);
/* Answers a pull: where the unit is, as in struct message's weights. lent: until the worker says READ. */
struct job_weights {
    uint64_t at, frozen_at;
    bool lent;
};
void job_send_weights(struct job *job, struct peer *worker, uint64_t version, uint32_t unit,
                      struct job_weights weights);
/* Answers a stale pull. */
void job_send_void(struct peer *worker, uint64_t version, uint32_t unit);

/* Ends the job in any state. Code 0: the client sent CLOSE. Nothing new begins; tasks under way finish. Does nothing if
 * there is no job. */
void job_end(struct job *job, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* As error_memory. */
static inline void job_end_memory(struct job *job)
{
    struct error err;

    job_end(job, error_memory(&err), "%s", err.text);
}
/* True if a worker or the optimizer thread still uses the memory of an ending job without saves. */
bool job_is_in_use(const struct job *job);
/* Once it is unused: has this thread, which loaded it, give the memory back. */
void job_unload(struct job *job, struct updater *updater);
/* Frees the rest; then there is no job. Returns the client that waits for CLOSE, or NULL. */
struct peer *job_free(struct job *job);

#endif
