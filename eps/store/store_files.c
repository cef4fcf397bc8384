/* plan_host_files bounds the runs that are made here, and their arrays are lent to each checkpoint, so that a save
 * allocates nothing for them: checkpoint_add_run asserts that there is room. Whoever cuts or joins pieces otherwise
 * changes both.
 *
 * Counts of updates are one array over all tensors, which is whole when the last unit has been captured: so it is
 * written last. */
#include "eps/store/store_files.h"

#include "eps/store/checks.h"
#include "eps/store/moments.h"
#include "eps/store/norms.h"
#include "eps/store/sparse.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/plan/memory/files.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_BYTES = PLAN_HOST_RUN_BYTES };

int store_files_init(struct store_files *files, const struct store *store, struct error *err)
{
    const struct model *model = store->model;

    *files = (struct store_files){.store = store, .to_weights = file_own(-1), .to_moments = file_own(-1)};
    files->updates = calloc(model->n_tensors, sizeof *files->updates);
    int rc = files->updates ? checkpoint_lay_out_weights(&files->weights, model, err)
                            : error_set(err, -ENOMEM, "no memory for a list of %u tensors", model->n_tensors);
    if (rc == 0 && store->options.train)
        rc = checkpoint_lay_out_moments(&files->moments, model, store_moments(store), store->options.moments, err);
    if (rc != 0)
        store_files_free(files);
    return rc;
}

/* The headers' room is that of the plan, which does not know their text: more than they have. After this, a save takes
 * no memory. */
int store_files_reserve(struct store_files *files, struct error *err)
{
    const struct model *model = files->store->model;
    struct plan_host_files plan;

    plan_host_files(&plan, model, store_moments(files->store), files->store->options.moments);
    assert(files->weights.header_bytes <= plan.weights_header && files->moments.header_bytes <= plan.moments_header);
    char *const weights = realloc(files->weights.header, plan.weights_header);
    files->weights.header = weights ? weights : files->weights.header;
    char *const moments = realloc(files->moments.header, plan.moments_header);
    files->moments.header = moments ? moments : files->moments.header;
    files->n_weights_runs = plan.weights_runs, files->n_moments_runs = plan.moments_runs;
    files->weights_runs = calloc(files->n_weights_runs, sizeof *files->weights_runs);
    files->moments_runs = calloc(files->n_moments_runs, sizeof *files->moments_runs);
    return weights && moments && files->weights_runs && files->moments_runs
               ? 0
               : error_set(err, -ENOMEM, "no memory for the checksums of %u tensors", model->n_tensors);
}

void store_files_free(struct store_files *files)
{
    safetensors_layout_free(&files->weights);
    safetensors_layout_free(&files->moments);
    free(files->updates);
    free(files->weights_runs);
    free(files->moments_runs);
    *files = (struct store_files){0};
}

/* One open file of the two. */
struct target {
    const struct file *to;
    const char *name;
    struct checkpoint_file *file; /* or NULL */
};

/* Without a checkpoint (a snapshot) there are no checksums, and nothing is read back. */
static int write_run(const struct target *to, const void *data, size_t n, uint64_t offset, struct error *err)
{
    const int rc = to->file ? checkpoint_write_run(to->file, to->to, data, n, offset, err)
                            : file_write(to->to, data, n, offset, err);

    if (rc != 0)
        error_prefix(err, to->name);
    return rc;
}

static size_t store_files_run_of(uint64_t left)
{
    return left < RUN_BYTES ? (size_t)left : RUN_BYTES;
}

static int write_runs(const struct target *to, const void *data, uint64_t n, uint64_t offset, struct error *err)
{
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n; done += store_files_run_of(n - done))
        rc = write_run(to, (const char *)data + done, store_files_run_of(n - done), offset + done, err);
    return rc;
}

static struct target weights_target(const struct store_files *files)
{
    return (struct target){&files->to_weights, checkpoint_weights_name(files->store->model), files->weights_file};
}

static struct target moments_target(const struct store_files *files)
{
    return (struct target){&files->to_moments, CHECKPOINT_MOMENTS, files->moments_file};
}

