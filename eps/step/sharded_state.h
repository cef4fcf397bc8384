/* eps/step/sharded_state.h - the state of a job on several hosts. For eps/step/sharded.c, which talks with the other
 * hosts, eps/step/sharded_job.c, which begins the job and ends it, eps/step/sharded_step.c, which has the step,
 * eps/step/sharded_ring.c, which has other hosts' units, eps/step/sharded_norms.c, which has what is remembered of
 * them, eps/step/sharded_end.c, which ends the step, and eps/step/sharded_commit.c, which steps call; everyone else
 * includes eps/step/sharded.h and commit.h. */
#ifndef EPS_STEP_SHARDED_STATE_H
#define EPS_STEP_SHARDED_STATE_H

#include "eps/hosts/host_message.h"
#include "eps/step/ring.h"
#include "eps/step/sharded.h"

enum {
    SHARDED_SLOTS = 4, /* of a host at an owner, the reserved one included */
    SHARDED_SILENCE_MS = 60000,
};

/* Most bytes of one fetch. */
#ifndef SHARDED_FETCH_BYTES /* tests of small models want some in several pieces */
#define SHARDED_FETCH_BYTES (64 << 20)
#endif

/* A slice of a contribution, in a worker's inbox, whose unit's owner is to fold it. */
struct sharded_slice {
    struct contribution_name name; /* part: of all hosts' */
    uint32_t unit;
    struct job_seat *seat;
    const void *data;
    uint64_t bytes;
    struct block_sum sum; /* as its worker has it, if the goal checks memory */
    bool checked;         /* it is finite */
};

/* A slice of another host in one of its slots here. */
struct sharded_slot {
    bool taken, held; /* held: its step is not open here yet */
    struct host_message message;
};

struct sharded_host {
    struct host_message *messages; /* (n_messages) that wait for room to it */
    size_t n_messages, cap_messages;
    bool is_sent[SHARDED_SLOTS]; /* slots of it that are in use: */
    struct sharded_slice sent[SHARDED_SLOTS];
    bool is_granted; /* its reserved slot, for: */
    struct host_message grant;
    struct sharded_slot slots[SHARDED_SLOTS]; /* its own slots here */
    bool ready, waits;                        /* it is in the job; it waits for a worker */
    char name[64];                            /* of its machine, and its process there; empty: it has not told */
    uint32_t pid;
    bool is_announced;      /* the launcher has told it to stop */
    bool has_answered;      /* since the launcher told a host to stop */
    bool stop_heard;        /* between host 0 and another: nothing but messages of a job follows */
    uint32_t n_quiet;       /* jobs that it has ended, and this host has not */
    uint32_t n_workers;     /* attached to it, as it told host 0; as this host told, in its own entry */
    uint64_t covered, done; /* steps, on host 0 */
    char *notes;            /* (n_notes_bytes) of what it wrote for this save: */
    uint64_t n_notes_bytes;
    uint32_t save, n_left_notes;
};

/* Part of what is to be read of another host. */
struct sharded_fetch {
    uint32_t from;
    enum word_region region;
    uint64_t offset;
    char *into;
    size_t bytes;
    uint64_t token;
};

/* Tokens of fetches: of a table that is kept here, or of norms, the unit's number; of a slot of the ring. */
enum {
    SHARDED_TOKEN_RING = 1 << 29,
    SHARDED_TOKEN_DATA = 1 << 30,
    SHARDED_TOKEN_REQUEST,
    SHARDED_TOKEN_NOTES /* and the host */
};

/* Local is to be told that a fold has ended. */
struct sharded_folded {
    uint32_t unit, slice;
    struct job_seat *seat;
    int result; /* of the check; 0: its owner has folded it */
};

enum sharded_unit {
    SHARDED_WANTED = 1, /* local waits for its next version */
    SHARDED_HERE = 2,   /* it stands at its owner, and here if it is kept; or there is none, as the step is skipped */
    SHARDED_DUE = 4,    /* fenced: own is to update it, if the step counts */
};

struct sharded {
    struct steps *steps;
    struct job *job;
    struct peers *peers;
    const struct hosts_ops *ops;
    struct hosts *hosts;
    uint32_t host, n;
    char *inbox;
    size_t inbox_bytes;
    struct sharded_host *others; /* (n), this one included */
    bool stops, stop_said, here_said;
    bool is_asked, is_announced; /* the launcher has told another host to stop; or this one */
    bool is_lost;
    char lost[ERROR_TEXT_BYTES];

    /* The job that the hosts share: */
    bool shared; /* from the request until every host is quiet */
    bool announced_waits;
    bool end_said, end_heard, quiet_said;
    int end_code; /* heard */
    char end[ERROR_TEXT_BYTES];
    char *text; /* the request: told by host 0, or fetched */
    size_t text_bytes;
    bool has_text;   /* it is here whole, and the job is not begun yet */
    bool is_refused; /* it could not be begun */
    struct host_message next_job;
    bool has_next_job;
    bool next_has_ended;           /* host 0 has said so already */
    void *tables;                  /* one block (job.hosts_tables) with: */
    uint32_t *owner;               /* (n_units) host */
    struct plan_own *owns;         /* (n hosts) what each has */
    uint64_t *turns;               /* (n_units) of others: how often its weights have changed since the job began */
    uint32_t *not_own;             /* (n_units) those of others, and frozen ones: own leaves them alone */
    uint8_t *units;                /* (n_units) enum sharded_unit */
    uint32_t *n_left;              /* (n_units) fetches of the table, or of the norms, under way */
    uint64_t *norms_told;          /* (n_units) the last step, from 1, of whose norms the owner has told all */
    uint64_t *norms_here;          /* (n_units) of others: the last step, from 1, whose norms are here */
    struct sharded_slice *queue;   /* (n_queue) to be sent */
    struct sharded_folded *folded; /* (n_folded) oldest first */
    uint32_t *arrived;             /* (n_arrived) units that local can be told of */
    size_t n_queue, n_folded, n_arrived, cap_slices;
    struct sharded_fetch *fetches; /* (n_fetches) that are not begun */
    size_t n_fetches, cap_fetches;
    uint32_t n_fetching, n_left_data, n_left_text;
    struct ring ring;                 /* (job.host.n_ring) slots */
    uint32_t n_left_ring[RING_SLOTS]; /* of each, fetches under way */
    uint32_t n_left_norms;            /* fetches of norms under way */
    uint32_t n_untold;                /* own units of whose norms others are to be told in this step */

