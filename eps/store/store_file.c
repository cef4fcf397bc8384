/* A tensor is never in memory beside the store: its values pass through runs on the threads' stacks. A thread stops
 * at its own error alone; whichever error read.rc got last is told, as each of them is true.
 *
 * Places of sparse weights are read first (store_load_places): they say which elements weights and moments have. */
#include "eps/store/store.h"

#include "eps/store/checks.h"
#include "eps/store/moments.h"
#include "eps/store/norms.h"
#include "eps/store/sparse.h"
#include "eps/store/store_code.h"
#include "eps/store/team.h"
#include "proto/base/log.h"
#include "proto/base/size.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/weights.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The places of each tensor's pieces. The model lists the pieces of one tensor together, in order of rows. */
struct places {
    uint32_t *first_piece; /* (n_tensors + 1) */
    uint32_t *unit;        /* (n_pieces) */
};

static int find_places(struct places *out, const struct model *model, struct reserve *reserve, struct error *err)
{
    out->first_piece = reserve_take(reserve, (model->n_tensors + 1) * sizeof *out->first_piece);
    out->unit = reserve_take(reserve, (model->n_pieces + 1) * sizeof *out->unit);
    if (!out->first_piece || !out->unit)
        return error_set(err, -ENOMEM, "no memory for a table of %u tensors", model->n_tensors);
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const uint32_t p = model->units[u].first_piece + i;
            out->unit[p] = u;
            if (model->pieces[p].first_row == 0)
                out->first_piece[model->pieces[p].tensor] = p;
        }
    out->first_piece[model->n_tensors] = model->n_pieces;
    return 0;
}

/* Where a file's values go: the weights, or one of the moments. */
enum array { WEIGHTS, FIRST_MOMENT, SECOND_MOMENT };

/* One piece to read, for the threads; and an error of one of them. */
struct read {
    struct store *store;
    uint32_t unit;
    const struct model_piece *piece;
    enum array array;
    const struct safetensors_entry *entry;
    uint64_t first;                          /* index in the tensor of the piece's first element */
    uint64_t at;                             /* index in the piece of the first element that is read now */
    const struct safetensors_window *window; /* these elements, in a file that is served; else NULL */
    _Atomic int rc;
};

enum { RUN = STORE_RUN };

static bool has_negative(const float *values, size_t n)
{
    float least = 0;

    for (size_t i = 0; i < n; i++)
        least = values[i] < least ? values[i] : least;
    return least < 0;
}

/* Numbers of the tensor as the file has them. From the disk by positioned reads, which threads may make at once; or
 * converted from the window that a server of files has filled. */
static int store_file_read_numbers(const struct read *r, uint64_t first, size_t n, float *values)
{
    if (!r->window)
        return safetensors_read(values, r->entry, first, n, NULL);
    safetensors_convert(values, r->entry, r->window, first, n);
    return 0;
}

static const struct model_tensor *tensor_of(const struct read *r)
{
    return &r->store->model->tensors[r->piece->tensor];
}

/* Numbers of a filter as units have it: from the rows that these numbers are of, each read whole. */
static int store_file_read_filter(const struct read *r, uint64_t first, size_t n, float *values)
{
    enum { BLOCK = 1024 };
    const struct model_tensor *tensor = tensor_of(r);
    const uint64_t columns = tensor->shape[1], n_taps = (uint64_t)tensor->height * tensor->width,
                   n_channels = columns / n_taps;
    float numbers[BLOCK];
    int rc = 0;

    for (uint64_t row = first / columns * columns; rc == 0 && row < first + n; row += columns)
        for (uint64_t at = 0; rc == 0 && at < columns; at += BLOCK) {
            const size_t now = size_smaller((size_t)(columns - at), BLOCK);
            rc = store_file_read_numbers(r, row + at, now, numbers);
            for (uint64_t i = at; rc == 0 && i < at + now; i++) {
                const uint64_t to = row + i % n_taps * n_channels + i / n_taps;
                if (to >= first && to < first + n)
                    values[to - first] = numbers[i - at];
            }
        }
    return rc;
}

