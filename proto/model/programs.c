/* The programs of a model's layers: of each kind and width of block that the model has, and of its other layers.
 *
 * A program is written once for each kind and form of block, not once for each block: a model of 4,096 equal blocks has
 * one. Blocks whose programs allocate and keep alike are a class; what a plan chooses, it chooses for a class. */
#include "proto/model/drop.h"
#include "proto/model/model_internal.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { KINDS = 16 }; /* of blocks in a family's list, at most */

/* All that follows from a program is computed once here: for each set of values that may be kept, both schedules. */
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

/* Schedules depend on what is sampled and compressed, so they are made anew. */
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

static bool programs_samples(const struct program *p)
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

/* What approximations would have something to act upon, in any block. */
unsigned model_approximates(const struct model *m)
{
    const struct model_program *const first = &m->programs[m->block];
    unsigned forms = 0;

    for (const struct model_program *p = first; p < first + m->n_block_programs; p++)
        forms |= (codes(&p->program) ? MODEL_CODES : 0) | (programs_samples(&p->program) ? MODEL_SAMPLES : 0) |
                 (attends(&p->program) ? MODEL_ATTENDS : 0) | (program_can_pool(&p->program) ? MODEL_POOLS : 0);
    return forms;
}

static bool programs_have(const struct model *m, const struct operation *kind)
{
    const struct model_program *const first = &m->programs[m->block];

    for (const struct model_program *p = first; p < first + m->n_block_programs; p++)
        if (program_find(&p->program, kind))
            return true;
    return false;
}

bool model_has_states(const struct model *m)
{
    return programs_have(m, &operation_gated_delta);
}

bool model_has_tails(const struct model *m)
{
    return programs_have(m, &operation_short_conv) || model_has_states(m);
}

const struct family_layer *model_layers_of(const struct model_config *c)
{
    const struct family_classifier *classifier = c->n_labels ? c->family->classifier : NULL;

    if (c->image.ghost_batch > 0)
        return classifier->ghost_layers;
    return classifier ? classifier->layers : c->family->layers;
}

/* ---- kinds and forms of blocks ---- */

/* Blocks have the model's config, with one of its widths, or a guest's. Each of these configs writes programs that may
 * be adapted in several ways: a form is one config, adapted in one way. */
static uint32_t count_forms(const struct model_config *c)
{
    return (model_count_widths(c) + c->guests.n) * model_count_adapter_forms(&c->adapter);
}

static uint32_t programs_form_of(const struct model_config *c, uint32_t block)
{
    const uint32_t guest = model_guest_of(c, block), config = guest         ? model_count_widths(c) + guest - 1
                                                              : c->widths.n ? c->widths.of[block]
                                                                            : 0;

    return config * model_count_adapter_forms(&c->adapter) + model_adapter_form_of(&c->adapter, block);
}

/* True if a guest's config writes the programs of a form. */
static bool is_of_guest(const struct model_config *c, uint32_t form)
{
    return form / model_count_adapter_forms(&c->adapter) >= model_count_widths(c);
}

/* The config that writes the programs of a form. */
static void form_config(struct model_config *out, const struct model_config *c, uint32_t form)
{
    const uint32_t config = form / model_count_adapter_forms(&c->adapter);

    if (is_of_guest(c, form)) {
        model_guest_config(out, c, config - model_count_widths(c));
        return;
    }
    *out = *c;
    out->inner_width = model_width_at(c, config);
}

/* The blocks' first row in the family's list; the row behind a kind's last. */
static const struct family_layer *find_blocks(const struct family_layer *row)
{
    while (row->kind != MODEL_BLOCK)
        row++;
    return row;
}

static const struct family_layer *end_of_kind(const struct family_layer *row)
{
    do
        row++;
    while (row->goes_on);
    return row;
}

static uint32_t programs_kind_of(const struct model_config *c, uint32_t block)
{
    return c->family->kind_of_block ? c->family->kind_of_block(c, block) : 0;
}

/* The kind of a block of this form, and the first row of its family's list. */
static uint32_t programs_find_kind(const struct family_layer **row, const struct model_config *c, uint32_t block)
{
    const uint32_t form = programs_form_of(c, block);
    struct model_config of_guest;

    if (is_of_guest(c, form)) {
        form_config(&of_guest, c, form);
        c = &of_guest;
    }
    const uint32_t kind = programs_kind_of(c, block);
    *row = find_blocks(model_layers_of(c));
    for (uint32_t i = kind; i > 0; i--)
        *row = end_of_kind(*row);
    return kind;
}

/* The programs of a block lie side by side, one for each of its parts. */
struct model_kind model_kind_of_block(const struct model *m, uint32_t index)
{
    const uint32_t form = programs_form_of(&m->config, index), end = m->block + m->n_block_programs;
    struct model_kind kind = {.first = m->block};
    const struct family_layer *row;

    programs_find_kind(&row, &m->config, index);
    while (m->programs[kind.first].row != row || m->programs[kind.first].form != form) {
        kind.first++;
        assert(kind.first < end);
    }
    kind.n = (uint32_t)(end_of_kind(row) - row);
    return kind;
}

/* The class of a program's blocks: a new one, if it is like none so far. MODEL_CLASSES: there is no room for one. */
static uint32_t programs_class_of(struct model *m, const struct model_program *program)
{
    uint32_t c = 0;

    while (c < m->n_classes && !program_is_alike(&m->classes[c].program->program, &program->program))
        c++;
    if (c == m->n_classes && c < MODEL_CLASSES)
        m->classes[m->n_classes++].program = program;
    return c;
}

