/* Indices of units, tensors and visits go over the wire, so every process must come to the same ones: they follow
 * from the config alone, in one pass from the bottom up. Arrays are allocated once, for the most that a family can
 * add: what points into them stays right while more is added. */
#include "proto/model/model.h"

#include "proto/model/family.h"
#include "proto/model/model_internal.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table is cut by rows into units about as large as a block's, since a device needs room for that anyway, but not
 * below a few MiB, where messages would cost more than bytes. A unit of the vocabulary has at most the rows that make 8
 * MiB of logits for 256 tokens: enough for a product at full speed. */
enum { LEAST_CUT = 4 << 20 /* bytes */, MOST_ROWS = 8192 };

static uint64_t tensor_n(const struct program_tensor *t)
{
    return (uint64_t)t->rows * (t->columns ? t->columns : 1);
}

static uint64_t model_count_elements(const struct program *program)
{
    uint64_t n = 0;

    for (int i = 0; i < program->n_tensors; i++)
        n += tensor_n(&program->tensors[i]);
    return n;
}

/* Elements of the largest layer of a block. */
static uint64_t largest_block(const struct model *m)
{
    const struct model_program *const first = &m->programs[m->block];
    uint64_t most = 0;

    for (const struct model_program *p = first; p < first + m->n_block_programs; p++) {
        const uint64_t n = p->n_layers > 0 ? model_count_elements(&p->program) : 0;
        most = most < n ? n : most;
    }
    return most;
}

/* Rows of one unit when a table (rows, width) is cut evenly. Cut evenly, so that no last unit is much smaller than
 * the others and costs a message for little. */
static uint64_t rows_per_unit(const struct model *m, uint64_t rows, uint64_t most_rows)
{
    const uint64_t width = m->config.width, block = largest_block(m);
    const uint64_t target = 4 * block > LEAST_CUT ? 4 * block : LEAST_CUT;
    const uint64_t by_bytes = (4 * rows * width + target - 1) / target, by_rows = (rows + most_rows - 1) / most_rows;
    const uint64_t n = by_bytes > by_rows ? by_bytes : by_rows;

    return (rows + n - 1) / n;
}

/* Only tables that make logits have a limit of rows. */
static uint64_t rows_of_each(const struct model *m, enum model_lookup by, uint64_t rows)
{
    return rows_per_unit(m, rows, by == MODEL_BY_TOKEN ? MOST_ROWS : rows);
}

static uint32_t count_units(uint64_t rows, uint64_t each)
{
    return (uint32_t)((rows + each - 1) / each);
}

/* The head's table. */
const char *model_logits_name(const struct model *m)
{
    const struct family *family = m->config.family;

    return m->config.n_labels ? family->classifier->logits : family->logits;
}

/* A guest's block has the names and kinds of its own family. */
const struct family *model_family_of_block(const struct model *m, uint32_t index)
{
    const uint32_t guest = model_guest_of(&m->config, index);

    return guest ? m->config.guests.at[guest - 1].family : m->config.family;
}

uint32_t model_block_number(const struct model *m, uint32_t index)
{
    const struct family *family = m->config.family;

    return family->number_of_block ? family->number_of_block(&m->config, index) : index;
}

static uint32_t model_number_at(const struct model *m, size_t offset)
{
    uint32_t n;

    memcpy(&n, (const char *)&m->config + offset, sizeof n); /* may be of the family's own numbers */
    return n;
}

static uint64_t table_rows(const struct model *m, const struct family_table *table)
{
    return table->some ? table->some : model_number_at(m, table->rows);
}

