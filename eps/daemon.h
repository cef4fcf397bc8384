/* eps/daemon.h - epsd: who is attached, what is trained.
 *
 * One loop thread (everything here), one optimizer thread (eps/store/updater.h). The loop never computes and never blocks: it
 * turns messages into relay events and relay actions into messages and jobs. The daemon serves one job after another.
 *
 *   daemon.c   peers: attach, dispatch, leave; start and stop
 *   job.c      one job's life: weights in, workers assigned, ... memory given back; what it needs: job_plan.c;
 *              what is read and touched first: job_load.c
 *   steps.c    steps and evaluations: messages <-> relay <-> optimizer thread
 *   fence.c    fenced commit: the gradient's norm, clipping, skipped steps
 *   generate.c tokens, one after another: messages between client and worker
 *   save.c     checkpoints and snapshots, while the job goes on; who asks for them: save_request.c; those whose files
 *              are their client's: save_client.c
 *   look.c     what is told to those who look
 *   watch.c    who keeps a job waiting, and for how long
 *   rights.c   who may do what, where a daemon serves a group */
#ifndef EPS_DAEMON_H
#define EPS_DAEMON_H

#include "eps/observe/place.h"
#include "eps/relay/relay.h"
#include "eps/store/store.h"
#include "eps/store/updater.h"
#include "proto/base/trace.h"
#include "proto/plan/host.h"
#include "proto/wire/message.h"
#include "proto/wire/session.h"

#include <stdbool.h>
#include <uv.h>

enum {
    DAEMON_MAX_WORKERS = MESSAGE_MAX_PARTS,
    DAEMON_MAX_PULLS = 16, /* of one worker at a time: it has fewer weight buffers than that */
};

/* What a worker is doing with the job's memory. */
enum peer_state {
    PEER_IDLE,      /* until it is assigned */
    PEER_ASSIGNING, /* ASSIGN sent; until ASSIGNED or REFUSED */
    PEER_ASSIGNED,  /* until the job ends */
    PEER_RELEASING, /* RELEASE sent; until it comes back. Only then is nothing of the old job under way */
};

/* Of whoever owes something: for how long nothing has come of it, in ticks of this daemon. */
struct watch {
    uint64_t progress; /* as it was last seen */
    unsigned quiet;    /* ticks since it went up, while something is owed */
    unsigned slowest;  /* the longest of these that ended well */
};

struct peer {
    struct peer *next;
    struct daemon *daemon;
    struct session *session;
    enum message_role role;
    uint32_t id;
    unsigned n_asked;   /* answers to MEMORY that wait for what the system says */
    uint32_t n_awaited; /* workers for which its question for the status waits; 0: none does */
    bool refused;       /* its session is ending, by its fault */
    /* Of a worker; all below too: */
    char device[32], model[64];
    const struct plan_backend *backend; /* NULL: nothing is known of such devices */
    uint64_t budget, library_bytes;
    enum plan_attention attention; /* that its device can */
    struct profile profile;        /* as it said, or its device's default */
    enum peer_state state;
    bool not_finite;             /* the last job with it ended by its gradient */
    struct plan plan;            /* the job's of its device; all zero between jobs */
    const struct segment *inbox; /* the job's; NULL between jobs */
    struct ledger ledger;        /* as it last said */
    struct place place;
    struct watch watch;
    double evaluated; /* its part of the evaluation under way */
    bool evaluating;
    uint32_t n_pulls; /* not answered */
};

/* What the job does. The client's request must fit the state: anything else is out of place and costs it its
 * session. */
enum job_state {
    JOB_NONE,
    JOB_LOADING,    /* until the optimizer thread has drawn or read the weights */
    JOB_ASSIGNING,  /* until every worker has answered */
    JOB_RESTING,    /* until a step or an evaluation is asked for */
    JOB_STEPPING,   /* until the last step opened is done */
    JOB_EVALUATING, /* until every worker has told its sum */
    JOB_GENERATING, /* until the worker has run the tokens that the client named */
    JOB_ENDING,     /* until the optimizer thread and the writer are through, and workers have let go */
};

