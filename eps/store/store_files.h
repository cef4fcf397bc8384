/* eps/store/store_files.h - a checkpoint's weights and optimizer.safetensors, written unit by unit.
 *
 * A checkpoint's units are captured in the order in which the relay holds them back, while the optimizer works on the
 * others. So both files are laid out in advance, and each unit's weights and moments are written to their places when
 * it is captured. They are hashed and written in runs of at most 4 MiB. Moments, and weights in fp32, are as the files
 * have them, and are written from the store's own memory. Other weights are joined or widened, one run at a time and
 * exactly, in the store's buffer of that size.
 *
 * On several hosts, each writes its own units to their places in the same two files. Host 0, which owns the first unit,
 * begins, and the others begin after it. Each of them ends with what it wrote on the disk, and host 0 gets a note of
 * each run and count from them (store_files_notes, store_files_add) before it ends.
 *
 * One save at a time: begin, then each own unit once, then end. Every call blocks on the disk and is meant for the
 * checkpoint thread. store_files_write reads that unit of the store and nothing else of it. After a failed call the
 * files hold nothing of use; the next begin, with other files, starts afresh. */
#ifndef EPS_STORE_STORE_FILES_H
#define EPS_STORE_STORE_FILES_H

#include "eps/store/store.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/safetensors.h"

struct store_files {
    const struct store *store;                          /* borrowed */
    struct safetensors_layout weights, moments;         /* moments zeroed without training */
    uint64_t *updates;                                  /* (n_tensors) as captured; UINT64_MAX: not yet */
    struct checkpoint_run *weights_runs, *moments_runs; /* (n_..._runs) lent to each checkpoint, if reserved */
    size_t n_weights_runs, n_moments_runs;
    /* The save under way: */
    struct file to_weights, to_moments;                  /* to_moments: or not open */
    struct checkpoint_file *weights_file, *moments_file; /* borrowed; NULL where no checksums are wanted */
    uint32_t n_written;                                  /* own units */
};

/* A note to host 0 of what another host has written: a run of one of the files, or a tensor's count of updates. It has
 * no pointer and no padding, so its bytes may be sent. */
enum store_files_kind { STORE_FILES_WEIGHTS, STORE_FILES_MOMENTS, STORE_FILES_UPDATES };
struct store_files_note {
    uint32_t kind;   /* enum store_files_kind */
    uint32_t tensor; /* STORE_FILES_UPDATES: the tensor */
    uint64_t updates;
    struct checkpoint_run run; /* STORE_FILES_WEIGHTS, STORE_FILES_MOMENTS: the run */
};

/* Lays out both files (optimizer.safetensors only if the store trains), for any number of saves. -ENOMEM. Undo:
 * store_files_free. */
int store_files_init(struct store_files *files, const struct store *store, struct error *err);
/* For a store that trains: takes everything that a save needs in advance, as plan_host_files counts it. A checkpoint
 * must give back its share of it before store_files_free. -ENOMEM. */
int store_files_reserve(struct store_files *files, struct error *err);
void store_files_free(struct store_files *files); /* safe on a zeroed one */

/* True on host 0, and where there is one host: it owns the first unit. */
bool store_files_lead(const struct store_files *files);

/* Writes the headers into empty files (which stay the caller's) and asks for their whole size, so that a full disk is
 * known before anything else is written. On a host that does not lead, the files are those that host 0 has begun, and
 * there is a checkpoint (asserted); nothing is written. to_moments not open: weights alone. checkpoint: gets both
 * files' entries and, as they are written, their checksums; NULL: neither checksums nor flushing (a snapshot). -ENOSPC,
 * -errno, -ENOMEM. */
int store_files_begin(struct store_files *files, struct file to_weights, struct file to_moments,
                      struct checkpoint *checkpoint, struct error *err);

/* Writes an own unit (asserted) as it is now: weights, moments, its count of updates. The unit must not change
 * meanwhile. -EIO too if memory is checked, and the unit's is damaged: nothing that was written counts. */
int store_files_write(struct store_files *files, uint32_t unit, struct error *err);

/* After every own unit (asserted). Leading: writes "updates", and flushes both files if there is a checkpoint; -EPROTO
 * with a sentence if other hosts' notes are missing. Else: flushes. */
int store_files_end(struct store_files *files, struct error *err);

/* After store_files_end on a host that does not lead (asserted): copies at most n notes, from number `first` on, and
 * returns how many. 0: there are no more. Valid until the checkpoint is freed. */
size_t store_files_notes(struct store_files_note *out, size_t n, const struct store_files *files, uint64_t first);
/* The most notes that a host can have: all runs that both files have room for, and a count of each tensor. */
uint64_t store_files_most_notes(const struct store_files *files);
/* On host 0 (asserted), between begin, with a checkpoint, and end: takes notes of another host. Nothing in them is
 * trusted: -EPROTO with a sentence. */
int store_files_add(struct store_files *files, const struct store_files_note *notes, size_t n, struct error *err);

#endif