/* Allocates upper bounds that follow from the family's layers and tables. */
static int model_allocate(struct model *m)
{
    const struct model_config *c = &m->config;
    const uint32_t n_chunks = count_units(model_outputs(c), rows_of_each(m, MODEL_BY_TOKEN, model_outputs(c)));
    const uint32_t n_layers = m->n_block_layers + m->n_programs - m->n_block_programs;
    uint32_t n_tensors = 1, n_units = n_layers + n_chunks, n_pieces = n_chunks;

    for (const struct family_table *table = c->family->tables; table && table->name; table++) {
        const uint64_t rows = table_rows(m, table);
        const uint32_t n = rows > 0 ? count_units(rows, rows_of_each(m, table->by, rows)) : 0;
        n_tensors++, n_units += n, n_pieces += n;
    }
    for (uint32_t i = 0; i < m->n_programs; i++) {
        const uint32_t times = model_runs_in_blocks(m, i) ? m->programs[i].n_layers : 1;
        const struct program *p = &m->programs[i].program;
        const uint32_t n = program_tensors_before(p, p->n_tensors) * times;
        n_tensors += n, n_pieces += n;
    }
    m->tensors = calloc(n_tensors, sizeof *m->tensors);
    m->pieces = calloc(n_pieces, sizeof *m->pieces);
    m->units = calloc(n_units, sizeof *m->units);
    m->layers = calloc(n_layers + 2, sizeof *m->layers);
    m->ranked = calloc(m->n_block_layers, sizeof *m->ranked);
    m->visits = calloc(n_units, sizeof *m->visits);
    m->visit_layers = calloc(n_units, sizeof *m->visit_layers);
    m->trained_visits = calloc(n_units, sizeof *m->trained_visits);
    m->trained_below = calloc(n_units, sizeof *m->trained_below);
    return m->tensors && m->pieces && m->units && m->layers && m->ranked && m->visits && m->visit_layers &&
                   m->trained_visits && m->trained_below
               ? 0
               : -ENOMEM;
}

/* Returns the tensor's index; the caller writes its name. columns 0: a vector. Vectors, norms and biases, do not
 * decay, as is custom. */
static uint32_t model_add_tensor(struct model *m, uint64_t rows, uint64_t columns, enum model_init init,
                                 float deviation)
{
    struct model_tensor *t = &m->tensors[m->n_tensors];

    t->n_dims = columns ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns ? columns : 1;
    t->n = t->shape[0] * t->shape[1];
    t->decays = columns != 0;
    t->init = init;
    t->deviation = init == MODEL_INIT_ZERO || init == MODEL_INIT_ONE ? 0 : deviation;
    m->n_parameters += t->n;
    return m->n_tensors++;
}

/* An id is made of what the unit is, not of its index: kind, layer or table, chunk. Random bits are keyed by it. */
static void open_unit(struct model *m, uint64_t kind, uint64_t layer, uint64_t chunk)
{
    m->units[m->n_units] = (struct model_unit){.id = kind << 56 | layer << 24 | chunk, .first_piece = m->n_pieces};
}

/* A unit's elements are its pieces', one after another; model_divide arranges them anew, trained ones first. */
static void add_piece(struct model *m, uint32_t tensor, uint64_t first_row, uint64_t n_rows)
{
    struct model_unit *unit = &m->units[m->n_units];
    const uint64_t n = n_rows * m->tensors[tensor].shape[1];

    m->pieces[m->n_pieces++] =
        (struct model_piece){.tensor = tensor, .first_row = first_row, .n_rows = n_rows, .offset = unit->n, .n = n};
    unit->n_pieces++;
    unit->n += n;
}

static struct model_layer *open_layer(struct model *m, enum model_layer_kind kind, uint32_t index)
{
    struct model_layer *layer = &m->layers[m->n_layers++];

    *layer = (struct model_layer){.kind = kind, .index = index, .first_visit = m->n_visits};
    return layer;
}

/* Adds a visit by the layer that was opened last. Visits are numbered from the bottom up, as forward runs them. */
static void model_visit(struct model *m, uint32_t unit)
{
    m->visits[m->n_visits] = unit;
    m->visit_layers[m->n_visits++] = m->n_layers - 1;
    m->layers[m->n_layers - 1].n_visits++;
    m->units[unit].n_visits++;
}

