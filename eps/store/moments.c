/* Places are computed once, in the plan's order: what was placed is asserted to be what was planned. */
#include "eps/store/moments.h"

#include "eps/store/team.h"
#include "proto/base/size.h"
#include "proto/model/groups.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/weights.h"
#include "proto/plan/memory/coded.h"
#include "proto/plan/memory/files.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

_Static_assert(sizeof(struct moments_place) == (size_t)PLAN_CODED_PLACE, "as planned");

void moments_place(struct store *store, void *m, void *v)
{
    const struct model *const model = store->model;
    struct plan_coded planned, n = {0};

    plan_coded(&planned, model, &store->own);
    for (uint32_t u = store->own.first; u < store->own.end; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const uint32_t index = model->units[u].first_piece + i;
            const struct model_tensor *tensor = &model->tensors[model->pieces[index].tensor];
            uint64_t *const at = tensor->grouped ? &n.n_codes : &n.n_wide;
            if (tensor->frozen)
                continue;
            store->moment_places[index] = (struct moments_place){*at, n.n_scales};
            *at += model->pieces[index].n;
            n.n_scales += tensor->n_groups;
        }
    assert(n.n_wide == planned.n_wide && n.n_scales == planned.n_scales && n.n_codes == planned.n_codes);
    store->m = m, store->v = v;
    store->coded = (struct coded_moments){.m_scales = store->m + n.n_wide, .v_scales = store->v + n.n_wide};
    store->coded.m = (int8_t *)(store->coded.m_scales + n.n_scales);
    store->coded.v = (uint8_t *)(store->coded.v_scales + n.n_scales);
}

/* From a piece's element `at` of its unit on, which is a group's first. */
static struct coded_moments moments_at(const struct store *store, uint32_t index, uint64_t at)
{
    const struct model_piece *const piece = &store->model->pieces[index];
    const struct moments_place *const place = &store->moment_places[index];
    const uint64_t code = place->at + at - piece->offset,
                   scale = place->scale + model_parts_before(piece, at, MODEL_GROUP);

    return (struct coded_moments){store->coded.m + code, store->coded.v + code, store->coded.m_scales + scale,
                                  store->coded.v_scales + scale};
}

/* True if an element of a piece is a group's first. */
static bool begins_group(const struct model_piece *piece, uint64_t at)
{
    return at == piece->offset ||
           model_parts_before(piece, at, MODEL_GROUP) != model_parts_before(piece, at - 1, MODEL_GROUP);
}

void moments_find(struct parameters *out, const struct store *store, uint32_t unit, uint64_t first, size_t n)
{
    const struct model_piece *const piece = store_piece(store, unit, first);
    const uint32_t index = (uint32_t)(piece - store->model->pieces);
    const struct moments_place *const place = &store->moment_places[index];

    if (n > piece->offset + piece->n - first)
        return;
    if (!store->model->tensors[piece->tensor].grouped) {
        out->m = store->m + place->at + first - piece->offset;
        out->v = store->v + place->at + first - piece->offset;
    } else if (n <= model_run_end(piece, first) - first && begins_group(piece, first)) {
        out->coded = moments_at(store, index, first);
    }
}

/* Groups of a run, and the rest of its elements; so each range has whole groups. */
struct coded_zero {
    struct pieces *pieces;
    struct coded_moments at;
};

static void coded_zero_range(void *data, size_t begin, size_t n)
{
    const struct coded_zero *const zero = data;
    const size_t group = begin / MODEL_GROUP, n_groups = (n + MODEL_GROUP - 1) / MODEL_GROUP;

    pieces_zero(zero->pieces, zero->at.m + begin, n);
    pieces_zero(zero->pieces, zero->at.v + begin, n);
    pieces_zero(zero->pieces, zero->at.m_scales + group, n_groups * sizeof(float));
    pieces_zero(zero->pieces, zero->at.v_scales + group, n_groups * sizeof(float));
}

struct wide_zero {
    struct pieces *pieces;
    float *m, *v;
};

static void wide_zero_range(void *data, size_t begin, size_t n)
{
    const struct wide_zero *const zero = data;

    pieces_zero(zero->pieces, zero->m + begin, n * sizeof(float));
    pieces_zero(zero->pieces, zero->v + begin, n * sizeof(float));
}

void moments_touch(const struct store *store, uint32_t unit, const struct model_piece *piece, uint64_t at, size_t n)
{
    struct parameters p = {0};

    moments_find(&p, store, unit, at, n);
    if (store->model->tensors[piece->tensor].grouped)
        team_run(n, coded_zero_range, &(struct coded_zero){store->options.pieces, p.coded});
    else
        team_run(n, wide_zero_range, &(struct wide_zero){store->options.pieces, p.m, p.v});
}

