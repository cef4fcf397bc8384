/* proto/wire/message.h - all messages between two processes.
 *
 * One codec for both links of a session (proto/wire/session.h). A message is at most MESSAGE_MAX_BYTES, fixed
 *   little-endian: magic u16 | version u8 | kind u8 | body bytes u16 | zero u16 | sequence u64 | body
 * The sequence counts from 1 in each direction of each link; anything but the next number is refused by the session.
 * Every decoder takes hostile bytes: no length is trusted, every enumeration, count, size and text is checked, and what
 * decodes encodes to the same bytes.
 *
 * Life of a session, and who sends what (C client, W worker, V viewer, D daemon). Messages with [descriptors], or [] if
 * they carry none, go over the connection; the others over the channel, if the session has one:
 *
 *   attach    >D HELLO []; D> WELCOME [] or DISMISSED []; GREETING both ways on the channel, if there is one; D> PING,
 *             >D PONG
 *   job       C>D JOB [config, output directory or -, side file or -, trace or -, weight files..., moments or -];
 *                       config and side file are sealed memory (segment_seal); only the daemon's own user may send a
 *                       directory: see output
 *             D>C JOB_OPENED [data] or REFUSED
 *   files     a client or viewer of another user than the daemon's sends no descriptors, but serves its files
 *             (proto/wire/files.h). any>D FILES before JOB, TAKE or SNAPSHOT; D> FILES [socket, memory, trace or -].
 *             Then JOB names what is in the memory, and files by number: side file or -, weight files..., moments or -;
 *             SNAPSHOT means files 0 to 2. On that socket alone: D>C FILE, C>D FILE_DONE
 *   assign    D>W ASSIGN [weights, inbox, data, config, stash or -, trace or -]
 *             W>D ASSIGNED or REFUSED (it does not fit; the sentence says what would)
 *             C>D CLOSE; D>W RELEASE: memory is given back, the worker waits for the next job
 *   queue     a JOB that must wait: D>C QUEUED when it is queued, and whenever its place changes; JOB_OPENED or REFUSED
 *             once its turn has come
 *   take over the client of a training job died, so the job is detached. C>D DESCRIBE; D>C DESCRIPTION [data, config,
 *             side file, output directory or -]. C>D TAKE makes the sender the job's client; D>C TAKEN says how far its
 *             steps are. REFUSED answers either
 *   step      C>D OPEN_STEP; D>W SHARE, which replaces an earlier one of this step; W>D PULL; D>W WEIGHTS, or VOID if
 *             the pull is stale: nothing that the worker would make of them is taken. It gives that share up; W>D READ
 *             if they are lent; W>D LOSS; W>D CONTRIBUTION; D>W FREE, GRANT. A share may have a part to audit, before
 *             all others: W>D DIGEST for each of its slices, in place of LOSS and CONTRIBUTION;
 *             D>C COVERED (step+1 may be opened, its data written), then DONE (all units at step+1). Before them,
 *             ARRIVED if workers compute in parallel with the optimizer: no worker needs the step's data any more,
 *             step+1 may be opened
 *   map       between steps: C>D MAP; D>C MAPPED [weights]: where units are in the weights' segment; or REFUSED
 *   evaluate  C>D EVALUATE; D>W EVALUATE, PULL, WEIGHTS, READ as above; W>D EVALUATED; D>C EVALUATED
 *   generate  C>D GENERATE; D>W GENERATE, PULL, WEIGHTS, READ as above; W>D GENERATED; D>C GENERATED
 *   save      C>D SAVE, at any moment; V>D SAVE too. Training goes on. When a save ends: D>C SAVED or SAVE_FAILED,
 *             whoever requested it, and D>V SAVED or REFUSED. V>D SNAPSHOT [weights, config, side file]: the weights of
 *             one version are written into the viewer's empty files; D>V SAVED or REFUSED
 *   output    for another user's job: D>C OUTPUT for each checkpoint, to open its files, to put it in place, or to drop
 *             it; C>D OUTPUT_DONE names weights, moments, config, side files..., training.json to the first, nothing to
 *             the second
 *   observe   any>D STATUS; D> STATUS_REPLY, which waits until the requested number of workers is attached
 *             any>D MEMORY; D> MEMORY_REPLY for the host, then one for each worker, the last marked; with the system's
 *             figures on their pages, if requested
 *             any>D UNITS, WORKERS, RECENT; D> UNITS_REPLY (a page of units), a WORKERS_REPLY for each worker, the last
 *             marked, RECENT_REPLY (the last steps)
 *             any>D QUEUE; D> QUEUE_REPLY for each job that waits, the last marked
 *   stop      V>D STOP: D>C STOP; the client saves what it promised and sends CLOSE. Then, after 60 s, or at a second
 *             STOP of the same viewer, the daemon ends its job, tells the client, and exits. With a job's number, it
 *             ends that job alone
 *   drain     V>D DRAIN: a worker finishes its share, then its session ends; D>V DRAIN at once, or REFUSED.
 *             W>D DRAIN: the sender itself leaves so
 *   LOST      D>C: a worker of a training job has gone. Its parts are redone by the others, or by the next worker
 *   FAILED    D>C: the job ended, and why; the session stays
 *   LEDGER    W>D: after ASSIGNED, at the end of each step, after RELEASE
 *   DISMISSED [], either: the session is over, and why; nothing comes after it
 *   BYE       either: closing on purpose */
