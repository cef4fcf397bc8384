/* eps/save/capture.h - writes one version of the model to disk: as a checkpoint in the output directory, or as a
 * snapshot into a viewer's files.
 *
 * On several hosts, each writes its own units. Host 0, which owns the first one, makes the directory, and finishes
 * after it has the notes of all others (eps/store/store_files.h).
 *
 * Units come in any order. None may change while it is written. Calls wait for disks, so they are not for the loop
 * thread; one thread at a time. */
#ifndef EPS_SAVE_CAPTURE_H
#define EPS_SAVE_CAPTURE_H

#include "eps/store/store_files.h"
#include "proto/model/file/checkpoint.h"
#include "proto/operation/products.h"
#include "proto/wire/training_text.h"

#include <stdbool.h>

/* Files that the client or viewer opened. For a snapshot: these three. For a checkpoint without a directory, to write
 * and to read back: weights, moments, config.json, the files that came with the model in the order of the side file,
 * and training.json. */
enum capture_file { CAPTURE_WEIGHTS, CAPTURE_CONFIG, CAPTURE_SIDE, CAPTURE_FILES };
enum { CAPTURE_MOMENTS = 1, CAPTURE_SMALL, CAPTURE_MOST = CHECKPOINT_MAX_FILES + 1 };

/* All borrowed until the capture is over. */
struct capture_options {
    const struct store *store; /* one that trains */
    uint64_t step;
    const char *config; /* config.json as it came */
    size_t config_bytes;
    const char *side; /* the job's side file, accepted by training_text_parse; NULL: none */
    size_t side_bytes;
    uint32_t microbatch;      /* rows, where all workers chose the same; recorded in the options; 0: they differ */
    struct products products; /* algorithms of all workers, recorded likewise; version 0: none */
    const char *attention;    /* their way of attention, a constant string, recorded likewise; NULL: none */
    bool checkpoint;
    int output; /* a checkpoint's output directory; -1: the client opened `files` and puts them in place */
    struct file files[CAPTURE_MOST]; /* (n_files), emptied first */
    unsigned n_files;
};

struct capture {
    struct capture_options options;
    bool open;
    int directory;                /* step-N.partial, or -1 */
    struct file weights, moments; /* open in a checkpoint written to a directory */
    unsigned n_used;              /* open files that are written, or being written */
    struct store_files *files;    /* the store's: one capture at a time is open */
    struct checkpoint checkpoint;
};

/* Makes or empties the files. On a host that does not lead, opens those of the directory that host 0 has made: only
 * checkpoints, with a directory. On failure, here and below: -errno with a sentence that names the file and the remedy;
 * call capture_discard then. */
int capture_open(struct capture *capture, const struct capture_options *options, struct error *err);
int capture_write(struct capture *capture, uint32_t unit, struct error *err);
/* On host 0, before capture_finish: takes notes of another host. */
int capture_add(struct capture *capture, const struct store_files_note *notes, size_t n, struct error *err);
/* Call after all own units are written. Writes the other files, flushes, and closes all; a checkpoint is also read back
 * from the disk and compared, and then gets its name. Content that differs: -EIO. On a host that does not lead:
 * flushes, and leaves all open for capture_notes; then capture_close. scale: of the step that is saved; value 0:
 * none. */
int capture_finish(struct capture *capture, const struct loss_scale *scale, struct error *err);
/* As store_files_notes, after capture_finish on a host that does not lead. */
size_t capture_notes(struct store_files_note *out, size_t n, const struct capture *capture, uint64_t first);
/* Closes what a host that does not lead has opened; what it wrote stays. */
void capture_close(struct capture *capture);
/* Closes and removes what was made; what host 0 made, host 0 removes. Safe on a zeroed capture, and after finish. */
void capture_discard(struct capture *capture);

#endif