/* Adds a table (rows, width) in units of its own, each visited by the open layer; `table` distinguishes tables of one
 * kind. Returns the tensor. A tied head visits them again. */
static uint32_t add_table(struct model *m, enum model_layer_kind kind, uint32_t table, enum model_lookup by,
                          uint64_t rows, const char *in_front, const char *name)
{
    const uint32_t tensor = model_add_tensor(m, rows, m->config.width, MODEL_INIT_NORMAL, m->config.initializer_range);
    const uint64_t each = rows_of_each(m, by, rows);

    snprintf(m->tensors[tensor].name, sizeof m->tensors->name, "%s%s.weight", in_front, name);

    for (uint64_t first = 0, chunk = 0; first < rows; first += each, chunk++) {
        open_unit(m, kind, table, chunk);
        add_piece(m, tensor, first, rows - first < each ? rows - first : each);
        m->n_units++;
        model_visit(m, m->n_units - 1);
    }
    return tensor;
}

/* Adds a program's tensor to the open unit: of a stack, its i'th. in_front precedes its name. */
static void model_add_program_tensor(struct model *m, const struct program *p, int slot, uint32_t i,
                                     const char *in_front)
{
    const struct program_tensor *t = &p->tensors[slot];
    const uint32_t tensor = model_add_tensor(m, t->rows, t->columns, t->init, t->deviation);
    struct model_tensor *to = &m->tensors[tensor];
    const size_t n_in_front = strlen(in_front), n = strlen(t->name);

    assert(n_in_front + n + (t->n_stacked ? 8 : 0) < sizeof to->name);
    memcpy(to->name, in_front, n_in_front); /* snprintf would take longer than all else here */
    if (t->n_stacked)
        snprintf(to->name + n_in_front, sizeof to->name - n_in_front, t->name, i);
    else
        memcpy(to->name + n_in_front, t->name, n);
    add_piece(m, tensor, 0, t->rows);
    m->pieces[m->n_pieces - 1].slot = (uint8_t)slot;
    to->least = t->least;
    to->adapts = t->adapts;
    to->height = t->height, to->width = t->width;
    to->over_tokens = t->over_tokens;
    to->heads = t->heads;
    to->n_stacked = t->n_stacked;
    /* Running statistics are saved as tensors, but are no parameters. */
    if (t->averages) {
        to->averages = true;
        m->n_parameters -= to->n;
    }
    if (t->fixed) {
        to->fixed = true;
        m->n_parameters -= to->n;
    }
    if (slot == p->logit_bias)
        m->logit_bias = to;
}

/* Adds a layer of one unit with its program's tensors: of a block, its part'th. in_front precedes their names. */
static void model_add_layer(struct model *m, enum model_layer_kind kind, uint32_t index, uint32_t part,
                            uint32_t program, const char *in_front)
{
    struct model_layer *layer = open_layer(m, kind, index);
    const struct program *p = &m->programs[program].program;

    layer->part = part;
    layer->program = &m->programs[program];
    layer->name = m->programs[program].row->name;
    open_unit(m, kind, index, part);
    m->units[m->n_units].program = program;
    for (int slot = 0; slot < p->n_tensors; slot++)
        for (uint32_t i = 0; i < (p->tensors[slot].n_stacked ? p->tensors[slot].n_stacked : 1); i++)
            model_add_program_tensor(m, p, slot, i, in_front);
    m->n_units++;
    model_visit(m, m->n_units - 1);
}