/* The last steps that were covered, for those who look (look.c). */
struct look_recent {
    uint64_t n, tokens; /* steps since the job began; tokens that counted, of them */
    struct look_step {
        float loss;
        uint64_t covered_ms, tokens; /* by the loop's clock; of the job until then */
    } steps[MESSAGE_RECENT_STEPS];   /* step number i since the job began at i modulo this */
};

/* Of a fenced job, for its open step (fence.c). */
struct fence {
    double *squares;   /* (n_units) of each unit's gradient once it is whole: written by the optimizer thread */
    uint32_t *n_given; /* (n_units) its folds given to that thread */
    double norm;       /* of the gradient, before it is clipped; NAN until it is known, and of a skipped step */
    bool skipped;
    uint64_t n_past; /* a step below may have been skipped while a worker was in the middle of it */
};

struct job {
    enum job_state state;
    struct peer *client;    /* NULL once it has gone, or has been told that the job ended */
    bool closing;           /* the client asked for the end, and is told when memory is given back */
    struct message request; /* the JOB */
    char *config_text;      /* as in the file */
    size_t config_bytes;
    int output; /* directory, or -1 */
    int weight_files[SESSION_MAX_FDS];
    unsigned n_weight_files;
    int moments_file, side_file, trace_file;    /* or -1 */
    struct trace optimizer_trace, writer_trace; /* tracks of the two threads; not open without a trace_file */
    char *side_text;                            /* NULL: none came */
    size_t side_bytes;
    unsigned said;        /* EPS_MEMORY_...: what the daemon's log says of the machine already (eps/store/memory.h) */
    uint64_t table_bytes; /* of config_text and the tables here, as the ledger has them */
    struct model model;
    struct eps_store store;
    struct segment data;
    struct segment inboxes[DAEMON_MAX_WORKERS]; /* (n_inboxes); they outlive their workers */
    uint32_t n_inboxes;
    struct segment stashes[DAEMON_MAX_WORKERS]; /* (n_inboxes) of workers that keep theirs on the host; else empty */
    struct relay *relay;
    uint32_t microbatch;                      /* rows, of all workers */
    struct products products;                 /* algorithms of all workers; version 0: as their libraries choose */
    struct plan_host host;                    /* what it takes of this process */
    struct plan_host_setting host_setting;    /* by which that was planned */
    struct peer *workers[DAEMON_MAX_WORKERS]; /* those that have parts, in order of id */
    uint32_t n_workers;
    uint32_t n_planned;                       /* of them, when the job began */
    uint64_t stash_bytes[DAEMON_MAX_WORKERS]; /* (n_planned) by their plans */
    /* The open step: */
    uint64_t step;     /* updates done */
    uint64_t n_opened; /* steps opened: step, or one or two more */
    bool covered;      /* the last of them that the relay has is folded entirely */
    bool arrived;      /* or has all it needs of the workers, and the client was told */
    bool has_ahead; /* one more was opened meanwhile: workers have their shares, the relay is told when it is covered */
    struct message ahead;
    uint64_t told_ahead; /* the last such step; MESSAGE_NO_STEP: none */
    uint64_t n_valid;
    uint32_t buffer;
    uint32_t n_generated; /* tokens run, or being run, of a job that generates */
    struct eps_hyper hyper;
    struct fence fence;
    double part_loss[MESSAGE_MAX_PARTS];
    struct look_recent recent;
    /* Of the last step that was covered; the next may be open when it is done: */
    double loss;      /* NAN before there is one */
    double grad_norm; /* as in the message */
    bool skipped;
    uint32_t *slices;          /* (n_visits) for the relay's open */
    uint64_t n_read;           /* runs of files, by the optimizer thread, while it loads: by __atomic */
    struct ledger load_ledger; /* of the optimizer thread, while it loads; then what it has taken */
    bool unloaded;             /* and given back */
    struct error load_error;
    struct save *saves;   /* oldest first (save_state.h) */
    uint8_t *save_units;  /* (PLAN_HOST_SAVES * n_units) for them; of a job that trains */
    struct save *writing; /* which of them the writer is at; NULL: none */
    uint32_t n_readers;   /* so far, of the relay's: the number of the last */
    bool releasing;
    uint64_t saved_step; /* of the last checkpoint, or MESSAGE_NO_STEP */
    char trouble[256];   /* why the last save failed; empty if it did not */
};

