#include "eps/store.h"
#include "eps/team.h"
#include "proto/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where each tensor's pieces lie. Those of one tensor follow each other in the model's list, in order of rows. */
struct places {
    uint32_t *first_piece; /* (n_tensors + 1) */
    uint64_t *at;          /* (n_pieces) elements from the segment's start */
};

static void free_places(struct places *places)
{
    free(places->first_piece);
    free(places->at);
    *places = (struct places){0};
}

static int find_places(struct places *out, const struct model *model, struct error *err)
{
    *out = (struct places){.first_piece = calloc(model->n_tensors + 1, sizeof *out->first_piece),
                           .at = calloc(model->n_pieces + 1, sizeof *out->at)};
    if (!out->first_piece || !out->at) {
        free_places(out);
        return error_set(err, -ENOMEM, "no memory for a table of %u tensors", model->n_tensors);
    }
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const uint32_t p = model->units[u].first_piece + i;
            out->at[p] = model->units[u].offset + model->pieces[p].offset;
            if (model->pieces[p].first_row == 0)
                out->first_piece[model->pieces[p].tensor] = p;
        }
    out->first_piece[model->n_tensors] = model->n_pieces;
    return 0;
}

/* One piece to be read, for the threads; why it could not be, from one of them. */
struct read {
    float *out;
    const struct safetensors_entry *entry;
    uint64_t first;
    _Atomic int rc;
};

static void read_range(void *data, size_t begin, size_t n)
{
    struct read *r = data;
    int rc = safetensors_read(r->out + begin, r->entry, r->first + begin, n, NULL);

    if (rc != 0)
        r->rc = rc;
}

static int read_piece(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n, struct error *err)
{
    struct read read = {out, entry, first, 0};

    eps_team_run(n, read_range, &read);
    if (read.rc != 0)
        return error_set(err, read.rc, "%s could not be read: %s; did the file change meanwhile?", entry->name,
                         strerror(-read.rc));
    if (!eps_optimizer_is_finite(out, n))
        return error_set(err, -EINVAL,
                         "%s has a value that is not finite: the file is damaged, or its training had gone astray",
                         entry->name);
    return 0;
}

/* Reads run by run, at most this many elements (64 KiB) on the stack. */
enum { COMPARED = 16384 };
#define MOST_UPDATES ((int64_t)1 << 48)

/* 0, -EDOM if they differ, -errno. */
static int compare(const float *weights, const struct safetensors_entry *entry, uint64_t first, uint64_t n,
                   struct error *err)
{
    float other[COMPARED];

    for (uint64_t done = 0; done < n; done += COMPARED) {
        const uint64_t now = n - done < COMPARED ? n - done : COMPARED;
        int rc = safetensors_read(other, entry, first + done, now, err);
        if (rc != 0)
            return rc;
        if (memcmp(weights + done, other, now * sizeof *other) != 0)
            return -EDOM;
    }
    return 0;
}

struct loading {
    struct eps_store *store;
    struct places places;
    bool *seen;                           /* (n_tensors); for moments twice that, m first */
    const struct safetensors_entry *head; /* of a tied model: lm_head.weight, compared at the end */
};

static bool has_shape(const struct safetensors_entry *entry, const struct model_tensor *tensor)
{
    return entry->n_dims == tensor->n_dims && entry->shape[0] == tensor->shape[0] &&
           (entry->n_dims < 2 || entry->shape[1] == tensor->shape[1]);
}

/* "3 x 4" */
static const char *shape_text(char out[64], const uint64_t *shape, uint32_t n_dims)
{
    int n = 0;

    snprintf(out, 64, "no dimension");
    for (uint32_t i = 0; i < n_dims && n < 40; i++)
        n += snprintf(out + n, 64 - (size_t)n, "%s%" PRIu64, i ? " x " : "", shape[i]);
    return out;
}

static int check_entry(const struct safetensors_entry *entry, const struct model_tensor *tensor, struct error *err)
{
    char got[64], want[64];

    if (!has_shape(entry, tensor))
        return error_set(err, -EINVAL, "%s is %s, the model's is %s; is this the config.json of these weights?",
                         entry->name, shape_text(got, entry->shape, entry->n_dims),
                         shape_text(want, tensor->shape, tensor->n_dims));
    if (entry->type == SAFETENSORS_OTHER || entry->type == SAFETENSORS_I64)
        return error_set(err, -EINVAL, "%s is of a type that is not read here; F32, F16 and BF16 are", entry->name);
    return 0;
}

