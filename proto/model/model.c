#include "proto/model/model.h"

#include "proto/model/family.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table that is cut by rows is cut into units about as large as a block's, since a device needs room for that anyway,
 * but never into crumbs: a transfer below a few MiB costs more in messages than in bytes. Nor does a unit of the
 * vocabulary have more rows than make 8 MiB of logits for 256 tokens: enough for a product to run at full speed. */
enum { LEAST_CUT = 4 << 20 /* bytes */, MOST_ROWS = 8192 };

enum { BLOCK, NORM, PROGRAMS }; /* of struct model */

static uint64_t tensor_n(const struct program_tensor *t)
{
    return (uint64_t)t->rows * (t->columns ? t->columns : 1);
}

static uint64_t count_elements(const struct program *program)
{
    uint64_t n = 0;

    for (int i = 0; i < program->n_tensors; i++)
        n += tensor_n(&program->tensors[i]);
    return n;
}

/* Rows of one unit when a table (rows, width) is cut evenly. */
static uint64_t rows_per_unit(const struct model *m, uint64_t rows, uint64_t most_rows)
{
    const uint64_t width = m->config.width, block = count_elements(&m->programs[BLOCK].program);
    const uint64_t target = 4 * block > LEAST_CUT ? 4 * block : LEAST_CUT;
    const uint64_t by_bytes = (4 * rows * width + target - 1) / target, by_rows = (rows + most_rows - 1) / most_rows;
    const uint64_t n = by_bytes > by_rows ? by_bytes : by_rows;

    return (rows + n - 1) / n;
}

/* Positions have no logits. */
static uint64_t vocabulary_per_unit(const struct model *m)
{
    return rows_per_unit(m, m->config.vocabulary, MOST_ROWS);
}

static uint64_t positions_per_unit(const struct model *m)
{
    return rows_per_unit(m, m->config.n_positions, m->config.n_positions);
}

static uint32_t count_units(uint64_t rows, uint64_t each)
{
    return (uint32_t)((rows + each - 1) / each);
}

/* All that follows from a program. */
static void complete_program(struct model_program *p)
{
    p->kept[MODEL_KEEPS_NOTHING] = 0;
    p->kept[MODEL_KEEPS_ALL] = program_keepable(&p->program);
    for (int keeping = 0; keeping < MODEL_KEEPINGS; keeping++) {
        schedule_forward(&p->forward[keeping], &p->program, p->kept[keeping]);
        schedule_backward(&p->backward[keeping], &p->program, p->kept[keeping]);
    }
}

static int write_programs(struct model *m)
{
    m->programs = calloc(PROGRAMS, sizeof *m->programs);
    if (!m->programs)
        return -ENOMEM;
    m->config.family->write_embedding(&m->embedding, &m->config);
    m->config.family->write_block(&m->programs[BLOCK].program, &m->config);
    m->config.family->write_norm(&m->programs[NORM].program, &m->config);
    for (int i = 0; i < PROGRAMS; i++)
        complete_program(&m->programs[i]);
    return 0;
}

static int allocate(struct model *m)
{
    const struct model_config *c = &m->config;
    const uint32_t n_wte = count_units(c->vocabulary, vocabulary_per_unit(m));
    const uint32_t n_wpe = count_units(c->n_positions, positions_per_unit(m));
    const uint32_t n_block = (uint32_t)m->programs[BLOCK].program.n_tensors;
    const uint32_t n_norm = (uint32_t)m->programs[NORM].program.n_tensors;
    const uint32_t n_cut = n_wte + n_wpe + (c->tied ? 0 : n_wte);

    m->tensors = calloc(n_block * c->n_layers + n_norm + 3, sizeof *m->tensors);
    m->pieces = calloc(n_cut + n_block * c->n_layers + n_norm, sizeof *m->pieces);
    m->units = calloc(n_cut + c->n_layers + 1, sizeof *m->units);
    m->layers = calloc(c->n_layers + 3, sizeof *m->layers);
    m->visits = calloc(2 * n_wte + n_wpe + c->n_layers + 1, sizeof *m->visits);
    m->visit_layers = calloc(2 * n_wte + n_wpe + c->n_layers + 1, sizeof *m->visit_layers);
    return m->tensors && m->pieces && m->units && m->layers && m->visits && m->visit_layers ? 0 : -ENOMEM;
}

