#include "proto/model/drop.h"

#include "proto/model/family.h"
#include "proto/model/model.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>

void model_drop_draw(struct model_drop *out, uint32_t n_blocks, double p, uint64_t seed, uint64_t step)
{
    const uint32_t threshold = random_threshold((float)p);

    assert(n_blocks <= 64 * MODEL_DROP_WORDS);
    *out = (struct model_drop){0};
    for (uint32_t block = 0; block < n_blocks; block++) {
        uint32_t words[4];
        random_quad(words, random_site_key(seed, step, block, RANDOM_DROP_LAYER), 0, 0);
        if (words[0] < threshold)
            out->blocks[block / 64] |= UINT64_C(1) << block % 64;
    }
}

bool model_drop_exceeds(const struct model_drop *drop, uint32_t n_blocks)
{
    for (uint32_t block = n_blocks; block < 64 * MODEL_DROP_WORDS; block++)
        if (drop->blocks[block / 64] >> block % 64 & 1)
            return true;
    return false;
}

bool model_drop_is_empty(const struct model_drop *drop)
{
    return !model_drop_exceeds(drop, 0);
}

bool model_drop_has(const struct model_drop *drop, const struct model *model, uint32_t visit)
{
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];

    return drop && layer->kind == MODEL_BLOCK && drop->blocks[layer->index / 64] >> layer->index % 64 & 1;
}

/* The branches that are added on the way from the stream's input to its output, through sums and the norms after them; 0
 * if there is no such way. */
static int count_branches(const struct program *p)
{
    int value = p->outputs[0].value, n = 0;

    while (p->values[value].operation >= 0) {
        const struct program_operation *op = &p->operations[p->values[value].operation];
        if (op->kind != &operation_add && op->kind != &operation_norm)
            return 0;
        n += op->kind == &operation_add;
        value = op->inputs[0];
    }
    return value == p->inputs[0].value ? n : 0;
}

static void scale_branches(struct program *p, float survival)
{
    int value = p->outputs[0].value;

    while (p->values[value].operation >= 0) {
        struct program_operation *op = &p->operations[p->values[value].operation];
        if (op->kind == &operation_add)
            op->add.survival = survival;
        value = op->inputs[0];
    }
}

/* True if all that a block does is to write the stream that it reads. */
static bool has_stream_alone(const struct model *m, const struct model_program *p)
{
    const struct program *program = &p->program;

    return program->n_inputs == 1 && program->n_outputs == 1 && !program->inputs[0].name[0] &&
           !program->outputs[0].name[0] && !p->finish && m->n_block_layers == m->config.n_layers;
}

static bool trains_beside_blocks(const struct model *m)
{
    for (uint32_t visit = 0; visit < m->n_visits; visit++)
        if (model_contributes(m, visit) && m->layers[m->visit_layers[visit]].kind != MODEL_BLOCK)
            return true;
    return false;
}

int model_drop_check(const struct model *m, struct error *err)
{
    const struct model_program *const first = &m->programs[m->block];

    for (const struct model_program *program = first; program < first + m->n_block_programs; program++)
        if (!has_stream_alone(m, program) || count_branches(&program->program) == 0)
            return error_set(err, -EINVAL,
                             "no block of a %s model can be dropped: a step may leave out blocks that add to their one "
                             "input alone",
                             m->config.family->model_type);
    return 0;
}

int model_drop_prepare(struct model *m, double p, struct error *err)
{
    struct model_program *const first = &m->programs[m->block];

    if (p == 0)
        return 0;
    if (!(p > 0 && (float)p < 1))
        return error_set(err, -EINVAL, "blocks dropped with probability %g: it must be from 0 to below 1", p);
    const int rc = model_drop_check(m, err);
    if (rc)
        return rc;
    for (struct model_program *program = first; program < first + m->n_block_programs; program++) {
        scale_branches(&program->program, (float)(1 - p));
        model_complete_program(program);
    }
    return trains_beside_blocks(m)
               ? 0
               : error_set(err, -EINVAL,
                           "only tensors of blocks are trained here, and a step may drop all blocks: "
                           "train others, too");
}
