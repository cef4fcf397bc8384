/* tests/kit/driver.h - a client and viewers of a real daemon, one message at a time: what libeps does, taken apart, so
 * that a test can say when. The model is tiny, with dropout; tokens follow from the step. Everything asserts. */
#ifndef TESTS_KIT_DRIVER_H
#define TESTS_KIT_DRIVER_H

#include "client/daemon/files.h"
#include "client/daemon/link.h"
#include "proto/wire/segment.h"

#include <stdbool.h>

enum { DRIVER_BATCH = 4, DRIVER_SEQ = 16, DRIVER_MAX_SAVES = 32 };
enum { DRIVER_PADDING = 5 }; /* tokens of a step that the driver calls padding */

struct driver_options {
    bool adamw, only_looks;          /* only_looks: a job that does not train */
    bool fenced, folded, fp16;       /* fp16: of weights, not of gradients on their way */
    bool bf16, no_master, bf16_sums; /* as in struct plan_goal; whether the daemon takes them or not */
    bool checks_memory;              /* as there */
    double clip_norm, clip_update;
    bool sgd, nesterov; /* as in struct plan_goal, */
    double momentum;    /* and so is this */
    uint32_t n_parts, microbatch;
    uint64_t audit_every;
    const char *out;     /* directory that exists, or NULL */
    bool files;          /* instead: OUTPUT comes, and is the test's to answer */
    bool mute;           /* to a daemon of another user: nobody answers for the files that it serves */
    const char *resume;  /* step-N/, or NULL: fresh weights */
    uint64_t step;       /* its N */
    uint64_t headers;    /* bytes that its files' headers are said to have; 0: the truth */
    const char *side;    /* JSON, or NULL */
    uint32_t n_layers;   /* 0: 2 */
    uint32_t vocabulary; /* 0: 256; a large one's update outlasts many messages */
    /* Not 0: gradients are sampled, of 2 layers with relu and no dropout, and norms of so many tokens are remembered.
     * The driver's data are then the whole segment. */
    uint32_t entries;
    uint32_t (*entry)(uint64_t step, uint32_t token); /* of a token of the minibatch, if there are entries */
};

struct driver {
    struct client_link link;
    struct driver_options options;
    struct client_files *files; /* that it serves to a daemon of another user; or NULL */
    int fds[5];                 /* (n_fds) of them */
    unsigned n_fds;
    int mute_socket; /* where the daemon asks, if nobody answers */
    struct segment data;
    struct message opened_with; /* JOB_OPENED */
    uint64_t opened, arrived, covered, done;
    struct message last_done;         /* DONE */
    uint64_t saved[DRIVER_MAX_SAVES]; /* (n_saved) steps of SAVED, as they came */
    unsigned n_saved, n_failed, n_stops, n_lost;
    struct message failed; /* the last SAVE_FAILED */
    struct message lost;   /* the last LOST */
};

extern const char driver_config[]; /* of 2 layers */

/* What a job says of the headers of its files, of which the last two are weights and moments: those of the one that has
 * more; some, if they are no such files. */
uint64_t driver_header_bytes(const int *fds, unsigned n_fds);
/* Attaches to the daemon of this name. */
void driver_attach(struct client_link *link, const char *name, enum message_role role);
/* The same, and opens a job. */
void driver_open(struct driver *driver, const char *name, const struct driver_options *options);
/* Asks for what the files of a client are served by, and lets nobody answer: mute_socket. */
void driver_open_mute(struct driver *driver);
/* Opens a job, as driver_open, that may be refused: its code and sentence, or 0. */
int driver_try(struct driver *driver, const char *name, const struct driver_options *options, struct error *err);
/* Goes away without a word. */
void driver_leave(struct driver *driver);
void driver_close(struct driver *driver); /* CLOSE, its answer; then leaves */

/* Opens the next step. */
void driver_begin(struct driver *driver);
/* Takes one message in. */
void driver_turn(struct driver *driver);
void driver_await_arrived(struct driver *driver, uint64_t n_steps);
void driver_await_covered(struct driver *driver, uint64_t n_steps);
void driver_await_done(struct driver *driver, uint64_t n_steps);
void driver_await_saves(struct driver *driver, unsigned n); /* saved and failed */
/* Steps until so many have been done since the model's beginning, each opened when the one before is covered. */
void driver_train(struct driver *driver, uint64_t n_steps);
void driver_ask_save(struct driver *driver, uint64_t step);
/* Trains until so many steps are done, and saves: awaits the answer, saved or failed. */
void driver_save(struct driver *driver, uint64_t step);

/* A viewer. */
void driver_look(struct client_link *link, const char *name);
void driver_status(struct client_link *link, struct message *status);
/* Answers for the viewer too while the driver waits, as long as that may take: the daemon gives up a peer that is
 * silent. */
void driver_serve(struct driver *driver, struct client_link *viewer);
/* Sends SAVE, of whichever step comes next, and takes the answer. */
void driver_ask(struct client_link *link, struct message *answer);
/* The next message, whatever it is. */
void driver_next(struct client_link *link, struct message *m);

#endif