/* The tensor's index; its name is the caller's to write. columns 0: a vector. */
static uint32_t add_tensor(struct model *m, uint64_t rows, uint64_t columns, enum model_init init, float deviation)
{
    struct model_tensor *t = &m->tensors[m->n_tensors];

    t->n_dims = columns ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns ? columns : 1;
    t->n = t->shape[0] * t->shape[1];
    t->decays = columns != 0;
    t->init = init;
    t->deviation = init == MODEL_INIT_NORMAL ? deviation : 0;
    m->n_parameters += t->n;
    return m->n_tensors++;
}

static void open_unit(struct model *m, uint64_t kind, uint64_t layer, uint64_t chunk)
{
    m->units[m->n_units] =
        (struct model_unit){.id = kind << 56 | layer << 24 | chunk, .first_piece = m->n_pieces, .offset = m->segment_n};
}

static void add_piece(struct model *m, uint32_t tensor, uint64_t first_row, uint64_t n_rows)
{
    struct model_unit *unit = &m->units[m->n_units];
    const uint64_t n = n_rows * m->tensors[tensor].shape[1];

    m->pieces[m->n_pieces++] = (struct model_piece){tensor, first_row, n_rows, unit->n, n};
    unit->n_pieces++;
    unit->n += n;
}

static void close_unit(struct model *m)
{
    struct model_unit *unit = &m->units[m->n_units++];

    unit->n_slices = (uint32_t)((unit->n + MODEL_SLICE - 1) / MODEL_SLICE);
    m->segment_n += model_rounded(unit->n);
    if (m->largest_unit < unit->n)
        m->largest_unit = unit->n;
}

static void open_layer(struct model *m, enum model_layer_kind kind, uint32_t index)
{
    const bool computes = kind == MODEL_BLOCK || kind == MODEL_NORM;

    m->layers[m->n_layers++] =
        (struct model_layer){.kind = kind,
                             .program = computes ? &m->programs[kind == MODEL_BLOCK ? BLOCK : NORM] : NULL,
                             .index = index,
                             .first_visit = m->n_visits};
}

/* By the layer that was opened last. */
static void visit(struct model *m, uint32_t unit)
{
    m->visits[m->n_visits] = unit;
    m->visit_layers[m->n_visits++] = m->n_layers - 1;
    m->layers[m->n_layers - 1].n_visits++;
    m->units[unit].n_visits++;
}

/* One tensor in units of its own, each visited by the layer that is open; table tells apart those of one kind. */
static void add_table(struct model *m, uint32_t tensor, enum model_layer_kind kind, uint32_t table, uint64_t each)
{
    const uint64_t rows = m->tensors[tensor].shape[0];

    for (uint64_t first = 0, chunk = 0; first < rows; first += each, chunk++) {
        open_unit(m, kind, table, chunk);
        add_piece(m, tensor, first, rows - first < each ? rows - first : each);
        close_unit(m);
        visit(m, m->n_units - 1);
    }
}

/* A layer of one unit, that of its program's tensors. in_front: of their names. */
static void add_layer(struct model *m, enum model_layer_kind kind, uint32_t index, const char *in_front)
{
    open_layer(m, kind, index);
    open_unit(m, kind, index, 0);
    const struct program *p = &m->layers[m->n_layers - 1].program->program;
    for (const struct program_tensor *t = p->tensors; t < p->tensors + p->n_tensors; t++) {
        const uint32_t tensor = add_tensor(m, t->rows, t->columns, t->init, t->deviation);
        char *name = m->tensors[tensor].name;
        const int n = snprintf(name, sizeof m->tensors->name, "%s%s", in_front, t->name);
        assert(n > 0 && (size_t)n < sizeof m->tensors->name);
        add_piece(m, tensor, 0, t->rows);
    }
    close_unit(m);
    visit(m, m->n_units - 1);
}

static void add_block(struct model *m, uint32_t index)
{
    char block[16], in_front[40];

    snprintf(block, sizeof block, m->config.family->block, index);
    snprintf(in_front, sizeof in_front, "%s%s.", m->config.family->prefix, block);
    add_layer(m, MODEL_BLOCK, index, in_front);
}

/* A table (rows, width): the tensor's index. */
static uint32_t add_table_tensor(struct model *m, const char *in_front, const char *name, uint64_t rows)
{
    const uint32_t tensor = add_tensor(m, rows, m->config.width, MODEL_INIT_NORMAL, m->config.initializer_range);

    snprintf(m->tensors[tensor].name, sizeof m->tensors->name, "%s%s.weight", in_front, name);
    return tensor;
}