#ifndef PROTO_WIRE_MESSAGE_H
#define PROTO_WIRE_MESSAGE_H

#include "proto/base/block_sum.h"
#include "proto/base/file.h"
#include "proto/base/ledger.h"
#include "proto/base/number.h"
#include "proto/base/pages.h"
#include "proto/operation/device_name.h"
#include "proto/model/contribution.h"
#include "proto/model/order.h"
#include "proto/model/model.h"
#include "proto/plan/memory/host.h"
#include "proto/plan/time/profile.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MESSAGE_MAGIC = 0xE951,
    MESSAGE_VERSION = 60,
    MESSAGE_HEADER_BYTES = 16,
    MESSAGE_MAX_BYTES = 10 << 10, /* a share of all parts, in an order of as many blocks as a model may have */
    MESSAGE_MAX_PARTS = 64,
    MESSAGE_PAGE_UNITS = 900,     /* in one UNITS_REPLY */
    MESSAGE_MAP_UNITS = 64 << 10, /* in one MAPPED */
    MESSAGE_RECENT_STEPS = 128,
    MESSAGE_DONE_STEPS = 8,             /* in TAKEN: more than can end while a job has no client */
    MESSAGE_MAX_CONFIG_BYTES = 1 << 20, /* size of config.json */
    MESSAGE_MAX_FILES = 128,            /* files that go with a message, as descriptors or by number */
};

enum message_kind {
    MESSAGE_HELLO = 1,
    MESSAGE_WELCOME,
    MESSAGE_GREETING,
    MESSAGE_PING,
    MESSAGE_PONG,
    MESSAGE_JOB,
    MESSAGE_JOB_OPENED,
    MESSAGE_ASSIGN,
    MESSAGE_ASSIGNED,
    MESSAGE_RELEASE,
    MESSAGE_CLOSE,
    MESSAGE_OPEN_STEP,
    MESSAGE_SHARE,
    MESSAGE_PULL,
    MESSAGE_WEIGHTS,
    MESSAGE_READ,
    MESSAGE_LOSS,
    MESSAGE_CONTRIBUTION,
    MESSAGE_FREE,
    MESSAGE_GRANT,
    MESSAGE_ARRIVED,
    MESSAGE_COVERED,
    MESSAGE_DONE,
    MESSAGE_EVALUATE,
    MESSAGE_EVALUATED,
    MESSAGE_GENERATE,
    MESSAGE_GENERATED,
    MESSAGE_SAVE,
    MESSAGE_SAVED,
    MESSAGE_SAVE_FAILED,
    MESSAGE_SNAPSHOT,
    MESSAGE_OUTPUT,
    MESSAGE_OUTPUT_DONE,
    MESSAGE_STATUS,
    MESSAGE_STATUS_REPLY,
    MESSAGE_MEMORY,
    MESSAGE_MEMORY_REPLY,
    MESSAGE_LEDGER,
    MESSAGE_UNITS,
    MESSAGE_UNITS_REPLY,
    MESSAGE_WORKERS,
    MESSAGE_WORKERS_REPLY,
    MESSAGE_RECENT,
    MESSAGE_RECENT_REPLY,
    MESSAGE_STOP,
    MESSAGE_REFUSED,
    MESSAGE_FAILED,
    MESSAGE_DISMISSED,
    MESSAGE_LOST,
    MESSAGE_DRAIN,
    MESSAGE_QUEUED,
    MESSAGE_QUEUE,
    MESSAGE_QUEUE_REPLY,
    MESSAGE_DESCRIBE,
    MESSAGE_DESCRIPTION,
    MESSAGE_TAKE,
    MESSAGE_TAKEN,
    MESSAGE_FILES,
    MESSAGE_FILE,
    MESSAGE_FILE_DONE,
    MESSAGE_VOID,
    MESSAGE_MAP,
    MESSAGE_MAPPED,
    MESSAGE_DIGEST,
    MESSAGE_BYE,
    MESSAGE_KINDS
};

