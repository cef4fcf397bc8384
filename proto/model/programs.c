/* The programs of a model's layers: of each kind and width of block that the model has, and of its other layers. */
#include "proto/model/drop.h"
#include "proto/model/model_internal.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { KINDS = 16 }; /* of blocks in a family's list, at most */

void model_complete_program(struct model_program *p)
{
    uint64_t groups[PROGRAM_KEPT_GROUPS];
    int operations[PROGRAM_KEPT_GROUPS];

    p->n_keepings = UINT32_C(1) << program_kept_groups(&p->program, groups, operations);
    for (uint32_t keeping = 0; keeping < p->n_keepings; keeping++) {
        p->kept[keeping] = 0;
        for (int i = 0; i < PROGRAM_KEPT_GROUPS; i++)
            if (keeping >> i & 1)
                p->kept[keeping] |= groups[i];
        schedule_forward(&p->forward[keeping], &p->program, p->kept[keeping]);
        schedule_backward(&p->backward[keeping], &p->program, p->kept[keeping]);
        assert(p->backward[keeping].passes == p->backward[0].passes); /* places do not depend on what is kept */
    }
    p->passes = p->backward[0].passes;
    p->reads = program_inputs_read(&p->program);
    p->skips = model_drop_skips(&p->program);
}

void model_approximate(struct model *m, const struct model_approximation *how)
{
    struct model_program *const first = &m->programs[m->block];

    for (struct model_program *p = first; p < first + m->n_block_programs; p++) {
        if (how->samples)
            program_sample(&p->program);
        program_pool(&p->program, how->side);
        program_compress(&p->program, how->bits);
        model_complete_program(p);
    }
}

/* True if backward reads a value in fewer bits that are not just its sign. */
static bool codes(const struct program *p)
{
    for (int i = 0; i < p->n_values; i++)
        if (p->values[i].bits > 1)
            return true;
    return false;
}

static bool samples(const struct program *p)
{
    for (int i = 0; i < p->n_operations; i++) {
        const struct operation *kind = p->operations[i].kind;
        if (kind == &operation_adapter || (kind == &operation_linear && !p->operations[i].frozen))
            return true;
    }
    return false;
}

static bool attends(const struct program *p)
{
    return program_find(p, &operation_attention) || program_find(p, &operation_cross_attention);
}

unsigned model_approximates(const struct model *m)
{
    const struct model_program *const first = &m->programs[m->block];
    unsigned forms = 0;

    for (const struct model_program *p = first; p < first + m->n_block_programs; p++)
        forms |= (codes(&p->program) ? MODEL_CODES : 0) | (samples(&p->program) ? MODEL_SAMPLES : 0) |
                 (attends(&p->program) ? MODEL_ATTENDS : 0) | (program_can_pool(&p->program) ? MODEL_POOLS : 0);
    return forms;
}

const struct family_layer *model_layers_of(const struct model *m)
{
    const struct family *family = m->config.family;

    if (m->config.image.ghost_batch > 0)
        return family->classifier->ghost_layers;
    return m->config.n_labels ? family->classifier->layers : family->layers;
}

/* ---- kinds and widths of blocks ---- */

/* The blocks' first row in the family's list; the row behind a kind's last. */
static uint32_t find_blocks(const struct family_layer *layers)
{
    uint32_t row = 0;

    while (layers[row].kind != MODEL_BLOCK)
        row++;
    return row;
}

static uint32_t end_of_kind(const struct family_layer *layers, uint32_t row)
{
    do
        row++;
    while (layers[row].goes_on);
    return row;
}

static uint32_t kind_of(const struct model_config *c, uint32_t block)
{
    return c->family->kind_of_block ? c->family->kind_of_block(c, block) : 0;
}

struct model_kind model_kind_of_block(const struct model *m, uint32_t index)
{
    const struct family_layer *layers = model_layers_of(m);
    const uint32_t width = model_width_of(&m->config, index), end = m->block + m->n_block_programs;
    struct model_kind kind = {.first = m->block};
    uint32_t row = find_blocks(layers);

    for (uint32_t i = kind_of(&m->config, index); i > 0; i--)
        row = end_of_kind(layers, row);
    while (m->programs[kind.first].row != row || m->programs[kind.first].inner_width != width) {
        kind.first++;
        assert(kind.first < end);
    }
    kind.n = end_of_kind(layers, row) - row;
    return kind;
}

/* The class of a program's blocks: a new one, if it is like none so far. MODEL_CLASSES: there is no room for one. */
static uint32_t class_of(struct model *m, const struct model_program *program)
{
    uint32_t c = 0;

    while (c < m->n_classes && !program_is_alike(&m->classes[c].program->program, &program->program))
        c++;
    if (c == m->n_classes && c < MODEL_CLASSES)
        m->classes[m->n_classes++].program = program;
    return c;
}