/* What the system says of the pages of both sides (look.c). The thread of `work` has the sides while it is busy. */
enum { LOOK_MAX_SIDES = 1 + DAEMON_MAX_WORKERS };
struct look_pages {
    uv_work_t work;
    bool busy;
    uint64_t read_ms; /* when, by the loop's clock */
    unsigned n;       /* sides; 0: never read */
    struct look_side {
        uint32_t worker; /* 0: this process */
        pid_t pid;
        struct pages pages;
    } sides[LOOK_MAX_SIDES];
};

struct daemon {
    uv_loop_t *loop;
    struct session_listener *listener;
    uv_async_t optimizer_done;
    uv_signal_t sigterm, sigint, sighup;
    uv_timer_t lonely;   /* a private daemon's patience until its client comes */
    uv_timer_t patience; /* until the client has stopped, which was asked to */
    unsigned n_ticks;    /* of patience */
    uv_timer_t watch;    /* each second, for watch.c: */
    unsigned most_quiet;
    struct watch optimizer;
    bool hung;            /* the optimizer thread: the daemon ends */
    const char *asked;    /* to stop, and how; NULL: not */
    int messages_held;    /* session_hold_thread's */
    uv_work_t first_work; /* none: libuv makes its threads for it */
    struct eps_updater *updater;
    unsigned n_threads; /* of the updater's team */
    struct peer *peers;
    struct job job;
    struct { /* a request that came while the last job's memory was being given back */
        struct peer *client;
        struct message request;
        int fds[SESSION_MAX_FDS];
        unsigned n_fds;
    } waiting;
    struct ledger ledger;
    struct look_pages pages;
    bool is_private;       /* ends with its first client, and serves no other */
    uint32_t first_client; /* its id; 0: none has come */
    uint64_t host_mem;
    unsigned said; /* EPS_MEMORY_...: what its log says already of what the system does not allow */
    bool stopping;
    int exit_code;
};

/* daemon.c */
struct daemon_options {
    const char *directory;
    bool is_private;
    bool shared; /* with the members of group, who may do all but stop it */
    gid_t group;
    uint64_t host_mem;   /* bytes that a job may take; 0: what is free */
    unsigned most_quiet; /* seconds, at least, that whoever owes something may do nothing; 0: 60. For tests */
};
/* The caller has blocked SIGTERM, SIGINT and SIGHUP: they are taken from the moment in which their end is an orderly
 * one. */
int daemon_run(const struct daemon_options *options, struct error *err);
/* Stops the daemon; first a client in training is asked to end its run, unless that was done before. why: "by ...", a
 * constant. */
void daemon_ask(struct daemon *d, const char *why);
void daemon_stop(struct daemon *d, const char *why); /* at once */
/* Lets the loop run out, once a daemon that is stopping has nothing left; called whenever that may have become true. */
void daemon_end(struct daemon *d);
void peer_refuse(struct peer *peer, const char *reason);
unsigned daemon_count_workers(const struct daemon *d);

/* job.c. Sentences go to the client as REFUSED (the job did not begin) or FAILED (it ended). */
void job_init(struct job *job); /* no job */
/* Of a JOB: updates wait until the whole step is known good. Clipping the norm needs it. */
static inline bool job_is_fenced(const struct message *m)
{
    return m->job.train && (m->job.fenced || m->job.clip_norm > 0);
}