/* Infinity is what fp16 makes of a number beyond its range: the file's values are known to be finite. */
static bool exceeds_fp16(const float *values, size_t n)
{
    bool any = false;

    for (size_t i = 0; i < n; i++)
        any |= (number_to_fp16(values[i]) & 0x7fffu) == 0x7c00u;
    return any;
}

/* A store_source for the piece, of an array's values. What a server of files may still change is copied before it is
 * checked. */
static int store_file_read_run(void *context, uint64_t first, size_t n, float *values)
{
    const struct read *r = context;
    int rc = pieces_note(r->store->options.pieces);

    if (rc == 0)
        rc = (r->array == WEIGHTS && model_is_filter(tensor_of(r))
                  ? store_file_read_filter
                  : store_file_read_numbers)(r, r->first + first, n, values);
    if (rc != 0)
        return rc;
    if (!optimizer_is_finite(r->store->kernel, values, NUMBER_FP32, n, NULL))
        return -EDOM;
    if (r->array == WEIGHTS && r->store->options.precision == NUMBER_FP16 && r->piece->form == FORM_VALUES &&
        exceeds_fp16(values, n))
        return -EOVERFLOW;
    return r->array == SECOND_MOMENT && has_negative(values, n) ? -ERANGE : 0;
}

/* Moments are kept in the store's own type: optimizer_write rounds them as a step would. */
static int store_file_write_moments(struct read *r, uint64_t begin, size_t n)
{
    float values[RUN];
    int rc = 0;

    for (uint64_t at = begin; rc == 0 && at < begin + n; at += RUN) {
        const size_t now = size_smaller((size_t)(begin + n - at), RUN);
        const struct parameters p = store_parameters(r->store, r->unit, r->piece->offset + at, now, 0);
        rc = store_file_read_run(r, at, now, values);
        if (rc == 0)
            optimizer_write(&p, NULL, r->array == FIRST_MOMENT ? values : NULL,
                            r->array == SECOND_MOMENT ? values : NULL);
    }
    return rc;
}

/* begin: from r->at on. */
static void store_file_read_range(void *data, size_t begin, size_t n)
{
    struct read *r = data;
    const int rc = r->array == WEIGHTS ? store_code(r->store, r->unit, r->piece, r->at + begin, n,
                                                    &(struct store_source){store_file_read_run, r})
                                       : store_file_write_moments(r, r->at + begin, n);

    if (rc != 0)
        r->rc = rc;
}

/* Elements of a window: whole groups, and whole rows of a filter; as many as fit. */
static uint64_t store_file_window_of(const struct read *read)
{
    const struct model_piece *piece = read->piece;
    const uint64_t most = safetensors_most(read->entry), columns = piece->n / piece->n_rows;
    const uint64_t whole = read->array == WEIGHTS && piece->form != FORM_VALUES ? form_group(piece->form, columns) : 1;
    uint64_t group = whole;

    while (read->array == WEIGHTS && model_is_filter(tensor_of(read)) && group % columns)
        group += whole;
    assert(group <= most);
    return most / group * group;
}

/* The next window is on its way while the team converts one. */
static int store_file_read_served(struct read *read, struct error *err)
{
    const uint64_t most = store_file_window_of(read), all = read->piece->n;
    float scales[SAFETENSORS_SCALES];
    struct safetensors_window window = {.scales = scales};
    int rc = 0;

    read->window = &window;
    /* `left` bounds the window that is requested ahead: nothing beyond the piece is read. */
    for (; rc == 0 && read->rc == 0 && read->at < all; read->at += most) {
        const uint64_t n = all - read->at < most ? all - read->at : most, left = all - read->at - n;
        rc = safetensors_window(&window, read->entry, read->first + read->at, n, left < most ? left : most, err);
        if (rc == 0)
            team_run(n, store_file_read_range, read);
    }
    read->window = NULL;
    if (rc != 0)
        error_prefix(err, read->entry->name);
    return rc;
}

/* A run's places, or of a dense model the largest weights. */
static int read_sparse(struct read *read)
{
    const struct store_source from = {store_file_read_run, read};
    int rc = 0;

    if (!read->store->rewiring.has_places)
        rc = store_choose_places(read->store, read->unit, read->piece, &from);
    return rc ? rc : store_fill_places(read->store, read->unit, read->piece, &from);
}