enum message_role { ROLE_CLIENT = 1, ROLE_WORKER, ROLE_VIEWER };
enum message_state {
    STATE_IDLE,
    STATE_LOADING,
    STATE_TRAINING,
    STATE_EVALUATING,
    STATE_GENERATING,
    STATE_STOPPING, /* the daemon ends */
    STATE_WAITING,  /* a step waits for another worker */
    STATE_DETACHED, /* the job's client is gone, and another may take the job over */
    STATE_ENDING,   /* the job gives its memory back */
};

/* The daemon's requests to a client that opens its own checkpoint files. OUTPUT_DROP is not answered. */
enum message_output { OUTPUT_OPEN, OUTPUT_PLACE, OUTPUT_DROP };

/* A worker's current activity. */
enum message_phase { PHASE_RESTING, PHASE_FORWARD, PHASE_BACKWARD, PHASE_EVALUATING, PHASE_GENERATING };
/* A unit's state: idle; its weights are with a worker, or its contribution waits in an inbox; the optimizer thread
 * folds or updates it. One byte on the wire, with UNIT_AHEAD. */
enum message_unit { UNIT_WAITING, UNIT_RELAYING, UNIT_FOLDING, UNIT_UPDATING, UNIT_AHEAD = 4 };

/* Why a job goes on, or begins, without a worker. */
enum message_loss {
    LOSS_WORKING, /* it was lost while the job ran */
    LOSS_EARLY,   /* it was lost before the job was open */
    LOSS_TOLD,    /* it was told to leave, and had finished its share */
    LOSS_UNFIT,   /* it is left out of the job, and stays attached */
};

/* Why a session ended. The sentence beside it is for people. */
enum message_end {
    /* DISMISSED says so of its receiver: */
    END_FAULT,       /* it broke a rule, or failed */
    END_SILENT,      /* it answered no PING; a stopped process or a broken network look alike */
    END_UNREAD,      /* it did not read what it was sent */
    END_TURNED_AWAY, /* it may not have a session, or the daemon stops, or has no room for one */
    /* No message says so: */
    END_CLOSED,     /* on purpose: BYE */
    END_LOST,       /* the other process died, or is silent, or cannot be reached */
    END_UNANSWERED, /* the other process lives, but did not open the session */
    END_BROKEN,     /* this process could not open or use a link */
    END_DISMISSED,  /* this process has sent DISMISSED */
};

/* In SAVE: the next step; from a client only while its open step waits for a worker: SAVE_FAILED with -EAGAIN says that
 * it cannot be saved without that step. In status: nothing saved yet. In PULL: of no step, but for an evaluation or a
 * generation, while no weights change. */
#define MESSAGE_NO_STEP UINT64_MAX