/* The track, or NULL where the job is not traced. */
struct trace *job_trace(const struct job *job, struct trace *track);
void job_close_fds(const int *fds, unsigned n);
void job_open(struct daemon *d, struct peer *client, const struct message *m, const int *fds, unsigned n_fds);
void job_on_called(struct daemon *d, const struct eps_job *work);
void job_on_assigned(struct daemon *d, struct peer *worker, const struct message *m);
void job_on_released(struct daemon *d, struct peer *worker);
/* Ends the job, whatever it is doing: code 0 is the client's own CLOSE. Does nothing without a job. */
void job_end(struct daemon *d, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The client that waits for the last job's memory to be given back has gone. */
void job_forget_waiting(struct daemon *d, struct peer *client);
/* Frees the job once nothing uses it any more; called whenever that may have become true. */
void job_finish(struct daemon *d);

/* steps.c */
void steps_open(struct daemon *d, const struct message *m);
void steps_evaluate(struct daemon *d, const struct message *m);
void steps_on_worker(struct daemon *d, struct peer *worker, const struct message *m);
void steps_on_optimizer(struct daemon *d);
/* The job is open: steps may be opened, and the relay be fed. */
bool steps_are_on(const struct job *job);
/* While a step is open: whether the client may open the next one. */
bool steps_may_open(const struct job *job);
/* Feeds the relay and carries out what it says. The job may have ended when this returns. */
void steps_feed(struct daemon *d, const struct relay_event *event);

/* Answers a pull. */
void steps_send_weights(struct peer *worker, uint64_t version, uint32_t unit);

/* fence.c. A step is opened. */
void fence_begin(struct job *job);
/* A fold is given to the optimizer thread: where the unit's sum of squares goes if it is the unit's last, else NULL. */
double *fence_note_fold(struct job *job, uint32_t unit);
/* Before each update: the norm, and what the step's gradient is multiplied by. */
void fence_commit(struct job *job);
void fence_skip(struct job *job, uint64_t step);
/* Nats per token; NAN where a part's is not finite, or not known. */
double fence_loss(const struct job *job);
/* Whether the message belongs to a step that was skipped while the worker went on with it; then it is answered. */
bool fence_on_worker(struct daemon *d, struct peer *worker, const struct message *m);

/* generate.c */
uint64_t generate_data_bytes(const struct job *job); /* of the job's data segment, whatever the job does */
int generate_check(const struct job *job, struct error *err);
void generate_start(struct daemon *d, const struct message *m);
void generate_on_worker(struct daemon *d, struct peer *worker, const struct message *m);

/* watch.c. One tick of whoever owes something, or does not; whether it hangs: its progress has stood still for more than
 * most_quiet ticks, or than a multiple of its longest silence so far, and `allowance` ticks on top. */
bool watch_tick(struct watch *w, bool owes, uint64_t progress, unsigned most_quiet, double allowance);
void watch_start(struct daemon *d, unsigned most_quiet);

/* rights.c: 0, or -EPERM (-EACCES) with a sentence that names whose it is. */
int rights_stop(const struct peer *peer, struct error *err);
/* A directory came with the job: its client is the daemon's own user. */
int rights_output(const struct daemon *d, struct error *err);
/* -EINVAL unless all of them are regular files, which never block, open for writing at offsets. */
int rights_files(const int *fds, unsigned n, struct error *err);
/* The worker may append to the job's trace: it is its client's, or the daemon's user's, and no third user's. */
bool rights_trace(const struct job *job, const struct peer *worker);
/* Without a client there is nothing to be had, which others say. */
int rights_save(const struct daemon *d, const struct peer *peer, struct error *err);

/* The job's checkpoints go somewhere. */
static inline bool job_has_output(const struct job *job)
{
    return job->output >= 0 || job->request.job.files;
}

/* save_request.c, save.c, save_client.c. The first three answer by themselves; the job is open in the first. */
void save_on_client(struct daemon *d, const struct message *m);
void save_on_viewer(struct daemon *d, struct peer *viewer, const struct message *m);
void save_on_snapshot(struct daemon *d, struct peer *viewer, const int *fds, unsigned n_fds); /* takes fds */
/* The client has done what it was asked to with a checkpoint of its own. */
void save_on_output_done(struct daemon *d, const struct message *m, const int *fds, unsigned n_fds); /* takes fds */
void save_on_capture(struct daemon *d, const struct relay_action *a);
/* The relay has just been told of the job's first step. */
void save_on_first_step(struct daemon *d);
/* Tells the relay of units that are written; after each event that may have brought one. */
void save_release(struct daemon *d);
/* The job has ended and the optimizer thread is through: no unit will come any more. */
void save_on_job_over(struct daemon *d);

/* look.c */
/* Answers once n_workers are attached. */
void look_status(struct peer *peer, uint32_t n_workers);
/* One more is: answers who waited for that. */
void look_on_worker(struct daemon *d);
void look_units(struct peer *peer, uint32_t first);
void look_workers(struct peer *peer);
void look_recent(struct peer *peer);
/* A step was covered: its loss, and the tokens that counted. */
void look_on_covered(struct daemon *d);
void look_memory(struct peer *peer, bool pages); /* pages: later, if it has to be asked of the system */

#endif
