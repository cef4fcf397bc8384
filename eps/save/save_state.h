/* eps/save/save_state.h - the state of a checkpoint or snapshot under way. For eps/save/save.c, which finishes it, and
 * eps/save/save_request.c, which begins it; everyone else includes eps/save/save.h. */
#ifndef EPS_SAVE_SAVE_STATE_H
#define EPS_SAVE_SAVE_STATE_H

#include "eps/save/capture.h"
#include "eps/save/save.h"

enum {
    SAVE_MOST = 8,    /* checkpoints at a time, and as many snapshots */
    SAVE_VIEWERS = 8, /* viewers that wait for one save */
    SAVE_UNITS = 64,  /* units that the writer is given at once */
};

enum unit_flag {
    UNIT_CAPTURED = 1,
    UNIT_QUEUED = 2, /* given to the writer, or never to be written */
    UNIT_WRITTEN = 4,
    UNIT_HELD = 8, /* the relay waits for its release */
};

/* The answer of the client that a save waits for, if the client opens its files. */
enum save_wait { SAVE_FOR_NOTHING, SAVE_FOR_FILES, SAVE_FOR_PLACE };

enum save_task { SAVE_WRITE, SAVE_FINISH, SAVE_DISCARD, SAVE_CLOSE };

/* Notes of what one host has written, sent to host 0. */
struct save_notes {
    struct save_notes *next;
    struct store_files_note *notes; /* (n) owned */
    size_t n;
};
/* What the hosts have told each other of a save. */
enum save_announced { SAVE_TOLD_BEGIN = 1, SAVE_TOLD_FILES = 2, SAVE_TOLD_RUNS = 4, SAVE_TOLD_END = 8 };

struct save {
    struct save *next;
    struct saves *saves;
    uint64_t step;
    struct loss_scale loss_scale; /* that step's, once the step before it is over; then the writer's */
    uint32_t reader;
    bool checkpoint;       /* it is a checkpoint; else a snapshot */
    bool waits;            /* its version is still to change (save_hold): nothing of it has begun */
    bool announced;        /* the relay knows its reader */
    bool begun;            /* it may have left something to discard */
    bool over;             /* whoever asked has been told the result */
    struct files *files;   /* it is written into these, which its client or viewer serves; or NULL. Held */
    bool by_client;        /* the client opens its files */
    enum save_wait awaits; /* by_client */
    int rc;                /* the reason for giving it up */
    struct error error;
    uint8_t *units; /* (n_units) enum unit_flag: the job's, one of PLAN_HOST_SAVES such runs */
    uint32_t n_captured, n_written;
    bool is_sharded;          /* several hosts write it */
    unsigned told;            /* enum save_announced */
    bool has_files;           /* host 0: the writer has made them */
    bool is_saved;            /* others: host 0 has finished it */
    struct save_notes *notes; /* host 0: the others'. Others: its own; the writer's until it has written them */
    uint32_t n_notes;
    uint32_t viewers[SAVE_VIEWERS]; /* ids of those who asked */
    unsigned n_viewers;
    /* The writer's, while saves.writing is this save: */
    struct capture_options options;
    struct capture capture;
    enum save_task task;
    uint32_t batch[SAVE_UNITS];
    unsigned n_batch;
    int result;
    bool output_gone;
    struct error why;
    uv_work_t work;
};

/* The units that this host writes. */
static inline uint32_t save_n_own(const struct save *s)
{
    return s->saves->job->store.own.end - s->saves->job->store.own.first;
}

/* Writes the save into n files, from number `first` on. */
void save_use_files(struct save *s, struct files *files, uint32_t first, uint32_t n);
/* A unit is held at the save's version, so it may be written. */
void save_capture_unit(struct save *s, uint32_t unit);
/* Adds a save of the version that would be saved now. -EBUSY, -ENOMEM with a sentence. */
int save_add(struct save **out, struct saves *saves, bool checkpoint, struct error *err);
/* Fixes the save's version: units are captured from now on. */
void save_begin(struct save *s);
/* Posts that the relay must hear of the save's reader. */
void save_announce(struct save *s);

/* The save has failed: the relay releases what it still holds for it. */
void save_give_up(struct save *s, int rc, const struct error *err);
/* On the writer: hands the others' notes to the capture, or takes its own. */
int save_do_notes(struct save *s, struct error *err);
void save_free_notes(struct save *s);
/* True if every other host has written its units. */
bool save_has_notes(const struct save *s);
/* Tells whoever asked for the save how it ended. */
void save_conclude(struct save *s);

/* SAVED, or the failure: REFUSED and SAVE_FAILED. err is read only if rc is not 0. */
void save_announce_viewer(struct peer *viewer, int rc, const struct error *err, uint64_t step);
void save_announce_client(const struct job *job, int rc, const struct error *err, uint64_t step);
void save_note_failure(struct saves *saves, const struct error *err); /* for the status */

#endif