struct message {
    enum message_kind kind;
    uint64_t sequence;
    union {
        struct {
            enum message_role role;
            uint32_t pid;
            uint64_t nonce; /* drawn for this attempt to attach */
            /* For a worker, its device: */
            char device[32];            /* "cpu", "cuda:1" */
            char model[64];             /* "NVIDIA H200"; may be empty */
            char host[64];              /* name of its machine */
            char bus[DEVICE_BUS_BYTES]; /* place on the PCI bus of the daemon's host; empty: none, or on another host */
            uint64_t budget;            /* --device-mem in bytes */
            uint64_t library_bytes; /* what libraries of the budget hold outside any arena; 0: struct plan_backend's */
            uint32_t attention;     /* the best way of cuDNN's attention that it supports: enum plan_attention */
            uint32_t convolution;   /* the library by which it can compute convolutions (device_facts); 0: none */
            struct profile profile; /* all zero: not known */
        } hello;
        struct {
            uint32_t id;       /* the session's, never used twice by one daemon */
            char address[108]; /* the channel's, "ipc:///run/.../s/3-5f0c..."; empty: all goes over the connection */
        } welcome;
        struct {
            uint32_t id;
            uint64_t nonce;
        } greeting;
        struct {
            uint64_t progress;
        } pong;
        struct {
            struct plan_goal goal;
            bool fresh;    /* weights are drawn from seed; no weight files are sent */
            bool output;   /* the output directory's descriptor is sent */
            bool files;    /* no directory is sent: the client opens checkpoint files itself */
            char out[192]; /* the client's name for that directory, for viewers */
            bool side;     /* a file is sent: JSON {"options": {...}, "files": {NAME: TEXT, ...}} for checkpoints */
            bool trace;    /* a file is sent, for appending events: proto/base/trace.h */
            bool resume;   /* the last file is optimizer.safetensors */
            bool saves;    /* --save-every is above 0: if the client of a private daemon dies, the daemon saves first */
            bool deterministic;
            uint64_t step;    /* updates done when the job begins */
            uint64_t n_steps; /* steps of the run, for viewers */
            uint64_t seed;
            uint32_t microbatch; /* rows; 0: the daemon chooses */
            double beta1, beta2, epsilon, weight_decay;
            bool require_pinned;             /* host memory that cannot be page-locked is an error */
            double clip_norm;                /* maximum norm of the gradient, with a fenced commit; 0: not clipped */
            double clip_update;              /* maximum root mean square of a tensor's update; 0: not clipped */
            uint64_t host_mem;               /* bytes of host memory for the job; 0: free memory */
            char freeze[MODEL_FREEZE_BYTES]; /* patterns of frozen tensors: model_freeze */
            /* LATER: another job follows, in which all are trained, so both must fit. THAWED: they are trained, and the
             * moments' file may lack theirs, which begin with zeros. */
            enum model_thaw thaw;
            uint32_t config_bytes; /* size of config.json, in the memory of FILES; 0: descriptors are sent */
            uint32_t side_bytes;   /* size of the side file, if it is served */
            uint32_t n_files;      /* files that are served: weights, then moments */
            uint64_t header_bytes; /* safetensors_header_bytes of the weights' files, or of the moments' if more */
            uint64_t audit_every;  /* steps from one audit to the next (eps/step/audits.h); 0: none is audited */
        } job;
        struct {
            bool trace; /* a socket for events, as in job, is asked for, or sent */
        } files;
        struct {
            uint32_t index; /* the file's number */
            enum file_act act;
            uint32_t window; /* READ: window of the memory to fill; WRITE takes window 0 */
            uint64_t offset; /* RESERVE, TRUNCATE: the length */
            uint64_t bytes;  /* READ, WRITE: how many */
        } file;
        struct {
            int32_t code;  /* 0 or -errno */
            uint64_t size; /* answers SIZE */
        } file_done;
        struct {
            uint64_t n_parameters;
            uint32_t n_workers;
            uint64_t data_bytes;       /* size of the data segment: plan_data_bytes */
            uint64_t resident_bytes;   /* weights that stay on the device while it generates */
            struct plan_choice choice; /* for the first worker; all have its microbatch */
            double predicted_ms;       /* of a step, from measured profiles; 0: not predicted */
            double predicted_compute_ms, predicted_optimizer_ms; /* of these, of the first worker; of the optimizer */
            enum plan_replay replay;
            uint32_t entries; /* the goal's, if norms are remembered; 0: none are */
        } job_opened;
        struct {
            uint32_t config_bytes; /* size of config.json, in its segment: 1..MESSAGE_MAX_CONFIG_BYTES */
            struct plan_goal goal; /* the job's */
            uint64_t seed;
            uint32_t max_parts;     /* parts of this worker's share, at most */
            uint32_t n_slots;       /* slots of its inbox besides slot 0; a slot holds the largest slice */
            uint32_t n_threads;     /* threads that it may use */
            bool takes_turns;       /* blocks until its contribution is folded: it shares cores with the optimizer */
            bool groups;            /* as in struct relay_config: also how far the reserved slot is granted */
            bool trace;             /* the job's: a file is sent */
            uint64_t weights_bytes; /* size of the weights' segment */
            struct plan_choice choice;
            uint32_t attention;        /* how it is computed, the same for all workers of a job: enum plan_attention */
            uint32_t convolution;      /* the library that all workers of the job have for convolutions; or 0 */
            uint64_t host_stash_bytes; /* size of the stash's segment; 0 without one */
            struct products products;  /* algorithms, the same for all workers of a job */
            char freeze[MODEL_FREEZE_BYTES]; /* the job's, of tensors that are frozen now */
        } assign;
        struct {
            uint64_t arena_bytes; /* claimed */
        } assigned;
        struct {
            uint64_t step;     /* from 0: the version that is pulled */
            uint32_t buffer;   /* the data segment's: 0 or 1 */
            uint64_t n_valid;  /* T: labels that count in the whole minibatch */
            uint32_t n_tokens; /* tokens of each row: 1..goal.seq */
            uint64_t n_real;   /* tokens of the minibatch that are not padding, for viewers: 1..batch * n_tokens */
            double lr;
            struct model_drop drop;   /* blocks that the step leaves out, if the job's goal allows it: plan_may_drop */
            struct model_drop frozen; /* blocks that it computes and does not train; only of a goal that chooses */
            struct model_order order; /* in which it computes its blocks; the same */
        } open_step;
        struct {
            uint64_t step;
            uint32_t buffer;
            uint64_t n_valid;
            uint32_t n_tokens;
            uint32_t n; /* parts */
            struct {
                uint32_t part, attempt;
            } parts[MESSAGE_MAX_PARTS];
            double loss_scale;              /* the loss's factor, a power of two: 1 but in fp16 */
            struct model_drop drop, frozen; /* the step's */
            struct model_order order;
            uint32_t audit;   /* a part to audit before the others, counted from 1; 0: none */
            uint32_t audited; /* contributions to this part come with digests; the same */
        } share;
        struct {
            uint64_t version;
            uint32_t unit;
        } pull, read, voided;
        struct {
            uint64_t version;
            uint32_t unit;
            /* Where the unit is that has the trained weights, and the one that has the frozen ones behind them: bytes
             * from the start of the weights' segment, multiples of 64. With replay they may be two. */
            uint64_t at, frozen_at;
            bool lent; /* the place is another unit's next: the worker says READ when it needs it no more */
        } weights;
        struct {
            uint64_t step;
            uint32_t part, attempt;
            double sum; /* sum of -log p over the part's labels, in nats, or of its pairs' losses; not divided by T */
            struct preference_rewards rewards; /* of the part's pairs; else zeros */
            bool finite;
        } loss;
        struct {
            struct contribution_name name;
            uint32_t slot;
            uint64_t digest;      /* if the part is audited: of the slice's bytes and the part's loss; else 0 */
            struct block_sum sum; /* contribution_sum of the slice, if the goal checks memory; else zero */
        } contribution;
        struct {
            struct contribution_name name;
            uint32_t slot;
        } free;
        struct {
            uint64_t step;
            uint32_t visit, part, slice;
            uint64_t digest; /* as a contribution's */
        } digest;
        struct {
            uint64_t step;
        } arrived;
        struct {
            struct contribution_name name;
        } grant;
        struct message_done {
            uint64_t step;
            double loss;                       /* nats per token, or per pair, before this step's update */
            struct preference_rewards rewards; /* of all pairs; else zeros */
            uint64_t device_peak;              /* bytes, of the worker with the most */
            uint64_t host_bytes;
            double grad_norm;    /* norm of the whole gradient, before clipping; NAN if unknown: not fenced, skipped */
            bool skipped;        /* not finite, so nothing was updated (fenced commit) */
            double loss_scale;   /* of the step; 0: gradients are not scaled */
            double optimizer_ms; /* that the optimizer's thread worked since the step before was done; in COVERED 0 */
        } covered, done;
        struct {
            uint32_t first; /* unit */
        } map;
        struct {
            uint64_t step;          /* updates done */
            uint64_t weights_bytes; /* size of the weights' segment */
            uint32_t n_units;       /* of the model */
            uint32_t first, n;      /* units of the page: first .. first+n-1 */
            /* Bit i % 8 of byte i / 8: unit first+i's trained weights are in the second buffer (eps/store/store.h). */
            uint8_t second[MESSAGE_MAP_UNITS / 8];
        } mapped;
        struct {
            uint32_t buffer;
            uint32_t first_row, n_rows; /* rows of the buffer; D>W: the worker's share of them */
            uint32_t n_tokens;          /* as in open_step */
            bool drops;                 /* with the dropout that training has in step `step`, as it computes it */
            uint64_t step;
            bool base; /* without adapters */
        } evaluate;
        struct {
            double sum; /* sum of -log p over its rows' labels, nats */
        } evaluated;
        struct {
            uint32_t n_rows;                             /* 1..PLAN_GENERATE_ROWS, at most the job's microbatch */
            struct plan_tokens rows[PLAN_GENERATE_ROWS]; /* (n_rows) one at least has new tokens */
        } generate; /* GENERATED has no fields: the logits of each row's last token are in the data segment */
        struct {
            uint64_t step; /* updates done: the N of step-N */
        } save, saved;
        struct {
            uint64_t step;
            int32_t code; /* -errno */
            struct error error;
        } save_failed;
        struct {
            uint32_t id; /* the checkpoint's, never used twice in one job */
            uint64_t step;
            enum message_output what;
        } output;
        struct {
            uint32_t id;
            uint32_t first_file, n_files; /* numbers of the opened files; only if OUTPUT_OPEN succeeded */
            int32_t code;                 /* 0, or -errno and why */
            struct error error;
        } output_done;
        struct {
            uint32_t worker; /* its session's id */
            uint32_t pid;
            uint64_t step; /* updates done */
            bool waits;    /* the job goes on only once another worker has joined */
            enum message_loss how;
            char device[32], host[64];
            struct error error; /* why */
        } lost;
        struct {
            enum message_state state;
            uint64_t step, n_steps; /* updates done; steps of the run */
            uint64_t n_parameters;
            uint32_t n_workers;   /* attached; to a client, only those that may compute its user's jobs */
            uint32_t n_foreign;   /* to a client: the other attached workers; to a viewer 0 */
            uint32_t n_elsewhere; /* workers of the daemon's other hosts, as host 0 knows */
            uint32_t lacks;       /* the first host without a worker, counted from 1; 0: there is none */
            uint32_t n_idle;      /* workers without a place in the job; 0 without a job */
            uint32_t n_threads;   /* threads that fold and update */
            uint32_t pid;
            uint32_t uid;        /* the job's owner; without a job the daemon's user */
            uint32_t job;        /* its number; 0: there is none */
            uint32_t n_queued;   /* jobs that wait */
            double loss;         /* the last step's; NAN before the first */
            uint64_t saved_step; /* step of this job's last checkpoint, or MESSAGE_NO_STEP */
            bool saving;
            bool waits; /* the open step goes on only once another worker has joined */
            uint64_t n_audits,
                n_redone; /* of this job: steps audited to the end; results asked for again, as two differed */
            enum number_type precision; /* the job's */
            bool fenced, folded;        /* its commit */
            char model[64];             /* "gpt2 6x384" */
            char out[192];              /* output directory; empty without one */
            char trouble[256];          /* why the last save failed, or the present one does not go on; or empty */
        } status_reply;
        struct {
            uint32_t worker; /* its session's id; 0, from a worker: itself */
        } drain;
        struct {
            uint32_t job; /* numbered from 1 by the daemon; 0: in stop the daemon, in describe the detached job */
        } stop, describe, take;
        struct {
            uint32_t job;
            uint32_t place; /* place in the queue; 1: the next */
        } queued;
        struct {
            bool last;
            uint32_t job;      /* 0: none waits */
            uint32_t pid, uid; /* its client's */
            enum plan_purpose purpose;
            uint64_t step, n_steps; /* updates done when it begins; steps of the run */
            char out[192];          /* the client's name for its output directory */
        } queue_reply;
        struct {
            uint32_t job;
            uint64_t step; /* updates done */
            bool thawed;   /* of what its patterns name, nothing is frozen any more */
            uint32_t config_bytes;
            bool output, files; /* as in job; with output its directory's descriptor is sent */
            char out[192];
            uint32_t n_workers; /* as in job_opened, to the end */
            uint64_t n_parameters, data_bytes;
            struct plan_choice choice;
            enum plan_replay replay;
            uint32_t entries; /* as in job_opened */
            bool weighted;    /* the goal's: its client gives the rows */
        } description;
        struct {
            uint64_t opened, arrived, covered, done; /* steps, counted from the model's beginning */
            bool waits;                              /* the job goes on only once another worker has joined */
            uint32_t n;
            struct message_done steps[MESSAGE_DONE_STEPS]; /* (n) the last ones done, oldest first */
        } taken;
        struct {
            uint32_t n_workers; /* to wait for, at most one such request at a time; 0: answer at once */
        } status;
        struct {
            bool pages; /* request the system's figures, which takes milliseconds */
        } memory;
        struct {
            bool last;
            uint32_t worker; /* its session's id; 0: the host */
            uint32_t pid;    /* the worker's, or the daemon's */
            char device[32];
            char host[64];   /* name of the machine that it runs on */
            uint64_t budget; /* 0: the host's, which is all that is free */
            struct ledger ledger;
            uint64_t planned[LEDGER_CATEGORIES]; /* bytes; all 0: nothing is planned */
            struct pages pages;                  /* the system's figures of the last second, if requested */
        } memory_reply;
        struct ledger ledger;
        struct {
            uint32_t first;
        } units;
        struct {
            uint32_t first, n,
                n_units;      /* units of the page: first .. first+n-1; n_units: the model's. 0 without a job */
            uint64_t version; /* each unit's version; version + 1 with UNIT_AHEAD */
            uint8_t units[MESSAGE_PAGE_UNITS]; /* (n) enum message_unit */
        } units_reply;
        struct {
            bool last;
            uint32_t worker; /* its session's id; 0: there is none */
            uint32_t pid;
            char device[32], model[64], host[64]; /* as in hello */
            uint64_t budget, current, peak;       /* bytes of device memory */
            enum message_phase phase;
            uint32_t visit, n_visits; /* index of its visit; the model's visits, 0: it has no model */
            char unit[32];            /* the visit's unit: "h.3" */
            uint32_t part, n_parts;   /* index in its share; parts of its share */
            uint32_t microbatch;
            uint64_t down_bytes, up_bytes; /* since it attached */
            struct error unfit;            /* why it is left out of the job; empty: it is not */
        } workers_reply;
        struct {
            uint64_t step;       /* updates done by the last of these steps, once it is done */
            uint64_t tokens;     /* tokens of the job so far, padding aside */
            double tokens_per_s; /* rate of the last steps; NAN before the second */
            double step_ms;
            double lr; /* of the last of these steps; NAN before the first */
            uint32_t n;
            float losses[MESSAGE_RECENT_STEPS]; /* (n) nats per token, oldest first */
        } recent_reply;
        struct {
            int32_t code; /* -errno */
            struct error error;
        } refused, failed;
        struct {
            enum message_end end; /* up to END_TURNED_AWAY */
            int32_t code;         /* -errno */
            struct error error;
        } dismissed;
    };
};

/* Bytes written to buf (cap at least MESSAGE_MAX_BYTES). Cannot fail: a field that the decoder would not accept is a
 * bug (assert), except that unprintable bytes of a text become '?', since a sentence may quote a file. */
size_t message_encode(uint8_t *buf, size_t cap, const struct message *m);

/* Gives an encoded message another sequence number. */
void message_number(uint8_t *buf, uint64_t sequence);

/* 0, or -EBADMSG with *out untouched and *why a constant string. buf (n) is borrowed and may hold anything.
 * -EPROTONOSUPPORT for another version of the protocol. */
int message_decode(struct message *out, const uint8_t *buf, size_t n, const char **why);

/* The protocol version of a message of eps, known or not; -1 if it is no such message. */
int message_version(const uint8_t *buf, size_t n);

/* "HELLO"; for logs. A constant string, "?" outside the enum. */
const char *message_name(enum message_kind kind);

/* Of all messages of a kind, from its row in message.c: descriptors may go with it; it does not wait for bytes of
 * earlier ones, which come by another connection; such a peer sends it to the daemon. */
bool message_has_descriptors(enum message_kind kind);
bool message_overtakes(enum message_kind kind);
bool message_is_sent_by(enum message_kind kind, enum message_role role);

#endif