int model_init(struct model *out, const struct model_config *config, struct error *err)
{
    struct model *m = out;

    *m = (struct model){0};
    int rc = model_config_check(config, err);
    if (rc != 0)
        return rc;
    m->config = *config;
    if (write_programs(m) != 0 || allocate(m) != 0) {
        model_free(m);
        return error_set(err, -ENOMEM, "no memory for the description of a model of %u layers", config->n_layers);
    }

    const char *prefix = m->config.family->prefix;
    open_layer(m, MODEL_EMBEDDING, 0);
    m->tokens = add_table_tensor(m, prefix, m->config.family->tokens, config->vocabulary);
    m->positions = add_table_tensor(m, prefix, m->config.family->positions, config->n_positions);
    add_table(m, m->tokens, MODEL_EMBEDDING, 0, vocabulary_per_unit(m));
    const uint32_t n_token_units = m->n_units;
    add_table(m, m->positions, MODEL_EMBEDDING, 1, positions_per_unit(m));
    for (uint32_t i = 0; i < config->n_layers; i++)
        add_block(m, i);
    add_layer(m, MODEL_NORM, 0, prefix);
    open_layer(m, MODEL_HEAD, 0);
    if (config->tied)
        for (uint32_t unit = 0; unit < n_token_units; unit++)
            visit(m, unit);
    else
        add_table(m, add_table_tensor(m, "", m->config.family->logits, config->vocabulary), MODEL_HEAD, 0,
                  vocabulary_per_unit(m));
    return 0;
}

void model_free(struct model *model)
{
    free(model->programs);
    free(model->tensors);
    free(model->pieces);
    free(model->units);
    free(model->layers);
    free(model->visits);
    free(model->visit_layers);
    *model = (struct model){0};
}

const struct model_tensor *model_find(const struct model *model, const char *name)
{
    const char *prefix = model->config.family->prefix;
    const size_t n = strlen(prefix);

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (strcmp(t->name, name) == 0 || (strncmp(t->name, prefix, n) == 0 && strcmp(t->name + n, name) == 0))
            return t;
    }
    return NULL;
}

const char *model_unit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t unit)
{
    const struct model_unit *u = &model->units[unit];
    const struct model_piece *piece = &model->pieces[u->first_piece];
    const enum model_layer_kind kind = (enum model_layer_kind)(u->id >> 56);
    const unsigned layer = (unsigned)(u->id >> 24), chunk = (unsigned)(u->id & 0xFFFFFF);
    const struct family *f = model->config.family;
    const char *table = kind == MODEL_HEAD ? f->logits : layer == 0 ? f->tokens : f->positions;

    if (kind == MODEL_BLOCK)
        snprintf(out, MODEL_NAME_BYTES, f->block, layer);
    else if (kind == MODEL_NORM)
        snprintf(out, MODEL_NAME_BYTES, "%s", f->norm);
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

    snprintf(out, MODEL_NAME_BYTES, "%s%.20s", head ? "head " : "", model_unit_name(name, model, model->visits[visit]));
    return out;
}

bool model_is_mask(const struct model *model, const char *name)
{
    const struct family *family = model->config.family;
    const size_t n = strlen(family->prefix);

    return family->is_mask && family->is_mask(strncmp(name, family->prefix, n) == 0 ? name + n : name);
}

bool model_is_tied_copy(const struct model *model, const char *name)
{
    const char *logits = model->config.family->logits;
    const size_t n = strlen(logits);

    return model->config.tied && strncmp(name, logits, n) == 0 && strcmp(name + n, ".weight") == 0;
}

int model_refuse_tied_copy(const struct model *model, struct error *err)
{
    const struct family *family = model->config.family;

    return error_set(
        err, -EINVAL,
        "%s.weight differs from %s.weight, though config.json ties them (tie_word_embeddings); set that to "
        "false to train them apart",
        family->logits, family->tokens);
}

const char *model_title(char out[MODEL_TITLE_BYTES], const struct model_config *config)
{
    if (config->family)
        snprintf(out, MODEL_TITLE_BYTES, "%.20s %ux%u", config->family->model_type, config->n_layers, config->width);
    else
        snprintf(out, MODEL_TITLE_BYTES, "no model");
    return out;
}

size_t model_slot_bytes(const struct model *model, enum number_type type)
{
    const uint64_t n = model->largest_unit < MODEL_SLICE ? model->largest_unit : MODEL_SLICE;

    return (n * number_bytes(type) + 63) / 64 * 64;
}