/* Room is reserved before anything is written, so a full disk is found at the beginning of a save, not at its end. */
static int begin_file(const struct target *to, const struct safetensors_layout *layout, struct error *err)
{
    const int rc = file_reserve(to->to, layout->file_bytes, err);

    if (rc == 0)
        return write_runs(to, layout->header, layout->header_bytes, 0, err);
    error_prefix(err, to->name);
    return rc;
}

/* The host with the first unit writes what is not of any unit: headers and counts. */
bool store_files_lead(const struct store_files *files)
{
    return files->store->own.first == 0;
}

static bool has_moments(const struct store_files *files)
{
    return file_is_open(&files->to_moments);
}

int store_files_begin(struct store_files *files, struct file to_weights, struct file to_moments,
                      struct checkpoint *checkpoint, struct error *err)
{
    files->to_weights = to_weights, files->to_moments = to_moments;
    assert(!has_moments(files) || files->store->options.train);
    files->weights_file = files->moments_file = NULL;
    files->n_written = 0;
    /* UINT64_MAX: not known. Each count is set when a unit with a piece of its tensor is written. */
    memset(files->updates, 0xff, files->store->model->n_tensors * sizeof *files->updates);
    if (checkpoint)
        files->weights_file =
            checkpoint_add_file(checkpoint, checkpoint_weights_name(files->store->model), files->weights.file_bytes);
    if (checkpoint && has_moments(files))
        files->moments_file = checkpoint_add_file(checkpoint, CHECKPOINT_MOMENTS, files->moments.file_bytes);
    if (files->weights_file && files->weights_runs)
        checkpoint_lend_runs(files->weights_file, files->weights_runs, files->n_weights_runs);
    if (files->moments_file && files->moments_runs)
        checkpoint_lend_runs(files->moments_file, files->moments_runs, files->n_moments_runs);
    const struct target weights = weights_target(files), moments = moments_target(files);
    assert(store_files_lead(files) || (checkpoint && has_moments(files)));
    if (!store_files_lead(files))
        return 0;
    int rc = begin_file(&weights, &files->weights, err);
    if (rc == 0 && has_moments(files))
        rc = begin_file(&moments, &files->moments, err);
    return rc;
}

/* One of a unit's three arrays. */
enum array { WEIGHTS, FIRST_MOMENT, SECOND_MOMENT };

/* Bytes of an element in the file. */
static size_t store_files_each(const struct store_files *files, enum array array)
{
    const enum number_type moments = files->store->options.moments;

    return array == WEIGHTS || moments == NUMBER_CODED ? sizeof(float) : number_bytes(moments);
}

/* Up to n elements of one array as the file has them, from the unit's element `first` on: weights as fp32, in place or in
 * the run's buffer; moments in place. */
static const void *find_values(const struct store_files *files, uint32_t unit, enum array array, uint64_t first,
                               size_t n)
{
    const enum form form = array == WEIGHTS ? store_piece(files->store, unit, first)->form : FORM_VALUES;

    if (form != FORM_VALUES && form != FORM_FP32) {
        store_read(files->store, unit, first, n, files->store->run);
        return files->store->run;
    }
    const struct parameters p = store_parameters(files->store, unit, first, n, 0);

    if (array == FIRST_MOMENT)
        return p.m ? (void *)p.m : p.m16;
    if (array == SECOND_MOMENT)
        return p.v ? (void *)p.v : p.v16;
    if (p.w)
        return p.w;
    optimizer_read(&p, files->store->run, NULL, NULL);
    return files->store->run;
}

/* The unit is captured: nothing is folded into it until it is released, so values may be read where they stand. */
static int store_files_write_values(const struct store_files *files, uint32_t unit, enum array array, uint64_t first,
                                    uint64_t end, uint64_t offset, struct error *err)
{
    const struct target to = array == WEIGHTS ? weights_target(files) : moments_target(files);
    const size_t each = store_files_each(files, array);
    int rc = 0;

    for (uint64_t at = first; rc == 0 && at < end;) {
        const size_t bytes = store_files_run_of((end - at) * each), n = bytes / each;
        rc = write_run(&to, find_values(files, unit, array, at, n), bytes, offset, err);
        at += n, offset += bytes;
    }
    return rc;
}