    /* Its step: */
    uint64_t n_opened;   /* of own */
    struct message open; /* the OPEN_STEP */
    bool opening;        /* its minibatch is being fetched */
    bool own_covered, local_covered, announced_covered;
    bool own_skipped; /* fenced: this host's owner has skipped the step */
    bool any_skipped; /* host 0: of the owners that are covered */
    bool is_decided;  /* the verdict is known */
    bool local_done;  /* local is done; others are to hear first that the step is covered, or decided */
    uint64_t n_done;  /* steps that all hosts have done: host 0 */
    struct hyper hyper;
    struct host_message held[MESSAGE_MAX_PARTS]; /* (n_held) losses of the step after */
    uint32_t held_from[MESSAGE_MAX_PARTS];
    uint32_t n_held;
};

/* To another host. Words arrive in order. */
void sharded_say(struct sharded *s, uint32_t to, const struct host_message *message);
void sharded_say_all(struct sharded *s, const struct host_message *message);
/* Host 0: to all others; they: to host 0. */
void sharded_announce(struct sharded *s, const struct host_message *message);
/* Adds what is to be fetched, in pieces; returns their number. -ENOMEM ends the job, and 0 is returned. */
uint32_t sharded_fetch(struct sharded *s, const struct sharded_fetch *whole);

/* ---- for sharded_commit.c ---- */

/* On host 0: the job was planned. Tells the others. The job may have ended when this returns. */
void sharded_forward(struct sharded *s);
/* All workers here have their memory. */
void sharded_get_ready(struct sharded *s);
/* Frees the tables of a job that was open, if any. */
void sharded_free_tables(struct sharded *s);
/* The step is to be opened: by the client on host 0, by host 0 on others. */
void sharded_open_step(struct sharded *s, const struct message *open);
/* Actions of local. */
void sharded_on_fold(struct sharded *s, const struct relay_action *a);
void sharded_on_update(struct sharded *s, uint32_t unit);
void sharded_on_done(struct sharded *s, uint64_t step);
/* Local knows the loss of one of its parts. part: of all hosts' parts. */
void sharded_on_loss(struct sharded *s, uint32_t part, double sum);
/* A worker has no seat any more: LOST, for the client. */
void sharded_on_lost(struct sharded *s, const struct message *lost);
/* Local has answered a worker's pull of a unit of another host that is not kept here, which the ring knows. before:
 * with the weights before the unit's last update. */
void sharded_on_answer(struct sharded *s, const struct peer *worker, uint64_t version, uint32_t unit, bool before);
/* The optimizer thread has done something for an open job. */
void sharded_on_optimizer(struct sharded *s, const struct updater_task *work);
/* Feeds `own`, as steps_feed feeds local. */
void sharded_feed(struct sharded *s, const struct relay_event *event);

/* ---- for each other ---- */

/* In sharded_job.c. */
void sharded_on_job(struct sharded *s, const struct host_message *message);
void sharded_on_ready(struct sharded *s, uint32_t host);
void sharded_on_end(struct sharded *s, uint32_t from, const struct host_message *message);
bool sharded_begin_next(struct sharded *s); /* the next job, which was told here */
bool sharded_job_go_on(struct sharded *s);

/* In sharded_step.c. */
int sharded_take_tables(struct sharded *s);
void sharded_on_slice(struct sharded *s, uint32_t from, uint32_t slot, const struct host_message *message);
void sharded_on_freed(struct sharded *s, uint32_t owner, uint32_t slot);
void sharded_on_message_of_step(struct sharded *s, uint32_t from, const struct host_message *message);
void sharded_on_data_fetched(struct sharded *s);
bool sharded_step_go_on(struct sharded *s);

/* In sharded_ring.c. */
void sharded_on_ring_fetched(struct sharded *s, uint32_t slot);
bool sharded_ring_go_on(struct sharded *s);

/* In sharded_norms.c. */
void sharded_open_norms(struct sharded *s); /* a step opens */
void sharded_on_norms(struct sharded *s, uint32_t from, const struct host_message *message);
void sharded_on_norms_fetched(struct sharded *s, uint32_t unit, bool is_last);
bool sharded_has_norms(const struct sharded *s, uint32_t unit, uint64_t version); /* here; of another host's unit */
bool sharded_norms_go_on(struct sharded *s);

/* An update of own. */
void sharded_submit(struct sharded *s, const struct relay_action *a);

/* In sharded_end.c. */
void sharded_on_table_fetched(struct sharded *s, uint32_t unit);
void sharded_on_updated(struct sharded *s, const struct updater_task *work);
void sharded_on_message_of_end(struct sharded *s, uint32_t from, const struct host_message *message);
bool sharded_end_go_on(struct sharded *s);

#endif
