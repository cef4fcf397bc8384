/* Names of units, visits, kept values and tensors. */
#include "proto/model/model_internal.h"

#include "proto/base/text.h"
#include "proto/model/family.h"
#include "proto/operation/operation.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* "attn.c_attn" of an operation with tensors, by the first; else what its result is called. */
static int print_operation(char *out, size_t size, const struct program *p, int operation)
{
    const struct program_operation *op = &p->operations[operation];

    if (op->n_tensors == 0)
        return snprintf(out, size, "%s", op->kind->result ? op->kind->result : op->kind->name);
    const char *const stem = p->tensors[op->tensor].name;
    return snprintf(out, size, "%.*s", (int)(strrchr(stem, '.') - stem), stem);
}

const char *model_keeping_name(char out[MODEL_KEEPING_BYTES], const struct model_program *p, uint32_t keeping)
{
    const uint32_t kept = model_keeping(p, keeping);
    uint64_t groups[PROGRAM_KEPT_GROUPS];
    int operations[PROGRAM_KEPT_GROUPS], n = 0;

    program_kept_groups(&p->program, groups, operations);
    snprintf(out, MODEL_KEEPING_BYTES, "%s", kept == 0 ? "nothing" : "all");
    if (kept == p->n_keepings - 1)
        return out;
    for (int i = 0; i < PROGRAM_KEPT_GROUPS; i++)
        if (kept >> i & 1) {
            n += snprintf(out + n, (size_t)(MODEL_KEEPING_BYTES - n), "%s", n ? ", " : "");
            n += print_operation(out + n, (size_t)(MODEL_KEEPING_BYTES - n), &p->program, operations[i]);
        }
    return out;
}

/* The layer named by the unit's id. */
static const struct model_layer *layer_of(const struct model *m, const struct model_unit *unit)
{
    const enum model_layer_kind kind = (enum model_layer_kind)(unit->id >> 56);
    const uint32_t index = (uint32_t)(unit->id >> 24), part = (uint32_t)(unit->id & 0xFFFFFF);
    const struct model_layer *layer = m->layers;

    if (kind == MODEL_EMBEDDING)
        return layer;
    while (layer->kind != kind || layer->index != index || (kind == MODEL_BLOCK && layer->part != part))
        layer++;
    return layer;
}

const char *model_unit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t unit)
{
    const struct model_unit *u = &model->units[unit];
    const struct model_piece *piece = &model->pieces[u->first_piece];
    const struct model_layer *layer = layer_of(model, u);
    const unsigned index = (unsigned)(u->id >> 24), chunk = (unsigned)(u->id & 0xFFFFFF);
    const char *table =
        layer->kind == MODEL_HEAD ? model_logits_name(model) : model->embedding.tables[index % MODEL_TABLES].name;

    if (layer->kind == MODEL_BLOCK)
        snprintf(out, MODEL_NAME_BYTES, layer->name, model_block_number(model, index));
    else if (layer->kind == MODEL_SINGLE)
        snprintf(out, MODEL_NAME_BYTES, "%s", layer->name);
    else if (piece->n_rows < model->tensors[piece->tensor].shape[0])
        snprintf(out, MODEL_NAME_BYTES, "%s.%u", table, chunk);
    else
        snprintf(out, MODEL_NAME_BYTES, "%s", table);
    return out;
}

const char *model_visit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t visit)
{
    const bool head = model->layers[model->visit_layers[visit]].kind == MODEL_HEAD;
    char name[MODEL_NAME_BYTES];

    snprintf(out, MODEL_NAME_BYTES, "%s%.26s", head ? "head " : "", model_unit_name(name, model, model->visits[visit]));
    return out;
}

const char *model_title(char out[MODEL_TITLE_BYTES], const struct model_config *config)
{
    if (config->family)
        snprintf(out, MODEL_TITLE_BYTES, "%.20s %ux%u", config->family->model_type, config->n_layers, config->width);
    else
        snprintf(out, MODEL_TITLE_BYTES, "no model");
    return out;
}

const struct model_tensor *model_find(const struct model *model, const char *name)
{
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (strcmp(t->name, name) == 0 || strcmp(model_without_prefix(model, t->name), name) == 0)
            return t;
    }
    return NULL;
}

bool model_constant(char name[MODEL_TENSOR_BYTES], float *value, const struct model *model, uint32_t i)
{
    char block[MODEL_NAME_BYTES];

    for (const struct model_layer *l = model->layers; l < model->layers + model->n_layers; l++) {
        const struct family *family = l->kind == MODEL_BLOCK ? model_family_of_block(model, l->index) : NULL;
        const struct family_constant *constant = family && l->part == 0 ? family->constants : NULL;
        for (; constant && constant->ending; constant++) {
            if (i-- > 0)
                continue;
            snprintf(block, sizeof block, l->name, model_block_number(model, l->index));
            snprintf(name, MODEL_TENSOR_BYTES, "%s%s.%s", family->prefix, block, constant->ending);
            *value = constant->value;
            return true;
        }
    }
    return false;
}

uint32_t model_count_constants(const struct model *model)
{
    char name[MODEL_TENSOR_BYTES];
    float value;
    uint32_t n = 0;

    while (model_constant(name, &value, model, n))
        n++;
    return n;
}

bool model_is_constant(float *value, const struct model *model, const char *name)
{
    char own[MODEL_TENSOR_BYTES];

    for (uint32_t i = 0; model_constant(own, value, model, i); i++)
        if (strcmp(model_without_prefix(model, own), model_without_prefix(model, name)) == 0)
            return true;
    return false;
}

bool model_is_mask(const struct model *model, const char *name)
{
    const struct family *family = model->config.family;
    const char *bare = model_without_prefix(model, name);

    float value;

    return (family->is_mask && family->is_mask(bare)) || model_is_constant(&value, model, name) ||
           (model->config.n_labels && family_lists(family->classifier->others, bare));
}

bool model_is_tied_copy(const struct model *model, const char *name)
{
    const char *logits = model->config.family->logits;
    const size_t n = strlen(logits);

    return model->config.tied && strncmp(name, logits, n) == 0 && strcmp(name + n, ".weight") == 0;
}

uint32_t model_file_shape(uint64_t out[4], const struct model_tensor *t)
{
    out[0] = t->shape[0], out[1] = t->shape[1];
    if (t->heads > 0) {
        out[0] = t->heads, out[1] = t->n / t->heads;
        return 2;
    }
    if (!model_is_filter(t))
        return t->n_dims;
    if (t->over_tokens) {
        out[0] = t->n / t->width, out[1] = 1, out[2] = t->width;
        return 3;
    }
    out[1] /= (uint64_t)t->height * t->width;
    out[2] = t->height, out[3] = t->width;
    return 4;
}