/* Codes tell what was wrong with the values: a thread has no room for a sentence, so the sentences are made here,
 * once. */
static int store_file_read_piece(struct read *read, struct error *err)
{
    const char *name = read->entry->name;
    int rc = 0;

    if (read->piece->dense > 0 && read->array == WEIGHTS)
        read->rc = read_sparse(read);
    else if (read->entry->file.server)
        rc = store_file_read_served(read, err);
    else
        team_run(read->piece->n, store_file_read_range, read);
    if (rc != 0)
        return rc;
    if (read->rc == -EDOM)
        return error_set(err, -EINVAL,
                         "%s has a value that is not finite: the file is damaged, or its training has diverged", name);
    if (read->rc == -EOVERFLOW)
        return error_set(err, -EINVAL, "%s has a value beyond 65504, where fp16 ends: choose --precision bf16", name);
    if (read->rc == -ERANGE)
        return error_set(err, -EINVAL, "%s has a negative value, which no mean of squares has", name);
    if (read->rc != 0)
        return error_set(err, read->rc, "%s could not be read: %s; did the file change meanwhile?", name,
                         strerror(-read->rc));
    return 0;
}

/* No run has as many steps; a damaged file may say so, and the bias correction would overflow. */
#define MOST_UPDATES ((int64_t)1 << 48)

/* A value as the store keeps it: weights without low halves are rounded. The file's copy is rounded alike before the
 * two are compared. */
static float as_relayed(const struct parameters *p, float w)
{
    uint16_t high;
    int16_t low;

    if (!p->is_upper)
        high = number_to_half(p->type, w);
    else if (p->type == NUMBER_FP16)
        number_split_fp16(w, &high, &low);
    else
        number_split(w, &high, &low);
    return number_from_half(p->type, high);
}

/* Compares the store's values with the file's. 0; -EDOM if they differ; -errno. */
static int store_file_compare(const struct store *store, uint32_t unit, const struct model_piece *piece,
                              const struct safetensors_entry *entry, struct error *err)
{
    const uint64_t first = piece->first_row * store->model->tensors[piece->tensor].shape[1];
    float other[RUN / 2], weights[RUN / 2];

    for (uint64_t done = 0; done < piece->n; done += RUN / 2) {
        const size_t now = piece->n - done < RUN / 2 ? (size_t)(piece->n - done) : RUN / 2;
        const struct parameters p = store_parameters(store, unit, piece->offset + done, now, 0);
        int rc = pieces_note(store->options.pieces);
        if (rc == 0)
            rc = safetensors_read(other, entry, first + done, now, err);
        if (rc != 0)
            return rc;
        optimizer_read(&p, weights, NULL, NULL);
        for (size_t i = 0; p.high && !p.low && i < now; i++)
            other[i] = as_relayed(&p, other[i]);
        if (memcmp(weights, other, now * sizeof *other) != 0)
            return -EDOM;
    }
    return 0;
}

struct loading {
    struct store *store;
    struct places places;
    unsigned char *seen; /* (2 * n_tensors) parts of moments found so far, m first */
};

/* Reads all pieces of a tensor that are kept here; of a moment those in own units. */
static int read_tensor(const struct loading *loading, const struct safetensors_entry *entry, uint32_t index,
                       enum array array, struct error *err)
{
    const struct model *model = loading->store->model;
    int rc = 0;

    for (uint32_t p = loading->places.first_piece[index]; rc == 0 && p < model->n_pieces; p++) {
        const struct model_piece *piece = &model->pieces[p];
        if (piece->tensor != index)
            break;
        const uint32_t unit = loading->places.unit[p];
        const bool is_here = array == WEIGHTS ? store_keeps(loading->store, unit) : store_owns(loading->store, unit);
        if (!is_here)
            continue;
        struct read read = {.store = loading->store,
                            .unit = unit,
                            .piece = piece,
                            .array = array,
                            .entry = entry,
                            .first = piece->first_row * model->tensors[index].shape[1]};
        rc = store_file_read_piece(&read, err);
    }
    return rc;
}

