/* eps/step/spread_state.h - the state of a job on several hosts. For eps/step/spread.c, which talks with the other hosts,
 * eps/step/spread_job.c, which begins the job and ends it, eps/step/spread_step.c, which has the step,
 * eps/step/spread_ring.c, which has other hosts' units, and eps/step/spread_end.c, which ends the step; everyone else
 * includes eps/step/spread.h. */
#ifndef EPS_STEP_SPREAD_STATE_H
#define EPS_STEP_SPREAD_STATE_H

#include "eps/hosts/word.h"
#include "eps/step/spread.h"

enum {
    SPREAD_SLOTS = 4, /* of a host at an owner, the reserved one included */
    SPREAD_LENT = 2,  /* units of the ring that a worker has at a time */
    SPREAD_PULLS = HUB_MAX_WORKERS * (STEPS_MAX_PULLS + SPREAD_LENT),
    SPREAD_SILENCE_MS = 60000,
};

/* Of one fetch. */
#ifndef SPREAD_FETCH_BYTES /* tests of small models want some in several pieces */
#define SPREAD_FETCH_BYTES (64 << 20)
#endif

/* A slice of a contribution, in a worker's inbox, whose unit's owner is to fold it. */
struct spread_slice {
    struct contribution_name name; /* part: of all hosts' */
    uint32_t unit;
    struct job_seat *seat;
    const void *data;
    uint64_t bytes;
    bool checked; /* it is finite */
};

/* A slice of another host in one of its slots here. */
struct spread_slot {
    bool taken, held; /* held: its step is not open here yet */
    struct word word;
};

struct spread_host {
    struct word *words; /* (n_words) that wait for room to it */
    size_t n_words, cap_words;
    bool is_sent[SPREAD_SLOTS]; /* slots of it that are in use: */
    struct spread_slice sent[SPREAD_SLOTS];
    bool is_granted; /* its reserved slot, for: */
    struct word grant;
    struct spread_slot slots[SPREAD_SLOTS]; /* its own slots here */
    bool ready, waits;                      /* it is in the job; it waits for a worker */
    char name[64];                          /* of its machine, and its process there; empty: it has not told */
    uint32_t pid;
    bool is_told;           /* the launcher has told it to stop */
    bool has_answered;      /* since the launcher told a host to stop */
    bool stop_heard;        /* between host 0 and another: nothing but words of a job follows */
    uint32_t n_quiet;       /* jobs that it has ended, and this host has not */
    uint32_t n_workers;     /* attached to it, as it told host 0; as this host told, in its own entry */
    uint64_t covered, done; /* steps, on host 0 */
    char *notes;            /* (n_notes_bytes) of what it wrote for this save: */
    uint64_t n_notes_bytes;
    uint32_t save, n_left_notes;
};

/* Part of what is to be read of another host. */
struct spread_fetch {
    uint32_t from;
    enum word_region region;
    uint64_t offset;
    char *into;
    size_t bytes;
    uint64_t token;
};

/* A slot of the ring. */
struct spread_ring_slot {
    bool taken; /* it has, or is to have: */
    uint32_t unit;
    uint64_t turn;      /* of its weights, as in spread.turns */
    uint64_t version;   /* of that turn */
    uint32_t n_left;    /* fetches under way; 0: it is here */
    uint32_t n_readers; /* workers that it is lent to */
    uint64_t used;      /* when it was lent or fetched last: a count */
};

/* What a worker pulled of another host's unit. */
struct spread_pull {
    uint32_t worker, unit;
    uint64_t version;
    bool answered; /* by local, with: */
    uint64_t turn;
    struct spread_ring_slot *slot; /* lent; NULL: not yet */
};

/* Tokens of fetches: of a table that is kept here, its unit's number; of a slot of the ring. */
enum {
    SPREAD_TOKEN_RING = 1 << 29,
    SPREAD_TOKEN_DATA = 1 << 30,
    SPREAD_TOKEN_REQUEST,
    SPREAD_TOKEN_NOTES /* and the host */
};

/* Local is to be told that a fold has ended. */
struct spread_folded {
    uint32_t unit, slice;
    struct job_seat *seat;
    bool ok;
};

enum spread_unit {
    SPREAD_WANTED = 1, /* local waits for its next version */
    SPREAD_HERE = 2,   /* it stands at its owner, and here if it is kept; or there is none, as the step is skipped */
    SPREAD_DUE = 4,    /* fenced: own is to update it, if the step counts */
};

struct spread {
    struct steps *steps;
    struct job *job;
    struct hub *hub;
    const struct hosts_ops *ops;
    struct hosts *hosts;
    uint32_t host, n;
    char *inbox;
    size_t inbox_bytes;
    struct spread_host *others; /* (n), this one included */
    bool stops, stop_said, here_said;
    bool is_asked, is_told; /* the launcher has told another host to stop; or this one */
    bool is_lost;
    char lost[ERROR_TEXT_BYTES];

