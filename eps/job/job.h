/* eps/job/job.h - one job's life: weights in, workers assigned, ... memory given back.
 *
 * The daemon serves one job after another. What it does with the relay is in steps.h, evaluate.h and eps/save/save.h. What
 * it needs is worked out by job_plan.c, before anything is allocated; job_load.c reads and touches all of it, on the
 * optimizer thread.
 *
 * Sentences go to the client as REFUSED (the job did not begin) or FAILED (it ended). */
#ifndef EPS_JOB_JOB_H
#define EPS_JOB_JOB_H

#include "eps/hub.h"
#include "eps/relay/relay.h"

/* The client's request must fit the state: anything else is out of place and costs it its session. */
enum job_state {
    JOB_NONE,
    JOB_LOADING,    /* until the optimizer thread has drawn or read the weights */
    JOB_ASSIGNING,  /* until every worker has answered */
    JOB_RESTING,    /* until a step or an evaluation is asked for */
    JOB_STEPPING,   /* until the last step opened is done */
    JOB_EVALUATING, /* until every worker has told its sum */
    JOB_GENERATING, /* until the worker has run the tokens that the client named */
    JOB_ENDING,     /* until the optimizer thread and the writer are through, and workers have released their memory */
    JOB_STATES
};

struct job {
    struct hub *hub;
    enum job_state state;   /* job_enter alone assigns it */
    struct peer *client;    /* NULL once it has gone, or has been told that the job ended */
    bool closing;           /* the client asked for the end, and is told when memory is given back */
    struct message request; /* the JOB */
    struct segment config;  /* the text of config.json, ended by a 0: the workers get it too */
    size_t config_bytes;
    int output; /* directory, or -1 */
    int weight_files[SESSION_MAX_FDS];
    unsigned n_weight_files;
    int moments_file, side_file, trace_file;    /* or -1 */
    struct trace optimizer_trace, writer_trace; /* tracks of the two threads; not open without a trace_file */
    char *side_text;                            /* NULL: none came */
    size_t side_bytes;
    unsigned said;        /* MEMORY_...: what the daemon's log says of the machine already (eps/store/memory.h) */
    uint64_t table_bytes; /* of the config and what job_take_table gave, as the ledger has them */
    struct model model;
    struct store store;
    struct segment data;
    struct segment inboxes[HUB_MAX_WORKERS]; /* (n_inboxes); they outlive their workers */
    uint32_t n_inboxes;
    struct segment stashes[HUB_MAX_WORKERS]; /* (n_inboxes) of workers that keep theirs on the host; else empty */
    struct relay *relay;
    uint32_t microbatch;                   /* rows, of all workers */
    struct products products;              /* algorithms of all workers; version 0: as their libraries choose */
    struct plan_host host;                 /* what it takes of this process */
    struct plan_host_setting host_setting; /* by which that was planned */
    struct peer *workers[HUB_MAX_WORKERS]; /* (n_workers) those that have parts, in order of id */
    uint32_t n_workers;
    uint32_t n_planned;                    /* of them, when the job began */
    uint64_t stash_bytes[HUB_MAX_WORKERS]; /* (n_planned) by their plans */
    uint64_t step;                         /* updates done */
    uint32_t n_generated;                  /* tokens run, or being run, of a job that generates */
    uint64_t n_read;                       /* runs of files, by the optimizer thread, while it loads: by __atomic */
    struct ledger load_ledger;             /* of the optimizer thread, while it loads; then what it has taken */
    bool unloaded;                         /* and given back */
    struct error load_error;
};

/* Of a JOB: updates wait until the whole step is known good. Clipping the norm needs it. */
static inline bool job_is_fenced(const struct message *m)
{
    return m->job.train && (m->job.fenced || m->job.clip_norm > 0);
}

/* The job's checkpoints go somewhere. */
static inline bool job_has_output(const struct job *job)
{
    return job->output >= 0 || job->request.job.files;
}

/* Steps may be opened, and the relay be fed. */
static inline bool job_is_open(const struct job *job)
{
    return job->state == JOB_RESTING || job->state == JOB_STEPPING || job->state == JOB_EVALUATING;
}

void job_init(struct job *job); /* no job; its hub stays */
void job_enter(struct job *job, enum job_state state);
/* Zeroed, in the ledger until job_free. Owned: free. NULL: there is no memory. */
void *job_take_table(struct job *job, size_t n, size_t size);
/* The track, or NULL where the job is not traced. */
struct trace *job_trace(const struct job *job, struct trace *track);
void job_close_fds(const int *fds, unsigned n);

/* Judges a request and sizes everything; takes fds. False: it was refused. Then whoever has tables of its own for a job
 * takes them, and job_load begins, or job_end says why not. */
bool job_begin(struct job *job, struct peer *client, const struct message *m, const int *fds, unsigned n_fds);
void job_load(struct job *job);
/* The optimizer thread has loaded it, or given its memory back. */
void job_on_called(struct job *job, const struct updater_task *work);
/* An answer of a worker's to ASSIGN, or to RELEASE. */
void job_on_assigned(struct job *job, struct peer *worker, const struct message *m);
void job_on_released(struct peer *worker);
/* Answers a pull. */
void job_send_weights(struct job *job, struct peer *worker, uint64_t version, uint32_t unit);

/* Ends the job, whatever it is doing: code 0 is the client's own CLOSE. Nothing new begins; what goes on, comes to its
 * end. Does nothing without a job. */
void job_end(struct job *job, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Of an ending job that nobody saves from any more: some worker or the optimizer thread is still at its memory. */
bool job_is_in_use(const struct job *job);
/* Nobody is: the optimizer thread is to give its memory back. */
void job_unload(struct job *job);
/* It has: the rest, and no job afterwards. The client to be told that its job is closed, or NULL. */
struct peer *job_free(struct job *job);

#endif