static void add_block(struct model *m, uint32_t index)
{
    const struct model_kind kind = model_kind_of_block(m, index);
    char block[24], in_front[40];

    for (uint32_t part = 0; part < kind.n; part++) {
        const char *name = m->programs[kind.first + part].row->name;
        /* Later parts of a block may be named within it; one that has a number of its own begins anew. */
        if (part == 0 || !strchr(name, '%')) {
            snprintf(block, sizeof block, name, model_block_number(m, index));
            snprintf(in_front, sizeof in_front, "%s%s.", model_family_of_block(m, index)->prefix, block);
        }
        model_add_layer(m, MODEL_BLOCK, index, part, kind.first + part, in_front);
    }
}

static void add_embedding(struct model *m)
{
    const struct family *family = m->config.family;
    struct model_embedding *e = &m->embedding;

    if (!family->tables)
        return;
    open_layer(m, MODEL_EMBEDDING, 0);
    if (family->embedding_dropout)
        e->dropout = family->embedding_dropout(&m->config);
    if (family->embedding_scale)
        e->scale = family->embedding_scale(&m->config);
    for (const struct family_table *table = family->tables; table->name; table++) {
        if (table_rows(m, table) == 0)
            continue;
        assert(e->n_tables < MODEL_TABLES && (table->by == MODEL_BY_TOKEN) == (e->n_tables == 0));
        const uint32_t tensor =
            add_table(m, MODEL_EMBEDDING, e->n_tables, table->by, table_rows(m, table), family->prefix, table->name);
        e->tables[e->n_tables++] =
            (struct model_table){table->by, table->name, tensor, table->first ? model_number_at(m, table->first) : 0};
    }
}

/* Adds the family's layers between embedding and head. Singles before the blocks come first in the list, those
 * behind them last. */
static void add_layers(struct model *m)
{
    const struct family *family = m->config.family;
    uint32_t n_singles = 0;

    for (uint32_t p = 0; p < m->n_programs; p++) {
        if (!model_runs_in_blocks(m, p)) {
            m->programs[p].n_layers = 1;
            model_add_layer(m, MODEL_SINGLE, n_singles++, 0, p, m->programs[p].row->bare ? "" : family->prefix);
        } else if (p == m->block)
            m->first_block = m->n_layers;
        for (uint32_t i = 0; p == m->block && i < m->config.n_layers; i++)
            add_block(m, i);
    }
}

static void rank_blocks(struct model *m)
{
    uint32_t ranks[MODEL_CLASSES] = {0};

    for (uint32_t l = m->first_block; l < m->first_block + m->n_block_layers; l++) {
        const uint32_t c = model_class_of(&m->layers[l]);
        m->layers[l].rank = ranks[c]++;
        m->ranked[m->classes[c].first + m->layers[l].rank] = l;
    }
}

const struct model_layer *model_next_block(const struct model_layer *layer)
{
    do
        layer++;
    while (layer->part > 0);
    return layer;
}

/* The number of blocks whose kind differs from that of the block so many above. */
static uint32_t count_exceptions(const struct model *m, uint32_t period)
{
    const struct model_layer *block = &m->layers[m->first_block], *other = block;
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->config.n_layers; i++, other = model_next_block(other)) {
        if (i < period)
            continue;
        n += block->program != other->program;
        block = model_next_block(block);
    }
    return n;
}

/* The shortest period that the fewest blocks break: planners take one period of blocks and multiply. */
static void find_period(struct model *m)
{
    uint32_t least = count_exceptions(m, 1);

    m->period = 1;
    for (uint32_t period = 2; least > 0 && period <= MODEL_PERIOD && 2 * period <= m->config.n_layers; period++) {
        const uint32_t n = count_exceptions(m, period);
        if (n < least)
            m->period = period, least = n;
    }
}

/* A tied head visits the units of the table of tokens, which come first. */
static void add_head(struct model *m)
{
    open_layer(m, MODEL_HEAD, 0);
    if (m->config.family->logit_cap)
        m->logit_cap = m->config.family->logit_cap(&m->config);
    if (!m->config.tied)
        add_table(m, MODEL_HEAD, 0, MODEL_BY_TOKEN, model_outputs(&m->config), "", model_logits_name(m));
    for (uint32_t unit = 0;
         m->config.tied && m->pieces[m->units[unit].first_piece].tensor == m->embedding.tables[0].tensor; unit++)
        model_visit(m, unit);
}

