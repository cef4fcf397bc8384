#include "proto/model/drop.h"

#include "proto/model/family.h"
#include "proto/model/model.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>

static bool has(const struct model_drop *set, uint32_t block)
{
    return set->blocks[block / 64] >> block % 64 & 1;
}

/* A block is dropped if it is small. */
static uint32_t word_of(uint64_t seed, uint64_t step, uint32_t block)
{
    uint32_t words[4];

    random_quad(words, random_site_key(seed, step, block, RANDOM_DROP_LAYER), 0, 0);
    return words[0];
}

void model_drop_draw(struct model_drop *out, uint32_t n_blocks, double p, uint64_t seed, uint64_t step)
{
    const uint32_t threshold = random_threshold((float)p);

    assert(n_blocks <= 64 * MODEL_DROP_WORDS);
    *out = (struct model_drop){0};
    for (uint32_t block = 0; block < n_blocks; block++)
        if (word_of(seed, step, block) < threshold)
            out->blocks[block / 64] |= UINT64_C(1) << block % 64;
}

void model_drop_keep_one(struct model_drop *drop, const struct model_drop *trained, uint32_t n_blocks, uint64_t seed,
                         uint64_t step)
{
    uint32_t largest = 0, kept = n_blocks;

    for (uint32_t block = 0; block < n_blocks; block++) {
        const uint32_t word = word_of(seed, step, block);
        if (has(trained, block) && !has(drop, block))
            return;
        if (has(trained, block) && (kept == n_blocks || word > largest))
            kept = block, largest = word;
    }
    if (kept < n_blocks)
        drop->blocks[kept / 64] &= ~(UINT64_C(1) << kept % 64);
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
    return 0;
}
