/* Writers find a tensor by an index that is computed from counts; readers go by names. So another order here would be
 * read as well, but an index that two functions compute differently puts bytes under another name, and nothing notices.
 *
 * The loops of checkpoint_lay_out_moments fill each entry of the plan. First all moments have the shapes of their
 * tensors; lay_out_places comes later, as it replaces those of sparse tensors by the number of kept elements. */
#include "proto/model/file/checkpoint_layout.h"

#include "proto/model/family.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/norms.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t checkpoint_layout_first_moment(const struct model *model)
{
    return 1 + (model->sparse.keep > 0);
}

uint64_t checkpoint_moment(const struct model *model, bool second, uint32_t tensor)
{
    return checkpoint_layout_first_moment(model) + (second ? model->n_trained_tensors : 0) +
           model->tensors[tensor].rank;
}

uint32_t checkpoint_count_constants(const struct model *model)
{
    return model->config.adapter.rank > 0 ? 0 : model_count_constants(model);
}

/* The first n tensors of a layout, numbers alone, become the end of its header; those behind them are counted from 0. */
static int take_constants(struct safetensors_layout *layout, const float *constants, uint32_t n, uint32_t n_others,
                          struct error *err)
{
    char *header = realloc(layout->header, layout->header_bytes + n * sizeof *constants);

    if (!header) {
        safetensors_layout_free(layout);
        return error_memory(err);
    }
    memcpy(header + layout->header_bytes, constants, n * sizeof *constants);
    layout->header = header;
    layout->header_bytes += n * sizeof *constants;
    memmove(layout->offsets, layout->offsets + n, n_others * sizeof *layout->offsets);
    return 0;
}

int checkpoint_lay_out_weights(struct safetensors_layout *out, const struct model *model, struct error *err)
{
    const uint32_t n_constants = checkpoint_count_constants(model), n = n_constants + model->n_saved;
    struct safetensors_plan *plan = calloc(n, sizeof *plan);
    char(*names)[CHECKPOINT_TENSOR_BYTES] = calloc(n, sizeof *names);
    float *constants = calloc(n_constants + 1, sizeof *constants);
    int rc = plan && names && constants ? 0 : error_set(err, -ENOMEM, "no memory for a list of %u tensors", n);

    for (uint32_t i = 0; !rc && i < n_constants; i++) {
        model_constant(names[i], &constants[i], model, i);
        plan[i] = (struct safetensors_plan){.name = names[i], .type = SAFETENSORS_F32};
    }
    for (const struct model_tensor *t = model->tensors; !rc && t < model->tensors + model->n_tensors; t++)
        if (t->saved) {
            const uint32_t at = n_constants + t->place;
            plan[at] =
                (struct safetensors_plan){.name = checkpoint_tensor_name(names[at], model, t), .type = SAFETENSORS_F32};
            plan[at].n_dims = model_file_shape(plan[at].shape, t);
        }
    if (!rc)
        rc = safetensors_layout_init(out, plan, n, err);
    if (!rc && n_constants > 0)
        rc = take_constants(out, constants, n_constants, model->n_saved, err);
    free(plan);
    free(names);
    free(constants);
    return rc;
}

const char *checkpoint_tensor_name(char out[CHECKPOINT_TENSOR_BYTES], const struct model *model,
                                   const struct model_tensor *tensor)
{
    const struct model_adapter *adapter = &model->config.adapter;
    const struct family *family = model->config.family;
    const size_t n = adapter->rank > 0 ? strlen(ADAPTER_PREFIX) : 0;

    if (n == 0 && family->keeps_old_names && family->old_name(out, CHECKPOINT_TENSOR_BYTES, tensor->name))
        return out;
    memcpy(out, ADAPTER_PREFIX, n);
    model_adapter_name(out + n, CHECKPOINT_TENSOR_BYTES - n, adapter->within, family->prefix, tensor->name);
    return out;
}

const char *checkpoint_config_name(const struct model_config *config)
{
    return config->adapter.rank > 0 ? ADAPTER_BASE : CHECKPOINT_CONFIG;
}

