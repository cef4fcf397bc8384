/* eps/save/save.h - checkpoints and snapshots, while the job goes on training.
 *
 * save.c finishes each. save_request.c checks the request and begins it.
 *
 * In a job on several hosts, each host writes its own units into the files that host 0 makes. All must save the same
 * version, so a save begins between two steps, or waits for the end of the one under way. save_hosts.c has the hosts'
 * messages: host 0 tells that a save begins, that its files are made, and how it ended; the others tell that their
 * units are written, with a note of each run (eps/store/store_files.h), or that they could not be. */
#ifndef EPS_SAVE_SAVE_H
#define EPS_SAVE_SAVE_H

#include "eps/hosts/host_message.h"
#include "eps/job/job.h"

struct save; /* save_state.h */

enum { SAVE_WAITING = 8 };

struct saves {
    struct job *job;
    struct save *first;   /* oldest first */
    uint8_t *units;       /* (PLAN_HOST_SAVES * n_units) enum unit_flag, if the job trains */
    struct save *writing; /* the save that the writer works on; NULL: none */
    uint64_t n_tasks;     /* tasks that the writer has done */
    struct silence writer;
    bool told;                      /* it was announced that the writer's present task takes too long */
    uint32_t n_readers;             /* readers numbered so far at the relay */
    bool output_gone;               /* the job's output directory has been removed: nothing more can be saved */
    uint64_t saved_step;            /* step of the last checkpoint, or MESSAGE_NO_STEP */
    char trouble[256];              /* why the last save failed, or the present one does not go on; or empty */
    uint32_t waiting[SAVE_WAITING]; /* (n_waiting) viewers whose save begins once the job is aligned */
    unsigned n_waiting;
    bool held; /* save_hold */
};

/* A job has begun: takes the tables for it. -ENOMEM. Undo: save_free, which is safe after failure, and twice. */
int save_init(struct saves *saves, struct error *err);
void save_free(struct saves *saves);

/* SAVE of the client, whose job is open; SAVE and SNAPSHOT of a viewer. These three answer the sender themselves. */
void save_on_client(struct saves *saves, const struct message *m);
void save_on_viewer(struct saves *saves, struct peer *viewer, const struct message *m);
void save_on_snapshot(struct saves *saves, struct peer *viewer, const int *fds,
                      unsigned n_fds); /* takes fds; 0: it serves files */
/* The client has carried out a request on its own checkpoint files (enum message_output). */
void save_on_output_done(struct saves *saves, const struct message *m);
/* The relay has just opened the job's first step: announces the readers that waited for it. */
void save_on_first_step(struct saves *saves);
/* The next of these readers, for a caller that announces it at once: on several hosts, where slices of that step may
 * have come already. False: there is none. */
bool save_take_reader(struct saves *saves, uint32_t *reader);
/* The step before this version is over: the loss's scale is the version's. */
void save_note_scale(struct saves *saves, uint64_t version);
/* True if the model's present version is saved. */
bool save_stands(const struct saves *saves);
/* True if a checkpoint is being written, and no answer of the client is waited for. */
bool save_goes_on(const struct saves *saves);
/* Begins a checkpoint that nobody asked for, of an open job with a directory. 0 also if one is under way; -EBUSY,
 * -ENOMEM. */
int save_without_client(struct saves *saves, struct error *err);
/* The client is gone while its job goes on: saves into files that it opened end. */
void save_on_client_gone(struct saves *saves);
/* RELAY_CAPTURE: a unit does not change until it is released. */
void save_on_capture(struct saves *saves, const struct relay_action *a);
/* The job is aligned again: begins what viewers have asked for meanwhile. */
void save_aligned(struct saves *saves);

/* Places of sparse weights change at the end of a step (eps/store/rewire.h). Saves of its version wait until they have,
 * from their request to save_resume. save_is_busy: a save reads an older version, or is going to. save_hold: from here
 * on until save_resume, they change; no save is busy (asserted). */
bool save_is_busy(const struct saves *saves);
void save_hold(struct saves *saves);
void save_resume(struct saves *saves);

/* Several hosts: the next message, from host 0 to the others, or from another host to host 0. With HOST_RUNS, host 0 is
 * to fetch *notes (message.bytes), which stays until HOST_SAVED has come. may_end: notes are not being fetched. False:
 * there is no message. */
bool save_next_word(struct saves *saves, struct host_message *message, const void **notes, bool may_end);
/* A message of another host; the job is open. */
void save_on_word(struct saves *saves, uint32_t from, const struct host_message *message);
/* Host 0: true if HOST_RUNS of this save is to be followed by a fetch. Until that has ended, save_next_word must not
 * end a save: the other host keeps its notes until it hears HOST_SAVED. */
bool save_wants_notes(const struct saves *saves, uint32_t id);
/* True if another host may have so many bytes of notes: one note at least, and no more than all hosts have together. */
bool save_may_have_notes(const struct saves *saves, uint64_t n_bytes);
/* Host 0: notes (n_bytes) of another host, of the save with this id. Takes the memory. */
void save_on_notes(struct saves *saves, uint32_t id, void *notes, uint64_t n_bytes);

/* EVENT_WRITTEN. */
void save_on_written(struct saves *saves);

/* Call each second. Warns if the disk has taken nothing for most_quiet seconds and the time that a slow one needs: no
 * thread can be freed from a file system that does not answer, and a step may wait for the units being written. */
void save_tick(struct saves *saves, unsigned most_quiet);

/* The event that releases a written unit to the relay. False: there is none. */
bool save_take_released(struct saves *saves, struct relay_event *event);
/* The job has ended and the optimizer thread has finished: no unit will come any more. */
void save_on_job_over(struct saves *saves);
/* Call when nothing else is to be done: frees finished saves and gives the writer its next task. */
void save_pump(struct saves *saves);

#endif