/* Counts the layers of each program and class. A class's ranks begin where those of the class before end. */
static int classify(struct model *m, struct error *err)
{
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const struct model_kind kind = model_kind_of_block(m, i);
        for (struct model_program *p = &m->programs[kind.first]; p < &m->programs[kind.first + kind.n]; p++) {
            if (p->n_layers++ == 0 && (p->class = programs_class_of(m, p)) == MODEL_CLASSES)
                return error_set(err, -EINVAL,
                                 "the model has blocks of more than %d shapes: use fewer different widths, or ranks of "
                                 "adapters",
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

/* What blocks there are: which kinds, of which forms. */
struct blocks {
    bool has[(MODEL_WIDTHS + MODEL_GUESTS) * ADAPTER_FORMS][KINDS];
};

/* Only what some block has is written: a family may list kinds that a config does not use. */
static void find_kinds(struct blocks *out, const struct model_config *c)
{
    const struct family_layer *row;

    *out = (struct blocks){0};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const uint32_t kind = programs_find_kind(&row, c, i);
        assert(kind < KINDS);
        out->has[programs_form_of(c, i)][kind] = true;
    }
}

/* A row must have the tokens that programs take. */
static void programs_count_taken(struct model *m, const struct program *p)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
        const uint32_t least =
            op->kind == &operation_take ? program_own_least(&p->own[op->take.domain - PROGRAM_OWN]) : 0;
        m->least_tokens = m->least_tokens < least ? least : m->least_tokens;
    }
    if (m->config.image.height > 0)
        m->least_tokens = m->config.n_positions;
}

/* The program as its family writes it, to be completed; it is adapted as this form of the adapter's says. */
static void complete_program(struct model *m, struct model_program *p, uint32_t adapter_form)
{
    if (m->config.adapter.rank > 0)
        model_adapt_program(&p->program, &m->config.adapter, adapter_form);
    for (uint32_t own = 0; own < PROGRAM_DOMAINS - PROGRAM_OWN; own++)
        p->program.own[own] = model_own_domain(&m->config, own);
    model_complete_program(p);
    programs_count_taken(m, &p->program);
}

/* How the layers that run the program are adapted. */
static uint32_t adapter_form_of(const struct model *m, const struct model_program *p)
{
    return p->row->kind == MODEL_BLOCK ? p->form % model_count_adapter_forms(&m->config.adapter)
                                       : m->config.adapter.forms.outside;
}

/* Adds the next program: of a row of the family's list, of blocks of this kind and form, which config writes. */
static void write_program(struct model *m, const struct family_layer *row, uint32_t form, uint32_t kind,
                          const struct model_config *config)
{
    struct model_program *p = &m->programs[m->n_programs++];

    p->row = row, p->form = form, p->kind = kind;
    if (row->write_kind)
        row->write_kind(&p->program, config, kind);
    else
        row->write(&p->program, config);
    complete_program(m, p, adapter_form_of(m, p));
}

/* Writes the programs of all kinds of block that there are, form by form. */
static void programs_write_blocks(struct model *m, const struct blocks *blocks)
{
    struct model_config config;

    m->block = m->n_programs;
    for (uint32_t form = 0; form < count_forms(&m->config); form++) {
        form_config(&config, &m->config, form);
        const struct family_layer *row = find_blocks(model_layers_of(&config)), *end;
        for (uint32_t kind = 0; row->name && row->kind == MODEL_BLOCK; kind++, row = end) {
            end = end_of_kind(row);
            for (const struct family_layer *r = row; r < end && blocks->has[form][kind]; r++)
                write_program(m, r, form, kind, &config);
        }
    }
    m->n_block_programs = m->n_programs - m->block;
}

/* Behind all programs of layers, so that the index of a layer's program says what it is. */
static void write_finishes(struct model *m)
{
    for (struct model_program *p = m->programs; p < m->programs + m->n_programs; p++)
        if (p->row->finish) {
            struct model_program *finish = &m->programs[m->n_programs + m->n_finishes++];
            p->row->finish(&finish->program, &m->config, p->kind);
            complete_program(m, finish, adapter_form_of(m, p));
            p->finish = finish;
        }
}

/* With what finishes layers: at most. */
static uint32_t count_programs(const struct model_config *c, const struct blocks *blocks)
{
    struct model_config config;
    uint32_t n = 0;

    for (const struct family_layer *row = model_layers_of(c); row->name; row++)
        n += row->kind == MODEL_BLOCK ? 0 : row->finish ? 2 : 1;
    for (uint32_t form = 0; form < count_forms(c); form++) {
        form_config(&config, c, form);
        const struct family_layer *const first = find_blocks(model_layers_of(&config));
        uint32_t kind = 0;
        for (const struct family_layer *row = first; row->name && row->kind == MODEL_BLOCK; row++) {
            kind += row > first && !row->goes_on;
            n += !blocks->has[form][kind] ? 0 : row->finish ? 2 : 1;
        }
    }
    return n;
}

int model_write_programs(struct model *m, struct error *err)
{
    const struct family_layer *row = model_layers_of(&m->config);
    struct blocks blocks;

    find_kinds(&blocks, &m->config);
    m->programs = calloc(count_programs(&m->config, &blocks), sizeof *m->programs);
    if (!m->programs)
        return error_set(
            err, -ENOMEM,
            "no memory for the programs of a model of %u layers: free some, or raise the limit of addresses "
            "(ulimit -v)",
            m->config.n_layers);
    for (; row->name && row->kind != MODEL_BLOCK; row++)
        write_program(m, row, 0, 0, &m->config);
    programs_write_blocks(m, &blocks);
    for (; row->name; row++)
        if (row->kind != MODEL_BLOCK)
            write_program(m, row, 0, 0, &m->config);
    write_finishes(m);
    return classify(m, err);
}