/* Rows first .. first+n-1 of a filter, as files have them. */
static void store_files_read_filter(const struct store_files *files, uint32_t unit, const struct model_piece *piece,
                                    uint64_t first, uint64_t n, float *out)
{
    enum { BLOCK = 1024 };
    const struct model_tensor *tensor = &files->store->model->tensors[piece->tensor];
    const uint64_t columns = tensor->shape[1], all = n * columns;
    float numbers[BLOCK];

    for (uint64_t at = 0; at < all; at += BLOCK) {
        const size_t now = all - at < BLOCK ? (size_t)(all - at) : BLOCK;
        store_read(files->store, unit, piece->offset + first * columns + at, now, numbers);
        for (uint64_t i = at; i < at + now; i++)
            out[i / columns * columns + model_place_in_file(tensor, i % columns)] = numbers[i - at];
    }
}

/* A piece that files have in another order, or with more elements: in runs of whole rows, which are arranged in the
 * run's buffer. */
static int store_files_write_rows(const struct store_files *files, uint32_t unit, const struct model_piece *piece,
                                  uint64_t offset, struct error *err)
{
    const struct target to = weights_target(files);
    const uint64_t columns = files->store->model->tensors[piece->tensor].shape[1], most = plan_filter_rows(columns);
    float *const run = files->store->run;
    int rc = 0;

    for (uint64_t first = 0; rc == 0 && first < piece->n_rows; first += most) {
        const uint64_t n = piece->n_rows - first < most ? piece->n_rows - first : most;
        if (piece->dense > 0)
            store_read_rows(files->store, unit, piece, first, n, run);
        else
            store_files_read_filter(files, unit, piece, first, n, run);
        rc = write_run(&to, run, n * columns * sizeof(float), offset + first * columns * sizeof(float), err);
    }
    return rc;
}

/* Offset of a piece's first element in the file. */
static uint64_t store_files_offset_of(const struct store_files *files, enum array array,
                                      const struct model_piece *piece)
{
    const struct model *model = files->store->model;
    const uint64_t first = piece->first_row * model->tensors[piece->tensor].shape[1] * store_files_each(files, array);

    if (array == WEIGHTS)
        return files->weights.offsets[model->tensors[piece->tensor].place] + first;
    return files->moments.offsets[checkpoint_moment(model, array == SECOND_MOMENT, piece->tensor)] + first;
}

/* Where moments are coded: each piece by itself, as memory has them, whole: codes and scales, or fp32. */
static int write_coded(const struct store_files *files, uint32_t unit, bool second, struct error *err)
{
    const struct store *store = files->store;
    const struct model *model = store->model;
    const struct model_unit *u = &model->units[unit];
    const enum array array = second ? SECOND_MOMENT : FIRST_MOMENT;
    const struct target to = moments_target(files);
    int rc = 0;

    for (uint32_t p = u->first_piece; rc == 0 && p < u->first_piece + u->n_pieces; p++) {
        const struct model_piece *piece = &model->pieces[p];
        if (model->tensors[piece->tensor].frozen)
            continue;
        const uint64_t at = store_files_offset_of(files, array, piece);
        if (!model->tensors[piece->tensor].grouped) {
            rc = store_files_write_values(files, unit, array, piece->offset, piece->offset + piece->n, at, err);
            continue;
        }
        const struct moments_bytes scales = moments_scales(store, p, second), codes = moments_codes(store, p, second);
        rc = write_runs(&to, scales.base, scales.bytes, at, err);
        if (rc == 0)
            rc =
                write_runs(&to, codes.base, codes.bytes,
                           files->moments.offsets[checkpoint_codes(model, store_moments(store), second, piece->tensor)],
                           err);
    }
    return rc;
}

/* Pieces that are adjacent in the unit and in the file, such as those of a block, are written as one. Trained,
 * frozen and coded ones have different forms. */
