/* proto/plan/memory/files.h - memory for reading and writing a job's files, reserved before any is opened.
 *
 * Sizes follow from the model alone, so a job that begins can save. */
#ifndef PROTO_PLAN_MEMORY_FILES_H
#define PROTO_PLAN_MEMORY_FILES_H

#include "proto/model/model.h"
#include "proto/model/widths.h"

#include <assert.h>
#include <stdint.h>

/* Buffer in which runs of a checkpoint's file are joined or widened, unless everything is fp32, and filters
 * arranged. */
enum { PLAN_HOST_RUN_BYTES = 4 << 20 };

static_assert(MODEL_WIDEST * sizeof(float) <= PLAN_HOST_RUN_BYTES, "a run holds a row of the widest matrix");

/* Rows of a filter (model_is_filter), or of a sparse matrix, in a run: at least one. No family has wider rows than
 * MODEL_WIDEST. */
static inline uint64_t plan_filter_rows(uint64_t columns)
{
    assert(columns > 0 && columns <= MODEL_WIDEST);
    return PLAN_HOST_RUN_BYTES / sizeof(float) / columns;
}

/* True if a job of this model has that buffer. */
bool plan_has_run(const struct model *model, bool narrow);

/* Reserved once for all checkpoints of a job (eps/store/store_files.h): upper bounds on each file's header bytes and on
 * its hashed runs. n_moments: plan_moments; moments: their form. */
struct plan_host_files {
    uint64_t weights_header, moments_header; /* bytes */
    uint64_t weights_runs, moments_runs;
    uint64_t bytes; /* the whole reserve, offsets and counts included */
};
void plan_host_files(struct plan_host_files *out, const struct model *model, unsigned n_moments,
                     enum number_type moments);

/* Bytes of the reserve into which headers of files are read (store_load, store_load_moments), kept until the job ends.
 * 0 without files. */
uint64_t plan_load_bytes(const struct model *model, uint32_t n_files, uint64_t header_bytes);

/* From the files of weights that a run begins with (none: fresh weights) and their headers' bytes to upper bounds on
 * those of a checkpoint that it saves, as plan_load_bytes takes them: an adapter's base stays where it is. */
void plan_count_checkpoint(uint32_t *n_files, uint64_t *header_bytes, const struct model *model, unsigned n_moments,
                           enum number_type moments);

#endif
