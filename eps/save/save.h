/* eps/save/save.h - checkpoints and snapshots, while the job goes on training.
 *
 * save.c finishes each. save_request.c checks the request and begins it.
 *
 * Of a job on several hosts, each host writes its own units into the files that host 0 makes. All must save the same
 * version, so a save begins between two steps, or waits for the end of the one under way. save_hosts.c has what the hosts
 * tell each other: host 0 that a save begins, that its files are made, and how it ended; the others that their units are
 * written, with a note of each run (eps/store/store_files.h), or that they could not be. */
#ifndef EPS_SAVE_SAVE_H
#define EPS_SAVE_SAVE_H

#include "eps/hosts/host_message.h"
#include "eps/job/job.h"

struct save; /* save_state.h */

enum { SAVE_WAITING = 8 };

struct saves {
    struct job *job;
    struct save *first;   /* oldest first */
    uint8_t *units;       /* (PLAN_HOST_SAVES * n_units) flags for them, if the job trains */
    struct save *writing; /* the save that the writer works on; NULL: none */
    uint64_t n_tasks;     /* that it has done */
    struct silence writer;
    bool told;                      /* that its present task takes too long */
    uint32_t n_readers;             /* number of the relay's last reader */
    bool output_gone;               /* the job's output directory has been removed: nothing more can be saved */
    uint64_t saved_step;            /* of the last checkpoint, or MESSAGE_NO_STEP */
    char trouble[256];              /* why the last save failed, or the present one does not go on; or empty */
    uint32_t waiting[SAVE_WAITING]; /* (n_waiting) viewers whose save begins once the job is aligned */
    unsigned n_waiting;
};

/* A job has begun: takes the tables for it. -ENOMEM. Undo: save_free, which is safe after failure, and twice. */
int save_init(struct saves *saves, struct error *err);
void save_free(struct saves *saves);

/* These three answer the sender themselves. The job is open in the first. */
void save_on_client(struct saves *saves, const struct message *m);
void save_on_viewer(struct saves *saves, struct peer *viewer, const struct message *m);
void save_on_snapshot(struct saves *saves, struct peer *viewer, const int *fds,
                      unsigned n_fds); /* takes fds; 0: it serves files */
/* The client has carried out a request on its own checkpoint files (enum message_output). */
void save_on_output_done(struct saves *saves, const struct message *m);
/* The relay has just opened the job's first step: announces the readers that waited for it. */
void save_on_first_step(struct saves *saves);
/* True if the model's present version is saved. */
bool save_stands(const struct saves *saves);
/* Begins a checkpoint that nobody asked for, of an open job with a directory. 0 also if one is under way; -EBUSY, -ENOMEM. */
int save_without_client(struct saves *saves, struct error *err);
/* The client is gone while its job goes on: saves that need it end. */
void save_on_client_gone(struct saves *saves);
/* RELAY_CAPTURE: a unit does not change until it is released. */
void save_on_capture(struct saves *saves, const struct relay_action *a);
/* The job is aligned again: begins what viewers have asked for meanwhile. */
void save_aligned(struct saves *saves);

/* Several hosts: the next word for the others, from host 0, or for host 0. With HOST_RUNS, *notes (word.bytes) is what
 * host 0 is to fetch; it stays until HOST_SAVED has come. may_end: notes are not being fetched. False: there is none. */
bool save_next_word(struct saves *saves, struct host_message *word, const void **notes, bool may_end);
/* A word of another host; the job is open. */
void save_on_word(struct saves *saves, uint32_t from, const struct host_message *word);
/* Host 0: true if HOST_RUNS of this save is to be followed by a fetch. Until that has ended, save_next_word must not
 * end a save: the other host keeps its notes until it hears HOST_SAVED. */
bool save_wants_notes(const struct saves *saves, uint32_t id);
/* Host 0: notes (n_bytes) of another host, of the save with this id. Takes the memory. */
void save_on_notes(struct saves *saves, uint32_t id, void *notes, uint64_t n_bytes);

/* EVENT_WRITTEN. */
void save_on_written(struct saves *saves);

/* Call each second. Says so if the disk has taken nothing for most_quiet seconds and the time that a slow one needs: no
 * thread can be freed from a file system that does not answer, and a step may wait for what is being written. */
void save_tick(struct saves *saves, unsigned most_quiet);

/* The event that releases a written unit to the relay. False: there is none. */
bool save_take_released(struct saves *saves, struct relay_event *event);
/* The job has ended and the optimizer thread has finished: no unit will come any more. */
void save_on_job_over(struct saves *saves);
/* Call when nothing else is to be done: frees finished saves and gives the writer its next task. */
void save_pump(struct saves *saves);

#endif