static int write_array(const struct store_files *files, uint32_t unit, enum array array, struct error *err)
{
    const struct model *model = files->store->model;
    const struct model_unit *u = &model->units[unit];
    const size_t each = store_files_each(files, array);
    uint64_t begin = 0, end = 0, offset = 0; /* elements of the unit not written yet, and where they belong */
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < u->n_pieces; i++) {
        const struct model_piece *piece = &model->pieces[u->first_piece + i];
        const struct model_tensor *tensor = &model->tensors[piece->tensor];
        if (array == WEIGHTS ? !tensor->saved : tensor->frozen)
            continue;
        const uint64_t at = store_files_offset_of(files, array, piece);
        if (array == WEIGHTS && (model_is_filter(tensor) || piece->dense > 0)) {
            rc = store_files_write_values(files, unit, array, begin, end, offset, err);
            if (rc == 0)
                rc = store_files_write_rows(files, unit, piece, at, err);
            begin = end = piece->offset + piece->n, offset = at + piece->n * each;
            continue;
        }
        /* A run ends where the next piece does not follow both in memory and in the file. */
        if (at != offset + (end - begin) * each || piece->offset != end || piece->offset == u->n_trained ||
            piece->form != FORM_VALUES) {
            rc = store_files_write_values(files, unit, array, begin, end, offset, err);
            begin = piece->offset, offset = at;
        }
        end = piece->offset + piece->n;
    }
    return rc != 0 ? rc : store_files_write_values(files, unit, array, begin, end, offset, err);
}

static int write_moments(const struct store_files *files, uint32_t unit, bool second, struct error *err)
{
    return files->store->options.moments == NUMBER_CODED
               ? write_coded(files, unit, second, err)
               : write_array(files, unit, second ? SECOND_MOMENT : FIRST_MOMENT, err);
}

/* Frozen tensors count 0 in the file, whatever the unit has. */
static void take_updates(struct store_files *files, const struct model *model, uint32_t unit)
{
    for (uint32_t i = 0; i < model->units[unit].n_pieces; i++) {
        const uint32_t piece = model->units[unit].first_piece + i, tensor = model->pieces[piece].tensor;
        uint64_t *taken = &files->updates[tensor];
        if (model->tensors[tensor].frozen) {
            *taken = 0;
            continue;
        }
        const uint64_t updates = store_updates(files->store, unit, piece);
        assert(*taken == UINT64_MAX || *taken == updates); /* units of one tensor are captured at one version */
        *taken = updates;
    }
}

static uint32_t n_own(const struct store_files *files)
{
    return files->store->own.end - files->store->own.first;
}

static int write_norms(const struct store_files *files, uint32_t unit, struct error *err)
{
    const struct model *model = files->store->model;
    const struct model_unit *u = &model->units[unit];
    const struct target to = moments_target(files);
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < u->n_norm_maps; i++)
        rc = write_runs(
            &to, norms_of(&files->store->norms, u, i), (uint64_t)model->n_norm_entries * sizeof(uint16_t),
            files->moments.offsets[checkpoint_norms(model, store_moments(files->store), u->first_norm_map + i)], err);
    return rc;
}

static int write_places(const struct store_files *files, uint32_t unit, struct error *err)
{
    const struct model *model = files->store->model;
    const struct model_unit *u = &model->units[unit];
    const struct target to = moments_target(files);
    const unsigned n_moments = store_moments(files->store);
    uint32_t number = u->first_sparse;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < u->n_pieces; i++) {
        const struct model_piece *piece = &model->pieces[u->first_piece + i];
        if (!(u->sparse >> piece->slot & 1))
            continue;
        const struct sparse_places p = store_places(files->store, unit, piece);
        rc = write_runs(&to, p.places, p.rows * p.words * sizeof *p.places,
                        files->moments.offsets[checkpoint_places(model, n_moments, number++)], err);
    }
    return rc;
}

static int fail_damaged(const struct store_files *files, struct error *err)
{
    char what[ERROR_TEXT_BYTES / 2];

    checks_text(what, sizeof what, files->store);
    return error_set(err, -EIO, "host memory is damaged: %s are not as they were written", what);
}