struct moments_bytes moments_codes(const struct store *store, uint32_t piece, bool second)
{
    const struct coded_moments at = moments_at(store, piece, store->model->pieces[piece].offset);

    return (struct moments_bytes){second ? (void *)at.v : at.m, store->model->pieces[piece].n};
}

struct moments_bytes moments_scales(const struct store *store, uint32_t piece, bool second)
{
    const struct coded_moments at = moments_at(store, piece, store->model->pieces[piece].offset);
    const uint64_t n = store->model->tensors[store->model->pieces[piece].tensor].n_groups;

    return (struct moments_bytes){second ? at.v_scales : at.m_scales, n * sizeof(float)};
}

/* ---- a file's --------------------------------------------------------------------------------------------------- */

static bool are_codes(const int8_t *codes, size_t n)
{
    bool any = false;

    for (size_t i = 0; i < n; i++)
        any |= codes[i] == INT8_MIN;
    return !any;
}

static bool are_scales(const float *scales, size_t n)
{
    bool all = true;

    for (size_t i = 0; i < n; i++)
        all &= isfinite(scales[i]) && scales[i] >= 0;
    return all;
}

/* What is wrong with a run of them; NULL: nothing. */
static const char *moments_check(const struct safetensors_entry *entry, bool second, const void *at, size_t bytes)
{
    if (entry->type == SAFETENSORS_F32)
        return are_scales(at, bytes / sizeof(float)) ? NULL : "a scale that is negative or not finite";
    return second || are_codes(at, bytes) ? NULL : "a code of -128, and codes are -127 to 127";
}

/* Codes have the tensor's shape; there is a scale for each group. */
static int moments_check_shape(const struct model_tensor *tensor, bool second, const struct safetensors_entry *entry,
                               bool scales, struct error *err)
{
    const enum safetensors_type type = scales ? SAFETENSORS_F32 : checkpoint_moment_type(NUMBER_CODED, second);
    char got[WEIGHTS_SHAPE_BYTES];

    if (entry->type != type)
        return error_set(err, -EINVAL, "%s is %s; such %s are %s", entry->name, entry->dtype,
                         scales ? "scales" : "codes",
                         scales   ? "F32"
                         : second ? "U8"
                                  : "I8");
    if (scales ? entry->n_dims == 1 && entry->n == tensor->n_groups
               : entry->n_dims == tensor->n_dims && entry->shape[0] == tensor->shape[0] &&
                     entry->shape[1] == tensor->shape[1])
        return 0;
    return error_set(err, -EINVAL,
                     "%s is %s, and the model's tensor has %" PRIu64 " groups in %" PRIu64 " x %" PRIu64
                     "; are these another model's moments?",
                     entry->name, weights_shape(got, entry->shape, entry->n_dims), tensor->n_groups, tensor->shape[0],
                     tensor->shape[1]);
}

int moments_load(struct store *store, uint32_t piece, const struct safetensors_entry *entry, struct error *err)
{
    const struct model *const model = store->model;
    const bool second = entry->name[0] == 'v';
    enum checkpoint_part part;
    uint32_t unit = store->own.first;

    checkpoint_moment_tensor(&part, model, entry->name);
    const bool scales = part == CHECKPOINT_OF_SCALES;
    int rc = moments_check_shape(&model->tensors[model->pieces[piece].tensor], second, entry, scales, err);
    if (rc != 0)
        return rc;
    while (unit < store->own.end && piece >= model->units[unit].first_piece + model->units[unit].n_pieces)
        unit++;
    if (unit == store->own.end || piece < model->units[unit].first_piece)
        return 0; /* another host's */
    const struct moments_bytes to = (scales ? moments_scales : moments_codes)(store, piece, second);
    for (uint64_t done = 0; rc == 0 && done < to.bytes; done += PLAN_HOST_RUN_BYTES) {
        const size_t now = size_smaller((size_t)(to.bytes - done), PLAN_HOST_RUN_BYTES);
        char *const at = (char *)to.base + done;
        rc = pieces_note(store->options.pieces);
        if (rc != 0)
            return error_set(err, rc, "the job has ended");
        rc = file_read(&entry->file, at, now, entry->offset + done, err);
        if (rc != 0)
            return error_prefix(err, entry->name), rc;
        const char *const why = moments_check(entry, second, at, now);
        if (why)
            rc = error_set(err, -EINVAL, "%s has %s: the file is damaged", entry->name, why);
    }
    return rc;
}