/* All pieces of a tensor into an array laid out as the weights are. */
static int read_tensor(float *array, const struct loading *loading, const struct safetensors_entry *entry,
                       uint32_t index, struct error *err)
{
    const struct model *model = loading->store->model;
    const uint64_t columns = model->tensors[index].shape[1];
    int rc = 0;

    for (uint32_t p = loading->places.first_piece[index]; rc == 0 && p < model->n_pieces; p++) {
        const struct model_piece *piece = &model->pieces[p];
        if (piece->tensor != index)
            break;
        rc = read_piece(array + loading->places.at[p], entry, piece->first_row * columns, piece->n, err);
    }
    return rc;
}

static int load_tensor(struct loading *loading, const struct safetensors_entry *entry, uint32_t index,
                       struct error *err)
{
    const struct model_tensor *tensor = &loading->store->model->tensors[index];

    int rc = check_entry(entry, tensor, err);
    if (rc != 0)
        return rc;
    if (loading->seen[index])
        return error_set(err, -EINVAL, "%s comes twice; which of the two is meant?", tensor->name);
    loading->seen[index] = true;
    return read_tensor(loading->store->weights.base, loading, entry, index, err);
}

static int load_entry(struct loading *loading, const struct safetensors_entry *entry, struct error *err)
{
    const struct model *model = loading->store->model;
    const struct model_tensor *tensor = model_find(model, entry->name);

    if (tensor)
        return load_tensor(loading, entry, (uint32_t)(tensor - model->tensors), err);
    if (model_is_mask(entry->name))
        return 0;
    if (model->config.tied && strcmp(entry->name, "lm_head.weight") == 0) {
        if (loading->head)
            return error_set(err, -EINVAL, "%s comes twice; which of the two is meant?", entry->name);
        loading->head = entry;
        return 0;
    }
    return error_set(err, -EINVAL, "%s is no tensor of this model; is this the config.json of these weights?",
                     entry->name);
}

/* A tied head may be written out, as long as it says the same. */
static int check_head(const struct loading *loading, struct error *err)
{
    const struct model *model = loading->store->model;
    const struct model_tensor *wte = model_find(model, "transformer.wte.weight");
    const uint32_t index = (uint32_t)(wte - model->tensors);
    const float *weights = loading->store->weights.base;

    if (!loading->head)
        return 0;
    int rc = check_entry(loading->head, wte, err);
    for (uint32_t p = loading->places.first_piece[index]; rc == 0 && p < model->n_pieces; p++) {
        const struct model_piece *piece = &model->pieces[p];
        if (piece->tensor != index)
            break;
        rc = compare(weights + loading->places.at[p], loading->head, piece->first_row * wte->shape[1], piece->n, err);
        if (rc == -EDOM)
            rc = error_set(err, -EINVAL,
                           "lm_head.weight differs from wte.weight, though config.json ties them "
                           "(tie_word_embeddings); set that to false to train them apart");
    }
    return rc;
}

static int check_all_seen(const struct loading *loading, struct error *err)
{
    const struct model *model = loading->store->model;

    for (uint32_t i = 0; i < model->n_tensors; i++)
        if (!loading->seen[i])
            return error_set(err, -EINVAL, "%s is missing; are all files of these weights there?",
                             model->tensors[i].name);
    return 0;
}

int eps_store_load(struct eps_store *store, const int *fds, unsigned n_fds, struct error *err)
{
    struct loading loading = {.store = store};
    struct safetensors *files = calloc(n_fds ? n_fds : 1, sizeof *files);
    unsigned n_open = 0;

    loading.seen = calloc(store->model->n_tensors, sizeof *loading.seen);
    int rc = files && loading.seen ? find_places(&loading.places, store->model, err)
                                   : error_set(err, -ENOMEM, "no memory for a list of weights");
    if (rc != 0)
        goto out;
    for (; rc == 0 && n_open < n_fds; n_open += rc == 0)
        rc = safetensors_open(&files[n_open], fds[n_open], err);
    for (unsigned i = 0; rc == 0 && i < n_fds; i++)
        for (size_t k = 0; rc == 0 && k < files[i].n_entries; k++)
            rc = load_entry(&loading, &files[i].entries[k], err);
    if (rc == 0)
        rc = check_all_seen(&loading, err);
    if (rc == 0)
        rc = check_head(&loading, err);
    free_places(&loading.places);
    while (n_open > 0)
        safetensors_close(&files[--n_open]);
out:
    free(loading.seen);
    free(files);
    return rc;
}

static bool has_negative(const float *values, uint64_t n)
{
    float least = 0;

    for (uint64_t i = 0; i < n; i++)
        least = values[i] < least ? values[i] : least;
    return least < 0;
}