    /* The job that the hosts share: */
    bool shared;  /* from the request until every host is quiet */
    bool is_open; /* READY was said */
    bool told_waits;
    bool end_said, end_heard, quiet_said;
    int end_code; /* heard */
    char end[ERROR_TEXT_BYTES];
    char *text; /* the request: told by host 0, or fetched */
    size_t text_bytes;
    bool has_text;   /* it is here whole, and the job is not begun yet */
    bool is_refused; /* it could not be begun */
    struct word next_job;
    bool has_next_job;
    bool next_has_ended;          /* host 0 has said so already */
    void *tables;                 /* one block (job.hosts_tables) with: */
    uint32_t *owner;              /* (n_units) host */
    struct plan_own *owns;        /* (n hosts) what each has */
    uint64_t *turns;              /* (n_units) of others: how often its weights have changed since the job began */
    uint32_t *not_own;            /* (n_units) those of others, and frozen ones: own leaves them alone */
    uint8_t *units;               /* (n_units) enum spread_unit */
    uint32_t *n_left;             /* (n_units) fetches of tables under way */
    struct spread_slice *queue;   /* (n_queue) to be sent */
    struct spread_folded *folded; /* (n_folded) oldest first */
    uint32_t *arrived;            /* (n_arrived) units that local can be told of */
    size_t n_queue, n_folded, n_arrived, cap_slices;
    struct spread_fetch *fetches; /* (n_fetches) that are not begun */
    size_t n_fetches, cap_fetches;
    uint32_t n_fetching, n_left_data, n_left_text;
    struct spread_ring_slot ring[2 * MESSAGE_MAX_PARTS + 1]; /* (job.host.n_ring) */
    struct spread_pull pulls[SPREAD_PULLS];                  /* (n_pulls) oldest first */
    size_t n_pulls;
    uint64_t n_used;
    uint32_t ahead; /* a unit to be fetched before it is pulled; UINT32_MAX: none */

    /* Its step: */
    uint64_t n_opened;   /* of own */
    struct message open; /* the OPEN_STEP */
    bool opening;        /* its minibatch is being fetched */
    bool own_covered, local_covered, told_covered;
    bool own_skipped; /* fenced: this host's owner has skipped the step */
    bool any_skipped; /* host 0: of the owners that are covered */
    bool is_decided;  /* the verdict is known */
    bool local_done;  /* already before it */
    uint64_t n_done;  /* steps that all hosts have done: host 0 */
    struct hyper hyper;
    struct word held[MESSAGE_MAX_PARTS]; /* (n_held) losses of the step after */
    uint32_t held_from[MESSAGE_MAX_PARTS];
    uint32_t n_held;
};

/* To another host. Words arrive in order. */
void spread_say(struct spread *s, uint32_t to, const struct word *word);
void spread_say_all(struct spread *s, const struct word *word);
/* Host 0: to all others; they: to host 0. */
void spread_tell(struct spread *s, const struct word *word);
/* Adds what is to be fetched, in pieces; returns their number. -ENOMEM ends the job, and 0 is returned. */
uint32_t spread_fetch(struct spread *s, const struct spread_fetch *whole);

/* In spread_job.c. */
void spread_on_job(struct spread *s, const struct word *word);
void spread_on_ready(struct spread *s, uint32_t host);
void spread_on_end(struct spread *s, uint32_t from, const struct word *word);
bool spread_begin_next(struct spread *s); /* the next job, which was told here */
bool spread_job_go_on(struct spread *s);

/* In spread_step.c. */
int spread_take_tables(struct spread *s);
void spread_on_slice(struct spread *s, uint32_t from, uint32_t slot, const struct word *word);
void spread_on_freed(struct spread *s, uint32_t owner, uint32_t slot);
void spread_on_word_of_step(struct spread *s, uint32_t from, const struct word *word);
void spread_on_data_fetched(struct spread *s);
bool spread_step_go_on(struct spread *s);

/* In spread_ring.c. */
void spread_ring_open(struct spread *s, uint64_t step);
void spread_on_ring_fetched(struct spread *s, uint32_t slot);
bool spread_ring_go_on(struct spread *s);
bool spread_ring_is_fetching(const struct spread *s, uint64_t step); /* its version, or one before */

/* An update of own. */
void spread_submit(struct spread *s, const struct relay_action *a);

/* In spread_end.c. */
void spread_on_unit_fetched(struct spread *s, uint32_t unit);
void spread_on_updated(struct spread *s, const struct updater_task *work);
void spread_on_word_of_end(struct spread *s, uint32_t from, const struct word *word);
bool spread_end_go_on(struct spread *s);

#endif
