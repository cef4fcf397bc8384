/* A block's word depends on seed, step and block alone, so the daemon and all workers draw the same set, and no message
 * carries it. model_drop_keep_one draws the same words again, which are all equally likely to be the largest.
 *
 * Whether a layer may be left out is asked of its program, not of its family. A branch that is scaled has another
 * gradient than its sum, so backward has other steps: the program is completed anew once its sums have their scale. */
#include "proto/model/drop.h"

#include "proto/model/family.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* A block is dropped if it is small. */
static uint32_t drop_word_of(uint64_t seed, uint64_t step, uint32_t block)
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
        if (drop_word_of(seed, step, block) < threshold)
            model_drop_add(out, block);
}

void model_drop_keep_one(struct model_drop *drop, const struct model_drop *trained, uint32_t n_blocks, uint64_t seed,
                         uint64_t step)
{
    uint32_t largest = 0, kept = n_blocks;

    for (uint32_t block = 0; block < n_blocks; block++) {
        const uint32_t word = drop_word_of(seed, step, block);
        if (model_drop_holds(trained, block) && !model_drop_holds(drop, block))
            return;
        if (model_drop_holds(trained, block) && (kept == n_blocks || word > largest))
            kept = block, largest = word;
    }
    if (kept < n_blocks)
        drop->blocks[kept / 64] &= ~(UINT64_C(1) << kept % 64);
}

bool model_drop_exceeds(const struct model_drop *drop, uint32_t n_blocks)
{
    for (uint32_t block = n_blocks; block < 64 * MODEL_DROP_WORDS; block++)
        if (model_drop_holds(drop, block))
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

    return drop && model_drop_concerns(layer) && model_drop_holds(drop, layer->index);
}

bool model_drop_trains(const struct model_drop *drop, const struct model_drop *frozen, const struct model *model,
                       uint32_t visit)
{
    return model_contributes(model, visit) && !model_drop_has(drop, model, visit) &&
           !model_drop_has(frozen, model, visit);
}

/* The sums by which branches are added on the way from the first input to the first output, through sums and the norms
 * after them. Returns their number; 0 if there is no such way. */
static int find_branches(int sums[PROGRAM_OPERATIONS], const struct program *p)
{
    int value = p->outputs[0].value, n = 0;

    while (p->values[value].operation >= 0) {
        const int operation = p->values[value].operation;
        const struct program_operation *op = &p->operations[operation];
        if (op->kind != &operation_add && op->kind != &operation_norm)
            return 0;
        if (op->kind == &operation_add)
            sums[n++] = operation;
        value = op->inputs[0];
    }
    return value == p->inputs[0].value ? n : 0;
}

/* True if all that a program gives is another value of its first input's name. */
static bool gives_first_alone(const struct program *p)
{
    return p->n_inputs > 0 && p->n_outputs == 1 && strcmp(p->inputs[0].name, p->outputs[0].name) == 0 &&
           !p->outputs[0].adds;
}

bool model_drop_skips(const struct program *p)
{
    int sums[PROGRAM_OPERATIONS];

    return gives_first_alone(p) && find_branches(sums, p) > 0;
}

/* True if the layer can be left out, or stays without its block's others. */
static bool can_be_without(const struct model_layer *layer)
{
    const struct program *p = &layer->program->program;

    return !layer->program->finish && (layer->program->skips || (gives_first_alone(p) && p->n_inputs == 1));
}

int model_drop_check(const struct model *m, struct error *err)
{
    const struct model_layer *const first = &m->layers[m->first_block];
    uint32_t n_skipped = 0; /* blocks with a layer that is left out; it is their first */

    for (const struct model_layer *layer = first; layer < first + m->n_block_layers; layer++) {
        n_skipped += layer->part == 0 && layer->program->skips;
        if (!can_be_without(layer) || n_skipped <= layer->index)
            return error_set(
                err, -EINVAL,
                "no block of a %s model can be dropped: a step may leave out blocks whose first layer adds "
                "to its first input, and whose layers give nothing else",
                m->config.family->model_type);
    }
    return 0;
}

int model_drop_prepare(struct model *m, double p, struct error *err)
{
    struct model_program *const first = &m->programs[m->block];
    int sums[PROGRAM_OPERATIONS];

    if (p == 0)
        return 0;
    if (!(p > 0 && (float)p < 1))
        return error_set(err, -EINVAL, "blocks dropped with probability %g: it must be from 0 to below 1", p);
    const int rc = model_drop_check(m, err);
    if (rc)
        return rc;
    for (struct model_program *program = first; program < first + m->n_block_programs; program++) {
        if (!program->skips)
            continue;
        for (int i = find_branches(sums, &program->program); i-- > 0;)
            program->program.operations[sums[i]].add.survival = (float)(1 - p);
        model_complete_program(program);
    }
    return 0;
}