/* A tensor that the files lack is fresh: a head that a new task adds, or an adapter. */
static void draw_tensor(const struct loading *loading, uint32_t index)
{
    const struct model *model = loading->store->model;
    const uint32_t first = loading->places.first_piece[index];

    for (uint32_t p = first; p < model->n_pieces && model->pieces[p].tensor == index; p++)
        if (store_keeps(loading->store, loading->places.unit[p]))
            store_draw_piece(loading->store, loading->store->options.seed, loading->places.unit[p], &model->pieces[p]);
}

/* A copy of the table of tokens may be in the file if it equals that. Some programs write a tied table twice. */
static int store_file_check_copy(const struct loading *loading, const struct weights *weights, unsigned copy,
                                 struct error *err)
{
    const struct model *model = loading->store->model;
    const uint32_t index = model->embedding.tables[0].tensor;
    int rc = 0;

    for (uint32_t p = loading->places.first_piece[index]; rc == 0 && p < model->n_pieces; p++) {
        const struct model_piece *piece = &model->pieces[p];
        if (piece->tensor != index)
            break;
        rc = store_file_compare(loading->store, loading->places.unit[p], piece, weights->copies[copy], err);
        if (rc == -EDOM)
            rc = weights_refuse_copy(model, copy, err);
    }
    return rc;
}

static int store_file_load_weights(struct loading *loading, const struct weights *weights, struct error *err)
{
    struct store *store = loading->store;
    int rc = 0;

    for (uint32_t t = 0; rc == 0 && t < store->model->n_tensors; t++) {
        if (weights->entries[t])
            rc = read_tensor(loading, weights->entries[t], t, WEIGHTS, err);
        else
            draw_tensor(loading, t);
    }
    for (unsigned copy = 0; rc == 0 && copy < WEIGHTS_COPIES; copy++)
        if (weights->copies[copy])
            rc = store_file_check_copy(loading, weights, copy, err);
    if (rc == 0 && pieces_are_abandoned(store->options.pieces)) /* while it drew */
        rc = error_set(err, -ECANCELED, "the job has ended");
    return rc;
}

/* The sums of memory (--check-memory) are made anew at the end: from here on what is in memory is right by
 * definition. */
int store_load(struct store *store, const struct file *files, unsigned n_files, struct reserve *reserve,
               struct error *err)
{
    struct loading loading = {.store = store};
    struct weights weights;
    int rc = find_places(&loading.places, store->model, reserve, err);

    if (rc == 0)
        rc = (store->options.draws_head ? weights_open_base : weights_open)(&weights, store->model, files, n_files,
                                                                            reserve, err);
    if (rc == 0)
        rc = store_file_load_weights(&loading, &weights, err);
    if (rc == 0 && !store->rewiring.has_places)
        store->rewiring.begin = 0; /* a dense model's, of which the largest were chosen */
    if (rc == 0)
        checks_renew(store);
    reserve->used = 0;
    return rc;
}