int store_files_write(struct store_files *files, uint32_t unit, struct error *err)
{
    const struct model *model = files->store->model;

    assert(store_owns(files->store, unit) && files->n_written < n_own(files));
    int rc = write_array(files, unit, WEIGHTS, err);
    if (has_moments(files)) {
        if (rc == 0 && store_moments(files->store) > 0)
            rc = write_moments(files, unit, false, err);
        if (rc == 0 && store_moments(files->store) > 1)
            rc = write_moments(files, unit, true, err);
        if (rc == 0)
            rc = write_norms(files, unit, err);
        if (rc == 0)
            rc = write_places(files, unit, err);
        take_updates(files, model, unit);
    }
    /* Last: what was damaged when it was written is damaged still. */
    if (rc == 0 && checks_verify(files->store, unit) != 0)
        rc = fail_damaged(files, err);
    files->n_written++;
    return rc;
}

static int store_files_flush(const struct target *to, struct error *err)
{
    const int rc = to->file ? file_flush(to->to, err) : 0;

    if (rc != 0)
        error_prefix(err, to->name);
    return rc;
}

/* ---- several hosts ---------------------------------------------------------------------------------------------- */

/* What this host has written, as a list for host 0, from note `first` on: a list may be longer than one message. Runs
 * of both files come first, then the counts. */
size_t store_files_notes(struct store_files_note *out, size_t n, const struct store_files *files, uint64_t first)
{
    const struct checkpoint_file *const weights = files->weights_file, *const moments = files->moments_file;
    const uint64_t all = weights->n_runs + moments->n_runs + files->store->model->n_tensors;
    size_t taken = 0;

    assert(!store_files_lead(files) && files->n_written == n_own(files));
    for (uint64_t i = first; taken < n && i < all; i++, taken++) {
        const bool of_weights = i < weights->n_runs, of_run = i < weights->n_runs + moments->n_runs;
        if (of_run)
            out[taken] =
                (struct store_files_note){.kind = of_weights ? STORE_FILES_WEIGHTS : STORE_FILES_MOMENTS,
                                          .run = of_weights ? weights->runs[i] : moments->runs[i - weights->n_runs]};
        else
            out[taken] = (struct store_files_note){.kind = STORE_FILES_UPDATES,
                                                   .tensor = (uint32_t)(i - weights->n_runs - moments->n_runs),
                                                   .updates = files->updates[i - weights->n_runs - moments->n_runs]};
    }
    return taken;
}

uint64_t store_files_most_notes(const struct store_files *files)
{
    return (uint64_t)files->n_weights_runs + files->n_moments_runs + files->store->model->n_tensors;
}

/* A run lies in its file, behind the header; and there is room for it, as no host may send more than all have. */
static const char *store_files_check_run(const struct checkpoint_file *file, const struct safetensors_layout *layout,
                                         const struct checkpoint_run *run)
{
    if (run->bytes == 0 || run->bytes > RUN_BYTES)
        return "has a length that no run has";
    if (run->offset < layout->header_bytes || run->offset > file->bytes || run->bytes > file->bytes - run->offset)
        return "is outside its file";
    if (file->lent && file->n_runs == file->cap_runs)
        return "is one more than the model's units have";
    return NULL;
}

static int store_files_add_run(const struct target *to, const struct safetensors_layout *layout,
                               const struct checkpoint_run *run, struct error *err)
{
    const char *const why = store_files_check_run(to->file, layout, run);

    if (why)
        return error_set(err, -EPROTO, "%s: another host's run of %ju bytes at %ju %s", to->name, (uintmax_t)run->bytes,
                         (uintmax_t)run->offset, why);
    if (checkpoint_add_run(to->file, run->offset, run->bytes, run->hash) != 0)
        return error_set(err, -ENOMEM, "%s: no memory for its checksums", to->name);
    return 0;
}