const char *checkpoint_weights_name(const struct model *model)
{
    return model->config.adapter.rank > 0 ? ADAPTER_WEIGHTS : CHECKPOINT_WEIGHTS;
}

uint64_t checkpoint_norms(const struct model *model, unsigned n_moments, uint32_t map)
{
    return checkpoint_layout_first_moment(model) + n_moments * (uint64_t)model->n_trained_tensors + model->n_sparse +
           map;
}

uint64_t checkpoint_places(const struct model *model, unsigned n_moments, uint32_t number)
{
    return checkpoint_layout_first_moment(model) + n_moments * (uint64_t)model->n_trained_tensors + number;
}

uint64_t checkpoint_count_places(const struct model *model)
{
    return (model->sparse.keep > 0) + (uint64_t)model->n_sparse;
}

uint64_t checkpoint_codes(const struct model *model, unsigned n_moments, bool second, uint32_t tensor)
{
    return checkpoint_norms(model, n_moments, model->n_norm_maps) + (second ? model->n_grouped : 0) +
           model->tensors[tensor].group_rank;
}

const char *checkpoint_norms_name(char out[CHECKPOINT_MOMENT_BYTES], const struct model_tensor *tensor)
{
    snprintf(out, CHECKPOINT_MOMENT_BYTES, CHECKPOINT_NORMS "%s", tensor->name);
    return out;
}

/* What units remember, in the order of their maps. */
static void plan_norms(struct safetensors_plan *plan, char (*names)[CHECKPOINT_MOMENT_BYTES], const struct model *model,
                       unsigned n_moments)
{
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_norm_maps; i++) {
            const struct model_norm_map map = model_norm_map(model, u, i, 1);
            const uint64_t at = checkpoint_norms(model, n_moments, model->units[u].first_norm_map + i);
            plan[at] = (struct safetensors_plan){checkpoint_norms_name(names[at], map.tensor),
                                                 1,
                                                 {model->n_norm_entries, 1},
                                                 SAFETENSORS_BF16};
        }
}

/* Places; and moments of sparse tensors, one for each element. */
static void lay_out_places(struct safetensors_plan *plan, char (*names)[CHECKPOINT_MOMENT_BYTES],
                           const struct model *model, unsigned n_moments)
{
    uint32_t number = 0;

    if (model->sparse.keep > 0)
        plan[CHECKPOINT_REWIRED_AT] =
            (struct safetensors_plan){CHECKPOINT_REWIRED, 1, {CHECKPOINT_REWIRED_NUMBERS, 1}, SAFETENSORS_I64};
    for (const struct model_piece *p = model->pieces; p < model->pieces + model->n_pieces; p++) {
        if (p->dense == 0)
            continue;
        const uint64_t places = checkpoint_places(model, n_moments, number);
        snprintf(names[places], sizeof *names, CHECKPOINT_PLACES "%s", model->tensors[p->tensor].name);
        plan[places] = (struct safetensors_plan){names[places], 1, {model_places_words(p), 1}, SAFETENSORS_U32};
        for (unsigned second = 0; second < n_moments; second++) {
            struct safetensors_plan *const moment = &plan[checkpoint_moment(model, second, p->tensor)];
            moment->n_dims = 1, moment->shape[0] = p->n;
        }
        number++;
    }
}

enum safetensors_type checkpoint_moment_type(enum number_type moments, bool second)
{
    if (moments == NUMBER_CODED)
        return second ? SAFETENSORS_U8 : SAFETENSORS_I8;
    return moments == NUMBER_FP32 ? SAFETENSORS_F32 : second ? SAFETENSORS_U16 : SAFETENSORS_BF16;
}

static bool checkpoint_layout_ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);

    return n > n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