/* "m.NAME" or "v.NAME", or a part of these. */
static int load_moment(struct loading *loading, const struct safetensors_entry *entry, struct error *err)
{
    const struct model *model = loading->store->model;
    const bool second = entry->name[0] == 'v';
    enum checkpoint_part part;
    const struct model_tensor *const tensor = checkpoint_moment_tensor(&part, model, entry->name);
    char got[WEIGHTS_SHAPE_BYTES], want[WEIGHTS_SHAPE_BYTES];

    if (!tensor)
        return error_set(err, -EINVAL, "%s is no moment of this model; are these another model's moments?",
                         entry->name);
    if (second >= store_moments(loading->store))
        return error_set(err, -EINVAL, "%s is none of this optimizer's moments; was the run trained by another one?",
                         entry->name);
    if (tensor->frozen)
        return error_set(err, -EINVAL, "%s is the moment of a frozen tensor: was this run begun without its --freeze?",
                         entry->name);
    const uint32_t index = (uint32_t)(tensor - model->tensors);
    const struct model_piece *piece = &model->pieces[loading->places.first_piece[index]];
    const uint64_t *const shape = piece->dense > 0 ? &piece->n : tensor->shape;
    const uint32_t n_dims = piece->dense > 0 ? 1 : tensor->n_dims;
    /* Each is required once: two entries of one name could differ. */
    unsigned char *seen = &loading->seen[index + (second ? model->n_tensors : 0)];
    const bool coded = checkpoint_is_coded(tensor, loading->store->options.moments);
    if (coded != (part != CHECKPOINT_WHOLE))
        return error_set(err, -EINVAL,
                         "%s is %s, and this run's is %s: its moments stay as they were begun, --moments %s",
                         entry->name, coded ? entry->dtype : "a part of a coded moment", coded ? "coded" : "not",
                         coded ? "fp32 or bf16" : "coded");
    if (*seen & part)
        return error_set(err, -EINVAL, "%s comes twice; which of the two is meant?", entry->name);
    *seen = (unsigned char)(*seen | part);
    if (coded)
        return moments_load(loading->store, loading->places.first_piece[index], entry, err);
    if (entry->n_dims != n_dims || entry->shape[0] != shape[0] || (n_dims > 1 && entry->shape[1] != shape[1]))
        return error_set(err, -EINVAL, "%s is %s, the model's is %s; are these another model's moments?", entry->name,
                         weights_shape(got, entry->shape, entry->n_dims), weights_shape(want, shape, n_dims));
    if (entry->type != SAFETENSORS_F32 && entry->type != checkpoint_moment_type(NUMBER_BF16, second))
        return error_set(err, -EINVAL, "%s is %s; such moments are F32 or %s", entry->name, entry->dtype,
                         second ? "U16" : "BF16");
    return read_tensor(loading, entry, index, second ? SECOND_MOMENT : FIRST_MOMENT, err);
}

/* The file has counts by tensor, since units are not in it; the store keeps the largest of each unit, and what each
 * piece lacks. A frozen tensor has none. */
static int load_unit_updates(struct store *store, const struct safetensors_entry *entry, uint32_t unit,
                             struct error *err)
{
    const struct model *model = store->model;
    const uint32_t first = model->units[unit].first_piece, end = first + model->units[unit].n_pieces;
    uint64_t most = 0;

    for (uint32_t p = first; p < end; p++) {
        const struct model_tensor *tensor = &model->tensors[model->pieces[p].tensor];
        int64_t updates;
        if (tensor->frozen)
            continue;
        const int rc = safetensors_read_counts(&updates, entry, model->pieces[p].tensor, 1, err);
        if (rc != 0)
            return rc;
        if (updates < 0 || updates > MOST_UPDATES)
            return error_set(err, -EINVAL, "updates: %" PRId64 " for %s is no count", updates, tensor->name);
        store->late[p] = (uint64_t)updates;
        most = most < store->late[p] ? store->late[p] : most;
    }
    store->updates[unit] = most;
    for (uint32_t p = first; p < end; p++)
        store->late[p] = most - store->late[p];
    return 0;
}

static int load_updates(struct store *store, const struct safetensors_entry *entry, struct error *err)
{
    const struct model *model = store->model;
    char got[WEIGHTS_SHAPE_BYTES];
    int rc = 0;

    if (entry->type != SAFETENSORS_I64 || entry->n_dims != 1 || entry->n != model->n_tensors)
        return error_set(err, -EINVAL, "updates is %s, not one count (I64) for each of the model's %u tensors",
                         weights_shape(got, entry->shape, entry->n_dims), model->n_tensors);
    for (uint32_t u = 0; rc == 0 && u < model->n_units; u++)
        rc = load_unit_updates(store, entry, u, err);
    return rc;
}

/* True if the tensor was frozen until now. */
static bool begins_now(const struct loading *loading, uint32_t tensor)
{
    const struct store *store = loading->store;
    const struct model *model = store->model;
    const uint32_t piece = loading->places.first_piece[tensor];

    return store->options.thawed && !loading->seen[tensor] && !loading->seen[tensor + model->n_tensors] &&
           store_updates(store, loading->places.unit[piece], piece) == 0 &&
           model_is_named(model, &model->tensors[tensor], store->options.thawed);
}

/* After all entries of the file: a moment that is missing would silently be 0, and the run would not be the one that
 * was saved. */
