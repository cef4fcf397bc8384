/* These are upper bounds: lengths of names and numbers are known only when a file is written. A bound that is a little
 * too large costs kilobytes; one that is too small would fail a save hours after the job was admitted.
 *
 * A run is what is hashed at a time. A piece begins at most one, and a full buffer ends one, so the two are counted
 * apart and added. */
#include "proto/plan/memory/files.h"

#include "proto/base/reserve.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/weights.h"

#include <string.h>

/* Maximum bytes of a file's header:
 * {"__metadata__":{"format":"pt"},"NAME":{"dtype":"F32","shape":[R,C],"data_offsets":[B,E]},...}. A name has at most 65
 * characters and the prefix, numbers 20, and 52 surround them. */
static uint64_t header_bytes(uint64_t n_tensors, size_t prefix)
{
    enum { FIXED = 64, OF_A_TENSOR = 200 };
    return FIXED + n_tensors * (OF_A_TENSOR + prefix);
}

bool plan_has_run(const struct model *model, bool narrow)
{
    for (const struct model_tensor *t = model->tensors; !narrow && t < model->tensors + model->n_tensors; t++)
        narrow = model_is_filter(t);
    return narrow || model->sparse.keep > 0;
}

/* Runs of a unit's saved tensors. */
static uint64_t count_saved(const struct model *model, const struct model_unit *unit)
{
    uint64_t n_pieces = 0, n = 0;

    for (uint32_t i = 0; i < unit->n_pieces; i++) {
        const struct model_piece *piece = &model->pieces[unit->first_piece + i];
        const struct model_tensor *tensor = &model->tensors[piece->tensor];
        if (tensor->saved && (model_is_filter(tensor) || piece->dense > 0))
            n_pieces += 2 + piece->n_rows / plan_filter_rows(tensor->shape[1]); /* it parts those beside it */
        else if (tensor->saved)
            n_pieces++, n += piece->n;
    }
    return n_pieces + n * sizeof(float) / PLAN_HOST_RUN_BYTES;
}

void plan_host_files(struct plan_host_files *out, const struct model *model, unsigned n_moments,
                     enum number_type moments)
{
    const uint64_t n_tensors = model->n_tensors, n_constants = checkpoint_count_constants(model),
                   n_saved = model->n_saved + n_constants;
    const struct model_adapter *adapter = &model->config.adapter;
    const size_t prefix = adapter->rank == 0 ? 0 : *adapter->within ? CHECKPOINT_PREFIX_BYTES : strlen(ADAPTER_PREFIX);
    /* Counts of updates, moments, norms. */
    uint64_t n_entries = 1 + n_moments * (uint64_t)model->n_trained_tensors + model->n_norm_maps;
    const uint64_t norms_bytes = (uint64_t)model->n_norm_entries * sizeof(uint16_t);
    uint64_t n_runs = 0, n_trained_runs = 0, n_places_runs = 0;

    /* A coded moment is two entries, codes and scales; of a run of codes and one of scales each. */
    const uint64_t n_coded = moments == NUMBER_CODED ? model->n_grouped : 0;

    n_entries += checkpoint_count_places(model) + n_moments * n_coded;

    /* A piece begins at most one run; a run that is full ends one. */
    for (uint32_t p = 0; p < model->n_pieces; p++) {
        n_trained_runs += !model->tensors[model->pieces[p].tensor].frozen;
        n_trained_runs += n_coded > 0 && model->tensors[model->pieces[p].tensor].grouped;
        if (model->pieces[p].dense > 0)
            n_places_runs += 1 + model_places_words(&model->pieces[p]) * sizeof(uint32_t) / PLAN_HOST_RUN_BYTES;
    }
    for (uint32_t u = 0; u < model->n_units; u++) {
        n_runs += count_saved(model, &model->units[u]);
        n_trained_runs += model->units[u].n_trained * sizeof(float) / PLAN_HOST_RUN_BYTES;
    }
    *out = (struct plan_host_files){.weights_header = header_bytes(n_saved, prefix) + n_constants * sizeof(float),
                                    .moments_header =
                                        header_bytes(n_entries, n_coded > 0 ? strlen(CHECKPOINT_SCALES) : 0)};
    out->weights_runs = n_runs + 1 + out->weights_header / PLAN_HOST_RUN_BYTES;
    out->moments_runs = n_moments * n_trained_runs + n_places_runs + 2 + (model->sparse.keep > 0) +
                        model->n_norm_maps * ((norms_bytes + PLAN_HOST_RUN_BYTES - 1) / PLAN_HOST_RUN_BYTES) +
                        (out->moments_header + n_tensors * sizeof(uint64_t)) / PLAN_HOST_RUN_BYTES;
    out->bytes = out->weights_header + out->moments_header + /* offsets, and one more of each file: */
                 (n_saved + 1 + n_entries + 1 + /* updates: */ n_tensors) * sizeof(uint64_t) +
                 (out->weights_runs + out->moments_runs) * sizeof(struct checkpoint_run);
}

uint64_t plan_load_bytes(const struct model *model, uint32_t n_files, uint64_t header_bytes)
{
    const uint64_t places = reserve_rounded((model->n_tensors + 1) * sizeof(uint32_t)) +
                            reserve_rounded((model->n_pieces + 1) * sizeof(uint32_t));
    const uint64_t seen = reserve_rounded(2 * (uint64_t)model->n_tensors); /* moments */

    return n_files == 0 ? 0 : places + seen + weights_memory(model, n_files, header_bytes);
}

void plan_count_checkpoint(uint32_t *n_files, uint64_t *header_bytes, const struct model *model, unsigned n_moments,
                           enum number_type moments)
{
    const bool adapts = model->config.adapter.rank > 0;
    struct plan_host_files files;

    plan_host_files(&files, model, n_moments, moments);
    const uint64_t weights = files.weights_header + (adapts ? *header_bytes : 0);
    *n_files = 1 + (adapts ? *n_files : 0);
    *header_bytes = weights > files.moments_header ? weights : files.moments_header;
}