const struct model_tensor *checkpoint_moment_tensor(enum checkpoint_part *part, const struct model *model,
                                                    const char *name)
{
    const bool codes = checkpoint_layout_ends_with(name, CHECKPOINT_CODES),
               scales = checkpoint_layout_ends_with(name, CHECKPOINT_SCALES);
    char bare[CHECKPOINT_MOMENT_BYTES];

    *part = CHECKPOINT_WHOLE;
    if ((name[0] != 'm' && name[0] != 'v') || name[1] != '.')
        return NULL;
    const struct model_tensor *tensor = model_find(model, name + 2);
    if (tensor || (!codes && !scales) || strlen(name) >= sizeof bare)
        return tensor;
    *part = codes ? CHECKPOINT_OF_CODES : CHECKPOINT_OF_SCALES;
    strcpy(bare, name);
    bare[strlen(name) - strlen(codes ? CHECKPOINT_CODES : CHECKPOINT_SCALES)] = 0;
    return model_find(model, bare + 2);
}

/* A coded moment: its scales, which have its place, and its codes. */
static void lay_out_coded(struct safetensors_plan *plan, char (*names)[CHECKPOINT_MOMENT_BYTES],
                          const struct model *model, unsigned n_moments, bool second, uint32_t tensor)
{
    const struct model_tensor *t = &model->tensors[tensor];
    const uint64_t scales = checkpoint_moment(model, second, tensor),
                   codes = checkpoint_codes(model, n_moments, second, tensor);

    snprintf(names[scales], sizeof *names, "%c.%s" CHECKPOINT_SCALES, second ? 'v' : 'm', t->name);
    snprintf(names[codes], sizeof *names, "%c.%s" CHECKPOINT_CODES, second ? 'v' : 'm', t->name);
    plan[scales] = (struct safetensors_plan){names[scales], 1, {t->n_groups, 1}, SAFETENSORS_F32};
    plan[codes] = (struct safetensors_plan){names[codes],
                                            t->n_dims,
                                            {t->shape[0], t->shape[1]},
                                            checkpoint_moment_type(NUMBER_CODED, second)};
}

int checkpoint_lay_out_moments(struct safetensors_layout *out, const struct model *model, unsigned n_moments,
                               enum number_type moments, struct error *err)
{
    const enum number_type wide = moments == NUMBER_CODED ? NUMBER_FP32 : moments;
    const size_t n_codes = moments == NUMBER_CODED ? n_moments * (size_t)model->n_grouped : 0;
    const size_t n = 1 + n_moments * (size_t)model->n_trained_tensors + model->n_norm_maps +
                     checkpoint_count_places(model) + n_codes;
    struct safetensors_plan *plan = calloc(n, sizeof *plan);
    char(*names)[CHECKPOINT_MOMENT_BYTES] = calloc(n, sizeof *names);
    int rc = plan && names ? 0 : error_set(err, -ENOMEM, "no memory for a list of %zu tensors", n);

    for (uint32_t t = 0; rc == 0 && t < n_moments * model->n_tensors; t++) {
        const struct model_tensor *tensor = &model->tensors[t % model->n_tensors];
        const bool second = t >= model->n_tensors;
        const uint64_t i = checkpoint_moment(model, second, t % model->n_tensors);
        if (tensor->frozen)
            continue;
        if (checkpoint_is_coded(tensor, moments)) {
            lay_out_coded(plan, names, model, n_moments, second, t % model->n_tensors);
            continue;
        }
        snprintf(names[i], sizeof *names, "%c.%s", second ? 'v' : 'm', tensor->name);
        plan[i] = (struct safetensors_plan){names[i],
                                            tensor->n_dims,
                                            {tensor->shape[0], tensor->shape[1]},
                                            checkpoint_moment_type(wide, second)};
    }
    if (rc == 0) {
        plan_norms(plan, names, model, n_moments);
        lay_out_places(plan, names, model, n_moments);
        plan[0] = (struct safetensors_plan){"updates", 1, {model->n_tensors, 1}, SAFETENSORS_I64};
        rc = safetensors_layout_init(out, plan, n, err);
    }
    free(plan);
    free(names);
    return rc;
}