static int check_all_moments(const struct loading *loading, struct error *err)
{
    const struct model *model = loading->store->model;

    for (uint32_t i = 0; i < store_moments(loading->store) * model->n_tensors; i++) {
        const struct model_tensor *tensor = &model->tensors[i % model->n_tensors];
        const bool coded = checkpoint_is_coded(tensor, loading->store->options.moments);
        const unsigned lacks = (coded ? CHECKPOINT_CODED : CHECKPOINT_WHOLE) & ~(unsigned)loading->seen[i];
        if (lacks && !tensor->frozen && !begins_now(loading, i % model->n_tensors))
            return error_set(err, -EINVAL, "%c.%s%s is missing; are these another model's moments?",
                             i < model->n_tensors ? 'm' : 'v', tensor->name,
                             lacks & CHECKPOINT_OF_CODES    ? CHECKPOINT_CODES
                             : lacks & CHECKPOINT_OF_SCALES ? CHECKPOINT_SCALES
                                                            : "");
    }
    return 0;
}

/* Matrices of units that were frozen until now: nothing was remembered of them. */
static uint32_t count_late_norms(const struct loading *loading)
{
    const struct model *model = loading->store->model;
    uint32_t n = 0;

    for (const struct model_unit *unit = model->units; unit < model->units + model->n_units; unit++) {
        bool late = true;
        for (uint32_t i = 0; i < unit->n_pieces; i++) {
            const uint32_t tensor = model->pieces[unit->first_piece + i].tensor;
            late = late && (model->tensors[tensor].frozen || begins_now(loading, tensor));
        }
        n += late ? unit->n_norm_maps : 0;
    }
    return n;
}

/* Norms that are not there begin at 0: a run of one epoch remembers none, nor does a grown model. */
static int check_norms(const struct loading *loading, uint32_t n, struct error *err)
{
    const uint32_t n_maps = loading->store->model->n_norm_maps;

    if (n > 0 && n < n_maps && n + count_late_norms(loading) != n_maps)
        return error_set(err, -EINVAL, "norms of gradients are there for %u matrices, not for %u; was the file cut?", n,
                         n_maps);
    if (n == 0 && n_maps > 0)
        log_line("the checkpoint has no norms of gradients (" CHECKPOINT_NORMS "NAME): they begin at 0");
    return 0;
}

static bool store_file_begins_with(const struct safetensors_entry *entry, const char *prefix)
{
    return strncmp(entry->name, prefix, strlen(prefix)) == 0;
}

/* store_load_places has read it. */
static bool is_of_places(const struct store *store, const struct safetensors_entry *entry)
{
    return store->rewiring.has_places &&
           (store_file_begins_with(entry, CHECKPOINT_PLACES) || strcmp(entry->name, CHECKPOINT_REWIRED) == 0);
}

static int load_moments(struct loading *loading, const struct safetensors *file, struct error *err)
{
    const struct safetensors_entry *updates = safetensors_find(file, "updates");
    struct store *store = loading->store;
    uint32_t n_norms = 0;
    int rc = updates ? load_updates(loading->store, updates, err)
                     : error_set(err, -EINVAL, "updates is missing; was this file written by eps?");

    for (size_t i = 0; rc == 0 && i < file->n_entries; i++)
        if (store_file_begins_with(&file->entries[i], CHECKPOINT_NORMS))
            rc = norms_load(&store->norms, store->model, &file->entries[i], &n_norms, err);
        else if (&file->entries[i] != updates && !is_of_places(store, &file->entries[i]))
            rc = load_moment(loading, &file->entries[i], err);
    if (rc == 0)
        rc = check_norms(loading, n_norms, err);
    return rc ? rc : check_all_moments(loading, err);
}

int store_load_moments(struct store *store, const struct file *from, struct reserve *reserve, struct error *err)
{
    struct loading loading = {.store = store};
    struct safetensors file;

    assert(store->options.train);
    int rc = find_places(&loading.places, store->model, reserve, err);
    loading.seen = reserve_take(reserve, 2 * (size_t)store->model->n_tensors);
    if (rc == 0 && !loading.seen)
        rc = error_set(err, -ENOMEM, "no memory for a list of moments");
    if (rc == 0)
        rc = safetensors_open_within(&file, from, reserve, err);
    if (rc == 0)
        rc = load_moments(&loading, &file, err);
    if (rc == 0)
        checks_renew(store);
    reserve->used = 0;
    return rc;
}
