/* eps/save/capture.h - one version of the model on its way to disk: as a checkpoint in the output directory, or as a snapshot
 * into a viewer's files.
 *
 * Units come in any order, each while it stands still. Calls wait for disks, so they are not for the loop thread; one
 * thread at a time. */
#ifndef EPS_SAVE_CAPTURE_H
#define EPS_SAVE_CAPTURE_H

#include "eps/store/store_files.h"
#include "proto/model/checkpoint.h"
#include "proto/plan/products.h"

#include <stdbool.h>

/* Files that came open: of a snapshot these; of a checkpoint without a directory weights, moments, then config.json,
 * what came with the model in the order of the side file, and training.json. */
enum capture_file { CAPTURE_WEIGHTS, CAPTURE_CONFIG, CAPTURE_SIDE, CAPTURE_FILES };
enum { CAPTURE_MOMENTS = 1, CAPTURE_SMALL, CAPTURE_MOST = CHECKPOINT_MAX_FILES + 1 };

/* All borrowed, until the capture is over. */
struct capture_options {
    const struct store *store; /* which trains */
    uint64_t step;
    const char *config; /* config.json as it came */
    size_t config_bytes;
    const char *side; /* the job's side file, which capture_check_side liked; NULL: none */
    size_t side_bytes;
    uint32_t microbatch;      /* rows that all workers chose, recorded in the options; 0: they differ */
    struct products products; /* that all of them have; so are these; version 0: none */
    bool checkpoint;
    int output; /* of a checkpoint: the directory; -1: its files came open, and its place is somebody else's business */
    int files[CAPTURE_MOST]; /* (n_files), emptied first */
    unsigned n_files;
};

struct capture {
    struct capture_options options;
    bool open;
    int directory;              /* step-N.partial, or -1 */
    int weights_fd, moments_fd; /* of a checkpoint, or -1 */
    unsigned n_used;            /* files that came open and are written, or being written */
    struct store_files *files;  /* the store's: one capture at a time is open */
    struct checkpoint checkpoint;
};

/* 0 if it is JSON {"options": {...}, "files": {NAME: TEXT, ...}} with names that a checkpoint may have beside its own
 * four; else -EINVAL with a sentence. */
int capture_check_side(const char *side, size_t side_bytes, struct error *err);

/* The algorithms of products in such a side file's options: none where it has none. -EINVAL, -ENOMEM with a sentence. */
int capture_side_products(struct products *out, const char *side, size_t side_bytes, struct error *err);

/* Makes or empties the files. On failure, here and below: -errno with a sentence that names the file and what to do
 * about it; capture_discard is due. */
int capture_open(struct capture *capture, const struct capture_options *options, struct error *err);
int capture_write(struct capture *capture, uint32_t unit, struct error *err);
/* All units are written: the rest, and of a checkpoint its name, all of it on disk. Nothing is open afterwards. */
int capture_finish(struct capture *capture, struct error *err);
/* Closes and removes what there is. Safe on a zeroed one, and after finish. */
void capture_discard(struct capture *capture);

#endif
