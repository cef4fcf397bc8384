/* eps/hosts/host_message.h - messages between the daemons of a job on several hosts.
 *
 * All hosts run the same build (the module checks that), so all messages have one form: a fixed header and a text.
 * Fields that a kind does not list are 0. Host 0 has the client. A slice comes with a message, which names the
 * contribution (HOST_SLICE). */
#ifndef EPS_HOSTS_HOST_MESSAGE_H
#define EPS_HOSTS_HOST_MESSAGE_H

#include "proto/base/block_sum.h"
#include "proto/base/error.h"
#include "proto/operation/call/preference.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum host_message_kind {
    HOST_JOB = 1, /* 0 to all. job, bytes: fetch the request from REGION_TEXT, and begin the job */
    HOST_READY,   /* to 0: all its workers have their memory */
    HOST_END,     /* to 0, and from 0 to all. code, text: the job ends, and why. 0: closed by the client */
    HOST_QUIET,   /* to all: the job has ended here, and this host uses no other's memory any more */
    HOST_STOP,    /* to 0, and from 0 to all, who answer with it: the daemon stops */
    HOST_HERE,    /* to all, first. id: the daemon's process. text: the name of its machine */
    HOST_ASKED,   /* to all. code 1: the launcher has told this host to stop; the run may save first. 0: it has not */
    HOST_WORKERS, /* to 0. id: how many workers are attached here now */
    HOST_OPEN,    /* 0 to all. step, buffer, n_tokens, n_valid, n_real, x: lr. The minibatch is to be fetched first */
    HOST_LOSS,    /* to all. step, part, x: its sum of losses; fenced: NAN if it is not finite. rewards */
    HOST_SLICE,   /* with a slice, to the owner. step, visit, part, slice; sum, if the goal checks memory */
    HOST_GRANT,   /* owner to a host. step, visit, part, slice: the reserved slot is for this one */
    HOST_UPDATED, /* owner to all. step, unit: the unit's next version is there */
    HOST_NORMS,   /* owner to all. step, unit: what it remembers of the step's tokens is in its REGION_DATA */
    HOST_SQUARES, /* to 0, before COVERED, if fenced and not skipped. step, unit, x: its gradient's sum of squares */
    HOST_COVERED, /* to 0. step, code: 1 if fenced, and skipped by this owner */
    HOST_VERDICT, /* 0 to all, if fenced. step, x: the norm of the gradient; NAN: the step is skipped */
    HOST_DONE,    /* to 0. step: every unit's next version is here */
    /* to 0. id, code, text: LOST of a worker. 1: the job waits; enum message_loss * 2. Device, host, why in lines */
    HOST_LOST,
    HOST_WAITS,  /* to 0. code: 1: the job waits for a worker there; 0: no more */
    HOST_SAVE,   /* 0 to all. step, id: a checkpoint of this version begins */
    HOST_FILES,  /* 0 to all. id: the checkpoint's files are made */
    HOST_RUNS,   /* to 0. id, bytes: this host's units are written; their checksums are in REGION_TEXT */
    HOST_SAVED,  /* 0 to all. id, code: the checkpoint has ended */
    HOST_FAILED, /* to 0. id, code, text: this host's units could not be written */
    HOST_KINDS
};

/* Memory that hosts fetch from each other. */
enum word_region { REGION_WEIGHTS, REGION_DATA, REGION_TEXT };

struct host_message {
    enum host_message_kind kind;
    uint32_t unit, visit, part, slice, buffer, n_tokens, job, id;
    int32_t code;
    uint64_t step, bytes, n_valid, n_real;
    struct block_sum sum;
    double x;
    struct preference_rewards rewards;
    char text[ERROR_TEXT_BYTES];
};

enum { HOST_HEADER_BYTES = 10 * 4 + 12 * 8, HOST_MESSAGE_MAX_BYTES = HOST_HEADER_BYTES + ERROR_TEXT_BYTES };

/* Writes the message to buf (HOST_MESSAGE_MAX_BYTES). Returns its length. */
size_t host_message_encode(uint8_t *buf, const struct host_message *message);
/* False: the bytes are no such message. */
bool host_message_decode(struct host_message *out, const uint8_t *buf, size_t n);

#endif
