/* Source and target: the two sides of an encoder-decoder's rows. */
#include "proto/model/family.h"
#include "proto/model/model_internal.h"

#include <errno.h>

bool model_has_source(const struct model_config *config)
{
    return config->family->has_source;
}

bool model_restores_tokens(const struct model_config *config)
{
    return config->family->masked;
}

int model_divide_rows(struct model_config *config, uint32_t source, uint32_t row, struct error *err)
{
    if (source == 0)
        return 0;
    if (!model_has_source(config))
        return error_set(err, -EINVAL, "a %s model has no encoder that reads a source", config->family->model_type);
    if (source >= row)
        return error_set(err, -EINVAL, "rows of %u tokens cannot begin with a source of %u and have a target", row,
                         source);
    config->source = source, config->row = row;
    return 0;
}

void model_part_rows(struct model_config *config, uint32_t row)
{
    config->source = config->row = row;
}

bool model_is_of_source(const struct model_layer *layer)
{
    return layer->program && program_is_of_source(&layer->program->program);
}

/* Place of a side in an encoder-decoder's row: the source comes first; or the row is one of the two. */
static struct program_own own_side(const struct model_config *c, uint32_t domain)
{
    if (c->source == c->row)
        return (struct program_own){.n = 1, .of = 1};
    return domain == PROGRAM_SOURCE ? (struct program_own){.n = c->source, .of = c->row}
                                    : (struct program_own){.first = c->source, .n = c->row - c->source, .of = c->row};
}

struct program_own model_own_domain(const struct model_config *config, uint32_t own)
{
    const uint32_t domain = PROGRAM_OWN + own;

    if (model_has_source(config) && domain <= PROGRAM_TARGET)
        return own_side(config, domain);
    return config->family->own_domain ? config->family->own_domain(config, own) : (struct program_own){0};
}
