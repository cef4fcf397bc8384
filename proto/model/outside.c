/* Beside the text model in its wrapper, everything is outside but what has a name of the text model's own layers: a
 * bias of the head would be one. Without a wrapper, all that has the family's prefix is inside:
 * "model.embed_norm.weight" changes what is computed, whoever added it. Encoders and nets of images have no parts that
 * others put beside them, so for these a name that is unknown stays a fault. */
#include "proto/model/outside.h"

#include "proto/model/family.h"
#include "proto/model/model_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "layers.46.mlp.up_proj.weight" where the last block is layers.45. */
static bool is_beyond(const struct model *model, const char *bare)
{
    bool is_block = false;

    for (const struct model_layer *l = model->layers; l < model->layers + model->n_layers; l++) {
        const char *number = l->kind == MODEL_BLOCK ? strstr(l->name, "%u") : NULL;
        const size_t n = number ? (size_t)(number - l->name) : 0;
        char *end;
        if (!number || strncmp(bare, l->name, n) != 0 || !isdigit((unsigned char)bare[n]))
            continue;
        const unsigned long block = strtoul(bare + n, &end, 10);
        if (*end != '.')
            continue;
        if (block == model_block_number(model, l->index))
            return false;
        is_block = true;
    }
    return is_block;
}

static bool begins_alike(const char *name, const char *other, size_t n)
{
    return strncmp(name, other, n) == 0 && (other[n] == '.' || other[n] == 0);
}

/* True if a layer of the model has the name's first part: "layers", "norm", "lm_head". */
static bool is_of_layer(const struct model *model, const char *bare)
{
    const size_t n = strcspn(bare, ".");

    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (begins_alike(bare, model_without_prefix(model, model->tensors[t].name), n))
            return true;
    return begins_alike(bare, model->config.family->logits, n);
}

static bool is_draft(const char *bare)
{
    return strncmp(bare, "mtp.", 4) == 0 || strncmp(bare, "mtp_", 4) == 0;
}

static const char *without_wrapper(const char *name, const char *wrapper)
{
    const size_t n = wrapper ? strlen(wrapper) : 0;

    return n > 0 && strncmp(name, wrapper, n) == 0 ? name + n : name;
}

bool outside_has(const struct model *model, const struct outside_names *names, const char *name)
{
    const struct family *family = model->config.family;
    const char *inside = without_wrapper(name, names->wrapper), *bare = model_without_prefix(model, inside);
    const bool is_wrapped = inside != name;

    if (family->masked || family->has_source || family->sees_images || family->is_own)
        return names->wrapper && !is_wrapped;
    if (is_beyond(model, bare) || is_draft(bare))
        return true;
    if (is_of_layer(model, bare))
        return false;
    return names->wrapper ? !is_wrapped : names->prefixed && bare == inside;
}

const char *outside_part(char out[OUTSIDE_PART_BYTES], const struct model *model, const char *wrapper, const char *name)
{
    const char *bare = model_without_prefix(model, without_wrapper(name, wrapper));
    const char *part = bare + strcspn(bare, ".");

    if (*part && is_of_layer(model, bare)) /* a block's number, another head beside the model's */
        part += 1 + strcspn(part + 1, ".");
    snprintf(out, OUTSIDE_PART_BYTES, "%.*s%s", (int)(part - name), name, *part ? ".*" : "");
    return out;
}