/* Hosts that have pieces of one tensor agree on its count. UINT64_MAX: the sender has no piece of it. */
static int add_updates(struct store_files *files, const struct store_files_note *note, struct error *err)
{
    const struct model *model = files->store->model;

    if (note->tensor >= model->n_tensors)
        return error_set(err, -EPROTO, "another host has counted updates of tensor %u, and the model has %u tensors",
                         note->tensor, model->n_tensors);
    uint64_t *const updates = &files->updates[note->tensor];
    if (note->updates == UINT64_MAX)
        return 0;
    if (*updates != UINT64_MAX && *updates != note->updates)
        return error_set(err, -EPROTO, "%s has had %ju updates on one host, and %ju on another",
                         model->tensors[note->tensor].name, (uintmax_t)*updates, (uintmax_t)note->updates);
    *updates = note->updates;
    return 0;
}

int store_files_add(struct store_files *files, const struct store_files_note *notes, size_t n, struct error *err)
{
    const struct target weights = weights_target(files), moments = moments_target(files);
    int rc = 0;

    assert(store_files_lead(files) && weights.file && moments.file);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (notes[i].kind == STORE_FILES_WEIGHTS)
            rc = store_files_add_run(&weights, &files->weights, &notes[i].run, err);
        else if (notes[i].kind == STORE_FILES_MOMENTS)
            rc = store_files_add_run(&moments, &files->moments, &notes[i].run, err);
        else if (notes[i].kind == STORE_FILES_UPDATES)
            rc = add_updates(files, &notes[i], err);
        else
            rc = error_set(err, -EPROTO, "a host has sent a note of kind %u, which no checkpoint has", notes[i].kind);
    }
    return rc;
}

/* Every byte of a file but `left` ones is in one run: else the checkpoint could not be read again. */
static int check_covered(const struct target *to, uint64_t left, struct error *err)
{
    uint64_t bytes = left;

    for (size_t i = 0; to->file && i < to->file->n_runs; i++)
        bytes += to->file->runs[i].bytes;
    if (!to->file || bytes == to->file->bytes)
        return 0;
    return error_set(err, -EPROTO, "%s: the hosts have written %ju of its %ju bytes", to->name, (uintmax_t)bytes,
                     (uintmax_t)to->file->bytes);
}

static int check_all_covered(const struct store_files *files, uint64_t updates_bytes, struct error *err)
{
    const struct target weights = weights_target(files), moments = moments_target(files);
    const struct model *model = files->store->model;
    int rc = check_covered(&weights, 0, err);

    if (rc == 0)
        rc = check_covered(&moments, updates_bytes, err);
    for (uint32_t t = 0; rc == 0 && moments.file && t < model->n_tensors; t++)
        if (files->updates[t] == UINT64_MAX)
            rc = error_set(err, -EPROTO, "no host has counted the updates of %s", model->tensors[t].name);
    return rc;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

/* Weights are flushed before the counts of the moments are written, both before training.json: a checkpoint that has
 * that file is whole (eps/save/capture.c). Only the leading host can check that all bytes are there. */
int store_files_end(struct store_files *files, struct error *err)
{
    const struct model *model = files->store->model;
    const struct target weights = weights_target(files), moments = moments_target(files);
    const bool leads = store_files_lead(files);

    assert(files->n_written == n_own(files));
    const struct rewiring *const r = &files->store->rewiring;
    const int64_t rewired[CHECKPOINT_REWIRED_NUMBERS] = {(int64_t)r->version, r->doublings, sparse_pattern(r->begin)};
    const uint64_t rewired_bytes = model->sparse.keep > 0 ? sizeof rewired : 0;
    int rc = leads ? check_all_covered(files, model->n_tensors * sizeof *files->updates + rewired_bytes, err) : 0;
    if (rc == 0)
        rc = store_files_flush(&weights, err);
    if (rc == 0 && leads && has_moments(files))
        rc = write_runs(&moments, files->updates, model->n_tensors * sizeof *files->updates, files->moments.offsets[0],
                        err);
    if (rc == 0 && leads && has_moments(files) && rewired_bytes > 0)
        rc = write_runs(&moments, rewired, rewired_bytes, files->moments.offsets[CHECKPOINT_REWIRED_AT], err);
    return rc != 0 || !has_moments(files) ? rc : store_files_flush(&moments, err);
}