/* ---- */

static int refuse_memory(const struct model_config *config, struct error *err)
{
    return error_set(err, -ENOMEM, "no memory for the description of a model of %u layers", config->n_layers);
}

/* The order is that of the indices: embedding, layers, head. Values are bound when all layers are known, and units
 * divided last, as what is frozen is decided by the caller afterwards. */
int model_init(struct model *out, const struct model_config *config, struct error *err)
{
    struct model *m = out;

    *m = (struct model){0};
    int rc = model_config_check(config, err);
    if (rc != 0)
        return rc;
    m->config = *config;
    if ((rc = model_write_programs(m, err)) == 0 && model_allocate(m) != 0)
        rc = refuse_memory(config, err);
    if (rc != 0) {
        model_free(m);
        return rc;
    }
    add_embedding(m);
    add_layers(m);
    rank_blocks(m);
    find_period(m);
    add_head(m);
    if (model_bind_values(m) != 0) {
        model_free(m);
        return refuse_memory(config, err);
    }
    model_set_saved(m);
    rc = model_check_stacks(m, err);
    if (rc != 0) {
        model_free(m);
        return rc;
    }
    model_divide(m, (struct model_base){FORM_VALUES, FORM_VALUES});
    if (m->n_trained > 0)
        return 0;
    model_free(m);
    return error_set(err, -EINVAL, "the adapter adapts no layer of this model: its modules are %.200s",
                     config->adapter.modules);
}

void model_free(struct model *model)
{
    free(model->programs);
    free(model->tensors);
    free(model->pieces);
    free(model->units);
    free(model->layers);
    free(model->ranked);
    free(model->visits);
    free(model->visit_layers);
    free(model->trained_visits);
    free(model->trained_below);
    model_free_values(model);
    *model = (struct model){0};
}

const struct model_table *model_table_of(const struct model *model, uint32_t tensor)
{
    const struct model_embedding *e = &model->embedding;
    uint32_t i = 0;

    while (i < e->n_tables && e->tables[i].tensor != tensor)
        i++;
    assert(i < e->n_tables);
    return &e->tables[i];
}

uint32_t model_table_visits(const struct model *model)
{
    return model->layers[0].kind == MODEL_EMBEDDING ? model->layers[0].n_visits : 0;
}

/* The row of the padding token, which PyTorch keeps at zero; of positions that begin behind it, the one before the
 * first. */
uint64_t model_zero_row(const struct model *model, uint32_t tensor)
{
    const struct model_embedding *e = &model->embedding;

    for (uint32_t i = 0; model->config.has_padding && i < e->n_tables; i++) {
        const struct model_table *table = &e->tables[i];
        if (table->tensor == tensor && (table->by == MODEL_BY_TOKEN || table->by == MODEL_BY_SOURCE))
            return model->config.padding;
        if (table->tensor == tensor && table->by == MODEL_BY_POSITION && table->first > 0)
            return table->first - 1;
    }
    return MODEL_NO_ROW;
}

uint32_t model_first_above_blocks(const struct model *model)
{
    const struct model_layer *layer = &model->layers[model->first_block + model->n_block_layers];
    const uint32_t unit = model->visits[layer->first_visit];

    return model->pieces[model->units[unit].first_piece].tensor;
}

/* A slot takes any slice of any unit: the largest trained unit's, or less if that is smaller than a slice; or norms. */
size_t model_slot_bytes(const struct model *model, enum number_type type)
{
    const uint64_t largest = model->largest_trained < model->most_norms ? model->most_norms : model->largest_trained;
    const uint64_t n = largest < MODEL_SLICE ? largest : MODEL_SLICE;

    return (n * number_bytes(type) + 63) / 64 * 64;
}