/* Counts the layers of each program and class. */
static int classify(struct model *m, struct error *err)
{
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const struct model_kind kind = model_kind_of_block(m, i);
        for (struct model_program *p = &m->programs[kind.first]; p < &m->programs[kind.first + kind.n]; p++) {
            if (p->n_layers++ == 0 && (p->class = class_of(m, p)) == MODEL_CLASSES)
                return error_set(err, -EINVAL,
                                 "the model has blocks of more than %d shapes: use fewer different widths",
                                 MODEL_CLASSES);
            m->classes[p->class].n_blocks++;
            m->n_block_layers++;
        }
    }
    for (uint32_t c = 1; c < m->n_classes; c++)
        m->classes[c].first = m->classes[c - 1].first + m->classes[c - 1].n_blocks;
    return 0;
}

/* ---- programs as their families write them ---- */

/* What blocks there are: which kinds, of which widths (model_width_at). */
struct blocks {
    bool has[MODEL_WIDTHS][KINDS];
};

static void find_kinds(struct blocks *out, const struct model_config *c)
{
    *out = (struct blocks){0};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const uint32_t kind = kind_of(c, i);
        assert(kind < KINDS);
        out->has[c->widths.n ? c->widths.of[i] : 0][kind] = true;
    }
}

/* A row must have the tokens that programs take. */
static void count_taken(struct model *m, const struct program *p)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
        const uint32_t least =
            op->kind == &operation_take ? program_own_least(&p->own[op->take.domain - PROGRAM_OWN]) : 0;
        m->least_tokens = m->least_tokens < least ? least : m->least_tokens;
    }
    if (m->config.image.height > 0)
        m->least_tokens = m->config.n_positions;
}

/* The program as its family writes it, to be completed. */
static void complete_program(struct model *m, struct model_program *p)
{
    if (m->config.adapter.rank > 0)
        model_adapt_program(&p->program, &m->config.adapter);
    for (uint32_t own = 0; own < PROGRAM_DOMAINS - PROGRAM_OWN; own++)
        p->program.own[own] = model_own_domain(&m->config, own);
    model_complete_program(p);
    count_taken(m, &p->program);
}

/* Adds the next program: of a row of the family's list, of blocks of this kind and width. */
static void write_program(struct model *m, uint32_t row, uint32_t kind, uint32_t inner_width)
{
    const struct family_layer *layer = &model_layers_of(m)[row];
    struct model_program *p = &m->programs[m->n_programs++];
    struct model_config config = m->config;

    config.inner_width = p->inner_width = inner_width;
    p->row = row, p->kind = kind;
    if (layer->write_kind)
        layer->write_kind(&p->program, &config, kind);
    else
        layer->write(&p->program, &config);
    complete_program(m, p);
}

/* Writes the programs of all kinds of block that there are, width by width; returns the row behind theirs. */
static uint32_t write_blocks(struct model *m, const struct blocks *blocks, uint32_t first)
{
    const struct family_layer *layers = model_layers_of(m);
    uint32_t row = first;

    m->block = m->n_programs;
    for (uint32_t w = 0; w < model_count_widths(&m->config); w++) {
        row = first;
        for (uint32_t kind = 0, end; layers[row].name && layers[row].kind == MODEL_BLOCK; kind++, row = end) {
            end = end_of_kind(layers, row);
            for (uint32_t r = row; r < end && blocks->has[w][kind]; r++)
                write_program(m, r, kind, model_width_at(&m->config, w));
        }
    }
    m->n_block_programs = m->n_programs - m->block;
    return row;
}

static void write_finishes(struct model *m)
{
    for (struct model_program *p = m->programs; p < m->programs + m->n_programs; p++)
        if (model_layers_of(m)[p->row].finish) {
            struct model_program *finish = &m->programs[m->n_programs + m->n_finishes++];
            model_layers_of(m)[p->row].finish(&finish->program, &m->config, p->kind);
            complete_program(m, finish);
            p->finish = finish;
        }
}

/* With what finishes layers. */
static uint32_t count_programs(const struct model *m, const struct blocks *blocks)
{
    const struct family_layer *layers = model_layers_of(m);
    const uint32_t first = find_blocks(layers);
    uint32_t n = 0, kind = 0;

    for (uint32_t row = 0; layers[row].name; row++) {
        const bool is_block = layers[row].kind == MODEL_BLOCK;
        uint32_t times = !is_block;
        kind += is_block && row > first && !layers[row].goes_on;
        for (uint32_t w = 0; is_block && w < MODEL_WIDTHS; w++)
            times += blocks->has[w][kind];
        n += layers[row].finish ? 2 * times : times;
    }
    return n;
}

int model_write_programs(struct model *m, struct error *err)
{
    const struct family_layer *layers = model_layers_of(m);
    struct blocks blocks;

    find_kinds(&blocks, &m->config);
    m->programs = calloc(count_programs(m, &blocks), sizeof *m->programs);
    if (!m->programs)
        return error_set(err, -ENOMEM, "no memory for the programs of a model of %u layers", m->config.n_layers);
    for (uint32_t row = 0; layers[row].name;)
        if (layers[row].kind == MODEL_BLOCK)
            row = write_blocks(m, &blocks, row);
        else
            write_program(m, row++, 0, m->config.inner_width);
    write_finishes(m);
    return classify(m, err);
}