/* "m.NAME" or "v.NAME". */
static int load_moment(struct loading *loading, const struct safetensors_entry *entry, struct error *err)
{
    const struct model *model = loading->store->model;
    const bool second = entry->name[0] == 'v';
    const struct model_tensor *tensor = NULL;
    char got[64], want[64];

    if ((entry->name[0] == 'm' || second) && entry->name[1] == '.')
        tensor = model_find(model, entry->name + 2);
    if (!tensor)
        return error_set(err, -EINVAL, "%s is no moment of this model; are these another model's moments?",
                         entry->name);
    const uint32_t index = (uint32_t)(tensor - model->tensors);
    bool *seen = &loading->seen[index + (second ? model->n_tensors : 0)];
    if (!has_shape(entry, tensor))
        return error_set(err, -EINVAL, "%s is %s, the model's is %s; are these another model's moments?", entry->name,
                         shape_text(got, entry->shape, entry->n_dims), shape_text(want, tensor->shape, tensor->n_dims));
    if (entry->type != SAFETENSORS_F32)
        return error_set(err, -EINVAL, "%s is not F32, as moments are", entry->name);
    if (*seen)
        return error_set(err, -EINVAL, "%s comes twice; which of the two is meant?", entry->name);
    *seen = true;
    float *array = second ? loading->store->v : loading->store->m;
    int rc = read_tensor(array, loading, entry, index, err);
    for (uint32_t p = loading->places.first_piece[index]; rc == 0 && second && p < model->n_pieces; p++) {
        if (model->pieces[p].tensor != index)
            break;
        if (has_negative(array + loading->places.at[p], model->pieces[p].n))
            rc = error_set(err, -EINVAL, "%s has a negative value, which no mean of squares has", entry->name);
    }
    return rc;
}

/* Counts stand there by tensor, since units are not in the file; they are kept by unit. */
static int load_updates(struct eps_store *store, const struct safetensors_entry *entry, struct error *err)
{
    const struct model *model = store->model;
    char got[64];
    int rc;

    if (entry->type != SAFETENSORS_I64 || entry->n_dims != 1 || entry->n != model->n_tensors)
        return error_set(err, -EINVAL, "updates is %s, not one count (I64) for each of the model's %u tensors",
                         shape_text(got, entry->shape, entry->n_dims), model->n_tensors);
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const uint32_t tensor = model->pieces[model->units[u].first_piece + i].tensor;
            int64_t updates;
            if ((rc = safetensors_read_counts(&updates, entry, tensor, 1, err)) != 0)
                return rc;
            if (updates < 0 || updates > MOST_UPDATES)
                return error_set(err, -EINVAL, "updates: %" PRId64 " for %s is no count", updates,
                                 model->tensors[tensor].name);
            if (i > 0 && (uint64_t)updates != store->updates[u])
                return error_set(err, -EINVAL, "updates: %" PRId64 " for %s, where its neighbours had %" PRIu64,
                                 updates, model->tensors[tensor].name, store->updates[u]);
            store->updates[u] = (uint64_t)updates;
        }
    return 0;
}

static int check_all_moments(const struct loading *loading, struct error *err)
{
    const struct model *model = loading->store->model;

    for (uint32_t i = 0; i < 2 * model->n_tensors; i++)
        if (!loading->seen[i])
            return error_set(err, -EINVAL, "%c.%s is missing; are these another model's moments?",
                             i < model->n_tensors ? 'm' : 'v', model->tensors[i % model->n_tensors].name);
    return 0;
}

int eps_store_load_moments(struct eps_store *store, int fd, struct error *err)
{
    struct loading loading = {.store = store};
    const struct safetensors_entry *updates;
    struct safetensors file;

    assert(store->m);
    int rc = safetensors_open(&file, fd, err);
    if (rc != 0)
        return rc;
    rc = find_places(&loading.places, store->model, err);
    loading.seen = calloc(2 * (size_t)store->model->n_tensors, sizeof *loading.seen);
    if (rc == 0 && !loading.seen)
        rc = error_set(err, -ENOMEM, "no memory for a list of moments");
    updates = safetensors_find(&file, "updates");
    if (rc == 0)
        rc = updates ? load_updates(store, updates, err)
                     : error_set(err, -EINVAL, "updates is missing; was this file written by eps?");
    for (size_t i = 0; rc == 0 && i < file.n_entries; i++)
        if (&file.entries[i] != updates)
            rc = load_moment(&loading, &file.entries[i], err);
    if (rc == 0)
        rc = check_all_moments(&loading, err);
    free_places(&loading.places);
    free(loading.seen);
    safetensors_close(&file);
    return rc;
}
